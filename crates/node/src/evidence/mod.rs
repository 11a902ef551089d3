//! Evidence: the unmodified text of each item, or the reason why it is missing.

mod bundle;
pub mod by_tool;
pub mod files;
mod gap;
pub mod ipvs;
mod item;
mod kernel;
pub mod pod_networks;
pub mod processes;
pub mod proxy_log;
pub mod signs;
mod text;
mod time;
pub mod traced;
mod tracked;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use bundle::{
    BundleError, Limits, MANIFEST, Manifest, NODES, NodesWriter, Recorded, SaveError, Visit,
    each_node, load, load_file, load_node, load_within, save, write_to,
};
pub use by_tool::ByTool;
pub use gap::{Forbidden, Gap};
pub use item::{IPTABLES, ITEMS, Item, Privilege, join};
pub use kernel::{Kernel, NotAKernel};
use text::Text;
pub use time::{NotATime, Time};
pub use tracked::{Phase, Tracked};

/// Text of each item of a node, or the reason why it is missing. Copies share the text.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    items: BTreeMap<Item, Result<Arc<Text>, Gap>>,
    manifest: Option<Manifest>,
    /// Items that the API server added to the bundle in this run.
    added: BTreeSet<Item>,
    /// Whether the evidence is of a node in a bundle of all nodes.
    one_of_all: bool,
}

impl Evidence {
    /// Records the result of reading `item`.
    pub fn insert(&mut self, item: Item, read: Result<String, Gap>) {
        self.items
            .insert(item, read.map(|text| Arc::new(Text::new(text))));
    }

    /// Returns a copy that contains only `items`.
    #[must_use]
    pub fn only(&self, items: &[Item]) -> Self {
        let mut rest = self.clone();
        rest.keep(items);
        rest
    }

    /// Drops all items but `items`.
    pub fn keep(&mut self, items: &[Item]) {
        self.items.retain(|item, _| items.contains(item));
    }

    /// Returns a copy of the items whose file `is_wanted`, and that were read.
    fn shared(&self, is_wanted: impl Fn(&str) -> bool) -> Self {
        let mut rest = Self::default();
        let read = self.items.iter().filter(|(_, read)| read.is_ok());
        let wanted = read.filter(|(item, _)| is_wanted(item.file()));
        rest.items = wanted.map(|(&item, read)| (item, read.clone())).collect();
        rest
    }

    /// Returns whether reading `item` was tried.
    pub fn has(&self, item: Item) -> bool {
        self.items.contains_key(&item)
    }

    /// Adds the items of `other`; they replace items that are already present.
    pub fn extend(&mut self, other: Self) {
        self.items.extend(other.items);
    }

    /// Adds the items of `read`, which the bundle does not have, and notes that the API server has them.
    pub fn add(&mut self, read: Self) {
        let found = read.items.iter().filter(|(_, read)| read.is_ok());
        self.added.extend(found.map(|(item, _)| *item));
        self.extend(read);
    }

    /// Returns the items that the API server added to the bundle, sorted.
    pub fn added(&self) -> Vec<Item> {
        let before = self.manifest.iter().flat_map(|of| of.added.iter().copied());
        let before = before.filter(|item| self.text(*item).is_ok());
        let all: BTreeSet<Item> = self.added.iter().copied().chain(before).collect();
        all.into_iter().collect()
    }

    /// Returns a note on the items that the API server added to the bundle; `None` if there are none.
    pub fn note_added(&self) -> Option<String> {
        let added = self.added();
        let names: Vec<&str> = added.iter().map(|item| item.file()).collect();
        (!names.is_empty()).then(|| {
            format!(
                "added to the bundle from the API server, at a later time: {}",
                names.join(", ")
            )
        })
    }

    /// Returns the manifest of the bundle; `None` if kpx did not write the bundle.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()
    }

    /// Returns whether the evidence is of a node in a bundle of all nodes.
    pub fn is_one_of_all(&self) -> bool {
        self.one_of_all
    }

    /// Returns the text of `item`, or why it is missing. A text that is never empty, and is, was not read.
    pub fn text(&self, item: Item) -> Result<&str, Gap> {
        match self.items.get(&item) {
            Some(Ok(text)) => match text.as_str() {
                text if item.is_never_empty() && text.trim_start().is_empty() => {
                    Err(Gap::Failed(item, "it is empty".to_owned()))
                }
                text => Ok(text),
            },
            Some(Err(gap)) => Err(gap.clone()),
            None => Err(Gap::NotCollected(item)),
        }
    }

    /// Returns what `parse` makes of the text of `item`, once for all copies of the text.
    pub fn parsed<T: Any + Send + Sync>(
        &self,
        item: Item,
        parse: impl FnOnce() -> Result<T, Gap>,
    ) -> Result<Arc<T>, Gap> {
        match self.items.get(&item) {
            Some(Ok(text)) => text.parsed(parse),
            _ => parse().map(Arc::new),
        }
    }

    /// Returns whether `item` has the same text, or is missing for the same reason, in `other`.
    fn agrees(&self, other: &Self, item: Item) -> bool {
        match (self.items.get(&item), other.items.get(&item)) {
            (Some(Ok(a)), Some(Ok(b))) => Arc::ptr_eq(a, b) || a.as_str() == b.as_str(),
            (Some(Err(a)), Some(Err(b))) => a == b,
            (None, None) => true,
            _ => false,
        }
    }

    /// Iterates over the items that were read, in the order of [`ITEMS`].
    pub fn iter(&self) -> impl Iterator<Item = (Item, Result<&str, &Gap>)> {
        self.items
            .iter()
            .map(|(&item, read)| (item, read.as_ref().map(|text| text.as_str())))
    }
}
