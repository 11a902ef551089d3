//! What the node does with each Service.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::{Asked, Gaps};
use crate::backend::Mode;
use crate::backend::iptables::names;
use crate::backend::ipvs::model::Key;
use crate::net::{Family, Proto};
use crate::node::{NodeSnapshot, Store};
use crate::owner::software::hashed;
use crate::owner::{NftName, Owners, Port, PortName, Role, State};
use crate::render::Page;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    service: PortName,
    protocol: Proto,
    r#type: Option<Box<str>>,
    port: Option<u16>,
    addresses: Vec<Address>,
    node_port: Option<u16>,
    endpoints: Counts,
    /// The other proxy that the Service is left to.
    left_to: Option<Box<str>>,
    programmed: Vec<Programmed>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Address {
    address: std::net::IpAddr,
    role: Role,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Counts {
    total: usize,
    ready: Option<usize>,
    local: Option<usize>,
}

/// What a mode has for a port; nothing in `objects` means that it is missing.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Programmed {
    mode: Mode,
    leftover: bool,
    objects: Vec<String>,
}

/// What is there, by the port it is for.
struct There<'n> {
    chains: HashMap<&'n str, Vec<&'static str>>,
    refused: HashSet<(PortName, Proto)>,
    nft: HashMap<(PortName, Proto), Vec<&'static str>>,
    servers: HashSet<Key>,
}

fn look<'n>(node: &'n NodeSnapshot<'_>, asked: Asked<'_>, gaps: &mut Gaps) -> There<'n> {
    let mut there = There {
        chains: HashMap::new(),
        refused: HashSet::new(),
        nft: HashMap::new(),
        servers: HashSet::new(),
    };
    for family in asked.families() {
        let in_use = gaps.take(node.iptables(Store::InUse, family));
        let others = [Store::Legacy, Store::Nft].map(|store| node.iptables(store, family).ok());
        for rules in in_use.into_iter().chain(others.into_iter().flatten()) {
            for chain in rules.tables.iter().flat_map(|table| &table.chains) {
                match hashed(&chain.name) {
                    Some((prefix, hash)) if prefix != names::SEP => {
                        let kinds = there.chains.entry(hash).or_default();
                        if !kinds.contains(&prefix) {
                            kinds.push(prefix);
                        }
                    }
                    _ => {}
                }
            }
            for name in ["KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES"] {
                let rules = rules.chain("filter", name).map_or(&[][..], |c| &c.rules);
                for rule in rules {
                    let name = rule.comment().and_then(|text| text.split_once(" has no "));
                    let name = name.and_then(|(name, _)| PortName::parse(name));
                    let proto = super::chains::seen(rule).proto;
                    there.refused.extend(name.zip(proto));
                }
            }
        }
        if let Some(nft) = gaps.take(node.nft()) {
            let of = if family == Family::V4 { "ip" } else { "ip6" };
            for chain in nft
                .table(of, "kube-proxy")
                .map_or(&[][..], |table| &table.chains)
            {
                if let Some(name) = NftName::parse(&chain.name)
                    && name.endpoint.is_none()
                {
                    let kinds = there.nft.entry((name.name, name.proto)).or_default();
                    if !kinds.contains(&name.prefix) {
                        kinds.push(name.prefix);
                    }
                }
            }
        }
    }
    if let Some(table) = gaps.take(node.ipvs()) {
        there.servers = table.servers.iter().map(|server| server.key).collect();
    }
    there
}

pub(super) fn rows(
    node: &NodeSnapshot<'_>,
    owners: &Owners,
    asked: Asked<'_>,
    gaps: &mut Gaps,
) -> Vec<Row> {
    owners.gaps.iter().for_each(|gap| gaps.add(gap.clone()));
    let there = look(node, asked, gaps);
    let modes = node.modes();
    let mut present: Vec<Mode> = modes
        .observed
        .iter()
        .flat_map(|of| &of.present)
        .copied()
        .collect();
    present.extend(modes.current());
    present.sort();
    present.dedup();
    let current = modes.current();
    let wanted = owners.ports().iter().filter(|port| {
        let addresses: Vec<String> = port.addresses.iter().map(|a| a.1.to_string()).collect();
        let names: Vec<&str> = addresses.iter().map(String::as_str).collect();
        asked.wants(Some(port), &names)
    });
    let rows = wanted.map(|port| {
        let addresses = port.addresses.iter();
        let addresses: Vec<_> = addresses
            .filter(|(_, addr)| asked.takes(Family::of(*addr)))
            .map(|&(role, address)| Address { address, role })
            .collect();
        let of_family = |addr: std::net::IpAddr| asked.takes(Family::of(addr));
        let endpoints: Vec<_> = port
            .endpoints
            .iter()
            .filter(|e| of_family(e.addr.ip()))
            .collect();
        let known = owners.source == crate::owner::Source::Api;
        let count = |of: fn(&crate::owner::Endpoint) -> bool| {
            known.then(|| endpoints.iter().filter(|e| of(e)).count())
        };
        let programmed = present.iter().map(|&mode| Programmed {
            mode,
            leftover: current.is_some_and(|current| current != mode),
            objects: objects(&there, port, mode, asked),
        });
        Row {
            service: port.name.clone(),
            protocol: port.proto,
            r#type: port.kind.clone(),
            port: port.port,
            addresses,
            node_port: port.node_port,
            endpoints: Counts {
                total: endpoints.len(),
                ready: count(|e| e.state == Some(State::Ready)),
                local: count(|e| e.local == Some(true)),
            },
            left_to: port.left_to.clone(),
            // What another mode left is worth a word only where it left something.
            programmed: programmed
                .filter(|of| !of.objects.is_empty() || !of.leftover && port.left_to.is_none())
                .collect(),
        }
    });
    rows.collect()
}

fn objects(there: &There<'_>, port: &Port, mode: Mode, asked: Asked<'_>) -> Vec<String> {
    let plain = |kinds: Option<&Vec<&'static str>>| {
        let kinds = kinds.map_or(&[][..], Vec::as_slice);
        let mut kinds: Vec<String> = kinds
            .iter()
            .map(|kind| {
                kind.trim_start_matches("KUBE-")
                    .trim_end_matches('-')
                    .to_owned()
            })
            .collect();
        kinds.sort();
        kinds
    };
    let name = (port.name.clone(), port.proto);
    match mode {
        Mode::Iptables => {
            let hash = names::service_hash(&port.name.to_string(), port.proto);
            let mut kinds = plain(there.chains.get(hash.as_str()));
            if there.refused.contains(&name) {
                kinds.push("refused".to_owned());
            }
            kinds
        }
        Mode::Nftables => plain(there.nft.get(&name)),
        Mode::Ipvs => {
            let keys = port.addresses.iter().filter_map(|&(_, addr)| {
                Some(Key::Address {
                    proto: port.proto,
                    addr,
                    port: port.port?,
                })
            });
            let keys = keys.filter(
                |key| matches!(key, Key::Address { addr, .. } if asked.takes(Family::of(*addr))),
            );
            let (mut have, mut want) = (0, 0);
            for key in keys {
                want += 1;
                have += usize::from(there.servers.contains(&key));
            }
            match have {
                0 => Vec::new(),
                1 if want == 1 => vec!["1 server".to_owned()],
                _ if have == want => vec![format!("{have} servers")],
                _ => vec![format!("{have} of {want} servers")],
            }
        }
    }
}

pub(super) fn page(rows: &[Row], page: &mut Page) {
    let several = rows.iter().any(|row| row.programmed.len() > 1);
    let cells = rows.iter().map(|row| {
        let port = row.port.map_or(String::new(), |port| format!(":{port}"));
        let addresses = row.addresses.iter();
        let mut addresses = addresses.map(|at| {
            let ip = match at.address {
                std::net::IpAddr::V4(ip) => ip.to_string(),
                std::net::IpAddr::V6(ip) => format!("[{ip}]"),
            };
            format!("{ip}{port}/{}", row.protocol)
        });
        let first = addresses.next().unwrap_or_default();
        let rest: Vec<String> = addresses.collect();
        let address = if rest.is_empty() {
            first
        } else if page.style().wide {
            format!("{first},{}", rest.join(","))
        } else {
            format!("{first} +{}", rest.len())
        };
        let programmed = row.programmed.iter().map(|of| {
            let what = if of.objects.is_empty() {
                "missing".to_owned()
            } else {
                of.objects.join("+")
            };
            match (several, of.leftover) {
                (_, true) => format!("{}: {what} (left over)", of.mode),
                (true, false) => format!("{}: {what}", of.mode),
                (false, false) => what,
            }
        });
        let mut programmed: Vec<String> = programmed.collect();
        programmed.extend(row.left_to.as_ref().map(|who| format!("left to {who}")));
        let ends = &row.endpoints;
        let ready = match ends.ready {
            Some(ready) => format!("{ready}/{}", ends.total),
            None => format!("?/{}", ends.total),
        };
        vec![
            row.service.to_string(),
            address,
            row.node_port
                .map_or_else(|| "-".to_owned(), |port| port.to_string()),
            ready,
            ends.local
                .map_or_else(|| "?".to_owned(), |local| local.to_string()),
            programmed.join("; "),
            row.r#type.as_deref().unwrap_or("?").to_owned(),
        ]
    });
    let cells: Vec<_> = cells.collect();
    page.grid(
        &[
            ("SERVICE", 0),
            ("ADDRESS", 1),
            ("NODEPORT", 3),
            ("READY", 2),
            ("LOCAL", 5),
            ("PROGRAMMED", 0),
            ("TYPE", 6),
        ],
        &cells,
    );
}
