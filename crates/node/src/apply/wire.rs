//! The messages between kpx and its copy in a pod on the node: the plan that is sent, and the lines that come back.

use serde::{Deserialize, Serialize};

use super::Stopped;
use crate::action::{Action, Plan, Step, Undo};

/// The steps of a plan.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SentPlan(Vec<SentStep>);

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct SentStep {
    title: String,
    action: Action,
    undo: Undo,
}

/// A line of the kpx that carries the plan out.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Line {
    /// A step begins: its number from 0.
    Begins(usize),
    /// A step is undone: its number from 0.
    Undoes(usize),
    /// The plan ended; with the failure, if it stopped.
    Ended(Option<Stopped>),
}

impl From<&Plan> for SentPlan {
    fn from(plan: &Plan) -> Self {
        let steps = plan.steps.iter().map(|step| SentStep {
            title: step.title.clone(),
            action: step.action.clone(),
            undo: step.undo.clone(),
        });
        Self(steps.collect())
    }
}

impl From<SentPlan> for Plan {
    fn from(sent: SentPlan) -> Self {
        let steps = sent.0.into_iter().map(|step| Step {
            title: step.title,
            action: step.action,
            undo: step.undo,
        });
        Self {
            steps: steps.collect(),
            notes: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_arrives_as_it_was_sent() {
        let nft = |input: &str| Action::Nft {
            input: input.to_owned(),
        };
        let mut plan = Plan::default();
        plan.push(
            "a",
            nft("add table ip x\n"),
            Undo::Do(nft("delete table ip x\n")),
        );
        plan.push("b", nft("flush table ip y\n"), Undo::never("it is empty"));
        let text = serde_json::to_string(&SentPlan::from(&plan)).unwrap();
        let sent: SentPlan = serde_json::from_str(&text).unwrap();
        let arrived = Plan::from(sent);
        assert_eq!(arrived.fingerprint(), plan.fingerprint());
        assert_eq!(arrived, plan);
    }
}
