//! `kpx bridge`

use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::cli::change::ApplyArgs;
use crate::cli::value;
use kpx_node::backend::Mode;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx bridge up --apply                  load it, after confirmation
  kpx bridge follow                      keep it up to date, and serving
  kpx bridge down --apply                remove it";

/// Options of `kpx bridge`.
#[derive(Args, Debug)]
pub struct BridgeArgs {
    /// Do this
    #[arg(value_enum, value_name = "ACTION")]
    pub action: BridgeAction,

    /// Serve like this mode
    ///
    /// Serve NodePorts and masquerade as this mode does. The default is the mode that kube-proxy is configured for.
    #[arg(long, value_parser = value::mode(), value_name = "MODE", env = "KPX_MODE")]
    pub mode: Option<Mode>,

    /// Serve this long without renewal: 10s to 1h
    ///
    /// follow and guard renew the lease. When it expires, new connections use kube-proxy's rules.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = value::lease, env = "KPX_LEASE")]
    pub lease: Duration,

    /// Run guard in the background
    ///
    /// guard runs as a transient systemd unit, or as a background process on a host without systemd.
    #[arg(long, hide_short_help = true)]
    pub detach: bool,

    /// Wait this long for a bridge to guard
    ///
    /// guard waits longer while another kpx changes the node or another guard runs.
    #[arg(long = "await", value_name = "TIME", default_value = "0s", value_parser = value::duration, env = "KPX_AWAIT",
        hide_short_help = true)]
    pub awaits: Duration,

    /// Whether to change anything.
    #[command(flatten)]
    pub change: ApplyArgs,
}

/// An action on the bridge.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum BridgeAction {
    /// Print the bridge as input of nft -f
    Show,
    /// Load the bridge, or replace the loaded one; with --apply
    Up,
    /// Remove the bridge; with --apply
    Down,
    /// Keep the bridge up to date and renew its lease, until Ctrl-C
    Follow,
    /// Do the same, and remove the bridge when kube-proxy's rules are complete
    Guard,
}
