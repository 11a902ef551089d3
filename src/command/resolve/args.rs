//! `kpx resolve`

use std::net::SocketAddr;

use clap::Args;

use crate::cli::nodes::NodesArgs;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx resolve web --namespace demo --env   as a pod in namespace demo
  kpx resolve www.example.com              the search path of an external name

Exit status: 0 as expected, 1 wrong answer or no such name, 3 unknown";

/// Options of `kpx resolve`.
#[derive(Args, Clone, Debug)]
pub struct ResolveArgs {
    /// Resolve this name, as a program in a pod would
    ///
    /// A dot at its end makes the name absolute: the search path is not used. svc/NAME and NAMESPACE/NAME are the name of that
    /// Service.
    pub name: String,

    /// Name of the Service, behind the word `service` or `svc`
    #[arg(value_name = "NAME", hide = true)]
    pub second: Option<String>,

    /// Resolve as a pod in this namespace
    #[arg(long, short = 'n', value_name = "NS", default_value = "default")]
    pub namespace: String,

    /// List the Service's variables in a container
    #[arg(long)]
    pub env: bool,

    /// Use this cluster domain
    #[arg(
        long,
        value_name = "DOMAIN",
        default_value = "cluster.local",
        env = "KPX_CLUSTER_DOMAIN",
        hide_short_help = true
    )]
    pub cluster_domain: String,

    /// Query this server, not Service kube-system/kube-dns
    ///
    /// For example one pod of cluster DNS, to find one that answers wrongly.
    #[arg(long, value_name = "IP:PORT", hide_short_help = true)]
    pub server: Option<SocketAddr>,

    /// The nodes to read.
    #[command(flatten)]
    pub nodes: NodesArgs,
}
