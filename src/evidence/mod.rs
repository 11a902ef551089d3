//! Evidence: the unmodified text of each item, or the reason why it is missing.

mod bundle;
mod gap;
pub mod ipvs;
mod item;
mod kernel;
pub mod processes;
mod time;

use std::collections::BTreeMap;

pub use bundle::{
    BundleError, Limits, MANIFEST, Manifest, Recorded, SaveError, load, load_file, load_within,
    save, write_to,
};
pub use gap::{Forbidden, Gap};
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
