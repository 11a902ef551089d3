//! Notes on a trace, in addition to its verdict.

use std::net::{IpAddr, SocketAddr};

use super::affinity::binds;
use super::forwarding::not_forwarding;
use super::hop::{Assumption, Effect, Outcome, Subsystem, Verdict};
use super::ipvs::{hashes_ports, is_sticky};
use super::mismatch;
use super::packet::{Entry, Flow};
use super::{userspace, why};
use kpx_node::backend::iptables::model::{Match, Policy, Rule, Target};
use kpx_node::backend::ipvs::model::Key;
use kpx_node::backend::nftables::model::{self as nftables, Statement};
use kpx_node::cluster::EndpointSlice;
use kpx_node::evidence::Gap;
use kpx_node::net::{Family, Proto};
use kpx_node::node::conntrack;
use kpx_node::node::{IptablesBackend, NodeSnapshot};
use kpx_node::owner::chain_owner::{self, Maker};
use kpx_node::owner::{Port, PortName};

/// Returns the notes on `outcomes` of `flow`; `service` is the Service port it is for, according to the API.
pub fn notes(
    node: &NodeSnapshot<'_>,
    flow: &Flow,
    outcomes: &[Outcome],
    service: Option<&Port>,
) -> Vec<String> {
    let mut notes = Vec::new();
    undecided(outcomes, &mut notes);
    if flow.established {
        notes.push(
            "later packet of a connection: translated as a new connection would be now; a connection that began under other rules keeps its old translation".to_owned(),
        );
    }
    if let Some(port) = service
        && let Some(who) = &port.left_to
    {
        notes.push(format!(
            "kube-proxy ignores {}: its label service-proxy-name assigns it to {who}",
            port.name
        ));
    }
    affinity(node, flow, outcomes, service, &mut notes);
    hidden(node, flow, outcomes, service, &mut notes);
    unfiltered(node, flow, outcomes, &mut notes);
    conntrack(node, flow, outcomes, service, &mut notes);
    listens(node, flow, outcomes, &mut notes);
    gaps(node, flow, &mut notes);
    notes
}

fn undecided(outcomes: &[Outcome], notes: &mut Vec<String>) {
    for when in outcomes.iter().flat_map(|outcome| &outcome.when) {
        let note = match when {
            Assumption::Answer { question, .. } => format!(
                "unknown: {question}; both results are shown, with half the probability each"
            ),
            Assumption::Address { .. } | Assumption::Port { .. } | Assumption::Unseen { .. } => {
                format!("assumes that {when}")
            }
        };
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
}

fn affinity(
    node: &NodeSnapshot<'_>,
    flow: &Flow,
    outcomes: &[Outcome],
    service: Option<&Port>,
    notes: &mut Vec<String>,
) {
    let hops = || outcomes.iter().flat_map(|outcome| &outcome.hops);
    let recent =
        hops().any(|hop| hop.subsystem != Subsystem::Ipvs && hop.rule.contains("-m recent"));
    let set = hops()
        .any(|hop| matches!(&hop.effect, Effect::Other { what } if what.contains("@affinity-")));
    let key = Key::Address {
        proto: flow.proto,
        addr: flow.destination,
        port: flow.port,
    };
    let by_ipvs = hops().any(|hop| hop.subsystem == Subsystem::Ipvs);
    let table = node.ipvs().ok().filter(|_| by_ipvs);
    let server = table.and_then(|table| table.servers.iter().find(|server| server.key == key));
    let persistent = server.is_some_and(is_sticky);
    let by_process = hops().any(|hop| matches!(hop.effect, Effect::Relay { .. }));
    let bound = by_process && outcomes.iter().any(|outcome| outcome.sticky);
    if recent || set || persistent || bound {
        notes.push(match outcomes {
            [only] if binds(node, flow, service, only) => format!(
                "session affinity: the node remembers this client, and sends it to {} again",
                SocketAddr::from(only.destination)
            ),
            _ => "session affinity: assumes a new client (no affinity entry yet); a known client goes to its previous backend"
                .to_owned(),
        });
    }
    if by_process {
        notes.push(
            "kube-proxy's process chooses the endpoint of a new connection in turn (round robin): only the process knows which \
             is next"
                .to_owned(),
        );
    }
    let chooses = |scheduler: &str| matches!(scheduler, "sh" | "dh" | "mh" | "lblc" | "lblcr");
    let by_address = hops().find_map(|hop| match &hop.effect {
        Effect::Balance { scheduler, .. } if chooses(scheduler) => Some((scheduler, hop.chance)),
        _ => None,
    });
    match by_address {
        Some((scheduler, 1.0)) => notes.push(format!(
            "scheduler {scheduler} hashes addresses: packets with these addresses always reach this backend"
        )),
        Some((scheduler, _)) if server.is_some_and(hashes_ports) => notes.push(format!(
            "scheduler {scheduler} hashes addresses and source ports: connections of one client reach different backends"
        )),
        Some((scheduler, _)) => notes.push(format!(
            "scheduler {scheduler} hashes addresses: the shares are those of all clients, and one client always reaches the same backend"
        )),
        None => {}
    }
}

/// Tracked connections to one address and port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Tracked {
    /// Number of connections.
    pub count: usize,
    /// Number of those from the source of the flow.
    pub own: usize,
    /// Their backends, sorted.
    pub backends: Vec<SocketAddr>,
    /// The backends that are not endpoints of the Service.
    pub stale: Vec<SocketAddr>,
}

/// Returns the tracked connections to the target of `flow`, for which `counts` holds; `service` is its Service port.
pub fn tracked(
    node: &NodeSnapshot<'_>,
    flow: &Flow,
    sent_from: Option<IpAddr>,
    service: Option<&Port>,
    counts: impl Fn(&conntrack::Entry) -> bool,
) -> Result<Tracked, Gap> {
    let target = SocketAddr::new(flow.destination, flow.port);
    let mut tracked = Tracked {
        count: 0,
        own: 0,
        backends: Vec::new(),
        stale: Vec::new(),
    };
    for entry in &node.conntrack()?.entries {
        if entry.proto != flow.proto || entry.original.destination != target || !counts(entry) {
            continue;
        }
        tracked.count += 1;
        tracked.own += usize::from(Some(entry.original.source.ip()) == sent_from);
        let backend = entry.reply.source;
        if !tracked.backends.contains(&backend) {
            tracked.backends.push(backend);
        }
    }
    tracked.backends.sort();
    let is_gone = |addr: &&SocketAddr| {
        service.is_some_and(|port| knows_endpoints(node, &port.name, Family::of(flow.destination)))
            && !node.is_proxy_port(**addr, flow.proto)
            && service.is_some_and(|port| port.endpoints.iter().all(|e| e.addr != **addr))
    };
    tracked.stale = tracked.backends.iter().filter(is_gone).copied().collect();
    Ok(tracked)
}

/// Returns whether all endpoints of `family` of a Service port are known: a table may list more, and slices of other Services say nothing.
pub fn knows_endpoints(node: &NodeSnapshot<'_>, name: &PortName, family: Family) -> bool {
    if node.has_all_slices() {
        return true;
    }
    let is_its = |slice: &&EndpointSlice| {
        slice.service() == Some((&*name.namespace, &*name.name))
            && (slice.address_type == family.to_string() || slice.endpoints.is_empty())
    };
    let slices = node.slices().into_iter().flatten();
    let mut its = slices.filter(is_its).peekable();
    let lists_all = |slice: &EndpointSlice| !slice.in_part || slice.endpoints.is_empty();
    its.peek().is_some() && its.all(lists_all)
}

/// Returns the command that ends the tracked connections to the target of `flow` that lead to one of `backends`.
pub fn end_tracked(flow: &Flow, backends: &[SocketAddr]) -> String {
    let to = SocketAddr::new(flow.destination, flow.port);
    end_tracked_to(flow.proto, to, backends)
}

/// Returns the command that ends the tracked connections to `at` that lead to one of `backends`.
pub fn end_tracked_to(proto: Proto, at: SocketAddr, backends: &[SocketAddr]) -> String {
    let mut addresses: Vec<IpAddr> = backends.iter().map(SocketAddr::ip).collect();
    addresses.dedup();
    let all = addresses.iter().map(|to| {
        format!(
            "conntrack -D -p {proto} -d {} --dport {} -r {to}",
            at.ip(),
            at.port()
        )
    });
    all.collect::<Vec<_>>().join("; ")
}

/// A tracked connection is translated as it was when it began, whatever the rules are now.
fn conntrack(
    node: &NodeSnapshot<'_>,
    flow: &Flow,
    outcomes: &[Outcome],
    service: Option<&Port>,
    notes: &mut Vec<String>,
) {
    let target = SocketAddr::new(flow.destination, flow.port);
    let sent_from = outcomes.first().map(|outcome| outcome.sent_from);
    let Ok(tracked) = tracked(node, flow, sent_from, service, |_| true) else {
        return;
    };
    let Tracked {
        count,
        own,
        backends,
        mut stale,
    } = tracked;
    // The ports of kube-proxy's process that portals lead to are no endpoints.
    let portals: Vec<u16> = outcomes
        .iter()
        .flat_map(|outcome| &outcome.hops)
        .filter(|hop| userspace::portal(hop).is_some())
        .filter_map(|hop| match hop.effect {
            Effect::Dnat { port, .. } => Some(port),
            _ => None,
        })
        .collect();
    stale.retain(|addr| !portals.contains(&addr.port()));
    let ends = end_tracked(flow, &stale);
    let stale: Vec<_> = stale.iter().map(ToString::to_string).collect();
    // No note if all of them go to endpoints that new connections may go to as well.
    let chosen = mismatch::reached(outcomes);
    let is_usual = |addr: &SocketAddr| chosen.contains(addr) || portals.contains(&addr.port());
    if stale.is_empty() && backends.iter().all(is_usual) {
        return;
    }
    let all: Vec<_> = backends.iter().map(ToString::to_string).collect();
    let (noun, verb, goes) = if count == 1 {
        ("connection", "bypasses", "goes")
    } else {
        ("connections", "bypass", "go")
    };
    let own = match (own, sent_from) {
        (0, _) | (_, None) => String::new(),
        (own, Some(source)) => format!("; {own} of them from {source}"),
    };
    notes.push(format!(
        "{count} tracked {noun} to {target} {verb} these rules and {goes} to {}{own}",
        mismatch::listed(&all)
    ));
    if stale == [target.to_string()] {
        notes.push(format!(
            "tracked connections are not translated, so they leave for {target} itself; end them with `{ends}`"
        ));
    } else if !stale.is_empty() {
        notes.push(format!(
            "tracked connections still go to {}, which is no longer an endpoint; end them with `{}`",
            mismatch::listed(&stale),
            ends
        ));
    }
}

/// Adds which rule of other software hides the address of a pod from another pod.
fn hidden(
    node: &NodeSnapshot<'_>,
    flow: &Flow,
    outcomes: &[Outcome],
    service: Option<&Port>,
    notes: &mut Vec<String>,
) {
    if flow.entry != Entry::Pod {
        return;
    }
    let pods = node.pods().map_or(&[][..], Vec::as_slice);
    let is_pod = |addr: IpAddr| {
        let mut endpoints = service.iter().flat_map(|port| &port.endpoints);
        endpoints.any(|endpoint| endpoint.addr.ip() == addr && endpoint.pod.is_some())
            || pods.iter().any(|pod| pod.has_ip(addr))
    };
    for outcome in outcomes
        .iter()
        .filter(|outcome| is_pod(outcome.destination.0))
    {
        for hop in &outcome.hops {
            let is_new = matches!(hop.effect, Effect::Snat { .. } | Effect::Masquerade { .. });
            let who = match why::maker(hop) {
                Maker::Other(who) => who,
                Maker::Unknown => "unknown software",
                _ => continue,
            };
            let text = format!(
                "rule {} of chain {} in table {} ({who}) replaces the source address of a pod: NetworkPolicies and the \
                 receiving pod see another one",
                hop.number, hop.chain, hop.table
            );
            if is_new && !notes.contains(&text) {
                notes.push(text);
            }
        }
    }
}

/// Adds which filters of packets to the node a packet from outside bypasses, since it is translated before them and forwarded.
fn unfiltered(node: &NodeSnapshot<'_>, flow: &Flow, outcomes: &[Outcome], notes: &mut Vec<String>) {
    let is_own = |addr: IpAddr| {
        let all = node.addresses();
        all.is_ok_and(|all| all.all.iter().any(|address| address.addr.addr == addr))
    };
    let is_forwarded =
        |outcome: &Outcome| outcome.verdict == Verdict::Deliver && !is_own(outcome.destination.0);
    let is_asked = flow.entry == Entry::Outside && is_own(flow.destination);
    if !is_asked || !outcomes.iter().any(is_forwarded) || passes_input(outcomes) {
        return;
    }
    for filter in input_filters(node, Family::of(flow.destination)) {
        notes.push(format!(
            "the filter of packets to the node {filter} does not apply: the packet is translated before it and forwarded. To \
             filter it, use a chain at prerouting with a priority below -100, or match the original destination at forward (ct \
             original)"
        ));
    }
}

/// Returns whether packets pass the chains at input although they are forwarded, as those of IPVS do.
fn passes_input(outcomes: &[Outcome]) -> bool {
    let mut hops = outcomes.iter().flat_map(|outcome| &outcome.hops);
    hops.any(|hop| hop.subsystem == Subsystem::Ipvs)
}

/// Returns the chains at input that let only some packets to the node pass, in words: their policy or last rule ends the others.
/// A table that filters before packets are translated, too, is no such filter.
fn input_filters(node: &NodeSnapshot<'_>, family: Family) -> Vec<String> {
    let mut found = Vec::new();
    for table in node.nft().map_or(&[][..], |rules| &rules.tables) {
        let is_of = [family.nft_name(), "inet"].contains(&table.family.as_str());
        // The tables of iptables-nft are read below.
        if !is_of
            || table.is_of_iptables()
            || chain_owner::maker_of_table(&table.name) == Maker::KubeProxy
        {
            continue;
        }
        let chains = table.chains.iter();
        let bases: Vec<_> = chains
            .filter_map(|chain| Some((chain, chain.base.as_ref()?)))
            .filter(|(_, base)| base.kind == "filter")
            .collect();
        let is_early = bases.iter().any(|(chain, base)| {
            base.hook == "prerouting" && base.priority < DSTNAT && !chain.rules.is_empty()
        });
        let inputs = bases.iter().filter(|(_, base)| base.hook == "input");
        let closed = inputs.filter_map(|(chain, base)| {
            let how = match chain.rules.last() {
                _ if base.policy == "drop" => "policy drop",
                Some(last) if ends_all(last) => "last rule",
                _ => return None,
            };
            let (family, name) = (&table.family, &table.name);
            Some(format!(
                "in table {family} {name} (chain {}, {how})",
                chain.name
            ))
        });
        if !is_early {
            found.extend(closed);
        }
    }
    let rules = node.iptables(IptablesBackend::InUse, family);
    let input = rules
        .ok()
        .and_then(|rules| rules.table("filter")?.chain("INPUT"));
    let is_end = |rule: &Rule<'_>| {
        let ends = matches!(rule.target, Some(Target::Drop | Target::Reject { .. }));
        let mut matches = rule.matches.iter();
        ends && matches.all(|matched| matches!(matched, Match::Comment(_)))
    };
    let how = input.and_then(|chain| match chain.rules.last() {
        _ if chain.policy == Some(Policy::Drop) => Some("policy DROP"),
        Some(last) if is_end(last) => Some("last rule"),
        _ => None,
    });
    found.extend(how.map(|how| format!("in chain INPUT of table filter ({how})")));
    found
}

/// Returns whether `rule` of nftables ends every packet.
fn ends_all(rule: &nftables::Rule) -> bool {
    let is_end = |statement: &Statement| {
        matches!(
            statement,
            Statement::Verdict(nftables::Verdict::Drop) | Statement::Reject { .. }
        )
    };
    let is_plain =
        |statement: &Statement| is_end(statement) || matches!(statement, Statement::Counter { .. });
    rule.statements.iter().any(is_end) && rule.statements.iter().all(is_plain)
}

/// The priority at which kube-proxy translates destinations.
const DSTNAT: i32 = -100;

/// Adds who listens at the node's own address.
fn listens(node: &NodeSnapshot<'_>, flow: &Flow, outcomes: &[Outcome], notes: &mut Vec<String>) {
    let ends_here = |outcome: &&Outcome| outcome.verdict == Verdict::Local;
    let Some(outcome) = outcomes.iter().find(ends_here) else {
        return;
    };
    let (addr, port) = outcome.destination;
    let sockets = node.sockets().ok();
    let socket = sockets.and_then(|all| all.taking(flow.proto, addr, port).next());
    if let Some(socket) = socket {
        let holder = socket.processes.first().map_or_else(
            || "an unknown process".to_owned(),
            |process| format!("{} (pid {})", process.name, process.pid),
        );
        notes.push(format!("{holder} listens on it"));
    }
}

/// Returns notes on rules of `family` that the kernel applies and a trace cannot show, such as rules of an iptables back end
/// whose program is missing.
pub fn unread(node: &NodeSnapshot<'_>, family: Family) -> Vec<String> {
    let back_ends = [
        (IptablesBackend::Legacy, "legacy"),
        (IptablesBackend::Nft, "nft"),
    ];
    let unread = back_ends.into_iter().filter_map(|(store, name)| {
        let gap = match node.saved(store, family) {
            Ok(_) | Err(Gap::NotCollected(_) | Gap::NotApplicable(_)) => return None,
            Err(gap) => gap,
        };
        Some(format!(
            "the trace ignores the tables of the {name} back end of iptables, which may drop the packet: {gap}"
        ))
    });
    unread.collect()
}

fn gaps(node: &NodeSnapshot<'_>, flow: &Flow, notes: &mut Vec<String>) {
    let mut missing = |what: &str, gap: Option<Gap>| match gap {
        // Absent is not unknown.
        None | Some(Gap::NotApplicable(_) | Gap::Absent(..)) => {}
        Some(gap) => notes.push(format!("{what}: {gap}")),
    };
    missing(
        "routes are not used, only the node's addresses",
        node.routes().err(),
    );
    missing("nftables rules are not used", node.nft().err());
    if flow.entry != Entry::Host {
        missing(
            "sysctls such as ip_forward are not used",
            not_forwarding(node, Family::of(flow.destination)).err(),
        );
    }
    if Family::of(flow.destination) == Family::V4 {
        missing("tracked connections are not used", node.conntrack().err());
    }
}
