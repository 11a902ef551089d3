//! `kpx pod`

use clap::Args;

/// Options of the main process of a pod.
#[derive(Clone, Debug, Args)]
pub struct PodArgs {
    /// Carry out a plan that arrives before standard input ends
    #[arg(long)]
    pub apply: bool,

    /// Give the plan on standard input to the main process
    #[arg(long, conflicts_with = "apply")]
    pub keep_plan: bool,

    /// Print the answer to this query, in JSON
    #[arg(long, value_name = "JSON", conflicts_with_all = ["apply", "keep_plan"])]
    pub query: Option<String>,
}
