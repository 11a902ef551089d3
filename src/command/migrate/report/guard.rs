//! The guards of bridges in a fleet's migration.

use serde::Serialize;

/// The pod that keeps a node's bridge.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct GuardStatus {
    /// The node.
    pub node: String,
    /// The pod, as `NAMESPACE/NAME`.
    pub pod: String,
    /// Its state.
    pub state: GuardState,
    /// How long the bridge serves without its guard, in seconds.
    pub lease_seconds: u64,
}

/// The state of a guard's pod.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum GuardState {
    /// It runs, and renews the lease.
    Runs,
    /// It runs, and waits for a bridge: none is loaded.
    Unbridged,
    /// It has not started, and why.
    Waits(String),
    /// It has ended or does not exist.
    Gone,
    /// It cannot be read, and why.
    Unknown(String),
}

impl GuardStatus {
    pub(super) fn in_words(&self) -> String {
        let Self {
            node,
            pod,
            state,
            lease_seconds,
        } = self;
        match state {
            GuardState::Runs => {
                format!("{node}: lease of {lease_seconds} s, renewed by pod {pod}")
            }
            GuardState::Unbridged => {
                format!("{node}: not loaded; pod {pod} waits for it")
            }
            GuardState::Waits(why) => format!(
                "{node}: lease of {lease_seconds} s; pod {pod}, which renews it, has not started: {why}"
            ),
            GuardState::Gone => format!(
                "{node}: pod {pod}, which renews the lease, does not run: a loaded bridge expires within {lease_seconds} s \
                 unless another kpx on the node keeps it"
            ),
            GuardState::Unknown(why) => {
                format!(
                    "{node}: lease of {lease_seconds} s; pod {pod}, which renews it, is unknown: {why}"
                )
            }
        }
    }
}
