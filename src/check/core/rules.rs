//! What checks read of iptables rules.

use super::by_family;
use crate::backend::iptables::model::{Chain, Match, Rule, Ruleset, States, Table};
use crate::backend::nftables::expect::TABLE;
use crate::check::{Facts, Proof};
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::IptablesBackend;

/// The rules in use, of both families.
pub(in crate::check) const RULES: &[Item] = &[Item::Iptables4, Item::Iptables6];

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

/// Returns the rules in use of both families.
pub(in crate::check) fn rules_in_use<'f>(
    facts: &'f Facts<'_>,
) -> Result<Vec<(Family, &'f Ruleset<'f>)>, Gap> {
    by_family(|family| facts.node.iptables(IptablesBackend::InUse, family))
}
