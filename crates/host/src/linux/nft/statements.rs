//! Expressions of `nf_tables`: those that load a register, and those that compare or act.

use super::actions::{log, queue, verdict};
use super::counts::stateful;
use super::expr::{Expr, Payload};
use super::headers::{Header, Layer};
use super::json::quoted;
use super::keys::{CT, Key, META, SOCKET, ct, find, meta};
use super::matches::{Op, Right};
use super::rule::Writer;
use super::types::{Order, Type};
use crate::linux::netlink::{text, word};
use crate::linux::nf_tables::wire::{Octets, Odd, extension, needed, numbered, put, value_of};

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
pub(super) fn data_register(value: Option<&[u8]>) -> Result<usize, Odd> {
    register(needed(value)?)?.ok_or_else(|| "a verdict is used as data".to_owned())
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
    pub(super) fn effect(
        &mut self,
        write: impl FnOnce(&mut String) -> Result<(), Odd>,
    ) -> Result<(), Odd> {
        let start = self.text.len();
        write(&mut self.text)?;
        self.push_effect(start);
        Ok(())
    }

    /// Appends the contents of a register; `typed` is the type of a value.
    pub(super) fn print(&mut self, expr: &Expr, typed: (Type, Order)) -> Result<(), Odd> {
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
        let found = numbered::<4>(data).map_err(|_| "a field is written")?;
        let [to, base, offset, length] = found;
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
            (Some(_), None) if key.number == meta::TRACE => {
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
        // The bits that are always set.
        let mut or = mask;
        for at in 0..mask.length {
            let (m, x) = (mask.bytes[at], xor.bytes[at]);
            let o = (m & x) ^ x;
            or.bytes[at] = o;
            xor.bytes[at] = x & m;
            mask.bytes[at] = m | o;
        }
        let is = |octets: Octets, byte: u8| octets.get().iter().all(|octet| *octet == byte);
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
        let key = self.loaded_bits(data_register(from)?, bits)?;
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
}
