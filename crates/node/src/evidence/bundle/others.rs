//! The files of a folder or an archive that is no bundle of kpx, with the same limits.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Cursor, Read};
use std::ops::ControlFlow;
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use tar::{Archive, EntryType};

use super::super::files;
use super::archive::{members_of, metered};
use super::member::size_text;
use super::{BundleError, Limits, not_one, open, zip};

/// A file of a folder or an archive, by its path in it.
#[derive(Debug)]
pub struct Other {
    /// The path, with `/`.
    pub path: String,
    /// The content, or why it was not read.
    pub content: Result<Vec<u8>, String>,
}

/// The most files that are looked at.
const MOST_FILES: usize = 500_000;

/// The most memory for data that is compressed with xz, in KiB: `xz -9` needs 65 MiB.
const XZ_MEMORY: u32 = 100 << 10;

/// The most nested folders.
const DEEPEST: usize = 24;

/// Reads the files of the folder or archive at `path` whose paths are `wanted`, or the file itself. Files and folders that cannot
/// be read are in the result, each with the reason.
pub fn others(path: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Other>, BundleError> {
    let limits = Limits::default();
    match open(path)? {
        None => {
            let mut found = Found::new(limits);
            folder(path, "", 0, wanted, &mut found);
            Ok(found.all)
        }
        Some(file) => {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            of_source(path, &name, file, wanted, limits)
        }
    }
}

/// Reads the files of the archive `bytes`, or the text that they are.
pub fn others_of(
    name: &str,
    bytes: Vec<u8>,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<Vec<Other>, BundleError> {
    of_source(
        Path::new(name),
        name,
        Cursor::new(bytes),
        wanted,
        Limits::default(),
    )
}

/// Returns whether a file is an archive, by its name.
pub fn is_archive(path: &str) -> bool {
    let ends = [
        ".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tar.zst", ".zip",
    ];
    ends.iter().any(|end| path.ends_with(end))
}

struct Found {
    all: Vec<Other>,
    left: u64,
    limits: Limits,
    count: usize,
}

impl Found {
    const fn new(limits: Limits) -> Self {
        Self {
            all: Vec::new(),
            left: limits.kept,
            limits,
            count: 0,
        }
    }

    fn room(&self) -> u64 {
        self.limits.member.min(self.left)
    }

    fn push(&mut self, path: String, content: Result<Vec<u8>, String>) {
        self.left = self
            .left
            .saturating_sub(content.as_ref().map_or(0, |bytes| bytes.len() as u64));
        self.all.push(Other { path, content });
    }

    /// Returns whether the file is to be read, and notes an archive, whose files are not looked at.
    fn takes(&mut self, path: &str, wanted: &dyn Fn(&str) -> bool) -> bool {
        if is_archive(path) {
            let why = "it is an archive in this one: unpack it, and name it with another --from";
            self.push(path.to_owned(), Err(why.to_owned()));
            return false;
        }
        wanted(path)
    }

    fn read(&mut self, path: String, source: impl Read) {
        let content = content(source, self.room());
        self.push(path, content);
    }
}

/// Returns the unpacked `source`, which begins with `head`, and whether it was compressed (gzip or xz).
fn unpacked<'s>(head: &[u8], source: impl io::BufRead + 's) -> (Box<dyn Read + 's>, bool) {
    if head.starts_with(b"\x1f\x8b") {
        (Box::new(MultiGzDecoder::new(source)), true)
    } else if head.starts_with(b"\xfd7zXZ\0") {
        let inside = XzReader::new_mem_limit(source, true, XZ_MEMORY);
        (Box::new(inside), true)
    } else {
        (Box::new(source), false)
    }
}

/// Reads `source`, which may be compressed, within `room`.
fn content(source: impl Read, room: u64) -> Result<Vec<u8>, String> {
    let mut source = BufReader::new(source);
    let head = source
        .fill_buf()
        .map_err(|error| error.to_string())?
        .to_vec();
    let (source, _) = unpacked(&head, source);
    let mut bytes = Vec::new();
    let read = source.take(room.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > room {
        return Err(format!(
            "it is larger than {}, the most that kpx reads",
            size_text(room)
        ));
    }
    Ok(bytes)
}

fn folder(
    root: &Path,
    inside: &str,
    depth: usize,
    wanted: &dyn Fn(&str) -> bool,
    found: &mut Found,
) {
    let here = if inside.is_empty() {
        root.to_owned()
    } else {
        root.join(inside)
    };
    let shown = if inside.is_empty() { "." } else { inside };
    let listing = match fs::read_dir(&here) {
        Ok(listing) => listing,
        Err(error) => return found.push(format!("{shown}/"), Err(error.to_string())),
    };
    let mut entries: Vec<fs::DirEntry> = Vec::new();
    for entry in listing {
        match entry {
            Ok(entry) => entries.push(entry),
            Err(error) => found.push(format!("{shown}/"), Err(error.to_string())),
        }
    }
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        found.count += 1;
        if found.count > MOST_FILES {
            return found.push(
                format!("{shown}/"),
                Err(format!("there are more than {MOST_FILES} files")),
            );
        }
        let name = entry.file_name();
        let path = match name.to_str() {
            Some(name) if inside.is_empty() => name.to_owned(),
            Some(name) => format!("{inside}/{name}"),
            None => {
                let path = format!("{shown}/{}", name.to_string_lossy());
                found.push(path, Err("its name is not UTF-8".to_owned()));
                continue;
            }
        };
        let Ok(kind) = entry.file_type() else {
            found.push(path, Err("its kind is unknown".to_owned()));
            continue;
        };
        if kind.is_dir() {
            if depth == DEEPEST {
                found.push(
                    format!("{path}/"),
                    Err(format!("it is nested more than {DEEPEST} folders deep")),
                );
            } else {
                folder(root, &path, depth + 1, wanted, found);
            }
        } else if found.takes(&path, wanted) {
            let refused = |what: &str| Err(format!("refused: it is {what}"));
            if kind.is_symlink() {
                found.push(path, refused("a symbolic link"));
            } else if kind.is_file() {
                match files::open_unlinked(&entry.path())
                    .and_then(|file| Ok((file.metadata()?, file)))
                {
                    Ok((metadata, _)) if files::links(&metadata) > 1 => {
                        found.push(path, refused("a hard link"));
                    }
                    Ok((metadata, _)) if !metadata.is_file() => {
                        found.push(path, refused("no plain file"));
                    }
                    Ok((_, file)) => found.read(path, file),
                    Err(error) => found.push(path, Err(error.to_string())),
                }
            } else {
                found.push(path, refused("a device, pipe or socket"));
            }
        }
    }
}

/// Reads an archive, or a file.
fn of_source<R: Read + io::Seek>(
    path: &Path,
    name: &str,
    source: R,
    wanted: &dyn Fn(&str) -> bool,
    limits: Limits,
) -> Result<Vec<Other>, BundleError> {
    let unreadable = |source| BundleError::Open {
        path: path.to_owned(),
        source,
    };
    let mut source = BufReader::with_capacity(1 << 16, source);
    let head = source.fill_buf().map_err(unreadable)?.to_vec();
    let packed = [(b"\x28\xb5\x2f\xfd".as_slice(), "zstd"), (b"BZh", "bzip2")];
    if let Some((_, tool)) = packed.iter().find(|(magic, _)| head.starts_with(magic)) {
        let what = format!("it is compressed with {tool}; unpack it with `{tool} -d`");
        return Err(not_one(path, what));
    }
    let mut found = Found::new(limits);
    if head.starts_with(b"PK\x03\x04") {
        zip::walk(source, limits, &mut |path, content| {
            if found.takes(&path, wanted) {
                found.push(path, content(found.room()));
            }
            ControlFlow::Continue(())
        })
        .map_err(|why| {
            not_one(
                path,
                format!("it is not a zip archive that kpx reads: {why}"),
            )
        })?;
        return Ok(found.all);
    }
    let (inside, is_packed) = unpacked(&head, source);
    let end = [".gz", ".xz"]
        .into_iter()
        .find(|end| is_packed && name.ends_with(end));
    let name = name.trim_end_matches(end.unwrap_or_default());
    let mut inside = BufReader::with_capacity(1 << 16, inside);
    let head = inside.fill_buf().map(<[u8]>::to_vec);
    let head = head.map_err(|error| match error {
        error if is_packed => not_one(path, format!("it is truncated or damaged: {error}")),
        error => unreadable(error),
    })?;
    if is_tar(&head) {
        tar(inside, wanted, &mut found);
    } else {
        found.read(name.to_owned(), inside);
    }
    Ok(found.all)
}

/// Returns whether `head` is the first header of a tar archive.
fn is_tar(head: &[u8]) -> bool {
    head.get(257..262) == Some(b"ustar".as_slice())
        || head.len() >= 512 && {
            // The format before ustar: the sum of the header's bytes, its own counted as blanks.
            let field = String::from_utf8_lossy(&head[148..156]);
            let sum = u32::from_str_radix(field.trim_matches(['\0', ' ']), 8);
            let bytes = head[..512].iter().enumerate();
            let own: u32 = bytes
                .map(|(at, byte)| {
                    if (148..156).contains(&at) {
                        32
                    } else {
                        u32::from(*byte)
                    }
                })
                .sum();
            sum == Ok(own)
        }
}

fn tar(source: impl Read, wanted: &dyn Fn(&str) -> bool, found: &mut Found) {
    let (source, left) = metered(source, found.limits.archive);
    let mut archive = Archive::new(source);
    let walked = members_of(&mut archive, |name, entry| {
        found.count += 1;
        if found.count > MOST_FILES {
            found.push(
                "./".to_owned(),
                Err(format!("there are more than {MOST_FILES} files")),
            );
            return ControlFlow::Break(());
        }
        let Ok(name) = str::from_utf8(name) else {
            found.push(
                String::from_utf8_lossy(name).into_owned(),
                Err("its name is not UTF-8".to_owned()),
            );
            return ControlFlow::Continue(());
        };
        let kind = entry.header().entry_type();
        if kind == EntryType::Directory {
            return ControlFlow::Continue(());
        }
        let Some(path) = inner_path(name) else {
            found.push(
                name.to_owned(),
                Err("refused: its path leads outside the archive".to_owned()),
            );
            return ControlFlow::Continue(());
        };
        if !found.takes(&path, wanted) {
            return ControlFlow::Continue(());
        }
        match kind {
            EntryType::Regular | EntryType::Continuous => {
                let size = entry.size();
                let room = found.room();
                let mut read = content(&mut *entry, room);
                // Packed files have another size.
                if let Ok(bytes) = &read
                    && (bytes.len() as u64) < size
                    && entry.read(&mut [0]).is_ok_and(|count| count == 0)
                    && ![".gz", ".xz"].iter().any(|end| name.ends_with(end))
                {
                    read = Err("the archive ends in the middle of it".to_owned());
                }
                found.push(path, read);
            }
            EntryType::Symlink => {
                found.push(path, Err("refused: it is a symbolic link".to_owned()));
            }
            EntryType::Link => found.push(path, Err("refused: it is a hard link".to_owned())),
            _ => found.push(path, Err("refused: it is no plain file".to_owned())),
        }
        ControlFlow::Continue(())
    });
    if let Err(error) = walked {
        found.push(
            "./".to_owned(),
            Err(format!("the archive is truncated or damaged: {error}")),
        );
    }
    if left.get() == 0 {
        let most = size_text(found.limits.archive);
        found.push(
            "./".to_owned(),
            Err(format!(
                "the archive is larger than {most}, the most that kpx reads"
            )),
        );
    }
}

/// Returns the path of a member without `.`; `None` for one that leads outside.
pub(super) fn inner_path(name: &str) -> Option<String> {
    let outside = name.starts_with('/') || name.split('/').any(|part| part == "..");
    let parts: Vec<&str> = name
        .split('/')
        .filter(|part| !matches!(*part, "" | "."))
        .collect();
    (!outside && !parts.is_empty()).then(|| parts.join("/"))
}
