//! What `kpx doctor` found.

use serde::Serialize;

use super::{CLEAN, FOUND, UNKNOWN};
use crate::check::{Check, Facts, Finding};
use crate::evidence::Gap;
use crate::render::{Page, Report};

/// The outcome of `kpx doctor`.
#[derive(Debug, Serialize)]
pub struct DoctorReport {
    /// One entry per check that ran.
    pub checks: Vec<CheckResult>,
}

/// The outcome of one check.
#[derive(Debug, Serialize)]
pub struct CheckResult {
    /// Which check.
    pub id: &'static str,
    /// What came of it.
    #[serde(flatten)]
    pub status: Status,
}

/// What came of a check.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "status")]
pub enum Status {
    /// Nothing wrong.
    Pass,
    /// Something wrong.
    Fail {
        /// Each thing that is wrong.
        findings: Vec<Finding>,
    },
    /// The question does not arise here.
    Skip {
        /// Why not.
        reason: String,
    },
    /// Could not tell.
    Unknown {
        /// Why not.
        gap: Gap,
    },
}

impl DoctorReport {
    /// Runs `checks` over `facts`.
    pub fn new<'a>(checks: impl IntoIterator<Item = &'a Check>, facts: &Facts<'_>) -> Self {
        let results = checks.into_iter().map(|check| CheckResult {
            id: check.id,
            status: match (check.run)(facts) {
                Ok(findings) if findings.is_empty() => Status::Pass,
                Ok(findings) => Status::Fail { findings },
                Err(Gap::NotApplicable(reason)) => Status::Skip { reason },
                Err(gap) => Status::Unknown { gap },
            },
        });
        Self {
            checks: results.collect(),
        }
    }
}

impl Report for DoctorReport {
    const KIND: &'static str = "DoctorReport";

    fn page(&self, page: &mut Page) {
        for check in &self.checks {
            page.line(check.id);
        }
    }

    fn exit(&self) -> u8 {
        let fails = self
            .checks
            .iter()
            .any(|check| matches!(check.status, Status::Fail { .. }));
        let unknown = self
            .checks
            .iter()
            .any(|check| matches!(check.status, Status::Unknown { .. }));
        match (fails, unknown) {
            (true, _) => FOUND,
            (false, true) => UNKNOWN,
            (false, false) => CLEAN,
        }
    }
}
