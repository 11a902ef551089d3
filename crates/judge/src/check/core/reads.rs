//! Reads that many checks share.

use super::Collector;
use crate::check::{Facts, Proof};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::conntrack::Entry;
use kpx_node::node::modules::Standing;

/// The items with the table of virtual servers.
pub(in crate::check) const IPVS_TABLE: &[Item] = &[
    Item::Ipvs,
    Item::IpvsSave,
    Item::IpvsStats,
    Item::IpvsTimeout,
];

/// Returns the value of the sysctl `key`, or a gap if it is missing.
pub(in crate::check) fn setting<'a>(facts: &Facts<'a>, key: &str) -> Result<&'a str, Gap> {
    let value = facts.node.sysctl()?.known(key)?;
    value.ok_or_else(|| Gap::Absent(Item::Sysctl, format!("it has no {key}")))
}

/// Returns the value of the sysctl `key` as a number.
pub(in crate::check) fn number(facts: &Facts<'_>, key: &str) -> Result<u64, Gap> {
    let text = setting(facts, key)?;
    text.parse()
        .map_err(|_| Gap::Failed(Item::Sysctl, format!("{key} = {text:?} is not a number")))
}

/// Returns a sysctl as evidence.
pub(in crate::check) fn sysctl_proof(key: &str, value: impl std::fmt::Display) -> Proof {
    Proof::Sysctl {
        key: key.to_owned(),
        value: value.to_string(),
    }
}

/// The setting that exists while the kernel tracks connections.
const TRACKED: &str = "net.netfilter.nf_conntrack_max";

/// The items that [`is_tracked`] reads: sysctls, and the modules that they depend on.
pub(in crate::check) const TRACKING: &[Item] = &[
    Item::Sysctl,
    Item::Modules,
    Item::ModulesBuiltin,
    Item::ModulesDep,
];

/// Returns whether the kernel tracks connections.
pub(in crate::check) fn is_tracked(facts: &Facts<'_>) -> Result<bool, Gap> {
    let sysctl = facts.node.sysctl()?;
    if sysctl.get(TRACKED).is_some() || sysctl.get("net.nf_conntrack_max").is_some() {
        return Ok(true);
    }
    // The list of sysctls may be partial; the list of modules is complete.
    let modules = facts.node.modules()?;
    match (&modules.loaded, modules.standing("nf_conntrack")) {
        (Some(_), Standing::Loadable | Standing::Blocked | Standing::Missing) => Ok(false),
        _ => Err(Gap::Absent(Item::Sysctl, format!("it has no {TRACKED}"))),
    }
}

/// Returns an error unless the kernel tracks connections.
pub(in crate::check) fn tracking(facts: &Facts<'_>) -> Result<(), Gap> {
    if is_tracked(facts)? {
        return Ok(());
    }
    let why = "connections are not tracked: see KM12";
    Err(Gap::NotApplicable(why.to_owned()))
}

/// Reads both families, and notes in `all` which of them were not read. A node without IPv6 has one family only, and that is
/// no gap.
pub(in crate::check) fn by_family<T>(
    facts: &Facts<'_>,
    all: &mut Collector,
    read: impl Fn(Family) -> Result<T, Gap>,
) -> Vec<(Family, T)> {
    let mut found = Vec::new();
    for family in Family::BOTH {
        match read(family) {
            Err(Gap::Absent(item, _)) if family == Family::V6 && is_nowhere(facts, item) => {}
            read => found.extend(all.read(read).map(|value| (family, value))),
        }
    }
    found
}

/// Returns whether an absent item of IPv6 means that the kernel has none. A kernel without IPv6 has no such file; but a
/// program may be missing although the rules that it lists exist.
fn is_nowhere(facts: &Facts<'_>, item: Item) -> bool {
    !item.is_iptables() || facts.node.has_no_ipv6()
}

/// Returns a tracked connection as evidence.
pub(in crate::check) fn connection_proof(entry: &Entry) -> Proof {
    let (from, to) = (entry.original.source, entry.original.destination);
    Proof::Connection(format!("{} {from} to {to}", entry.proto))
}
