//! `kpx bridge`

pub(super) mod follow;
pub(super) mod guard;

use super::change::carry_out;
use super::failure::{Failure, Hint as _};
use super::{Io, families, gather};
use crate::backend::Mode;
use crate::bridge::{self, Held, Lease, TABLE, Unbuildable};
use crate::cli::{BridgeArgs, Global};
use crate::migrate::controller::{ControllerError, needs};
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::plan::{self, Plan};
use crate::report::plan::PlanReport;
use crate::report::program::{ProgramReport, Text};

/// Prints the tables.
pub(super) async fn show(
    global: &Global,
    io: &Io<'_>,
    args: &BridgeArgs,
) -> Result<ProgramReport, Failure> {
    let mode = super::diff::mode_of(global, io, args.mode).await?;
    let evidence = gather(global, io, &needs()).await?;
    let node = NodeSnapshot::new(&evidence).called(global.node.as_deref());
    let (text, mut notes) = build(&node, mode, global, &Lease::of(args.lease)).hint(UNKNOWN)?;
    notes.extend(lease(&node, &families(global)));
    Ok(ProgramReport {
        mode,
        parts: vec![Text {
            part: "bridge",
            family: None,
            tool: "nft -f -",
            text,
        }],
        notes,
        bare: false,
    })
}

const UNKNOWN: &str = "`kpx snapshot -v` lists what can be read of the node and its cluster";

/// Adds a hint to what a controller failed with.
fn hinted(error: ControllerError) -> Failure {
    match error {
        ControllerError::Unbuildable(_) => Failure::from(error).with_hint(UNKNOWN),
        ControllerError::Watch(_) => {
            Failure::from(error).with_hint("deploy/rbac.yaml lists the permissions that it needs")
        }
        _ => error.into(),
    }
}

fn build(
    node: &NodeSnapshot<'_>,
    mode: Mode,
    global: &Global,
    lease: &Lease,
) -> Result<(String, Vec<String>), Unbuildable> {
    let state = node.desired(mode)?;
    let marks = bridge::marks(node, state)?;
    let tables = bridge::tables(state, &families(global), marks, lease)?;
    Ok((bridge::text(&tables), state.notes.clone()))
}

/// Returns how long the loaded bridge serves; `None` if there is none, or no table was read.
fn lease(node: &NodeSnapshot<'_>, families: &[Family]) -> Option<String> {
    let rules = node.nft().ok()?;
    let tables = families.iter();
    let tables = tables.filter_map(|&of| rules.table(of.nft_name(), TABLE));
    Some(match tables.map(Held::of).min()? {
        Held::Expired => {
            "lease: expired: the loaded bridge serves no new connections; kube-proxy's rules do"
                .to_owned()
        }
        Held::Endless => {
            "lease: none: the loaded bridge serves until it is removed, even when it is out of date"
                .to_owned()
        }
        Held::Left {
            seconds,
            of,
            keeper: Some(keeper),
        } => {
            format!("lease: {seconds} s left of {of} s, kept by {keeper}")
        }
        Held::Left {
            seconds,
            of,
            keeper: None,
        } => {
            format!("lease: {seconds} s left of {of} s, not renewed since the bridge was loaded")
        }
    })
}

/// Loads the bridge, or replaces the loaded one.
pub(super) async fn up(
    global: &Global,
    io: &mut Io<'_>,
    args: &BridgeArgs,
) -> Result<PlanReport, Failure> {
    let mode = super::diff::mode_of(global, io, args.mode).await?;
    let goal = "serve new connections through the bridge";
    let make = async |io: &Io<'_>| -> Result<Plan, Failure> {
        let evidence = gather(global, io, &needs()).await?;
        let node = NodeSnapshot::new(&evidence).called(global.node.as_deref());
        plan::refuse_other(&node)?;
        let lease = Lease::of(args.lease);
        let mut plan = plan::bridge_up(&node, mode, &families(global), &lease).hint(UNKNOWN)?;
        plan.notes.push(format!(
            "the bridge serves new connections for {} s; while `kpx bridge follow` or `kpx bridge guard` runs, its lease is renewed",
            args.lease.as_secs()
        ));
        Ok(plan)
    };
    carry_out(global, io, &args.change, goal, make).await
}

/// Removes the bridge.
pub(super) async fn down(
    global: &Global,
    io: &mut Io<'_>,
    args: &BridgeArgs,
) -> Result<PlanReport, Failure> {
    let goal = "serve new connections through kube-proxy's rules";
    let make = async |io: &Io<'_>| -> Result<Plan, Failure> {
        let evidence = gather(global, io, plan::BRIDGE_DOWN).await?;
        plan::bridge_down(&NodeSnapshot::new(&evidence), &families(global)).hint(UNKNOWN)
    };
    carry_out(global, io, &args.change, goal, make).await
}
