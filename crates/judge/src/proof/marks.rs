//! The marks with which packets may enter a node.

use std::collections::BTreeSet;

use kpx_node::backend::chain_owner::{self, Maker};
use kpx_node::backend::iptables::model::{Connmark, Match, Rule, Target};
use kpx_node::backend::nftables::model::{Expr, Statement};
use kpx_node::net::Family;
use kpx_node::node::{IptablesBackend, NodeSnapshot};

/// The use of marks by rules.
#[derive(Default)]
struct Uses {
    /// The values that rules compare with.
    asked: BTreeSet<u32>,
    /// The bits that some rule sets.
    set: u32,
}

/// Returns the marks with which packets of `family` may enter: none, and those that rules match although no rule sets them.
/// Such a mark is set by a socket, such as that of `WireGuard`, or by a program of eBPF.
pub(super) fn entering(node: &NodeSnapshot<'_>, family: Family) -> BTreeSet<u32> {
    let mut uses = Uses::default();
    for backend in [
        IptablesBackend::InUse,
        IptablesBackend::Legacy,
        IptablesBackend::Nft,
    ] {
        let Ok(rules) = node.iptables(backend, family) else {
            continue;
        };
        for table in &rules.tables {
            for chain in &table.chains {
                let asks = !is_kubelets(&table.name, &chain.name);
                for rule in &chain.rules {
                    uses.add_rule(rule, asks);
                }
            }
        }
    }
    for table in node.nft().into_iter().flat_map(|rules| &rules.tables) {
        for chain in &table.chains {
            let asks = !is_kubelets(&table.name, &chain.name);
            for statement in chain.rules.iter().flat_map(|rule| &rule.statements) {
                uses.add_statement(statement, asks);
            }
        }
    }
    let routing = node.rules().into_iter().flat_map(|rules| &rules.all);
    let of_family = routing.filter(|rule| rule.family == family);
    let asked = of_family.filter_map(|rule| rule.mark);
    uses.asked.extend(asked.map(|mark| mark.value));
    uses.asked.retain(|mark| mark & !uses.set != 0);
    uses.asked.insert(0);
    uses.asked
}

/// Returns whether a rule may clear `bit` of marks in a chain for which `is_asked` holds, given its table and its name.
pub(crate) fn clears_mark(
    node: &NodeSnapshot<'_>,
    bit: u32,
    is_asked: impl Fn(&str, &str) -> bool,
) -> bool {
    let by_iptables = |rule: &Rule<'_>| match &rule.target {
        Some(Target::Mark(mark)) => mark.mask & bit != 0 && mark.value & bit == 0,
        Some(Target::Connmark(Connmark::Restore { packet, .. })) => packet & bit != 0,
        _ => false,
    };
    let by_nft = |statement: &Statement| match statement {
        Statement::Mangle {
            key: Expr::Meta(key),
            value,
        } => key == "mark" && written(value) & bit != 0,
        _ => false,
    };
    let saved = Family::BOTH.map(|family| node.iptables(IptablesBackend::InUse, family));
    let mut tables = saved.iter().flatten().flat_map(|rules| &rules.tables);
    let mut nft = node.nft().into_iter().flat_map(|rules| &rules.tables);
    tables.any(|table| {
        let mut chains = table.chains.iter();
        chains
            .any(|chain| is_asked(&table.name, &chain.name) && chain.rules.iter().any(by_iptables))
    }) || nft.any(|table| {
        let chains = table.chains.iter();
        let mut asked = chains.filter(|chain| is_asked(&table.name, &chain.name));
        asked.any(|chain| {
            let mut statements = chain.rules.iter().flat_map(|rule| &rule.statements);
            statements.any(by_nft)
        })
    })
}

impl Uses {
    /// Adds a rule of iptables. `asks`: whether the marks that it matches count.
    fn add_rule(&mut self, rule: &Rule<'_>, asks: bool) {
        for of in rule.matches.iter().filter(|_| asks) {
            if let Match::Mark(mark) = of {
                self.asked.insert(mark.value.value);
                // A mark that differs in these bits.
                if mark.inverted && mark.value.mask != u32::MAX {
                    self.asked.insert(mark.value.mask & !mark.value.value);
                }
            }
        }
        self.set |= match &rule.target {
            Some(Target::Mark(mark)) => mark.mask | mark.value,
            Some(Target::Connmark(Connmark::Restore { packet, .. })) => *packet,
            _ => 0,
        };
    }

    /// Adds a statement of nftables. `asks`: whether the marks that it matches count.
    fn add_statement(&mut self, statement: &Statement, asks: bool) {
        match statement {
            Statement::Match { left, op, right } if asks && reads_mark(left) => {
                self.asked.extend(numbers(right));
                if op == "!=" {
                    self.asked.extend(numbers(left));
                }
            }
            Statement::Vmap { key, data } if asks && reads_mark(key) => {
                self.asked.extend(numbers(data));
            }
            Statement::Mangle {
                key: Expr::Meta(key),
                value,
            } if key == "mark" => {
                self.set |= written(value);
            }
            _ => {}
        }
    }
}

/// Returns whether the kubelet keeps the chain: older ones look there for a mark that only older rules of kube-proxy set.
fn is_kubelets(table: &str, chain: &str) -> bool {
    matches!(
        chain_owner::maker_of_chain(table, chain),
        Maker::Kubelet | Maker::Both
    )
}

fn reads_mark(expr: &Expr) -> bool {
    match expr {
        Expr::Meta(key) => key == "mark",
        Expr::Bits { left, .. } => reads_mark(left),
        _ => false,
    }
}

/// Returns the bits that a rule sets or clears if it writes `value` to the mark.
fn written(value: &Expr) -> u32 {
    match value {
        Expr::Meta(key) if key == "mark" => 0,
        Expr::Number(number) => u32::try_from(*number).unwrap_or(u32::MAX),
        Expr::Bits { op, left, right } if op == "&" && reads_mark(left) => {
            written(left) | !written(right)
        }
        Expr::Bits { op, left, right } if op == "&" => written(left) & written(right),
        Expr::Bits { op, left, right } if op == "|" || op == "^" => written(left) | written(right),
        _ => u32::MAX,
    }
}

/// Returns the numbers that an expression is made of, and the first of a range.
fn numbers(expr: &Expr) -> Vec<u32> {
    match expr {
        Expr::Number(number) => u32::try_from(*number).into_iter().collect(),
        Expr::Range(first, _) => numbers(first),
        Expr::Bits { left, right, .. } => [numbers(left), numbers(right)].concat(),
        Expr::Set(all) => all.iter().flat_map(numbers).collect(),
        Expr::Map(all) => all.iter().flat_map(|(key, _)| numbers(key)).collect(),
        _ => Vec::new(),
    }
}
