//! Previews of all nodes, before anything is changed.

use super::{Cluster, Engine, TaskError};
use crate::fleet::pod::{self, Job};
use crate::fleet::state::{Fleet, FleetPlan};
use crate::preview::{NodePreview, PreviewResult};
use kpx_node::apply::StepError;
use kpx_node::evidence::Time;

/// The number of previews at a time: each reads all Services and endpoints.
const AT_ONCE: usize = 10;

impl<C: Cluster> Engine<'_, C> {
    /// Runs a preview in a pod on each node of `plan`: what blocks the migration, and what it costs. Without an image, it
    /// runs none.
    pub async fn previews(&mut self, plan: &FleetPlan) -> Vec<NodePreview> {
        let Some(image) = &plan.image else {
            return Vec::new();
        };
        let mut fleet = Fleet::new(plan.clone());
        let mut all = Vec::new();
        for nodes in plan.nodes.chunks(AT_ONCE) {
            let mut made = Vec::new();
            for node in nodes {
                let pod = pod::create(plan, image, node, Job::Preview);
                made.push(self.apply(pod).await);
            }
            // They start together, so the deadline is the same.
            let began = self.cluster.now();
            for (node, made) in nodes.iter().zip(made) {
                let result = self.preview(&mut fleet, node, made, began).await;
                let result = result.unwrap_or_else(|why| PreviewResult::Failed(why.to_string()));
                let node = node.clone();
                all.push(NodePreview { node, result });
            }
        }
        all
    }

    /// Deletes the pods of previews that were interrupted.
    pub async fn cancel_previews(&mut self, plan: &FleetPlan) -> Result<(), StepError> {
        let mut ended = Ok(());
        for node in plan.nodes.iter().filter(|_| plan.image.is_some()) {
            ended = ended.and(self.apply(pod::delete(plan, node, Job::Preview)).await);
        }
        ended
    }

    async fn preview(
        &mut self,
        fleet: &mut Fleet,
        node: &str,
        made: Result<(), StepError>,
        began: Time,
    ) -> Result<PreviewResult, TaskError> {
        let over = match made {
            Ok(()) => self.follow(fleet, node, Job::Preview, began).await,
            // The pod may exist anyway: the answer may have been lost.
            Err(error) => Err(error.into()),
        };
        let removed = self.remove(fleet, node, Job::Preview).await;
        let over = over?;
        removed?;
        Ok(pod::previewed(&over))
    }
}
