//! The answer: its fate, sentence and fix, derived from the verdicts and the causes.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde::Serialize;

use super::balancer;
use super::cause::{At, Cause, Degree};
use super::endpoints::EndpointRow;
use super::findings::Related;
use super::paths::Path;
use crate::check::{Fix, ServiceRef};
use crate::trace::Assumption;
use crate::trace::mismatch::listed;
use crate::verdict::{Cell, Client, Fate, Kind, Onward, client_names};
use kpx_node::evidence::ipvs::DUMMY;
use kpx_node::evidence::{Item, Time};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::pod_networks::PodNetwork;
use kpx_node::owner::EndpointState;
use kpx_node::words::number_of;

/// Topics that no evidence of a node shows.
const UNSEEN: &[&str] = &[
    "MTU",
    "the network plugin's own path",
    "NetworkPolicies",
    "the application",
];

/// Data that is missing unless connections are followed to other nodes.
const OTHER_NODES: &str = "other nodes";

/// Items whose absence nothing else reports, and what each would show.
const MAY_LACK: &[(Item, &str)] = &[
    (Item::NeighbourTable, "neighbours"),
    (Item::Rules, "routing policy rules"),
    (Item::Tc, "filters of traffic control"),
    (Item::XfrmPolicies, "IPsec policies"),
    (Item::Bpf, "programs of eBPF"),
];

/// Returns the gaps in the evidence of `node`.
pub(super) fn unseen(node: &NodeSnapshot<'_>) -> Vec<String> {
    let always = UNSEEN.iter().chain([&OTHER_NODES]).copied();
    always.chain(lacking(node)).map(str::to_owned).collect()
}

/// Returns the facts about connections that missing items of `node` would have shown. Nothing else reports these items.
pub fn lacking(node: &NodeSnapshot<'_>) -> Vec<&'static str> {
    let lacks = |item| {
        node.evidence()
            .text(item)
            .is_err_and(|gap| !gap.is_absence())
    };
    let lacking = MAY_LACK.iter().filter(|(item, _)| lacks(*item));
    let mut lacking: Vec<_> = lacking.map(|(_, what)| *what).collect();
    if node.nodes().is_err_and(|gap| !gap.is_absence()) {
        lacking.push("pods of other nodes");
    }
    if !knows_forwarding(node) {
        lacking.push("forwarding by link");
    }
    match node.pod_networks() {
        Ok(all) if all.iter().all(PodNetwork::knows_rules) => {}
        Ok(_) => lacking.push("rules inside pods"),
        Err(_) => lacking.push("sockets and rules inside pods"),
    }
    lacking
}

/// Returns the load balancers that the evidence of `node` cannot show, if Services have any.
pub fn unseen_balancers(node: &NodeSnapshot<'_>) -> Option<&'static str> {
    let mut services = node.services().into_iter().flatten();
    let any = services.any(|service| balancer::unseen(service).is_some());
    any.then_some("load balancers outside the node")
}

/// Returns whether the forwarding of each link with an IPv4 address is known.
fn knows_forwarding(node: &NodeSnapshot<'_>) -> bool {
    let (Ok(sysctl), Ok(addresses)) = (node.sysctl(), node.addresses()) else {
        return true;
    };
    let mut links = addresses
        .all
        .iter()
        .filter(|at| at.addr.addr.is_ipv4() && !at.addr.addr.is_loopback() && at.link != DUMMY);
    links.all(|at| {
        let link = at.link.replace('.', "/");
        sysctl
            .get(&format!("net.ipv4.conf.{link}.forwarding"))
            .is_some()
    })
}

/// Returns the limits on the connections of `paths`, as a note of what was not followed: one connection exceeds no
/// limit.
pub(super) fn beyond_limits(paths: &[Path]) -> BTreeSet<String> {
    let outcomes = paths.iter().flat_map(|path| &path.cell.outcomes);
    let exceeded =
        outcomes.flat_map(|outcome| outcome.when.iter().filter_map(Assumption::exceeded));
    let words = exceeded.map(|(limit, pace)| match pace {
        Some(pace) => format!("more than {pace} ({limit})"),
        None => format!("more connections than {limit} allows"),
    });
    words.collect()
}

/// The answer to why a Service does not work, seen from one node.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Name of the node, if known.
    pub node: Option<String>,
    /// The Service, as `NAMESPACE/NAME`; `None` if there is none.
    pub service: Option<String>,
    /// The same, as a type.
    #[serde(skip)]
    pub found: Option<ServiceRef>,
    /// The fate of the connections in question.
    pub fate: Fate,
    /// The answer in one sentence, without a full stop.
    pub sentence: String,
    /// The fix of the first cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<Fix>,
    /// The causes, in the order in which a packet meets them.
    pub causes: Vec<Broken>,
    /// Connections from each client to each address.
    pub paths: Vec<Path>,
    /// Endpoints of the Service.
    pub endpoints: Vec<EndpointRow>,
    /// Findings of the doctor that concern the Service.
    pub findings: Vec<Related>,
    /// The other nodes to which connections go, if states of other nodes are given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<Beside>,
    /// Notes besides the answer: endpoints that kube-proxy omits on purpose.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Data that is missing.
    pub unknown: Vec<String>,
    /// The reason why no connection from a pod is followed, if no pod address is known.
    #[serde(skip)]
    pub(super) unasked: Option<String>,
    /// Whether no pod network is set up on the node: then its routes to pods prove nothing.
    #[serde(skip)]
    pub(super) lacks_pod_network: bool,
    /// Topics that no evidence of a node shows.
    pub unseen: Vec<String>,
}

/// Another node to which connections go.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Beside {
    /// The node.
    pub node: String,
    /// The reason why connections were not followed to it, if they were not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unread: Option<String>,
}

/// A cause, with the connections that it breaks.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Broken {
    /// The cause.
    #[serde(flatten)]
    pub cause: Cause,
    /// How sure it is.
    pub degree: Degree,
    /// Whether the Service's own settings or NetworkPolicies ask for it.
    pub by_design: bool,
    /// The Service port, or the Service if several ports are affected.
    pub subject: String,
    /// The node of the cause, if it is not the node that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The clients whose connections fail.
    pub from: Vec<Client>,
    /// The addresses at which they fail.
    pub to: Vec<String>,
    /// Time since which the cause exists, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Owner of the rules at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The cause as one sentence.
    pub sentence: String,
    /// The reason, without the connections.
    #[serde(skip)]
    pub reason: String,
    /// The fix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<Fix>,
    /// A remedy until the fix is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meanwhile: Option<Fix>,
}

impl Answer {
    /// Returns every fix.
    pub fn fixes_mut(&mut self) -> impl Iterator<Item = &mut Fix> {
        let broken = self.causes.iter_mut();
        let broken = broken.flat_map(|cause| cause.fix.iter_mut().chain(&mut cause.meanwhile));
        let related = self
            .findings
            .iter_mut()
            .filter_map(|finding| finding.fix.as_mut());
        self.fix.iter_mut().chain(broken).chain(related)
    }
}

impl Broken {
    pub(super) fn new(cause: Cause, degree: Degree, at: At) -> Self {
        let there = |fix: Option<Fix>| match &at.there {
            // The fix of a rule of a third node is for that one.
            Some(node) => fix.map(|fix| match fix.there() {
                Some(_) => fix,
                None => fix.at(node),
            }),
            None => fix,
        };
        Self {
            degree,
            by_design: at.by_design,
            owner: cause.owner().map(str::to_owned),
            sentence: match &at.open {
                Some(question) => format!("{}; unknown: {question}", cause.sentence(&at)),
                None => cause.sentence(&at),
            },
            reason: cause.reason(&at),
            fix: there(cause.fix(&at)),
            meanwhile: there(cause.meanwhile()),
            node: at.there,
            subject: at.subject,
            from: at.from,
            to: at.to,
            since: at.since,
            cause,
        }
    }

    /// Returns the sort key of causes: certain causes first, then causes that are not by design, then those that concern
    /// pods, then those that concern the most kinds of clients, then the earliest.
    pub(super) fn rank(&self) -> (Degree, bool, Reverse<bool>, Reverse<usize>, u8) {
        // Without clients, it is about all of them.
        let (of_pods, clients) = match self.from.len() {
            0 => (true, Client::ALL.len()),
            count => (self.from.contains(&Client::Pod), count),
        };
        (
            self.degree,
            self.by_design,
            Reverse(of_pods),
            Reverse(clients),
            self.cause.stage(),
        )
    }
}

impl Answer {
    /// Adds the cause of a real connection that failed, although the evidence shows nothing.
    pub fn add(&mut self, cause: Cause, fate: Fate) {
        let subject = match self.paths.first() {
            Some(first) if self.paths.iter().all(|path| path.service == first.service) => {
                first.service.clone()
            }
            _ => self.service.clone().unwrap_or_default(),
        };
        let at = At {
            subject: subject.clone(),
            service: self.found.clone(),
            node: self.node.clone(),
            ..At::default()
        };
        self.causes.push(Broken::new(cause, Degree::Breaks, at));
        self.settle_as(&subject);
        self.fate = fate;
        if let Some(first) = self.causes.first() {
            self.sentence.clone_from(&first.sentence);
            self.fix.clone_from(&first.fix);
        }
    }

    /// Derives the fate, the sentence and the fix from the connections and the causes.
    pub(super) fn settle_as(&mut self, subject: &str) {
        self.nodes = beside(&self.paths);
        if !self.nodes.is_empty() && self.nodes.iter().all(|node| node.unread.is_none()) {
            self.unseen.retain(|unseen| unseen != OTHER_NODES);
        }
        self.causes.sort_by_key(Broken::rank);
        let first = self.causes.first();
        self.fate = if self.paths.is_empty() {
            match first.map(|cause| cause.degree) {
                Some(Degree::Breaks) => Fate::Refused,
                Some(Degree::NotServed | Degree::Suspect) | None => Fate::Unknown,
            }
        } else {
            Fate::of_all(self.paths.iter().map(|path| path.fate))
        };
        let is_unseen = |broken: &Broken| matches!(broken.cause, Cause::Balancer { .. });
        if self.fate == Fate::Works && self.causes.iter().any(is_unseen) {
            self.fate = Fate::Unknown;
        }
        if self.fate == Fate::Works
            && let Some(reason) = self.unasked.take()
        {
            self.fate = Fate::Unknown;
            self.unknown.insert(0, reason);
        }
        let told = self.told();
        let fix = told.and_then(|cause| cause.fix.clone());
        let sentence = match told {
            Some(first) => format!("{}{}", first.sentence, self.others_than(first)),
            None => self.without_cause(subject),
        };
        (self.fix, self.sentence) = (fix, sentence);
    }

    /// Returns the cause that the sentence tells.
    fn told(&self) -> Option<&Broken> {
        self.causes.first().filter(|_| self.fate != Fate::Works)
    }

    /// Returns the causes that the sentence does not name.
    pub fn further(&self) -> &[Broken] {
        &self.causes[usize::from(self.told().is_some())..]
    }

    /// Returns the connections that another cause than `first` breaks, as the end of its sentence.
    fn others_than(&self, first: &Broken) -> String {
        if first.from.is_empty() || first.degree != Degree::Breaks {
            return String::new();
        }
        let is_other = |client: &Client| {
            let is_pod = *client == Client::Single && first.from.contains(&Client::Pod);
            !is_pod && !first.from.contains(client)
        };
        let causes = self.causes.iter().filter(|cause| {
            cause.degree == Degree::Breaks && !cause.by_design && cause.fix != first.fix
        });
        let from = causes.flat_map(|cause| cause.from.iter().copied());
        let others: Vec<Client> = from.filter(is_other).collect();
        match others.as_slice() {
            [] => String::new(),
            others => format!(
                "; connections{} fail for another reason",
                client_names(others)
            ),
        }
    }

    /// Returns the sentence for a Service without a cause.
    fn without_cause(&self, subject: &str) -> String {
        let node = self.node.as_deref().unwrap_or("this node");
        if self.fate != Fate::Works {
            let reason = self
                .unknown
                .first()
                .map_or("there is nothing to judge", String::as_str);
            return format!("kpx cannot tell whether {subject} works on {node}: {reason}");
        }
        let ready = self.endpoints.iter().filter(|endpoint| {
            matches!(
                endpoint.state,
                Some(EndpointState::Ready | EndpointState::ServingTerminating)
            )
        });
        let ready: BTreeSet<SocketAddr> = ready.map(|endpoint| endpoint.address).collect();
        // A connection to an endpoint itself says nothing about the Service's rules, unless the endpoint is the target.
        let is_through = |path: &&Path| path.kind != Kind::Endpoint;
        let is_asked = !self.paths.iter().any(|path| is_through(&path));
        let through = self
            .paths
            .iter()
            .filter(|path| is_asked || is_through(path));
        let outcomes = through.flat_map(|path| &path.cell.outcomes);
        let ends = outcomes.map(|outcome| SocketAddr::from(outcome.destination));
        let reached: BTreeSet<SocketAddr> = ends.filter(|end| ready.contains(end)).collect();
        let from: Vec<Client> = self.paths.iter().map(|path| path.client).collect();
        let endpoints = match (reached.len(), &self.service) {
            (0, None) => {
                let outcomes = self.paths.iter().flat_map(|path| &path.cell.outcomes);
                let ends: BTreeSet<_> = outcomes
                    .map(|outcome| SocketAddr::from(outcome.destination))
                    .collect();
                let is_asked = self.paths.iter().any(|path| ends.contains(&path.to));
                let ends: Vec<_> = ends.iter().take(3).map(ToString::to_string).collect();
                let whose = if is_asked {
                    ", which no Service has"
                } else {
                    ""
                };
                format!("{}{whose}", listed(&ends))
            }
            // Its own process chooses an endpoint.
            (0, Some(_)) => "its endpoints".to_owned(),
            (count, _) if count == ready.len() => number_of(count, "endpoint"),
            // If endpoints are asked for, only these are judged.
            (1..=3, _) if is_asked => {
                let reached: Vec<_> = reached.iter().map(ToString::to_string).collect();
                format!("endpoint {}", listed(&reached))
            }
            (count, _) => {
                let others: Vec<_> = ready
                    .difference(&reached)
                    .map(ToString::to_string)
                    .collect();
                let all = number_of(ready.len(), "endpoint");
                format!("{count} of {all} (not {})", listed(&others))
            }
        };
        let from = client_names(&from);
        let unread: Vec<String> = self.nodes.iter().filter_map(Beside::reason).collect();
        let until = match unread.as_slice() {
            [] => String::new(),
            reasons => format!(", as far as node {node} ({})", listed(reasons)),
        };
        let back = if self.lacks_pod_network {
            ""
        } else {
            ", and replies return"
        };
        format!("{subject} works on {node}: connections{from} reach {endpoints}{back}{until}")
    }
}

impl Beside {
    fn reason(&self) -> Option<String> {
        let reason = self.unread.as_ref()?;
        Some(format!("{} was not read: {reason}", self.node))
    }
}

/// Returns the other nodes to which the connections of `paths` go, if states of other nodes are given.
fn beside(paths: &[Path]) -> Vec<Beside> {
    let mut all = BTreeSet::new();
    let mut left: Vec<&Cell> = paths.iter().map(|path| &path.cell).collect();
    while let Some(cell) = left.pop() {
        for onward in cell
            .verdict
            .ways
            .iter()
            .filter_map(|way| way.onward.as_ref())
        {
            all.insert(match onward {
                Onward::Far(far) => {
                    left.push(&far.cell);
                    Beside {
                        node: far.node.clone(),
                        unread: None,
                    }
                }
                Onward::Unread { node, reason } => Beside {
                    node: node.clone(),
                    unread: Some(reason.clone()),
                },
            });
        }
    }
    all.into_iter().collect()
}
