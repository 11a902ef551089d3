//! Findings that the ignore file or the configuration file hides, and the status of their entries.

use serde::Serialize;

use kpx_judge::check::ignore::Entry;
use kpx_judge::check::{EntryStatus, EntryUse, Hidden, Severity};

/// A finding that the ignore file or the configuration file hides.
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
    /// The file with the entry.
    pub by: IgnoredBy,
    /// The operator's reason, if given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The last day of the entry, if given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
}

/// A file with findings to ignore.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum IgnoredBy {
    /// The ignore file.
    IgnoreFile,
    /// The user's configuration file.
    Config,
}

impl IgnoredBy {
    const fn of(entry: &Entry) -> Self {
        match entry.line {
            Some(_) => Self::IgnoreFile,
            None => Self::Config,
        }
    }
}

/// An entry of the ignore file.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct IgnoreEntry {
    /// Its first line in the ignore file; unset for an entry of the configuration file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The id of its check.
    pub check: &'static str,
    /// Its pattern of subjects; unset for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Its last day, if given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// Its status.
    pub status: EntryStatus,
    /// The number of findings that it hides or, if expired, would hide.
    pub findings: usize,
}

impl Ignored {
    /// Returns the operator's reason and the last day, behind a semicolon, as far as they are given.
    pub(crate) fn why(&self) -> String {
        let reason = self.reason.iter().map(|reason| format!("; {reason}"));
        let until = self.expires.iter().map(|day| format!(" (until {day})"));
        reason.chain(until).collect()
    }

    pub(super) fn new(of: Hidden) -> Self {
        Self {
            id: of.check.id,
            name: of.check.name,
            severity: of.finding.severity,
            subject: of.finding.subject,
            message: of.finding.message,
            by: IgnoredBy::of(&of.entry),
            reason: of.entry.reason,
            expires: of.entry.expires,
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
