//! What each service port adds: elements, chains and their rules.

use std::net::{IpAddr, SocketAddr};

use super::super::build::{
    address, by_index, differs, dnat_by, equals, goto, local, meta, number, payload, prefix,
    protocol, random, socket,
};
use super::super::model::{Datum, Expr, Rule, Statement, Verdict};
use super::super::{affinity, names};
use super::{REJECTED_ON_LOOPBACK, Writer, loopback_chain};
use crate::cluster::release::Change;
use crate::desired::ServicePort;

impl Writer<'_> {
    pub(super) fn port(&mut self, port: &ServicePort) {
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
        let chained = port.affinity.is_some() || !self.state.has(Change::NftablesEndpointMaps);
        for &at in port.reachable_at() {
            let endpoint = &port.endpoints[at as usize];
            if self.state.has(Change::NftablesHairpinSet) && endpoint.local {
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
            if self.family.rejected_on_loopback.contains(&port.proto) {
                let to = Verdict::Goto(loopback_chain(port.proto));
                self.add(REJECTED_ON_LOOPBACK, key(), Some(to), None);
            }
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
            let comment = self
                .state
                .has(Change::NftablesInlineMark)
                .then_some("masquerade");
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

    /// Returns the rule by which a Service's chain marks packets to masquerade, where `services` does not.
    fn masquerade_internal(&self, port: &ServicePort) -> Option<Rule> {
        if self.state.has(Change::NftablesMasqueradeInServices) || !port.has_internal() {
            return None;
        }
        let mut statements = vec![equals(self.daddr(), address(port.cluster_ip))];
        if !self.state.has(Change::NftablesMasqueradeByAddress) {
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
        if let Some(first) = first {
            self.rule(chain, first.statements, None);
        }
        let endpoints = || at.iter().map(|&at| port.endpoints[at as usize].addr);
        if port.affinity.is_some() {
            for rule in affinity::choice(self.family.family, port, endpoints()) {
                self.rule(chain, rule, None);
            }
            return;
        }
        let random = random(at.len());
        if self.state.has(Change::NftablesEndpointMaps) {
            let statements = vec![
                equals(meta("l4proto"), protocol(port.proto)),
                dnat_by(
                    self.family.family,
                    random,
                    by_index(endpoints(), |addr| Datum::Data(socket(addr))),
                ),
            ];
            self.rule(chain, statements, None);
            return;
        }
        let data = by_index(endpoints(), |addr| {
            Datum::Verdict(Verdict::Goto(affinity::chain_and_set(port, addr).0))
        });
        self.rule(chain, vec![Statement::Vmap { key: random, data }], None);
    }

    fn endpoint(&mut self, port: &ServicePort, addr: SocketAddr) {
        let (chain, _) = affinity::chain_and_set(port, addr);
        self.chain(&chain, None);
        if !self.state.has(Change::NftablesHairpinSet) {
            let itself = equals(self.saddr(), address(addr.ip()));
            self.rule(&chain, vec![itself, self.mark()], None);
        }
        affinity::endpoint(&mut self.draft, self.family.family, port, addr);
    }
}

struct PortNames {
    svc: String,
    svl: String,
    ext: String,
    fw: String,
}
