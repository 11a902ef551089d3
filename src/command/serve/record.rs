//! The folder of `--record`: bundles by time, the oldest deleted above a size.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kpx_host as host;

/// The first part of every name. Other files in the folder are not touched.
const PREFIX: &str = "kpx-record-";
const SUFFIX: &str = ".tar.gz";

/// The part of the disk that stays free: the kubelet evicts pods below a tenth, by default.
const FREE: u64 = 10;

/// A folder of bundles.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// The size of all bundles, in bytes.
    most: u64,
}

/// Its content.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Content {
    pub(super) bundles: usize,
    pub(super) bytes: u64,
}

/// A bundle: when it was written, as its name has it, its path and its size.
type Bundle = (String, PathBuf, u64);

impl Folder {
    /// Opens the folder at `path`, and removes files that an interrupted kpx left.
    pub(super) fn open(path: &Path, most: u64) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        let folder = Self {
            path: path.to_owned(),
            most,
        };
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(&format!(".{PREFIX}")) && name.ends_with(".part") {
                fs::remove_file(entry.path())?;
            }
        }
        folder.prune(0)?;
        Ok(folder)
    }

    /// Returns the path of a new bundle of `node`, or why none can be written: the disk has too little room.
    pub(super) fn next(&self, node: &str, time: &str) -> io::Result<PathBuf> {
        // Before there is one, its size is not known.
        let largest = self.bundles()?.iter().map(|bundle| bundle.2).max();
        let (free, all) = host::free_space(&self.path)?;
        if free < largest.unwrap_or(0).max(1 << 20) * 2 + all / FREE {
            return Err(io::Error::other(format!(
                "no bundle is written: {} MiB are free on the disk of {}, and a tenth of it stays free",
                free >> 20,
                self.path.display()
            )));
        }
        self.prune(largest.unwrap_or(0))?;
        let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let node: String = node.chars().filter(plain).collect();
        let time: String = time.chars().filter(char::is_ascii_alphanumeric).collect();
        Ok(self.path.join(format!("{PREFIX}{node}-{time}{SUFFIX}")))
    }

    /// Deletes the oldest bundles above the size, after a new one was written; returns the remaining ones.
    pub(super) fn keep(&self) -> io::Result<Content> {
        let left = self.prune(0)?;
        if left.bundles == 0 {
            let limit = self.most >> 10;
            return Err(io::Error::other(format!(
                "the bundle was deleted: it is larger than --record-size ({limit} KiB)"
            )));
        }
        Ok(left)
    }

    /// Deletes the oldest bundles until `more` bytes fit; returns the remaining ones.
    fn prune(&self, more: u64) -> io::Result<Content> {
        let bundles = self.bundles()?;
        let mut bytes: u64 = bundles.iter().map(|bundle| bundle.2).sum();
        let mut left = bundles.len();
        for (_, path, size) in bundles {
            if bytes.saturating_add(more) <= self.most {
                break;
            }
            fs::remove_file(path)?;
            bytes -= size;
            left -= 1;
        }
        Ok(Content {
            bundles: left,
            bytes,
        })
    }

    /// Returns the bundles, the oldest first.
    fn bundles(&self) -> io::Result<Vec<Bundle>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let middle = name.strip_prefix(PREFIX);
            let middle = middle.and_then(|rest| rest.strip_suffix(SUFFIX));
            if let Some((_, time)) = middle.and_then(|middle| middle.rsplit_once('-')) {
                let size = entry.metadata()?.len();
                all.push((time.to_owned(), entry.path(), size));
            }
        }
        all.sort();
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_bundles_make_room_and_other_files_stay() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        // Node b was renamed to a: the time counts.
        for (name, size) in [
            ("kpx-record-b-20261120T120000Z.tar.gz", 30),
            ("kpx-record-a-20261121T120000Z.tar.gz", 30),
            ("kpx-record-a-20261122T120000Z.tar.gz", 30),
            ("kpx-snapshot-a-20261101T120000Z.tar.gz", 500),
            (".kpx-record-a-20261122T120001Z.tar.gz.0f.part", 500),
        ] {
            fs::write(at(name), vec![0; size]).unwrap();
        }
        let folder = Folder::open(scratch.path(), 75).unwrap();
        assert!(!at(".kpx-record-a-20261122T120001Z.tar.gz.0f.part").exists());
        assert!(!at("kpx-record-b-20261120T120000Z.tar.gz").exists());
        let left = folder.prune(0).unwrap();
        assert_eq!((left.bundles, left.bytes), (2, 60));
        assert_eq!(folder.prune(40).unwrap().bundles, 1);
        assert!(at("kpx-record-a-20261122T120000Z.tar.gz").exists());
        assert_eq!(folder.keep().unwrap().bundles, 1);
        assert_eq!(folder.prune(76).unwrap(), Content::default());
        fs::write(at("kpx-record-a-20261123T120000Z.tar.gz"), vec![0; 76]).unwrap();
        assert!(folder.keep().unwrap_err().to_string().contains("larger"));
        assert!(at("kpx-snapshot-a-20261101T120000Z.tar.gz").exists());
    }
}
