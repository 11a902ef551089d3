//! What the operator's ignore file hides, and what became of its entries.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::check::ignore::{Entry, Ignores};
use crate::check::{Check, Finding, Severity};
use crate::evidence::Time;

/// A finding that the ignore file hides.
#[derive(Debug, Serialize)]
pub struct Ignored {
    /// The check that found it.
    pub id: &'static str,
    /// The check's slug.
    pub name: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What it is about.
    pub subject: String,
    /// What was seen, and what was expected.
    pub message: String,
    /// Why it may be ignored.
    pub reason: String,
    /// Until when: the last day.
    pub expires: String,
}

/// What became of an entry of the ignore file.
#[derive(Debug, Serialize)]
pub struct IgnoreEntry {
    /// Where it begins in the file.
    pub line: u64,
    /// The check it is about.
    pub check: &'static str,
    /// The subjects it is about; unset for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The last day it counts.
    pub expires: String,
    /// What became of it.
    pub status: EntryStatus,
    /// How many findings it hides or, once it is over, hid.
    pub findings: usize,
}

/// What became of an entry of the ignore file.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntryStatus {
    /// It hides something.
    Used,
    /// There is nothing for it to hide.
    Unused,
    /// Its day is over, and it hides nothing any more.
    Expired,
    /// Its check did not run, or could not tell.
    Unknown,
}

/// An ignore file in use.
#[derive(Debug)]
pub struct IgnoreFile {
    /// Its path, for people.
    pub path: String,
    /// What it says.
    pub ignores: Ignores,
    /// Against when expiry is held.
    pub now: Time,
}

impl IgnoreFile {
    /// Takes what is to be ignored out of `found`, and returns it.
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

    /// Returns what becomes of each entry; `found` is what all checks found, `told` whether a check could tell.
    pub(super) fn entries(
        &self,
        found: &BTreeMap<&'static str, (&'static Check, Vec<Finding>)>,
        told: impl Fn(&Check) -> bool,
    ) -> Vec<IgnoreEntry> {
        let of = |entry: &Entry| {
            let findings = found.get(entry.check.id).map_or(0, |(check, findings)| {
                let named = findings.iter().filter(|f| entry.names(check, f));
                named.count()
            });
            let status = match findings {
                _ if entry.is_over(self.now) => EntryStatus::Expired,
                1.. => EntryStatus::Used,
                0 if told(entry.check) => EntryStatus::Unused,
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
