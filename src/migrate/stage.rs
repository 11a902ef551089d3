//! What each stage does, planned from what is there.

use thiserror::Error;

use super::journal::{Recorded, State};
use super::journey::{Leg, Stage};
use crate::action::{Action, IpvsVerb};
use crate::backend::Mode;
use crate::backend::ipvs::model::DUMMY;
use crate::bridge::{Lease, Unbuildable};
use crate::cluster::edit;
use crate::desired::DesiredState;
use crate::diff::{self, Diff, Layer};
use crate::evidence::{Evidence, Gap, Item};
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::plan::{self, ConfigSource, Drain, EVICT_NEEDS, Plan, Step, Undo};

/// Why a stage has no plan.
#[derive(Debug, Error)]
pub enum Unplanned {
    /// What is there is not known.
    #[error(transparent)]
    Gap(#[from] Gap),
    /// What is left cannot be removed.
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
    /// Where the configuration is kept is not known, or cannot be written.
    #[error(transparent)]
    Unwritable(#[from] plan::Unwritable),
}

/// Returns what `stage` of `leg` is planned from.
pub fn needs(so_far: &State, stage: Stage) -> Vec<Item> {
    let to = so_far.journey.target(so_far.leg);
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
        Stage::BridgeUp => [crate::node::desired::NEEDS, plan::BRIDGE_RULES].concat(),
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

/// Returns the plan of `stage`, from `evidence` of all that it [`needs`]. `name` is the Node's, which is found once, before
/// the first stage: what one stage needs may not tell it. `own` has the unique ids of the pods that kpx runs in; a bridge is
/// loaded with `lease`.
pub fn plan(
    so_far: &State,
    stage: Stage,
    evidence: &Evidence,
    name: &str,
    own: &[String],
    lease: &Lease,
) -> Result<Plan, Unplanned> {
    let journey = &so_far.journey;
    let (to, from) = (journey.target(so_far.leg), journey.source(so_far.leg));
    let node = NodeSnapshot::new(evidence).called(Some(name));
    match stage {
        Stage::Prepare => {
            let evidence = configured(evidence, so_far)?;
            prepare(&NodeSnapshot::new(&evidence).called(Some(name)), so_far)
        }
        // What kube-proxy writes in the mode that it runs in is its own.
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
        Stage::Unprepare => Ok(taken_back_of(so_far, Stage::Prepare)),
        Stage::BridgeUp => {
            let served = so_far.served();
            Ok(plan::bridge_up(&node, served, &Family::BOTH, lease)?)
        }
        Stage::BridgeDown => Ok(plan::bridge_down(&node, &Family::BOTH)?),
        Stage::Cordon => {
            // A node whose pods cannot leave is left alone.
            plan::evict(&node, journey.evict, own)?;
            Ok(plan::cordon(&node)?)
        }
        Stage::Evict => Ok(plan::evict(&node, journey.evict, own)?),
        Stage::Uncordon => Ok(taken_back_of(so_far, Stage::Cordon)),
        Stage::Backup | Stage::Drain | Stage::Verify | Stage::Recheck => Ok(Plan::default()),
    }
}

/// Returns `evidence` with the configuration that `so_far` leads to in the place of what is there.
pub fn configured(evidence: &Evidence, so_far: &State) -> Result<Evidence, Unplanned> {
    let mut evidence = evidence.clone();
    let text = edit::set(
        evidence.text(Item::ProxyConfig)?,
        so_far.journey.fields(so_far.leg),
    )?;
    evidence.insert(Item::ProxyConfig, Ok(text));
    Ok(evidence)
}

/// Modules, then settings: some of these are there only once their module is, and others must be set before addresses are.
fn prepare(node: &NodeSnapshot<'_>, so_far: &State) -> Result<Plan, Unplanned> {
    let to = so_far.journey.to();
    let mut plan = match node.modules() {
        _ if so_far.journey.modules.is_empty() => Plan::default(),
        Ok(modules) => plan::load_modules(modules, to, &so_far.journey.modules),
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

/// What `to` needs, as far as a kube-proxy in mode `from` neither writes nor removes it.
///
/// A running kube-proxy owns the chains that its mode shares with another. Where it runs in mode nftables it owns no chain of
/// iptables, and in another mode no table of nftables, so all of the new mode can be there before it starts: what it deletes
/// at its start, which is everything of the old mode, nobody needs any more.
fn build(node: &NodeSnapshot<'_>, from: Mode, to: Mode) -> Result<Plan, Unplanned> {
    let desired = node.desired(to)?;
    let mut layers = match (from, to) {
        // Its first sync replaces every chain at once; what serves until then is left alone.
        (Mode::Ipvs, Mode::Iptables) => return Ok(Plan::default()),
        (_, Mode::Iptables) => vec![Layer::Iptables],
        (_, Mode::Nftables) => vec![Layer::Nftables],
        (Mode::Iptables, Mode::Ipvs) => vec![Layer::Ipset, Layer::Ipvs, Layer::Link],
        (_, Mode::Ipvs) => vec![Layer::Ipset, Layer::Iptables, Layer::Ipvs, Layer::Link],
    };
    let mut notes = Vec::new();
    if to == Mode::Ipvs && from == Mode::Iptables && !masquerades(desired) {
        layers.retain(|layer| *layer != Layer::Link);
        notes.push(format!(
            "the addresses of {DUMMY} are left to kube-proxy: host processes may take them for their own source, and the \
             rules of mode {from} do not masquerade that here"
        ));
    }
    let found = diff::compare(node, to, &Family::BOTH)?;
    certain(&found)?;
    let mut plan = plan::repair(node, to, &Family::BOTH, &found, &layers, Drain::First)?;
    plan.notes.extend(notes);
    Ok(plan)
}

/// Whether the rules of mode iptables masquerade what a host process sends from an address of a Service.
pub fn masquerades(desired: &DesiredState) -> bool {
    let mut families = desired.families.iter();
    desired.masquerade_all
        || families.all(|so_far| so_far.detector.is_some() || so_far.ports.is_empty())
}

fn certain(found: &Diff) -> Result<(), Gap> {
    match found.unknown.first() {
        None => Ok(()),
        Some((_, gap)) => Err(gap.clone()),
    }
}

fn configure(node: &NodeSnapshot<'_>, so_far: &State, name: &str) -> Result<Plan, Unplanned> {
    let store = ConfigSource::find(node, name)?;
    let fields = so_far.journey.fields(so_far.leg);
    if so_far.leg == Leg::There {
        return Ok(store.configure(fields)?);
    }
    let ours = so_far.recorded(Stage::Configure);
    let ours: Vec<_> = ours
        .filter_map(|step| Some((&step.action, step.undo.as_ref()?)))
        .collect();
    Ok(store.put_back(fields, &ours)?)
}

/// Restarts kube-proxy, unless it runs in the mode already: then it was restarted since its configuration was changed.
fn restart(node: &NodeSnapshot<'_>, so_far: &State, name: &str) -> Result<Plan, Unplanned> {
    if node.reported_mode() == Ok(so_far.journey.target(so_far.leg)) {
        return Ok(Plan::default());
    }
    Ok(ConfigSource::find(node, name)?.restart(name)?)
}

/// Removes what `mode` wrote, which must not serve the node.
fn clean(node: &NodeSnapshot<'_>, mode: Mode) -> Result<Plan, Unplanned> {
    Ok(plan::cleanup(node, mode, &Family::BOTH, false)?)
}

/// Virtual servers that were built, the newest first: without their addresses, which come after them, nothing but the
/// journal tells that they are kube-proxy's.
fn unbuild(so_far: &State) -> Vec<Step> {
    let mut steps: Vec<Step> = so_far
        .recorded(Stage::Build)
        .filter_map(taken_back)
        .collect();
    steps.retain_mut(|step| match &mut step.action {
        Action::Ipvs { commands } => {
            // What was there before belongs to the same mode, and goes as well.
            commands.retain(|command| command.verb == IpvsVerb::DeleteServer);
            !commands.is_empty()
        }
        _ => false,
    });
    steps
}

/// What takes back what `stage` did on the way there, the newest first.
fn taken_back_of(so_far: &State, stage: Stage) -> Plan {
    Plan {
        steps: so_far.recorded(stage).filter_map(taken_back).collect(),
        notes: Vec::new(),
    }
}

/// Returns the step that takes `step` back, where that can be.
fn taken_back(step: &Recorded) -> Option<Step> {
    Some(Step {
        title: format!("take back: {}", step.title),
        action: step.undo.clone()?,
        undo: Undo::Never("it is itself what takes something back"),
    })
}
