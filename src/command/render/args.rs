//! `kpx render`

use clap::Args;

use crate::cli::value;
use kpx_judge::diff::Layer;
use kpx_node::backend::Mode;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx render                             every part of the configured mode
  kpx render --part iptables | iptables-restore --noflush --test
  kpx --family 6 render --part iptables  the IPv6 rules
  kpx --from node1.tar.gz render --mode nftables --part nftables";

/// Options of `kpx render`.
#[derive(Args, Debug)]
pub struct RenderArgs {
    /// Use this mode [default: the configured mode]
    #[arg(long, value_parser = value::mode(), value_name = "MODE", env = "KPX_MODE")]
    pub mode: Option<Mode>,

    /// Print this part only
    ///
    /// Print this part only, without a heading: the input of iptables-restore --noflush (IPv4, or IPv6 with --family 6),
    /// ipset restore, ipvsadm --restore, ip -batch (link), nft -f or sysctl -p.
    #[arg(long, value_parser = value::part(), value_name = "PART", env = "KPX_PART")]
    pub part: Option<Layer>,
}
