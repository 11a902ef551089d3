//! Pods that have to leave a node.

use serde::{Deserialize, Serialize};

use kpx_judge::plan::Step;
use kpx_node::action::{Action, KubeCommand, Object};
use kpx_node::words::number_of;

/// Pods that must leave the node and have not left.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Leaving {
    /// Their number.
    pub count: usize,
    /// The pods whose eviction is refused.
    pub kept: Vec<Kept>,
}

/// A pod whose eviction is refused.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Kept {
    /// `NAMESPACE/NAME`.
    pub pod: String,
    /// The API server's reason, which names the disruption budget.
    pub why: String,
}

impl Leaving {
    /// Returns the pods in words.
    pub fn in_words(&self) -> String {
        let kept = self.kept.iter();
        let kept: Vec<String> = kept
            .map(|kept_pod| format!("{}: {}", kept_pod.pod, kept_pod.why))
            .collect();
        match (self.count, kept.as_slice()) {
            (0, _) => "all evicted pods have left".to_owned(),
            (1, []) => "1 pod is terminating".to_owned(),
            (count, []) => format!("{count} pods are terminating"),
            (count, kept) => format!(
                "waiting for {} to leave; evictions refused: {}",
                number_of(count, "pod"),
                kept.join("; ")
            ),
        }
    }
}

/// Returns the pod that `step` evicts, with its unique id.
pub(super) fn evicted(step: &Step) -> Option<(&Object, &String)> {
    match &step.action {
        Action::Kube {
            command: KubeCommand::Evict { pod, uid },
        } => Some((pod, uid)),
        _ => None,
    }
}

/// Returns the namespace and name of `pod`.
pub(super) fn name(pod: &Object) -> String {
    let namespace = pod.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", pod.name)
}

/// Returns the pods that have not left in words; each is `there` with whether it is terminating.
pub(super) fn still(there: &[(&Object, bool)], kept: &[Kept]) -> String {
    let words = there.iter().map(|(pod, going)| {
        let name = name(pod);
        match kept.iter().find(|kept| kept.pod == name) {
            Some(kept) => format!("{name} ({})", kept.why),
            None if *going => format!("{name} (terminating)"),
            None => name,
        }
    });
    words.collect::<Vec<_>>().join(", ")
}
