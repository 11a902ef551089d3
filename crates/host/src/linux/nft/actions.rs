//! Statements that act: verdicts, address translation, logs, and changes of sets.

use super::counts::stateful;
use super::expr::Expr;
use super::headers::Layer;
use super::json::{quoted, words};
use super::rule::Writer;
use super::scope::{INET, IP, IP6};
use super::statements::data_register;
use super::types::{Order, Type, named, number};
use crate::linux::netlink::{attributes, text, wide, word};
use crate::linux::nf_tables::wire::{Octets, Odd, expression, needed, numbered, put, verdict_of};

/// Returns the 16-bit number of an attribute.
fn short(value: &[u8]) -> Result<u16, Odd> {
    let bytes = value.try_into().map_err(|_| "a number is too short")?;
    Ok(u16::from_be_bytes(bytes))
}

impl Writer<'_> {
    pub(super) fn reject(&mut self, data: &[u8]) -> Result<(), Odd> {
        let [kind, code] = numbered::<2>(data)?;
        let kind = word(needed(kind)?)?;
        let code = match code {
            Some([code]) => u128::from(*code),
            Some(_) => return Err("a code has a wrong size".to_owned()),
            None => 0,
        };
        let family = match self.scope.family {
            INET => self.scope.network(),
            family => Some(family),
        };
        let implied = match (self.scope.family, kind) {
            (INET, 2) => None,
            (INET, _) => self.scope.take(Layer::Network),
            (_, 1) => self.scope.take(Layer::Transport),
            _ => None,
        };
        self.hide(implied);
        let start = self.text.len();
        let (name, codes) = match (kind, family) {
            (1, _) => ("tcp reset", None),
            (2, _) => ("icmpx", Some(Type::IcmpXCode)),
            (0, Some(IP)) => ("icmp", Some(Type::IcmpCode)),
            (0, Some(IP6)) => ("icmpv6", Some(Type::Icmp6Code)),
            other => return Err(format!("rejection {other:?} is unknown")),
        };
        put!(&mut self.text, "{{\"reject\": {{\"type\": \"{name}\"");
        if let Some(codes) = codes {
            self.text.push_str(", \"expr\": ");
            named(&mut self.text, codes, code, self.links)?;
        }
        self.text.push_str("}}");
        self.push_effect(start);
        Ok(())
    }

    pub(super) fn nat(&mut self, data: &[u8]) -> Result<(), Odd> {
        let [kind, family, first, last, first_port, last_port, flags] = numbered::<7>(data)?;
        let name = match word(needed(kind)?)? {
            0 => "snat",
            1 => "dnat",
            other => return Err(format!("NAT {other} is unknown")),
        };
        let (family, address) = match word(needed(family)?)? {
            2 => (IP, Type::Ip4),
            10 => (IP6, Type::Ip6),
            other => return Err(format!("NAT of family {other} is unknown")),
        };
        let flags = flags.map_or(Ok(0), word)?;
        if flags & NETMAP != 0 {
            return Err("a network is mapped".to_owned());
        }
        let mut addr = self.range_of(first, last)?;
        if let Some(Expr::Range(low, high)) = &addr {
            addr = Some(as_prefix(*low, *high)?);
        }
        let width = if family == IP { 32 } else { 128 };
        let sets = self.all_sets();
        // A map to an address and a port.
        let has_port =
            matches!(&addr, Some(Expr::Map { map, .. }) if sets[*map].data_bits == width + 32);
        let mut port = if has_port {
            None
        } else {
            self.range_of(first_port, last_port)?
        };
        if let Some(addr) = &mut addr {
            self.settle(addr, false)?;
        }
        if let Some(port) = &mut port {
            self.scope.keep_all();
            self.settle(port, false)?;
        }
        let start = self.text.len();
        put!(&mut self.text, "{{\"{name}\": ");
        let mut separator = "{";
        if has_port || self.scope.family == INET {
            let family = if family == IP { "ip" } else { "ip6" };
            put!(&mut self.text, "{{\"family\": \"{family}\"");
            separator = ", ";
        }
        if let Some(addr) = &addr {
            put!(&mut self.text, "{separator}\"addr\": ");
            self.print(addr, (address, Order::Big))?;
            separator = ", ";
        }
        self.port_and_flags(separator, port.as_ref(), flags)?;
        self.push_effect(start);
        Ok(())
    }

    /// Masquerading or redirection.
    pub(super) fn translate(
        &mut self,
        name: &str,
        [first, last]: [Option<&[u8]>; 2],
        flags: Option<&[u8]>,
    ) -> Result<(), Odd> {
        let flags = flags.map_or(Ok(0), word)?;
        let mut port = self.range_of(first, last)?;
        if let Some(port) = &mut port {
            self.scope.keep_all();
            self.settle(port, false)?;
        }
        let start = self.text.len();
        put!(&mut self.text, "{{\"{name}\": ");
        self.port_and_flags("{", port.as_ref(), flags)?;
        self.push_effect(start);
        Ok(())
    }

    /// Returns the contents of one or two registers.
    fn range_of(&self, first: Option<&[u8]>, last: Option<&[u8]>) -> Result<Option<Expr>, Odd> {
        let of = |value: Option<&[u8]>| value.map(|_| data_register(value)).transpose();
        match (of(first)?, of(last)?) {
            (None, None) => Ok(None),
            (Some(first), Some(last)) if first != last => {
                match (self.loaded(first)?, self.loaded(last)?) {
                    (Expr::Value(first), Expr::Value(last)) => Ok(Some(Expr::Range(first, last))),
                    _ => Err("a range of something else than values".to_owned()),
                }
            }
            (Some(first), _) => self.loaded(first).map(Some),
            (None, Some(_)) => Err("a range has no start".to_owned()),
        }
    }

    /// Appends port and flags of an address translation, and ends it.
    fn port_and_flags(
        &mut self,
        mut separator: &str,
        port: Option<&Expr>,
        flags: u32,
    ) -> Result<(), Odd> {
        if let Some(port) = port {
            put!(&mut self.text, "{separator}\"port\": ");
            self.print(port, (Type::Port, Order::Big))?;
            separator = ", ";
        }
        let all = [(4, "random"), (16, "fully-random"), (8, "persistent")];
        let set = all.iter().filter(|(bit, _)| flags & bit != 0);
        let set: Vec<_> = set.map(|(_, name)| *name).collect();
        match (separator, set.as_slice()) {
            ("{", []) => self.text.push_str("null}"),
            ("{", set) => {
                self.text.push('{');
                let start = self.text.len();
                words(&mut self.text, "flags", set);
                self.text.replace_range(start..start + 2, "");
                self.text.push_str("}}");
            }
            (_, set) => {
                words(&mut self.text, "flags", set);
                self.text.push_str("}}");
            }
        }
        Ok(())
    }

    pub(super) fn tproxy(&mut self, data: &[u8]) -> Result<(), Odd> {
        let [family, addr, port] = numbered::<3>(data)?;
        let family = word(needed(family)?)?;
        let addr = self.range_of(addr, None)?;
        let port = self.range_of(port, None)?;
        let start = self.text.len();
        self.text.push_str("{\"tproxy\": ");
        let mut separator = "{";
        let (name, address) = match family {
            0 => ("", Type::Integer),
            2 => ("ip", Type::Ip4),
            10 => ("ip6", Type::Ip6),
            other => return Err(format!("tproxy of family {other} is unknown")),
        };
        if self.scope.family == INET && family != 0 {
            put!(&mut self.text, "{{\"family\": \"{name}\"");
            separator = ", ";
        }
        for (key, kind, expr) in [("addr", address, addr), ("port", Type::Port, port)] {
            if let Some(expr @ Expr::Value(_)) = &expr {
                put!(&mut self.text, "{separator}\"{key}\": ");
                self.print(expr, (kind, Order::Big))?;
                separator = ", ";
            } else if expr.is_some() {
                return Err("tproxy looks its destination up".to_owned());
            }
        }
        if separator == "{" {
            return Err("tproxy has no destination".to_owned());
        }
        self.text.push_str("}}");
        self.push_effect(start);
        Ok(())
    }

    /// A reference to a named object.
    pub(super) fn object(&mut self, data: &[u8]) -> Result<(), Odd> {
        let [kind, name, from, set, _] = numbered::<5>(data)?;
        if let Some(name) = name {
            let kind = object_name(word(needed(kind)?)?)?;
            let name = text(name)?;
            return self.effect(|to| {
                put!(to, "{{\"{kind}\": ");
                quoted(to, name);
                to.push('}');
                Ok(())
            });
        }
        let map = self.sets.find(text(needed(set)?)?)?;
        let kind = object_name(self.all_sets()[map].object.unwrap_or(0))?;
        let key = self.loaded_bits(data_register(from)?, self.all_sets()[map].key_bits)?;
        let mut expr = Expr::Map {
            key: Box::new(key),
            map,
        };
        self.settle(&mut expr, false)?;
        let start = self.text.len();
        put!(&mut self.text, "{{\"{kind}\": ");
        self.print(&expr, (Type::Integer, Order::Big))?;
        self.text.push('}');
        self.push_effect(start);
        Ok(())
    }

    /// A statement that adds an element to a set.
    pub(super) fn set_element(&mut self, data: &[u8]) -> Result<(), Odd> {
        let [
            name,
            _,
            op,
            from,
            value,
            timeout,
            stateful_one,
            _,
            flags,
            list,
        ] = numbered::<10>(data)?;
        if value.is_some() {
            return Err("an element is added to a map".to_owned());
        }
        // NFT_DYNSET_F_INV and NFT_DYNSET_F_EXPR
        if flags.map_or(Ok(0), word)? & !2 != 0 {
            return Err("an update of a set is inverted".to_owned());
        }
        let op = match word(needed(op)?)? {
            0 => "add",
            1 => "update",
            2 => "delete",
            other => return Err(format!("set operation {other} is unknown")),
        };
        let set = self.sets.find(text(needed(name)?)?)?;
        let set = &self.all_sets()[set];
        if set.is_anonymous() {
            return Err("a meter has no name".to_owned());
        }
        let mut key = self.loaded_bits(data_register(from)?, set.key_bits)?;
        self.settle(&mut key, true)?;
        let start = self.text.len();
        put!(&mut self.text, "{{\"set\": {{\"op\": \"{op}\", \"elem\": ");
        let timeout = timeout.map_or(Ok(0), wide)?;
        if timeout != 0 {
            self.text.push_str("{\"elem\": {\"val\": ");
        }
        if let Expr::Value(_) = key {
            return Err("a value is added to a set".to_owned());
        }
        self.print(&key, (Type::Integer, Order::Big))?;
        if timeout != 0 {
            put!(&mut self.text, ", \"timeout\": {}}}}}", timeout / 1000);
        }
        self.text.push_str(", \"set\": ");
        set.print_reference(&mut self.text);
        let mut separator = ", \"stmt\": [";
        let one = stateful_one.into_iter().map(|element| Ok((1, element)));
        for element in one.chain(attributes(list.unwrap_or_default())) {
            let (name, data) = expression(element?.1)?;
            self.text.push_str(separator);
            separator = ", ";
            stateful(&mut self.text, name, data, false)?;
        }
        self.text
            .push_str(if separator == ", " { "]}}" } else { "}}" });
        self.push_effect(start);
        Ok(())
    }
}

/// `NF_NAT_RANGE_NETMAP`.
const NETMAP: u32 = 64;

/// Returns a range of addresses as a prefix if it is one.
fn as_prefix(low: Octets, high: Octets) -> Result<Expr, Odd> {
    let first = number(low.get(), Order::Big)?;
    let last = number(high.get(), Order::Big)?;
    let size = first ^ last;
    let free = size.trailing_ones();
    let is_prefix =
        size & size.wrapping_add(1) == 0 && first.trailing_zeros() >= free && first <= last;
    let bits = u32::try_from(low.length * 8).unwrap_or(0);
    Ok(if is_prefix {
        Expr::Prefix(low, bits.saturating_sub(free))
    } else {
        Expr::Range(low, high)
    })
}

/// Returns the name of `NFT_OBJECT_*`.
pub(super) fn object_name(kind: u32) -> Result<&'static str, Odd> {
    Ok(match kind {
        1 => "counter",
        2 => "quota",
        3 => "ct helper",
        4 => "limit",
        7 => "ct timeout",
        8 => "secmark",
        9 => "ct expectation",
        10 => "synproxy",
        other => return Err(format!("object type {other} is unknown")),
    })
}

/// Appends a verdict.
pub(super) fn verdict(to: &mut String, data: &[u8]) -> Result<(), Odd> {
    let (name, chain) = match verdict_of(data)? {
        (0, None) => ("drop", None),
        (1, None) => ("accept", None),
        (-1, None) => ("continue", None),
        (-2, None) => ("break", None),
        (-5, None) => ("return", None),
        (-3, Some(chain)) => ("jump", Some(chain)),
        (-4, Some(chain)) => ("goto", Some(chain)),
        other => return Err(format!("verdict {other:?} is unknown")),
    };
    match chain {
        // An anonymous chain, printed within the rule.
        Some(chain) if chain.starts_with("__chain") => {
            return Err("a chain has no name".to_owned());
        }
        Some(chain) => {
            put!(to, "{{\"{name}\": {{\"target\": ");
            quoted(to, chain);
            to.push_str("}}");
        }
        None => put!(to, "{{\"{name}\": null}}"),
    }
    Ok(())
}

/// Names of log levels.
const LEVELS: [&str; 9] = [
    "emerg", "alert", "crit", "err", "warn", "notice", "info", "debug", "audit",
];

/// `NF_LOG_*`.
const LOGGED: [(u32, &str); 5] = [
    (1, "tcp sequence"),
    (2, "tcp options"),
    (4, "ip options"),
    (8, "skuid"),
    (32, "ether"),
];

/// Appends a log.
pub(super) fn log(to: &mut String, data: &[u8]) -> Result<(), Odd> {
    let [group, prefix, length, threshold, level, flags] = numbered::<6>(data)?;
    to.push_str("{\"log\": ");
    let start = to.len();
    if let Some(prefix) = prefix {
        to.push_str(", \"prefix\": ");
        quoted(to, text(prefix)?);
    }
    if let Some(group) = group {
        put!(to, ", \"group\": {}", short(group)?);
    }
    if let Some(length) = length {
        put!(to, ", \"snaplen\": {}", word(length)?);
    }
    if let Some(threshold) = threshold {
        put!(to, ", \"queue-threshold\": {}", short(threshold)?);
    }
    match level.map(word).transpose()? {
        // The default.
        None | Some(4) => {}
        Some(level) => {
            let name = LEVELS.get(level as usize);
            let name = name.ok_or_else(|| format!("log level {level} is unknown"))?;
            put!(to, ", \"level\": \"{name}\"");
        }
    }
    let flags = flags.map_or(Ok(0), word)?;
    let set = LOGGED.iter().filter(|(bit, _)| flags & bit != 0);
    let set: Vec<_> = set.map(|(_, name)| *name).collect();
    match set.len() {
        5 => words(to, "flags", &["all"]),
        _ => words(to, "flags", &set),
    }
    if to.len() == start {
        to.push_str("null}");
    } else {
        to.replace_range(start..start + 2, "{");
        to.push_str("}}");
    }
    Ok(())
}

/// Appends a queue for user space.
pub(super) fn queue(to: &mut String, data: &[u8]) -> Result<(), Odd> {
    let [first, total, flags] = numbered::<3>(data)?;
    let (first, total) = (short(needed(first)?)?, total.map_or(Ok(1), short)?);
    let flags = flags.map_or(Ok(0), short)?;
    if total > 1 {
        let last = u32::from(first) + u32::from(total) - 1;
        put!(
            to,
            "{{\"queue\": {{\"num\": {{\"range\": [{first}, {last}]}}"
        );
    } else {
        put!(to, "{{\"queue\": {{\"num\": {first}");
    }
    let all = [(1, "bypass"), (2, "fanout")];
    let set = all.iter().filter(|(bit, _)| flags & bit != 0);
    let set: Vec<_> = set.map(|(_, name)| *name).collect();
    words(to, "flags", &set);
    to.push_str("}}");
    Ok(())
}
