//! What is there against what should be, as changes that name the object and the Service.
//!
//! Only what kube-proxy owns is compared. What kube-proxy itself would leave as it is (counters, sizes, the order of
//! Services, real servers that drain, stale chains of a large cluster) is no difference.

mod rules;
mod sequence;

use std::fmt;

use serde::{Serialize, Serializer};

use crate::backend::Mode;
use crate::backend::iptables;
use crate::backend::iptables::expect::Names;
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::{NodeSnapshot, Store};

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Diff {
    /// The changes, sorted by Service, layer, family and object.
    pub changes: Vec<Change>,
    /// What could not be compared, and why.
    pub unknown: Vec<(String, Gap)>,
    /// What limits the comparison, in words.
    pub notes: Vec<String>,
}

/// One difference.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Change {
    /// Which kind.
    pub action: Action,
    /// Which part of the kernel's state.
    pub layer: Layer,
    /// The family, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<Family>,
    /// What it is about.
    pub object: Object,
    /// The service port it serves: `NAMESPACE/NAME:PORT`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// What is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub have: Option<String>,
    /// What should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub want: Option<String>,
}

/// A kind of difference.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// It should be there, and is not.
    Missing,
    /// It is there, and should not be.
    Extra,
    /// It is there, but not as it should be.
    Differs,
}

/// A part of the kernel's state.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// Chains and rules.
    Iptables,
    /// IP sets.
    Ipset,
    /// Virtual and real servers.
    Ipvs,
    /// kube-ipvs0 and its addresses.
    Link,
    /// The nftables table.
    Nftables,
    /// Kernel settings.
    Sysctl,
}

/// What a change is about. [`fmt::Display`] is its name in reports.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Object {
    /// A chain with its rules.
    Chain {
        /// The table, in nftables mode the family's word for it.
        table: String,
        /// The chain.
        chain: String,
    },
    /// A rule.
    Rule {
        /// The table.
        table: String,
        /// The chain.
        chain: String,
        /// Its number in the chain from 1: as it is, or for a missing rule as it should be.
        number: usize,
    },
    /// A set or map.
    Set {
        /// The name.
        name: String,
    },
    /// A member of a set, or an element of a map.
    Member {
        /// The set's name.
        set: String,
        /// The member, or the element's key.
        member: String,
    },
    /// A virtual server.
    VirtualServer {
        /// `tcp 10.96.0.1:443`.
        server: String,
    },
    /// A real server.
    RealServer {
        /// Its virtual server.
        server: String,
        /// Its address and port.
        real: String,
    },
    /// A link.
    Link {
        /// The name.
        name: String,
    },
    /// An address of a link.
    Address {
        /// The link.
        link: String,
        /// The address.
        addr: String,
    },
    /// A table.
    Table {
        /// Family and name.
        name: String,
    },
    /// A kernel setting.
    Sysctl {
        /// The dotted name.
        key: String,
    },
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chain { table, chain } => write!(f, "{table} chain {chain}"),
            Self::Rule {
                table,
                chain,
                number,
            } => write!(f, "{table} chain {chain} rule {number}"),
            Self::Set { name } => write!(f, "set {name}"),
            Self::Member { set, member } => write!(f, "set {set} member {member}"),
            Self::VirtualServer { server } => write!(f, "virtual server {server}"),
            Self::RealServer { server, real } => {
                write!(f, "virtual server {server} real server {real}")
            }
            Self::Link { name } => write!(f, "link {name}"),
            Self::Address { link, addr } => write!(f, "link {link} address {addr}"),
            Self::Table { name } => write!(f, "table {name}"),
            Self::Sysctl { key } => f.write_str(key),
        }
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Returns what must be read to compare with `mode`.
pub fn needs(mode: Mode) -> Vec<Item> {
    let rules: &[Item] = match mode {
        Mode::Iptables => &[Item::Iptables4, Item::Iptables6],
        Mode::Ipvs => &[
            Item::Iptables4,
            Item::Iptables6,
            Item::Ipset,
            Item::Ipvs,
            Item::IpvsSave,
            Item::IpvsTimeout,
            Item::Links,
        ],
        Mode::Nftables => &[Item::Nft, Item::NftText],
    };
    [crate::node::desired::NEEDS, rules].concat()
}

/// Compares what `node` has with what it should have in `mode`, for `families`.
pub fn compare(node: &NodeSnapshot<'_>, mode: Mode, families: &[Family]) -> Result<Diff, Gap> {
    let desired = node.desired(mode)?;
    let mut diff = Diff {
        notes: desired.notes.clone(),
        ..Diff::default()
    };
    for state in &desired.families {
        if !families.contains(&state.family) {
            continue;
        }
        match mode {
            Mode::Iptables => {
                let names = Names::of(state);
                let part = node.iptables(Store::InUse, state.family).and_then(|have| {
                    let want = iptables::expect::expect(desired, state, &names)?;
                    Ok(rules::compare(
                        have,
                        &want,
                        &rules::Iptables::new(state, &names),
                    ))
                });
                diff.add(&format!("{} rules", state.family), part);
            }
            Mode::Ipvs | Mode::Nftables => {
                let gap = Gap::Failed(Item::ProxyConfig, "not compared yet".to_owned());
                diff.add(mode.name(), Err(gap));
            }
        }
    }
    diff.changes.sort_by(|a, b| a.key().cmp(&b.key()));
    Ok(diff)
}

impl Diff {
    fn add(&mut self, what: &str, part: Result<Vec<Change>, Gap>) {
        match part {
            Ok(changes) => self.changes.extend(changes),
            Err(gap) => self.unknown.push((what.to_owned(), gap)),
        }
    }

    /// Returns how many changes are of the kind `action`.
    pub fn count(&self, action: Action) -> usize {
        self.changes.iter().filter(|c| c.action == action).count()
    }
}

impl Change {
    fn key(&self) -> impl Ord {
        (
            self.service.is_none(),
            self.service.clone(),
            self.layer,
            self.family,
            self.object.clone(),
            self.action,
        )
    }
}
