//! `kpx report`

use std::path::PathBuf;

use clap::Args;

use crate::cli::nodes::NodesArgs;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx report                                kpx-report-NODE-TIME.html
  kpx report -o a.html --trace shop/cart    with the trace of a Service
  kpx --from node1.tar.gz report -o a.html  the page of a bundle
  kpx report --all-nodes -o all.html        the nodes, the worst finding of each
  kpx watch -o json > changes.json          the changes for --timeline";

/// Options of `kpx report`.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// Add the trace to this address, Service or NodePort
    ///
    /// A target of `kpx trace`; the option can be repeated. Without it, the report has the traces of the first Services with
    /// findings or drift.
    #[arg(long, value_name = "TARGET", env = "KPX_TRACE")]
    pub trace: Vec<String>,

    /// Add the changes that `kpx watch -o json` wrote here
    #[arg(long, value_name = "FILE", env = "KPX_TIMELINE")]
    pub timeline: Option<PathBuf>,

    /// The nodes.
    #[command(flatten)]
    pub nodes: NodesArgs,
}
