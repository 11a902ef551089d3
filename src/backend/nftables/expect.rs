//! What the nftables mode writes: the table `kube-proxy` of one family, as `nft -j` lists it.
//!
//! Source: `syncProxyRules` and `setupNFTables` in kube-proxy's `pkg/proxy/nftables/proxier.go`; the layout changed in
//! 1.34 and in 1.36.

mod ports;
mod statics;

use std::collections::{BTreeMap, HashSet};

use super::build::{address, differs, equals, jump, meta, payload, prefix};
use super::model::{Base, Chain, Datum, Element, Expr, Rule, Set, Statement, Table, Verdict};
use super::print;
use crate::desired::{DesiredState, Detector, FamilyState};
use crate::evidence::Gap;
use crate::net::{Cidr, Family};

/// The name of kube-proxy's tables.
pub const TABLE: &str = "kube-proxy";
/// The comment of the rule that drops traffic to addresses no Service has.
pub const UNALLOCATED: &str = "Drop traffic to unallocated ClusterIPs";

/// Returns the table of `family`.
///
/// `service_cidrs` are the prefixes that cluster IPs come from; without them traffic to other addresses of these is
/// not expected to be dropped. Not known are the tables of 1.29, where the mode was alpha.
pub fn expect(
    state: &DesiredState,
    family: &FamilyState,
    service_cidrs: &[Cidr],
) -> Result<Table, Gap> {
    if !state.since(30) {
        let why = format!(
            "kube-proxy {} lays out its tables otherwise than 1.30, the oldest release whose tables kpx knows",
            state.version
        );
        return Err(Gap::NotApplicable(why));
    }
    let mut writer = Writer::new(state, family);
    writer.jumps();
    writer.check_rules(service_cidrs);
    writer.service_rules();
    if !family.node_ports.all {
        for addr in family.node_port_addresses(&state.facts, false)? {
            writer.add("nodeport-ips", vec![address(addr)], None, None);
        }
    }
    for port in &family.ports {
        writer.port(port);
    }
    Ok(writer.finish())
}

/// Returns what `nft` calls `family`.
pub fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

struct Writer<'a> {
    state: &'a DesiredState,
    family: &'a FamilyState,
    ip: &'static str,
    addr: &'static str,
    chains: Vec<Chain>,
    by_name: BTreeMap<String, usize>,
    sets: Vec<Set>,
    set_names: BTreeMap<String, usize>,
    /// Keys of elements, by set: the first of two Services that claim a key has it.
    seen: HashSet<(usize, String)>,
}

impl<'a> Writer<'a> {
    fn new(state: &'a DesiredState, family: &'a FamilyState) -> Self {
        let mut writer = Self {
            state,
            family,
            ip: family_name(family.family),
            addr: match family.family {
                Family::V4 => "ipv4_addr",
                Family::V6 => "ipv6_addr",
            },
            chains: Vec::new(),
            by_name: BTreeMap::new(),
            sets: Vec::new(),
            set_names: BTreeMap::new(),
            seen: HashSet::new(),
        };
        writer.static_chains();
        writer
    }

    fn finish(self) -> Table {
        Table {
            family: self.ip.to_owned(),
            name: TABLE.to_owned(),
            comment: Some("rules for kube-proxy".to_owned()),
            chains: self.chains,
            sets: self.sets,
        }
    }

    fn chain(&mut self, name: &str, base: Option<Base>) {
        if !self.by_name.contains_key(name) {
            self.by_name.insert(name.to_owned(), self.chains.len());
            self.chains.push(Chain {
                name: name.to_owned(),
                base,
                ..Chain::default()
            });
        }
    }

    fn rule(&mut self, chain: &str, statements: Vec<Statement>, comment: Option<&str>) {
        if let Some(&at) = self.by_name.get(chain) {
            self.chains[at].rules.push(Rule {
                handle: None,
                comment: comment.map(str::to_owned),
                statements,
            });
        }
    }

    fn set(&mut self, name: &str, key: &[&str], verdicts: bool, comment: &str) {
        self.set_names.insert(name.to_owned(), self.sets.len());
        self.sets.push(Set {
            name: name.to_owned(),
            comment: Some(comment.to_owned()),
            key: key.iter().map(|&part| part.to_owned()).collect(),
            data: verdicts.then(|| vec!["verdict".to_owned()]),
            ..Set::default()
        });
    }

    /// Adds an element, unless its key is there.
    fn add(&mut self, set: &str, mut key: Vec<Expr>, to: Option<Verdict>, comment: Option<&str>) {
        if let Some(&at) = self.set_names.get(set) {
            let key = if key.len() == 1 {
                key.remove(0)
            } else {
                Expr::Concat(key)
            };
            if !self.seen.insert((at, print::expr(&key))) {
                return;
            }
            self.sets[at].elements.push(Element {
                key,
                value: to.map(Datum::Verdict),
                comment: comment.map(str::to_owned),
                timeout: None,
                expires: None,
            });
        }
    }

    fn saddr(&self) -> Expr {
        payload(self.ip, "saddr")
    }

    fn daddr(&self) -> Expr {
        payload(self.ip, "daddr")
    }

    fn detected(&self, detector: &Detector, not: bool) -> Statement {
        let link = |key: &str, name: String| (meta(key), Expr::Word(name));
        let (left, right) = match detector {
            Detector::Cidr(cidr) => (self.saddr(), prefix(*cidr)),
            // Up to 1.34 by index, which does not survive the link.
            Detector::Interface(name) if !self.state.since(35) => link("iif", name.clone()),
            Detector::Interface(name) => link("iifname", name.clone()),
            Detector::Prefix(name) => link("iifname", format!("{name}*")),
        };
        if not {
            differs(left, right)
        } else {
            equals(left, right)
        }
    }

    /// `mark set mark OP M`.
    fn set_mark(&self, op: &str) -> Statement {
        Statement::Mangle {
            key: meta("mark"),
            value: Expr::Bits {
                op: op.to_owned(),
                left: Box::new(meta("mark")),
                right: Box::new(Expr::Number(u64::from(self.state.mark))),
            },
        }
    }

    /// Marks packets for masquerade: in a chain of its own up to 1.35.
    fn mark(&self) -> Statement {
        if self.state.since(36) {
            self.set_mark("|")
        } else {
            jump("mark-for-masquerade")
        }
    }
}
