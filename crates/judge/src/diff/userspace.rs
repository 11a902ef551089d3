//! The portals of mode userspace compared with the Services.
//!
//! The process chooses its ports itself, so a portal may lead to any port on which kube-proxy listens.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::change::{Change, Delta, Object};
use super::iptables::{self, Scope};
use kpx_node::backend::iptables::build::{comment, jump, rule, to_local};
use kpx_node::backend::iptables::model::{Chain, Policy, Rule, Ruleset, Table};
use kpx_node::backend::iptables::portals::{JUMPS, PORTALS, portals};
use kpx_node::desired::FamilyState;
use kpx_node::net::{Family, Proto};
use kpx_node::node::sockets::Sockets;

/// The key of a portal.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Key {
    chain: String,
    service: String,
    proto: Proto,
    addr: Option<IpAddr>,
    port: u16,
}

impl Key {
    fn place(&self) -> String {
        match self.addr {
            Some(addr) => format!("{}/{}", SocketAddr::new(addr, self.port), self.proto),
            None => format!("NodePort {}/{}", self.port, self.proto),
        }
    }
}

/// Only jumps are compared as rules.
struct Jumps(Family);

impl Scope for Jumps {
    fn family(&self) -> Family {
        self.0
    }
}

/// Returns the changes that bring the portals in `have` to those of the Services in `state`; with `sockets`, their ports are
/// compared with those on which processes listen.
pub(super) fn compare(
    have: &Ruleset<'_>,
    state: &FamilyState,
    sockets: Option<&Sockets>,
) -> Vec<Change> {
    let mut live: BTreeMap<Key, BTreeSet<u16>> = BTreeMap::new();
    for portal in portals(have) {
        let key = Key {
            chain: portal.chain.to_owned(),
            service: portal.service.to_owned(),
            proto: portal.proto,
            addr: portal.addr,
            port: portal.port,
        };
        live.entry(key).or_default().insert(portal.proxy_port);
    }
    let wanted = wanted(state);
    let mut changes = iptables::compare(have, &jumps(), &Jumps(state.family));
    let mut push = |key: &Key, to| {
        changes.push(Change {
            family: Some(state.family),
            service: (!key.service.is_empty()).then(|| key.service.clone()),
            object: Object::Portal {
                chain: key.chain.clone(),
                at: key.place(),
                to,
            },
        });
    };
    let right = || "to a port on which kube-proxy listens".to_owned();
    for key in wanted.iter().filter(|key| !live.contains_key(key)) {
        push(key, Delta::missing(right()));
    }
    for (key, ports) in &live {
        let text = to_ports(ports);
        if !wanted.contains(key) {
            push(key, Delta::extra(text));
        } else if sockets.is_some_and(|sockets| !listens(sockets, key.proto, ports)) {
            push(key, Delta::differs(text, right()));
        }
    }
    changes
}

/// Returns the portals of the Services in `state`.
fn wanted(state: &FamilyState) -> BTreeSet<Key> {
    let mut all = BTreeSet::new();
    for port in &state.ports {
        let addresses = std::iter::once(port.cluster_ip)
            .chain(port.external_ips.iter().copied())
            .chain(port.lb_ips.iter().copied());
        let dests = addresses.map(|addr| (Some(addr), port.port));
        let dests = dests.chain(port.node_port.map(|number| (None, number)));
        for (addr, number) in dests {
            let [container, host, node_container, node_host] = PORTALS;
            let chains = match addr {
                Some(_) => [container, host],
                None => [node_container, node_host],
            };
            all.extend(chains.map(|chain| Key {
                chain: chain.to_owned(),
                service: port.spn.clone(),
                proto: port.proto,
                addr,
                port: number,
            }));
        }
    }
    all
}

/// Returns the built-in chains with the jumps to the portals.
fn jumps() -> Ruleset<'static> {
    let tables = ["nat", "filter"].map(|table| {
        let mut chains: BTreeMap<&str, Vec<Rule<'static>>> = BTreeMap::new();
        for &(_, from, to, text) in JUMPS.iter().filter(|row| row.0 == table) {
            let local = to.starts_with("KUBE-NODEPORT-") && table == "nat";
            let local = local.then(to_local).into_iter();
            let matches = local.chain([comment(text)]).collect();
            chains
                .entry(from)
                .or_default()
                .push(rule(matches, jump(to)));
        }
        let chains = chains.into_iter().map(|(name, rules)| Chain {
            policy: Some(Policy::Accept),
            rules,
            ..Chain::user(name)
        });
        Table::new(table, chains.collect())
    });
    Ruleset {
        tables: tables.into(),
        ..Ruleset::default()
    }
}

fn listens(sockets: &Sockets, proto: Proto, ports: &BTreeSet<u16>) -> bool {
    ports.iter().all(|&port| {
        let mut at = sockets.listening.iter();
        at.any(|socket| {
            let mut holders = socket.processes.iter();
            let is_proxy = socket.processes.is_empty()
                || holders.any(|holder| holder.name.starts_with("kube-proxy"));
            socket.proto == proto && socket.local.port() == port && is_proxy
        })
    })
}

fn to_ports(ports: &BTreeSet<u16>) -> String {
    let numbers: Vec<_> = ports.iter().map(u16::to_string).collect();
    match numbers.as_slice() {
        [one] => format!("to port {one}"),
        several => format!("to ports {}", several.join(" and ")),
    }
}
