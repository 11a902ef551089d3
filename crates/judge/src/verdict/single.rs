//! Single pods: clients that routes, rules or addresses of the node tell apart from its other pods.
//!
//! A typical pod represents all others; these are judged as well.

use std::collections::BTreeSet;
use std::net::IpAddr;

use foldhash::HashMap;

use super::cell::Target;
use super::judge::Judge;
use super::ttl::FEW_HOPS;
use crate::trace::own_policies;
use crate::trace::region::Asked;
use crate::trace::route::{Decision, Lookup, is_rejecting};
use crate::trace::sources::{Pods, Source};
use kpx_node::backend::chain_owner::maker_of_chain;
use kpx_node::backend::iptables::model::{Match, Target as Goal};
use kpx_node::backend::nftables::expect::TABLE as OWN_TABLE;
use kpx_node::backend::nftables::model::{Expr, Statement};
use kpx_node::net::{Cidr, Family};
use kpx_node::node::agents::Agent;
use kpx_node::node::{IptablesBackend, NodeSnapshot};

/// The number of single pods to judge for one address; it is smaller with more Services.
const FEWEST: usize = 2;
const MOST: usize = 16;
const OF_ALL_SERVICES: usize = 400;

/// Pods that rules, routes or addresses tell apart from others.
#[derive(Debug)]
pub(super) struct Single {
    pub(super) pods: Vec<Source>,
    /// Whether these are all of the node.
    is_all: bool,
}

impl Judge<'_> {
    /// Returns pods of this node that differ from others in rules, routes or addresses, except endpoints of `target`
    /// and the pod `typical`.
    pub(super) fn single_pods(
        &self,
        target: Target<'_>,
        typical: Option<IpAddr>,
    ) -> impl Iterator<Item = Source> {
        let all = &self.single().pods;
        let is_typical = all.iter().any(|source| source.addr == typical);
        let is_other = move |source: &&Source| {
            source.addr.is_some_and(|addr| {
                Some(addr) != typical
                    && Family::of(addr) == target.family()
                    && target
                        .port
                        .endpoints
                        .iter()
                        .all(|endpoint| endpoint.addr.ip() != addr)
            })
        };
        let services = self.node.services().map_or(0, Vec::len);
        let most = (OF_ALL_SERVICES / services.max(1)).clamp(FEWEST, MOST);
        // Then it is so of all pods.
        let most = if is_typical { 0 } else { most };
        all.iter().filter(is_other).take(most).cloned()
    }

    /// Returns all such pods of this node.
    pub(super) fn single(&self) -> &Single {
        self.single.get_or_init(|| {
            let running = Pods::of(self.node, &[]).running_here();
            let count = running.len();
            let pods = self.told_apart(running);
            let is_all = pods.len() == count;
            Single { pods, is_all }
        })
    }

    /// Returns whether something tells the pod with `addr` apart from others, so that it stands for none.
    pub(super) fn is_single(&self, addr: IpAddr) -> bool {
        let single = self.single();
        let mut pods = single.pods.iter();
        !single.is_all && pods.any(|pod| pod.addr == Some(addr))
    }

    fn told_apart(&self, mut pods: Vec<Source>) -> Vec<Source> {
        if pods.is_empty() {
            return pods;
        }
        let mut signs = signs(self.node);
        // Pods of other nodes may name clients of this one.
        let beyond = self.beyond.iter().flat_map(|beyond| beyond.signs());
        for (addr, places) in beyond {
            signs.entry(addr).or_default().extend(places);
        }
        let of = |pod: &Source| pod.addr.and_then(|addr| signs.get(&addr));
        // Rules about most pods, such as a network plugin's rules for each of its pods, single out none.
        let mut counts: HashMap<Option<&Signs>, usize> = HashMap::default();
        for pod in &pods {
            *counts.entry(of(pod)).or_default() += 1;
        }
        let usual = counts
            .into_iter()
            .max_by_key(|(signs, count)| (*count, signs.is_none()));
        let usual = usual.and_then(|(signs, _)| signs.cloned());
        pods.retain(|pod| {
            pod.addr.is_some_and(|addr| {
                signs.get(&addr) != usual.as_ref()
                    || self.taken(addr).is_some()
                    || self.is_cut_off(addr)
                    || self.is_set_by_hand(addr)
                    || self.has_rules_inside(addr)
                    || self.policed().get(&addr) == Some(&false)
                    || self.broken_link_of(addr).is_some()
                    || self.leads_nowhere(addr)
                    || self.has_restricted_port(addr)
                    || self.has_service_address(addr)
                    || self.has_used_up(addr)
                    || self.has_no_ports(addr)
                    || self.is_unanswered(addr)
                    || self.has_own_settings(addr)
                    || self
                        .ttl_inside(addr)
                        .is_some_and(|(ttl, _)| ttl <= FEW_HOPS)
            })
        });
        pods
    }

    /// Returns whether NetworkPolicies restrict the pod with `addr`. Such a pod stands for no others, and its limits are by
    /// design.
    pub(super) fn is_restricted(&self, addr: IpAddr) -> bool {
        self.policed().get(&addr) == Some(&true)
    }

    /// Returns the pods of this node that NetworkPolicies restrict, in words: the verdict on other pods says nothing of them.
    pub fn restricted(&self) -> Option<String> {
        let pods = Pods::of(self.node, &[]).running_here().into_iter();
        let restricted: BTreeSet<IpAddr> = pods
            .filter_map(|pod| pod.addr)
            .filter(|addr| self.is_restricted(*addr))
            .collect();
        let first = restricted.first()?;
        let more = match restricted.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more pods"),
        };
        Some(format!(
            "what NetworkPolicies forbid pod {first}{more} (--source {first} asks for it)"
        ))
    }

    /// Returns this node's pods whose outgoing packets pass a chain for NetworkPolicies, and whether the chain is in force: a network
    /// plugin may have left it behind.
    pub(super) fn policed(&self) -> &HashMap<IpAddr, bool> {
        self.policed.get_or_init(|| {
            let pods = Pods::of(self.node, &[]).running_here().into_iter();
            let own: Vec<IpAddr> = pods.filter_map(|pod| pod.addr).collect();
            let by_family = Family::BOTH.map(|family| policed(self.node, family));
            let of = |addr: IpAddr| {
                let known = &by_family[usize::from(Family::of(addr) == Family::V6)];
                let lookup = Lookup::to(Asked::new(addr, None));
                let by_link = || match self.router.decide(lookup) {
                    Decision::Out {
                        device: Some(link), ..
                    } => known.links.get(&*link),
                    _ => None,
                };
                known.addresses.get(&addr).or_else(by_link).copied()
            };
            own.into_iter()
                .filter_map(|addr| Some((addr, of(addr)?)))
                .collect()
        })
    }
}

/// The links and addresses that lead to chains for the policies of a pod, each with whether these are in force.
#[derive(Default)]
struct Policed {
    links: HashMap<String, bool>,
    addresses: HashMap<IpAddr, bool>,
}

/// Returns the links and addresses that lead to chains for the policies of a pod.
fn policed(node: &NodeSnapshot<'_>, family: Family) -> Policed {
    let mut found = Policed::default();
    let Ok(saved) = node.saved(IptablesBackend::InUse, family) else {
        return found;
    };
    let of_pods = |name: &str| own_policies(name).is_some();
    let chains = saved.chains(of_pods).filter(|chain| {
        let words = own_policies(&chain.name).unwrap_or_default();
        let mut rules = chain.rules.iter();
        rules.any(|rule| rule.to_string().contains(words))
    });
    let in_force: HashMap<String, bool> = chains
        .map(|chain| {
            let agent = node.agent_of(maker_of_chain("filter", &chain.name));
            (chain.name.to_string(), agent != Some(Agent::Gone))
        })
        .collect();
    if in_force.is_empty() {
        return found;
    }
    let leading = |name: &str| is_foreign(name) || name.starts_with("KUBE-ROUTER-");
    for rule in saved.chains(leading).flat_map(|chain| &chain.rules) {
        let Some(Goal::Jump(to) | Goal::Goto(to)) = &rule.target else {
            continue;
        };
        let Some(&in_force) = in_force.get(&**to) else {
            continue;
        };
        for of in &rule.matches {
            match of {
                Match::In(of) if !of.inverted => {
                    found.links.entry(of.value.to_string()).or_insert(in_force);
                }
                Match::Source(of) if !of.inverted && of.value.is_host() => {
                    found.addresses.entry(of.value.addr).or_insert(in_force);
                }
                _ => {}
            }
        }
    }
    found
}

/// The rules that name an address, without their targets.
pub(super) type Signs = BTreeSet<String>;

/// Returns the single addresses in rules that are not kube-proxy's, in policy rules, and in routes that end packets, with the places of
/// these; on the node, and in the networks of its pods.
fn signs(node: &NodeSnapshot<'_>) -> HashMap<IpAddr, Signs> {
    let mut signs: HashMap<IpAddr, Signs> = HashMap::default();
    let by_name = by_link_layer(node);
    let mut add = |range: &Cidr, place: String| {
        if range.is_host() {
            signs.entry(range.addr).or_default().insert(place);
        }
    };
    for backend in [IptablesBackend::InUse, IptablesBackend::Legacy] {
        for saved in Family::BOTH.map(|family| node.saved(backend, family)) {
            let chains = saved.into_iter().flat_map(|saved| saved.chains(is_foreign));
            for chain in chains {
                for rule in &chain.rules {
                    // The chains of a network plugin have the hash of a pod in their names.
                    let does = match &rule.target {
                        Some(Goal::Jump(_) | Goal::Goto(_)) => "goes on".to_owned(),
                        other => format!("{other:?}"),
                    };
                    for of in &rule.matches {
                        match of {
                            Match::Source(range) => {
                                add(&range.value, format!("{} from {does}", chain.name));
                            }
                            Match::Destination(range) => {
                                add(&range.value, format!("{} to {does}", chain.name));
                            }
                            Match::Unknown(text) => {
                                let mut words = text.split(' ');
                                let own = words.find_map(|word| by_name.get(word));
                                for addr in own.into_iter().flatten() {
                                    add(&Cidr::host(*addr), format!("{} mac {does}", chain.name));
                                }
                            }
                            Match::Physdev(of) => {
                                let ports = [&of.input, &of.output].into_iter().flatten();
                                let own = ports.filter_map(|port| by_name.get(&*port.value));
                                for addr in own.flatten() {
                                    add(&Cidr::host(*addr), format!("{} port {does}", chain.name));
                                }
                            }
                            // A ban.
                            Match::Set { name, .. }
                                if matches!(
                                    rule.target,
                                    Some(Goal::Drop | Goal::Reject { .. })
                                ) =>
                            {
                                for range in members(node, &name.value) {
                                    add(&range, format!("{} set {}", chain.name, name.value));
                                }
                            }
                            _ => {}
                        }
                    }
                }
            }
        }
    }
    for rule in node.rules().into_iter().flat_map(|rules| &rules.all) {
        let does = format!("{} {:?}", rule.action, rule.table);
        rule.from
            .iter()
            .for_each(|range| add(range, format!("from {does}")));
        rule.to
            .iter()
            .for_each(|range| add(range, format!("to {does}")));
    }
    for route in node.routes().into_iter().flat_map(|routes| &routes.all) {
        if is_rejecting(route) {
            add(&route.destination, format!("route {}", route.kind));
        }
    }
    for (addr, places) in signs_inside(node) {
        signs.entry(addr).or_default().extend(places);
    }
    let tables = node.nft().into_iter().flat_map(|rules| &rules.tables);
    for table in tables.filter(|table| table.name != OWN_TABLE) {
        let place = |name: &str| format!("{} {} {name}", table.family, table.name);
        let chains = table.chains.iter().filter(|chain| is_foreign(&chain.name));
        for chain in chains {
            let statements = chain.rules.iter().flat_map(|rule| &rule.statements);
            for statement in statements {
                if let Statement::Match { right, .. } = statement {
                    add_words(right, &place(&chain.name), &by_name, &mut signs);
                }
            }
        }
        for set in &table.sets {
            for element in &set.elements {
                add_words(&element.key, &place(&set.name), &by_name, &mut signs);
            }
        }
    }
    signs
}

/// Returns the single addresses that the networks of the node's pods name, with the places of these there.
pub(super) fn signs_inside(node: &NodeSnapshot<'_>) -> HashMap<IpAddr, Signs> {
    let mut signs: HashMap<IpAddr, Signs> = HashMap::default();
    for pod in node.pod_networks().into_iter().flatten() {
        let inside = NodeSnapshot::new(&pod.evidence);
        let mut add = |addr: IpAddr, place: String| {
            signs
                .entry(addr)
                .or_default()
                .insert(format!("pod {place}"));
        };
        for (addr, places) in self::signs(&inside) {
            for place in places {
                add(addr, place);
            }
        }
        for route in inside.routes().into_iter().flat_map(|routes| &routes.all) {
            let is_own = pod.addresses.contains(&route.destination.addr);
            if route.destination.is_host() && !is_own {
                add(route.destination.addr, "route".to_owned());
            }
            // Every pod of a network plugin gets the same routes.
            if route.gateway.is_some() && route.destination.prefix > 0 {
                for addr in &pod.addresses {
                    add(*addr, format!("route {route}"));
                }
            }
        }
        let neighbours = inside.neighbour_table();
        for neighbour in neighbours.into_iter().flat_map(|table| &table.all) {
            if neighbour.permanent {
                add(neighbour.address, "neighbour".to_owned());
            }
        }
        // An address that another pod has, too, is on lo here.
        let on_lo = pod.by_link.iter().filter(|(_, link)| link == "lo");
        on_lo.for_each(|(addr, _)| add(*addr, "lo".to_owned()));
    }
    signs
}

/// Returns the members of the IP set `name` that begin with an address.
fn members<'n>(node: &'n NodeSnapshot<'_>, name: &str) -> impl Iterator<Item = Cidr> + 'n {
    let sets = node.ipset().ok();
    let mut sets = sets.into_iter().flat_map(|sets| &sets.sets);
    let set = sets.find(|set| set.name == name);
    let members = set.into_iter().flat_map(|set| &set.members);
    members.filter_map(|member| member.element.split(',').next()?.parse().ok())
}

fn is_foreign(chain: &str) -> bool {
    !chain.starts_with("KUBE-")
}

/// The addresses of the node's pods, by MAC address and by port of a bridge.
type ByLinkLayer = HashMap<String, Vec<IpAddr>>;

fn by_link_layer(node: &NodeSnapshot<'_>) -> ByLinkLayer {
    let mut all = ByLinkLayer::default();
    let links = node.links().map_or(&[][..], |links| links.all.as_slice());
    for network in node.pod_networks().into_iter().flatten() {
        for (addr, _) in &network.by_link {
            let Some(own) = network
                .link_with(*addr)
                .filter(|own| own.kind != "loopback")
            else {
                continue;
            };
            let mut far = links.iter().filter(|link| Some(link.index) == own.peer);
            let port = far.find(|link| link.master.is_some());
            let names = own
                .mac
                .as_deref()
                .into_iter()
                .chain(port.map(|port| &*port.name));
            for name in names {
                all.entry(name.to_owned()).or_default().push(*addr);
            }
        }
    }
    for neighbour in node
        .neighbour_table()
        .into_iter()
        .flat_map(|table| &table.all)
    {
        if let Some(mac) = &neighbour.mac {
            let own = all.entry(mac.clone()).or_default();
            if !own.contains(&neighbour.address) {
                own.push(neighbour.address);
            }
        }
    }
    all
}

/// Adds the addresses in `expr`, and those of its MAC addresses and links.
fn add_words(expr: &Expr, place: &str, by_name: &ByLinkLayer, signs: &mut HashMap<IpAddr, Signs>) {
    match expr {
        Expr::Word(word) => {
            let own = word.parse().ok();
            for addr in by_name.get(word).into_iter().flatten().copied().chain(own) {
                signs.entry(addr).or_default().insert(place.to_owned());
            }
        }
        Expr::Set(all) | Expr::Concat(all) => {
            for of in all {
                add_words(of, place, by_name, signs);
            }
        }
        _ => {}
    }
}
