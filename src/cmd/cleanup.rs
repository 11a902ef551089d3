//! `kpx cleanup`

use super::change::carry_out;
use super::failure::Failure;
use super::{Io, families, gather, mode};
use crate::cli::{CleanupArgs, Global};
use crate::evidence::Item;
use crate::node::NodeSnapshot;
use crate::plan::{self, Plan, Refusal};
use crate::report::plan::PlanReport;

/// Everything that a mode leaves behind, and what tells it from others'.
const NEEDS: &[Item] = &[
    Item::Addresses,
    Item::Ipset,
    Item::Iptables4,
    Item::Iptables6,
    Item::IptablesLegacy4,
    Item::IptablesLegacy6,
    Item::IptablesNft4,
    Item::IptablesNft6,
    Item::Ipvs,
    Item::IpvsSave,
    Item::IpvsTimeout,
    Item::Links,
    Item::Modules,
    Item::Nft,
    Item::NftText,
    Item::Processes,
    Item::ProxyConfig,
    Item::ProxyMode,
    Item::Services,
    Item::Sysctl,
];

pub(super) async fn run(
    global: &Global,
    io: &mut Io<'_>,
    args: &CleanupArgs,
) -> Result<PlanReport, Failure> {
    let mode = mode(args.mode);
    let goal = format!("remove what mode {mode} left behind");
    let make = async |io: &Io<'_>| -> Result<Plan, Failure> {
        let evidence = gather(global, io, NEEDS).await?;
        let node = NodeSnapshot::new(&evidence).called(global.node.as_deref());
        plan::cleanup(&node, mode, &families(global), args.force).map_err(|refusal| {
            let hint = match refusal {
                Refusal::Serves { .. } => {
                    "clean up the modes that do not serve it; --force removes this one all the same"
                }
                Refusal::Unknown(_) => "`kpx snapshot -v` says what of the node can be read",
            };
            Failure::from(refusal).with_hint(hint)
        })
    };
    carry_out(global, io, &args.change, &goal, make).await
}
