//! Evidence: the unmodified text of each item, or the reason why it is missing.

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
    BundleError, Limits, MANIFEST, Manifest, Recorded, SaveError, load, load_file, load_within,
    save, write_to,
};
pub use item::{IPTABLES, ITEMS, Item, Privilege, join};
pub use kernel::{Kernel, NotAKernel};
pub use time::{NotATime, Time};

/// Text of each item of a node, or the reason why it is missing.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    items: BTreeMap<Item, Result<String, Gap>>,
    manifest: Option<Manifest>,
}

impl Evidence {
    /// Records the result of reading `item`.
    pub fn insert(&mut self, item: Item, read: Result<String, Gap>) {
        self.items.insert(item, read);
    }

    /// Returns a copy that contains only `items`.
    #[must_use]
    pub fn only(&self, items: &[Item]) -> Self {
        let mut rest = self.clone();
        rest.items.retain(|item, _| items.contains(item));
        rest
    }

    /// Adds the items of `other`; they replace items that are already present.
    pub fn extend(&mut self, other: Self) {
        self.items.extend(other.items);
    }

    /// Returns the manifest of the bundle; `None` if kpx did not write the bundle.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()
    }

    /// Returns the text of `item`, or why it is missing.
    pub fn text(&self, item: Item) -> Result<&str, Gap> {
        match self.items.get(&item) {
            Some(Ok(text)) => Ok(text),
            Some(Err(gap)) => Err(gap.clone()),
            None => Err(Gap::NotCollected(item)),
        }
    }

    /// Iterates over the items that were read, in the order of [`ITEMS`].
    pub fn iter(&self) -> impl Iterator<Item = (Item, Result<&str, &Gap>)> {
        self.items
            .iter()
            .map(|(&item, read)| (item, read.as_deref()))
    }
}

/// Why an item is missing.
#[derive(Clone, Debug, Deserialize, Eq, Error, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "detail")]
pub enum Gap {
    /// The item does not apply to this node.
    #[error("not applicable: {0}")]
    NotApplicable(String),
    /// The bundle does not contain the item, or the run did not read it.
    #[error("{0} was not collected")]
    NotCollected(Item),
    /// The node does not have it; the text names the missing object.
    #[error("{0}: {1}")]
    Absent(Item, String),
    /// The kernel or the API server denied access; the text names the required permission.
    #[error("permission denied reading {0}: {1}")]
    Denied(Item, String),
    /// Reading or parsing failed.
    #[error("{0}: {1}")]
    Failed(Item, String),
}

impl Gap {
    /// Returns the same reason for another item that depends on this one.
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
