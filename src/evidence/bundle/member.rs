//! One member of a bundle: which item it is, and its text within the limits.

use std::collections::BTreeMap;
use std::io::{self, Read};

use flate2::read::MultiGzDecoder;

use super::super::{Gap, Item};
use super::{Limits, MANIFEST};

/// What a member is to a bundle.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Member {
    /// The evidence of an item.
    Item(Item),
    /// The manifest.
    Manifest,
}

/// Whether a member is stored as it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Packing {
    /// As it is.
    Plain,
    /// Gzipped.
    Gzip,
}

impl Member {
    /// Returns what the member at `path`, below the bundle's root, is.
    pub(super) fn at(path: &str) -> Option<(Self, Packing)> {
        let (plain, packing) = match path.strip_suffix(".gz") {
            Some(plain) => (plain, Packing::Gzip),
            None => (path, Packing::Plain),
        };
        let member = if plain == MANIFEST {
            Self::Manifest
        } else {
            Self::Item(Item::of_file(plain)?)
        };
        Some((member, packing))
    }
}

/// What a bundle turned out to hold.
#[derive(Default)]
pub(super) struct Found {
    /// The items, each with its text or why it was refused.
    pub(super) items: BTreeMap<Item, Result<String, Gap>>,
    /// The manifest's text, or why it was refused.
    pub(super) manifest: Option<Result<String, String>>,
    /// Why reading ended before the bundle did.
    pub(super) cut: Option<String>,
    kept: u64,
}

impl Found {
    /// Records a member, or why it cannot be used. A second one of the same kind takes the place of both.
    pub(super) fn insert(&mut self, member: Member, read: Result<String, Refusal>) {
        self.kept += read.as_ref().map_or(0, |text| text.len() as u64);
        let twice = || Refusal::Other("it is in the bundle more than once".to_owned());
        match member {
            Member::Item(item) => {
                let again = self.items.contains_key(&item);
                let read = if again { Err(twice()) } else { read };
                self.items
                    .insert(item, read.map_err(|refusal| refusal.gap(item)));
            }
            Member::Manifest => {
                let again = self.manifest.is_some();
                let read = if again { Err(twice()) } else { read };
                self.manifest = Some(read.map_err(|refusal| refusal.to_string()));
            }
        }
    }

    /// Returns how many bytes the next member may have.
    pub(super) fn room(&self, limits: Limits) -> u64 {
        limits.member.min(limits.kept.saturating_sub(self.kept))
    }
}

/// Why a member is not used.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The system refused.
    Denied(String),
    /// Anything else.
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
                Self::Denied("the bundle's file is not readable for this user".to_owned())
            }
            _ => Self::Other(error.to_string()),
        }
    }
}

/// Memory is taken ahead for no more than this, whatever a member says of its size.
const AHEAD: u64 = 64 << 20;

/// Reads a member of `size` stored bytes to its end, but no more than `room` bytes of text.
pub(super) fn read(
    source: &mut dyn Read,
    packing: Packing,
    size: u64,
    room: u64,
) -> Result<String, Refusal> {
    match packing {
        // The decoder takes nothing at all for the gzip of nothing.
        Packing::Gzip if size == 0 => Err(Refusal::Other("gzip data is cut short".to_owned())),
        Packing::Plain => text(source, size, room, "cannot be read to its end"),
        // Rules and API lists shrink to about a tenth.
        Packing::Gzip => text(
            MultiGzDecoder::new(source),
            size.saturating_mul(10),
            room,
            "gzip data is damaged or cut short",
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
            "it is larger than the {} kpx has room for",
            size_text(room)
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        Refusal::Other(format!("it is not text: invalid UTF-8 at byte {place}"))
    })
}

/// Returns `bytes` for people.
pub(super) fn size_text(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 => format!("{} GiB", b >> 30),
        b if b >= 1 << 20 => format!("{} MiB", b >> 20),
        b => format!("{b} bytes"),
    }
}
