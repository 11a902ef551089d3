//! The result of `kpx trace`.

mod drawing;
mod graph;
mod human;
mod live;
pub(crate) mod nodes;
mod onward;
mod steps;

use std::collections::BTreeSet;
use std::iter;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use crate::render::{Page, Report};
use crate::report::probe::ProbeRow;
use crate::report::{FOUND, UNKNOWN, fate};
use crate::view::picture::Picture;
use kpx_judge::trace::{self, Effect, Hook, Hop, Outcome, Subsystem, Verdict, why};
use kpx_judge::verdict::{self, Fate, Onward};
use kpx_node::backend::Mode;
use kpx_node::net::Proto;
use kpx_node::owner::chain_owner::Maker;
use kpx_node::owner::{EndpointState, Owners, Port};

pub(crate) use drawing::{drawing, heads, picture, svg};
pub(crate) use graph::{dot, mermaid};
pub(crate) use human::all;
use live::Agreement;
pub(crate) use live::Observation;

/// The outcome of `kpx trace`: the trace from the first source, and from all sources if there are several.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct TraceReport {
    /// The node's mode, if known; with `assumed`, the mode given.
    pub mode: Option<Mode>,
    /// Whether the rules are the desired ones of kube-proxy in `mode`, not the live ones.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub assumed: bool,
    /// The Service port behind the target.
    pub service: Option<ServiceRow>,
    /// The first source's trace, with the fate of the connections to all ports from all sources.
    #[serde(flatten)]
    pub first: SourceTrace,
    /// Every source's trace; empty when there is one, and no further port.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceTrace>,
    /// The traces to the further ports of a Service, if the target names no port.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        serialize_with = "crate::render::documents"
    )]
    pub ports: Vec<TraceReport>,
    /// The result of a real connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeRow>,
    /// The path of one packet in the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<Observation>,
    /// The connections, as they are drawn.
    #[serde(skip)]
    pub picture: Picture,
    /// The command of the first fix.
    #[serde(skip)]
    pub next: Option<String>,
}

/// The trace from one source.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SourceTrace {
    /// `pod`, `host` or `outside`, with the address.
    pub from: String,
    /// The same without the address.
    #[serde(skip)]
    pub sender: String,
    /// The packet.
    pub packet: PacketRow,
    /// The fate of the connection.
    pub fate: Fate,
    /// Why it fails, or why that is unknown; absent if it works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// The end of the first packet.
    pub verdict: Verdict,
    /// The possible ends of the first packet, the most probable first.
    pub outcomes: Vec<OutcomeRow>,
    /// The hops of every outcome.
    pub hops: Vec<HopRow>,
    /// Notes on the trace, and what is unknown.
    pub notes: Vec<String>,
}

/// The packet, as it is sent.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PacketRow {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The destination port.
    pub port: u16,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: Proto,
}

/// A Service port.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ServiceRow {
    /// The namespace.
    pub namespace: String,
    /// The Service's name.
    pub name: String,
    /// The port's name; empty for an unnamed port.
    pub port: String,
}

/// One possible end of a packet.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct OutcomeRow {
    /// The end of the packet.
    pub verdict: Verdict,
    /// The fate of a connection with this end.
    pub fate: Fate,
    /// Why it fails or may fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// The probability: 0 to 1.
    pub probability: f64,
    /// The backend it goes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendRow>,
    /// Whether the source is rewritten on the way out.
    pub masquerade: bool,
    /// The reason of the verdict.
    pub reason: String,
    /// The assumptions about unknown facts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<String>,
    /// Whether packets take this way only under an assumption: its probability is then no share of them.
    #[serde(skip)]
    pub is_open: bool,
    /// Its way on another node, if it leaves for one and states of other nodes are given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub onward: Option<OnwardRow>,
}

/// The way of a packet on another node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct OnwardRow {
    /// The node.
    pub node: String,
    /// The packet as it arrives there, and its path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Box<SourceTrace>>,
    /// The hops of the reply on that node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reply: Vec<HopRow>,
    /// Why the packet was not followed to that node, if it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unread: Option<String>,
}

/// A backend.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct BackendRow {
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// The pod, as `NAMESPACE/NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The node it runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Whether the API calls it ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Its conditions, if the API has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<EndpointState>,
}

/// One hop.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct HopRow {
    /// The hook.
    pub hook: Hook,
    /// The subsystem.
    pub subsystem: Subsystem,
    /// The table.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub table: String,
    /// The chain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub chain: String,
    /// The number of the rule in its chain, from 1; 0 for the policy.
    pub number: usize,
    /// The rule in full.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// Packets it counted.
    pub packets: Option<u64>,
    /// The owner of the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Whether the owner is neither kube-proxy nor the kernel.
    #[serde(skip)]
    pub foreign: bool,
    /// The effect.
    pub effect: Effect,
    /// The probability of this hop, once the packet is here.
    pub probability: f64,
    /// The condition of this hop, if kpx cannot decide it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// Positions in `outcomes` of the outcomes whose packets pass this hop; absent if all do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcomes: Option<BTreeSet<usize>>,
}

impl SourceTrace {
    /// Builds the report of a walk.
    pub(crate) fn new(
        (from, sender): (String, String),
        packet: PacketRow,
        outcomes: &[Outcome],
        judged: &verdict::Verdict,
        notes: Vec<String>,
        owners: &Owners,
        service: Option<&Port>,
    ) -> Self {
        let proto = packet.protocol;
        // An assumption of every way does not affect the shares.
        let is_common = |when: &trace::Assumption| {
            outcomes.len() > 1 && outcomes.iter().all(|outcome| outcome.when.contains(when))
        };
        let is_decided = |when: &trace::Assumption| verdict::is_decided(when) || is_common(when);
        let rows = outcomes
            .iter()
            .zip(&judged.ways)
            .map(|(outcome, way)| OutcomeRow {
                verdict: outcome.verdict,
                fate: way.fate(),
                fault: way.fault.as_ref().map(ToString::to_string),
                probability: outcome.probability,
                backend: (outcome.verdict == Verdict::Deliver)
                    .then(|| backend(owners, service, outcome.destination, proto)),
                masquerade: outcome.masquerade,
                reason: why(outcome, service),
                when: outcome.when.iter().map(ToString::to_string).collect(),
                is_open: !outcome.when.iter().all(is_decided),
                onward: way.onward.as_ref().map(|onward| onward_row(onward, owners)),
            });
        Self {
            from,
            sender,
            packet,
            fate: judged.fate,
            fault: judged.reason(outcomes),
            verdict: trace::overall(outcomes),
            outcomes: rows.collect(),
            hops: together(outcomes, owners),
            notes,
        }
    }
}

/// Returns the way of a packet on another node.
fn onward_row(onward: &Onward, owners: &Owners) -> OnwardRow {
    let far = match onward {
        Onward::Far(far) => far,
        Onward::Unread { node, reason } => {
            return OnwardRow {
                node: node.clone(),
                path: None,
                reply: Vec::new(),
                unread: Some(reason.clone()),
            };
        }
    };
    let (cell, flow) = (&far.cell, &far.cell.flow);
    let packet = PacketRow {
        source: flow.source.unwrap_or(flow.destination),
        destination: flow.destination,
        port: flow.port,
        protocol: flow.proto,
    };
    let from = format!("{} ({})", cell.from, packet.source);
    let replies = cell
        .arrival
        .as_ref()
        .map_or(&[][..], |arrival| &arrival.replies);
    OnwardRow {
        node: far.node.clone(),
        path: Some(Box::new(SourceTrace::new(
            (from, cell.from.clone()),
            packet,
            &cell.outcomes,
            &cell.verdict,
            Vec::new(),
            owners,
            far.port.as_ref(),
        ))),
        reply: together(replies, owners),
        unread: None,
    }
}

/// Returns the backend at `addr`, as an endpoint of `service` or of another Service port.
fn backend(
    owners: &Owners,
    service: Option<&Port>,
    (address, port): (IpAddr, u16),
    proto: Proto,
) -> BackendRow {
    let addr = SocketAddr::new(address, port);
    let of_service = service.and_then(|port| port.endpoints.iter().find(|e| e.addr == addr));
    let known = of_service.or_else(|| owners.endpoint(addr, proto).map(|(_, endpoint)| endpoint));
    let condition = known.and_then(|endpoint| endpoint.state);
    BackendRow {
        address,
        port,
        pod: known.and_then(|endpoint| endpoint.pod.as_deref().map(str::to_owned)),
        node: known.and_then(|endpoint| endpoint.node.as_deref().map(str::to_owned)),
        ready: condition.map(|state| state == EndpointState::Ready),
        condition,
    }
}

/// Returns the owner of a hop's rule, and whether that is other software than kube-proxy; `None` for the kernel's own.
fn owner(owners: &Owners, hop: &Hop) -> (Option<String>, bool) {
    if matches!(
        hop.subsystem,
        Subsystem::Ipvs | Subsystem::Routing | Subsystem::Process
    ) {
        return (None, false);
    }
    if let Some(port) = why::owner(owners, hop).port() {
        return (Some(port.name.to_string()), false);
    }
    match why::maker(hop) {
        Maker::Other(who) => (Some(who.to_owned()), true),
        Maker::Kubelet => (Some("the kubelet".to_owned()), true),
        Maker::Unknown => (Some("not kube-proxy's".to_owned()), true),
        Maker::KubeProxy | Maker::Both | Maker::Kernel => (None, false),
    }
}

/// The hops of all outcomes in one list, without duplicates.
fn together(outcomes: &[Outcome], owners: &Owners) -> Vec<HopRow> {
    let mut hops: Vec<(&Hop, BTreeSet<usize>)> = Vec::new();
    // The hops of a single outcome are placed before the common ones.
    for (which, outcome) in outcomes.iter().enumerate().rev() {
        let mut at = 0;
        for hop in &outcome.hops {
            let same = |(other, _): &(&Hop, BTreeSet<usize>)| *other == hop.as_ref();
            match hops[at..].iter().position(same) {
                Some(found) => {
                    at += found;
                    hops[at].1.insert(which);
                }
                None => hops.insert(at, (hop, BTreeSet::from([which]))),
            }
            at += 1;
        }
    }
    let hops = hops.into_iter().map(|(hop, passing)| HopRow {
        outcomes: (passing.len() < outcomes.len()).then_some(passing),
        ..row(hop, owners)
    });
    hops.collect()
}

/// Returns the row of a hop that all outcomes pass.
pub(crate) fn row(hop: &Hop, owners: &Owners) -> HopRow {
    let (owner, foreign) = owner(owners, hop);
    HopRow {
        hook: hop.hook,
        subsystem: hop.subsystem,
        table: hop.table.clone(),
        chain: hop.chain.clone(),
        number: hop.number,
        rule: hop.rule.clone(),
        packets: hop.packets,
        owner,
        foreign,
        effect: hop.effect.clone(),
        probability: hop.chance,
        when: hop.when.clone(),
        outcomes: None,
    }
}

impl TraceReport {
    /// Adds the traces to further ports, and what happens to the connections to all.
    pub(crate) fn add_ports(&mut self, ports: impl IntoIterator<Item = Self>) {
        if self.sources.is_empty() {
            self.sources.push(self.first.clone());
        }
        self.ports.extend(ports);
        let ports = self.ports.iter().map(|port| port.first.fate);
        self.first.fate = Fate::of_all(iter::once(self.first.fate).chain(ports));
    }

    /// Returns the notes of all sources, without duplicates.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        for note in all(self).iter().flat_map(|trace| &trace.notes) {
            if !notes.contains(note) {
                notes.push(note.clone());
            }
        }
        notes
    }
}

impl Report for TraceReport {
    const KIND: &'static str = "TraceReport";

    fn page(&self, page: &mut Page) {
        human::page(self, page);
        human::next(self, page);
    }

    fn exit(&self) -> u8 {
        match self.live.as_ref().map(|live| live.result) {
            Some(Agreement::Differs) => return FOUND,
            Some(Agreement::NotSeen) => return UNKNOWN,
            Some(Agreement::Agrees | Agreement::Unpredicted) | None => {}
        }
        fate::exit(self.first.fate)
    }
}
