//! Loads a bundle from a tar archive, gzipped or not.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use tar::{Archive, Entry, EntryType};

use super::super::Item;
use super::member::{self, Member, Packing, Refusal, size_text};
use super::nodes::{FOLDER, Loaded, MOST_NODES, is_name};
use super::{BundleError, Limits, not_one};

/// Reads a member within a limit, in bytes.
pub(super) type ReadMember<'r> = dyn FnMut(u64) -> Result<String, Refusal> + 'r;

/// Called for each member of a bundle with its location and its reader.
pub(super) type EachMember<'e> = dyn FnMut(&Location, &mut ReadMember<'_>) -> ControlFlow<()> + 'e;

/// Loads `items` and the manifest from the archive `file` in one pass: of the bundle and, in a bundle of all nodes, of
/// `node`.
pub(super) fn load(
    path: &Path,
    file: File,
    node: Option<&str>,
    items: &[Item],
    limits: Limits,
) -> Result<Loaded, BundleError> {
    let mut loaded = Loaded::default();
    let cut = walk(path, file, limits, &mut |location, read| {
        let found = match &location.node {
            None => &mut loaded.bundle,
            Some(name) => {
                loaded.names.insert(name.clone());
                if Some(name.as_str()) != node {
                    return ControlFlow::Continue(());
                }
                &mut loaded.node
            }
        };
        if location.member.is_wanted(items) {
            let text = read(found.room(limits));
            found.insert(location.member, text);
        }
        ControlFlow::Continue(())
    })?;
    loaded.bundle.cut.clone_from(&cut);
    loaded.node.cut = cut;
    Ok(loaded)
}

/// Calls `each` for every member of a bundle in the archive `file`, in their order; returns why the rest was not read, if
/// so.
pub(super) fn walk(
    path: &Path,
    file: File,
    limits: Limits,
    each: &mut EachMember<'_>,
) -> Result<Option<String>, BundleError> {
    let mut file = BufReader::with_capacity(1 << 16, file);
    let head = file.fill_buf().map_err(|source| BundleError::Open {
        path: path.to_owned(),
        source,
    })?;
    let foreign = [
        (b"PK\x03\x04".as_slice(), "a zip file; unpack it first"),
        (b"\xfd7zXZ", "compressed with xz; unpack it with `xz -d`"),
        (
            b"\x28\xb5\x2f\xfd",
            "compressed with zstd; unpack it with `zstd -d`",
        ),
        (b"BZh", "compressed with bzip2; unpack it with `bzip2 -d`"),
    ];
    if let Some((_, what)) = foreign.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Err(not_one(path, format!("it is {what}")));
    }
    if head.starts_with(b"\x1f\x8b") {
        walk_tar(path, MultiGzDecoder::new(file), limits, each)
    } else {
        walk_tar(path, file, limits, each)
    }
}

/// A reader that ends when its budget is used up.
struct Metered<R> {
    source: R,
    /// Remaining bytes.
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        let room = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let count = self.source.read(&mut buffer[..room])?;
        self.left.set(left.saturating_sub(count as u64));
        Ok(count)
    }
}

/// Returns `source`, limited to `most` bytes, and the remaining number.
pub(super) fn metered<R: Read>(source: R, most: u64) -> (impl Read, Rc<Cell<u64>>) {
    let left = Rc::new(Cell::new(most));
    let metered = Metered {
        source,
        left: Rc::clone(&left),
    };
    (metered, left)
}

fn walk_tar(
    path: &Path,
    source: impl Read,
    limits: Limits,
    each: &mut EachMember<'_>,
) -> Result<Option<String>, BundleError> {
    let (source, left) = metered(source, limits.archive);
    let mut archive = Archive::new(source);
    let (mut tops, mut nodes) = (BTreeSet::new(), BTreeSet::new());
    let mut members = 0_usize;
    let mut cut = None;
    let walked = members_of(&mut archive, |name, entry| {
        members += 1;
        let Some(location) = Location::of(name) else {
            return ControlFlow::Continue(());
        };
        // Other archives may have a file with the name of the script's list.
        if let Some(top) = location
            .top
            .as_ref()
            .filter(|_| location.member != Member::Errors)
            && !tops.contains(top)
        {
            tops.insert(top.clone());
        }
        if let Some(node) = &location.node
            && !nodes.contains(node)
        {
            if nodes.len() == MOST_NODES {
                cut = Some(format!("it has more than {MOST_NODES} nodes"));
                return ControlFlow::Break(());
            }
            nodes.insert(node.clone());
            // The limit holds for each node.
            left.set(limits.archive);
        }
        each(&location, &mut |room| match location.refused {
            Some(refused) => Err(Refusal::Other(refused.to_owned())),
            None => read(entry, location.packing, room),
        })
    });
    if let Err(error) = walked {
        cut = Some(format!("the archive is truncated or damaged: {error}"));
    }
    if left.get() == 0 {
        cut = Some(format!(
            "the archive is larger than {}, the most that kpx reads",
            size_text(limits.archive)
        ));
    }
    if tops.len() > 1 {
        return Err(BundleError::Several {
            path: path.to_owned(),
            tops: tops.into_iter().collect(),
        });
    }
    if tops.is_empty() {
        let why = match (cut, members) {
            (Some(_), 0) => "it is not a tar archive, gzipped or not".to_owned(),
            (Some(cut), _) => format!("it contains no file of a bundle, and {cut}"),
            (None, 0) => "it is empty".to_owned(),
            (None, _) => "the archive contains no file of a bundle".to_owned(),
        };
        return Err(not_one(path, why));
    }
    Ok(cut)
}

/// Longer names do not occur in bundles and are not kept in memory.
const LONG_NAME: u64 = 64 << 10;

/// Calls `each` with the name and content of every member, until it breaks.
///
/// Long names are handled here: the tar crate would load a name of any length into memory.
pub(super) fn members_of<R: Read>(
    archive: &mut Archive<R>,
    mut each: impl FnMut(&[u8], &mut Entry<'_, R>) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut long: Option<Vec<u8>> = None;
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry?;
        match entry.header().entry_type() {
            EntryType::GNULongName => {
                let mut name = Vec::new();
                (&mut entry).take(LONG_NAME).read_to_end(&mut name)?;
                while name.last() == Some(&0) {
                    name.pop();
                }
                long = Some(name);
            }
            EntryType::XHeader => {
                let mut records = Vec::new();
                (&mut entry).take(LONG_NAME).read_to_end(&mut records)?;
                long = pax_path(&records).or(long);
            }
            EntryType::GNULongLink | EntryType::XGlobalHeader => {}
            _ => {
                let name = long
                    .take()
                    .unwrap_or_else(|| entry.header().path_bytes().into_owned());
                if each(&name, &mut entry).is_break() {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Returns the path in pax records. Each record is `LENGTH KEY=VALUE` and a newline.
fn pax_path(mut records: &[u8]) -> Option<Vec<u8>> {
    loop {
        let space = records.iter().position(|&b| b == b' ')?;
        let length: usize = str::from_utf8(&records[..space]).ok()?.parse().ok()?;
        let record = records.get(space + 1..length.checked_sub(1)?)?;
        if let Some(path) = record.strip_prefix(b"path=") {
            return Some(path.to_vec());
        }
        records = records.get(length..)?;
    }
}

/// Location of an archive member in a bundle.
pub(super) struct Location {
    pub(super) member: Member,
    packing: Packing,
    /// Folder of the bundle; empty for the archive's root; `None` for a member refused because of its name.
    top: Option<String>,
    /// Node in a bundle of all nodes.
    pub(super) node: Option<String>,
    refused: Option<&'static str>,
}

impl Location {
    /// Returns the location of the member `name`; `None` if no bundle has such a file.
    fn of(name: &[u8]) -> Option<Self> {
        let name = str::from_utf8(name).ok()?;
        let outside = name.starts_with('/') || name.split('/').any(|part| part == "..");
        let parts: Vec<&str> = name
            .split('/')
            .filter(|part| !matches!(*part, "" | "." | ".."))
            .collect();
        // A bundle's files have one or two path components, below at most one folder.
        let depth = |count: usize| {
            let start = parts.len().checked_sub(count)?;
            let (member, packing) = Member::at(&parts[start..].join("/"))?;
            Some((member, packing, &parts[..start]))
        };
        let (member, packing, above) = depth(2).or_else(|| depth(1))?;
        let (above, node) = match above {
            [above @ .., FOLDER, node] if above.len() <= 1 && is_name(node) => {
                (above, Some((*node).to_owned()))
            }
            above => (above, None),
        };
        if outside {
            return Some(Self {
                member,
                packing,
                top: None,
                node,
                refused: Some("refused: its path leads outside the bundle"),
            });
        }
        if above.len() > 1 || member == Member::Index && node.is_some() {
            return None;
        }
        Some(Self {
            member,
            packing,
            top: Some(
                above
                    .first()
                    .map_or_else(String::new, |&top| top.to_owned()),
            ),
            node,
            refused: None,
        })
    }
}

fn read<R: Read>(entry: &mut Entry<'_, R>, packing: Packing, room: u64) -> Result<String, Refusal> {
    let what = match entry.header().entry_type() {
        EntryType::Regular | EntryType::Continuous => {
            let size = entry.size();
            let text = member::read(entry, packing, size, room)?;
            if packing == Packing::Plain && (text.len() as u64) < size {
                return Err(Refusal::Other(
                    "the archive ends in the middle of it".to_owned(),
                ));
            }
            return Ok(text);
        }
        EntryType::Symlink => "a symbolic link",
        EntryType::Link => "a hard link",
        EntryType::Directory => "a folder",
        EntryType::Char | EntryType::Block | EntryType::Fifo => "a device or pipe",
        _ => "not a plain file",
    };
    Err(Refusal::Other(format!("refused: it is {what}")))
}
