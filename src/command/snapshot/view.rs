//! The files of a bundle.

use serde::Serialize;

use kpx_node::evidence::{Evidence, Item};

/// A file of a bundle.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct BundleFile {
    /// The item, by its file.
    pub item: Item,
    /// The length of its text.
    pub bytes: usize,
}

/// Returns the files that `evidence` fills.
pub(crate) fn files(evidence: &Evidence) -> Vec<BundleFile> {
    let files = evidence.iter().filter_map(|(item, read)| {
        let bytes = read.ok()?.len();
        Some(BundleFile { item, bytes })
    });
    files.collect()
}
