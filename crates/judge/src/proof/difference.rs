//! Differences between two fates of the same packets, grouped by common properties.

use std::collections::btree_map::Entry as MapEntry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::{Class, Fate, Way};
use crate::trace::region::{Field, Ranges, Region, address};
use crate::trace::{Entry, Flow, Verdict};
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::{Owners, Role};

/// The harm of a difference to those who send the packets, the largest first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Harm {
    /// They should reach a backend, but do not.
    Lost,
    /// They reach other backends.
    Misled,
    /// They should be stopped, but reach a backend.
    Open,
    /// They leave for their backend by another link or gateway.
    Rerouted,
    /// Their source is rewritten on one side only, or to another address, so replies may take another way.
    Source,
    /// Session affinity binds clients to backends on one side only.
    Affinity,
    /// The same backends get other shares.
    Uneven,
    /// They end in another way, and reach no backend on either side.
    Ends,
    /// An unknown condition decides whether they differ.
    Unsure,
}

impl Harm {
    /// Returns the harm to packets that have the fate `is` and should have the fate `should`.
    fn of(is: &Fate, should: &Fate) -> Self {
        let arrives = |way: &Way| way.verdict == Verdict::Deliver && !way.expires;
        let delivers = |fate: &Fate| fate.ways.iter().any(arrives);
        let unsure = |fate: &Fate| {
            let mut ways = fate.ways.iter();
            ways.any(|way| way.verdict == Verdict::Unknown || !way.when.is_empty())
        };
        let targets = |fate: &Fate| -> BTreeSet<_> {
            let ways = fate.ways.iter();
            ways.map(|way| (way.verdict, way.address, way.port, way.expires))
                .collect()
        };
        let stops = |fate: &Fate| matches!(fate.verdict(), Some(Verdict::Drop | Verdict::Reject));
        if unsure(is) || unsure(should) {
            return Self::Unsure;
        }
        let (now, then) = (targets(is), targets(should));
        if now == then {
            let sources = |fate: &Fate| -> BTreeSet<_> {
                let ways = fate.ways.iter();
                ways.map(|way| (way.address, way.port, way.masquerade, way.source))
                    .collect()
            };
            let leaves = |fate: &'_ Fate| -> BTreeSet<_> {
                let ways = fate.ways.iter();
                ways.map(|way| (way.address, way.port, way.out.clone()))
                    .collect()
            };
            let binds = |fate: &Fate| -> BTreeSet<_> {
                let ways = fate.ways.iter();
                ways.map(|way| (way.address, way.port, way.sticky))
                    .collect()
            };
            return if leaves(is) != leaves(should) {
                Self::Rerouted
            } else if sources(is) != sources(should) {
                Self::Source
            } else if binds(is) == binds(should) {
                Self::Uneven
            } else {
                Self::Affinity
            };
        }
        if delivers(should) {
            let lost = !is.ways.iter().all(arrives);
            return if lost { Self::Lost } else { Self::Misled };
        }
        match (delivers(is), stops(should)) {
            (true, true) => Self::Open,
            (true, false) => Self::Misled,
            (false, _) => Self::Ends,
        }
    }
}

/// The destination of packets.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Target {
    /// A port of a Service at one of its addresses.
    Service(String, Role),
    /// A NodePort, at an address of the node.
    NodePort(String),
    /// A NodePort, at a loopback address.
    LocalNodePort(String),
    /// A NodePort, at an address that is not the node's.
    NodePortElsewhere(String),
    /// An echo request to an address of a Service.
    Ping(Role),
    /// A port of a Service's address that no Service has.
    OtherPort(Role),
    /// Anything else.
    Other,
}

const fn article(role: Role) -> &'static str {
    match role {
        Role::ExternalIp => "an",
        Role::ClusterIp | Role::LoadBalancerIp => "a",
    }
}

impl Target {
    /// Takes the Service's name out.
    fn take_name(&mut self) -> Option<String> {
        match self {
            Self::Service(name, _)
            | Self::NodePort(name)
            | Self::LocalNodePort(name)
            | Self::NodePortElsewhere(name) => Some(std::mem::take(name)),
            Self::Ping(_) | Self::OtherPort(_) | Self::Other => None,
        }
    }

    /// Returns what it is, without a name.
    pub fn kind(&self) -> String {
        match self {
            Self::Service(_, role) => format!("ports of Services at {} {role}", article(*role)),
            Self::NodePort(_) => "NodePorts at addresses of the node".to_owned(),
            Self::LocalNodePort(_) => "NodePorts at loopback addresses".to_owned(),
            Self::NodePortElsewhere(_) => {
                "NodePorts at addresses that are not the node's".to_owned()
            }
            Self::Ping(_) | Self::OtherPort(_) | Self::Other => self.to_string(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(name, role) => write!(f, "{name}, {role}"),
            Self::NodePort(name) => write!(f, "{name}, NodePort"),
            Self::LocalNodePort(name) => write!(f, "{name}, NodePort at a loopback address"),
            Self::NodePortElsewhere(name) => write!(f, "{name}, NodePort at another address"),
            Self::Ping(role) => write!(f, "ping to {} {role}", article(*role)),
            Self::OtherPort(role) => {
                write!(f, "a port of {} {role} that no Service has", article(*role))
            }
            Self::Other => f.write_str("no Service"),
        }
    }
}

/// Packets with two fates.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The harm.
    pub harm: Harm,
    /// Their destination.
    pub target: Target,
    /// The place where they enter.
    pub entries: BTreeSet<Entry>,
    /// The Services, where several are one difference.
    pub services: BTreeSet<String>,
    /// The packets, as classes.
    pub regions: Vec<(Entry, Family, Region)>,
    /// One of the packets.
    pub witness: Flow,
    /// The fate of that packet, and the one that it should have.
    pub fates: [Fate; 2],
}

impl Difference {
    /// Iterates over the Service ports that they are sent to, as `NAMESPACE/NAME:PORT`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let own = match &self.target {
            Target::Service(name, _)
            | Target::NodePort(name)
            | Target::LocalNodePort(name)
            | Target::NodePortElsewhere(name) => Some(name),
            Target::Ping(_) | Target::OtherPort(_) | Target::Other => None,
        };
        let own = own.filter(|name| !name.is_empty());
        own.into_iter().chain(&self.services).map(String::as_str)
    }

    /// Returns whether the packet of `flow` is one of them.
    pub fn contains(&self, flow: &Flow) -> bool {
        let here = (&flow.entry, Family::of(flow.destination));
        let mut regions = self.regions.iter();
        regions.any(|(entry, family, region)| (entry, *family) == here && region.contains(flow))
    }
}

/// The key that joins several classes to one difference.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Grouping {
    /// The Service, the harm, and how they end.
    Service,
    /// The kind of target, the harm, and how they end.
    Kind,
}

/// Gathers differences between two sides.
#[derive(Debug)]
pub struct Differences<'o> {
    owners: &'o Owners,
    grouping: Grouping,
    local: Vec<IpAddr>,
    found: BTreeMap<Key, Difference>,
}

/// The harm, the target, and how the packets end.
type Key = (Harm, Target, String);

impl<'o> Differences<'o> {
    /// Returns an empty collection for `node`, whose Services `owners` knows.
    pub fn new(node: &NodeSnapshot<'_>, owners: &'o Owners, grouping: Grouping) -> Self {
        let local = node.addresses().map_or_else(
            |_| Vec::new(),
            |all| all.all.iter().map(|at| at.addr.addr).collect(),
        );
        Self {
            owners,
            grouping,
            local,
            found: BTreeMap::new(),
        }
    }

    /// Keeps `class` if its fates at `is` and `should` differ.
    pub fn add<const N: usize>(&mut self, class: &Class<N>, is: usize, should: usize) {
        let fates = [is, should].map(|side| &class.fates[side]);
        if fates[0] == fates[1] {
            return;
        }
        let mut ports = class.region.clone();
        let mut echoes = class.region.clone();
        let number = u128::from(class.family.echo().number());
        let echo = Ranges::between(number, number);
        ports.of_mut(Field::Proto).subtract(&echo);
        echoes.of_mut(Field::Proto).subtract(&echo.complement());
        for region in [ports, echoes] {
            if !region.is_empty() {
                self.keep(class.entry, class.family, region, fates);
            }
        }
    }

    /// Adds packets with two fates.
    fn keep(&mut self, entry: Entry, family: Family, region: Region, fates: [&Fate; 2]) {
        let harm = Harm::of(fates[0], fates[1]);
        let witness = self.choose(entry, family, &region);
        let mut target = self.target(&witness, &region);
        // An unknown condition mostly concerns many Services.
        let grouping = match harm {
            Harm::Unsure => Grouping::Kind,
            _ => self.grouping,
        };
        let name = match grouping {
            Grouping::Service => None,
            Grouping::Kind => target.take_name(),
        };
        let ends = match (grouping, harm) {
            (_, Harm::Rerouted | Harm::Source | Harm::Affinity | Harm::Uneven) => String::new(),
            (Grouping::Service, Harm::Misled) => fates[0].targets(),
            _ => format!("{} {}", fates[0].verdicts(), fates[1].verdicts()),
        };
        let key = (harm, target.clone(), ends);
        let difference = Difference {
            harm,
            target,
            entries: BTreeSet::from([entry]),
            services: name.into_iter().collect(),
            regions: vec![(entry, family, region)],
            witness,
            fates: fates.map(Clone::clone),
        };
        self.insert(key, difference);
    }

    /// Adds what `other` found in later packets.
    pub fn join(&mut self, other: Self) {
        for (key, difference) in other.found {
            self.insert(key, difference);
        }
    }

    fn insert(&mut self, key: Key, new: Difference) {
        let mut old = match self.found.entry(key) {
            MapEntry::Vacant(place) => {
                place.insert(new);
                return;
            }
            MapEntry::Occupied(old) => old,
        };
        let old = old.get_mut();
        // The better example has no mark, and an address that the node has.
        let rank = |flow: &Flow| (flow.mark == 0, self.local.contains(&flow.destination));
        if rank(&new.witness) > rank(&old.witness) {
            old.witness = new.witness;
            old.fates = new.fates;
        }
        old.services.extend(new.services);
        old.entries.extend(new.entries);
        old.regions.extend(new.regions);
    }

    /// Returns the differences, the largest harm first.
    pub fn finish(self) -> Vec<Difference> {
        self.found.into_values().collect()
    }

    /// Chooses a packet of `region` that an operator would send.
    fn choose(&self, entry: Entry, family: Family, region: &Region) -> Flow {
        let port = region.of(Field::Port);
        let proto = region.of(Field::Proto);
        let mut flow = super::classes::witness(entry, family, region);
        let protos = [Proto::Tcp, Proto::Udp, Proto::Sctp];
        let proto_of = protos
            .into_iter()
            .find(|protocol| proto.contains(protocol.number().into()));
        flow.proto = proto_of.unwrap_or(flow.proto);
        let usual = [80, 443, 8080]
            .into_iter()
            .find(|number| port.contains(u128::from(*number)));
        flow.port = match flow.proto {
            Proto::Icmp | Proto::Icmpv6 => 0,
            _ => usual.unwrap_or(flow.port),
        };
        let destination = region.of(Field::Destination);
        let first = destination.ranges().first().map_or(0, |(first, _)| *first);
        flow.destination = address(family, first);
        // An address of the node, 127.0.0.1 last.
        let mut own: Vec<IpAddr> = self.local.clone();
        own.retain(|addr| Family::of(*addr) == family && destination.has(*addr));
        if let Some(own) = own.into_iter().min_by_key(IpAddr::is_loopback) {
            flow.destination = own;
        }
        if region.of(Field::Mark).contains(0) {
            flow.mark = 0;
        }
        if let Some(source) = &mut flow.source {
            let sources = region.of(Field::Source);
            let typical = match family {
                Family::V4 => [198, 18, 0, 1].into(),
                Family::V6 => [0x2001, 2, 0, 0, 0, 0, 0, 1].into(),
            };
            if sources.has(typical) {
                *source = typical;
            }
        }
        flow
    }

    fn target(&self, flow: &Flow, region: &Region) -> Target {
        let name = |port: &kpx_node::owner::Port| port.name.to_string();
        if let Some((port, role)) = self.owners.at(flow.destination, flow.port, flow.proto) {
            return Target::Service(name(port), role);
        }
        let [(first, last)] = region.of(Field::Port).ranges() else {
            return self.without_port(flow);
        };
        let node_port = self.owners.node_port(flow.port, flow.proto);
        match node_port.filter(|_| first == last) {
            None => self.without_port(flow),
            Some(port) if flow.destination.is_loopback() => Target::LocalNodePort(name(port)),
            Some(port) if self.local.contains(&flow.destination) => Target::NodePort(name(port)),
            Some(port) => Target::NodePortElsewhere(name(port)),
        }
    }

    fn without_port(&self, flow: &Flow) -> Target {
        let role = self.owners.with_address(flow.destination).next();
        match (role, flow.proto) {
            (Some((_, role)), Proto::Icmp | Proto::Icmpv6) => Target::Ping(role),
            (Some((_, role)), _) => Target::OtherPort(role),
            (None, _) => Target::Other,
        }
    }
}

/// The number of backends that are named.
const MOST_NAMED: usize = 2;

impl Fate {
    /// Returns how the packets end, as a text.
    fn verdicts(&self) -> String {
        let mut all: Vec<_> = self.ways.iter().map(|way| way.verdict).collect();
        all.dedup();
        format!("{all:?}")
    }

    /// Returns where the packets end, as a text.
    fn targets(&self) -> String {
        let mut all: Vec<_> = self
            .ways
            .iter()
            .map(|way| (way.verdict, way.address, way.port))
            .collect();
        all.dedup();
        format!("{all:?}")
    }

    /// Returns the fate as text, compared with `other`: ways of this fate alone come first, with the links and the new
    /// sources of packets if these differ.
    pub fn text_beside(&self, other: &Self) -> String {
        let outs = |fate: &Self| -> BTreeSet<_> {
            let ways = fate.ways.iter();
            ways.filter_map(|way| way.out.clone()).collect()
        };
        let sources = |fate: &Self| -> BTreeSet<_> {
            let ways = fate.ways.iter();
            ways.map(|way| way.source).collect()
        };
        let (mine, theirs) = (outs(self), outs(other));
        let with_links = !mine.is_empty() && !theirs.is_empty() && mine != theirs;
        let delivers = |fate: &Self| fate.ways.iter().any(|way| way.verdict == Verdict::Deliver);
        let both = delivers(self) && delivers(other);
        self.text(
            Some(other),
            with_links,
            both && sources(self) != sources(other),
        )
    }

    fn text(&self, other: Option<&Self>, with_links: bool, with_sources: bool) -> String {
        let is_shared = |way: &Way| other.is_some_and(|fate| fate.ways.contains(way));
        // Ways that stop packets are named first.
        let mut ways: Vec<&Way> = self.ways.iter().collect();
        ways.sort_by_key(|way| (way.verdict == Verdict::Deliver, is_shared(way)));
        let named: Vec<_> = ways
            .iter()
            .take(MOST_NAMED)
            .map(|way| way.text(with_links, with_sources))
            .collect();
        let named = named.join("; ");
        match self.ways.len().saturating_sub(MOST_NAMED) {
            0 => named,
            more => format!("{named}; and {more} more"),
        }
    }
}

impl Way {
    fn text(&self, with_link: bool, with_source: bool) -> String {
        let to = match (self.address, self.port) {
            (Some(addr), Some(port)) => SocketAddr::new(addr, port).to_string(),
            (Some(addr), None) => addr.to_string(),
            (None, Some(port)) => format!("port {port}"),
            (None, None) => String::new(),
        };
        let mut text = match self.verdict {
            Verdict::Deliver => format!("to {to}"),
            Verdict::Reject => "rejected".to_owned(),
            Verdict::Drop => "dropped".to_owned(),
            Verdict::Local => "to the host itself".to_owned(),
            Verdict::Unmatched => "routed unchanged".to_owned(),
            Verdict::Unknown | Verdict::Mixed => "unknown".to_owned(),
        };
        let mut add = |part: fmt::Arguments<'_>| {
            text.write_fmt(part)
                .expect("writing to a String does not fail");
        };
        if self.share < 1.0 - 1e-9 {
            add(format_args!(" {:.1}%", self.share * 100.0));
        }
        if let Some((link, gateway)) = self.out.as_ref().filter(|_| with_link) {
            add(format_args!(" by {link}"));
            if let Some(gateway) = gateway {
                add(format_args!(" via {gateway}"));
            }
        }
        if self.expires {
            add(format_args!(", with a TTL that ends at the next node"));
        }
        match self.source.filter(|_| with_source) {
            Some(source) => add(format_args!(", masqueraded as {source}")),
            None if self.masquerade => add(format_args!(", masqueraded")),
            None => {}
        }
        if self.sticky {
            add(format_args!(", sticky"));
        }
        text
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(None, false, false))
    }
}
