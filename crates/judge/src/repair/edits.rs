//! A copy of a node's state with repairs applied.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use super::lists::edited;
use super::{Edited, Repair, RulePlace};
use crate::diff::{self, Change, Delta, Object, RuleNumber};
use crate::trace::{Chains, Need, Rules, World};
use crate::verdict::{Judge, TRACKED, Witnesses};
use kpx_node::backend::iptables::model::{Chain, Policy, Rule, Target};
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::backend::nftables::expect::TABLE;
use kpx_node::backend::nftables::model::Statement;
use kpx_node::backend::{self, Mode, nftables};
use kpx_node::evidence::Evidence;
use kpx_node::net::{Cidr, Family};
use kpx_node::node::links::{Address, Link};
use kpx_node::node::pod_networks::PodNetwork;
use kpx_node::node::routes::Route;
use kpx_node::node::{IptablesBackend, NodeSnapshot};
use kpx_node::owner::chain_owner;

/// Returns the answer of `ask` about a node, of which others may know something, with `repairs` applied; `ask` gets a judge and the rules of `family`.
pub(crate) fn with<'n, T>(
    (node, others): (&'n NodeSnapshot<'n>, Option<&Rc<dyn Witnesses + 'n>>),
    repairs: &[&Repair],
    family: Family,
    ask: impl FnOnce(&Judge<'_>, &World<'_, '_>) -> T,
) -> T {
    let mut edits = Edits::new(node, family);
    for repair in repairs {
        edits.repair(repair);
    }
    let (copy, chains) = edits.finish();
    let world = World {
        node: &copy,
        chains,
        lasting: false,
    };
    let mut judge = Judge::new(&copy);
    judge.others = others.map(|others| Rc::clone(others) as Rc<dyn Witnesses + '_>);
    ask(&judge, &world)
}

/// Rules of one chain of iptables that change.
type RuleEdits<'r> = Vec<(RuleNumber, &'r Delta<Rule<'static>>)>;

/// Edits of a node's state, by kind of object.
struct Edits<'n, 'r, 'c> {
    node: &'n NodeSnapshot<'n>,
    family: Family,
    copy: NodeSnapshot<'c>,
    /// The changed chains of each back end of iptables.
    chains: Vec<(IptablesBackend, BTreeMap<Need, Option<Chain<'n>>>)>,
    rules: BTreeMap<Need, RuleEdits<'r>>,
    nft_rules: BTreeMap<String, Vec<(RuleNumber, &'r Delta<nftables::model::Rule>)>>,
}

impl<'n: 'c, 'r: 'c, 'c> Edits<'n, 'r, 'c> {
    fn new(node: &'n NodeSnapshot<'n>, family: Family) -> Self {
        Self {
            node,
            family,
            copy: node.fork(),
            chains: Vec::new(),
            rules: BTreeMap::new(),
            nft_rules: BTreeMap::new(),
        }
    }

    fn repair(&mut self, repair: &'r Repair) {
        match repair {
            Repair::Program(change) => self.change(change),
            Repair::Pass(place) => self.pass(place),
            Repair::Masquerade(place) => self.masquerade(place),
            Repair::Wake(family, name) => self.copy.edit_nft(|rules| {
                let mut tables = rules.tables.iter_mut();
                if let Some(table) =
                    tables.find(|table| table.family == *family && table.name == *name)
                {
                    table.dormant = false;
                }
            }),
            Repair::TurnOn(key) => self.copy.edit_sysctl(|all| all.turn_on(key)),
            Repair::RemoveRoute(route) => self
                .copy
                .edit_routes(|all| all.all.retain(|entry| entry != route.as_ref())),
            Repair::RemovePolicyRule(rule) => self
                .copy
                .edit_rules(|all| all.all.retain(|entry| entry != rule.as_ref())),
            Repair::AddPolicyRule(rule) => self.copy.edit_rules(|all| {
                let at = all
                    .all
                    .partition_point(|entry| entry.priority <= rule.priority);
                all.all.insert(at, rule.as_ref().clone());
            }),
            Repair::RemoveAddress(addr, link) => self.remove_address(*addr, link),
            Repair::RoutePodsHere(range) => self.copy.edit_routes(|all| {
                all.all.retain(|route| {
                    !range.contains(route.destination.addr)
                        || route.destination.prefix < range.prefix
                });
                all.all.push(route(*range, "unicast", "main", "pods"));
            }),
            Repair::RoutePodsThere(range, by, link) => self.copy.edit_routes(|all| {
                let is_replaced = |route: &Route| {
                    route.table == "main" && route.destination == *range && route.metric == 0
                };
                all.all.retain(|route| !is_replaced(route));
                all.all.push(Route {
                    gateway: Some(*by),
                    ..route(*range, "unicast", "main", link)
                });
            }),
            Repair::MakeRoom => self.copy.edit_sysctl(|all| all.set(TRACKED, "0")),
            Repair::EndTracked(at, proto) => self.copy.edit_conntrack(|all| {
                all.entries.retain(|entry| {
                    let is_to = entry.original.destination == *at || entry.reply.source == *at;
                    !is_to || entry.proto != *proto
                });
            }),
            Repair::Hairpin(bridge) => self.edit_ports(bridge, |port| port.hairpin = Some(true)),
            Repair::JoinPorts(bridge) => {
                self.edit_ports(bridge, |port| port.isolated = Some(false));
            }
            Repair::RaiseLink(name, bridge) => self.copy.edit_links(|all| {
                for link in all.all.iter_mut().filter(|link| link.name == *name) {
                    link.flags.retain(|flag| flag != "NO-CARRIER");
                    link.flags.push("UP".to_owned());
                    link.port_state = None;
                    link.master = bridge.clone().or(link.master.take());
                }
            }),
            Repair::RemoveXfrm(policy) => self
                .copy
                .edit_xfrm(|all| all.all.retain(|entry| entry != policy.as_ref())),
            Repair::RemoveFilter(link, filter) => self.copy.edit_tc(|all| match filter {
                Some(filter) => {
                    if let Some(of_link) = all.filters.get_mut(link) {
                        of_link.retain(|entry| entry != filter.as_ref());
                    }
                }
                None => drop(all.losses.remove(link)),
            }),
            Repair::OpenPod(address) => self.copy.edit_pod_networks(|all| {
                all.retain(|network| !network.addresses.contains(address));
            }),
            Repair::Set(key, value) => self.copy.edit_sysctl(|all| all.replace(key, value)),
            Repair::Edit(edited) => self.edit(edited),
        }
    }

    fn edit(&mut self, edited: &'r Edited) {
        for change in &edited.changes {
            self.change(change);
        }
        // Only the address in the pod's network is assumed.
        if let Some(address) = edited.pod
            && self.node.pod_networks().is_ok()
        {
            let network = PodNetwork {
                by_link: Vec::new(),
                duplicates: Vec::new(),
                pid: 0,
                addresses: vec![address],
                links: None,
                evidence: Evidence::default(),
            };
            self.copy.edit_pod_networks(|all| all.push(network));
        }
    }

    fn pass(&mut self, place: &RulePlace) {
        match place.store {
            Some(store) => self.pass_iptables(store, place),
            None => self.copy.edit_nft(|rules| {
                let mut tables = rules.tables.iter_mut();
                let table =
                    tables.find(|table| format!("{} {}", table.family, table.name) == place.table);
                let chains = table.into_iter().flat_map(|table| &mut table.chains);
                for chain in chains.filter(|chain| chain.name == place.chain) {
                    match (place.number.checked_sub(1), &mut chain.base) {
                        (None, Some(base)) => "accept".clone_into(&mut base.policy),
                        // The numbers of the other rules stay.
                        (Some(at), _) if at < chain.rules.len() => {
                            chain.rules[at] = nftables::model::Rule::default();
                        }
                        _ => {}
                    }
                }
            }),
        }
    }

    fn pass_iptables(&mut self, store: IptablesBackend, place: &RulePlace) {
        let need = Need {
            table: place.table.clone(),
            chain: place.chain.clone(),
        };
        let Some(chain) = self.chain(store, &need) else {
            return;
        };
        match place.number.checked_sub(1) {
            None => chain.policy = Some(Policy::Accept),
            // A rule without a target only counts; the numbers of the others stay.
            Some(at) => {
                if let Some(rule) = chain.rules.get_mut(at) {
                    *rule = Rule::default();
                }
            }
        }
    }

    fn masquerade(&mut self, place: &RulePlace) {
        let Some(at) = place.number.checked_sub(1) else {
            return;
        };
        let Some(store) = place.store else {
            self.copy.edit_nft(|rules| {
                let mut tables = rules.tables.iter_mut();
                let table =
                    tables.find(|table| format!("{} {}", table.family, table.name) == place.table);
                let mut chains = table.into_iter().flat_map(|table| &mut table.chains);
                let chain = chains.find(|chain| chain.name == place.chain);
                let rule = chain.and_then(|chain| chain.rules.get_mut(at));
                if let Some(last) = rule.and_then(|rule| rule.statements.last_mut()) {
                    *last = Statement::Masquerade {
                        port: None,
                        flags: Vec::new(),
                    };
                }
            });
            return;
        };
        let need = Need {
            table: place.table.clone(),
            chain: place.chain.clone(),
        };
        let chain = self.chain(store, &need);
        if let Some(rule) = chain.and_then(|chain| chain.rules.get_mut(at)) {
            rule.target = Some(Target::Masquerade {
                ports: None,
                random: false,
                random_fully: false,
            });
        }
    }

    /// Returns a copy of a chain that can be edited.
    fn chain(&mut self, store: IptablesBackend, need: &Need) -> Option<&mut Chain<'n>> {
        let node = self.node;
        let family = self.family;
        let of_store = self.of_store(store);
        let read = || {
            let saved = node.saved(store, family).ok()?;
            saved.chain(&need.table, &need.chain).ok()?.cloned()
        };
        of_store.entry(need.clone()).or_insert_with(read).as_mut()
    }

    fn of_store(&mut self, store: IptablesBackend) -> &mut BTreeMap<Need, Option<Chain<'n>>> {
        let found = self.chains.iter().position(|(of, _)| *of == store);
        let at = found.unwrap_or_else(|| {
            self.chains.push((store, BTreeMap::new()));
            self.chains.len() - 1
        });
        &mut self.chains[at].1
    }

    fn change(&mut self, change: &'r Change) {
        if change.family.is_some_and(|family| family != self.family) {
            return;
        }
        match &change.object {
            Object::IptablesChain {
                table,
                chain,
                rules,
            } => {
                let need = Need {
                    table: table.clone(),
                    chain: chain.clone(),
                };
                let made = rules.want().map(|rules| Chain {
                    rules: rules.clone(),
                    ..Chain::user(chain.clone())
                });
                self.of_store(IptablesBackend::InUse).insert(need, made);
            }
            Object::IptablesRule {
                table,
                chain,
                at,
                rule,
            } => {
                let need = Need {
                    table: table.clone(),
                    chain: chain.clone(),
                };
                self.rules.entry(need).or_default().push((*at, rule));
            }
            Object::NftablesRule { chain, at, rule } => {
                let of_chain = self.nft_rules.entry(chain.clone()).or_default();
                of_chain.push((*at, rule));
            }
            Object::NftablesTable { .. }
            | Object::NftablesChain { .. }
            | Object::NftablesSet { .. }
            | Object::NftablesElement { .. } => self.nft(&change.object),
            Object::Set { .. } | Object::Member { .. } => self.sets(&change.object),
            Object::VirtualServer { .. } | Object::RealServer { .. } => self.ipvs(&change.object),
            Object::Address(address) => match address {
                Delta::Missing(addr) => self.add_address(**addr),
                Delta::Extra(addr) => self.remove_address(**addr, DUMMY),
                Delta::Differs { .. } => {}
            },
            Object::Sysctl { key, value } => {
                if let Some(want) = value.want() {
                    self.copy.edit_sysctl(|all| match want.as_str() {
                        "1" => all.turn_on(key),
                        want => all.set(key, want),
                    });
                }
            }
            Object::Link => self.add_dummy(),
            // Only kube-proxy knows the ports of portals.
            Object::Portal { .. } => {}
        }
    }

    /// Adds kube-ipvs0 with all its addresses, which are no differences of their own.
    fn add_dummy(&mut self) {
        let node = self.node;
        let Ok(desired) = node.desired(Mode::Ipvs) else {
            return;
        };
        let state = desired.family(self.family);
        let wanted = state.and_then(|state| backend::ipvs::expect::expect(desired, state).ok());
        for addr in wanted.into_iter().flat_map(|wanted| wanted.addresses) {
            self.add_address(addr);
        }
    }

    fn add_address(&mut self, addr: IpAddr) {
        self.copy.edit_addresses(|all| {
            all.all.push(Address {
                link: DUMMY.to_owned(),
                addr: Cidr::host(addr),
                scope: "global".to_owned(),
                flags: Vec::new(),
                broadcast: None,
            });
        });
        let local = route(Cidr::host(addr), "local", "local", DUMMY);
        self.copy.edit_routes(|all| all.all.push(local));
    }

    fn edit_ports(&mut self, bridge: &str, edit: impl Fn(&mut Link)) {
        self.copy.edit_links(|all| {
            let ports = all.all.iter_mut();
            ports
                .filter(|link| link.master.as_deref() == Some(bridge))
                .for_each(edit);
        });
    }

    fn remove_address(&mut self, addr: IpAddr, link: &str) {
        let (mut networks, mut kept) = (Vec::new(), Vec::new());
        self.copy.edit_addresses(|all| {
            let is_it = |address: &Address| address.link == link && address.addr.addr == addr;
            let own = all.all.iter().filter(|address| is_it(address));
            networks = own.map(|address| address.addr.normal()).collect();
            all.all.retain(|address| !is_it(address));
            // Another address of the link keeps the route to the network of both.
            let others = all.all.iter().filter(|address| address.link == link);
            kept = others.map(|address| address.addr.normal()).collect();
        });
        // The kernel removes the routes to it, to its network, and those that prefer it as their source.
        let is_its = |route: &Route| {
            let to = route.destination.normal();
            let is_connected =
                route.protocol.as_deref() == Some("kernel") && networks.contains(&to);
            route.device.as_deref() == Some(link)
                && !kept.contains(&to)
                && (to.addr == addr || route.source == Some(addr) || is_connected)
        };
        self.copy
            .edit_routes(|all| all.all.retain(|route| !is_its(route)));
    }

    fn ipvs(&mut self, object: &Object) {
        self.copy.edit_ipvs(|table| match object {
            Object::VirtualServer { key, server } => match server {
                Delta::Missing(want) => table.servers.push(want.as_ref().clone()),
                Delta::Extra(_) => table.servers.retain(|server| server.key != *key),
                Delta::Differs { want, .. } => {
                    for of in table.servers.iter_mut().filter(|server| server.key == *key) {
                        let reals = std::mem::take(&mut of.reals);
                        *of = backend::ipvs::model::VirtualServer {
                            reals,
                            order: Vec::new(),
                            ..want.as_ref().clone()
                        };
                    }
                }
            },
            Object::RealServer { server, addr, real } => {
                for of in table
                    .servers
                    .iter_mut()
                    .filter(|virtual_server| virtual_server.key == *server)
                {
                    let is_it = |real: &backend::ipvs::model::RealServer| {
                        real.addr == addr.ip() && real.port == addr.port()
                    };
                    of.order.clear();
                    of.reals.retain(|real| !is_it(real));
                    of.reals.extend(real.want().cloned());
                }
            }
            _ => {}
        });
    }

    fn sets(&mut self, object: &Object) {
        self.copy.edit_ipset(|sets| match object {
            Object::Set { name, set } => match set {
                Delta::Missing(want) => sets.sets.push(want.as_ref().clone()),
                Delta::Extra(_) => sets.sets.retain(|set| set.name != *name),
                Delta::Differs { want, .. } => {
                    for of in sets.sets.iter_mut().filter(|set| set.name == *name) {
                        of.kind.clone_from(&want.kind);
                        of.options.clone_from(&want.options);
                    }
                }
            },
            Object::Member { set, member } => {
                for of in sets.sets.iter_mut().filter(|ip_set| ip_set.name == *set) {
                    if let Some(have) = member.have() {
                        of.members.retain(|other| other.element != have.element);
                    }
                    of.members.extend(member.want().cloned());
                }
            }
            _ => {}
        });
    }

    fn nft(&mut self, object: &Object) {
        let family = self.family;
        let wanted = self.wanted_table();
        self.copy.edit_nft(|rules| {
            if let (Object::NftablesTable { dormant: false, .. }, Some(table)) = (object, &wanted) {
                rules.tables.push(table.clone());
            }
            let of = family.nft_name();
            let mut tables = rules.tables.iter_mut();
            let Some(table) = tables.find(|table| table.family == of && table.name == TABLE) else {
                return;
            };
            match object {
                Object::NftablesTable { dormant: true, .. } => table.dormant = false,
                Object::NftablesChain { chain, of } => match of {
                    Delta::Missing(want) => table.chains.push(want.as_ref().clone()),
                    Delta::Extra(_) => table.chains.retain(|nft_chain| nft_chain.name != *chain),
                    Delta::Differs { want, .. } => {
                        for of in table
                            .chains
                            .iter_mut()
                            .filter(|nft_chain| nft_chain.name == *chain)
                        {
                            of.base.clone_from(&want.base);
                        }
                    }
                },
                Object::NftablesSet { name, set } => match set {
                    Delta::Missing(want) => table.sets.push(want.as_ref().clone()),
                    Delta::Extra(_) => table.sets.retain(|set| set.name != *name),
                    Delta::Differs { .. } => {
                        let want = wanted.as_ref().and_then(|table| table.set(name)).cloned();
                        table.sets.retain(|set| set.name != *name);
                        table.sets.extend(want);
                    }
                },
                Object::NftablesElement { set, element } => {
                    for of in table.sets.iter_mut().filter(|nft_set| nft_set.name == *set) {
                        if let Some(have) = element.have() {
                            of.elements.retain(|other| other.key != have.key);
                        }
                        of.elements.extend(element.want().cloned());
                    }
                }
                _ => {}
            }
        });
    }

    /// Returns the table that kube-proxy would write, where a whole table or set is to be replaced.
    fn wanted_table(&self) -> Option<nftables::model::Table> {
        let desired = self.node.desired(Mode::Nftables).ok()?;
        let state = desired.family(self.family)?;
        nftables::expect::expect(desired, state, &diff::service_cidrs(self.node)).ok()
    }

    /// Returns the edited copy, and its rules of iptables.
    fn finish(mut self) -> (NodeSnapshot<'c>, Vec<Chains<'n>>) {
        for (need, rules) in std::mem::take(&mut self.rules) {
            if self.chain(IptablesBackend::InUse, &need).is_none() {
                // A table that was never used is not saved, nor are its built-in chains.
                let made = Chain {
                    policy: chain_owner::is_built_in(&need.chain).then_some(Policy::Accept),
                    ..Chain::user(need.chain.clone())
                };
                self.of_store(IptablesBackend::InUse)
                    .insert(need.clone(), Some(made));
            }
            if let Some(chain) = self.chain(IptablesBackend::InUse, &need) {
                chain.rules = edited(&chain.rules, rules.iter().map(|(at, delta)| (*at, *delta)));
            }
        }
        let of = self.family.nft_name();
        let nft_rules = std::mem::take(&mut self.nft_rules);
        if !nft_rules.is_empty() {
            self.copy.edit_nft(|rules| {
                let tables = rules.tables.iter_mut();
                let ours = tables.filter(|table| table.family == of && table.name == TABLE);
                for chain in ours.flat_map(|table| &mut table.chains) {
                    if let Some(edits) = nft_rules.get(&chain.name) {
                        let edits = edits.iter().map(|(at, delta)| (*at, *delta));
                        chain.rules = edited(&chain.rules, edits);
                    }
                }
            });
        }
        let mut chains = World::whole(self.node, self.family).chains;
        for of in &mut chains {
            let changed = self.chains.iter().position(|(store, _)| *store == of.store);
            if let (Rules::Saved(saved), Some(at)) = (&of.rules, changed) {
                of.rules = Rules::Edited(saved, std::mem::take(&mut self.chains[at].1));
            }
        }
        (self.copy, chains)
    }
}

fn route(to: Cidr, kind: &str, table: &str, link: &str) -> Route {
    Route {
        family: to.family(),
        kind: kind.to_owned(),
        table: table.to_owned(),
        destination: to,
        gateway: None,
        device: Some(link.to_owned()),
        protocol: None,
        metric: 0,
        source: None,
        scope: None,
        nexthops: Vec::new(),
        flags: Vec::new(),
    }
}
