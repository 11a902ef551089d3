//! Evidence on disk.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::{Evidence, Gap, Item};

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
}

/// Loads `items` from the bundle at `path`.
pub fn load(path: &Path, items: &[Item]) -> Result<Evidence, BundleError> {
    drop(fs::read_dir(path).map_err(|source| BundleError::Open {
        path: path.to_owned(),
        source,
    })?);
    let mut evidence = Evidence::default();
    for &item in items {
        let read = match fs::read_to_string(path.join(item.file())) {
            Ok(text) => Ok(text),
            Err(e) if e.kind() == ErrorKind::NotFound => Err(Gap::NotCollected(item)),
            Err(e) => Err(Gap::Failed(item, e.to_string())),
        };
        evidence.insert(item, read);
    }
    Ok(evidence)
}
