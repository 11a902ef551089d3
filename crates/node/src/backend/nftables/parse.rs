//! `nft -j` output to a [`Ruleset`]; the text that nft prints without `-j` is read in `text`.
//!
//! The output of nft 0.9 to 1.1 is read. A statement or value that the model does not have is kept as listed; an object
//! without a required part, such as a rule without a chain, is an error that names it.

mod expr;
mod text;
mod texts;

use std::collections::HashMap;
use std::fmt;

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::model::{Base, Chain, Element, Rule, Ruleset, Set, TABLE, Table};
use crate::evidence::{Gap, Item};

pub use text::text;

/// Reads `nft -j list ruleset`.
pub fn json(text: &str) -> Result<Ruleset, Gap> {
    let read: Document =
        serde_json::from_str(text).map_err(|e| Gap::of_json(Item::Nft, text, &e))?;
    match read.nftables.0.broken {
        Some(why) => Err(Gap::Failed(Item::Nft, why)),
        None => Ok(read.nftables.0.ruleset),
    }
}

/// Reads a ruleset in either form.
pub fn any(text: &str) -> Result<Ruleset, Gap> {
    if text.starts_with('{') {
        json(text)
    } else {
        self::text(text)
    }
}

#[derive(Deserialize)]
struct Document {
    nftables: Objects,
}

/// The list of objects, each put in its place as soon as it is read: a large document is never held twice.
struct Objects(Reader);

impl<'de> Deserialize<'de> for Objects {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Objects;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of nftables objects")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Objects, A::Error> {
                let mut reader = Reader::default();
                let mut number = 0;
                while let Some(Object(kind, value)) = list.next_element()? {
                    number += 1;
                    if reader.broken.is_none() {
                        let read = reader.object(&kind, value);
                        reader.broken = read.err().map(|e| format!("object {number}: {e}"));
                    }
                }
                Ok(Objects(reader))
            }
        }
        deserializer.deserialize_seq(List)
    }
}

/// One object: its kind and its value.
struct Object(String, Value);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct One;
        impl<'de> Visitor<'de> for One {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with one key")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let first = map.next_entry()?;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                let (kind, value) = first.unwrap_or_default();
                Ok(Object(kind, value))
            }
        }
        deserializer.deserialize_map(One)
    }
}

#[derive(Default)]
struct Reader {
    ruleset: Ruleset,
    broken: Option<String>,
    /// Where the chains are: (table, chain), by family, table and name.
    chains: HashMap<(String, String, String), (usize, usize)>,
}

/// The flags of a table that nft prints.
const TABLE_FLAGS: [&str; 3] = ["dormant", "owner", "persist"];

/// Reads the flags of `table`, one or a list. With `-j`, nft 1.0.6 and older print freed memory in place of a single one (see
/// `table_flags_json` in its `json.c`): then the table has one unknown flag. If the table's own program sets no flag, another
/// program set it, so it is `dormant`: an owner is set only when a table is created.
fn read_flags(flags: Option<&Value>, table: &mut Table) {
    let listed = match flags {
        None => return,
        Some(Value::Array(all)) => all.as_slice(),
        Some(one) => std::slice::from_ref(one),
    };
    table.dormant = listed.iter().any(|flag| flag == "dormant");
    if listed.iter().any(|flag| flag == "owner") {
        table.owner = Some(String::new());
    }
    let is_known = |flag: &Value| TABLE_FLAGS.iter().any(|known| flag == known);
    if !listed.iter().all(is_known) {
        if table.name == TABLE || table.is_of_iptables() {
            table.dormant = true;
        } else {
            table.has_unread_flag = true;
        }
    }
}

impl Reader {
    fn object(&mut self, kind: &str, value: Value) -> Result<(), String> {
        let Value::Object(mut object) = value else {
            return Ok(());
        };
        match kind {
            "table" => {
                let mut table = Table {
                    family: take_name(&mut object, "family", kind)?,
                    name: take_name(&mut object, "name", kind)?,
                    comment: take_text(&mut object, "comment"),
                    ..Table::default()
                };
                read_flags(object.get("flags"), &mut table);
                if let Some(owner) = &mut table.owner {
                    *owner = take_text(&mut object, "progname").unwrap_or_default();
                }
                self.ruleset.tables.push(table);
            }
            "chain" => {
                let at = self.table(&mut object, kind)?;
                let chain = chain(&mut object)?;
                let table = &mut self.ruleset.tables[at];
                let key = (table.family.clone(), table.name.clone(), chain.name.clone());
                self.chains.insert(key, (at, table.chains.len()));
                table.chains.push(chain);
            }
            "rule" => {
                let family = take_name(&mut object, "family", kind)?;
                let table = take_name(&mut object, "table", kind)?;
                let chain = take_name(&mut object, "chain", kind)?;
                let key = (family, table, chain);
                let Some(&(table, chain)) = self.chains.get(&key) else {
                    let (family, table, chain) = key;
                    return Err(format!(
                        "a rule of {family} {table} {chain}, which is not listed"
                    ));
                };
                let table = &mut self.ruleset.tables[table];
                let (rule, blocks) = rule(&mut object, &table.family)?;
                table.chains[chain].rules.push(rule);
                table.chains.extend(blocks);
            }
            "set" | "map" | "meter" => {
                let at = self.table(&mut object, kind)?;
                let set = set(&mut object, kind)?;
                self.ruleset.tables[at].sets.push(set);
            }
            "limit" => {
                let at = self.table(&mut object, kind)?;
                let name = take_name(&mut object, "name", kind)?;
                if let Some(words) = texts::of_statement(kind, &Value::Object(object)) {
                    self.ruleset.tables[at].limits.insert(name, words);
                }
            }
            // `metainfo`, and objects that the model does not have: counters, quotas, flowtables, helpers.
            _ => {}
        }
        Ok(())
    }

    /// Returns where the table of `object` is.
    fn table(&self, object: &mut Map<String, Value>, kind: &str) -> Result<usize, String> {
        let family = take_name(object, "family", kind)?;
        let table = take_name(object, "table", kind)?;
        let tables = &self.ruleset.tables;
        let at = tables
            .iter()
            .rposition(|t| t.family == family && t.name == table);
        at.ok_or_else(|| format!("a {kind} of table {family} {table}, which is not listed"))
    }
}

fn take_text(object: &mut Map<String, Value>, key: &str) -> Option<String> {
    match object.get_mut(key).map(Value::take) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    }
}

fn take_name(object: &mut Map<String, Value>, key: &str, kind: &str) -> Result<String, String> {
    take_text(object, key).ok_or_else(|| format!("a {kind} without {key:?}"))
}

/// Takes a list of words, which nft prints as one word when there is one.
fn take_words(object: &mut Map<String, Value>, key: &str) -> Vec<String> {
    words(object.get_mut(key).map(Value::take))
}

fn words(value: Option<Value>) -> Vec<String> {
    let word = |value| match value {
        Value::String(word) => Some(word),
        _ => None,
    };
    match value {
        Some(Value::Array(list)) => list.into_iter().filter_map(word).collect(),
        Some(value) => word(value).into_iter().collect(),
        None => Vec::new(),
    }
}

fn chain(object: &mut Map<String, Value>) -> Result<Chain, String> {
    let name = take_name(object, "name", "chain")?;
    let base = match take_text(object, "hook") {
        None => None,
        Some(hook) => {
            let priority = object.get("prio").and_then(Value::as_i64);
            Some(Base {
                kind: take_text(object, "type").unwrap_or_else(|| "filter".to_owned()),
                hook,
                devices: words(object.get_mut("dev").map(Value::take)),
                priority: priority
                    .and_then(|p| i32::try_from(p).ok())
                    .ok_or_else(|| format!("chain {name} has a hook but no \"prio\""))?,
                // The kernel's default, and the only one a nat chain can have.
                policy: take_text(object, "policy").unwrap_or_else(|| "accept".to_owned()),
            })
        }
    };
    Ok(Chain {
        name,
        comment: take_text(object, "comment"),
        base,
        rules: Vec::new(),
    })
}

/// Reads a rule of a table of `family`; with it, the chains without a name that it jumps to.
fn rule(object: &mut Map<String, Value>, family: &str) -> Result<(Rule, Vec<Chain>), String> {
    let handle = object.get("handle").and_then(Value::as_u64);
    let mut blocks = Vec::new();
    let mut statements = Vec::new();
    match object.get_mut("expr").map(Value::take) {
        Some(Value::Array(list)) => {
            for one in list {
                match one {
                    // A statement that nft has no JSON for.
                    Value::String(line) => {
                        let (rule, inner) = text::rule_of(&line, family)?;
                        statements.extend(rule.statements);
                        blocks.extend(inner);
                    }
                    one => statements.push(expr::statement(one)),
                }
            }
        }
        None => {}
        Some(_) => {
            let which = handle.unwrap_or(0);
            return Err(format!("rule {which}: \"expr\" is not a list"));
        }
    }
    let rule = Rule {
        handle,
        comment: take_text(object, "comment"),
        statements,
    };
    Ok((rule, blocks))
}

fn set(object: &mut Map<String, Value>, kind: &str) -> Result<Set, String> {
    let name = take_name(object, "name", kind)?;
    let elements = match object.get_mut("elem").map(Value::take) {
        Some(Value::Array(list)) => list.into_iter().map(element).collect(),
        None => Vec::new(),
        Some(_) => return Err(format!("{kind} {name}: \"elem\" is not a list")),
    };
    Ok(Set {
        name,
        comment: take_text(object, "comment"),
        key: take_words(object, "type"),
        data: (kind == "map").then(|| data_types(&take_words(object, "map"))),
        flags: take_words(object, "flags"),
        timeout: object.get("timeout").and_then(Value::as_u64),
        run: match object.get_mut("stmt").map(Value::take) {
            Some(Value::Array(list)) => expr::conditions(list),
            _ => Vec::new(),
        },
        elements,
    })
}

/// Returns the types of a map's data, of which nft joins several to one word.
fn data_types(words: &[String]) -> Vec<String> {
    let parts = words.iter().flat_map(|word| word.split(" . "));
    parts
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Reads `KEY`, `[KEY, DATUM]`, and either with `{"elem": {"val": KEY, …}}` for the key.
fn element(value: Value) -> Element {
    let (key, datum) = match value {
        Value::Array(pair) if pair.len() == 2 => {
            let mut pair = pair.into_iter();
            (pair.next().unwrap_or_default(), pair.next())
        }
        key => (key, None),
    };
    let mut inner = match key {
        Value::Object(mut object) if object.contains_key("elem") => {
            match object.get_mut("elem").map(Value::take) {
                Some(Value::Object(inner)) => inner,
                _ => object,
            }
        }
        key => Map::from_iter([("val".to_owned(), key)]),
    };
    let number = |key: &str| inner.get(key).and_then(Value::as_u64);
    let conditions = ["limit", "quota", "ct count"].into_iter();
    let conditions = conditions.filter_map(|kind| Some(json!({ kind: inner.get(kind)? })));
    Element {
        conditions: expr::conditions(conditions),
        timeout: number("timeout"),
        expires: number("expires"),
        comment: take_text(&mut inner, "comment"),
        key: expr::expr(inner.get_mut("val").map(Value::take).unwrap_or_default()),
        value: datum.map(expr::datum),
    }
}
