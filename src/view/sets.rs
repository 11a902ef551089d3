//! IP sets, and the sets and maps of kube-proxy's nftables table, with their purpose and members.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::{Gaps, Joined};
use kpx_node::backend::Mode;
use kpx_node::backend::chain_owner::set_purpose;
use kpx_node::backend::nftables::expect::TABLE;
use kpx_node::backend::nftables::model::{Datum, Element, Set, Verdict};
use kpx_node::backend::nftables::print;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Family, Proto};
use kpx_node::owner::chain_owner::{Maker, maker_of_set};
use kpx_node::owner::{NftName, Owners, PortName};

/// An IP set, or a set or map of nftables.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) set: String,
    pub(crate) r#type: String,
    pub(crate) family: Family,
    pub(crate) maker: Maker,
    pub(crate) purpose: Option<&'static str>,
    /// The number of members, of which a query for a Service returns a part.
    pub(crate) size: usize,
    pub(crate) members: Vec<Member>,
}

#[derive(Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Member {
    pub(crate) member: String,
    pub(crate) service: Option<PortName>,
}

pub(crate) fn rows(joined: Joined<'_, '_>, gaps: &mut Gaps) -> Vec<Row> {
    let mut rows = of_nftables(joined, gaps);
    rows.extend(of_ipset(joined, gaps));
    if rows.is_empty() && joined.query.name.is_none() {
        let in_part = joined.node.evidence().missing_part(Item::Ipset);
        match (joined.node.ipset(), in_part) {
            (_, Some(_)) => gaps.note("no IP set is shown completely".to_owned()),
            (Ok(_) | Err(Gap::Absent(..)), None) => {
                gaps.note("this node has no IP sets; only ipvs mode creates them".to_owned());
            }
            (Err(gap), None) => gaps.add(gap),
        }
    }
    rows.sort_by(|a, b| (&a.set, a.family).cmp(&(&b.set, b.family)));
    rows
}

/// Returns the sets and maps of kube-proxy's table. The table matters only in mode nftables.
fn of_nftables(joined: Joined<'_, '_>, gaps: &mut Gaps) -> Vec<Row> {
    let rules = match (joined.node.nft(), joined.relevant.current()) {
        (Ok(rules), _) => rules,
        (read, Some(Mode::Nftables)) => match gaps.take(read) {
            Some(rules) => rules,
            None => return Vec::new(),
        },
        (Err(_), _) => return Vec::new(),
    };
    let tables = joined.query.families().filter_map(|family| {
        let table = rules.table(family.nft_name(), TABLE)?;
        Some((family, table))
    });
    let rows = tables.flat_map(|(family, table)| {
        let sets = table.sets.iter();
        sets.filter_map(move |set| row(joined, family, set))
    });
    rows.collect()
}

/// Returns the row of `set`; `None` if the query does not ask for it.
fn row(joined: Joined<'_, '_>, family: Family, set: &Set) -> Option<Row> {
    let whole = joined.query.wants(None, &[&set.name]);
    let of_set = NftName::parse(&set.name).map(|parsed| parsed.name);
    let members = set.elements.iter().filter_map(|element| {
        let service = of_set.clone().or_else(|| service_of(element));
        let service = service.or_else(|| {
            let port = owner_of(joined.owners, &set.name, &listed(element))?;
            Some(port.name.clone())
        });
        let wanted = whole
            || service
                .as_ref()
                .is_some_and(|service| joined.query.is_of(service));
        let value = element.value.as_ref().map(print::datum);
        let value = value.map_or_else(String::new, |value| format!(" : {value}"));
        wanted.then(|| Member {
            member: format!("{}{value}", print::expr(&element.key)),
            service,
        })
    });
    let mut members: Vec<_> = members.collect();
    members.sort();
    let kind = if set.data.is_some() { "map" } else { "set" };
    let types = match &set.data {
        Some(data) => format!("{} : {}", set.key.join(" . "), data.join(" . ")),
        None => set.key.join(" . "),
    };
    (whole || !members.is_empty()).then(|| Row {
        set: set.name.clone(),
        r#type: format!("nft {kind} {types}"),
        family,
        maker: Maker::KubeProxy,
        purpose: purpose(&set.name),
        size: set.elements.len(),
        members,
    })
}

/// Returns the Service of an element: its comment has the name, or the chain that it leads to.
pub(crate) fn service_of(element: &Element) -> Option<PortName> {
    if let Some(name) = element.comment.as_deref().and_then(PortName::parse) {
        return Some(name);
    }
    match &element.value {
        Some(Datum::Verdict(Verdict::Goto(to) | Verdict::Jump(to))) => {
            let of = NftName::parse(to)?;
            of.endpoint.is_none().then_some(of.name)
        }
        _ => None,
    }
}

/// Returns the key of an element as IP sets have it: `ADDRESS,PROTOCOL:PORT`, or an address.
fn listed(element: &Element) -> String {
    let key = print::expr(&element.key);
    let parts: Vec<&str> = key.split(" . ").collect();
    match parts.as_slice() {
        [first, .., proto, port] if parts.len() > 2 => format!("{first},{proto}:{port}"),
        _ => key,
    }
}

/// Returns the purpose of a set or map of kube-proxy's table.
fn purpose(name: &str) -> Option<&'static str> {
    Some(match name {
        "cluster-ips" => "cluster IPs, to reject ports that no Service has",
        "nodeport-ips" => "addresses of the node that take NodePorts",
        "hairpin-connections" => "connections of a pod to itself, which are masqueraded",
        "no-endpoint-services" => "Service addresses without endpoints",
        "no-endpoint-nodeports" => "NodePorts without endpoints",
        "localhost-nodeport-reject-ports" => "NodePorts that are rejected on loopback addresses",
        "firewall-ips" => "addresses with loadBalancerSourceRanges",
        "service-ips" => "Service addresses, with the chain of each",
        "service-nodeports" => "NodePorts, with the chain of each",
        _ if name.starts_with("affinity-") => "clients that session affinity binds",
        _ => return None,
    })
}

fn of_ipset(joined: Joined<'_, '_>, gaps: &mut Gaps) -> Vec<Row> {
    let sets = match (joined.node.ipset(), joined.relevant.current()) {
        // Other modes may leave sets; this one needs none.
        (Err(_), Some(Mode::Nftables)) => None,
        (read, _) => gaps.take(read),
    };
    let Some(sets) = sets else {
        return Vec::new();
    };
    let rows = sets.sets.iter().filter_map(|set| {
        let family = if set.is_v6() || set.name.starts_with("KUBE-6-") {
            Family::V6
        } else {
            Family::V4
        };
        if !joined.query.takes(family) {
            return None;
        }
        let whole = joined.query.wants(None, &[&set.name]);
        let members = set.members.iter().filter_map(|member| {
            let port = owner_of(joined.owners, &set.name, &member.element);
            (whole || joined.query.wants(port, &[])).then(|| Member {
                member: member.element.to_string(),
                service: port.map(|port| port.name.clone()),
            })
        });
        let mut members: Vec<_> = members.collect();
        members.sort();
        (whole || !members.is_empty()).then(|| Row {
            set: set.name.to_string(),
            r#type: set.kind.to_string(),
            family,
            maker: maker_of_set(&set.name),
            purpose: set_purpose(&set.name),
            size: set.members.len(),
            members,
        })
    });
    rows.collect()
}

/// Returns the Service of a member: `ADDRESS,PROTOCOL:PORT` with or without a third part, an address or a NodePort.
fn owner_of<'o>(owners: &'o Owners, set: &str, element: &str) -> Option<&'o kpx_node::owner::Port> {
    if let Ok(number) = element.parse() {
        let proto = if set.contains("UDP") {
            Proto::Udp
        } else {
            Proto::Tcp
        };
        if set.ends_with("HEALTH-CHECK-NODE-PORT") {
            let mut ports = owners.ports().iter();
            return ports.find(|port| port.health_check_port == Some(number));
        }
        return owners.node_port(number, proto);
    }
    let mut parts = element.split(',');
    let addr: IpAddr = parts.next()?.parse().ok()?;
    let Some(second) = parts.next() else {
        return Some(owners.with_address(addr).next()?.0);
    };
    let (proto, port) = second.split_once(':')?;
    let (proto, port) = (proto.parse().ok()?, port.parse().ok()?);
    owners
        .at(addr, port, proto)
        .map(|(port, _)| port)
        .or_else(|| Some(owners.endpoint(SocketAddr::new(addr, port), proto)?.0))
        .or_else(|| owners.node_port(port, proto))
}
