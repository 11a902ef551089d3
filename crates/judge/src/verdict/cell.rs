//! The connections that are judged: each address of a Service port, from each kind of client.

use std::net::{IpAddr, SocketAddr};

use serde::{Serialize, Serializer};

use super::judge::{Judge, Question};
use super::place::Holder;
use super::{Arrival, Fate, Verdict};
use crate::trace::affinity::remembered;
use crate::trace::mismatch::usable;
use crate::trace::sources::{self, Likely, Pods, Source, SourceError, SourceName};
use crate::trace::{Carried, Entry, Flow, Outcome, Walks};
use kpx_node::net::{Cidr, Family};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::links::Address;
use kpx_node::node::routes::PolicyRule;
use kpx_node::owner::{Port, Role};

/// A kind of client.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Client {
    /// A pod of this node.
    Pod,
    /// A pod of this node that routes, rules or addresses single out.
    Single,
    /// A pod of the Service itself, on this node.
    Itself,
    /// A process in the node's own network.
    Host,
    /// A pod of another node.
    Elsewhere,
    /// A machine outside the cluster.
    Outside,
}

impl Client {
    /// Every kind, in the order of reports.
    pub const ALL: [Self; 6] = [
        Self::Pod,
        Self::Single,
        Self::Itself,
        Self::Host,
        Self::Elsewhere,
        Self::Outside,
    ];

    /// Returns the kind of a client that is given by its place and address.
    fn of(source: &Source, judge: &Judge<'_>) -> Self {
        match (Self::at(source.entry), source.addr) {
            (Self::Outside, Some(addr)) if judge.places.is_pod(addr) => Self::Elsewhere,
            (client, _) => client,
        }
    }

    /// Returns the kind of a client of which only the place is known.
    pub const fn at(place: Entry) -> Self {
        match place {
            Entry::Pod => Self::Pod,
            Entry::Host => Self::Host,
            Entry::Outside => Self::Outside,
        }
    }

    /// Returns the name, as in `from pods`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pod => "pods",
            Self::Single => "single pods",
            Self::Itself => "its own pods",
            Self::Host => "the host",
            Self::Elsewhere => "pods of other nodes",
            Self::Outside => "outside",
        }
    }
}

/// Returns ` from` and the clients, or nothing.
pub fn client_names(all: &[Client]) -> String {
    let mut words: Vec<_> = Client::ALL
        .into_iter()
        .filter(|client| all.contains(client))
        // They are pods, too.
        .filter(|client| *client != Client::Single || !all.contains(&Client::Pod))
        .collect();
    words.dedup();
    let words: Vec<_> = words.into_iter().map(Client::name).collect();
    match words.as_slice() {
        [] => String::new(),
        [only] => format!(" from {only}"),
        [first @ .., last] => format!(" from {} and {last}", first.join(", ")),
    }
}

/// The role of an address.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
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
    pub const fn is_internal(self) -> bool {
        matches!(self, Self::Address(Role::ClusterIp))
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// One address of a Service port.
#[derive(Clone, Copy, Debug)]
pub struct Target<'p> {
    /// The Service port.
    pub port: &'p Port,
    /// The role of the address.
    pub kind: Kind,
    /// The address and port.
    pub at: SocketAddr,
}

impl<'p> Target<'p> {
    /// Returns the Service port; `None` for an address that no Service has.
    pub fn asked(&self) -> Option<&'p Port> {
        (!self.port.name.name.is_empty()).then_some(self.port)
    }

    /// Returns the family of the address.
    pub const fn family(&self) -> Family {
        Family::of(self.at.ip())
    }

    /// Returns the address with its protocol: `10.96.0.10:53/udp`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.at, self.port.proto)
    }
}

/// Connections from one client to one address, and the verdict on them.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The role of the address.
    pub kind: Kind,
    /// The kind of the client.
    pub client: Client,
    /// The client's name and address.
    pub from: String,
    /// The first packet.
    pub flow: Flow,
    /// The outcomes of the walk.
    pub outcomes: Vec<Outcome>,
    /// The verdict.
    pub verdict: Verdict,
    /// How the packet comes from another node whose state is known, if it does.
    pub arrival: Option<Arrival>,
}

impl Cell {
    /// Returns what happens to the connections.
    pub const fn fate(&self) -> Fate {
        self.verdict.fate
    }

    /// Returns the address and port.
    pub const fn to(&self) -> SocketAddr {
        SocketAddr::new(self.flow.destination, self.flow.port)
    }
}

/// Returns the addresses of `port` in `family` on `node`: those of the Service, the node's own with the NodePort, or for a
/// headless Service each endpoint.
pub fn targets<'p>(node: &NodeSnapshot<'_>, port: &'p Port, family: Family) -> Vec<Target<'p>> {
    let Some(number) = port.port else {
        return Vec::new();
    };
    let target = |kind, at| Target { port, kind, at };
    if port.addresses.is_empty() {
        let all = usable(port, family);
        return all
            .map(|endpoint| target(Kind::Endpoint, endpoint.addr))
            .collect();
    }
    let ours = port
        .addresses
        .iter()
        .filter(|(_, at)| Family::of(*at) == family);
    let mut all: Vec<_> = ours
        .map(|(role, addr)| target(Kind::Address(*role), SocketAddr::new(*addr, number)))
        .collect();
    // A Service has NodePorts only in its own families.
    if !all.is_empty()
        && let Some(number) = port.node_port
        && let Some(own) = sources::own_address(node, family)
    {
        all.push(target(Kind::NodePort, SocketAddr::new(own, number)));
    }
    all
}

impl Judge<'_> {
    /// Judges the connections to `target` from each kind of client that has a way to it, or from `source` alone.
    ///
    /// # Errors
    ///
    /// `source` is not a source.
    pub fn cells(
        &self,
        walks: &Walks<'_, '_, '_>,
        target: Target<'_>,
        source: Option<&str>,
    ) -> Result<Vec<Cell>, SourceError> {
        let clients = self.clients(target, source)?;
        let is_known = source.is_some_and(|source| !sources::is_any_outside(source));
        let cells = clients.into_iter().map(|(client, source)| {
            let walk = |flow: &Flow| match walks.walk(flow) {
                all if is_known => remembered(self.node, flow, target.asked(), all),
                all => all,
            };
            self.walked(walk, target, client, &source)
        });
        Ok(cells.collect())
    }

    /// Judges the connections to `target` from each kind of client, without the hops of packets that arrive.
    pub(super) fn brief_cells(
        &self,
        walks: &Walks<'_, '_, '_>,
        target: Target<'_>,
    ) -> impl Iterator<Item = Cell> {
        // Only a source on the command line can be wrong.
        let clients = self.clients(target, None).unwrap_or_default();
        clients.into_iter().map(move |(client, source)| {
            let walk = |flow: &Flow| {
                if self.asks_for_hops() {
                    walks.walk(flow)
                } else {
                    walks.brief(flow)
                }
            };
            self.walked(walk, target, client, &source)
        })
    }

    /// Returns the connections of pods of another node to endpoints of `port` on this one that fail, as their own node translates
    /// them.
    pub fn failing_arrivals(
        &self,
        walks: &Walks<'_, '_, '_>,
        port: &Port,
        family: Family,
    ) -> Vec<Cell> {
        let here = usable(port, family).filter(|usable| usable.local == Some(true));
        let failing = here.filter_map(|endpoint| {
            let is_pod = self.places.own(endpoint.addr.ip()).is_none();
            let (node, addr) = self.places.client_elsewhere(family, is_pod)?;
            let target = Target {
                port,
                kind: Kind::Endpoint,
                at: endpoint.addr,
            };
            let source = Source {
                entry: Entry::Outside,
                addr: Some(addr),
                name: SourceName::new(format!("a pod of {node}"), addr),
            };
            let client = Client::Elsewhere;
            let brief = self.walked(|flow| walks.brief(flow), target, client, &source);
            let fails = brief.fate().fails();
            fails.then(|| self.cell(walks, target, client, &source))
        });
        failing.collect()
    }

    /// Judges the connections from one client to `target`.
    pub(crate) fn cell(
        &self,
        walks: &Walks<'_, '_, '_>,
        target: Target<'_>,
        client: Client,
        source: &Source,
    ) -> Cell {
        self.walked(|flow| walks.walk(flow), target, client, source)
    }

    fn walked(
        &self,
        walk: impl FnOnce(&Flow) -> Vec<Outcome>,
        target: Target<'_>,
        client: Client,
        source: &Source,
    ) -> Cell {
        let flow = Flow {
            entry: source.entry,
            source: source.addr,
            destination: target.at.ip(),
            port: target.at.port(),
            mark: 0,
            carried: Carried::default(),
            proto: target.port.proto,
            established: false,
        };
        let flow = self.as_sent(flow);
        let outcomes = walk(&flow);
        let question = Question {
            flow: &flow,
            port: target.asked(),
        };
        let verdict = self.judge(question, &outcomes);
        Cell {
            kind: target.kind,
            client,
            from: source.name.to_string(),
            flow,
            outcomes,
            verdict,
            arrival: None,
        }
    }

    /// Returns the clients that have a way to `target`: each kind with a typical address, or the one that is asked for.
    pub fn clients(
        &self,
        target: Target<'_>,
        asked: Option<&str>,
    ) -> Result<Vec<(Client, Source)>, SourceError> {
        let to = target.at.ip();
        if asked.is_some_and(sources::is_any_outside) {
            let outside = self.outside(target).into_iter();
            return Ok(outside
                .map(|source| (Client::of(&source, self), source))
                .collect());
        }
        if let Some(text) = asked {
            let slices = self.node.slices().map_or(&[][..], Vec::as_slice);
            let source = sources::named(text, to, self.node, Pods::of(self.node, slices))?;
            return Ok(vec![(Client::of(&source, self), source)]);
        }
        let usual = self.usual(target);
        let is_inside =
            target.kind.is_internal() || target.kind == Kind::Endpoint && target.asked().is_some();
        let mut clients: Vec<_> = usual
            .into_iter()
            // No client outside the cluster has a route to these addresses.
            .filter(|source| source.entry != Entry::Outside || !is_inside)
            // All other clients have their own loopback addresses.
            .filter(|source| source.entry == Entry::Host || !to.is_loopback())
            .map(|source| (Client::of(&source, self), source))
            .collect();
        if clients.iter().any(|(_, of)| of.entry == Entry::Outside) {
            let others = self.other_outside(target);
            clients.extend(others.map(|source| (Client::Outside, source)));
        }
        if !to.is_loopback() {
            clients.retain(|(client, source)| {
                let is_single = || source.addr.is_some_and(|addr| self.is_single(addr));
                *client != Client::Pod || !is_single()
            });
            let typical = clients.iter().find(|(client, _)| *client == Client::Pod);
            let typical = typical.and_then(|(_, source)| source.addr);
            let single = self.single_pods(target, typical);
            clients.extend(single.map(|source| (Client::Single, source)));
        }
        if target.kind.is_internal() {
            clients.extend(self.itself(target).map(|source| (Client::Itself, source)));
        }
        Ok(clients)
    }

    /// Returns the clients outside that represent all others.
    fn outside(&self, target: Target<'_>) -> Vec<Source> {
        let mut outside = self.usual(target);
        outside.retain(|source| source.entry == Entry::Outside);
        outside.extend(self.other_outside(target));
        outside
    }

    /// Returns a pod of this node, the host, and a client outside: one that the Service admits, if it admits only some.
    fn usual(&self, target: Target<'_>) -> Vec<Source> {
        let mut usual = self.ordinary(target);
        let outside = usual
            .iter_mut()
            .find(|source| source.entry == Entry::Outside);
        if let Some(outside) = outside
            && let Some((addr, _)) = self.chosen(target, outside.addr)
        {
            outside.addr = Some(addr);
            outside.name = SourceName::new("outside", addr);
        }
        usual
    }

    /// Returns the address of a client outside for `target`, if it is not the usual one `addr`, and the clients that it does not
    /// represent, in words.
    fn chosen(&self, target: Target<'_>, addr: Option<IpAddr>) -> Option<(IpAddr, String)> {
        if let Kind::Address(Role::ExternalIp | Role::LoadBalancerIp) = target.kind
            && let Some(addr) = self.let_in(target, addr)
        {
            return Some((addr, "clients outside loadBalancerSourceRanges".to_owned()));
        }
        let (addr, link) = self.near(target, addr?)?;
        Some((addr, format!("clients beyond the network of {link}")))
    }

    /// Returns the clients outside to which the verdict on connections to `target` does not apply, in words, if it does not apply to
    /// all.
    pub fn left_out(&self, target: Target<'_>) -> Option<String> {
        let usual = self.ordinary(target);
        let outside = usual.iter().find(|source| source.entry == Entry::Outside)?;
        let (_, others) = self.chosen(target, outside.addr)?;
        Some(format!("{others} at {}", target.at))
    }

    /// Returns an address in the network of the node that has `target`, and its link, if another link leads to the client `addr`:
    /// distant clients come in there.
    fn near(&self, target: Target<'_>, addr: IpAddr) -> Option<(IpAddr, &str)> {
        let all = &self.node.addresses().ok()?.all;
        let to = target.at.ip();
        let is_near = |at: &&Address| at.addr.contains(to) && !at.addr.is_host();
        let own = all.iter().find(is_near).filter(|_| !to.is_loopback())?;
        let (back, _) = self.way_to(addr)?;
        let near = sources::near_the_end(own.addr, 1)?;
        let is_apart = back != own.link && near != own.addr.addr && near != to;
        is_apart.then_some((near, &*own.link))
    }

    /// Returns clients outside whose packets go other ways than those of the usual one.
    fn other_outside(&self, target: Target<'_>) -> impl Iterator<Item = Source> + use<> {
        let ruled = self.ruled_client(target.family());
        let dropped = self.ingress.martian_to(target.at.ip());
        let dropped = dropped.filter(|addr| self.places.own(*addr).is_none());
        [ruled, dropped].into_iter().flatten().map(|addr| Source {
            entry: Entry::Outside,
            addr: Some(addr),
            name: SourceName::new("outside", addr),
        })
    }

    /// Returns a client outside for which rules of routing lead packets of pods elsewhere than for others.
    fn ruled_client(&self, family: Family) -> Option<IpAddr> {
        let rules = self.node.rules().ok()?;
        let leads = |rule: &&PolicyRule| rule.from.is_some() && rule.action.is_empty();
        let mut ranges = rules.all.iter().filter(leads).filter_map(|rule| rule.to);
        ranges.find_map(|range| {
            let addr = sources::near_the_end(range, u8::from(!range.is_host()))?;
            let is_outside = range.family() == family
                && range.prefix > 0
                && self.places.holder(addr).is_none()
                && self.places.own(addr).is_none()
                && !self.places.is_pod(addr)
                && !self.places.is_cluster_ip(addr);
            is_outside.then_some(addr)
        })
    }

    /// Returns an address that the Service admits, unless it admits `addr`.
    fn let_in(&self, target: Target<'_>, addr: Option<IpAddr>) -> Option<IpAddr> {
        let name = &target.port.name;
        let mut services = self.node.services().ok()?.iter();
        let service = services.find(|service| {
            *service.metadata.name == *name.name && *service.metadata.namespace == *name.namespace
        })?;
        let ranges = service.spec.load_balancer_source_ranges.iter();
        let ranges: Vec<Cidr> = ranges
            .filter_map(|text| text.trim().parse().ok())
            .filter(|range: &Cidr| range.family() == target.family())
            .collect();
        if ranges
            .iter()
            .any(|range| addr.is_some_and(|addr| range.contains(addr)))
        {
            return None;
        }
        let first = ranges.first()?;
        sources::near_the_end(*first, u8::from(!first.is_host()))
    }

    fn ordinary(&self, target: Target<'_>) -> Vec<Source> {
        let to = target.at.ip();
        let backends: Vec<IpAddr> = target.port.endpoints.iter().map(|e| e.addr.ip()).collect();
        // A pod that a rule, route or address singles out does not represent others.
        let apart = self.single().pods.iter().filter_map(|source| source.addr);
        let restricted = self.policed().keys().copied();
        let apart = apart.chain(restricted.filter(|addr| self.is_restricted(*addr)));
        let others: Vec<IpAddr> = backends.iter().copied().chain(apart).collect();
        let is_known = |source: &Source| {
            let holder = source.addr.and_then(|addr| self.places.holder(addr));
            source.entry == Entry::Pod && matches!(holder, Some(Holder::Pod(_)))
        };
        let family = Family::of(to);
        let at = usize::from(family == Family::V6);
        let likely = |slices| Likely::new(family, self.node, Pods::of(self.node, slices));
        let of_pods = self.likely[at].0.get_or_init(|| likely(&[]));
        if others.len() > backends.len() {
            let usual = of_pods.sources(to, &others);
            if usual.iter().any(is_known) {
                return usual;
            }
        }
        // Slices of all Services take long to search, and are needed only if neither pods nor prefixes are known.
        let usual = of_pods.sources(to, &backends);
        if usual.iter().any(|source| source.entry == Entry::Pod) {
            return usual;
        }
        let slices = || self.node.slices().map_or(&[][..], Vec::as_slice);
        let of_slices = self.likely[at].1.get_or_init(|| likely(slices()));
        of_slices.sources(to, &backends)
    }

    /// Returns the first pod of the Service on this node as a client.
    fn itself(&self, target: Target<'_>) -> Option<Source> {
        let mut local =
            usable(target.port, target.family()).filter(|usable| usable.local == Some(true));
        let endpoint = local.find(|endpoint| {
            let addr = endpoint.addr.ip();
            self.places.own(addr).is_none()
                && !self.is_restricted(addr)
                && !self.is_vacant(target.port, endpoint)
        })?;
        let addr = endpoint.addr.ip();
        let name = match &endpoint.pod {
            Some(pod) => SourceName::new("a pod of the Service", format!("{addr}, {pod}")),
            None => SourceName::new("a pod of the Service", addr),
        };
        Some(Source {
            entry: Entry::Pod,
            addr: Some(addr),
            name,
        })
    }
}
