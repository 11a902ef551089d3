//! The sentences of the causes.

use std::net::SocketAddr;

use super::cause::{At, Cause, Failed, Idle, PROXY_NAME, is_address, is_before_nat};
use super::endpoints::{ButFor, Compared, Lack, Waits};
use crate::check::{no_report, without_family};
use crate::trace::mismatch::listed;
use crate::verdict::{Client, Which, client_names};
use kpx_node::cluster::HEADLESS_LABEL;
use kpx_node::net::Family;
use kpx_node::owner::Role;
use kpx_node::words::number_of;

impl Cause {
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
        let sticky = if at.is_partly() && at.sticky && at.open.is_none() {
            "; session affinity keeps a client at one endpoint, so it loses all of its connections or none"
        } else {
            ""
        };
        format!("{}: {reason}{owner}{sticky}", fails(at))
    }

    /// Returns whether its reason names what fails.
    const fn names_subject(&self) -> bool {
        matches!(
            self,
            Self::NoService { .. }
                | Self::Dns { .. }
                | Self::DnsFails { .. }
                | Self::NodeResolver { .. }
                | Self::NoAddress { .. }
                | Self::OfNode { .. }
                | Self::NoNodePort { .. }
                | Self::NoPort { .. }
                | Self::HeadlessPort { .. }
                | Self::ExternalName { .. }
                | Self::OtherProxy { .. }
                | Self::HeadlessLabel
                | Self::NoClusterIp
                | Self::StaleConnections { .. }
                | Self::NoEndpoints { .. }
                | Self::Balancer { .. }
                | Self::Pending { .. }
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
                let other: Vec<_> = elsewhere
                    .iter()
                    .map(|elsewhere| format!("{elsewhere}/{name}"))
                    .collect();
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
            Self::DnsFails { reason, all, .. } => {
                let found = if *all {
                    "cannot be reached by its name"
                } else {
                    "is not always found by its name"
                };
                format!("{subject} {found}, as cluster DNS fails: {reason}")
            }
            Self::NodeResolver {
                name,
                pod,
                host_network,
                ..
            } => {
                let why = if *host_network {
                    "hostNetwork with dnsPolicy ClusterFirst"
                } else {
                    "dnsPolicy Default"
                };
                format!(
                    "{subject} cannot be reached by its name from pod {pod}: it asks the resolver of its node ({why}), which does not \
                     resolve {name}"
                )
            }
            Self::NoAddress { address, port } => {
                let at = port.map_or(address.to_string(), |port| {
                    SocketAddr::new(*address, port).to_string()
                });
                format!("no Service and no endpoint has the address {at}")
            }
            Self::OfNode { at, other, is } => match is {
                Some(is) => format!(
                    "{at} is {is} on {other}: only the state of that node shows whether it works"
                ),
                None => format!(
                    "{} is an address of {other}, where port {} is no NodePort and no hostPort: whether a program listens there is unknown",
                    at.ip(),
                    at.port()
                ),
            },
            Self::NoNodePort { port } => format!("no Service has NodePort {port}"),
            Self::NoPort {
                service,
                port,
                ports,
                ..
            } => format!("{service} has no port {port}; its ports: {}", listed(ports)),
            Self::HeadlessPort { port, targets } => format!(
                "{subject} is headless: its name leads clients to the pods themselves, and nothing translates port {port} to their port {}",
                listed(&targets.iter().map(u16::to_string).collect::<Vec<_>>())
            ),
            Self::ExternalName { target, .. } if is_address(target) => format!(
                "{subject} is an ExternalName Service for an address, {target}: it exists only in DNS, as an alias, and an alias leads \
                 to a name, so it does not resolve"
            ),
            Self::ExternalName {
                target,
                untranslated,
                lacks_port,
            } if untranslated.is_some() || lacks_port.is_some() => {
                let kept = untranslated.map_or_else(String::new, |(port, to)| {
                    format!(", which does not translate its port {port} to {to}")
                });
                let lacks = lacks_port.as_ref().map_or_else(String::new, |(to, port)| {
                    format!("; {to} has no port {port}")
                });
                format!(
                    "{subject} is an ExternalName Service, an alias of {target} in DNS{kept}: clients connect to the port that they ask \
                     for{lacks}"
                )
            }
            Self::ExternalName { target, .. } => format!(
                "{subject} is an ExternalName Service: it exists only in DNS, as an alias of {target}, and kube-proxy does not serve it"
            ),
            Self::OtherProxy { proxy } => format!(
                "kube-proxy does not serve {subject}: the label {PROXY_NAME} assigns it to {proxy}"
            ),
            Self::HeadlessLabel => format!(
                "kube-proxy does not serve {subject}, although it has a cluster IP: its label {HEADLESS_LABEL} makes kube-proxy ignore it"
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
            } if backends.iter().all(|backend| backend == address) => format!(
                "{} to {address} on {node} {} not translated, so the packets go to that address itself: the clients get no answer until \
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
            } => {
                // Without a translation, a connection leads to the Service's address itself.
                let (plain, gone): (Vec<_>, Vec<_>) = backends
                    .iter()
                    .copied()
                    .partition(|backend| backend == address);
                format!(
                    "{} to {address} on {node} still {} to {}, which {} of {subject}{}: the clients get no answer until the entries end",
                    number_of(*count, &format!("tracked {protocol} connection")),
                    if *count == 1 { "goes" } else { "go" },
                    addresses(&gone),
                    if gone.len() == 1 {
                        "is no longer an endpoint"
                    } else {
                        "are no longer endpoints"
                    },
                    if plain.is_empty() {
                        ""
                    } else {
                        ", or are not translated"
                    },
                )
            }
            Self::TableFull {
                count,
                most,
                mostly,
                ..
            } => {
                let mostly = mostly
                    .as_ref()
                    .map_or_else(String::new, |crowd| format!("; {crowd}"));
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
                    (None, "accepts" | "translates" | "untracks")
                        if is_before_nat(table, chain) =>
                    {
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
                    more => format!(" (and {})", number_of(*more, "more difference")),
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
                "{policy} is Local, and an EndpointSlice of the Service does not name {node} as the node of its endpoints \
                 (nodeName), so kube-proxy takes {} for endpoints of other nodes, although they run on {node}{since}",
                listed(unnamed)
            ),
            Self::NoLocalEndpoints {
                policy,
                nodes,
                ending,
                unready,
                ..
            } => {
                let nodes = match nodes.as_slice() {
                    [] => "other nodes".to_owned(),
                    names => listed(names),
                };
                if !ending.is_empty() {
                    let ending = listed(ending);
                    return format!(
                        "{policy} is Local and the endpoint of {node}, {ending}, is terminating and no longer serves; others are on \
                         {nodes}{since}"
                    );
                }
                if !unready.is_empty() {
                    return format!(
                        "{policy} is Local and no endpoint on {node} is ready, only on {nodes}{since}; {}",
                        waits(unready)
                    );
                }
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
                "endpoint {backend} runs on {node}, but the route leads off the node, by {way}"
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
                own,
                odd,
                ..
            } => {
                // The port of a client is not known.
                let what = match backend.port() {
                    0 => format!("replies to {}", backend.ip()),
                    _ => format!("packets to {backend}"),
                };
                if let Some(odd) = odd {
                    return format!("{what} on {other} {way}: {}", odd.words(other));
                }
                match own {
                    Some((own, link)) => format!(
                        "{link} of {node} has {own}, an address of the pods of {other} ({range}): {what} {way}, not by {by}"
                    ),
                    None => format!(
                        "{node} has no route to {range}, the pods of {other}, by {by}, as it has to those of other nodes: \
                         {what} {way}"
                    ),
                }
            }
            Self::NoPod {
                backend,
                slice,
                writer,
            } => {
                let stale = writer.behind();
                let list = match slice.as_str() {
                    "" => "an EndpointSlice of the Service".to_owned(),
                    name => format!("EndpointSlice {name}"),
                };
                format!(
                    "no pod on {node} has the address of endpoint {backend}, which {list} lists ({stale})"
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
                lacks_node_ports: true,
                ..
            } => format!(
                "{subject} works at its own addresses on {node}, but its load balancer {} has no target: it sends connections to \
                 NodePorts of the nodes (target type instance), and the Service has none (allocateLoadBalancerNodePorts: false)",
                listed(names)
            ),
            Self::Balancer {
                names,
                node_ports,
                preserves,
                ..
            } => balancer(subject, node, names, node_ports, *preserves),
            Self::Pending { node_ports, class } => {
                let ports: Vec<String> = node_ports.iter().map(u16::to_string).collect();
                let class = class.as_ref().map_or_else(String::new, |class| {
                    format!(
                        ", as only the controller of its loadBalancerClass {class} gives it one: the others, such as MetalLB's, leave \
                         it alone"
                    )
                });
                let way = match ports.as_slice() {
                    [] => String::new(),
                    [port] => {
                        format!(": clients outside reach it only at NodePort {port} of the nodes")
                    }
                    ports => format!(
                        ": clients outside reach it only at NodePorts {} of the nodes",
                        listed(ports)
                    ),
                };
                format!(
                    "no load balancer has given {subject} an address (EXTERNAL-IP is <pending>){class}{way}"
                )
            }
            Self::UndeclaredPort { port, of, .. } => {
                let declares = of.declares();
                match (&of.stranger, of.instead()) {
                    (Some(stranger), _) => format!(
                        "the selector of {subject} may match too much: pod {} declares {declares} alone, and its sockets are not known; \
                         {stranger}",
                        of.pod
                    ),
                    (None, Some(_)) => format!(
                        "the protocol of port {port} of {subject} may be wrong: its pods declare {declares} alone, and their sockets are not \
                         known"
                    ),
                    (None, None) if of.all => format!(
                        "targetPort {port} of {subject} may be wrong: its pods declare {declares} alone, and their sockets are not known"
                    ),
                    (None, None) => format!(
                        "pod {} of {subject} may not have port {port}: it declares {declares} alone, as others of its pods do not, and its \
                         sockets are not known",
                        of.pod
                    ),
                }
            }
            Self::Idle(Idle { reason, .. })
            | Self::Finding { reason, .. }
            | Self::Unexplained { reason, .. } => reason.clone(),
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
        Some(Which::Datagram) => "later datagrams from each port",
    }
}

/// Returns the beginning of a sentence: which Service fails where, for whom and to which addresses.
fn fails(at: &At) -> String {
    let node = at.node.as_deref().unwrap_or("this node");
    let because = at
        .there
        .as_ref()
        .map_or_else(String::new, |there| format!(", because of node {there}"));
    let (partly, wholly): (Vec<&Failed>, Vec<&Failed>) =
        at.failed.iter().partition(|failed| failed.share.is_some());
    let subject = &at.subject;
    if at.open.is_none() && !partly.is_empty() && !wholly.is_empty() {
        return format!(
            "{subject} fails on {node} for {}{}, and for all{}{because}",
            at.some(&partly),
            where_from(&partly),
            where_from(&wholly)
        );
    }
    let verb = match &at.open {
        Some(_) => "may not work".to_owned(),
        None if at.is_partly() => format!("fails for {}", at.some(&partly)),
        None => "does not work".to_owned(),
    };
    let to = match at.to.as_slice() {
        [] => String::new(),
        to => format!(" ({})", listed(to)),
    };
    let from = client_names(&at.from);
    format!("{subject} {verb} on {node}{from}{to}{because}")
}

/// Returns from which clients, and to which addresses: ` from pods (10.96.0.10:53/udp)`.
fn where_from(failed: &[&Failed]) -> String {
    let from: Vec<Client> = failed.iter().map(|failed| failed.client).collect();
    let mut to: Vec<String> = failed.iter().map(|failed| failed.to.to_string()).collect();
    to.sort_unstable();
    to.dedup();
    format!("{} ({})", client_names(&from), listed(&to))
}

impl At {
    /// Returns whether only some connections fail, from each client to each address.
    fn is_partly(&self) -> bool {
        !self.failed.is_empty() && self.failed.iter().all(|failed| failed.share.is_some())
    }

    /// Returns how many connections fail: `25% of connections`.
    fn some(&self, failed: &[&Failed]) -> String {
        let what = if self.sticky {
            "clients"
        } else {
            "connections"
        };
        let shares = failed.iter().filter_map(|failed| failed.share.as_deref());
        let shares: Vec<&str> = shares.collect();
        match shares.as_slice() {
            [first, rest @ ..]
                if !matches!(*first, "0%" | "100%") && rest.iter().all(|share| share == first) =>
            {
                format!("{first} of {what}")
            }
            _ => format!("some {what}"),
        }
    }
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
    let of_family = family.map_or_else(String::new, |family| format!("{family} "));
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
        Lack::OtherFamily {
            pods,
            family,
            hosts,
        } if !hosts.is_empty() => format!(
            "{subject} has no {family} endpoints{since}: its pods ({}) {}",
            listed(pods),
            without_family(*family, hosts)
        ),
        Lack::OtherFamily { pods, family, .. } => format!(
            "{subject} has no {family} endpoints{since}: none of its pods ({}) has an {family} address",
            listed(pods)
        ),
        Lack::SliceFamily {
            slices,
            addresses,
            family,
        } => format!(
            "{subject} has no {family} endpoints{since}: its EndpointSlice{} lists only {}",
            in_brackets(slices),
            listed(addresses)
        ),
        Lack::HostNames { slices, names } => format!(
            "{subject} has no {of_family}endpoints{since}: its EndpointSlice{} lists host names ({}; addressType FQDN), which kube-proxy \
             does not read",
            in_brackets(slices),
            listed(names)
        ),
        Lack::NotStarted { pods } => format!(
            "{subject} has no {of_family}endpoints{since}: pods match its selector, but none takes connections; {}",
            waits(pods)
        ),
        Lack::NoPods {
            selector,
            compared,
            but_for,
        } => {
            let but_for = match but_for {
                Some(ButFor::Label { label, pod, has }) => {
                    let has = match has {
                        Some(value) => format!("has the value {value} there"),
                        None => "lacks it".to_owned(),
                    };
                    format!("; without {label} it would match {pod}, which {has}")
                }
                Some(ButFor::Namespace { pod, namespace }) => {
                    format!(
                        "; {pod} in namespace {namespace} has these labels, but a Service selects pods of its own namespace alone"
                    )
                }
                None => String::new(),
            };
            let no_pod =
                format!("no pod in namespace {namespace} matches its selector {selector}{but_for}");
            let node = at.node.as_deref().unwrap_or("this node");
            match compared {
                // Slices list no pod that waits for its node or its network.
                Compared::All => format!(
                    "{subject} has no {of_family}endpoints{since}: {no_pod}, or none that does has an address yet"
                ),
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
            "{subject} has no {of_family}endpoints{since}: its EndpointSlice{} lists none, although ready pods match its selector ({}): \
             the EndpointSlice controller has not updated it",
            in_brackets(slices),
            listed(pods)
        ),
        Lack::Labelled { slices, label } => format!(
            "{subject} has no {of_family}endpoints{since}: EndpointSlice {} has the label {label}, and kube-proxy reads none with it",
            listed(slices)
        ),
        Lack::SelectorUnread { unready } => format!(
            "{subject} has no {of_family}endpoints{since}; its selector is not shown, so the pods that it selects are unknown{}",
            of_namespace(unready)
        ),
        Lack::StatesUnread { selector, unready } => format!(
            "{subject} has no ready endpoint{since}; whether pods match its selector {selector} is not shown{}",
            of_namespace(unready)
        ),
        Lack::NoSelector { unlabelled: None } => format!(
            "{subject} has no {of_family}endpoints{since}: it has no selector, and no EndpointSlice names it"
        ),
        Lack::NoSelector {
            unlabelled: Some(slice),
        } => format!(
            "{subject} has no {of_family}endpoints{since}: it has no selector, and EndpointSlice {slice} lacks the label that \
             names it, kubernetes.io/service-name"
        ),
        Lack::NotReady {
            endpoints,
            silent,
            pods,
        } => format!(
            "{subject} has no ready {of_family}endpoint{since}: none of {} is ready{}{}",
            of(endpoints),
            match silent.as_slice() {
                [] => String::new(),
                nodes => format!("; {}", no_report(nodes)),
            },
            match pods.as_slice() {
                [] => String::new(),
                pods => format!("; {}", waits(pods)),
            }
        ),
        Lack::Outdated {
            pods,
            slices,
            writer,
        } => format!(
            "{subject} has no ready {of_family}endpoint{since}: its EndpointSlice{} says that {} not ready, although the kubelet reports \
             Ready: {}",
            in_brackets(slices),
            match pods.as_slice() {
                [pod] => format!("pod {pod} is"),
                pods => format!("pods {} are", listed(pods)),
            },
            writer.behind()
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
            let is_same = names.contains(wanted);
            let names: Vec<String> = names.iter().map(called).collect();
            let has = match names.as_slice() {
                [] => "has no ports".to_owned(),
                _ if is_same => {
                    format!(
                        "has a port {} without a number, which kube-proxy does not read",
                        called(wanted)
                    )
                }
                names => format!("has ports {}, and none {}", listed(names), called(wanted)),
            };
            format!(
                "{subject} has no {of_family}endpoint for this port{since}: its EndpointSlice{} {has}",
                in_brackets(slices)
            )
        }
        Lack::TargetPort { target } => format!(
            "{subject} has no {of_family}endpoint for this port{since}: no container of its pods has a port named {target}"
        ),
    };
    format!("{sentence}{at_all}")
}

/// Returns why pods take no connections: each reason with the first pod that has it.
fn waits(pods: &[Waits]) -> String {
    let mut all: Vec<(&Waits, usize)> = Vec::new();
    for of in pods {
        match all.iter_mut().find(|(first, _)| first.reason == of.reason) {
            Some((_, count)) => *count += 1,
            None => all.push((of, 1)),
        }
    }
    let text = |(first, count): &(&Waits, usize)| {
        let more = match count {
            1 => String::new(),
            count => format!(" (as in {} more)", count - 1),
        };
        format!("pod {}: {}{more}", first.pod, first.reason)
    };
    let texts: Vec<String> = all.iter().map(text).collect();
    texts.join("; ")
}

/// Returns that pods of the namespace are not ready, if any are.
fn of_namespace(unready: &[Waits]) -> String {
    match unready {
        [] => String::new(),
        pods => format!("; pods of its namespace are not ready: {}", waits(pods)),
    }
}

/// Returns ` (NAME, NAME)`, or nothing if no name is shown.
fn in_brackets(names: &[String]) -> String {
    match names {
        [] => String::new(),
        names => format!(" ({})", listed(names)),
    }
}

/// Returns the role of an address of a Service.
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
