//! The question of a trace: the flows to a target, its Service, and their paths.

use std::net::SocketAddr;
use std::rc::Rc;

use super::sources::Source;
use super::target::{Found, Target, port_in_words};
use super::why::owner as owner_of;
use super::{
    Carried, Chains, Flow, Follow, Further, Hop, NEEDS, NOTES_NEEDS, Need, Outcome, Verdict, World,
    unread,
};
use kpx_node::cluster::Service;
use kpx_node::evidence::{IPTABLES, Item};
use kpx_node::net::{Family, Proto};
use kpx_node::node::{IptablesBackend, NodeSnapshot};
use kpx_node::owner::{Owner, Owners, Port};

/// Returns the items that a trace reads, in addition to the rules of iptables.
pub fn needs() -> impl Iterator<Item = Item> {
    NEEDS
        .iter()
        .chain(NOTES_NEEDS)
        .chain(&[Item::Recent])
        .copied()
}

/// Returns the items that a trace over completely read rules reads.
pub fn whole_needs() -> impl Iterator<Item = Item> {
    let more = [Item::Modules];
    needs().chain(IPTABLES.iter().copied()).chain(more)
}

/// Returns the ports of the Service `target`, if it has several and the target names none.
pub fn several_ports(node: &NodeSnapshot<'_>, target: &Target) -> Option<Vec<String>> {
    let Target::Service {
        namespace,
        name,
        port: None,
    } = target
    else {
        return None;
    };
    let mut services = node.services().ok()?.iter();
    let is_it = |service: &&Service| {
        service.metadata.namespace == *namespace && service.metadata.name == *name
    };
    let ports = &services.find(is_it)?.spec.ports;
    let named = ports.iter().map(|port| match port.name.as_str() {
        "" => port_in_words(port),
        name => name.to_owned(),
    });
    (ports.len() > 1).then(|| named.collect())
}

/// Returns the cluster IPs of the other family than the first, each with port and protocol as a target, if `target` is a port of a Service
/// with addresses of both.
pub fn other_addresses(node: &NodeSnapshot<'_>, target: &Target) -> Vec<String> {
    let Target::Service {
        namespace, name, ..
    } = target
    else {
        return Vec::new();
    };
    let services = node.services().map_or(&[][..], Vec::as_slice);
    let found = |family| target.find(services, |_| None, Some(family)).ok();
    let mut all = services.iter();
    let service = all
        .find(|service| service.metadata.namespace == *namespace && service.metadata.name == *name);
    let first = service.and_then(|service| service.spec.cluster_ip.parse().ok());
    let others = Family::BOTH
        .into_iter()
        .filter(|family| first.is_some_and(|first| Family::of(first) != *family));
    let others = others.filter_map(found).map(|found| {
        let proto = found.proto.unwrap_or(Proto::Tcp);
        format!("{}/{proto}", SocketAddr::new(found.addr, found.port))
    });
    others.collect()
}

/// Returns the default protocol of a target: the protocol of the Service at its address and port, else TCP.
pub fn protocol(owners: &Owners, found: Found) -> Proto {
    let all = [Proto::Tcp, Proto::Udp, Proto::Sctp];
    let at = |proto: &Proto| owners.at(found.addr, found.port, *proto).is_some();
    let node_port = |proto: &Proto| owners.node_port(found.port, *proto).is_some();
    all.iter()
        .find(|proto| at(proto))
        .or_else(|| all.iter().find(|proto| node_port(proto)))
        .copied()
        .unwrap_or(Proto::Tcp)
}

/// Returns the Service port behind the target.
pub fn service<'o>(
    node: &NodeSnapshot<'_>,
    owners: &'o Owners,
    found: Found,
    proto: Proto,
) -> Option<&'o Port> {
    let local = || {
        found.addr.is_loopback()
            || node
                .addresses()
                .is_ok_and(|all| all.all.iter().any(|a| a.addr.addr == found.addr))
    };
    let at = owners
        .at(found.addr, found.port, proto)
        .map(|(port, _)| port);
    at.or_else(|| owners.node_port(found.port, proto).filter(|_| local()))
}

/// Returns the packet of `source` to the target.
pub fn flow(source: &Source, found: Found, proto: Proto, established: bool) -> Flow {
    Flow {
        entry: source.entry,
        source: source.addr,
        destination: found.addr,
        port: found.port,
        mark: 0,
        carried: Carried::default(),
        proto,
        established,
    }
}

/// The paths of some flows.
pub struct Walked {
    /// The outcomes of each flow.
    pub walks: Vec<Vec<Outcome>>,
    /// The packets after the first ones, with their outcomes.
    pub further: Vec<(Further, Vec<Outcome>)>,
    /// Notes on rules that could not be read.
    pub unread: Vec<String>,
    /// Whether the nft back end of iptables has rules and is not the one in use.
    pub nft_is_other: bool,
}

/// Returns the packets after the first one of a flow with these outcomes, each with its ends; the last argument follows a packet to
/// its ends.
pub type Answers<'a> =
    dyn Fn(&Flow, &[Outcome], &Follow<'_>) -> Result<Vec<(Further, Vec<Outcome>)>, Need> + 'a;

impl Walked {
    /// Follows `flows` and the `answers` to them. Fails with a chain that was not read.
    pub fn over(
        world: &World<'_, '_>,
        flows: &[Flow],
        answers: &Answers<'_>,
    ) -> Result<Self, Need> {
        let nft = |chains: &Chains<'_>| chains.store == IptablesBackend::Nft;
        let families = flows.first().map(|flow| Family::of(flow.destination));
        let walks = flows.iter().map(|flow| world.walk(flow));
        let walks: Vec<_> = walks.collect::<Result<_, _>>()?;
        let follow = |packet: &Further| world.further(packet);
        let further = flows.iter().zip(&walks);
        let further = further.map(|(flow, walk)| answers(flow, walk, &follow));
        let further = further.collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            further: further.into_iter().flatten().collect(),
            walks,
            unread: families.map_or_else(Vec::new, |family| unread(world.node, family)),
            nft_is_other: world.chains.iter().any(nft),
        })
    }
}

/// Returns whether `owners` has every chain and backend on the paths.
pub fn are_named(owners: &Owners, proto: Proto, walks: &[Vec<Outcome>]) -> bool {
    walks.iter().flatten().all(|outcome| {
        let gone = |hop: &Rc<Hop>| matches!(owner_of(owners, hop), Owner::Gone(_));
        let backend = || owners.endpoint(outcome.destination.into(), proto);
        !outcome.hops.iter().any(gone)
            && (outcome.verdict != Verdict::Deliver || backend().is_some())
    })
}
