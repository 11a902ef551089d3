//! How to repair the tunnels of network plugins.

use std::net::IpAddr;

use super::rule::{port_fix, rule_fix};
use crate::check::Fix;
use crate::verdict::{By, PortHolder, TunnelState};
use kpx_node::net::{Family, Proto};

/// Where flannel's configuration is.
const FLANNEL: &str = "kubectl get configmaps -A -l app=flannel -o yaml";

/// Returns the fix of a tunnel's `link` that does not carry the packets of pods; `agent` is the network plugin's pod on the node, as
/// `NAMESPACE/NAME`, and `error` that with which it ends each time.
pub(super) fn off_tunnel_fix(
    (link, state): (&str, &TunnelState),
    agent: Option<&str>,
    error: Option<&str>,
) -> Fix {
    let pod = agent.map(|agent| agent.split_once('/').unwrap_or(("kube-system", agent)));
    match state {
        TunnelState::OtherNetwork { windows: true, .. } => Fix::kubectl(
            "Give all nodes the same VNI in flannel's net-conf.json, and restart flannel on all of them. Windows needs \"VNI\": 4096 and \
             \"Port\": 4789 in \"Backend\".",
            FLANNEL,
        ),
        TunnelState::OtherNetwork { .. } => Fix::kubectl(
            "Give all nodes the same VNI in flannel's net-conf.json, and restart flannel on all of them.",
            FLANNEL,
        ),
        TunnelState::OtherPort { .. } => Fix::on_node(
            "Give the tunnels of all nodes one UDP port in the network plugin's configuration, and restart its pods: a link keeps the port \
             that it was made with.",
            format!("ip -d link show {link}"),
        ),
        TunnelState::NoRouteOfVpn => Fix::on_node(
            "Let the VPN lead the pods of all nodes: approve the routes that the nodes advertise there (Tailscale: in its admin console), and \
             accept them on this node. The routes that it has:",
            format!("ip route show table all dev {link}"),
        ),
        TunnelState::OtherBackend { .. } => Fix::kubectl(
            "Give all nodes the same backend in flannel's net-conf.json (k3s: --flannel-backend of the servers), and restart flannel on \
             all of them: each keeps the backend with which it started.",
            FLANNEL,
        ),
        TunnelState::Down {
            held_by: Some(PortHolder::Program(program)),
        } => {
            let then = match agent {
                Some(agent) => format!("Then delete pod {agent}: the next one brings the link up."),
                None => "Then restart the network plugin: it brings the link up.".to_owned(),
            };
            Fix::on_node(
                format!(
                    "Give {program} another UDP port, or the tunnels of all nodes one (\"Port\" in \"Backend\" of flannel's net-conf.json). \
                     {then} What has the port:"
                ),
                "ss -lunp",
            )
        }
        _ if error.is_some_and(|error| error.contains("not supported")) => Fix::on_node(
            format!(
                "The kernel cannot make {link}: install the package with its extra modules (linux-modules-extra-$(uname -r) on Ubuntu and \
                 Raspberry Pi, kernel-modules-extra on RHEL and Fedora), or reboot if the running kernel's modules were removed by an \
                 upgrade."
            ),
            "modprobe vxlan",
        ),
        _ if let (Some((namespace, name)), Some(_)) = (pod, error) => Fix::kubectl(
            "Remove the cause that the log of the network plugin's pod names: the pod cannot start, and it makes the link and the routes.",
            format!("kubectl -n {namespace} logs --previous {name}"),
        ),
        TunnelState::Down {
            held_by: Some(PortHolder::Link(other)),
        } => Fix::on_node(
            "Delete the link, which another network plugin may have left behind, then restart the network plugin on this node.",
            format!("ip link del {other}"),
        ),
        TunnelState::Missing
        | TunnelState::Down { held_by: None }
        | TunnelState::NoRoute
        | TunnelState::NoGateway(_) => match agent {
            Some(agent) => Fix::delete_pod(
                "Restart the network plugin's pod on this node: it makes the link and the routes by it. Then find out what removed them: a \
                 network manager, or a restart of networking.",
                agent,
            ),
            None => Fix::said(
                "Restart the network plugin on this node (k3s and RKE2 have flannel in their own service): it makes the link and the routes \
                 by it. Then find out what removed them: a network manager, or a restart of networking.",
            ),
        },
    }
}

/// Returns the fix of rule `by`, which stops packets of a tunnel of `carrier`, a protocol and a port, from `peer` if they are
/// `incoming`, else to it. A firewall's last rule or policy stays: the packets are accepted before it.
pub(super) fn tunnel_fix(
    by: &By,
    (proto, port): (Proto, u16),
    peer: IpAddr,
    incoming: bool,
) -> Fix {
    if !by.closes {
        return rule_fix(by);
    }
    let of_firewall = incoming && proto == Proto::Udp;
    if let Some(fix) = of_firewall.then(|| port_fix(by, proto, port)).flatten() {
        return fix;
    }
    let (family, number) = (Family::of(peer), proto.number());
    let ip = family.nft_name();
    let (option, field) = if incoming {
        ("-s", "saddr")
    } else {
        ("-d", "daddr")
    };
    let (iptables, nft) = match proto {
        Proto::Udp => (
            format!("{option} {peer} -p udp --dport {port}"),
            format!("{ip} {field} {peer} udp dport {port}"),
        ),
        _ => (
            format!("{option} {peer} -p {number}"),
            format!("{ip} {field} {peer} meta l4proto {number}"),
        ),
    };
    match accepting(by, family, &iptables, &nft) {
        Some(command) => Fix::on_node(
            "Let the packets of the tunnel pass, for all nodes, also in the configuration of the firewall.",
            command,
        ),
        None => rule_fix(by),
    }
}

/// Returns the command that accepts packets of `family` before rule `by`. The packets are those that match `iptables`, or `nft`
/// in nftables.
pub(super) fn accepting(by: &By, family: Family, iptables: &str, nft: &str) -> Option<String> {
    let mut passes = by.passes.iter();
    let covers = passes.any(|pass| pass.family == family);
    covers.then(|| by.insertion.accept(iptables, nft))
}
