//! What each mode has in place for an address of a Service or for a NodePort.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::{Asked, Gaps, modes::Relevant};
use crate::backend::Mode;
use crate::backend::iptables::model::{Match, Rule, Ruleset, Target};
use crate::backend::ipvs::model::{DUMMY, Key, Table, VirtualServer};
use crate::backend::nftables::model::{self as nft, Datum, Expr, Verdict};
use crate::evidence::Gap;
use crate::net::{Family, Proto};
use crate::node::{NodeSnapshot, Store};
use crate::owner::software::hashed;
use crate::owner::{Owners, Port};

/// Where packets to a Service go.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct Dest {
    pub(super) family: Family,
    /// `None` for a NodePort.
    pub(super) addr: Option<IpAddr>,
    pub(super) port: u16,
    pub(super) proto: Proto,
}

/// What happens to packets.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum State {
    /// They go to an endpoint.
    Forwards,
    /// Those of this node and its pods go to an endpoint; others are refused.
    RejectsOutside,
    /// Those of this node and its pods go to an endpoint; others are dropped.
    DropsOutside,
    /// They are refused.
    Rejects,
    /// They are dropped.
    Drops,
    /// Nothing is there for them.
    Missing,
    /// What would tell was not read.
    Unknown,
}

impl State {
    fn of(does: &[Does]) -> Self {
        let has = |of| does.contains(&of);
        match (has(Does::Forward), has(Does::Reject), has(Does::Drop)) {
            (true, true, _) => Self::RejectsOutside,
            (true, false, true) => Self::DropsOutside,
            (true, false, false) => Self::Forwards,
            (false, true, _) => Self::Rejects,
            (false, false, true) => Self::Drops,
            (false, false, false) => Self::Missing,
        }
    }

    /// Returns the state as a sentence about one destination, or about several.
    pub(super) fn words(self, one: bool) -> &'static str {
        match (self, one) {
            (Self::Forwards, true) => "forwards",
            (Self::Forwards, false) => "forward",
            (Self::RejectsOutside, true) => "rejects from outside",
            (Self::RejectsOutside, false) => "reject from outside",
            (Self::DropsOutside, true) => "drops from outside",
            (Self::DropsOutside, false) => "drop from outside",
            (Self::Rejects, true) => "rejects",
            (Self::Rejects, false) => "reject",
            (Self::Drops, true) => "drops",
            (Self::Drops, false) => "drop",
            (Self::Missing, _) => "missing",
            (Self::Unknown, _) => "?",
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Does {
    Forward,
    Reject,
    Drop,
    /// Source ranges are checked first.
    Filter,
}

#[derive(Debug)]
struct Entry {
    mode: Mode,
    does: Does,
    object: String,
}

/// What a mode has for a port of a Service.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Programmed {
    pub(super) mode: Mode,
    pub(super) leftover: bool,
    pub(super) targets: Vec<TargetRow>,
}

/// What a mode has for one address or NodePort.
#[derive(Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TargetRow {
    pub(super) family: Family,
    /// `null` for a NodePort.
    address: Option<IpAddr>,
    port: u16,
    pub(super) state: State,
    /// Chains, map elements and virtual servers.
    pub(super) objects: BTreeSet<String>,
}

impl Programmed {
    /// Returns what a person wants to know of it in a few words.
    pub(super) fn words(&self) -> String {
        let mut counts: BTreeMap<State, usize> = BTreeMap::new();
        for target in &self.targets {
            *counts.entry(target.state).or_default() += 1;
        }
        if counts.len() == 1 {
            let only = counts.keys().next();
            return only.map_or("", |state| state.words(true)).to_owned();
        }
        // What goes right goes without saying.
        let all = self.targets.len();
        let parts = counts
            .iter()
            .filter(|(state, _)| **state != State::Forwards);
        let parts =
            parts.map(|(state, count)| format!("{count} of {all} {}", state.words(*count == 1)));
        parts.collect::<Vec<_>>().join("; ")
    }

    /// Returns whether anything is there.
    pub(super) fn is_there(&self) -> bool {
        let there = |of: &TargetRow| !matches!(of.state, State::Missing | State::Unknown);
        self.targets.iter().any(there)
    }

    /// Returns the objects, each once.
    pub(super) fn objects(&self) -> BTreeSet<&str> {
        let all = self.targets.iter().flat_map(|of| &of.objects);
        all.map(String::as_str).collect()
    }
}

/// What is there, by where packets go.
pub(super) struct There {
    by_dest: HashMap<Dest, Vec<Entry>>,
    /// What could not be read: nothing can be said to be missing there.
    unread: BTreeSet<(Mode, Family)>,
    present: Vec<Mode>,
    current: Option<Mode>,
}

impl There {
    /// Looks at everything that may lead packets to Services.
    pub(super) fn new(
        node: &NodeSnapshot<'_>,
        owners: &Owners,
        asked: Asked<'_>,
        relevant: &Relevant,
        gaps: &mut Gaps,
    ) -> Self {
        let modes = &relevant.modes;
        let mut present: Vec<Mode> = modes
            .observed
            .iter()
            .flat_map(|of| &of.present)
            .copied()
            .chain(modes.current())
            .collect();
        present.sort();
        present.dedup();
        let mut there = Self {
            by_dest: HashMap::new(),
            unread: BTreeSet::new(),
            present,
            current: modes.current(),
        };
        for family in asked.families() {
            let in_use = relevant.iptables(node, family, gaps);
            let unknown = |read: Option<Gap>| !matches!(read, None | Some(Gap::NotApplicable(_)));
            let sections = [
                (Mode::Iptables, node.iptables(Store::InUse, family).err()),
                (Mode::Ipvs, node.ipvs().err()),
                (Mode::Nftables, node.nft().err()),
            ];
            for (mode, read) in sections {
                if unknown(read) {
                    there.unread.insert((mode, family));
                }
            }
            let others = [Store::Legacy, Store::Nft].map(|store| node.iptables(store, family).ok());
            for rules in in_use.into_iter().chain(others.into_iter().flatten()) {
                there.iptables(family, rules);
            }
            if let Some(nft) = relevant.nft(node, gaps) {
                let of = if family == Family::V4 { "ip" } else { "ip6" };
                if let Some(table) = nft.table(of, "kube-proxy") {
                    there.nftables(family, table);
                }
            }
        }
        if let Some(table) = relevant.ipvs(node, gaps) {
            there.ipvs(node, owners, table);
        }
        there
    }

    fn add(&mut self, dest: Dest, mode: Mode, does: Does, object: String) {
        let entry = Entry { mode, does, object };
        self.by_dest.entry(dest).or_default().push(entry);
    }

    fn iptables(&mut self, family: Family, rules: &Ruleset<'_>) {
        let places = [
            ("nat", "KUBE-SERVICES"),
            ("nat", "KUBE-NODEPORTS"),
            ("filter", "KUBE-SERVICES"),
            ("filter", "KUBE-EXTERNAL-SERVICES"),
            ("filter", "KUBE-PROXY-FIREWALL"),
        ];
        for (table, name) in places {
            let rules = rules.chain(table, name).map_or(&[][..], |c| &c.rules);
            for rule in rules {
                let Some((does, object)) = done_by(rule, table, name) else {
                    continue;
                };
                let seen = seen(rule);
                let (Some(port), Some(proto)) = (seen.port, seen.proto) else {
                    continue;
                };
                let addr = seen.addr;
                let dest = Dest {
                    family,
                    addr,
                    port,
                    proto,
                };
                self.add(dest, Mode::Iptables, does, object);
            }
        }
    }

    fn nftables(&mut self, family: Family, table: &nft::Table) {
        for map in table.sets.iter().filter(|set| set.data.is_some()) {
            for element in &map.elements {
                let Expr::Concat(parts) = &element.key else {
                    continue;
                };
                let (addr, rest) = match parts.as_slice() {
                    [addr, rest @ ..] if rest.len() == 2 => (Some(addr), rest),
                    rest => (None, rest),
                };
                let [proto, port] = rest else { continue };
                let addr = match addr.map(|addr| word(addr).and_then(|text| text.parse().ok())) {
                    Some(None) => continue,
                    Some(Some(addr)) => Some(addr),
                    None => None,
                };
                let proto = word(proto).and_then(|text| text.parse().ok());
                let (Some(proto), Some(port)) = (proto, number(port)) else {
                    continue;
                };
                let (does, object) = match &element.value {
                    Some(Datum::Verdict(Verdict::Goto(to) | Verdict::Jump(to))) => {
                        if to == "reject-chain" {
                            (Does::Reject, map.name.clone())
                        } else if to.starts_with("firewall-") {
                            (Does::Filter, to.clone())
                        } else {
                            (Does::Forward, to.clone())
                        }
                    }
                    Some(Datum::Verdict(Verdict::Drop)) => (Does::Drop, map.name.clone()),
                    _ => continue,
                };
                let dest = Dest {
                    family,
                    addr,
                    port,
                    proto,
                };
                self.add(dest, Mode::Nftables, does, object);
            }
        }
    }

    fn ipvs(&mut self, node: &NodeSnapshot<'_>, owners: &Owners, table: &Table) {
        let of_node: BTreeSet<IpAddr> = node.addresses().map_or_else(
            |_| BTreeSet::new(),
            |all| {
                let own = all.all.iter().filter(|at| at.link != DUMMY);
                own.map(|at| at.addr.addr).collect()
            },
        );
        for server in &table.servers {
            let Key::Address { proto, addr, port } = server.key else {
                continue;
            };
            let node_port = owners.at(addr, port, proto).is_none()
                && (of_node.contains(&addr) || owners.node_port(port, proto).is_some());
            let dest = Dest {
                family: Family::of(addr),
                addr: (!node_port).then_some(addr),
                port,
                proto,
            };
            let object = format!("{}/{proto}", SocketAddr::new(addr, port));
            self.add(dest, Mode::Ipvs, balances(server), object);
        }
    }

    /// Returns what each mode that is there has for `dests`; a mode that left nothing for them is passed over.
    pub(super) fn programmed(&self, dests: &[Dest]) -> Vec<Programmed> {
        let all = self.present.iter().map(|&mode| {
            let targets = dests.iter().map(|dest| {
                let found = self.by_dest.get(dest).map_or(&[][..], Vec::as_slice);
                let of = found.iter().filter(|entry| entry.mode == mode);
                let does: Vec<Does> = of.clone().map(|entry| entry.does).collect();
                TargetRow {
                    family: dest.family,
                    address: dest.addr,
                    port: dest.port,
                    state: match State::of(&does) {
                        State::Missing if self.unread.contains(&(mode, dest.family)) => {
                            State::Unknown
                        }
                        state => state,
                    },
                    objects: of.map(|entry| entry.object.clone()).collect(),
                }
            });
            let mut targets: Vec<_> = targets.collect();
            targets.sort();
            Programmed {
                mode,
                leftover: self.current.is_some_and(|current| current != mode),
                targets,
            }
        });
        all.filter(|of| of.is_there() || Some(of.mode) == self.current)
            .collect()
    }

    /// Iterates over the NodePorts that something is there for.
    pub(super) fn node_ports(&self) -> impl Iterator<Item = Dest> {
        self.by_dest.keys().filter(|d| d.addr.is_none()).copied()
    }
}

/// Returns where packets to `port` may go, sorted: its addresses, then its NodePort in each of their families.
pub(super) fn dests(port: &Port, asked: Asked<'_>) -> Vec<Dest> {
    let proto = port.proto;
    let mut all: Vec<Dest> = port
        .port
        .iter()
        .flat_map(|&number| {
            port.addresses.iter().map(move |&(_, addr)| Dest {
                family: Family::of(addr),
                addr: Some(addr),
                port: number,
                proto,
            })
        })
        .collect();
    all.extend(node_port_dests(port));
    all.retain(|dest| asked.takes(dest.family));
    all.sort();
    all.dedup();
    all
}

/// Returns the NodePort of `port` in each family the Service has an address of.
pub(super) fn node_port_dests(port: &Port) -> Vec<Dest> {
    let Some(number) = port.node_port else {
        return Vec::new();
    };
    let families: BTreeSet<Family> = port.addresses.iter().map(|at| Family::of(at.1)).collect();
    let all = families.into_iter().map(|family| Dest {
        family,
        addr: None,
        port: number,
        proto: port.proto,
    });
    all.collect()
}

fn balances(server: &VirtualServer) -> Does {
    // Without a real server that takes new connections the kernel answers "port unreachable".
    if server.reals.iter().any(|real| real.weight > 0) {
        Does::Forward
    } else {
        Does::Reject
    }
}

fn done_by(rule: &Rule<'_>, table: &str, chain: &str) -> Option<(Does, String)> {
    match rule.target.as_ref()? {
        Target::Jump(to) | Target::Goto(to) => {
            hashed(to)?;
            let does = if chain == "KUBE-PROXY-FIREWALL" {
                Does::Filter
            } else {
                Does::Forward
            };
            Some((does, to.to_string()))
        }
        // Those that no source range lets through.
        Target::Reject { .. } | Target::Drop if chain == "KUBE-PROXY-FIREWALL" => {
            Some((Does::Filter, format!("{table} {chain}")))
        }
        Target::Reject { .. } => Some((Does::Reject, format!("{table} {chain}"))),
        Target::Drop => Some((Does::Drop, format!("{table} {chain}"))),
        _ => None,
    }
}

/// What a rule tells of the packets it takes.
#[derive(Default)]
struct Seen {
    proto: Option<Proto>,
    addr: Option<IpAddr>,
    port: Option<u16>,
}

fn seen(rule: &Rule<'_>) -> Seen {
    let mut seen = Seen::default();
    for of in &rule.matches {
        match of {
            Match::Protocol(proto) if !proto.not => seen.proto = Some(proto.is),
            Match::Destination(to) if !to.not && to.is.is_host() => seen.addr = Some(to.is.addr),
            Match::Ports {
                destination: Some(ports),
                ..
            } if !ports.not => seen.port = Some(ports.is.first),
            _ => {}
        }
    }
    seen
}

pub(super) fn word(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Word(word) => Some(word),
        _ => None,
    }
}

pub(super) fn number(expr: &Expr) -> Option<u16> {
    match expr {
        Expr::Number(number) => u16::try_from(*number).ok(),
        Expr::Word(word) => word.parse().ok(),
        _ => None,
    }
}
