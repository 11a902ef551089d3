//! Previews of all nodes before the first one migrates.

use std::cell::{Cell, RefCell};

use color_eyre::eyre::eyre;

use super::args::MigrateArgs;
use super::progress;
use super::remote_cluster::RemoteCluster;
use super::report::FleetReport;
use crate::command::shared::failure::Failure;
use crate::command::shared::io::Io;
use crate::command::shared::session::Session;
use kpx_host::own_pods;
use kpx_judge::plan::{Consent, evict};
use kpx_migrate::fleet::engine::{Cluster, Engine, Event};
use kpx_migrate::fleet::state::FleetPlan;
use kpx_migrate::migration::Strategy;
use kpx_migrate::preview::NodePreview;
use kpx_node::evidence::Item;
use kpx_node::node::NodeSnapshot;
use kpx_node::words::number_of;

/// Returns the preview of each node, if there is an image to run kpx there; and refuses to drain the node of kpx itself.
pub(super) async fn all<'io>(
    session: &Session,
    io: &RefCell<&mut Io<'io>>,
    cluster: &mut RemoteCluster<'_, '_, 'io>,
    plan: &FleetPlan,
) -> Result<Vec<NodePreview>, Failure> {
    if plan.strategy == Some(Strategy::DrainNode) {
        refuse_own(cluster, plan).await?;
    }
    if let Some(image) = plan.image.as_ref().filter(|_| !session.quiet) {
        let nodes = number_of(plan.nodes.len(), "node");
        let mut io = io.borrow_mut();
        let time = progress::time(&io);
        writeln!(io.err, "kpx: {time}previewing {nodes} in pods of {image}")?;
    }
    let mut show = |event: Event<'_>| {
        let Event::Reports(node, text) = event else {
            return;
        };
        if !session.quiet {
            let mut io = io.borrow_mut();
            let time = progress::time(&io);
            // Without a reader, the previews continue.
            writeln!(io.err, "kpx: {time}{node}: {text}").ok();
        }
    };
    let previews = with_engine(cluster, &mut show, async |engine| {
        engine.previews(plan).await
    });
    Ok(Box::pin(previews).await)
}

/// Deletes the pods of interrupted previews.
pub(super) async fn cancel(cluster: &mut RemoteCluster<'_, '_, '_>, plan: &FleetPlan) {
    // A pod that stays ends on its own, and the next migration deletes it.
    with_engine(cluster, &mut |_| (), async |engine| {
        engine.cancel_previews(plan).await
    })
    .await
    .ok();
}

/// Runs `work` with an engine that reports to `on_event` and is not stopped.
async fn with_engine<C: Cluster, T>(
    cluster: &mut C,
    on_event: &mut dyn FnMut(Event<'_>),
    work: impl AsyncFnOnce(&mut Engine<'_, C>) -> T,
) -> T {
    let stop = Cell::new(false);
    work(&mut Engine {
        cluster,
        saved: None,
        on_event,
        stop: &stop,
    })
    .await
}

/// Refuses to drain the node that kpx itself runs on.
async fn refuse_own(
    cluster: &mut RemoteCluster<'_, '_, '_>,
    plan: &FleetPlan,
) -> Result<(), Failure> {
    let own = own_pods();
    let own =
        own.map_err(|why| eyre!(why).wrap_err("cannot find out whether kpx runs in a pod"))?;
    if own.is_empty() {
        return Ok(());
    }
    let consent = Consent {
        bare: true,
        empty_dir: true,
    };
    for name in &plan.nodes {
        let evidence = cluster.read(&[Item::Pods], name).await;
        let node = NodeSnapshot::new(&evidence).called(Some(name));
        evict(&node, consent, &own)?;
    }
    Ok(())
}

/// Returns why the migration does not begin: at least one node cannot be migrated.
pub(super) fn blocked(report: &FleetReport, args: &MigrateArgs) -> Option<Failure> {
    let previews = &report.plan.as_ref()?.previews;
    let accepts = args.journey.go_on.drops_connections();
    let mut objections: Vec<(String, Vec<&str>)> = Vec::new();
    for preview in previews {
        let Some(why) = preview.objection(accepts) else {
            continue;
        };
        match objections.iter_mut().find(|(known, _)| *known == why) {
            Some((_, nodes)) => nodes.push(&preview.node),
            None => objections.push((why, vec![&preview.node])),
        }
    }
    if objections.is_empty() {
        return None;
    }
    let blocked: usize = objections.iter().map(|(_, nodes)| nodes.len()).sum();
    let objections = objections.iter();
    let objections = objections.map(|(why, nodes)| format!("{}: {why}", nodes.join(", ")));
    let objections: Vec<String> = objections.collect();
    let what = eyre!(
        "{blocked} of {} cannot be migrated: {}; nothing was changed",
        number_of(previews.len(), "node"),
        objections.join("; ")
    );
    Some(Failure::from(what).with_hint(
        "`kpx explain ID` describes the fix; `--skip ID` migrates anyway, and `--node NAME,NAME` selects nodes",
    ))
}
