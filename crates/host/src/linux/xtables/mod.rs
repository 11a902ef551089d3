//! Reads the rules of iptables-nft from the kernel, in the form of `iptables-save -c`.
//!
//! The kernel needs little more than half of the time that the tool needs, and the tool may be older or newer than the
//! one that wrote the rules. A table with anything unknown is left to the tool: nothing is guessed.

mod bytes;
pub(super) mod legacy;
mod matches;
mod rule;
mod saved;
mod sets;
mod sockopt;
mod targets;
mod words;

use super::netlink::{attributes, text};
use super::nf_tables::wire::{Answer, Odd, Reader, consistent};
use super::nf_tables::{Header, Table, built_in, family_number, header, headers, tables_by};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use rule::Writer;
pub(super) use saved::incompatible;
use saved::{NATIVE, Rules, Saved};
use sets::Sets;

/// A chain with the lines of its rules, or why the tool must read them.
type Ruled = (Header, Result<String, Odd>);

/// Tables in the order of `iptables-save`.
const TABLES: [&str; 5] = ["mangle", "security", "raw", "filter", "nat"];

/// Reads all tables of iptables of `family`. Blocks.
pub(super) fn read(item: Item, family: Family) -> Result<Rules, Gap> {
    consistent(item, |reader| {
        let found = tables_by(reader, number(family))?;
        let mut chains = headers(reader, number(family))?;
        chains.retain(|header| TABLES.contains(&header.chain.table.as_str()));
        let mut chains = rules(reader, family, chains)?;
        let tables = TABLES.into_iter().filter_map(|name| {
            let table = found.iter().find(|table| table.name == name)?;
            let own = chains.extract_if(.., |(header, _)| header.chain.table == name);
            Some(saved(name, table, own.collect(), family))
        });
        Ok(Rules {
            backend: "nf_tables",
            tables: tables.collect(),
        })
    })
}

/// Returns the table `name` with its chains.
fn saved(name: &'static str, table: &Table, found: Vec<Ruled>, family: Family) -> Saved {
    let mut odd = match table.flags {
        0 => None,
        flags => Some(format!("the table has flags {flags:#x}")),
    };
    let mut chains = Vec::with_capacity(found.len());
    for (header, rules) in found {
        match rules {
            Ok(rules) => chains.push((header, rules)),
            Err(why) if saved::is_native(&why) => odd = Some(why),
            Err(why) => odd = odd.or(Some(why)),
        }
    }
    // The tool prints those, too, that the kernel does not have.
    for chain in built_in(family.nft_name(), name) {
        if chains.iter().all(|(of, _)| of.chain.name != chain.name) {
            chains.push((Header::new(chain), String::new()));
        }
    }
    chains.sort_by(saved::order);
    Saved { name, chains, odd }
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
        let Some(of) = header(reader, number(family), table, chain)? else {
            return Ok(None);
        };
        let mut writer = Writer::new(family, Sets::new(item));
        let rules = rules_of(reader, &of, &mut writer)?;
        if rules.as_ref().is_ok_and(String::is_empty) {
            // Only if another chain has rules is it certain that this one has none.
            for base in built_in(family.nft_name(), table) {
                if let Some(base) = header(reader, number(family), table, &base.name)? {
                    reader.note_base(&base);
                }
            }
        }
        Ok(Some(rules.map(|rules| {
            let saved = Saved {
                name,
                chains: vec![(of, rules)],
                odd: None,
            };
            saved.text()
        })))
    })
}

/// Reads the rules of `chains`.
///
/// In a dump of several chains, the kernel counts all rules that were in an earlier message once more for each message:
/// for 88,000 rules, that is most of the time.
fn rules(reader: &mut Reader, family: Family, chains: Vec<Header>) -> Result<Vec<Ruled>, Gap> {
    let parts = reader.in_parts(&chains, |reader, chains| {
        let mut writer = Writer::new(family, Sets::new(reader.item()));
        let each = chains
            .iter()
            .map(|header| rules_of(reader, header, &mut writer));
        each.collect::<Result<Vec<_>, Gap>>()
    })?;
    Ok(chains
        .into_iter()
        .zip(parts.into_iter().flatten())
        .collect())
}

fn rules_of(
    reader: &mut Reader,
    header: &Header,
    writer: &mut Writer,
) -> Result<Result<String, Odd>, Gap> {
    let chain = &header.chain;
    if let Err(why) = words::name(&chain.name) {
        return Ok(Err(why));
    }
    if !chain.is_compatible() {
        let why = format!("base chain {} is not one of iptables", chain.name);
        return Ok(Err(why));
    }
    let rules = reader.rules(header, |lines, answer| {
        rule(answer, &chain.name, writer, lines)
    })?;
    Ok(rules.map_err(|why| format!("chain {}: {why}", chain.name)))
}

/// Adds the line of a rule of `chain`.
fn rule(
    answer: Answer<'_>,
    chain: &str,
    writer: &mut Writer,
    lines: &mut String,
) -> Result<(), Odd> {
    let mut expressions = [].as_slice();
    for attribute in attributes(answer.attributes) {
        match attribute? {
            // The table, the handle, the one of the rule before, and padding.
            (1 | 3 | 6 | 8, _) => {}
            (2, value) if text(value)? == chain => {}
            (2, _) => return Err("the kernel does not list one chain alone".to_owned()),
            (4, value) => expressions = value,
            (other, _) => return Err(format!("rule attribute {other} is unknown")),
        }
    }
    writer.write(lines, chain, expressions)
}

/// Returns `AF_INET` or `AF_INET6`.
fn number(family: Family) -> u8 {
    family_number(family.nft_name())
}

/// Decodes any chains and rules of iptables-nft, for the fuzzer; `None` if they are not known.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) -> Option<(Family, String)> {
    use crate::linux::nf_tables::wire::answers;

    let family = match answers(bytes).next()?.1.family {
        10 => Family::V6,
        _ => Family::V4,
    };
    let mut writer = Writer::new(family, Sets::some());
    let mut chains: Vec<(Header, String)> = Vec::new();
    for (kind, answer) in answers(bytes) {
        match kind & 0xff {
            3 => {
                let header = Header::read(answer).ok()?;
                let name = words::name(&header.chain.name).ok()?;
                // The kernel has one chain of a name.
                if chains.iter().all(|(of, _)| of.chain.name != name) {
                    chains.push((header, String::new()));
                }
            }
            _ => {
                let (header, lines) = chains.last_mut()?;
                rule(answer, &header.chain.name, &mut writer, lines).ok()?;
            }
        }
    }
    chains.sort_by(saved::order);
    let name = "nat";
    Some((
        family,
        Saved {
            name,
            chains,
            odd: None,
        }
        .text(),
    ))
}
