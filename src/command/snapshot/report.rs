//! Prints the bundle that `kpx snapshot` wrote.

pub(crate) mod nodes;

use std::path::PathBuf;

use serde::Serialize;

use super::view::BundleFile;
use crate::render::{Page, Report};
use crate::report::{CLEAN, UNKNOWN};
use kpx_node::evidence::{Gap, Item, Recorded};
use kpx_node::words::number_of;

/// The outcome of `kpx snapshot`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct SnapshotReport {
    /// The path of the bundle.
    pub path: PathBuf,
    /// Whether names and addresses are replaced.
    pub redacted: bool,
    /// The items that were added from the API server after the recording.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<Item>,
    /// The files of the bundle.
    pub files: Vec<BundleFile>,
    /// The items that are not in the bundle, each with the reason.
    pub gaps: Vec<Recorded>,
}

impl SnapshotReport {
    /// Returns the report of a bundle of `files`, written to `path` with `gaps` recorded.
    pub(crate) const fn new(
        path: PathBuf,
        redacted: bool,
        added: Vec<Item>,
        files: Vec<BundleFile>,
        gaps: Vec<Recorded>,
    ) -> Self {
        Self {
            path,
            redacted,
            added,
            files,
            gaps,
        }
    }

    /// Returns the items that could not be read, without items that the node does not have.
    pub(crate) fn unknown(&self) -> Vec<&Recorded> {
        self.gaps.iter().filter(|gap| !is_moot(&gap.gap)).collect()
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
        if !self.added.is_empty() {
            let names: Vec<&str> = self.added.iter().map(|item| item.file()).collect();
            let text = format!("Added from the API server: {}.", names.join(", "));
            page.para("", &text);
        }
        if page.style().verbose > 0 {
            page.line("");
            page.table(["FILE", "SIZE"], |row| {
                for file in &self.files {
                    row([file.item.file(), &amount(file.bytes)]);
                }
            });
        }
        let moot = self.gaps.iter().filter(|gap| is_moot(&gap.gap));
        list(page, "Unknown:", &self.unknown());
        list(page, "Not available:", &moot.collect::<Vec<_>>());
        if !self.redacted {
            page.line("");
            page.line(
                "The bundle contains addresses and names of this cluster; --redact replaces them.",
            );
        }
    }

    fn exit(&self) -> u8 {
        if self.unknown().is_empty() {
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
