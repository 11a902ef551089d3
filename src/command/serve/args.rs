//! Options of `kpx serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::cli::value;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx serve                                  at 127.0.0.1:10266
  kpx serve --listen 0.0.0.0:10266           for a Prometheus elsewhere
  kpx serve --record /var/lib/kpx/record     and keep bundles of changes";

/// Options of `kpx serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Serve at this address
    #[arg(
        long,
        value_name = "IP:PORT",
        default_value = "127.0.0.1:10266",
        env = "KPX_LISTEN"
    )]
    pub listen: SocketAddr,

    /// Read the counters this often
    ///
    /// Counters are cheap: connections of Services, kube-proxy's last sync, the connection table, and whether rules changed.
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = value::duration, env = "KPX_INTERVAL")]
    pub interval: Duration,

    /// Run all checks at least this often
    ///
    /// They also run soon after rules, virtual servers or the cluster's Services change.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = value::duration, env = "KPX_CHECK_INTERVAL")]
    pub check_interval: Duration,

    /// Use at most N percent of a processor
    ///
    /// After an expensive reading, the next one comes later, even if the intervals are shorter.
    #[arg(long, value_name = "N", default_value = "1", value_parser = value::percent, env = "KPX_BUDGET")]
    pub budget: f64,

    /// Show this many service ports each
    ///
    /// The busiest have series of their own; all others are shown together, as service=\"other\".
    #[arg(long, value_name = "N", default_value = "20", env = "KPX_SERVICES")]
    pub services: usize,

    /// Write a bundle of each change to this folder
    ///
    /// The names are kpx-record-NODE-TIME.tar.gz; only the owner can read them. `--from` reads each, and `kpx diff` compares
    /// two. No bundle is written while less than a tenth of the disk is free.
    #[arg(long, value_name = "DIR", env = "KPX_RECORD")]
    pub record: Option<PathBuf>,

    /// Remove the oldest bundles above this size
    #[arg(long, value_name = "SIZE", default_value = "500MiB", value_parser = value::size, requires = "record", env = "KPX_RECORD_SIZE")]
    pub record_size: u64,

    /// Write a bundle no more often than this
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = value::duration, env = "KPX_RECORD_INTERVAL", hide_short_help = true)]
    pub record_interval: Duration,

    /// Read the counters this many times, then end
    #[arg(long, value_name = "N", env = "KPX_COUNT", hide_short_help = true)]
    pub count: Option<u32>,

    /// Run all checks once, and print what the server needs of them
    #[arg(long, hide = true)]
    pub reading: bool,
}
