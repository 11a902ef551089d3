//! The draft of a fleet's migration: its plan, from the cluster's objects.

use std::collections::BTreeSet;
use std::time::Duration;

use color_eyre::eyre::eyre;

use super::args::{ContinueArgs, MigrateArgs};
use super::draft;
use super::remote_cluster::RemoteCluster;
use super::report::{FleetReport, FoundProvider, PlannedFleet};
use crate::command::shared::failure::{Failure, Hint as _};
use crate::command::shared::session::Session;
use crate::provider;
use kpx_host::clock;
use kpx_judge::plan::{ConfigSource, Unwritable};
use kpx_migrate::accept;
use kpx_migrate::fleet::engine::Cluster as _;
use kpx_migrate::fleet::order;
use kpx_migrate::fleet::pod::{self, Job};
use kpx_migrate::fleet::state::{Fleet, FleetPlan};
use kpx_migrate::wire::{Outcome, Timeouts};
use kpx_node::cluster::Node;
use kpx_node::cluster::config::{self, ProxyConfig};
use kpx_node::cluster::edit::Fields;
use kpx_node::cluster::version;
use kpx_node::evidence::Item;
use kpx_node::node::NodeSnapshot;

/// The time that a command on a node may take in addition to its timeouts, in seconds.
const SPARE: u64 = 600;

/// The default of `--lease`.
pub(super) const LEASE: Duration = Duration::from_secs(60);

/// A fleet's migration before it is confirmed.
pub(super) struct Draft {
    pub(super) plan: FleetPlan,
    pub(super) report: FleetReport,
}

/// Reads the cluster and plans the migration.
pub(super) async fn plan(
    session: &Session,
    cluster: &mut RemoteCluster<'_, '_, '_>,
    args: &MigrateArgs,
) -> Result<Draft, Failure> {
    let to = draft::to(&args.journey)?;
    draft::refuse_strays(session, &args.journey)?;
    let items = [Item::Nodes, Item::Pods, Item::DaemonSets, Item::ConfigMaps];
    let evidence = cluster.read(&items, "").await;
    let node = NodeSnapshot::new(&evidence);
    let named = !session.nodes.is_empty() && !args.fleet.all_nodes;
    let wanted = named.then_some(session.nodes.as_slice());
    let first = node
        .nodes()?
        .first()
        .map(|node| node.metadata.name.as_str());
    let with_page = |failure| draft::hinted(failure, &node, first.unwrap_or_default());
    let nodes = order::choose(node.nodes()?, node.all_pods()?, wanted)
        .hint("--node NAME,NAME selects nodes")
        .map_err(with_page)?;
    let store = ConfigSource::find(&node, &nodes[0]).map_err(|gap| with_page(gap.into()))?;
    let store = store.ready_within(args.fleet.ready_timeout);
    // A configuration that kpx does not write has no text to read the mode from.
    let alone = Fields {
        mode: to,
        scheduler: None,
        strict_arp: None,
    };
    if let Err(error @ Unwritable::ReadOnly { .. }) = store.configure(&alone) {
        return Err(with_page(unwritable(error)));
    }
    let config: ProxyConfig =
        config::yaml(store.text()).map_err(|what| eyre!("{}: {what}", store.place()))?;
    let from = config
        .mode_asked()
        .ok_or_else(|| eyre!("{} has the unknown mode {:?}", store.place(), config.mode))?;
    let (there, back) = draft::fields(&args.journey, &config, from, to);
    let change = store.configure(&there).map_err(unwritable)?;
    if !store.is_shared() {
        let what = eyre!(
            "each node has a configuration of its own, {}",
            store.place()
        );
        let failure = Failure::from(what).with_hint("run `kpx migrate --to MODE` on each node");
        return Err(with_page(failure));
    }
    let began = clock::now();
    let linux = node.nodes()?.iter().filter(|node| is_linux(node));
    let all: BTreeSet<&str> = linux.map(|node| node.metadata.name.as_str()).collect();
    let go_on = &args.journey.go_on;
    let (image, copies) = match &session.pods.image {
        _ if args.fleet.by_hand => (None, false),
        Some(image) => (Some(image.clone()), false),
        None => (Some(proxy_image(&node)?), true),
    };
    let plan = FleetPlan {
        id: draft::id(began, from, to).to_lowercase(),
        began,
        from,
        back,
        there,
        whole: all.iter().all(|name| nodes.iter().any(|node| node == name)),
        nodes,
        strategy: args.journey.strategy,
        evict: draft::consent(&args.journey),
        staged: args.fleet.staged,
        image,
        copies,
        service_account: args.fleet.service_account.clone(),
        soak: args.fleet.soak.as_secs(),
        ready: args.fleet.ready_timeout.as_secs().max(1),
        skip: args.journey.skip.clone(),
        accepts: accept::classes(&go_on.accept_loss),
        timeouts: timeouts(go_on),
        limit: (go_on.confirm_timeout + go_on.drain_timeout).as_secs() + SPARE,
    };
    let fleet = Fleet::new(plan);
    let already = change.steps.is_empty();
    let mut report = FleetReport::new(
        &fleet,
        if already {
            Outcome::Already
        } else {
            Outcome::Planned
        },
    );
    report.id = None;
    report.notes = notes(&fleet.plan, all.len(), &change.notes);
    if !already {
        report.plan = Some(PlannedFleet {
            store: store.place().to_string(),
            diff: store.diff(&fleet.plan.there),
            provider: FoundProvider::from(provider::recognise(&node, &fleet.plan.nodes[0])),
            steps: change.steps,
            staged: fleet.plan.staged,
            tasks: fleet.tasks(),
            commands: [Job::Prepare, Job::Finish]
                .map(|job| pod::command_line(&fleet.plan, job))
                .to_vec(),
            previews: Vec::new(),
            accepts_loss: false,
            loss: "each node reports it before anything is changed there, and stops if connections would break; \
                   `kpx migrate --to MODE --dry-run` on a node reports it now"
                .to_owned(),
        });
    }
    Ok(Draft {
        plan: fleet.plan,
        report,
    })
}

/// Returns the image of kube-proxy, into whose container kpx copies itself.
fn proxy_image(node: &NodeSnapshot<'_>) -> Result<String, Failure> {
    let image = version::proxy_image(node.daemon_sets()?);
    let image = image.ok_or_else(|| {
        eyre!("cannot choose an image for the pods: no DaemonSet has the label k8s-app=kube-proxy")
    });
    let image = image.hint("pass --image IMAGE with an image that contains kpx, or --by-hand")?;
    Ok(image.to_owned())
}

fn is_linux(node: &Node) -> bool {
    let system = node.metadata.labels.get("kubernetes.io/os");
    system.is_none_or(|system| system == "linux")
}

fn unwritable(error: Unwritable) -> Failure {
    match &error {
        Unwritable::ReadOnly { command, .. } => {
            let hint = format!("change it with `{command}`");
            Failure::from(error).with_hint(hint)
        }
        _ => error.into(),
    }
}

fn timeouts(args: &ContinueArgs) -> Timeouts {
    let lease = (args.lease != LEASE).then_some(args.lease);
    Timeouts::new(
        args.confirm_timeout,
        args.drain_timeout,
        lease,
        args.drops_connections(),
    )
}

fn notes(plan: &FleetPlan, all: usize, more: &[String]) -> Vec<String> {
    let mut notes = draft::notes(plan.from, plan.there.mode);
    let (count, others) = (plan.nodes.len(), all - plan.nodes.len().min(all));
    let minutes = (u64::try_from(count)
        .unwrap_or(u64::MAX)
        .saturating_mul(plan.soak + 60))
    .div_ceil(60);
    match (plan.staged, others) {
        (false, 0) => notes.push(format!(
            "all nodes share the configuration, which is changed before the first node migrates: from then on, for about \
             {minutes} minutes, a node that has not migrated yet changes to the new mode if its kube-proxy restarts; \
             --staged avoids that"
        )),
        (false, 1) => notes.push(
            "all nodes share the configuration: once it is changed, and after the end, the 1 node that does not migrate \
             changes to the new mode if its kube-proxy restarts; --staged keeps it in the old mode"
                .to_owned(),
        ),
        (false, others) => notes.push(format!(
            "all nodes share the configuration: once it is changed, and after the end, the {others} nodes that do not \
             migrate change to the new mode if their kube-proxy restarts; --staged keeps them in the old mode"
        )),
        (true, 0) => notes.push(
            "at the end, each node returns to the first DaemonSet, which replaces its pods once more, all in the new mode"
                .to_owned(),
        ),
        (true, 1) => notes.push(
            "1 node does not migrate, so the copies of ConfigMap and DaemonSet stay".to_owned(),
        ),
        (true, others) => notes.push(format!(
            "{others} nodes do not migrate, so the copies of ConfigMap and DaemonSet stay"
        )),
    }
    if plan.image.is_none() {
        notes.push(
            "with --by-hand, kpx runs nothing on the nodes: it prints each command when it is due, and checks only \
             kube-proxy's pods, through the API server"
                .to_owned(),
        );
    }
    notes.extend(more.iter().cloned());
    notes
}
