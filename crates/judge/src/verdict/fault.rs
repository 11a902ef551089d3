//! Why a connection does not work.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::obstacle::route_words;
use super::place::{Holder, Home};
use super::{Fate, Obstacle, Undeclared};
use crate::trace::{Effect, Outcome, Rule};
use kpx_node::evidence::Gap;
use kpx_node::net::{Cidr, Family};
use kpx_node::node::routes::{PolicyRule, Route};
use kpx_node::owner::EndpointState;
use kpx_node::words::listed;

/// Why packets with one outcome do not work.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// A rule, a policy or a virtual server stops the packet.
    Stopped {
        /// The position of its hop in the outcome.
        hop: usize,
        /// Whether the client gets an error.
        refused: bool,
        /// How it ends, in words.
        reason: String,
    },
    /// The rules were not read, and the Service has no endpoint to which any could lead.
    NoEndpoints,
    /// A program of a service proxy refuses `connect()` with `EPERM`: its map has no backend.
    NoBackend {
        /// The Service address.
        address: SocketAddr,
        /// The program, as `NAME (id ID)`.
        program: String,
    },
    /// There is no route.
    NoRoute {
        /// The destination.
        to: SocketAddr,
        /// Whether the client gets an error.
        refused: bool,
        /// Why, in words.
        reason: String,
    },
    /// The node does not forward packets.
    NotForwarded {
        /// The sysctl.
        key: &'static str,
    },
    /// Nothing translates the packet, although its destination is a Service address that no machine has.
    Untranslated {
        /// The Service address.
        address: SocketAddr,
        /// The Service, as `NAMESPACE/NAME`; `None` for an address of the Service range that no Service has.
        service: Option<String>,
        /// Whether another rule translated it to that address: a connection is translated once.
        again: bool,
    },
    /// The destination is in the node's pod range, and no pod has it.
    NoPod {
        /// The destination.
        address: SocketAddr,
    },
    /// `NodeLocal` DNS is to have the address on a link of this node, and none has it.
    NoLocalDns {
        /// The address.
        address: IpAddr,
        /// The pod of `NodeLocal` DNS, as `NAMESPACE/NAME`.
        pod: String,
    },
    /// The destination is no endpoint of the Service.
    NoEndpoint {
        /// The destination.
        address: SocketAddr,
        /// The pod, node or Service that has it, in words; `None` if unknown.
        holder: Option<Holder>,
    },
    /// No Service has the address and port, and rules that kube-proxy left behind lead to an endpoint.
    Leftover {
        /// The address and port.
        asked: SocketAddr,
        /// The endpoint.
        address: SocketAddr,
        /// The Services that have it, in words; empty if none has.
        services: Vec<String>,
    },
    /// The endpoint does not take connections.
    NotReady {
        /// The endpoint.
        address: SocketAddr,
        /// Its state.
        state: EndpointState,
    },
    /// The packet ends at the node itself, where nothing listens.
    NothingListens {
        /// The destination.
        address: SocketAddr,
        /// The VRF that has the address, for rules that match the node's own addresses alone.
        vrf: Option<String>,
        /// The link that has the address, if it is an endpoint's and not the Node's: many nodes have such addresses.
        link: Option<String>,
    },
    /// kube-proxy serves no NodePort at this loopback address.
    NotOnLoopback {
        /// The destination.
        address: SocketAddr,
        /// Why, in words.
        why: &'static str,
    },
    /// The packet ends at the node itself, where another program listens.
    OtherProgram {
        /// The destination.
        address: SocketAddr,
        /// The program.
        program: String,
    },
    /// A setting, a link or an address blocks the packets.
    Obstacle(Box<Obstacle>),
    /// The endpoint runs on this node, but the route leads off the node.
    WrongWay {
        /// The endpoint.
        address: SocketAddr,
        /// The link and the gateway.
        way: String,
        /// The Node with the address, if it is another one.
        home: Option<Box<Home>>,
    },
    /// The client is the endpoint, and its own address stays the source: it answers itself.
    Hairpin {
        /// The endpoint.
        address: SocketAddr,
    },
    /// The client is the endpoint, and its bridge port does not send a packet back.
    HairpinPort {
        /// The bridge.
        bridge: String,
    },
    /// The reply goes from port to port of a bridge, past the rules that would translate it back.
    BypassedReply {
        /// The bridge.
        bridge: String,
        /// The sysctl that makes bridged packets pass the rules.
        key: &'static str,
    },
    /// The endpoint runs elsewhere and sees the client's own address: it answers the client directly.
    DirectReply {
        /// The endpoint.
        address: SocketAddr,
    },
    /// Several nodes have the source of the packet: the reply goes to the endpoint's own node.
    SharedSource {
        /// The source.
        source: IpAddr,
    },
    /// The source of the packet is no address of this node: the reply goes elsewhere.
    ForeignSource {
        /// The source.
        source: IpAddr,
    },
    /// The packet leaves with the address of another link, to which the network beyond has no route.
    OtherLink {
        /// The source.
        source: IpAddr,
        /// Its link.
        link: String,
        /// The link by which the packet leaves.
        out: String,
    },
    /// Tracked connections of the client still go to addresses that are no endpoints.
    Stale {
        /// The number of connections.
        count: usize,
        /// The addresses.
        backends: Vec<SocketAddr>,
    },
    /// The table of tracked connections is full: the kernel drops the first packets of new ones.
    TableFull {
        /// The number of entries.
        count: u64,
        /// The most that there may be.
        most: u64,
    },
    /// It happens on another node.
    There {
        /// The node.
        node: String,
        /// The fate of the packets there.
        fate: Fate,
        /// The share of them that certainly fail: 0 to 1.
        failing: f64,
        /// The reason.
        fault: Box<Fault>,
    },
    /// It is unknown.
    Unknown(Missing),
}

/// The expected route to the pods of another node, by that node's address: the packets do not take it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct WayThere {
    /// The other node.
    pub node: String,
    /// The range of its pods.
    pub range: Cidr,
    /// Its address.
    pub by: IpAddr,
    /// The link to it.
    pub link: String,
    /// The IP tunnel by which packets leave, if it leads to pods of other nodes.
    pub tunnel: Option<String>,
    /// The address of this node in the range and its link, by which the packets leave instead.
    pub own: Option<(Cidr, String)>,
    /// Why the way of the packets may not lead there; `None` if routes to pods of other nodes go otherwise.
    pub odd: Option<OddWay>,
}

/// A way to the pods of another node that may lead elsewhere.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OddWay {
    /// Its oddity.
    pub why: Odd,
    /// Its route, if another one leads to that node by its address.
    pub hider: Option<Box<Route>>,
}

/// The oddity of a way.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Odd {
    /// The tunnel `link` ends at an address that is none of that node.
    End {
        /// The tunnel.
        link: String,
        /// Its kind.
        kind: String,
        /// Its other end.
        remote: IpAddr,
    },
    /// The other node announces an address for its tunnels that is none of its own.
    Announced {
        /// The address.
        address: IpAddr,
        /// The annotation with which it does.
        annotation: &'static str,
    },
    /// This Node has the same range of pods.
    Shared {
        /// The range.
        range: Cidr,
    },
    /// The pod's address is in no range of that Node's pods, and only the default route leads there.
    Outside {
        /// The ranges.
        ranges: Vec<Cidr>,
    },
    /// Only the default route leads to its pods, while pods of other Nodes have routes by the addresses of their Nodes.
    Default,
    /// The link is of a network plugin that does not run on this node.
    LeftOver {
        /// The link.
        link: String,
        /// The plugin.
        plugin: &'static str,
    },
    /// A routing policy rule leads some packets there, and the others go by that node's address, or by a tunnel.
    Rule {
        /// The rule.
        rule: Box<PolicyRule>,
        /// The rule that leads packets to pods past it.
        bypass: Option<Box<PolicyRule>>,
        /// The tunnel by which the others go, if they do.
        tunnel: Option<String>,
    },
    /// It is one of several next hops of the route there, and another one is that node's address.
    NextHop {
        /// The number of next hops.
        hops: usize,
    },
    /// A tunnel has a route there, too.
    Tunnel {
        /// The tunnel.
        link: String,
    },
    /// No route leads to the pods of any other Node, although these are in a network of this node and routes are made here.
    NoRoutes,
    /// BIRD makes the routes to the pods of other nodes, and has none to those of this one, or of any.
    Unlearned {
        /// Whether it has one to those of others.
        has_others: bool,
    },
    /// Another table than main, which has a route by that node's address, leads there first.
    OtherTable {
        /// The table.
        table: String,
    },
}

impl OddWay {
    /// Returns why the way may not lead to `node`, in words.
    pub fn words(&self, node: &str) -> String {
        let why = match &self.why {
            Odd::End { link, remote, .. } => {
                format!("tunnel {link} ends at {remote}, which is no address of {node}")
            }
            Odd::Announced {
                address,
                annotation,
            } => format!(
                "{node} announces {address} for its tunnels (annotation {annotation}), which is no address of that Node"
            ),
            Odd::Shared { range } => {
                format!(
                    "this Node and {node} have the same range of pods, {range}, which leads to pods of this node"
                )
            }
            Odd::Outside { ranges } => {
                let ranges: Vec<_> = ranges.iter().map(ToString::to_string).collect();
                format!(
                    "the address is in no range of pods of {node} ({}), and only the default route leads there",
                    listed(&ranges)
                )
            }
            Odd::Default => {
                format!(
                    "only the default route leads to the pods of {node}, while those of other Nodes have routes by the Nodes' addresses"
                )
            }
            Odd::LeftOver { link, plugin } => {
                format!("{link} is a link of {plugin}, which does not run on this node")
            }
            Odd::Rule { rule, tunnel, .. } => format!(
                "routing policy rule {} ({rule}) leads them past the route by that {}",
                rule.priority,
                if tunnel.is_some() { "tunnel" } else { "address" }
            ),
            Odd::NextHop { hops } => format!(
                "the route to them has {hops} next hops, and this one is no address of {node}, so that some connections take it"
            ),
            Odd::Tunnel { link } => format!("tunnel {link} has a route to them"),
            Odd::NoRoutes => {
                "no route leads to the pods of other nodes, so that a router would have to lead them back into this network".to_owned()
            }
            Odd::Unlearned { has_others } => format!(
                "BIRD, which makes the routes to pods of other nodes, has none{}",
                if *has_others { " to those of this one" } else { "" }
            ),
            Odd::OtherTable { table } => {
                format!("table {table}, which comes before main, leads them by another link")
            }
        };
        match &self.hider {
            Some(route) => format!(
                "{why}, and the {} hides the one by the address of {node}",
                route_words(route)
            ),
            None => why,
        }
    }
}

/// The reason why a verdict is open.
#[derive(Clone, Debug, PartialEq)]
pub enum Missing {
    /// Evidence that is missing.
    Gap {
        /// The information that it would show.
        what: &'static str,
        /// Why it is missing.
        gap: Gap,
    },
    /// The packet leaves the node for an address that the cluster's objects do not have.
    Beyond {
        /// The address.
        address: SocketAddr,
        /// The link by which it leaves.
        out: Option<String>,
        /// The Service whose load balancer has the address, if kube-proxy leaves it to that (ipMode Proxy).
        balancer: Option<String>,
    },
    /// The packet leaves for another node.
    OtherMachine(Holder),
    /// The slice of an endpoint on another node names no pod, or that of one on this node a pod which is not among those of the node.
    Vacant {
        /// The endpoint.
        address: SocketAddr,
        /// The pod that the slice names.
        pod: Option<String>,
    },
    /// The endpoint is outside of the cluster.
    External {
        /// The endpoint.
        address: SocketAddr,
        /// Whether it sees the address of the client's pod.
        sees_pod: bool,
    },
    /// A rule queues the packets for a program in user space, which decides.
    Queued {
        /// The rule.
        rule: Box<Rule>,
        /// How they end, in words.
        reason: String,
    },
    /// Nothing is known to answer for an address in its network.
    Unannounced {
        /// The address.
        address: IpAddr,
        /// Why what may announce addresses does not announce it, if that is known.
        why: Option<String>,
    },
    /// The pod of the endpoint declares only other ports.
    Undeclared(Box<Undeclared>),
    /// The pod of the endpoint is not ready, and gets connections all the same: `publishNotReadyAddresses`.
    Unready {
        /// The pod, as `NAMESPACE/NAME`.
        pod: String,
        /// The endpoint.
        address: SocketAddr,
    },
    /// Connections wait for the program of the endpoint, which accepts none of them for now.
    Waiting {
        /// The endpoint.
        at: SocketAddr,
        /// The number of those that wait.
        waiting: u32,
    },
    /// Datagrams wait for the program of the endpoint, which reads none of them for now.
    Unread {
        /// The endpoint.
        at: SocketAddr,
        /// The bytes that wait.
        unread: u32,
    },
    /// The Node of the endpoint has gone, or its kubelet no longer reports.
    Silent {
        /// The Node.
        node: String,
        /// Since when it does not report, RFC 3339, empty if that is not known; `None` for a Node that has gone.
        since: Option<String>,
        /// The endpoint.
        address: SocketAddr,
    },
    /// The packet to a pod of another node leaves otherwise than by that node's address: it is unknown whether that is a way.
    PodRoute {
        /// The endpoint; with port 0 the client, to which the replies go.
        address: SocketAddr,
        /// The way that the packet takes.
        way: String,
        /// The one that it should take.
        there: Box<WayThere>,
    },
    /// The endpoint runs on another node, and it is unknown whether it knows a way back to the source.
    WayBack {
        /// The source.
        source: IpAddr,
        /// The link by which the packet leaves.
        out: String,
    },
    /// The qdisc of a link loses some packets on purpose.
    Thinned {
        /// The link.
        link: String,
        /// How many: `30 %`.
        share: String,
    },
    /// Something on the way that kpx does not model, in words.
    Unmodelled(String),
    /// Another reason, in words.
    Other(String),
}

impl Fault {
    /// Returns why packets may leave the wrong way, on this node or another one.
    pub fn astray(&self) -> Option<&Missing> {
        match self {
            Self::Unknown(missing @ Missing::PodRoute { .. }) => Some(missing),
            Self::There { fault, .. } => fault.astray(),
            _ => None,
        }
    }

    /// Returns what happens to a packet with this fault.
    pub const fn fate(&self) -> Fate {
        match self {
            Self::Obstacle(obstacle) => obstacle.fate(),
            Self::There { fate, .. } => *fate,
            Self::Stopped { refused, .. } | Self::NoRoute { refused, .. } => {
                if *refused {
                    Fate::Refused
                } else {
                    Fate::Lost
                }
            }
            Self::NoBackend { .. }
            | Self::NoEndpoints
            | Self::NothingListens { .. }
            | Self::NotOnLoopback { .. } => Fate::Refused,
            Self::OtherProgram { .. }
            | Self::Leftover { .. }
            | Self::NoEndpoint {
                holder: Some(_), ..
            } => Fate::Misled,
            Self::NotForwarded { .. }
            | Self::Untranslated { .. }
            | Self::NoPod { .. }
            | Self::NoLocalDns { .. }
            | Self::NoEndpoint { .. }
            | Self::NotReady { .. }
            | Self::WrongWay { .. }
            | Self::Hairpin { .. }
            | Self::HairpinPort { .. }
            | Self::BypassedReply { .. }
            | Self::DirectReply { .. }
            | Self::SharedSource { .. }
            | Self::ForeignSource { .. }
            | Self::OtherLink { .. }
            | Self::Stale { .. }
            | Self::TableFull { .. } => Fate::Lost,
            Self::Unknown(_) => Fate::Unknown,
        }
    }

    /// Returns the share of the packets with this fault that certainly fail, if any do: 0 to 1.
    pub(super) fn failing(&self) -> f64 {
        match self {
            Self::There { failing, .. } => *failing,
            Self::Obstacle(obstacle) => obstacle.failing(),
            _ => 1.0,
        }
    }

    /// Returns whether the fault is that a rule does not exist: it may be among rules that were not read.
    pub const fn may_be_unread(&self) -> bool {
        matches!(
            self,
            Self::Untranslated { again: false, .. }
                | Self::NothingListens { .. }
                | Self::OtherProgram { .. }
                | Self::Hairpin { .. }
                | Self::BypassedReply { .. }
                | Self::DirectReply { .. }
                | Self::SharedSource { .. }
                | Self::OtherLink { .. }
        )
    }
}

impl fmt::Display for Fault {
    /// Writes a sentence without its subject's name and without a full stop.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped { reason, .. } | Self::NoRoute { reason, .. } => f.write_str(reason),
            Self::NoBackend { address, program } => write!(
                f,
                "program {program} refuses connect() with EPERM: its map has no backend for {address}"
            ),
            Self::NoEndpoints => {
                f.write_str("the Service has no endpoint to which any rule could lead")
            }
            Self::NotForwarded { key } => write!(f, "{key} is 0, so the node forwards no packets"),
            Self::Untranslated {
                address,
                service,
                again,
            } => {
                let owner = match service {
                    Some(name) => format!("an address of Service {name}"),
                    None => "in the Service range, but no Service has it".to_owned(),
                };
                if *again {
                    write!(
                        f,
                        "another rule translates the packet to {address}; a connection is translated once, so no rule of \
                         kube-proxy applies any more ({address} is {owner})"
                    )
                } else {
                    write!(
                        f,
                        "no rule translates packets to {address} ({owner}): they leave the node unchanged"
                    )
                }
            }
            Self::NoPod { address } => {
                write!(
                    f,
                    "the rules lead to {address}, which is in this node's pod range, but no pod has the address"
                )
            }
            Self::NoLocalDns { address, pod } => write!(
                f,
                "{address} is an address of NodeLocal DNS (pod {pod}), and no link of this node has it"
            ),
            Self::NoEndpoint {
                address,
                holder: Some(holder),
            } => write!(
                f,
                "the rules lead to {address}, which is no endpoint of the Service but {holder}"
            ),
            Self::NoEndpoint {
                address,
                holder: None,
            } => {
                write!(
                    f,
                    "the rules lead to {address}, which is no endpoint of the Service"
                )
            }
            Self::Leftover {
                asked,
                address,
                services,
            } => {
                write!(
                    f,
                    "no Service has {asked}, and rules that kube-proxy left behind lead to {address}"
                )?;
                match services.as_slice() {
                    [] => Ok(()),
                    services => write!(f, ", an endpoint of {}", listed(services)),
                }
            }
            Self::NotReady { address, state } => {
                write!(f, "the rules lead to endpoint {address}, which is {state}")
            }
            Self::NothingListens { address, vrf, link } => {
                write!(
                    f,
                    "the packet ends at the node itself, where nothing listens on {address}"
                )?;
                if let Some(link) = link {
                    write!(f, ": link {link} of this node has the address, too")?;
                }
                match vrf {
                    Some(vrf) => write!(
                        f,
                        "; the address is in VRF {vrf}, so rules for the node's own addresses do not match it"
                    ),
                    None => Ok(()),
                }
            }
            Self::NotOnLoopback { address, why } => write!(
                f,
                "kube-proxy serves no NodePort on {}, by design ({why}): use another address of the node with port {}",
                address.ip(),
                address.port()
            ),
            Self::OtherProgram { address, program } => {
                write!(
                    f,
                    "the packet ends at the node itself, where {program} listens on {address}"
                )
            }
            Self::WrongWay {
                address,
                home: Some(home),
                ..
            } => write!(f, "endpoint {address} runs on this node, but {home}"),
            Self::WrongWay { address, way, .. } => {
                write!(
                    f,
                    "endpoint {address} runs on this node, but the route leads off the node, by {way}"
                )
            }
            Self::Hairpin { address } => write!(
                f,
                "the reply is lost: the client is endpoint {address} itself, and its own address stays the source"
            ),
            Self::HairpinPort { bridge } => write!(
                f,
                "the client is the endpoint, and hairpin mode is off on its port of bridge {bridge}"
            ),
            Self::BypassedReply { bridge, key } => write!(
                f,
                "the reply is lost: it stays on bridge {bridge}, and {key} is not 1, so no rule translates it back"
            ),
            Self::DirectReply { address } => write!(
                f,
                "the reply is lost: endpoint {address} runs elsewhere and sees the client's own address, so it answers \
                 the client directly, which discards the reply"
            ),
            Self::SharedSource { source } => write!(
                f,
                "the reply is lost: the packet leaves with source {source}, which every node has"
            ),
            Self::ForeignSource { source } => write!(
                f,
                "the reply is lost: the packet leaves with source {source}, which is no address of this node"
            ),
            Self::OtherLink { source, link, out } => write!(
                f,
                "the reply is lost: the packet leaves by {out} with {source}, which is the address of {link} and of no \
                 Node, and nothing masquerades it"
            ),
            Self::Stale { count, backends } => {
                let all: Vec<_> = backends.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "{} still {} to {}, which {} no longer an endpoint",
                    kpx_node::words::number_of(*count, "tracked connection"),
                    if *count == 1 { "goes" } else { "go" },
                    crate::trace::mismatch::listed(&all),
                    if all.len() == 1 { "is" } else { "are" },
                )
            }
            Self::TableFull { count, most } => write!(
                f,
                "the table of tracked connections is full ({count} of {most}), so the kernel drops new ones"
            ),
            Self::Obstacle(obstacle) => obstacle.fmt(f),
            Self::There { node, fault, .. } => write!(f, "on node {node}, {fault}"),
            Self::Unknown(missing) => missing.fmt(f),
        }
    }
}

impl Missing {
    /// Returns why it is unknown how `outcome` ends in the rules.
    pub(super) fn by_rules(outcome: &Outcome) -> Self {
        let reason = outcome.reason.clone();
        match outcome.hops.last() {
            Some(hop) if hop.effect == Effect::Queue => Self::Queued {
                rule: Box::new(Rule::of(hop, Family::of(outcome.source))),
                reason,
            },
            _ => Self::Other(reason),
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gap { what, gap } => write!(f, "{what}: {gap}"),
            Self::Beyond {
                address,
                out,
                balancer,
            } => {
                let by = out
                    .as_ref()
                    .map_or_else(String::new, |out| format!(" by {out}"));
                write!(f, "the packet leaves the node{by} for {address}, ")?;
                match balancer {
                    Some(service) => write!(
                        f,
                        "the load balancer of {service}, which kube-proxy leaves to it (ipMode Proxy)"
                    ),
                    None => f.write_str("which no object of the cluster has"),
                }
            }
            Self::OtherMachine(holder) => {
                write!(
                    f,
                    "the packet leaves for {holder}, which is another machine"
                )
            }
            Self::Vacant {
                address,
                pod: Some(pod),
            } => write!(
                f,
                "whether a pod still has endpoint {address} is unknown: its EndpointSlice names {pod}, and no pod of this node that is \
                 listed has the address"
            ),
            Self::Vacant { address, pod: None } => write!(
                f,
                "whether a pod has endpoint {address} is unknown: its EndpointSlice names no pod, and pods of other \
                 nodes are not read"
            ),
            Self::External { address, sees_pod } => {
                write!(
                    f,
                    "whether anything answers at endpoint {address} is unknown: it is outside of the cluster"
                )?;
                if *sees_pod {
                    write!(
                        f,
                        ", and sees the address of the pod, since no rule masquerades the packet: it needs a route to the pods"
                    )?;
                }
                Ok(())
            }
            Self::Unannounced { why: Some(why), .. } => f.write_str(why),
            Self::Unannounced { address, why: None } => write!(
                f,
                "nothing is known to announce {address} to its network: no link of this node has it, and no MetalLB, kube-vip or the like \
                 runs; whether a machine answers for it, `arping {address}` on another machine there shows"
            ),
            Self::Undeclared(of) => {
                let Undeclared { pod, port, .. } = &**of;
                write!(
                    f,
                    "whether pod {pod} listens on port {port} is unknown: it declares {}",
                    of.declares()
                )?;
                match &of.stranger {
                    Some(stranger) => write!(f, "; {stranger}"),
                    None => Ok(()),
                }
            }
            Self::Unready { pod, address } => write!(
                f,
                "whether endpoint {address} answers is unknown: pod {pod} is not ready, and gets connections all the \
                 same (publishNotReadyAddresses, or an EndpointSlice that is behind)"
            ),
            Self::Waiting { at, waiting } => write!(
                f,
                "whether the program at {at} still answers is unknown: {} for it, and it took none while kpx looked",
                if *waiting == 1 {
                    "a connection waits".to_owned()
                } else {
                    format!("{waiting} connections wait")
                }
            ),
            Self::Unread { at, unread } => write!(
                f,
                "whether the program at {at} still answers is unknown: {unread} bytes of datagrams wait for it to read \
                 them"
            ),
            Self::Silent {
                node,
                since,
                address,
            } => {
                write!(f, "whether endpoint {address} answers is unknown: ")?;
                match since.as_deref() {
                    None => write!(
                        f,
                        "the cluster has no Node {node}, on which it is said to run \
                         (`kubectl get pods -A --field-selector spec.nodeName={node}` lists its pods, which kube-controller-manager deletes)"
                    ),
                    Some("") => write!(f, "the kubelet of its node {node} no longer reports"),
                    Some(since) => write!(
                        f,
                        "the kubelet of its node {node} has not reported since {since}"
                    ),
                }
            }
            Self::PodRoute {
                address,
                way,
                there,
            } => {
                let WayThere {
                    node, range, by, ..
                } = &**there;
                match address.port() {
                    0 => write!(f, "the replies to pod {} on {node}", address.ip()),
                    _ => write!(f, "the packets to endpoint {address} on {node}"),
                }?;
                match &there.odd {
                    Some(OddWay {
                        why:
                            Odd::Rule {
                                tunnel: Some(tunnel),
                                ..
                            },
                        ..
                    }) => write!(f, " leave by {way}, not by {tunnel}: "),
                    _ => write!(f, " leave by {way}, not by {by}: "),
                }?;
                match (&there.own, &there.odd) {
                    (_, Some(odd)) => f.write_str(&odd.words(node)),
                    (Some((own, link)), None) => write!(
                        f,
                        "{link} has {own}, an address of the pods of {node} ({range})"
                    ),
                    (None, None) => write!(
                        f,
                        "no route leads to the pods of {node} ({range}) by its address, as to those of other nodes"
                    ),
                }
            }
            Self::WayBack { source, out } => write!(
                f,
                "the packet leaves by {out} with source {source}, the address of another link: kpx cannot tell whether \
                 the reply returns"
            ),
            Self::Thinned { link, share } => write!(
                f,
                "the tc qdisc of {link} loses {share} of its packets on purpose (`tc qdisc del dev {link} root` removes it)"
            ),
            Self::Queued { reason, .. } | Self::Unmodelled(reason) | Self::Other(reason) => {
                f.write_str(reason)
            }
        }
    }
}
