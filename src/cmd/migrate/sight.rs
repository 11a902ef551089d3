//! A look at all nodes before the first one is moved.

use std::cell::{Cell, RefCell};

use color_eyre::eyre::eyre;

use super::cluster::Far;
use crate::cli::{Global, MigrateArgs};
use crate::cmd::Io;
use crate::cmd::failure::Failure;
use crate::evidence::Item;
use crate::host::own_pods;
use crate::migrate::fleet::engine::{Cluster as _, Engine};
use crate::migrate::fleet::state::FleetPlan;
use crate::migrate::journey::Strategy;
use crate::migrate::outlook::Looked;
use crate::node::NodeSnapshot;
use crate::plan::{Consent, evict};
use crate::report::migrate::FleetReport;

/// Has each node say what stands in the way, where there is an image to ask it with; and sees that kpx outlives the move.
pub(super) async fn look<'io>(
    global: &Global,
    io: &RefCell<&mut Io<'io>>,
    far: &mut Far<'_, '_, 'io>,
    plan: &FleetPlan,
) -> Result<Vec<Looked>, Failure> {
    if plan.strategy == Some(Strategy::DrainNode) {
        refuse_own(far, plan).await?;
    }
    if let Some(image) = plan.image.as_ref().filter(|_| !global.quiet) {
        let count = plan.nodes.len();
        let nodes = super::fleet::nodes(count);
        let line = format!("kpx: looking at {nodes}, in pods of {image} that end with it");
        writeln!(io.borrow_mut().err, "{line}")?;
    }
    let stop = Cell::new(false);
    let mut engine = Engine {
        cluster: far,
        saved: None,
        tell: &mut |_| (),
        stop: &stop,
    };
    Ok(Box::pin(engine.look(plan)).await)
}

/// Deletes the pods of a look that was left early.
pub(super) async fn look_away(far: &mut Far<'_, '_, '_>, plan: &FleetPlan) {
    let stop = Cell::new(false);
    let mut engine = Engine {
        cluster: far,
        saved: None,
        tell: &mut |_| (),
        stop: &stop,
    };
    // One that stays ends by itself, and the next migration deletes it.
    engine.look_away(plan).await.ok();
}

/// Refuses to drain the node that kpx itself runs on.
async fn refuse_own(far: &mut Far<'_, '_, '_>, plan: &FleetPlan) -> Result<(), Failure> {
    let own = own_pods();
    let own = own.map_err(|why| eyre!(why).wrap_err("cannot tell whether kpx runs in a pod"))?;
    if own.is_empty() {
        return Ok(());
    }
    let consent = Consent {
        bare: true,
        empty_dir: true,
    };
    for name in &plan.nodes {
        let evidence = far.read(&[Item::Pods], name).await;
        let node = NodeSnapshot::new(&evidence).called(Some(name));
        evict(&node, consent, &own)?;
    }
    Ok(())
}

/// Returns why nothing is begun, where a node is known not to get there.
pub(super) fn blocked(report: &FleetReport, args: &MigrateArgs) -> Option<Failure> {
    let looks = &report.plan.as_ref()?.looks;
    let accepts = args.journey.go_on.accept_loss;
    let mut objections: Vec<(String, Vec<&str>)> = Vec::new();
    for looked in looks {
        let Some(why) = looked.objection(accepts) else {
            continue;
        };
        match objections.iter_mut().find(|(known, _)| *known == why) {
            Some((_, nodes)) => nodes.push(&looked.node),
            None => objections.push((why, vec![&looked.node])),
        }
    }
    if objections.is_empty() {
        return None;
    }
    let blocked: usize = objections.iter().map(|(_, nodes)| nodes.len()).sum();
    let objections = objections.iter();
    let objections = objections.map(|(why, nodes)| format!("{}: {why}", nodes.join(", ")));
    let objections: Vec<String> = objections.collect();
    let s = if looks.len() == 1 { "" } else { "s" };
    let what = eyre!(
        "{blocked} of {} node{s} cannot be moved: {}; nothing was changed",
        looks.len(),
        objections.join("; ")
    );
    Some(Failure::from(what).with_hint(
        "`kpx explain ID` says what to do about it; --skip ID goes on all the same, and --node NAME,NAME leaves nodes out",
    ))
}
