//! `kpx why`

use clap::{Args, ValueEnum};

use crate::cli::nodes::NodesArgs;
use crate::cli::service::ServiceArgs;

pub(crate) const SHORT_EXAMPLES: &str = "\
Examples:
  kpx why demo/web                           all ports and addresses
  kpx why nodeport:31082 --source outside    for clients outside
  kpx why 10.96.0.10:53                      by an address";

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx why demo/web                           all ports and addresses
  kpx why svc/web -n demo                    the same, as for kubectl
  kpx why demo/web:http --probe              and open one real connection
  kpx why demo/web:http --probe=pod          and open one from a new pod
  kpx why web.demo.svc.cluster.local:80      by its DNS name
  kpx why 10.96.0.10                         by an address
  kpx why nodeport:31082 --source outside    for clients outside
  kpx why demo/web --all-nodes               on which nodes it works
  kpx why demo/web -o picture                the connections, drawn
  kpx --from node1.tar.gz why demo/web       on a bundle

Exit status: 0 works, also by design, 1 refused, lost, misled or partly, 3 unknown";

/// The origin of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum ProbeFrom {
    /// The node.
    Host,
    /// A new pod on the node.
    Pod,
}

/// Options of `kpx why`.
#[derive(Args, Clone, Debug)]
pub struct WhyArgs {
    /// Explain this Service, address or NodePort
    ///
    /// A Service as for kubectl (SERVICE, svc/SERVICE or NAMESPACE/SERVICE, with or without :PORT), a cluster DNS name with or
    /// without :PORT, an address of a Service or an endpoint with or without a port, or nodeport:N.
    #[arg(value_name = "TARGET")]
    pub target: String,

    /// How the Service is named.
    #[command(flatten)]
    pub service: ServiceArgs,

    /// Trace from this client only: IP, POD, host or outside
    ///
    /// An address, a pod of this node (NAMESPACE/POD), host, or outside. Without it, kpx traces from a pod, from a pod of the
    /// Service itself, from the host and from outside.
    #[arg(long, value_name = "SOURCE", env = "KPX_SOURCE")]
    pub source: Option<String>,

    /// Open one real connection to each port
    ///
    /// From the node, or with --probe=pod from a new pod on it, which has no access to the node. The pod is in namespace
    /// kube-system: network policies may treat it differently from your clients.
    #[arg(long, value_enum, value_name = "FROM", num_args = 0..=1, require_equals = true, default_missing_value = "host")]
    pub probe: Option<ProbeFrom>,

    /// The nodes to read.
    #[command(flatten)]
    pub nodes: NodesArgs,
}

impl WhyArgs {
    /// Returns the options of an explanation of `target` with all defaults.
    pub(crate) fn of(target: &str) -> Self {
        Self {
            target: target.to_owned(),
            service: ServiceArgs::default(),
            source: None,
            probe: None,
            nodes: NodesArgs::one(),
        }
    }
}
