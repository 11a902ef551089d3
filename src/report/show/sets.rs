//! IP sets, and what they are for.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::{Asked, Gaps};
use crate::backend::software::set_purpose;
use crate::net::{Family, Proto};
use crate::node::NodeSnapshot;
use crate::owner::software::{Maker, maker_of_set};
use crate::owner::{Owners, PortName};
use crate::render::Page;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) set: String,
    r#type: String,
    family: Family,
    maker: Maker,
    purpose: Option<&'static str>,
    /// How many it has; those below may be fewer, where one Service was asked for.
    size: usize,
    members: Vec<Member>,
    /// Whether members were asked for.
    #[serde(skip)]
    named: bool,
}

#[derive(Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
struct Member {
    member: String,
    service: Option<PortName>,
}

pub(super) fn rows(
    node: &NodeSnapshot<'_>,
    owners: &Owners,
    asked: Asked<'_>,
    gaps: &mut Gaps,
) -> Vec<Row> {
    let Some(sets) = gaps.take(node.ipset()) else {
        return Vec::new();
    };
    let rows = sets.sets.iter().filter_map(|set| {
        let family = if set.is_v6() || set.name.starts_with("KUBE-6-") {
            Family::V6
        } else {
            Family::V4
        };
        if !asked.takes(family) {
            return None;
        }
        let whole = asked.wants(None, &[&set.name]);
        let members = set.members.iter().filter_map(|member| {
            let port = owner_of(owners, &set.name, &member.element);
            (whole || asked.wants(port, &[])).then(|| Member {
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
            named: asked.name.is_some(),
        })
    });
    let mut rows: Vec<_> = rows.collect();
    if rows.is_empty() && asked.name.is_none() {
        gaps.note(
            "there are no IP sets on this node: of the modes, ipvs alone makes some".to_owned(),
        );
    }
    rows.sort_by(|a, b| a.set.cmp(&b.set));
    rows
}

/// Finds the Service of `10.0.0.1,tcp:80`, of the same with a third part, of an address, or of a NodePort.
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

pub(super) fn page(rows: &[Row], page: &mut Page) {
    let wide = page.style().wide;
    let members = wide || rows.iter().any(|row| row.named);
    let shown = rows.iter().filter(|row| members || row.size > 0);
    let mut cells = Vec::new();
    for row in shown {
        let what = match (row.purpose, row.maker) {
            (Some(purpose), _) => purpose,
            (None, Maker::Other(who)) => who,
            (None, _) => "not kube-proxy's",
        };
        cells.push(vec![row.set.clone(), row.size.to_string(), what.to_owned()]);
        if !members {
            continue;
        }
        for member in &row.members {
            let name = member.service.as_ref().map(ToString::to_string);
            let name = name.unwrap_or_default();
            cells.push(vec![format!("  {}", member.member), String::new(), name]);
        }
    }
    if !cells.is_empty() {
        page.grid(&[("SET", 0), ("MEMBERS", 0), ("FOR", 0)], &cells);
    }
    let empty: Vec<&Row> = rows.iter().filter(|row| row.size == 0).collect();
    if !members && !empty.is_empty() {
        let of = |family| empty.iter().filter(|row| row.family == family).count();
        let (v4, v6) = (of(Family::V4), of(Family::V6));
        page.para(
            "",
            &format!(
                "{} more are empty ({v4} IPv4, {v6} IPv6); -o wide lists them, and every member",
                v4 + v6
            ),
        );
    }
}
