//! Packets that leave the node with a time to live that ends at the next one, which would have to forward them to the pod.

use super::Fault;
use super::judge::{Judge, Question};
use crate::trace::{Effect, Outcome};

impl Judge<'_> {
    /// Returns the fault of a packet that the node of its endpoint does not forward.
    pub(super) fn ttl(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let is_set =
            |hop: &std::rc::Rc<crate::trace::Hop>| matches!(hop.effect, Effect::Ttl { .. });
        let (left, end) = (outcome.ttl, outcome.destination.0);
        if left > 1
            || self.ends_here(outcome)
            || !self.places.is_pod(end)
            || self.is_here(question, outcome) != Some(false)
        {
            return None;
        }
        Some(Fault::Stopped {
            hop: outcome.hops.iter().rposition(is_set)?,
            refused: false,
            reason: format!(
                "they leave with a TTL of {left}, so the node of endpoint {end} does not forward them to the pod"
            ),
        })
    }
}
