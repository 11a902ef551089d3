//! `kpx explain`

use clap::Args;

use crate::cli::value;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx explain MX01                       one check
  kpx explain                            all checks, one line each
  kpx explain modes                      how each mode of kube-proxy works
  kpx explain providers                  recipes for a change of the mode
  kpx explain eks                        the recipe of a provider";

/// Options of `kpx explain`.
#[derive(Args, Debug)]
pub struct ExplainArgs {
    /// Explain this check or page; without it, list checks
    ///
    /// An id or name of a check; modes, schedulers, affinity or chains: how kube-proxy works; `providers`, or the short name
    /// of a provider, such as eks or k3s: where it keeps kube-proxy's mode, and the commands that change it.
    #[arg(value_name = "ID", value_parser = value::explained(), hide_possible_values = true)]
    pub check: Option<String>,
}
