//! `kpx preflight`

use clap::Args;

use crate::cli::nodes::NodesArgs;
use crate::cli::value;
use kpx_node::backend::Mode;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx preflight --to ipvs                    what the mode needs
  kpx preflight --to ipvs --load             load its modules and test them
  kpx preflight --to ipvs --load --persist   and load them at every boot
  kpx --from node1.tar.gz preflight --to nftables";

/// Options of `kpx preflight`.
#[derive(Args, Clone, Debug)]
pub struct PreflightArgs {
    /// Check the requirements of this mode
    #[arg(long, value_parser = value::mode(), value_name = "MODE", env = "KPX_TO")]
    pub to: Mode,

    /// Load the modules that the mode needs, and test them
    ///
    /// The test runs in a temporary network namespace. If it fails, the modules are unloaded.
    #[arg(long, conflicts_with_all = ["all_nodes", "selector"])]
    pub load: bool,

    /// Load the modules at every boot
    ///
    /// Writes /etc/modules-load.d/kpx.conf.
    #[arg(long, conflicts_with_all = ["all_nodes", "selector"])]
    pub persist: bool,

    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,

    /// The nodes to read.
    #[command(flatten)]
    pub nodes: NodesArgs,
}
