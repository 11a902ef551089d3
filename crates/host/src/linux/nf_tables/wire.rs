//! Messages of `nf_tables`, for the readers of single kinds of rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZero;
use std::thread;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};

use super::listed::Listed;
use super::{Chain, Header, family_number};
use crate::linux::netlink::{HEADERS, Line, append, attributes, message, text, word};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;

/// Why something cannot be decoded.
pub(crate) type Odd = String;

/// Appends formatted text to a [`String`], which cannot fail.
macro_rules! put {
    ($to:expr, $($format:tt)*) => {
        std::fmt::Write::write_fmt($to, format_args!($($format)*))
            .expect("a String takes all text")
    };
}
pub(crate) use put;

/// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GET…`.
pub(crate) mod get {
    pub(crate) const TABLE: u16 = 10 << 8 | 1;
    pub(crate) const CHAIN: u16 = 10 << 8 | 4;
    pub(crate) const RULE: u16 = 10 << 8 | 7;
    pub(crate) const SET: u16 = 10 << 8 | 0x0a;
    pub(crate) const ELEMENTS: u16 = 10 << 8 | 0x0d;
    pub(crate) const OBJECT: u16 = 10 << 8 | 0x13;
    pub(crate) const FLOW_TABLE: u16 = 10 << 8 | 0x17;
}

/// Number of attempts at rules that change between two requests.
pub(crate) const TRIES: u32 = 5;

/// Number of objects from which on several threads ask for them.
const MANY: usize = 500;

/// Highest number of such threads.
const THREADS: usize = 4;

/// Extent of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Extent {
    /// Everything that the key matches.
    All,
    /// One object, which the key names.
    One,
}

/// A connection to `nf_tables`, which notes the generation of the ruleset of each answer.
#[derive(Debug)]
pub(crate) struct Reader {
    item: Item,
    line: Line,
    seen: Generations,
    listed: Listed,
}

/// An answer of `nf_tables`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer<'a> {
    /// `NFPROTO_*`.
    pub(crate) family: u8,
    pub(crate) attributes: &'a [u8],
}

/// Up to 16 bytes of a register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Octets {
    pub(crate) bytes: [u8; 16],
    pub(crate) length: usize,
}

/// Generations of the ruleset; each answer has the lower half of one.
#[derive(Clone, Copy, Debug, Default)]
struct Generations {
    first: Option<u16>,
    differ: bool,
}

/// Reads until all answers are of the same generation of the ruleset, and chains without rules are known to have none.
pub(crate) fn consistent<T>(
    item: Item,
    mut read: impl FnMut(&mut Reader) -> Result<T, Gap>,
) -> Result<T, Gap> {
    for _ in 0..TRIES {
        let mut reader = Reader::open(item)?;
        let found = read(&mut reader);
        let is_same = !reader.seen.differ;
        if is_same && (found.is_err() || reader.is_whole()?) {
            return found;
        }
    }
    let what = format!("the rules changed while they were read, {TRIES} times");
    Err(Gap::Failed(item, what))
}

impl Reader {
    fn open(item: Item) -> Result<Self, Gap> {
        Ok(Self {
            item,
            line: Line::netfilter(item)?,
            seen: Generations::default(),
            listed: Listed::default(),
        })
    }

    /// Passes `all` to `read`, in parts with a connection and a thread each if there are many; returns what it returned
    /// for each part, in order.
    ///
    /// Blocks.
    pub(crate) fn in_parts<A: Sync, T: Send>(
        &mut self,
        all: &[A],
        read: impl Fn(&mut Self, &[A]) -> Result<T, Gap> + Sync,
    ) -> Result<Vec<T>, Gap> {
        let threads = match all.len() {
            ..MANY => 1,
            _ => thread::available_parallelism().map_or(1, NonZero::get),
        };
        if threads == 1 {
            return Ok(vec![read(self, all)?]);
        }
        let item = self.item;
        let read_part = |part: &[A]| {
            let mut reader = Self::open(item)?;
            let found = read(&mut reader, part);
            Ok((found, reader.seen, reader.listed))
        };
        let parts = thread::scope(|scope| {
            let parts = all.chunks(all.len().div_ceil(threads.min(THREADS)));
            let running: Vec<_> = parts
                .map(|part| scope.spawn(move || read_part(part)))
                .collect();
            let ended = running.into_iter().map(thread::ScopedJoinHandle::join);
            ended.collect::<Vec<_>>()
        });
        let mut found = Vec::with_capacity(parts.len());
        for part in parts {
            let (part, seen, listed) =
                part.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            self.seen.join(seen);
            self.listed.join(listed);
            found.push(part);
        }
        found.into_iter().collect()
    }

    /// Returns the item that is read.
    pub(crate) const fn item(&self) -> Item {
        self.item
    }

    /// Sends a request of `kind` for the object `key`, and passes each answer to `take`. Blocks.
    pub(crate) fn ask<T: Default>(
        &mut self,
        kind: u16,
        extent: Extent,
        family: u8,
        key: &[u8],
        mut take: impl FnMut(&mut T, Answer<'_>) -> Result<(), Odd>,
    ) -> Result<T, Gap> {
        let item = self.item;
        let flags = match extent {
            Extent::All => NLM_F_DUMP,
            Extent::One => NLM_F_ACK,
        };
        let asks = |sequence| message(kind, flags | NLM_F_REQUEST, sequence, (family, 0), key);
        let (seen, found) = self.line.stream(
            asks,
            |(seen, found): &mut (Generations, T), bytes: &[u8]| {
                seen.see(bytes);
                take(found, Answer::new(bytes)).map_err(|why| {
                    Gap::Failed(item, format!("cannot decode an answer of nf_tables: {why}"))
                })
            },
        )?;
        self.seen.join(seen);
        Ok(found)
    }

    /// Like [`Reader::ask`], but an answer that `take` does not know is no failure: it is returned as the inner error, and
    /// later answers are skipped. Blocks.
    pub(crate) fn ask_known<T: Default>(
        &mut self,
        kind: u16,
        extent: Extent,
        family: u8,
        key: &[u8],
        mut take: impl FnMut(&mut T, Answer<'_>) -> Result<(), Odd>,
    ) -> Result<Result<T, Odd>, Gap> {
        let (found, odd) = self.ask(
            kind,
            extent,
            family,
            key,
            |(found, odd): &mut (T, Option<Odd>), answer| {
                if odd.is_none() {
                    *odd = take(found, answer).err();
                }
                Ok(())
            },
        )?;
        Ok(odd.map_or(Ok(found), Err))
    }

    /// Lists the rules of a chain like [`Reader::ask_known`]. Blocks.
    pub(crate) fn rules<T: Default>(
        &mut self,
        header: &Header,
        mut take: impl FnMut(&mut T, Answer<'_>) -> Result<(), Odd>,
    ) -> Result<Result<T, Odd>, Gap> {
        let mut number = 0;
        let Chain {
            family,
            table,
            name,
            ..
        } = &header.chain;
        let (family, of) = (family_number(family), key(&[(1, table), (2, name)]));
        let found = self.ask_known(get::RULE, Extent::All, family, &of, |to, answer| {
            number += 1;
            take(to, answer)
        })?;
        self.listed.note(header, number);
        Ok(found)
    }

    /// Notes a base chain whose rules are not listed: its entry shows whether it has rules.
    pub(crate) fn note_base(&mut self, header: &Header) {
        self.listed.note_base(header);
    }

    /// Returns whether the chains without rules have none. Blocks.
    fn is_whole(&mut self) -> Result<bool, Gap> {
        let listed = std::mem::take(&mut self.listed);
        let is_whole = listed.is_whole(|family, table, chain| {
            let of = key(&[(1, table), (2, chain)]);
            let is_there = |any: &mut bool, _: Answer<'_>| {
                *any = true;
                Ok(())
            };
            self.ask(get::RULE, Extent::All, family, &of, is_there)
        })?;
        Ok(is_whole && !self.seen.differ)
    }
}

impl<'a> Answer<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self {
            family: bytes.get(16).copied().unwrap_or_default(),
            attributes: bytes.get(HEADERS..).unwrap_or_default(),
        }
    }
}

impl Generations {
    /// Notes the generation of an answer.
    fn see(&mut self, message: &[u8]) {
        let generation = message.get(18..20).and_then(|bytes| bytes.try_into().ok());
        let generation = generation.map(u16::from_be_bytes);
        self.differ |= self.first.is_some() && self.first != generation;
        self.first = self.first.or(generation);
    }

    fn join(&mut self, other: Self) {
        self.differ |= other.differ;
        self.differ |= self.first.is_some() && other.first.is_some() && self.first != other.first;
        self.first = self.first.or(other.first);
    }
}

/// Returns a key of names, each with the number of its attribute.
pub(crate) fn key(names: &[(u16, &str)]) -> Vec<u8> {
    let mut key = Vec::new();
    for (kind, name) in names {
        append(&mut key, *kind, format!("{name}\0").as_bytes());
    }
    key
}

/// Returns the attributes 1 to `N`; any other, except for padding, is an error.
pub(crate) fn numbered<const N: usize>(data: &[u8]) -> Result<[Option<&[u8]>; N], Odd> {
    let mut found = [None; N];
    for attribute in attributes(data) {
        let (kind, value) = attribute?;
        let slot = found.get_mut(usize::from(kind).wrapping_sub(1));
        // 64-bit values are padded.
        match slot {
            Some(slot) => *slot = Some(value),
            None if value.is_empty() => {}
            None => return Err(format!("attribute {kind} is unknown")),
        }
    }
    Ok(found)
}

/// Returns an attribute that must exist.
pub(crate) fn needed(attribute: Option<&[u8]>) -> Result<&[u8], Odd> {
    attribute.ok_or_else(|| "an attribute is missing".to_owned())
}

/// Returns the value in `NFTA_DATA_VALUE`.
pub(crate) fn value_of(data: &[u8]) -> Result<&[u8], Odd> {
    match attributes(data).next() {
        Some(Ok((1, value))) => Ok(value),
        _ => Err("a value is missing".to_owned()),
    }
}

/// Returns the number of a verdict and the name of its chain, in `NFTA_DATA_VERDICT`.
pub(crate) fn verdict_of(data: &[u8]) -> Result<(i32, Option<&str>), Odd> {
    let mut inner = attributes(data);
    let Some(Ok((2, verdict))) = inner.next() else {
        return Err("a verdict is missing".to_owned());
    };
    let [code, chain] = numbered::<2>(verdict)?;
    let chain = chain.map(text).transpose()?;
    Ok((word(needed(code)?)?.cast_signed(), chain))
}

/// Returns name and data of an expression.
pub(crate) fn expression(element: &[u8]) -> Result<(&str, &[u8]), Odd> {
    let [name, data] = numbered::<2>(element)?;
    let name = text(needed(name)?)?;
    Ok((name, data.unwrap_or_default()))
}

/// Returns name, revision and structure of a match or target.
pub(crate) fn extension(data: &[u8]) -> Result<(&str, u32, &[u8]), Odd> {
    let [name, revision, info] = numbered::<3>(data)?;
    Ok((
        text(needed(name)?)?,
        word(needed(revision)?)?,
        needed(info)?,
    ))
}

impl Octets {
    /// Returns these bytes, if there is room.
    pub(crate) fn new(value: &[u8]) -> Result<Self, Odd> {
        let mut bytes = [0; 16];
        let to = bytes.get_mut(..value.len());
        to.ok_or("a value has more than 16 bytes")?
            .copy_from_slice(value);
        Ok(Self {
            bytes,
            length: value.len(),
        })
    }

    /// Returns the bytes.
    pub(crate) fn get(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Returns an address of which these are the first bytes, the others being 0.
    pub(crate) fn address(self, family: Family) -> Option<IpAddr> {
        let mut bytes = [0; 16];
        bytes[..self.length].copy_from_slice(self.get());
        match family {
            Family::V4 if self.length <= 4 => {
                let first = bytes.first_chunk::<4>()?;
                Some(Ipv4Addr::from(*first).into())
            }
            Family::V4 => None,
            Family::V6 => Some(Ipv6Addr::from(bytes).into()),
        }
    }

    /// Returns a number in the machine's byte order.
    pub(crate) fn native(self) -> Result<u32, Odd> {
        let bytes = self.get().try_into();
        let bytes = bytes.map_err(|_| "a number has a wrong size")?;
        Ok(u32::from_ne_bytes(bytes))
    }
}

/// Appends an address as `inet_ntop` spells it.
pub(crate) fn address(to: &mut String, address: IpAddr) {
    match address {
        IpAddr::V6(v6) => match v6.segments() {
            // Rust spells only mapped addresses this way.
            [0, 0, 0, 0, 0, 0, high, low] if high != 0 => {
                let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
                put!(to, "::{a}.{b}.{c}.{d}");
            }
            _ => put!(to, "{v6}"),
        },
        IpAddr::V4(v4) => put!(to, "{v4}"),
    }
}

/// The answers in `bytes`, one after the other, with the kind of each.
#[cfg(fuzzing)]
pub(crate) fn answers(bytes: &[u8]) -> impl Iterator<Item = (u16, Answer<'_>)> {
    let messages = crate::linux::netlink::messages(bytes);
    messages.map(|(kind, message)| (kind, Answer::new(message)))
}
