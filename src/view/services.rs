//! Services, and how the node handles their packets.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::maps::{self, InMap};
use super::programmed::{Installed, Programmed, dests};
use super::{Gaps, Joined};
use kpx_judge::verdict::{Brief, Client, Fate, Kind, Standing, Surveyed, survey};
use kpx_judge::why::{Answer, Asked, Degree, Look};
use kpx_node::net::{Family, Proto};
use kpx_node::owner::{EndpointState, Port, PortName, Role, Source, ports_of};

/// A port of a Service.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) service: PortName,
    pub(crate) protocol: Proto,
    pub(crate) r#type: Option<Box<str>>,
    pub(crate) port: Option<u16>,
    pub(crate) addresses: Vec<Address>,
    pub(crate) node_port: Option<u16>,
    pub(crate) endpoints: Counts,
    /// The proxy that serves the Service instead of kube-proxy.
    pub(crate) left_to: Option<Box<str>>,
    /// The fate of connections to the port; `null` if the cluster's objects do not show who serves it.
    pub(crate) fate: Option<Fate>,
    /// The same for each address and kind of client.
    pub(crate) connections: Vec<Connection>,
    /// The same as the verdict has it.
    #[serde(skip)]
    pub(crate) surveyed: Surveyed,
    /// The cause of failing connections in a few words, if it was asked for.
    #[serde(skip)]
    pub(crate) cause: Option<String>,
    /// Objects by mode: of the mode in force, and leftovers of others.
    pub(crate) programmed: Vec<Programmed>,
    /// The entries of service proxies of eBPF for it; empty without such maps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) in_maps: Vec<InMap>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Address {
    pub(crate) address: IpAddr,
    pub(crate) role: Role,
}

/// Connections from one kind of client to one address.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Connection {
    pub(crate) to: SocketAddr,
    pub(crate) kind: Kind,
    pub(crate) client: Client,
    pub(crate) fate: Fate,
    /// The share of connections that certainly fail: 0 to 1.
    pub(crate) failing: f64,
    /// Why they fail, or why that is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Whether the Service's own settings keep the client out.
    pub(crate) by_design: bool,
}

impl Connection {
    pub(super) fn of(brief: &Brief) -> Self {
        Self {
            to: brief.to,
            kind: brief.kind,
            client: brief.client,
            fate: brief.fate,
            failing: brief.failing,
            reason: brief.fault.as_ref().map(ToString::to_string),
            by_design: brief.by_design,
        }
    }
}

/// Numbers of endpoints.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Counts {
    /// `null` if unknown.
    pub(crate) total: Option<usize>,
    /// `null` if unknown, as it is without EndpointSlices.
    pub(crate) ready: Option<usize>,
    /// `null` if unknown.
    pub(crate) local: Option<usize>,
}

pub(crate) fn rows(joined: Joined<'_, '_>, gaps: &mut Gaps) -> Vec<Row> {
    let installed = Installed::new(joined, gaps);
    let tables = maps::tables(joined, gaps);
    let by_api = joined.owners.source == Source::Api;
    let counted = !by_api || joined.node.has_all_slices();
    let wanted = joined.owners.ports().iter().filter(|port| {
        let addresses: Vec<String> = match joined.query.name {
            Some(_) => port.addresses.iter().map(|a| a.1.to_string()).collect(),
            None => Vec::new(),
        };
        let names: Vec<&str> = addresses.iter().map(String::as_str).collect();
        joined.query.wants(Some(port), &names)
    });
    let mut wanted: Vec<Port> = wanted.cloned().collect();
    wanted.extend(in_dns(joined));
    let families: Vec<Family> = joined.query.families().collect();
    let surveyed = survey(joined.node, &wanted, &families, joined.query.across);
    let rows = wanted.iter().zip(surveyed).map(|(port, surveyed)| {
        let addresses = port.addresses.iter();
        let addresses: Vec<_> = addresses
            .filter(|(_, addr)| joined.query.takes(Family::of(*addr)))
            .map(|&(role, address)| Address { address, role })
            .collect();
        let of_family = |addr: IpAddr| joined.query.takes(Family::of(addr));
        let endpoints = port.endpoints.iter().filter(|e| of_family(e.addr.ip()));
        let endpoints: Vec<_> = endpoints.collect();
        let count = |counts: fn(&kpx_node::owner::Endpoint) -> bool| {
            (by_api && counted).then(|| endpoints.iter().filter(|e| counts(e)).count())
        };
        let dests = dests(port, joined.query);
        let mut programmed = installed.programmed(&dests);
        if port.left_to.is_some() {
            programmed.retain(Programmed::is_installed);
        }
        let local_known = endpoints.iter().all(|e| e.local.is_some());
        Row {
            service: port.name.clone(),
            protocol: port.proto,
            r#type: port.kind.clone(),
            port: port.port,
            addresses,
            node_port: port.node_port,
            endpoints: Counts {
                total: counted.then_some(endpoints.len()),
                ready: count(|e| e.state == Some(EndpointState::Ready)),
                local: count(|e| e.local == Some(true)).filter(|_| local_known),
            },
            left_to: port.left_to.clone(),
            fate: (by_api && port.left_to.is_none()).then(|| {
                // The name of a headless Service without endpoints leads nowhere.
                let is_nowhere = port.addresses.is_empty() && surveyed.cells.is_empty();
                if is_nowhere && counted {
                    Fate::Refused
                } else {
                    surveyed.fate()
                }
            }),
            connections: surveyed.cells.iter().map(Connection::of).collect(),
            surveyed,
            cause: None,
            programmed,
            in_maps: maps::rows(&tables, &dests),
        }
    });
    // A Service without an address of the family is not of that family.
    let kept = rows.filter(|row| joined.query.family.is_none() || !row.addresses.is_empty());
    kept.collect()
}

/// The most rows to explain.
const MOST_EXPLAINED: usize = 50;

/// Causes of a row that are named before the rest is counted.
const MOST_CAUSES: usize = 2;

/// Adds the causes of connections that fail to the rows.
pub(crate) fn explain(rows: &mut [Row], look: &Look<'_>) {
    let failing = rows.iter_mut().filter(|row| row.fails());
    for (at, row) in failing.enumerate() {
        let name = &row.service;
        if at >= MOST_EXPLAINED {
            row.cause = Some(format!("`kpx why {name}` names the cause"));
            continue;
        }
        let port = match &*name.port {
            "" => row.port.map(|port| port.to_string()),
            port => Some(port.to_owned()),
        };
        let asked = Asked::Service {
            namespace: name.namespace.to_string(),
            name: name.name.to_string(),
            port,
        };
        let answer = look.why(&asked, None).ok();
        row.cause = answer.and_then(|answer| causes(&answer));
    }
}

/// Returns the causes of connections that fail, in a few words.
fn causes(answer: &Answer) -> Option<String> {
    let causes = answer.causes.iter();
    let causes = causes.filter(|broken| broken.degree == Degree::Breaks && !broken.by_design);
    let mut briefs: Vec<String> = Vec::new();
    for broken in causes {
        let brief = match &broken.node {
            Some(node) => format!("on {node}: {}", broken.cause.brief()),
            None => broken.cause.brief(),
        };
        if !briefs.contains(&brief) {
            briefs.push(brief);
        }
    }
    let more = briefs.len().saturating_sub(MOST_CAUSES);
    briefs.truncate(MOST_CAUSES);
    if more > 0 {
        briefs.push(format!("and {more} more"));
    }
    (!briefs.is_empty()).then(|| briefs.join("; "))
}

impl Row {
    /// Returns whether connections fail, other than by the Service's own settings.
    pub(crate) fn fails(&self) -> bool {
        let standing = self.surveyed.standing();
        self.fate.is_some() && matches!(standing, Standing::Fails | Standing::NoEndpoints)
    }
}

/// Returns the ports of the Service that the query names, if only DNS serves it: a headless Service, or another name of something.
fn in_dns(joined: Joined<'_, '_>) -> Vec<Port> {
    let Some(asked) = joined.query.name else {
        return Vec::new();
    };
    let here = joined.node.name().ok();
    let services = joined.node.services().map_or(&[][..], Vec::as_slice);
    let slices = joined.node.slices().map_or(&[][..], Vec::as_slice);
    let ports = services.iter().flat_map(|service| {
        let meta = &service.metadata;
        let alias = (service.spec.kind == "ExternalName").then(|| {
            let target = service.spec.external_name.as_deref().unwrap_or("nothing");
            format!("DNS as another name of {target}")
        });
        if alias.is_none() && service.spec.cluster_ip != "None" {
            return Vec::new();
        }
        let its = slices
            .iter()
            .filter(|slice| slice.service() == Some((&meta.namespace, &meta.name)));
        let its: Vec<_> = its.collect();
        let mut ports = ports_of(service, &its, here.as_deref());
        if ports.is_empty() {
            let mut port = Port::nobody(0, Proto::Tcp);
            port.name.namespace = meta.namespace.as_str().into();
            port.name.name = meta.name.as_str().into();
            port.kind = Some(service.spec.kind.as_str().into());
            port.port = None;
            ports.push(port);
        }
        for port in &mut ports {
            port.left_to = alias.as_deref().map(Into::into).or(port.left_to.take());
        }
        ports.retain(|port| port.name.answers(asked));
        ports
    });
    ports.collect()
}
