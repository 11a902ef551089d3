//! The sizes of packets: tunnels to other nodes, and the two ends of the links of pods.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::check::core::{Collector, link_proof};
use crate::check::{
    Check, Example, Facts, Finding, Fix, ServiceRef, Severity, Subject, Text, Verdict, When,
};
use crate::trace::region::Asked;
use crate::trace::route::{Decision, Lookup, Router};
use crate::verdict::{is_link_local, outer_family, ranges_of_all_pods, tunnel_overhead};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::links::Link;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "CN15",
    name: "tunnel-mtu",
    severity: Severity::Warning,
    when: When::Now,
    title: "Large packets fit into the links to other nodes and to pods",
    symptom: "Connections open and then hang: small answers arrive, large ones do not.",
    why: "A tunnel adds its own headers to each packet: 20 bytes for IP in IP, 50 for VXLAN and Geneve, 60 for WireGuard, over \
          IPv4, and 20 more over IPv6. If the MTU of the tunnel's link leaves no room for them, the largest packets are fragmented \
          or dropped. It happens where nodes have different links, or where the MTU of the link is lowered later. The link of a \
          pod has two ends: the node's end and the pod's own take no packet that is larger than their MTU, and say nothing to its \
          sender.",
    verify: "The MTU of the tunnel's link and its headers must not exceed the MTU of the link to the other nodes; both ends of the link \
             of a pod have the same MTU.",
    commands: &[
        Example::on_node("ip -d link"),
        Example::on_node("ping -c 1 -M do -s 1400 ADDRESS").with(&["ADDRESS"]),
    ],
    fix: Text::plain(
        "Lower the MTU in the network plugin's configuration, or let it find the MTU itself, and restart its pods; pods get the new MTU \
         when they are created again.",
    ),
    incidents: &["projectcalico/calico#2026: tunl0 has 8960, one node's link 1500"],
    needs: &[&[
        Item::Links,
        Item::Routes,
        Item::Rules,
        Item::Nodes,
        Item::Addresses,
        Item::Services,
        Item::EndpointSlices,
        Item::PodNetworks,
    ]],
    caused_by: &[],
    run: large_packets,
}];

fn large_packets(facts: &Facts<'_>) -> Verdict {
    let mut findings = Collector::default();
    findings.extend(pods(facts));
    findings.add(tunnels(facts));
    findings.verdict()
}

/// Returns the findings of pods whose link has another MTU at the node's end.
fn pods(facts: &Facts<'_>) -> Vec<Finding> {
    let links = facts
        .node
        .links()
        .map_or(&[][..], |links| links.all.as_slice());
    let mut findings = Vec::new();
    for network in facts.node.pod_networks().into_iter().flatten() {
        for (addr, _) in &network.by_link {
            let Some(inside) = network.link_with(*addr).filter(|link| link.kind == "veth") else {
                continue;
            };
            let far =
                |link: &&Link| Some(link.index) == inside.peer && link.peer == Some(inside.index);
            let Some(port) = links.iter().find(far).filter(|port| port.mtu > 0) else {
                continue;
            };
            if port.mtu == inside.mtu || inside.mtu == 0 {
                continue;
            }
            let ports = facts.owners().ports().iter();
            let of_pod = ports.filter(|port| {
                let mut all = port.endpoints.iter();
                all.any(|endpoint| endpoint.addr.ip() == *addr)
            });
            let services: BTreeSet<ServiceRef> =
                of_pod.map(|port| ServiceRef::from(&port.name)).collect();
            findings.extend(pod_link((port, inside), (*addr, network.pid), services));
        }
    }
    findings
}

/// Returns the finding of the link of the pod with this address and process: its ends at the node and in the pod.
fn pod_link(
    (port, inside): (&Link, &Link),
    (addr, pid): (IpAddr, u32),
    services: BTreeSet<ServiceRef>,
) -> Option<Finding> {
    if addr.is_loopback() || is_link_local(addr) {
        return None;
    }
    let (severity, message, command) = if port.mtu < inside.mtu {
        (
            Severity::Warning,
            format!(
                "packets to pod {addr} of more than {} bytes are lost: that is the MTU of {}, and in the pod {} has {}",
                port.mtu, port.name, inside.name, inside.mtu
            ),
            format!("ip link set dev {} mtu {}", port.name, inside.mtu),
        )
    } else {
        // TCP sends no larger segments than the receiver's MTU allows.
        (
            Severity::Info,
            format!(
                "datagrams to pod {addr} of more than {} bytes are lost: that is the MTU of {} in the pod, and {} of the node has {}",
                inside.mtu, inside.name, port.name, port.mtu
            ),
            format!(
                "nsenter --net=/proc/{pid}/ns/net ip link set dev {} mtu {}",
                inside.name, port.mtu
            ),
        )
    };
    let finding = Finding::new(severity, Subject::link(&port.name), message)
        .evidence([
            link_proof(port, &format!("mtu {}", port.mtu)),
            link_proof(inside, &format!("mtu {}", inside.mtu)),
        ])
        .services(services)
        .fix(Fix::on_node(
            "Set one MTU in the network plugin's configuration, and recreate the pod. Until then:",
            command,
        ));
    Some(finding)
}

fn tunnels(facts: &Facts<'_>) -> Verdict {
    let links = &facts.node.links()?.all;
    let tunnels = links.iter().filter_map(|link| {
        let is_up = link.mtu > 0 && link.flag("UP") == Some(true);
        // Cilium and OVS set the MTU in routes.
        let counts = is_up && !link.external && link.is_tunnel();
        Some((link, tunnel_overhead(link).filter(|_| counts)?))
    });
    let tunnels: Vec<_> = tunnels.collect();
    if tunnels.is_empty() {
        return Err(Gap::NotApplicable(
            "the node has no tunnel to other nodes".to_owned(),
        ));
    }
    let own = &facts.node.addresses()?.all;
    let router = Router::new(facts.node);
    let known = &facts.node.routes()?.all;
    let ranges = ranges_of_all_pods(facts.node);
    // A machine may have tunnels that carry no packets of pods.
    let leads_to_pods = |link: &Link| {
        let mut own = known
            .iter()
            .filter(|route| route.device.as_ref() == Some(&link.name));
        own.any(|route| {
            ranges
                .iter()
                .any(|range| range.contains(route.destination.addr))
        })
    };
    let tunnels: Vec<_> = tunnels
        .into_iter()
        .filter(|(link, _)| leads_to_pods(link))
        .collect();
    if tunnels.is_empty() {
        return Err(Gap::NotApplicable(
            "no tunnel of the node leads to pods".to_owned(),
        ));
    }
    let nodes = facts.node.nodes()?;
    let internal = nodes.iter().flat_map(|node| &node.status.addresses);
    let internal = internal.filter(|internal| internal.kind == "InternalIP");
    let internal = internal.filter_map(|internal| internal.address.parse::<IpAddr>().ok());
    let others = internal.filter(|at| own.iter().all(|address| address.addr.addr != *at));
    let carrying: BTreeSet<(Family, String)> = others
        .filter_map(|to| match router.decide(Lookup::to(Asked::new(to, None))) {
            Decision::Out { device, .. } => Some((Family::of(to), device?.to_string())),
            _ => None,
        })
        .collect();
    let carrier = |tunnel: &Link| {
        let carriers = links.iter().filter(|link| {
            let of = (outer_family(tunnel), link.name.clone());
            link.mtu > 0
                && carrying.contains(&of)
                && tunnels.iter().all(|(of, _)| of.name != link.name)
        });
        carriers.min_by_key(|link| link.mtu)
    };
    if tunnels.iter().all(|(link, _)| carrier(link).is_none()) {
        return Err(Gap::NotApplicable(
            "no other Node is reached by a link of the node".to_owned(),
        ));
    }
    let ports = facts.owners().ports().iter();
    let far = ports.filter(|port| {
        port.endpoints
            .iter()
            .any(|endpoint| endpoint.local == Some(false))
    });
    let services: BTreeSet<ServiceRef> = far.map(|port| ServiceRef::from(&port.name)).collect();
    let mut findings = Collector::default();
    for (link, overhead) in &tunnels {
        let Some(carrier) = carrier(link).filter(|carrier| link.mtu + overhead > carrier.mtu)
        else {
            continue;
        };
        // The packets of IP in IP may not be fragmented; fragments of UDP are rarely lost.
        let is_default = link.kind != "ipip" && link.mtu <= carrier.mtu;
        let (severity, what) = if is_default {
            (
                Severity::Info,
                "large packets to other nodes are sent in fragments",
            )
        } else {
            (
                Severity::Warning,
                "connections to other nodes may hang at large packets",
            )
        };
        let message = format!(
            "{what}: the MTU of {} is {}, and with {overhead} bytes of headers it exceeds the {} of {}, which carries it",
            link.name, link.mtu, carrier.mtu, carrier.name
        );
        findings.push(
            Finding::new(severity, Subject::link(&link.name), message)
                .evidence([link, carrier].map(|link| link_proof(link, &format!("mtu {}", link.mtu))))
                .services(services.clone())
                .fix(Fix::on_node(
                    "Set this MTU in the network plugin's configuration, or let it find the MTU itself, and restart its pods; pods get \
                     the new MTU when they are created again. Until then:",
                    format!(
                        "ip link set dev {} mtu {}",
                        link.name,
                        carrier.mtu.saturating_sub(*overhead)
                    ),
                )),
        );
    }
    findings.verdict()
}
