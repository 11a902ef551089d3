//! Expressions of `nf_tables`: those that load a register, and those that compare or act.

use super::expr::{Expr, Payload};
use super::headers::Layer;
use super::json::{quoted, words};
use super::keys::{CT, Key, META, SOCKET, ct, find, meta};
use super::rule::{Op, Right, Writer};
use super::scope::{INET, IP, IP6};
use super::types::{Order, Type, named};
use crate::host::netlink::{attributes, text, wide, word};
use crate::host::nf_tables::wire::{
    Octets, Odd, expression, extension, needed, numbered, put, value_of, verdict_of,
};

/// Returns the number of a 32-bit register, `None` for the verdict.
fn register(value: &[u8]) -> Result<Option<usize>, Odd> {
    match word(value)? {
        0 => Ok(None),
        // Of 16 bytes.
        wide @ 1..=4 => Ok(Some((wide as usize - 1) * 4)),
        narrow @ 8..=23 => Ok(Some(narrow as usize - 8)),
        other => Err(format!("register {other} does not exist")),
    }
}

/// Returns the number of a register that holds data.
fn data_register(value: Option<&[u8]>) -> Result<usize, Odd> {
    register(needed(value)?)?.ok_or_else(|| "a verdict is used as data".to_owned())
}

/// Returns the 16-bit number of an attribute.
fn short(value: &[u8]) -> Result<u16, Odd> {
    let bytes = value.try_into().map_err(|_| "a number is too short")?;
    Ok(u16::from_be_bytes(bytes))
}

impl Writer<'_> {
    /// Reads one expression.
    pub(super) fn expression(&mut self, name: &str, data: &[u8]) -> Result<(), Odd> {
        match name {
            "immediate" => self.immediate(data),
            "payload" => self.payload(data),
            "meta" => self.meta(data),
            "ct" => self.ct(data),
            "fib" => {
                let [to, result, flags] = numbered::<3>(data)?;
                let result = word(needed(result)?)?;
                let flags = word(needed(flags)?)?;
                self.load(data_register(to)?, Expr::Fib { result, flags })
            }
            "socket" => {
                let [key, to, _] = numbered::<3>(data)?;
                let key = find(SOCKET, "socket", word(needed(key)?)?)?;
                self.load(data_register(to)?, Expr::Socket(key))
            }
            "numgen" => {
                let [to, modulus, mode, offset] = numbered::<4>(data)?;
                let numgen = Expr::Numgen {
                    mode: word(needed(mode)?)?,
                    modulus: word(needed(modulus)?)?,
                    offset: offset.map_or(Ok(0), word)?,
                };
                self.load(data_register(to)?, numgen)
            }
            "hash" => self.hash(data),
            "bitwise" => self.bitwise(data),
            "byteorder" => {
                let [from, to, _, _, _] = numbered::<5>(data)?;
                let arg = self.loaded(data_register(from)?)?;
                self.load(data_register(to)?, Expr::Swapped(Box::new(arg)))
            }
            "cmp" => {
                let [from, op, value] = numbered::<3>(data)?;
                let op = match word(needed(op)?)? {
                    0 => Op::Equal,
                    1 => Op::NotEqual,
                    2 => Op::Less,
                    3 => Op::AtMost,
                    4 => Op::Greater,
                    5 => Op::AtLeast,
                    other => return Err(format!("comparison {other} is unknown")),
                };
                let left = self.loaded(data_register(from)?)?;
                let right = Octets::new(value_of(needed(value)?)?)?;
                self.relation(left, op, Right::Value(right))
            }
            "range" => {
                let [from, op, first, last] = numbered::<4>(data)?;
                let op = match word(needed(op)?)? {
                    0 => Op::Equal,
                    1 => Op::NotEqual,
                    other => return Err(format!("range {other} is unknown")),
                };
                let left = self.loaded(data_register(from)?)?;
                let first = Octets::new(value_of(needed(first)?)?)?;
                let last = Octets::new(value_of(needed(last)?)?)?;
                self.relation(left, op, Right::Range(first, last))
            }
            "lookup" => self.lookup(data),
            "match" | "target" => {
                let (of, _, _) = extension(data)?;
                let start = self.text.len();
                put!(
                    &mut self.text,
                    "{{\"xt\": {{\"type\": \"{name}\", \"name\": "
                );
                quoted(&mut self.text, of);
                self.text.push_str("}}");
                self.push_effect(start);
                Ok(())
            }
            "notrack" => self.effect(|to| {
                to.push_str("{\"notrack\": null}");
                Ok(())
            }),
            "counter" | "limit" | "quota" | "connlimit" => {
                self.effect(|to| stateful(to, name, data, true))
            }
            "log" => self.effect(|to| log(to, data)),
            "queue" => self.effect(|to| queue(to, data)),
            "reject" => self.reject(data),
            "nat" => self.nat(data),
            "masq" => {
                let [flags, first, last] = numbered::<3>(data)?;
                self.translate("masquerade", [first, last], flags)
            }
            "redir" => {
                let [first, last, flags] = numbered::<3>(data)?;
                self.translate("redirect", [first, last], flags)
            }
            "tproxy" => self.tproxy(data),
            "objref" => self.object(data),
            "dynset" => self.set_element(data),
            other => Err(format!("expression {other} is not decoded")),
        }
    }

    /// Adds the statement that `write` appends.
    fn effect(&mut self, write: impl FnOnce(&mut String) -> Result<(), Odd>) -> Result<(), Odd> {
        let start = self.text.len();
        write(&mut self.text)?;
        self.push_effect(start);
        Ok(())
    }

    /// Appends what is in a register; `typed` is the type of a value.
    fn print(&mut self, expr: &Expr, typed: (Type, Order)) -> Result<(), Odd> {
        let sets = self.all_sets();
        expr.print(&mut self.text, typed, sets, self.links)
    }

    fn immediate(&mut self, data: &[u8]) -> Result<(), Odd> {
        let [to, value] = numbered::<2>(data)?;
        let value = needed(value)?;
        match register(needed(to)?)? {
            Some(to) => {
                let value = Octets::new(value_of(value)?)?;
                self.load(to, Expr::Value(value))
            }
            None => self.effect(|to| verdict(to, value)),
        }
    }

    fn payload(&mut self, data: &[u8]) -> Result<(), Odd> {
        let [to, base, offset, length] = match numbered::<4>(data) {
            Ok(found) => found,
            Err(_) => return Err("a field is written".to_owned()),
        };
        let layer = match word(needed(base)?)? {
            0 => Layer::Link,
            1 => Layer::Network,
            2 => Layer::Transport,
            3 => Layer::Inner,
            other => return Err(format!("payload base {other} is unknown")),
        };
        let bits = |value| Ok::<_, Odd>(word(needed(value)?)?.saturating_mul(8));
        let (offset, length) = (bits(offset)?, bits(length)?);
        if offset > 1 << 20 || !(1..=128).contains(&length) {
            return Err(format!("{length} bits at {offset} are loaded"));
        }
        let payload = Payload::new(layer, offset, length);
        self.load(data_register(to)?, Expr::Payload(payload))
    }

    fn meta(&mut self, data: &[u8]) -> Result<(), Odd> {
        let [to, key, from] = numbered::<3>(data)?;
        let key = find(META, "meta", word(needed(key)?)?)?;
        match (to, from) {
            (Some(to), None) if key.number == meta::TRACE => {
                let _ = to;
                Err("a trace flag is matched".to_owned())
            }
            (to @ Some(_), None) => self.load(data_register(to)?, Expr::Meta(key)),
            (None, from @ Some(_)) => self.assign("meta", key, None, data_register(from)?),
            _ => Err("meta has no register, or two".to_owned()),
        }
    }

    fn ct(&mut self, data: &[u8]) -> Result<(), Odd> {
        let [to, key, direction, from] = numbered::<4>(data)?;
        let key = find(CT, "ct", word(needed(key)?)?)?;
        let direction = match direction {
            Some([direction]) => Some(*direction),
            Some(_) => return Err("a direction has a wrong size".to_owned()),
            None => None,
        };
        match (to, from) {
            (to @ Some(_), None) => {
                let kind = key.kind;
                let expr = Expr::Ct {
                    key,
                    direction,
                    kind,
                };
                self.load(data_register(to)?, expr)
            }
            (None, from @ Some(_)) => self.assign("ct", key, direction, data_register(from)?),
            _ => Err("ct has no register, or two".to_owned()),
        }
    }

    /// Returns the type of a value of a connection.
    pub(super) fn ct_kind(&self, key: &Key) -> Result<Type, Odd> {
        use super::headers::Header;
        match key.number {
            ct::SOURCE | ct::TARGET => match self.scope.header(Layer::Network) {
                Some(Header::Ip) => Ok(Type::Ip4),
                Some(Header::Ip6) => Ok(Type::Ip6),
                _ => Err("an address of no family".to_owned()),
            },
            ct::SOURCE_PORT | ct::TARGET_PORT => match self.scope.header(Layer::Transport) {
                Some(_) => Ok(Type::Port),
                None => Err("a port of no protocol".to_owned()),
            },
            _ => Ok(key.kind),
        }
    }

    /// A statement that writes `key`.
    fn assign(
        &mut self,
        kind: &str,
        key: &Key,
        direction: Option<u8>,
        from: usize,
    ) -> Result<(), Odd> {
        if direction.is_some() {
            return Err("one direction of a connection is written".to_owned());
        }
        let mut value = self.loaded(from)?;
        self.settle(&mut value, false)?;
        let start = self.text.len();
        put!(
            &mut self.text,
            "{{\"mangle\": {{\"key\": {{\"{kind}\": {{\"key\": \"{}\"}}}}, \"value\": ",
            key.name
        );
        self.print(&value, (key.kind, key.order))?;
        self.text.push_str("}}");
        self.push_effect(start);
        Ok(())
    }

    fn hash(&mut self, data: &[u8]) -> Result<(), Odd> {
        let [from, to, length, modulus, seed, offset, kind] = numbered::<7>(data)?;
        let of = match kind.map_or(Ok(0), word)? {
            0 => {
                let bits = word(needed(length)?)?.saturating_mul(8);
                Some(Box::new(self.loaded_bits(data_register(from)?, bits)?))
            }
            1 => None,
            other => return Err(format!("hash {other} is unknown")),
        };
        let hash = Expr::Hash {
            modulus: word(needed(modulus)?)?,
            seed: seed.map(word).transpose()?,
            offset: offset.map_or(Ok(0), word)?,
            of,
        };
        self.load(data_register(to)?, hash)
    }

    fn bitwise(&mut self, data: &[u8]) -> Result<(), Odd> {
        let [from, to, _, mask, xor, op] = numbered::<6>(data)?;
        if op.map_or(Ok(0), word)? != 0 {
            return Err("bits are shifted".to_owned());
        }
        let mut mask = Octets::new(value_of(needed(mask)?)?)?;
        let mut xor = Octets::new(value_of(needed(xor)?)?)?;
        let mut expr = self.loaded(data_register(from)?)?;
        let bits = expr.bits(self.all_sets());
        if xor.length != mask.length || bits as usize != mask.length * 8 {
            return Err("a mask has another size than what it masks".to_owned());
        }
        // The bits that are set whatever they were.
        let mut or = mask;
        for at in 0..mask.length {
            let (m, x) = (mask.bytes[at], xor.bytes[at]);
            let o = (m & x) ^ x;
            or.bytes[at] = o;
            xor.bytes[at] = x & m;
            mask.bytes[at] = m | o;
        }
        let is = |octets: Octets, byte: u8| octets.get().iter().all(|of| *of == byte);
        let ops = [
            ("&", mask, is(mask, 0xff)),
            ("^", xor, is(xor, 0)),
            ("|", or, is(or, 0)),
        ];
        for (op, right, has_no_effect) in ops {
            if !has_no_effect {
                expr = Expr::Bits {
                    left: Box::new(expr),
                    op,
                    right,
                };
            }
        }
        self.load(data_register(to)?, expr)
    }

    fn lookup(&mut self, data: &[u8]) -> Result<(), Odd> {
        let [name, from, to, _, flags] = numbered::<5>(data)?;
        let flags = flags.map_or(Ok(0), word)?;
        if flags > 1 {
            return Err(format!("lookup flags {flags:#x} are unknown"));
        }
        let set = self.sets.find(text(needed(name)?)?)?;
        let bits = self.all_sets()[set].key_bits;
        let mut key = self.loaded_bits(data_register(from)?, bits)?;
        match to.map(register).transpose()? {
            None => {
                let op = if flags == 1 { Op::NotEqual } else { Op::Equal };
                self.relation(key, op, Right::Set(set))
            }
            _ if flags != 0 => Err("a map is inverted".to_owned()),
            Some(None) => {
                let is_map = self.all_sets()[set].is_verdict_map();
                if !is_map {
                    return Err("a map has no verdicts".to_owned());
                }
                let key = std::mem::replace(&mut key, Expr::Concat(Vec::new()));
                let mut map = Expr::Map {
                    key: Box::new(key),
                    map: set,
                };
                self.settle(&mut map, false)?;
                let start = self.text.len();
                self.print(&map, (Type::Integer, Order::Big))?;
                self.push_map(start);
                Ok(())
            }
            Some(Some(to)) => {
                let map = Expr::Map {
                    key: Box::new(key),
                    map: set,
                };
                self.load(to, map)
            }
        }
    }

    fn reject(&mut self, data: &[u8]) -> Result<(), Odd> {
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

    fn nat(&mut self, data: &[u8]) -> Result<(), Odd> {
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
    fn translate(
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

    /// Returns what is in one or two registers.
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

    fn tproxy(&mut self, data: &[u8]) -> Result<(), Odd> {
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
    fn object(&mut self, data: &[u8]) -> Result<(), Odd> {
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
    fn set_element(&mut self, data: &[u8]) -> Result<(), Odd> {
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
    let first = super::types::number(low.get(), Order::Big)?;
    let last = super::types::number(high.get(), Order::Big)?;
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
        // Without a name of its own, and printed within the rule.
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

/// Appends an expression that counts; `with_state` is whether what it has counted is printed.
pub(super) fn stateful(
    to: &mut String,
    name: &str,
    data: &[u8],
    with_state: bool,
) -> Result<(), Odd> {
    match name {
        "counter" if !with_state => to.push_str("{\"counter\": null}"),
        "counter" => {
            to.push_str("{\"counter\": {");
            counter(to, data)?;
            to.push_str("}}");
        }
        "limit" => {
            to.push_str("{\"limit\": {");
            limit(to, data, true)?;
            to.push_str("}}");
        }
        "quota" => {
            let (bytes, used, is_over) = quota(data)?;
            let (value, unit) = scaled(bytes);
            put!(
                to,
                "{{\"quota\": {{\"val\": {value}, \"val_unit\": \"{unit}\""
            );
            if is_over {
                to.push_str(", \"inv\": true");
            }
            if with_state && used != 0 {
                let (value, unit) = scaled(used);
                put!(to, ", \"used\": {value}, \"used_unit\": \"{unit}\"");
            }
            to.push_str("}}");
        }
        "connlimit" => {
            let [count, flags] = numbered::<2>(data)?;
            let count = word(needed(count)?)?;
            put!(to, "{{\"ct count\": {{\"val\": {count}");
            match flags.map_or(Ok(0), word)? {
                0 => {}
                1 => to.push_str(", \"inv\": true"),
                other => return Err(format!("connlimit flags {other:#x} are unknown")),
            }
            to.push_str("}}");
        }
        other => return Err(format!("expression {other} of an element is not decoded")),
    }
    Ok(())
}

/// Appends packets and bytes.
pub(super) fn counter(to: &mut String, data: &[u8]) -> Result<(), Odd> {
    let [bytes, packets] = numbered::<2>(data)?;
    let (packets, bytes) = (wide(needed(packets)?)?, wide(needed(bytes)?)?);
    put!(to, "\"packets\": {packets}, \"bytes\": {bytes}");
    Ok(())
}

/// Returns limit, use, and whether it is inverted.
pub(super) fn quota(data: &[u8]) -> Result<(u64, u64, bool), Odd> {
    let [bytes, flags, _, used] = numbered::<4>(data)?;
    let flags = flags.map_or(Ok(0), word)?;
    // NFT_QUOTA_F_DEPLETED is the kernel's own.
    if flags & !3 != 0 {
        return Err(format!("quota flags {flags:#x} are unknown"));
    }
    let used = used.map_or(Ok(0), wide)?;
    Ok((wide(needed(bytes)?)?, used, flags & 1 != 0))
}

/// Returns a number of bytes in the unit that `nft` prints.
fn scaled(bytes: u64) -> (u64, &'static str) {
    match bytes {
        0 => (0, "bytes"),
        _ if bytes.is_multiple_of(1 << 20) => (bytes >> 20, "mbytes"),
        _ if bytes.is_multiple_of(1 << 10) => (bytes >> 10, "kbytes"),
        _ => (bytes, "bytes"),
    }
}

/// Appends a rate; `is_statement` is whether it is one of a rule, whose order of words differs from an object's.
pub(super) fn limit(to: &mut String, data: &[u8], is_statement: bool) -> Result<(), Odd> {
    let [rate, unit, burst, kind, flags] = numbered::<5>(data)?;
    let (rate, burst) = (wide(needed(rate)?)?, u64::from(burst.map_or(Ok(0), word)?));
    let per = match wide(needed(unit)?)? {
        1 => "second",
        60 => "minute",
        3600 => "hour",
        86400 => "day",
        604_800 => "week",
        other => return Err(format!("a rate per {other} s")),
    };
    let ((rate, rate_unit), (burst, burst_unit)) = match kind.map_or(Ok(0), word)? {
        0 => ((rate, None), (burst, None)),
        1 => {
            let ((rate, unit), (burst, of_burst)) = (scaled(rate), scaled(burst));
            ((rate, Some(unit)), (burst, Some(of_burst)))
        }
        other => return Err(format!("limit {other} is unknown")),
    };
    put!(to, "\"rate\": {rate}");
    if is_statement {
        put!(to, ", \"burst\": {burst}");
    }
    put!(to, ", \"per\": \"{per}\"");
    match flags.map_or(Ok(0), word)? {
        0 => {}
        1 => to.push_str(", \"inv\": true"),
        other => return Err(format!("limit flags {other:#x} are unknown")),
    }
    if let Some(unit) = rate_unit {
        put!(to, ", \"rate_unit\": \"{unit}\"");
    }
    if !is_statement && burst != 0 {
        put!(to, ", \"burst\": {burst}");
    }
    if let Some(unit) = burst_unit.filter(|_| is_statement || burst != 0) {
        put!(to, ", \"burst_unit\": \"{unit}\"");
    }
    Ok(())
}

fn log(to: &mut String, data: &[u8]) -> Result<(), Odd> {
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
    const LEVELS: [&str; 9] = [
        "emerg", "alert", "crit", "err", "warn", "notice", "info", "debug", "audit",
    ];
    match level.map(word).transpose()? {
        // The default.
        None | Some(4) => {}
        Some(level) => {
            let name = LEVELS.get(level as usize);
            let name = name.ok_or_else(|| format!("log level {level} is unknown"))?;
            put!(to, ", \"level\": \"{name}\"");
        }
    }
    const ALL: [(u32, &str); 5] = [
        (1, "tcp sequence"),
        (2, "tcp options"),
        (4, "ip options"),
        (8, "skuid"),
        (32, "ether"),
    ];
    let flags = flags.map_or(Ok(0), word)?;
    let set = ALL.iter().filter(|(bit, _)| flags & bit != 0);
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

fn queue(to: &mut String, data: &[u8]) -> Result<(), Odd> {
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
