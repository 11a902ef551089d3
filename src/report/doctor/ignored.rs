//! Findings that the ignore file hides, and the status of its entries.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::check::ignore::{Entry, Ignores};
use crate::check::{Check, Finding, Severity};
use crate::evidence::Time;

/// A finding that the ignore file hides.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Ignored {
    /// The id of its check.
    pub id: &'static str,
    /// The name of its check.
    pub name: &'static str,
    /// Its severity.
    pub severity: Severity,
    /// The object that it is about.
    pub subject: String,
    /// What is wrong.
    pub message: String,
    /// The operator's reason.
    pub reason: String,
    /// The last day of the entry.
    pub expires: String,
}

/// An entry of the ignore file.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct IgnoreEntry {
    /// Its first line in the file.
    pub line: u64,
    /// The id of its check.
    pub check: &'static str,
    /// Its pattern of subjects; unset for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Its last day.
    pub expires: String,
    /// Its status.
    pub status: EntryStatus,
    /// The number of findings that it hides or, if expired, would hide.
    pub findings: usize,
}

/// The status of an entry of the ignore file.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EntryStatus {
    /// It hides findings.
    Used,
    /// It matches no finding.
    Unused,
    /// It has expired and hides nothing.
    Expired,
    /// Its check did not run, or is unknown.
    Unknown,
}

/// An ignore file in use.
#[derive(Debug)]
pub(crate) struct IgnoreFile {
    /// Its path.
    pub path: String,
    /// Its entries.
    pub ignores: Ignores,
    /// The time that expiry is compared with.
    pub now: Time,
}

impl IgnoreFile {
    /// Removes the ignored findings from `found`, and returns them.
    pub(super) fn hide(
        &self,
        found: &mut BTreeMap<&'static str, (&'static Check, Vec<Finding>)>,
    ) -> Vec<Ignored> {
        let mut hidden = Vec::new();
        for (check, findings) in found.values_mut() {
            findings.retain(|finding| {
                let Some(at) = self.ignores.hides(check, finding, self.now) else {
                    return true;
                };
                let entry = &self.ignores.entries[at];
                hidden.push(Ignored {
                    id: check.id,
                    name: check.name,
                    severity: finding.severity,
                    subject: finding.subject.clone(),
                    message: finding.message.clone(),
                    reason: entry.reason.clone(),
                    expires: entry.expires.clone(),
                });
                false
            });
        }
        found.retain(|_, (_, findings)| !findings.is_empty());
        hidden.sort_by(|a, b| (b.severity, a.id, &a.subject).cmp(&(a.severity, b.id, &b.subject)));
        hidden
    }

    /// Returns the entries with their status; `found` has the findings of all checks, `is_known` is true for checks that
    /// passed or failed.
    pub(super) fn entries(
        &self,
        found: &BTreeMap<&'static str, (&'static Check, Vec<Finding>)>,
        is_known: impl Fn(&Check) -> bool,
    ) -> Vec<IgnoreEntry> {
        let of = |entry: &Entry| {
            let findings = found.get(entry.check.id).map_or(0, |(check, findings)| {
                let named = findings.iter().filter(|f| entry.names(check, f));
                named.count()
            });
            let status = match findings {
                _ if entry.is_over(self.now) => EntryStatus::Expired,
                1.. => EntryStatus::Used,
                0 if is_known(entry.check) => EntryStatus::Unused,
                0 => EntryStatus::Unknown,
            };
            IgnoreEntry {
                line: entry.line,
                check: entry.check.id,
                subject: entry.subject.clone(),
                expires: entry.expires.clone(),
                status,
                findings,
            }
        };
        self.ignores.entries.iter().map(of).collect()
    }
}
