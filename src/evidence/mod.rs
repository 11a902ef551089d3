//! What was read from a node, exactly as it was read.

mod bundle;
pub mod ipvs;
mod item;
mod kernel;
pub mod processes;
mod time;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use bundle::{
    BundleError, Limits, MANIFEST, Manifest, Recorded, SaveError, load, load_within, save,
};
pub use item::{IPTABLES, ITEMS, Item, Privilege, join};
pub use kernel::{Kernel, NotAKernel};
pub use time::{NotATime, Time};

/// Everything read from one node, or the reason it could not be read.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    items: BTreeMap<Item, Result<String, Gap>>,
    manifest: Option<Manifest>,
}

impl Evidence {
    /// Records what reading `item` gave.
    pub fn insert(&mut self, item: Item, read: Result<String, Gap>) {
        self.items.insert(item, read);
    }

    /// Returns a copy that holds `items` and nothing else.
    #[must_use]
    pub fn only(&self, items: &[Item]) -> Self {
        let mut rest = self.clone();
        rest.items.retain(|item, _| items.contains(item));
        rest
    }

    /// Takes over what was read in `other`, and keeps the rest.
    pub fn extend(&mut self, other: Self) {
        self.items.extend(other.items);
    }

    /// Returns the account of the bundle it was loaded from, if kpx wrote that bundle.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()
    }

    /// Returns the text of `item`, or why there is none.
    pub fn text(&self, item: Item) -> Result<&str, Gap> {
        match self.items.get(&item) {
            Some(Ok(text)) => Ok(text),
            Some(Err(gap)) => Err(gap.clone()),
            None => Err(Gap::NotCollected(item)),
        }
    }

    /// Iterates over what was read, in the order of [`ITEMS`].
    pub fn iter(&self) -> impl Iterator<Item = (Item, Result<&str, &Gap>)> {
        self.items
            .iter()
            .map(|(&item, read)| (item, read.as_deref()))
    }
}

/// Why something about the node is not known.
#[derive(Clone, Debug, Deserialize, Eq, Error, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "detail")]
pub enum Gap {
    /// The question does not arise on this node.
    #[error("not applicable: {0}")]
    NotApplicable(String),
    /// The bundle or run did not include the item.
    #[error("{0} was not collected")]
    NotCollected(Item),
    /// The node does not have it; the text says what was looked for.
    #[error("{0}: {1}")]
    Absent(Item, String),
    /// The kernel or the API server refused; the text says what would be allowed.
    #[error("permission denied reading {0}: {1}")]
    Denied(Item, String),
    /// Reading or parsing went wrong.
    #[error("{0}: {1}")]
    Failed(Item, String),
}

impl Gap {
    /// Returns the same reason for not knowing `item`, which depends on what the gap is about.
    #[must_use]
    pub fn about(self, item: Item) -> Self {
        match self {
            Self::NotApplicable(why) => Self::NotApplicable(why),
            Self::NotCollected(_) => Self::NotCollected(item),
            Self::Absent(_, why) => Self::Absent(item, why),
            Self::Denied(_, why) => Self::Denied(item, why),
            Self::Failed(_, why) => Self::Failed(item, why),
        }
    }
}
