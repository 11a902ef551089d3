//! IP sets with their purpose and members.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::{Gaps, Joined};
use crate::backend::software::set_purpose;
use crate::net::{Family, Proto};
use crate::owner::software::{Maker, maker_of_set};
use crate::owner::{Owners, PortName};

/// An IP set.
#[derive(Debug, Serialize)]
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
#[serde(rename_all = "camelCase")]
pub(crate) struct Member {
    pub(crate) member: String,
    pub(crate) service: Option<PortName>,
}

pub(crate) fn rows(joined: Joined<'_, '_>, gaps: &mut Gaps) -> Vec<Row> {
    let Some(sets) = gaps.take(joined.node.ipset()) else {
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
    let mut rows: Vec<_> = rows.collect();
    if rows.is_empty() && joined.query.name.is_none() {
        gaps.note("this node has no IP sets; only ipvs mode creates them".to_owned());
    }
    rows.sort_by(|a, b| a.set.cmp(&b.set));
    rows
}

/// Returns the Service of a member: `ADDRESS,PROTOCOL:PORT` with or without a third part, an address or a NodePort.
fn owner_of<'o>(owners: &'o Owners, set: &str, element: &str) -> Option<&'o crate::owner::Port> {
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
