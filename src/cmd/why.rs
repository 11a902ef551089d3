//! `kpx why`

use std::collections::BTreeSet;

use super::Io;
use super::shared::examine::examine;
use super::shared::failure::Failure;
use super::shared::nodes;
use super::shared::probe;
use super::shared::session::Session;
use crate::check;
use crate::cli::WhyArgs;
use crate::evidence::Item;
use crate::net::Proto;
use crate::report::nodes::WhyOfNodes;
use crate::report::trace::ProbeRow;
use crate::report::why::{Probed, WhyReport};
use crate::why::{self, Answer, Asked, Cause, Client, Unanswered};

pub(super) async fn run(session: &Session, io: &mut Io<'_>, args: &WhyArgs) -> Result<u8, Failure> {
    if args.nodes.are_several() {
        let (args, nodes) = (args.clone(), args.nodes.clone());
        let work = async move |session: Session| why_on(&session, &args).await;
        return nodes::report::<WhyOfNodes>(session, io, &nodes, &[], work).await;
    }
    session.finish(io, &why_on(session, args).await?)
}

/// Explains the Service on one node.
async fn why_on(session: &Session, args: &WhyArgs) -> Result<WhyReport, Failure> {
    let asked = Asked::parse(&args.target).map_err(Failure::usage)?;
    if args.probe {
        probe::check(session, args.source.as_deref())?;
    }
    let checks = check::asked(None);
    let mut items: BTreeSet<Item> = check::needs(&checks);
    items.extend(why::needs());
    let (case, examined) = examine(session, items, &checks, None).await?;
    let mut outcomes = examined.outcomes;
    check::fold(&mut outcomes, &case.evidence);
    let node = session.node(&case.evidence);
    let mut answer = why::why(
        &node,
        &asked,
        session.families(),
        args.source.as_deref(),
        &outcomes,
    )
    .map_err(|why| {
        let hint = match &why {
            Unanswered::Objects(_) => "pass --kubeconfig FILE to read the cluster's objects",
            Unanswered::Source(_) => "`--source host`, `external`, an address, or NAMESPACE/POD",
        };
        Failure::from(why).with_hint(hint)
    })?;
    let probes = if args.probe {
        probes(session, &mut answer).await?
    } else {
        Vec::new()
    };
    Ok(WhyReport { answer, probes })
}

/// Opens a connection to the first address of each port, and adds a cause if it fails although the rules are right.
async fn probes(session: &Session, answer: &mut Answer) -> Result<Vec<Probed>, Failure> {
    let mut ports = BTreeSet::new();
    let paths = answer.paths.iter().filter(|of| of.client == Client::Host);
    let targets: Vec<_> = paths
        .filter(|of| of.protocol != Proto::Sctp && ports.insert((of.service.clone(), of.protocol)))
        .map(|of| (of.to, of.protocol, of.works, of.outcomes.clone()))
        .collect();
    let mut probes = Vec::new();
    for (to, protocol, works, outcomes) in targets {
        let row = probe::run(session, to, protocol, &outcomes).await?;
        // Many programs do not answer an empty datagram.
        if fails(&row, protocol) && works == Some(true) {
            answer.add(Cause::Probe {
                to,
                result: row.result.clone(),
            });
        }
        probes.push(Probed { to, protocol, row });
    }
    Ok(probes)
}

fn fails(row: &ProbeRow, protocol: Proto) -> bool {
    match row.result.as_str() {
        "answered" => false,
        "no answer" => protocol != Proto::Udp,
        _ => true,
    }
}
