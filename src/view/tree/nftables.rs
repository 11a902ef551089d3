//! The chains and map elements of a Service in nftables mode.

use super::{DEEPEST, Node, destination, pod, rounded};
use crate::view::sets::service_of;
use kpx_node::backend::nftables::dispatch::socket_addr;
use kpx_node::backend::nftables::model::{
    Chain, Datum, Element, Expr, Rule, Set, Statement, Table, Verdict,
};
use kpx_node::backend::nftables::print;
use kpx_node::net::{Family, Proto};
use kpx_node::owner::{Endpoint, NftName, Owner, Owners};

/// Returns the rules and elements of `table` for the Service, chain, set or map `name`.
pub(super) fn roots(family: Family, table: &Table, owners: &Owners, name: &str) -> Vec<Node> {
    let walk = Walk {
        family,
        table,
        owners,
    };
    if let Some(chain) = table.chain(name) {
        return walk.children(chain, 0);
    }
    if let Some(set) = table.set(name) {
        let all = set.elements.iter();
        return all.map(|element| walk.element(set, element)).collect();
    }
    let found = table.sets.iter().flat_map(|set| {
        let ours = set.elements.iter().filter(|element| serves(element, name));
        ours.map(|element| walk.element(set, element))
    });
    found.collect()
}

/// Returns whether an element is of the Service: its comment says so, or the name of the chain that it leads to.
fn serves(element: &Element, asked: &str) -> bool {
    service_of(element).is_some_and(|name| name.answers(asked))
}

struct Walk<'w> {
    family: Family,
    table: &'w Table,
    owners: &'w Owners,
}

impl Walk<'_> {
    fn blank(&self, at: String, rule: String) -> Node {
        Node {
            family: self.family,
            at,
            rule,
            destination: None,
            packets: None,
            probability: None,
            leads_to: None,
            backend: None,
            pod: None,
            children: Vec::new(),
        }
    }

    fn element(&self, set: &Set, element: &Element) -> Node {
        let kind = if set.data.is_some() { "map" } else { "set" };
        let mut rule = print::expr(&element.key);
        if let Some(value) = &element.value {
            rule = format!("{rule} : {}", print::datum(value));
        }
        let mut node = self.blank(format!("nft kube-proxy {kind} {}", set.name), rule);
        let to = element.destination();
        node.destination = to.map(|to| destination(to.addr, to.port, to.proto));
        match &element.value {
            Some(Datum::Verdict(verdict)) => self.into(node, verdict, 0),
            _ => node,
        }
    }

    /// Follows `verdict` from `node`.
    fn into(&self, mut node: Node, verdict: &Verdict, depth: usize) -> Node {
        let Some(to) = target(verdict) else {
            return node;
        };
        node.leads_to = Some(to.to_owned());
        if let Owner::Endpoint(_, endpoint) = self.owners.nft_chain(to) {
            name(&mut node, endpoint);
        }
        // Releases before 1.36 have a chain that marks packets, the same for every Service.
        if to != "mark-for-masquerade"
            && depth < DEEPEST
            && let Some(chain) = self.table.chain(to)
        {
            node.children = self.children(chain, depth + 1);
        }
        node
    }

    fn children(&self, chain: &Chain, depth: usize) -> Vec<Node> {
        let proto = NftName::parse(&chain.name).map(|parsed| parsed.proto);
        let rules = chain.rules.iter();
        rules
            .map(|rule| self.rule(chain, rule, proto, depth))
            .collect()
    }

    fn rule(&self, chain: &Chain, rule: &Rule, proto: Option<Proto>, depth: usize) -> Node {
        let at = format!("nft kube-proxy {}", chain.name);
        let mut inline = None;
        let mut below = String::new();
        let mut bare = Rule {
            comment: None,
            ..rule.clone()
        };
        let mut packets = None;
        for statement in &mut bare.statements {
            let data = match statement {
                Statement::Vmap { key, data } => Some((key.clone(), data)),
                Statement::Nat {
                    addr: Some(Expr::Lookup { key, data }),
                    ..
                } => Some((key.as_ref().clone(), data.as_mut())),
                Statement::Counter { packets: count, .. } => {
                    packets = Some(*count);
                    None
                }
                _ => None,
            };
            if let Some((key, data)) = data
                && let Expr::Map(entries) = data
            {
                // The tree shows the entries below.
                let count = entries.len();
                inline = Some((key, std::mem::take(entries)));
                below = format!("{{ {count} below }}");
                *data = Expr::Word(below.clone());
            }
        }
        // A word with blanks would be printed between quotes.
        let text = print::rule(&bare).replace(&format!("\"{below}\""), &below);
        let mut node = self.blank(at.clone(), text);
        node.packets = packets;
        if let Some((key, entries)) = inline {
            let even = matches!(key, Expr::Numgen { .. });
            #[expect(clippy::cast_precision_loss, reason = "a map has far fewer entries")]
            let share = (even && entries.len() > 1).then(|| rounded(1.0 / entries.len() as f64));
            let children = entries.iter().map(|(key, datum)| {
                let text = match (even, datum) {
                    (true, datum) => print::datum(datum),
                    (false, datum) => format!("{} : {}", print::expr(key), print::datum(datum)),
                };
                let mut child = self.blank(at.clone(), text);
                child.probability = share;
                match datum {
                    Datum::Verdict(verdict) => self.into(child, verdict, depth),
                    Datum::Data(data) => self.backend(child, data, proto),
                }
            });
            node.children = children.collect();
            return node;
        }
        let to = rule
            .statements
            .iter()
            .find_map(|statement| match statement {
                Statement::Verdict(verdict) => Some(verdict),
                _ => None,
            });
        match to {
            Some(verdict) => self.into(node, verdict, depth),
            None => node,
        }
    }

    /// Adds the endpoint of a map value `ADDRESS . PORT`.
    fn backend(&self, mut node: Node, data: &Expr, proto: Option<Proto>) -> Node {
        let Some(to) = socket_addr(data) else {
            return node;
        };
        node.rule = to.to_string();
        node.backend = Some(to);
        if let Some((_, endpoint)) = proto.and_then(|proto| self.owners.endpoint(to, proto)) {
            name(&mut node, endpoint);
        }
        node
    }
}

fn name(node: &mut Node, endpoint: &Endpoint) {
    node.backend = Some(endpoint.addr);
    node.pod = pod(endpoint);
}

fn target(verdict: &Verdict) -> Option<&str> {
    match verdict {
        Verdict::Goto(to) | Verdict::Jump(to) => Some(to),
        _ => None,
    }
}
