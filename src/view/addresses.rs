//! Addresses of kube-ipvs0 with their Services.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::Serialize;

use super::{Gaps, Joined};
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::evidence::Item;
use kpx_node::net::Family;
use kpx_node::owner::{Role, Source};

/// An address.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) address: IpAddr,
    /// The Services with this address.
    pub(crate) services: Vec<Use>,
    /// Whether no Service has the address; `null` if unknown.
    pub(crate) extra: Option<bool>,
}

/// The role of an address in a Service.
#[derive(Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Use {
    /// `NAMESPACE/NAME`.
    pub(crate) service: String,
    /// The kind of address.
    pub(crate) role: Role,
    /// `PORT/PROTOCOL`, sorted.
    pub(crate) ports: Vec<String>,
}

pub(crate) fn rows(joined: Joined<'_, '_>, gaps: &mut Gaps) -> Vec<Row> {
    let Some(addresses) = gaps.take(joined.node.addresses()) else {
        return Vec::new();
    };
    if !addresses.all.iter().any(|at| at.link == DUMMY) {
        let link = joined
            .node
            .links()
            .map(|all| all.all.iter().any(|l| l.name == DUMMY));
        let mode = joined.relevant.current();
        let in_part = joined.node.evidence().missing_part(Item::Addresses);
        gaps.note(match (link, mode) {
            (Ok(false) | Err(_), _) if in_part.is_some() => format!("{DUMMY} is not shown"),
            (Ok(true), _) => format!("{DUMMY} has no address"),
            (_, Some(Mode::Ipvs)) => {
                format!("{DUMMY} is missing or has no address, although the mode is ipvs")
            }
            (Ok(false), _) => format!("this node has no {DUMMY}: only ipvs mode creates it"),
            (Err(_), _) => format!("{DUMMY} has no address, or does not exist"),
        });
    }
    let on = addresses.all.iter().filter(|at| {
        at.link == DUMMY && at.scope != "link" && joined.query.takes(at.addr.family())
    });
    let rows = on.filter_map(|at| {
        let address = at.addr.addr;
        let found: Vec<_> = joined.owners.with_address(address).collect();
        let named = found
            .iter()
            .any(|(port, _)| joined.query.wants(Some(port), &[]));
        if !named && !joined.query.wants(None, &[&address.to_string()]) {
            return None;
        }
        let mut by_service: BTreeMap<(String, Role), BTreeSet<String>> = BTreeMap::new();
        for (port, role) in &found {
            let service = format!("{}/{}", port.name.namespace, port.name.name);
            let number = port
                .port
                .map_or("?".to_owned(), |number| number.to_string());
            let text = format!("{number}/{}", port.proto);
            by_service.entry((service, *role)).or_default().insert(text);
        }
        let extra = found.is_empty();
        Some(Row {
            address,
            services: by_service
                .into_iter()
                .map(|((service, role), ports)| Use {
                    service,
                    role,
                    ports: ports.into_iter().collect(),
                })
                .collect(),
            extra: (!extra
                || joined.owners.source == Source::Api
                    && joined.node.evidence().part(Item::Services).is_none())
            .then_some(extra),
        })
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by_key(|row| (Family::of(row.address), row.address));
    rows
}
