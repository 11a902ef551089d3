//! Evidence from other sources than kpx: pasted outputs of commands, files of them, and support bundles of other tools,
//! converted to the items of kpx's own bundle.
//!
//! A text shows a part of a node: a table that was not pasted, or that was cut, is unknown, not empty. Items that are shown in
//! part are [`Gap::Partial`] for readers that need all of them.

mod bundles;
mod command;
mod config;
mod draft;
mod extras;
mod form;
mod ipvs;
mod kubectl;
mod links;
mod lists;
mod minikube;
mod prefixes;
mod reader;
mod rules;
mod services;
mod sets;
mod split;
#[cfg(test)]
mod tests;
mod wraps;

use crate::evidence::{Evidence, Item, Other};
use crate::words::listed;
use reader::Reader;

pub use bundles::is_wanted;
pub use reader::HNS;
pub use rules::is_target;

/// The recognised content of foreign input.
#[derive(Clone, Debug, Default)]
pub struct Foreign {
    /// Its kind: `EKS log collector of i-0abc`, `pasted text`.
    pub what: String,
    /// The nodes, sorted by the amount of evidence, most first. A cluster without nodes has one without a name.
    pub nodes: Vec<ForeignNode>,
    /// The parts of it that could not be read.
    pub unread: Vec<String>,
}

/// A node of foreign input.
#[derive(Clone, Debug, Default)]
pub struct ForeignNode {
    /// Its name; empty if it is not shown.
    pub name: String,
    /// The evidence, and that of the cluster.
    pub evidence: Evidence,
    /// Its content, in words: `rules (nat), 3 Services`.
    pub has: Vec<String>,
}

impl Foreign {
    /// Returns the node `name`; without a name, the one with the most evidence.
    pub fn node(&self, name: Option<&str>) -> Option<&ForeignNode> {
        match name {
            None => self.nodes.first(),
            Some(name) => self
                .nodes
                .iter()
                .find(|node| node.name == name)
                .or_else(|| {
                    // One node without a name may be any.
                    self.nodes
                        .first()
                        .filter(|node| self.nodes.len() == 1 && node.name.is_empty())
                }),
        }
    }

    /// Returns the recognised kind, contents and missing parts, in one line.
    pub fn summary(&self, chosen: &ForeignNode) -> String {
        let mut line = self.what.clone();
        if !chosen.name.is_empty() {
            line = format!("{line}, node {}", chosen.name);
        }
        let has = if chosen.has.is_empty() {
            "nothing of a node".to_owned()
        } else {
            chosen.has.join(", ")
        };
        line = format!("{line}: {has}");
        let lacks = [(Item::Services, "Services"), (Item::Routes, "routes")];
        let lacks = lacks.into_iter().filter(|(item, _)| {
            !chosen.evidence.has(*item)
                || chosen
                    .evidence
                    .iter()
                    .any(|(of, read)| of == *item && read.is_err())
        });
        let lacks: Vec<&str> = lacks.map(|(_, name)| name).collect();
        if !lacks.is_empty() {
            line = format!("{line}; no {}", lacks.join(", no "));
        }
        let others: Vec<&str> = self
            .nodes
            .iter()
            .map(|node| node.name.as_str())
            .filter(|name| *name != chosen.name && !name.is_empty())
            .collect();
        if !others.is_empty() {
            line = format!(
                "{line}; choose another node with --node: {}",
                listed(&others)
            );
        }
        if !self.unread.is_empty() {
            line = format!("{line}; not read: {}", listed(&self.unread));
        }
        line
    }

    /// Returns whether it begins with a pasted text.
    pub fn is_text(&self) -> bool {
        self.what.starts_with(PASTE)
    }

    /// Adds the nodes of `other`: nodes of the same name, or of no name, become one.
    #[must_use]
    pub fn join(mut self, other: Self) -> Self {
        const PASTES: &str = "pasted texts";
        if [PASTE, PASTES].contains(&self.what.as_str()) && other.what == PASTE {
            PASTES.clone_into(&mut self.what);
        } else {
            self.what = format!("{} and {}", self.what, other.what);
        }
        self.unread.extend(other.unread);
        let lone = other.nodes.len() == 1 && self.nodes.len() == 1;
        for node in other.nodes {
            let is_same = |known: &&mut ForeignNode| {
                known.name == node.name || lone && (known.name.is_empty() || node.name.is_empty())
            };
            if let Some(of) = self.nodes.iter_mut().find(is_same) {
                // For an item in both, the first one counts, unless it has only a part.
                let mut joined = node.evidence.clone();
                let better = |item: Item| {
                    of.evidence.missing_part(item).is_none() || joined.missing_part(item).is_some()
                };
                let items: Vec<Item> = of
                    .evidence
                    .iter()
                    .filter(|(item, read)| {
                        read.is_ok() && (better(*item) || joined.text(*item).is_err())
                    })
                    .map(|(item, _)| item)
                    .collect();
                joined.extend(of.evidence.only(&items));
                joined.manifest_of(&of.evidence);
                of.evidence = joined;
                let new = node.has.into_iter().filter(|has| !of.has.contains(has));
                let new: Vec<String> = new.collect();
                of.has.extend(new);
                if of.name.is_empty() {
                    of.name = node.name;
                }
            } else {
                let shared: Vec<Item> = kubectl::items().collect();
                let of_cluster = self.nodes.first().map(|first| first.evidence.only(&shared));
                let mut node = node;
                if let Some(cluster) = of_cluster {
                    let mut all = cluster;
                    all.extend(node.evidence);
                    node.evidence = all;
                }
                self.nodes.push(node);
            }
        }
        self
    }
}

/// The name of a pasted text.
const PASTE: &str = "pasted text";

/// Reads a pasted text, or a file with outputs of commands. `None` if nothing in it is known.
pub fn paste(bytes: &[u8]) -> Option<Foreign> {
    let mut reader = Reader::default();
    reader.pasted(&split::decode(bytes));
    reader.foreign(PASTE.to_owned()).ok()
}

/// Reads the files of an archive or a folder; `name` is the name of the archive. If nothing in it is known, the error lists the
/// parts that could not be read; it may be empty.
pub fn files(name: &str, files: Vec<Other>) -> Result<Foreign, Vec<String>> {
    bundles::read(name, files)
}
