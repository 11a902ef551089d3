//! The live state compared with the desired state: typed changes, each with its object and its Service.
//!
//! Only objects of kube-proxy are compared. Deviations that kube-proxy itself does not correct (counters, sizes, the
//! order of Services, real servers that drain, stale chains of a large cluster) are no difference.

mod change;
mod iptables;
mod ipvs;
mod nftables;
mod owners;
mod print;
mod row;
mod sequence;
mod userspace;

use std::net::IpAddr;
use std::thread;

use serde::Serialize;

use kpx_node::backend::iptables::expect::Names;
use kpx_node::backend::iptables::model::{Rule, Ruleset, Target};
use kpx_node::backend::iptables::names::SEP;
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::backend::nftables::expect::TABLE;
use kpx_node::backend::nftables::model::Table;
use kpx_node::backend::{self, Mode};
use kpx_node::cluster::EndpointSlice;
use kpx_node::cluster::config::NodePortsAt;
use kpx_node::desired::{DesiredState, FamilyState};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Cidr, Family};
use kpx_node::node::mode::Leftover;
use kpx_node::node::{IptablesBackend, NodeSnapshot};
use kpx_node::words::number_of;

pub use change::{Change, ChangeKind, Delta, Layer, Object, RuleNumber};
use owners::Owners;
pub use row::Row;

/// The differences found.
#[derive(Clone, Debug, Default)]
pub struct Diff {
    /// The changes, sorted by Service, layer, family and object.
    pub changes: Vec<Change>,
    /// Leftovers of other modes, if the mode compared with is the current one.
    pub leftovers: Vec<Leftover>,
    /// Parts that could not be compared.
    pub unknown: Vec<Unknown>,
    /// Limits of the comparison, as sentences.
    pub notes: Vec<String>,
    /// Changes that kube-proxy's first sync, which is in progress, may still make, and the gap in [`Diff::unknown`] for them.
    pub pending: Vec<(Gap, Vec<Change>)>,
}

/// A part that could not be compared.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Unknown {
    /// Name of the part, as text.
    pub what: String,
    /// Layers with objects of the part.
    #[serde(skip)]
    pub layers: &'static [Layer],
    /// Reason.
    pub gap: Gap,
}

/// Returns the items that a comparison with `mode` reads.
pub fn needs(mode: Mode) -> Vec<Item> {
    // Leftovers of the other modes are found in all of these.
    let rules = [
        Item::Iptables4,
        Item::Iptables6,
        Item::IptablesLegacy4,
        Item::IptablesLegacy6,
        Item::IptablesNft4,
        Item::IptablesNft6,
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
    let nft = [Item::Nft, Item::NftText, Item::ServiceCidrs];
    let sockets = [
        Item::Sockets,
        Item::Tcp4,
        Item::Tcp6,
        Item::Udp4,
        Item::Udp6,
    ];
    let own = match mode {
        Mode::Nftables => &nft[..],
        Mode::Userspace => &sockets,
        Mode::Iptables | Mode::Ipvs => &[],
    };
    [kpx_node::node::desired::NEEDS, &rules, own].concat()
}

/// Compares the live state of `node` with the desired state of `mode`, for `families`.
pub fn compare(node: &NodeSnapshot<'_>, mode: Mode, families: &[Family]) -> Result<Diff, Gap> {
    let desired = thread::scope(|scope| {
        scope.spawn(|| node.parse_rules());
        node.desired(mode)
    });
    let mut diff = against(node, desired?, families);
    let is_pasted = node.evidence().missing_part(Item::ProxyConfig).is_some();
    if is_pasted && !diff.changes.is_empty() {
        diff = fitting(node, mode, families, diff)?;
    }
    let modes = node.modes();
    if modes.current() == Some(mode) {
        diff.leftovers = modes.leftovers;
        diff.leftovers
            .retain(|left| left.family.is_none_or(|family| families.contains(&family)));
    }
    Ok(diff)
}

/// Returns the difference from the rules of the release that the rules of `node` fit best, where nothing else shows the release:
/// `newest` unless an older one fits better.
fn fitting(
    node: &NodeSnapshot<'_>,
    mode: Mode,
    families: &[Family],
    newest: Diff,
) -> Result<Diff, Gap> {
    let (services, slices) = (node.services()?, node.slices()?);
    let mut best = newest;
    for basis in node.basis(mode)?.of_other_releases() {
        let other = against(node, &basis.desired(services, slices), families);
        // Where less can be compared, less differs.
        let is_as_whole = other.unknown.len() <= best.unknown.len();
        if is_as_whole && other.changes.len() < best.changes.len() {
            best = other;
        }
    }
    Ok(best)
}

/// Returns an error if kube-proxy's rules of `family` are only in the other back end, not among the rules in use, `have`.
fn not_elsewhere(node: &NodeSnapshot<'_>, have: &Ruleset<'_>, family: Family) -> Result<(), Gap> {
    let is_in = |rules: &Ruleset<'_>| rules.chain("nat", "KUBE-SERVICES").is_some();
    let others = [IptablesBackend::Legacy, IptablesBackend::Nft];
    let mut others = others.into_iter();
    if is_in(have) || !others.any(|store| node.iptables(store, family).is_ok_and(is_in)) {
        return Ok(());
    }
    let why = "kube-proxy writes its rules to the other back end of iptables: see IB02";
    Err(Gap::Unsupported(Item::iptables(family), why.to_owned()))
}

/// Compares the live state of `node` with `desired`, for `families`; leftovers of other modes are not looked for.
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
    diff.changes.sort_by_cached_key(Change::order);
    diff.changes.dedup();
    diff
}

/// Returns the changes that bring the live state of `node` to `state` of `desired`, even if kube-proxy is about to make them.
pub(crate) fn changes_to(
    node: &NodeSnapshot<'_>,
    desired: &DesiredState,
    state: &FamilyState,
) -> Vec<Change> {
    let mut changes = Diff::part(node, desired, state).changes;
    changes.sort_by_cached_key(Change::order);
    changes
}

/// Returns the Service IP ranges that kube-proxy knows: those that the node's nftables tables have, or else those of the
/// cluster's `ServiceCIDR` objects.
pub fn service_cidrs(node: &NodeSnapshot<'_>) -> Vec<Cidr> {
    let rules = node.nft().ok();
    let tables = rules.into_iter().flat_map(|rules| {
        let of = |family: Family| rules.table(family.nft_name(), TABLE);
        Family::BOTH.into_iter().filter_map(of)
    });
    let found: Vec<_> = tables.flat_map(nftables::service_cidrs).collect();
    if !found.is_empty() {
        return found;
    }
    let objects = node.service_cidrs().into_iter().flatten();
    let ranges = objects.flat_map(|object| &object.spec.cidrs);
    ranges.filter_map(|range| range.parse().ok()).collect()
}

/// Returns the addresses inside the cluster that Services of `state` have.
fn cluster_ips(state: &FamilyState) -> Vec<IpAddr> {
    state.ports.iter().map(|port| port.cluster_ip).collect()
}

/// Returns the changes that bring the rules `have` of mode iptables to `want`, which is expected of `state`.
pub(crate) fn iptables_rules(
    have: &Ruleset<'_>,
    want: &Ruleset<'_>,
    state: &FamilyState,
    names: &Names,
) -> Vec<Change> {
    iptables::compare(have, want, &iptables::Iptables::new(state, names))
}

/// Returns the changes that bring the table `have` of mode nftables to `want`, which is expected of `state`.
pub(crate) fn nftables_table(have: &Table, want: &Table, state: &FamilyState) -> Vec<Change> {
    nftables::compare(state.family, Some(have), want, &Owners::of(state))
}

impl Diff {
    /// Compares one family, and ignores rules that kube-proxy cannot have written yet.
    fn family(&mut self, node: &NodeSnapshot<'_>, desired: &DesiredState, state: &FamilyState) {
        let family = state.family;
        let mut part = Self::part(node, desired, state);
        // A kube-proxy in another mode does not write the rules of this one.
        let writes = node
            .reported_mode()
            .map_or(true, |mode| mode == desired.mode);
        if !part.changes.is_empty() && writes && node.is_first_sync(family) {
            let why = format!(
                "{} ignored: the first sync of {family} is in progress and not late; try again in a minute",
                number_of(part.changes.len(), "difference")
            );
            let gap = Gap::Failed(Item::Metrics, why);
            let changes = std::mem::take(&mut part.changes);
            self.pending.push((gap.clone(), changes));
            part.unknown.push(Unknown {
                what: family.to_string(),
                layers: &Layer::ALL,
                gap,
            });
        }
        if !part.changes.is_empty() && state.has_zone_hints() {
            part = Self::zone(node, desired, family, part);
        }
        part.drop_doubtful(node, desired, state);
        self.changes.append(&mut part.changes);
        self.unknown.append(&mut part.unknown);
        self.notes.append(&mut part.notes);
    }

    /// Removes the changes that depend on a Node that was not read: on its zone or its addresses.
    fn drop_doubtful(
        &mut self,
        node: &NodeSnapshot<'_>,
        desired: &DesiredState,
        state: &FamilyState,
    ) {
        let Err(gap) = node.nodes() else {
            return;
        };
        let slices = node.slices().into_iter().flatten();
        let hinted = slices.filter(|slice| {
            slice
                .endpoints
                .iter()
                .any(|endpoint| endpoint.hints.is_some())
        });
        let zoned: Vec<String> = hinted
            .filter_map(EndpointSlice::service)
            .map(|(namespace, name)| format!("{namespace}/{name}"))
            .collect();
        // Without ranges for them, mode nftables serves NodePorts at the primary addresses of the Node.
        let is_primary = desired.mode == Mode::Nftables
            && state.node_ip.is_loopback()
            && desired
                .config
                .node_ports_at(desired.mode)
                .contains(&NodePortsAt::Primary);
        let is_of_address = |change: &Change| {
            let asks =
                |text: Option<String>| text.is_some_and(|text| text.contains("@nodeport-ips"));
            is_primary && asks(change.have()) && !asks(change.want())
        };
        let before = self.changes.len();
        self.changes.retain(|change| {
            let name = change
                .service
                .as_ref()
                .and_then(|service| service.split(':').next());
            !name.is_some_and(|name| zoned.iter().any(|zoned| zoned == name))
                && !is_of_address(change)
        });
        if self.changes.len() < before {
            let what = format!(
                "what depends on the zone and the addresses of node {}",
                desired.node
            );
            self.unknown.push(Unknown {
                what,
                layers: &Layer::ALL,
                gap,
            });
        }
    }

    /// Explains changes by a kube-proxy that did not see its Node's zone before its first sync, and reads it only with the
    /// next change of the Node.
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
             Node's zone label when it started, and reads it when the Node changes or kube-proxy restarts",
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
            Mode::Userspace => part.userspace(node, state),
        }
        part
    }

    fn iptables(&mut self, node: &NodeSnapshot<'_>, desired: &DesiredState, state: &FamilyState) {
        let names = Names::of(state);
        let part = node
            .iptables(IptablesBackend::InUse, state.family)
            .and_then(|have| {
                not_elsewhere(node, have, state.family)?;
                let scope = iptables::Iptables::new(state, &names);
                let mut comparison = iptables::Comparison::new(have, &scope);
                let want = backend::iptables::expect::each(desired, state, &names, &mut |chain| {
                    comparison.chain("nat", &chain);
                })?;
                Ok(comparison.finish(&want))
            });
        self.add(format!("{} rules", state.family), &[Layer::Iptables], part);
        self.unreadable(node, state.family);
    }

    /// Removes the changes of rules that the node's iptables could not read.
    fn unreadable(&mut self, node: &NodeSnapshot<'_>, family: Family) {
        let is_unreadable = |rule: Option<&Rule<'_>>| {
            let target = rule.and_then(|rule| rule.target.as_ref());
            target.is_some_and(Target::is_unreadable)
        };
        let before = self.changes.len();
        self.changes.retain(|change| match &change.object {
            Object::IptablesRule { rule, .. } => !is_unreadable(rule.have()),
            _ => true,
        });
        if self.changes.len() == before {
            return;
        }
        let tool = node.evidence().text(Item::IptablesVersion);
        let tool = tool.map_or("the node's iptables", str::trim);
        let why = format!(
            "{tool} cannot read what a newer iptables wrote; list the rules with the tool in kube-proxy's image"
        );
        self.unknown.push(Unknown {
            what: format!("{family} rules with DNAT"),
            layers: &[Layer::Iptables],
            gap: Gap::Unsupported(Item::iptables(family), why),
        });
    }

    fn ipvs(&mut self, node: &NodeSnapshot<'_>, desired: &DesiredState, state: &FamilyState) {
        let family = state.family;
        let want = match backend::ipvs::expect::expect(desired, state) {
            Ok(want) => want,
            Err(gap) => {
                let what =
                    format!("{family} virtual servers, sets, rules and addresses of {DUMMY}");
                return self.add(what, &Layer::ALL, Err(gap));
            }
        };
        let left = ipvs::Left {
            excluded: desired.config.exclude_cidrs(),
            of_services: cluster_ips(state),
        };
        let comparison = ipvs::Ipvs::new(state, &want, left);
        let rules = backend::ipvs::rules::expect(desired, state, &want);
        let part = node.iptables(IptablesBackend::InUse, family);
        let part = part.map(|have| iptables::compare(have, &rules, &comparison));
        self.add(format!("{family} rules"), &[Layer::Iptables], part);
        let part = node.ipvs_or_none().map(|have| comparison.servers(have));
        self.add(format!("{family} virtual servers"), &[Layer::Ipvs], part);
        let part = node.ipset_or_none().map(|have| comparison.sets(have));
        self.add(format!("{family} sets"), &[Layer::Ipset], part);
        let on_dummy = node.addresses().map(|addresses| {
            let ours = addresses.all.iter().filter(|at| at.link == DUMMY);
            ours.map(|at| at.addr.addr).collect::<Vec<_>>()
        });
        let there = node
            .links()
            .map(|links| links.all.iter().any(|link| link.name == DUMMY));
        match (there, on_dummy) {
            // Found for each family, it is one change.
            (Ok(false), _) => self.changes.push(Change {
                family: None,
                service: None,
                object: Object::Link,
            }),
            (_, Ok(have)) => self.changes.extend(comparison.addresses(&have)),
            (_, Err(gap)) => {
                let what = format!("{family} addresses of {DUMMY}");
                self.add(what, &[Layer::Link], Err(gap));
            }
        }
    }

    fn userspace(&mut self, node: &NodeSnapshot<'_>, state: &FamilyState) {
        let family = state.family;
        let sockets = node.sockets().and_then(|all| match all.gaps.first() {
            None => Ok(all),
            Some(gap) => Err(gap.clone()),
        });
        let part = node.iptables(IptablesBackend::InUse, family);
        let part = part.map(|have| userspace::compare(have, state, sockets.as_ref().ok().copied()));
        self.add(format!("{family} portals"), &[Layer::Iptables], part);
        if let Err(gap) = sockets {
            let what = format!("ports of kube-proxy behind the {family} portals");
            self.add(what, &[], Err(gap));
        }
    }

    fn nftables(&mut self, node: &NodeSnapshot<'_>, desired: &DesiredState, state: &FamilyState) {
        let part = node.nft().and_then(|rules| {
            let have = rules.table(state.family.nft_name(), TABLE);
            // No other evidence has the Service IP ranges.
            let cidrs = have.map(nftables::service_cidrs).unwrap_or_default();
            let want = backend::nftables::expect::expect(desired, state, &cidrs)?;
            Ok(nftables::compare(
                state.family,
                have,
                &want,
                &Owners::of(state),
            ))
        });
        let what = format!("{} table {TABLE}", state.family);
        self.add(what, &[Layer::Nftables], part);
    }

    /// Removes the changes of rules that a kube-proxy older than the known releases may write differently.
    fn older(&mut self, desired: &DesiredState) {
        self.changes.retain(|change| match &change.object {
            Object::IptablesChain { chain, .. } | Object::IptablesRule { chain, .. } => {
                chain.starts_with(SEP) || chain == "KUBE-MARK-MASQ"
            }
            // A rule keeps its set from being removed, and a release has sets that an older one does not.
            Object::Set {
                set: Delta::Missing(_),
                ..
            } => false,
            // 1.21 and 1.26 brought these.
            Object::Set { name, .. } | Object::Member { set: name, .. } => {
                !name.ends_with("HEALTH-CHECK-NODE-PORT") && !name.ends_with("IPVS-IPS")
            }
            _ => true,
        });
        let why = format!("kube-proxy {} may write them differently", desired.version);
        self.unknown.push(Unknown {
            what: format!("rules other than {SEP}* and KUBE-MARK-MASQ"),
            layers: &[Layer::Iptables],
            gap: Gap::NotApplicable(why),
        });
    }

    fn sysctls(&mut self, node: &NodeSnapshot<'_>, desired: &DesiredState) {
        let wanted = backend::program::sysctls(desired);
        let have = match node.sysctl() {
            Ok(have) => have,
            Err(_) if wanted.is_empty() => return,
            // kube-proxy writes these only once, at its start: a difference is no reason to fail.
            Err(gap) => {
                return self.notes.push(format!("sysctls are not compared: {gap}"));
            }
        };
        for (key, want) in wanted {
            let value = match have.known(key) {
                Ok(Some(value)) if *value == *want => continue,
                Ok(Some(value)) => Delta::differs(value.to_owned(), want),
                Ok(None) => Delta::missing(want),
                Err(gap) => {
                    return self.notes.push(format!("sysctls are not compared: {gap}"));
                }
            };
            // The settings of IPVS are for both families.
            let is_of_ipvs = key.starts_with("net.ipv4.vs.");
            self.changes.push(Change {
                family: (!is_of_ipvs).then_some(Family::V4),
                service: None,
                object: Object::Sysctl { key, value },
            });
        }
    }

    fn add(&mut self, what: String, layers: &'static [Layer], part: Result<Vec<Change>, Gap>) {
        match part {
            Ok(changes) => self.changes.extend(changes),
            Err(gap) => self.unknown.push(Unknown { what, layers, gap }),
        }
    }

    /// Returns how many changes are of `kind`.
    pub fn count(&self, kind: ChangeKind) -> usize {
        self.changes.iter().filter(|c| c.kind() == kind).count()
    }
}
