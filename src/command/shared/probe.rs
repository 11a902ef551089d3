//! `--probe`: one real connection in addition to a trace.

use std::net::{IpAddr, SocketAddr};

use super::failure::Failure;
use super::session::{Session, unreached};
use crate::render::Progress;
use crate::report::probe::ProbeEnd;
use crate::report::probe::ProbeRow;
use kpx_host::{ProbeOutcome, RemoteNode};
use kpx_judge::trace::{Outcome, Verdict};
use kpx_node::evidence::Item;
use kpx_node::net::Proto;
use kpx_node::node::NodeSnapshot;

/// Refuses options that do not fit a probe, before anything is read.
pub(in crate::command) fn check(session: &Session, source: Option<&str>) -> Result<(), Failure> {
    if session.source.is_bundle() {
        return Err(Failure::usage(
            "--probe opens a connection from the node: do not combine it with --from",
        ));
    }
    match source {
        None | Some("host") => Ok(()),
        Some(other) => Err(Failure::usage(format!(
            "--probe opens a connection from the node: --source must be host, not {other}"
        ))),
    }
}

/// Opens the connection from the node, or else from the pod `client` on it, and compares its backend with `ways`, the outcomes
/// of the trace from there.
pub(in crate::command) async fn run(
    session: &Session,
    client: Option<&RemoteNode>,
    target: SocketAddr,
    proto: Proto,
    ways: &[Outcome],
) -> Result<ProbeRow, Failure> {
    if proto == Proto::Sctp {
        return Err(Failure::usage("--probe supports TCP and UDP, not SCTP"));
    }
    let probed = match client {
        None => session.probe(target, proto).await?,
        Some(pod) => pod.probe(target, proto).await.map_err(unreached)?,
    };
    let tables = [Item::Conntrack, Item::IpvsConnections];
    let evidence = session.read(&tables, &Progress::silent()).await?;
    let node = NodeSnapshot::new(&evidence);
    let recorded = probed.from.and_then(|from| {
        let (backend, table) = node.answerer(from, target, proto)?;
        Some((backend, table.name()))
    });
    let result = match &probed.met {
        ProbeOutcome::Answered => ProbeEnd::Answered,
        ProbeOutcome::Refused => ProbeEnd::Refused,
        ProbeOutcome::Silence => ProbeEnd::Silence,
        ProbeOutcome::Unreachable(why) => ProbeEnd::Unreachable(why.clone()),
    };
    let agrees = agrees(ways, target, &probed.met, recorded);
    let what = match proto {
        Proto::Udp => "a datagram",
        _ => "a connection",
    };
    let from = client.map_or("", |_| " from a new pod");
    let how = format!("{what}{from} to {target}: {result}");
    let took = match (recorded, node.conntrack()) {
        (Some((backend, of)), _) if backend == target => {
            format!("not translated, according to {of}")
        }
        (Some((backend, of)), _) => format!("sent to {backend}, according to {of}"),
        (None, Err(gap)) => format!("its backend is unknown: {gap}"),
        (None, Ok(_)) if probed.met == ProbeOutcome::Refused => {
            "the kernel does not track refused connections".to_owned()
        }
        (None, Ok(_)) => "not tracked".to_owned(),
    };
    let agreement = match agrees {
        Some(true) => "; the trace agrees",
        Some(false) => "; THE TRACE DISAGREES",
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

/// Returns whether the result is one of the outcomes of the trace; `None` if unknown.
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
        // Translated to the same address: rare, for a Service whose backend has the Service's address.
        Some(_) => Some(
            !ways
                .iter()
                .all(|way| way.verdict == Verdict::Deliver && !same(way, target)),
        ),
        // A connection that is refused or dropped on its way out is not tracked; nor is one that a backend refuses.
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
