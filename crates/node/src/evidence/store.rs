//! The items of one node, as read.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::bundle::Manifest;
use super::gap::Gap;
use super::item::Item;
use super::text::Text;

/// The partially known items that are read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Parts {
    /// None: each is a gap.
    #[default]
    None,
    /// kube-proxy's configuration, as far as its rules show it.
    Settings,
    /// Items whose text or readers show what is missing.
    Marked,
    /// All, to show them.
    All,
}

/// Items, in addition to rules of iptables, whose readers distinguish missing data from absent objects.
pub(super) const MARKED: &[Item] = &[
    Item::Ipset,
    Item::IpvsSave,
    Item::Services,
    Item::EndpointSlices,
    Item::Nodes,
    Item::Pods,
    Item::ProxyConfig,
];

/// Text of each item of a node, or the reason why it is missing. Copies share the text.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    pub(super) items: BTreeMap<Item, Result<Arc<Text>, Gap>>,
    pub(super) manifest: Option<Manifest>,
    /// Items that the API server added to the bundle in this run.
    pub(super) added: BTreeSet<Item>,
    /// Whether the evidence is of a node in a bundle of all nodes.
    pub(super) one_of_all: bool,
    /// Items of which only a part was read, each with what is missing.
    pub(super) partial: BTreeMap<Item, String>,
    /// The partially known items that are read.
    pub(super) parts: Parts,
    /// Why the bundle is incomplete, if it is.
    pub(super) cut: Option<String>,
}

impl Evidence {
    /// Returns why the bundle is incomplete, if it is: items of the missing part are unknown.
    pub fn cut(&self) -> Option<&str> {
        self.cut.as_deref()
    }

    /// Records the result of reading `item`.
    pub fn insert(&mut self, item: Item, read: Result<String, Gap>) {
        self.partial.remove(&item);
        self.items
            .insert(item, read.map(|text| Arc::new(Text::new(text))));
    }

    /// Records the part of `item` that was read; `why` names the missing part.
    pub fn insert_part(&mut self, item: Item, text: String, why: String) {
        self.insert(item, Ok(text));
        self.partial.insert(item, why);
    }

    /// Returns a copy in which partial items are read if their text or readers show the missing part: nothing is concluded
    /// from missing data. In the original, each is a [`Gap::Partial`].
    #[must_use]
    pub fn with_parts(&self) -> Self {
        self.taking(Parts::Marked)
    }

    /// Returns a copy in which every partial item is read, for commands that only show it.
    #[must_use]
    pub fn with_all_parts(&self) -> Self {
        self.taking(Parts::All)
    }

    /// Returns a copy in which kube-proxy's configuration is read as far as its rules show it.
    #[must_use]
    pub fn with_settings(&self) -> Self {
        self.taking(Parts::Settings)
    }

    pub(super) fn taking(&self, parts: Parts) -> Self {
        Self {
            parts,
            ..self.clone()
        }
    }

    /// Returns a copy without the parts of items that were read incompletely.
    #[must_use]
    pub fn without_parts(&self) -> Self {
        self.taking(Parts::None)
    }

    /// Returns the gap of `item`, if only a part of it was read.
    pub fn part(&self, item: Item) -> Option<Gap> {
        let why = self.missing_part(item)?;
        Some(Gap::Partial(item, why.to_owned()))
    }

    /// Returns the missing part of `item`, if only a part of it was read.
    pub fn missing_part(&self, item: Item) -> Option<&str> {
        self.partial.get(&item).map(String::as_str)
    }

    /// Marks the items of `other` that were read in part, in a copy of it with other texts.
    pub fn mark_parts_of(&mut self, other: &Self, mut edit: impl FnMut(&str) -> String) {
        for (item, why) in &other.partial {
            if matches!(self.items.get(item), Some(Ok(_))) {
                self.partial.insert(*item, edit(why));
            }
        }
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
    pub(super) fn shared(&self, is_wanted: impl Fn(&str) -> bool) -> Self {
        let mut rest = Self::default();
        let read = self.items.iter().filter(|(_, read)| read.is_ok());
        let wanted = read.filter(|(item, _)| is_wanted(item.file()));
        rest.items = wanted.map(|(&item, read)| (item, read.clone())).collect();
        rest.mark_parts_of(self, str::to_owned);
        rest
    }

    /// Returns whether reading `item` was tried.
    pub fn has(&self, item: Item) -> bool {
        self.items.contains_key(&item)
    }

    /// Adds the items of `other`; they replace items that are already present.
    pub fn extend(&mut self, other: Self) {
        self.partial
            .retain(|item, _| !other.items.contains_key(item));
        self.items.extend(other.items);
        self.partial.extend(other.partial);
    }

    /// Adds the items of `read`, which the bundle does not have, and notes that the API server has them.
    pub fn add(&mut self, read: Self) {
        let found = read.items.iter().filter(|(_, read)| read.is_ok());
        self.added.extend(found.map(|(item, _)| *item));
        self.extend(read);
    }

    /// Returns the items that the API server added to the bundle, sorted.
    pub fn added(&self) -> Vec<Item> {
        let before = self
            .manifest
            .iter()
            .flat_map(|manifest| manifest.added.iter().copied());
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

    /// Sets the manifest, of evidence that no bundle has.
    pub fn set_manifest(&mut self, manifest: Manifest) {
        self.manifest = Some(manifest);
    }

    /// Takes the manifest of `other`.
    pub fn manifest_of(&mut self, other: &Self) {
        self.manifest.clone_from(&other.manifest);
    }

    /// Returns whether the evidence is of a node in a bundle of all nodes.
    pub fn is_one_of_all(&self) -> bool {
        self.one_of_all
    }

    /// Returns the text of `item`, or why it is missing. An empty text of an item that is never empty was not read. Each line of sysctls
    /// counts alone, so a part of them is always read.
    pub fn text(&self, item: Item) -> Result<&str, Gap> {
        match self.items.get(&item) {
            Some(Ok(_)) if self.hides(item) => {
                let why = self.partial[&item].clone();
                Err(Gap::Partial(item, why))
            }
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

    /// Returns the text of `item` as far as it was read, or why nothing of it was.
    pub fn shown(&self, item: Item) -> Result<&str, Gap> {
        match (self.text(item), self.items.get(&item)) {
            (Err(Gap::Partial(..)), Some(Ok(text))) => Ok(text.as_str()),
            (read, _) => read,
        }
    }

    /// Returns whether `item` was read in part, and parts do not count.
    pub(super) fn hides(&self, item: Item) -> bool {
        let takes = item == Item::Sysctl
            || match self.parts {
                Parts::None => false,
                Parts::Settings => item == Item::ProxyConfig,
                Parts::Marked => item.is_iptables() || MARKED.contains(&item),
                Parts::All => true,
            };
        !takes && self.partial.contains_key(&item)
    }

    /// Returns the result of `parse` on the text of `item`, once for all copies of the text.
    pub fn parsed<T: Any + Send + Sync>(
        &self,
        item: Item,
        parse: impl FnOnce() -> Result<T, Gap>,
    ) -> Result<Arc<T>, Gap> {
        match self.items.get(&item) {
            Some(Ok(text)) if !self.hides(item) => text.parsed(parse),
            _ => parse().map(Arc::new),
        }
    }

    /// Returns whether `item` has the same text, or is missing for the same reason, in `other`.
    pub(super) fn agrees(&self, other: &Self, item: Item) -> bool {
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
