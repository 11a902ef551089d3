//! Evidence on disk: a folder, a tar or a gzipped tar. Each member may be gzipped.
//!
//! A bundle is untrusted input. kpx follows no link in it, and no member can block, crash or exhaust kpx: a member that
//! is not a plain file of reasonable size becomes a [`Gap`].

mod archive;
mod folder;
mod manifest;
mod member;
mod save;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use thiserror::Error;

use super::{Evidence, Gap, Item};
pub use manifest::{MANIFEST, Manifest, Recorded};
use member::Found;
pub use save::{SaveError, save, write_to};

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
    #[error("{} contains several bundles ({}); choose one of them", path.display(), tops.join(", "))]
    Several {
        /// Requested path.
        path: PathBuf,
        /// Folders of the bundles.
        tops: Vec<String>,
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

/// Loads `items` from the bundle at `path`.
pub fn load(path: &Path, items: &[Item]) -> Result<Evidence, BundleError> {
    load_within(path, items, Limits::default())
}

/// Loads `items` from the bundle at `path`, within `limits`.
pub fn load_within(path: &Path, items: &[Item], limits: Limits) -> Result<Evidence, BundleError> {
    let open = |source| BundleError::Open {
        path: path.to_owned(),
        source,
    };
    // Without O_NONBLOCK, opening a FIFO blocks until it has a writer.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)
        .map_err(open)?;
    let kind = file.metadata().map_err(open)?.file_type();
    let found = if kind.is_dir() {
        folder::load(path, items, limits)
    } else if kind.is_file() {
        archive::load(path, file, items, limits)
    } else {
        Err(not_one(path, "it is a device, pipe or socket"))
    }?;
    settle(path, items, found)
}

/// Loads `items` from the archive `file`, which must be complete; errors call it `name`.
pub fn load_file(name: &Path, file: File, items: &[Item]) -> Result<Evidence, BundleError> {
    let found = archive::load(name, file, items, Limits::default())?;
    match found.cut {
        Some(cut) => Err(not_one(name, cut)),
        None => settle(name, items, found),
    }
}

fn not_one(path: &Path, found: impl Into<String>) -> BundleError {
    BundleError::NotOne {
        path: path.to_owned(),
        found: found.into(),
    }
}

/// Adds the manifest's reasons for those of `items` that are missing.
fn settle(path: &Path, items: &[Item], found: Found) -> Result<Evidence, BundleError> {
    let unusable = |reason| BundleError::Manifest {
        path: path.to_owned(),
        reason,
    };
    let manifest = match found.manifest {
        None => None,
        Some(Err(reason)) => return Err(unusable(reason)),
        Some(Ok(text)) => Some(Manifest::parse(&text).map_err(unusable)?),
    };
    let mut evidence = Evidence {
        items: found.items,
        manifest,
    };
    for &item in items {
        if !evidence.items.contains_key(&item) {
            let recorded = evidence.manifest.as_ref().and_then(|m| m.gap(item));
            let gap = match (recorded, &found.cut) {
                (Some(gap), _) => gap.clone(),
                (None, Some(cut)) => Gap::Failed(item, cut.clone()),
                (None, None) => Gap::NotCollected(item),
            };
            evidence.insert(item, Err(gap));
        }
    }
    Ok(evidence)
}

/// Opens a member of a folder without following links or waiting for a writer.
fn open_member(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)
}
