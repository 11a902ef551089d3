//! The stage that evicts the node's pods and waits until they have left.

use std::time::Duration;

use super::{Engine, Event, MigrationNode, PAUSE, StageError};
use crate::evict::{Kept, Leaving, evicted, name, still};
use crate::migration::Stage;
use kpx_judge::plan::{EVICT_NEEDS, Plan};
use kpx_node::action::Object;
use kpx_node::apply::{self, StepError};
use kpx_node::evidence::Gap;
use kpx_node::node::NodeSnapshot;

/// The pause before the eviction of a pod is requested again, as in `kubectl drain`.
const AGAIN: Duration = Duration::from_secs(5);

impl<N: MigrationNode> Engine<'_, N> {
    /// Evicts the pods of `plan`, and waits until they are gone. An eviction that a disruption budget refuses is retried.
    pub(super) async fn evict(&mut self, plan: &Plan) -> Result<Vec<String>, StageError> {
        let began = self.node.now();
        let (mut waited, mut asked) = (Duration::ZERO, None);
        let mut kept = Vec::new();
        loop {
            let there = self.there(plan).await;
            if let Ok(there) = &there {
                if asked.is_none_or(|at| waited >= at + AGAIN) {
                    kept = self.ask(plan, there, asked.is_none()).await?;
                    asked = Some(waited);
                }
                let leaving = Leaving {
                    count: there.len(),
                    kept: kept.clone(),
                };
                (self.on_event)(Event::Evict(&leaving));
                if leaving.count == 0 {
                    return Ok(Vec::new());
                }
            }
            if waited.max(self.node.now().since(began)) >= self.limits.drain {
                let waited = self.limits.drain;
                let what = match there {
                    Ok(there) => still(&there, &kept),
                    Err(gap) => gap.to_string(),
                };
                return Err(StageError::Evict { waited, what });
            }
            self.pause(waited, self.limits.drain).await?;
            waited += PAUSE;
        }
    }

    /// Returns the pods of `plan` that have not left, each with whether it is terminating.
    async fn there<'p>(&mut self, plan: &'p Plan) -> Result<Vec<(&'p Object, bool)>, Gap> {
        let evidence = self.node.read(EVICT_NEEDS).await;
        let node = NodeSnapshot::new(&evidence);
        let pods = node.pods()?;
        let there = plan.steps.iter().filter_map(|step| {
            let (pod, uid) = evicted(step)?;
            let found = pods.iter().find(|pod| pod.metadata.uid == *uid)?;
            Some((pod, found.metadata.deletion_timestamp.is_some()))
        });
        Ok(there.collect())
    }

    /// Requests the eviction of the pods in `there` that are not terminating; returns those whose eviction is refused.
    async fn ask(
        &mut self,
        plan: &Plan,
        there: &[(&Object, bool)],
        first: bool,
    ) -> Result<Vec<Kept>, StageError> {
        let mut kept = Vec::new();
        for (number, step) in plan.steps.iter().enumerate() {
            let Some((pod, _)) = evicted(step) else {
                continue;
            };
            if !there.contains(&(pod, false)) {
                continue;
            }
            if first {
                (self.on_event)(Event::Step(apply::Event::Begins(number, &step.title)));
            }
            match self.node.apply(&step.action).await {
                Ok(()) => {}
                Err(StepError::Held(why)) => {
                    let pod = name(pod);
                    kept.push(Kept { pod, why });
                }
                Err(error) => {
                    return Err(StageError::Step {
                        stage: Stage::Evict,
                        error,
                        left: Vec::new(),
                        moved: false,
                    });
                }
            }
        }
        Ok(kept)
    }
}
