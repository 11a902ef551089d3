//! Connections that fail by design of the cluster's own settings. Only this module decides that.

use super::across::Onward;
use super::blocking_rule::is_of_policy;
use super::cell::{Cell, Client, Kind};
use super::place::pod_ranges;
use super::{Fault, Obstacle, Way};
use crate::trace::mismatch::usable;
use crate::trace::why::{Refusal, decisive, maker, refusal};
use crate::trace::{Hop, Outcome, Rule};
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::cluster::{Pod, Service};
use kpx_node::desired::Detector;
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::links::Address;
use kpx_node::owner::{Port, Role};

/// Returns whether at least one way of `cell` fails, and all ways that fail do so by design: the Service's source ranges or
/// Local policy, as kube-proxy programs them, or NetworkPolicies ask for it. `service` has `port`.
pub fn is_by_design(
    node: &NodeSnapshot<'_>,
    service: Option<&Service>,
    port: &Port,
    cell: &Cell,
) -> bool {
    // A full table, or a stale entry of the client, is a fault whatever the settings are.
    let beside = cell.verdict.beside.as_ref();
    if !cell.fate().fails() || beside.is_some_and(|fault| fault.fate().fails()) {
        return false;
    }
    let ways = cell.outcomes.iter().zip(&cell.verdict.ways);
    let mut failing = ways.filter(|(_, way)| way.fate().fails()).peekable();
    failing.peek().is_some()
        && failing.all(|(outcome, way)| is_way_by_design(node, service, port, cell, (outcome, way)))
}

fn is_way_by_design(
    node: &NodeSnapshot<'_>,
    service: Option<&Service>,
    port: &Port,
    cell: &Cell,
    (outcome, way): (&Outcome, &Way),
) -> bool {
    let family = Family::of(cell.flow.destination);
    let is_policy = |hop: &Hop| is_of_policy(&Rule::of(hop, family), maker(hop), node);
    // kube-proxy's way of serving a Local policy, for the endpoints that it knows to be here.
    let is_local = || service.is_some_and(|service| is_local(service, cell.kind));
    let is_here = || usable(port, family).any(|usable| usable.local == Some(true));
    let is_known = || unnamed(node, port, family).is_empty();
    match &way.fault {
        Some(Fault::Stopped { hop, .. }) => {
            let hop = &outcome.hops[*hop];
            match refusal(outcome, hop) {
                Some(Refusal::SourceRanges) => true,
                Some(Refusal::NoLocalEndpoints | Refusal::NoRealServer { .. }) => {
                    is_local()
                        && !is_here()
                        && is_known()
                        && undetected(node, cell).is_none()
                        && !is_announced_here(node, cell)
                }
                _ => is_policy(hop),
            }
        }
        Some(Fault::There { .. }) => match &way.onward {
            // Policies are meant for clients, not for the address that a node gives their packets.
            Some(Onward::Far(far)) => {
                !far.admits_client && is_by_design(node, service, port, &far.cell)
            }
            _ => false,
        },
        // Without an endpoint here, mode ipvs forwards all clients to other nodes; the other modes forward the clients
        // that count as pods.
        Some(Fault::DirectReply { .. } | Fault::SharedSource { .. }) => {
            let sends_on = match node.configured_mode() {
                Ok(Mode::Ipvs) => !is_here(),
                _ => cell.client == Client::Elsewhere,
            };
            is_local() && sends_on && is_known() && !is_announced_here(node, cell)
        }
        // kube-proxy's configuration decides whether NodePorts are served there.
        Some(Fault::NotOnLoopback { .. }) => true,
        Some(Fault::Obstacle(what)) => match &**what {
            Obstacle::Further { by: Some(by), .. } => by.policies.is_some(),
            _ => way
                .lost
                .as_deref()
                .and_then(decisive)
                .is_some_and(is_policy),
        },
        _ => false,
    }
}

/// Returns whether a link of this node has the load balancer's address to which `cell` goes, so that no load balancer chooses another
/// node for clients outside. kube-ipvs0 has it on every node.
fn is_announced_here(node: &NodeSnapshot<'_>, cell: &Cell) -> bool {
    let is_balancers = cell.kind == Kind::Address(Role::LoadBalancerIp);
    let mut own = node.addresses().into_iter().flat_map(|all| &all.all);
    let has = |at: &Address| at.addr.addr == cell.flow.destination && at.link != DUMMY;
    is_balancers && cell.client == Client::Outside && own.any(has)
}

/// Returns how kube-proxy detects pods of this node, if it does not recognise the client of `cell`, a pod: it sends recognised pods
/// to endpoints of other nodes although the policy is Local. In mode ipvs it sends no client there.
pub fn undetected<'n>(node: &'n NodeSnapshot<'_>, cell: &Cell) -> Option<&'n Detector> {
    let is_pod = matches!(cell.client, Client::Pod | Client::Single | Client::Itself);
    let mode = node.configured_mode().ok()?;
    if !is_pod || cell.kind.is_internal() || mode == Mode::Ipvs {
        return None;
    }
    let families = &node.desired(mode).ok()?.families;
    let family = Family::of(cell.flow.destination);
    let ours = families.iter().find(|state| state.family == family)?;
    let detector = ours.detector.as_ref()?;
    let links = || node.links().ok();
    let takes = match detector {
        Detector::Cidr(range) => range.contains(cell.flow.source?),
        Detector::Interface(name) => links()?.all.iter().any(|link| link.name == *name),
        Detector::Prefix(start) => links()?.all.iter().any(|link| link.name.starts_with(start)),
    };
    (!takes).then_some(detector)
}

/// Returns whether the traffic policy of an address of this kind is Local.
pub fn is_local(service: &Service, kind: Kind) -> bool {
    let spec = &service.spec;
    let policy = if kind.is_internal() {
        &spec.internal_traffic_policy
    } else {
        &spec.external_traffic_policy
    };
    policy.as_deref() == Some("Local")
}

/// Returns the pods of this node among the endpoints of `port` whose EndpointSlice names no node, or another one, so that kube-proxy takes
/// them for pods of other nodes.
pub fn unnamed(node: &NodeSnapshot<'_>, port: &Port, family: Family) -> Vec<String> {
    let Ok(name) = node.name() else {
        return Vec::new();
    };
    let pods = node.pods().map_or(&[][..], Vec::as_slice);
    let here: Vec<&Pod> = pods
        .iter()
        .filter(|pod| pod.spec.node_name.as_deref() == Some(&*name))
        .collect();
    let nodes = node.nodes().map_or(&[][..], Vec::as_slice);
    let object = nodes.iter().find(|node| node.metadata.name == *name);
    let ranges = object.map_or_else(Vec::new, pod_ranges);
    let endpoints = usable(port, family).filter(|usable| usable.node.as_deref() != Some(&*name));
    // An endpoint that names no pod is recognised by its address.
    let shown = endpoints.filter_map(|endpoint| {
        let pod = here.iter().find(|pod| match endpoint.pod.as_deref() {
            Some(name) => {
                name.split_once('/') == Some((&pod.metadata.namespace, &pod.metadata.name))
            }
            None => pod.addresses().any(|at| at == endpoint.addr.ip()),
        });
        let is_in_range = endpoint.pod.is_none()
            && endpoint.node.is_none()
            && ranges
                .iter()
                .any(|range| range.contains(endpoint.addr.ip()));
        match pod {
            Some(pod) => Some(format!("{}/{}", pod.metadata.namespace, pod.metadata.name)),
            None => is_in_range.then(|| endpoint.addr.ip().to_string()),
        }
    });
    shown.collect()
}
