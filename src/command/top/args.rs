//! `kpx top`

use std::time::Duration;

use clap::Args;

use super::view::SortKey;
use crate::cli::service::ServiceArgs;
use crate::cli::value::{self, Choice};

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx top                                  on the terminal, until q
  kpx top default/nginx-svc                one Service, by backend
  kpx top -o json | jq .services           a line of JSON per interval";

/// Options of `kpx top`.
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// Show this Service only, by backend
    ///
    /// NAMESPACE/NAME, svc/NAME or NAME, with or without :PORT.
    #[arg(value_name = "SERVICE")]
    pub service: Option<String>,

    /// How the Service is named.
    #[command(flatten)]
    pub named: ServiceArgs,

    /// Read the counters this often
    ///
    /// Longer where kpx would use more than 3% of a processor.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = value::duration, env = "KPX_INTERVAL")]
    pub interval: Duration,

    /// Print this many intervals, then end
    #[arg(long, value_name = "N", env = "KPX_COUNT")]
    pub count: Option<u32>,

    /// Sort by this column
    #[arg(long, value_parser = sort(), value_name = "COLUMN", default_value = "new", env = "KPX_SORT")]
    pub sort: SortKey,
}

impl Default for TopArgs {
    /// All Services, every two seconds.
    fn default() -> Self {
        Self {
            service: None,
            named: ServiceArgs::default(),
            interval: Duration::from_secs(2),
            count: None,
            sort: SortKey::New,
        }
    }
}

/// Parses a column that `kpx top` sorts by.
const fn sort() -> Choice<SortKey> {
    Choice(&[
        ("new", SortKey::New, "new connections"),
        ("open", SortKey::Open, "open connections"),
        ("packets", SortKey::Packets, "packets"),
        ("bytes", SortKey::Bytes, "bytes"),
        ("refused", SortKey::Refused, "rejected and dropped packets"),
        ("name", SortKey::Name, "names of Services"),
    ])
}
