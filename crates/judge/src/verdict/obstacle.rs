//! Obstacles: settings, links and addresses that stop packets or their replies, whatever the rules say.

mod fate;
mod parts;
mod text;
mod tunnel;

use std::net::{IpAddr, SocketAddr};

use super::blocking_rule::By;
use super::link_state::LinkState;
use super::place::Home;
use super::stranger::Stranger;
use super::{Limit, WayThere};
use kpx_node::net::{Cidr, Proto};
use kpx_node::node::routes::{PolicyRule, Route};
use kpx_node::node::tc::Filter;
use kpx_node::node::xfrm::Policy;

pub use parts::{
    AddressHolder, Arp, DEFAULT_TTL, FilterReason, PortHolder, SameNetworkAs, SilentMachine,
    TunnelState, Wayless, Which, WrongMac,
};

/// An obstacle: it stops packets or their replies, and is not a rule.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Obstacle {
    /// Forwarding is off at a link, so that nothing that comes in by it is forwarded.
    LinkForwarding {
        /// The link.
        link: String,
    },
    /// A timeout of connection tracking is 0: connections are forgotten at once, and their replies are not translated back.
    Forgotten {
        /// The sysctl.
        key: &'static str,
        /// Its usual value, in seconds.
        usual: &'static str,
    },
    /// The strict reverse path filter of a link drops packets whose way back uses another link.
    ReversePath {
        /// The link by which they come in.
        link: String,
        /// Their source.
        source: IpAddr,
        /// The link that leads back; `None` if no route does.
        back: Option<String>,
        /// Whether a loose filter (2) drops them, too: those to which no route leads back, and at a link without an address those to
        /// which none by that link does.
        even_loose: bool,
        /// The reason why the packets take that way, if it is known.
        because: Option<FilterReason>,
    },
    /// The route to a pod of this node leads elsewhere than to the link of its packets.
    RouteBack {
        /// The pod's address.
        pod: IpAddr,
        /// The link of its packets.
        link: String,
        /// The network of that link, if it has one for several pods.
        network: Option<Cidr>,
        /// The link by which the replies leave, if it is known.
        way: Option<String>,
        /// The route that leads there, if it wins over one that leads back to the pod.
        route: Option<Box<Route>>,
        /// The routing policy rule that would lead packets to pods past a rule for the route's table.
        before: Option<Box<PolicyRule>>,
        /// The Node to which the address belongs, if that is another one: it needs the route.
        home: Option<Box<Home>>,
        /// Whether the client gets an error, for want of a route.
        refused: bool,
    },
    /// A link has the network of others, and the route to them leads there.
    SameNetwork {
        /// The link.
        link: String,
        /// Its address.
        address: Cidr,
        /// Who has the network, too.
        others: SameNetworkAs,
    },
    /// A route of type local keeps packets at the node, which does not have their destination.
    KeptByRoute {
        /// The route.
        route: Box<Route>,
        /// The routing policy rule that leads to its table.
        rule: Option<Box<PolicyRule>>,
    },
    /// A pod of another node has an address in the range of this node's pods, so packets for it do not leave the node.
    KeptHere {
        /// The address.
        address: IpAddr,
        /// The pod, as `NAMESPACE/NAME`.
        pod: String,
        /// Its Node.
        node: String,
        /// The link by which the packets leave.
        link: String,
        /// The network of this link, if that is a bridge inside the node, and not that of the node's pods.
        bridge: Option<Cidr>,
        /// The pod of this node that gets them.
        now: Option<String>,
    },
    /// A routing policy rule before the table local leads packets for an address of the node out.
    PastLocal {
        /// The address.
        address: IpAddr,
        /// The link that has it.
        holder: String,
        /// The link by which the packets leave.
        link: String,
        /// The rule.
        rule: Box<PolicyRule>,
    },
    /// Replies to a client leave by a link that leads to no router: a VPN, the network plugin's tunnel or the link of a pod.
    ReplyAway {
        /// The client.
        client: IpAddr,
        /// The address that it asks.
        address: IpAddr,
        /// The link with the network of this address.
        wire: String,
        /// The route of the replies.
        route: Box<Route>,
        /// The routing policy rule that leads to its table.
        rule: Option<Box<PolicyRule>>,
        /// Whether its link is a VPN.
        is_vpn: bool,
        /// The gateway of a default route by `wire`.
        gateway: Option<IpAddr>,
    },
    /// A route leads packets into a tunnel that is for packets to pods alone.
    IntoTunnel {
        /// The tunnel's link.
        link: String,
        /// The destination.
        to: IpAddr,
        /// The Node to which they are the tunnel's own packets; `None` for other packets.
        node: Option<String>,
        /// The route.
        route: Box<Route>,
    },
    /// The ports of a bridge are isolated from each other.
    Isolated {
        /// The bridge.
        bridge: String,
    },
    /// Policies of IPsec drop the packets or their replies.
    Xfrm {
        /// The policies.
        policies: Vec<Policy>,
        /// Whether the client gets an error.
        refused: bool,
    },
    /// A filter of traffic control drops the packets or their replies, or the qdisc of the link loses them.
    Tc {
        /// The link.
        link: String,
        /// The filter; `None` for the qdisc.
        filter: Option<Box<Filter>>,
        /// The pod in whose network it is, and a process there; `None` for a link of the node.
        inside: Option<(IpAddr, u32)>,
        /// Whether it drops the replies.
        reply: bool,
    },
    /// A link on the way carries nothing.
    Link {
        /// The link.
        link: String,
        /// The pod in whose network it is, and a process there; `None` for a link of the node.
        inside: Option<(IpAddr, u32)>,
        /// Why it carries nothing.
        state: LinkState,
    },
    /// The bridge of the pods does not exist.
    NoBridge {
        /// The gateway of the pods, which it had.
        gateway: IpAddr,
        /// The link of a pod that is no port of a bridge.
        link: String,
        /// The pod.
        pod: IpAddr,
    },
    /// Packets of a pod leave its network by a link that does not lead to the node.
    Strayed {
        /// The pod's address.
        pod: IpAddr,
        /// A process in it.
        pid: u32,
        /// The link, and its kind.
        link: String,
        /// The kind of the link.
        kind: String,
        /// The destination of the route by it; `None` for a default route.
        range: Option<Cidr>,
        /// The destination of the packets.
        to: IpAddr,
        /// Whether they are replies.
        reply: bool,
    },
    /// A rule hands packets of others to a transparent proxy of the node.
    Proxied {
        /// The rule.
        by: Box<By>,
        /// The port of the proxy.
        port: u16,
        /// The program.
        program: String,
        /// The ranges of pods and Services that the rule should leave alone.
        ranges: Vec<Cidr>,
        /// Whether the range of Services is one of them.
        knows_services: bool,
    },
    /// The neighbour table is full: packets to neighbours without an entry are dropped.
    FullNeighbours {
        /// The sysctl with the most entries.
        key: &'static str,
        /// The entries.
        entries: u64,
        /// The most entries.
        most: u64,
    },
    /// A pod looks for addresses of Services on its own link, where no machine has them: its route has no gateway.
    Gatewayless {
        /// The pod's address.
        pod: IpAddr,
        /// A process in it.
        pid: u32,
        /// The link in the pod.
        link: String,
        /// The destination of the route.
        route: Cidr,
    },
    /// The link of a pod is on a link of the node, whose rules its packets do not pass.
    Beside {
        /// The pod's address.
        pod: IpAddr,
        /// The kind of the link: `macvlan`.
        kind: String,
        /// The link of the node.
        parent: String,
        /// Whether the pod is the endpoint: the node itself does not reach it.
        reply: bool,
    },
    /// The network of a pod has no way to an address.
    InsideRoute {
        /// The pod's address.
        pod: IpAddr,
        /// A process in it.
        pid: u32,
        /// The address.
        to: IpAddr,
        /// The route or rule there that ends the packets, in words, and the command that removes it.
        by: Option<(String, String)>,
        /// Whether it ends the replies.
        reply: bool,
    },
    /// A route in the network of a pod gives its packets a source to which the node has no route by the pod's link.
    OtherSource {
        /// The pod's address.
        pod: IpAddr,
        /// A process in it.
        pid: u32,
        /// The source.
        source: IpAddr,
        /// The route.
        route: Box<Route>,
    },
    /// The provider's network has no route to the pods of a node, which no tunnel carries either.
    NoCloudRoute {
        /// The node.
        node: String,
        /// Whether that is the node that is asked, to which replies go.
        own: bool,
        /// The link by which the packets leave.
        link: String,
    },
    /// The network of the provider drops the packets of a tunnel to another node.
    BlockedByCloud {
        /// The tunnel's link.
        link: String,
        /// The other node.
        node: String,
        /// The provider.
        cloud: &'static str,
        /// The protocol of the tunnel's packets.
        proto: Proto,
    },
    /// The pod of an endpoint has ended.
    Ended {
        /// The endpoint.
        at: SocketAddr,
        /// The pod, as `NAMESPACE/NAME`.
        pod: String,
        /// Its phase, `Failed` or `Succeeded`; `None` if it was deleted.
        phase: Option<String>,
        /// The pod of another workload that has its address by now, as `NAMESPACE/NAME`.
        now: Option<String>,
    },
    /// Nothing answers for the next hop on a link.
    Unanswered {
        /// The next hop of the packets or of their replies.
        address: IpAddr,
        /// The link.
        link: String,
        /// The pod in whose network it is, and a process there; `None` for a link of the node.
        inside: Option<(IpAddr, u32)>,
        /// The way that packets to the pods of another node should take instead.
        there: Option<Box<WayThere>>,
        /// The machine that has it, if it is known.
        silent: Option<SilentMachine>,
    },
    /// A tunnel's link does not know to which node it is to send the packets for a next hop.
    NoPeer {
        /// The next hop of the packets or of their replies.
        address: IpAddr,
        /// The tunnel's link.
        link: String,
        /// Its kind: `vxlan`.
        kind: String,
        /// The pod of the network plugin on this node, as `NAMESPACE/NAME`, if it made the link.
        agent: Option<String>,
    },
    /// One of the next hops of a route does not answer.
    DeadNextHop {
        /// The next hop.
        address: IpAddr,
        /// The link.
        link: String,
        /// The route.
        route: Box<Route>,
    },
    /// A routing policy rule or a route leads packets to a next hop that does not answer, and hides another way.
    Detour {
        /// The destination of the packets or of their replies.
        to: IpAddr,
        /// The way that they take, in words.
        way: String,
        /// The way that they would take without it, in words.
        usual: String,
        /// The route.
        route: Box<Route>,
        /// The rule that leads to its table, if no next hop in that answers.
        rule: Option<Box<PolicyRule>>,
    },
    /// On a link, the node and its neighbours do not find each other by ARP.
    Arp {
        /// The link.
        link: String,
        /// The reason that prevents it.
        by: Arp,
    },
    /// A route leads packets to pods of another Node elsewhere than the less specific or less preferred one by that Node's address.
    HiddenRoute {
        /// The route.
        route: Box<Route>,
        /// The one that it hides.
        hidden: Box<Route>,
        /// The other Node.
        node: String,
    },
    /// The next hop of the packets or of their replies is a node that does not see the other direction, so it drops later packets as
    /// invalid.
    ThirdNode {
        /// The Node.
        node: String,
        /// Its address, the next hop.
        by: IpAddr,
        /// The route that leads there.
        route: Box<Route>,
        /// The routing policy rule that leads to its table.
        rule: Option<Box<PolicyRule>>,
        /// Whether it is that of the replies.
        reply: bool,
        /// The address of the Node by which they should leave, if it is known.
        home: Option<IpAddr>,
    },
    /// A rule drops the connections that exceed a limit.
    Limited {
        /// The limit.
        limit: Limit,
        /// The rule.
        by: Box<By>,
    },
    /// A tunnel has the address of no link.
    TunnelSource {
        /// The tunnel's link.
        link: String,
        /// The address from which it sends.
        address: IpAddr,
        /// The network plugin's pod on this node, as `NAMESPACE/NAME`, if the Node has another address by now.
        agent: Option<String>,
    },
    /// Rules stop the tunnel's packets, which carry packets of pods.
    Tunnel {
        /// The tunnel's link.
        link: String,
        /// The protocol of these packets, and their port; 0 for a protocol without ports.
        carrier: (Proto, u16),
        /// The Node at the other end.
        node: String,
        /// Its address there.
        peer: IpAddr,
        /// Whether those from it are stopped, or those to it.
        incoming: bool,
        /// Their end, in words.
        reason: String,
        /// The rule of other software that ends them.
        by: Option<Box<By>>,
        /// The route that rejects them.
        route: Option<Box<Route>>,
    },
    /// The time to live of packets ends before the last hop.
    Ttl {
        /// The TTL that they are sent with.
        ttl: u8,
        /// The pod that sends them, and a process there; `None` for the node.
        pod: Option<(IpAddr, u32)>,
    },
    /// The program at an endpoint takes no connections: waiting ones fill its queue.
    FullQueue {
        /// The endpoint.
        at: SocketAddr,
        /// The number of those that wait.
        waiting: u32,
        /// The most that may.
        most: u32,
        /// How many of its sockets are full, of how many: the kernel shares connections out between them.
        of_sockets: (usize, usize),
    },
    /// Packets after the first one end at this node, by a rule or for want of a route.
    Further {
        /// The kind of these packets.
        which: Which,
        /// The endpoint, of replies.
        from: IpAddr,
        /// The client, of replies.
        to: IpAddr,
        /// Their end, in words.
        reason: String,
        /// The route that is missing, if no route leads to the pods of the client's node: their range, that node's address, and the
        /// link to it.
        missing: Option<(Cidr, IpAddr, String)>,
        /// The rule of other software that ends them.
        by: Option<Box<By>>,
    },
    /// A Service address is in the network of the pods' own link: pods look for it there, and send nothing to the node.
    OnLink {
        /// The Service address.
        address: IpAddr,
        /// The link.
        link: String,
        /// Its network.
        network: Cidr,
    },
    /// Another pod has the address of the endpoint, too.
    TwoPods {
        /// The endpoint's address.
        address: IpAddr,
        /// The endpoint's pod and the other one, as `NAMESPACE/NAME`, in order.
        pods: [String; 2],
    },
    /// The Node of the packet's destination announces the same address for its tunnels as this one.
    SameTunnelEnd {
        /// The other Node.
        node: String,
        /// The address.
        address: IpAddr,
        /// The annotation that has it.
        annotation: &'static str,
    },
    /// A Node announces an address for its tunnels that it does not have.
    ForeignTunnelEnd {
        /// The Node.
        node: String,
        /// The address.
        address: IpAddr,
        /// The annotation that has it.
        annotation: &'static str,
    },
    /// This Node announces the address of a bridge of its own containers for its tunnels.
    InnerTunnelEnd {
        /// The bridge.
        link: String,
        /// The address.
        address: IpAddr,
        /// The annotation that has it.
        annotation: &'static str,
    },
    /// Packets to pods of another Node do not enter the tunnel that leads there.
    OffTunnel {
        /// The tunnel's link on this node.
        link: String,
        /// Its problem.
        state: TunnelState,
        /// The other Node.
        node: String,
        /// The pod's address.
        to: IpAddr,
        /// How they leave instead.
        way: String,
        /// The pod of the network plugin on this node, as `NAMESPACE/NAME`, if it is known.
        agent: Option<String>,
        /// With what its container ends each time that it starts.
        error: Option<String>,
    },
    /// A permanent neighbour entry has another MAC than the link that has its address.
    OtherMac {
        /// The address.
        address: IpAddr,
        /// The link with the entry.
        link: String,
        /// The MAC of the entry.
        used: String,
        /// The MAC of the link that has the address, and its name.
        has: (String, String),
        /// Whether that is the link of a pod, whose address others ask for.
        of_pod: bool,
        /// The pod whose entry it is, and a process in it; `None` for the node's own.
        inside: Option<(IpAddr, u32)>,
        /// Another node that has the address, too, and its link.
        twin: Option<(String, String)>,
    },
    /// The pod of an endpoint no longer has its address.
    AddressGone {
        /// The endpoint.
        at: SocketAddr,
        /// The pod, as `NAMESPACE/NAME`.
        pod: String,
    },
    /// A link has an address that the kernel does not take for its own, as table local has no route to it: it answers no neighbour that
    /// asks for it.
    NoLocalRoute {
        /// The address.
        address: IpAddr,
        /// Its link.
        link: String,
        /// The pod whose network that is, and a process in it; `None` for the node.
        inside: Option<(IpAddr, u32)>,
    },
    /// The node no longer has the address of its Node, to which other nodes send packets for its pods.
    HomeGone {
        /// The address.
        address: IpAddr,
        /// The Node.
        node: String,
        /// Whether the client gets an error, for want of a route.
        refused: bool,
    },
    /// IPv6 found another machine or pod with an address, so the kernel that has it does not use it.
    Duplicate {
        /// The address, with its prefix.
        address: Cidr,
        /// The link of the node that has it.
        link: String,
    },
    /// The address of a load balancer belongs to something else in the network of the nodes.
    HeldElsewhere {
        /// The address.
        address: IpAddr,
        /// The link to that network.
        link: String,
        /// What has it there.
        holder: AddressHolder,
    },
    /// The same of the address of a pod.
    DuplicateInside {
        /// The address.
        address: IpAddr,
        /// The pod, as `NAMESPACE/NAME`.
        pod: String,
    },
    /// In the client's own network, packets to a Service do not leave: they end there, where nothing listens.
    OwnEnd {
        /// The client.
        pod: IpAddr,
        /// A process in it.
        pid: u32,
        /// The address and port that they are sent to.
        at: SocketAddr,
        /// Where they end: elsewhere if a rule redirects them.
        end: SocketAddr,
    },
    /// The tunnel's link of a node has another MAC than its Node announces, or two links have the same: the node discards packets of
    /// the tunnel.
    TunnelMac {
        /// The Node that announces it.
        node: String,
        /// The tunnel's link on this node.
        link: String,
        /// The MAC that it announces.
        announced: String,
        /// The MAC that the link has, or of another Node: the one to which this node sends.
        used: String,
        /// The owner of the wrong MAC.
        wrong: WrongMac,
    },
    /// Replies to pods come through `WireGuard` from the address of a Node, which its ends do not take.
    UnallowedSource {
        /// The link of `WireGuard` on both nodes.
        link: String,
        /// The address.
        address: IpAddr,
        /// The Node that has it.
        server: String,
        /// The Node of the pods.
        client: String,
    },
    /// The node does not answer for the gateway of pods, an address that no machine has.
    ProxyArp {
        /// The gateway.
        gateway: IpAddr,
        /// The node's link to a pod.
        link: String,
        /// Whether proxy ARP is on, but the node has no route to the gateway.
        no_route: bool,
    },
    /// The bridge of the pods does not have the address that is their gateway.
    NoGateway {
        /// The gateway, with the prefix of the pods' network.
        gateway: Cidr,
        /// The bridge.
        bridge: String,
        /// Whether IPv6 is off at the bridge (`disable_ipv6`), so that it takes no address.
        ipv6_off: bool,
    },
    /// No way leads to an address, although routes or routers have one.
    Wayless {
        /// The reason.
        by: Wayless,
        /// Whether the client gets an error.
        refused: bool,
    },
    /// An entry of IPVS binds a client to a real server that is no endpoint any more.
    Bound {
        /// The client.
        client: IpAddr,
        /// The virtual server.
        server: SocketAddr,
        /// The real server.
        real: SocketAddr,
        /// The protocol.
        proto: Proto,
        /// Seconds until the entry ends; each connection of the client renews it.
        seconds: u32,
        /// Whether such entries end with the weight of their server.
        ends: bool,
    },
    /// Every port that the kernel gives to clients on the node, or in a pod, has a connection to the address, or is reserved.
    NoLocalPort {
        /// The address; `None` if all ports are reserved.
        to: Option<SocketAddr>,
        /// The first port.
        first: u16,
        /// The last port.
        last: u16,
        /// How many ports between them are reserved.
        reserved: usize,
        /// The pod whose clients they are, and a process in it; `None` for clients on the node.
        pod: Option<(IpAddr, u32)>,
    },
    /// Masquerading has no port left for another connection from its source to an endpoint.
    NoSourcePort {
        /// The source that it gives.
        source: IpAddr,
        /// The endpoint.
        to: SocketAddr,
        /// How many connections there are between them.
        used: usize,
    },
    /// In the network of the endpoint's pod, nothing listens at the port.
    Deaf {
        /// The endpoint.
        at: SocketAddr,
        /// The address and port to which rules in the pod send its packets.
        end: SocketAddr,
        /// Where else in the pod something listens, by address and port.
        listens: Vec<SocketAddr>,
        /// The link to which a socket at this port is bound: it takes nothing that comes in by another one.
        bound: Option<String>,
        /// The protocol of which a socket takes the port instead: TCP or UDP.
        instead: Option<Proto>,
        /// The workload that the Service is for, if the endpoint's pod is one of another.
        stranger: Option<Box<Stranger>>,
    },
    /// A rule in the network of a pod stops the packets or the replies.
    Inside {
        /// The pod's address.
        pod: IpAddr,
        /// A process in it.
        pid: u32,
        /// Their end, in words.
        reason: String,
        /// The rule.
        by: Box<By>,
        /// Whether the client gets an error.
        refused: bool,
        /// Whether it stops the replies.
        reply: bool,
    },
    /// The node itself, or another pod, has the address of a pod: the kernel discards packets from the address, and keeps packets to it.
    Taken {
        /// The pod's address.
        address: IpAddr,
        /// The link that has it.
        link: String,
        /// The pod whose link that is, and a process in it; `None` for the node itself.
        inside: Option<(IpAddr, u32)>,
        /// The endpoint, if the packets are sent to it, and the program that gets them.
        end: Option<(SocketAddr, Option<String>)>,
    },
}

/// Returns the sysctl `name` of IPv4 of `link`, as `sysctl` names it: with slashes for the dots of the link.
pub fn sysctl_of(link: &str, name: &str) -> String {
    format!("net.ipv4.conf.{}.{name}", link.replace('.', "/"))
}

/// Returns the sysctl of `link` that says whether router advertisements are accepted.
pub fn accept_ra_of(link: &str) -> String {
    format!("net.ipv6.conf.{}.accept_ra", link.replace('.', "/"))
}

/// Returns the sysctl of `link` that turns IPv6 off.
pub fn disable_ipv6_of(link: &str) -> String {
    format!("net.ipv6.conf.{}.disable_ipv6", link.replace('.', "/"))
}

/// Returns a route in words: `route to 10.244.1.5/32 by eth0`.
pub fn route_words(route: &Route) -> String {
    let kind = match route.kind.as_str() {
        "unicast" | "" => String::new(),
        other => format!("{other} "),
    };
    let device = route.device.as_ref();
    let by = device.map_or_else(String::new, |device| format!(" by {device}"));
    let via = route
        .gateway
        .map_or_else(String::new, |via| format!(" via {via}"));
    match route.destination.prefix {
        0 => format!("{kind}default route{by}{via}"),
        _ => format!("{kind}route to {}{by}{via}", route.destination),
    }
}
