//! The answers of several nodes as one.

use serde::Serialize;

use super::{Answer, Broken};
use crate::verdict::Fate;

/// The answers of several nodes.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Merged {
    /// The fate of the connections of all nodes.
    pub fate: Fate,
    /// The answer in one sentence.
    pub sentence: String,
    /// The causes, the first one first, each with its nodes.
    pub causes: Vec<OnNodes>,
    /// Number of nodes on which the Service works.
    pub works: usize,
}

/// A cause and the nodes that have it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OnNodes {
    /// The cause, as on the first of the nodes.
    #[serde(flatten)]
    pub broken: Broken,
    /// The nodes.
    pub nodes: Vec<String>,
}

/// Merges the answers of several nodes to the same question.
pub fn merge(answers: &[Answer]) -> Merged {
    let mut causes: Vec<OnNodes> = Vec::new();
    for answer in answers {
        let node = answer.node.clone().unwrap_or_default();
        for broken in &answer.causes {
            match causes
                .iter_mut()
                .find(|cause| cause.broken.cause == broken.cause)
            {
                Some(known) => known.nodes.push(node.clone()),
                None => causes.push(OnNodes {
                    broken: broken.clone(),
                    nodes: vec![node.clone()],
                }),
            }
        }
    }
    causes.sort_by_key(|cause| cause.broken.rank());
    let worst = answers.iter().max_by_key(|answer| answer.fate);
    let works = answers.iter().filter(|answer| answer.fate == Fate::Works);
    let sentence = match (causes.first(), worst) {
        (Some(first), _) => match first.nodes.as_slice() {
            [_] | [] => first.broken.sentence.clone(),
            [_, others @ ..] => format!(
                "{}; the same on {}",
                first.broken.sentence,
                crate::trace::mismatch::listed(others)
            ),
        },
        (None, Some(worst)) => worst.sentence.clone(),
        (None, None) => "no node answered".to_owned(),
    };
    Merged {
        fate: Fate::of_all(answers.iter().map(|answer| answer.fate)),
        sentence,
        works: works.count(),
        causes,
    }
}
