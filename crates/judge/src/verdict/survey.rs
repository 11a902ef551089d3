//! The verdict on all Services of a node, in one pass.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, available_parallelism};

use foldhash::HashMap;
use serde::Serialize;

use super::across::Across;
use super::balancer::{hidden_balancer, hidden_balancer_words};
use super::cell::{Cell, Client, Kind, client_names, targets};
use super::design::is_by_design;
use super::judge::Judge;
use super::{Barrier, Fate, Fault, Missing};
use crate::trace::mismatch::usable;
use crate::trace::why::lacks_by_rules;
use crate::trace::{Walks, World};
use kpx_node::cluster::Service;
use kpx_node::evidence::Item;
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::{Port, PortName};

/// The verdict on one Service port.
#[derive(Clone, Debug, PartialEq)]
pub struct Surveyed {
    /// The Service port.
    pub name: PortName,
    /// Its protocol.
    pub proto: Proto,
    /// The verdicts on connections to each of its addresses from each kind of client.
    pub cells: Vec<Brief>,
    /// Whether any endpoint may get connections.
    pub has_endpoints: bool,
    /// The proxy that serves it instead of kube-proxy.
    pub left_to: Option<Box<str>>,
    /// Why it is unknown whether it works, although all of its connections that can be followed do.
    pub beyond: Option<String>,
    /// Whether the reason is a load balancer with a name, which the evidence of a cluster never shows.
    pub has_hidden_balancer: bool,
}

/// The verdict on connections from one kind of client to one address, without the packets.
#[derive(Clone, Debug, PartialEq)]
pub struct Brief {
    /// The kind of the client.
    pub client: Client,
    /// The role of the address.
    pub kind: Kind,
    /// The address and port.
    pub to: SocketAddr,
    /// The fate of the connections.
    pub fate: Fate,
    /// The share of them that certainly fail: 0 to 1.
    pub failing: f64,
    /// Why they fail, or why that is unknown.
    pub fault: Option<Fault>,
    /// The reason why it is unknown whether they work, if it is, with the condition that decides.
    pub doubt: Option<String>,
    /// Whether the Service's own settings keep the client out.
    pub by_design: bool,
    /// The barriers that stop them on this node.
    pub barriers: Vec<Barrier>,
}

/// How a Service stands as a whole.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Standing {
    /// All connections work.
    Works,
    /// Another proxy serves it.
    NotServed,
    /// Something is not known.
    Unknown,
    /// Its own settings keep some clients out; none of the others is known to fail.
    Restricted,
    /// No endpoint may get connections.
    NoEndpoints,
    /// Connections fail.
    Fails,
}

impl Surveyed {
    /// Returns what happens to the connections as a whole.
    pub fn fate(&self) -> Fate {
        match Fate::of_all(self.cells.iter().map(|cell| cell.fate)) {
            Fate::Works if self.beyond.is_some() => Fate::Unknown,
            fate => fate,
        }
    }

    /// Returns whether the cluster's own settings keep a kind of clients out.
    fn is_restricted(&self) -> bool {
        let mut cells = self.cells.iter();
        cells.any(|cell| cell.by_design && cell.client != Client::Single)
    }

    /// Returns how the Service port stands.
    pub fn standing(&self) -> Standing {
        let any = |is: &dyn Fn(&Brief) -> bool| self.cells.iter().any(is);
        if self.left_to.is_some() {
            Standing::NotServed
        } else if !self.has_endpoints {
            Standing::NoEndpoints
        } else if any(&|cell| cell.fate.fails() && !cell.by_design) {
            Standing::Fails
        } else if self.is_restricted() {
            Standing::Restricted
        } else if self.is_open() || self.beyond.is_some() {
            Standing::Unknown
        } else {
            Standing::Works
        }
    }

    /// Returns whether nothing but a load balancer that the evidence does not show, or what announces an address, is unknown.
    pub fn is_behind_balancer(&self) -> bool {
        let is_unannounced = |cell: &&Brief| {
            matches!(
                cell.fault,
                Some(Fault::Unknown(Missing::Unannounced { .. }))
            )
        };
        let mut open = self.cells.iter().filter(|cell| cell.fate == Fate::Unknown);
        match open.next() {
            None => self.has_hidden_balancer && !self.is_open(),
            Some(first) => is_unannounced(&first) && open.all(|cell| is_unannounced(&cell)),
        }
    }

    /// Returns whether the fate of some connections is unknown.
    fn is_open(&self) -> bool {
        let mut cells = self.cells.iter();
        self.cells.is_empty() || cells.any(|cell| cell.fate == Fate::Unknown)
    }

    /// Returns whether single pods are the only clients of which something is not known.
    fn is_open_to_single(&self) -> bool {
        let mut open = self.cells.iter().filter(|cell| cell.fate == Fate::Unknown);
        self.beyond.is_none()
            && !self.cells.is_empty()
            && open.all(|cell| cell.client == Client::Single)
    }
}

/// How many ports a thread takes at once.
const STRIDE: usize = 32;

/// Judges connections to every address of `ports` in `families`, from each kind of client, side by side on all processors; with the
/// states `across` of other nodes, to endpoints there and back.
pub fn survey<'n, 's: 'n>(
    node: &'n NodeSnapshot<'n>,
    ports: &[Port],
    families: &[Family],
    across: Option<&'s Across<'s>>,
) -> Vec<Surveyed> {
    let mut services: HashMap<(&str, &str), &Service> = HashMap::default();
    for service in node.services().into_iter().flatten() {
        let meta = &service.metadata;
        services.insert((&meta.namespace, &meta.name), service);
    }
    let worlds = families
        .iter()
        .map(|family| (*family, World::parsed(node, *family)));
    let worlds: Vec<_> = worlds.collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let judge = across.map_or_else(|| Judge::new(node), |across| across.judge(node));
        let walks = worlds
            .iter()
            .map(|(family, world)| (*family, Walks::new(world, *family)));
        let walks: Vec<_> = walks.collect();
        let mut done = Vec::new();
        loop {
            let from = next.fetch_add(STRIDE, Ordering::Relaxed);
            let Some(some) = ports.get(from..).filter(|some| !some.is_empty()) else {
                return done;
            };
            for (at, port) in some.iter().enumerate().take(STRIDE) {
                let name = (&*port.name.namespace, &*port.name.name);
                let service = services.get(&name).copied();
                done.push((from + at, one(&judge, &walks, service, port)));
            }
        }
    };
    let threads = available_parallelism().map_or(1, usize::from);
    let mut done = thread::scope(|scope| {
        let more = (1..threads.min(ports.len().div_ceil(STRIDE))).map(|_| scope.spawn(work));
        let more: Vec<_> = more.collect();
        let mut done = work();
        for thread in more {
            match thread.join() {
                Ok(others) => done.extend(others),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, surveyed)| surveyed).collect()
}

fn one(
    judge: &Judge<'_>,
    walks: &[(Family, Walks<'_, '_, '_>)],
    service: Option<&Service>,
    port: &Port,
) -> Surveyed {
    let mut cells = Vec::new();
    // Without EndpointSlices, only kube-proxy's rules tell whether there are any.
    let is_unread = judge.node.slices().is_err();
    let mut has_endpoints = false;
    for (family, walks) in walks {
        has_endpoints |= usable(port, *family).next().is_some();
        if port.left_to.is_some() {
            continue;
        }
        for target in targets(judge.node, port, *family) {
            for cell in judge.brief_cells(walks, target) {
                has_endpoints |= is_unread && !cell.outcomes.iter().all(lacks_by_rules);
                cells.push(brief(service, port, walks, &cell));
            }
        }
        let arrivals = judge.failing_arrivals(walks, port, *family);
        cells.extend(
            arrivals
                .iter()
                .map(|cell| brief(service, port, walks, cell)),
        );
    }
    has_endpoints |= is_unread && cells.is_empty();
    let balancer = service
        .map(|service| (service, hidden_balancer(service)))
        .filter(|(_, names)| !names.is_empty());
    let has_hidden_balancer = balancer.is_some();
    let beyond = balancer.map(|(service, names)| hidden_balancer_words(service, &names));
    let clients = cells.iter().map(|cell| cell.client);
    Surveyed {
        name: port.name.clone(),
        proto: port.proto,
        beyond: beyond.or_else(|| unasked(judge.node, clients)),
        cells,
        has_endpoints,
        left_to: port.left_to.clone(),
        has_hidden_balancer,
    }
}

fn brief(service: Option<&Service>, port: &Port, walks: &Walks<'_, '_, '_>, cell: &Cell) -> Brief {
    let by_design = is_by_design(walks.node(), service, port, cell);
    Brief {
        client: cell.client,
        kind: cell.kind,
        to: cell.to(),
        fate: cell.fate(),
        failing: cell.verdict.failing(),
        doubt: (cell.fate() == Fate::Unknown)
            .then(|| cell.verdict.reason(&cell.outcomes))
            .flatten(),
        fault: cell.verdict.faults().first().map(|fault| (*fault).clone()),
        by_design,
        barriers: if cell.fate().fails() && !by_design {
            Barrier::all_of(cell, walks)
        } else {
            Vec::new()
        },
    }
}

/// The Services of a node by how they stand, each by its worst port.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Tally {
    /// The number of all Services that kube-proxy serves or should serve.
    pub total: usize,
    /// The number of those of which all connections work.
    pub works: usize,
    /// The Services of which all connections work, as `NAMESPACE/NAME`.
    #[serde(skip)]
    pub working: BTreeSet<String>,
    /// The Services whose connections fail.
    pub failing: Vec<Failing>,
    /// The Services without an endpoint that may get connections, as `NAMESPACE/NAME`.
    pub without_endpoints: Vec<String>,
    /// The Services whose own settings keep some clients out; all others are served, as far as is known.
    pub restricted: Vec<String>,
    /// The Services of which something is not known.
    pub unknown: Vec<String>,
    /// The reason of each unknown Service, but of those of which only the load balancer is unknown.
    #[serde(skip)]
    pub doubts: Vec<(String, String)>,
    /// The unknown Services of which only the load balancer is unknown.
    #[serde(skip)]
    pub behind_balancers: usize,
    /// The restricted Services for which it is unknown whether all other clients are served.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub restricted_and_unknown: Vec<String>,
    /// Whether the unknown Services work for all clients except single pods.
    #[serde(skip)]
    pub unknown_of_single: bool,
    /// The first reason why something is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A Service whose connections fail.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Failing {
    /// The Service, as `NAMESPACE/NAME`.
    pub service: String,
    /// The fate of its connections.
    pub fate: Fate,
    /// The clients whose connections fail.
    pub clients: Vec<Client>,
}

/// Returns why `clients` have no connection from a pod of this node, or of another one, if the reason is that the pods or the Nodes are
/// unknown. Without the objects of the cluster, the rules alone are judged.
pub fn unasked(
    node: &NodeSnapshot<'_>,
    clients: impl IntoIterator<Item = Client>,
) -> Option<String> {
    let mut clients = clients.into_iter().peekable();
    clients.peek()?;
    if let (Err(gap), Ok(_)) = (node.nodes(), node.slices()) {
        return Some(format!(
            "connections from and to pods of other nodes: the Nodes are not known ({gap})"
        ));
    }
    if clients.any(|client| matches!(client, Client::Pod | Client::Single | Client::Itself)) {
        return None;
    }
    let part = node.evidence().part(Item::Pods);
    let gap = node.pods().err().or(part)?;
    Some(format!(
        "connections from pods: no address of a pod of this node is known ({gap})"
    ))
}

/// Services named in the sentence before the rest is counted.
const MOST_NAMED: usize = 3;

impl Tally {
    /// Returns how the Services of `ports` stand.
    pub fn of<'s>(ports: impl IntoIterator<Item = &'s Surveyed>) -> Self {
        let mut by_name: BTreeMap<String, Vec<&Surveyed>> = BTreeMap::new();
        for port in ports.into_iter().filter(|port| port.left_to.is_none()) {
            let name = format!("{}/{}", port.name.namespace, port.name.name);
            by_name.entry(name).or_default().push(port);
        }
        let mut tally = Self {
            total: by_name.len(),
            ..Self::default()
        };
        // Of several reasons: first data that was not read, then by alphabet, so that the order of names does not
        // matter.
        let mut reasons = BTreeSet::new();
        tally.unknown_of_single = true;
        for (service, ports) in by_name {
            let standing = ports.iter().map(|port| port.standing()).max();
            match standing.unwrap_or(Standing::Unknown) {
                Standing::NotServed => tally.works += 1,
                Standing::Works => {
                    tally.works += 1;
                    tally.working.insert(service);
                }
                Standing::Restricted => {
                    if ports.iter().any(|port| port.is_open()) {
                        reasons.extend(doubt(&ports));
                        tally.restricted_and_unknown.push(service.clone());
                    }
                    tally.restricted.push(service);
                }
                Standing::Unknown => {
                    let reason = doubt(&ports);
                    let is_hidden = ports.iter().all(|port| port.is_behind_balancer());
                    tally.behind_balancers += usize::from(is_hidden);
                    let shown = reason.iter().filter(|_| !is_hidden);
                    tally
                        .doubts
                        .extend(shown.map(|(_, reason)| (service.clone(), reason.clone())));
                    reasons.extend(reason);
                    tally.unknown_of_single &= ports.iter().all(|port| port.is_open_to_single());
                    tally.unknown.push(service);
                }
                Standing::NoEndpoints => tally.without_endpoints.push(service),
                Standing::Fails => {
                    let cells = ports.iter().flat_map(|port| &port.cells);
                    let failing = cells.filter(|cell| cell.fate.fails() && !cell.by_design);
                    let mut clients: Vec<Client> = failing.map(|cell| cell.client).collect();
                    clients.sort_unstable();
                    clients.dedup();
                    tally.failing.push(Failing {
                        service,
                        fate: Fate::of_all(ports.iter().map(|port| port.fate())),
                        clients,
                    });
                }
            }
        }
        tally.reason = reasons.into_iter().next().map(|(_, reason)| reason);
        tally
    }

    /// Returns whether evidence that could be read is missing for any Service: the load balancers of a cloud are none.
    pub const fn lacks_evidence(&self) -> bool {
        self.unknown.len() > self.behind_balancers || !self.restricted_and_unknown.is_empty()
    }

    /// Returns whose connections fail: ` from pods, some also from outside`.
    fn failing_clients(&self) -> String {
        let count = |client: &Client| {
            let all = self.failing.iter();
            all.filter(|failure| failure.clients.contains(client))
                .count()
        };
        let (always, at_times): (Vec<Client>, Vec<Client>) = Client::ALL
            .into_iter()
            .filter(|client| count(client) > 0)
            .partition(|client| count(client) == self.failing.len());
        match (always.as_slice(), at_times.as_slice()) {
            (_, []) => client_names(&always),
            ([], _) => " for some clients".to_owned(),
            _ => format!(
                "{}, some also{}",
                client_names(&always),
                client_names(&at_times)
            ),
        }
    }

    /// Returns the parts of the sentence behind the number of Services: `24 work`, `3 fail from pods (a, b, c)`.
    fn parts(&self) -> Vec<String> {
        let mut parts = Vec::new();
        let verb = |count: usize, one: &str, many: &str| {
            format!("{count} {}", if count == 1 { one } else { many })
        };
        if !self.failing.is_empty() {
            let names: Vec<String> = self
                .failing
                .iter()
                .map(|failure| failure.service.clone())
                .collect();
            parts.push(format!(
                "{}{} ({})",
                verb(self.failing.len(), "fails", "fail"),
                self.failing_clients(),
                named(&names)
            ));
        }
        if !self.unknown.is_empty() {
            let clients = if self.unknown_of_single {
                client_names(&[Client::Single])
            } else {
                String::new()
            };
            let why = match (self.unknown.as_slice(), &self.reason) {
                (_, None) => String::new(),
                ([service], Some(reason)) => format!(" ({service}: {reason})"),
                (_, Some(reason)) => format!(": {reason}"),
            };
            parts.push(format!("{} unknown{clients}{why}", self.unknown.len()));
        }
        if !self.without_endpoints.is_empty() {
            let count = self.without_endpoints.len();
            let has = verb(count, "has", "have");
            parts.push(format!(
                "{has} no ready endpoint ({})",
                named(&self.without_endpoints)
            ));
        }
        if !self.restricted.is_empty() {
            let restricted = verb(
                self.restricted.len(),
                "is restricted by design",
                "are restricted by design",
            );
            parts.push(match self.restricted_and_unknown.len() {
                0 => restricted,
                count if count == self.restricted.len() => {
                    format!("{restricted}, and unknown for other clients")
                }
                count => format!("{restricted}, {count} of them unknown for other clients"),
            });
        }
        parts
    }
}

/// Returns the first reason why it is unknown whether a Service with these `ports` works, with its rank: data that was not read says more
/// than a possible fault, and that more than an address of which this node cannot know who answers for it.
fn doubt(ports: &[&Surveyed]) -> Option<(u8, String)> {
    let cells = ports.iter().flat_map(|port| &port.cells);
    let open = cells.filter(|cell| cell.fate == Fate::Unknown);
    let beyond = || ports.iter().find_map(|port| port.beyond.clone());
    let first = open.filter_map(in_doubt).min();
    first.or_else(|| Some((0, beyond()?)))
}

/// Returns why the fate of the connections of `cell` is unknown, with its rank.
fn in_doubt(cell: &Brief) -> Option<(u8, String)> {
    let doubt = cell.doubt.as_ref()?;
    Some(match cell.fault {
        Some(Fault::Unknown(Missing::Unannounced { .. })) => (2, doubt.clone()),
        Some(Fault::Unknown(_)) => (0, doubt.clone()),
        _ => (1, format!("perhaps {doubt}")),
    })
}

/// Returns the first names, and how many more there are.
fn named(names: &[String]) -> String {
    let shown = names[..names.len().min(MOST_NAMED)].join(", ");
    match names.len().saturating_sub(MOST_NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

impl fmt::Display for Tally {
    /// Writes the verdict on all Services in one sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.parts();
        match (self.total, parts.as_slice()) {
            (0, _) => f.write_str("no Services"),
            (1, []) => f.write_str("the only Service works"),
            (total, []) => write!(f, "all {total} Services work"),
            (total, parts) if self.unknown.len() == total => {
                let all = kpx_node::words::number_of(total, "Service");
                write!(f, "{all}: {}", parts.join("; "))
            }
            (total, parts) => {
                let all = kpx_node::words::number_of(total, "Service");
                let works = if self.works == 1 { "works" } else { "work" };
                write!(f, "{all}: {} {works}; {}", self.works, parts.join("; "))
            }
        }
    }
}
