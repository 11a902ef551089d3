//! Rules of iptables-nft: expressions of `nf_tables` in the spelling of `iptables-save`.

use std::net::IpAddr;

use super::NATIVE;
use super::matches::{self, Flags, Ports, Transport, mark_words};
use super::sets::Sets;
use super::targets;
use super::words::{self, SCALE, end_line, mask, name, not, only, protocol};
use crate::linux::netlink::{attributes, text, wide, word};
use crate::linux::nf_tables::wire::{
    Octets, Odd, address, expression, extension, needed, numbered, put, value_of, verdict_of,
};
use kpx_node::net::Family;

/// Headers of `enum nft_payload_bases`.
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;

/// Keys of `enum nft_meta_keys`.
const MARK: u32 = 3;
const INPUT_NAME: u32 = 6;
const OUTPUT_NAME: u32 = 7;
const PROTOCOL: u32 = 16;

/// Writes rules. Buffers are kept from one rule to the next.
#[derive(Debug)]
pub(super) struct Writer {
    family: Family,
    sets: Sets,
    source: Option<Prefix>,
    destination: Option<Prefix>,
    input: String,
    output: String,
    protocol: Option<(bool, u8)>,
    fragment: &'static str,
    matches: String,
    /// Ports and flags whose expressions are being read.
    transport: Option<Transport>,
    has_transport: bool,
    target: String,
    counters: Option<(u64, u64)>,
    loaded: Option<Loaded>,
}

/// An address that a rule matches.
#[derive(Clone, Copy, Debug)]
struct Prefix {
    inverted: bool,
    address: IpAddr,
    mask: IpAddr,
}

/// A register that was loaded and not compared yet.
#[derive(Clone, Copy, Debug)]
struct Loaded {
    register: u32,
    from: From,
    mask: Option<Octets>,
}

#[derive(Clone, Copy, Debug)]
enum From {
    Payload { base: u32, offset: u32, length: u32 },
    Meta(u32),
}

/// The comparison of a register.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Operator {
    Equal,
    NotEqual,
    AtMost,
    AtLeast,
}

impl Writer {
    pub(super) const fn new(family: Family, sets: Sets) -> Self {
        Self {
            family,
            sets,
            source: None,
            destination: None,
            input: String::new(),
            output: String::new(),
            protocol: None,
            fragment: "",
            matches: String::new(),
            transport: None,
            has_transport: false,
            target: String::new(),
            counters: None,
            loaded: None,
        }
    }

    /// Appends the line of a rule of `chain` with the list `expressions`.
    pub(super) fn write(
        &mut self,
        to: &mut String,
        chain: &str,
        expressions: &[u8],
    ) -> Result<(), Odd> {
        self.clear();
        for element in attributes(expressions) {
            let (_, element) = element?;
            let (name, data) = expression(element)?;
            self.expression(name, data)?;
        }
        self.flush()?;
        if self.loaded.is_some() {
            return Err("a register is loaded and not compared".to_owned());
        }
        let (packets, bytes) = self.counters.ok_or("a rule has no counter")?;
        let from = to.len();
        put!(to, "[{packets}:{bytes}] -A {chain}");
        for (prefix, option) in [(self.source, "-s"), (self.destination, "-d")] {
            let Some(prefix) = prefix else {
                continue;
            };
            put!(to, "{} {option} ", not(prefix.inverted));
            address(to, prefix.address);
            mask(to, prefix.mask);
        }
        to.push_str(&self.input);
        to.push_str(&self.output);
        if let Some((inverted, number)) = self.protocol {
            protocol(to, inverted, number);
        }
        to.push_str(self.fragment);
        to.push_str(&self.matches);
        to.push_str(&self.target);
        end_line(to, from)
    }

    fn clear(&mut self) {
        self.source = None;
        self.destination = None;
        self.input.clear();
        self.output.clear();
        self.protocol = None;
        self.fragment = "";
        self.matches.clear();
        self.transport = None;
        self.has_transport = false;
        self.target.clear();
        self.counters = None;
        self.loaded = None;
    }

    fn expression(&mut self, name: &str, data: &[u8]) -> Result<(), Odd> {
        if !self.target.is_empty() {
            return Err("an expression follows the target".to_owned());
        }
        match name {
            "meta" => self.meta(data),
            "payload" => self.payload(data),
            "bitwise" => self.bitwise(data),
            "cmp" => {
                let [register, operator, value] = numbered::<3>(data)?;
                let operator = match word(needed(operator)?)? {
                    0 => Operator::Equal,
                    1 => Operator::NotEqual,
                    3 => Operator::AtMost,
                    5 => Operator::AtLeast,
                    other => return Err(format!("comparison {other} is unknown")),
                };
                let value = Octets::new(value_of(needed(value)?)?)?;
                self.compare(word(needed(register)?)?, operator, value, value)
            }
            "range" => {
                let [register, operator, first, last] = numbered::<4>(data)?;
                let operator = match word(needed(operator)?)? {
                    0 => Operator::Equal,
                    1 => Operator::NotEqual,
                    other => return Err(format!("range {other} is unknown")),
                };
                let first = Octets::new(value_of(needed(first)?)?)?;
                let last = Octets::new(value_of(needed(last)?)?)?;
                self.compare(word(needed(register)?)?, operator, first, last)
            }
            "counter" => {
                let [bytes, packets] = numbered::<2>(data)?;
                let both = (wide(needed(packets)?)?, wide(needed(bytes)?)?);
                match self.counters.replace(both) {
                    None => Ok(()),
                    Some(_) => Err("a rule has two counters".to_owned()),
                }
            }
            "immediate" => self.verdict(data),
            "match" => {
                self.flush()?;
                let (name, revision, info) = extension(data)?;
                if self.has_transport && matches!(name, "tcp" | "udp") {
                    return Err("a rule matches ports twice".to_owned());
                }
                let to = &mut self.matches;
                matches::write(to, self.family, &mut self.sets, name, revision, info)
            }
            "target" => {
                let (name, revision, info) = extension(data)?;
                targets::write(&mut self.target, self.family, name, revision, info)
            }
            "limit" => self.limit(data),
            "lookup" => Err(format!("{NATIVE}it looks up a set")),
            other => Err(format!("expression {other} is unknown")),
        }
    }

    fn meta(&mut self, data: &[u8]) -> Result<(), Odd> {
        let [register, key] = numbered::<2>(data)?;
        let key = word(needed(key)?)?;
        self.load(word(needed(register)?)?, From::Meta(key))
    }

    fn payload(&mut self, data: &[u8]) -> Result<(), Odd> {
        let [register, base, offset, length] = numbered::<4>(data)?;
        let from = From::Payload {
            base: word(needed(base)?)?,
            offset: word(needed(offset)?)?,
            length: word(needed(length)?)?,
        };
        self.load(word(needed(register)?)?, from)
    }

    fn load(&mut self, register: u32, from: From) -> Result<(), Odd> {
        let loaded = Loaded {
            register,
            from,
            mask: None,
        };
        match self.loaded.replace(loaded) {
            None => Ok(()),
            Some(_) => Err("a register is loaded and not compared".to_owned()),
        }
    }

    fn bitwise(&mut self, data: &[u8]) -> Result<(), Odd> {
        let (mut registers, mut mask) = ([0; 2], None);
        for attribute in attributes(data) {
            match attribute? {
                (1, value) => registers[0] = word(value)?,
                (2, value) => registers[1] = word(value)?,
                (3, _) => {}
                (4, value) => mask = Some(Octets::new(value_of(value)?)?),
                (5, value) if value_of(value)?.iter().all(|byte| *byte == 0) => {}
                // NFT_BITWISE_MASK_XOR
                (6, value) if word(value)? == 0 => {}
                (other, _) => return Err(format!("bitwise attribute {other} is unknown")),
            }
        }
        let loaded = self.loaded.as_mut().ok_or("nothing is loaded to mask")?;
        if registers != [loaded.register; 2] || loaded.mask.is_some() {
            return Err("another register is masked".to_owned());
        }
        loaded.mask = Some(mask.ok_or("a mask is missing")?);
        Ok(())
    }

    fn compare(
        &mut self,
        register: u32,
        operator: Operator,
        first: Octets,
        last: Octets,
    ) -> Result<(), Odd> {
        let loaded = self.loaded.take().ok_or("nothing is loaded to compare")?;
        if loaded.register != register {
            return Err("another register is compared".to_owned());
        }
        let inverted = match operator {
            Operator::Equal => false,
            Operator::NotEqual => true,
            // Only ports have these.
            Operator::AtMost | Operator::AtLeast => {
                return self.ports(loaded, operator, first, last);
            }
        };
        match loaded.from {
            From::Payload {
                base: TRANSPORT, ..
            } => self.ports(loaded, operator, first, last),
            _ if first.bytes != last.bytes || first.length != last.length => {
                Err(format!("{NATIVE}a range of something else than ports"))
            }
            From::Payload {
                base: NETWORK,
                offset,
                length,
            } => self.network(inverted, offset, length, loaded.mask, first),
            From::Meta(PROTOCOL) if loaded.mask.is_none() && first.length == 1 => {
                self.set_protocol(inverted, first.bytes[0])
            }
            From::Meta(key @ (INPUT_NAME | OUTPUT_NAME)) if loaded.mask.is_none() => {
                let link = first.get();
                let wildcard = if link.ends_with(&[0]) { "" } else { "+" };
                let link = name(text(link)?)?;
                let (to, option) = if key == INPUT_NAME {
                    (&mut self.input, "-i")
                } else {
                    (&mut self.output, "-o")
                };
                if !to.is_empty() || link.contains('/') {
                    return Err("a link is compared twice or has no name".to_owned());
                }
                put!(to, "{} {option} {link}{wildcard}", not(inverted));
                Ok(())
            }
            From::Meta(MARK) if first.length == 4 => {
                self.flush()?;
                let mask = loaded.mask.map_or(Ok(u32::MAX), Octets::native)?;
                self.matches.push_str(" -m mark");
                mark_words(&mut self.matches, inverted, first.native()?, mask);
                Ok(())
            }
            from => Err(format!("{from:?} is unknown")),
        }
    }

    fn set_protocol(&mut self, inverted: bool, number: u8) -> Result<(), Odd> {
        if number == 0 {
            return Err("protocol 0".to_owned());
        }
        match self.protocol.replace((inverted, number)) {
            None => Ok(()),
            Some(_) => Err("two protocols".to_owned()),
        }
    }

    /// A field of the network header.
    fn network(
        &mut self,
        inverted: bool,
        offset: u32,
        length: u32,
        mask: Option<Octets>,
        value: Octets,
    ) -> Result<(), Odd> {
        let odd = || format!("a comparison of {length} bytes at {offset} is unknown");
        if usize::try_from(length) != Ok(value.length)
            || mask.is_some_and(|mask| mask.length != value.length)
        {
            return Err(odd());
        }
        let slot = match (self.family, offset) {
            (Family::V4, 12) | (Family::V6, 8) => &mut self.source,
            (Family::V4, 16) | (Family::V6, 24) => &mut self.destination,
            (Family::V4, 9) | (Family::V6, 6) if length == 1 && mask.is_none() => {
                return self.set_protocol(inverted, value.bytes[0]);
            }
            (Family::V4, 6) if length == 2 => {
                let is_offset = mask.is_some_and(|mask| mask.get() == [0x1f, 0xff]);
                if !is_offset || value.get() != [0, 0] || !self.fragment.is_empty() {
                    return Err(odd());
                }
                // The offset is not 0.
                self.fragment = if inverted { " -f" } else { " ! -f" };
                return Ok(());
            }
            _ => return Err(odd()),
        };
        let whole = mask.unwrap_or(Octets {
            bytes: [0xff; 16],
            length: value.length,
        });
        let prefix = Prefix {
            inverted,
            address: value.address(self.family).ok_or_else(odd)?,
            mask: whole.address(self.family).ok_or_else(odd)?,
        };
        match slot.replace(prefix) {
            None => Ok(()),
            Some(_) => Err("an address is compared twice".to_owned()),
        }
    }

    /// Ports or TCP flags.
    fn ports(
        &mut self,
        loaded: Loaded,
        operator: Operator,
        first: Octets,
        last: Octets,
    ) -> Result<(), Odd> {
        let From::Payload {
            base: TRANSPORT,
            offset,
            length,
        } = loaded.from
        else {
            return Err(format!("{NATIVE}an order of something else than ports"));
        };
        let Some((false, number @ (6 | 17))) = self.protocol else {
            return Err("ports without TCP or UDP".to_owned());
        };
        let inverted = operator == Operator::NotEqual;
        let is_equality = matches!(operator, Operator::Equal | Operator::NotEqual);
        let mut transport = self.transport.take().unwrap_or_default();
        let port = |octets: Octets, at: usize| {
            u16::from_be_bytes([octets.bytes[at], octets.bytes[at + 1]])
        };
        let sized = first.length == length as usize && last.length == length as usize;
        let slots = match (offset, length) {
            _ if !sized => return Err("ports of another size".to_owned()),
            (0, 2) => [Some(&mut transport.source), None],
            (2, 2) => [Some(&mut transport.destination), None],
            (0, 4) if operator == Operator::Equal && first.bytes == last.bytes => [
                Some(&mut transport.source),
                Some(&mut transport.destination),
            ],
            (13, 1) if number == 6 && is_equality && first.bytes == last.bytes => {
                let flags = Flags {
                    inverted,
                    mask: loaded.mask.map_or(0xff, |mask| mask.bytes[0]),
                    set: first.bytes[0],
                };
                if loaded.mask.is_some_and(|mask| mask.length != 1)
                    || transport.flags.replace(flags).is_some()
                {
                    return Err("TCP flags are compared twice".to_owned());
                }
                self.transport = Some(transport);
                return Ok(());
            }
            _ => return Err(format!("{length} bytes at {offset} of a transport header")),
        };
        if loaded.mask.is_some() {
            return Err("ports with a mask".to_owned());
        }
        for (number, slot) in slots.into_iter().flatten().enumerate() {
            let (first, last) = (port(first, 2 * number), port(last, 2 * number));
            let (first, last) = match operator {
                Operator::Equal | Operator::NotEqual => (first, last),
                Operator::AtMost => (0, last),
                Operator::AtLeast => (first, u16::MAX),
            };
            let ports = Ports {
                inverted,
                first,
                last,
            };
            if slot.replace(ports).is_some() {
                return Err("ports are compared twice".to_owned());
            }
        }
        self.transport = Some(transport);
        Ok(())
    }

    /// Appends the match of ports and flags, all of which have been read.
    fn flush(&mut self) -> Result<(), Odd> {
        let Some(transport) = self.transport.take() else {
            return Ok(());
        };
        if std::mem::replace(&mut self.has_transport, true) {
            return Err("a rule matches ports twice".to_owned());
        }
        let is_tcp = self.protocol == Some((false, 6));
        self.matches
            .push_str(if is_tcp { " -m tcp" } else { " -m udp" });
        transport.write(&mut self.matches)
    }

    fn verdict(&mut self, data: &[u8]) -> Result<(), Odd> {
        let [register, value] = numbered::<2>(data)?;
        if word(needed(register)?)? != 0 {
            return Err("a value is loaded".to_owned());
        }
        let (code, chain) = verdict_of(needed(value)?)?;
        let to = &mut self.target;
        match (code, chain) {
            (0, None) => to.push_str(" -j DROP"),
            (1, None) => to.push_str(" -j ACCEPT"),
            (-5, None) => to.push_str(" -j RETURN"),
            (-3, Some(chain)) => put!(to, " -j {}", name(chain)?),
            (-4, Some(chain)) => put!(to, " -g {}", name(chain)?),
            other => return Err(format!("verdict {other:?} is unknown")),
        }
        Ok(())
    }

    fn limit(&mut self, data: &[u8]) -> Result<(), Odd> {
        let (mut rate, mut unit, mut burst) = (0, 0, 0);
        for attribute in attributes(data) {
            match attribute? {
                (1, value) => rate = wide(value)?,
                (2, value) => unit = wide(value)?,
                (3, value) => burst = word(value)?,
                // Packets, at most.
                (4 | 5, value) => only(word(value)?, 0)?,
                (6, _) => {}
                (other, _) => return Err(format!("limit attribute {other} is unknown")),
            }
        }
        self.flush()?;
        let every = SCALE.saturating_mul(unit).checked_div(rate);
        self.matches.push_str(" -m limit");
        words::limit(&mut self.matches, every.unwrap_or(0), burst)
    }
}
