//! `kpx watch`

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::cli::checks::ChecksArgs;
use crate::cli::value;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx watch                                what changes on this node
  kpx watch --findings                     findings as they appear and go
  kpx watch --interval 1m -o json          a line of JSON per change
  kpx watch --exec /usr/local/bin/page     run a program for each change";

/// Options of `kpx watch`.
#[derive(Args, Clone, Debug)]
pub struct WatchArgs {
    /// Print changes of findings alone
    #[arg(long)]
    pub findings: bool,

    /// The checks whose findings are followed.
    #[command(flatten)]
    pub checks: ChecksArgs,

    /// Check for changes this often
    ///
    /// This costs little: kpx finds out whether rules, virtual servers, addresses, settings or kube-proxy changed. The API server
    /// reports changes of Services. Only then is the node read. If changes cannot be noticed in this way, the node is read
    /// every 10 seconds, or at each longer interval.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = value::duration, env = "KPX_INTERVAL")]
    pub interval: Duration,

    /// Read the node at least this often
    ///
    /// This finds other changes, such as changes of IP sets and files.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = value::duration, env = "KPX_CHECK_INTERVAL",
        hide_short_help = true)]
    pub check_interval: Duration,

    /// Read the node this many times, then end
    #[arg(long, value_name = "N", env = "KPX_COUNT", hide_short_help = true)]
    pub count: Option<u32>,

    /// Run this program for each change
    ///
    /// The program gets the change as a line of JSON on its standard input. No shell is started.
    #[arg(long, value_name = "PROGRAM", env = "KPX_EXEC")]
    pub exec: Option<PathBuf>,
}
