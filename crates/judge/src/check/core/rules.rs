//! What checks read of iptables rules.

use super::{Collector, by_family};
use crate::check::{Facts, Proof};
use kpx_node::backend::iptables::model::{Chain, Match, Rule, Ruleset, States, Table};
use kpx_node::backend::nftables::expect::TABLE;
use kpx_node::evidence::{Gap, IPTABLES, Item, join};
use kpx_node::net::Family;
use kpx_node::node::IptablesBackend;

/// The rules in use, of both families. Without an IPv6 address, the node has no rules of IPv6.
pub(in crate::check) const RULES: &[Item] = &[Item::Iptables4, Item::Iptables6, Item::Addresses];

/// The ruleset of nftables.
pub(in crate::check) const NFT: &[Item] = &[Item::Nft, Item::NftText];

pub(in crate::check) fn rule_proof(
    family: Family,
    table: &Table<'_>,
    chain: &Chain<'_>,
    rule: &Rule<'_>,
) -> Proof {
    Proof::rule(
        family,
        table.name.as_ref(),
        format!("-A {}{rule}", chain.name),
    )
}

/// Returns whether the match applies to every packet of a new connection to a Service.
pub(in crate::check) fn is_open(of: &Match<'_>) -> bool {
    match of {
        Match::Comment(_) => true,
        Match::State { states, .. } => !states.inverted && states.value.0 & States::NEW != 0,
        Match::Source(cidr) | Match::Destination(cidr) => !cidr.inverted && cidr.value.prefix == 0,
        Match::In(_)
        | Match::Out(_)
        | Match::Protocol(_)
        | Match::Ports { .. }
        | Match::TcpFlags(_)
        | Match::Multiport { .. }
        | Match::AddrType { .. }
        | Match::Mark(_)
        | Match::Connmark(_)
        | Match::Random(_)
        | Match::Nth { .. }
        | Match::Set { .. }
        | Match::Recent(_)
        | Match::Physdev(_)
        | Match::Nfacct(_)
        | Match::Ipvs(_)
        | Match::Icmp { .. }
        | Match::Limit { .. }
        | Match::IpRange(_)
        | Match::Owner(_)
        | Match::Rpfilter(_)
        | Match::Socket(_)
        | Match::PktType(_)
        | Match::Conntrack(_)
        | Match::Policy(_)
        | Match::Rt(_)
        | Match::Unknown(_) => false,
    }
}

/// Returns whether the chain is kube-proxy's, not the kubelet's or kube-router's.
pub(in crate::check) fn is_proxys(chain: &str) -> bool {
    let others = [
        "KUBE-FIREWALL",
        "KUBE-MARK-DROP",
        "KUBE-KUBELET-CANARY",
        "KUBE-IPTABLES-HINT",
        "KUBE-ROUTER-",
        "KUBE-NWPLCY-",
        "KUBE-POD-FW-",
        "KUBE-SRC-",
        "KUBE-DST-",
        "KUBE-HOSTPORTS",
        "KUBE-HP-",
    ];
    chain.starts_with("KUBE-") && !others.iter().any(|other| chain.starts_with(other))
}

/// Returns the sets and maps of nftables that are not in kube-proxy's tables.
pub(in crate::check) fn sets_of_others(facts: &Facts<'_>) -> Result<Vec<Proof>, Gap> {
    let tables = facts.node.nft()?.tables.iter();
    let others = tables.filter(|table| table.name != TABLE);
    let sets = others.flat_map(|table| table.sets.iter().map(move |set| (table, set)));
    Ok(sets
        .map(|(table, set)| {
            Proof::object(
                "nft-set",
                format!("{} {} {}", table.family, table.name, set.name),
            )
        })
        .collect())
}

/// Returns the rules in use of both families, and notes in `all` which of them were not read.
pub(in crate::check) fn rules_in_use<'f>(
    facts: &'f Facts<'_>,
    all: &mut Collector,
) -> Vec<(Family, &'f Ruleset<'f>)> {
    by_family(facts, all, |family| {
        facts.node.iptables(IptablesBackend::InUse, family)
    })
}

/// Returns the program that lists and changes the rules of `family` in `store`.
pub(in crate::check) const fn tool(store: IptablesBackend, family: Family) -> &'static str {
    match (store, family) {
        (IptablesBackend::InUse, Family::V4) => "iptables",
        (IptablesBackend::InUse, Family::V6) => "ip6tables",
        (IptablesBackend::Legacy, Family::V4) => "iptables-legacy",
        (IptablesBackend::Legacy, Family::V6) => "ip6tables-legacy",
        (IptablesBackend::Nft, Family::V4) => "iptables-nft",
        (IptablesBackend::Nft, Family::V6) => "ip6tables-nft",
    }
}

/// Returns where rules of `store` are, for a message: nothing in the back end of the node's tools.
pub(in crate::check) const fn there(store: IptablesBackend) -> &'static str {
    match store {
        IptablesBackend::InUse => "",
        IptablesBackend::Legacy => " in the legacy backend",
        IptablesBackend::Nft => " in the nft backend",
    }
}

/// Returns the rules of `family` that were read, of both back ends.
pub(in crate::check) fn known_rules<'f>(
    facts: &'f Facts<'_>,
    family: Family,
) -> impl Iterator<Item = &'f Ruleset<'f>> {
    let used = facts.node.iptables(IptablesBackend::InUse, family).ok();
    used.into_iter()
        .chain(idle_rules(facts, family).ok().flatten())
}

/// Returns the rules of both families and of both back ends, and notes in `all` which of them were not read.
pub(in crate::check) fn all_rules<'f>(
    facts: &'f Facts<'_>,
    all: &mut Collector,
) -> Vec<(Family, IptablesBackend, &'f Ruleset<'f>)> {
    let used = rules_in_use(facts, all);
    let used = used
        .into_iter()
        .map(|(family, rules)| (family, IptablesBackend::InUse, rules));
    let (_, idle) = stores(facts);
    let others = by_family(facts, all, |family| idle_rules(facts, family));
    let others = others
        .into_iter()
        .filter_map(|(family, rules)| Some((family, idle, rules?)));
    used.chain(others).collect()
}

/// The items that [`idle_rules`] reads.
pub(in crate::check) const IDLE: &[Item] = &join::<9>(&[
    IPTABLES,
    &[Item::IptablesVersion, Item::Modules, Item::ModulesBuiltin],
]);

/// Returns the rules of `family` in the iptables backend that is not in use; `None` if it has none.
pub(in crate::check) fn idle_rules<'f>(
    facts: &'f Facts<'_>,
    family: Family,
) -> Result<Option<&'f Ruleset<'f>>, Gap> {
    let (_, idle) = stores(facts);
    match facts.node.iptables(idle, family) {
        Ok(rules) => Ok(Some(rules)),
        // On a live node, an unused backend without rules is not applicable.
        Err(Gap::NotApplicable(_)) => Ok(None),
        Err(_) if idle == IptablesBackend::Legacy && no_legacy(facts, family) => Ok(None),
        Err(_) if family == Family::V6 && facts.node.has_no_ipv6() => Ok(None),
        Err(gap) => Err(gap),
    }
}

/// Returns the backend in use, and the other one.
pub(in crate::check) fn stores(facts: &Facts<'_>) -> (IptablesBackend, IptablesBackend) {
    let there = |items: [Item; 2]| {
        let mut items = items.into_iter();
        items.any(|item| facts.node.evidence().text(item).is_ok())
    };
    // Only the rules of the backend that is not in use are separate items.
    if there([Item::IptablesLegacy4, Item::IptablesLegacy6]) {
        return (IptablesBackend::Nft, IptablesBackend::Legacy);
    }
    if there([Item::IptablesNft4, Item::IptablesNft6]) {
        return (IptablesBackend::Legacy, IptablesBackend::Nft);
    }
    let version = facts.node.evidence().text(Item::IptablesVersion);
    // `iptables v1.8.9 (nf_tables)`; before 1.8 there was only legacy, and nothing in parentheses.
    let nft = match version {
        Ok(text) => text.contains("nf_tables"),
        Err(_) => true,
    };
    if nft {
        (IptablesBackend::Nft, IptablesBackend::Legacy)
    } else {
        (IptablesBackend::Legacy, IptablesBackend::Nft)
    }
}

/// Returns whether the kernel cannot have legacy rules of `family`, because their module is neither loaded nor built in.
fn no_legacy(facts: &Facts<'_>, family: Family) -> bool {
    let Ok(modules) = facts.node.modules() else {
        return false;
    };
    let Some(loaded) = &modules.loaded else {
        return false;
    };
    let legacy = match family {
        Family::V4 => "ip_tables",
        Family::V6 => "ip6_tables",
    };
    let built_in = match &modules.builtin {
        Some(builtin) => builtin.contains(legacy),
        // A built-in ip_tables would need a built-in x_tables: if x_tables is a module, so is ip_tables.
        None => !loaded.contains_key("x_tables"),
    };
    !loaded.contains_key(legacy) && !built_in
}
