//! `kpx bridge`

use super::args::BridgeArgs;
use crate::command::shared::READABLE;
use crate::command::shared::change::carry_out;
use crate::command::shared::failure::Failure;
use crate::command::shared::io::Io;
use crate::command::shared::session::{Readable as _, Session};
use crate::report::plan::PlanReport;
use crate::report::program::{PartText, ProgramReport};
use kpx_judge::bridge::{self, Held, Lease, TABLE, Unbuildable};
use kpx_judge::plan::{self, Plan};
use kpx_migrate::controller::{ControllerError, needs};
use kpx_node::backend::Mode;
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;

/// Prints the tables.
pub(in crate::command) async fn show(
    session: &Session,
    args: &BridgeArgs,
) -> Result<ProgramReport, Failure> {
    let mode = session.mode(args.mode).await?;
    let evidence = session.gather(&needs()).await?;
    let node = session.node(&evidence);
    let (text, mut notes) = build(&node, mode, session, &Lease::of(args.lease)).readable()?;
    notes.extend(lease(&node, session.families()));
    Ok(ProgramReport {
        mode,
        parts: vec![PartText {
            part: "bridge",
            family: None,
            tool: "nft -f -",
            text,
        }],
        notes,
        bare: false,
    })
}

/// Returns the error of a controller with a hint.
pub(super) fn hinted(error: ControllerError) -> Failure {
    match error {
        ControllerError::Unbuildable(_) => Failure::from(error).with_hint(READABLE),
        ControllerError::Watch(_) => {
            Failure::from(error).with_hint("deploy/rbac.yaml lists the permissions that it needs")
        }
        _ => error.into(),
    }
}

fn build(
    node: &NodeSnapshot<'_>,
    mode: Mode,
    session: &Session,
    lease: &Lease,
) -> Result<(String, Vec<String>), Unbuildable> {
    let state = node.desired(mode)?;
    let marks = bridge::marks(node, state)?;
    let tables = bridge::tables(state, session.families(), marks, lease)?;
    Ok((bridge::text(&tables), state.notes.clone()))
}

/// Returns how long the loaded bridge serves; `None` if there is none, or no table was read.
fn lease(node: &NodeSnapshot<'_>, families: &[Family]) -> Option<String> {
    let rules = node.nft().ok()?;
    let tables = families.iter();
    let tables = tables.filter_map(|&table| rules.table(table.nft_name(), TABLE));
    let held = tables.map(Held::of).min()?;
    Some(format!("lease: {}", held.in_words()))
}

/// Loads the bridge, or replaces the loaded one.
pub(in crate::command) async fn up(
    session: &Session,
    io: &mut Io<'_>,
    args: &BridgeArgs,
) -> Result<PlanReport, Failure> {
    let mode = session.mode(args.mode).await?;
    let goal = "serve new connections through the bridge";
    let make = async || -> Result<Plan, Failure> {
        let evidence = session.gather(&needs()).await?;
        let node = session.node(&evidence);
        plan::refuse_other(&node)?;
        let lease = Lease::of(args.lease);
        let mut plan = plan::bridge_up(&node, mode, session.families(), &lease).readable()?;
        plan.notes.push(format!(
            "the bridge serves new connections for {} s; while `kpx bridge follow` or `kpx bridge guard` runs, its lease is renewed",
            args.lease.as_secs()
        ));
        Ok(plan)
    };
    carry_out(session, io, &args.change, goal, make).await
}

/// Removes the bridge.
pub(in crate::command) async fn down(
    session: &Session,
    io: &mut Io<'_>,
    args: &BridgeArgs,
) -> Result<PlanReport, Failure> {
    let goal = "serve new connections through kube-proxy's rules";
    let make = async || -> Result<Plan, Failure> {
        let evidence = session.gather(plan::BRIDGE_DOWN).await?;
        plan::bridge_down(&NodeSnapshot::new(&evidence), session.families()).readable()
    };
    carry_out(session, io, &args.change, goal, make).await
}
