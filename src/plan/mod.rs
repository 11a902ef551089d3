//! Changes to a node as data: steps in order, each with its undo.
//!
//! A plan is made from what was read, shown, and made again from what is there just before it runs: its
//! [`Fingerprint`] covers every step and its undo, so what the plan found and what it wants.

mod bridge;
mod cleanup;
mod evict;
mod modules;
mod proxies;
mod repair;
mod store;

use std::fmt::{self, Display, Formatter};

use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::action::Action;
pub use bridge::{
    BRIDGE_DOWN, BRIDGE_RULES, ROUTE_NEEDS, Served, bridge_down, bridge_up, has_routes,
    routes_down, routes_up,
};
pub use cleanup::{CLEANUP_NEEDS, Refusal, cleanup};
pub use evict::{
    Consent, EVICT_NEEDS, Lossy, Unevictable, cordon, evict, evicted_addresses, evicted_count,
};
pub use modules::{AT_BOOT, NotOurs, load_modules, name_at_boot, stays};
pub use proxies::{OtherProxy, kube_proxy, refuse_other, running};
pub use repair::{Drain, repair};
pub use store::{Place, STORE_NEEDS, Store, Unwritable, Written};

/// What to do, in order.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Plan {
    /// The steps.
    pub steps: Vec<Step>,
    /// What is not done, and what to know about the rest.
    pub notes: Vec<String>,
}

/// One step.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Step {
    /// What it does, in words, imperative.
    pub title: String,
    /// The change.
    #[serde(serialize_with = "as_text")]
    pub action: Action,
    /// How to take it back.
    pub undo: Undo,
}

/// How a step is taken back.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Undo {
    /// By this.
    Do(Action),
    /// Not at all, and why that is no harm.
    Never(&'static str),
}

impl Display for Undo {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Do(action) => action.fmt(f),
            Self::Never(why) => f.write_str(why),
        }
    }
}

impl Serialize for Undo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Serialises an action as what one would type.
fn as_text<S: Serializer>(action: &Action, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(action)
}

/// A digest of a plan: of what it found and what it does.
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
