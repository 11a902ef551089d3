//! `kpx show`

use clap::Args;

use crate::cli::nodes::NodesArgs;
use crate::cli::value;
use crate::view::View;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx show services                    how this node handles each Service
  kpx show services default/nginx-svc  objects, drift, traces of one
  kpx show chains default/nginx-svc    its rules, as a tree
  kpx show config                      mode and settings, with their sources";

/// Options of `kpx show`.
#[derive(Args, Clone, Debug)]
pub struct ShowArgs {
    /// Show this view
    #[arg(value_parser = value::view(), value_name = "VIEW")]
    pub view: View,

    /// Show this object only
    ///
    /// Show this object only: a Service (NAMESPACE/NAME[:PORT]), chain, set, address, port, module or setting.
    pub name: Option<String>,

    /// The nodes to read.
    #[command(flatten)]
    pub nodes: NodesArgs,
}
