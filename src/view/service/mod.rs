//! A Service's page: the state of one Service in the API and on this node.

pub(crate) mod assessed;
pub(crate) mod form;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::services::Row;
use super::{Gaps, Joined, View, affinity, conntrack, nodeports};
use assessed::Assessed;
use kpx_node::cluster::Service;
use kpx_node::evidence::Item;
use kpx_node::net::Family;
use kpx_node::owner::{EndpointState, PortName};

/// One Service.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Page {
    /// `null` if the API is unknown.
    pub(crate) spec: Option<Spec>,
    /// `null` if unknown.
    pub(crate) endpoints: Option<Vec<Endpoint>>,
    /// The objects that implement it in the mode in force; `null` if unknown.
    pub(crate) form: Option<Vec<form::Part>>,
    /// Empty for a Service without NodePorts.
    pub(crate) node_ports: Vec<nodeports::Row>,
    /// Empty without session affinity.
    pub(crate) affinity: Vec<affinity::Row>,
    /// `null` if unknown.
    pub(crate) connections: Option<Vec<conntrack::Count>>,
    /// Its problems; absent if only the rows of several nodes are compared.
    #[serde(flatten)]
    pub(crate) assessed: Option<Assessed>,
    /// The command that explains its connections.
    #[serde(skip)]
    pub(crate) next: Option<String>,
}

/// The settings, except addresses, that decide how packets to the Service are handled.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Spec {
    pub(crate) internal_traffic_policy: String,
    /// `null` if nothing outside the cluster reaches the Service.
    pub(crate) external_traffic_policy: Option<String>,
    /// Seconds that a client keeps its backend; `null` without session affinity.
    pub(crate) affinity_seconds: Option<u32>,
    pub(crate) traffic_distribution: Option<String>,
    /// Prefixes of the clients that the load balancer admits; empty for all.
    pub(crate) source_ranges: Vec<String>,
    /// Labels of its pods; `null` if its endpoints are managed by hand, or if a text does not show them.
    pub(crate) selector: Option<BTreeMap<String, String>>,
    /// Whether the object may have fields that are not shown.
    #[serde(skip)]
    pub(crate) in_part: bool,
}

/// An endpoint of the Service.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Endpoint {
    pub(crate) service: PortName,
    pub(crate) address: SocketAddr,
    /// `null` if only rules are known.
    pub(crate) state: Option<EndpointState>,
    pub(crate) node: Option<String>,
    /// Whether it runs on this node; `null` if unknown.
    pub(crate) local: Option<bool>,
    pub(crate) zone: Option<String>,
    pub(crate) pod: Option<String>,
}

/// Returns the page of the Service that `rows` are of; `None` if they are of several.
pub(super) fn page(joined: Joined<'_, '_>, rows: &[Row], gaps: &mut Gaps) -> Option<Page> {
    let asked = joined.query.name?;
    let first = &rows.first()?.service;
    let is_same =
        |name: &PortName| (&name.namespace, &name.name) == (&first.namespace, &first.name);
    if !rows.iter().all(|row| is_same(&row.service)) {
        return None;
    }
    let services = joined.node.services().ok();
    let service = services.and_then(|all| {
        let mut all = all.iter();
        all.find(|service| {
            service.metadata.namespace == *first.namespace && service.metadata.name == *first.name
        })
    });
    // An address selects the Service, but not its objects in other views.
    let whole = format!("{}/{}", first.namespace, first.name);
    let name = if asked.contains('/') { asked } else { &whole };
    let of = |view| {
        let query = super::Query {
            view,
            name: Some(name),
            namespace: None,
            ..joined.query
        };
        Joined { query, ..joined }
    };
    let form = form::parts(joined, name, gaps);
    let node_ports = if rows.iter().any(|row| row.node_port.is_some()) {
        nodeports::rows(of(View::Nodeports), gaps)
    } else {
        Vec::new()
    };
    let in_part = joined
        .node
        .evidence()
        .missing_part(Item::Services)
        .is_some();
    let spec = service.map(|service| Spec::of(service, in_part));
    let is_sticky = spec
        .as_ref()
        .is_some_and(|spec| spec.affinity_seconds.is_some());
    let affinity = if is_sticky {
        affinity::rows(of(View::Affinity), gaps)
    } else {
        Vec::new()
    };
    let tracked = conntrack::rows(of(View::Conntrack), gaps);
    Some(Page {
        endpoints: rows
            .iter()
            .all(|row| row.endpoints.total.is_some())
            .then(|| endpoints(joined, rows)),
        spec,
        form,
        node_ports,
        affinity,
        connections: joined
            .node
            .conntrack()
            .is_ok()
            .then(|| conntrack::counts(joined, &tracked)),
        assessed: None,
        next: None,
    })
}

impl Spec {
    fn of(service: &Service, in_part: bool) -> Self {
        let spec = &service.spec;
        let cluster = || "Cluster".to_owned();
        let is_reached = matches!(spec.kind.as_str(), "NodePort" | "LoadBalancer")
            || !spec.external_ips.is_empty();
        let policy = spec.external_traffic_policy.clone();
        Self {
            internal_traffic_policy: spec.internal_traffic_policy.clone().unwrap_or_else(cluster),
            external_traffic_policy: is_reached.then(|| policy.unwrap_or_else(cluster)),
            affinity_seconds: spec.affinity(),
            traffic_distribution: spec.traffic_distribution.clone(),
            source_ranges: spec.load_balancer_source_ranges.clone(),
            selector: spec.selector.clone(),
            in_part,
        }
    }
}

fn endpoints(joined: Joined<'_, '_>, rows: &[Row]) -> Vec<Endpoint> {
    let slices = joined.node.slices().into_iter().flatten();
    let zones: BTreeMap<IpAddr, &str> = slices
        .flat_map(|slice| &slice.endpoints)
        .filter_map(|endpoint| {
            Some((
                endpoint.addresses.first()?.parse().ok()?,
                endpoint.zone.as_deref()?,
            ))
        })
        .collect();
    let mut all = Vec::new();
    for port in rows
        .iter()
        .filter_map(|row| joined.owners.named(&row.service, row.protocol))
    {
        let of_family = |addr: IpAddr| joined.query.takes(Family::of(addr));
        let shown = port
            .endpoints
            .iter()
            .filter(|endpoint| of_family(endpoint.addr.ip()));
        all.extend(shown.map(|endpoint| {
            Endpoint {
                service: port.name.clone(),
                address: endpoint.addr,
                state: endpoint.state,
                node: endpoint.node.as_deref().map(str::to_owned),
                local: endpoint.local,
                zone: zones
                    .get(&endpoint.addr.ip())
                    .map(|zone| (*zone).to_owned()),
                pod: endpoint.pod.as_deref().map(str::to_owned),
            }
        }));
    }
    all
}
