//! `kpx cleanup`

use clap::Args;

use crate::cli::change::ApplyArgs;
use crate::cli::nodes::NodesArgs;
use crate::cli::value;
use kpx_node::backend::Mode;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx cleanup --mode iptables            plan the removal of iptables leftovers
  kpx cleanup --mode iptables --apply    remove them, after confirmation";

/// Options of `kpx cleanup`.
#[derive(Args, Clone, Debug)]
pub struct CleanupArgs {
    /// Remove the leftovers of this mode
    #[arg(long, value_parser = value::any_mode(), value_name = "MODE")]
    pub mode: Mode,

    /// Remove the mode although it serves the node
    #[arg(long)]
    pub force: bool,

    /// Whether to change anything.
    #[command(flatten)]
    pub change: ApplyArgs,

    /// The nodes to change.
    #[command(flatten)]
    pub nodes: NodesArgs,
}
