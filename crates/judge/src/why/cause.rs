//! The causes of a broken Service, in the order in which a packet meets them.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::endpoints::{Lack, Waits};
use super::paths::PathTarget;
use crate::check::{Fix, ServiceRef, Subject, Writer, obstacle_owner};
use crate::diff::ChangeKind;
use crate::verdict::{By, Client, Home, Obstacle, OddWay, Undeclared, Which};
use kpx_node::backend::Mode;
use kpx_node::evidence::Time;
use kpx_node::net::{Cidr, Family};
use kpx_node::owner::Role;

/// The label that assigns a Service to another proxy.
pub(super) const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";

/// A cause, in the order in which a packet meets it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(
    tag = "cause",
    rename_all = "kebab-case",
    rename_all_fields = "camelCase"
)]
pub enum Cause {
    /// The Service does not exist, and neither does its DNS name.
    NoService {
        /// Namespace of the missing Service.
        namespace: String,
        /// Name of the missing Service.
        name: String,
        /// Other namespaces with a Service of that name.
        elsewhere: Vec<String>,
        /// The reason why it may exist all the same: the evidence does not show all Services.
        #[serde(skip_serializing_if = "Option::is_none")]
        unread: Option<String>,
    },
    /// Cluster DNS does not resolve the name of the Service.
    Dns {
        /// The name that does not resolve.
        name: String,
        /// The server.
        server: SocketAddr,
        /// Its answer.
        result: String,
    },
    /// Connections to cluster DNS fail, so the name of the Service is not found by some or all clients.
    DnsFails {
        /// The name of the Service in DNS.
        name: String,
        /// Why they fail, as a sentence.
        reason: String,
        /// Whether all of them do.
        all: bool,
        /// The fix.
        #[serde(skip)]
        fix: Box<Option<Fix>>,
    },
    /// The client asks the resolver of its node, which does not know names of the cluster.
    NodeResolver {
        /// The name that does not resolve.
        name: String,
        /// The pod, as `NAMESPACE/NAME`.
        pod: String,
        /// Whether the pod uses the network of the node; otherwise its dnsPolicy is `Default`.
        host_network: bool,
        /// The controller of the pod, as `kubectl` takes it.
        #[serde(skip)]
        workload: Option<String>,
    },
    /// No Service and no endpoint has the address.
    NoAddress {
        /// The address.
        address: IpAddr,
        /// The port, if given.
        port: Option<u16>,
    },
    /// The address is that of another node.
    OfNode {
        /// The address and port.
        at: SocketAddr,
        /// The node.
        other: String,
        /// The kind of port: a NodePort or a hostPort, in words; `None` if neither.
        is: Option<String>,
    },
    /// No Service has the NodePort.
    NoNodePort {
        /// The port.
        port: u16,
    },
    /// The Service lacks the port.
    NoPort {
        /// The Service, as `NAMESPACE/NAME`.
        service: String,
        /// The port as given.
        port: String,
        /// Its ports.
        ports: Vec<String>,
        /// Whether it is its healthCheckNodePort, where kube-proxy itself answers.
        is_health: bool,
    },
    /// The port of a headless Service, which nothing translates to that of its pods.
    HeadlessPort {
        /// The port as asked for.
        port: u16,
        /// The ports of its pods.
        targets: Vec<u16>,
    },
    /// An `ExternalName` Service, which exists only in DNS.
    ExternalName {
        /// The target of the alias.
        target: String,
        /// The port that is asked for, or the first one, and its other target port: nothing translates it.
        #[serde(skip_serializing_if = "Option::is_none")]
        untranslated: Option<(u16, u16)>,
        /// The Service that the target is a name of, as `NAMESPACE/NAME`, which does not have this port.
        #[serde(skip_serializing_if = "Option::is_none")]
        lacks_port: Option<(String, u16)>,
    },
    /// Another proxy handles the Service.
    OtherProxy {
        /// The value of the label.
        proxy: String,
    },
    /// The Service has a cluster IP, and the label of headless Services, for which kube-proxy ignores it.
    HeadlessLabel,
    /// The Service has no cluster IP yet.
    NoClusterIp,
    /// Tracked connections go to endpoints that are gone.
    StaleConnections {
        /// The number of connections.
        count: usize,
        /// The Service address.
        address: SocketAddr,
        /// The protocol.
        protocol: String,
        /// The backends that are gone.
        backends: Vec<SocketAddr>,
        /// The command that ends them.
        end: String,
    },
    /// The table of tracked connections is full.
    TableFull {
        /// The number of entries.
        count: u64,
        /// The most that there may be.
        most: u64,
        /// The kind of most of the entries, in words.
        #[serde(skip_serializing_if = "Option::is_none")]
        mostly: Option<String>,
        /// How to make room.
        #[serde(skip)]
        fix: Fix,
    },
    /// A rule of other software takes the packets, or the policy of a built-in chain.
    ForeignRule {
        /// The table.
        table: String,
        /// The chain.
        chain: String,
        /// Number of the rule, from 1; 0 for the chain's policy.
        number: usize,
        /// The rule.
        rule: String,
        /// The effect on the packets: `drops`, `rejects`, `accepts`, …
        effect: &'static str,
        /// The software; `None` if unknown.
        software: Option<String>,
        /// Whether it is in the back end of iptables that is not in use.
        other_back_end: bool,
        /// The kind of packets that it takes, if it lets those through that open a connection.
        #[serde(skip_serializing_if = "Option::is_none")]
        which: Option<Which>,
        /// The fate of the packets after it, unless it ends them.
        #[serde(skip_serializing_if = "Option::is_none")]
        then: Option<String>,
        /// The rule, with how to let the packets pass.
        #[serde(skip)]
        by: Box<By>,
    },
    /// A rule or an address that another mode of kube-proxy left behind takes the packets.
    Leftover {
        /// The mode.
        mode: Mode,
        /// The rule or address, in words.
        object: String,
    },
    /// Rules, virtual servers or sets of kube-proxy are missing or wrong.
    Rules {
        /// The most serious difference.
        difference: String,
        /// The object that differs, and how.
        #[serde(skip)]
        object: (String, ChangeKind),
        /// The number of further differences.
        more: usize,
        /// Whether they serve all Services.
        common: bool,
        /// Time of kube-proxy's last sync.
        #[serde(skip_serializing_if = "Option::is_none")]
        synced: Option<Time>,
        /// The reason why kube-proxy does not write them, if the doctor found it.
        #[serde(skip_serializing_if = "Option::is_none")]
        proxy: Option<Idle>,
        /// The fix of the doctor's finding, if kpx cannot repair them.
        #[serde(skip)]
        fix: Option<Box<Fix>>,
    },
    /// kube-proxy does not program the node, and its rules are not known.
    Idle(Idle),
    /// Another Service has the same address and port, and the rules serve that one.
    SharedAddress {
        /// The address and port.
        address: SocketAddr,
        /// The role of the address in this Service.
        role: Role,
        /// The other Service, as `NAMESPACE/NAME`.
        other: String,
        /// The role of the address in the other Service.
        other_role: Role,
    },
    /// kube-proxy serves no NodePorts at the address.
    NodePortAddresses {
        /// The configured ranges.
        ranges: Vec<String>,
        /// The address.
        address: IpAddr,
    },
    /// kube-proxy serves no NodePort at a loopback address.
    OnLoopback {
        /// The address and port.
        address: SocketAddr,
        /// Why it does not.
        why: &'static str,
        /// The same NodePort at an address of the node, if it has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        instead: Option<SocketAddr>,
    },
    /// The Service lacks the IP family of the address, so kube-proxy does not serve it there.
    OtherFamily {
        /// The address.
        address: IpAddr,
        /// The role of the address in the Service; `None` for its NodePort.
        role: Option<Role>,
        /// The families of the Service.
        families: Vec<Family>,
    },
    /// The Service port has no usable endpoint.
    NoEndpoints {
        /// The reason.
        #[serde(flatten)]
        lack: Lack,
        /// The family, if it has endpoints of the other one.
        #[serde(skip_serializing_if = "Option::is_none")]
        family: Option<Family>,
    },
    /// The traffic policy is Local, and this node has no endpoint, or other endpoints are out of reach.
    NoLocalEndpoints {
        /// The field: `internalTrafficPolicy` or `externalTrafficPolicy`.
        policy: &'static str,
        /// Whether this node has an endpoint.
        here: bool,
        /// The fields that are Local.
        #[serde(skip)]
        fields: Vec<&'static str>,
        /// The nodes that have endpoints.
        nodes: Vec<String>,
        /// Pods of this node whose EndpointSlice does not name it, so that kube-proxy takes them for pods of other nodes.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        unnamed: Vec<String>,
        /// The writer of their EndpointSlice.
        #[serde(skip)]
        writer: Option<Writer>,
        /// Endpoints on this node that are terminating and no longer serve: pods as `NAMESPACE/NAME`, or addresses.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        ending: Vec<String>,
        /// Endpoints on this node that are not ready, with the reason.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        unready: Vec<Waits>,
    },
    /// The client is outside `loadBalancerSourceRanges`.
    SourceRanges {
        /// The ranges.
        ranges: Vec<String>,
    },
    /// The node does not forward packets.
    ForwardingOff {
        /// The sysctl.
        key: &'static str,
    },
    /// A setting, a link or an address blocks the packets.
    Obstacle {
        /// The obstacle, in words.
        text: String,
        /// The same, as a type.
        #[serde(skip)]
        what: Box<Obstacle>,
    },
    /// There is no route to an endpoint, or for clients on the node to the Service.
    NoRoute {
        /// The endpoint, or the Service address.
        backend: SocketAddr,
        /// `no route`, `unreachable`, …
        reason: String,
        /// Whether it is the Service address: kube-proxy's rules of the node's own packets come after the route.
        is_service: bool,
    },
    /// An endpoint is on this node, but the route leads to another one.
    WrongNode {
        /// The endpoint.
        backend: SocketAddr,
        /// The link and gateway.
        way: String,
        /// The Node with the address, if it is another one.
        #[serde(skip)]
        home: Option<Box<Home>>,
    },
    /// A route or a routing policy rule ends the packets, or sends them elsewhere.
    Route {
        /// The route or rule, in words.
        route: String,
        /// The destination of the packets.
        backend: SocketAddr,
        /// The command that removes it or leads the packets past it.
        #[serde(skip)]
        fix: Fix,
    },
    /// No route leads to the pods of another node by its address, as routes do to those of other nodes.
    PodRoute {
        /// The IP tunnel that leads to pods of other nodes.
        #[serde(skip_serializing_if = "Option::is_none")]
        tunnel: Option<String>,
        /// An endpoint there.
        backend: SocketAddr,
        /// The range of the other node's pods.
        range: Cidr,
        /// The other node.
        other: String,
        /// Its address.
        by: IpAddr,
        /// The actual way of the packets: `leave by eth0`.
        way: String,
        /// The address of this node in that range and its link, by which the packets leave instead.
        #[serde(skip)]
        own: Option<(Cidr, String)>,
        /// The reason why the way of the packets may lead elsewhere.
        #[serde(skip)]
        odd: Option<OddWay>,
    },
    /// The table of nftables is dormant, so the kernel runs none of its rules.
    Dormant {
        /// The table, with its family.
        table: String,
    },
    /// Bridged packets bypass the rules, so replies are not translated back.
    BypassedReply {
        /// The bridge.
        bridge: String,
        /// The sysctl that is off.
        key: &'static str,
    },
    /// kube-proxy does not masquerade the packets, because it does not know which come from pods.
    NotMasqueraded {
        /// The fate of the reply.
        reply: String,
    },
    /// The bridge does not send a packet back through the port by which it came.
    HairpinPort {
        /// The bridge.
        bridge: String,
    },
    /// A load balancer that kube-proxy does not serve, as its status has a host name or ipMode Proxy: no evidence of a node shows
    /// it.
    Balancer {
        /// Its names and addresses.
        names: Vec<String>,
        /// The `NodePorts` to which it sends connections; none if it sends them to pods.
        node_ports: Vec<u16>,
        /// Whether it sends connections to `NodePorts` alone, and the Service has none.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        lacks_node_ports: bool,
        /// Whether the Service's annotations ask for an NLB that preserves the addresses of clients.
        preserves: bool,
    },
    /// The Service is of type LoadBalancer, and no load balancer has given it an address.
    Pending {
        /// Its `NodePorts`.
        node_ports: Vec<u16>,
        /// Its class, for which one controller gives addresses.
        #[serde(skip_serializing_if = "Option::is_none")]
        class: Option<String>,
    },
    /// The endpoints use a port that their pods do not declare.
    UndeclaredPort {
        /// The port of the endpoints.
        port: u16,
        /// The ports that the pods declare.
        declared: Vec<u16>,
        /// The pod that declares them.
        #[serde(skip)]
        of: Box<Undeclared>,
    },
    /// An EndpointSlice lists an address that no pod has.
    NoPod {
        /// The endpoint.
        backend: SocketAddr,
        /// The slice; empty if its name is not shown.
        slice: String,
        /// Its writer.
        writer: Writer,
    },
    /// An endpoint is an address of a Service, or a NodePort of this node: a connection is translated once.
    Twice {
        /// The endpoint.
        backend: SocketAddr,
        /// The Service port whose address or `NodePort` it is.
        other: String,
        /// The slice that lists it; empty if its name is not shown.
        slice: String,
        /// Its writer.
        writer: Writer,
    },
    /// A finding of the doctor about the address, or a known bug that it finds at the Service.
    Finding {
        /// The check.
        check: &'static str,
        /// Its message.
        reason: String,
        /// The fix.
        #[serde(skip)]
        fix: Box<Option<Fix>>,
    },
    /// The packets end otherwise than at an endpoint, and nothing above explains it.
    Unexplained {
        /// How they end.
        reason: String,
        /// Where they end.
        backend: SocketAddr,
    },
    /// A real connection fails although every rule on its path is right.
    Probe {
        /// The address.
        address: SocketAddr,
        /// The result.
        result: String,
    },
}

/// The reason why kube-proxy does not program the node: a finding of the doctor.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Idle {
    /// The check.
    pub check: &'static str,
    /// Its message.
    pub reason: String,
    /// Whether rules that kpx writes last until kube-proxy writes its own.
    #[serde(skip)]
    pub lasts: bool,
    /// The fix.
    #[serde(skip)]
    pub fix: Option<Fix>,
}

/// The certainty that a cause breaks the Service.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Degree {
    /// It breaks the Service.
    Breaks,
    /// kube-proxy does not serve the Service.
    NotServed,
    /// It probably breaks the Service.
    Suspect,
}

/// Connections from one client to one address that fail.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    /// The client.
    pub(super) client: Client,
    /// The address.
    pub(super) to: PathTarget,
    /// If only some of them fail, their share, as text.
    pub(super) share: Option<String>,
}

/// The place and the time of a cause.
#[derive(Clone, Debug, Default)]
pub(super) struct At {
    /// The Service port, or the Service.
    pub(super) subject: String,
    /// The Service, if it exists.
    pub(super) service: Option<ServiceRef>,
    /// The node.
    pub(super) node: Option<String>,
    /// The node of the cause, if it is another one.
    pub(super) there: Option<String>,
    /// The clients whose packets fail.
    pub(super) from: Vec<Client>,
    /// The addresses at which they fail.
    pub(super) to: Vec<String>,
    /// The connections of each client to each address that fail.
    pub(super) failed: Vec<Failed>,
    /// Whether the cluster's own settings ask for it.
    pub(super) by_design: bool,
    /// Whether each client keeps its endpoint: sessionAffinity is `ClientIP`.
    pub(super) sticky: bool,
    /// The condition under which they fail: `whether …`; `None` if they do.
    pub(super) open: Option<String>,
    /// Since when.
    pub(super) since: Option<Time>,
}

/// Returns whether the alias of an `ExternalName` Service is an address, which no alias can lead to.
pub(super) fn is_address(target: &str) -> bool {
    target.trim_end_matches('.').parse::<IpAddr>().is_ok()
}

/// Returns whether both are the same route without a gateway, which every pod gets.
fn is_same_route(one: &Obstacle, other: &Obstacle) -> bool {
    let route = |obstacle: &Obstacle| match obstacle {
        Obstacle::Gatewayless { link, route, .. } => Some((link.clone(), *route)),
        _ => None,
    };
    route(one).is_some() && route(one) == route(other)
}

impl Cause {
    /// Returns its place on the packet's way: a smaller number is earlier.
    pub fn stage(&self) -> u8 {
        match self {
            Self::NoService { .. }
            | Self::Dns { .. }
            | Self::DnsFails { .. }
            | Self::NodeResolver { .. }
            | Self::NoAddress { .. }
            | Self::OfNode { .. }
            | Self::NoNodePort { .. } => 0,
            Self::NoPort { .. }
            | Self::HeadlessPort { .. }
            | Self::ExternalName { .. }
            | Self::OtherProxy { .. }
            | Self::HeadlessLabel
            | Self::NoClusterIp => 1,
            Self::StaleConnections { .. } | Self::TableFull { .. } => 2,
            Self::ForeignRule { table, chain, .. } if is_before_nat(table, chain) => 3,
            Self::Dormant { .. }
            | Self::Leftover { .. }
            | Self::Idle(_)
            | Self::Rules { common: true, .. } => 4,
            Self::Rules { .. }
            | Self::SharedAddress { .. }
            | Self::OnLoopback { .. }
            | Self::OtherFamily { .. }
            | Self::NodePortAddresses { .. } => 5,
            Self::SourceRanges { .. } => 6,
            Self::NoEndpoints { .. } | Self::NoLocalEndpoints { .. } => 7,
            Self::NoRoute { .. }
            | Self::WrongNode { .. }
            | Self::PodRoute { .. }
            | Self::Route { .. } => 8,
            Self::ForwardingOff { .. } => 9,
            Self::Obstacle { what, .. } => what.stage(),
            Self::ForeignRule { .. } => 10,
            Self::HairpinPort { .. } | Self::BypassedReply { .. } | Self::NotMasqueraded { .. } => {
                11
            }
            Self::NoPod { .. }
            | Self::Twice { .. }
            | Self::Finding { .. }
            | Self::Unexplained { .. } => 12,
            Self::Balancer { .. } | Self::Pending { .. } => 13,
            Self::UndeclaredPort { .. } | Self::Probe { .. } => 14,
        }
    }

    /// Returns whether `other` is the same cause on another path; if so, this one then has both paths.
    pub(super) fn joins(&mut self, other: &Self) -> bool {
        match (&mut *self, other) {
            (
                Self::Rules {
                    difference,
                    more,
                    proxy,
                    ..
                },
                Self::Rules {
                    difference: same,
                    more: others,
                    proxy: same_proxy,
                    ..
                },
            ) if difference == same && proxy == same_proxy => {
                *more = (*more).max(*others);
                true
            }
            (
                Self::ForeignRule {
                    by, which, effect, ..
                },
                Self::ForeignRule {
                    by: its,
                    which: its_which,
                    effect: its_effect,
                    ..
                },
            ) => {
                let is_same = effect == its_effect && by.joins(its);
                // One rule may take packets of some clients and replies to others: both come after the first packet of
                // a connection.
                if is_same && which != its_which {
                    *which = which.and(*its_which).and(Some(Which::Sent));
                }
                is_same
            }
            (Self::Obstacle { what, .. }, Self::Obstacle { what: same, .. }) => {
                *what == *same
                    || matches!(
                        (&**what, &**same),
                        (
                            Obstacle::Detour { rule: Some(rule), .. },
                            Obstacle::Detour { rule: Some(its), .. },
                        ) if rule == its
                    )
                    || matches!(
                        (&**what, &**same),
                        (
                            Obstacle::RouteBack { pod, link, route, .. },
                            Obstacle::RouteBack { pod: its_pod, link: its_link, route: its_route, .. },
                        ) if (pod, link, route) == (its_pod, its_link, its_route)
                    )
                    || matches!(
                        (&**what, &**same),
                        (Obstacle::Wayless { by, .. }, Obstacle::Wayless { by: its, .. }) if by == its
                    )
                    || matches!(
                        (&**what, &**same),
                        (
                            Obstacle::Deaf {
                                stranger: Some(one),
                                ..
                            },
                            Obstacle::Deaf {
                                stranger: Some(other),
                                ..
                            },
                        ) if one == other
                    )
                    || is_same_route(what, same)
            }
            // Without a route to the addresses of Services, the route is missing for all of them.
            (
                Self::NoRoute {
                    is_service: true,
                    backend,
                    ..
                },
                Self::NoRoute {
                    is_service: true,
                    backend: other,
                    ..
                },
            ) => backend.is_ipv4() == other.is_ipv4(),
            // The same route keeps packets from several endpoints.
            (Self::Route { route, .. }, Self::Route { route: same, .. }) => route == same,
            (
                Self::PodRoute { range, by, .. },
                Self::PodRoute {
                    range: same,
                    by: same_by,
                    ..
                },
            ) => range == same && by == same_by,
            _ => self == other,
        }
    }

    /// Returns whether it depends on the endpoint which connections it breaks, not on their number.
    pub(super) fn is_of_ends(&self) -> bool {
        match self {
            Self::StaleConnections { .. } | Self::TableFull { .. } => false,
            Self::Obstacle { what, .. } => !matches!(
                **what,
                Obstacle::NoLocalPort { .. }
                    | Obstacle::Limited { .. }
                    | Obstacle::FullNeighbours { .. }
            ),
            _ => true,
        }
    }

    /// Returns the object at fault, if it is not one of the Service.
    pub(super) fn about(&self) -> Option<Subject> {
        match self {
            Self::ForeignRule { by, .. } => Some(Subject::Rule(by.rule.clone())),
            Self::Obstacle { what, .. } => match what.as_ref() {
                Obstacle::Proxied { by, .. } | Obstacle::Limited { by, .. } => {
                    Some(Subject::Rule(by.rule.clone()))
                }
                _ => None,
            },
            Self::Leftover { mode, .. } => Some(Subject::from(*mode)),
            Self::ForwardingOff { key } | Self::BypassedReply { key, .. } => {
                Some(Subject::sysctl(*key))
            }
            Self::HairpinPort { bridge } => Some(Subject::link(bridge)),
            Self::PodRoute { range, .. } => Some(Subject::Prefix { prefix: *range }),
            _ => None,
        }
    }

    /// Returns the owner of the rules at fault; `None` if no rule is.
    pub fn owner(&self) -> Option<&str> {
        match self {
            Self::ForeignRule { software, .. } => {
                Some(software.as_deref().unwrap_or("unknown (not kube-proxy)"))
            }
            // Rules that kube-proxy would not write are not its own.
            Self::Rules {
                object: (_, ChangeKind::Extra),
                ..
            } => None,
            Self::Rules { .. } | Self::Idle(_) | Self::Leftover { .. } => Some("kube-proxy"),
            Self::Obstacle { what, .. } => Some(obstacle_owner(what)),
            _ => None,
        }
    }
}

/// Returns whether packets pass `chain` of `table` before kube-proxy translates them: table filter comes after nat.
pub(super) fn is_before_nat(table: &str, chain: &str) -> bool {
    let is_filter = matches!(table.rsplit(' ').next(), Some("filter" | "security"));
    !is_filter && matches!(chain.to_ascii_lowercase().as_str(), "prerouting" | "output")
}
