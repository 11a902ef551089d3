//! The rules of one Service or chain as a tree: what leads to a backend, with the chances and the pods.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde::Serialize;

use super::{Asked, Gaps, modes::Relevant, who};
use crate::backend::iptables::model::{Chain, Match, Rule, Ruleset, Table};
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::owner::{Owner, Owners, Port, PortName};
use crate::render::Page;

/// A rule or an element of a map, and what it leads to.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Node {
    pub(super) family: Family,
    /// `TABLE CHAIN` the rule is in, or `nft kube-proxy map NAME`.
    pub(super) at: String,
    pub(super) rule: String,
    pub(super) packets: Option<u64>,
    /// The share of packets that reach this chain and take this rule.
    pub(super) probability: Option<f64>,
    pub(super) leads_to: Option<String>,
    /// The endpoint it translates to, or that its chain is for.
    pub(super) backend: Option<SocketAddr>,
    /// The pod, and its state unless it is ready.
    pub(super) pod: Option<String>,
    pub(super) children: Vec<Node>,
}

/// Chains are four deep; the kernel itself refuses loops.
pub(super) const DEEPEST: usize = 16;

/// Returns the rules of the Service or the chain asked for; `None` if neither was.
pub(super) fn tree(
    node: &NodeSnapshot<'_>,
    owners: &Owners,
    asked: Asked<'_>,
    relevant: &Relevant,
    gaps: &mut Gaps,
) -> Option<Vec<Node>> {
    let name = asked.name?;
    let mut roots = Vec::new();
    for family in asked.families() {
        if let Some(rules) = relevant.iptables(node, family, gaps) {
            for table in &rules.tables {
                let walk = Walk {
                    family,
                    rules,
                    table,
                    owners,
                };
                roots.extend(walk.roots(name));
            }
        }
        if let Some(nft) = relevant.nft(node, gaps) {
            let of = if family == Family::V4 { "ip" } else { "ip6" };
            if let Some(table) = nft.table(of, "kube-proxy") {
                roots.extend(super::nft_tree::roots(family, table, owners, name));
            }
        }
    }
    (!roots.is_empty()).then_some(roots)
}

struct Walk<'w, 'a> {
    family: Family,
    rules: &'w Ruleset<'a>,
    table: &'w Table<'a>,
    owners: &'w Owners,
}

/// The chains that lead to those of Services.
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
        // What is left of 1 for the rules behind a choice.
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
        // Every Service's rules lead to this one; it is the same everywhere.
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
            packets: rule.counters.map(|counters| counters.packets),
            probability: probability.map(rounded),
            leads_to: to.map(str::to_owned),
            backend: endpoint.map(|of| of.addr),
            pod: endpoint.map(who).filter(|pod| !pod.is_empty()),
            children: chain_to.map_or_else(Vec::new, |to| self.children(to, depth + 1)),
        }
    }
}

/// Returns `share` without the digits that the kernel's 31 bits do not tell.
pub(super) fn rounded(share: f64) -> f64 {
    (share * 1e6).round() / 1e6
}

fn random(rule: &Rule<'_>) -> Option<f64> {
    rule.matches.iter().find_map(|of| match of {
        Match::Random(chance) if !chance.not => Some(f64::from(chance.is) / f64::from(1u32 << 31)),
        _ => None,
    })
}

/// Returns what a rule asks and does, without what the tree shows beside it.
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

/// What branches are drawn with.
struct Ink {
    branch: &'static str,
    last: &'static str,
    bar: &'static str,
    gap: &'static str,
}

const LINES: Ink = Ink {
    branch: "├─ ",
    last: "└─ ",
    bar: "│  ",
    gap: "   ",
};

const ASCII: Ink = Ink {
    branch: "|- ",
    last: "`- ",
    bar: "|  ",
    gap: "   ",
};

pub(super) fn page(roots: &[Node], page: &mut Page) {
    let mut pen = Pen {
        ink: if page.style().ascii { ASCII } else { LINES },
        drawn: BTreeSet::new(),
    };
    let mut at = None;
    for root in roots {
        if at != Some((root.family, &root.at)) {
            page.line(&format!("{} {}", root.family, root.at));
            at = Some((root.family, &root.at));
        }
        pen.draw(root, "  ", "  ", page);
    }
}

struct Pen<'n> {
    ink: Ink,
    /// Chains that were drawn with what they lead to: once is enough.
    drawn: BTreeSet<(Family, &'n str, &'n str)>,
}

impl<'n> Pen<'n> {
    fn draw(&mut self, node: &'n Node, lead: &str, below: &str, page: &mut Page) {
        let mut text = match node.probability {
            Some(chance) => format!("{:.1}% {}", chance * 100.0, node.rule),
            None => node.rule.clone(),
        };
        if let Some(pod) = &node.pod {
            text = format!("{text} = {pod}");
        }
        if let Some(packets) = node.packets.filter(|&packets| packets > 0) {
            let s = if packets == 1 { "" } else { "s" };
            text = format!("{text} [{packets} packet{s}]");
        }
        let table = node.at.split(' ').next().unwrap_or_default();
        let chain = node.leads_to.as_deref();
        let again = chain.is_some_and(|to| {
            !node.children.is_empty() && !self.drawn.insert((node.family, table, to))
        });
        if again {
            text.push_str(" (as\u{a0}above)");
        }
        let children = if again { &[][..] } else { &node.children };
        let count = children.len();
        let ink = &self.ink;
        let bar = if count > 0 { ink.bar } else { ink.gap };
        page.hang(lead, &format!("{below}{bar}"), &text);
        for (at, child) in children.iter().enumerate() {
            let ink = &self.ink;
            let last = at + 1 == count;
            let lead = format!("{below}{}", if last { ink.last } else { ink.branch });
            let under = format!("{below}{}", if last { ink.gap } else { ink.bar });
            self.draw(child, &lead, &under, page);
        }
    }
}
