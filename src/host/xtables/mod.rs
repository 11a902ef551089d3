//! Reads the rules of iptables from the kernel, in the form of `iptables-save -c`: here those of iptables-nft.
//!
//! The kernel needs little more than half of the time that the tool needs, and the tool may be older or newer than the
//! one that wrote the rules. A table with anything that is not known here is left to the tool: nothing is guessed.

mod bytes;
pub(super) mod legacy;
mod matches;
mod rule;
mod saved;
mod sets;
mod sockopt;
mod targets;
mod words;

use foldhash::HashMap;
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::netlink::{HEADERS, append, attributes, message, stream, text, wide, word};
use super::nf_tables::{Base, Chain, built_in};
use crate::evidence::{Gap, Item};
use crate::net::Family;
use bytes::Odd;
use rule::Writer;
use saved::{Header, Lines, Rules, Saved};
use sets::Sets;

/// `NFNL_SUBSYS_NFTABLES` and `NFT_MSG_GET…`.
const GET_TABLE: u16 = 10 << 8 | 1;
const GET_CHAIN: u16 = 10 << 8 | 4;
const GET_RULE: u16 = 10 << 8 | 7;

/// Flags of a request for all chains or one.
const GET_CHAIN_DUMP: u16 = NLM_F_DUMP;
const GET_CHAIN_ONE: u16 = NLM_F_ACK;

/// Number of attempts at rules that change between two dumps.
const TRIES: u32 = 5;

/// Tables in the order of `iptables-save`.
const TABLES: [&str; 5] = ["mangle", "security", "raw", "filter", "nat"];

/// Generations of the ruleset, of which each answer has the lower half.
#[derive(Clone, Copy, Debug, Default)]
struct Generations {
    first: Option<u16>,
    differ: bool,
}

/// Reads all tables of iptables of `family`. Blocks.
pub(super) fn read(item: Item, family: Family) -> Result<Rules, Gap> {
    consistent(item, |seen| {
        let mut tables = tables(item, family, seen)?;
        let mut chains = chains(item, family, GET_CHAIN_DUMP, &[], seen)?;
        let mut rules = rules(item, family, &[], seen)?;
        for table in &mut tables {
            let own = chains.extract_if(.., |header| header.chain.table == table.name);
            table.chains.extend(own);
            // The tool prints those, too, that the kernel does not have.
            for chain in built_in(family.nft_name(), table.name) {
                if table.chains.iter().all(|of| of.chain.name != chain.name) {
                    table.chains.push(Header::new(chain));
                }
            }
            table.chains.sort_by(Header::order);
            table.rules = rules.remove(table.name).unwrap_or_default();
            let foreign = |header: &&Header| !header.chain.is_compatible();
            if let Some(header) = table.chains.iter().find(foreign) {
                let why = format!("base chain {} is not one of iptables", header.chain.name);
                table.rules.odd = Some(why);
            }
        }
        Ok(Rules {
            backend: "nf_tables",
            tables,
        })
    })
}

/// Reads one chain, as a table with this chain only; `None` if it does not exist. Blocks.
pub(super) fn chain(
    item: Item,
    family: Family,
    table: &str,
    chain: &str,
) -> Result<Option<Result<String, Odd>>, Gap> {
    let known = TABLES.into_iter().find(|name| *name == table);
    let Some(name) = known else {
        return Ok(Some(Err(format!("table {table} is not one of iptables"))));
    };
    consistent(item, |seen| {
        let key = |table_kind, chain_kind| {
            let mut key = Vec::new();
            for (kind, name) in [(table_kind, table), (chain_kind, chain)] {
                append(&mut key, kind, format!("{name}\0").as_bytes());
            }
            key
        };
        let headers = match chains(item, family, GET_CHAIN_ONE, &key(1, 3), seen) {
            Ok(headers) => headers,
            Err(Gap::Absent(..)) => return Ok(None),
            Err(gap) => return Err(gap),
        };
        let is_this = |header: &Header| header.chain.table == table && header.chain.name == chain;
        let Some(header) = headers.into_iter().find(is_this) else {
            return Ok(None);
        };
        let mut rules = rules(item, family, &key(1, 2), seen)?;
        let mut rules = rules.remove(name).unwrap_or_default();
        if !header.chain.is_compatible() {
            rules.odd = Some(format!("base chain {chain} is not one of iptables"));
        }
        if let Some(why) = rules.odd.take() {
            return Ok(Some(Err(why)));
        }
        let chains = vec![header];
        let saved = Saved {
            name,
            chains,
            rules,
        };
        Ok(Some(Ok(saved.text())))
    })
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

/// Reads until all answers are of the same generation of the ruleset.
fn consistent<T>(item: Item, read: impl Fn(&mut Generations) -> Result<T, Gap>) -> Result<T, Gap> {
    for _ in 0..TRIES {
        let mut seen = Generations::default();
        let found = read(&mut seen);
        if !seen.differ {
            return found;
        }
    }
    let what = format!("the rules changed while they were read, {TRIES} times");
    Err(Gap::Failed(item, what))
}

/// Reads the tables of iptables, in the order of the tool and without chains.
fn tables(item: Item, family: Family, seen: &mut Generations) -> Result<Vec<Saved>, Gap> {
    let (generations, names) = stream(
        item,
        NETLINK_NETFILTER,
        |sequence| request(GET_TABLE, NLM_F_DUMP, family, sequence, &[]),
        |(generations, names): &mut (Generations, Vec<(String, u32)>), message| {
            generations.see(message);
            names.push(decoded(item, table(message))?);
            Ok(())
        },
    )?;
    seen.join(generations);
    let tables = TABLES.into_iter().filter_map(|name| {
        let (_, flags) = names.iter().find(|(found, _)| found == name)?;
        let mut rules = Lines::default();
        if *flags != 0 {
            rules.odd = Some(format!("the table has flags {flags:#x}"));
        }
        Some(Saved {
            name,
            chains: Vec::new(),
            rules,
        })
    });
    Ok(tables.collect())
}

fn table(message: &[u8]) -> Result<(String, u32), Odd> {
    let (mut name, mut flags) = (None, 0);
    for attribute in attributes(body(message)) {
        match attribute? {
            (1, value) => name = Some(text(value)?.to_owned()),
            (2, value) => flags = word(value)?,
            _ => {}
        }
    }
    Ok((name.ok_or("a table has no name")?, flags))
}

/// Reads chains, all or the one that `key` names.
fn chains(
    item: Item,
    family: Family,
    flags: u16,
    key: &[u8],
    seen: &mut Generations,
) -> Result<Vec<Header>, Gap> {
    let (generations, chains) = stream(
        item,
        NETLINK_NETFILTER,
        |sequence| request(GET_CHAIN, flags, family, sequence, key),
        |(generations, chains): &mut (Generations, Vec<Header>), message| {
            generations.see(message);
            chains.push(decoded(item, header(family, message))?);
            Ok(())
        },
    )?;
    seen.join(generations);
    Ok(chains)
}

fn header(family: Family, message: &[u8]) -> Result<Header, Odd> {
    let mut header = Header::new(Chain {
        family: family.nft_name(),
        table: String::new(),
        name: String::new(),
        base: None,
    });
    let (mut place, mut kind) = (None, "");
    for attribute in attributes(body(message)) {
        match attribute? {
            (1, value) => text(value)?.clone_into(&mut header.chain.table),
            (3, value) => text(value)?.clone_into(&mut header.chain.name),
            (4, value) => place = Some(value),
            (5, value) => header.policy = word(value)?,
            (7, value) => kind = text(value)?,
            (8, value) => {
                for counter in attributes(value) {
                    match counter? {
                        (1, value) => header.bytes = wide(value)?,
                        (2, value) => header.packets = wide(value)?,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    if let Some(place) = place {
        let (mut hook, mut priority) = (0, 0);
        for attribute in attributes(place) {
            match attribute? {
                (1, value) => hook = word(value)?,
                (2, value) => priority = word(value)?.cast_signed(),
                _ => {}
            }
        }
        header.chain.base = Some(Base {
            kind: kind.to_owned(),
            hook,
            priority,
        });
    }
    Ok(header)
}

/// Reads rules by table, all or those of the chain that `key` names.
fn rules(
    item: Item,
    family: Family,
    key: &[u8],
    seen: &mut Generations,
) -> Result<HashMap<&'static str, Lines>, Gap> {
    let mut writer = Writer::new(family, Sets::new(item));
    let (generations, rules) = stream(
        item,
        NETLINK_NETFILTER,
        |sequence| request(GET_RULE, NLM_F_DUMP, family, sequence, key),
        |(generations, tables): &mut (Generations, HashMap<&'static str, Lines>), message| {
            generations.see(message);
            decoded(item, rule(message, &mut writer, tables))
        },
    )?;
    seen.join(generations);
    Ok(rules)
}

/// Adds a rule to its table. A rule that is not known makes the table one for the tool, and is no error.
fn rule(
    message: &[u8],
    writer: &mut Writer,
    tables: &mut HashMap<&'static str, Lines>,
) -> Result<(), Odd> {
    let (mut table, mut chain, mut expressions) = (None, None, [].as_slice());
    let mut odd = None;
    for attribute in attributes(body(message)) {
        match attribute? {
            (1, value) => table = Some(text(value)?),
            (2, value) => chain = Some(text(value)?),
            // The handle, the one of the rule before, and padding.
            (3 | 6 | 8, _) => {}
            (4, value) => expressions = value,
            (other, _) => odd = Some(format!("rule attribute {other} is unknown")),
        }
    }
    let table = table.ok_or("a rule has no table")?;
    let chain = chain.ok_or("a rule has no chain")?;
    let Some(table) = TABLES.into_iter().find(|name| *name == table) else {
        return Ok(());
    };
    let lines = tables.entry(table).or_default();
    if lines.odd.is_some() {
        return Ok(());
    }
    let start = lines.text.len();
    let written = match odd {
        Some(odd) => Err(odd),
        None => writer.write(&mut lines.text, chain, expressions),
    };
    if let Err(why) = written {
        lines.odd = Some(format!("chain {chain}: {why}"));
        return Ok(());
    }
    let end = lines.text.len();
    match lines.parts.last_mut() {
        Some((name, part)) if name == chain => part.end = end,
        _ => lines.parts.push((chain.to_owned(), start..end)),
    }
    Ok(())
}

fn decoded<T>(item: Item, found: Result<T, Odd>) -> Result<T, Gap> {
    found.map_err(|why| Gap::Failed(item, format!("cannot decode an answer of nf_tables: {why}")))
}

/// Returns the attributes of a message.
fn body(message: &[u8]) -> &[u8] {
    message.get(HEADERS..).unwrap_or_default()
}

fn request(kind: u16, flags: u16, family: Family, sequence: u32, key: &[u8]) -> Vec<u8> {
    message(
        kind,
        flags | NLM_F_REQUEST,
        sequence,
        (number(family), 0),
        key,
    )
}

/// Returns `AF_INET` or `AF_INET6`.
const fn number(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}
