//! Pods that have to leave a node: who is there still, and why.

use serde::Serialize;

use crate::action::{Action, KubeCommand, Object};
use crate::plan::Step;

/// Pods that are to leave, and have not left.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Leaving {
    /// How many.
    pub count: usize,
    /// Those that may not leave yet.
    pub kept: Vec<Kept>,
}

/// A pod that may not leave yet.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Kept {
    /// `NAMESPACE/NAME`.
    pub pod: String,
    /// Why: what the API server says, which names the budget for disruptions.
    pub why: String,
}

impl Leaving {
    /// Returns them in words.
    pub fn in_words(&self) -> String {
        let kept = self.kept.iter();
        let kept: Vec<String> = kept.map(|of| format!("{}: {}", of.pod, of.why)).collect();
        match (self.count, kept.as_slice()) {
            (0, _) => "all pods that can leave have left".to_owned(),
            (1, []) => "1 pod is on its way out".to_owned(),
            (count, []) => format!("{count} pods are on their way out"),
            (count, kept) => format!("{count} still there, and kept: {}", kept.join("; ")),
        }
    }
}

/// Returns the pod that `step` evicts, and its unique id.
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

/// Returns those that are `there` still, each with whether it is about to go, in words.
pub(super) fn still(there: &[(&Object, bool)], kept: &[Kept]) -> String {
    let words = there.iter().map(|(pod, going)| {
        let name = name(pod);
        match kept.iter().find(|kept| kept.pod == name) {
            Some(kept) => format!("{name} ({})", kept.why),
            None if *going => format!("{name} (it is ending)"),
            None => name,
        }
    });
    words.collect::<Vec<_>>().join(", ")
}
