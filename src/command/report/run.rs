//! `kpx report`

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use color_eyre::eyre::WrapErr as _;

use super::args::ReportArgs;
use super::html::{NodePage, NodeRow, NodesPage};
use crate::cli::nodes::NodesArgs;
use crate::cli::service::ServiceArgs;
use crate::command::diff::report::DiffReport;
use crate::command::diff::run as drift;
use crate::command::doctor::examine::{Asked, examine_case};
use crate::command::doctor::report::DoctorReport;
use crate::command::doctor::report::nodes::DoctorOfNodes;
use crate::command::reconcile::plan as reconcile;
use crate::command::shared::beside::{beside_all, in_whole_bundle};
use crate::command::shared::failure::{Failure, Hint as _};
use crate::command::shared::io::Io;
use crate::command::shared::nodes;
use crate::command::shared::service_name;
use crate::command::shared::session::Session;
use crate::command::show::report::ShowReport;
use crate::command::show::run as show;
use crate::command::snapshot::run as snapshot;
use crate::command::trace::run as trace;
use crate::render::line_of_several;
use crate::report::CLEAN;
use crate::report::history::ChangeEvent;
use kpx_host::clock;
use kpx_judge::check::ServiceRef;
use kpx_judge::diff;
use kpx_judge::trace::question::whole_needs;
use kpx_judge::trace::target::Target;
use kpx_node::backend::Mode;
use kpx_node::evidence::{Item, SaveError, files};
use kpx_node::owner::PortName;

/// Services that are traced if no target is given.
const MOST_TRACED: usize = 3;

pub(in crate::command) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &ReportArgs,
) -> Result<u8, Failure> {
    let wanted = args.file.as_deref();
    let prints = wanted == Some(Path::new("-"));
    if let Some(path) = wanted.filter(|path| !prints && path.symlink_metadata().is_ok()) {
        return Err(SaveError::Exists(path.to_owned()).into());
    }
    let (html, answer, name) = if args.nodes.are_several() || session.is_of_all_nodes() {
        let page = Box::pin(page_of_nodes(session, io, args)).await?;
        (page.html(), page.answer(), nodes_name())
    } else {
        let timeline = args.timeline.as_deref().map(timeline).transpose()?;
        let page = Box::pin(page(session, args, timeline)).await?;
        (page.html(), page.answer(), default_name(&page.doctor))
    };
    if prints {
        io.out.write_all(html.as_bytes())?;
        return Ok(CLEAN);
    }
    let path = wanted.map_or(name, Path::to_owned);
    write(&path, &html)?;
    writeln!(io.out, "wrote {}: {answer}", path.display())?;
    Ok(CLEAN)
}

/// Reads all nodes, and puts their findings together.
async fn page_of_nodes(
    session: &Session,
    io: &mut Io<'_>,
    args: &ReportArgs,
) -> Result<NodesPage, Failure> {
    if !args.trace.is_empty() || args.timeline.is_some() {
        return Err(Failure::usage(
            "--trace and --timeline are for the page of one node: pass --node NAME",
        ));
    }
    let all = NodesArgs {
        all_nodes: true,
        ..args.nodes.clone()
    };
    let chosen = if args.nodes.are_several() {
        &args.nodes
    } else {
        &all
    };
    let session = &beside_all(session, chosen).await?;
    let work = async move |session: Session| {
        let asked = Asked::everything(&session)?;
        let (report, case, _) = examine_case(&session, &asked, &[]).await?;
        let row = NodeRow::of(&report);
        let manifest = case.evidence.manifest();
        let redacted = manifest.is_some_and(|manifest| manifest.redacted);
        Ok((report, (row, redacted)))
    };
    let (mut nodes, mut redacted) = (Vec::new(), false);
    let keep = |name: &str, read: Result<(NodeRow, bool), &str>| {
        let row = read.map(|(row, is_redacted)| {
            redacted |= is_redacted;
            row
        });
        nodes.push((name.to_owned(), row.map_err(str::to_owned)));
        Ok(())
    };
    let together = DoctorOfNodes::default();
    let collected = nodes::collect(session, io, chosen, together, &[], work, keep);
    let report = Box::pin(collected).await?.into_report();
    let rank = |read: &Result<NodeRow, String>| read.as_ref().ok().map(NodeRow::rank);
    nodes.sort_by(|(a, left), (b, right)| rank(right).cmp(&rank(left)).then_with(|| a.cmp(b)));
    let bundle = session.source.bundle().map(last_part);
    Ok(NodesPage {
        origin: line_of_several(&report.origins).unwrap_or_default(),
        source: bundle.map_or_else(
            || "the nodes of the cluster".to_owned(),
            |bundle| format!("bundle {bundle}"),
        ),
        redacted,
        nodes,
        incomplete: report.incomplete,
        doctor: report.together,
    })
}

/// Reads the node once, and computes every part of the page from that.
async fn page(
    session: &Session,
    args: &ReportArgs,
    timeline: Option<(String, Vec<ChangeEvent<'static>>)>,
) -> Result<NodePage, Failure> {
    let session = &in_whole_bundle(session).await;
    let asked = Asked::everything(session)?;
    let (doctor, case, last) = examine_case(session, &asked, &needs()).await?;
    let mut evidence = case.evidence.clone();
    if !Arc::ptr_eq(&case, &last) {
        // Only differences that are left after the next sync of kube-proxy count, as in the findings.
        evidence.extend(last.evidence.clone());
    }
    let redacted = evidence
        .manifest()
        .is_some_and(|manifest| manifest.redacted);
    let read = session.in_memory(evidence);
    let drift = drift::of_node(&read).await?;
    let services = show::services(&read).await?;
    let mut targets = Vec::new();
    for target in &args.trace {
        targets.push(match Target::parse(target) {
            Ok(_) => target.clone(),
            Err(_) => service_name::target(&read, target, &ServiceArgs::default()).await?,
        });
    }
    if targets.is_empty() {
        targets = in_trouble(&doctor, &drift, &services);
    }
    let mut traces = Vec::new();
    for target in targets {
        let result = match trace::to(&read, &target).await {
            Ok(report) => Ok(report),
            // A wrong target on the command line is a usage error.
            Err(failure) if !args.trace.is_empty() => return Err(failure),
            Err(failure) => Err(failure.to_string()),
        };
        traces.push((target, result));
    }
    let plan = reconcile::proposed(&read).await;
    let origin = session.origin();
    Ok(NodePage {
        origin: origin.map_or_else(String::new, |origin| origin.line()),
        source: source(session),
        redacted,
        doctor,
        drift,
        services,
        traces,
        plan: plan.map_err(|failure| failure.to_string()),
        timeline,
    })
}

/// Returns the items that the parts of the page read, in addition to the items of the checks.
fn needs() -> Vec<Item> {
    let modes = [Mode::Iptables, Mode::Ipvs, Mode::Nftables];
    let mut items: BTreeSet<Item> = modes.into_iter().flat_map(diff::needs).collect();
    items.extend(whole_needs());
    items.extend(show::services_need());
    items.extend(reconcile::NEEDS);
    items.into_iter().collect()
}

/// Returns the first Services that a finding or a difference concerns.
fn in_trouble(doctor: &DoctorReport, drift: &DiffReport, services: &ShowReport) -> Vec<String> {
    let findings = doctor.findings.iter().flat_map(|finding| {
        let consequences = finding.consequences.iter();
        let consequences = consequences.flat_map(|consequence| &consequence.services);
        finding.services.iter().chain(consequences).cloned()
    });
    let changes = drift.changes.iter();
    let changes = changes.filter_map(|row| PortName::parse(row.service.as_deref()?));
    let mut targets: Vec<String> = Vec::new();
    for name in findings.chain(changes.map(ServiceRef::from)) {
        let mut rows = services.services().iter();
        let found = rows.find(|row| name.overlaps(&ServiceRef::from(&row.service)));
        // Another proxy serves it, or no address leads to it.
        let found = found.filter(|row| row.left_to.is_none() && !row.addresses.is_empty());
        let target = found.map(|row| row.service.to_string());
        if let Some(target) = target.filter(|target| !targets.contains(target)) {
            targets.push(target);
        }
        if targets.len() == MOST_TRACED {
            break;
        }
    }
    targets
}

/// Returns the source in words; of a path, only its last part, because the rest describes this machine.
fn source(session: &Session) -> String {
    let bundle = session.source.bundle().map(last_part);
    match (bundle, session.name()) {
        (Some(bundle), Some(name)) => format!("node {name} of bundle {bundle}"),
        (Some(bundle), None) => format!("bundle {bundle}"),
        (None, Some(name)) => format!("node {name}"),
        (None, None) => "the node itself".to_owned(),
    }
}

fn last_part(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

/// Reads the changes that `kpx watch` wrote.
fn timeline(path: &Path) -> Result<(String, Vec<ChangeEvent<'static>>), Failure> {
    let name = path.display().to_string();
    let hint = "`kpx watch -o json > FILE` writes such a file";
    let text = fs::read_to_string(path)
        .wrap_err_with(|| format!("cannot read {name}"))
        .hint(hint)?;
    let events = ChangeEvent::parse(&text);
    let events = events
        .wrap_err_with(|| format!("cannot use the time line {name}"))
        .hint(hint)?;
    Ok((last_part(path), events))
}

/// Writes `html` to `path`, which only its owner can read; a failure leaves nothing behind.
fn write(path: &Path, html: &str) -> Result<(), Failure> {
    let failed = || format!("cannot write {}", path.display());
    let folder = files::folder_of(path);
    // The error of a temporary file would name that file.
    fs::metadata(folder).wrap_err_with(failed).hint(ANOTHER)?;
    let temp = tempfile::NamedTempFile::new_in(folder);
    let mut temp = temp.wrap_err_with(failed).hint(ANOTHER)?;
    temp.write_all(html.as_bytes()).wrap_err_with(failed)?;
    temp.as_file().sync_all().wrap_err_with(failed)?;
    let kept = temp.persist_noclobber(path);
    kept.map_err(|error| error.error)
        .wrap_err_with(failed)
        .hint(ANOTHER)?;
    Ok(())
}

const ANOTHER: &str = "pass another path with --file";

/// Returns the default name of a report of several nodes.
fn nodes_name() -> PathBuf {
    let time = clock::now().to_string();
    PathBuf::from(snapshot::file_name("report", "nodes", &time, "html"))
}

/// Returns the default name of a report, sorted by node, then by time.
fn default_name(doctor: &DoctorReport) -> PathBuf {
    let node = doctor.head.node.name.as_deref().unwrap_or_default();
    let time = doctor.taken.unwrap_or_else(clock::now).to_string();
    PathBuf::from(snapshot::file_name("report", node, &time, "html"))
}
