//! Findings that the ignore file hides, and the status of its entries.

use serde::Serialize;

use kpx_judge::check::{EntryStatus, EntryUse, Hidden, Severity};

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
    /// The problem.
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

impl Ignored {
    pub(super) fn new(of: Hidden) -> Self {
        Self {
            id: of.check.id,
            name: of.check.name,
            severity: of.finding.severity,
            subject: of.finding.subject,
            message: of.finding.message,
            reason: of.reason,
            expires: of.expires,
        }
    }
}

impl IgnoreEntry {
    pub(super) fn new(of: &EntryUse) -> Self {
        Self {
            line: of.entry.line,
            check: of.entry.check.id,
            subject: of.entry.subject.clone(),
            expires: of.entry.expires.clone(),
            status: of.status,
            findings: of.findings,
        }
    }
}
