//! Expressions that load registers, and how `nft -j` prints them.

use super::headers::{Field, Header, Layer};
use super::json::words;
use super::keys::Key;
use super::sets::Set;
use super::types::{LinkNames, Order, Type, named, value};
use crate::linux::nf_tables::wire::{Octets, Odd, put};

/// Content of a register.
#[derive(Clone, Debug)]
pub(super) enum Expr {
    Value(Octets),
    /// The first bits of a value.
    Prefix(Octets, u32),
    Range(Octets, Octets),
    Payload(Payload),
    Meta(&'static Key),
    Ct {
        key: &'static Key,
        direction: Option<u8>,
        /// Type of the value; the type of an address depends on the rule.
        kind: Type,
    },
    Fib {
        result: u32,
        flags: u32,
    },
    Socket(&'static Key),
    Numgen {
        mode: u32,
        modulus: u32,
        offset: u32,
    },
    Hash {
        modulus: u32,
        seed: Option<u32>,
        offset: u32,
        /// The hashed value; `None` for the packet's flow.
        of: Option<Box<Self>>,
    },
    /// A value in the other byte order.
    Swapped(Box<Self>),
    Bits {
        left: Box<Self>,
        op: &'static str,
        right: Octets,
    },
    Concat(Vec<Self>),
    /// A map's value for a key, with the number of the map in the table.
    Map {
        key: Box<Self>,
        map: usize,
    },
}

/// Part of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Payload {
    pub(super) layer: Layer,
    /// Bits before it.
    pub(super) offset: u32,
    pub(super) bits: u32,
    pub(super) field: Option<(Header, &'static Field)>,
    /// Whether it names the header that follows.
    pub(super) names_next: bool,
}

/// Flag of `fib` for whether there is a route.
pub(super) const FIB_PRESENT: u32 = 1 << 5;

impl Payload {
    /// Returns a part of a header that is not known, except for ports.
    pub(super) fn new(layer: Layer, offset: u32, bits: u32) -> Self {
        let ports = Header::Ports.fields().iter();
        let port = ports.filter(|_| layer == Layer::Transport);
        let port = port
            .into_iter()
            .find(|field| field.offset == offset && field.bits == bits);
        Self {
            layer,
            offset,
            bits,
            field: port.map(|field| (Header::Ports, field)),
            names_next: false,
        }
    }

    pub(super) fn kind(&self) -> Type {
        self.field.map_or(Type::Integer, |(_, field)| field.kind)
    }

    fn print(&self, to: &mut String) {
        if let Some((header, field)) = self.field {
            let (header, field) = (header.name(), field.name);
            put!(
                to,
                "{{\"payload\": {{\"protocol\": \"{header}\", \"field\": \"{field}\"}}}}"
            );
            return;
        }
        let base = match self.layer {
            Layer::Link => "ll",
            Layer::Network => "nh",
            Layer::Transport => "th",
            Layer::Inner => "ih",
        };
        let (offset, bits) = (self.offset, self.bits);
        put!(
            to,
            "{{\"payload\": {{\"base\": \"{base}\", \"offset\": {offset}, \"len\": {bits}}}}}"
        );
    }
}

impl Expr {
    /// Returns the size in bits, 0 if it is not known.
    pub(super) fn bits(&self, sets: &[Set]) -> u32 {
        match self {
            Self::Value(value) | Self::Range(value, _) | Self::Prefix(value, _) => {
                u32::try_from(value.length * 8).unwrap_or(0)
            }
            Self::Payload(payload) => payload.bits,
            Self::Ct { key, .. } | Self::Meta(key) | Self::Socket(key) => key.bits,
            Self::Fib { result: 2, flags } if flags & FIB_PRESENT == 0 => 128,
            Self::Fib { .. } | Self::Numgen { .. } | Self::Hash { .. } => 32,
            Self::Swapped(arg) | Self::Bits { left: arg, .. } => arg.bits(sets),
            Self::Concat(parts) => {
                let bits = parts
                    .iter()
                    .map(|part| part.bits(sets).next_multiple_of(32));
                bits.sum()
            }
            Self::Map { map, .. } => sets.get(*map).map_or(0, |map| map.data_bits),
        }
    }

    /// Returns the type of its values.
    pub(super) fn kind(&self, sets: &[Set]) -> (Type, Order) {
        match self {
            Self::Value(_) | Self::Range(..) | Self::Prefix(..) | Self::Concat(_) => {
                (Type::Integer, Order::Big)
            }
            Self::Payload(payload) => (payload.kind(), Order::Big),
            Self::Ct { key, kind, .. } => (*kind, key.order),
            Self::Meta(key) | Self::Socket(key) => (key.kind, key.order),
            Self::Fib { result, flags } => {
                let kind = match result {
                    _ if flags & FIB_PRESENT != 0 => Type::Boolean,
                    1 => Type::Link,
                    2 => Type::String,
                    _ => Type::AddressType,
                };
                (kind, Order::Host)
            }
            Self::Numgen { .. } | Self::Hash { .. } => (Type::Integer, Order::Host),
            Self::Swapped(arg) => (arg.kind(sets).0, Order::Big),
            Self::Bits { left, .. } => left.kind(sets),
            Self::Map { map, .. } => {
                let kind = sets.get(*map).and_then(Set::data_kind);
                kind.unwrap_or((Type::Integer, Order::Big))
            }
        }
    }

    /// Appends it; `kind` is the type of a value.
    pub(super) fn print(
        &self,
        to: &mut String,
        (kind, order): (Type, Order),
        sets: &[Set],
        links: &mut dyn LinkNames,
    ) -> Result<(), Odd> {
        match self {
            Self::Value(of) => value(to, kind, order, *of, links)?,
            Self::Range(first, last) => range(to, (kind, order), *first, *last, links)?,
            Self::Prefix(of, bits) => {
                to.push_str("{\"prefix\": {\"addr\": ");
                value(to, kind, order, *of, links)?;
                put!(to, ", \"len\": {bits}}}}}");
            }
            Self::Payload(payload) => payload.print(to),
            Self::Meta(key) => put!(to, "{{\"meta\": {{\"key\": \"{}\"}}}}", key.name),
            Self::Socket(key) => put!(to, "{{\"socket\": {{\"key\": \"{}\"}}}}", key.name),
            Self::Ct { key, direction, .. } => {
                put!(to, "{{\"ct\": {{\"key\": \"{}\"", key.name);
                match direction {
                    Some(0) => to.push_str(", \"dir\": \"original\""),
                    Some(1) => to.push_str(", \"dir\": \"reply\""),
                    Some(other) => return Err(format!("direction {other} is unknown")),
                    None => {}
                }
                to.push_str("}}");
            }
            Self::Fib { result, flags } => fib(to, *result, *flags)?,
            Self::Numgen {
                mode,
                modulus,
                offset,
            } => {
                let mode = match mode {
                    0 => "inc",
                    1 => "random",
                    other => return Err(format!("numgen mode {other} is unknown")),
                };
                put!(
                    to,
                    "{{\"numgen\": {{\"mode\": \"{mode}\", \"mod\": {modulus}, \"offset\": {offset}}}}}"
                );
            }
            Self::Hash {
                modulus,
                seed,
                offset,
                of,
            } => {
                let name = if of.is_some() { "jhash" } else { "symhash" };
                put!(to, "{{\"{name}\": {{\"mod\": {modulus}");
                if let Some(seed) = seed {
                    put!(to, ", \"seed\": {seed}");
                }
                if *offset != 0 {
                    put!(to, ", \"offset\": {offset}");
                }
                if let Some(of) = of {
                    to.push_str(", \"expr\": ");
                    of.print(to, of.kind(sets), sets, links)?;
                }
                to.push_str("}}");
            }
            Self::Swapped(arg) => arg.print(to, arg.kind(sets), sets, links)?,
            Self::Bits { left, op, right } => {
                put!(to, "{{\"{op}\": [");
                let (kind, order) = left.kind(sets);
                left.print(to, (kind, order), sets, links)?;
                to.push_str(", ");
                value(to, kind, order, *right, links)?;
                to.push_str("]}");
            }
            Self::Concat(parts) => {
                to.push_str("{\"concat\": [");
                for (at, part) in parts.iter().enumerate() {
                    if at > 0 {
                        to.push_str(", ");
                    }
                    if let Self::Value(_) | Self::Concat(_) = part {
                        return Err("a value is part of a concatenation".to_owned());
                    }
                    part.print(to, part.kind(sets), sets, links)?;
                }
                to.push_str("]}");
            }
            Self::Map { key, map } => {
                let map = sets.get(*map).ok_or("a map is missing")?;
                let name = if map.is_verdict_map() { "vmap" } else { "map" };
                put!(to, "{{\"{name}\": {{\"key\": ");
                key.print(to, key.kind(sets), sets, links)?;
                to.push_str(", \"data\": ");
                map.print_reference(to);
                to.push_str("}}");
            }
        }
        Ok(())
    }
}

/// Appends a range; protocols in it have no names.
pub(super) fn range(
    to: &mut String,
    (kind, order): (Type, Order),
    first: Octets,
    last: Octets,
    links: &mut dyn LinkNames,
) -> Result<(), Odd> {
    let kind = match kind {
        Type::Protocol => Type::Integer,
        kind => kind,
    };
    to.push_str("{\"range\": [");
    value(to, kind, order, first, links)?;
    to.push_str(", ");
    value(to, kind, order, last, links)?;
    to.push_str("]}");
    Ok(())
}

/// Appends the first `bits` of a number.
pub(super) fn prefix(
    to: &mut String,
    kind: Type,
    number: u128,
    bits: u32,
    links: &mut dyn LinkNames,
) -> Result<(), Odd> {
    to.push_str("{\"prefix\": {\"addr\": ");
    named(to, kind, number, links)?;
    put!(to, ", \"len\": {bits}}}}}");
    Ok(())
}

fn fib(to: &mut String, result: u32, flags: u32) -> Result<(), Odd> {
    let name = match result {
        1 => "oif",
        2 => "oifname",
        3 => "type",
        other => return Err(format!("fib result {other} is unknown")),
    };
    if flags & !0x3f != 0 {
        return Err(format!("fib flags {flags:#x} are unknown"));
    }
    put!(to, "{{\"fib\": {{\"result\": \"{name}\"");
    let all = [
        (1, "saddr"),
        (2, "daddr"),
        (4, "mark"),
        (8, "iif"),
        (16, "oif"),
    ];
    let set = all.iter().filter(|(bit, _)| flags & bit != 0);
    let set: Vec<_> = set.map(|(_, name)| *name).collect();
    match set.as_slice() {
        [one] => put!(to, ", \"flags\": [\"{one}\"]"),
        set => words(to, "flags", set),
    }
    to.push_str("}}");
    Ok(())
}
