//! `kpx trace`

use std::time::Duration;

use clap::Args;

use crate::cli::nodes::NodesArgs;
use crate::cli::service::ServiceArgs;
use crate::cli::value;
use kpx_node::backend::Mode;
use kpx_node::net::Proto;

pub(crate) const SHORT_EXAMPLES: &str = "\
Examples:
  kpx trace default/nginx-svc --source host    a Service, from this node
  kpx trace default/nginx-svc --mode nftables  in another mode";

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx trace 10.97.54.248:80                    from pods and the host
  kpx trace default/nginx-svc --source host    a Service, from this node
  kpx trace nodeport:31082 --source outside    a NodePort, from outside
  kpx trace [fd00:10:96::12]:80 -o wide        with every rule in full
  kpx trace default/nginx-svc --mode nftables  in another mode
  kpx trace default/nginx-svc -o picture       the connections, drawn
  kpx trace default/nginx-svc --probe          and open one real connection
  kpx trace default/nginx-svc --live           and let the kernel trace one

Exit status: 0 works, 1 refused, lost, misled or partly, 3 unknown";

/// Options of `kpx trace`.
#[derive(Args, Clone, Debug)]
pub struct TraceArgs {
    /// Trace to this address, Service or NodePort
    ///
    /// IP:PORT, [IP6]:PORT, a Service as for kubectl (SERVICE, svc/SERVICE or NAMESPACE/SERVICE, with or without :PORT), a
    /// cluster DNS name with :PORT, or nodeport:N.
    #[arg(value_name = "TARGET")]
    pub target: String,

    /// How the Service is named.
    #[command(flatten)]
    pub service: ServiceArgs,

    /// Trace from this client only: IP, POD, host or outside
    ///
    /// An address, a pod of this node (NAMESPACE/POD), host, or outside. Without it, kpx traces from a pod and from the host;
    /// to a cluster IP also from a pod of the Service itself, and to other addresses also from outside.
    #[arg(long, value_name = "SOURCE", env = "KPX_SOURCE")]
    pub source: Option<String>,

    /// Use this protocol: tcp, udp, sctp, or icmp for a ping
    #[arg(long, value_name = "P", value_parser = value::protocol, env = "KPX_PROTOCOL", hide_short_help = true)]
    pub protocol: Option<Proto>,

    /// Trace a later packet of an established connection
    ///
    /// Filters see the packet as established; it is translated like the connection's first packet.
    #[arg(long, env = "KPX_ESTABLISHED", hide_short_help = true)]
    pub established: bool,

    /// Trace a packet that enters with this mark
    ///
    /// The mark that a socket (`SO_MARK`) or a program of eBPF sets, decimal or 0x hexadecimal. Without it, packets enter without
    /// a mark.
    #[arg(long, value_name = "MARK", value_parser = value::mark, default_value = "0", hide_default_value = true, env = "KPX_MARK", hide_short_help = true)]
    pub mark: u32,

    /// Trace the rules that this mode would have
    ///
    /// Trace the rules that kube-proxy would program in this mode, not the live rules.
    #[arg(long, value_parser = value::mode(), value_name = "MODE", env = "KPX_MODE")]
    pub mode: Option<Mode>,

    /// Compare with a packet that the kernel traces
    ///
    /// Waits for the first packet of a connection to the target, from --source if given, for 10s or TIME, and prints the rules
    /// that it met beside those predicted for it. With --probe, kpx opens the connection. For this, kpx adds a table of its own
    /// to nftables, which the kernel removes when kpx ends, however it ends. Rules of iptables' legacy back end are compared if the
    /// kernel has a logger, which kpx does not change: the sysctl `net.netfilter.nf_log.2` (IPv6: `nf_log.10`) is
    /// `nfnetlink_log` and no other program receives its group 0, or it is `nf_log_ipv4` (`nf_log_ipv6`), with which the kernel
    /// writes to its own log. Otherwise these rules are reported as not observed.
    #[arg(long, value_name = "TIME", value_parser = value::duration, num_args = 0..=1, require_equals = true, default_missing_value = "10s", env = "KPX_LIVE", conflicts_with_all = ["mark", "all_nodes", "selector"])]
    pub live: Option<Duration>,

    /// Open one real connection and report its backend
    #[arg(long, hide_short_help = true, conflicts_with_all = ["mode", "mark", "established", "all_nodes", "selector"])]
    pub probe: bool,

    /// The nodes to read.
    #[command(flatten)]
    pub nodes: NodesArgs,
}

impl TraceArgs {
    /// Returns the options of a trace to `target` with all defaults.
    pub fn to(target: &str) -> Self {
        Self {
            target: target.to_owned(),
            service: ServiceArgs::default(),
            source: None,
            protocol: None,
            established: false,
            mark: 0,
            mode: None,
            live: None,
            probe: false,
            nodes: NodesArgs::one(),
        }
    }
}
