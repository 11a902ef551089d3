//! Writes a bundle completely or not at all.

use std::collections::hash_map::RandomState;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, Header};
use thiserror::Error;

use super::super::Evidence;
use super::{MANIFEST, Manifest};

/// Why a bundle was not written.
#[derive(Debug, Error)]
pub enum SaveError {
    /// The path exists.
    #[error("{} exists, and kpx does not overwrite; choose another path or remove it", .0.display())]
    Exists(PathBuf),
    /// The system reported an error.
    #[error("cannot write bundle {}", path.display())]
    Write {
        /// Path of the bundle.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

/// Writes `evidence` and its `manifest` to `path` as a gzipped tar, a tar or a folder, depending on the extension.
///
/// Only the owner may read the result. A failure leaves nothing behind.
pub fn save(evidence: &Evidence, manifest: &Manifest, path: &Path) -> Result<(), SaveError> {
    if path.symlink_metadata().is_ok() {
        return Err(SaveError::Exists(path.to_owned()));
    }
    write(evidence, manifest, path).map_err(|source| match source.kind() {
        ErrorKind::AlreadyExists => SaveError::Exists(path.to_owned()),
        _ => SaveError::Write {
            path: path.to_owned(),
            source,
        },
    })
}

/// Writes `evidence` and its `manifest` to `out` as a gzipped tar.
pub fn write_to(evidence: &Evidence, manifest: &Manifest, out: impl Write) -> io::Result<()> {
    let manifest = text_of(manifest)?;
    let gzip = GzEncoder::new(out, Compression::fast());
    pack(gzip, top(""), files(evidence, &manifest))?
        .finish()?
        .flush()
}

fn text_of(manifest: &Manifest) -> io::Result<String> {
    Ok(serde_json::to_string_pretty(manifest).map_err(io::Error::other)? + "\n")
}

/// Returns the files of a bundle with their texts.
fn files<'a>(
    evidence: &'a Evidence,
    manifest: &'a str,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let items = evidence
        .iter()
        .filter_map(|(item, read)| Some((item.file(), read.ok()?)));
    [(MANIFEST, manifest)].into_iter().chain(items)
}

fn write(evidence: &Evidence, manifest: &Manifest, path: &Path) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let manifest = text_of(manifest)?;
    let files = files(evidence, &manifest);
    let temp = Temp::beside(path);
    if name.ends_with(".tar.gz") || name.ends_with(".tgz") {
        let gzip = GzEncoder::new(BufWriter::new(create(&temp.0)?), Compression::default());
        let top = top(&name);
        publish(pack(gzip, top, files)?.finish()?, &temp.0, path)
    } else if name.ends_with(".tar") {
        let plain = BufWriter::new(create(&temp.0)?);
        publish(pack(plain, top(&name), files)?, &temp.0, path)
    } else {
        folder(files, &temp.0)?;
        // Creating the folder reserves the name; the empty folder is then replaced in one step.
        fs::create_dir(path)?;
        fs::rename(&temp.0, path).inspect_err(|_| drop(fs::remove_dir(path)))
    }
}

/// Returns the name of the top-level folder in an archive, so that unpacking creates a single folder.
fn top(name: &str) -> &str {
    [".tar.gz", ".tgz", ".tar"]
        .iter()
        .find_map(|end| name.strip_suffix(end))
        .filter(|top| !top.is_empty() && top.len() < 60)
        .unwrap_or("bundle")
}

fn pack<'a, W: Write>(
    out: W,
    top: &str,
    files: impl Iterator<Item = (&'a str, &'a str)>,
) -> io::Result<W> {
    let mut archive = Builder::new(out);
    for (file, text) in files {
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        archive.append_data(&mut header, format!("{top}/{file}"), text.as_bytes())?;
    }
    archive.into_inner()
}

fn publish(out: BufWriter<File>, temp: &Path, path: &Path) -> io::Result<()> {
    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    // Unlike a rename, a link never replaces a file. If the file system has no links, the earlier check has to do.
    match fs::hard_link(temp, path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => fs::rename(temp, path),
        linked => linked,
    }
}

fn folder<'a>(files: impl Iterator<Item = (&'a str, &'a str)>, dir: &Path) -> io::Result<()> {
    let mut private = DirBuilder::new();
    private.mode(0o700).create(dir)?;
    private.recursive(true);
    for (file, text) in files {
        let path = dir.join(file);
        if let Some(parent) = path.parent() {
            private.create(parent)?;
        }
        let mut file = create(&path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
    }
    Ok(())
}

fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)
}

/// Temporary name of the output; removed at the end.
struct Temp(PathBuf);

impl Temp {
    /// Returns a hidden name in the folder of `path`, so that the final move is one step.
    fn beside(path: &Path) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // The standard library has no other source of randomness.
        let unique = RandomState::new().build_hasher().finish();
        Self(path.with_file_name(format!(".{name}.{unique:016x}.part")))
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        // After a success it no longer exists; after a failure, the first error matters.
        fs::remove_file(&self.0).ok();
        fs::remove_dir_all(&self.0).ok();
    }
}
