//! The objects that each mode has for the addresses and NodePorts of Services.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::{Gaps, Joined, Query};
use kpx_node::backend::Mode;
use kpx_node::backend::iptables::model::{Rule, Ruleset, Target};
use kpx_node::backend::iptables::portals::portals;
use kpx_node::backend::ipvs::model::{DUMMY, Key, Table, VirtualServer};
use kpx_node::backend::nftables::expect::REJECTED_ON_LOOPBACK;
use kpx_node::backend::nftables::model::{self as nft, Datum, Expr, NatKind, Statement, Verdict};
use kpx_node::evidence::Gap;
use kpx_node::net::{Family, Proto};
use kpx_node::node::{IptablesBackend, NodeSnapshot};
use kpx_node::owner::chain_owner::hashed;
use kpx_node::owner::{Owners, Port};

/// A destination of packets to a Service.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Dest {
    pub(crate) family: Family,
    /// `None` for a NodePort.
    pub(crate) addr: Option<IpAddr>,
    pub(crate) port: u16,
    pub(crate) proto: Proto,
}

/// How a mode handles the packets to a destination.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Handling {
    /// Translates them to an endpoint.
    Translates,
    /// Translates those from this node and its pods, and rejects others.
    RejectsOutside,
    /// Translates those from this node and its pods, and drops others.
    DropsOutside,
    /// Rejects them.
    Rejects,
    /// Drops them.
    Drops,
    /// Has objects for them, of which none leads to an endpoint.
    Unmatched,
    /// Has no object for them.
    Missing,
}

impl Handling {
    fn of(does: &[Does]) -> Self {
        let has = |action| does.contains(&action);
        match (has(Does::Forward), has(Does::Reject), has(Does::Drop)) {
            (true, true, _) => Self::RejectsOutside,
            (true, false, true) => Self::DropsOutside,
            (true, false, false) => Self::Translates,
            (false, true, _) => Self::Rejects,
            (false, false, true) => Self::Drops,
            (false, false, false) if has(Does::Nothing) => Self::Unmatched,
            (false, false, false) => Self::Missing,
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Does {
    Forward,
    Reject,
    Drop,
    /// Checks source ranges first.
    Filter,
    /// Leads to no endpoint.
    Nothing,
}

#[derive(Debug)]
struct Entry {
    mode: Mode,
    does: Does,
    object: String,
}

/// The objects of a mode for a port of a Service.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Programmed {
    pub(crate) mode: Mode,
    pub(crate) leftover: bool,
    pub(crate) targets: Vec<TargetRow>,
}

/// The objects of a mode for one address or NodePort.
#[derive(Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct TargetRow {
    pub(crate) family: Family,
    /// `null` for a NodePort.
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: u16,
    /// `null` if unknown.
    pub(crate) state: Option<Handling>,
    /// Chains, map elements and virtual servers.
    pub(crate) objects: BTreeSet<String>,
}

impl Programmed {
    /// Returns whether the mode has any object for the port.
    pub(crate) fn is_installed(&self) -> bool {
        let mut known = self.targets.iter().filter_map(|target| target.state);
        known.any(|state| state != Handling::Missing)
    }

    /// Returns the objects, without duplicates.
    pub(crate) fn objects(&self) -> BTreeSet<&str> {
        let all = self.targets.iter().flat_map(|target| &target.objects);
        all.map(String::as_str).collect()
    }
}

/// The objects of every mode, by destination.
pub(crate) struct Installed {
    by_dest: HashMap<Dest, Vec<Entry>>,
    /// Sections that could not be read, so that missing objects are unknown there.
    unread: BTreeSet<(Mode, Family)>,
    present: Vec<Mode>,
    current: Option<Mode>,
}

impl Installed {
    /// Collects the objects of every mode.
    pub(crate) fn new(joined: Joined<'_, '_>, gaps: &mut Gaps) -> Self {
        let modes = &joined.relevant.modes;
        let mut present: Vec<Mode> = modes
            .observed
            .iter()
            .flat_map(|observation| &observation.present)
            .copied()
            .chain(modes.current())
            .collect();
        present.sort();
        present.dedup();
        let mut installed = Self {
            by_dest: HashMap::new(),
            unread: BTreeSet::new(),
            present,
            current: modes.current(),
        };
        for family in joined.query.families() {
            let in_use = joined.relevant.iptables(joined.node, family, gaps);
            let unknown = |read: Option<Gap>| !matches!(read, None | Some(Gap::NotApplicable(_)));
            let sections = [
                (
                    Mode::Iptables,
                    joined.node.iptables(IptablesBackend::InUse, family).err(),
                ),
                (Mode::Ipvs, joined.node.ipvs().err()),
                (Mode::Nftables, joined.node.nft().err()),
                (
                    Mode::Userspace,
                    joined.node.iptables(IptablesBackend::InUse, family).err(),
                ),
            ];
            for (mode, read) in sections {
                if unknown(read) {
                    installed.unread.insert((mode, family));
                }
            }
            let others = [IptablesBackend::Legacy, IptablesBackend::Nft]
                .map(|store| joined.node.iptables(store, family).ok());
            for rules in in_use.into_iter().chain(others.into_iter().flatten()) {
                installed.iptables(family, rules);
                installed.portals(family, rules);
            }
            if let Some(nft) = joined.relevant.nft(joined.node, gaps) {
                let of = family.nft_name();
                if let Some(table) = nft.table(of, "kube-proxy") {
                    installed.nftables(family, table);
                }
            }
        }
        if let Some(table) = joined.relevant.ipvs(joined.node, gaps) {
            installed.ipvs(joined.node, joined.owners, table);
        }
        installed
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
            let listed = rules.chain(table, name).map_or(&[][..], |c| &c.rules);
            for rule in listed {
                let Some((does, object)) = done_by(rules, rule, table, name) else {
                    continue;
                };
                let to = rule.destination();
                let (Some(port), Some(proto)) = (to.port, to.proto) else {
                    continue;
                };
                let dest = Dest {
                    family,
                    addr: to.addr,
                    port,
                    proto,
                };
                self.add(dest, Mode::Iptables, does, object);
            }
        }
    }

    fn portals(&mut self, family: Family, rules: &Ruleset<'_>) {
        for portal in portals(rules) {
            let dest = Dest {
                family,
                addr: portal.addr,
                port: portal.port,
                proto: portal.proto,
            };
            self.add(
                dest,
                Mode::Userspace,
                Does::Forward,
                portal.chain.to_owned(),
            );
        }
    }

    fn nftables(&mut self, family: Family, table: &nft::Table) {
        let chains = table.chains.iter();
        let chains: HashMap<&str, &nft::Chain> =
            chains.map(|chain| (chain.name.as_str(), chain)).collect();
        // A rejection on loopback addresses says nothing about the node's other addresses.
        let maps = table.sets.iter().filter(|set| set.data.is_some());
        for map in maps.filter(|set| set.name != REJECTED_ON_LOOPBACK) {
            for element in &map.elements {
                let Some(to) = element.destination() else {
                    continue;
                };
                let (does, object) = match &element.value {
                    Some(Datum::Verdict(Verdict::Goto(to) | Verdict::Jump(to))) => {
                        if to == "reject-chain" {
                            (Does::Reject, map.name.clone())
                        } else if to.starts_with("firewall-") {
                            (Does::Filter, to.clone())
                        } else if nft_translates(&chains, to, MOST_JUMPS) {
                            (Does::Forward, to.clone())
                        } else {
                            (Does::Nothing, to.clone())
                        }
                    }
                    Some(Datum::Verdict(Verdict::Drop)) => (Does::Drop, map.name.clone()),
                    _ => continue,
                };
                let dest = Dest {
                    family,
                    addr: to.addr,
                    port: to.port,
                    proto: to.proto,
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

    /// Returns the objects of each mode for `dests`: of the mode in force, and of modes with leftovers for them.
    pub(crate) fn programmed(&self, dests: &[Dest]) -> Vec<Programmed> {
        let all = self.present.iter().map(|&mode| {
            let targets = dests.iter().map(|dest| {
                let found = self.by_dest.get(dest).map_or(&[][..], Vec::as_slice);
                let of = found.iter().filter(|entry| entry.mode == mode);
                let does: Vec<Does> = of.clone().map(|entry| entry.does).collect();
                TargetRow {
                    family: dest.family,
                    address: dest.addr,
                    port: dest.port,
                    state: match Handling::of(&does) {
                        Handling::Missing if self.unread.contains(&(mode, dest.family)) => None,
                        state => Some(state),
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
        all.filter(|programmed| programmed.is_installed() || Some(programmed.mode) == self.current)
            .collect()
    }

    /// Iterates over the NodePorts that a mode has objects for.
    pub(crate) fn node_ports(&self) -> impl Iterator<Item = Dest> {
        self.by_dest.keys().filter(|d| d.addr.is_none()).copied()
    }
}

/// Returns the destinations of `port`, sorted: its addresses, and its NodePort in each of their families.
pub(crate) fn dests(port: &Port, query: Query<'_>) -> Vec<Dest> {
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
    all.retain(|dest| query.takes(dest.family));
    all.sort();
    all.dedup();
    all
}

/// Returns the NodePort of `port` in each family that the Service has an address of.
pub(crate) fn node_port_dests(port: &Port) -> Vec<Dest> {
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
    // Without a real server for new connections the kernel answers "port unreachable".
    if server.reals.iter().any(|real| real.weight > 0) {
        Does::Forward
    } else {
        Does::Reject
    }
}

/// The number of jumps from a rule of a Service to its endpoint: two, from chains for traffic from outside three.
const MOST_JUMPS: usize = 4;

/// Returns whether `chain` of table nat, or one that it jumps to, translates a destination.
fn translates(rules: &Ruleset<'_>, chain: &str, jumps: usize) -> bool {
    let chain = rules.chain("nat", chain);
    chain.is_some_and(|chain| {
        chain.rules.iter().any(|rule| {
            let follows = |to| jumps > 0 && translates(rules, to, jumps - 1);
            matches!(rule.target, Some(Target::Dnat(_))) || rule.leads_to().is_some_and(follows)
        })
    })
}

/// Returns whether the chain `name`, or one that it jumps to, translates a destination, or has a statement that is not known.
fn nft_translates(chains: &HashMap<&str, &nft::Chain>, name: &str, jumps: usize) -> bool {
    let follows = |verdict: &Verdict| match verdict {
        Verdict::Jump(to) | Verdict::Goto(to) => jumps > 0 && nft_translates(chains, to, jumps - 1),
        _ => false,
    };
    let does = |statement: &Statement| match statement {
        Statement::Nat { kind, .. } => *kind == NatKind::Dnat,
        Statement::Verdict(verdict) => follows(verdict),
        Statement::Vmap {
            data: Expr::Map(pairs),
            ..
        } => pairs
            .iter()
            .any(|(_, to)| matches!(to, Datum::Verdict(verdict) if follows(verdict))),
        Statement::Vmap { .. } | Statement::Other(_) => true,
        _ => false,
    };
    let chain = chains.get(name);
    chain.is_some_and(|chain| {
        let mut statements = chain.rules.iter().flat_map(|rule| &rule.statements);
        statements.any(does)
    })
}

fn done_by(
    rules: &Ruleset<'_>,
    rule: &Rule<'_>,
    table: &str,
    chain: &str,
) -> Option<(Does, String)> {
    match rule.target.as_ref()? {
        Target::Jump(to) | Target::Goto(to) => {
            hashed(to)?;
            let does = if chain == "KUBE-PROXY-FIREWALL" {
                Does::Filter
            } else if translates(rules, to, MOST_JUMPS) {
                Does::Forward
            } else {
                Does::Nothing
            };
            Some((does, to.to_string()))
        }
        // Packets outside the source ranges.
        Target::Reject { .. } | Target::Drop if chain == "KUBE-PROXY-FIREWALL" => {
            Some((Does::Filter, format!("{table} {chain}")))
        }
        Target::Reject { .. } => Some((Does::Reject, format!("{table} {chain}"))),
        Target::Drop => Some((Does::Drop, format!("{table} {chain}"))),
        _ => None,
    }
}
