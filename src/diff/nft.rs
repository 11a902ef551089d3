//! The table `kube-proxy` of one family against what it should be.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;

use super::owners::Owners;
use super::sequence::{self, Edit};
use super::{Action, Change, Layer, Object};
use crate::backend::nftables::expect::{TABLE, UNALLOCATED};
use crate::backend::nftables::model::{
    Base, Chain, Datum, Element, Expr, Rule, Set, Statement, Table,
};
use crate::backend::nftables::print;
use crate::net::{Cidr, Family};

/// Compares the table of `family`.
pub(super) fn compare(
    family: Family,
    have: Option<&Table>,
    want: &Table,
    owners: &Owners<'_>,
) -> Vec<Change> {
    let mut found = Comparison {
        family,
        owners,
        changes: Vec::new(),
    };
    let Some(have) = have else {
        let object = Object::Table {
            name: format!("{} {TABLE}", want.family),
        };
        let text = format!(
            "{} chains, {} sets and maps",
            want.chains.len(),
            want.sets.len()
        );
        found.push(Action::Missing, object, None, None, Some(text));
        return found.changes;
    };
    found.chains(have, want);
    found.sets(have, want);
    found.changes
}

struct Comparison<'a> {
    family: Family,
    owners: &'a Owners<'a>,
    changes: Vec<Change>,
}

impl Comparison<'_> {
    fn push(
        &mut self,
        action: Action,
        object: Object,
        service: Option<String>,
        have: Option<String>,
        want: Option<String>,
    ) {
        self.changes.push(Change {
            action,
            layer: Layer::Nftables,
            family: Some(self.family),
            object,
            service,
            have,
            want,
        });
    }

    fn chains(&mut self, have: &Table, want: &Table) {
        let there: HashMap<&str, &Chain> =
            have.chains.iter().map(|c| (c.name.as_str(), c)).collect();
        let mut wanted = HashSet::with_capacity(want.chains.len());
        for want in &want.chains {
            wanted.insert(want.name.as_str());
            let object = || Object::Chain {
                table: TABLE.to_owned(),
                chain: want.name.clone(),
            };
            let Some(have) = there.get(want.name.as_str()) else {
                let text = Some(whole(want));
                self.push(
                    Action::Missing,
                    object(),
                    service_of(&want.name),
                    None,
                    text,
                );
                continue;
            };
            if have.base != want.base {
                let (a, b) = (base(have.base.as_ref()), base(want.base.as_ref()));
                self.push(Action::Differs, object(), None, Some(a), Some(b));
            }
            self.rules(have, want);
        }
        for have in &have.chains {
            // Chains without a slash are others', or an older release's. kube-proxy empties a chain before it can
            // delete it.
            let ours = have.name.contains('/') && !have.rules.is_empty();
            if ours && !wanted.contains(have.name.as_str()) {
                let object = Object::Chain {
                    table: TABLE.to_owned(),
                    chain: have.name.clone(),
                };
                let text = Some(whole(have));
                self.push(Action::Extra, object, service_of(&have.name), text, None);
            }
        }
    }

    fn rules(&mut self, have: &Chain, want: &Chain) {
        let a: Vec<String> = have
            .rules
            .iter()
            .map(|rule| print::rule(&normal(rule)))
            .collect();
        let b: Vec<String> = want
            .rules
            .iter()
            .map(|rule| print::rule(&normal(rule)))
            .collect();
        for edit in sequence::ordered(&a, &b, |text| hash(text), |a, b| a == b) {
            let (action, number, there, wanted) = match edit {
                Edit::Missing(at) => (Action::Missing, at, None, Some(at)),
                Edit::Extra(at) => (Action::Extra, at, Some(at), None),
                Edit::Differs(have_at, want_at) | Edit::Moved(have_at, want_at) => {
                    (Action::Differs, have_at, Some(have_at), Some(want_at))
                }
            };
            let said = |at: usize, text: &str| match edit {
                Edit::Moved(..) => format!("at {}: {text}", at + 1),
                _ => text.to_owned(),
            };
            let object = Object::Rule {
                table: TABLE.to_owned(),
                chain: want.name.clone(),
                number: number + 1,
            };
            let there = there.map(|at| said(at, &a[at]));
            let wanted = wanted.map(|at| said(at, &b[at]));
            self.push(action, object, service_of(&want.name), there, wanted);
        }
    }

    fn sets(&mut self, have: &Table, want: &Table) {
        let there: HashMap<&str, &Set> = have.sets.iter().map(|s| (s.name.as_str(), s)).collect();
        let mut wanted = HashSet::with_capacity(want.sets.len());
        for want in &want.sets {
            wanted.insert(want.name.as_str());
            let object = || Object::Set {
                name: want.name.clone(),
            };
            let Some(have) = there.get(want.name.as_str()) else {
                let elements = want.elements.iter().map(element);
                let lines: Vec<_> = [shape(want)].into_iter().chain(elements).collect();
                let text = Some(lines.join("\n"));
                self.push(
                    Action::Missing,
                    object(),
                    service_of(&want.name),
                    None,
                    text,
                );
                continue;
            };
            let (a, b) = (shape(have), shape(want));
            if a != b {
                self.push(
                    Action::Differs,
                    object(),
                    service_of(&want.name),
                    Some(a),
                    Some(b),
                );
            }
            // What clients an endpoint has is the kernel's business.
            if want.timeout.is_none() {
                self.elements(have, want);
            }
        }
        for have in &have.sets {
            if have.name.starts_with("affinity-") && !wanted.contains(have.name.as_str()) {
                let object = Object::Set {
                    name: have.name.clone(),
                };
                let text = Some(shape(have));
                self.push(Action::Extra, object, service_of(&have.name), text, None);
            }
        }
    }

    fn elements(&mut self, have: &Set, want: &Set) {
        let by_key = |set: &Set| -> BTreeMap<String, String> {
            let pairs = set.elements.iter();
            pairs.map(|e| (print::expr(&e.key), element(e))).collect()
        };
        let (there, wanted) = (by_key(have), by_key(want));
        let mut edits = Vec::new();
        for (key, text) in &wanted {
            match there.get(key) {
                None => edits.push((Action::Missing, key, None, Some(text))),
                Some(other) if other != text => {
                    edits.push((Action::Differs, key, Some(other), Some(text)));
                }
                Some(_) => {}
            }
        }
        for (key, text) in there.iter().filter(|(key, _)| !wanted.contains_key(*key)) {
            edits.push((Action::Extra, key, Some(text), None));
        }
        for (action, key, a, b) in edits {
            let object = Object::Member {
                set: want.name.clone(),
                member: key.clone(),
            };
            let service = self.element_owner(key);
            self.push(action, object, service, a.cloned(), b.cloned());
        }
    }

    fn element_owner(&self, key: &str) -> Option<String> {
        let parts: Vec<&str> = key.split(" . ").collect();
        match parts.as_slice() {
            [addr] => self.owners.of_addr(addr.parse().ok()?),
            [proto, port] => {
                let (proto, port) = (proto.parse().ok()?, port.parse().ok()?);
                self.owners.of_node_port(proto, port)
            }
            [addr, proto, port] => {
                let (addr, proto) = (addr.parse().ok()?, proto.parse().ok()?);
                self.owners.of_port(addr, proto, port.parse().ok()?)
            }
            [addr, _, proto, port] => {
                let (addr, proto) = (addr.parse().ok()?, proto.parse().ok()?);
                self.owners.of_endpoint(addr, proto, port.parse().ok()?)
            }
            _ => None,
        }
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Returns the service port that a chain or set is named after.
fn service_of(name: &str) -> Option<String> {
    // service-2QRHZV4L-NAMESPACE/SERVICE/PROTO/PORT, and behind that __ADDRESS/PORT for an endpoint.
    let (_, rest) = name.split_once('-')?;
    let (_, path) = rest.split_once('-')?;
    let mut parts = path.split('/');
    let (namespace, service, _proto) = (parts.next()?, parts.next()?, parts.next()?);
    let port = parts.next().unwrap_or("");
    let port = port.split("__").next().unwrap_or("");
    Some(match port {
        "" => format!("{namespace}/{service}"),
        port => format!("{namespace}/{service}:{port}"),
    })
}

fn base(base: Option<&Base>) -> String {
    base.map_or("not at a hook".to_owned(), |base| {
        format!(
            "type {} hook {} priority {} policy {}",
            base.kind, base.hook, base.priority, base.policy
        )
    })
}

fn whole(chain: &Chain) -> String {
    let head = chain.base.as_ref().map(|b| base(Some(b)));
    let rules = chain.rules.iter().map(print::rule);
    let lines: Vec<_> = head.into_iter().chain(rules).collect();
    if lines.is_empty() {
        "an empty chain".to_owned()
    } else {
        lines.join("\n")
    }
}

/// What a set is, as far as every nft lists it.
fn shape(set: &Set) -> String {
    let mut text = set.key.join(" . ");
    for data in set.data.iter().flatten() {
        text.push_str(" : ");
        text.push_str(data);
    }
    let timeout = set.timeout.map(|seconds| format!(" timeout {seconds}s"));
    text.extend(timeout);
    if set.flags.iter().any(|flag| flag == "interval") {
        text.push_str(" interval");
    }
    text
}

/// An element without what does not count: comments, and seconds left.
fn element(element: &Element) -> String {
    let key = print::expr(&element.key);
    match &element.value {
        Some(value) => format!("{key} : {}", print::datum(value)),
        None => key,
    }
}

/// Returns `rule` in the form that rules are compared in: handles and counters left out, inline sets in order.
pub(super) fn normal(rule: &Rule) -> Rule {
    let statements = rule.statements.iter();
    let statements = statements.filter(|s| !matches!(s, Statement::Counter { .. }));
    Rule {
        handle: None,
        comment: rule.comment.clone(),
        statements: statements.map(normal_statement).collect(),
    }
}

fn normal_statement(statement: &Statement) -> Statement {
    match statement {
        Statement::Match { left, op, right } => Statement::Match {
            left: left.clone(),
            op: op.clone(),
            right: normal_expr(right),
        },
        Statement::Vmap { key, data } => Statement::Vmap {
            key: key.clone(),
            data: normal_expr(data),
        },
        other => other.clone(),
    }
}

/// Sorts the members of inline sets and maps, and joins addresses that the kernel joins.
fn normal_expr(expr: &Expr) -> Expr {
    match expr {
        Expr::Set(members) => {
            let ranges: Option<Vec<_>> = members.iter().map(range).collect();
            match ranges {
                Some(ranges) if !ranges.is_empty() => joined(ranges),
                _ => Expr::Set(members.clone()),
            }
        }
        Expr::Prefix { .. } | Expr::Range(..) | Expr::Word(_) => {
            range(expr).map_or_else(|| expr.clone(), |range| joined(vec![range]))
        }
        Expr::Map(pairs) => {
            let mut pairs: Vec<(Expr, Datum)> = pairs.clone();
            pairs.sort_by_key(|(key, _)| match key {
                Expr::Number(number) => *number,
                _ => u64::MAX,
            });
            Expr::Map(pairs)
        }
        other => other.clone(),
    }
}

/// A range of addresses as numbers, and whether they are IPv6.
type Span = (bool, u128, u128);

fn range(expr: &Expr) -> Option<Span> {
    match expr {
        Expr::Word(word) => {
            let addr: IpAddr = word.parse().ok()?;
            Some((addr.is_ipv6(), bits(addr), bits(addr)))
        }
        Expr::Prefix { addr, len } => {
            let Expr::Word(word) = addr.as_ref() else {
                return None;
            };
            let addr: IpAddr = word.parse().ok()?;
            let cidr = Cidr { addr, prefix: *len };
            let first = bits(cidr.normal().addr);
            let host = u32::from(Family::of(addr).bits().checked_sub(*len)?);
            let rest = 1u128.checked_shl(host).map_or(u128::MAX, |size| size - 1);
            Some((addr.is_ipv6(), first, first | rest))
        }
        Expr::Range(first, last) => {
            let (v6, first, _) = range(first)?;
            let (_, _, last) = range(last)?;
            Some((v6, first, last))
        }
        _ => None,
    }
}

fn bits(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn joined(mut ranges: Vec<Span>) -> Expr {
    ranges.sort_unstable();
    let mut merged: Vec<Span> = Vec::new();
    for (v6, first, last) in ranges {
        match merged.last_mut() {
            Some(before)
                if before.0 == v6 && before.2.checked_add(1).is_none_or(|next| first <= next) =>
            {
                before.2 = before.2.max(last);
            }
            _ => merged.push((v6, first, last)),
        }
    }
    Expr::Set(merged.into_iter().map(span).collect())
}

fn span((v6, first, last): Span) -> Expr {
    let addr = |bits: u128| {
        let addr = if v6 {
            IpAddr::V6(bits.into())
        } else {
            IpAddr::V4(u32::try_from(bits).unwrap_or(u32::MAX).into())
        };
        Expr::Word(addr.to_string())
    };
    let size = last - first;
    let aligned = size & size.wrapping_add(1) == 0 && first & size == 0;
    if size == 0 {
        addr(first)
    } else if aligned {
        let width = if v6 { 128 } else { 32 };
        let host = u8::try_from(size.count_ones()).unwrap_or(width);
        Expr::Prefix {
            addr: Box::new(addr(first)),
            len: width - host,
        }
    } else {
        Expr::Range(Box::new(addr(first)), Box::new(addr(last)))
    }
}

/// Returns the prefixes of cluster IPs that a listed table knows of: they are nowhere else in the evidence.
pub(super) fn service_cidrs(table: &Table) -> Vec<Cidr> {
    let chain = table.chain("cluster-ips-check");
    let rules = chain.map_or(&[][..], |chain| &chain.rules);
    let Some(rule) = rules
        .iter()
        .find(|rule| rule.comment.as_deref() == Some(UNALLOCATED))
    else {
        return Vec::new();
    };
    let members = rule.statements.iter().filter_map(|s| match s {
        Statement::Match { right, .. } => Some(match normal_expr(right) {
            Expr::Set(members) => members,
            other => vec![other],
        }),
        _ => None,
    });
    let cidrs = members.flatten().filter_map(|member| match member {
        Expr::Prefix { addr, len } => match *addr {
            Expr::Word(word) => Some(Cidr {
                addr: word.parse().ok()?,
                prefix: len,
            }),
            _ => None,
        },
        Expr::Word(word) => word.parse().ok(),
        _ => None,
    });
    cidrs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_sets_are_joined_as_the_kernel_joins_them() {
        let word = |text: &str| Expr::Word(text.to_owned());
        let prefix = |text: &str, len| Expr::Prefix {
            addr: Box::new(word(text)),
            len,
        };
        let shown = |members: Vec<Expr>| print::expr(&normal_expr(&Expr::Set(members)));
        assert_eq!(
            shown(vec![prefix("10.0.1.0", 24), prefix("10.0.0.0", 24)]),
            "{ 10.0.0.0/23 }"
        );
        assert_eq!(
            shown(vec![word("10.0.0.3"), word("10.0.0.2"), word("10.0.0.1")]),
            "{ 10.0.0.1-10.0.0.3 }"
        );
        assert_eq!(
            shown(vec![prefix("10.0.0.0", 8), word("10.1.2.3")]),
            "{ 10.0.0.0/8 }"
        );
        assert_eq!(shown(vec![prefix("fd00::", 8)]), "{ fd00::/8 }");
    }

    #[test]
    fn names_tell_the_service() {
        let of = |name| service_of(name).unwrap_or_default();
        assert_eq!(
            of("service-2QRHZV4L-default/kubernetes/tcp/https"),
            "default/kubernetes:https"
        );
        assert_eq!(of("local-PFISGYVC-default/web/tcp/"), "default/web");
        assert_eq!(
            of("endpoint-EBQUYVBC-shop/cart/tcp/http__10.244.1.30/8080"),
            "shop/cart:http"
        );
        assert_eq!(service_of("nat-prerouting"), None);
    }
}
