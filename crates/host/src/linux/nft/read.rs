//! Reads tables of nftables from the kernel, in the form of `nft -j list ruleset` (1.0.6).
//!
//! It needs no tool, and works with rules of any release. A table with anything unknown is left to the tool: nothing is
//! guessed.

use std::collections::BTreeMap;

use super::actions::object_name;
use super::counts::{counter, limit, quota};
use super::elements::Elements;
use super::json::quoted;
use super::rule::Writer;
use super::sets::{Set, Sets};
use super::types::LinkNames;
use super::{OWNER, whose};
use crate::linux::links::link_names;
use crate::linux::netlink::{attributes, text, wide, word};
use crate::linux::nf_tables::wire::{
    Answer, Extent, Odd, Reader, consistent, get, key, needed, put,
};
use crate::linux::nf_tables::{Header, Table, comment_in, family_number, headers, tables_by};
use kpx_node::evidence::{Gap, Item};

/// Objects of a table, separated by commas, or why the tool must read it.
pub(super) type Listed = Result<String, Odd>;

/// Names of links, read when first needed.
#[derive(Debug)]
struct Links {
    item: Item,
    names: Option<Result<BTreeMap<u32, String>, Gap>>,
}

impl LinkNames for Links {
    fn name(&mut self, index: u32) -> Result<Option<&str>, Odd> {
        let item = self.item;
        let names = self.names.get_or_insert_with(|| link_names(item));
        let names = names.as_ref().map_err(ToString::to_string)?;
        Ok(names.get(&index).map(String::as_str))
    }
}

/// Reads `tables`. Blocks.
pub(super) fn tables(item: Item, tables: &[Table]) -> Result<Vec<Listed>, Gap> {
    // The kernel lists the chains of all tables only together, and a node can have thousands.
    if tables.is_empty() {
        return Ok(Vec::new());
    }
    consistent(item, |reader| {
        exist(reader, tables)?;
        let headers = headers(reader, 0)?;
        let mut links = Links { item, names: None };
        let all = tables
            .iter()
            .map(|listed| table(reader, listed, &headers, &mut links));
        all.collect()
    })
}

/// Reads the set `name` of `table` with the table's own entry; `None` if there is no such set. Blocks.
pub(super) fn set(item: Item, of: &Table, name: &str) -> Result<Option<Listed>, Gap> {
    consistent(item, |reader| {
        exist(reader, std::slice::from_ref(of))?;
        let mut links = Links { item, names: None };
        let family = family_number(of.family);
        let found = match sets(
            reader,
            Extent::One,
            family,
            &key(&[(1, &of.name), (2, name)]),
        ) {
            Err(Gap::Absent(..)) => return Ok(None),
            read => read?,
        };
        let mut set = match found.map(|found| found.into_iter().next()) {
            Ok(Some(set)) => set,
            Ok(None) => return Ok(None),
            Err(why) => return Ok(Some(Err(why))),
        };
        if let Err(why) = elements(reader, family, &of.name, &mut set, &mut links)? {
            return Ok(Some(Err(why)));
        }
        let mut to = String::new();
        let printed = head(&mut to, of).and_then(|()| {
            to.push_str(", ");
            set.print(&mut to, of.family, &of.name)
        });
        Ok(Some(printed.map(|()| to)))
    })
}

/// Returns an error if one of `tables` was deleted or replaced.
fn exist(reader: &mut Reader, tables: &[Table]) -> Result<(), Gap> {
    let item = reader.item();
    let now = tables_by(reader, 0)?;
    match tables.iter().find(|table| !now.contains(table)) {
        None => Ok(()),
        Some(gone) => {
            let what = format!("table {} {} was deleted", gone.family, gone.name);
            Err(Gap::Absent(item, what))
        }
    }
}

fn table(
    reader: &mut Reader,
    table: &Table,
    headers: &[Header],
    links: &mut Links,
) -> Result<Listed, Gap> {
    let mut to = String::new();
    if let Err(why) = head(&mut to, table) {
        return Ok(Err(why));
    }
    let family = family_number(table.family);
    let of = key(&[(1, &table.name)]);
    match objects(reader, table, &of)? {
        Ok(objects) => to.push_str(&objects),
        Err(why) => return Ok(Err(why)),
    }
    let found = match sets(reader, Extent::All, family, &of)? {
        Ok(found) => found,
        Err(why) => return Ok(Err(why)),
    };
    let mut sets = Sets::default();
    for mut set in found {
        if let Err(why) = elements(reader, family, &table.name, &mut set, links)? {
            return Ok(Err(why));
        }
        sets.add(set);
    }
    for set in sets.all.iter().filter(|set| !set.is_anonymous()) {
        to.push_str(", ");
        if let Err(why) = set.print(&mut to, table.family, &table.name) {
            return Ok(Err(why));
        }
    }
    let own = headers
        .iter()
        .filter(|header| header.chain.family == table.family && header.chain.table == table.name);
    let own: Vec<&Header> = own.collect();
    for header in &own {
        to.push_str(", ");
        if let Err(why) = chain(&mut to, header) {
            return Ok(Err(why));
        }
    }
    let item = reader.item();
    let parts = reader.in_parts(&own, |reader, chains| {
        let mut links = Links { item, names: None };
        let mut writer = Writer::new(family, &sets, &mut links);
        rules(reader, table, chains, &mut writer)
    })?;
    for part in parts {
        match part {
            Ok(rules) => to.push_str(&rules),
            Err(why) => return Ok(Err(why)),
        }
    }
    Ok(Ok(to))
}

/// Reads the rules of `chains`, one chain at a time: see `xtables`.
fn rules(
    reader: &mut Reader,
    table: &Table,
    chains: &[&Header],
    writer: &mut Writer<'_>,
) -> Result<Listed, Gap> {
    let mut all = String::new();
    for header in chains {
        let name = &header.chain.name;
        let rules = reader.rules(header, |to: &mut String, answer| {
            rule(to, table, name, answer, writer)
        })?;
        match rules {
            Ok(rules) => all.push_str(&rules),
            Err(why) => return Ok(Err(why)),
        }
    }
    Ok(Ok(all))
}

/// Appends the entry of a table.
fn head(to: &mut String, table: &Table) -> Result<(), Odd> {
    if !matches!(table.family, "ip" | "ip6" | "inet") {
        return Err(format!("rules of family {} are not decoded", table.family));
    }
    put!(
        to,
        "{{\"table\": {{\"family\": \"{}\", \"name\": ",
        table.family
    );
    quoted(to, &table.name);
    put!(to, ", \"handle\": {}", table.handle);
    to.push_str(match table.flags {
        0 => "",
        1 => ", \"flags\": \"dormant\"",
        OWNER => ", \"flags\": \"owner\"",
        flags => return Err(format!("the table has flags {flags:#x}")),
    });
    for (key, value) in whose(table) {
        put!(to, ", \"{key}\": ");
        quoted(to, &value);
    }
    to.push_str("}}");
    Ok(())
}

/// Reads the table's named objects.
fn objects(reader: &mut Reader, table: &Table, of: &[u8]) -> Result<Listed, Gap> {
    let family = family_number(table.family);
    let is_there = |found: &mut bool, _: Answer<'_>| {
        *found = true;
        Ok(())
    };
    if reader.ask(get::FLOW_TABLE, Extent::All, family, of, is_there)? {
        return Ok(Err("it has a flowtable".to_owned()));
    }
    reader.ask_known(get::OBJECT, Extent::All, family, of, |to, answer| {
        object(to, table, answer)
    })
}

fn object(to: &mut String, table: &Table, answer: Answer<'_>) -> Result<(), Odd> {
    let (mut name, mut kind, mut data, mut handle, mut comment) = (None, 0, None, 0, None);
    for attribute in attributes(answer.attributes) {
        match attribute? {
            // The table, the number of uses, and padding.
            (1 | 5 | 7, _) => {}
            (2, value) => name = Some(text(value)?),
            (3, value) => kind = word(value)?,
            (4, value) => data = Some(value),
            (6, value) => handle = wide(value)?,
            (8, value) => comment = comment_in(value)?,
            (other, _) => return Err(format!("object attribute {other} is unknown")),
        }
    }
    let name = name.ok_or("an object has no name")?;
    let data = needed(data)?;
    let of = object_name(kind)?;
    put!(
        to,
        ", {{\"{of}\": {{\"family\": \"{}\", \"name\": ",
        table.family
    );
    quoted(to, name);
    to.push_str(", \"table\": ");
    quoted(to, &table.name);
    put!(to, ", \"handle\": {handle}");
    if let Some(comment) = comment {
        to.push_str(", \"comment\": ");
        quoted(to, comment);
    }
    to.push_str(", ");
    match kind {
        1 => counter(to, data)?,
        2 => {
            let (bytes, used, is_over) = quota(data)?;
            put!(
                to,
                "\"bytes\": {bytes}, \"used\": {used}, \"inv\": {is_over}"
            );
        }
        4 => limit(to, data, false)?,
        _ => return Err(format!("object {name} is a {of}")),
    }
    to.push_str("}}");
    Ok(())
}

/// Reads sets without their elements; an error inside is why one of them is not known.
fn sets(
    reader: &mut Reader,
    extent: Extent,
    family: u8,
    of: &[u8],
) -> Result<Result<Vec<Set>, Odd>, Gap> {
    reader.ask_known(
        get::SET,
        extent,
        family,
        of,
        |all: &mut Vec<Set>, answer| {
            all.push(Set::read(answer.attributes)?);
            Ok(())
        },
    )
}

/// Reads the elements of a set; an error inside is why one of them is not known.
fn elements(
    reader: &mut Reader,
    family: u8,
    table: &str,
    set: &mut Set,
    links: &mut Links,
) -> Result<Result<(), Odd>, Gap> {
    let of = key(&[(1, table), (2, &set.name)]);
    let elements = reader.ask_known(
        get::ELEMENTS,
        Extent::All,
        family,
        &of,
        |elements: &mut Elements, answer| elements.add(set, answer.attributes, links),
    )?;
    Ok(elements.and_then(|elements| elements.finish(set, links)))
}

/// Appends the entry of a chain.
fn chain(to: &mut String, header: &Header) -> Result<(), Odd> {
    let chain = &header.chain;
    // Base chains have flag 1.
    if header.flags & !1 != 0 || !header.devices.is_empty() {
        return Err(format!("chain {} has flags or devices", chain.name));
    }
    put!(
        to,
        "{{\"chain\": {{\"family\": \"{}\", \"table\": ",
        chain.family
    );
    quoted(to, &chain.table);
    to.push_str(", \"name\": ");
    quoted(to, &chain.name);
    put!(to, ", \"handle\": {}", header.handle);
    if let Some(base) = &chain.base {
        const HOOKS: [&str; 5] = ["prerouting", "input", "forward", "output", "postrouting"];
        let hook = HOOKS.get(base.hook as usize);
        let hook = hook.ok_or_else(|| format!("chain {} has hook {}", chain.name, base.hook))?;
        let policy = match header.policy {
            0 => "drop",
            1 => "accept",
            other => return Err(format!("chain {} has policy {other}", chain.name)),
        };
        to.push_str(", \"type\": ");
        quoted(to, &base.kind);
        let priority = base.priority;
        put!(
            to,
            ", \"hook\": \"{hook}\", \"prio\": {priority}, \"policy\": \"{policy}\""
        );
    }
    to.push_str("}}");
    Ok(())
}

/// Appends a rule.
fn rule(
    to: &mut String,
    table: &Table,
    chain: &str,
    answer: Answer<'_>,
    writer: &mut Writer<'_>,
) -> Result<(), Odd> {
    let (mut handle, mut expressions, mut comment) = (0, [].as_slice(), None);
    for attribute in attributes(answer.attributes) {
        match attribute? {
            // The table, what iptables needs, the rule before, and padding.
            (1 | 5 | 6 | 8, _) => {}
            (2, value) if text(value)? == chain => {}
            (2, _) => return Err("the kernel does not list one chain alone".to_owned()),
            (3, value) => handle = wide(value)?,
            (4, value) => expressions = value,
            (7, value) => comment = comment_in(value)?,
            (other, _) => return Err(format!("rule attribute {other} is unknown")),
        }
    }
    put!(
        to,
        ", {{\"rule\": {{\"family\": \"{}\", \"table\": ",
        table.family
    );
    quoted(to, &table.name);
    to.push_str(", \"chain\": ");
    quoted(to, chain);
    put!(to, ", \"handle\": {handle}");
    if let Some(comment) = comment {
        to.push_str(", \"comment\": ");
        quoted(to, comment);
    }
    let written = writer.write(to, ", \"expr\": [", expressions);
    written.map_err(|why| format!("chain {chain}, rule {handle}: {why}"))?;
    to.push_str("}}");
    Ok(())
}

/// Returns the comment in the notes of `nft`.
/// Decodes any chains, sets, elements and rules, for the fuzzer; `None` if they are not known.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) -> Option<String> {
    use crate::linux::nf_tables::family_name;
    use crate::linux::nf_tables::wire::answers;

    struct Link;

    impl LinkNames for Link {
        fn name(&mut self, index: u32) -> Result<Option<&str>, Odd> {
            Ok((index == 1).then_some("lo"))
        }
    }

    let table = Table {
        family: family_name(answers(bytes).next()?.1.family)?,
        name: "kube-proxy".to_owned(),
        handle: 1,
        ..Table::default()
    };
    let of_kind = |wanted: u16| {
        let all = answers(bytes);
        all.filter_map(move |(kind, answer)| (kind & 0xff == wanted).then_some(answer))
    };
    let mut to = String::new();
    head(&mut to, &table).ok()?;
    for answer in of_kind(0x12) {
        object(&mut to, &table, answer).ok()?;
    }
    let mut sets = Sets::default();
    for answer in of_kind(9) {
        let mut set = Set::read(answer.attributes).ok()?;
        let mut elements = Elements::default();
        for answer in of_kind(12) {
            let name = attributes(answer.attributes)
                .flatten()
                .find(|(kind, _)| *kind == 2);
            if name.and_then(|(_, value)| text(value).ok()) == Some(&set.name) {
                elements.add(&set, answer.attributes, &mut Link).ok()?;
            }
        }
        elements.finish(&mut set, &mut Link).ok()?;
        sets.add(set);
    }
    for set in sets.all.iter().filter(|set| !set.is_anonymous()) {
        to.push_str(", ");
        set.print(&mut to, table.family, &table.name).ok()?;
    }
    // The kernel lists the rules of a chain of this table only if there is one.
    let mut chains = Vec::new();
    for answer in of_kind(3) {
        let mut header = Header::read(answer).ok()?;
        header.chain.family = table.family;
        header.chain.table.clone_from(&table.name);
        to.push_str(", ");
        chain(&mut to, &header).ok()?;
        chains.push(header.chain.name);
    }
    let mut link = Link;
    let mut writer = Writer::new(family_number(table.family), &sets, &mut link);
    for answer in of_kind(6) {
        let name = attributes(answer.attributes)
            .flatten()
            .find(|(kind, _)| *kind == 2);
        let name = text(name?.1).ok()?;
        if chains.iter().any(|chain| chain == name) {
            rule(&mut to, &table, name, answer, &mut writer).ok()?;
        }
    }
    Some(format!("{{\"nftables\": [{to}]}}"))
}
