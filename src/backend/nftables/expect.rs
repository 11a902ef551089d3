//! What the nftables mode writes: the table `kube-proxy` of one family, as `nft -j` lists it.
//!
//! Source: `syncProxyRules` and `setupNFTables` in kube-proxy's `pkg/proxy/nftables/proxier.go`; the layout changed in
//! 1.34 and in 1.36.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use super::model::{
    Base, Chain, Datum, Element, Expr, NatKind, Rule, Set, Statement, Table, Verdict,
};
use super::{names, print};
use crate::desired::{DesiredState, Detector, FamilyState, ServicePort};
use crate::evidence::Gap;
use crate::net::{Cidr, Family, Proto};

/// The name of kube-proxy's tables.
pub const TABLE: &str = "kube-proxy";
/// The comment of the rule that drops traffic to addresses no Service has.
pub const UNALLOCATED: &str = "Drop traffic to unallocated ClusterIPs";

/// Base chains: name, type, hook, priority; since 1.34.
const BASES: &[(&str, &str, &str, i32)] = &[
    ("filter-prerouting-pre-dnat", "filter", "prerouting", -110),
    ("filter-output-pre-dnat", "filter", "output", -110),
    ("filter-input", "filter", "input", 0),
    ("filter-forward", "filter", "forward", 0),
    ("filter-output", "filter", "output", 0),
    ("nat-prerouting", "nat", "prerouting", -100),
    ("nat-output", "nat", "output", -100),
    ("nat-postrouting", "nat", "postrouting", 100),
];

/// The same up to 1.33.
const OLD_BASES: &[(&str, &str, &str, i32)] = &[
    ("filter-prerouting", "filter", "prerouting", -110),
    ("filter-input", "filter", "input", -110),
    ("filter-forward", "filter", "forward", -110),
    ("filter-output", "filter", "output", -110),
    ("filter-output-post-dnat", "filter", "output", -90),
    ("nat-prerouting", "nat", "prerouting", -100),
    ("nat-output", "nat", "output", -100),
    ("nat-postrouting", "nat", "postrouting", 100),
];

/// Jumps from base chains: to, from, whether only for new connections; since 1.34.
const JUMPS: &[(&str, &str, bool)] = &[
    ("nodeport-endpoints-check", "filter-input", true),
    ("service-endpoints-check", "filter-input", true),
    ("service-endpoints-check", "filter-forward", true),
    ("service-endpoints-check", "filter-output", true),
    ("firewall-check", "filter-prerouting-pre-dnat", true),
    ("firewall-check", "filter-output-pre-dnat", true),
    ("services", "nat-output", false),
    ("services", "nat-prerouting", false),
    ("masquerading", "nat-postrouting", false),
    ("cluster-ips-check", "filter-forward", true),
    ("cluster-ips-check", "filter-output", true),
];

/// The same up to 1.33.
const OLD_JUMPS: &[(&str, &str, bool)] = &[
    ("nodeport-endpoints-check", "filter-input", true),
    ("service-endpoints-check", "filter-input", true),
    ("service-endpoints-check", "filter-forward", true),
    ("service-endpoints-check", "filter-output", true),
    ("firewall-check", "filter-prerouting", true),
    ("firewall-check", "filter-output", true),
    ("services", "nat-output", false),
    ("services", "nat-prerouting", false),
    ("masquerading", "nat-postrouting", false),
    ("cluster-ips-check", "filter-forward", true),
    ("cluster-ips-check", "filter-output-post-dnat", true),
];

/// Returns the table of `family`.
///
/// `service_cidrs` are the prefixes that cluster IPs come from; without them traffic to other addresses of these is
/// not expected to be dropped.
pub fn expect(
    state: &DesiredState,
    family: &FamilyState,
    service_cidrs: &[Cidr],
) -> Result<Table, Gap> {
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
        let bases = if state.since(34) { BASES } else { OLD_BASES };
        for &(name, kind, hook, priority) in bases {
            writer.chain(
                name,
                Some(Base {
                    kind: kind.to_owned(),
                    hook: hook.to_owned(),
                    priority,
                    policy: "accept".to_owned(),
                }),
            );
        }
        for name in [
            "nodeport-endpoints-check",
            "service-endpoints-check",
            "firewall-check",
            "services",
            "masquerading",
            "cluster-ips-check",
            "reject-chain",
        ] {
            writer.chain(name, None);
        }
        let reject = writer.by_name["reject-chain"];
        writer.chains[reject].comment =
            Some("helper for @no-endpoint-services / @no-endpoint-nodeports".to_owned());
        if !state.since(36) {
            writer.chain("mark-for-masquerade", None);
        }
        writer.static_sets();
        writer
    }

    fn static_sets(&mut self) {
        let addr = self.addr;
        let service = [addr, "inet_proto", "inet_service"];
        let node_port = ["inet_proto", "inet_service"];
        if self.state.since(36) {
            let key = [addr, addr, "inet_proto", "inet_service"];
            self.set(
                "hairpin-connections",
                &key,
                false,
                "service hairpin connections",
            );
        }
        self.set("cluster-ips", &[addr], false, "Active ClusterIPs");
        if !self.family.node_ports.all {
            self.set(
                "nodeport-ips",
                &[addr],
                false,
                "IPs that accept NodePort traffic",
            );
        }
        for (name, key, comment) in [
            (
                "no-endpoint-services",
                &service[..],
                "vmap to drop or reject packets to services with no endpoints",
            ),
            (
                "no-endpoint-nodeports",
                &node_port,
                "vmap to drop or reject packets to service nodeports with no endpoints",
            ),
            (
                "firewall-ips",
                &service,
                "destinations that are subject to LoadBalancerSourceRanges",
            ),
            (
                "service-ips",
                &service,
                "ClusterIP, ExternalIP and LoadBalancer IP traffic",
            ),
            ("service-nodeports", &node_port, "NodePort traffic"),
        ] {
            self.set(name, key, true, comment);
        }
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

    fn jumps(&mut self) {
        let rows = if self.state.since(34) {
            JUMPS
        } else {
            OLD_JUMPS
        };
        for &(to, from, new) in rows {
            let mut statements = Vec::new();
            if new {
                statements.push(Statement::Match {
                    left: Expr::Ct {
                        key: "state".to_owned(),
                        dir: None,
                    },
                    op: "in".to_owned(),
                    right: word("new"),
                });
            }
            statements.push(jump(to));
            self.rule(from, statements, None);
        }
    }

    fn saddr(&self) -> Expr {
        payload(self.ip, "saddr")
    }

    fn daddr(&self) -> Expr {
        payload(self.ip, "daddr")
    }

    /// The rules of the static chains but `services`.
    fn check_rules(&mut self, service_cidrs: &[Cidr]) {
        let by_service = |map: &str, daddr: Expr| Statement::Vmap {
            key: Expr::Concat(vec![daddr, meta("l4proto"), payload("th", "dport")]),
            data: named(map),
        };
        let daddr = self.daddr();
        self.rule(
            "firewall-check",
            vec![by_service("firewall-ips", daddr.clone())],
            None,
        );
        self.rule(
            "service-endpoints-check",
            vec![by_service("no-endpoint-services", daddr.clone())],
            None,
        );
        let mut matches = self.to_node_port(false);
        matches.push(by_node_port("no-endpoint-nodeports"));
        self.rule("nodeport-endpoints-check", matches, None);
        self.rule("reject-chain", vec![reject(self.family.family)], None);
        self.rule(
            "cluster-ips-check",
            vec![
                equals(daddr.clone(), named("cluster-ips")),
                reject(self.family.family),
            ],
            Some("Reject traffic to invalid ports of ClusterIPs"),
        );
        let ours = service_cidrs
            .iter()
            .filter(|c| c.family() == self.family.family);
        let ours: Vec<_> = ours.map(|&cidr| prefix(cidr)).collect();
        if !ours.is_empty() {
            self.rule(
                "cluster-ips-check",
                vec![
                    equals(daddr, Expr::Set(ours)),
                    Statement::Verdict(Verdict::Drop),
                ],
                Some(UNALLOCATED),
            );
        }
        let mark = u64::from(self.state.mark);
        let masked = Expr::Bits {
            op: "&".to_owned(),
            left: Box::new(meta("mark")),
            right: Box::new(Expr::Number(mark)),
        };
        let masquerade = || Statement::Masquerade {
            port: None,
            flags: vec!["fully-random".to_owned()],
        };
        if !self.state.since(36) {
            self.rule("mark-for-masquerade", vec![self.set_mark("|")], None);
            let unmarked = equals(masked, Expr::Number(0));
            let back = vec![unmarked, Statement::Verdict(Verdict::Return)];
            self.rule("masquerading", back, None);
            self.rule("masquerading", vec![self.set_mark("^")], None);
            self.rule("masquerading", vec![masquerade()], None);
            return;
        }
        let wanted = differs(masked, Expr::Number(0));
        self.rule(
            "masquerading",
            vec![wanted, self.set_mark("^"), masquerade()],
            None,
        );
        let translated = Statement::Match {
            left: Expr::Ct {
                key: "status".to_owned(),
                dir: None,
            },
            op: "in".to_owned(),
            right: word("dnat"),
        };
        let hairpin = equals(
            Expr::Concat(vec![
                self.saddr(),
                self.daddr(),
                meta("l4proto"),
                payload("th", "dport"),
            ]),
            named("hairpin-connections"),
        );
        self.rule(
            "masquerading",
            vec![translated, hairpin, masquerade()],
            None,
        );
    }

    fn service_rules(&mut self) {
        if self.state.since(36) {
            let to_cluster_ip = equals(self.daddr(), named("cluster-ips"));
            let mut statements = vec![to_cluster_ip];
            let comment = if self.state.masquerade_all {
                Some("masquerade all clusterIP traffic")
            } else {
                self.family.detector.as_ref().map(|detector| {
                    statements.push(self.detected(detector, true));
                    "masquerade clusterIP traffic from outside cluster"
                })
            };
            if comment.is_some() {
                statements.push(self.set_mark("|"));
                self.rule("services", statements, comment);
            }
        }
        let by_service = Statement::Vmap {
            key: Expr::Concat(vec![self.daddr(), meta("l4proto"), payload("th", "dport")]),
            data: named("service-ips"),
        };
        self.rule("services", vec![by_service], None);
        let mut matches = self.to_node_port(true);
        matches.push(by_node_port("service-nodeports"));
        self.rule("services", matches, None);
    }

    /// Matches packets to addresses that take NodePort traffic.
    fn to_node_port(&self, anywhere: bool) -> Vec<Statement> {
        if !self.family.node_ports.all {
            return vec![equals(self.daddr(), named("nodeport-ips"))];
        }
        let mut matches = Vec::new();
        if anywhere {
            matches.push(local("daddr"));
        }
        let loopback = match self.family.family {
            Family::V4 => Expr::Prefix {
                addr: Box::new(word("127.0.0.0")),
                len: 8,
            },
            Family::V6 => word("::1"),
        };
        matches.push(differs(self.daddr(), loopback));
        matches
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

    fn port(&mut self, port: &'a ServicePort) {
        let base = names::service(&port.namespace, &port.service, port.proto, &port.port_name);
        let names = PortNames {
            svc: format!("service-{base}"),
            svl: format!("local-{base}"),
            ext: format!("external-{base}"),
            fw: format!("firewall-{base}"),
        };
        self.elements(port, &names);
        if port.has_endpoints && port.accessible {
            self.external(port, &names);
        }
        if port.has_firewall() {
            self.firewall(port, &names.fw);
        }
        let chained = port.affinity.is_some() || !self.state.since(36);
        for &at in port.reachable_at() {
            let endpoint = &port.endpoints[at as usize];
            if self.state.since(36) && endpoint.local {
                let ip = || address(endpoint.addr.ip());
                let key = vec![
                    ip(),
                    ip(),
                    protocol(port.proto),
                    number(endpoint.addr.port()),
                ];
                self.add("hairpin-connections", key, None, None);
            }
            if chained {
                self.endpoint(port, endpoint.addr);
            }
        }
        let masquerade = self.masquerade_internal(port);
        if port.has_cluster_chain() {
            let first = masquerade.as_ref().filter(|_| !port.internal_local);
            self.balance(port, &names.svc, port.cluster_at(), first.cloned());
        }
        if port.has_local_chain() {
            let first = masquerade.filter(|_| port.internal_local);
            self.balance(port, &names.svl, port.local_at(), first);
        }
    }

    fn elements(&mut self, port: &ServicePort, names: &PortNames) {
        let spn = Some(port.spn.as_str());
        let nowhere = || {
            if port.has_endpoints {
                Verdict::Drop
            } else {
                Verdict::Goto("reject-chain".to_owned())
            }
        };
        let key = |addr: IpAddr| vec![address(addr), protocol(port.proto), number(port.port)];
        self.add("cluster-ips", vec![address(port.cluster_ip)], None, None);
        if port.has_internal() {
            let to = if port.internal_local {
                &names.svl
            } else {
                &names.svc
            };
            let to = Some(Verdict::Goto(to.clone()));
            self.add("service-ips", key(port.cluster_ip), to, None);
        } else {
            self.add(
                "no-endpoint-services",
                key(port.cluster_ip),
                Some(nowhere()),
                spn,
            );
        }
        for &addr in port.external_ips.iter().chain(&port.lb_ips) {
            if port.has_endpoints {
                let to = Some(Verdict::Goto(names.ext.clone()));
                self.add("service-ips", key(addr), to, None);
            }
            if !port.has_external() {
                self.add("no-endpoint-services", key(addr), Some(nowhere()), spn);
            }
        }
        if port.has_firewall() {
            for &addr in &port.lb_ips {
                let to = Some(Verdict::Goto(names.fw.clone()));
                self.add("firewall-ips", key(addr), to, None);
            }
        }
        if let Some(node_port) = port.node_port {
            let key = || vec![protocol(port.proto), number(node_port)];
            if port.has_endpoints {
                let to = Some(Verdict::Goto(names.ext.clone()));
                self.add("service-nodeports", key(), to, None);
            }
            if !port.has_external() {
                self.add("no-endpoint-nodeports", key(), Some(nowhere()), spn);
            }
        }
    }

    fn external(&mut self, port: &ServicePort, names: &PortNames) {
        let ext = names.ext.as_str();
        self.chain(ext, None);
        if port.external_local {
            if let Some(detector) = &self.family.detector {
                let statements = vec![self.detected(detector, false), goto(&names.svc)];
                self.rule(ext, statements, Some("short-circuit pod traffic"));
            }
            let statements = vec![local("saddr"), self.mark()];
            self.rule(ext, statements, Some("masquerade local traffic"));
            let statements = vec![local("saddr"), goto(&names.svc)];
            self.rule(ext, statements, Some("short-circuit local traffic"));
        } else {
            let comment = self.state.since(36).then_some("masquerade");
            self.rule(ext, vec![self.mark()], comment);
        }
        if port.has_external() {
            let next = if port.external_local {
                &names.svl
            } else {
                &names.svc
            };
            self.rule(ext, vec![goto(next)], None);
        }
    }

    fn firewall(&mut self, port: &ServicePort, fw: &str) {
        self.chain(fw, None);
        let mut allowed: Vec<_> = port
            .source_ranges
            .iter()
            .map(|&cidr| prefix(cidr))
            .collect();
        if port.admits(self.family.node_ip) {
            allowed.extend(port.lb_ips.iter().map(|&addr| address(addr)));
        }
        let others = differs(self.saddr(), Expr::Set(allowed));
        self.rule(fw, vec![others, Statement::Verdict(Verdict::Drop)], None);
    }

    /// Up to 1.35 each Service marked what must be masqueraded itself.
    fn masquerade_internal(&self, port: &ServicePort) -> Option<Rule> {
        if self.state.since(36) || !port.has_internal() {
            return None;
        }
        let mut statements = vec![equals(self.daddr(), address(port.cluster_ip))];
        if !self.state.since(34) {
            let proto = port.proto.to_string();
            statements.push(equals(payload(&proto, "dport"), number(port.port)));
        }
        if !self.state.masquerade_all {
            statements.push(self.detected(self.family.detector.as_ref()?, true));
        }
        statements.push(self.mark());
        Some(Rule {
            statements,
            ..Rule::default()
        })
    }

    fn balance(&mut self, port: &ServicePort, chain: &str, at: &[u32], first: Option<Rule>) {
        self.chain(chain, None);
        if let (Some(first), Some(&at)) = (first, self.by_name.get(chain)) {
            self.chains[at].rules.push(first);
        }
        let endpoints = || at.iter().map(|&at| port.endpoints[at as usize].addr);
        let count = u32::try_from(at.len()).unwrap_or(u32::MAX);
        let random = Expr::Numgen {
            mode: "random".to_owned(),
            modulus: count,
            offset: 0,
        };
        let by_index = |of: &dyn Fn(SocketAddr) -> Datum| {
            let pairs = (0u64..).zip(endpoints());
            Expr::Map(pairs.map(|(i, addr)| (Expr::Number(i), of(addr))).collect())
        };
        if port.affinity.is_none() && self.state.since(36) {
            let data = by_index(&|addr| {
                Datum::Data(Expr::Concat(vec![address(addr.ip()), number(addr.port())]))
            });
            let statements = vec![
                equals(meta("l4proto"), protocol(port.proto)),
                Statement::Nat {
                    kind: NatKind::Dnat,
                    family: Some(self.ip.to_owned()),
                    addr: Some(Expr::Lookup {
                        key: Box::new(random),
                        data: Box::new(data),
                    }),
                    port: None,
                    flags: Vec::new(),
                },
            ];
            self.rule(chain, statements, None);
            return;
        }
        if port.affinity.is_some() {
            for addr in endpoints() {
                let (chain_of, set) = endpoint_names(port, addr);
                let known = equals(self.saddr(), named(&set));
                self.rule(chain, vec![known, goto(&chain_of)], None);
            }
        }
        let data = by_index(&|addr| Datum::Verdict(Verdict::Goto(endpoint_names(port, addr).0)));
        self.rule(chain, vec![Statement::Vmap { key: random, data }], None);
    }

    fn endpoint(&mut self, port: &ServicePort, addr: SocketAddr) {
        let (chain, set) = endpoint_names(port, addr);
        self.chain(&chain, None);
        if !self.state.since(36) {
            let itself = equals(self.saddr(), address(addr.ip()));
            self.rule(&chain, vec![itself, self.mark()], None);
        }
        if let Some(seconds) = port.affinity {
            let update = Statement::SetOp {
                op: "update".to_owned(),
                set: set.clone(),
                elem: self.saddr(),
                timeout: None,
            };
            self.rule(&chain, vec![update], None);
            self.set_names.insert(set.clone(), self.sets.len());
            self.sets.push(Set {
                name: set,
                key: vec![self.addr.to_owned()],
                flags: vec!["dynamic".to_owned(), "timeout".to_owned()],
                timeout: Some(u64::from(seconds)),
                ..Set::default()
            });
        }
        let statements = vec![
            equals(meta("l4proto"), protocol(port.proto)),
            Statement::Nat {
                kind: NatKind::Dnat,
                family: None,
                addr: Some(address(addr.ip())),
                port: Some(number(addr.port())),
                flags: Vec::new(),
            },
        ];
        self.rule(&chain, statements, None);
    }
}

struct PortNames {
    svc: String,
    svl: String,
    ext: String,
    fw: String,
}

/// The chain and the affinity set of an endpoint.
fn endpoint_names(port: &ServicePort, addr: SocketAddr) -> (String, String) {
    let base = names::endpoint(
        &port.namespace,
        &port.service,
        port.proto,
        &port.port_name,
        addr,
    );
    (format!("endpoint-{base}"), format!("affinity-{base}"))
}

fn word(text: &str) -> Expr {
    Expr::Word(text.to_owned())
}

fn number(port: u16) -> Expr {
    Expr::Number(u64::from(port))
}

fn address(addr: IpAddr) -> Expr {
    Expr::Word(addr.to_string())
}

fn protocol(proto: Proto) -> Expr {
    Expr::Word(proto.to_string())
}

fn prefix(cidr: Cidr) -> Expr {
    if cidr.is_host() {
        address(cidr.addr)
    } else {
        Expr::Prefix {
            addr: Box::new(address(cidr.addr)),
            len: cidr.prefix,
        }
    }
}

fn payload(protocol: &str, field: &str) -> Expr {
    Expr::Payload {
        protocol: protocol.to_owned(),
        field: field.to_owned(),
    }
}

fn meta(key: &str) -> Expr {
    Expr::Meta(key.to_owned())
}

fn named(set: &str) -> Expr {
    Expr::Named(set.to_owned())
}

fn equals(left: Expr, right: Expr) -> Statement {
    Statement::Match {
        left,
        op: "==".to_owned(),
        right,
    }
}

fn differs(left: Expr, right: Expr) -> Statement {
    Statement::Match {
        left,
        op: "!=".to_owned(),
        right,
    }
}

/// `fib FIELD type local`.
fn local(field: &str) -> Statement {
    equals(
        Expr::Fib {
            result: "type".to_owned(),
            flags: vec![field.to_owned()],
        },
        word("local"),
    )
}

fn by_node_port(map: &str) -> Statement {
    Statement::Vmap {
        key: Expr::Concat(vec![meta("l4proto"), payload("th", "dport")]),
        data: named(map),
    }
}

fn jump(chain: &str) -> Statement {
    Statement::Verdict(Verdict::Jump(chain.to_owned()))
}

fn goto(chain: &str) -> Statement {
    Statement::Verdict(Verdict::Goto(chain.to_owned()))
}

fn reject(family: Family) -> Statement {
    let kind = match family {
        Family::V4 => "icmp",
        Family::V6 => "icmpv6",
    };
    Statement::Reject {
        kind: Some(kind.to_owned()),
        code: Some("port-unreachable".to_owned()),
    }
}
