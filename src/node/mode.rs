//! Which mode serves the node, seen three ways, and what other modes left behind.

use std::collections::BTreeMap;

use serde::Serialize;

use super::objects::{Found, Object};
use super::{NodeSnapshot, Store};
use crate::backend::Mode;
use crate::backend::ipvs::model::DUMMY;
use crate::evidence::{Gap, Item};
use crate::net::Family;

/// What is known of the mode.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Modes {
    /// What kube-proxy is configured for.
    pub configured: Result<Mode, Gap>,
    /// What kube-proxy says it runs in.
    pub reported: Result<Mode, Gap>,
    /// What the kernel's state says, by family.
    pub observed: Vec<Observed>,
    /// State of modes that are not the current one, sorted.
    pub leftovers: Vec<Leftover>,
    /// What was not looked at, so that leftovers there would not be seen.
    pub gaps: Vec<Gap>,
}

/// What the kernel's state of one family says.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    /// The family.
    pub family: Family,
    /// Modes whose rules lead packets to Services; more than one where modes get in each other's way.
    pub serving: Vec<Mode>,
    /// Modes of which any object is there.
    pub present: Vec<Mode>,
}

/// Objects of one kind that a mode left behind.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Leftover {
    /// Whose they are.
    pub mode: Mode,
    /// The family; `None` for an object of both.
    pub family: Option<Family>,
    /// What they are.
    pub kind: Kind,
    /// Their names, sorted: chains as `TABLE NAME`.
    pub names: Vec<String>,
    /// Rules in these chains and jumps to them; members of these sets; 0 for other kinds.
    pub rules: usize,
}

/// A kind of left-over objects.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// iptables chains.
    Chains,
    /// IP sets.
    Sets,
    /// Virtual servers.
    VirtualServers,
    /// Addresses of kube-ipvs0.
    Addresses,
    /// The link kube-ipvs0.
    Link,
    /// The nftables table.
    Table,
}

impl Kind {
    /// Returns what `count` objects of the kind are called.
    pub const fn words(self, count: usize) -> &'static str {
        match (self, count) {
            (Self::Chains, 1) => "chain",
            (Self::Chains, _) => "chains",
            (Self::Sets, 1) => "set",
            (Self::Sets, _) => "sets",
            (Self::VirtualServers, 1) => "virtual server",
            (Self::VirtualServers, _) => "virtual servers",
            (Self::Addresses, 1) => "address",
            (Self::Addresses, _) => "addresses",
            (Self::Link, _) => "link",
            (Self::Table, 1) => "table",
            (Self::Table, _) => "tables",
        }
    }
}

impl Modes {
    /// Returns the mode that leads packets to Services, as the kernel's state has it; `None` if no mode does or several do.
    pub fn observed(&self) -> Option<Mode> {
        let mut serving = self.observed.iter().flat_map(|of| &of.serving);
        let first = *serving.next()?;
        serving.all(|&mode| mode == first).then_some(first)
    }

    /// Returns the mode to hold everything else against: what kube-proxy says, else what is observed, else configured.
    pub fn current(&self) -> Option<Mode> {
        let reported = self.reported.as_ref().ok().copied();
        reported
            .or_else(|| self.observed())
            .or_else(|| self.configured.as_ref().ok().copied())
    }
}

impl NodeSnapshot<'_> {
    /// Returns the mode kube-proxy says it runs in.
    pub fn reported_mode(&self) -> Result<Mode, Gap> {
        let name = self.proxy_mode()?;
        Mode::named(name).ok_or_else(|| {
            let what = format!("kube-proxy says {name:?}, which is not a mode on Linux");
            Gap::Failed(Item::ProxyMode, what)
        })
    }

    /// Returns what is known of the mode.
    pub fn modes(&self) -> Modes {
        let mut modes = Modes {
            configured: self.configured_mode(),
            reported: self.reported_mode(),
            observed: Vec::new(),
            leftovers: Vec::new(),
            gaps: Vec::new(),
        };
        let mut found = Vec::new();
        for family in Family::BOTH {
            let seen = self.objects(family, &mut found, &mut modes.gaps);
            modes.observed.push(seen);
        }
        if let Some(current) = modes.current() {
            modes.leftovers = grouped(found.into_iter().filter(|of| !of.serves(current)));
        }
        modes
    }

    fn objects<'n>(
        &'n self,
        family: Family,
        found: &mut Vec<Found<'n>>,
        gaps: &mut Vec<Gap>,
    ) -> Observed {
        let mut serving = self.dispatching(Store::InUse, family);
        let from = found.len();
        // Most nodes have one store alone; a second one is looked at if it is there.
        for store in [Store::Legacy, Store::Nft] {
            if self.chains_of(store, family, found).is_ok() {
                serving.extend(self.dispatching(store, family));
            }
        }
        let mut read = |read: Result<(), Gap>| {
            if let Err(gap) = read {
                note(gap, gaps);
            }
        };
        read(self.chains_of(Store::InUse, family, found));
        read(self.sets_of(family, found));
        read(self.servers_of(family, found));
        read(self.dummy_addresses(family, found));
        if family == Family::V4 {
            self.dummy(found).ok();
        }
        read(self.table_of(family, found).map(|leads| {
            serving.extend(leads.then_some(Mode::Nftables));
        }));
        let mut present: Vec<Mode> = found[from..]
            .iter()
            .filter(|of| of.only && !matches!(of.object, Object::Jump { .. }))
            .map(|of| of.mode)
            .chain(serving.iter().copied())
            .collect();
        present.sort();
        present.dedup();
        serving.sort();
        serving.dedup();
        Observed {
            family,
            serving,
            present,
        }
    }
}

/// What is not there cannot hold leftovers; only what could not be looked at is worth a note.
fn note(gap: Gap, gaps: &mut Vec<Gap>) {
    if !matches!(gap, Gap::Absent(..) | Gap::NotApplicable(_)) && !gaps.contains(&gap) {
        gaps.push(gap);
    }
}

/// Puts objects of one kind together. What iptables and ipvs mode both write is told apart from what one does.
fn grouped<'n>(found: impl Iterator<Item = Found<'n>>) -> Vec<Leftover> {
    let mut groups: BTreeMap<_, (Vec<String>, usize)> = BTreeMap::new();
    for of in found {
        let (kind, name, rules) = match of.object {
            Object::Chain {
                table,
                chain,
                rules,
            } => (Kind::Chains, Some(format!("{table} {chain}")), rules),
            Object::Jump { .. } => (Kind::Chains, None, 1),
            Object::Set { name, members } => (Kind::Sets, Some(name.to_owned()), members),
            Object::Server { proto, at } => {
                (Kind::VirtualServers, Some(format!("{proto} {at}")), 0)
            }
            Object::Address(addr) => (Kind::Addresses, Some(addr.to_string()), 0),
            Object::Link => (Kind::Link, Some(DUMMY.to_owned()), 0),
            Object::Table { family, rules } => {
                (Kind::Table, Some(format!("{family} kube-proxy")), rules)
            }
        };
        let (names, count) = groups
            .entry((of.mode, of.family, kind, of.only))
            .or_default();
        names.extend(name);
        *count += rules;
    }
    let groups = groups.into_iter();
    let mut left: Vec<_> = groups
        // Jumps to chains that are not there are no rules of anybody.
        .filter(|(_, (names, _))| !names.is_empty())
        .map(|((mode, family, kind, _), (mut names, rules))| {
            names.sort();
            Leftover {
                mode,
                family,
                kind,
                names,
                rules,
            }
        })
        .collect();
    left.sort();
    left
}
