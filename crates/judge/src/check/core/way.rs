//! Fixes of routes and routing policy rules.

use std::net::IpAddr;

use crate::check::{Fix, Line};
use crate::trace::route::is_rejecting;
use crate::verdict::{Diversion, Diverter, Home, Odd, OddWay};
use kpx_node::cluster::{Pod, Service, TargetRef};
use kpx_node::net::{Cidr, Family};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::routes::PolicyRule;
use kpx_node::words::listed;

/// The fix if two Nodes have the same range of pods.
pub(in crate::check) const RANGE_OF_ITS_OWN: &str = "Drain the Node that loses the range, delete its object, and let the machine \
    register again: it then gets its own range.";

/// Returns the fix of two Nodes that have one MAC address at their tunnel `link`.
pub(in crate::check) fn one_mac_fix(link: &str) -> Fix {
    if link.ends_with(".calico") {
        return Fix::kubectl(
            "Remove the annotation from one of the Nodes, and restart its pod of calico-node, which then takes an address of its own.",
            Line::with(
                "kubectl annotate node NODE projectcalico.org/VXLANTunnelMACAddr- projectcalico.org/VXLANTunnelMACAddrV6-",
                &["NODE"],
            ),
        );
    }
    Fix::kubectl(
        format!(
            "Give one of the machines a machine-id of its own (remove /etc/machine-id, run systemd-machine-id-setup): systemd makes the \
             address from it. Or exclude flannel's links from MACAddressPolicy in a .link file of systemd. Then run `ip link delete \
             {link}` there, and restart flannel's pod of that node."
        ),
        "kubectl get nodes -o custom-columns=NODE:.metadata.name,MACHINE:.status.nodeInfo.machineID",
    )
}

/// Returns the fix of `WireGuard` `link` that does not take addresses of Nodes.
pub(in crate::check) fn wireguard_fix(link: &str) -> Fix {
    match link {
        "wireguard.cali" | "wg-v6.cali" => Fix::kubectl(
            "Let WireGuard carry the packets of the nodes, too, or set `natOutgoing: true` in the IP pools of the pods, so that nodes see \
             the address of the pod's node.",
            "kubectl patch felixconfiguration default --type merge -p '{\"spec\":{\"wireguardHostEncryptionEnabled\":true}}'",
        ),
        _ if link.starts_with("flannel-wg") => Fix::said(
            "Start flannel with --ip-masq, so that nodes see the address of the pod's node.",
        ),
        _ => Fix::on_node(
            "Add the address to the peer's allowed IPs, in the configuration of the software that made the link.",
            format!("wg show {link} allowed-ips"),
        ),
    }
}

/// Returns the fix of pods with addresses of another Node; the routes are right.
pub fn home_fix(home: &Home) -> Fix {
    let text = format!(
        "Keep the route: the pods on {} need it. The container runtime uses the first file of /etc/cni/net.d: remove those that the \
         network plugin did not write, then recreate the pods of this node and their bridge.",
        home.node
    );
    Fix::on_node(text, "ls /etc/cni/net.d; cat /etc/cni/net.d/*")
}

/// Returns the fix of `node`, whose container runtime has no network configuration.
pub fn unnetworked_fix(node: &str) -> Fix {
    Fix::kubectl(
        format!(
            "Restart the network plugin's pod on node {node}: it writes the configuration in /etc/cni/net.d. If it is not there, install \
             the plugin again."
        ),
        format!("kubectl get pods -A -o wide --field-selector spec.nodeName={node}"),
    )
}

/// Returns that `nodes` have no address of `family`, which the pods in the network of their Nodes would have, too.
pub fn without_family(family: Family, nodes: &[String]) -> String {
    let (nodes, have) = match nodes {
        [node] => (format!("Node {node}"), "has"),
        nodes => (format!("Nodes {}", listed(nodes)), "have"),
    };
    format!("use the network of their Nodes, and {nodes} {have} no {family} address")
}

/// Returns the fix of Nodes without an address of `family`.
pub fn host_family_fix(family: Family) -> Fix {
    Fix::kubectl(
        format!(
            "Give the kubelets of these Nodes an {family} address, too (--node-ip=IPV4,IPV6; with a cloud provider, the machine's addresses \
             there), restart them, and create the pods again; or create the Service with the family that the Nodes have (ipFamilies)."
        ),
        "kubectl get nodes -o jsonpath='{range .items[*]}{.metadata.name} {.status.addresses}{\"\\n\"}{end}'",
    )
}

/// Returns the fix of a pod in the network of its node whose port another program has.
pub fn taken_fix() -> Fix {
    Fix::on_node(
        "Stop the program, also at boot (`systemctl disable --now`), or give one of the two another port: a pod in the network of its node \
         shares the ports of the node.",
        "ss -lntup",
    )
}

/// Returns that the kubelets of `nodes` no longer report, and what that does to pods.
pub fn no_report(nodes: &[String]) -> String {
    let (kubelets, nodes) = match nodes {
        [node] => ("kubelet", format!("node {node}")),
        nodes => ("kubelets", format!("nodes {}", listed(nodes))),
    };
    let verb = if kubelets == "kubelet" {
        "reports"
    } else {
        "report"
    };
    format!("the {kubelets} of {nodes} no longer {verb}, so no pod there counts as ready")
}

/// Returns the fix of `nodes`, whose kubelets no longer report.
pub fn silent_fix(nodes: &[String]) -> Fix {
    Fix::kubectl(
        "Leave the pods alone: they may still run. Find out on the nodes why kubelet does not reach the API server, with \
         `journalctl -u kubelet`: the server's address or load balancer, a certificate, or the machine itself.",
        format!("kubectl describe node {}", nodes.join(" ")),
    )
}

/// Returns the fix of `pod`, as `NAMESPACE/NAME`, whose containers are ready and whose condition `Ready` is not.
pub fn stale_fix(pod: &str) -> Fix {
    Fix::delete_pod(
        "Delete the pod, so that its controller makes another one, or restart kubelet on its node, which then sets the condition again.",
        pod,
    )
}

/// Returns the fix of probes whose answers the kernel drops, as the pods have network cards of their own on AWS.
pub fn early_demux_fix() -> Fix {
    Fix::kubectl(
        "Let the AWS VPC CNI set net.ipv4.tcp_early_demux to 0 when it starts on a node, or POD_SECURITY_GROUP_ENFORCING_MODE to standard, with \
         which probes do not pass the card.",
        "kubectl -n kube-system patch daemonset aws-node -p '{\"spec\":{\"template\":{\"spec\":{\"initContainers\":[{\"name\":\
         \"aws-vpc-cni-init\",\"env\":[{\"name\":\"DISABLE_TCP_EARLY_DEMUX\",\"value\":\"true\"}]}]}}}}'",
    )
}

/// Returns the fix of clients on the node for which no route leads to the Service address `to`.
pub fn no_route_fix(to: IpAddr) -> Fix {
    Fix::on_node(
        "Give the node a default route, or a route to the Service range by any link with an address: kube-proxy's rules translate the \
         destination after the kernel has found one.",
        format!("ip route get {to}"),
    )
}

/// Returns the fix of packets to `range`, the pods of another Node, that do not leave by its address `by`. `own` is this node's address
/// in the range and its link, if they are the reason.
pub fn way_there_fix(
    range: Cidr,
    by: IpAddr,
    own: Option<&(Cidr, String)>,
    tunnel: Option<&str>,
    odd: Option<&OddWay>,
) -> Fix {
    if let Some(odd) = odd
        && let Some(fix) = odd_way_fix(odd, by)
    {
        return fix;
    }
    let link = tunnel.map_or_else(String::new, |link| format!(" dev {link} onlink"));
    let route = format!("ip route replace {range} via {by}{link}");
    match own {
        Some((own, link)) => Fix::on_node(
            "Remove the address, whose route hides the one by the other Node; that of a network of Docker with `docker network rm`, or \
             \"bip\" in /etc/docker/daemon.json for docker0. If a pod of this node has an address of that range, recreate it: the network \
             plugin has given it an earlier range of this node, or another Node's.",
            format!("ip addr del {own} dev {link} && {route}"),
        ),
        None => Fix::on_node(
            match odd.map(|odd| &odd.why) {
                Some(Odd::NextHop { .. }) => {
                    "Let the route lead to that node alone, also where it is configured."
                }
                _ => {
                    "Add the route now, then repair what sets the routes to pods: the network plugin, or the Nodes' podCIDRs."
                }
            },
            route,
        ),
    }
}

/// Returns the fix of a way to another node, with the address `by`, that may lead elsewhere; `None` if it lacks a
/// route.
fn odd_way_fix(odd: &OddWay, by: IpAddr) -> Option<Fix> {
    if let Some(route) = &odd.hider {
        return Some(Fix::on_node(
            "Remove the route, also where it is configured: a network plugin that no longer runs here may have left it.",
            route.removal(),
        ));
    }
    Some(match &odd.why {
        Odd::End { link, kind, .. } => Fix::on_node(
            "Let the tunnel end at the other node, also where it is configured.",
            format!("ip link set {link} type {kind} remote {by}"),
        ),
        Odd::Announced { annotation, .. } => tunnel_address_fix(annotation),
        Odd::Shared { .. } => Fix::said(RANGE_OF_ITS_OWN),
        Odd::Outside { .. } => Fix::said(
            "Find out on its node which configuration in /etc/cni/net.d made the pod, for example one that was there before the network \
             plugin, and delete the pod: the network plugin gives the next one an address of its range.",
        ),
        Odd::Default => Fix::said(
            "If the routers between the nodes do not know the ranges of pods, let the network plugin use tunnels to Nodes outside of this \
             network (flannel: backend vxlan, with DirectRouting for the others; Calico: CrossSubnet).",
        ),
        Odd::LeftOver { link, .. } => Fix::on_node(
            "Remove the link, if nothing on the node needs it.",
            format!("ip link del {link}"),
        ),
        Odd::Rule {
            bypass: Some(bypass),
            ..
        } => bypass_fix(bypass),
        Odd::Rule {
            rule, bypass: None, ..
        } => diversion_fix(rule.removal(), None),
        Odd::Tunnel { link } => Fix::on_node(
            "Find out what made the route by the tunnel, and let it leave out the ranges of this cluster's pods.",
            format!("ip route show dev {link}"),
        ),
        Odd::Unlearned { .. } => Fix::on_node(
            "Look which BGP sessions of BIRD are not Established. A BGPPeer whose nodeSelector or peerSelector matches no Node makes no \
             session: a new release may have removed the label. A firewall may drop TCP port 179. Set no static routes: they would stay when \
             BIRD has its own again.",
            "calicoctl node status",
        ),
        Odd::NoRoutes | Odd::NextHop { .. } => return None,
        Odd::OtherTable { table } => Fix::on_node(
            "Find out what fills the table, and let it leave the ranges of this cluster's pods to table main.",
            format!("ip route show table {table}"),
        ),
    })
}

/// Returns the fix of the wrong address of a Node for tunnels, which `annotation` announces.
pub(super) fn tunnel_address_fix(annotation: &str) -> Fix {
    Fix::kubectl(
        "Name the link or the network of the nodes' own addresses in the network plugin's configuration (--iface of flanneld; \
         IP_AUTODETECTION_METHOD of Calico: kubernetes-internal-ip, or interface=NAME), and restart its pods.",
        format!("kubectl get nodes -o yaml | grep {annotation}"),
    )
}

/// Returns the fix of a missing or wrong route to the endpoint `to`.
pub fn route_fix(to: IpAddr) -> Fix {
    Fix::on_node(
        "Repair the network plugin's routes; its pods run on every node.",
        format!("ip route get {to}"),
    )
}

/// Returns the fix of a diversion on `node`.
pub fn diverter_fix(node: &NodeSnapshot<'_>, of: &Diversion) -> Fix {
    bird_fix(node, of).unwrap_or_else(|| diversion_fix(of.by.removal(), of.by.daemon()))
}

/// Returns the fix of a blackhole route of BIRD, by what it covers: addresses of Services that Calico announces, or the block of addresses
/// of this node's own pods. `None` if it is neither.
fn bird_fix(node: &NodeSnapshot<'_>, of: &Diversion) -> Option<Fix> {
    let Diverter::Route(route) = &of.by else {
        return None;
    };
    if route.daemon() != Some("bird") || !is_rejecting(route) {
        return None;
    }
    let end = of.end.ip();
    let mut services = node.services().ok()?.iter();
    if let Some(field) = services.find_map(|service| announced_by(service, end)) {
        let instead = if field == "serviceClusterIPs" {
            "remove the range there, as routers do not need cluster IPs to reach a Service"
        } else {
            "let them use the Service's cluster IP"
        };
        return Some(Fix::kubectl(
            format!(
                "Calico announces this range of Service addresses ({field} of its BGPConfiguration), and BIRD makes the route for it again when \
                 it is deleted. Clients on the node itself meet the route before kube-proxy's rules: {instead}. Without Calico, change \
                 bird.conf."
            ),
            "kubectl get bgpconfigurations.crd.projectcalico.org -o yaml",
        ));
    }
    let own = node.name().ok()?;
    let pods = node.pods().ok()?.iter();
    let own_pods: Vec<&Pod> = pods
        .filter(|pod| pod.spec.node_name.as_ref() == Some(&own) && !pod.spec.host_network)
        .collect();
    let in_block = |pod: &&Pod| pod.addresses().any(|at| route.destination.contains(at));
    if !own_pods.iter().any(in_block) {
        return None;
    }
    let is_right = "The route is right: it covers the block of addresses of this node's pods.";
    if let Some(pod) = own_pods.iter().find(|pod| pod.has_ip(end)) {
        let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
        return Some(Fix::kubectl(
            format!(
                "{is_right} The more specific route to pod {namespace}/{name} is missing: delete the pod, so that Calico sets up the next \
                 one."
            ),
            format!("kubectl -n {namespace} delete pod {name}"),
        ));
    }
    let mut endpoints = node
        .slices()
        .ok()?
        .iter()
        .flat_map(|slice| &slice.endpoints);
    let is_it = |text: &String| text.parse() == Ok(end);
    let endpoint = endpoints.find(|endpoint| endpoint.addresses.iter().any(is_it))?;
    let there = endpoint.node_name.as_ref()?;
    let TargetRef {
        namespace, name, ..
    } = endpoint.target_ref.as_ref()?;
    Some(Fix::kubectl(
        format!(
            "{is_right} Pod {namespace}/{name} on {there} has borrowed an address of that block, as no block was free for {there}, and no \
             more specific route leads to it. Add an IP pool, or one with smaller blocks, and delete the pod; with strictAffinity in \
             Calico's IPAMConfig, Nodes do not borrow."
        ),
        format!("kubectl -n {namespace} delete pod {name}"),
    ))
}

/// Returns the field of Calico's `BGPConfiguration` that announces `address`, if it is one of `service`.
fn announced_by(service: &Service, address: IpAddr) -> Option<&'static str> {
    let is_it = |text: &str| text.parse() == Ok(address);
    let mut ingress = service.status.load_balancer.ingress.iter();
    if service.spec.cluster_ips.iter().any(|text| is_it(text)) {
        Some("serviceClusterIPs")
    } else if ingress.any(|at| at.ip.as_deref().is_some_and(is_it)) {
        Some("serviceLoadBalancerIPs")
    } else {
        let mut external = service.spec.external_ips.iter();
        external
            .any(|text| is_it(text))
            .then_some("serviceExternalIPs")
    }
}

/// Returns the fix of a route or routing policy rule that diverts packets, which the command `removal` removes; `daemon` makes it again.
pub(super) fn diversion_fix(removal: String, daemon: Option<&str>) -> Fix {
    match daemon {
        None => Fix::on_node(
            "Remove the route or rule, also where it is configured, if nothing else on the node needs it.",
            removal,
        ),
        Some("bird") => Fix::kubectl(
            "BIRD makes the route again when it is deleted. Calico's BIRD has a blackhole route for each block of addresses of the node: \
             if the block is another node's now, delete its affinity to this node. Without Calico, change bird.conf.",
            "kubectl get blockaffinities.crd.projectcalico.org",
        ),
        Some("zebra" | "bgp" | "ospf" | "isis" | "rip" | "babel" | "eigrp") => Fix::on_node(
            "FRR makes the route again when it is deleted: remove it in FRR's configuration, or filter it there if another router sends it.",
            "vtysh -c 'show running-config'",
        ),
        Some("dhcp" | "ra") => Fix::on_node(
            "A router or DHCP server of the network sends the route, which returns with the next message: stop it there, or let the node's \
             network manager ignore it (UseRoutes=no in systemd-networkd). Until then:",
            removal,
        ),
        Some(who) => Fix::on_node(
            format!(
                "{who} made the route, and may make it again: remove it in the configuration of {who}. Until then:"
            ),
            removal,
        ),
    }
}

/// Returns the fix of a routing policy rule that diverts packets to pods of the node, with the rule that leads them past it.
pub fn bypass_fix(bypass: &PolicyRule) -> Fix {
    // The priorities of its rules, and the numbers of its tables.
    let of_cloud_setup = [30200..30300, 30400..30500];
    if of_cloud_setup
        .iter()
        .any(|all| all.contains(&(bypass.priority + 1)))
    {
        return Fix::on_node(
            "Rules with this priority are those of nm-cloud-setup (NetworkManager), whose tables lack the routes to pods: disable it, and \
             restart the node, or delete its rules and tables.",
            "systemctl disable --now nm-cloud-setup.service nm-cloud-setup.timer",
        );
    }
    Fix::on_node(
        "Let packets to pods look up table main before the rule that leads them elsewhere. Repeat it at boot, or set it in \
         the configuration of the program that made that rule.",
        bypass.addition(),
    )
}
