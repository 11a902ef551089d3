//! `kpx access`

use clap::Args;
use clap::builder::PossibleValuesParser;

use kpx_node::access::{COMMANDS, Subject};

pub(crate) const SHORT_EXAMPLES: &str = "\
Examples:
  kpx access                                everything kpx may need
  kpx access doctor --all-nodes             for kpx doctor --all-nodes
  kpx access doctor --manifest              the roles for kpx doctor";

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx access                                everything kpx may need
  kpx access doctor --all-nodes             for kpx doctor --all-nodes
  kpx access migrate --as jane              as another user
  kpx access doctor --manifest --subject user:jane | kubectl apply -f -

Exit status: 0 all allowed, 1 something is missing, 3 unknown";

/// Options of `kpx access`.
#[derive(Args, Debug)]
pub struct AccessArgs {
    /// Show what this command needs
    ///
    /// doctor, resolve, diff, snapshot, show, trace, why, render, preflight, reconcile, bridge or migrate: the commands
    /// that contact the API server.
    #[arg(value_name = "COMMAND", value_parser = PossibleValuesParser::new(COMMANDS), hide_possible_values = true)]
    pub command: Option<String>,

    /// Add what reading other nodes needs
    ///
    /// With --all-nodes or --node NAME, kpx reads nodes through a pod on each. Without COMMAND, these permissions are always
    /// listed.
    #[arg(long)]
    pub all_nodes: bool,

    /// Print the manifest of roles and bindings
    ///
    /// kubectl apply accepts it. kpx does not contact the API server.
    #[arg(long)]
    pub manifest: bool,

    /// Use this subject in the bindings
    ///
    /// user:NAME, group:NAME or serviceaccount:NAMESPACE/NAME. The default is the service account kube-system/kpx, which the
    /// manifest then creates.
    #[arg(
        long,
        value_name = "SUBJECT",
        requires = "manifest",
        default_value_t,
        hide_default_value = true
    )]
    pub subject: Subject,
}
