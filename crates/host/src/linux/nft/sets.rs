//! Sets and maps of a table, without their elements.

use foldhash::HashMap;

use super::actions::object_name;
use super::counts::stateful;
use super::json::quoted;
use super::types::{Order, Type};
use crate::linux::netlink::{attributes, text, wide, word};
use crate::linux::nf_tables::wire::{Odd, expression, put};

/// Sets of a table.
#[derive(Debug, Default)]
pub(super) struct Sets {
    pub(super) all: Vec<Set>,
    by_name: HashMap<String, usize>,
}

/// A set or map.
#[derive(Debug, Default)]
pub(super) struct Set {
    pub(super) name: String,
    handle: u64,
    flags: u32,
    /// Types of the key's parts.
    pub(super) key: Vec<Type>,
    pub(super) key_bits: u32,
    pub(super) key_order: Option<Order>,
    pub(super) data: Data,
    pub(super) data_bits: u32,
    pub(super) data_order: Option<Order>,
    /// `NFT_OBJECT_*` of a map's objects.
    pub(super) object: Option<u32>,
    /// Number of parts that are intervals of their own.
    pub(super) fields: u32,
    comment: Option<String>,
    is_memory: bool,
    size: u32,
    timeout: u64,
    collected: u32,
    /// The counter of each element.
    statements: String,
    /// Text of the elements, separated by commas.
    pub(super) elements: String,
    /// Number in the first element's key.
    pub(super) first: Option<u128>,
}

/// The entry of a map for a key.
#[derive(Debug, Default)]
pub(super) enum Data {
    #[default]
    None,
    Verdict,
    /// Types of its parts.
    Values(Vec<Type>),
}

/// `NFT_SET_*`.
mod flag {
    pub(super) const ANONYMOUS: u32 = 1;
    pub(super) const CONSTANT: u32 = 1 << 1;
    pub(super) const INTERVAL: u32 = 1 << 2;
    pub(super) const MAP: u32 = 1 << 3;
    pub(super) const TIMEOUT: u32 = 1 << 4;
    pub(super) const OBJECT: u32 = 1 << 6;
    pub(super) const ALL: u32 = (1 << 9) - 1;
}

/// `NFT_DATA_VERDICT`.
const VERDICT: u32 = 0xffff_ff00;

impl Sets {
    pub(super) fn add(&mut self, set: Set) {
        self.by_name.insert(set.name.clone(), self.all.len());
        self.all.push(set);
    }

    /// Returns the number of the set `name`.
    pub(super) fn find(&self, name: &str) -> Result<usize, Odd> {
        let found = self.by_name.get(name).copied();
        found.ok_or_else(|| format!("set {name} is not listed"))
    }
}

impl Set {
    /// Reads a set from the attributes of an answer.
    pub(super) fn read(list: &[u8]) -> Result<Self, Odd> {
        let mut set = Self::default();
        let (mut key, mut data, mut notes) = (0, None, [].as_slice());
        let mut statements = Vec::new();
        for attribute in attributes(list) {
            match attribute? {
                // The table, an id, padding, the kernel's type, and the number of elements.
                (1 | 10 | 14 | 19 | 20, _) => {}
                (2, value) => text(value)?.clone_into(&mut set.name),
                (3, value) => set.flags = word(value)?,
                (4, value) => key = word(value)?,
                (5, value) => set.key_bits = word(value)?.saturating_mul(8),
                (6, value) => data = Some(word(value)?),
                (7, value) => set.data_bits = word(value)?.saturating_mul(8),
                (8, value) => set.is_memory = word(value)? != 0,
                (9, value) => set.describe(value)?,
                (11, value) => set.timeout = wide(value)?,
                (12, value) => set.collected = word(value)?,
                (13, value) => notes = value,
                (15, value) => set.object = Some(word(value)?),
                (16, value) => set.handle = wide(value)?,
                (17, value) => statements.push(value),
                (18, value) => {
                    for statement in attributes(value) {
                        statements.push(statement?.1);
                    }
                }
                (other, _) => return Err(format!("set attribute {other} is unknown")),
            }
        }
        set.types(key, data, notes)
            .map_err(|why| format!("set {}: {why}", set.name))?;
        for statement in statements {
            let (name, data) = expression(statement)?;
            let separator = if set.statements.is_empty() { "" } else { ", " };
            set.statements.push_str(separator);
            stateful(&mut set.statements, name, data, false)?;
        }
        Ok(set)
    }

    fn describe(&mut self, value: &[u8]) -> Result<(), Odd> {
        for attribute in attributes(value) {
            match attribute? {
                (1, value) => self.size = word(value)?,
                (2, value) => {
                    self.fields = u32::try_from(attributes(value).count()).unwrap_or(0);
                }
                (other, _) => return Err(format!("set description {other} is unknown")),
            }
        }
        Ok(())
    }

    fn types(&mut self, key: u32, data: Option<u32>, notes: &[u8]) -> Result<(), Odd> {
        if self.flags & !flag::ALL != 0 {
            return Err(format!("has unknown flags {:#x}", self.flags));
        }
        let mut is_typed = false;
        for note in super::notes(notes) {
            match note? {
                (0, value) => self.key_order = order(value)?,
                (1, value) => self.data_order = order(value)?,
                // Whether `nft` merges elements, and whether a map has intervals as data.
                (2, _) | (6, [0, 0, 0, 0]) => {}
                // The expression that the key's or data's type is of.
                (3 | 4, _) => is_typed = true,
                (7, value) => self.comment = Some(text(value)?.to_owned()),
                (other, _) => return Err(format!("note {other} is unknown")),
            }
        }
        self.key = Type::all_of(key)?;
        self.data = match data {
            _ if self.flags & flag::MAP == 0 => Data::None,
            Some(VERDICT) => Data::Verdict,
            Some(data) => Data::Values(Type::all_of(data)?),
            None => return Err("a map has no type of data".to_owned()),
        };
        let values = match &self.data {
            Data::Values(values) => values.as_slice(),
            _ => &[],
        };
        for (types, bits) in [
            (self.key.as_slice(), self.key_bits),
            (values, self.data_bits),
        ] {
            let is_known = match types {
                [] => true,
                [Type::String] if is_typed => false,
                [Type::Integer] => (1..=128).contains(&bits),
                [one] => one.bits() > 0 && one.bits().next_multiple_of(8) == bits,
                all => {
                    let sizes = all.iter().map(|kind| kind.bits().next_multiple_of(32));
                    all.iter().all(|kind| kind.bits() > 0) && sizes.sum::<u32>() == bits
                }
            };
            if !is_known {
                return Err("the size of its type is not known".to_owned());
            }
        }
        if self.key.is_empty() {
            return Err("it has no type".to_owned());
        }
        if (self.flags & flag::OBJECT != 0) != self.object.is_some() {
            return Err("a map of objects has no type of objects".to_owned());
        }
        Ok(())
    }

    pub(super) const fn is_anonymous(&self) -> bool {
        self.flags & flag::ANONYMOUS != 0
    }

    pub(super) const fn has_intervals(&self) -> bool {
        self.flags & flag::INTERVAL != 0
    }

    pub(super) const fn is_verdict_map(&self) -> bool {
        matches!(self.data, Data::Verdict)
    }

    /// Returns the type of a map's data.
    pub(super) fn data_kind(&self) -> Option<(Type, Order)> {
        match &self.data {
            Data::Values(values) => match values.as_slice() {
                [one] => Some((*one, self.data_order.unwrap_or(Order::Big))),
                _ => None,
            },
            _ => None,
        }
    }

    /// Appends the name of the set as rules use it.
    pub(super) fn print_reference(&self, to: &mut String) {
        if self.is_anonymous() {
            put!(to, "{{\"set\": [{}]}}", self.elements);
        } else {
            quoted(to, &format!("@{}", self.name));
        }
    }

    /// Appends the set.
    pub(super) fn print(&self, to: &mut String, family: &str, table: &str) -> Result<(), Odd> {
        let is_map = self.flags & (flag::MAP | flag::OBJECT) != 0;
        let kind = if is_map { "map" } else { "set" };
        put!(to, "{{\"{kind}\": {{\"family\": \"{family}\", \"name\": ");
        quoted(to, &self.name);
        to.push_str(", \"table\": ");
        quoted(to, table);
        let names: Vec<_> = self.key.iter().map(|key| key.name()).collect();
        match names.as_slice() {
            [one] => put!(to, ", \"type\": \"{one}\""),
            all => put!(to, ", \"type\": [\"{}\"]", all.join("\", \"")),
        }
        put!(to, ", \"handle\": {}", self.handle);
        if let Some(comment) = &self.comment {
            to.push_str(", \"comment\": ");
            quoted(to, comment);
        }
        match (&self.data, self.object) {
            (Data::Verdict, _) => to.push_str(", \"map\": \"verdict\""),
            (Data::Values(values), _) => {
                let names: Vec<_> = values.iter().map(|kind| kind.name()).collect();
                put!(to, ", \"map\": \"{}\"", names.join(" . "));
            }
            (Data::None, Some(object)) => put!(to, ", \"map\": \"{}\"", object_name(object)?),
            (Data::None, None) => {}
        }
        if self.flags & flag::CONSTANT == 0 {
            if self.is_memory {
                to.push_str(", \"policy\": \"memory\"");
            }
            if self.size != 0 {
                put!(to, ", \"size\": {}", self.size);
            }
        }
        let all = [
            (flag::CONSTANT, "constant"),
            (flag::INTERVAL, "interval"),
            (flag::TIMEOUT, "timeout"),
        ];
        let set = all.iter().filter(|(bit, _)| self.flags & bit != 0);
        let set: Vec<_> = set.map(|(_, name)| *name).collect();
        if !set.is_empty() {
            put!(to, ", \"flags\": [\"{}\"]", set.join("\", \""));
        }
        if self.timeout != 0 {
            put!(to, ", \"timeout\": {}", self.timeout / 1000);
        }
        if self.collected != 0 {
            put!(to, ", \"gc-interval\": {}", self.collected / 1000);
        }
        if !self.elements.is_empty() {
            put!(to, ", \"elem\": [{}]", self.elements);
        }
        if !self.statements.is_empty() {
            put!(to, ", \"stmt\": [{}]", self.statements);
        }
        to.push_str("}}");
        Ok(())
    }
}

/// Returns the byte order in a note of `nft`.
fn order(value: &[u8]) -> Result<Option<Order>, Odd> {
    let bytes = value
        .try_into()
        .map_err(|_| "a byte order has a wrong size")?;
    match u32::from_ne_bytes(bytes) {
        0 => Ok(None),
        1 => Ok(Some(Order::Host)),
        2 => Ok(Some(Order::Big)),
        other => Err(format!("byte order {other} is unknown")),
    }
}
