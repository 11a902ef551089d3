//! `kpx explain`

use clap::Args;

use crate::cli::value;
use kpx_node::backend::Mode;
use kpx_node::cluster::release::Goal;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx explain MX01                       one check
  kpx explain                            all checks, one line each
  kpx explain sysctl                     the checks of a group
  kpx explain modes                      how each mode of kube-proxy works
  kpx explain eks                        the recipe of a provider";

/// Options of `kpx explain`.
#[derive(Args, Debug)]
pub struct ExplainArgs {
    /// Explain these checks or pages; without them, list checks
    ///
    /// An id or name of a check; a group, whose checks are listed; modes, schedulers, affinity or chains: how kube-proxy works;
    /// `providers`, or the short name of a provider, such as eks or k3s: where it keeps kube-proxy's mode, and the commands that
    /// change it.
    #[arg(id = "check", value_name = "ID", value_parser = value::explained(), hide_possible_values = true)]
    pub checks: Vec<String>,

    /// List the checks before a switch to this mode
    #[arg(long, value_parser = value::mode(), value_name = "MODE", conflicts_with = "check")]
    pub to: Option<Mode>,

    /// List the checks before an upgrade to this release
    #[arg(long, hide_short_help = true, value_parser = value::goal, value_name = "RELEASE", conflicts_with_all = ["check", "to"])]
    pub release: Option<Goal>,
}
