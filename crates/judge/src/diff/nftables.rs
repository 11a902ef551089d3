//! The table `kube-proxy` of one family compared with the desired one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;

use super::change::{Change, Delta, Object, word};
use super::owners::Owners;
use super::print::{element, shape};
use super::sequence;
use kpx_node::backend::nftables::expect::UNALLOCATED;
use kpx_node::backend::nftables::model::{Chain, Element, Expr, Rule, Set, Statement, Table};
use kpx_node::backend::nftables::names::service_of;
use kpx_node::backend::nftables::print;
use kpx_node::net::{Cidr, Family};

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
    let table = |dormant| Object::NftablesTable {
        family,
        dormant,
        chains: want.chains.len(),
        sets: want.sets.len(),
    };
    let Some(have) = have else {
        found.push(table(false), None);
        return found.changes;
    };
    if have.dormant {
        found.push(table(true), None);
    }
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
    fn push(&mut self, object: Object, service: Option<String>) {
        self.changes.push(Change {
            family: Some(self.family),
            service,
            object,
        });
    }

    fn chains(&mut self, have: &Table, want: &Table) {
        let live: HashMap<&str, &Chain> =
            have.chains.iter().map(|c| (c.name.as_str(), c)).collect();
        let mut wanted = HashSet::with_capacity(want.chains.len());
        for want in &want.chains {
            wanted.insert(want.name.as_str());
            let Some(have) = live.get(want.name.as_str()) else {
                self.chain(&want.name, Delta::missing(want.clone()));
                continue;
            };
            if have.base != want.base {
                let bare = |chain: &Chain| Chain {
                    name: chain.name.clone(),
                    comment: chain.comment.clone(),
                    base: chain.base.clone(),
                    rules: Vec::new(),
                };
                let object = Object::NftablesChain {
                    chain: want.name.clone(),
                    of: Delta::differs(bare(have), bare(want)),
                };
                self.push(object, None);
            }
            self.rules(have, want);
        }
        for have in &have.chains {
            // Chains without a slash are others', or an older release's. kube-proxy empties a chain before it can
            // delete it.
            let ours = have.name.contains('/') && !have.rules.is_empty();
            if ours && !wanted.contains(have.name.as_str()) {
                self.chain(&have.name, Delta::extra(have.clone()));
            }
        }
    }

    fn chain(&mut self, name: &str, of: Delta<Chain>) {
        let object = Object::NftablesChain {
            chain: name.to_owned(),
            of,
        };
        self.push(object, service_of(name));
    }

    fn rules(&mut self, have: &Chain, want: &Chain) {
        let forms = |chain: &Chain| -> Vec<Form> { chain.rules.iter().map(Form::of).collect() };
        let (a, b) = (forms(have), forms(want));
        for edit in sequence::ordered(&a, &b, |form| hash(&form.text), |a, b| a.text == b.text) {
            let (at, rule) = edit.delta(&a, &b);
            let object = Object::NftablesRule {
                chain: want.name.clone(),
                at,
                rule: rule.map(|form| form.rule.clone()),
            };
            self.push(object, service_of(&want.name));
        }
    }

    fn sets(&mut self, have: &Table, want: &Table) {
        let live: HashMap<&str, &Set> = have.sets.iter().map(|s| (s.name.as_str(), s)).collect();
        let mut wanted = HashSet::with_capacity(want.sets.len());
        for want in &want.sets {
            wanted.insert(want.name.as_str());
            let Some(have) = live.get(want.name.as_str()) else {
                self.set(&want.name, Delta::missing(want.clone()));
                continue;
            };
            if shape(have) != shape(want) {
                let set = Delta::differs(without_elements(have), without_elements(want));
                self.set(&want.name, set);
            }
            // The kernel adds and removes the clients of an endpoint.
            if want.timeout.is_none() {
                self.elements(have, want);
            }
        }
        for have in &have.sets {
            if have.name.starts_with("affinity-") && !wanted.contains(have.name.as_str()) {
                self.set(&have.name, Delta::extra(without_elements(have)));
            }
        }
    }

    fn set(&mut self, name: &str, set: Delta<Set>) {
        let object = Object::NftablesSet {
            name: name.to_owned(),
            set,
        };
        self.push(object, service_of(name));
    }

    fn elements(&mut self, have: &Set, want: &Set) {
        let by_key = |set: &'_ Set| -> BTreeMap<String, usize> {
            let elements = set.elements.iter().enumerate();
            elements.map(|(at, e)| (print::expr(&e.key), at)).collect()
        };
        let (live, wanted) = (by_key(have), by_key(want));
        let mut found = Vec::new();
        for (key, &at) in &wanted {
            let new = &want.elements[at];
            match live.get(key).map(|&at| &have.elements[at]) {
                None => found.push(Delta::missing(new)),
                Some(old) if element(old) != element(new) => found.push(Delta::differs(old, new)),
                Some(_) => {}
            }
        }
        for (_, &at) in live.iter().filter(|(key, _)| !wanted.contains_key(*key)) {
            found.push(Delta::extra(&have.elements[at]));
        }
        for delta in found {
            let key = delta.both().next().map(|element| &element.key);
            let service = key.and_then(|key| self.element_owner(key));
            let object = Object::NftablesElement {
                set: want.name.clone(),
                element: delta.map(|element| Element {
                    expires: None,
                    ..element.clone()
                }),
            };
            self.push(object, service);
        }
    }

    fn element_owner(&self, key: &Expr) -> Option<String> {
        let parts = match key {
            Expr::Concat(parts) => parts.as_slice(),
            single => std::slice::from_ref(single),
        };
        match parts {
            [addr] => self.owners.of_addr(word(addr)?),
            [proto, port] => self.owners.of_node_port(word(proto)?, word(port)?),
            [addr, proto, port] => self.owners.of_port(word(addr)?, word(proto)?, word(port)?),
            [addr, _, proto, port] => {
                self.owners
                    .of_endpoint(word(addr)?, word(proto)?, word(port)?)
            }
            _ => None,
        }
    }
}

/// A rule in the form in which rules are compared, and that form as text.
struct Form {
    rule: Rule,
    text: String,
}

impl Form {
    fn of(rule: &Rule) -> Self {
        let rule = normal(rule);
        let text = print::rule(&rule);
        Self { rule, text }
    }
}

/// Returns the set without elements and comment.
fn without_elements(set: &Set) -> Set {
    Set {
        name: set.name.clone(),
        comment: None,
        key: set.key.clone(),
        data: set.data.clone(),
        flags: set.flags.clone(),
        timeout: set.timeout,
        run: set.run.clone(),
        elements: Vec::new(),
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Returns `rule` in the form in which rules are compared: without handle and counters, inline sets in order.
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
    let mut statement = statement.clone();
    match &mut statement {
        Statement::Match { right: expr, .. } | Statement::Vmap { data: expr, .. } => {
            normalize(expr);
        }
        // A single address is no set.
        Statement::Nat {
            addr: Some(expr @ (Expr::Map(_) | Expr::Lookup { .. })),
            ..
        } => normalize(expr),
        _ => {}
    }
    statement
}

/// Sorts the members of inline sets and maps, and joins addresses that the kernel joins.
fn normalize(expr: &mut Expr) {
    match expr {
        Expr::Set(members) => {
            let ranges: Option<Vec<_>> = members.iter().map(range).collect();
            if let Some(ranges) = ranges.filter(|ranges| !ranges.is_empty()) {
                *expr = joined(ranges);
            }
        }
        Expr::Prefix { .. } | Expr::Range(..) | Expr::Word(_) => {
            if let Some(range) = range(expr) {
                *expr = joined(vec![range]);
            }
        }
        Expr::Map(pairs) => pairs.sort_by_key(|(key, _)| match key {
            Expr::Number(number) => *number,
            _ => u64::MAX,
        }),
        Expr::Lookup { data, .. } => normalize(data),
        _ => {}
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
            let (same, _, last) = range(last)?;
            (v6 == same && first <= last).then_some((v6, first, last))
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

fn address(v6: bool, bits: u128) -> IpAddr {
    if v6 {
        IpAddr::V6(bits.into())
    } else {
        IpAddr::V4(u32::try_from(bits).unwrap_or(u32::MAX).into())
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
    let addr = |bits: u128| Expr::Word(address(v6, bits).to_string());
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

/// Returns the Service IP ranges in a listed table: no other evidence has them.
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
        Statement::Match { right, .. } => {
            let mut right = right.clone();
            normalize(&mut right);
            Some(match right {
                Expr::Set(members) => members,
                other => vec![other],
            })
        }
        _ => None,
    });
    let spans = members.flatten().filter_map(|member| range(&member));
    spans.flat_map(cidrs).collect()
}

/// Returns the prefixes that a range of addresses consists of.
fn cidrs((v6, first, last): Span) -> Vec<Cidr> {
    let width: u32 = if v6 { 128 } else { 32 };
    let mut found = Vec::new();
    let mut next = Some(first);
    while let Some(first) = next.filter(|&first| first <= last) {
        // The largest block that begins here and fits.
        let fits = |host: &u32| {
            let rest = u128::MAX.checked_shr(128 - host).unwrap_or(0);
            first & rest == 0 && rest <= last - first
        };
        let host = (0..=width).rev().find(fits).unwrap_or(0);
        let rest = u128::MAX.checked_shr(128 - host).unwrap_or(0);
        found.push(Cidr {
            addr: address(v6, first),
            prefix: u8::try_from(width - host).unwrap_or(u8::MAX),
        });
        next = (first | rest).checked_add(1);
    }
    found
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
        let shown = |members: Vec<Expr>| {
            let mut set = Expr::Set(members);
            normalize(&mut set);
            print::expr(&set)
        };
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
    fn a_range_of_addresses_consists_of_prefixes() {
        let of = |first: &str, last: &str| {
            let [first, last] = [first, last].map(|text| Box::new(Expr::Word(text.to_owned())));
            let found = range(&Expr::Range(first, last)).map_or(Vec::new(), cidrs);
            let found: Vec<_> = found.iter().map(Cidr::to_string).collect();
            found.join(" ")
        };
        assert_eq!(
            of("10.96.0.0", "10.97.127.255"),
            "10.96.0.0/16 10.97.0.0/17"
        );
        assert_eq!(
            of("10.0.0.1", "10.0.0.4"),
            "10.0.0.1/32 10.0.0.2/31 10.0.0.4/32"
        );
        assert_eq!(of("0.0.0.0", "255.255.255.255"), "0.0.0.0/0");
        assert_eq!(of("fd00::", "fd00::1:ffff"), "fd00::/111");
        let all = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        assert_eq!(of("::", all), "::/0");
        for (first, last) in [("10.0.0.1", "10.0.0.0"), ("10.0.0.1", "fd00::")] {
            assert_eq!(of(first, last), "", "{first} {last}");
        }
    }
}
