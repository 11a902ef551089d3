//! `kpx trace --probe`: one real connection beside the trace.

use std::net::{IpAddr, SocketAddr};

use super::failure::Failure;
use super::options;
use crate::cli::{Global, TraceArgs};
use crate::evidence::Item;
use crate::host::{self, ProbeOutcome, ProbeResult};
use crate::net::Proto;
use crate::node::NodeSnapshot;
use crate::report::trace::ProbeRow;
use crate::trace::target::Found;
use crate::trace::{Outcome, Verdict};

/// Complains about what a probe cannot do, before anything is read.
pub(super) fn check(global: &Global, args: &TraceArgs) -> Result<(), Failure> {
    if global.from.is_some() {
        return Err(Failure::usage(
            "--probe opens a real connection from this host; a bundle has no host",
        ));
    }
    match args.source.as_deref() {
        None | Some("host") => Ok(()),
        Some(other) => Err(Failure::usage(format!(
            "--probe opens a real connection from this host; it cannot come from {other}"
        ))),
    }
}

/// Opens the connection, and compares the backend that took it with `ways`, which the trace found for the host.
pub(super) async fn run(
    global: &Global,
    found: Found,
    proto: Proto,
    ways: &[Outcome],
) -> Result<ProbeRow, Failure> {
    if proto == Proto::Sctp {
        return Err(Failure::usage("--probe speaks TCP and UDP, not SCTP"));
    }
    let options = options(global);
    let target = SocketAddr::new(found.addr, found.port);
    let probed = host::probe(&options, target, proto, &[]).await?;
    let tables = [Item::Conntrack, Item::IpvsConnections];
    let evidence = host::collect(&tables, &options).await;
    let node = NodeSnapshot::new(&evidence);
    let recorded = taken(&node, target, proto, &probed);
    let result = match &probed.met {
        ProbeOutcome::Answered => "answered".to_owned(),
        ProbeOutcome::Refused => "refused".to_owned(),
        ProbeOutcome::Silence => "no answer".to_owned(),
        ProbeOutcome::Unreachable(why) => why.clone(),
    };
    let agrees = agrees(ways, target, &probed.met, recorded);
    let how = match proto {
        Proto::Udp => format!("a datagram to {target} got: {result}"),
        _ => format!("a connection to {target} got: {result}"),
    };
    let took = match (recorded, node.conntrack()) {
        (Some((backend, of)), _) if backend == target => {
            format!("{of} says that it was not translated")
        }
        (Some((backend, of)), _) => format!("{of} says that {backend} took it"),
        (None, Err(gap)) => format!("which backend took it is not known: {gap}"),
        (None, Ok(_)) if probed.met == ProbeOutcome::Refused => {
            "the kernel keeps no record of what is refused".to_owned()
        }
        (None, Ok(_)) => "nothing recorded it".to_owned(),
    };
    let agreement = match agrees {
        Some(true) => "; the trace says the same",
        Some(false) => "; THE TRACE SAYS OTHERWISE",
        None => "",
    };
    Ok(ProbeRow {
        message: format!("{how}; {took}{agreement}"),
        result,
        backend: recorded.map(|(backend, _)| backend),
        recorded: recorded.map(|(_, of)| of),
        agrees,
    })
}

/// Returns who took the connection, and what says so: IPVS, or conntrack.
fn taken(
    node: &NodeSnapshot<'_>,
    target: SocketAddr,
    proto: Proto,
    probed: &ProbeResult,
) -> Option<(SocketAddr, &'static str)> {
    let from = probed.from?;
    let is_ours = |client: SocketAddr| {
        client.port() == from.port() && (from.ip().is_unspecified() || client.ip() == from.ip())
    };
    let by_ipvs = node.ipvs_connections().ok().and_then(|all| {
        let mut all = all.all.iter();
        let ours = all.find(|c| c.proto == proto && c.server == target && is_ours(c.client));
        ours.map(|c| (c.real, "ipvs"))
    });
    by_ipvs.or_else(|| {
        let mut all = node.conntrack().ok()?.entries.iter();
        let ours = all.find(|entry| {
            entry.proto == proto
                && entry.original.destination == target
                && is_ours(entry.original.source)
        });
        ours.map(|entry| (entry.reply.source, "conntrack"))
    })
}

/// Returns whether what happened is one of the ways the trace found; `None` where that cannot be told.
fn agrees(
    ways: &[Outcome],
    target: SocketAddr,
    met: &ProbeOutcome,
    recorded: Option<(SocketAddr, &'static str)>,
) -> Option<bool> {
    if ways.is_empty() || ways.iter().any(|way| way.verdict == Verdict::Unknown) {
        return None;
    }
    let has = |verdict: Verdict| ways.iter().any(|way| way.verdict == verdict);
    match recorded {
        Some((backend, _)) if backend != target => {
            let to = |way: &Outcome| (backend.ip(), backend.port()) == way.destination;
            let mut ways = ways.iter();
            Some(ways.any(|way| way.verdict == Verdict::Deliver && to(way)))
        }
        // Translated to itself: a Service whose backend has the same address, which hardly is.
        Some(_) => Some(
            !ways
                .iter()
                .all(|way| way.verdict == Verdict::Deliver && !same(way, target)),
        ),
        // What is refused or dropped on the way out is not recorded; nor is what a backend refuses.
        None => match met {
            ProbeOutcome::Refused | ProbeOutcome::Unreachable(_) => {
                (has(Verdict::Reject) || has(Verdict::Drop)).then_some(true)
            }
            ProbeOutcome::Silence => has(Verdict::Drop).then_some(true),
            ProbeOutcome::Answered => None,
        },
    }
}

fn same(way: &Outcome, target: SocketAddr) -> bool {
    let to: (IpAddr, u16) = way.destination;
    to == (target.ip(), target.port())
}
