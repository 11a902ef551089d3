//! The draft of a fleet's migration: its plan, from the cluster's objects.

use std::collections::{BTreeMap, BTreeSet};

use color_eyre::eyre::eyre;

use super::args::{ContinueArgs, LEASE, MigrateArgs};
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
use kpx_migrate::log;
use kpx_migrate::wire::{Outcome, Timeouts};
use kpx_node::action::PROXY_LABEL;
use kpx_node::backend::Mode;
use kpx_node::cluster::config::{self, ProxyConfig};
use kpx_node::cluster::edit::Fields;
use kpx_node::cluster::version;
use kpx_node::cluster::{Node, Pod};
use kpx_node::evidence::Item;
use kpx_node::node::NodeSnapshot;

/// The time that a command on a node may take in addition to its timeouts, in seconds.
const SPARE: u64 = 600;

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
    let (there, _) = draft::fields(&args.journey, &config, from, to);
    let change = store.configure(&there).map_err(unwritable)?;
    let is_set = change.steps.is_empty();
    let behind = if is_set {
        Behind::find(cluster, node.all_pods()?, &nodes, to).await?
    } else {
        None
    };
    let (from, nodes) = match &behind {
        Some(behind) => (behind.mode, behind.nodes.clone()),
        None => (from, nodes),
    };
    let (there, back) = draft::fields(&args.journey, &config, from, to);
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
    let mut plan = FleetPlan {
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
        limit: 0,
    };
    plan.limit = limit(&plan.timeouts);
    let fleet = Fleet::new(plan);
    let already = is_set && behind.is_none();
    let mut report = FleetReport::new(
        &fleet,
        if already {
            Outcome::Already
        } else {
            Outcome::Planned
        },
    );
    report.id = None;
    report.notes = match &behind {
        Some(behind) => behind.notes(&fleet.plan),
        None => notes(&fleet.plan, all.len(), &change.notes),
    };
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

/// Nodes whose kube-proxy started before its configuration got the mode: it still runs in another one.
struct Behind {
    mode: Mode,
    nodes: Vec<String>,
    /// The nodes of which that is unknown.
    unknown: Vec<String>,
}

impl Behind {
    /// Returns those of `nodes` whose kube-proxy, one of `pods`, logged another mode than `to` when it started; `None` if all run in
    /// `to`.
    async fn find(
        cluster: &mut RemoteCluster<'_, '_, '_>,
        pods: &[Pod],
        nodes: &[String],
        to: Mode,
    ) -> Result<Option<Self>, Failure> {
        let mut by_mode: BTreeMap<Mode, Vec<String>> = BTreeMap::new();
        let mut unknown = Vec::new();
        for node in nodes {
            let here = |pod: &&Pod| {
                let label = pod.metadata.labels.get(PROXY_LABEL.0);
                pod.spec.node_name.as_ref() == Some(node)
                    && label.is_some_and(|label| label == PROXY_LABEL.1)
                    && pod.metadata.deletion_timestamp.is_none()
            };
            let text = match pods.iter().find(here) {
                Some(pod) => cluster.log(&pod.metadata.name).await.unwrap_or_default(),
                None => String::new(),
            };
            match log::said(&text).mode {
                Some(mode) if mode == to => {}
                Some(mode) => by_mode.entry(mode).or_default().push(node.clone()),
                None => unknown.push(node.clone()),
            }
        }
        let set = format!("kube-proxy is already configured for mode {to}");
        let mut modes = by_mode.into_iter();
        match (modes.next(), modes.next()) {
            (None, _) if unknown.is_empty() => Ok(None),
            (None, _) => Err(Failure::from(eyre!(
                "{set}; whether it runs in it on {} is unknown: its log does not say, or cannot be read",
                unknown.join(", ")
            ))
            .with_hint("`kpx doctor --node NAME` shows the mode of a node")
            .unknown()),
            (Some((mode, nodes)), None) => Ok(Some(Self {
                mode,
                nodes,
                unknown,
            })),
            (Some((one, nodes)), Some((other, others))) => Err(Failure::from(eyre!(
                "{set}; it still runs in mode {one} on {} and in mode {other} on {}",
                nodes.join(", "),
                others.join(", ")
            ))
            .with_hint("--node NAME,NAME selects those of one mode")),
        }
    }

    fn notes(&self, plan: &FleetPlan) -> Vec<String> {
        let to = plan.there.mode;
        let mut notes = draft::notes(plan.from, to);
        notes.push(format!(
            "the configuration already has mode {to}: only those nodes migrate whose kube-proxy still runs in mode {}; each changes to \
             mode {to} without preparation if its kube-proxy restarts before; a rollback sets mode {} for all nodes",
            self.mode, self.mode
        ));
        if !self.unknown.is_empty() {
            notes.push(format!(
                "the mode in which kube-proxy runs on {} is unknown: its log does not say, or cannot be read",
                self.unknown.join(", ")
            ));
        }
        notes
    }
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
    Timeouts::new(
        args.confirm(),
        args.drain(),
        Some(args.lease()).filter(|lease| *lease != LEASE),
        args.drops_connections(),
    )
}

/// Returns how long a command on a node may take altogether, in seconds.
const fn limit(timeouts: &Timeouts) -> u64 {
    timeouts.confirm + timeouts.drain + SPARE
}

/// Sets in `plan` what the command that continues it was given: limits, and consent.
pub(super) fn go_on_with(plan: &mut FleetPlan, args: &ContinueArgs) {
    let given = timeouts(args);
    let kept = &mut plan.timeouts;
    if args.confirm_timeout.is_some() {
        kept.confirm = given.confirm;
    }
    if args.drain_timeout.is_some() {
        kept.drain = given.drain;
    }
    if args.lease.is_some() {
        kept.lease = given.lease;
    }
    kept.accept_loss |= given.accept_loss;
    plan.limit = limit(&plan.timeouts);
    for class in accept::classes(&args.accept_loss) {
        if !plan.accepts.contains(&class) {
            plan.accepts.push(class);
        }
    }
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
