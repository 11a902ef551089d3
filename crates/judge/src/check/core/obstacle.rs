//! Obstacles to connections: their owners, and how to remove them.

use super::rule::{limit_fix, rule_fix};
use super::slices::listed_fix;
use super::tunnel::{accepting, off_tunnel_fix, tunnel_fix};
use super::way::{
    RANGE_OF_ITS_OWN, bypass_fix, diversion_fix, home_fix, one_mac_fix, tunnel_address_fix,
    way_there_fix, wireguard_fix,
};
use crate::check::{Advice, Fix, Line};
use crate::trace::Subsystem;
use crate::verdict::{
    AddressHolder, Arp, DEFAULT_RANGE, DEFAULT_TTL, FilterReason, LinkState, Obstacle, PORT_RANGE,
    RESERVED_PORTS, SameNetworkAs, SilentMachine, Stranger, Wayless, WrongMac, accept_ra_of,
    disable_ipv6_of, is_of_vpn, sysctl_of,
};
use kpx_node::backend::chain_owner::{docker_network, is_aws_branch};
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::net::{Cidr, Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::routes::{Route, program};

/// The range of cluster IPs in a command, where it is not known.
const SERVICES: &str = "SERVICES";

/// Returns the fix of a neighbour table that may have `most` entries by the sysctl `key`.
pub(in crate::check) fn neighbours_fix(key: &str, most: u64) -> Fix {
    let settings = key.trim_end_matches("gc_thresh3");
    Fix::on_node(
        "Raise the sysctls, and write them to a file of /etc/sysctl.d to make them persistent.",
        format!(
            "sysctl -w {settings}gc_thresh2={most} {key}={}",
            most.saturating_mul(2)
        ),
    )
}

/// The last port of the kernel's own range minus its first one.
const DEFAULT_COUNT: u16 = 60_999 - 32_768;

/// The fix if the node does not have the address of its Node.
pub(in crate::check) const HOME_GONE: &str = "Give the machine its address back, or start its kubelet again, with --node-ip where it has \
    several, so that the Node gets the new one; then restart the network plugin's pod here.";

/// The fix if a link does not answer ARP.
const ARP_ON: &str = "Turn ARP on at the link, and find out what turned it off.";

/// The fix if rules of a pod redirect packets to a port at which nothing listens.
const SIDECAR: &str = "A proxy in the pod (a service mesh's sidecar) should listen at port {}: check its container, restart the \
    pod, and let the sidecar start before the application.";

/// Returns the fix of a range of client ports that is too small.
pub(in crate::check) fn port_range_fix() -> Fix {
    Fix::on_node(
        "Set the sysctl to the kernel's own range, also in a file of /etc/sysctl.d.",
        format!("sysctl -w {PORT_RANGE}='{DEFAULT_RANGE}'"),
    )
}

/// Returns the fix of too many reserved ports.
pub(in crate::check) fn reserved_ports_fix() -> Fix {
    Fix::on_node(
        "Reserve fewer ports, also in the file of /etc/sysctl.d that sets this: clients get none of these.",
        format!("sysctl -w {RESERVED_PORTS}="),
    )
}

/// Returns the fix of `what`: the permanent one, and a command that helps at once.
pub fn obstacle_fix(what: &Obstacle) -> Fix {
    match what {
        Obstacle::LinkForwarding { link } => sysctl(link, "forwarding", 1),
        Obstacle::Forgotten { key, usual } => Fix::on_node(
            "Set the timeout in seconds, also in /etc/sysctl.d.",
            format!("sysctl -w {key}={usual}"),
        ),
        Obstacle::ReversePath {
            even_loose: true,
            source,
            link,
            ..
        } => Fix::on_node(
            "Give the node a route to the source by that link. Without one, only rp_filter 0, of the link and of `all`, lets the packets in.",
            format!(
                "ip route get {source}; sysctl net.ipv4.conf.all.rp_filter {}",
                sysctl_of(link, "rp_filter")
            ),
        ),
        Obstacle::ReversePath {
            because: Some(FilterReason::InPodRange { .. }),
            ..
        } => Fix::kubectl(
            "Set clusterCIDR to the range of the pods in kube-proxy's configuration, then restart kube-proxy.",
            "kubectl -n kube-system edit configmap kube-proxy",
        ),
        Obstacle::ReversePath {
            because: Some(FilterReason::VpcCni),
            ..
        } => Fix::kubectl(
            "Let aws-node support NodePorts: it sets rp_filter of the primary interface to 2, and leads replies back by it with a \
             connection mark. If the variable is true already, restart aws-node.",
            "kubectl -n kube-system set env daemonset aws-node AWS_VPC_CNI_NODE_PORT_SUPPORT=true",
        ),
        Obstacle::ReversePath { link, .. } => sysctl(link, "rp_filter", 2),
        Obstacle::Proxied {
            by,
            program,
            ranges,
            knows_services,
            ..
        } => {
            let mut commands: Vec<String> = ranges
                .iter()
                .map(|range| by.rule.spare(&by.program, &range.to_string()))
                .collect();
            let mut text = format!(
                "Leave the ranges of pods and Services out of the rules for {program}, also in the configuration that writes them."
            );
            if !knows_services {
                commands.push(by.rule.spare(&by.program, SERVICES));
                text.push_str(" SERVICES is the range of cluster IPs (--service-cluster-ip-range of the API server).");
            }
            let command = commands.join(" && ");
            Fix::on_node(text, command)
        }
        Obstacle::FullNeighbours { key, most, .. } => neighbours_fix(key, *most),
        Obstacle::NoLocalPort {
            to: None,
            pod: Some((_, pid)),
            ..
        } => Fix::on_node(
            "Reserve fewer ports, also in the pod's securityContext (sysctls): clients in it get none of these.",
            format!("nsenter --net=/proc/{pid}/ns/net sysctl -w {RESERVED_PORTS}="),
        ),
        Obstacle::NoLocalPort {
            pod: Some((_, pid)),
            ..
        } => Fix::on_node(
            "Let the clients in the pod keep their connections, or spread them over more pods or addresses; until then, give the pod all \
             ports that it may have, lastingly in its securityContext (sysctls).",
            format!("nsenter --net=/proc/{pid}/ns/net sysctl -w {PORT_RANGE}='1024 65535'"),
        ),
        Obstacle::NoLocalPort {
            first,
            last,
            reserved,
            ..
        } if *reserved * 2 > usize::from(last - first) => reserved_ports_fix(),
        Obstacle::NoSourcePort { .. } => Fix::said(
            "Let the clients keep and reuse their connections, or spread them over more endpoints or nodes. Connections that are not \
             masqueraded need no such port: externalTrafficPolicy Local keeps the clients' addresses.",
        ),
        Obstacle::NoLocalPort { first, last, .. } if last - first >= DEFAULT_COUNT => Fix::said(
            "The range is the kernel's own, or larger: let the clients keep their connections, or connect from more addresses.",
        ),
        Obstacle::NoLocalPort { .. } => port_range_fix(),
        Obstacle::RouteBack {
            home: Some(home), ..
        } => home_fix(home),
        Obstacle::RouteBack {
            before: Some(rule), ..
        } => bypass_fix(rule),
        Obstacle::RouteBack {
            route: Some(route), ..
        } => Fix::on_node(
            "Remove the route, also where it is configured.",
            route.removal(),
        ),
        Obstacle::RouteBack {
            pod, link, network, ..
        } => {
            let to = network.map_or_else(|| pod.to_string(), |network| network.to_string());
            Fix::on_node(
                "Restart the network plugin's pod on this node: it makes the routes to pods. Until then:",
                format!("ip route replace {to} dev {link}"),
            )
        }
        Obstacle::Xfrm { policies, .. } => {
            let all: Vec<_> = policies
                .iter()
                .map(|policy| format!("ip xfrm policy delete {policy}"))
                .collect();
            let text = if policies.iter().all(|policy| policy.blocks) {
                "Remove the policy here and in the configuration of the program that sets it."
            } else {
                "Restart the program that sets up IPsec on this node and its peer, so that it makes the security associations \
                 (`ip xfrm state list nokeys` lists them). If IPsec is not in use any more, remove the policy, also in the \
                 configuration of that program."
            };
            Fix::on_node(text, all.join("; "))
        }
        Obstacle::Tc {
            link,
            filter: Some(filter),
            ..
        } => Fix::on_node(
            "Remove the filter here and in the configuration of the program that sets it.",
            format!(
                "tc filter del dev {link} {} protocol {} pref {}",
                filter.hook, filter.protocol, filter.pref
            ),
        ),
        Obstacle::Tc {
            link,
            inside: Some((_, pid)),
            ..
        } => Fix::on_node(
            "End the experiment that set it (Chaos Mesh, Litmus, `tc netem`), or delete the pod; until then, remove the qdisc.",
            format!("nsenter --net=/proc/{pid}/ns/net tc qdisc del dev {link} root"),
        ),
        Obstacle::Tc {
            link, filter: None, ..
        } => Fix::on_node(
            "Remove the qdisc here and in the configuration of the program that sets it.",
            format!("tc qdisc del dev {link} root"),
        ),
        Obstacle::Link {
            link,
            inside: Some((_, pid)),
            state: LinkState::NoArp,
        } => Fix::on_node(
            ARP_ON,
            format!("nsenter --net=/proc/{pid}/ns/net ip link set {link} arp on"),
        ),
        Obstacle::Link {
            inside: Some((_, pid)),
            state: LinkState::IgnoresArp(key),
            ..
        } => Fix::on_node(
            "Let the link answer ARP, also in what sets the sysctl of the pod.",
            format!("nsenter --net=/proc/{pid}/ns/net sysctl -w {key}=0"),
        ),
        Obstacle::Link {
            link,
            inside: Some((_, pid)),
            ..
        } => Fix::on_node(
            "Delete the pod, so that the network plugin makes its link and routes again; a link that is set up has lost its routes.",
            format!("nsenter --net=/proc/{pid}/ns/net ip link show dev {link}"),
        ),
        Obstacle::Link { link, state, .. } => match state {
            LinkState::Down => link_up(link),
            LinkState::NoArp | LinkState::IgnoresArp(_) => {
                Fix::on_node(ARP_ON, format!("ip link set {link} arp on"))
            }
            LinkState::NoCarrier => Fix::on_node(
                "Bring the other end up: the cable or switch of a network card, the link inside the pod of a veth.",
                format!("ip -d link show dev {link}"),
            ),
            LinkState::Blocked(_) => Fix::on_node(
                "Let the port forward, and find out what blocks it: spanning tree, or a network manager.",
                format!("bridge link set dev {link} state 3"),
            ),
            LinkState::NoPortOf(bridge) => Fix::on_node(
                "Put the link back into the bridge with the modes that its other ports have, or delete the pod, so that the network \
                 plugin makes its link again.",
                format!("ip link set dev {link} master {bridge}"),
            ),
        },
        Obstacle::SameNetwork {
            link,
            others: SameNetworkAs::Client { way, .. },
            ..
        } => Fix::on_node(
            format!(
                "Give {link} a range that no client has (\"bip\" in /etc/docker/daemon.json for docker0). The command leads replies to this \
                 client out of the node until the next reboot."
            ),
            way.replacement(),
        ),
        Obstacle::SameNetwork {
            link,
            address,
            others: SameNetworkAs::PodsOf { range, by, .. },
        } => {
            let own = (*address, link.clone());
            way_there_fix(*range, *by, Some(&own), None, None)
        }
        Obstacle::SameNetwork {
            link,
            others: SameNetworkAs::Endpoint(_),
            ..
        } if let Some(network) = docker_network(link) => Fix::on_node(
            "Give this network of Docker another range, or remove it: `networks` of the compose file has it, and default-address-pools in \
             /etc/docker/daemon.json the ranges of new ones.",
            format!("docker network inspect {network}"),
        ),
        Obstacle::SameNetwork { link, address, .. } => Fix::on_node(
            "Remove the address, also where it is configured: \"bip\" in /etc/docker/daemon.json for docker0.",
            format!("ip addr del {address} dev {link}"),
        ),
        Obstacle::NoBridge { .. } => Fix::on_node(
            "Delete the pods of this node that have an address of their own: the network plugin makes the bridge again with the first pod, \
             and those that run stay cut off. Then find out what removed the bridge: a network manager, or a script.",
            "ip -d link show type bridge; ls /etc/cni/net.d",
        ),
        Obstacle::Strayed {
            pid,
            link,
            range: Some(range),
            kind,
            ..
        } if !is_of_vpn(kind) => Fix::on_node(
            format!(
                "Give the pod's network at {link} addresses outside of the ranges of pods, Services and nodes, or remove the route to \
                 {range}: the NetworkAttachmentDefinition of Multus, or what else made {link}, has both. Then create the pod again."
            ),
            format!("nsenter --net=/proc/{pid}/ns/net ip route show dev {link} table all"),
        ),
        Obstacle::Strayed { pid, link, .. } => Fix::on_node(
            format!(
                "Let the ranges of pods, Services and nodes leave by the pod's own link, in the settings of what made the route by {link}: \
                 FIREWALL_OUTBOUND_SUBNETS of gluetun, AllowedIPs of WireGuard, default-route of Multus."
            ),
            format!("nsenter --net=/proc/{pid}/ns/net ip route show dev {link} table all"),
        ),
        Obstacle::Gatewayless { pid, route, .. } => Fix::on_node(
            "Correct the network plugin's configuration: the range of pods, or a route that it gives them, contains addresses of Services. Then \
             create the pods again.",
            format!("nsenter --net=/proc/{pid}/ns/net ip route show {route}"),
        ),
        Obstacle::Beside { kind, .. } => Fix::said(format!(
            "Give the pod a second link that the node routes, for the ranges of Services and pods, or connect to its address from another \
             machine: a link of type {kind} and the link that it is on do not talk to each other."
        )),
        Obstacle::InsideRoute {
            pid,
            by: Some((_, removal)),
            ..
        } => Fix::on_node(
            "Remove it in the pod's network, and in the container or network plugin that sets it.",
            format!("nsenter --net=/proc/{pid}/ns/net {removal}"),
        ),
        Obstacle::InsideRoute { pid, .. } => Fix::on_node(
            "Delete the pod, so that the network plugin makes its routes again.",
            format!("nsenter --net=/proc/{pid}/ns/net ip route"),
        ),
        Obstacle::OtherSource {
            pod, pid, route, ..
        } => Fix::on_node(
            "Let the route have the pod's address as its source, also in the container or network plugin that sets it.",
            format!(
                "nsenter --net=/proc/{pid}/ns/net {}",
                route.with_source(*pod)
            ),
        ),
        Obstacle::Ended { .. } => Fix::kubectl(
            "kube-controller-manager updates EndpointSlices: check that it runs and leads. One that was made by hand has to be corrected \
             by hand.",
            "kubectl -n kube-system get lease kube-controller-manager -o yaml",
        ),
        Obstacle::Unanswered {
            address,
            link,
            inside: Some((_, pid)),
            ..
        } => Fix::on_node(
            "Delete the pod, so that the network plugin makes its routes again: nothing answers for this next hop.",
            format!("nsenter --net=/proc/{pid}/ns/net ip route get {address} oif {link}"),
        ),
        Obstacle::DeadNextHop { route, .. } => Fix::on_node(
            "Bring the next hop back, or remove it from the route, also where the route is configured.",
            format!("ip route show {}", route.destination),
        ),
        Obstacle::ThirdNode {
            route,
            rule: None,
            home: Some(home),
            ..
        } => Fix::on_node(
            "Let the route lead to the node of the pods, then repair what sets the routes to pods: the network plugin.",
            format!("ip route replace {} via {home}", route.destination),
        ),
        Obstacle::KeptByRoute { route, .. } if route.kind == "broadcast" => Fix::on_node(
            "The kernel made the route with an address whose broadcast address is wrong: set that address again without it, also where it \
             is configured.",
            route.removal(),
        ),
        Obstacle::KeptByRoute { route, rule, .. }
        | Obstacle::ThirdNode { route, rule, .. }
        | Obstacle::Detour { route, rule, .. } => match rule {
            Some(rule) => diversion_fix(rule.removal(), None),
            None => diversion_fix(route.removal(), route.daemon()),
        },
        Obstacle::Limited { limit, by } => limit_fix(limit, by),
        Obstacle::IntoTunnel { link, route, .. } => managed_fix(link, route),
        Obstacle::ReplyAway {
            route,
            is_vpn: false,
            ..
        } => managed_fix(route.devices().first().unwrap_or(&"the link"), route),
        Obstacle::ReplyAway {
            client,
            wire,
            route,
            rule,
            gateway,
            ..
        } => {
            let past = rule
                .as_ref()
                .and_then(|rule| rule.bypass(Cidr::host(*client)));
            let command = match (past, gateway) {
                (Some(past), _) => past.addition(),
                (None, Some(gateway)) => {
                    let ip = program(Family::of(*client));
                    format!("{ip} route add {client} via {gateway} dev {wire}")
                }
                (None, None) => route.removal(),
            };
            Fix::on_node(
                format!(
                    "Lead the packets for {client} to {wire}. For all clients, let the VPN leave the default route alone, or leave out their \
                     networks (OpenVPN: route-nopull; WireGuard: AllowedIPs; others: split tunnel)."
                ),
                command,
            )
        }
        Obstacle::PastLocal { link, .. } if is_aws_branch(link) => Fix::kubectl(
            "Set POD_SECURITY_GROUP_ENFORCING_MODE to standard, and create the pods with security groups anew: their packets then pass the \
             node.",
            "kubectl -n kube-system set env daemonset aws-node POD_SECURITY_GROUP_ENFORCING_MODE=standard",
        ),
        Obstacle::PastLocal { rule, .. } => Fix::on_node(
            "Let what made the rule give it a priority behind that of the table local. The rules:",
            format!("{} rule", program(rule.family)),
        ),
        Obstacle::HiddenRoute { route, .. }
            if let Some(network) = route.device.as_deref().and_then(docker_network) =>
        {
            Fix::on_node(
                format!(
                    "The bridge is of a Docker network, whose subnet overlaps the pods' range: remove that network (`docker network rm \
                     {network}`), or give it another subnet. Until then, remove the route; Docker makes it again when it starts."
                ),
                route.removal(),
            )
        }
        Obstacle::HiddenRoute { route, .. } => Fix::on_node(
            "Remove the route, also where it is configured: a network plugin that no longer runs here may have left it.",
            route.removal(),
        ),
        Obstacle::Arp { link, by } => match by {
            Arp::Off => Fix::on_node(
                "Turn ARP on at the link, also where the link is configured.",
                format!("ip link set {link} arp on"),
            ),
            Arp::Ignored(key) => Fix::on_node(
                "Set the sysctl to 0, or to 1 for strict ARP, also in a file of /etc/sysctl.d.",
                format!("sysctl -w {key}=0"),
            ),
            Arp::Strict { key, .. } => Fix::on_node(
                "Set ipvs.strictARP to false in kube-proxy's configuration unless MetalLB or kube-vip needs it, and the sysctl to 0, also in \
                 a file of /etc/sysctl.d; or let the network plugin give the links of pods the gateway's address.",
                format!("sysctl -w {key}=0"),
            ),
            Arp::Unsolicited { by, .. } if by.closes || by.policies.is_some() => {
                let command = accepting(by, Family::V6, "-p icmpv6", "meta l4proto ipv6-icmp");
                let text = if by.policies.is_some() {
                    "No NetworkPolicy can allow neighbour discovery: the agent that writes these rules has to accept it. Upgrade the agent; \
                     until then, accept ICMPv6 before them."
                } else {
                    "Accept ICMPv6 (IPv6 needs neighbour discovery and Packet Too Big), also in the configuration of the firewall."
                };
                Fix::on_node(text, command.unwrap_or_else(|| by.listing.clone()))
            }
            Arp::There { node, by, .. } => rule_fix(by).at(node),
            // The policy stays.
            Arp::Dropped(by) if by.rule.number == 0 => Fix::on_node(
                "Accept ARP messages before the policy of the chain, also in the configuration that sets it.",
                match by.rule.subsystem {
                    Subsystem::Arptables => {
                        format!("{} -I {} -j ACCEPT", by.program, by.rule.chain)
                    }
                    _ => format!(
                        "nft insert rule {} {} {}accept",
                        by.rule.table,
                        by.rule.chain,
                        if by.rule.table.starts_with("bridge ") {
                            "ether type arp "
                        } else {
                            ""
                        }
                    ),
                },
            ),
            Arp::Dropped(by) | Arp::Unsolicited { by, .. } => rule_fix(by),
        },
        Obstacle::Tunnel {
            by: Some(by),
            carrier,
            peer,
            incoming,
            ..
        } => tunnel_fix(by, *carrier, *peer, *incoming),
        Obstacle::Tunnel {
            route: Some(route), ..
        } => diversion_fix(route.removal(), route.daemon()),
        Obstacle::Tunnel { peer, .. } => Fix::on_node(
            "Correct the rule that stops the packets of the tunnel.",
            format!("kpx trace {peer} --source host"),
        ),
        Obstacle::Ttl { pod, .. } => {
            let command = format!("sysctl -w {DEFAULT_TTL}=64");
            match pod {
                None => Fix::on_node(
                    "Set the sysctl to the kernel's own value, also in a file of /etc/sysctl.d.",
                    command,
                ),
                Some((_, pid)) => Fix::on_node(
                    "Set the sysctl in the pod, and remove it from what sets it there: the pod's securityContext, or the \
                     tuning plugin.",
                    format!("nsenter --net=/proc/{pid}/ns/net {command}"),
                ),
            }
        }
        Obstacle::FullQueue { .. } => Fix::said(
            "The program hangs, or is too slow for its clients: look at its log, and restart the pod.",
        ),
        Obstacle::Unanswered {
            address,
            link,
            silent: Some(SilentMachine::PodHere(_)),
            there: None,
            ..
        } => Fix::on_node(
            format!(
                "Give the pod a first link that the node routes, and keep the one on {link} as a second one (Multus), or give the node a \
                 macvlan link of its own on {link} with routes to the pods: a card does not pass packets between itself and such links."
            ),
            format!("ip route get {address}; ip -d link show type macvlan"),
        ),
        Obstacle::Unanswered {
            silent: Some(SilentMachine::ApiServer),
            there: None,
            ..
        } => Fix::kubectl(
            "Each API server renews its own address in this Service, and the others remove one that is not renewed, unless their \
             --endpoint-reconciler-type is master-count: then lower --apiserver-count. If the lease of a server is renewed that should be \
             gone, it still runs and announces this address (--advertise-address).",
            "kubectl -n kube-system get leases -l apiserver.kubernetes.io/identity=kube-apiserver",
        ),
        Obstacle::Unanswered {
            silent: Some(SilentMachine::Node(node)),
            there: None,
            ..
        } => Fix::kubectl(
            format!(
                "Bring the machine of Node {node} back. If it is gone for good, delete the Node: then its pods' endpoints end, and \
                 controllers start other pods."
            ),
            format!("kubectl describe node {node}"),
        ),
        Obstacle::Unanswered {
            silent:
                Some(SilentMachine::Listed {
                    slice,
                    service,
                    writer,
                }),
            there: None,
            ..
        } => listed_fix(slice, service, writer),
        Obstacle::Unanswered {
            there: Some(there), ..
        } => way_there_fix(
            there.range,
            there.by,
            there.own.as_ref(),
            there.tunnel.as_deref(),
            there.odd.as_ref(),
        ),
        Obstacle::Unanswered {
            address,
            link,
            inside: None,
            there: None,
            silent: None,
        } => Fix::on_node(
            "Bring the machine or pod with the address back, or its link: nothing answers for it.",
            format!("ping -c 1 -I {link} {address}"),
        ),
        Obstacle::OnLink { link, .. } => Fix::on_node(
            "Give the pods a network outside the range of Services in the network plugin's configuration, and recreate them.",
            format!("ip -4 address show {link}; cat /etc/cni/net.d/*"),
        ),
        Obstacle::TwoPods {
            pods: [_, other], ..
        } => Fix::delete_pod(
            "Delete one of the two pods: its successor gets an address of its own. The network plugin has assigned one address \
             twice; find out why, for example files that it lost or a range that two nodes share.",
            other,
        ),
        Obstacle::OffTunnel {
            link,
            state,
            agent,
            error,
            ..
        } => off_tunnel_fix((link, state), agent.as_deref(), error.as_deref()),
        Obstacle::NoCloudRoute { .. } => Fix::kubectl(
            "The events have the reason why the provider's controller (cloud-controller-manager) made no route: the limit of the route \
             table, a permission, another route with this range, or a machine that it does not find by the Node's name or zone. It tries \
             again by itself.",
            "kubectl get events -A --field-selector reason=FailedToCreateRoute",
        ),
        Obstacle::BlockedByCloud { .. } => Fix::kubectl(
            "Let Calico carry packets in VXLAN instead: vxlanMode: Always and ipipMode: Never in the IP pool. They take effect on all nodes \
             within seconds.",
            "kubectl get ippools.crd.projectcalico.org -o yaml",
        ),
        Obstacle::NoPeer {
            agent: Some(agent), ..
        } => Fix::delete_pod(
            "Restart the network plugin's pod on this node: it writes the entries for the other nodes from their Nodes' annotations.",
            agent,
        ),
        Obstacle::NoPeer { link, address, .. } => Fix::on_node(
            format!(
                "No network plugin that kpx knows made {link}. Remove the route by it, if another one leads to the pods, or let what made it \
                 add the other node: `ip neigh replace {address} lladdr MAC dev {link}` and `bridge fdb append MAC dev {link} dst NODE`. \
                 The entries that it has:"
            ),
            format!("bridge fdb show dev {link}"),
        ),
        Obstacle::TunnelSource {
            agent: Some(agent), ..
        } => Fix::delete_pod(
            "Restart the network plugin's pod on this node: it makes the tunnel anew, with the address that the Node has now.",
            agent,
        ),
        Obstacle::OtherMac {
            address,
            link,
            of_pod: true,
            inside: Some((_, pid)),
            ..
        } => Fix::on_node(
            "Remove the entry, also where it is configured; the pod then asks for the address.",
            format!("nsenter --net=/proc/{pid}/ns/net ip neigh del {address} dev {link}"),
        ),
        Obstacle::OtherMac {
            address,
            link,
            has: (mac, _),
            inside: Some((_, pid)),
            ..
        } => Fix::on_node(
            "The address of the link was changed after the pod was made. Keep it in a .link file of systemd \
             (MACAddressPolicy=none for veth links) and recreate the pod. Until then:",
            format!(
                "nsenter --net=/proc/{pid}/ns/net ip neigh replace {address} lladdr {mac} dev {link} nud permanent"
            ),
        ),
        Obstacle::OtherMac {
            address,
            link,
            twin: Some((node, there)),
            ..
        } => Fix::on_node(
            format!(
                "Remove the address, and what sets it there. Then let this node ask for it again (`ip neigh del {address} dev {link}`): an \
                 entry that is removed before lasts until the next answer."
            ),
            format!("ip addr del {address} dev {there}"),
        )
        .at(node),
        Obstacle::OtherMac { address, link, .. } => Fix::on_node(
            "Remove the entry, also where it is configured; the node then asks for the address.",
            format!("ip neigh del {address} dev {link}"),
        ),
        Obstacle::NoGateway {
            gateway,
            bridge,
            ipv6_off: true,
        } => {
            let key = disable_ipv6_of(bridge);
            Fix::on_node(
                "Turn IPv6 on at the bridge, and give it its address back. Find out what turned it off: a network manager \
                 (`ipv6.method=disabled`: it should leave the bridge alone), or a file of /etc/sysctl.d.",
                format!("sysctl -w {key}=0 && ip addr add {gateway} dev {bridge}"),
            )
        }
        Obstacle::NoGateway {
            gateway, bridge, ..
        } => Fix::on_node(
            "Give the bridge its address back, and find out what took it: a network manager, or a restart of networking. The network \
             plugin sets it with the next pod that it makes here.",
            format!("ip addr add {gateway} dev {bridge}"),
        ),
        Obstacle::TunnelSource { agent: None, .. } | Obstacle::HomeGone { .. } => {
            Fix::said(HOME_GONE)
        }
        Obstacle::Duplicate { address, link } => Fix::on_node(
            "Find the other machine with the address, and give it another one; then set the address here again.",
            format!("ip -6 addr del {address} dev {link} && ip -6 addr add {address} dev {link}"),
        ),
        Obstacle::HeldElsewhere {
            holder: AddressHolder::All(_),
            ..
        } => Fix::kubectl(
            "Take the address from the pool of the load balancers, so that the Service gets another one: with avoidBuggyIPs: true, MetalLB \
             never assigns the last address of a network, nor the first.",
            "kubectl get ipaddresspools.metallb.io -A -o yaml",
        ),
        Obstacle::HeldElsewhere {
            holder: AddressHolder::Gateway(_),
            ..
        } => Fix::kubectl(
            "Take the address from the pool of the load balancers, so that the Service gets another one: machines of the network look for \
             their gateway there.",
            "kubectl get ipaddresspools.metallb.io -A -o yaml",
        ),
        Obstacle::HeldElsewhere { address, link, .. } => Fix::on_node(
            "Give the other machine another address, or take this one from the pool of the load balancers; no DHCP server may have it. \
             The command shows every machine that answers.",
            format!("arping -c 3 -I {link} {address}"),
        ),
        Obstacle::KeptHere { pod, node, .. } => Fix::delete_pod(
            format!(
                "Find out on node {node} which configuration in /etc/cni/net.d made the pod (the runtime uses the first file), remove the \
                 ones that the network plugin did not write, and delete the pod: the next one gets an address of its node's range."
            ),
            pod,
        ),
        Obstacle::DuplicateInside { pod, .. } => Fix::delete_pod(
            "Delete the pod: its successor gets another address. Then find out why the network plugin assigned one that is in use.",
            pod,
        ),
        Obstacle::AddressGone { pod, .. } => Fix::delete_pod(
            "Delete the pod: its successor gets an address. Find out what took it: a container with the right to change the pod's \
             network, or a program on the node.",
            pod,
        ),
        Obstacle::NoLocalRoute {
            address,
            link,
            inside,
        } => {
            let command = format!("ip route add local {address} dev {link} table local");
            Fix::on_node(
                "Add the route that the kernel makes when a link gets an address, and find out what deleted it.",
                match inside {
                    Some((_, pid)) => format!("nsenter --net=/proc/{pid}/ns/net {command}"),
                    None => command,
                },
            )
        }
        Obstacle::OwnEnd { pid, at, end, .. } if at == end => Fix::on_node(
            "Remove the address from the pod's network, and from what sets it there.",
            format!(
                "nsenter --net=/proc/{pid}/ns/net ip -br address; nsenter --net=/proc/{pid}/ns/net ip route get {}",
                at.ip()
            ),
        ),
        Obstacle::OwnEnd { end, .. } => Fix::said(SIDECAR.replace("{}", &end.port().to_string())),
        Obstacle::SameTunnelEnd { annotation, .. }
        | Obstacle::ForeignTunnelEnd { annotation, .. }
        | Obstacle::InnerTunnelEnd { annotation, .. } => tunnel_address_fix(annotation),
        Obstacle::TunnelMac {
            link,
            wrong: WrongMac::Same | WrongMac::OfTwo { .. },
            ..
        } => one_mac_fix(link),
        Obstacle::TunnelMac {
            wrong: WrongMac::SharedRange(_),
            ..
        } => Fix::said(RANGE_OF_ITS_OWN),
        Obstacle::TunnelMac {
            node,
            link,
            wrong: WrongMac::Sent,
            ..
        } => Fix::on_node(
            format!(
                "Restart the network plugin on {node}, so that it announces the address of its link, then on the nodes that keep the former \
                 one. To keep an address, exclude such links from MACAddressPolicy in a .link file of systemd. The entries of this node:"
            ),
            format!("ip neigh show dev {link}"),
        ),
        Obstacle::TunnelMac { node, wrong, .. } => {
            let text = if *wrong == WrongMac::Own {
                "Restart flannel on this node, so that it announces the link's address. To keep the address, exclude flannel's \
                 links from MACAddressPolicy in a .link file of systemd."
            } else {
                "Restart flannel on this node, so that it reads what the other Node announces; if that is not what the other \
                 node's link has, restart flannel there first."
            };
            Fix::kubectl(
                text,
                format!("kubectl get node {node} -o yaml | grep flannel.alpha.coreos.com/backend"),
            )
        }
        Obstacle::UnallowedSource { link, .. } => wireguard_fix(link),
        Obstacle::ProxyArp {
            gateway,
            no_route: true,
            ..
        } => Fix::on_node(
            "Give the node a default route, or a route to the gateway by a link to other nodes, also where its network is configured.",
            Line::with(format!("ip route add {gateway}/32 dev LINK"), &["LINK"]),
        ),
        Obstacle::ProxyArp { link, .. } => Fix::on_node(
            "Turn proxy ARP on at the pod's link; the network plugin does so when it makes the link, so find out what turned it off.",
            format!("sysctl -w {}=1", sysctl_of(link, "proxy_arp")),
        ),
        Obstacle::Wayless {
            by: Wayless::NoMain(family),
            ..
        } => {
            let ip = match family {
                Family::V4 => "ip",
                Family::V6 => "ip -6",
            };
            Fix::on_node(
                "Add the rule again. systemd-networkd removes rules that it did not make: if it manages the node's links, set \
                 ManageForeignRoutingPolicyRules=no in /etc/systemd/networkd.conf.",
                format!("{ip} rule add lookup main priority 32766"),
            )
        }
        Obstacle::Wayless {
            by: Wayless::Down(link),
            ..
        } => link_up(link),
        Obstacle::Wayless {
            by: Wayless::NoIpv6,
            ..
        } => Fix::said(
            "Remove ipv6.disable=1 from the kernel's command line, or load module ipv6, and restart the machine; or give the Services IPv4 \
             alone (ipFamilyPolicy SingleStack).",
        ),
        Obstacle::Wayless {
            by: Wayless::Ipv6Off(link),
            ..
        } => ipv6_fix(link),
        Obstacle::Wayless {
            by: Wayless::NoAdvertisements(link),
            ..
        } => {
            let key = accept_ra_of(link);
            let text = format!(
                "Accept router advertisements while the node forwards: the next one brings the route. Write `{key} = 2` to a file of \
                 /etc/sysctl.d to make it persistent, or configure a default route."
            );
            Fix::on_node(text, format!("sysctl -w {key}=2"))
        }
        Obstacle::Bound {
            server,
            real,
            proto,
            ends,
            ..
        } => {
            let kind = if *proto == Proto::Udp { "-u" } else { "-t" };
            let delete = format!("ipvsadm -d {kind} {server} -r {real}");
            let text = "Remove the real server; its entries end with it.";
            if *ends {
                return Fix::on_node(text, delete);
            }
            Fix::on_node(
                format!(
                    "{text} Set the sysctl so that affinity ends with the weight, also in /etc/sysctl.d."
                ),
                format!("sysctl -w net.ipv4.vs.expire_quiescent_template=1 && {delete}"),
            )
        }
        Obstacle::Deaf { at, end, .. } if at != end => {
            Fix::said(SIDECAR.replace("{}", &end.port().to_string()))
        }
        Obstacle::Deaf {
            stranger: Some(of), ..
        } => selector_fix(of),
        Obstacle::Deaf { bound: Some(_), .. } => Fix::said(
            "Let the program listen on all links (0.0.0.0 or [::] without a link, SO_BINDTODEVICE).",
        ),
        Obstacle::Deaf {
            instead: Some(proto),
            ..
        } => Fix::said(format!(
            "Set the protocol of the Service's port to {}, or let the program in the pod listen for the one that it has.",
            proto.to_string().to_uppercase()
        )),
        Obstacle::Deaf { at, listens, .. }
            if listens.iter().any(|listen| listen.port() == at.port()) =>
        {
            Fix::said(
                "Let the program in the pod listen at all addresses: 0.0.0.0, or [::] for IPv6.",
            )
        }
        Obstacle::Deaf { .. } => Fix::said(
            "Correct the Service's targetPort, or let the program in the pod listen at this port.",
        ),
        Obstacle::Inside { pid, by, reply, .. } if by.closes => Fix::on_node(
            "Let the packets pass before it, by a setting of the program in the pod that made the rules (gluetun has FIREWALL_INPUT_PORTS \
             and FIREWALL_OUTBOUND_SUBNETS): it ends what no rule before it lets pass.",
            format!(
                "nsenter --net=/proc/{pid}/ns/net {}",
                match by.passes.first() {
                    Some(pass) if by.is_of_input || *reply => &pass.before,
                    _ => &by.listing,
                }
            ),
        ),
        Obstacle::Inside { pid, by, .. } => {
            let command = by.undo.as_ref().unwrap_or(&by.listing);
            Fix::on_node(
                "Remove the rule in the pod's network, and in the container or network plugin that sets it.",
                format!("nsenter --net=/proc/{pid}/ns/net {command}"),
            )
        }
        Obstacle::Further {
            missing: Some((range, by, _)),
            ..
        } => way_there_fix(*range, *by, None, None, None),
        Obstacle::Further { by: Some(by), .. } => rule_fix(by),
        Obstacle::Further { to, .. } => Fix::on_node(
            "Correct the route or the rule that ends the replies.",
            format!("ip route get {to}"),
        ),
        Obstacle::Isolated { bridge } => Fix::on_node(
            "Set portIsolation to false in the network plugin's configuration, which new pods follow, and turn isolation off \
             at the ports.",
            format!("for port in /sys/class/net/{bridge}/brif/*/isolated; do echo 0 >$port; done"),
        ),
        Obstacle::Taken {
            address,
            link,
            inside: Some((_, pid)),
            ..
        } => Fix::on_node(
            "Remove the address from the pod's network, also where it is configured.",
            format!("nsenter --net=/proc/{pid}/ns/net ip addr del {address} dev {link}"),
        ),
        Obstacle::Taken { address, link, .. } => Fix::on_node(
            "Remove the address from the node, also where it is configured.",
            format!("ip addr del {address} dev {link}"),
        ),
    }
}

/// Returns the fix of a route by a link that leads to pods alone.
fn managed_fix(link: &str, route: &Route) -> Fix {
    Fix::on_node(
        format!(
            "Remove the route, and let what made it leave {link} alone: a DHCP client or a network manager may take the link for a network \
             card (`denyinterfaces` in dhcpcd.conf, `unmanaged-devices` in NetworkManager.conf)."
        ),
        route.removal(),
    )
}

/// Returns the fix of a Service whose selector matches pods of a workload that it is not for.
pub fn selector_fix(of: &Stranger) -> Fix {
    let (selected, meant) = (&of.selected, &of.meant);
    let text = match (&of.label, of.both) {
        (Some(label), true) => format!(
            "Add {label} to the selector, which the pods of {meant} alone have, or remove the label that it matches from {selected}."
        ),
        (Some(label), false) => {
            format!("Let the selector match the pods of {meant}: they have {label}.")
        }
        (None, _) => format!(
            "Give the pods of {meant} a label in their template that those of {selected} do not have, and add it to the selector."
        ),
    };
    let advice = Advice::Edit {
        resource: "service",
        namespace: of.service.namespace.to_string(),
        name: of.service.name.to_string(),
    };
    Fix::new(text, advice)
}

/// Returns the fix of a `link` that is down.
fn link_up(link: &str) -> Fix {
    Fix::on_node(
        "Set the link up, and find out what set it down: the journal of the kernel and of the network manager. Routes that the kernel \
         did not make come back with the network manager.",
        format!("ip link set dev {link} up"),
    )
}

/// Returns the setting of kube-ipvs0 with which the kernel of `node` refuses IPv6 addresses there; a new link has the value of
/// `default`.
pub fn ipv6_refusal(node: &NodeSnapshot<'_>) -> Option<String> {
    let links = node.links().ok();
    let has_link = links.is_none_or(|links| links.all.iter().any(|link| link.name == DUMMY));
    let link = if has_link { DUMMY } else { "default" };
    let is_off = node.sysctl().ok()?.get(&disable_ipv6_of(link)) == Some("1");
    is_off.then(|| disable_ipv6_of(DUMMY))
}

/// Returns the fix of a `link` at which IPv6 is off.
pub fn ipv6_fix(link: &str) -> Fix {
    let key = disable_ipv6_of(link);
    let at = if link == "all" {
        "all links"
    } else {
        "the link"
    };
    let text = format!(
        "Turn IPv6 on at {at}, then restart what sets its addresses (the network manager, the network plugin, kube-proxy). Write \
         `{key} = 0` to a file of /etc/sysctl.d to make it persistent; net.ipv6.conf.default.disable_ipv6 is for links that are made \
         later."
    );
    Fix::on_node(text, format!("sysctl -w {key}=0"))
}

/// Returns the fix of ports of `bridge` that do not send packets back to where they came from.
pub fn hairpin_fix(bridge: &str) -> Fix {
    Fix::on_node(
        "Set hairpinMode to true in the network plugin's configuration, which new pods follow, and turn the mode on at the ports of those \
         that run.",
        format!("for port in /sys/class/net/{bridge}/brif/*/hairpin_mode; do echo 1 >$port; done"),
    )
}

/// Returns the fix of a sysctl of `link`, with the file that makes it last.
fn sysctl(link: &str, name: &str, value: u8) -> Fix {
    let key = sysctl_of(link, name);
    let text = format!(
        "Set the sysctl, and write `{key} = {value}` to a file of /etc/sysctl.d to make it persistent."
    );
    Fix::on_node(text, format!("sysctl -w {key}={value}"))
}
