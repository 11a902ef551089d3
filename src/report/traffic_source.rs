//! Where the numbers of traffic come from.

use serde::Serialize;

/// The source of the numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Source {
    /// The connection table.
    Conntrack,
    /// The counters of virtual and real servers.
    Ipvs,
}
