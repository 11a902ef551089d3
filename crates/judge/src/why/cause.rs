//! The causes: what breaks a Service, in the order in which a packet meets them. Every sentence and fix is made here.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::endpoints::{Compared, Lack};
use crate::check::{Fix, ServiceRef, Writer, obstacle_owner};
use crate::diff::ChangeKind;
use crate::trace::mismatch::listed;
use crate::verdict::{By, Client, Home, Obstacle, Which, client_names};
use kpx_node::backend::Mode;
use kpx_node::evidence::Time;
use kpx_node::net::{Cidr, Family};
use kpx_node::owner::Role;
use kpx_node::words::number_of;

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
        /// Why it may exist all the same: the evidence does not show all Services.
        #[serde(skip_serializing_if = "Option::is_none")]
        unread: Option<String>,
    },
    /// Cluster DNS does not resolve the name of the Service.
    Dns {
        /// The name that does not resolve.
        name: String,
        /// The server.
        server: SocketAddr,
        /// What it answered.
        result: String,
    },
    /// No Service and no endpoint has the address.
    NoAddress {
        /// The address.
        address: IpAddr,
        /// The port, if given.
        port: Option<u16>,
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
    },
    /// Another proxy handles the Service.
    OtherProxy {
        /// The value of the label.
        proxy: String,
    },
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
        /// What most of the entries are, in words.
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
        /// Which packets it takes, if it lets those through that open a connection.
        #[serde(skip_serializing_if = "Option::is_none")]
        which: Option<Which>,
        /// What happens to the packets behind it, unless it ends them.
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
        /// Why kube-proxy does not write them, if the doctor found that.
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
        /// What the address is of this Service.
        role: Role,
        /// The other Service, as `NAMESPACE/NAME`.
        other: String,
        /// What the address is of the other Service.
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
    /// The Service does not have the family of the address, so kube-proxy does not serve it there.
    OtherFamily {
        /// The address.
        address: IpAddr,
        /// What the address is of the Service; `None` for its NodePort.
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
        /// What blocks them, in words.
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
        /// The Node to which the address belongs, if that is another one.
        #[serde(skip)]
        home: Option<Box<Home>>,
    },
    /// A route or a routing policy rule ends the packets, or sends them elsewhere.
    Route {
        /// The route or rule, in words.
        route: String,
        /// The destination of the packets.
        backend: SocketAddr,
        /// How to remove it, or to lead the packets past it.
        #[serde(skip)]
        fix: Fix,
    },
    /// No route leads to the pods of another node by its address, as routes do to those of other nodes.
    PodRoute {
        /// An endpoint there.
        backend: SocketAddr,
        /// The range of the other node's pods.
        range: Cidr,
        /// The other node.
        other: String,
        /// Its address.
        by: IpAddr,
        /// The way that the packets take.
        way: String,
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
        /// What happens to the reply.
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
        /// Whether the Service's annotations ask for an NLB that preserves the addresses of clients.
        preserves: bool,
    },
    /// The endpoints use a port that their pods do not declare.
    UndeclaredPort {
        /// The port of the endpoints.
        port: u16,
        /// The ports that the pods declare.
        declared: Vec<u16>,
    },
    /// An EndpointSlice lists an address that no pod has.
    NoPod {
        /// The endpoint.
        backend: SocketAddr,
        /// The slice.
        slice: String,
        /// Who writes it.
        writer: Writer,
    },
    /// An endpoint is an address of a Service, or a NodePort of this node: a connection is translated once.
    Twice {
        /// The endpoint.
        backend: SocketAddr,
        /// The Service port whose address or `NodePort` it is.
        other: String,
        /// The slice that lists it.
        slice: String,
        /// Who writes it.
        writer: Writer,
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

/// Why kube-proxy does not program the node: a finding of the doctor.
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

/// How sure it is that a cause breaks the Service.
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

/// The place and the time of a cause.
#[derive(Clone, Debug, Default)]
pub(super) struct At {
    /// The Service port, or the Service.
    pub(super) subject: String,
    /// The Service, if it exists.
    pub(super) service: Option<ServiceRef>,
    /// The node.
    pub(super) node: Option<String>,
    /// The node on which the cause is, if that is another one.
    pub(super) there: Option<String>,
    /// The clients whose packets fail.
    pub(super) from: Vec<Client>,
    /// The addresses at which they fail.
    pub(super) to: Vec<String>,
    /// Whether only some connections fail.
    pub(super) partly: bool,
    /// What decides whether they fail: `whether …`; `None` if they do.
    pub(super) open: Option<String>,
    /// Since when.
    pub(super) since: Option<Time>,
}

impl Cause {
    /// Returns its place on the packet's way: a smaller number is earlier.
    pub fn stage(&self) -> u8 {
        match self {
            Self::NoService { .. }
            | Self::Dns { .. }
            | Self::NoAddress { .. }
            | Self::NoNodePort { .. } => 0,
            Self::NoPort { .. }
            | Self::HeadlessPort { .. }
            | Self::ExternalName { .. }
            | Self::OtherProxy { .. }
            | Self::NoClusterIp => 1,
            Self::StaleConnections { .. } | Self::TableFull { .. } => 2,
            Self::ForeignRule { chain, .. } if is_before_nat(chain) => 3,
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
            Self::NoPod { .. } | Self::Twice { .. } | Self::Unexplained { .. } => 12,
            Self::Balancer { .. } => 13,
            Self::UndeclaredPort { .. } | Self::Probe { .. } => 14,
        }
    }

    /// Returns whether `other` is the same cause on another path; then this one is of both.
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
            (Self::ForeignRule { by, .. }, Self::ForeignRule { by: its, .. }) => {
                let mut joined = by.clone();
                let mut same = other.clone();
                if !joined.joins(its) {
                    return false;
                }
                if let Self::ForeignRule { by: of, .. } = &mut same {
                    of.clone_from(by);
                }
                if *self != same {
                    return false;
                }
                if let Self::ForeignRule { by, .. } = self {
                    *by = joined;
                }
                true
            }
            _ => self == other,
        }
    }

    /// Returns whether the Service's own settings ask for it.
    pub const fn is_by_design(&self) -> bool {
        match self {
            Self::SourceRanges { .. }
            | Self::OnLoopback { .. }
            | Self::OtherFamily { role: None, .. } => true,
            Self::NoLocalEndpoints { unnamed, .. } => unnamed.is_empty(),
            _ => false,
        }
    }

    /// Returns the owner of the rules at fault; `None` if no rule is.
    pub fn owner(&self) -> Option<&str> {
        match self {
            Self::ForeignRule { software, .. } => {
                Some(software.as_deref().unwrap_or("unknown, but not kube-proxy"))
            }
            Self::Rules { .. }
            | Self::Idle(_)
            | Self::Leftover { .. }
            | Self::NoLocalEndpoints { .. }
            | Self::SourceRanges { .. }
            | Self::NotMasqueraded { .. } => Some("kube-proxy"),
            Self::Obstacle { what, .. } => Some(obstacle_owner(what)),
            _ => None,
        }
    }

    /// Returns the cause as one sentence, without a full stop.
    pub(super) fn sentence(&self, at: &At) -> String {
        let reason = self.reason(at);
        if self.names_subject() {
            return reason;
        }
        let owner = match (self, self.owner()) {
            (Self::Idle(_) | Self::Rules { proxy: Some(_), .. } | Self::Obstacle { .. }, _)
            | (_, None) => String::new(),
            (_, Some(owner)) => format!("; owner of the rule: {owner}"),
        };
        format!("{}: {reason}{owner}", fails(at))
    }

    /// Returns whether its reason names what fails.
    const fn names_subject(&self) -> bool {
        matches!(
            self,
            Self::NoService { .. }
                | Self::Dns { .. }
                | Self::NoAddress { .. }
                | Self::NoNodePort { .. }
                | Self::NoPort { .. }
                | Self::HeadlessPort { .. }
                | Self::ExternalName { .. }
                | Self::OtherProxy { .. }
                | Self::NoClusterIp
                | Self::StaleConnections { .. }
                | Self::NoEndpoints { .. }
                | Self::Balancer { .. }
                | Self::UndeclaredPort { .. }
                | Self::Probe { .. }
        )
    }

    /// Returns what breaks the connections.
    pub(super) fn reason(&self, at: &At) -> String {
        let subject = &at.subject;
        let node = at.there.as_deref().or(at.node.as_deref());
        let node = node.unwrap_or("this node");
        let since = at
            .since
            .map_or_else(String::new, |time| format!(" since {time}"));
        match self {
            Self::NoService {
                namespace,
                name,
                unread: Some(why),
                ..
            } => format!("whether Service {namespace}/{name} exists is unknown: {why}"),
            Self::NoService {
                namespace,
                name,
                elsewhere,
                ..
            } => {
                let other: Vec<_> = elsewhere.iter().map(|of| format!("{of}/{name}")).collect();
                let other = match other.as_slice() {
                    [] => String::new(),
                    names => format!("; existing: {}", listed(names)),
                };
                format!(
                    "Service {namespace}/{name} does not exist, and neither does its DNS name {name}.{namespace}.svc{other}"
                )
            }
            Self::Dns {
                name,
                server,
                result,
            } => format!(
                "{subject} cannot be reached by its name: cluster DNS at {server}, asked from {node}, does not resolve \
                 {name} ({result})"
            ),
            Self::NoAddress { address, port } => {
                let at = port.map_or(address.to_string(), |port| {
                    SocketAddr::new(*address, port).to_string()
                });
                format!("no Service and no endpoint has the address {at}")
            }
            Self::NoNodePort { port } => format!("no Service has NodePort {port}"),
            Self::NoPort {
                service,
                port,
                ports,
            } => format!("{service} has no port {port}; its ports: {}", listed(ports)),
            Self::HeadlessPort { port, targets } => format!(
                "{subject} is headless: its name leads clients to the pods themselves, and nothing translates port {port} to their port {}",
                listed(&targets.iter().map(u16::to_string).collect::<Vec<_>>())
            ),
            Self::ExternalName { target } => format!(
                "{subject} is an ExternalName Service: it exists only in DNS, as an alias of {target}, and kube-proxy does not serve it"
            ),
            Self::OtherProxy { proxy } => format!(
                "kube-proxy does not serve {subject}: the label {PROXY_NAME} assigns it to {proxy}"
            ),
            Self::NoClusterIp => {
                format!("{subject} has no cluster IP yet: the API server assigns it")
            }
            Self::StaleConnections {
                count,
                address,
                protocol,
                backends,
                ..
            } if backends.iter().all(|of| of == address) => format!(
                "{} to {address} on {node} {} not translated, so the packets leave for that address itself: the clients get no answer until \
                 the entries end",
                number_of(*count, &format!("tracked {protocol} connection")),
                if *count == 1 { "is" } else { "are" },
            ),
            Self::StaleConnections {
                count,
                address,
                protocol,
                backends,
                ..
            } => format!(
                "{} to {address} on {node} still {} to {}, which {} no longer an endpoint of {subject}: the clients get no answer until the entries end",
                number_of(*count, &format!("tracked {protocol} connection")),
                if *count == 1 { "goes" } else { "go" },
                addresses(backends),
                if backends.len() == 1 { "is" } else { "are" },
            ),
            Self::TableFull {
                count,
                most,
                mostly,
                ..
            } => {
                let mostly = mostly
                    .as_ref()
                    .map_or_else(String::new, |of| format!("; {of}"));
                format!(
                    "the table of tracked connections is full ({count} of {most}), so {node} drops new ones{mostly}"
                )
            }
            Self::ForeignRule {
                table,
                chain,
                number: 0,
                which,
                ..
            } => format!(
                "no rule of chain {chain} in table {table} accepts the {}, and its policy drops them",
                packets(*which)
            ),
            Self::ForeignRule {
                table,
                chain,
                number,
                effect,
                other_back_end,
                which,
                then,
                ..
            } => format!(
                "rule {number} of chain {chain} in table {table}{} {effect} the {}{}",
                if *other_back_end {
                    " of the other iptables back end"
                } else {
                    ""
                },
                packets(*which),
                match (then, *effect) {
                    (Some(then), _) => format!(" {then}"),
                    (None, "accepts" | "translates" | "untracks") if is_before_nat(chain) => {
                        " before kube-proxy's rules translate them".to_owned()
                    }
                    (None, _) => String::new(),
                }
            ),
            Self::Leftover { mode, object } => {
                format!("{object}, which mode {mode} left behind, takes the packets")
            }
            Self::Rules {
                difference,
                more,
                synced,
                proxy,
                ..
            } => {
                let more = match more {
                    0 => String::new(),
                    more => format!(" ({} more)", number_of(*more, "difference")),
                };
                let synced = synced.map_or_else(String::new, |time| {
                    format!("; kube-proxy's last sync was at {time}")
                });
                match proxy {
                    Some(Idle { reason, .. }) => {
                        format!("{reason}; therefore {difference}{more}{synced}")
                    }
                    None => format!("{difference}{more}{synced}"),
                }
            }
            Self::SharedAddress {
                address,
                role,
                other,
                other_role,
            } => format!(
                "{address} is {} of {other}, too, not only {} of this Service, and kube-proxy's rules serve {other}",
                with_article(*other_role),
                with_article(*role),
            ),
            Self::NodePortAddresses { ranges, address } if ranges.is_empty() => format!(
                "nodePortAddresses is not set in kube-proxy's configuration, and mode nftables then serves NodePorts at the \
                 node's primary address alone, which {address} is not"
            ),
            Self::NodePortAddresses { ranges, address } => format!(
                "nodePortAddresses in kube-proxy's configuration ({}) has no range with {address}, so kube-proxy \
                 serves no NodePort at this address",
                listed(ranges)
            ),
            Self::OnLoopback { address, why, .. } => format!(
                "kube-proxy serves no NodePort on {}, by design ({why})",
                address.ip()
            ),
            Self::OtherFamily {
                address,
                role,
                families,
            } => {
                let families: Vec<String> = families.iter().map(ToString::to_string).collect();
                let families = listed(&families);
                match role {
                    None => format!(
                        "the Service is {families} only, so kube-proxy serves no NodePort of it at {address}"
                    ),
                    Some(role) => format!(
                        "the Service is {families} only, so kube-proxy does not serve {address}, {} of it",
                        with_article(*role)
                    ),
                }
            }
            Self::NoEndpoints { lack, family } => no_endpoints(lack, *family, at, &since),
            Self::NoLocalEndpoints {
                policy, here: true, ..
            } => format!(
                "{policy} is Local, and the rules send these clients to endpoints of other nodes, too, whose \
                 replies do not return by {node}{since}"
            ),
            Self::NoLocalEndpoints {
                policy, unnamed, ..
            } if !unnamed.is_empty() => format!(
                "{policy} is Local, and an EndpointSlice of the Service does not name the nodes of its endpoints \
                 (nodeName), so kube-proxy takes {} for endpoints of other nodes, although they run on {node}{since}",
                listed(unnamed)
            ),
            Self::NoLocalEndpoints { policy, nodes, .. } => {
                let nodes = match nodes.as_slice() {
                    [] => "other nodes".to_owned(),
                    names => listed(names),
                };
                format!("{policy} is Local and {node} has no endpoint, only {nodes}{since}")
            }
            Self::SourceRanges { ranges } => format!(
                "the client is outside loadBalancerSourceRanges ({}){since}",
                listed(ranges)
            ),
            Self::ForwardingOff { key } => {
                format!("{key} is 0, so {node} drops every packet that it would forward")
            }
            Self::Obstacle { text, .. } => text.clone(),
            Self::NoRoute {
                backend,
                is_service: true,
                ..
            } => format!(
                "{node} has no route that leads to {}: the kernel looks for one before kube-proxy's rules translate the \
                 address, even a default route suffices",
                backend.ip()
            ),
            Self::NoRoute {
                backend, reason, ..
            } => {
                format!("{node} has no route to endpoint {backend} ({reason})")
            }
            Self::WrongNode {
                backend,
                home: Some(home),
                ..
            } => format!("endpoint {backend} runs on {node}, but {home}"),
            Self::WrongNode { backend, way, .. } => format!(
                "endpoint {backend} runs on {node}, but the route leads to another node, by {way}"
            ),
            Self::Route { route, backend, .. } if backend.port() == 0 => {
                let client = backend.ip();
                format!("{route} of {node} ends or diverts the replies to {client}")
            }
            Self::Route { route, backend, .. } => {
                format!("{route} of {node} ends or diverts the packets to {backend}")
            }
            Self::PodRoute {
                backend,
                range,
                other,
                by,
                way,
            } => format!(
                "{node} has no route to {range}, the pods of {other}, by {by}, as it has to those of other nodes: \
                 packets to {backend} leave by {way}"
            ),
            Self::NoPod {
                backend,
                slice,
                writer,
            } => {
                let stale = match writer {
                    Writer::Controller => "the EndpointSlice controller has not updated it",
                    Writer::Former => {
                        "it is left from the time when the Service had a selector, and nothing updates it"
                    }
                    Writer::Mirror => "it mirrors the Service's Endpoints object",
                    Writer::Other => "the EndpointSlice controller did not write it",
                };
                format!(
                    "no pod on {node} has the address of endpoint {backend}, which EndpointSlice {slice} lists ({stale})"
                )
            }
            Self::Twice { backend, other, .. } => format!(
                "endpoint {backend} is itself served by kube-proxy, for {other}, but a connection is translated once: on {node} nothing takes it there"
            ),
            Self::Dormant { table } => format!(
                "table {table} is dormant (flags dormant), so the kernel runs none of its rules"
            ),
            Self::HairpinPort { bridge } => {
                format!("hairpin mode is off on ports of bridge {bridge}")
            }
            Self::BypassedReply { bridge, key } => format!(
                "bridged packets bypass the rules on bridge {bridge} ({key} is not 1), so replies are lost"
            ),
            Self::NotMasqueraded { reply } => reply.clone(),
            Self::Balancer {
                names,
                node_ports,
                preserves,
            } => balancer(subject, node, names, node_ports, *preserves),
            Self::UndeclaredPort { port, declared } => {
                let declared: Vec<_> = declared.iter().map(u16::to_string).collect();
                format!(
                    "targetPort {port} of {subject} may be wrong: its pods declare {} alone, and their sockets are not known",
                    listed(&declared)
                )
            }
            Self::Idle(Idle { reason, .. }) | Self::Unexplained { reason, .. } => reason.clone(),
            Self::Probe { address, result } => format!(
                "the rules of {subject} are right on {node}, but a connection to {address} fails ({result}): check the application, NetworkPolicies and the network plugin"
            ),
        }
    }
}

/// Returns what a rule takes.
const fn packets(which: Option<Which>) -> &'static str {
    match which {
        None => "packets",
        Some(Which::Reply) => "replies",
        Some(Which::LaterReply) => "later replies of each connection",
        Some(Which::Sent) => "later packets of each connection",
    }
}

/// Returns whether packets pass `chain` before kube-proxy translates them.
fn is_before_nat(chain: &str) -> bool {
    matches!(chain.to_ascii_lowercase().as_str(), "prerouting" | "output")
}

/// Returns the beginning of a sentence: which Service fails where, for whom and to which addresses.
fn fails(at: &At) -> String {
    let node = at.node.as_deref().unwrap_or("this node");
    let verb = match (&at.open, at.partly) {
        (Some(_), _) => "may not work",
        (None, true) => "fails for some connections",
        (None, false) => "does not work",
    };
    let to = match at.to.as_slice() {
        [] => String::new(),
        to => format!(" ({})", listed(to)),
    };
    let from = client_names(&at.from);
    let because = at
        .there
        .as_ref()
        .map_or_else(String::new, |there| format!(", because of node {there}"));
    format!("{} {verb} on {node}{from}{to}{because}", at.subject)
}

fn balancer(
    subject: &str,
    node: &str,
    names: &[String],
    node_ports: &[u16],
    preserves: bool,
) -> String {
    let ports: Vec<String> = node_ports.iter().map(u16::to_string).collect();
    let way = match ports.as_slice() {
        [] => "sends connections to the pods".to_owned(),
        [port] => format!("sends connections to NodePort {port} of the nodes"),
        ports => format!(
            "sends connections to NodePorts {} of the nodes",
            listed(ports)
        ),
    };
    let hairpin = if preserves {
        "; an NLB that preserves the addresses of clients cannot return connections to the node of the client, so clients in the \
         cluster time out whenever it chooses their own node"
    } else {
        ""
    };
    format!(
        "{subject} works at its own addresses on {node}, but kpx cannot see its load balancer {}: kube-proxy does not serve it, \
         and it {way}{hairpin}",
        listed(names)
    )
}

/// Returns why the Service has no endpoints, or none of `family`.
fn no_endpoints(lack: &Lack, family: Option<Family>, at: &At, since: &str) -> String {
    let subject = &at.subject;
    let of_family = family.map_or_else(String::new, |of| format!("{of} "));
    let at_all = match (family, at.to.as_slice()) {
        (Some(family), to @ [_, ..]) => {
            format!("; the {family} addresses do not work: {}", listed(to))
        }
        _ => String::new(),
    };
    let service = at.service.as_ref();
    let namespace = service.map_or("default", |service| &service.namespace);
    let of = |endpoints: &[String]| format!("{} ({})", endpoints.len(), listed(endpoints));
    let sentence = match lack {
        Lack::OtherFamily { pods, family } => format!(
            "{subject} has no {family} endpoints{since}: its pods ({}) have no {family} address",
            listed(pods)
        ),
        Lack::NoPods { selector, compared } => {
            let no_pod = format!("no pod in namespace {namespace} matches its selector {selector}");
            let node = at.node.as_deref().unwrap_or("this node");
            match compared {
                Compared::All => format!("{subject} has no {of_family}endpoints{since}: {no_pod}"),
                Compared::Here => format!(
                    "{subject} has no {of_family}EndpointSlice: of the pods on {node}, {no_pod} (those on other nodes were not compared)"
                ),
                Compared::Nothing => format!(
                    "{subject} has no {of_family}EndpointSlice; the pods were not read, so it is unknown whether one matches its selector \
                     {selector}"
                ),
            }
        }
        Lack::NoSlice { pods, ready, all } => {
            let ready = if *ready { "ready " } else { "" };
            let controller = if *all {
                "no Service with a selector has one, so the EndpointSlice controller does not run or is too old"
            } else {
                "the EndpointSlice controller has not made one"
            };
            format!(
                "no {of_family}EndpointSlice exists for {subject}, although {ready}pods match its selector ({}): {controller}",
                listed(pods)
            )
        }
        Lack::Unlisted { pods, slices } => format!(
            "{subject} has no {of_family}endpoints{since}: its EndpointSlice ({}) lists none, although ready pods match its selector ({}): \
             the EndpointSlice controller has not updated it",
            listed(slices),
            listed(pods)
        ),
        Lack::Headless { slices } => format!(
            "{subject} has no {of_family}endpoints{since}: EndpointSlice {} has the label service.kubernetes.io/headless, and kube-proxy reads none \
             with it",
            listed(slices)
        ),
        Lack::SelectorUnread => format!(
            "{subject} has no {of_family}endpoints{since}; its selector is not shown, so which pods it is to have is unknown"
        ),
        Lack::StatesUnread { selector } => format!(
            "{subject} has no ready endpoint{since}; whether pods match its selector {selector} is not shown"
        ),
        Lack::NoSelector => format!(
            "{subject} has no {of_family}endpoints{since}: it has no selector, and no EndpointSlice names it"
        ),
        Lack::NotReady { endpoints } => format!(
            "{subject} has no ready {of_family}endpoint{since}: none of {} is ready",
            of(endpoints)
        ),
        Lack::Terminating { endpoints } => format!(
            "{subject} has no {of_family}endpoint{since}: all of {} are terminating",
            of(endpoints)
        ),
        Lack::PortName {
            wanted,
            names,
            slices,
            ..
        } => {
            let called = |name: &String| match name.as_str() {
                "" => "without a name".to_owned(),
                name => format!("named {name}"),
            };
            let names: Vec<String> = names.iter().map(called).collect();
            let has = match names.as_slice() {
                [] => "has no ports".to_owned(),
                names => format!("has ports {}, and none {}", listed(names), called(wanted)),
            };
            format!(
                "{subject} has no {of_family}endpoint for this port{since}: its EndpointSlice ({}) {has}",
                listed(slices)
            )
        }
        Lack::TargetPort { target } => format!(
            "{subject} has no {of_family}endpoint for this port{since}: no container of its pods has a port named {target}"
        ),
    };
    format!("{sentence}{at_all}")
}

/// Returns what an address is of a Service.
const fn with_article(role: Role) -> &'static str {
    match role {
        Role::ClusterIp => "a cluster IP",
        Role::ExternalIp => "an external IP",
        Role::LoadBalancerIp => "a load-balancer IP",
    }
}

fn addresses(all: &[SocketAddr]) -> String {
    let texts: Vec<_> = all.iter().map(ToString::to_string).collect();
    listed(&texts)
}
