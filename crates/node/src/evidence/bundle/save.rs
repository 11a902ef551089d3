//! Writes a bundle completely or not at all.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::mem;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, Header};
use thiserror::Error;

use super::super::{Evidence, Gap, files};
use super::nodes::{CLUSTER, FOLDER, Index, Listed, is_name};
use super::{MANIFEST, Manifest, NODES, Recorded};

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
    write(evidence, manifest, path).map_err(|source| failed(path, source))
}

/// Writes a bundle of all nodes, node by node. Dropped before [`NodesWriter::finish`], it leaves nothing behind.
pub struct NodesWriter {
    path: PathBuf,
    temp: Temp,
    out: Out,
    /// The evidence of the first node, whose objects of the cluster are written once.
    first: Option<Evidence>,
    nodes: Vec<Listed>,
}

enum Out {
    Gzip(Builder<GzEncoder<BufWriter<File>>>),
    Tar(Builder<BufWriter<File>>),
    Folder,
}

impl NodesWriter {
    /// Starts the bundle at `path`, like [`save`].
    pub fn create(path: &Path) -> Result<Self, SaveError> {
        if path.symlink_metadata().is_ok() {
            return Err(SaveError::Exists(path.to_owned()));
        }
        let temp = Temp::beside(path);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let out = || -> io::Result<Out> {
            let file = || Ok::<_, io::Error>(BufWriter::new(create(&temp.0)?));
            Ok(if name.ends_with(".tar.gz") || name.ends_with(".tgz") {
                // The rules of thousands of nodes are gigabytes: speed matters more than the last bytes.
                Out::Gzip(Builder::new(GzEncoder::new(file()?, Compression::fast())))
            } else if name.ends_with(".tar") {
                Out::Tar(Builder::new(file()?))
            } else {
                files::private_folder().create(&temp.0)?;
                Out::Folder
            })
        };
        Ok(Self {
            out: out().map_err(|source| failed(path, source))?,
            path: path.to_owned(),
            temp,
            first: None,
            nodes: Vec::new(),
        })
    }

    /// Adds the node `name`.
    pub fn node(
        &mut self,
        name: &str,
        evidence: &Evidence,
        manifest: &Manifest,
    ) -> Result<(), SaveError> {
        self.write(name, evidence, manifest)
            .map_err(|source| failed(&self.path, source))
    }

    /// Adds the node `name`, which was not read for `reason`.
    pub fn unread(&mut self, name: &str, reason: String) {
        self.nodes.push(Listed {
            name: name.to_owned(),
            reason: Some(reason),
        });
    }

    /// Finishes the bundle, recorded at `time`, and gives it its name.
    pub fn finish(mut self, time: String) -> Result<(), SaveError> {
        let path = self.path.clone();
        self.end(time).map_err(|source| failed(&path, source))
    }

    fn write(&mut self, name: &str, evidence: &Evidence, manifest: &Manifest) -> io::Result<()> {
        if !is_name(name) {
            let what = format!("{name:?} is not the name of a Node");
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        let is_shared = |file: &str| file.starts_with(CLUSTER);
        let first = if let Some(first) = self.first.take() {
            first
        } else {
            for (item, read) in evidence.iter().filter(|(item, _)| is_shared(item.file())) {
                if let Ok(text) = read {
                    self.append(item.file(), text)?;
                }
            }
            evidence.shared(is_shared)
        };
        let mut manifest = manifest.clone();
        for (item, _) in first.iter() {
            // Without a reason in its manifest, the node would have the cluster's.
            if evidence.text(item) == Err(Gap::NotCollected(item)) {
                let gap = Gap::NotCollected(item);
                manifest.gaps.push(Recorded {
                    item,
                    reason: gap.to_string(),
                    gap,
                });
            }
        }
        let folder = format!("{FOLDER}/{name}");
        let text = serde_json::to_string_pretty(&manifest).map_err(io::Error::other)? + "\n";
        self.append(&format!("{folder}/{MANIFEST}"), &text)?;
        for (item, read) in evidence.iter() {
            if let Ok(text) = read
                && !(is_shared(item.file()) && evidence.agrees(&first, item))
            {
                self.append(&format!("{folder}/{}", item.file()), text)?;
            }
        }
        self.first = Some(first);
        self.nodes.push(Listed {
            name: name.to_owned(),
            reason: None,
        });
        Ok(())
    }

    fn append(&mut self, file: &str, text: &str) -> io::Result<()> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let top = top(&name);
        match &mut self.out {
            Out::Gzip(archive) => append(archive, top, file, text),
            Out::Tar(archive) => append(archive, top, file, text),
            Out::Folder => store(&self.temp.0, file, text),
        }
    }

    fn end(&mut self, time: String) -> io::Result<()> {
        let mut nodes = mem::take(&mut self.nodes);
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let index = Index::new(time, nodes);
        let index = serde_json::to_string_pretty(&index).map_err(io::Error::other)? + "\n";
        self.append(NODES, &index)?;
        match mem::replace(&mut self.out, Out::Folder) {
            Out::Gzip(archive) => {
                publish(archive.into_inner()?.finish()?, &self.temp.0, &self.path)
            }
            Out::Tar(archive) => publish(archive.into_inner()?, &self.temp.0, &self.path),
            Out::Folder => rename_folder(&self.temp.0, &self.path),
        }
    }
}

fn failed(path: &Path, source: io::Error) -> SaveError {
    match source.kind() {
        ErrorKind::AlreadyExists => SaveError::Exists(path.to_owned()),
        _ => SaveError::Write {
            path: path.to_owned(),
            source,
        },
    }
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
        files::private_folder().create(&temp.0)?;
        for (file, text) in files {
            store(&temp.0, file, text)?;
        }
        rename_folder(&temp.0, path)
    }
}

/// Gives the folder `temp` its final name.
fn rename_folder(temp: &Path, path: &Path) -> io::Result<()> {
    // Creating the folder reserves the name; the empty folder is then replaced in one step.
    fs::create_dir(path)?;
    fs::rename(temp, path).inspect_err(|_| drop(fs::remove_dir(path)))
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
        append(&mut archive, top, file, text)?;
    }
    archive.into_inner()
}

fn append<W: Write>(archive: &mut Builder<W>, top: &str, file: &str, text: &str) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_size(text.len() as u64);
    header.set_mode(0o600);
    archive.append_data(&mut header, format!("{top}/{file}"), text.as_bytes())
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

/// Writes `file` below the folder `dir`.
fn store(dir: &Path, file: &str, text: &str) -> io::Result<()> {
    let path = dir.join(file);
    if let Some(parent) = path.parent() {
        files::private_folder().recursive(true).create(parent)?;
    }
    let mut file = create(&path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn create(path: &Path) -> io::Result<File> {
    files::private_file().write(true).open(path)
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
