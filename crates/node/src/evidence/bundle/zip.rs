//! Members of a zip archive: stored or deflated, without encryption.
//!
//! Source: PKWARE's APPNOTE 6.3.10, sections 4.3.7, 4.3.12, 4.3.14 to 4.3.16 and 4.5.3.

use std::io::{BufReader, Read, Seek, SeekFrom};
use std::ops::ControlFlow;

use flate2::read::DeflateDecoder;

use super::Limits;
use super::member::size_text;
use super::others::inner_path;

/// Reads a member within a limit, in bytes.
type ReadMember<'r> = dyn FnMut(u64) -> Result<Vec<u8>, String> + 'r;

/// Called for each member with its path and its reader.
type EachMember<'e> = dyn FnMut(String, &mut ReadMember<'_>) -> ControlFlow<()> + 'e;

/// The most members that are looked at.
const MOST_MEMBERS: u64 = 500_000;

/// Length of the record at the end, without its comment, and of the longest comment.
const END: u64 = 22;
const LONGEST_COMMENT: u64 = 65_535;

/// Calls `each` for every member of the archive `source`.
pub(super) fn walk<R: Read + Seek>(
    source: BufReader<R>,
    limits: Limits,
    each: &mut EachMember<'_>,
) -> Result<(), String> {
    let mut source = source;
    let (mut at, count, size) = directory(&mut source)?;
    if count > MOST_MEMBERS || size > limits.archive {
        return Err(format!(
            "it has more than {MOST_MEMBERS} members, or is larger than {}",
            size_text(limits.archive)
        ));
    }
    for _ in 0..count {
        let entry = Entry::read(&mut source, at)?;
        at = at
            .checked_add(entry.length)
            .ok_or("its list of members is damaged")?;
        if entry.name.last() == Some(&b'/') {
            continue;
        }
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        let is_text = str::from_utf8(&entry.name).is_ok();
        let path = inner_path(&name.replace('\\', "/"));
        let mut read = |room: u64| match (is_text, &path) {
            (false, _) => Err("its name is not UTF-8".to_owned()),
            (true, None) => Err("refused: its path leads outside the archive".to_owned()),
            (true, Some(_)) => entry.content(&mut source, room),
        };
        if each(path.clone().unwrap_or(name), &mut read).is_break() {
            break;
        }
    }
    Ok(())
}

/// Returns where the list of members begins, their number, and the size of the archive.
fn directory<R: Read + Seek>(source: &mut R) -> Result<(u64, u64, u64), String> {
    let size = source
        .seek(SeekFrom::End(0))
        .map_err(|error| error.to_string())?;
    let tail = size.min(END + LONGEST_COMMENT);
    let bytes = take(source, size - tail, tail)?;
    let mut places = (0..bytes.len().saturating_sub(21)).rev();
    let place = places
        .find(|at| bytes[*at..].starts_with(b"PK\x05\x06"))
        .ok_or("it has no end")?;
    let end = &bytes[place..];
    let (count, offset) = (u64::from(two(end, 10)?), u64::from(four(end, 16)?));
    if count != 0xffff && offset != 0xffff_ffff {
        return Ok((offset, count, size));
    }
    // The larger form has its own end, and a pointer to it before this one.
    let locator = (size - tail) + place as u64;
    let locator = take(
        source,
        locator.checked_sub(20).ok_or("its end is damaged")?,
        20,
    )?;
    if !locator.starts_with(b"PK\x06\x07") {
        return Ok((offset, count, size));
    }
    let end = take(source, eight(&locator, 8)?, 56)?;
    if !end.starts_with(b"PK\x06\x06") {
        return Err("its end is damaged".to_owned());
    }
    Ok((eight(&end, 48)?, eight(&end, 32)?, size))
}

/// An entry of the list of members.
struct Entry {
    name: Vec<u8>,
    method: u16,
    flags: u16,
    packed: u64,
    offset: u64,
    is_link: bool,
    /// Length of the entry itself.
    length: u64,
}

impl Entry {
    fn read<R: Read + Seek>(source: &mut R, at: u64) -> Result<Self, String> {
        let head = take(source, at, 46)?;
        if !head.starts_with(b"PK\x01\x02") {
            return Err("its list of members is damaged".to_owned());
        }
        let (name, extra, comment) = (two(&head, 28)?, two(&head, 30)?, two(&head, 32)?);
        let rest = take(source, at + 46, u64::from(name) + u64::from(extra))?;
        let (mut packed, mut offset) = (u64::from(four(&head, 20)?), u64::from(four(&head, 42)?));
        let unpacked = four(&head, 24)?;
        let mut extras = &rest[usize::from(name)..];
        // Field 1 has the numbers that are too large for their places, in this order.
        while extras.len() >= 4 {
            let (id, length) = (two(extras, 0)?, usize::from(two(extras, 2)?));
            let field = extras
                .get(4..4 + length)
                .ok_or("a member's head is damaged")?;
            if id == 1 {
                let mut place = if unpacked == u32::MAX { 8 } else { 0 };
                for number in [&mut packed, &mut offset] {
                    if *number == u64::from(u32::MAX) {
                        *number = eight(field, place)?;
                        place += 8;
                    }
                }
            }
            extras = &extras[4 + length..];
        }
        Ok(Self {
            name: rest[..usize::from(name)].to_vec(),
            method: two(&head, 10)?,
            flags: two(&head, 8)?,
            packed,
            offset,
            // The mode of Unix is in the upper half.
            is_link: four(&head, 38)? >> 28 == 0xa,
            length: 46 + u64::from(name) + u64::from(extra) + u64::from(comment),
        })
    }

    fn content<R: Read + Seek>(&self, source: &mut R, room: u64) -> Result<Vec<u8>, String> {
        if self.is_link {
            return Err("refused: it is a symbolic link".to_owned());
        }
        if self.flags & 1 != 0 {
            return Err("it is encrypted".to_owned());
        }
        let head = take(source, self.offset, 30)?;
        if !head.starts_with(b"PK\x03\x04") {
            return Err("its head is damaged".to_owned());
        }
        let skip = 30 + u64::from(two(&head, 26)?) + u64::from(two(&head, 28)?);
        let start = self.offset.checked_add(skip).ok_or("its head is damaged")?;
        source
            .seek(SeekFrom::Start(start))
            .map_err(|error| error.to_string())?;
        let packed = source.take(self.packed);
        let mut bytes = Vec::new();
        let limit = room.saturating_add(1);
        let read = match self.method {
            0 => packed.take(limit).read_to_end(&mut bytes),
            8 => DeflateDecoder::new(packed)
                .take(limit)
                .read_to_end(&mut bytes),
            other => {
                return Err(format!(
                    "it is compressed with method {other}, which kpx does not read"
                ));
            }
        };
        read.map_err(|error| format!("it is damaged: {error}"))?;
        if bytes.len() as u64 > room {
            return Err(format!(
                "it is larger than {}, the most that kpx reads",
                size_text(room)
            ));
        }
        Ok(bytes)
    }
}

/// Reads `length` bytes at `at`.
fn take<R: Read + Seek>(source: &mut R, at: u64, length: u64) -> Result<Vec<u8>, String> {
    source
        .seek(SeekFrom::Start(at))
        .map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    source
        .take(length)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if (bytes.len() as u64) < length {
        return Err("it is truncated".to_owned());
    }
    Ok(bytes)
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], String> {
    let found = bytes
        .get(at..at + N)
        .and_then(|bytes| bytes.try_into().ok());
    found.ok_or_else(|| "it is truncated".to_owned())
}

fn two(bytes: &[u8], at: usize) -> Result<u16, String> {
    bytes_at(bytes, at).map(u16::from_le_bytes)
}

fn four(bytes: &[u8], at: usize) -> Result<u32, String> {
    bytes_at(bytes, at).map(u32::from_le_bytes)
}

fn eight(bytes: &[u8], at: usize) -> Result<u64, String> {
    bytes_at(bytes, at).map(u64::from_le_bytes)
}
