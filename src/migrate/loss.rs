//! What a journey is expected to cost, before it begins.

use serde::Serialize;

use super::drain::Gauge;
use super::journey::{Journey, Leg, Strategy};
use super::stage;
use crate::backend::Mode;
use crate::desired::DesiredState;
use crate::evidence::Gap;
use crate::node::NodeSnapshot;
use crate::node::runtime::Metrics;
use crate::plan;

/// What is lost on the way there.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Loss {
    /// What becomes of new connections.
    pub new: New,
    /// Established connections that break.
    pub established: Established,
    /// For how long endpoints that change are not followed, in seconds, about.
    pub unfollowed_seconds: u64,
}

/// What becomes of new connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum New {
    /// None is lost.
    Kept,
    /// None is lost, but those that host processes make may be, where traffic of pods cannot be told from theirs.
    HostsAtRisk,
}

/// Established connections that break.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "detail")]
pub enum Established {
    /// None.
    None,
    /// Those that are left when the wait for their end is over.
    AfterDrain(Gauge),
    /// All that IPVS forwards.
    All(Gauge),
    /// How many is not known.
    Unknown(Gap),
}

/// Returns the expected loss of `journey`, on `node` as it is.
pub fn expect(node: &NodeSnapshot<'_>, desired: &DesiredState, journey: &Journey) -> Loss {
    let established = match journey.from {
        Mode::Iptables | Mode::Nftables => Established::None,
        Mode::Ipvs => match gauge(node, desired, journey.strategy) {
            Err(gap) => Established::Unknown(gap),
            Ok(gauge) if gauge.count == 0 => Established::None,
            Ok(gauge) => {
                let drains = journey.strategy == Strategy::Bridge || journey.to() == Mode::Iptables;
                if drains {
                    Established::AfterDrain(gauge)
                } else {
                    Established::All(gauge)
                }
            }
        },
    };
    let hosts = journey.to() == Mode::Ipvs && !stage::masquerades(desired);
    let new = if hosts { New::HostsAtRisk } else { New::Kept };
    let sync = first_sync(node, desired, journey.target(Leg::There));
    let unfollowed = match journey.strategy {
        Strategy::Bridge => 0.0,
        Strategy::InPlace | Strategy::DrainNode => START + sync,
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate of seconds is neither negative nor large"
    )]
    Loss {
        new,
        established,
        unfollowed_seconds: unfollowed.ceil() as u64,
    }
}

/// Counts the connections through virtual servers that outlive what `strategy` does beforehand.
fn gauge(
    node: &NodeSnapshot<'_>,
    desired: &DesiredState,
    strategy: Strategy,
) -> Result<Gauge, Gap> {
    let gone = match strategy {
        Strategy::InPlace | Strategy::Bridge => Vec::new(),
        Strategy::DrainNode => plan::evicted_addresses(node)?,
    };
    Gauge::read_without(node, Some(desired), &gone)
}

/// From the end of the old kube-proxy to the first sync of the new one: its start, and the lists of Services and endpoints.
const START: f64 = 3.0;

/// Returns how many seconds the first sync of mode `to` takes, about.
///
/// Fitted to what was measured: in iptables mode 32 s for 20,000 endpoints; in nftables mode 2 s for those, and 795 s for
/// 250,011 (kubernetes/kubernetes#135639); in ipvs mode an entry of a set takes a process of its own
/// (kubernetes/kubernetes#133773), but for those that are there already.
fn first_sync(node: &NodeSnapshot<'_>, desired: &DesiredState, to: Mode) -> f64 {
    let ports = desired.families.iter().flat_map(|state| &state.ports);
    let count: usize = ports.map(|port| port.endpoints.len()).sum();
    let count = f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    let reckoned = match to {
        Mode::Iptables => count * 1.6e-3,
        Mode::Ipvs => count * 1e-3,
        Mode::Nftables => count * 1e-4 + count * count * 1.2e-8,
    };
    // A slow machine shows by how long it takes now.
    let now = node.metrics().ok().and_then(Metrics::full_sync);
    now.map_or(reckoned, |now| reckoned.max(now))
}
