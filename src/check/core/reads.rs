//! Reads that many checks share.

use crate::check::{Facts, Proof};
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::conntrack::Entry;

/// The items with the table of virtual servers.
pub(in crate::check) const IPVS_TABLE: &[Item] = &[
    Item::Ipvs,
    Item::IpvsSave,
    Item::IpvsStats,
    Item::IpvsTimeout,
];

/// Returns the value of the sysctl `key`, or a gap if it is missing.
pub(in crate::check) fn setting<'a>(facts: &Facts<'a>, key: &str) -> Result<&'a str, Gap> {
    let value = facts.node.sysctl()?.get(key);
    value.ok_or_else(|| Gap::Absent(Item::Sysctl, format!("it has no {key}")))
}

/// Returns the value of the sysctl `key`; the check does not apply if the bundle lacks it.
pub(in crate::check) fn recorded<'a>(facts: &Facts<'a>, key: &str) -> Result<&'a str, Gap> {
    let missing = || Gap::NotApplicable(format!("the sysctl {key} is not in the bundle"));
    facts.node.sysctl()?.get(key).ok_or_else(missing)
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

/// Returns `read`; the check does not apply if the item was not collected.
///
/// Bundles made with standard tools lack some items.
pub(in crate::check) fn if_recorded<T>(read: Result<T, Gap>) -> Result<T, Gap> {
    read.map_err(|gap| match gap {
        Gap::NotCollected(item) => Gap::NotApplicable(format!("{item} is not in the bundle")),
        other => other,
    })
}

/// Reads both families. A node without IPv6 has one family only, and that is no gap.
pub(in crate::check) fn by_family<T>(
    read: impl Fn(Family) -> Result<T, Gap>,
) -> Result<Vec<(Family, T)>, Gap> {
    let mut all = Vec::new();
    for family in Family::BOTH {
        match read(family) {
            Ok(value) => all.push((family, value)),
            Err(Gap::Absent(..)) if family == Family::V6 => {}
            Err(gap) => return Err(gap),
        }
    }
    Ok(all)
}

/// Returns a tracked connection as evidence.
pub(in crate::check) fn connection_proof(entry: &Entry) -> Proof {
    let (from, to) = (entry.original.source, entry.original.destination);
    Proof::Connection(format!("{} {from} to {to}", entry.proto))
}
