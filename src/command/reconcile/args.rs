//! `kpx reconcile`

use clap::Args;

use crate::cli::change::ApplyArgs;
use crate::cli::change::Part;
use crate::cli::nodes::NodesArgs;
use crate::cli::value;
use kpx_node::backend::Mode;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx reconcile --apply                  apply it, after confirmation
  kpx reconcile --cleanup iptables       remove what mode iptables left behind
  kpx reconcile --all-nodes --apply      on all nodes, after one confirmation";

/// Options of `kpx reconcile`.
#[derive(Args, Clone, Debug)]
pub struct ReconcileArgs {
    /// Use this mode [default: the configured mode]
    #[arg(long, value_parser = value::mode(), value_name = "MODE", env = "KPX_MODE")]
    pub mode: Option<Mode>,

    /// Change only these, with commas between
    #[arg(long, value_parser = value::repaired(), alias = "only", value_name = "PARTS", value_delimiter = ',', env = "KPX_PART", hide_short_help = true)]
    pub part: Vec<Part>,

    /// Remove the leftovers of this mode instead
    ///
    /// Rules are removed first, then chains, IP sets, virtual servers, addresses and the link. Objects that the active mode uses
    /// too, and objects that other software created or refers to, stay. kpx refuses to remove the active mode.
    #[arg(long, value_parser = value::any_mode(), value_name = "MODE", conflicts_with_all = ["mode", "part", "no_drain", "watch"])]
    pub cleanup: Option<Mode>,

    /// Continue although another service proxy owns the node
    ///
    /// With --cleanup: although the mode serves the node.
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

impl ReconcileArgs {
    /// Returns the arguments of the command that applies the plan.
    pub(crate) fn applying(&self) -> Vec<String> {
        let parts = value::repaired().0.iter();
        let parts = parts.filter(|(_, part, _)| self.part.contains(part));
        let parts: Vec<&str> = parts.map(|(name, ..)| *name).collect();
        let mut words = vec!["reconcile".to_owned()];
        let valued = [
            ("--mode", self.mode.map(|mode| mode.name().to_owned())),
            ("--part", (!parts.is_empty()).then(|| parts.join(","))),
            ("--cleanup", self.cleanup.map(|mode| mode.name().to_owned())),
        ];
        for (option, value) in valued {
            words.extend(
                value
                    .into_iter()
                    .flat_map(|value| [option.to_owned(), value]),
            );
        }
        let switches = [("--force", self.force), ("--no-drain", self.no_drain)];
        let switches = switches.into_iter().filter(|(_, is_set)| *is_set);
        words.extend(switches.map(|(option, _)| option.to_owned()));
        words.extend(self.nodes.words());
        words.push("--apply".to_owned());
        words
    }
}
