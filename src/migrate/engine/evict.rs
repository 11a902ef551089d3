//! Waits until the pods of a node have left it.

use std::time::Duration;

use super::{Engine, Event, PAUSE, Site, Trouble};
use crate::action::Object;
use crate::apply::{self, StepError};
use crate::evidence::Gap;
use crate::migrate::evict::{Kept, Leaving, evicted, name, still};
use crate::migrate::journey::Stage;
use crate::node::NodeSnapshot;
use crate::plan::{EVICT_NEEDS, Plan};

/// Between two tries to evict a pod that is kept: as `kubectl drain` does.
const AGAIN: Duration = Duration::from_secs(5);

impl<S: Site> Engine<'_, S> {
    /// Evicts the pods of `plan`, and waits until they are gone. A budget that keeps one is asked again and again.
    pub(super) async fn evict(&mut self, plan: &Plan) -> Result<Vec<String>, Trouble> {
        let began = self.site.now();
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
                (self.tell)(Event::Evict(&leaving));
                if leaving.count == 0 {
                    return Ok(Vec::new());
                }
            }
            if waited.max(self.site.now().since(began)) >= self.limits.drain {
                let waited = self.limits.drain;
                let what = match there {
                    Ok(there) => still(&there, &kept),
                    Err(gap) => gap.to_string(),
                };
                return Err(Trouble::Evict { waited, what });
            }
            self.pause().await?;
            waited += PAUSE;
        }
    }

    /// Returns which of the pods of `plan` are there still, each with whether it is about to go.
    async fn there<'p>(&mut self, plan: &'p Plan) -> Result<Vec<(&'p Object, bool)>, Gap> {
        let evidence = self.site.read(EVICT_NEEDS).await;
        let node = NodeSnapshot::new(&evidence);
        let pods = node.pods()?;
        let there = plan.steps.iter().filter_map(|step| {
            let (pod, uid) = evicted(step)?;
            let found = pods.iter().find(|of| of.metadata.uid == *uid)?;
            Some((pod, found.metadata.deletion_timestamp.is_some()))
        });
        Ok(there.collect())
    }

    /// Asks for the eviction of those of `there` that are not about to go; returns those that are kept.
    async fn ask(
        &mut self,
        plan: &Plan,
        there: &[(&Object, bool)],
        first: bool,
    ) -> Result<Vec<Kept>, Trouble> {
        let mut kept = Vec::new();
        for (number, step) in plan.steps.iter().enumerate() {
            let Some((pod, _)) = evicted(step) else {
                continue;
            };
            if !there.contains(&(pod, false)) {
                continue;
            }
            if first {
                (self.tell)(Event::Step(apply::Event::Begins(number, &step.title)));
            }
            match self.site.apply(&step.action).await {
                Ok(()) => {}
                Err(StepError::Held(why)) => {
                    let pod = name(pod);
                    kept.push(Kept { pod, why });
                }
                Err(error) => {
                    return Err(Trouble::Step {
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
