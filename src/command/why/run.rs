//! `kpx why`

use std::collections::BTreeSet;

use super::args::{ProbeFrom, WhyArgs};
use super::report::nodes::WhyOfNodes;
use super::report::{Probed, WhyReport, picture, svg};
use crate::command::resolve::run::{Unresolved, cluster_dns, unresolved};
use crate::command::shared::beside::{Others, Reading, beside, in_bundle};
use crate::command::shared::failure::Failure;
use crate::command::shared::identity::{named, reach, reach_all};
use crate::command::shared::io::Io;
use crate::command::shared::nodes;
use crate::command::shared::output::Extra;
use crate::command::shared::probe;
use crate::command::shared::run_checks::examine_with;
use crate::command::shared::service_name::{self, no_source};
use crate::command::shared::session::Session;
use crate::command::shared::unfit;
use crate::report::probe::ProbeEnd;
use crate::report::probe::ProbeRow;
use crate::view;
use kpx_host::RemoteNode;
use kpx_judge::check::{self, Advice, Next};
use kpx_judge::verdict::{Client, Fate};
use kpx_judge::why::{self, Answer, Asked, Broken, Cause, Degree, Look, Unanswered};
use kpx_node::evidence::Evidence;
use kpx_node::net::Proto;
use kpx_node::node::NodeSnapshot;

/// The output formats of an answer, in addition to the common ones.
const FORMATS: &[Extra<WhyReport>] = &[("picture", picture), ("svg", svg)];

pub(in crate::command) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &WhyArgs,
) -> Result<u8, Failure> {
    let args = &WhyArgs {
        target: service_name::target(session, &args.target, &args.service).await?,
        ..args.clone()
    };
    if args.nodes.are_several() {
        let (args, nodes) = (args.clone(), args.nodes.clone());
        let asked = Asked::parse(&args.target).map_err(Failure::usage)?;
        let session = &beside(session, &nodes, reading(&args), touched(asked)).await?;
        let work = async move |session: Session| why_on(&session, &args).await;
        return nodes::report::<WhyOfNodes>(session, io, &nodes, &[], work).await;
    }
    let session = match Asked::parse(&args.target) {
        Ok(asked) => &in_bundle(session, reading(args), touched(asked)).await,
        Err(_) => session,
    };
    session.finish_as(io, &why_on(session, args).await?, FORMATS)
}

/// Explains the Service `target`, seen from every client.
pub(in crate::command) async fn of(session: &Session, target: &str) -> Result<WhyReport, Failure> {
    why_on(session, &WhyArgs::of(target)).await
}

/// Returns the items to read of the nodes to which connections go: all items of an answer.
fn reading(args: &WhyArgs) -> Reading {
    let mut items = check::needs(&check::asked(None));
    items.extend(why::needs());
    Reading {
        items: items.into_iter().collect(),
        // Only the live node opens connections and asks its cluster DNS.
        is_whole: args.probe.is_none() && dns_name(&args.target).is_none(),
    }
}

/// Returns the function that finds the nodes with the endpoints of `asked`.
fn touched(asked: Asked) -> impl Fn(&Evidence) -> BTreeSet<String> + Send + Sync + 'static {
    move |cluster| why::touched(&NodeSnapshot::new(cluster), &asked)
}

/// Explains the Service on one node.
async fn why_on(session: &Session, args: &WhyArgs) -> Result<WhyReport, Failure> {
    let asked = Asked::parse(&args.target).map_err(Failure::usage)?;
    match (args.probe, args.source.as_deref()) {
        (None, _) => {}
        (Some(ProbeFrom::Pod), Some(source)) => {
            return Err(Failure::usage(format!(
                "--probe=pod opens a connection from a new pod, not from {source}: omit --source"
            )));
        }
        (Some(_), source) => probe::check(session, source)?,
    }
    let (case, outcomes) = examine_with(session, why::needs()).await?;
    let across = case.others.as_deref().map(Others::across);
    let node = session.node(&case.evidence);
    let look = Look::of_rules(&node, session.families(), &outcomes);
    let look = match across {
        Some(across) => look.beside(across),
        None => look,
    };
    let answer = look.why(&asked, args.source.as_deref());
    let mut answer = answer.map_err(|why| match why {
        Unanswered::Objects(ref gap) => {
            let hint = unfit::without_services(session, gap);
            Failure::from(why).with_hint(format!("{hint}; or give its IP:PORT"))
        }
        Unanswered::Source(why) => no_source(&node, &why),
    })?;
    // In another namespace, the fix names it.
    let is_none = |broken: &Broken| matches!(&broken.cause, Cause::NoService { elsewhere, .. } if elsewhere.is_empty());
    let similar = match &asked {
        Asked::Service {
            namespace, name, ..
        } if answer.causes.iter().any(is_none) => {
            let services = node.services().map_or(&[][..], Vec::as_slice);
            service_name::similar(&format!("{namespace}/{name}"), services)
        }
        _ => Vec::new(),
    };
    let name = dns_name(&args.target).filter(|_| answer.found.is_some());
    let source = args.source.as_deref();
    let of_node = name.and_then(|name| why::node_resolver(&node, source?, name));
    if let Some(cause) = of_node {
        answer.add(cause, Fate::Refused);
    } else if let Some(name) = name
        && let Some((cause, fate)) = failing_dns(session, &node, &look, name)
    {
        answer.add(cause, fate);
    } else if let Some(name) = name
        && let Some((server, result)) = unresolved(session, name).await?
    {
        let fate = match &result {
            Unresolved::Failed(failure) if failure.is_silent => Fate::Lost,
            _ => Fate::Refused,
        };
        let name = name.to_owned();
        answer.add(
            Cause::Dns {
                name,
                server,
                result: result.to_string(),
            },
            fate,
        );
    }
    let probes = match args.probe {
        None => Vec::new(),
        Some(ProbeFrom::Host) => Box::pin(probes(session, None, &mut answer)).await?,
        Some(ProbeFrom::Pod) => {
            let name = match &answer.node {
                Some(name) => name.clone(),
                None => named(session).await?.name,
            };
            let pod = session.client(&name).await?;
            let probes = Box::pin(probes(session, Some(&pod), &mut answer)).await;
            // The pod ends with kpx in any case.
            pod.close().await.ok();
            probes?
        }
    };
    reach_all(session, answer.fixes_mut());
    let picture = drawn(&answer);
    // Several readings may lack the same item.
    let mut told = BTreeSet::new();
    answer.unknown.retain(|text| told.insert(text.clone()));
    let by_design = args.source.is_none() && is_by_design(&answer);
    let (next, next_machine) = following(session, args, &answer, &similar, by_design).unzip();
    Ok(WhyReport {
        by_design,
        answer,
        probes,
        similar,
        next,
        next_machine: next_machine.flatten(),
        picture,
    })
}

/// Returns why connections of pods to cluster DNS fail, by the evidence, and their fate: one question may meet the endpoint that answers.
fn failing_dns(
    session: &Session,
    node: &NodeSnapshot<'_>,
    look: &Look<'_>,
    name: &str,
) -> Option<(Cause, Fate)> {
    let server = cluster_dns(node.services().ok()?, session)?;
    let asked = Asked::Address(server.ip(), Some(server.port()), Some(Proto::Udp));
    let answer = look.why(&asked, None).ok()?;
    let is_pod = |client| matches!(client, Client::Pod | Client::Single | Client::Itself);
    let fails = |path: &why::Path| is_pod(path.client) && path.fate.fails() && !path.by_design;
    answer.paths.iter().any(fails).then(|| {
        let cause = Cause::DnsFails {
            name: name.to_owned(),
            reason: answer.sentence,
            all: answer.fate != Fate::Partly,
            fix: Box::new(answer.fix),
        };
        (cause, answer.fate)
    })
}

/// Returns the command to run next, and the machine to run it on: the one of the fix or, for an open question, a real connection or a
/// command that reads more.
fn following(
    session: &Session,
    args: &WhyArgs,
    answer: &Answer,
    similar: &[String],
    is_by_design: bool,
) -> Option<(String, Option<String>)> {
    if session.one_of_several || is_by_design {
        return None;
    }
    if let [meant] = similar {
        let words = ["why", meant].map(str::to_owned);
        return Some(reach(session).next(&Next::Run(Advice::kpx(words), None)));
    }
    if let Some(fix) = answer.fix.as_ref().filter(|fix| fix.is_complete()) {
        return Some((fix.command()?, fix.machine()));
    }
    if answer.fate != Fate::Unknown || answer.fix.is_some() {
        return None;
    }
    let is_open = |path: &&why::Path| path.fate == Fate::Unknown && path.protocol != Proto::Sctp;
    let tries = args.probe.is_none() && answer.paths.iter().any(|path| is_open(&path));
    let next = if tries {
        let words = ["why", args.target.as_str(), "--probe"].map(str::to_owned);
        Next::Run(Advice::kpx(words), None)
    } else {
        Next::Read
    };
    Some(reach(session).next(&next))
}

/// Returns whether connections fail only because the Service's own settings keep their clients out.
fn is_by_design(answer: &Answer) -> bool {
    let mut paths = answer.paths.iter().filter(|path| path.fate.fails());
    let mut causes = answer.causes.iter();
    answer.fate.fails()
        && answer.paths.iter().any(|path| path.by_design)
        && paths.all(|path| path.by_design)
        && causes.all(|cause| cause.degree != Degree::Breaks || cause.by_design)
}

/// Returns the picture of the connections.
fn drawn(answer: &Answer) -> view::picture::Picture {
    let paths = answer.paths.iter().map(|path| {
        let name = match path.service.as_str() {
            "" => path.to.to_string(),
            name => name.to_owned(),
        };
        (name, &path.cell)
    });
    view::picture::of(paths, &answer.causes, &answer.endpoints)
}

/// Returns the full DNS name in a target, without its port: clients resolve it before they connect.
fn dns_name(target: &str) -> Option<&str> {
    let name = target.rsplit_once(':').map_or(target, |(name, _)| name);
    let is_full = name.contains(".svc.") && !name.contains('/');
    is_full.then(|| name.trim_end_matches('.'))
}

/// Opens a connection to the first address of each port from the node, or else from the pod `client` on it, and adds a cause if
/// it fails although the rules are right.
async fn probes(
    session: &Session,
    client: Option<&RemoteNode>,
    answer: &mut Answer,
) -> Result<Vec<Probed>, Failure> {
    let mut ports = BTreeSet::new();
    let from = client.map_or(Client::Host, |_| Client::Pod);
    let paths = answer.paths.iter().filter(|path| path.client == from);
    let targets: Vec<_> = paths
        .filter(|path| {
            path.protocol != Proto::Sctp && ports.insert((path.service.clone(), path.protocol))
        })
        .map(|path| {
            (
                path.to,
                path.protocol,
                path.fate,
                path.cell.outcomes.clone(),
            )
        })
        .collect();
    let mut probes = Vec::new();
    for (to, protocol, fate, outcomes) in targets {
        let row = probe::run(session, client, to, protocol, &outcomes).await?;
        // Many programs do not answer an empty datagram.
        if let (Some(failed), Fate::Works) = (failed(&row, protocol), fate) {
            let cause = Cause::Probe {
                address: to,
                result: row.result.to_string(),
            };
            answer.add(cause, failed);
        }
        probes.push(Probed { to, protocol, row });
    }
    Ok(probes)
}

/// Returns the fate of connections such as the probe's, if it failed.
fn failed(row: &ProbeRow, protocol: Proto) -> Option<Fate> {
    match row.result {
        ProbeEnd::Answered => None,
        ProbeEnd::Silence => (protocol != Proto::Udp).then_some(Fate::Lost),
        ProbeEnd::Refused | ProbeEnd::Unreachable(_) => Some(Fate::Refused),
    }
}
