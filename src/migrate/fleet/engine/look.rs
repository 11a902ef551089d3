//! Looks at nodes before anything is changed.

use super::{Cluster, Engine, Trouble};
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
            for (node, made) in nodes.iter().zip(made) {
                let sight = match made {
                    Ok(()) => self.sight(&mut fleet, node).await,
                    Err(error) => Err(error.into()),
                };
                let sight = sight.unwrap_or_else(|why| Sight::Failed(why.to_string()));
                let node = node.clone();
                all.push(Looked { node, sight });
            }
        }
        all
    }

    async fn sight(&mut self, fleet: &mut Fleet, node: &str) -> Result<Sight, Trouble> {
        let over = self.over(fleet, node, Job::Look).await;
        let removed = self.remove(fleet, node, Job::Look).await;
        let over = over?;
        removed?;
        Ok(pod::seen(&over))
    }
}
