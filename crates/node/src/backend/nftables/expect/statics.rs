//! The part that is independent of the Services: base chains and jumps from them, sets and maps, and the rules that use these.

use super::super::build::{
    by_node_port, by_service, connection, differs, equals, jump, local, loopback, masked,
    masquerade, meta, named, payload, prefix, reject,
};
use super::super::model::{Base, Expr, Statement, Verdict};
use super::{REJECTED_ON_LOOPBACK, UNALLOCATED, Writer, loopback_chain};
use crate::cluster::release::Change;
use crate::net::Cidr;

/// Base chains: name, type, hook, priority; since [`Change::NftablesBaseChains`].
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

/// The same before.
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

/// Jumps from base chains: to, from, whether only for new connections; since [`Change::NftablesBaseChains`].
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

/// The same before.
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

impl Writer<'_> {
    pub(super) fn static_chains(&mut self) {
        let bases = if self.state.has(Change::NftablesBaseChains) {
            BASES
        } else {
            OLD_BASES
        };
        for &(name, kind, hook, priority) in bases {
            self.chain(
                name,
                Some(Base {
                    kind: kind.to_owned(),
                    hook: hook.to_owned(),
                    devices: Vec::new(),
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
            self.chain(name, None);
        }
        let comment = "helper for @no-endpoint-services / @no-endpoint-nodeports";
        self.draft.describe("reject-chain", comment);
        if !self.state.has(Change::NftablesInlineMark) {
            self.chain("mark-for-masquerade", None);
        }
        for &proto in self.family.rejected_on_loopback {
            self.chain(&loopback_chain(proto), None);
        }
        self.static_sets();
    }

    fn static_sets(&mut self) {
        let addr = self.addr;
        let service = [addr, "inet_proto", "inet_service"];
        let node_port = ["inet_proto", "inet_service"];
        if self.state.has(Change::NftablesHairpinSet) {
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
        if !self.family.rejected_on_loopback.is_empty() {
            let comment = "localhost NodePorts rejected by kube-proxy";
            self.set(REJECTED_ON_LOOPBACK, &node_port, true, comment);
        }
    }

    pub(super) fn jumps(&mut self) {
        let rows = if self.state.has(Change::NftablesBaseChains) {
            JUMPS
        } else {
            OLD_JUMPS
        };
        for &(to, from, new) in rows {
            let mut statements = Vec::new();
            if new {
                statements.push(connection("state", "new"));
            }
            statements.push(jump(to));
            self.rule(from, statements, None);
        }
    }

    /// The rules of the static chains but `services`.
    pub(super) fn check_rules(&mut self, service_cidrs: &[Cidr]) {
        let family = self.family.family;
        let daddr = self.daddr();
        self.rule(
            "firewall-check",
            vec![by_service(family, "firewall-ips")],
            None,
        );
        self.rule(
            "service-endpoints-check",
            vec![by_service(family, "no-endpoint-services")],
            None,
        );
        let mut matches = self.to_node_port(false);
        matches.push(by_node_port("no-endpoint-nodeports"));
        self.rule("nodeport-endpoints-check", matches, None);
        self.loopback_rules();
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
        let masked = masked("&", self.state.mark);
        if !self.state.has(Change::NftablesInlineMark) {
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
        let translated = connection("status", "dnat");
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

    /// The rules that reject NodePorts on loopback addresses, counted by protocol.
    fn loopback_rules(&mut self) {
        let family = self.family.family;
        for &proto in self.family.rejected_on_loopback {
            let counted = Statement::Counter {
                name: Some(format!("localhost-nodeport-rejected-{proto}")),
                packets: 0,
                bytes: 0,
            };
            self.rule(&loopback_chain(proto), vec![counted, reject(family)], None);
        }
        if !self.family.rejected_on_loopback.is_empty() {
            let here = equals(self.daddr(), loopback(family));
            let rejected = by_node_port(REJECTED_ON_LOOPBACK);
            self.rule("nodeport-endpoints-check", vec![here, rejected], None);
        }
    }

    pub(super) fn service_rules(&mut self) {
        if self.state.has(Change::NftablesMasqueradeInServices) {
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
        let by_service = by_service(self.family.family, "service-ips");
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
        matches.push(differs(self.daddr(), loopback(self.family.family)));
        matches
    }
}
