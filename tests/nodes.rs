//! Bundles of all nodes, and the commands that read several nodes.

mod bundle;
pub(crate) mod commands;

use std::path::{Path, PathBuf};

use kpx_node::evidence::{ITEMS, Manifest, NodesWriter, load};
use tempfile::TempDir;

use crate::support::root;

const TIME: &str = "2026-11-20T14:00:00Z";

/// A bundle of all nodes: of each node, its name and its recording, or the reason why it was not read.
pub(crate) fn bundle_of(end: &str, nodes: &[(&str, Result<&str, &str>)]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(format!("cluster{end}"));
    write(&path, nodes);
    (dir, path)
}

fn write(path: &Path, nodes: &[(&str, Result<&str, &str>)]) {
    let mut bundle = NodesWriter::create(path).unwrap();
    for (name, recording) in nodes {
        match recording {
            Ok(recording) => {
                let evidence = load(&recorded(recording), ITEMS).unwrap();
                let manifest = manifest(recording);
                bundle.node(name, &evidence, &manifest).unwrap();
            }
            Err(reason) => bundle.unread(name, (*reason).to_owned()),
        }
    }
    bundle.finish(TIME.to_owned()).unwrap();
}

fn recorded(recording: &str) -> PathBuf {
    root().join("testdata/nodes").join(recording)
}

/// The manifest of a recording: its own, or one without a name of the node.
fn manifest(recording: &str) -> Manifest {
    let evidence = load(&recorded(recording), ITEMS).unwrap();
    let own = evidence.manifest().cloned();
    own.unwrap_or_else(|| Manifest::of(&evidence, TIME.to_owned(), None))
}
