//! Packets to every address of a Service port, from every kind of client.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use serde::{Serialize, Serializer};

use super::blame::{Blame, is_local};
use super::endpoints::usable;
use super::{Cause, Degree, Look};
use crate::cluster::Service;
use crate::desired::ServicePort;
use crate::net::{Family, Proto};
use crate::owner::{Port, Role};
use crate::trace::mismatch;
use crate::trace::sources::{self, Pods, Source, SourceError};
use crate::trace::{self, Entry, Flow, Outcome, Verdict, why};

/// Endpoints of a headless Service that packets are traced to.
const MOST_ENDPOINTS: usize = 3;

/// A kind of client.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Client {
    /// A pod of this node.
    Pod,
    /// A pod of the Service itself, on this node.
    Itself,
    /// A process in the node's own network.
    Host,
    /// A client outside the cluster, or on another node.
    Outside,
}

impl Client {
    /// Every kind, in the order of reports.
    pub const ALL: [Self; 4] = [Self::Pod, Self::Itself, Self::Host, Self::Outside];

    const fn of(entry: Entry) -> Self {
        match entry {
            Entry::Pod => Self::Pod,
            Entry::Host => Self::Host,
            Entry::Outside => Self::Outside,
        }
    }

    /// Returns ` from` and the clients, or nothing.
    pub(super) fn list(all: &[Self]) -> String {
        let words: Vec<_> = Self::ALL
            .into_iter()
            .filter(|of| all.contains(of))
            .map(Self::name)
            .collect();
        match words.as_slice() {
            [] => String::new(),
            [only] => format!(" from {only}"),
            [first @ .., last] => format!(" from {} and {last}", first.join(", ")),
        }
    }

    /// Returns the name, as in `from pods`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pod => "pods",
            Self::Itself => "its own pods",
            Self::Host => "the host",
            Self::Outside => "outside",
        }
    }
}

/// The role of an address of a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// An address of the Service.
    Address(Role),
    /// The node's address with the NodePort.
    NodePort,
    /// An endpoint of a headless Service.
    Endpoint,
}

impl Kind {
    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Address(Role::ClusterIp) => "cluster-ip",
            Self::Address(Role::ExternalIp) => "external-ip",
            Self::Address(Role::LoadBalancerIp) => "load-balancer-ip",
            Self::NodePort => "node-port",
            Self::Endpoint => "endpoint",
        }
    }

    /// Returns whether `internalTrafficPolicy` applies, rather than `externalTrafficPolicy`.
    pub(super) const fn is_internal(self) -> bool {
        matches!(self, Self::Address(Role::ClusterIp))
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The packets from one client to one address.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Path {
    /// Service port, as `NAMESPACE/NAME:PORT`.
    pub service: String,
    /// Role of the address.
    pub kind: Kind,
    /// Address and port.
    pub to: SocketAddr,
    /// Transport protocol.
    pub protocol: Proto,
    /// Kind of the client.
    pub client: Client,
    /// The client's name and address.
    pub from: String,
    /// The ends of the packets: `reject` if all are rejected, `mixed` if they differ.
    pub verdict: Verdict,
    /// Whether all connections reach an endpoint; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub works: Option<bool>,
    /// The endpoints that they reach.
    pub backends: Vec<SocketAddr>,
    /// Why the packets end there, unless all reach an endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The outcomes.
    #[serde(skip)]
    pub outcomes: Vec<Outcome>,
}

impl Path {
    /// Returns the address with its protocol: `10.96.0.10:53/udp`.
    pub fn target(&self) -> String {
        format!("{}/{}", self.to, self.protocol)
    }
}

/// One address of a Service port, with the port that is asked for.
#[derive(Clone, Copy)]
pub(super) struct Target<'p> {
    pub(super) port: &'p Port,
    pub(super) family: Family,
    pub(super) kind: Kind,
    pub(super) at: SocketAddr,
}

impl Look<'_> {
    /// Traces packets to every address of `port` and `family`, from `source` or the usual sources.
    pub(super) fn paths(
        &self,
        service: &Service,
        port: &Port,
        family: Family,
        source: Option<&str>,
    ) -> Result<Vec<(Path, Vec<Blame>)>, SourceError> {
        let mut paths = Vec::new();
        for (kind, at) in self.targets(port, family) {
            let target = Target {
                port,
                family,
                kind,
                at,
            };
            for (client, source) in self.clients(target, source)? {
                let flow = Flow {
                    entry: source.entry,
                    source: source.addr,
                    destination: at.ip(),
                    port: at.port(),
                    mark: 0,
                    proto: port.proto,
                    established: false,
                };
                let world = &self.worlds[usize::from(family == Family::V6)];
                // Rules that are read whole never need more.
                let outcomes = world.walk(&flow).unwrap_or_default();
                paths.push(self.path(service, target, client, &source, &flow, outcomes));
            }
        }
        if source.is_none() {
            for (path, blames) in &mut paths {
                forgive(path, blames);
            }
        }
        Ok(paths)
    }

    /// Returns the addresses of `port`.
    fn targets(&self, port: &Port, family: Family) -> Vec<(Kind, SocketAddr)> {
        let Some(number) = port.port else {
            return Vec::new();
        };
        if port.addresses.is_empty() {
            let all = usable(port, family).take(MOST_ENDPOINTS);
            return all.map(|of| (Kind::Endpoint, of.addr)).collect();
        }
        let ours = port
            .addresses
            .iter()
            .filter(|(_, at)| Family::of(*at) == family);
        let mut all: Vec<_> = ours
            .map(|(role, addr)| (Kind::Address(*role), SocketAddr::new(*addr, number)))
            .collect();
        // A Service has NodePorts only in its own families.
        if !all.is_empty()
            && let Some(number) = port.node_port
            && let Some(own) = sources::own_address(self.node, family)
        {
            all.push((Kind::NodePort, SocketAddr::new(own, number)));
        }
        all
    }

    /// Returns the clients whose packets to `target` are traced.
    fn clients(
        &self,
        target: Target<'_>,
        asked: Option<&str>,
    ) -> Result<Vec<(Client, Source)>, SourceError> {
        let to = target.at.ip();
        let all = Pods::of(self.node, self.slices);
        if let Some(text) = asked {
            let source = sources::named(text, to, self.node, all)?;
            return Ok(vec![(Client::of(source.entry), source)]);
        }
        let backends: Vec<IpAddr> = target.port.endpoints.iter().map(|e| e.addr.ip()).collect();
        // Slices of all Services take long to search, and are needed only if neither pods nor prefixes are known.
        let mut usual = sources::usual(to, &backends, self.node, Pods::of(self.node, &[]));
        if usual.iter().all(|source| source.entry != Entry::Pod) {
            usual = sources::usual(to, &backends, self.node, all);
        }
        let is_inside = target.kind.is_internal() || target.kind == Kind::Endpoint;
        // No client outside the cluster has a route to these addresses.
        usual.retain(|source| source.entry != Entry::Outside || !is_inside);
        let mut clients: Vec<_> = usual
            .into_iter()
            .map(|source| (Client::of(source.entry), source))
            .collect();
        if target.kind.is_internal() {
            clients.extend(self.itself(target).map(|source| (Client::Itself, source)));
        }
        Ok(clients)
    }

    /// Returns the first pod of the Service on this node as a client.
    fn itself(&self, target: Target<'_>) -> Option<Source> {
        let mut local = usable(target.port, target.family).filter(|of| of.local == Some(true));
        let endpoint = local.find(|of| !self.is_own(of.addr.ip()))?;
        let addr = endpoint.addr.ip();
        let name = match &endpoint.pod {
            Some(pod) => format!("a pod of the Service ({addr}, {pod})"),
            None => format!("a pod of the Service ({addr})"),
        };
        Some(Source {
            entry: Entry::Pod,
            addr: Some(addr),
            name,
        })
    }

    /// Returns the path of `flow`, and what breaks it.
    fn path(
        &self,
        service: &Service,
        target: Target<'_>,
        client: Client,
        source: &Source,
        flow: &Flow,
        outcomes: Vec<Outcome>,
    ) -> (Path, Vec<Blame>) {
        let port = target.port;
        let verdict = trace::overall(&outcomes);
        let mut blames = Vec::new();
        let lacks = usable(port, target.family).next().is_none();
        if lacks {
            blames.push(self.lacking(service, target));
        }
        if verdict != Verdict::Unknown {
            let bad = outcomes.iter().filter(|of| !is_fine(target.kind, of));
            blames.extend(bad.map(|outcome| self.blame(service, target, outcome)));
            if !lacks {
                self.delivered(target, client, flow, &outcomes, &mut blames);
                blames.extend(Self::unanswered(service, target, client, &outcomes));
            }
        }
        let works = (verdict != Verdict::Unknown).then_some(blames.is_empty());
        let bad = outcomes.iter().find(|of| !is_fine(target.kind, of));
        let path = Path {
            service: port.name.to_string(),
            kind: target.kind,
            to: target.at,
            protocol: port.proto,
            client,
            from: source.name.clone(),
            verdict,
            works,
            backends: mismatch::reached(&outcomes).into_iter().collect(),
            reason: bad.map(|outcome| why(outcome, Some(port))),
            outcomes,
        };
        (path, blames)
    }

    /// Adds what is wrong with packets that are sent to an endpoint.
    fn delivered(
        &self,
        target: Target<'_>,
        client: Client,
        flow: &Flow,
        outcomes: &[Outcome],
        blames: &mut Vec<Blame>,
    ) {
        let reached = mismatch::reached(outcomes);
        if blames.is_empty() && !reached.is_empty() && target.kind != Kind::Endpoint {
            let wanted = self.wanted(target);
            let gone: Vec<_> = reached.difference(&wanted).copied().collect();
            if !gone.is_empty() {
                let taken = self.taken(target, outcomes);
                let stale = || Cause::StaleBackends { backends: gone };
                blames.push(Blame::breaks(taken.unwrap_or_else(stale)));
            }
        }
        // Before the network plugin has set up a pod network, routes to pods prove nothing.
        let delivers = self.pod_network && outcomes.iter().any(|of| is_fine(target.kind, of));
        if delivers && let Some(stray) = self.stray(target, outcomes) {
            blames.push(Blame::breaks(stray));
        }
        if delivers && let Some(key) = trace::forwarding_off(self.node, flow, outcomes) {
            blames.push(Blame::breaks(Cause::ForwardingOff { key }));
        }
        let back = |of: &&Outcome| {
            of.verdict == Verdict::Deliver
                && Some(of.destination.0) == flow.source
                && !of.masquerade
        };
        if client == Client::Itself
            && let Some(outcome) = outcomes.iter().find(back)
        {
            let backend = SocketAddr::new(outcome.destination.0, outcome.destination.1);
            blames.push(Blame::breaks(Cause::Hairpin { backend }));
        }
    }

    /// Returns the cause for a client outside whose packets reach an endpoint on another node with their own source: mode
    /// ipvs sends them there if the policy is Local and this node has no endpoint, and the client discards the reply.
    fn unanswered(
        service: &Service,
        target: Target<'_>,
        client: Client,
        outcomes: &[Outcome],
    ) -> Option<Blame> {
        let is_lost = client == Client::Outside
            && is_local(service, target.kind)
            && mismatch::is_unanswered(target.port, outcomes);
        is_lost.then(|| Self::not_local(service, target))
    }

    /// Returns the endpoints that connections to `target` may reach.
    fn wanted(&self, target: Target<'_>) -> BTreeSet<SocketAddr> {
        let Some(desired) = self.desired(target.port, target.family) else {
            return mismatch::takers(target.port, target.family);
        };
        let chosen = [
            desired.cluster_at(),
            desired.local_at(),
            desired.reachable_at(),
        ];
        let at = chosen.into_iter().flatten();
        let endpoints = at.filter_map(|at| desired.endpoints.get(usize::try_from(*at).ok()?));
        endpoints.map(|of| of.addr).collect()
    }

    /// Returns `port` as kube-proxy should program it.
    fn desired(&self, port: &Port, family: Family) -> Option<&ServicePort> {
        let name = port.name.to_string();
        let mut ports = self.desired.as_ref()?.family(family)?.ports.iter();
        ports.find(|of| of.spn == name && of.proto == port.proto)
    }

    /// Returns the tracked connections to the addresses of `port` that go to endpoints which are gone.
    pub(super) fn stale(&self, port: &Port, family: Family) -> Vec<Blame> {
        let mut blames = Vec::new();
        for (kind, at) in self.targets(port, family) {
            let flow = Flow {
                entry: Entry::Host,
                source: None,
                destination: at.ip(),
                port: at.port(),
                mark: 0,
                proto: port.proto,
                established: true,
            };
            let is_open = |entry: &crate::node::conntrack::Entry| {
                let state = entry.state.as_deref();
                (entry.proto == Proto::Udp || state == Some("ESTABLISHED"))
                    && entry.reply.source != at
                    && port
                        .endpoints
                        .iter()
                        .all(|of| of.addr != entry.reply.source)
            };
            let Ok(tracked) = trace::tracked(self.node, &flow, None, Some(port), is_open) else {
                return blames;
            };
            if kind == Kind::Endpoint || tracked.stale.is_empty() {
                continue;
            }
            let degree = match port.proto {
                // A client that keeps sending never gets a new entry.
                Proto::Udp => Degree::Breaks,
                _ => Degree::Suspect,
            };
            blames.push(Blame {
                degree,
                ..Blame::breaks(Cause::StaleConnections {
                    count: tracked.count,
                    address: at,
                    protocol: port.proto.to_string(),
                    backends: tracked.stale,
                    end: trace::end_tracked(&flow),
                })
            });
        }
        blames
    }
}

/// Returns whether `outcome` is the right one for an address of this kind.
fn is_fine(kind: Kind, outcome: &Outcome) -> bool {
    match outcome.verdict {
        Verdict::Deliver => true,
        Verdict::Local | Verdict::Unmatched => kind == Kind::Endpoint,
        Verdict::Drop | Verdict::Reject | Verdict::Unknown | Verdict::Mixed => false,
    }
}

/// Turns causes into limits if they keep out only a client that was chosen at random: one outside the source ranges, or
/// outside the node's firewall.
fn forgive(path: &Path, blames: &mut [Blame]) {
    for blame in blames {
        let is_limit = match &blame.cause {
            Cause::SourceRanges { .. } => true,
            Cause::ForeignRule {
                number,
                rule,
                effect: "drops" | "rejects",
                ..
            } => path.client == Client::Outside && !mismatch::is_particular(*number, rule),
            _ => false,
        };
        if is_limit {
            blame.degree = Degree::Limit;
        }
    }
}
