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

use super::netlink::{attributes, text};
use super::nf_tables::wire::{Answer, Extent, Odd, Reader, consistent, get, key};
use super::nf_tables::{Header, built_in, family_number, headers, tables_by};
use crate::evidence::{Gap, Item};
use crate::net::Family;
use rule::Writer;
use saved::{Lines, Rules, Saved};
use sets::Sets;

/// Tables in the order of `iptables-save`.
const TABLES: [&str; 5] = ["mangle", "security", "raw", "filter", "nat"];

/// Reads all tables of iptables of `family`. Blocks.
pub(super) fn read(item: Item, family: Family) -> Result<Rules, Gap> {
    consistent(item, |reader| {
        let mut tables = tables(reader, family)?;
        let mut chains = headers(reader, Extent::All, number(family), &[])?;
        let mut rules = rules(reader, family, &[])?;
        for table in &mut tables {
            let own = chains.extract_if(.., |header| header.chain.table == table.name);
            table.chains.extend(own);
            // The tool prints those, too, that the kernel does not have.
            for chain in built_in(family.nft_name(), table.name) {
                if table.chains.iter().all(|of| of.chain.name != chain.name) {
                    table.chains.push(Header::new(chain));
                }
            }
            table.chains.sort_by(saved::order);
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
    consistent(item, |reader| {
        let of = [(1, table), (3, chain)];
        let headers = match headers(reader, Extent::One, number(family), &key(&of)) {
            Ok(headers) => headers,
            Err(Gap::Absent(..)) => return Ok(None),
            Err(gap) => return Err(gap),
        };
        let is_this = |header: &Header| header.chain.table == table && header.chain.name == chain;
        let Some(header) = headers.into_iter().find(is_this) else {
            return Ok(None);
        };
        let mut rules = rules(reader, family, &key(&[(1, table), (2, chain)]))?;
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

/// Reads the tables of iptables, in the order of the tool and without chains.
fn tables(reader: &mut Reader, family: Family) -> Result<Vec<Saved>, Gap> {
    let all = tables_by(reader, number(family))?;
    let tables = TABLES.into_iter().filter_map(|name| {
        let table = all.iter().find(|table| table.name == name)?;
        let mut rules = Lines::default();
        if table.flags != 0 {
            rules.odd = Some(format!("the table has flags {:#x}", table.flags));
        }
        Some(Saved {
            name,
            chains: Vec::new(),
            rules,
        })
    });
    Ok(tables.collect())
}

/// Reads rules by table, all or those of the chain that `key` names.
fn rules(
    reader: &mut Reader,
    family: Family,
    key: &[u8],
) -> Result<HashMap<&'static str, Lines>, Gap> {
    let mut writer = Writer::new(family, Sets::new(reader.item()));
    reader.ask(
        get::RULE,
        Extent::All,
        number(family),
        key,
        |tables, answer| rule(answer, &mut writer, tables),
    )
}

/// Adds a rule to its table. A rule that is not known makes the table one for the tool, and is no error.
fn rule(
    answer: Answer<'_>,
    writer: &mut Writer,
    tables: &mut HashMap<&'static str, Lines>,
) -> Result<(), Odd> {
    let (mut table, mut chain, mut expressions) = (None, None, [].as_slice());
    let mut odd = None;
    for attribute in attributes(answer.attributes) {
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

/// Returns `AF_INET` or `AF_INET6`.
fn number(family: Family) -> u8 {
    family_number(family.nft_name())
}
