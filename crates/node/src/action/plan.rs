//! Changes as data: ordered steps, each with its undo.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use super::Action;

/// Ordered changes to a node.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Plan {
    /// Steps, in order.
    pub steps: Vec<Step>,
    /// Changes that the plan does not make, and remarks on the others.
    pub notes: Vec<String>,
}

/// A change and its undo.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Step {
    /// Description in the imperative.
    pub title: String,
    /// The change itself.
    #[serde(serialize_with = "as_text")]
    #[cfg_attr(feature = "testing", schemars(with = "String"))]
    pub action: Action,
    /// How to undo the change.
    #[serde(serialize_with = "as_text")]
    #[cfg_attr(feature = "testing", schemars(with = "String"))]
    pub undo: Undo,
}

/// How to undo a step.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Undo {
    /// Run this action.
    Do(Action),
    /// The step is not undone; the reason why that is harmless.
    Never(Cow<'static, str>),
}

impl Undo {
    /// The step is not undone; `why` says why that is harmless.
    pub const fn never(why: &'static str) -> Self {
        Self::Never(Cow::Borrowed(why))
    }
}

impl Display for Undo {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Do(action) => action.fmt(f),
            Self::Never(why) => f.write_str(why),
        }
    }
}

/// Serialises an action, or its undo, as the text that a user reads.
fn as_text<S: Serializer>(what: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(what)
}

/// Digest of a plan's steps and undo actions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fingerprint([u8; 32]);

impl Plan {
    /// Returns the digest of all steps and their undo.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut hash = Sha256::new();
        for step in &self.steps {
            for part in [step.action.to_string(), step.undo.to_string()] {
                hash.update(part.len().to_le_bytes());
                hash.update(part);
            }
        }
        Fingerprint(hash.finalize().into())
    }

    /// Adds a step.
    pub fn push(&mut self, title: impl Into<String>, action: Action, undo: Undo) {
        let title = title.into();
        self.steps.push(Step {
            title,
            action,
            undo,
        });
    }
}
