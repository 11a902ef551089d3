//! SY16: settings, routes, links and filters that stop the connections of Services.
//!
//! The findings come from the verdict on all Services: a doubt is a warning, if its fix is known.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};

use crate::check::core::{PATH, proof_of, setting, some_services, sysctl_proof};
use crate::check::{
    Because, Check, Example, Facts, Finding, Fix, Proof, ServiceRef, Severity, Subject, Text,
    Verdict, When, bypass_fix, diverter_fix, home_fix, obstacle_fix, obstacle_owner, route_fix,
    rule_fix, way_there_fix,
};
use crate::trace::{self, Hop, Rule, Subsystem, why};
use crate::verdict::{Arp, By, DEFAULT_TTL, Wayless, accept_ra_of, disable_ipv6_of};
use crate::verdict::{
    Barrier, Brief, Client, Diverter, Fate, Fault, FilterReason, Judge, Missing, Obstacle, Odd,
    PORT_RANGE, RESERVED_PORTS, Surveyed, WayThere, Ways, Which, sysctl_of,
};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::routes::PolicyRule;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "SY16",
    name: "obstacles",
    severity: Severity::Error,
    when: When::Now,
    title: "No setting, route or filter of the node stops connections",
    symptom: "Connections to Services time out or are refused, although every rule of kube-proxy is right and the \
              endpoints are ready.",
    why: "A translated packet and its reply pass more than the rules of IP: sysctls of each link, routes and routing policy \
          rules, IPsec policies, filters of traffic control, chains on links and bridges, bridge ports and neighbour \
          entries. Each can stop them, and none of them appears in kube-proxy's rules.",
    verify: "Ask for the connections of one Service: the cause is named with its owner.",
    commands: &[
        Example::kpx(&["why", "NAMESPACE/SERVICE"]).with(&["NAMESPACE/SERVICE"]),
        Example::kpx(&["show", "services"]),
        Example::on_node("sysctl -a | grep -E '\\.(forwarding|rp_filter) '"),
        Example::on_node("ip rule; ip route show table all"),
        Example::on_node("ip xfrm policy"),
        Example::on_node("bridge -d link"),
        Example::on_node("ip neigh show nud failed"),
    ],
    fix: Text::plain("Remove what stops the packets, here and in the configuration that sets it."),
    incidents: &["cilium/cilium#10645: systemd 245 sets rp_filter at the links of pods"],
    needs: &[PATH, trace::NOTES_NEEDS],
    caused_by: &[
        Because::Same("IR16"),
        Because::In("SY01"),
        Because::In("KP10"),
        Because::Same("AP13"),
    ],
    run: obstacles,
}];

/// One barrier and the connections that it stops.
struct Found {
    named: Named,
    services: BTreeSet<ServiceRef>,
    /// The first of the connections from each kind of client.
    shown: BTreeMap<Client, (ServiceRef, SocketAddr, Fate)>,
    /// The barrier in the words of other connections that meet it.
    also: Vec<String>,
}

/// A barrier, with the words of its finding.
struct Named {
    about: Subject,
    /// Its name, if not that of the object.
    name: Option<String>,
    message: String,
    evidence: Vec<Proof>,
    fix: Fix,
    /// The object of another check that causes it.
    within: Option<Subject>,
}

/// The node of a run, and what was asked of it.
struct Look<'f, 'n> {
    facts: &'f Facts<'n>,
    ways: Ways<'n>,
    /// All endpoints.
    endpoints: HashSet<SocketAddr>,
    /// The endpoints on this node.
    here: HashSet<SocketAddr>,
}

fn obstacles(facts: &Facts<'_>) -> Verdict {
    facts.node.slices()?;
    // Without these, no way is certain.
    facts.node.links()?;
    facts.node.routes()?;
    facts.node.addresses()?;
    facts.node.sysctl()?.whole()?;
    // Pods of other nodes are clients.
    facts.node.nodes()?;
    let surveyed = facts.surveyed()?;
    let doubted = doubted(surveyed);
    let is_stopped = |port: &Surveyed| {
        port.has_endpoints && port.cells.iter().any(|cell| !cell.barriers.is_empty())
    };
    if !surveyed.iter().any(is_stopped) && doubted.is_empty() {
        return unknown(surveyed).map_or_else(|| Ok(Vec::new()), Err);
    }
    let ports = facts.owners().ports().iter();
    let endpoints = ports.flat_map(|port| &port.endpoints);
    let here = endpoints
        .clone()
        .filter(|endpoint| endpoint.local == Some(true));
    let look = Look {
        facts,
        ways: Ways::of(facts.node),
        here: here.map(|endpoint| endpoint.addr).collect(),
        endpoints: endpoints.map(|endpoint| endpoint.addr).collect(),
    };
    let cells = || surveyed.iter().flat_map(|port| &port.cells);
    let usual = cells().filter(|cell| !is_of_few(cell.client));
    // The checks of IP rules judge usual clients.
    let asked: BTreeSet<_> = usual
        .flat_map(|cell| &cell.barriers)
        .filter_map(rule_of_ip)
        .collect();
    let mut found: Vec<Found> = Vec::new();
    // Without an endpoint, a Service works with no repair of what stops its packets.
    for port in surveyed.iter().filter(|port| port.has_endpoints) {
        for cell in &port.cells {
            let barriers = cell.barriers.iter();
            for barrier in barriers
                .filter(|barrier| rule_of_ip(barrier).is_none_or(|rule| !asked.contains(&rule)))
            {
                for named in look.named(barrier) {
                    note(&mut found, port, cell, named);
                }
            }
        }
    }
    let found: Vec<Finding> = found.into_iter().map(finished).chain(doubted).collect();
    if found.is_empty() {
        return unknown(surveyed).map_or_else(|| Ok(Vec::new()), Err);
    }
    Ok(found)
}

/// Returns a finding for each range of other nodes' pods to which packets leave by another way than the node's address, where
/// it is unknown whether that way works.
fn doubted(surveyed: &[Surveyed]) -> Vec<Finding> {
    let mut all: BTreeMap<String, (&Missing, &WayThere, BTreeSet<ServiceRef>)> = BTreeMap::new();
    for port in surveyed {
        for cell in &port.cells {
            if let Some(Fault::Unknown(missing @ Missing::PodRoute { there, .. })) = &cell.fault {
                let of = all.entry(subject_of(there).to_string());
                let (.., services) = of.or_insert_with(|| (missing, there, BTreeSet::new()));
                services.insert(ServiceRef::from(&port.name));
            }
        }
    }
    let finding = |(missing, there, services): (&Missing, &WayThere, _)| {
        let message = format!(
            "{missing}; whether packets arrive is unknown (may break {})",
            some_services(&services)
        );
        Finding::new(Severity::Warning, subject_of(there), message)
            .services(services)
            .first()
            .fix(way_there_fix(
                there.range,
                there.by,
                there.own.as_ref(),
                there.tunnel.as_deref(),
                there.odd.as_ref(),
            ))
    };
    all.into_values()
        .map(finding)
        .chain(thinned(surveyed))
        .chain(queued(surveyed))
        .collect()
}

/// Returns the rules that queue packets for a program in user space.
fn queued(surveyed: &[Surveyed]) -> Vec<Finding> {
    let mut all: BTreeMap<&Rule, BTreeSet<ServiceRef>> = BTreeMap::new();
    for port in surveyed {
        for cell in &port.cells {
            if let Some(Fault::Unknown(Missing::Queued { rule, .. })) = &cell.fault {
                let services = all.entry(rule).or_default();
                services.insert(ServiceRef::from(&port.name));
            }
        }
    }
    let finding = |(rule, services): (&Rule, BTreeSet<ServiceRef>)| {
        let message = format!(
            "the rule queues packets to Services for a program in user space, and the kernel drops them while none reads the queue \
             (concerns {})",
            some_services(&services)
        );
        Finding::new(Severity::Warning, Subject::Rule(rule.clone()), message)
            .evidence([proof_of(rule)])
            .services(services)
            .first()
            .fix(Fix::on_node(
                "Each line is a queue that a program reads, by its number. Start the program if that of the rule is not there, and let the \
                 rule have --queue-bypass (nft: queue flags bypass), so that packets pass while it does not run; or remove the rule.",
                "cat /proc/net/netfilter/nfnetlink_queue",
            ))
    };
    all.into_iter().map(finding).collect()
}

/// Returns the object by which packets leave by another way than `there`.
fn subject_of(there: &WayThere) -> Subject {
    match there.odd.as_ref().map(|odd| &odd.why) {
        Some(Odd::Rule { rule, .. }) => diverter(&Diverter::Rule(rule.clone())),
        _ => Subject::Prefix {
            prefix: there.range,
        },
    }
}

/// Returns the links whose qdisc loses some packets on purpose.
fn thinned(surveyed: &[Surveyed]) -> Vec<Finding> {
    let mut all: BTreeMap<&str, (&Missing, BTreeSet<ServiceRef>)> = BTreeMap::new();
    for port in surveyed {
        for cell in &port.cells {
            if let Some(Fault::Unknown(missing @ Missing::Thinned { link, .. })) = &cell.fault {
                let (_, services) = all
                    .entry(link)
                    .or_insert_with(|| (missing, BTreeSet::new()));
                services.insert(ServiceRef::from(&port.name));
            }
        }
    }
    let finding = |(link, (missing, services)): (&str, (&Missing, BTreeSet<ServiceRef>))| {
        let message = format!("{missing} (concerns {})", some_services(&services));
        Finding::new(Severity::Warning, Subject::link(link), message)
            .services(services)
            .first()
            .fix(Fix::on_node(
                "Remove the qdisc: a test of failures (netem) has set it, and perhaps not ended.",
                format!("tc qdisc del dev {link} root"),
            ))
    };
    all.into_iter().map(finding).collect()
}

/// Returns whether a rule may stop only such clients.
const fn is_of_few(client: Client) -> bool {
    matches!(client, Client::Elsewhere | Client::Single)
}

/// Returns the rule of IP that `barrier` is: its family, table, chain and number.
fn rule_of_ip(barrier: &Barrier) -> Option<(Family, &str, &str, usize)> {
    match barrier {
        Barrier::Rule {
            hop,
            family,
            of_ip: true,
            ..
        } => Some((*family, &hop.table, &hop.chain, hop.number)),
        _ => None,
    }
}

/// Adds the connections of `cell` to the barriers that stop them.
fn note(found: &mut Vec<Found>, port: &Surveyed, cell: &Brief, named: Named) {
    let service = ServiceRef::from(&port.name);
    let shown = (service.clone(), cell.to, cell.fate);
    let is_it = |known: &Named| {
        same_rule(&known.about, &named.about)
            || known.about == named.about && (known.fix == named.fix || is_of_routing(&known.about))
    };
    if let Some(of) = found.iter_mut().find(|barrier| is_it(&barrier.named)) {
        if of.named.message != named.message
            && of.also.len() < FEW
            && !of.also.contains(&named.message)
        {
            of.also.push(named.message);
        }
        of.shown.entry(cell.client).or_insert(shown);
        of.services.insert(service);
        return;
    }
    found.push(Found {
        named,
        services: BTreeSet::from([service]),
        shown: BTreeMap::from([(cell.client, shown)]),
        also: Vec::new(),
    });
}

/// Returns whether `about` is what leads packets, which has one fix: that of the Node's routes shows one of the addresses.
const fn is_of_routing(about: &Subject) -> bool {
    matches!(
        about,
        Subject::Node { .. } | Subject::Route { .. } | Subject::RoutingRule { .. }
    )
}

/// Returns whether both are the same rule of nftables: one of family inet is met by packets of IPv4 and of IPv6.
fn same_rule(one: &Subject, other: &Subject) -> bool {
    let (Subject::Rule(one), Subject::Rule(other)) = (one, other) else {
        return false;
    };
    let place = |rule: &Rule| {
        (
            rule.subsystem,
            rule.table.clone(),
            rule.chain.clone(),
            rule.number,
        )
    };
    one.subsystem == Subsystem::Nftables && place(one) == place(other)
}

/// Other forms of a barrier that its finding shows.
const FEW: usize = 3;

fn finished(of: Found) -> Finding {
    let Named {
        about,
        name,
        message,
        evidence,
        mut fix,
        within,
    } = of.named;
    let only_outside = of.shown.keys().all(|client| *client == Client::Outside);
    // A firewall may block clients outside on purpose.
    let severity = match &about {
        Subject::Rule(rule) if only_outside && !rule.is_particular() => Severity::Info,
        _ => Severity::Error,
    };
    fix.advice = fix.advice.filter(|_| severity == Severity::Error);
    if let Some((service, ..)) = of.shown.values().next() {
        let why = ["why".to_owned(), service.whole().to_string()];
        fix.text = fix.text.and(" Check with ").kpx(why).and(".");
    }
    let shown = of.shown.iter().map(|(client, (service, to, fate))| {
        let client = client.name();
        Proof::Note(format!("{service} {to} from {client}: {fate}"))
    });
    let message = format!("{message} (breaks {})", some_services(&of.services));
    let name = name.unwrap_or_else(|| about.to_string());
    Finding::new(severity, about, message)
        .called(name)
        .evidence(evidence)
        .evidence(of.also.into_iter().map(Proof::Note))
        .evidence(shown)
        .services(of.services)
        .through(within)
        .fix(fix)
}

/// Returns the gap that makes it unknown whether something stops connections.
fn unknown(surveyed: &[Surveyed]) -> Option<Gap> {
    let cells = surveyed.iter().flat_map(|port| &port.cells);
    let mut open = cells.filter(|cell| cell.fate == Fate::Unknown);
    open.find_map(|cell| match &cell.fault {
        Some(Fault::Unknown(Missing::Gap { gap, .. })) => Some(gap.clone()),
        Some(Fault::Unknown(Missing::Queued { reason: why, .. } | Missing::Other(why))) => {
            let item = Item::iptables(Family::of(cell.to.ip()));
            Some(Gap::Failed(item, why.clone()))
        }
        _ => None,
    })
}

impl Look<'_, '_> {
    /// Returns the obstacles in `barrier`; several for policies, each of which alone stops the packets.
    fn named(&self, barrier: &Barrier) -> Vec<Named> {
        match barrier {
            Barrier::Obstacle(what) => match what.as_ref() {
                Obstacle::Xfrm { policies, refused } => {
                    let each = policies.iter().map(|policy| Obstacle::Xfrm {
                        policies: vec![policy.clone()],
                        refused: *refused,
                    });
                    each.map(|what| self.obstacle(&what)).collect()
                }
                Obstacle::Further {
                    from,
                    to,
                    missing: None,
                    by: None,
                    ..
                } => {
                    let to = SocketAddr::new(*to, 0);
                    let seen = Proof::Note(what.to_string());
                    let diverted = self
                        .diverted(to, *from, false, seen.clone())
                        .or_else(|| self.diverted(to, *from, true, seen));
                    vec![diverted.unwrap_or_else(|| self.obstacle(what))]
                }
                what => vec![self.obstacle(what)],
            },
            Barrier::Rule {
                hop,
                family,
                reason,
                ..
            } => vec![self.rule(hop, *family, reason)],
            Barrier::Routes { to, source, fault } => {
                self.routes(*to, *source, fault).into_iter().collect()
            }
        }
    }

    fn obstacle(&self, what: &Obstacle) -> Named {
        // One rule is one obstacle for all packets that it stops.
        if let Obstacle::Further {
            which,
            by: Some(by),
            missing: None,
            ..
        } = what
        {
            return Named {
                about: Subject::Rule(by.rule.clone()),
                name: Some(by.rule.name(self.facts.node)),
                message: format!(
                    "a rule of other software stops {}",
                    match which {
                        Which::Reply => "replies of Services",
                        Which::LaterReply => "later replies of Services",
                        Which::Sent => "packets to Services after the first one",
                        Which::Datagram => "datagrams of Services after the first one",
                    }
                ),
                evidence: vec![proof_of(&by.rule), Proof::Note(what.to_string())],
                fix: obstacle_fix(what),
                within: None,
            };
        }
        let key = sysctl(what);
        let value = key
            .as_ref()
            .and_then(|key| Some(sysctl_proof(key, setting(self.facts, key).ok()?)));
        let owner = Proof::Note(format!("owner: {}", obstacle_owner(what)));
        // The sysctl of the node sets forwarding of every link.
        let within = match what {
            Obstacle::LinkForwarding { .. } => Some(Subject::sysctl("net.ipv4.ip_forward")),
            Obstacle::ReversePath {
                because: Some(FilterReason::InPodRange { range, .. }),
                ..
            } => Some(Subject::Prefix { prefix: *range }),
            _ => None,
        };
        // The message names the sysctl.
        let name = match what {
            Obstacle::LinkForwarding { link } | Obstacle::ReversePath { link, .. } => {
                Some(link.clone())
            }
            _ => None,
        };
        let message = match what {
            Obstacle::Xfrm { policies, .. } if policies.iter().all(|policy| policy.blocks) => {
                "blocks the packets (IPsec)".to_owned()
            }
            Obstacle::Xfrm { .. } => {
                "has no security association (IPsec): the packets are dropped".to_owned()
            }
            other => other.to_string(),
        };
        Named {
            name,
            about: key.map_or_else(|| about(what), Subject::sysctl),
            message,
            evidence: value.into_iter().chain([owner]).collect(),
            fix: obstacle_fix(what),
            within,
        }
    }

    fn rule(&self, hop: &Hop, family: Family, reason: &str) -> Named {
        let rule = Rule::of(hop, family);
        let verb = hop.effect.verb();
        Named {
            message: format!("a rule of other software {verb} packets to Services: {reason}"),
            evidence: vec![proof_of(&rule)],
            fix: rule_fix(
                &By::new(rule.clone(), why::maker(hop), self.facts.node)
                    .of_families([family], self.facts.node),
            ),
            name: Some(rule.name(self.facts.node)),
            about: Subject::Rule(rule),
            within: None,
        }
    }

    /// Returns the route or rule that ends or diverts packets from `source` to `to`.
    fn diverted(
        &self,
        to: SocketAddr,
        source: IpAddr,
        directly: bool,
        seen: Proof,
    ) -> Option<Named> {
        let of = self.ways.diverted(to, source, directly)?;
        let bypass = of.bypass(self.facts.node).filter(|_| directly);
        Some(Named {
            about: diverter(&of.by),
            name: None,
            message: format!("{} ends or diverts packets of Services", of.words),
            evidence: vec![seen],
            fix: match bypass {
                Some(rule) => bypass_fix(&rule),
                None => diverter_fix(self.facts.node, &of),
            },
            within: None,
        })
    }

    /// Returns why packets from `source` have no way to `to`.
    fn routes(&self, to: SocketAddr, source: IpAddr, fault: &Fault) -> Option<Named> {
        if let Fault::WrongWay {
            home: Some(home), ..
        } = fault
        {
            return Some(Named {
                about: Subject::Prefix { prefix: home.range },
                name: None,
                message: fault.to_string(),
                evidence: Vec::new(),
                fix: home_fix(home),
                within: None,
            });
        }
        // Past a route that ends them, packets to a pod of this node must not leave by a gateway.
        let directly = matches!(fault, Fault::WrongWay { .. }) || self.here.contains(&to);
        let seen = Proof::Note(fault.to_string());
        let diverted = self.diverted(to, source, directly, seen);
        if diverted.is_some() {
            return diverted;
        }
        let judge = Judge::new(self.facts.node);
        if directly && let Some(of) = judge.diverting_route(to) {
            return Some(Named {
                about: diverter(&of.by),
                name: None,
                message: fault.to_string(),
                evidence: Vec::new(),
                fix: diverter_fix(self.facts.node, &of),
                within: None,
            });
        }
        // Before the network plugin has set up the node, nothing is wrong with its routes.
        if !self.facts.node.has_pod_network() || !self.endpoints.contains(&to) {
            return None;
        }
        let message = match fault {
            Fault::NoRoute { reason, .. } => format!("no route leads to endpoint {to} ({reason})"),
            other => other.to_string(),
        };
        Some(Named {
            about: Subject::Node {
                name: self.facts.node_name(),
            },
            name: None,
            message,
            evidence: Vec::new(),
            fix: route_fix(to.ip()),
            within: None,
        })
    }
}

fn diverter(by: &Diverter) -> Subject {
    match by {
        Diverter::Route(route) => Subject::Route {
            route: route.to_string(),
        },
        Diverter::Rule(rule) => Subject::RoutingRule {
            priority: rule.priority,
            rule: rule.to_string(),
        },
    }
}

/// Returns the sysctl that `what` is.
fn sysctl(what: &Obstacle) -> Option<String> {
    match what {
        Obstacle::LinkForwarding { link } => Some(sysctl_of(link, "forwarding")),
        Obstacle::Forgotten { key, .. } | Obstacle::FullNeighbours { key, .. } => {
            Some((*key).to_owned())
        }
        Obstacle::ReversePath { link, .. } => Some(sysctl_of(link, "rp_filter")),
        Obstacle::NoLocalPort {
            pod: None,
            reserved: 1..,
            ..
        } => Some(RESERVED_PORTS.to_owned()),
        Obstacle::NoLocalPort { pod: None, .. } => Some(PORT_RANGE.to_owned()),
        Obstacle::Arp {
            by: Arp::Ignored(key) | Arp::Strict { key, .. },
            ..
        } => Some(key.clone()),
        Obstacle::Ttl { pod: None, .. } => Some(DEFAULT_TTL.to_owned()),
        Obstacle::Wayless {
            by: Wayless::NoAdvertisements(link),
            ..
        } => Some(accept_ra_of(link)),
        Obstacle::Wayless {
            by: Wayless::Ipv6Off(link),
            ..
        }
        | Obstacle::NoGateway {
            bridge: link,
            ipv6_off: true,
            ..
        } => Some(disable_ipv6_of(link)),
        _ => None,
    }
}

/// Returns the object that `what` is about, if it is no sysctl.
fn about(what: &Obstacle) -> Subject {
    match what {
        Obstacle::LinkForwarding { link }
        | Obstacle::OnLink { link, .. }
        | Obstacle::ReversePath { link, .. }
        | Obstacle::Tc {
            link, inside: None, ..
        }
        | Obstacle::Arp { link, .. }
        | Obstacle::Tunnel { link, .. }
        | Obstacle::TunnelMac { link, .. }
        | Obstacle::UnallowedSource { link, .. }
        | Obstacle::SameNetwork { link, .. }
        | Obstacle::OffTunnel { link, .. }
        | Obstacle::TunnelSource { link, .. }
        | Obstacle::BlockedByCloud { link, .. }
        | Obstacle::NoCloudRoute { link, .. }
        | Obstacle::NoPeer { link, .. }
        | Obstacle::Link {
            link, inside: None, ..
        }
        | Obstacle::NoGateway { bridge: link, .. }
        | Obstacle::Isolated { bridge: link }
        | Obstacle::RouteBack {
            home: None,
            route: None,
            network: Some(_),
            link,
            ..
        } => Subject::link(link),
        Obstacle::RouteBack {
            home: Some(home), ..
        } => Subject::Prefix { prefix: home.range },
        Obstacle::PastLocal { rule, .. }
        | Obstacle::KeptByRoute {
            rule: Some(rule), ..
        }
        | Obstacle::Detour {
            rule: Some(rule), ..
        }
        | Obstacle::ThirdNode {
            rule: Some(rule), ..
        } => Subject::RoutingRule {
            priority: rule.priority,
            rule: rule.to_string(),
        },
        Obstacle::RouteBack {
            route: Some(route), ..
        }
        | Obstacle::KeptByRoute { route, .. }
        | Obstacle::DeadNextHop { route, .. }
        | Obstacle::Detour { route, .. }
        | Obstacle::HiddenRoute { route, .. }
        | Obstacle::IntoTunnel { route, .. }
        | Obstacle::ReplyAway { route, .. }
        | Obstacle::ThirdNode { route, .. } => Subject::Route {
            route: route.to_string(),
        },
        Obstacle::Unanswered {
            there: Some(there), ..
        } => subject_of(there),
        Obstacle::Further {
            missing: Some((range, ..)),
            ..
        } => Subject::Prefix { prefix: *range },
        Obstacle::RouteBack { pod: address, .. }
        | Obstacle::Inside { pod: address, .. }
        | Obstacle::InsideRoute { pod: address, .. }
        | Obstacle::OtherSource { pod: address, .. }
        | Obstacle::Strayed { pod: address, .. }
        | Obstacle::Gatewayless { pod: address, .. }
        | Obstacle::Beside { pod: address, .. }
        | Obstacle::NoBridge {
            gateway: address, ..
        }
        | Obstacle::Link {
            inside: Some((address, _)),
            ..
        }
        | Obstacle::Tc {
            inside: Some((address, _)),
            ..
        }
        | Obstacle::Unanswered {
            address,
            there: None,
            ..
        }
        | Obstacle::ProxyArp {
            gateway: address, ..
        }
        | Obstacle::Taken { address, .. }
        | Obstacle::SameTunnelEnd { address, .. }
        | Obstacle::HomeGone { address, .. }
        | Obstacle::NoLocalRoute { address, .. }
        | Obstacle::ForeignTunnelEnd { address, .. }
        | Obstacle::InnerTunnelEnd { address, .. }
        | Obstacle::OtherMac { address, .. }
        | Obstacle::DuplicateInside { address, .. }
        | Obstacle::KeptHere { address, .. }
        | Obstacle::OwnEnd { pod: address, .. }
        | Obstacle::TwoPods { address, .. }
        | Obstacle::Bound {
            client: address, ..
        }
        | Obstacle::HeldElsewhere { address, .. }
        | Obstacle::Further { to: address, .. } => Subject::from(*address),
        Obstacle::Deaf {
            stranger: Some(of), ..
        } => Subject::service(ServiceRef::from(&of.service).whole()),
        Obstacle::Deaf { at, .. }
        | Obstacle::FullQueue { at, .. }
        | Obstacle::Ended { at, .. }
        | Obstacle::AddressGone { at, .. } => Subject::from(at.ip()),
        Obstacle::Duplicate { address, .. } => Subject::from(address.addr),
        Obstacle::Ttl { pod: None, .. } => Subject::sysctl(DEFAULT_TTL),
        Obstacle::Ttl {
            pod: Some((pod, _)),
            ..
        }
        | Obstacle::NoLocalPort {
            pod: Some((pod, _)),
            ..
        } => Subject::from(*pod),
        Obstacle::Proxied { by, .. } | Obstacle::Limited { by, .. } => {
            Subject::Rule(by.rule.clone())
        }
        Obstacle::Xfrm { policies, .. } => Subject::XfrmPolicy {
            policy: policies
                .first()
                .map_or_else(String::new, ToString::to_string),
        },
        Obstacle::NoLocalPort {
            pod: None,
            reserved: 1..,
            ..
        } => Subject::sysctl(RESERVED_PORTS),
        Obstacle::NoLocalPort { pod: None, .. } => Subject::sysctl(PORT_RANGE),
        Obstacle::NoSourcePort { to, .. } => Subject::from(to.ip()),
        Obstacle::Forgotten { key, .. } | Obstacle::FullNeighbours { key, .. } => {
            Subject::sysctl(*key)
        }
        Obstacle::Wayless { by, .. } => match by {
            Wayless::NoMain(family) => Subject::RoutingRule {
                priority: PolicyRule::main(*family).priority,
                rule: PolicyRule::main(*family).to_string(),
            },
            Wayless::Down(link) => Subject::link(link),
            Wayless::NoAdvertisements(link) => Subject::sysctl(accept_ra_of(link)),
            Wayless::NoIpv6 => Subject::sysctl(disable_ipv6_of("all")),
            Wayless::Ipv6Off(link) => Subject::sysctl(disable_ipv6_of(link)),
        },
    }
}
