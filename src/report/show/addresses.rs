//! Addresses of kube-ipvs0, and why each is there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::Serialize;

use super::{Asked, Gaps, modes::Relevant};
use crate::backend::Mode;
use crate::backend::ipvs::model::DUMMY;
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::owner::{Owners, Role, Source};
use crate::render::Page;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) address: IpAddr,
    /// Why it is there.
    because: Vec<Because>,
    /// Whether no Service has it; `null` if Services are not known.
    extra: Option<bool>,
}

#[derive(Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
struct Because {
    service: String,
    role: Role,
    ports: Vec<String>,
}

pub(super) fn rows(
    node: &NodeSnapshot<'_>,
    owners: &Owners,
    asked: Asked<'_>,
    relevant: &Relevant,
    gaps: &mut Gaps,
) -> Vec<Row> {
    let Some(addresses) = gaps.take(node.addresses()) else {
        return Vec::new();
    };
    if !addresses.all.iter().any(|at| at.link == DUMMY) {
        let link = node
            .links()
            .map(|all| all.all.iter().any(|l| l.name == DUMMY));
        let mode = relevant.current();
        gaps.note(match (link, mode) {
            (Ok(true), _) => format!("{DUMMY} has no address"),
            (_, Some(Mode::Ipvs)) => {
                format!("there is no {DUMMY} with an address, although the mode is ipvs")
            }
            _ => format!("there is no {DUMMY} on this node: only ipvs mode makes it"),
        });
    }
    let on = addresses
        .all
        .iter()
        .filter(|at| at.link == DUMMY && at.scope != "link" && asked.takes(at.addr.family()));
    let rows = on.filter_map(|at| {
        let address = at.addr.addr;
        let found: Vec<_> = owners.with_address(address).collect();
        let named = found.iter().any(|(port, _)| asked.wants(Some(port), &[]));
        if !named && !asked.wants(None, &[&address.to_string()]) {
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
            because: by_service
                .into_iter()
                .map(|((service, role), ports)| Because {
                    service,
                    role,
                    ports: ports.into_iter().collect(),
                })
                .collect(),
            extra: (!extra || owners.source == Source::Api).then_some(extra),
        })
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by_key(|row| (Family::of(row.address), row.address));
    rows
}

pub(super) fn page(rows: &[Row], page: &mut Page) {
    let cells = rows.iter().map(|row| {
        let why = row
            .because
            .iter()
            .map(|of| format!("{} of {} ({})", of.role, of.service, of.ports.join(", ")));
        let why: Vec<String> = why.collect();
        let why = match row.extra {
            Some(true) => "EXTRA: no Service has it".to_owned(),
            None => "?".to_owned(),
            Some(false) => why.join("; "),
        };
        vec![row.address.to_string(), why]
    });
    let cells: Vec<_> = cells.collect();
    page.grid(&[("ADDRESS", 0), ("WHY", 0)], &cells);
}
