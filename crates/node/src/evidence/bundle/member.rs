//! One member of a bundle: its item, and its text within the limits.

use std::collections::BTreeMap;
use std::io::{self, Read};

use flate2::read::MultiGzDecoder;

use super::super::{Gap, Item};
use super::{ERRORS, Limits, MANIFEST, NODES};

/// Role of a member in a bundle.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Member {
    /// Evidence of an item.
    Item(Item),
    /// The manifest.
    Manifest,
    /// Missing files and the reasons, from the script of `kpx snapshot --script`.
    Errors,
    /// The list of nodes in a bundle of all nodes.
    Index,
}

/// Compression of a member.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Packing {
    /// Not compressed.
    Plain,
    /// Compressed with gzip.
    Gzip,
}

impl Member {
    /// Returns the role and compression of the member at `path`, relative to the bundle's root.
    pub(super) fn at(path: &str) -> Option<(Self, Packing)> {
        let (plain, packing) = match path.strip_suffix(".gz") {
            Some(plain) => (plain, Packing::Gzip),
            None => (path, Packing::Plain),
        };
        let member = match plain {
            MANIFEST => Self::Manifest,
            ERRORS => Self::Errors,
            NODES => Self::Index,
            file => Self::Item(Item::of_file(file)?),
        };
        Some((member, packing))
    }

    /// Returns whether the member is loaded together with `items`.
    pub(super) fn is_wanted(self, items: &[Item]) -> bool {
        match self {
            Self::Item(item) => items.contains(&item),
            Self::Manifest | Self::Errors | Self::Index => true,
        }
    }
}

/// Contents of a bundle.
#[derive(Default)]
pub(super) struct Found {
    /// Items, each with its text or the reason why it was refused.
    pub(super) items: BTreeMap<Item, Result<String, Gap>>,
    /// Text of the manifest, or the reason why it was refused.
    pub(super) manifest: Option<Result<String, String>>,
    /// Text of the script's list of missing files.
    pub(super) errors: Option<String>,
    /// Text of the list of nodes, or the reason why it was refused.
    pub(super) index: Option<Result<String, String>>,
    /// Reason why reading stopped before the end of the bundle.
    pub(super) cut: Option<String>,
    kept: u64,
}

impl Found {
    /// Records a member, or why it cannot be used. A duplicate replaces both with an error.
    pub(super) fn insert(&mut self, member: Member, read: Result<String, Refusal>) {
        self.kept += read.as_ref().map_or(0, |text| text.len() as u64);
        let twice = || Refusal::Other("the bundle contains it more than once".to_owned());
        match member {
            Member::Item(item) => {
                let again = self.items.contains_key(&item);
                let read = if again { Err(twice()) } else { read };
                self.items
                    .insert(item, read.map_err(|refusal| refusal.gap(item)));
            }
            Member::Manifest | Member::Index => {
                let place = match member {
                    Member::Index => &mut self.index,
                    _ => &mut self.manifest,
                };
                let read = if place.is_some() { Err(twice()) } else { read };
                *place = Some(read.map_err(|refusal| refusal.to_string()));
            }
            // Without it, the reasons are unknown.
            Member::Errors => self.errors = read.ok(),
        }
    }

    /// Returns the maximum size of the next member, in bytes.
    pub(super) fn room(&self, limits: Limits) -> u64 {
        limits.member.min(limits.kept.saturating_sub(self.kept))
    }
}

/// Reason why a member is not used.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The system denied access.
    Denied(String),
    /// Any other reason.
    Other(String),
}

impl Refusal {
    fn gap(self, item: Item) -> Gap {
        match self {
            Self::Denied(text) => Gap::Denied(item, text),
            Self::Other(text) => Gap::Failed(item, text),
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Denied(text) | Self::Other(text)) = self;
        f.write_str(text)
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => {
                Self::Denied("the bundle's file is not readable by this user".to_owned())
            }
            _ => Self::Other(error.to_string()),
        }
    }
}

/// Upper limit of memory allocated in advance, whatever size a member claims.
const AHEAD: u64 = 64 << 20;

/// Reads a member of `size` stored bytes completely, but at most `room` bytes of text.
pub(super) fn read(
    source: &mut dyn Read,
    packing: Packing,
    size: u64,
    room: u64,
) -> Result<String, Refusal> {
    match packing {
        // The decoder yields no error for empty input.
        Packing::Gzip if size == 0 => Err(Refusal::Other("gzip data is truncated".to_owned())),
        Packing::Plain => text(source, size, room, "cannot be read to its end"),
        // Rules and API lists compress to about a tenth.
        Packing::Gzip => text(
            MultiGzDecoder::new(source),
            size.saturating_mul(10),
            room,
            "gzip data is damaged or truncated",
        ),
    }
}

fn text(source: impl Read, expected: u64, room: u64, damaged: &str) -> Result<String, Refusal> {
    let ahead = usize::try_from(expected.min(room).min(AHEAD)).unwrap_or(0);
    let mut bytes = Vec::with_capacity(ahead);
    let mut source = source.take(room.saturating_add(1));
    source
        .read_to_end(&mut bytes)
        .map_err(|error| Refusal::Other(format!("{damaged}: {error}")))?;
    if bytes.len() as u64 > room {
        return Err(Refusal::Other(format!(
            "it is larger than {}, the most that kpx reads",
            size_text(room)
        )));
    }
    // Editors on Windows put a byte order mark first.
    if bytes.starts_with(b"\xef\xbb\xbf") {
        bytes.drain(..3);
    }
    String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        Refusal::Other(format!("it is not text: invalid UTF-8 at byte {place}"))
    })
}

/// Returns `bytes` as text for users.
pub(super) fn size_text(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 => format!("{} GiB", b >> 30),
        b if b >= 1 << 20 => format!("{} MiB", b >> 20),
        b => format!("{b} bytes"),
    }
}
