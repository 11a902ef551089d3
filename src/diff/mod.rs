//! What is there against what should be, as changes that name the object and the Service.
//!
//! Only what kube-proxy owns is compared. What kube-proxy itself would leave as it is (counters, sizes, the order of
//! Services, real servers that drain, stale chains of a large cluster) is no difference.

mod ipvs;
mod nft;
mod owners;
mod rules;
mod sequence;

use std::fmt;

use serde::{Serialize, Serializer};

use crate::backend::iptables::expect::Names;
use crate::backend::iptables::names::SEP;
use crate::backend::ipvs::model::DUMMY;
use crate::backend::nftables::expect::{TABLE, family_name};
use crate::backend::{self, Mode, iptables};
use crate::desired::{DesiredState, FamilyState};
use crate::evidence::{Gap, Item};
use crate::net::{Cidr, Family};
use crate::node::mode::Leftover;
use crate::node::{NodeSnapshot, Store};

use owners::Owners;
pub use rules::{jumps, same};

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Diff {
    /// The changes, sorted by Service, layer, family and object.
    pub changes: Vec<Change>,
    /// What other modes left behind, where the mode compared with is the current one.
    pub leftovers: Vec<Leftover>,
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
    // Leftovers of the other modes are looked for in all of these.
    let rules = [
        Item::Iptables4,
        Item::Iptables6,
        Item::Ipset,
        Item::Ipvs,
        Item::IpvsSave,
        Item::IpvsTimeout,
        Item::Links,
        Item::Modules,
        Item::Healthz,
    ];
    // nft takes ten times as long as iptables-save to list the rules of a large iptables mode, and kube-proxy removes
    // its nftables table when it starts in another mode.
    let nft = [Item::Nft, Item::NftText];
    let nft = if mode == Mode::Nftables {
        &nft[..]
    } else {
        &[]
    };
    [crate::node::desired::NEEDS, &rules, nft].concat()
}

/// Compares what `node` has with what it should have in `mode`, for `families`.
pub fn compare(node: &NodeSnapshot<'_>, mode: Mode, families: &[Family]) -> Result<Diff, Gap> {
    let mut diff = against(node, node.desired(mode)?, families);
    let modes = node.modes();
    if modes.current() == Some(mode) {
        diff.leftovers = modes.leftovers;
        diff.leftovers
            .retain(|left| left.family.is_none_or(|family| families.contains(&family)));
    }
    Ok(diff)
}

/// Compares what `node` has with `desired`, for `families`; what other modes left behind is not looked for.
pub fn against(node: &NodeSnapshot<'_>, desired: &DesiredState, families: &[Family]) -> Diff {
    let mut diff = Diff {
        notes: desired.notes.clone(),
        ..Diff::default()
    };
    for state in &desired.families {
        if families.contains(&state.family) {
            diff.family(node, desired, state);
        }
    }
    if families.contains(&Family::V4) {
        diff.sysctls(node, desired);
    }
    if desired.is_older() {
        diff.older(desired);
    }
    diff.changes.sort_by(|a, b| a.key().cmp(&b.key()));
    diff.changes.dedup();
    diff
}

/// Returns the prefixes that cluster IPs come from, as far as the node's nftables tables tell: they are no part of the
/// evidence elsewhere.
pub fn service_cidrs(node: &NodeSnapshot<'_>) -> Vec<Cidr> {
    let Ok(rules) = node.nft() else {
        return Vec::new();
    };
    let tables = Family::BOTH.map(|family| rules.table(family_name(family), TABLE));
    tables
        .into_iter()
        .flatten()
        .flat_map(nft::service_cidrs)
        .collect()
}

impl Diff {
    /// Compares one family, and allows for what kube-proxy is known not to have done yet.
    fn family(&mut self, node: &NodeSnapshot<'_>, desired: &DesiredState, state: &FamilyState) {
        let family = state.family;
        let mut part = Self::part(node, desired, state);
        // One that runs in another mode does not write this one.
        let writes = node
            .reported_mode()
            .map_or(true, |mode| mode == desired.mode);
        if !part.changes.is_empty() && writes && node.is_first_sync(family) {
            let why = format!(
                "{} differences left out: kube-proxy says that its first sync of {family} is under way, \
                 and not late; look again in a minute",
                part.changes.len()
            );
            part.changes.clear();
            part.unknown
                .push((family.to_string(), Gap::Failed(Item::Metrics, why)));
        }
        if !part.changes.is_empty() && state.has_zone_hints() {
            part = Self::zone(node, desired, family, part);
        }
        self.changes.append(&mut part.changes);
        self.unknown.append(&mut part.unknown);
        self.notes.append(&mut part.notes);
    }

    /// Explains changes by a kube-proxy that did not see its Node's zone before its first sync, and learns it only with
    /// the next change of the Node.
    fn zone(node: &NodeSnapshot<'_>, desired: &DesiredState, family: Family, part: Self) -> Self {
        let Ok(without) = node.desired_without_zone(desired.mode) else {
            return part;
        };
        let Some(state) = without.family(family) else {
            return part;
        };
        let mut other = Self::part(node, &without, state);
        let explained = other.changes.len() < part.changes.len()
            && other.changes.iter().all(|c| part.changes.contains(c));
        if !explained {
            return part;
        }
        let mut services: Vec<_> = part
            .changes
            .iter()
            .filter(|change| !other.changes.contains(change))
            .filter_map(|change| change.service.clone())
            .collect();
        services.sort();
        services.dedup();
        other.notes.push(format!(
            "kube-proxy does not know this node's zone for {family}: it spreads {} over all zones. It missed the \
             Node's label at its start, and takes it in when the Node changes or kube-proxy restarts",
            services.join(", ")
        ));
        other
    }

    fn part(node: &NodeSnapshot<'_>, desired: &DesiredState, state: &FamilyState) -> Self {
        let mut part = Self::default();
        match desired.mode {
            Mode::Iptables => part.iptables(node, desired, state),
            Mode::Ipvs => part.ipvs(node, desired, state),
            Mode::Nftables => part.nftables(node, desired, state),
        }
        part
    }

    fn iptables(&mut self, node: &NodeSnapshot<'_>, desired: &DesiredState, state: &FamilyState) {
        let names = Names::of(state);
        let part = node.iptables(Store::InUse, state.family).and_then(|have| {
            let scope = rules::Iptables::new(state, &names);
            let mut comparison = rules::Comparison::new(have, &scope);
            let want = iptables::expect::each(desired, state, &names, &mut |chain| {
                comparison.chain("nat", &chain);
            })?;
            Ok(comparison.finish(&want))
        });
        self.add(&format!("{} rules", state.family), part);
    }

    fn ipvs(&mut self, node: &NodeSnapshot<'_>, desired: &DesiredState, state: &FamilyState) {
        let family = state.family;
        let want = match backend::ipvs::expect::expect(desired, state) {
            Ok(want) => want,
            Err(gap) => {
                return self.add(
                    &format!("{family} virtual servers, sets and rules"),
                    Err(gap),
                );
            }
        };
        let scene = ipvs::Scene::new(state, &want, desired.config.exclude_cidrs());
        let rules = backend::ipvs::rules::expect(desired, state, &want);
        let part = node.iptables(Store::InUse, family);
        let part = part.map(|have| rules::compare(have, &rules, &scene));
        self.add(&format!("{family} rules"), part);
        let part = node.ipvs_or_none().map(|have| scene.servers(have));
        self.add(&format!("{family} virtual servers"), part);
        let part = node.ipset_or_none().map(|have| scene.sets(have));
        self.add(&format!("{family} sets"), part);
        let on_dummy = desired.facts.addresses.as_ref().map(|all| {
            let ours = all.iter().filter(|at| at.link == DUMMY);
            ours.map(|at| at.addr).collect::<Vec<_>>()
        });
        let there = node
            .links()
            .map(|links| links.all.iter().any(|link| link.name == DUMMY));
        match (there, on_dummy) {
            // Said of each family, it is one change.
            (Ok(false), _) => self.changes.push(Change {
                action: Action::Missing,
                layer: Layer::Link,
                family: None,
                object: Object::Link {
                    name: DUMMY.to_owned(),
                },
                service: None,
                have: None,
                want: Some("a dummy link with the Services' addresses".to_owned()),
            }),
            (_, Ok(have)) => self.changes.extend(scene.addresses(&have)),
            (_, Err(gap)) => self.add(&format!("{family} addresses of {DUMMY}"), Err(gap.clone())),
        }
    }

    fn nftables(&mut self, node: &NodeSnapshot<'_>, desired: &DesiredState, state: &FamilyState) {
        let part = node.nft().and_then(|rules| {
            let have = rules.table(family_name(state.family), TABLE);
            // Prefixes of cluster IPs are no part of the evidence but here.
            let cidrs = have.map(nft::service_cidrs).unwrap_or_default();
            let want = backend::nftables::expect::expect(desired, state, &cidrs)?;
            Ok(nft::compare(state.family, have, &want, &Owners::of(state)))
        });
        self.add(&format!("{} table {TABLE}", state.family), part);
    }

    /// Leaves out what a kube-proxy older than those that are known may write otherwise.
    fn older(&mut self, desired: &DesiredState) {
        self.changes.retain(|change| match &change.object {
            Object::Chain { chain, .. } | Object::Rule { chain, .. } => {
                chain.starts_with(SEP) || chain == "KUBE-MARK-MASQ"
            }
            // 1.21 and 1.26 brought these.
            Object::Set { name } | Object::Member { set: name, .. } => {
                !name.ends_with("HEALTH-CHECK-NODE-PORT") && !name.ends_with("IPVS-IPS")
            }
            _ => true,
        });
        let why = format!("kube-proxy {} may write them otherwise", desired.version);
        let what = format!("rules, except of {SEP}* and KUBE-MARK-MASQ");
        self.unknown.push((what, Gap::NotApplicable(why)));
    }

    fn sysctls(&mut self, node: &NodeSnapshot<'_>, desired: &DesiredState) {
        let wanted = backend::program::sysctls(desired);
        let have = match node.sysctl() {
            Ok(have) => have,
            Err(_) if wanted.is_empty() => return,
            // What kube-proxy writes once, at its start, is not worth a failure.
            Err(gap) => {
                return self
                    .notes
                    .push(format!("kernel settings are not compared: {gap}"));
            }
        };
        for (key, want) in wanted {
            let there = have.get(key);
            let action = match there {
                Some(value) if *value == *want => continue,
                Some(_) => Action::Differs,
                None => Action::Missing,
            };
            self.changes.push(Change {
                action,
                layer: Layer::Sysctl,
                family: Some(Family::V4),
                object: Object::Sysctl {
                    key: key.to_owned(),
                },
                service: None,
                have: there.map(str::to_owned),
                want: Some(want),
            });
        }
    }

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
