//! Reads a bundle of all nodes: one of its nodes, or each in turn.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::ops::ControlFlow;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::{Evidence, Gap, Item};
use super::archive::{self, Location, ReadMember};
use super::member::{Found, Member};
use super::{BundleError, Limits, folder, open, settle};

/// File name of the list of nodes in a bundle of all nodes.
pub const NODES: &str = "kpx-nodes.json";

/// The folder of the nodes.
pub(super) const FOLDER: &str = "nodes";

/// The folder of the objects that the nodes share.
pub(super) const CLUSTER: &str = "cluster/";

/// The largest number of nodes in a bundle: kpx plans for 5,000.
pub(super) const MOST_NODES: usize = 100_000;

/// The only version of the list's format so far.
const FORMAT: u64 = 1;

/// Returns whether `name` can be the name of a Node, and of a folder: letters, digits, `-`, `.` and `_`, at most 253.
pub(super) fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let starts = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    starts && name.len() <= 253 && name.chars().all(is_plain)
}

/// Content of [`NODES`].
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Index {
    /// Version of the format.
    format: u64,
    /// Version of kpx that wrote the bundle.
    kpx: String,
    /// Time of the recording, RFC 3339 in UTC.
    time: String,
    /// The nodes, sorted by name.
    pub(super) nodes: Vec<Listed>,
}

/// A node of [`Index`].
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Listed {
    /// Name of the Node.
    pub(super) name: String,
    /// Reason why it was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
}

impl Index {
    /// Returns the list of a bundle recorded at `time`.
    pub(super) fn new(time: String, nodes: Vec<Listed>) -> Self {
        Self {
            format: FORMAT,
            kpx: env!("CARGO_PKG_VERSION").to_owned(),
            time,
            nodes,
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
        match value.get("format").and_then(Value::as_u64) {
            Some(FORMAT) => serde_json::from_value(value).map_err(|error| error.to_string()),
            Some(other) => Err(format!(
                "its format is {other}, but this kpx ({}) supports only {FORMAT}: a newer kpx wrote the bundle",
                env!("CARGO_PKG_VERSION")
            )),
            None => Err("it has no format version".to_owned()),
        }
    }
}

/// Contents of a path: one bundle, and in a bundle of all nodes one of them.
#[derive(Default)]
pub(super) struct Loaded {
    /// The bundle; in a bundle of all nodes, the objects of the cluster.
    pub(super) bundle: Found,
    /// The node that was asked for.
    pub(super) node: Found,
    /// The nodes with files.
    pub(super) names: BTreeSet<String>,
}

impl Loaded {
    /// Returns whether this is a bundle of all nodes.
    pub(super) fn has_nodes(&self) -> bool {
        self.bundle.index.is_some() || !self.names.is_empty()
    }

    /// Returns `items` of `node`.
    pub(super) fn pick(
        mut self,
        path: &Path,
        node: Option<&str>,
        items: &[Item],
    ) -> Result<Evidence, BundleError> {
        let index = index(path, &mut self.bundle)?;
        let path = path.to_owned();
        let listed = index.iter().flat_map(|index| &index.nodes);
        let all = || {
            let listed = listed.clone().map(|listed_node| listed_node.name.clone());
            let all: BTreeSet<_> = self.names.iter().cloned().chain(listed).collect();
            all.into_iter().collect()
        };
        let Some(node) = node else {
            let nodes = all();
            return Err(BundleError::AllNodes { path, nodes });
        };
        if !self.names.contains(node) {
            let node = node.to_owned();
            return Err(
                match listed.clone().find(|listed_node| listed_node.name == node) {
                    None => BundleError::NoNode {
                        nodes: all(),
                        path,
                        node,
                    },
                    Some(of) => BundleError::Unread {
                        reason: of.reason.clone().unwrap_or_else(|| NO_FILES.to_owned()),
                        path,
                        node,
                    },
                },
            );
        }
        let cluster = cluster(self.bundle.items);
        of_node(items, self.node, &cluster).map_err(|reason| BundleError::Manifest { path, reason })
    }
}

/// Reason for a node that is only in the list.
const NO_FILES: &str = "the bundle has no files of it";

/// Returns the list of nodes; `None` without one.
fn index(path: &Path, bundle: &mut Found) -> Result<Option<Index>, BundleError> {
    let read = bundle.index.take();
    let index = read.map(|read| read.and_then(|text| Index::parse(&text)));
    index.transpose().map_err(|reason| BundleError::Index {
        path: path.to_owned(),
        reason,
    })
}

/// Returns the objects that the nodes share.
fn cluster(items: BTreeMap<Item, Result<String, Gap>>) -> Evidence {
    let mut cluster = Evidence::default();
    for (item, read) in items {
        if item.file().starts_with(CLUSTER) {
            cluster.insert(item, read);
        }
    }
    cluster
}

/// Returns `items` of a node: its own, and those of the cluster that it does not have. The error is the reason why its
/// manifest cannot be used.
fn of_node(items: &[Item], found: Found, cluster: &Evidence) -> Result<Evidence, String> {
    let own: BTreeSet<Item> = found.items.keys().copied().collect();
    let mut evidence = settle(items, found)?;
    evidence.one_of_all = true;
    for (&item, read) in &cluster.items {
        let recorded = evidence
            .manifest
            .as_ref()
            .and_then(|manifest| manifest.gap(item));
        if items.contains(&item) && !own.contains(&item) && recorded.is_none() {
            evidence.items.insert(item, read.clone());
        }
    }
    if let Some(manifest) = &mut evidence.manifest {
        // They only distinguish the node from the cluster.
        manifest
            .gaps
            .retain(|gap| !matches!(gap.gap, Gap::NotCollected(_)));
    }
    Ok(evidence)
}

/// Called with the cluster's objects, the name of a node, and its evidence or the reason why it was not read; a break
/// stops the reading.
pub type Visit<'v> = dyn FnMut(&Evidence, &str, Result<Evidence, String>) -> ControlFlow<()> + 'v;

/// Calls `visit` with `items` of every node of the bundle of all nodes at `path`, one after the other: only one node is in
/// memory. Nodes that were not read come last. Returns the reason why nodes are missing, if so.
pub fn each_node(
    path: &Path,
    items: &[Item],
    visit: &mut Visit<'_>,
) -> Result<Option<String>, BundleError> {
    let limits = Limits::default();
    let mut walk = Walk {
        path,
        items,
        limits,
        bundle: Found::default(),
        cluster: None,
        current: None,
        seen: BTreeSet::new(),
        missing: None,
        stopped: false,
        visit,
    };
    match open(path)? {
        None => walk.folder()?,
        Some(file) => {
            let cut = archive::walk(path, file, limits, &mut |location, read| {
                walk.member(location, read)
            })?;
            if walk.close(cut.as_deref()).is_continue() {
                walk.missing = walk.missing.take().or(cut);
            }
        }
    }
    walk.end()
}

/// A walk over the nodes of a bundle.
struct Walk<'w, 'v> {
    path: &'w Path,
    items: &'w [Item],
    limits: Limits,
    /// The files outside of `nodes/`.
    bundle: Found,
    /// The objects that the nodes share; known before the first node.
    cluster: Option<Evidence>,
    /// The node that is being read.
    current: Option<(String, Found)>,
    /// The nodes with files.
    seen: BTreeSet<String>,
    /// Reason why nodes are missing.
    missing: Option<String>,
    stopped: bool,
    visit: &'w mut Visit<'v>,
}

impl Walk<'_, '_> {
    /// Visits the nodes of a folder.
    fn folder(&mut self) -> Result<(), BundleError> {
        let root = folder::base(self.path)?;
        self.bundle = folder::members(&root, self.items, self.limits);
        self.begin();
        for name in folder::names(&root) {
            let found = folder::members(&root.join(FOLDER).join(&name), self.items, self.limits);
            self.seen.insert(name.clone());
            self.current = Some((name, found));
            if self.close(None).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Takes a member of an archive.
    fn member(&mut self, location: &Location, read: &mut ReadMember<'_>) -> ControlFlow<()> {
        let Some(name) = &location.node else {
            return self.shared(location.member, read);
        };
        if self.current.as_ref().is_none_or(|(of, _)| of != name) {
            self.close(None)?;
            if self.cluster.is_none() {
                self.look_ahead();
            }
            if !self.seen.insert(name.clone()) {
                self.missing = Some(format!(
                    "the files of node {name} are not in one place: unpack the archive, and read the folder"
                ));
                return ControlFlow::Break(());
            }
            self.current = Some((name.clone(), Found::default()));
        }
        if let Some((_, found)) = &mut self.current
            && location.member.is_wanted(self.items)
        {
            let text = read(found.room(self.limits));
            found.insert(location.member, text);
        }
        ControlFlow::Continue(())
    }

    /// Takes a member outside of `nodes/`.
    fn shared(&mut self, member: Member, read: &mut ReadMember<'_>) -> ControlFlow<()> {
        self.close(None)?;
        if let (Member::Item(item), Some(cluster)) = (member, &self.cluster)
            && member.is_wanted(self.items)
            && item.file().starts_with(CLUSTER)
            && !cluster.items.contains_key(&item)
        {
            self.missing = Some(format!(
                "the files of {CLUSTER} are not in one place: unpack the archive, and read the folder"
            ));
            return ControlFlow::Break(());
        }
        // After the first node only the list matters: the objects of the cluster are known.
        if member == Member::Index || self.cluster.is_none() && member.is_wanted(self.items) {
            let text = read(self.bundle.room(self.limits));
            self.bundle.insert(member, text);
        }
        ControlFlow::Continue(())
    }

    /// Finds the objects of the cluster before the first node: kpx writes them first, other programs may not.
    fn look_ahead(&mut self) {
        if self.bundle.items.is_empty()
            && let Ok(Some(file)) = open(self.path)
        {
            let ahead = archive::load(self.path, file, None, self.items, self.limits);
            self.bundle.items = ahead.map(|ahead| ahead.bundle.items).unwrap_or_default();
        }
        self.begin();
    }

    /// Fixes the objects that the nodes share.
    fn begin(&mut self) {
        self.cluster = Some(cluster(mem::take(&mut self.bundle.items)));
    }

    /// Visits the node that was read; `cut` is the reason why it may be incomplete.
    fn close(&mut self, cut: Option<&str>) -> ControlFlow<()> {
        let (Some((name, mut found)), Some(cluster)) = (self.current.take(), &self.cluster) else {
            return ControlFlow::Continue(());
        };
        found.cut = cut.map(str::to_owned);
        let evidence = of_node(self.items, found, cluster)
            .map_err(|reason| format!("cannot use its manifest: {reason}"));
        let flow = (self.visit)(cluster, &name, evidence);
        self.stopped |= flow.is_break();
        flow
    }

    /// Visits the nodes that were not read.
    fn end(mut self) -> Result<Option<String>, BundleError> {
        if self.seen.is_empty() && self.bundle.index.is_none() {
            return Err(BundleError::OneNode {
                path: self.path.to_owned(),
            });
        }
        if self.stopped {
            return Ok(None);
        }
        let index = index(self.path, &mut self.bundle)?;
        let cluster = self.cluster.unwrap_or_default();
        for of in index.into_iter().flat_map(|index| index.nodes) {
            if !self.seen.contains(&of.name) {
                let reason = of.reason.unwrap_or_else(|| NO_FILES.to_owned());
                if (self.visit)(&cluster, &of.name, Err(reason)).is_break() {
                    return Ok(None);
                }
            }
        }
        Ok(self.missing)
    }
}
