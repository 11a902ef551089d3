//! The requirements of a mode.

use super::need::Need;
use super::{access, configuration, kernel, modules, mounts, sysctls, tools};
use crate::check::Facts;
use kpx_node::backend::Mode;
use kpx_node::evidence::Item;

/// The items that [`of`] reads in addition to the items of the checks.
pub const NEEDS: &[Item] = &[
    Item::KernelRelease,
    Item::Modules,
    Item::ModulesBuiltin,
    Item::ModulesDep,
    Item::ModulesLoad,
    Item::Modprobe,
    Item::Ipvs,
    Item::Sysctl,
    Item::Links,
    Item::Addresses,
    Item::IptablesVersion,
    Item::IpsetVersion,
    Item::NftVersion,
    Item::ConntrackVersion,
    Item::ProxyConfig,
    Item::ConfigMaps,
    Item::Services,
    Item::Nodes,
    Item::Pods,
    Item::DaemonSets,
    Item::Metrics,
    Item::Access,
];

/// The requirements of a mode, by area.
#[derive(Debug)]
pub struct Requirements {
    /// The mode.
    pub to: Mode,
    /// Its requirement.
    pub needs: Vec<Need>,
    /// Why the state of modules is unknown, if that of any is.
    pub gaps: Vec<String>,
}

/// Returns what the mode `to` requires of the node.
pub fn of(facts: &Facts<'_>, to: Mode) -> Requirements {
    let mut needs = kernel::needs(facts, to);
    needs.extend(modules::needs(facts, to));
    needs.extend(tools::needs(facts, to));
    needs.extend(sysctls::needs(facts, to));
    needs.extend(mounts::needs(facts, to));
    needs.extend(configuration::needs(facts, to));
    needs.extend(access::needs(facts));
    Requirements {
        to,
        gaps: modules::gaps(facts, &needs),
        needs,
    }
}
