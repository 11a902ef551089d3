//! Packets whose time to live ends on the way: each node that forwards one takes one off.

use super::judge::{Judge, Question};
use super::{DEFAULT_TTL, Fault, Obstacle};
use crate::trace::{Effect, Entry, Hop, Outcome, SENT_TTL};

/// The most hops that a packet needs to any endpoint in a cluster.
pub(super) const FEW_HOPS: u8 = 2;

impl Judge<'_> {
    /// Returns the fault of a packet whose time to live ends before its endpoint.
    pub(super) fn ttl(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let end = outcome.destination.0;
        if self.ends_here(outcome) {
            return None;
        }
        let is_elsewhere =
            self.places.is_pod(end) && self.is_here(question, outcome) == Some(false);
        let is_set = |hop: &std::rc::Rc<Hop>| matches!(hop.effect, Effect::Ttl { .. });
        if let Some(hop) = outcome.hops.iter().rposition(is_set) {
            let left = outcome.ttl;
            return (left <= 1 && is_elsewhere).then(|| Fault::Stopped {
                hop,
                refused: false,
                reason: format!(
                    "they leave with a TTL of {left}, so the node of endpoint {end} does not forward them to the pod"
                ),
            });
        }
        let flow = question.flow;
        let (ttl, pod) = match (flow.entry, flow.source) {
            (Entry::Host, _) => {
                let ttl = self.node.sysctl().ok()?.get(DEFAULT_TTL)?.parse().ok()?;
                (ttl, None)
            }
            (Entry::Pod, Some(pod)) => {
                let (ttl, pid) = self.ttl_inside(pod)?;
                (ttl, Some((pod, pid)))
            }
            _ => return None,
        };
        let hops = SENT_TTL - outcome.ttl.min(SENT_TTL) + u8::from(is_elsewhere);
        // IPv6 has a setting of its own.
        (end.is_ipv4() && ttl <= hops)
            .then(|| Fault::Obstacle(Box::new(Obstacle::Ttl { ttl, pod })))
    }
}
