//! Looks at nodes before anything is changed.

use super::{Cluster, Engine, Trouble};
use crate::apply::StepError;
use crate::evidence::Time;
use crate::migrate::fleet::pod::{self, Job};
use crate::migrate::fleet::state::{Fleet, FleetPlan};
use crate::migrate::outlook::{Looked, Sight};

/// How many nodes are looked at at once: each reads all Services and endpoints.
const AT_ONCE: usize = 10;

impl<C: Cluster> Engine<'_, C> {
    /// Has a pod on each node of `plan` say what stands in the way, and what a move costs. Without an image nobody looks.
    pub async fn look(&mut self, plan: &FleetPlan) -> Vec<Looked> {
        let Some(image) = &plan.image else {
            return Vec::new();
        };
        let mut fleet = Fleet::new(plan.clone());
        let mut all = Vec::new();
        for nodes in plan.nodes.chunks(AT_ONCE) {
            let mut made = Vec::new();
            for node in nodes {
                let pod = pod::create(plan, image, node, Job::Look);
                made.push(self.apply(pod).await);
            }
            // All of them start at once, so none has longer than the others.
            let began = self.cluster.now();
            for (node, made) in nodes.iter().zip(made) {
                let sight = self.sight(&mut fleet, node, made, began).await;
                let sight = sight.unwrap_or_else(|why| Sight::Failed(why.to_string()));
                let node = node.clone();
                all.push(Looked { node, sight });
            }
        }
        all
    }

    /// Deletes the pods that look at the nodes of `plan`, where it is left early.
    pub async fn look_away(&mut self, plan: &FleetPlan) -> Result<(), StepError> {
        let mut ended = Ok(());
        for node in plan.nodes.iter().filter(|_| plan.image.is_some()) {
            ended = ended.and(self.apply(pod::delete(plan, node, Job::Look)).await);
        }
        ended
    }

    async fn sight(
        &mut self,
        fleet: &mut Fleet,
        node: &str,
        made: Result<(), StepError>,
        began: Time,
    ) -> Result<Sight, Trouble> {
        let over = match made {
            Ok(()) => self.follow(fleet, node, Job::Look, began).await,
            // It may be there all the same: the answer may have been lost.
            Err(error) => Err(error.into()),
        };
        let removed = self.remove(fleet, node, Job::Look).await;
        let over = over?;
        removed?;
        Ok(pod::seen(&over))
    }
}
