//! `kpx trace`

use std::collections::BTreeSet;
use std::mem;
use std::net::{IpAddr, SocketAddr};

use color_eyre::eyre::eyre;
use futures_util::future::join;

use super::args::TraceArgs;
use super::observe::Seen;
use super::report::nodes::TraceOfNodes;
use super::report::{PacketRow, ServiceRow, SourceTrace, TraceReport, dot, mermaid, picture, svg};
use super::{live, observe};
use crate::command::shared::beside::{Others, Reading, beside, in_bundle};
use crate::command::shared::failure::Failure;
use crate::command::shared::identity::reach_all;
use crate::command::shared::io::Io;
use crate::command::shared::nodes;
use crate::command::shared::output::Extra;
use crate::command::shared::probe;
use crate::command::shared::service_name;
use crate::command::shared::session::{Parts, Readable as _, Session};
use crate::command::shared::unfit;
use crate::view;
use crate::view::did_you_mean::meant;
use crate::view::picture::Picture;
use kpx_judge::check::{self, Facts, Fix};
use kpx_judge::diff;
use kpx_judge::trace::mismatch;
use kpx_judge::trace::question::{
    Walked, are_named, flow, needs, other_addresses, protocol, service, several_ports, whole_needs,
};
use kpx_judge::trace::sources::{self, Source};
use kpx_judge::trace::target::{Found, Target, TargetError};
use kpx_judge::trace::{self, Assumed, Entry, Flow, Follow, Need, Outcome, World, affinity, notes};
use kpx_judge::verdict::{self, Cell, Client, Fate, Judge, Kind, Question};
use kpx_judge::why::{self, Answer, Asked, Cause, Degree, EndpointRow, Look, Unanswered};
use kpx_node::backend::Mode;
use kpx_node::cluster::Service;
use kpx_node::evidence::{Evidence, Item};
use kpx_node::net::{Cidr, Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::links::{Address, Addresses};
use kpx_node::owner::{self, EndpointState, Owners, Port};

/// The output formats of a trace, in addition to the common ones.
const FORMATS: &[Extra<TraceReport>] = &[
    ("picture", picture),
    ("svg", svg),
    ("mermaid", mermaid),
    ("dot", dot),
];

pub(in crate::command) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &TraceArgs,
) -> Result<u8, Failure> {
    let args = &TraceArgs {
        target: service_name::target(session, &args.target, &args.service).await?,
        ..args.clone()
    };
    if let Some(limit) = args.live {
        let report = Box::pin(observe::run(session, io, args, limit)).await?;
        return session.finish_as(io, &report, FORMATS);
    }
    if args.nodes.are_several() {
        let (args, nodes) = (args.clone(), args.nodes.clone());
        let session = match touched(&args) {
            Some(touched) => &beside(session, &nodes, reading(&args), touched).await?,
            None => session,
        };
        let work = async move |session: Session| trace_on(&session, &args, None).await;
        return nodes::report::<TraceOfNodes>(session, io, &nodes, &[], work).await;
    }
    let session = match touched(args) {
        Some(touched) => &in_bundle(session, reading(args), touched).await,
        None => session,
    };
    session.finish_as(io, &trace_on(session, args, None).await?, FORMATS)
}

/// Returns the items to read of the nodes to which packets go: the items of a trace, and those that explain a failing
/// connection.
fn reading(args: &TraceArgs) -> Reading {
    let items = whole_needs().chain([Item::Modules]).chain(why::needs());
    let items: BTreeSet<Item> = items.collect();
    Reading {
        items: items.into_iter().collect(),
        // Only the live node opens connections.
        is_whole: !args.probe,
    }
}

/// Returns the function that finds the nodes with the endpoints of the target; `None` if no packet is followed to another node,
/// as with simulated rules.
fn touched(
    args: &TraceArgs,
) -> Option<impl Fn(&Evidence) -> BTreeSet<String> + Send + Sync + 'static> {
    let asked = Asked::parse(&args.target).ok();
    let asked = asked.filter(|_| args.mode.is_none())?;
    Some(move |cluster: &Evidence| why::touched(&NodeSnapshot::new(cluster), &asked))
}

/// Traces to each of several `ports` of a Service.
async fn each_port(
    session: &Session,
    args: &TraceArgs,
    ports: &[String],
) -> Result<TraceReport, Failure> {
    let mut reports = Vec::new();
    for port in ports {
        let args = TraceArgs {
            target: format!("{}:{port}", args.target),
            ..args.clone()
        };
        let mut report = trace_on(session, &args, None).await?;
        let others = mem::take(&mut report.ports);
        reports.extend([report].into_iter().chain(others));
    }
    let mut reports = reports.into_iter();
    let mut first = reports
        .next()
        .ok_or_else(|| eyre!("the Service has no ports"))?;
    first.add_ports(reports);
    Ok(first)
}

/// Traces from the usual sources to `target`.
pub(in crate::command) async fn to(
    session: &Session,
    target: &str,
) -> Result<TraceReport, Failure> {
    let args = TraceArgs::to(target);
    trace_on(session, &args, None).await
}

/// Traces on one node; `seen` is a packet to compare with.
pub(super) async fn trace_on(
    session: &Session,
    args: &TraceArgs,
    seen: Option<&Seen>,
) -> Result<TraceReport, Failure> {
    let mut report = Box::pin(trace_here(session, args, seen)).await?;
    // Of a Service with addresses of both families, the other one is shown where its fate differs.
    let is_named = session.family().is_none() && args.source.is_none() && seen.is_none();
    if let Ok(target) = Target::parse(&args.target)
        && is_named
        && report.ports.is_empty()
    {
        let evidence = session.gather(&[Item::Services]).await?;
        let mut others = Vec::new();
        for address in other_addresses(&session.node(&evidence), &target) {
            let args = TraceArgs {
                target: address,
                ..args.clone()
            };
            let other = Box::pin(trace_here(session, &args, None)).await?;
            if other.first.fate != report.first.fate {
                others.push(other);
            }
        }
        if !others.is_empty() {
            report.add_ports(others);
        }
    }
    Ok(report)
}

async fn trace_here(
    session: &Session,
    args: &TraceArgs,
    seen: Option<&Seen>,
) -> Result<TraceReport, Failure> {
    let target = match Target::parse(&args.target) {
        Ok(target) => target,
        Err(error) => {
            let hint = match of_address(session, &args.target).await {
                None => meant(&near(session, &args.target).await),
                port => port,
            };
            let failure = Failure::usage(error);
            return Err(match hint {
                Some(hint) => failure.with_hint(hint),
                None => failure,
            });
        }
    };
    if args.probe {
        probe::check(session, args.source.as_deref())?;
    }
    let assumed = args.mode;
    // On this machine, each chain is read when the walk needs it.
    let whole =
        !session.source.is_this_machine() || session.source.is_in_memory() || assumed.is_some();
    let mut items: Vec<_> = if whole {
        whole_needs().collect()
    } else {
        needs().collect()
    };
    items.extend(assumed.into_iter().flat_map(diff::needs));
    items.sort();
    items.dedup();
    let likely = match &target {
        Target::Address(at, _) => Family::of(at.ip()),
        _ => session.family().unwrap_or(Family::V4),
    };
    let begun = async {
        if whole {
            return Ok(None);
        }
        live::Begun::read(session, likely).await.map(Some)
    };
    let (evidence, begun) = join(session.gather(&items), begun).await;
    let (evidence, begun) = (evidence?, begun?);
    let node = session.node(&evidence);
    let other = match assumed {
        Some(mode) => Some(Assumed::new(&node, mode).readable()?),
        None => None,
    };
    let node = match &other {
        Some(other) => other.snapshot().called(session.name_in(&evidence)),
        None => node,
    };
    let stand_in = stand_in(session, &node, &target);
    let node = match &stand_in {
        Some((_, addresses)) => node.with_addresses(addresses.clone()),
        None => node,
    };
    if let Some(ports) = several_ports(&node, &target).filter(|_| seen.is_none()) {
        return each_port(session, args, &ports).await;
    }
    let (found, mut owners, proto) = aim(session, &node, args, &target)?;
    let headless = headless(&target, &node, found);
    let at = service(&node, &owners, found, proto).or(headless.as_ref());
    let across = session.others.as_deref().map(Others::across);
    let mut judge = match across {
        Some(across) => across.judge(&node),
        None => Judge::new(&node),
    };
    let unserved = Port::nobody(found.port, Proto::Tcp);
    let target = aimed_at(found, at, &unserved);
    let kind = target.kind;
    let (clients, sources): (Vec<Client>, Vec<Source>) = if let Some(seen) = seen {
        let source = seen.source(&node)?;
        (vec![Client::at(source.entry)], vec![source])
    } else {
        let chosen = judge
            .clients(target, args.source.as_deref())
            .map_err(|why| service_name::no_source(&node, &why))?;
        chosen.into_iter().unzip()
    };
    let family = Family::of(found.addr);
    let flows: Vec<_> = sources
        .iter()
        .map(|source| {
            judge.as_sent(Flow {
                mark: args.mark,
                ..flow(source, found, proto, args.established)
            })
        })
        .collect();
    let is_in_parts = begun.is_some();
    let answers = |flow: &Flow, walk: &[Outcome], follow: &Follow<'_>| {
        let question = Question { flow, port: at };
        judge.further(question, walk, follow)
    };
    let Walked {
        mut walks,
        further,
        unread,
        nft_is_other,
    } = match begun {
        Some(begun) => live::walk(session, &node, begun, family, &flows, &answers).await?,
        None => Walked::over(&World::whole(&node, family), &flows, &answers).map_err(unwalked)?,
    };
    if owners.source == owner::Source::Api && !are_named(&owners, proto, &walks) {
        owners = Owners::new(&node);
    }
    let service = service(&node, &owners, found, proto).or(headless.as_ref());
    let asked = args.source.as_deref();
    if asked.is_some_and(|source| !sources::is_any_outside(source)) {
        for (flow, walk) in flows.iter().zip(&mut walks) {
            *walk = affinity::remembered(&node, flow, service, mem::take(walk));
        }
    }
    judge.further_are(further);
    if is_in_parts {
        judge.reads_parts(family, unread.first());
    }
    let judged: Vec<_> = flows
        .iter()
        .zip(&walks)
        .map(|(flow, walk)| {
            let question = Question {
                flow,
                port: service,
            };
            judge.judge(question, walk)
        })
        .collect();
    // Only the API has the desired state; names in the rules cannot show that the rules are wrong.
    let is_told = owners.source == owner::Source::Api && owners.gaps.is_empty();
    let fails = judged.iter().any(|verdict| verdict.fate.fails());
    let explained = if fails && is_told && assumed.is_none() {
        let at = SocketAddr::new(found.addr, found.port);
        Some(why_not(session, at, args).await?)
    } else {
        None
    };
    let causes = match &explained {
        Some(Ok(answer)) => causes(answer),
        Some(Err(error)) => vec![format!("the cause is unknown: {error}")],
        None => Vec::new(),
    };
    let next = match &explained {
        Some(Ok(answer)) if !session.one_of_several => {
            let causes = answer.causes.iter().filter(|cause| !cause.by_design);
            let fixes = causes.filter_map(|cause| cause.fix.as_ref());
            fixes.filter(|fix| fix.is_complete()).find_map(Fix::line)
        }
        _ => None,
    };
    let drawn = {
        let cells: Vec<Cell> = clients
            .iter()
            .zip(&sources)
            .zip(flows.iter().zip(&walks))
            .zip(&judged)
            .map(|(((client, source), (flow, outcomes)), verdict)| Cell {
                kind,
                client: *client,
                from: source.name.to_string(),
                flow: flow.clone(),
                outcomes: outcomes.clone(),
                verdict: verdict.clone(),
                arrival: None,
            })
            .collect();
        let name = service.map_or_else(
            || SocketAddr::new(found.addr, found.port).to_string(),
            |port| port.name.to_string(),
        );
        let endpoints: Vec<_> = service.into_iter().flat_map(EndpointRow::all).collect();
        let known = explained.as_ref().and_then(|answer| answer.as_ref().ok());
        let causes = known.map_or(&[][..], |answer| &answer.causes);
        view::picture::of(
            cells.iter().map(|cell| (name.clone(), cell)),
            causes,
            &endpoints,
        )
    };
    let mut traces: Vec<_> = sources
        .iter()
        .zip(&flows)
        .zip(walks.iter().zip(&judged))
        .map(|((source, flow), (outcomes, judged))| {
            trace(&node, source, flow, outcomes, judged, &owners, service)
        })
        .collect();
    if let Some(first) = traces.first_mut() {
        let added = evidence.note_added();
        let stands = stand_in.map(|(addr, _)| {
            format!("{addr} stands for an address of the node: the evidence shows none")
        });
        let all = unread.into_iter().chain(causes).chain(added).chain(stands);
        first.notes.splice(0..0, all);
    }
    let mut report = report(&node, assumed, service, traces)?;
    report.picture = drawn;
    report.next = next;
    if let (Some(seen), [flow, ..], [walk, ..]) = (seen, flows.as_slice(), walks.as_slice()) {
        report.live = seen.compare(
            &trace::forwarded(&node, flow, walk),
            assumed.is_some(),
            nft_is_other,
            &report.first,
            &owners,
            &node,
        );
    }
    if args.probe && seen.is_none() {
        let host = sources.iter().position(|s| s.entry == Entry::Host);
        let ways = host.and_then(|at| walks.get(at));
        let to = SocketAddr::new(found.addr, found.port);
        report.probe =
            Some(probe::run(session, None, to, proto, ways.map_or(&[], Vec::as_slice)).await?);
    }
    Ok(report)
}

/// Returns the only global address of a node whose routes are not known.
fn only_address(node: &NodeSnapshot<'_>, family: Family) -> Option<IpAddr> {
    let addresses = node.addresses().ok().filter(|_| node.routes().is_err())?;
    let of_family =
        |address: &&Address| address.addr.family() == family && address.scope == "global";
    let mut all = addresses.all.iter().filter(of_family);
    let first = all.next()?;
    all.next().is_none().then_some(first.addr.addr)
}

/// Returns an address for the node, if a node port is asked for and the evidence, of which a part is shown, has no address of it.
fn stand_in(
    session: &Session,
    node: &NodeSnapshot<'_>,
    target: &Target,
) -> Option<(IpAddr, Addresses)> {
    let is_asked = session.parts != Parts::None && matches!(target, Target::NodePort(_));
    if !is_asked || node.addresses().is_ok() {
        return None;
    }
    let addr = match session.family() {
        Some(Family::V6) => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]),
        _ => IpAddr::from([192, 0, 2, 1]),
    };
    if sources::own_address(node, Family::of(addr)).is_some() {
        return None;
    }
    let address = Address {
        link: "eth0".to_owned(),
        addr: Cidr::host(addr),
        scope: "global".to_owned(),
        flags: Vec::new(),
        broadcast: None,
    };
    Some((addr, Addresses { all: vec![address] }))
}

/// Returns the destination of the packet, who is there, and its protocol.
pub(super) fn aim(
    session: &Session,
    node: &NodeSnapshot<'_>,
    args: &TraceArgs,
    target: &Target,
) -> Result<(Found, Owners, Proto), Failure> {
    let found = find(session, target, node)?;
    // Naming every endpoint of a large cluster takes longer than everything else together.
    let owners = Owners::at_address(node, found.addr, found.port);
    let given = args.protocol.or(found.proto);
    let proto = given.unwrap_or_else(|| protocol(&owners, found));
    let proto = proto.in_family(Family::of(found.addr));
    Ok((found, owners, proto))
}

/// Returns why connections to `at` fail.
async fn why_not(
    session: &Session,
    at: SocketAddr,
    args: &TraceArgs,
) -> Result<Result<Answer, Unanswered>, Failure> {
    let checks = check::of_proxy();
    let mut items: BTreeSet<Item> = check::needs(&checks);
    items.extend(why::needs());
    let items: Vec<Item> = items.into_iter().collect();
    let evidence = session.gather(&items).await?;
    let node = session.node(&evidence);
    let facts = Facts::new(&node, node.taken());
    let outcomes: Vec<_> = checks
        .into_iter()
        .map(|check| (check, check::run(check, &facts)))
        .collect();
    let asked = Asked::Address(at.ip(), Some(at.port()), None);
    let across = session.others.as_deref().map(Others::across);
    let look = Look::new(&node, session.families(), &outcomes).map(|look| match across {
        Some(across) => look.beside(across),
        None => look,
    });
    let answer = look.and_then(|look| look.why(&asked, args.source.as_deref()));
    Ok(answer.map(|mut answer| {
        reach_all(session, answer.fixes_mut());
        answer
    }))
}

/// Returns the causes that surely break the connections, each with its fix.
fn causes(answer: &Answer) -> Vec<String> {
    let causes = answer
        .causes
        .iter()
        // A failure that no repair explains is in the trace itself.
        .filter(|cause| {
            cause.degree == Degree::Breaks && !matches!(cause.cause, Cause::Unexplained { .. })
        });
    let mut notes: Vec<String> = Vec::new();
    for of in causes {
        notes.push(format!("why: {}", of.sentence));
        let fix = of.fix.as_ref().map(|fix| match fix.line() {
            Some(command) => format!("{}: {command}", fix.label()),
            None => format!("fix: {}", fix.text()),
        });
        notes.extend(fix.filter(|fix| !notes.contains(fix)));
    }
    notes
}

/// Returns the failure for a chain that was not read although all should have been.
pub(super) fn unwalked(Need { table, chain }: Need) -> Failure {
    eyre!("chain {chain} of table {table} was not read").into()
}

/// Resolves the target to an address, port and protocol.
fn find(session: &Session, target: &Target, node: &NodeSnapshot<'_>) -> Result<Found, Failure> {
    let family = session.family();
    let own = |family| sources::own_address(node, family).or_else(|| only_address(node, family));
    let services = match (target, node.services()) {
        (Target::Service { .. }, Err(gap)) => {
            return target
                .among(Owners::new(node).ports(), family)
                .ok_or_else(|| {
                    let hint = unfit::without_services(session, &gap);
                    Failure::from(eyre!("cannot look up Services: {gap}"))
                        .with_hint(format!("{hint}; or give its IP:PORT"))
                });
        }
        (_, Ok(services)) => services.as_slice(),
        (_, Err(_)) => &[],
    };
    target.find(services, own, family).or_else(|error| {
        if matches!(error, TargetError::NoAddress(..))
            && let Some(found) = at_endpoint(target, node, family)
        {
            return Ok(found);
        }
        let near = match &error {
            TargetError::NoService(name) => service_name::similar(name, services),
            _ => Vec::new(),
        };
        let is_absent = matches!(error, TargetError::NoService(_) | TargetError::NoPort(..));
        let meant = meant(&near).map_or_else(String::new, |meant| format!("{meant} "));
        let hint = match &error {
            TargetError::NoAddress(name, ..) => {
                format!("`kpx why {name}` says where its name leads")
            }
            _ => format!("{meant}`kpx show services` lists Services and their ports"),
        };
        let failure = Failure::from(error).with_hint(hint);
        Err(if is_absent { failure.absent() } else { failure })
    })
}

/// Finds the first ready endpoint of a headless Service: nothing translates the number of a port there.
fn at_endpoint(target: &Target, node: &NodeSnapshot<'_>, family: Option<Family>) -> Option<Found> {
    let Target::Service {
        namespace,
        name,
        port,
    } = target
    else {
        return None;
    };
    let mut services = node.services().ok()?.iter();
    let is_it = |of: &&Service| of.metadata.namespace == *namespace && of.metadata.name == *name;
    let service = services
        .find(is_it)
        .filter(|of| of.spec.kind != "ExternalName")?;
    let slices = node.slices().ok()?.iter();
    let slices: Vec<_> = slices
        .filter(|slice| slice.service() == Some((namespace, name)))
        .collect();
    let ports = owner::ports_of(service, &slices, node.name().ok().as_deref());
    let mut ports = ports.iter();
    let of = ports.find(|of| of.is_of(namespace, name, port.as_deref()))?;
    let mut endpoints = of.endpoints.iter().filter(|endpoint| {
        let own = Family::of(endpoint.addr.ip());
        endpoint.state == Some(EndpointState::Ready) && family.is_none_or(|family| family == own)
    });
    let endpoint = endpoints.next()?;
    let number: Option<u16> = port.as_deref().and_then(|port| port.parse().ok());
    // Nothing translates a number that no endpoint has.
    let mut all = of.endpoints.iter();
    if number.is_some_and(|number| all.all(|endpoint| endpoint.addr.port() != number)) {
        return None;
    }
    Some(Found {
        addr: endpoint.addr.ip(),
        port: number.unwrap_or(endpoint.addr.port()),
        proto: Some(of.proto),
    })
}

/// Returns the port of the headless Service, which `target` names, with the endpoint `found`.
fn headless(target: &Target, node: &NodeSnapshot<'_>, found: Found) -> Option<Port> {
    let Target::Service {
        namespace, name, ..
    } = target
    else {
        return None;
    };
    let mut services = node.services().ok()?.iter();
    let service = services.find(|of| {
        of.metadata.namespace == *namespace
            && of.metadata.name == *name
            && of.spec.cluster_ip == "None"
    })?;
    let slices = node.slices().ok()?.iter();
    let slices: Vec<_> = slices
        .filter(|slice| slice.service() == Some((namespace, name)))
        .collect();
    let ports = owner::ports_of(service, &slices, node.name().ok().as_deref());
    let at = SocketAddr::new(found.addr, found.port);
    ports.into_iter().find(|port| {
        port.addresses.is_empty() && port.endpoints.iter().any(|endpoint| endpoint.addr == at)
    })
}

/// Returns the target to type instead of `text`, an address without a port, if a Service has it.
async fn of_address(session: &Session, text: &str) -> Option<String> {
    let address: IpAddr = text.trim_matches(['[', ']']).parse().ok()?;
    let evidence = session.gather(&[Item::Services]).await.ok()?;
    let node = session.node(&evidence);
    let owners = Owners::new(&node);
    let has = |port: &&Port| port.addresses.iter().any(|(_, at)| *at == address);
    let port = owners.ports().iter().find(has)?;
    let to = SocketAddr::new(address, port.port?);
    Some(format!("{address} is of {}: trace {to}", port.name))
}

/// Returns the Services with names similar to `text`, which is no target; none if the Services are not known.
async fn near(session: &Session, text: &str) -> Vec<String> {
    let Ok(evidence) = session.gather(&[Item::Services]).await else {
        return Vec::new();
    };
    let node = session.node(&evidence);
    let name = text.split(':').next().unwrap_or_default();
    let services = node.services().map_or(&[][..], Vec::as_slice);
    service_name::similar(name, services)
}

/// Returns the target of the packets: the port `service`, or the port `unserved` of an address that no Service has.
fn aimed_at<'p>(
    found: Found,
    service: Option<&'p Port>,
    unserved: &'p Port,
) -> verdict::Target<'p> {
    let port = service.unwrap_or(unserved);
    let role = port.addresses.iter().find(|(_, at)| *at == found.addr);
    let kind = match role {
        Some((role, _)) => Kind::Address(*role),
        None if service.is_some_and(|port| !port.addresses.is_empty()) => Kind::NodePort,
        None => Kind::Endpoint,
    };
    verdict::Target {
        port,
        kind,
        at: SocketAddr::new(found.addr, found.port),
    }
}

fn trace(
    node: &NodeSnapshot<'_>,
    source: &Source,
    flow: &Flow,
    outcomes: &[Outcome],
    judged: &verdict::Verdict,
    owners: &Owners,
    service: Option<&Port>,
) -> SourceTrace {
    let sent = outcomes.first().map(|outcome| outcome.sent_from);
    let packet = PacketRow {
        source: sent.or(source.addr).unwrap_or(flow.destination),
        destination: flow.destination,
        port: flow.port,
        protocol: flow.proto,
    };
    let name = match source.addr {
        // Without routes the node's choice is not known.
        None if packet.source.is_unspecified() => source.name.to_string(),
        None => format!("{} ({})", source.name, packet.source),
        Some(_) => source.name.to_string(),
    };
    let mut notes = notes(node, flow, outcomes, service);
    if flow.mark != 0 {
        notes.insert(0, format!("the packet enters with mark {:#x}", flow.mark));
    }
    if service.is_none() {
        notes.extend(mismatch::other_port(owners, flow));
    }
    let outcomes = trace::forwarded(node, flow, outcomes);
    SourceTrace::new(
        (name, source.name.sender.clone()),
        packet,
        &outcomes,
        judged,
        notes,
        owners,
        service,
    )
}

fn report(
    node: &NodeSnapshot<'_>,
    assumed: Option<Mode>,
    service: Option<&Port>,
    mut traces: Vec<SourceTrace>,
) -> Result<TraceReport, Failure> {
    let told = || node.proxy_mode().ok().and_then(Mode::named);
    let mode = assumed
        .or_else(told)
        .or_else(|| node.configured_mode().ok());
    let service = service.map(|port| ServiceRow {
        namespace: port.name.namespace.to_string(),
        name: port.name.name.to_string(),
        port: port.name.port.to_string(),
    });
    let mut first = traces
        .first()
        .cloned()
        .ok_or_else(|| eyre!("no source to trace from"))?;
    first.fate = Fate::of_all(traces.iter().map(|trace| trace.fate));
    if traces.len() == 1 {
        traces.clear();
    }
    Ok(TraceReport {
        mode,
        assumed: assumed.is_some(),
        service,
        first,
        sources: traces,
        ports: Vec::new(),
        probe: None,
        live: None,
        picture: Picture::default(),
        next: None,
    })
}
