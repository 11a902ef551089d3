//! `kpx why`

use clap::Args;

use super::NodesArgs;

pub(super) const SHORT_EXAMPLES: &str = "\
Examples:
  kpx why demo/web                           all ports and addresses
  kpx why nodeport:31082 --source external   for clients outside
  kpx why 10.96.0.10:53                      by an address";

pub(super) const EXAMPLES: &str = "\
Examples:
  kpx why demo/web                           all ports and addresses
  kpx why demo/web:http --probe              and open one real connection
  kpx why web.demo.svc.cluster.local:80      by its DNS name
  kpx why 10.96.0.10                         by an address
  kpx why nodeport:31082 --source external   for clients outside
  kpx why demo/web --all-nodes               on which nodes it works
  kpx --from node1.tar.gz why demo/web       on a bundle

Exit status: 0 works, 1 broken or suspect, 3 unknown";

/// Options of `kpx why`.
#[derive(Args, Clone, Debug)]
pub struct WhyArgs {
    /// Explain this Service, address or NodePort
    ///
    /// NAMESPACE/SERVICE[:PORT], a cluster DNS name with or without :PORT, an address of a Service or an endpoint with or
    /// without a port, or nodeport:N.
    #[arg(value_name = "TARGET")]
    pub target: String,

    /// Trace from an IP, a POD, host or external
    ///
    /// An address, a pod of this node (NAMESPACE/POD), host, or external. Without it, kpx traces from a pod, from a pod of the
    /// Service itself, from the host and from outside.
    #[arg(long, value_name = "SOURCE", env = "KPX_SOURCE")]
    pub source: Option<String>,

    /// Open one real connection to each port
    #[arg(long)]
    pub probe: bool,

    /// The nodes to read.
    #[command(flatten)]
    pub nodes: NodesArgs,
}
