//! Service ports and endpoints from the comments and names in kube-proxy's rules, if the cluster's objects are not
//! available.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::{Endpoint, NftName, Port, PortName, Role};
use crate::backend::iptables::model::{Match, Rule, Ruleset, Target};
use crate::backend::iptables::names;
use crate::backend::iptables::portals::{PORTALS, Portal};
use crate::backend::nftables::dispatch::{socket_addr, word};
use crate::backend::nftables::model::{Datum, Element, Expr, Statement, Table, Verdict};
use crate::net::{Family, Proto};
use crate::node::{IptablesBackend, NodeSnapshot};

#[derive(Default)]
struct Found(BTreeMap<(PortName, Proto), Port>);

impl Found {
    fn port(&mut self, name: PortName, proto: Proto) -> &mut Port {
        let key = (name, proto);
        let entry = self.0.entry(key);
        entry.or_insert_with_key(|(name, proto)| Port::new(name.clone(), *proto))
    }
}

/// Returns the service ports that occur in the rules of `node`.
pub(super) fn ports(node: &NodeSnapshot<'_>) -> Vec<Port> {
    let mut found = Found::default();
    for family in Family::BOTH {
        for store in [
            IptablesBackend::InUse,
            IptablesBackend::Legacy,
            IptablesBackend::Nft,
        ] {
            // A family that cannot be read adds no names; the caller reports the gap.
            if let Ok(rules) = node.iptables(store, family) {
                iptables(rules, &mut found);
            }
        }
    }
    if let Ok(nft) = node.nft() {
        let ours = nft.tables.iter().filter(|table| table.name == "kube-proxy");
        ours.for_each(|table| nftables(table, &mut found));
    }
    let mut ports: Vec<_> = found.0.into_values().collect();
    for port in &mut ports {
        port.endpoints.sort_by_key(|endpoint| endpoint.addr);
        port.endpoints.dedup_by_key(|endpoint| endpoint.addr);
    }
    ports
}

fn iptables(rules: &Ruleset<'_>, found: &mut Found) {
    let chains = rules.tables.iter().flat_map(|table| &table.chains);
    for chain in chains {
        let name = chain.name.as_ref();
        let dispatch = matches!(
            name,
            "KUBE-SERVICES" | "KUBE-NODEPORTS" | "KUBE-EXTERNAL-SERVICES"
        );
        if dispatch {
            chain
                .rules
                .iter()
                .for_each(|rule| dispatched(name, rule, found));
        } else if PORTALS.contains(&name) {
            let rules = chain.rules.iter();
            rules.for_each(|rule| portal(name, rule, found));
        } else if name.starts_with(names::SEP) {
            for rule in &chain.rules {
                let Some(Target::Dnat(nat)) = &rule.target else {
                    continue;
                };
                let name = rule.comment().and_then(PortName::parse);
                let (Some(name), Some((ip, _)), Some(ports)) = (name, nat.addrs, nat.ports) else {
                    continue;
                };
                let proto = rule.destination().proto.unwrap_or(Proto::Tcp);
                let addr = SocketAddr::new(ip, ports.first);
                found.port(name, proto).endpoints.push(bare(addr));
            }
        }
    }
}

/// A portal of the userspace mode. Only portals of external IPs match more than the destination.
fn portal(chain: &str, rule: &Rule<'_>, found: &mut Found) {
    let Some(portal) = Portal::read(chain, rule) else {
        return;
    };
    let Some(name) = PortName::parse(portal.service) else {
        return;
    };
    let port = found.port(name, portal.proto);
    let Some(addr) = portal.addr else {
        port.node_port = Some(portal.port);
        return;
    };
    let matches_more =
        |matched: &Match<'_>| matches!(matched, Match::Physdev(_) | Match::AddrType { .. });
    let is = if rule.matches.iter().any(matches_more) {
        Role::ExternalIp
    } else {
        Role::ClusterIp
    };
    port.port = Some(portal.port);
    port.addresses.insert((is, addr));
}

fn dispatched(chain: &str, rule: &Rule<'_>, found: &mut Found) {
    let Some((name, what)) = rule.comment().and_then(|comment| {
        let (name, what) = comment.split_once(' ').unwrap_or((comment, ""));
        Some((PortName::parse(name)?, what))
    }) else {
        return;
    };
    let to = rule.destination();
    let Some(proto) = to.proto else { return };
    let port = found.port(name, proto);
    match (to.addr, to.port) {
        (Some(addr), Some(number)) => {
            let is = if what.starts_with("loadbalancer") {
                Role::LoadBalancerIp
            } else if what.starts_with("external") || chain == "KUBE-EXTERNAL-SERVICES" {
                Role::ExternalIp
            } else {
                Role::ClusterIp
            };
            port.port = Some(number);
            port.addresses.insert((is, addr));
        }
        (None, Some(number)) if what.contains("health check") => {
            port.health_check_port = Some(number);
        }
        (None, Some(number)) => port.node_port = Some(number),
        (_, None) => {}
    }
}

fn bare(addr: SocketAddr) -> Endpoint {
    Endpoint {
        addr,
        pod: None,
        node: None,
        state: None,
        local: None,
    }
}

fn nftables(table: &Table, found: &mut Found) {
    let cluster_ips = table.set("cluster-ips").into_iter();
    let cluster_ips = cluster_ips.flat_map(|set| &set.elements);
    let cluster_ips = cluster_ips.filter_map(|element| word(&element.key)?.parse().ok());
    let cluster_ips: BTreeSet<IpAddr> = cluster_ips.collect();
    let maps = table.sets.iter().filter(|set| set.data.is_some());
    for element in maps.flat_map(|map| &map.elements) {
        let (Some(name), Some(to)) = (named(element), element.destination()) else {
            continue;
        };
        let port = found.port(name, to.proto);
        let Some(addr) = to.addr else {
            port.node_port = Some(to.port);
            continue;
        };
        let role = if cluster_ips.contains(&addr) {
            Role::ClusterIp
        } else {
            Role::ExternalIp
        };
        port.port = Some(to.port);
        port.addresses.insert((role, addr));
    }
    for chain in &table.chains {
        let Some(name) = NftName::parse(&chain.name) else {
            continue;
        };
        if name.prefix == "external-" || name.prefix == "firewall-" {
            continue;
        }
        let port = found.port(name.name, name.proto);
        port.endpoints.extend(name.endpoint.map(bare));
        let statements = chain.rules.iter().flat_map(|rule| &rule.statements);
        for statement in statements {
            if let Statement::Nat {
                addr: Some(Expr::Lookup { data, .. }),
                ..
            } = statement
                && let Expr::Map(entries) = data.as_ref()
            {
                let data = entries.iter().filter_map(|(_, datum)| match datum {
                    Datum::Data(data) => socket_addr(data),
                    Datum::Verdict(_) => None,
                });
                port.endpoints.extend(data.map(bare));
            }
        }
    }
}

fn named(element: &Element) -> Option<PortName> {
    if let Some(Datum::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain))) = &element.value
        && let Some(name) = NftName::parse(chain)
    {
        return Some(name.name);
    }
    PortName::parse(element.comment.as_deref()?)
}
