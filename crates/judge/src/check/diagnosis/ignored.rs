//! Findings that the operator ignores, and the status of each entry of the ignore file.

use serde::Serialize;

use super::causes::Found;
use super::{Check, Checked, Finding, Status};
use crate::check::core::ignore::{Entry, Ignores};
use kpx_node::evidence::Time;

/// A finding that the ignore file or kpx's own configuration file hides.
#[derive(Debug)]
pub struct Hidden {
    /// Its check.
    pub check: &'static Check,
    /// The finding.
    pub finding: Finding,
    /// The entry that hides it.
    pub entry: Entry,
}

/// An entry of the ignore file, and the findings that it hides.
#[derive(Debug)]
pub struct EntryUse {
    /// The entry.
    pub entry: Entry,
    /// Its status.
    pub status: EntryStatus,
    /// The number of findings that it hides or, if expired, would hide.
    pub findings: usize,
}

/// The status of an entry of the ignore file.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum EntryStatus {
    /// It hides findings.
    Used,
    /// It matches no finding.
    Unused,
    /// It has expired and hides nothing.
    Expired,
    /// Its check did not run, or is unknown.
    Unknown,
}

/// Removes the ignored findings from `found`, and returns them by severity.
pub(super) fn hide(ignores: &Ignores, now: Time, found: &mut Found) -> Vec<Hidden> {
    let mut hidden = Vec::new();
    found.retain(|check, finding| {
        let Some(at) = ignores.hides(check, finding, now) else {
            return true;
        };
        let entry = &ignores.entries[at];
        hidden.push(Hidden {
            check,
            finding: finding.clone(),
            entry: entry.clone(),
        });
        false
    });
    hidden.sort_by(|a, b| {
        let key = |hidden: &Hidden| (std::cmp::Reverse(hidden.finding.severity), hidden.check.id);
        key(a)
            .cmp(&key(b))
            .then_with(|| a.finding.subject.cmp(&b.finding.subject))
    });
    hidden
}

/// Returns the entries of `ignores` at `now`; `found` has the findings of all `checks`.
pub(super) fn entries(
    ignores: &Ignores,
    now: Time,
    found: &Found,
    checks: &[Checked],
) -> Vec<EntryUse> {
    let is_known = |check: &Check| {
        let mut ours = checks.iter().filter(|checked| checked.check.id == check.id);
        ours.any(|checked| matches!(checked.status, Status::Pass | Status::Fail))
    };
    let of = |entry: &Entry| {
        let findings = found.of(entry.check.id).iter();
        let findings = findings
            .filter(|finding| entry.names(entry.check, finding))
            .count();
        let status = match findings {
            _ if entry.is_over(now) => EntryStatus::Expired,
            1.. => EntryStatus::Used,
            0 if is_known(entry.check) => EntryStatus::Unused,
            0 => EntryStatus::Unknown,
        };
        EntryUse {
            entry: entry.clone(),
            status,
            findings,
        }
    };
    ignores.entries.iter().map(of).collect()
}
