//! `kpx reconcile`

use color_eyre::eyre::eyre;

use super::change::carry_out;
use super::failure::{Failure, Hint as _};
use super::{Io, families, gather};
use crate::cli::{Global, LayerArg, ReconcileArgs};
use crate::diff::{self, Layer};
use crate::evidence::Item;
use crate::node::NodeSnapshot;
use crate::plan::{self, Drain, Plan};
use crate::report::plan::PlanReport;

pub(super) async fn run(
    global: &Global,
    io: &mut Io<'_>,
    args: &ReconcileArgs,
) -> Result<PlanReport, Failure> {
    let mode = super::diff::mode_of(global, io, args.mode).await?;
    let goal = format!("bring this node to the desired state of mode {mode}");
    let mut items = diff::needs(mode);
    items.push(Item::Processes);
    let layers: Vec<Layer> = args.only.iter().map(|&layer| layer_of(layer)).collect();
    let drain = if args.no_drain {
        Drain::No
    } else {
        Drain::First
    };
    let make = async |io: &Io<'_>| -> Result<Plan, Failure> {
        let evidence = gather(global, io, &items).await?;
        let node = NodeSnapshot::new(&evidence).called(global.node.as_deref());
        let found = diff::compare(&node, mode, &families(global))
            .hint("`kpx snapshot -v` lists what can be read from the node and its cluster")?;
        if let Some((what, gap)) = found.unknown.first() {
            return Err(Failure::from(
                eyre!("{gap}").wrap_err(format!("cannot compare {what} with the desired state")),
            )
            .with_hint("see `kpx diff`; --family restricts the plan to one family"));
        }
        if !args.force {
            plan::refuse_other(&node).hint("--force ignores this")?;
        }
        let mut plan = plan::repair(&node, mode, &families(global), &found, &layers, drain)?;
        plan.notes.push(plan::running(&node, mode));
        Ok(plan)
    };
    carry_out(global, io, &args.change, &goal, make).await
}

const fn layer_of(layer: LayerArg) -> Layer {
    match layer {
        LayerArg::Iptables => Layer::Iptables,
        LayerArg::Ipset => Layer::Ipset,
        LayerArg::Ipvs => Layer::Ipvs,
        LayerArg::Link => Layer::Link,
        LayerArg::Nftables => Layer::Nftables,
        LayerArg::Sysctl => Layer::Sysctl,
    }
}
