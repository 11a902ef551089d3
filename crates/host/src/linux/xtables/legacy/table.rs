//! A table of `ip_tables` or `ip6_tables`, as the kernel returns it.
//!
//! It is one block of entries: the base chains of its hooks, then the user-defined chains, each behind an entry with its
//! name. The last entry of a chain is its policy. A jump is the offset of an entry.

use std::io;
use std::os::fd::AsFd as _;

use foldhash::HashMap;
use nix::errno::Errno;
use nix::libc::{IPPROTO_IP, IPPROTO_IPV6};
use socket2::{Domain, Socket, Type};

use super::super::bytes::Fields;
use super::super::{TABLES, sockopt, words};
use crate::linux::context;
use crate::linux::nf_tables::HOOKS;
use crate::linux::nf_tables::wire::{Odd, TRIES};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`; those of IPv6 have the same numbers.
const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;

/// Length of a table's name, and sizes of `struct ipt_getinfo` and of `struct ipt_get_entries` without the entries.
const NAME: usize = 32;
const INFO: usize = 84;
const ENTRIES: usize = 40;

/// Size of `struct xt_entry_match` and `struct xt_entry_target`.
const EXTENSION: usize = 32;

/// `NF_DROP`, `NF_ACCEPT` and `XT_RETURN` as verdicts of an entry.
pub(super) const DROP: i32 = -1;
pub(super) const ACCEPT: i32 = -2;
pub(super) const RETURN: i32 = -5;

/// Offsets in `struct ipt_entry` or `struct ip6t_entry`, which begin with two addresses and their masks.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) level: i32,
    pub(super) address: usize,
    pub(super) protocol: usize,
    pub(super) flags: usize,
    pub(super) inverted: usize,
    pub(super) target: usize,
    pub(super) counters: usize,
    pub(super) size: usize,
    /// Flags for later fragments, and for `-g`; all flags that are known.
    pub(super) fragment: u8,
    pub(super) goto: u8,
    pub(super) known: u8,
}

const V4: Layout = Layout {
    level: IPPROTO_IP,
    address: 4,
    protocol: 80,
    flags: 82,
    inverted: 83,
    target: 88,
    counters: 96,
    size: 112,
    fragment: 1,
    goto: 1 << 1,
    known: 3,
};

/// The first flag only repeats that there is a protocol.
const V6: Layout = Layout {
    level: IPPROTO_IPV6,
    address: 16,
    protocol: 128,
    flags: 131,
    inverted: 132,
    target: 140,
    counters: 152,
    size: 168,
    fragment: 0,
    goto: 1 << 2,
    known: 5,
};

/// A table as the kernel returns it.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) family: Family,
    pub(super) name: &'static str,
    info: [u8; INFO],
    /// `struct ipt_get_entries`.
    entries: Vec<u8>,
}

/// A chain: its entries, the last of which is the policy.
#[derive(Debug)]
pub(super) struct Chain<'t> {
    pub(super) name: &'t str,
    /// Hook of a base chain, and offset of its policy.
    pub(super) base: Option<(u32, usize)>,
    pub(super) entries: Vec<Entry<'t>>,
}

/// A rule or a policy.
#[derive(Clone, Copy, Debug)]
pub(in crate::linux) struct Entry<'t> {
    pub(super) offset: usize,
    pub(super) fields: Fields<'t>,
    /// The matches, one after the other.
    pub(super) matches: &'t [u8],
    pub(super) target: Target<'t>,
    pub(super) next: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Target<'t> {
    /// A verdict, or the offset of an entry.
    Standard(i32),
    /// The name of the chain that begins.
    Head(&'t str),
    Extension(Extension<'t>),
}

/// A match or a target of a module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extension<'t> {
    pub(super) name: &'t str,
    pub(super) revision: u8,
    pub(super) info: &'t [u8],
}

impl Table {
    pub(super) fn read(item: Item, family: Family, name: &str) -> Result<Self, Gap> {
        let failed = |e: &io::Error| {
            context::gap(
                item,
                format!("table {name} of iptables' legacy back end"),
                e,
            )
        };
        let known = TABLES.into_iter().find(|known| *known == name);
        let name = known.ok_or_else(|| {
            Gap::Failed(
                item,
                format!("table {name} of iptables' legacy back end is unknown"),
            )
        })?;
        let domain = match family {
            Family::V4 => Domain::IPV4,
            Family::V6 => Domain::IPV6,
        };
        let socket = Socket::new(domain, Type::DGRAM, None).map_err(|e| failed(&e))?;
        for _ in 0..TRIES {
            match Self::once(&socket, family, name) {
                Ok(Some(table)) => return Ok(table),
                Ok(None) => {}
                Err(e) => return Err(failed(&e)),
            }
        }
        let what = format!("table {name} changed while it was read, {TRIES} times");
        Err(Gap::Failed(item, what))
    }

    /// Reads a table; `None` if it changed meanwhile.
    fn once(socket: &Socket, family: Family, name: &'static str) -> io::Result<Option<Self>> {
        let level = layout(family).level;
        let info = || {
            let mut info = [0; INFO];
            info[..name.len()].copy_from_slice(name.as_bytes());
            sockopt::ask(socket.as_fd(), level, GET_INFO, &mut info).map(|()| info)
        };
        let before = info()?;
        let size = *before.last_chunk::<4>().expect("it has 84 bytes");
        let mut entries = vec![0; ENTRIES + u32::from_ne_bytes(size) as usize];
        entries[..name.len()].copy_from_slice(name.as_bytes());
        entries[NAME..][..4].copy_from_slice(&size);
        match sockopt::ask(socket.as_fd(), level, GET_ENTRIES, &mut entries) {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(Errno::EAGAIN as i32) => return Ok(None),
            Err(e) => return Err(e),
        }
        let table = Self {
            family,
            name,
            info: before,
            entries,
        };
        Ok((info()? == before).then_some(table))
    }

    /// Returns any table, for the fuzzer: family, `struct ipt_getinfo` and `struct ipt_get_entries`.
    #[cfg(fuzzing)]
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        let (family, rest) = bytes.split_first()?;
        let (info, entries) = rest.split_first_chunk::<INFO>()?;
        (entries.len() >= ENTRIES).then(|| Self {
            family: if *family & 1 == 0 {
                Family::V4
            } else {
                Family::V6
            },
            name: "nat",
            info: *info,
            entries: entries.to_vec(),
        })
    }

    /// Returns the hook whose chain begins at `offset`, and the offset of its policy.
    fn hook_at(&self, offset: usize) -> Option<(u32, usize)> {
        let number = |at: usize| {
            let bytes = self.info[at..].first_chunk();
            bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
        };
        let valid = number(NAME);
        let at = |first: usize, hook: u32| number(first + 4 * hook as usize) as usize;
        let mut hooks = (0..5).filter(|hook| valid & (1 << hook) != 0);
        let hook = hooks.find(|hook| at(NAME + 4, *hook) == offset)?;
        Some((hook, at(NAME + 24, hook)))
    }

    fn entry(&self, offset: usize) -> Result<Entry<'_>, Odd> {
        let layout = layout(self.family);
        let rest = &self.entries[ENTRIES..][offset..];
        let rest = Fields::new(rest, rest.len())?;
        let target = usize::from(rest.u16(layout.target)?);
        let next = usize::from(rest.u16(layout.target + 2)?);
        let bytes = rest.bytes(0, next)?;
        let (Some(matches), Some(after)) = (bytes.get(layout.size..target), bytes.get(target..))
        else {
            return Err("an entry has no target".to_owned());
        };
        let (target, _) = extension(after)?;
        let info = Fields::new(target.info, target.info.len())?;
        let target = match target.name {
            "" => Target::Standard(info.u32(0)?.cast_signed()),
            "ERROR" => Target::Head(info.text(0, 30)?),
            _ => Target::Extension(target),
        };
        Ok(Entry {
            offset,
            fields: rest,
            matches,
            target,
            next: offset + next,
        })
    }

    pub(super) fn chains(&self) -> Result<Vec<Chain<'_>>, Odd> {
        let mut chains: Vec<Chain<'_>> = Vec::new();
        let (mut at, end) = (0, self.entries.len() - ENTRIES);
        while at < end {
            let entry = self.entry(at)?;
            at = entry.next;
            let mut begin = |name, base| {
                chains.push(Chain {
                    name,
                    base,
                    entries: Vec::new(),
                });
            };
            match (self.hook_at(entry.offset), entry.target) {
                (Some(base), _) => begin(HOOKS[base.0 as usize], Some(base)),
                // The last one only marks the end.
                (None, Target::Head(_)) if at == end => break,
                (None, Target::Head(name)) => {
                    begin(words::name(name)?, None);
                    continue;
                }
                (None, _) => {}
            }
            let chain = chains.last_mut().ok_or("a rule is in no chain")?;
            chain.entries.push(entry);
        }
        Ok(chains)
    }
}

impl Entry<'_> {
    /// Returns packets and bytes.
    pub(super) fn counters(&self, family: Family) -> Result<(u64, u64), Odd> {
        let at = layout(family).counters;
        Ok((self.fields.u64(at)?, self.fields.u64(at + 8)?))
    }
}

/// Returns the names of user-defined chains by the offsets of their first entries.
pub(super) fn by_offset<'t>(chains: &[Chain<'t>]) -> HashMap<usize, &'t str> {
    let of_user = chains.iter().filter(|chain| chain.base.is_none());
    let names = of_user.filter_map(|chain| Some((chain.entries.first()?.offset, chain.name)));
    names.collect()
}

pub(super) const fn layout(family: Family) -> &'static Layout {
    match family {
        Family::V4 => &V4,
        Family::V6 => &V6,
    }
}

/// Returns the match or target that `bytes` begins with, and its size.
pub(super) fn extension(bytes: &[u8]) -> Result<(Extension<'_>, usize), Odd> {
    let fields = Fields::new(bytes, bytes.len())?;
    let size = usize::from(fields.u16(0)?);
    let info = bytes.get(EXTENSION..size);
    let extension = Extension {
        name: fields.text(2, 29)?,
        revision: fields.u8(31)?,
        info: info.ok_or("an extension has no structure")?,
    };
    Ok((extension, size))
}
