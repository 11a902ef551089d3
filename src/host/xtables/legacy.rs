//! Reads the rules of iptables' legacy back end from the kernel, in the form of `iptables-legacy-save -c`.
//!
//! A table is one block of entries: the base chains of its hooks, then the user-defined chains, each behind an entry with its
//! name. The last entry of a chain is its policy. A jump is the offset of an entry.

use std::io;
use std::os::fd::AsFd as _;

use foldhash::HashMap;
use nix::errno::Errno;
use nix::libc::{IPPROTO_IP, IPPROTO_IPV6};
use socket2::{Domain, Socket, Type};

use super::bytes::{Fields, Odd};
use super::saved::{Header, Lines, Rules, Saved};
use super::sets::Sets;
use super::words::{address, mask, not, only, protocol, put};
use super::{TABLES, TRIES, matches, sockopt, targets};
use crate::evidence::{Gap, Item};
use crate::host::context;
use crate::host::nf_tables::{Base, Chain as Name, HOOKS};
use crate::net::Family;

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`; those of IPv6 have the same numbers.
const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;

/// Length of a table's name, and sizes of `struct ipt_getinfo` and of `struct ipt_get_entries` without the entries.
const NAME: usize = 32;
const INFO: usize = 84;
const ENTRIES: usize = 40;

/// Size of `struct xt_entry_match` and `struct xt_entry_target`.
const EXTENSION: usize = 32;

/// `IPT_INV_*` and `IP6T_INV_*`.
mod inverted {
    pub(super) const INPUT: u8 = 1;
    pub(super) const OUTPUT: u8 = 1 << 1;
    pub(super) const SOURCE: u8 = 1 << 3;
    pub(super) const DESTINATION: u8 = 1 << 4;
    pub(super) const FRAGMENT: u8 = 1 << 5;
    pub(super) const PROTOCOL: u8 = 1 << 6;
}

/// `NF_DROP`, `NF_ACCEPT` and `XT_RETURN` as verdicts of an entry.
const DROP: i32 = -1;
const ACCEPT: i32 = -2;
const RETURN: i32 = -5;

/// Offsets in `struct ipt_entry` or `struct ip6t_entry`, which begin with two addresses and their masks.
#[derive(Debug)]
struct Layout {
    level: i32,
    address: usize,
    protocol: usize,
    flags: usize,
    inverted: usize,
    target: usize,
    counters: usize,
    size: usize,
    /// Flags for later fragments, and for `-g`; all flags that are known.
    fragment: u8,
    goto: u8,
    known: u8,
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
struct Table {
    family: Family,
    name: &'static str,
    info: [u8; INFO],
    /// `struct ipt_get_entries`.
    entries: Vec<u8>,
}

/// A chain: its entries, the last of which is the policy.
#[derive(Debug)]
struct Chain<'t> {
    name: &'t str,
    /// Hook of a base chain, and offset of its policy.
    base: Option<(u32, usize)>,
    entries: Vec<Entry<'t>>,
}

/// A rule or a policy.
#[derive(Clone, Copy, Debug)]
struct Entry<'t> {
    offset: usize,
    fields: Fields<'t>,
    /// The matches, one after the other.
    matches: &'t [u8],
    target: Target<'t>,
    next: usize,
}

#[derive(Clone, Copy, Debug)]
enum Target<'t> {
    /// A verdict, or the offset of an entry.
    Standard(i32),
    /// The name of the chain that begins.
    Head(&'t str),
    Extension(Extension<'t>),
}

/// A match or a target of a module.
#[derive(Clone, Copy, Debug)]
struct Extension<'t> {
    name: &'t str,
    revision: u8,
    info: &'t [u8],
}

/// Reads the tables `names` of `family`, which must exist: asking for any other creates it. Blocks.
pub(in crate::host) fn read(item: Item, family: Family, names: &str) -> Result<Rules, Gap> {
    let mut sets = Sets::new(item);
    let tables = names.lines().map(|name| {
        let table = Table::read(item, family, name)?;
        Ok(match table.saved(&mut sets) {
            Ok(saved) => saved,
            Err(why) => Saved {
                name: table.name,
                chains: Vec::new(),
                rules: Lines {
                    odd: Some(why),
                    ..Lines::default()
                },
            },
        })
    });
    Ok(Rules {
        backend: "legacy",
        tables: tables.collect::<Result<_, Gap>>()?,
    })
}

impl Table {
    fn read(item: Item, family: Family, name: &str) -> Result<Self, Gap> {
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

    fn chains(&self) -> Result<Vec<Chain<'_>>, Odd> {
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
                    begin(name, None);
                    continue;
                }
                (None, _) => {}
            }
            let chain = chains.last_mut().ok_or("a rule is in no chain")?;
            chain.entries.push(entry);
        }
        Ok(chains)
    }

    fn saved(&self, sets: &mut Sets) -> Result<Saved, Odd> {
        let chains = self.chains()?;
        let of_user = chains.iter().filter(|chain| chain.base.is_none());
        let names = of_user.filter_map(|chain| Some((chain.entries.first()?.offset, chain.name)));
        let names: HashMap<usize, &str> = names.collect();
        let mut rules = Lines::default();
        let mut headers = Vec::with_capacity(chains.len());
        for chain in &chains {
            let of_chain = |why: Odd| format!("chain {}: {why}", chain.name);
            let (header, entries) = self.header(chain).map_err(of_chain)?;
            headers.push(header);
            let start = rules.text.len();
            for entry in entries {
                let text = &mut rules.text;
                self.rule(text, chain.name, entry, &names, sets)
                    .map_err(of_chain)?;
            }
            let part = start..rules.text.len();
            rules.parts.push((chain.name.to_owned(), part));
        }
        headers.sort_by(Header::order);
        Ok(Saved {
            name: self.name,
            chains: headers,
            rules,
        })
    }

    /// Returns a chain's name, policy and counters, and its rules.
    fn header<'c, 't>(&self, chain: &'c Chain<'t>) -> Result<(Header, &'c [Entry<'t>]), Odd> {
        let (policy, rules) = chain.entries.split_last().ok_or("it has no policy")?;
        let mut header = Header::new(Name {
            family: self.family.nft_name(),
            table: self.name.to_owned(),
            name: chain.name.to_owned(),
            base: None,
        });
        match (chain.base, policy.target) {
            (None, Target::Standard(RETURN)) => {}
            (Some((hook, end)), Target::Standard(verdict @ (DROP | ACCEPT)))
                if end == policy.offset =>
            {
                header.chain.base = Some(Base {
                    kind: String::new(),
                    hook,
                    priority: 0,
                });
                header.policy = u32::from(verdict == ACCEPT);
                (header.packets, header.bytes) = policy.counters(self.family)?;
            }
            (_, other) => return Err(format!("its policy {other:?} is unknown")),
        }
        Ok((header, rules))
    }

    /// Appends the line of a rule of `chain`; `names` has the chains by the offsets of their first entries.
    fn rule(
        &self,
        to: &mut String,
        chain: &str,
        entry: &Entry<'_>,
        names: &HashMap<usize, &str>,
        sets: &mut Sets,
    ) -> Result<(), Odd> {
        let (family, layout) = (self.family, layout(self.family));
        let (packets, bytes) = entry.counters(family)?;
        put!(to, "[{packets}:{bytes}] -A {chain}");
        let flags = entry.fields.u8(layout.flags)?;
        only(flags.into(), layout.known.into())?;
        entry.packet(to, family)?;
        let mut rest = entry.matches;
        while !rest.is_empty() {
            let (of, size) = extension(rest)?;
            matches::write(to, family, sets, of.name, of.revision.into(), of.info)?;
            rest = &rest[size..];
        }
        let goto = flags & layout.goto != 0;
        match entry.target {
            Target::Standard(verdict @ 0..) => {
                let offset = usize::try_from(verdict).expect("it is positive");
                match names.get(&offset) {
                    Some(name) => put!(to, " -{} {name}", if goto { 'g' } else { 'j' }),
                    // On to the next rule.
                    None if offset == entry.next && !goto => {}
                    None => return Err("a jump leads to no chain".to_owned()),
                }
            }
            _ if goto => return Err("a rule goes to no chain".to_owned()),
            Target::Standard(DROP) => to.push_str(" -j DROP"),
            Target::Standard(ACCEPT) => to.push_str(" -j ACCEPT"),
            Target::Standard(RETURN) => to.push_str(" -j RETURN"),
            Target::Standard(other) => return Err(format!("verdict {other} is unknown")),
            Target::Head(_) => return Err("a rule is the head of a chain".to_owned()),
            Target::Extension(of) => {
                targets::write(to, family, of.name, of.revision.into(), of.info)?;
            }
        }
        to.push('\n');
        Ok(())
    }
}

impl Entry<'_> {
    /// Returns packets and bytes.
    fn counters(&self, family: Family) -> Result<(u64, u64), Odd> {
        let at = layout(family).counters;
        Ok((self.fields.u64(at)?, self.fields.u64(at + 8)?))
    }

    /// Appends the options for what `struct ipt_ip` or `struct ip6t_ip6` matches.
    fn packet(&self, to: &mut String, family: Family) -> Result<(), Odd> {
        let (layout, fields) = (layout(family), self.fields);
        let inversions = fields.u8(layout.inverted)?;
        let is = |bit: u8| inversions & bit != 0;
        let mut known = !(1 << 2 | 1 << 7);
        for (number, option, bit) in [(0, "-s", inverted::SOURCE), (1, "-d", inverted::DESTINATION)]
        {
            let value = fields.address(number * layout.address, family)?;
            let bits = fields.address((number + 2) * layout.address, family)?;
            if !is(bit) && bits.is_unspecified() && (value.is_unspecified() || value.is_ipv6()) {
                continue;
            }
            put!(to, "{} {option} ", not(is(bit)));
            address(to, value);
            mask(to, bits);
        }
        for (number, option, bit) in [(0, "-i", inverted::INPUT), (1, "-o", inverted::OUTPUT)] {
            let at = 4 * layout.address + 16 * number;
            let name = fields.text(at, 16)?;
            let mask = fields.bytes(at + 32, 16)?;
            let length = mask.iter().take_while(|byte| **byte == 0xff).count();
            let odd = || format!("link {name} has an unknown mask");
            if mask[length..].iter().any(|byte| *byte != 0) || !name.is_char_boundary(length.min(name.len())) {
                return Err(odd());
            }
            let (name, wildcard) = match name.len() {
                0 if length == 0 && !is(bit) => continue,
                _ if name == "+" && length == 0 && !is(bit) => continue,
                0 => return Err(odd()),
                all if all + 1 == length => (name, ""),
                all if all == length => (name, "+"),
                all if all == length + 1 && name.ends_with('+') && length > 0 => {
                    (&name[..length], "+")
                }
                _ => return Err(odd()),
            };
            put!(to, "{} {option} {name}{wildcard}", not(is(bit)));
        }
        match fields.u16(layout.protocol)? {
            0 => known &= !inverted::PROTOCOL,
            number => {
                let number = number.try_into();
                let number = number.map_err(|_| "a protocol has more than 8 bits")?;
                protocol(to, is(inverted::PROTOCOL), number);
            }
        }
        if fields.u8(layout.flags)? & layout.fragment == 0 {
            known &= !inverted::FRAGMENT;
        } else {
            put!(to, "{} -f", not(is(inverted::FRAGMENT)));
        }
        only(inversions.into(), known.into())
    }
}

const fn layout(family: Family) -> &'static Layout {
    match family {
        Family::V4 => &V4,
        Family::V6 => &V6,
    }
}

/// Returns the match or target that `bytes` begins with, and its size.
fn extension(bytes: &[u8]) -> Result<(Extension<'_>, usize), Odd> {
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
