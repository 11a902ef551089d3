//! Single pods: clients that routes, rules or addresses of the node tell apart from its other pods.
//!
//! A typical pod stands for all others; these are judged beside it.

use std::net::IpAddr;

use foldhash::HashSet;

use super::cell::Target;
use super::judge::Judge;
use crate::backend::iptables::model::Match;
use crate::backend::nftables::expect::TABLE as OWN_TABLE;
use crate::backend::nftables::model::{Expr, Statement};
use crate::net::{Cidr, Family};
use crate::node::{IptablesBackend, NodeSnapshot};
use crate::trace::sources::{Pods, Source};

/// The most of them that are judged for one address.
const MOST: usize = 2;

impl Judge<'_> {
    /// Returns pods of this node that something tells apart, but for endpoints of `target` and the pod `typical`.
    pub(super) fn single_pods(
        &self,
        target: Target<'_>,
        typical: Option<IpAddr>,
    ) -> impl Iterator<Item = Source> {
        let all = self.all_single();
        let is_typical = all.iter().any(|of| of.addr == typical);
        let is_other = move |source: &&Source| {
            source.addr.is_some_and(|addr| {
                Some(addr) != typical
                    && Family::of(addr) == target.family()
                    && target.port.endpoints.iter().all(|of| of.addr.ip() != addr)
            })
        };
        // Then it is so of all pods.
        let most = if is_typical { 0 } else { MOST };
        all.iter().filter(is_other).take(most).cloned()
    }

    /// Returns all such pods of this node.
    pub(super) fn all_single(&self) -> &[Source] {
        self.single.get_or_init(|| self.all_single_pods())
    }

    fn all_single_pods(&self) -> Vec<Source> {
        let mut pods = Pods::of(self.node, &[]).running_here();
        if pods.is_empty() {
            return pods;
        }
        let named = named(self.node);
        pods.retain(|pod| {
            pod.addr.is_some_and(|addr| {
                named.contains(&addr)
                    || self.taken(addr).is_some()
                    || self.is_cut_off(addr)
                    || self.is_set_by_hand(addr)
                    || self.has_rules_inside(addr)
            })
        });
        pods
    }
}

/// Returns the single addresses in rules that are not kube-proxy's, and in policy rules.
fn named(node: &NodeSnapshot<'_>) -> HashSet<IpAddr> {
    let mut named = HashSet::default();
    let mut add = |range: &Cidr| {
        if range.is_host() {
            named.insert(range.addr);
        }
    };
    for backend in [IptablesBackend::InUse, IptablesBackend::Legacy] {
        for saved in Family::BOTH.map(|family| node.saved(backend, family)) {
            let chains = saved.into_iter().flat_map(|saved| saved.chains(is_foreign));
            for of in chains
                .flat_map(|chain| &chain.rules)
                .flat_map(|rule| &rule.matches)
            {
                if let Match::Source(range) | Match::Destination(range) = of {
                    add(&range.value);
                }
            }
        }
    }
    for rule in node.rules().into_iter().flat_map(|rules| &rules.all) {
        rule.from.iter().chain(&rule.to).for_each(&mut add);
    }
    let tables = node.nft().into_iter().flat_map(|rules| &rules.tables);
    for table in tables.filter(|table| table.name != OWN_TABLE) {
        let chains = table.chains.iter().filter(|chain| is_foreign(&chain.name));
        for statement in chains
            .flat_map(|chain| &chain.rules)
            .flat_map(|rule| &rule.statements)
        {
            if let Statement::Match { right, .. } = statement {
                add_words(right, &mut named);
            }
        }
        for element in table.sets.iter().flat_map(|set| &set.elements) {
            add_words(&element.key, &mut named);
        }
    }
    named
}

fn is_foreign(chain: &str) -> bool {
    !chain.starts_with("KUBE-")
}

/// Adds the addresses in `expr`.
fn add_words(expr: &Expr, named: &mut HashSet<IpAddr>) {
    match expr {
        Expr::Word(word) => named.extend(word.parse::<IpAddr>()),
        Expr::Set(all) | Expr::Concat(all) => all.iter().for_each(|of| add_words(of, named)),
        _ => {}
    }
}
