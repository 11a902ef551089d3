//! The plan of each stage, from the live state.

use thiserror::Error;

use super::journal::{MigrationState, Recorded};
use super::migration::{Leg, Stage};
use kpx_judge::bridge::{Lease, Unbuildable};
use kpx_judge::diff::{self, Diff, Layer};
use kpx_judge::plan::{self, ConfigSource, Drain, EVICT_NEEDS, Plan, Step, Undo};
use kpx_node::action::{Action, IpvsVerb};
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::cluster::edit;
use kpx_node::desired::DesiredState;
use kpx_node::evidence::{Evidence, Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;

/// Why a stage has no plan.
#[derive(Debug, Error)]
pub enum Unplanned {
    /// Data is missing.
    #[error(transparent)]
    Gap(#[from] Gap),
    /// Leftovers cannot be removed.
    #[error(transparent)]
    Refused(#[from] plan::Refusal),
    /// The configuration cannot be changed.
    #[error(transparent)]
    Config(#[from] edit::EditError),
    /// The bridge cannot be built.
    #[error(transparent)]
    Bridge(#[from] Unbuildable),
    /// Pods cannot be evicted.
    #[error(transparent)]
    Evict(#[from] plan::Unevictable),
    /// The store of the configuration is unknown, or cannot be written.
    #[error(transparent)]
    Unwritable(#[from] plan::Unwritable),
}

/// Returns the items that `stage` is planned from.
pub fn needs(so_far: &MigrationState, stage: Stage) -> Vec<Item> {
    let to = so_far.migration.target(so_far.leg);
    match stage {
        Stage::Prepare => [
            diff::needs(to),
            vec![Item::ModulesBuiltin, Item::ModulesDep, Item::Modules],
        ]
        .concat(),
        Stage::Build => diff::needs(to),
        Stage::Configure | Stage::Restart => {
            [plan::CONFIG_NEEDS, super::gates::PROXY_NEEDS].concat()
        }
        Stage::Unlink | Stage::Clean => plan::CLEANUP_NEEDS.to_vec(),
        Stage::BridgeUp => [kpx_node::node::desired::NEEDS, plan::BRIDGE_RULES].concat(),
        Stage::BridgeDown => plan::BRIDGE_DOWN.to_vec(),
        Stage::Cordon | Stage::Evict => EVICT_NEEDS.to_vec(),
        Stage::Backup
        | Stage::Drain
        | Stage::Verify
        | Stage::Recheck
        | Stage::Unprepare
        | Stage::Uncordon => Vec::new(),
    }
}

/// Returns the plan of `stage`, from `evidence` of all that it [`needs`].
///
/// `name` is the name of the Node, found once before the first stage: the items of one stage may not show it. `own` has
/// the unique ids of the pods that this process runs in. A bridge is loaded with `lease`.
pub fn plan(
    so_far: &MigrationState,
    stage: Stage,
    evidence: &Evidence,
    name: &str,
    own: &[String],
    lease: &Lease,
) -> Result<Plan, Unplanned> {
    let migration = &so_far.migration;
    let (to, from) = (migration.target(so_far.leg), migration.source(so_far.leg));
    let node = NodeSnapshot::new(evidence).called(Some(name));
    match stage {
        Stage::Prepare => {
            let evidence = configured(evidence, so_far)?;
            prepare(&NodeSnapshot::new(&evidence).called(Some(name)), so_far)
        }
        // The rules of the mode that kube-proxy runs in are its own.
        Stage::Build if node.reported_mode() == Ok(to) => Ok(Plan::default()),
        Stage::Build => {
            let evidence = configured(evidence, so_far)?;
            build(&NodeSnapshot::new(&evidence).called(Some(name)), from, to)
        }
        Stage::Configure => configure(&node, so_far, name),
        Stage::Restart => restart(&node, so_far, name),
        Stage::Unlink => {
            let mut plan = clean(&node, from)?;
            plan.steps.retain(|step| {
                matches!(step.action, Action::Iptables { .. } | Action::Sysctl { .. })
            });
            Ok(plan)
        }
        Stage::Clean => {
            let mut plan = clean(&node, from)?;
            if so_far.leg == Leg::Back {
                plan.steps.extend(unbuild(so_far));
            }
            Ok(plan)
        }
        Stage::Unprepare => Ok(undo_of(so_far, Stage::Prepare)),
        Stage::BridgeUp => {
            let served = so_far.served();
            Ok(plan::bridge_up(&node, served, &Family::BOTH, lease)?)
        }
        Stage::BridgeDown => Ok(plan::bridge_down(&node, &Family::BOTH)?),
        Stage::Cordon => {
            // A node whose pods cannot be evicted is not cordoned.
            plan::evict(&node, migration.evict, own)?;
            Ok(plan::cordon(&node)?)
        }
        Stage::Evict => Ok(plan::evict(&node, migration.evict, own)?),
        Stage::Uncordon => Ok(undo_of(so_far, Stage::Cordon)),
        Stage::Backup | Stage::Drain | Stage::Verify | Stage::Recheck => Ok(Plan::default()),
    }
}

/// Returns `evidence` with the configuration that `so_far` leads to.
pub fn configured(evidence: &Evidence, so_far: &MigrationState) -> Result<Evidence, Unplanned> {
    let mut evidence = evidence.clone();
    let text = edit::set(
        evidence.text(Item::ProxyConfig)?,
        so_far.migration.fields(so_far.leg),
    )?;
    evidence.insert(Item::ProxyConfig, Ok(text));
    Ok(evidence)
}

/// Modules first, then sysctls: some exist only with their module, and others must be set before addresses are added.
fn prepare(node: &NodeSnapshot<'_>, so_far: &MigrationState) -> Result<Plan, Unplanned> {
    let to = so_far.migration.to();
    let mut plan = match node.modules() {
        _ if so_far.migration.modules.is_empty() => Plan::default(),
        Ok(modules) => plan::load_modules(modules, to, &so_far.migration.modules),
        Err(gap) => return Err(gap.into()),
    };
    let found = diff::compare(node, to, &Family::BOTH)?;
    let settings = plan::repair(
        node,
        to,
        &Family::BOTH,
        &found,
        &[Layer::Sysctl],
        Drain::First,
    )?;
    let loads = !plan.steps.is_empty();
    let steps = settings.steps.into_iter();
    let steps = steps.filter(|step| !(loads && matches!(step.action, Action::LoadModules { .. })));
    plan.steps.extend(steps);
    Ok(plan)
}

/// Returns the plan of the rules of mode `to` that a kube-proxy in mode `from` neither writes nor removes.
///
/// A running kube-proxy owns the chains that its mode shares with another. In mode nftables it owns no iptables chain, and
/// in the other modes no nftables table, so the whole new mode can be built before kube-proxy starts in it: it then deletes
/// only the old mode.
fn build(node: &NodeSnapshot<'_>, from: Mode, to: Mode) -> Result<Plan, Unplanned> {
    let desired = node.desired(to)?;
    if desired.is_older() {
        return Ok(Plan {
            steps: Vec::new(),
            notes: vec![format!(
                "kube-proxy {} writes the rules of mode {to} itself: kpx cannot compute them",
                desired.version
            )],
        });
    }
    let mut layers = match (from, to) {
        // The first sync replaces all chains at once; until then the old rules serve. Portals have no effect without the
        // process, which chooses their ports.
        (Mode::Ipvs, Mode::Iptables) | (_, Mode::Userspace) => return Ok(Plan::default()),
        (_, Mode::Iptables) => vec![Layer::Iptables],
        (_, Mode::Nftables) => vec![Layer::Nftables],
        (Mode::Iptables, Mode::Ipvs) => vec![Layer::Ipset, Layer::Ipvs, Layer::Link],
        (_, Mode::Ipvs) => vec![Layer::Ipset, Layer::Iptables, Layer::Ipvs, Layer::Link],
    };
    let mut notes = Vec::new();
    if to == Mode::Ipvs && from == Mode::Iptables && !masquerades(desired) {
        layers.retain(|layer| *layer != Layer::Link);
        notes.push(format!(
            "kube-proxy adds the addresses of {DUMMY} itself: host processes may use them as source addresses, which the \
             rules of mode {from} do not masquerade on this node"
        ));
    }
    let found = diff::compare(node, to, &Family::BOTH)?;
    certain(&found)?;
    let mut plan = plan::repair(node, to, &Family::BOTH, &found, &layers, Drain::First)?;
    plan.notes.extend(notes);
    Ok(plan)
}

/// Returns whether the rules of mode iptables masquerade packets of host processes from an address of a Service.
pub fn masquerades(desired: &DesiredState) -> bool {
    let mut families = desired.families.iter();
    desired.masquerade_all
        || families.all(|so_far| so_far.detector.is_some() || so_far.ports.is_empty())
}

fn certain(found: &Diff) -> Result<(), Gap> {
    match found.unknown.first() {
        None => Ok(()),
        Some(unknown) => Err(unknown.gap.clone()),
    }
}

fn configure(
    node: &NodeSnapshot<'_>,
    so_far: &MigrationState,
    name: &str,
) -> Result<Plan, Unplanned> {
    let store = ConfigSource::find(node, name)?;
    let fields = so_far.migration.fields(so_far.leg);
    if so_far.leg == Leg::There {
        return Ok(store.configure(fields)?);
    }
    let ours = so_far.recorded(Stage::Configure);
    let ours: Vec<_> = ours
        .filter_map(|step| Some((&step.action, step.undo.as_ref()?)))
        .collect();
    Ok(store.put_back(fields, &ours)?)
}

/// Restarts kube-proxy, unless it already runs in the mode: then it was restarted after its configuration changed.
fn restart(
    node: &NodeSnapshot<'_>,
    so_far: &MigrationState,
    name: &str,
) -> Result<Plan, Unplanned> {
    if node.reported_mode() == Ok(so_far.migration.target(so_far.leg)) {
        return Ok(Plan::default());
    }
    Ok(ConfigSource::find(node, name)?.restart(name)?)
}

/// Removes all leftovers of `mode`, which must not be the mode in use.
fn clean(node: &NodeSnapshot<'_>, mode: Mode) -> Result<Plan, Unplanned> {
    Ok(plan::cleanup(node, mode, &Family::BOTH, false)?)
}

/// Removes the virtual servers that were built, the newest first: without their addresses, only the journal shows that they
/// are kube-proxy's.
fn unbuild(so_far: &MigrationState) -> Vec<Step> {
    let mut steps: Vec<Step> = so_far.recorded(Stage::Build).filter_map(undone).collect();
    steps.retain_mut(|step| match &mut step.action {
        Action::Ipvs { commands } => {
            // Older virtual servers belong to the same mode and are removed as well.
            commands.retain(|command| command.verb == IpvsVerb::DeleteServer);
            !commands.is_empty()
        }
        _ => false,
    });
    steps
}

/// Undoes the steps that `stage` recorded on the way to the new mode, the newest first.
fn undo_of(so_far: &MigrationState, stage: Stage) -> Plan {
    Plan {
        steps: so_far.recorded(stage).filter_map(undone).collect(),
        notes: Vec::new(),
    }
}

/// Returns the undo of `step` as a step, if there is one.
fn undone(step: &Recorded) -> Option<Step> {
    Some(Step {
        title: format!("undo: {}", step.title),
        action: step.undo.clone()?,
        undo: Undo::never("it is an undo itself"),
    })
}
