//! What checks read of iptables rules.

use super::by_family;
use crate::backend::iptables::model::{Chain, Match, Rule, Ruleset, States, Table};
use crate::check::{Facts, Proof};
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::Store;

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
        Match::State { states, .. } => !states.not && states.is.0 & States::NEW != 0,
        Match::Source(cidr) | Match::Destination(cidr) => !cidr.not && cidr.is.prefix == 0,
        _ => false,
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

/// Returns the rules in use of both families.
pub(in crate::check) fn rules_in_use<'f>(
    facts: &'f Facts<'_>,
) -> Result<Vec<(Family, &'f Ruleset<'f>)>, Gap> {
    by_family(|family| facts.node.iptables(Store::InUse, family))
}
