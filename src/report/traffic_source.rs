//! Where the numbers of traffic come from.

use serde::Serialize;

/// What the numbers come from.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Source {
    /// The connection table.
    Conntrack,
    /// The counters of virtual and real servers.
    Ipvs,
}
