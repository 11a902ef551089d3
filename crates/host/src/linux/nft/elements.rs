//! Elements of sets, in the order of `nft -j`, which joins them to intervals.

use std::ops::Range;

use smallvec::SmallVec;

use super::actions::verdict;
use super::counts::stateful;
use super::expr::prefix;
use super::json::{quoted, string};
use super::sets::{Data, Set};
use super::types::{LinkNames, Order, Type, named, number, value};
use crate::linux::netlink::{attributes, text, wide, word};
use crate::linux::nf_tables::wire::{Octets, Odd, expression, put, value_of};

type Bytes = SmallVec<[u8; 32]>;

/// Elements of one set as they were read.
#[derive(Debug, Default)]
pub(super) struct Elements {
    all: Vec<Element>,
    /// Text of their data and options.
    text: String,
}

#[derive(Debug)]
struct Element {
    key: Key,
    /// Its entry in the map.
    data: Range<usize>,
    /// The text after the key.
    options: Range<usize>,
}

#[derive(Debug)]
enum Key {
    /// A key, and the last one if it is a range.
    One(Bytes, Option<Bytes>),
    /// The first key after an interval.
    End(Bytes),
    /// All other keys.
    Others,
}

impl Elements {
    /// Adds the elements in the attributes of an answer.
    pub(super) fn add(
        &mut self,
        set: &Set,
        list: &[u8],
        links: &mut dyn LinkNames,
    ) -> Result<(), Odd> {
        for attribute in attributes(list) {
            let (3, elements) = attribute? else {
                continue;
            };
            for element in attributes(elements) {
                let (_, element) = element?;
                self.element(set, element, links)
                    .map_err(|why| format!("an element of set {}: {why}", set.name))?;
            }
        }
        Ok(())
    }

    fn element(&mut self, set: &Set, element: &[u8], links: &mut dyn LinkNames) -> Result<(), Odd> {
        let (mut key, mut last, mut flags) = (None, None, 0);
        let (mut datum, mut object) = (None, None);
        let (mut timeout, mut expires, mut comment) = (0, 0, None);
        let mut counts = None;
        for attribute in attributes(element) {
            match attribute? {
                (1, value) => key = Some(Bytes::from_slice(value_of(value)?)),
                (2, value) => datum = Some(value),
                (3, value) => flags = word(value)?,
                (4, value) => timeout = wide(value)?,
                (5, value) => expires = wide(value)?,
                (6, value) => {
                    for note in super::notes(value) {
                        match note? {
                            (0, value) => comment = Some(text(value)?),
                            // How `nft` has written an open interval.
                            (1, _) => {}
                            (other, _) => return Err(format!("note {other} is unknown")),
                        }
                    }
                }
                (7, value) => counts = Some(value),
                (8, _) => {}
                (9, value) => object = Some(text(value)?),
                (10, value) => last = Some(Bytes::from_slice(value_of(value)?)),
                (11, value) => {
                    for statement in attributes(value) {
                        counts = counts.or(Some(statement?.1));
                    }
                }
                (other, _) => return Err(format!("attribute {other} is unknown")),
            }
        }
        let length = set.key_bits as usize / 8;
        let is_whole = |key: &Bytes| key.len() == length;
        let key = match (flags, key) {
            (0, Some(key)) if is_whole(&key) && last.as_ref().is_none_or(is_whole) => {
                Key::One(key, last)
            }
            (1, Some(key)) if is_whole(&key) && last.is_none() => Key::End(key),
            (2, None) => Key::Others,
            _ => return Err(format!("has flags {flags:#x} or a key of another size")),
        };
        let start = self.text.len();
        match (datum, &set.data, object) {
            (Some(datum), Data::Verdict, _) => verdict(&mut self.text, datum)?,
            (Some(datum), Data::Values(types), _) => {
                let datum = value_of(datum)?;
                if datum.len() != set.data_bits as usize / 8 {
                    return Err("has data of another size".to_owned());
                }
                let order = set.data_order.unwrap_or(Order::Big);
                values(
                    &mut self.text,
                    types,
                    order,
                    set.has_intervals(),
                    datum,
                    links,
                )?;
            }
            (None, _, Some(object)) => quoted(&mut self.text, object),
            (None, Data::None, None) => {}
            (None, _, None) if matches!(key, Key::End(_)) => {}
            _ => return Err("has no data".to_owned()),
        }
        let data = start..self.text.len();
        if timeout != 0 {
            put!(&mut self.text, ", \"timeout\": {}", timeout / 1000);
        }
        if expires != 0 {
            put!(&mut self.text, ", \"expires\": {}", expires / 1000);
        }
        if let Some(comment) = comment {
            self.text.push_str(", \"comment\": ");
            quoted(&mut self.text, comment);
        }
        if let Some(counts) = counts {
            let (name, data) = expression(counts)?;
            let mut one = String::new();
            stateful(&mut one, name, data, true)?;
            let inner = one.strip_prefix('{').and_then(|one| one.strip_suffix('}'));
            put!(&mut self.text, ", {}", inner.unwrap_or_default());
        }
        let options = data.end..self.text.len();
        self.all.push(Element { key, data, options });
        Ok(())
    }

    /// Writes the elements to `set`.
    pub(super) fn finish(self, set: &mut Set, links: &mut dyn LinkNames) -> Result<(), Odd> {
        let mut to = String::new();
        let done = match (set.has_intervals(), set.fields > 1) {
            (false, _) => self.single(&mut to, set, links),
            (true, true) => self.boxes(&mut to, set, links),
            (true, false) => self.intervals(&mut to, set, links),
        };
        done.map_err(|why| format!("set {}: {why}", set.name))?;
        set.elements = to;
        Ok(())
    }

    /// Elements without intervals.
    fn single(
        mut self,
        to: &mut String,
        set: &mut Set,
        links: &mut dyn LinkNames,
    ) -> Result<(), Odd> {
        let order = set.key_order.unwrap_or(Order::Big);
        let mut sorted = Vec::with_capacity(self.all.len());
        for element in std::mem::take(&mut self.all) {
            let by = match &element.key {
                Key::One(key, None) => Some(sort_key(set, order, key)?),
                Key::Others => None,
                _ => return Err("has an interval, and no flag for it".to_owned()),
            };
            sorted.push((by, element));
        }
        sorted.sort_by(|(one, _), (other, _)| match (one, other) {
            (Some(one), Some(other)) => one.cmp(other),
            (one, other) => one.is_none().cmp(&other.is_none()),
        });
        if let (
            [_],
            Some((
                _,
                Element {
                    key: Key::One(key, _),
                    ..
                },
            )),
        ) = (set.key.as_slice(), sorted.first())
            && key.len() <= 16
        {
            set.first = Some(number(key, order)?);
        }
        for (_, element) in &sorted {
            self.write(to, element, &mut |to| {
                if let Key::One(key, _) = &element.key {
                    return values(to, &set.key, order, false, key, links);
                }
                to.push_str("\"*\"");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Intervals of a key with one part: `nf_tables` has their starts and ends.
    fn intervals(
        mut self,
        to: &mut String,
        set: &Set,
        links: &mut dyn LinkNames,
    ) -> Result<(), Odd> {
        let [kind] = set.key.as_slice() else {
            return Err("has intervals of a concatenation".to_owned());
        };
        let bits = set.key_bits;
        if bits > 128 {
            return Err("has intervals of a long key".to_owned());
        }
        let (mut bounds, mut others) = (Vec::new(), None);
        for (at, element) in self.all.iter().enumerate() {
            match &element.key {
                Key::One(key, None) => bounds.push((number(key, Order::Big)?, true, at)),
                Key::End(key) => bounds.push((number(key, Order::Big)?, false, at)),
                Key::Others => others = Some(at),
                Key::One(_, Some(_)) => return Err("has a range in one element".to_owned()),
            }
        }
        // The end of one interval is before the start of the next one.
        bounds.sort_unstable();
        let largest = u128::MAX >> (128 - bits);
        let all = std::mem::take(&mut self.all);
        for (at, (first, is_start, element)) in bounds.iter().enumerate() {
            if !is_start {
                continue;
            }
            let last = bounds
                .get(at + 1)
                .map_or(largest, |(next, ..)| next.wrapping_sub(1));
            if last < *first || last > largest {
                return Err("has an interval without a start".to_owned());
            }
            self.write(to, &all[*element], &mut |to| {
                interval(to, *kind, bits, *first, last, links)
            })?;
        }
        if let Some(at) = others {
            self.write(to, &all[at], &mut |to| {
                to.push_str("\"*\"");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Intervals of a key with several parts.
    fn boxes(mut self, to: &mut String, set: &Set, links: &mut dyn LinkNames) -> Result<(), Odd> {
        for element in std::mem::take(&mut self.all) {
            let (first, last) = match &element.key {
                Key::One(key, last) => (key, last.as_ref().unwrap_or(key)),
                _ => return Err("has an element of another kind".to_owned()),
            };
            self.write(to, &element, &mut |to| {
                to.push_str("{\"concat\": [");
                let mut at = 0;
                for (part, kind) in set.key.iter().enumerate() {
                    if part > 0 {
                        to.push_str(", ");
                    }
                    let length = kind.bits().div_ceil(8) as usize;
                    let (first, last) = (&first[at..at + length], &last[at..at + length]);
                    at += length.next_multiple_of(4);
                    if first == last {
                        let first = Octets::new(first)?;
                        let order = Order::Big;
                        value(to, *kind, order, first, links)?;
                        continue;
                    }
                    let bits = kind.bits();
                    let (first, last) = (number(first, Order::Big)?, number(last, Order::Big)?);
                    interval(to, *kind, bits, first, last, links)?;
                }
                to.push_str("]}");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Appends an element whose key `key` appends.
    fn write(
        &self,
        to: &mut String,
        element: &Element,
        key: &mut dyn FnMut(&mut String) -> Result<(), Odd>,
    ) -> Result<(), Odd> {
        if !to.is_empty() {
            to.push_str(", ");
        }
        let (data, options) = (
            &self.text[element.data.clone()],
            &self.text[element.options.clone()],
        );
        if !data.is_empty() {
            to.push('[');
        }
        if options.is_empty() {
            key(to)?;
        } else {
            to.push_str("{\"elem\": {\"val\": ");
            key(to)?;
            to.push_str(options);
            to.push_str("}}");
        }
        if !data.is_empty() {
            put!(to, ", {data}]");
        }
        Ok(())
    }
}

/// Appends the value of one type, or the concatenation of several.
fn values(
    to: &mut String,
    types: &[Type],
    order: Order,
    has_intervals: bool,
    bytes: &[u8],
    links: &mut dyn LinkNames,
) -> Result<(), Odd> {
    if let [kind] = types {
        return value(to, *kind, order, Octets::new(bytes)?, links);
    }
    to.push_str("{\"concat\": [");
    let mut at = 0;
    for (part, kind) in types.iter().enumerate() {
        if part > 0 {
            to.push_str(", ");
        }
        let length = kind.bits().div_ceil(8) as usize;
        let bytes = bytes.get(at..at + length).ok_or("a part is missing")?;
        at += length.next_multiple_of(4);
        let order = if has_intervals {
            Order::Big
        } else {
            kind.order()
        };
        value(to, *kind, order, Octets::new(bytes)?, links)?;
    }
    to.push_str("]}");
    Ok(())
}

/// Returns the sort key of `nft` for elements: numbers; for concatenations, the bytes of their parts from the last one.
fn sort_key(set: &Set, order: Order, key: &[u8]) -> Result<Bytes, Odd> {
    let mut by = Bytes::new();
    let is_little = cfg!(target_endian = "little");
    if let [kind] = set.key.as_slice() {
        if kind.is_flags() {
            let number = number(key, order)?;
            by.extend_from_slice(&(number & number.wrapping_neg()).to_be_bytes());
            return Ok(by);
        }
        by.extend_from_slice(key);
        if order == Order::Host && is_little {
            by.reverse();
        }
        return Ok(by);
    }
    let mut at = 0;
    for kind in &set.key {
        let length = kind.bits().div_ceil(8) as usize;
        let part = key.get(at..at + length).ok_or("a part is missing")?;
        if kind.is_flags() && number(part, kind.order())?.count_ones() > 1 {
            return Err("several flags are part of a key".to_owned());
        }
        by.extend_from_slice(part);
        at += length.next_multiple_of(4);
    }
    if is_little {
        by.reverse();
    }
    Ok(by)
}

/// Appends an interval in the form that `nft` prefers.
fn interval(
    to: &mut String,
    kind: Type,
    bits: u32,
    first: u128,
    last: u128,
    links: &mut dyn LinkNames,
) -> Result<(), Odd> {
    let size = last
        .checked_sub(first)
        .ok_or("an interval ends before its start")?;
    let is_prefix = size & size.wrapping_add(1) == 0 && first & size == 0;
    if kind.is_string() {
        let bytes = first.to_be_bytes();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(16);
        return match size {
            0 => string(to, &bytes[..end]),
            _ if is_prefix
                && (1..16).contains(&end)
                && size.count_ones() as usize == 128 - 8 * end =>
            {
                string(to, &[&bytes[..end], b"*"].concat())
            }
            _ => Err("an interval of names is none of their start".to_owned()),
        };
    }
    let kind = match kind {
        // Within a range, protocols have no names.
        Type::Protocol if size > 0 => Type::Integer,
        kind => kind,
    };
    match size {
        0 => named(to, kind, first, links),
        _ if is_prefix && kind.has_prefixes() => {
            prefix(to, kind, first, bits - size.count_ones(), links)
        }
        _ => {
            to.push_str("{\"range\": [");
            named(to, kind, first, links)?;
            to.push_str(", ");
            named(to, kind, last, links)?;
            to.push_str("]}");
            Ok(())
        }
    }
}
