//! Chains with whose they are, and the chains of one Service as a tree.

use std::net::IpAddr;

use serde::Serialize;

use super::{Asked, Gaps, who};
use crate::backend::iptables::model::{Chain, Match, Rule, Ruleset, Table, Target};
use crate::net::{Family, Proto};
use crate::node::{NodeSnapshot, Store};
use crate::owner::software::{Maker, maker_of_chain};
use crate::owner::{Owner, Owners, Port, PortName};
use crate::render::Page;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    family: Family,
    table: String,
    chain: String,
    maker: Maker,
    service: Option<PortName>,
    endpoint: Option<std::net::SocketAddr>,
    pod: Option<String>,
    /// Whether it belongs to a Service or endpoint that is not there.
    gone: bool,
    rules: usize,
    packets: Option<u64>,
}

/// A rule and what it leads to.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Node {
    family: Family,
    /// `TABLE CHAIN` the rule is in.
    at: String,
    rule: String,
    packets: Option<u64>,
    /// The share of packets that reach this chain and take this rule.
    probability: Option<f64>,
    leads_to: Option<String>,
    pod: Option<String>,
    children: Vec<Node>,
}

/// What a rule tells of the packets it takes.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) proto: Option<Proto>,
    pub(super) addr: Option<IpAddr>,
    pub(super) port: Option<u16>,
}

pub(super) fn seen(rule: &Rule<'_>) -> Seen {
    let mut seen = Seen::default();
    for of in &rule.matches {
        match of {
            Match::Protocol(proto) if !proto.not => seen.proto = Some(proto.is),
            Match::Destination(to) if !to.not && to.is.is_host() => seen.addr = Some(to.is.addr),
            Match::Ports {
                destination: Some(ports),
                ..
            } if !ports.not => seen.port = Some(ports.is.first),
            _ => {}
        }
    }
    seen
}

pub(super) fn rows(
    node: &NodeSnapshot<'_>,
    owners: &Owners,
    asked: Asked<'_>,
    gaps: &mut Gaps,
) -> Vec<Row> {
    let mut rows = Vec::new();
    for family in asked.families() {
        if let Some(rules) = gaps.take(node.iptables(Store::InUse, family)) {
            for table in &rules.tables {
                let chains = table.chains.iter().map(|chain| {
                    let counted = chain.rules.iter().filter_map(|rule| rule.counters);
                    let packets = counted.map(|counters| counters.packets).reduce(u64::max);
                    let maker = maker_of_chain(&table.name, &chain.name);
                    let count = chain.rules.len();
                    let names = (table.name.as_ref(), chain.name.as_ref());
                    row(
                        family,
                        names,
                        maker,
                        owners.chain(&chain.name),
                        (count, packets),
                    )
                });
                rows.extend(chains);
            }
        }
        let Some(nft) = gaps.take(node.nft()) else {
            continue;
        };
        let of = if family == Family::V4 { "ip" } else { "ip6" };
        for chain in nft.table(of, "kube-proxy").map_or(&[][..], |t| &t.chains) {
            let names = ("nft kube-proxy", chain.name.as_str());
            let owner = owners.nft_chain(&chain.name);
            let counts = (chain.rules.len(), None);
            rows.push(row(family, names, Maker::KubeProxy, owner, counts));
        }
    }
    rows.retain(|row| {
        let port = row.service.as_ref().map(|name| (name, asked.name));
        match port {
            Some((name, Some(asked))) if name.answers(asked) => true,
            _ => asked.wants(None, &[&row.chain]),
        }
    });
    rows.sort_by(|a, b| (a.family, &a.table, &a.chain).cmp(&(b.family, &b.table, &b.chain)));
    rows
}

fn row(
    family: Family,
    (table, chain): (&str, &str),
    maker: Maker,
    owner: Owner<'_>,
    (rules, packets): (usize, Option<u64>),
) -> Row {
    let endpoint = match owner {
        Owner::Endpoint(_, endpoint) => Some(endpoint),
        _ => None,
    };
    Row {
        family,
        table: table.to_owned(),
        chain: chain.to_owned(),
        maker,
        service: owner.port().map(|port| port.name.clone()),
        endpoint: endpoint.map(|endpoint| endpoint.addr),
        pod: endpoint.and_then(|endpoint| endpoint.pod.as_deref().map(str::to_owned)),
        gone: matches!(owner, Owner::Gone(_)),
        rules,
        packets,
    }
}

pub(super) fn page(rows: &[Row], page: &mut Page) {
    let cells = rows.iter().map(|row| {
        let whose = match (&row.service, row.endpoint, row.maker) {
            (Some(name), Some(endpoint), _) => format!("{name} {endpoint}"),
            (Some(name), None, _) => name.to_string(),
            (None, ..) if row.gone => "a Service or endpoint that is gone".to_owned(),
            (.., Maker::KubeProxy) => "kube-proxy".to_owned(),
            (.., Maker::Both) => "kube-proxy, kubelet".to_owned(),
            (.., Maker::Kubelet) => "kubelet".to_owned(),
            (.., Maker::Kernel) => "built in".to_owned(),
            (.., Maker::Other(who)) => who.to_owned(),
            (.., Maker::Unknown) => "?".to_owned(),
        };
        vec![
            row.family.to_string(),
            row.table.clone(),
            row.chain.clone(),
            row.rules.to_string(),
            row.packets
                .map_or_else(|| "-".to_owned(), |n| n.to_string()),
            whose,
            row.pod.clone().unwrap_or_default(),
        ]
    });
    let cells: Vec<_> = cells.collect();
    page.grid(
        &[
            ("FAMILY", 4),
            ("TABLE", 1),
            ("CHAIN", 0),
            ("RULES", 3),
            ("PACKETS", 5),
            ("OF", 0),
            ("POD", 6),
        ],
        &cells,
    );
}

/// Returns the rules of the Service or the chain asked for; `None` if neither was, or its mode has no such chains.
pub(super) fn tree(
    node: &NodeSnapshot<'_>,
    owners: &Owners,
    asked: Asked<'_>,
    gaps: &mut Gaps,
) -> Option<Vec<Node>> {
    let name = asked.name?;
    let mut roots = Vec::new();
    for family in asked.families() {
        let Some(rules) = gaps.take(node.iptables(Store::InUse, family)) else {
            continue;
        };
        for table in &rules.tables {
            let walk = Walk {
                family,
                rules,
                table,
                owners,
            };
            if let Some(chain) = table.chain(name) {
                roots.extend(walk.children(chain, 0));
                continue;
            }
            for chain in &table.chains {
                let dispatch = [
                    "KUBE-SERVICES",
                    "KUBE-NODEPORTS",
                    "KUBE-EXTERNAL-SERVICES",
                    "KUBE-PROXY-FIREWALL",
                ];
                if dispatch.contains(&chain.name.as_ref()) {
                    let ours = chain.rules.iter().filter(|rule| walk.serves(rule, name));
                    roots.extend(ours.map(|rule| walk.node(chain, rule, None, 0)));
                }
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

/// kube-proxy's chains are four deep; the kernel itself refuses loops.
const DEEPEST: usize = 16;

impl Walk<'_, '_> {
    fn serves(&self, rule: &Rule<'_>, asked: &str) -> bool {
        let owner = leads_to(rule).map(|to| self.owners.chain(to));
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
        let random = |rule: &Rule<'_>| {
            rule.matches.iter().find_map(|of| match of {
                Match::Random(chance) if !chance.not => {
                    Some(f64::from(chance.is) / f64::from(1u32 << 31))
                }
                _ => None,
            })
        };
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
        let to = leads_to(rule);
        // Every Service's rules lead to this one; it is the same everywhere.
        let into = to.filter(|&to| to != "KUBE-MARK-MASQ" && depth < DEEPEST);
        let chain_to = into.and_then(|to| self.rules.chain(&self.table.name, to));
        let pod = match to.map(|to| self.owners.chain(to)) {
            Some(Owner::Endpoint(_, endpoint)) => Some(who(endpoint)),
            _ => None,
        };
        Node {
            family: self.family,
            at: format!("{} {}", self.table.name, chain.name),
            rule: words(rule),
            packets: rule.counters.map(|counters| counters.packets),
            probability,
            leads_to: to.map(str::to_owned),
            pod: pod.filter(|pod| !pod.is_empty()),
            children: chain_to.map_or_else(Vec::new, |to| self.children(to, depth + 1)),
        }
    }
}

fn leads_to<'r>(rule: &'r Rule<'_>) -> Option<&'r str> {
    match &rule.target {
        Some(Target::Jump(to) | Target::Goto(to)) => Some(to),
        _ => None,
    }
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
    match &rule.target {
        Some(target) => text.push_str(target.to_string().trim_start()),
        None => text.push_str("count"),
    }
    text
}

pub(super) fn page_tree(roots: &[Node], page: &mut Page) {
    let mut at = None;
    for root in roots {
        if at != Some((root.family, &root.at)) {
            page.line(&format!("{} {}", root.family, root.at));
            at = Some((root.family, &root.at));
        }
        draw(root, "  ", "  ", page);
    }
}

fn draw(node: &Node, lead: &str, below: &str, page: &mut Page) {
    let chance = node.probability;
    let chance = chance.map_or_else(String::new, |chance| format!("{:.1}% ", chance * 100.0));
    let mut text = chance + &node.rule;
    if let Some(pod) = &node.pod {
        text = format!("{text} = {pod}");
    }
    if let Some(packets) = node.packets.filter(|&packets| packets > 0) {
        text = format!("{text} [{packets} packets]");
    }
    page.para(lead, &text);
    let count = node.children.len();
    for (at, child) in node.children.iter().enumerate() {
        let last = at + 1 == count;
        let lead = format!("{below}{}", if last { "└─ " } else { "├─ " });
        let under = format!("{below}{}", if last { "   " } else { "│  " });
        draw(child, &lead, &under, page);
    }
}
