//! Exact keys by which recorded walks skip rules, elements and virtual servers that cannot match.
//!
//! A dispatch chain has a rule for each Service. All rules that a walk skips are one answer: the destination is none of their
//! addresses. For a chain that bans clients, the answer is about the source.

use std::cell::RefCell;
use std::net::IpAddr;
use std::ptr::from_ref;
use std::rc::Rc;

use foldhash::HashMap;

use super::packet::Packet;
use super::region::{Asked, Coordinate as _, Ranges};
use kpx_node::backend::ipset;
use kpx_node::backend::iptables::model::{Chain, Match, Rule, Side};
use kpx_node::backend::ipvs::model::{Key, VirtualServer};
use kpx_node::backend::nftables::model::{self as nft, Expr};
use kpx_node::net::{Family, Proto};

/// Shorter lists are searched one by one.
const MIN: usize = 12;

/// In a key: any protocol with ports.
const ANY_WITH_PORTS: u64 = 1 << 8;

/// A part of a key, read from a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'p> {
    Addr(Asked<'p, IpAddr>),
    Port(Asked<'p, u16>),
    Proto(Asked<'p, u8>),
    Number(u64),
}

impl Part<'_> {
    fn number(self) -> u128 {
        match self {
            Self::Addr(addr) => addr.shown().number(),
            Self::Port(port) => port.shown().number(),
            Self::Proto(proto) => proto.shown().number(),
            Self::Number(number) => number.into(),
        }
    }

    /// Returns whether the part is one of `keys`. Records the question, and the key if it is one of them.
    fn ask(self, keys: &Ranges) -> bool {
        match self {
            Self::Addr(addr) => addr.within(keys) && addr.is(addr.shown()),
            Self::Port(port) => port.within(keys) && port.is(port.shown()),
            Self::Proto(proto) => proto.within(keys) && proto.is(proto.shown()),
            Self::Number(number) => keys.contains(number.into()),
        }
    }
}

/// Entries by the parts of their keys.
#[derive(Debug, Default)]
pub(crate) struct Trie {
    next: HashMap<u128, Trie>,
    keys: Ranges,
    entry: Option<usize>,
}

impl Trie {
    /// Returns the trie of these keys; of equal ones the first counts.
    fn of(keys: impl Iterator<Item = Vec<u128>>) -> Self {
        let mut trie = Self::default();
        for (entry, key) in keys.enumerate() {
            let mut at = &mut trie;
            for part in key {
                at = at.next.entry(part).or_default();
            }
            at.entry.get_or_insert(entry);
        }
        trie.finish();
        trie
    }

    fn finish(&mut self) {
        self.keys = Ranges::of(self.next.keys().map(|&key| (key, key)).collect());
        self.next.values_mut().for_each(Self::finish);
    }

    /// Returns the entry with this key.
    pub(crate) fn find(&self, parts: &[Part<'_>]) -> Option<usize> {
        let mut at = self;
        for part in parts {
            if !part.ask(&at.keys) {
                return None;
            }
            at = at.next.get(&part.number())?;
        }
        at.entry
    }
}

/// The rules of a chain by the destination or source that they match.
#[derive(Debug, Default)]
struct ByEnd {
    of_addr: HashMap<u128, Vec<usize>>,
    addrs: Ranges,
    /// Rules without a destination address.
    of_port: HashMap<u16, Vec<usize>>,
    ports: Ranges,
    /// Rules without a destination.
    of_source: HashMap<u128, Vec<usize>>,
    sources: Ranges,
    rest: Vec<usize>,
}

impl ByEnd {
    fn new(chain: &Chain<'_>) -> Self {
        let mut new = Self::default();
        for (index, rule) in chain.rules.iter().enumerate() {
            let of = match exact(rule) {
                (Some(addr), ..) => new.of_addr.entry(addr.number()).or_default(),
                (None, Some(port), _) => new.of_port.entry(port).or_default(),
                (None, None, Some(addr)) => new.of_source.entry(addr.number()).or_default(),
                (None, None, None) => &mut new.rest,
            };
            of.push(index);
        }
        let points = |number: u128| (number, number);
        let all = |addrs: &HashMap<u128, Vec<usize>>| {
            Ranges::of(addrs.keys().map(|&addr| points(addr)).collect())
        };
        new.addrs = all(&new.of_addr);
        new.sources = all(&new.of_source);
        new.ports = Ranges::of(
            new.of_port
                .keys()
                .map(|&port| points(port.into()))
                .collect(),
        );
        new
    }

    fn find(&self, packet: &Packet) -> Vec<usize> {
        let mut found = self.rest.clone();
        if !self.of_addr.is_empty() {
            let addr = packet.destination();
            if Part::Addr(addr).ask(&self.addrs) {
                found.extend(&self.of_addr[&addr.shown().number()]);
            }
        }
        if !self.of_port.is_empty() {
            let port = packet.port();
            if Part::Port(port).ask(&self.ports) {
                found.extend(&self.of_port[&port.shown()]);
            }
        }
        if !self.of_source.is_empty() {
            let addr = packet.source();
            if Part::Addr(addr).ask(&self.sources) {
                found.extend(&self.of_source[&addr.shown().number()]);
            }
        }
        found.sort_unstable();
        found
    }
}

/// Returns the only address, port and source to which `rule` applies.
fn exact(rule: &Rule<'_>) -> (Option<IpAddr>, Option<u16>, Option<IpAddr>) {
    let (mut addr, mut port, mut source) = (None, None, None);
    for of in &rule.matches {
        match of {
            Match::Destination(net) if !net.inverted && net.value.is_host() => {
                addr = Some(net.value.addr);
            }
            Match::Source(net) if !net.inverted && net.value.is_host() => {
                source = Some(net.value.addr);
            }
            Match::Ports {
                destination: Some(ports),
                ..
            } if !ports.inverted && ports.value.first == ports.value.last => {
                port = Some(ports.value.first);
            }
            _ => {}
        }
    }
    (addr, port, source)
}

/// The exact keys of a world's parts, each made when it is first needed.
///
/// Parts are identified by their place in memory: the world is borrowed as long as its index is used.
#[derive(Debug, Default)]
pub(crate) struct Index {
    chains: RefCell<HashMap<usize, Rc<ByEnd>>>,
    sets: RefCell<HashMap<usize, Option<Rc<Trie>>>>,
    names: RefCell<HashMap<usize, Rc<HashMap<String, usize>>>>,
    servers: RefCell<Option<Rc<Trie>>>,
}

fn place<T>(part: &T) -> usize {
    from_ref(part).addr()
}

impl Index {
    /// Returns the rules of `chain` that may match, in order; `None` for all.
    pub(crate) fn rules(&self, chain: &Chain<'_>, packet: &Packet) -> Option<Vec<usize>> {
        if chain.rules.len() < MIN {
            return None;
        }
        let mut chains = self.chains.borrow_mut();
        let made = chains
            .entry(place(chain))
            .or_insert_with(|| Rc::new(ByEnd::new(chain)));
        Some(made.find(packet))
    }

    /// Returns the elements of a set or map of nftables by their keys, if all are exact.
    pub(crate) fn elements(&self, set: &nft::Set) -> Option<Rc<Trie>> {
        if set.elements.len() < MIN {
            return None;
        }
        let mut sets = self.sets.borrow_mut();
        let made = sets.entry(place(set)).or_insert_with(|| {
            let keys = set.elements.iter().map(|element| key(set, &element.key));
            let keys: Option<Vec<_>> = keys.collect();
            keys.map(|keys| Rc::new(Trie::of(keys.into_iter())))
        });
        made.clone()
    }

    /// Returns the members of an IP set by their parts, if all are exact.
    pub(crate) fn members(&self, set: &ipset::Set<'_>) -> Option<Rc<Trie>> {
        if set.members.len() < MIN {
            return None;
        }
        let mut sets = self.sets.borrow_mut();
        let made = sets.entry(place(set)).or_insert_with(|| {
            let kinds = set.kind.split_once(':')?.1;
            let keys = set.members.iter().map(|member| {
                let nomatch = member
                    .options
                    .split_ascii_whitespace()
                    .any(|o| o == "nomatch");
                (!nomatch)
                    .then(|| member_key(kinds, &member.element))
                    .flatten()
            });
            let keys: Option<Vec<_>> = keys.collect();
            keys.map(|keys| Rc::new(Trie::of(keys.into_iter())))
        });
        made.clone()
    }

    /// Returns the chain of `table` called `name`.
    pub(crate) fn chain<'t>(&self, table: &'t nft::Table, name: &str) -> Option<&'t nft::Chain> {
        let mut names = self.names.borrow_mut();
        let made = names.entry(place(table)).or_insert_with(|| {
            let all = table.chains.iter().enumerate();
            Rc::new(all.map(|(at, chain)| (chain.name.clone(), at)).collect())
        });
        made.get(name).map(|&at| &table.chains[at])
    }

    /// Returns the virtual servers of `family` by address, protocol and port.
    pub(crate) fn servers(&self, servers: &[VirtualServer], family: Family) -> Rc<Trie> {
        let mut made = self.servers.borrow_mut();
        Rc::clone(made.get_or_insert_with(|| {
            let key = |server: &VirtualServer| match server.key {
                Key::Address { proto, addr, port } if Family::of(addr) == family => {
                    vec![addr.number(), proto.number().number(), port.number()]
                }
                Key::Address { .. } | Key::Fwmark { .. } => Vec::new(),
            };
            Rc::new(Trie::of(servers.iter().map(key)))
        }))
    }
}

/// Returns the numbers of an element's key, if each part is exact.
fn key(set: &nft::Set, key: &Expr) -> Option<Vec<u128>> {
    let parts = match key {
        Expr::Concat(parts) => parts.as_slice(),
        one => std::slice::from_ref(one),
    };
    if parts.len() != set.key.len() {
        return None;
    }
    let numbers = parts.iter().zip(&set.key).map(|(part, kind)| {
        Some(match (kind.as_str(), part) {
            ("ipv4_addr" | "ipv6_addr", Expr::Word(word)) => word.parse::<IpAddr>().ok()?.number(),
            ("inet_proto", Expr::Word(word)) => word.parse::<Proto>().ok()?.number().number(),
            ("inet_proto" | "inet_service", Expr::Number(number)) => u128::from(*number),
            _ => return None,
        })
    });
    numbers.collect()
}

/// Returns the numbers of a member of a set whose kinds are `kinds`, if each part is exact.
fn member_key(kinds: &str, element: &str) -> Option<Vec<u128>> {
    let mut numbers = Vec::new();
    let mut values = element.split(',');
    for kind in kinds.split(',') {
        let value = values.next()?;
        match kind {
            "ip" => numbers.push(value.parse::<IpAddr>().ok()?.number()),
            "port" => {
                let (proto, port) = match value.split_once(':') {
                    Some((proto, port)) => (proto.parse::<Proto>().ok()?.number().number(), port),
                    None => (ANY_WITH_PORTS.into(), value),
                };
                numbers.extend([proto, port.parse::<u16>().ok()?.number()]);
            }
            _ => return None,
        }
    }
    values.next().is_none().then_some(numbers)
}

/// Returns the parts of `packet` that are compared with members of a set of type `method`:`kinds`, looked up by `sides`; `None`
/// if one of them is unknown.
pub(crate) fn member_parts<'p>(
    method: &str,
    kinds: &[&str],
    sides: &[Side],
    packet: &'p Packet,
) -> Option<Vec<Part<'p>>> {
    let mut parts = Vec::new();
    for (at, kind) in kinds.iter().enumerate() {
        let source = sides.get(at).is_none_or(|side| *side == Side::Source);
        match (*kind, source) {
            ("ip", true) => parts.push(Part::Addr(packet.source())),
            ("ip", false) => parts.push(Part::Addr(packet.destination())),
            // Ports of a bitmap are those of every protocol.
            ("port", false) if method == "bitmap" => {
                let has_ports = u64::from(packet.has_ports()) * ANY_WITH_PORTS;
                parts.extend([Part::Number(has_ports), Part::Port(packet.port())]);
            }
            ("port", false) => {
                parts.extend([Part::Proto(packet.proto()), Part::Port(packet.port())]);
            }
            _ => return None,
        }
    }
    Some(parts)
}
