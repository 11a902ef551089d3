//! The mode that serves the node, from three sources, and leftovers of other modes.

use std::collections::BTreeMap;

use serde::Serialize;

use super::objects::{Found, Object};
use super::{IptablesBackend, NodeSnapshot};
use crate::backend::Mode;
use crate::backend::ipvs::model::DUMMY;
use crate::evidence::{Gap, Item};
use crate::net::Family;

/// Mode of a node: configured, reported and observed.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Modes {
    /// Mode in kube-proxy's configuration.
    pub configured: Result<Mode, Gap>,
    /// Mode reported by kube-proxy.
    pub reported: Result<Mode, Gap>,
    /// Modes observed in the kernel, by family.
    pub observed: Vec<Observed>,
    /// Leftovers of other modes, sorted.
    pub leftovers: Vec<Leftover>,
    /// Items that were not read and may contain more leftovers.
    pub gaps: Vec<Gap>,
}

/// Modes observed in the kernel for one family.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    /// IP family.
    pub family: Family,
    /// Modes whose rules lead packets to Services; several if modes conflict.
    pub serving: Vec<Mode>,
    /// Modes with at least one object.
    pub present: Vec<Mode>,
}

/// Leftover objects of one kind.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Leftover {
    /// Mode that created them.
    pub mode: Mode,
    /// IP family; `None` for an object of both families.
    pub family: Option<Family>,
    /// Kind of the objects.
    pub kind: Kind,
    /// Names, sorted; chains as `TABLE NAME`.
    pub names: Vec<String>,
    /// Rules in the chains and jumps to them, or members of the sets; 0 for other kinds.
    pub rules: usize,
}

/// A kind of leftover objects.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
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
    /// Returns the noun for `count` objects of the kind.
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
    /// Returns the only mode whose rules lead packets to Services; `None` if there is no such mode or more than one.
    pub fn observed(&self) -> Option<Mode> {
        let mut serving = self
            .observed
            .iter()
            .flat_map(|observation| &observation.serving);
        let first = *serving.next()?;
        serving.all(|&mode| mode == first).then_some(first)
    }

    /// Returns the mode in force: as reported by kube-proxy, else as observed, else as configured.
    pub fn current(&self) -> Option<Mode> {
        let reported = self.reported.as_ref().ok().copied();
        reported
            .or_else(|| self.observed())
            .or_else(|| self.configured.as_ref().ok().copied())
    }
}

impl NodeSnapshot<'_> {
    /// Returns the mode reported by kube-proxy.
    pub fn reported_mode(&self) -> Result<Mode, Gap> {
        let name = self.proxy_mode()?;
        Mode::named(name).ok_or_else(|| {
            let what = format!("kube-proxy reports {name:?}, which is not a mode on Linux");
            Gap::Failed(Item::ProxyMode, what)
        })
    }

    /// Returns the configured, reported and observed mode, with leftovers.
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
            modes.leftovers = grouped(
                found
                    .into_iter()
                    .filter(|leftover| !leftover.serves(current)),
            );
        }
        modes
    }

    fn objects<'n>(
        &'n self,
        family: Family,
        found: &mut Vec<Found<'n>>,
        gaps: &mut Vec<Gap>,
    ) -> Observed {
        let mut serving = self.dispatching(IptablesBackend::InUse, family);
        let from = found.len();
        // Most nodes have only one iptables back end; a second one is included if present.
        for store in [IptablesBackend::Legacy, IptablesBackend::Nft] {
            if self.chains_of(store, family, found).is_ok() {
                serving.extend(self.dispatching(store, family));
            }
        }
        let mut read = |read: Result<(), Gap>| {
            if let Err(gap) = read {
                note(gap, gaps);
            }
        };
        read(self.chains_of(IptablesBackend::InUse, family, found));
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
            .filter(|owned_object| {
                owned_object.only && !matches!(owned_object.object, Object::Jump { .. })
            })
            .map(|owned_object| owned_object.mode)
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

/// A missing object cannot hold leftovers; only unread items are noted.
fn note(gap: Gap, gaps: &mut Vec<Gap>) {
    if !matches!(gap, Gap::Absent(..) | Gap::NotApplicable(_)) && !gaps.contains(&gap) {
        gaps.push(gap);
    }
}

/// Groups objects by kind. Objects that both iptables and ipvs mode write form their own groups.
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
        // Jumps to chains that do not exist have no owner.
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
