//! Evidence on disk: a folder, a tar or a gzipped tar. Each member may be gzipped.
//!
//! A bundle is untrusted input. kpx follows no link in it, and no member can block, crash or exhaust kpx: a member that
//! is not a plain file of reasonable size becomes a [`Gap`].
//!
//! A bundle of all nodes has the list of its nodes in [`NODES`], the objects of the cluster in `cluster/`, and each node
//! in `nodes/NAME/`: an ordinary bundle without those objects. If a node has a file of `cluster/` of its own, that one
//! counts.

mod archive;
mod folder;
mod manifest;
mod member;
mod nodes;
mod others;
mod save;
mod zip;

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::{Evidence, Gap, Item, files};
pub use manifest::{MANIFEST, Manifest, Recorded, UNKNOWN_TIME};
use member::Found;
pub use nodes::{NODES, Visit, each_node};
pub use others::{Other, is_archive, others, others_of};
pub use save::{NodesWriter, SaveError, save, write_to};

/// File of the script's bundle with the missing files: one per line, with the reason after a colon.
const ERRORS: &str = "errors.txt";

/// Size limits for reading a bundle.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum size of one member, in bytes, uncompressed.
    pub member: u64,
    /// Maximum size of all loaded members, in bytes, uncompressed.
    pub kept: u64,
    /// Maximum size of an archive, in bytes, uncompressed, including skipped members.
    pub archive: u64,
}

impl Default for Limits {
    /// A node with 100,000 rules has 10 MB of rules, a million connections take 150 MB, and all pods of the largest
    /// cluster about 500 MB: no real bundle comes close.
    fn default() -> Self {
        Self {
            member: 1 << 30,
            kept: 2 << 30,
            archive: 8 << 30,
        }
    }
}

/// Why a path cannot be loaded as a bundle.
#[derive(Debug, Error)]
pub enum BundleError {
    /// The path does not exist or cannot be read.
    #[error("cannot open bundle {}", path.display())]
    Open {
        /// Requested path.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The path is not a bundle.
    #[error(
        "{} is not a bundle: {found}. A bundle is a folder, .tar or .tar.gz with files such as \
         node/iptables-save.txt, node/sysctl.txt or cluster/services.json",
        path.display()
    )]
    NotOne {
        /// Requested path.
        path: PathBuf,
        /// Description of the path's contents.
        found: String,
    },
    /// The path contains more than one bundle.
    #[error("{} contains several bundles: {}", path.display(), few(tops))]
    Several {
        /// Requested path.
        path: PathBuf,
        /// Folders of the bundles.
        tops: Vec<String>,
    },
    /// The path is a bundle of all nodes, and no node was chosen.
    #[error("{} is a bundle of all nodes: {}", path.display(), listed(nodes))]
    AllNodes {
        /// Requested path.
        path: PathBuf,
        /// Names of the nodes.
        nodes: Vec<String>,
    },
    /// The path is a bundle of all nodes, but not of this one.
    #[error("node {node} is not in bundle {}, which has {}", path.display(), listed(nodes))]
    NoNode {
        /// Requested path.
        path: PathBuf,
        /// Requested node.
        node: String,
        /// Names of the nodes.
        nodes: Vec<String>,
    },
    /// The node could not be read when the bundle was written.
    #[error("node {node} was not read when bundle {} was written: {reason}", path.display())]
    Unread {
        /// Requested path.
        path: PathBuf,
        /// Requested node.
        node: String,
        /// Reason why it was not read.
        reason: String,
    },
    /// The path is a bundle of one node.
    #[error("{} is a bundle of one node, not of all nodes", path.display())]
    OneNode {
        /// Requested path.
        path: PathBuf,
    },
    /// The list of nodes cannot be used.
    #[error("cannot use {NODES} of bundle {}: {reason}", path.display())]
    Index {
        /// Requested path.
        path: PathBuf,
        /// Reason why the list cannot be used.
        reason: String,
    },
    /// The manifest cannot be used.
    #[error("cannot use {MANIFEST} of bundle {}: {reason}", path.display())]
    Manifest {
        /// Requested path.
        path: PathBuf,
        /// Reason why the manifest cannot be used.
        reason: String,
    },
}

/// Returns the first names, and the number of the others.
fn listed(names: &[String]) -> String {
    const FEW: usize = 20;
    let first = names[..names.len().min(FEW)].join(", ");
    match names.len() - names.len().min(FEW) {
        _ if names.is_empty() => "no nodes".to_owned(),
        0 => first,
        rest => format!("{first} and {rest} more"),
    }
}

/// Loads `items` from the bundle at `path`, which is one of a single node.
pub fn load(path: &Path, items: &[Item]) -> Result<Evidence, BundleError> {
    load_node(path, None, items)
}

/// Loads `items` from the bundle at `path`; from the part of `node` if it is a bundle of all nodes.
pub fn load_node(path: &Path, node: Option<&str>, items: &[Item]) -> Result<Evidence, BundleError> {
    load_node_within(path, node, items, Limits::default())
}

/// Loads `items` from the bundle at `path`, within `limits`.
pub fn load_within(path: &Path, items: &[Item], limits: Limits) -> Result<Evidence, BundleError> {
    load_node_within(path, None, items, limits)
}

fn load_node_within(
    path: &Path,
    node: Option<&str>,
    items: &[Item],
    limits: Limits,
) -> Result<Evidence, BundleError> {
    let loaded = match open(path)? {
        None => folder::load(path, node, items, limits)?,
        Some(file) => archive::load(path, file, node, items, limits)?,
    };
    if loaded.has_nodes() {
        loaded.pick(path, node, items)
    } else {
        settle(items, loaded.bundle).map_err(|reason| unusable(path, reason))
    }
}

/// Opens the archive at `path`; `None` for a folder.
fn open(path: &Path) -> Result<Option<File>, BundleError> {
    let open = |source| BundleError::Open {
        path: path.to_owned(),
        source,
    };
    let file = files::open(path).map_err(open)?;
    let kind = file.metadata().map_err(open)?.file_type();
    if kind.is_dir() {
        Ok(None)
    } else if kind.is_file() {
        Ok(Some(file))
    } else {
        Err(not_one(path, "it is a device, pipe or socket"))
    }
}

/// Returns whether the readable part of the path has files of a bundle of kpx.
pub fn is_bundle(path: &Path) -> bool {
    let found = match open(path) {
        Ok(None) => folder::base(path).map(drop),
        Ok(Some(file)) => archive::walk(path, file, Limits::default(), &mut |_, _| {
            ControlFlow::Break(())
        })
        .map(drop),
        Err(error) => Err(error),
    };
    !matches!(found, Err(BundleError::NotOne { .. }))
}

fn unusable(path: &Path, reason: String) -> BundleError {
    BundleError::Manifest {
        path: path.to_owned(),
        reason,
    }
}

/// Loads `items` from the archive `file`, which must be complete; errors call it `name`.
pub fn load_file(name: &Path, file: File, items: &[Item]) -> Result<Evidence, BundleError> {
    let found = archive::load(name, file, None, items, Limits::default())?.bundle;
    match found.cut {
        Some(cut) => Err(not_one(name, cut)),
        None => settle(items, found).map_err(|reason| unusable(name, reason)),
    }
}

/// Returns the first of `names`, and the number of the others.
fn few(names: &[String]) -> String {
    const FEW: usize = 3;
    let shown = names.iter().take(FEW).map(String::as_str);
    let shown = shown.collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(FEW) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn not_one(path: &Path, found: impl Into<String>) -> BundleError {
    BundleError::NotOne {
        path: path.to_owned(),
        found: found.into(),
    }
}

/// Adds the manifest's reasons for those of `items` that are missing. The error is the reason why the manifest cannot be
/// used.
fn settle(items: &[Item], found: Found) -> Result<Evidence, String> {
    let manifest = match found.manifest {
        None => None,
        Some(read) => Some(Manifest::parse(&read?)?),
    };
    let mut evidence = Evidence {
        manifest,
        cut: found.cut.clone(),
        ..Evidence::default()
    };
    let errors = found.errors.unwrap_or_default();
    let noted = |item: Item| errors.lines().find_map(|line| noted(line, item));
    for (item, read) in found.items {
        let recorded = evidence.manifest.as_ref().and_then(|m| m.gap(item));
        match (read, recorded) {
            (Ok(text), Some(Gap::Partial(_, why))) => {
                let why = why.clone();
                evidence.insert_part(item, text, why);
            }
            (read, _) => evidence.insert(item, read),
        }
    }
    for &item in items {
        if !evidence.items.contains_key(&item) {
            let recorded = evidence.manifest.as_ref().and_then(|m| m.gap(item));
            let gap = match (recorded, &found.cut) {
                (Some(gap), _) => gap.clone(),
                (None, Some(cut)) => Gap::Failed(item, cut.clone()),
                (None, None) if item.is_of_cluster() => {
                    noted(item).unwrap_or(Gap::NotCollected(item))
                }
                (None, None) => Gap::NotCollected(item),
            };
            evidence.insert(item, Err(gap));
        }
    }
    Ok(evidence)
}

/// Returns why the script did not read `item`, an object of the cluster, if `line` is about it, and how to add it.
fn noted(line: &str, item: Item) -> Option<Gap> {
    let why = line.strip_prefix(item.file())?.strip_prefix(": ")?;
    Some(Gap::Failed(
        item,
        format!(
            "not in the bundle ({why}); add it with `kpx --from BUNDLE --kubeconfig FILE COMMAND`"
        ),
    ))
}
