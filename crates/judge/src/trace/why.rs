//! Why a packet ended as it did, in words, from the rule that ended it.

use std::net::SocketAddr;
use std::rc::Rc;

use super::hop::{Effect, Hop, Outcome, Subsystem, Verdict, comment};
use super::{ttl, userspace};
use kpx_node::owner::chain_owner::{self, Maker};
use kpx_node::owner::{Endpoint, EndpointState, Owner, Owners, Port};
use kpx_node::words::number_of;

/// Returns why `outcome` ended as it did; `service` is the Service port it was sent to.
pub fn why(outcome: &Outcome, service: Option<&Port>) -> String {
    let reason = match outcome.verdict {
        Verdict::Drop | Verdict::Reject => {
            decisive(outcome).and_then(|hop| by_rule(outcome, hop, service))
        }
        _ => None,
    };
    reason.unwrap_or_else(|| outcome.reason.clone())
}

/// The reason for which a rule or virtual server of kube-proxy refuses a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Refusal {
    /// The virtual server has no real server that accepts connections.
    NoRealServer {
        /// The number of its real servers, all of weight 0.
        idle: usize,
    },
    /// The source is outside `loadBalancerSourceRanges`.
    SourceRanges,
    /// The Service has no endpoints.
    NoEndpoints,
    /// The Service has no endpoint on this node, and its traffic policy is Local.
    NoLocalEndpoints,
    /// No Service has this address of the Service range.
    NoService,
    /// The Service with this address does not have this port.
    NoPort,
}

/// Returns the position of the hop that ends `outcome`: its rule or virtual server drops or rejects the packet, or its rule set the
/// time to live that ends.
pub(crate) fn end(outcome: &Outcome) -> Option<usize> {
    let hops = &outcome.hops;
    let ends = |hop: &Rc<Hop>| {
        matches!(
            hop.effect,
            Effect::Drop | Effect::Reject { .. } | Effect::NoServer { .. }
        )
    };
    let is_ttl = |hop: &Rc<Hop>| matches!(hop.effect, Effect::Ttl { .. });
    let old = hops.last().filter(|hop| ttl::is_end(&hop.effect));
    let by_ttl = || old.and_then(|_| hops.iter().rposition(is_ttl));
    hops.iter().rposition(ends).or_else(by_ttl)
}

/// Returns the hop that ends `outcome`.
pub(crate) fn decisive(outcome: &Outcome) -> Option<&Hop> {
    end(outcome).map(|at| outcome.hops[at].as_ref())
}

/// Returns whether kube-proxy refuses the packet because the Service has no endpoints, as its rules say.
pub(crate) fn lacks_by_rules(outcome: &Outcome) -> bool {
    let reason = decisive(outcome).and_then(|hop| refusal(outcome, hop));
    matches!(
        reason,
        Some(Refusal::NoEndpoints | Refusal::NoRealServer { .. })
    )
}

/// Returns why kube-proxy refuses a packet at `hop`, the decisive one of `outcome`; `None` for other software and other
/// reasons.
pub(crate) fn refusal(outcome: &Outcome, hop: &Hop) -> Option<Refusal> {
    let chain = hop.chain.as_str();
    let nft = is_nft(hop);
    if hop.subsystem == Subsystem::Process {
        return userspace::is_closed(hop).then_some(Refusal::NoEndpoints);
    }
    if let Effect::NoServer { idle, .. } = hop.effect {
        return Some(Refusal::NoRealServer { idle });
    }
    let ranges = match hop.subsystem {
        Subsystem::Nftables => nft && chain.starts_with("firewall-"),
        _ => {
            // The last one stops packets of the node itself to the addresses of such Services.
            matches!(
                chain,
                "KUBE-PROXY-FIREWALL" | "KUBE-SOURCE-RANGES-FIREWALL" | "KUBE-IPVS-OUT-FILTER"
            ) || chain.starts_with("KUBE-FW-")
        }
    };
    if ranges {
        return Some(Refusal::SourceRanges);
    }
    let dropped = hop.effect == Effect::Drop;
    let asked = |what: &str| {
        let mut hops = outcome.hops.iter();
        nft && hops.any(|hop| hop.rule.contains(what))
    };
    if asked("@no-endpoint-") && chain != "cluster-ips-check" {
        return Some(if dropped {
            Refusal::NoLocalEndpoints
        } else {
            Refusal::NoEndpoints
        });
    }
    if nft && chain == "cluster-ips-check" {
        return Some(if dropped {
            Refusal::NoService
        } else {
            Refusal::NoPort
        });
    }
    if chain == "KUBE-IPVS-FILTER" {
        return Some(Refusal::NoPort);
    }
    let comment = comment(&hop.rule)?;
    match maker(hop) {
        Maker::KubeProxy | Maker::Both if comment.ends_with("has no local endpoints") => {
            Some(Refusal::NoLocalEndpoints)
        }
        Maker::KubeProxy | Maker::Both if comment.ends_with("has no endpoints") => {
            Some(Refusal::NoEndpoints)
        }
        _ => None,
    }
}

fn is_nft(hop: &Hop) -> bool {
    hop.subsystem == Subsystem::Nftables && hop.table.ends_with(" kube-proxy")
}

fn by_rule(outcome: &Outcome, hop: &Hop, service: Option<&Port>) -> Option<String> {
    if hop.subsystem == Subsystem::Process {
        return None;
    }
    let name = service.map_or("the Service".to_owned(), |port| port.name.to_string());
    // kube-proxy's rules of iptables have the sentence as their comment.
    let comment = comment(&hop.rule).filter(|_| !is_nft(hop));
    let sentence = |what: &str| comment.map_or_else(|| format!("{name} {what}"), str::to_owned);
    Some(match refusal(outcome, hop) {
        Some(Refusal::NoRealServer { idle }) => no_server(&name, service, idle),
        Some(Refusal::SourceRanges) => {
            format!("the source is outside loadBalancerSourceRanges of {name}")
        }
        Some(Refusal::NoLocalEndpoints) => format!(
            "{}, and its traffic policy is Local",
            sentence("has no local endpoints")
        ),
        Some(Refusal::NoEndpoints) => sentence("has no endpoints"),
        Some(Refusal::NoService) => {
            "the address is in the Service range, but no Service has it".to_owned()
        }
        Some(Refusal::NoPort)
            if hop.chain == "KUBE-IPVS-FILTER"
                && service.is_some_and(|port| has_target(port, outcome)) =>
        {
            let (addr, port) = outcome.destination;
            let at = SocketAddr::new(addr, port);
            format!(
                "rule {} of {} rejects {at}, which is an address of {name}: no IP set of a rule before it contains that",
                hop.number, hop.chain
            )
        }
        Some(Refusal::NoPort) if hop.chain == "KUBE-IPVS-FILTER" => {
            let (addr, port) = outcome.destination;
            format!("{addr} is on kube-ipvs0, and no Service with that address has port {port}")
        }
        Some(Refusal::NoPort) if service.is_some_and(|port| has_target(port, outcome)) => {
            let (addr, port) = outcome.destination;
            format!(
                "no rule translates {}, so {} rejects it as a port that {name} does not have",
                SocketAddr::new(addr, port),
                hop.chain
            )
        }
        Some(Refusal::NoPort) => "the Service with this address does not have this port".to_owned(),
        None => format!("{} ({:?})", outcome.reason, super::hop::comment(&hop.rule)?),
    })
}

/// Returns whether `port` has the address and port at which `outcome` ends.
fn has_target(port: &Port, outcome: &Outcome) -> bool {
    let (addr, number) = outcome.destination;
    let mut addresses = port.addresses.iter();
    port.port == Some(number) && addresses.any(|(_, of)| *of == addr)
}

/// Returns why the virtual server of `name` has no real server that accepts connections.
fn no_server(name: &str, service: Option<&Port>, idle: usize) -> String {
    let ready = |e: &&Endpoint| e.state == Some(EndpointState::Ready);
    let mut ready = service
        .iter()
        .flat_map(|port| &port.endpoints)
        .filter(ready);
    let first = ready.next();
    if first.is_some() && idle > 0 {
        return format!(
            "the {} of its virtual server {} weight 0: none takes new connections",
            number_of(idle, "real server"),
            if idle == 1 { "has" } else { "have" }
        );
    }
    let here =
        first.is_none_or(|e| e.local != Some(false)) || ready.any(|e| e.local != Some(false));
    if first.is_some() && !here {
        format!(
            "{name} has no endpoint on this node, and its traffic policy is Local: its virtual server has no real server"
        )
    } else {
        format!(
            "{name} has no endpoints: its virtual server has no real server that accepts connections"
        )
    }
}

/// Returns the owner of a hop's chain.
pub fn owner<'o>(owners: &'o Owners, hop: &Hop) -> Owner<'o> {
    match hop.subsystem {
        Subsystem::Arptables | Subsystem::Routing | Subsystem::Ipvs | Subsystem::Process => {
            Owner::General
        }
        Subsystem::Nftables if hop.table.ends_with(" kube-proxy") => owners.nft_chain(&hop.chain),
        Subsystem::Iptables | Subsystem::IptablesOther | Subsystem::Nftables => {
            owners.chain(&hop.chain)
        }
    }
}

/// Returns the software that wrote the rule of a hop: judged by its target in a built-in chain, else by its chain or table.
pub fn maker(hop: &Hop) -> Maker {
    if hop.subsystem == Subsystem::Process {
        return Maker::KubeProxy;
    }
    let mut table = hop.table.as_str();
    if hop.subsystem == Subsystem::Nftables {
        (_, table) = table.split_once(' ').unwrap_or_default();
        match chain_owner::maker_of_table(table) {
            // It may be one of iptables-nft's.
            Maker::Unknown => {}
            maker => return maker,
        }
    }
    match chain_owner::maker_of_chain(table, &hop.chain) {
        // Not a rule, but the kernel's own policy.
        Maker::Kernel if hop.number == 0 => Maker::Kernel,
        Maker::Kernel => match &hop.effect {
            Effect::Jump { to } | Effect::Goto { to } => chain_owner::maker_of_chain(table, to),
            _ => chain_owner::maker_of_rule(&hop.rule, comment(&hop.rule)),
        },
        Maker::Unknown => chain_owner::maker_of_rule(&hop.rule, comment(&hop.rule)),
        maker => maker,
    }
}
