//! The parts of obstacles.

use std::fmt;
use std::net::IpAddr;

use serde::Serialize;

use crate::verdict::By;
use kpx_node::net::{Cidr, Family};
use kpx_node::node::routes::Route;

/// Why no way leads to an address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Wayless {
    /// Table main has the route, and no routing policy rule of this family looks it up.
    NoMain(Family),
    /// This link, which has an address of this Node, is down: the kernel removed the routes by it.
    Down(String),
    /// The kernel has no IPv6: it was started with `ipv6.disable=1`, or lacks the module.
    NoIpv6,
    /// IPv6 is off at this link (`disable_ipv6`), so the kernel keeps neither its addresses nor routes by it.
    Ipv6Off(String),
    /// The node forwards, and `accept_ra` of this link is 1: the kernel ignores the advertisements that bring the default route.
    NoAdvertisements(String),
}

/// What has the UDP port of a tunnel.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PortHolder {
    /// Another link of VXLAN.
    Link(String),
    /// A program, with its process.
    Program(String),
}

impl fmt::Display for PortHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Link(name) | Self::Program(name)) = self;
        f.write_str(name)
    }
}

/// The fault of a tunnel's link that no packet enters.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TunnelState {
    /// The node does not have it.
    Missing,
    /// It is down.
    Down {
        /// What has its UDP port.
        held_by: Option<PortHolder>,
    },
    /// No route leads to the pods by it.
    NoRoute,
    /// No route leads to the pods by it, a VPN to which flannel leaves the packets (backend `extension`).
    NoRouteOfVpn,
    /// The Nodes need no tunnel, and no route leads to the pods by this address of their Node.
    NoGateway(IpAddr),
    /// flannel carries packets in another way at the other Node.
    OtherBackend {
        /// The backend that this Node announces.
        own: String,
        /// The backend that the other Node announces.
        other: String,
    },
    /// It has another VNI than the other Node announces, and no link has the announced one: each node discards the packets
    /// of the other.
    OtherNetwork {
        /// The VNI of the link.
        own: u64,
        /// The VNI that the other Node announces.
        announced: u64,
        /// Whether the other Node runs Windows, where flannel needs 4096 or more.
        windows: bool,
    },
    /// It receives at another UDP port than the other node sends to.
    OtherPort {
        /// The port of the link.
        own: u16,
        /// The port of the other node's.
        other: u16,
    },
}

/// The reason why the node and its neighbours on a link do not find each other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Arp {
    /// ARP is off at the link.
    Off,
    /// `arp_ignore` is 8, of this sysctl.
    Ignored(String),
    /// `arp_ignore` is 1 or 2: the node answers for none of its addresses but those of the link that asks.
    Strict {
        /// The sysctl.
        key: String,
        /// The gateway of a pod: an address of another link.
        gateway: IpAddr,
    },
    /// This rule of nftables drops its packets.
    Dropped(Box<By>),
    /// This rule of another node drops its packets.
    There {
        /// The node.
        node: String,
        /// Its address on the link.
        address: IpAddr,
        /// The rule.
        by: Box<By>,
    },
    /// This rule drops the messages of `ICMPv6` that have its place.
    Unsolicited {
        /// The rule.
        by: Box<By>,
        /// Whether it changes their hop limit, so that their receivers discard them, rather than drops them.
        hop_limit: bool,
    },
}

/// A packet after the first one of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Which {
    /// The first reply.
    Reply,
    /// A reply after the first one.
    LaterReply,
    /// A packet of the client on the established connection.
    Sent,
    /// A datagram that is not the first one of its port.
    Datagram,
}

/// The sysctl with the TTL that packets are sent with.
pub const DEFAULT_TTL: &str = "net.ipv4.ip_default_ttl";

/// What has the address of a load balancer in the network of the nodes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AddressHolder {
    /// A machine that is no node: its link-layer address.
    Machine(String),
    /// A gateway of this node: its link-layer address.
    Gateway(String),
    /// All machines there: it is the broadcast address of this network. A kernel opens no connection to it.
    All(Cidr),
}

/// The owner of the wrong MAC at a tunnel.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum WrongMac {
    /// This node's link has another one than its Node announces.
    Own,
    /// This node sends to another one than the other Node announces.
    Far,
    /// This node sends to another Node, which has the same range of pods.
    SharedRange(String),
    /// Both nodes have the same, as copies of one machine do.
    Same,
    /// Two other Nodes announce the same.
    OfTwo {
        /// The second one.
        third: String,
        /// The machine-id of both, if it is the same.
        machine: Option<String>,
    },
    /// The other node sends to another one than this node's link has.
    Sent,
}

/// The reason why packets that a reverse path filter drops take their way.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FilterReason {
    /// Replies come to this address of the node, as kube-proxy does not masquerade its connections: its range of pods has the address.
    InPodRange {
        /// `clusterCIDR` of kube-proxy.
        range: Cidr,
        /// The node's address.
        address: IpAddr,
    },
    /// The pod has a rule of the AWS VPC CNI for the table of its own interface.
    VpcCni,
}

/// A machine that does not answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SilentMachine {
    /// That of a Node that is not ready: its kubelet does not report.
    Node(String),
    /// That of an API server, on none of the Nodes, although others are on Nodes.
    ApiServer,
    /// A pod of this node, whose packets leave by the node's own card.
    PodHere(String),
    /// None that is known: no Node has the address, which only an `EndpointSlice` lists that the `EndpointSlice` controller does not
    /// write.
    Listed {
        /// The slice, as `NAMESPACE/NAME`.
        slice: String,
        /// The Service.
        service: String,
        /// Who writes it, by its label; empty if that is not shown.
        writer: String,
    },
}

/// Who has the network of a link, too.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SameNetworkAs {
    /// The pods on this bridge.
    Pods(String),
    /// The pods of another Node.
    PodsOf {
        /// The Node.
        node: String,
        /// Its range of pods.
        range: Cidr,
        /// Its address.
        by: IpAddr,
    },
    /// An endpoint outside of the cluster.
    Endpoint(IpAddr),
    /// A client outside the node.
    Client {
        /// Its address.
        client: IpAddr,
        /// The route that would lead replies out of the node.
        way: Box<Route>,
    },
}

impl Arp {
    /// Writes why the node and its neighbours on `link` do not find each other.
    pub(super) fn write(&self, f: &mut fmt::Formatter<'_>, link: &str) -> fmt::Result {
        match self {
            Self::Off => write!(
                f,
                "ARP is off at {link} (flag NOARP), so the node and its neighbours there do not find each other"
            ),
            Self::Ignored(key) => write!(
                f,
                "{key} is 8, so the node answers no ARP request on {link}, and its neighbours there do not find it"
            ),
            Self::Strict { key, gateway } => write!(
                f,
                "{key} is not 0 (strict ARP), so the node answers ARP requests on {link} for addresses of {link} alone, and not for \
                     {gateway}, the gateway of the pod there"
            ),
            Self::Dropped(by) if by.rule.number == 0 => write!(
                f,
                "the policy of chain {} in table {} drops ARP packets of {link}, so the node and its neighbours there do not find each \
                     other",
                by.rule.chain,
                by.rule.named_table()
            ),
            Self::Dropped(by) => write!(
                f,
                "rule {} of chain {} in table {} drops ARP packets of {link}, so the node and its neighbours there do not \
                     find each other",
                by.rule.number,
                by.rule.chain,
                by.rule.named_table()
            ),
            Self::There { node, address, by } => write!(
                f,
                "rule {} of chain {} in table {} of node {node} drops ARP packets, so {address}, its address, did not answer on {link} \
                     (its neighbour entry is FAILED)",
                by.rule.number,
                by.rule.chain,
                by.rule.named_table()
            ),
            Self::Unsolicited { by, hop_limit } => {
                match by.rule.number {
                    0 => write!(f, "the policy of chain {}", by.rule.chain),
                    number => write!(f, "rule {number} of chain {}", by.rule.chain),
                }?;
                write!(
                    f,
                    " in table {} {} neighbour discovery (ICMPv6) on {link}, so the node and its neighbours there do not find \
                         each other",
                    by.rule.table,
                    if *hop_limit {
                        "changes the hop limit of"
                    } else {
                        "drops"
                    }
                )
            }
        }
    }
}
