//! Rules of other software that drop or divert packets, and the addresses and ports in them.
//!
//! Most nodes have none, or only those of a network policy. Scanning the rules is fast; tracing packets is slow.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::check::Facts;
use crate::check::core::idle_rules;
use crate::trace::region::{Ranges, ends};
use kpx_node::backend::iptables::model::{Policy, Rule, Target};
use kpx_node::backend::nftables::model::{Datum, Expr, NatKind, Statement, Table, Verdict};
use kpx_node::backend::nftables::print;
use kpx_node::evidence::Gap;
use kpx_node::net::{Cidr, Family};
use kpx_node::node::IptablesBackend;
use kpx_node::owner::Port;
use kpx_node::owner::chain_owner::{self, Maker};

/// Software that drops traffic to enforce network policies.
const POLICIES: [&str; 6] = [
    "Antrea",
    "Azure CNI",
    "Calico",
    "Cilium",
    "Weave Net",
    "kube-router",
];

/// Prefixes of nftables tables of kpx, and of network policies.
const OTHER_TABLES: [&str; 3] = ["kpx-", "kube-network-policies", "npa-"];

/// Rules of other software that may drop or divert packets.
#[derive(Debug, Default)]
pub(super) struct ForeignRules {
    /// Whether any rule or policy drops, rejects or diverts packets.
    pub(super) any: bool,
    /// Rules that were not read.
    pub(super) gaps: Vec<Gap>,
    networks: Vec<Cidr>,
    ports: HashSet<u16>,
}

/// Returns whether rules of `maker` count as rules of other software.
pub(super) fn is_foreign(maker: Maker) -> bool {
    match maker {
        Maker::KubeProxy | Maker::Both | Maker::Kubelet => false,
        Maker::Other(who) => !POLICIES.contains(&who),
        Maker::Kernel | Maker::Unknown => true,
    }
}

/// Returns whether the nftables table `name` counts as one of other software.
pub(super) fn is_foreign_table(name: &str) -> bool {
    is_foreign(chain_owner::maker_of_table(name))
        && !OTHER_TABLES.iter().any(|prefix| name.starts_with(prefix))
}

impl ForeignRules {
    /// Returns the rules of other software for `family`.
    pub(super) fn of(facts: &Facts<'_>, family: Family) -> Self {
        let mut found = Self::default();
        let in_use = facts.node.iptables(IptablesBackend::InUse, family);
        for rules in [in_use.map(Some), idle_rules(facts, family)] {
            match rules {
                Ok(None) => {}
                Ok(Some(rules)) => {
                    for table in &rules.tables {
                        for chain in &table.chains {
                            let maker = chain_owner::maker_of_chain(&table.name, &chain.name);
                            if !is_foreign(maker) {
                                continue;
                            }
                            found.any |= chain.policy == Some(Policy::Drop);
                            for rule in &chain.rules {
                                let drops = matches!(
                                    rule.target,
                                    Some(Target::Drop | Target::Reject { .. })
                                );
                                found.any |= drops || diverts(&table.name, rule);
                                if drops || maker != Maker::Kernel {
                                    found.names(&rule.to_string());
                                }
                            }
                        }
                    }
                }
                Err(Gap::Absent(..)) if family == Family::V6 && facts.node.has_no_ipv6() => {}
                Err(gap) => found.gaps.push(gap),
            }
        }
        match facts.node.nft() {
            Ok(rules) => {
                for table in rules.tables.iter().filter(|table| fits(table, family)) {
                    found.add(table);
                }
            }
            // Without nftables it has no rules.
            Err(Gap::NotApplicable(_)) => {}
            Err(gap) => found.gaps.push(gap),
        }
        found
    }

    fn add(&mut self, table: &Table) {
        if !is_foreign_table(&table.name) {
            return;
        }
        let chains = table.chains.iter();
        for chain in
            chains.filter(|chain| is_foreign(chain_owner::maker_of_chain(&table.name, &chain.name)))
        {
            let policy = chain.base.as_ref().map(|base| base.policy.as_str());
            self.any |= policy == Some("drop");
            for rule in &chain.rules {
                self.any |= rule
                    .statements
                    .iter()
                    .any(|statement| drops(statement) || translates(statement));
                self.names(&print::rule(rule));
            }
        }
        for element in table.sets.iter().flat_map(|set| &set.elements) {
            self.any |= element.value.as_ref().is_some_and(is_drop);
            self.names(&print::element(element));
        }
    }

    /// Records the networks and ports in the text of a rule.
    fn names(&mut self, rule: &str) {
        let words = rule.split(|c: char| !(c.is_ascii_hexdigit() || matches!(c, '.' | ':' | '/')));
        for word in words {
            if let Ok(port) = word.parse() {
                self.ports.insert(port);
            } else if let Ok(network) = word.parse::<Cidr>()
                && network.prefix > 0
            {
                self.networks.push(network);
            }
        }
    }

    /// Returns a function that tells whether a rule contains an address or a port of a Service port.
    pub(super) fn named(&self) -> impl Fn(&Port) -> bool {
        let of = |family| {
            let networks = self.networks.iter().copied();
            let networks = networks.filter(|network| network.family() == family);
            Ranges::of(networks.map(ends).collect())
        };
        let (v4, v6) = (of(Family::V4), of(Family::V6));
        let has = move |addr: IpAddr| match Family::of(addr) {
            Family::V4 => v4.has(addr),
            Family::V6 => v6.has(addr),
        };
        let is = |number: u16| self.ports.contains(&number);
        move |port| {
            port.addresses.iter().any(|(_, addr)| has(*addr))
                || port.port.is_some_and(is)
                || port.node_port.is_some_and(is)
                || port
                    .endpoints
                    .iter()
                    .any(|endpoint| has(endpoint.addr.ip()) || is(endpoint.addr.port()))
        }
    }
}

fn fits(table: &Table, family: Family) -> bool {
    match family {
        Family::V4 => matches!(table.family.as_str(), "inet" | "ip"),
        Family::V6 => matches!(table.family.as_str(), "inet" | "ip6"),
    }
}

/// Returns whether `rule` may keep packets from the nat rules after it.
fn diverts(table: &str, rule: &Rule<'_>) -> bool {
    match &rule.target {
        Some(Target::Dnat(_) | Target::Redirect { .. } | Target::Notrack { .. }) => true,
        Some(Target::Accept) => table == "nat",
        _ => false,
    }
}

fn translates(statement: &Statement) -> bool {
    match statement {
        Statement::Nat { kind, .. } => *kind == NatKind::Dnat,
        Statement::Redirect { .. } => true,
        _ => false,
    }
}

fn drops(statement: &Statement) -> bool {
    match statement {
        Statement::Verdict(Verdict::Drop) | Statement::Reject { .. } => true,
        Statement::Vmap {
            data: Expr::Map(entries),
            ..
        } => entries.iter().any(|(_, datum)| is_drop(datum)),
        _ => false,
    }
}

fn is_drop(datum: &Datum) -> bool {
    matches!(datum, Datum::Verdict(Verdict::Drop))
}
