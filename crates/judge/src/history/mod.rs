//! What changed between two states of a node: findings, mode, Services, endpoints, rules, settings.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use kpx_node::backend::iptables::model::Policy;
use kpx_node::backend::ipvs::model::Key;
use kpx_node::backend::nftables::model::Statement;
use kpx_node::backend::nftables::print;
use kpx_node::evidence::{Gap, IPTABLES, Item, join};
use kpx_node::net::Family;
use kpx_node::node::{IptablesBackend, NodeSnapshot, sysctl};
use kpx_node::owner::chain_owner::{self, Maker};
use kpx_node::owner::{Owners, Port};

/// A kind of facts.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Topic {
    /// The doctor's findings.
    Finding,
    /// The mode in force.
    Mode,
    /// Ports of Services.
    Service,
    /// Endpoints of Services.
    Endpoint,
    /// Chains of iptables and nftables, with their rules.
    Rules,
    /// IP sets, and sets and maps of nftables, with their members.
    Set,
    /// Virtual servers, with their real servers.
    VirtualServer,
    /// Addresses of the node.
    Address,
    /// Kernel settings.
    Sysctl,
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Finding => "finding",
            Self::Mode => "mode",
            Self::Service => "service",
            Self::Endpoint => "endpoint",
            Self::Rules => "rules",
            Self::Set => "set",
            Self::VirtualServer => "virtual server",
            Self::Address => "address",
            Self::Sysctl => "sysctl",
        })
    }
}

/// Facts of a node by name; a fact has one value or, for a chain or a set, one per rule or member.
#[derive(Clone, Debug, Default)]
pub struct State {
    facts: BTreeMap<(Topic, String), Fact>,
    /// Why facts are not known: those whose names begin with the text.
    unknown: Unknown,
    /// The checks without a result: their findings are unknown.
    undecided: BTreeSet<&'static str>,
}

/// Items that [`State::of`] reads.
pub const NEEDS: &[Item] = &join::<22>(&[
    IPTABLES,
    &[
        Item::ProxyConfig,
        Item::ProxyMode,
        Item::Metrics,
        Item::Modules,
        Item::Links,
        Item::Nft,
        Item::NftText,
        Item::Ipvs,
        Item::IpvsSave,
        Item::IpvsStats,
        Item::IpvsTimeout,
        Item::Ipset,
        Item::Addresses,
        Item::Sysctl,
        Item::Services,
        Item::EndpointSlices,
    ],
]);

type Unknown = BTreeMap<(Topic, String), Gap>;

/// A named object, with the Service that it serves.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Fact {
    values: Vec<String>,
    service: Option<String>,
}

/// A fact that came, went or changed.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// Its kind.
    pub topic: Topic,
    /// Its subject.
    pub name: String,
    /// The Service that it serves, for rules, sets and virtual servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Whether it came, went or changed.
    pub action: Action,
    /// Values that went.
    pub before: Vec<String>,
    /// Values that came.
    pub after: Vec<String>,
}

/// The change of a fact.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// Its values are others.
    Changed,
}

impl State {
    /// Returns the facts of `node`, without findings.
    pub fn of(node: &NodeSnapshot<'_>) -> Self {
        let mut state = Self::default();
        let owners = Owners::new(node);
        state.mode(node);
        state.cluster(node, &owners);
        state.iptables(node, &owners);
        state.nftables(node);
        state.ipvs(node, &owners);
        state.settings(node);
        state
    }

    /// Returns the addresses and kernel settings of `node` alone.
    pub fn of_settings(node: &NodeSnapshot<'_>) -> Self {
        let mut state = Self::default();
        state.settings(node);
        state
    }

    /// Adds a finding of the check `id`.
    pub fn find(&mut self, id: &str, subject: &str, message: String) {
        self.add(
            Topic::Finding,
            format!("{id} {subject}"),
            vec![message],
            None,
        );
    }

    /// Notes that the check `id` has no result.
    pub fn undecided(&mut self, id: &'static str) {
        self.undecided.insert(id);
    }

    /// Returns this state, with the facts of `before` for kinds that are unknown here.
    #[must_use]
    pub fn or(mut self, before: Self) -> Self {
        let unknown = |topic: Topic, name: &str| {
            is_in(&self.unknown, topic, name) || topic == Topic::Finding && self.is_undecided(name)
        };
        let kept = before.facts.into_iter();
        let kept: Vec<_> = kept
            .filter(|((topic, name), _)| unknown(*topic, name))
            .collect();
        self.facts.extend(kept);
        self
    }

    /// Returns whether the check of a finding has no result.
    fn is_undecided(&self, finding: &str) -> bool {
        let id = finding.split(' ').next().unwrap_or_default();
        self.undecided.contains(id)
    }

    /// Returns what changed from this state to `after`, by kind and name, and what is unknown in either.
    pub fn changes(&self, after: &Self) -> (Vec<Change>, Vec<(Topic, Gap)>) {
        let mut unknown = self.unknown.clone();
        unknown.extend(after.unknown.clone());
        let names: BTreeSet<_> = self.facts.keys().chain(after.facts.keys()).collect();
        let nothing = Fact::default();
        let known = names.into_iter().filter(|(topic, name)| {
            let is_decided = || !self.is_undecided(name) && !after.is_undecided(name);
            !is_in(&unknown, *topic, name) && (*topic != Topic::Finding || is_decided())
        });
        let changes = known.filter_map(|key| {
            let (was, is) = (self.facts.get(key), after.facts.get(key));
            let action = match (was, is) {
                (None, _) => Action::Added,
                (_, None) => Action::Removed,
                (Some(was), Some(is)) if was.values == is.values => return None,
                _ => Action::Changed,
            };
            // The settings of a link come and go with it.
            let is_of_link = key.0 == Topic::Sysctl && key.1.contains(".conf.");
            if is_of_link && action != Action::Changed {
                return None;
            }
            let (was, is) = (was.unwrap_or(&nothing), is.unwrap_or(&nothing));
            let (topic, name) = key.clone();
            Some(Change {
                topic,
                name,
                service: is.service.clone().or_else(|| was.service.clone()),
                action,
                before: less(&was.values, &is.values),
                after: less(&is.values, &was.values),
            })
        });
        let changes = changes.collect();
        let mut gaps: Vec<_> = unknown
            .into_iter()
            .map(|((topic, _), gap)| (topic, gap))
            .collect();
        gaps.dedup();
        (changes, gaps)
    }

    fn add(&mut self, topic: Topic, name: String, values: Vec<String>, service: Option<&Port>) {
        let service = service.map(|port| port.name.to_string());
        let fact = self.facts.entry((topic, name)).or_default();
        fact.values.extend(values);
        fact.service = fact.service.take().or(service);
    }

    /// Notes that the facts of a kind whose names begin with `part` are not known, unless the node does not have any.
    fn gap(&mut self, topic: Topic, part: &str, gap: Gap) {
        if !matches!(gap, Gap::NotApplicable(_) | Gap::Absent(..)) {
            self.unknown.insert((topic, part.to_owned()), gap);
        }
    }

    fn mode(&mut self, node: &NodeSnapshot<'_>) {
        let modes = node.modes();
        if let Some(mode) = modes.current() {
            self.add(Topic::Mode, "mode".to_owned(), vec![mode.to_string()], None);
        } else if let Some(gap) = modes.gaps.into_iter().next().or(modes.reported.err()) {
            self.gap(Topic::Mode, "", gap);
        }
    }

    fn cluster(&mut self, node: &NodeSnapshot<'_>, owners: &Owners) {
        if let Err(gap) = node.services() {
            self.gap(Topic::Service, "", gap);
        }
        if let Err(gap) = node.services().and(node.slices()) {
            self.gap(Topic::Endpoint, "", gap);
        }
        for port in owners.ports() {
            let name = format!("{} {}", port.name, port.proto);
            let addresses = port
                .addresses
                .iter()
                .map(|(role, addr)| format!("{role} {addr}"));
            let mut values: Vec<_> = addresses.collect();
            values.extend(port.port.map(|number| format!("port {number}")));
            values.extend(port.node_port.map(|number| format!("NodePort {number}")));
            values.extend(port.left_to.as_ref().map(|who| format!("served by {who}")));
            self.add(Topic::Service, name, values, None);
            for endpoint in &port.endpoints {
                let state = endpoint
                    .state
                    .map_or("unknown".to_owned(), |state| state.to_string());
                let pod = endpoint.pod.as_deref().map(|pod| format!("pod {pod}"));
                let on = endpoint.node.as_deref().map(|node| format!("node {node}"));
                let values = [Some(state), pod, on].into_iter().flatten().collect();
                let name = format!("{} {} {}", port.name, port.proto, endpoint.addr);
                self.add(Topic::Endpoint, name, values, None);
            }
        }
    }

    fn iptables(&mut self, node: &NodeSnapshot<'_>, owners: &Owners) {
        // The back end in use may be another one in the other state: each has its name.
        for (backend, name) in [
            (IptablesBackend::InUse, ""),
            (IptablesBackend::Legacy, "legacy "),
            (IptablesBackend::Nft, "nft "),
        ] {
            for family in Family::BOTH {
                let rules = match node.iptables(backend, family) {
                    Ok(rules) => rules,
                    Err(gap) => {
                        self.gap(Topic::Rules, &format!("{name}{family} "), gap);
                        continue;
                    }
                };
                for table in &rules.tables {
                    for chain in &table.chains {
                        let name = format!("{name}{family} {} {}", table.name, chain.name);
                        let policy = chain.policy.map(|policy| match policy {
                            Policy::Accept => "policy ACCEPT".to_owned(),
                            Policy::Drop => "policy DROP".to_owned(),
                        });
                        let rules = chain
                            .rules
                            .iter()
                            .map(|rule| rule.to_string().trim().to_owned());
                        let mut values: Vec<_> = policy.into_iter().chain(rules).collect();
                        // kube-proxy writes rules in any order if the order has no effect.
                        if chain_owner::maker_of_chain(&table.name, &chain.name) == Maker::KubeProxy
                        {
                            values.sort();
                        }
                        let owner = owners.chain(&chain.name);
                        self.add(Topic::Rules, name, values, owner.port());
                    }
                }
            }
        }
        match node.ipset() {
            Err(gap) => self.gap(Topic::Set, "ipset ", gap),
            Ok(sets) => {
                for set in sets.sets.iter().filter(|set| !set.has_timeouts()) {
                    let members = set.members.iter();
                    let members = members.map(|member| {
                        format!("{} {}", member.element, member.options)
                            .trim()
                            .to_owned()
                    });
                    let mut values: Vec<_> = members.collect();
                    values.sort();
                    self.add(Topic::Set, format!("ipset {}", set.name), values, None);
                }
            }
        }
    }

    fn nftables(&mut self, node: &NodeSnapshot<'_>) {
        let rules = match node.nft() {
            Ok(rules) => rules,
            Err(gap) => {
                self.gap(Topic::Rules, "nftables ", gap.clone());
                self.gap(Topic::Set, "nftables ", gap);
                return;
            }
        };
        for table in &rules.tables {
            let of = format!("nftables {} {}", table.family, table.name);
            for chain in &table.chains {
                let rules = chain.rules.iter().map(|rule| {
                    let all = rule.statements.iter();
                    let some =
                        all.filter(|statement| !matches!(statement, Statement::Counter { .. }));
                    let words: Vec<_> = some.map(print::statement).collect();
                    words.join(" ")
                });
                self.add(
                    Topic::Rules,
                    format!("{of} {}", chain.name),
                    rules.collect(),
                    None,
                );
            }
            let lasting = |flags: &[String]| {
                !flags
                    .iter()
                    .any(|flag| flag == "timeout" || flag == "dynamic")
            };
            for set in table.sets.iter().filter(|set| lasting(&set.flags)) {
                let mut values: Vec<_> = set.elements.iter().map(print::element).collect();
                values.sort();
                self.add(Topic::Set, format!("{of} {}", set.name), values, None);
            }
        }
    }

    fn ipvs(&mut self, node: &NodeSnapshot<'_>, owners: &Owners) {
        let table = match node.ipvs() {
            Ok(table) => table,
            Err(gap) => return self.gap(Topic::VirtualServer, "", gap),
        };
        for server in &table.servers {
            let reals = server.reals.iter();
            let reals = reals.map(|real| {
                format!(
                    "{} weight {}",
                    SocketAddr::new(real.addr, real.port),
                    real.weight
                )
            });
            let mut values: Vec<_> = reals.collect();
            values.sort();
            values.insert(0, format!("scheduler {}", server.scheduler));
            let (name, service) = match server.key {
                Key::Address { proto, addr, port } => {
                    let at = SocketAddr::new(addr, port);
                    let service = owners.served_at(at, proto).map(|(port, _)| port);
                    (format!("{proto} {at}"), service)
                }
                Key::Fwmark { mark, family } => (format!("mark {mark:#x} {family}"), None),
            };
            self.add(Topic::VirtualServer, name, values, service);
        }
    }

    fn settings(&mut self, node: &NodeSnapshot<'_>) {
        match node.addresses() {
            Err(gap) => self.gap(Topic::Address, "", gap),
            Ok(all) => {
                // Every link has a link-local address of its own.
                for at in all.all.iter().filter(|at| at.scope != "link") {
                    let name = format!("{}/{}", at.addr.addr, at.addr.prefix);
                    self.add(Topic::Address, name, vec![format!("on {}", at.link)], None);
                }
            }
        }
        match node.sysctl().and_then(sysctl::Sysctl::whole) {
            Err(gap) => self.gap(Topic::Sysctl, "", gap),
            Ok(all) => {
                for (name, value) in all.iter().filter(|(name, _)| is_setting(name)) {
                    self.add(Topic::Sysctl, name.to_owned(), vec![value.to_owned()], None);
                }
            }
        }
    }
}

/// Returns whether a sysctl is a setting: some are counters.
fn is_setting(sysctl: &str) -> bool {
    let counters = [
        "fs.dentry-state",
        "fs.file-nr",
        "fs.inode-nr",
        "fs.inode-state",
        "kernel.ns_last_pid",
        "net.netfilter.nf_conntrack_count",
    ];
    !counters.contains(&sysctl) && !sysctl.starts_with("kernel.random.")
}

/// Returns whether the fact `name` is one of those that are unknown.
fn is_in(unknown: &Unknown, topic: Topic, name: &str) -> bool {
    let mut all = unknown.keys();
    all.any(|(of, part)| *of == topic && name.starts_with(part.as_str()))
}

/// Returns the values of `these` that `others` does not have, as often as it lacks them.
fn less(these: &[String], others: &[String]) -> Vec<String> {
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    for value in others {
        *left.entry(value).or_default() += 1;
    }
    let missing = these
        .iter()
        .filter(|value| match left.get_mut(value.as_str()) {
            Some(count) if *count > 0 => {
                *count -= 1;
                false
            }
            _ => true,
        });
    missing.cloned().collect()
}
