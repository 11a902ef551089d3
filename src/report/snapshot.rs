//! Prints the bundle that `kpx snapshot` wrote.

use std::path::PathBuf;

use serde::Serialize;

use super::{CLEAN, UNKNOWN};
use crate::evidence::{Gap, Recorded};
use crate::render::{Page, Report};
use crate::view::snapshot::BundleFile;
use crate::words::number_of;

/// The outcome of `kpx snapshot`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotReport {
    /// The path of the bundle.
    pub path: PathBuf,
    /// Whether names and addresses are replaced.
    pub redacted: bool,
    /// The files of the bundle.
    pub files: Vec<BundleFile>,
    /// The items that are not in the bundle, each with the reason.
    pub gaps: Vec<Recorded>,
}

impl SnapshotReport {
    /// Returns the report of a bundle of `files`, written to `path` with `gaps` recorded.
    pub const fn new(
        path: PathBuf,
        redacted: bool,
        files: Vec<BundleFile>,
        gaps: Vec<Recorded>,
    ) -> Self {
        Self {
            path,
            redacted,
            files,
            gaps,
        }
    }
}

impl Report for SnapshotReport {
    const KIND: &'static str = "SnapshotReport";

    fn page(&self, page: &mut Page) {
        let size: usize = self.files.iter().map(|file| file.bytes).sum();
        let redacted = if self.redacted { ", redacted" } else { "" };
        page.line(&format!(
            "Wrote {}{redacted}: {}, {} of text.",
            self.path.display(),
            number_of(self.files.len(), "item"),
            amount(size)
        ));
        if page.style().verbose > 0 {
            page.line("");
            page.table(["FILE", "SIZE"], |row| {
                for file in &self.files {
                    row([file.item.file(), &amount(file.bytes)]);
                }
            });
        }
        let of = |wanted: fn(&Gap) -> bool| -> Vec<_> {
            self.gaps.iter().filter(|gap| wanted(&gap.gap)).collect()
        };
        list(page, "Unknown:", &of(|gap| !is_moot(gap)));
        list(page, "Not available:", &of(is_moot));
        if !self.redacted {
            page.line("");
            page.line(
                "The bundle contains addresses and names of this cluster; --redact replaces them.",
            );
        }
    }

    fn exit(&self) -> u8 {
        if self.gaps.iter().all(|gap| is_moot(&gap.gap)) {
            CLEAN
        } else {
            UNKNOWN
        }
    }
}

/// Returns whether the gap is a fact about the node rather than missing data.
fn is_moot(gap: &Gap) -> bool {
    gap.is_absence() || matches!(gap, Gap::NotCollected(_))
}

fn list(page: &mut Page, heading: &str, gaps: &[&Recorded]) {
    if gaps.is_empty() {
        return;
    }
    page.line("");
    page.line(heading);
    page.table(["FILE", "REASON"], |row| {
        for recorded in gaps {
            let gap = &recorded.gap;
            let reason = match gap.reason() {
                Some(reason) if gap.is_denial() => format!("permission denied: {reason}"),
                Some(reason) => reason.to_owned(),
                None => "not collected".to_owned(),
            };
            row([recorded.item.file(), &reason]);
        }
    });
}

fn amount(bytes: usize) -> String {
    match bytes {
        b if b < 10_000 => format!("{b} B"),
        b if b < 10_000_000 => format!("{} kB", b / 1000),
        b => format!("{} MB", b / 1_000_000),
    }
}
