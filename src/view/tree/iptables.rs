//! The rules of a Service or chain in iptables and ipvs mode.

use super::{DEEPEST, Node, destination, pod, rounded};
use kpx_node::backend::iptables::model::{Chain, Match, Rule, Ruleset, Table};
use kpx_node::net::Family;
use kpx_node::owner::{Owner, Owners, Port, PortName};

/// Returns the rules of `table` for the Service or chain `name`.
pub(super) fn roots(
    family: Family,
    rules: &Ruleset<'_>,
    table: &Table<'_>,
    owners: &Owners,
    name: &str,
) -> Vec<Node> {
    let walk = Walk {
        family,
        rules,
        table,
        owners,
    };
    walk.roots(name)
}

struct Walk<'w, 'a> {
    family: Family,
    rules: &'w Ruleset<'a>,
    table: &'w Table<'a>,
    owners: &'w Owners,
}

/// The chains that dispatch packets to those of Services.
const DISPATCH: [&str; 4] = [
    "KUBE-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-PROXY-FIREWALL",
];

impl Walk<'_, '_> {
    fn roots(&self, name: &str) -> Vec<Node> {
        if let Some(chain) = self.table.chain(name) {
            return self.children(chain, 0);
        }
        let chains = self.table.chains.iter();
        let dispatch = chains.filter(|chain| DISPATCH.contains(&chain.name.as_ref()));
        let rules = dispatch.flat_map(|chain| {
            let ours = chain.rules.iter().filter(|rule| self.serves(rule, name));
            ours.map(move |rule| self.node(chain, rule, None, 0))
        });
        rules.collect()
    }

    fn serves(&self, rule: &Rule<'_>, asked: &str) -> bool {
        let owner = rule.leads_to().map(|to| self.owners.chain(to));
        let port: Option<&Port> = owner.and_then(Owner::port);
        if let Some(port) = port {
            return port.name.answers(asked);
        }
        let name = rule.comment().and_then(|text| text.split(' ').next());
        name.and_then(PortName::parse)
            .is_some_and(|name| name.answers(asked))
    }

    fn children(&self, chain: &Chain<'_>, depth: usize) -> Vec<Node> {
        // The share of packets that no earlier random rule took.
        let mut left = 1.0;
        let chooses = chain.rules.iter().any(|rule| random(rule).is_some());
        let count = chain.rules.len();
        let mut nodes = Vec::new();
        for (at, rule) in chain.rules.iter().enumerate() {
            let chance = match random(rule) {
                Some(chance) => {
                    let share = left * chance;
                    left -= share;
                    Some(share)
                }
                None if chooses && at + 1 == count => Some(left),
                None => None,
            };
            nodes.push(self.node(chain, rule, chance, depth));
        }
        nodes
    }

    fn node(
        &self,
        chain: &Chain<'_>,
        rule: &Rule<'_>,
        probability: Option<f64>,
        depth: usize,
    ) -> Node {
        let to = rule.leads_to();
        // This chain is the same for every Service.
        let into = to.filter(|&to| to != "KUBE-MARK-MASQ" && depth < DEEPEST);
        let chain_to = into.and_then(|to| self.rules.chain(&self.table.name, to));
        let endpoint = match to.map(|to| self.owners.chain(to)) {
            Some(Owner::Endpoint(_, endpoint)) => Some(endpoint),
            _ => None,
        };
        Node {
            family: self.family,
            at: format!("{} {}", self.table.name, chain.name),
            rule: words(rule),
            destination: to_port(rule),
            packets: rule.counters.map(|counters| counters.packets),
            probability: probability.map(rounded),
            leads_to: to.map(str::to_owned),
            backend: endpoint.map(|endpoint| endpoint.addr),
            pod: endpoint.and_then(pod),
            children: chain_to.map_or_else(Vec::new, |to| self.children(to, depth + 1)),
        }
    }
}

fn to_port(rule: &Rule<'_>) -> Option<String> {
    let to = rule.destination();
    Some(destination(to.addr, to.port?, to.proto?))
}

fn random(rule: &Rule<'_>) -> Option<f64> {
    rule.matches.iter().find_map(|matched| match matched {
        Match::Random(chance) if !chance.inverted => {
            Some(f64::from(chance.value) / f64::from(1u32 << 31))
        }
        _ => None,
    })
}

/// Returns the matches and the target of a rule, without the parts that the tree shows in other fields.
fn words(rule: &Rule<'_>) -> String {
    let mut text = String::new();
    for of in &rule.matches {
        let bare = matches!(
            of,
            Match::Ports {
                source: None,
                destination: None,
                ..
            } | Match::Comment(_)
                | Match::Random(_)
                | Match::Nfacct(_)
        );
        if !bare {
            text.push_str(of.to_string().trim_start());
            text.push(' ');
        }
    }
    if let Some(target) = &rule.target {
        text.push_str(target.to_string().trim_start());
    } else {
        text.push_str("(no target)");
        if let Some(comment) = rule.comment() {
            text.push_str(": ");
            text.push_str(comment);
        }
    }
    text
}
