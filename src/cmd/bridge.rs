//! `kpx bridge`

pub(super) mod follow;
pub(super) mod guard;
pub(super) mod keep;

use super::change::carry_out;
use super::failure::{Failure, Hint as _};
use super::{Io, families, gather};
use crate::backend::Mode;
use crate::bridge::{self, Held, Lease, TABLE, Unbuildable};
use crate::cli::{BridgeArgs, Global};
use crate::evidence::Item;
use crate::net::Family;
use crate::node::{self, NodeSnapshot};
use crate::plan::{self, Plan};
use crate::report::plan::PlanReport;
use crate::report::program::{ProgramReport, Text};

/// Returns everything that a bridge is built from.
fn needs() -> Vec<Item> {
    [node::desired::NEEDS, plan::BRIDGE_RULES].concat()
}

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

const UNKNOWN: &str = "`kpx snapshot -v` says what of the node and its cluster can be read";

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

/// Says how long the bridge that stands, if one does, serves; nothing where no table was read.
fn lease(node: &NodeSnapshot<'_>, families: &[Family]) -> Option<String> {
    let rules = node.nft().ok()?;
    let tables = families.iter();
    let tables = tables.filter_map(|&of| rules.table(of.nft_name(), TABLE));
    Some(match tables.map(Held::of).min()? {
        Held::Expired => "lease: expired: the loaded bridge serves nothing; new connections take kube-proxy's rules".to_owned(),
        Held::Endless => {
            "lease: none: the loaded bridge serves until it is removed, whoever keeps it up to date".to_owned()
        }
        Held::Left { seconds, of, keeper: Some(keeper) } => {
            format!("lease: {seconds} s left of {of} s, kept by {keeper}")
        }
        Held::Left { seconds, of, keeper: None } => {
            format!("lease: {seconds} s left of {of} s, not renewed since the bridge was loaded")
        }
    })
}

/// Sets the bridge up, or replaces the one that stands.
pub(super) async fn up(
    global: &Global,
    io: &mut Io<'_>,
    args: &BridgeArgs,
) -> Result<PlanReport, Failure> {
    let mode = super::diff::mode_of(global, io, args.mode).await?;
    let goal = "serve new connections by the bridge";
    let make = async |io: &Io<'_>| -> Result<Plan, Failure> {
        let evidence = gather(global, io, &needs()).await?;
        let node = NodeSnapshot::new(&evidence).called(global.node.as_deref());
        plan::refuse_other(&node)?;
        let lease = Lease::of(args.lease);
        let mut plan = plan::bridge_up(&node, mode, &families(global), &lease).hint(UNKNOWN)?;
        plan.notes.push(format!(
            "the bridge serves new connections for {} s, and longer only while `kpx bridge follow` or `kpx bridge guard` runs",
            args.lease.as_secs()
        ));
        Ok(plan)
    };
    carry_out(global, io, &args.change, goal, make).await
}

/// Takes the bridge down.
pub(super) async fn down(
    global: &Global,
    io: &mut Io<'_>,
    args: &BridgeArgs,
) -> Result<PlanReport, Failure> {
    let goal = "leave new connections to kube-proxy's rules";
    let make = async |io: &Io<'_>| -> Result<Plan, Failure> {
        let evidence = gather(global, io, plan::BRIDGE_DOWN).await?;
        plan::bridge_down(&NodeSnapshot::new(&evidence), &families(global)).hint(UNKNOWN)
    };
    carry_out(global, io, &args.change, goal, make).await
}
