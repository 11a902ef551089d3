//! `kpx reconcile` and `kpx cleanup`, and what all commands that change a node share.

use clap::Args;

use super::{NodesArgs, value};
use crate::backend::Mode;
use crate::diff::Layer;

/// Options of every command that can change a node.
///
/// They have no environment variables: consent is typed.
#[derive(Args, Clone, Copy, Debug)]
pub struct ApplyArgs {
    /// Apply the plan, after confirmation
    #[arg(long)]
    pub apply: bool,

    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,
}

pub(super) const RECONCILE_EXAMPLES: &str = "\
Examples:
  kpx reconcile --apply                  apply it, after confirmation
  kpx reconcile --part conntrack         forget connections without an answer
  kpx reconcile --all-nodes --apply      on all nodes, after one confirmation";

/// A part of a node that `kpx reconcile` changes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Part {
    /// What kube-proxy programs.
    Layer(Layer),
    /// Tracked connections.
    Conntrack,
}

impl Part {
    /// Returns the layer that it is, if it is one.
    pub const fn layer(self) -> Option<Layer> {
        match self {
            Self::Layer(layer) => Some(layer),
            Self::Conntrack => None,
        }
    }
}

/// Options of `kpx reconcile`.
#[derive(Args, Clone, Debug)]
pub struct ReconcileArgs {
    /// Use this mode [default: the configured mode]
    #[arg(long, value_parser = value::mode(), value_name = "MODE", env = "KPX_MODE")]
    pub mode: Option<Mode>,

    /// Change only these, with commas between
    #[arg(long, value_parser = value::repaired(), alias = "only", value_name = "PARTS", value_delimiter = ',', env = "KPX_PART")]
    pub part: Vec<Part>,

    /// Continue although another service proxy owns the node
    #[arg(long, hide_short_help = true)]
    pub force: bool,

    /// Delete real servers without draining connections
    #[arg(long, hide_short_help = true)]
    pub no_drain: bool,

    /// Serve the node in place of kube-proxy; needs --apply
    #[arg(long, hide_short_help = true, requires = "apply", conflicts_with_all = ["part", "force"])]
    pub watch: bool,

    /// Whether to change anything.
    #[command(flatten)]
    pub change: ApplyArgs,

    /// The nodes to change.
    #[command(flatten)]
    pub nodes: NodesArgs,
}

pub(super) const CLEANUP_EXAMPLES: &str = "\
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
