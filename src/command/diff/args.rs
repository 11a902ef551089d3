//! `kpx diff`

use std::path::PathBuf;

use clap::Args;

use crate::cli::nodes::NodesArgs;
use crate::cli::value;
use kpx_node::backend::Mode;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx diff                               this node, in its configured mode
  kpx diff --packets                     every packet that is treated wrongly
  kpx diff old.tar.gz new.tar.gz         what changed between two bundles";

/// Options of `kpx diff`.
#[derive(Args, Clone, Debug)]
pub struct DiffArgs {
    /// Compare these bundles, or this one with now, instead
    ///
    /// List what changed from the first bundle to the second one or, without a second one, to the node: findings, mode,
    /// Services, endpoints, rules, sets, virtual servers, addresses, settings.
    #[arg(value_name = "BUNDLE", num_args = 0..=2, conflicts_with_all = ["mode", "packets", "all_nodes", "selector"])]
    pub bundles: Vec<PathBuf>,

    /// Compare with this mode [default: the configured mode]
    #[arg(long, value_parser = value::any_mode(), value_name = "MODE", env = "KPX_MODE")]
    pub mode: Option<Mode>,

    /// Compare the fate of every packet instead of rules
    ///
    /// Divide all first packets of connections into classes with the same fate, and list those that the live rules treat
    /// differently from the expected ones, the largest harm first, each with a packet that shows it. Rules of other software
    /// that stop or redirect packets to Services are listed, too.
    #[arg(long, env = "KPX_PACKETS", conflicts_with_all = ["all_nodes", "selector"])]
    pub packets: bool,

    /// The nodes to read.
    #[command(flatten)]
    pub nodes: NodesArgs,
}
