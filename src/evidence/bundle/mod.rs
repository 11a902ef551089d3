//! Evidence on disk: a folder, a tar or a gzipped tar, whose members may each be gzipped.
//!
//! A bundle may come from anybody. Nothing in it is followed, and nothing it holds can block, crash or exhaust kpx: a
//! member that is not a plain file of bearable size becomes a [`Gap`].

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
pub use save::{SaveError, save};

/// How much of a bundle is read before it counts as hostile.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of one member, unpacked.
    pub member: u64,
    /// Bytes of all members that are kept, unpacked.
    pub kept: u64,
    /// Bytes of an archive that are read, unpacked, members that are skipped included.
    pub archive: u64,
}

impl Default for Limits {
    /// A node with 100,000 rules has 10 MB of them, a million connections are 150 MB, and every pod of the largest
    /// cluster about 500 MB: nothing honest comes near.
    fn default() -> Self {
        Self {
            member: 1 << 30,
            kept: 2 << 30,
            archive: 8 << 30,
        }
    }
}

/// A path that cannot be read as a bundle.
#[derive(Debug, Error)]
pub enum BundleError {
    /// The path itself is missing or unreadable.
    #[error("cannot open bundle {}", path.display())]
    Open {
        /// The path that was asked for.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is something, but not a bundle.
    #[error(
        "{} is not a bundle: {found}. A bundle is a folder, .tar or .tar.gz with files such as \
         node/iptables-save.txt, node/sysctl.txt or cluster/services.json",
        path.display()
    )]
    NotOne {
        /// The path that was asked for.
        path: PathBuf,
        /// What is there instead.
        found: String,
    },
    /// More than one bundle.
    #[error("{} holds several bundles ({}): name one of them", path.display(), tops.join(", "))]
    Several {
        /// The path that was asked for.
        path: PathBuf,
        /// The folders that are bundles.
        tops: Vec<String>,
    },
    /// The manifest cannot be used.
    #[error("cannot use {MANIFEST} of bundle {}: {reason}", path.display())]
    Manifest {
        /// The path that was asked for.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}

/// Loads `items` from the bundle at `path`.
pub fn load(path: &Path, items: &[Item]) -> Result<Evidence, BundleError> {
    load_within(path, items, Limits::default())
}

/// Loads `items` from the bundle at `path`, reading no more than `limits` allow.
pub fn load_within(path: &Path, items: &[Item], limits: Limits) -> Result<Evidence, BundleError> {
    let open = |source| BundleError::Open {
        path: path.to_owned(),
        source,
    };
    // Without O_NONBLOCK, opening a FIFO waits for somebody to write to it.
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
        Err(not_one(
            path,
            "it is a device, pipe or socket, where a folder or file should be",
        ))
    }?;
    settle(path, items, found)
}

fn not_one(path: &Path, found: impl Into<String>) -> BundleError {
    BundleError::NotOne {
        path: path.to_owned(),
        found: found.into(),
    }
}

/// Fills in, from the manifest, why the rest of `items` is not there.
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

/// Opens a member of a folder, without following a link or waiting for a writer.
fn open_member(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)
}
