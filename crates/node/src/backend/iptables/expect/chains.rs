//! The chains that serve one service port.

use super::super::build::{
    comment, detected, dnat, from, from_local, jump, one_in, ports, protocol, recent, rule,
};
use super::super::model::{Chain, Invertible, Match, Rule};
use super::{PortNames, Writer, dispatch};
use crate::cluster::release::Change;
use crate::desired::ServicePort;

impl<'a> Writer<'a, '_> {
    /// Writes the chains of `port` itself.
    pub(super) fn chains(
        &mut self,
        port: &'a ServicePort,
        names: &'a PortNames,
        cluster_ip: String,
        fw: bool,
    ) {
        let spn = port.spn.as_str();
        if port.has_endpoints && port.accessible {
            self.external(port, names);
        }
        if fw {
            let mut chain = Chain::user(names.fw.as_str());
            let pass = |source: Match<'a>| {
                let matches = vec![source, comment(format!("{spn} loadbalancer IP"))];
                rule(matches, jump(names.ext.as_str()))
            };
            for range in &port.source_ranges {
                chain
                    .rules
                    .push(pass(Match::Source(Invertible::plain(*range))));
            }
            if port.admits(self.family.node_ip) {
                for &vip in &port.lb_ips {
                    chain.rules.push(pass(from(vip)));
                }
            }
            if self.state.has(Change::FirewallComment) {
                let text = format!("other traffic to {spn} will be dropped by KUBE-PROXY-FIREWALL");
                chain.rules.push(rule(vec![comment(text)], None));
            }
            (self.take)(chain);
        }
        let masquerade = self.masquerade_internal(port, cluster_ip);
        if port.has_cluster_chain() {
            let first = masquerade.as_ref().filter(|_| !port.internal_local);
            self.balance(port, names, &names.svc, port.cluster_at(), first.cloned());
        }
        if port.has_local_chain() {
            let first = masquerade.filter(|_| port.internal_local);
            self.balance(port, names, &names.svl, port.local_at(), first);
        }
        for &position in port.reachable_at() {
            let endpoint = &port.endpoints[position as usize];
            let name = names.seps[position as usize].as_str();
            let mut chain = Chain::user(name);
            chain.rules.reserve_exact(2);
            let text = (!self.family.large).then(|| comment(spn));
            let mut hairpin = vec![from(endpoint.addr.ip())];
            hairpin.extend(text.clone());
            chain.rules.push(rule(hairpin, jump("KUBE-MARK-MASQ")));
            let mut matches = Vec::with_capacity(4);
            matches.push(protocol(port.proto));
            matches.extend(text);
            if port.affinity.is_some() {
                matches.push(recent(name, self.family.family, None));
            }
            matches.push(ports(port.proto, None));
            chain.rules.push(rule(matches, dnat(endpoint.addr)));
            (self.take)(chain);
        }
    }

    fn masquerade_internal(&self, port: &'a ServicePort, text: String) -> Option<Rule<'a>> {
        if !port.has_internal() {
            return None;
        }
        let mut matches = dispatch(port, Some(port.cluster_ip), text);
        if !self.state.masquerade_all {
            let others = detected(self.family.detector.as_ref()?, true);
            // Sources are printed before the destination, interfaces behind it.
            let at = usize::from(!matches!(others, Match::Source(_)));
            matches.insert(at, others);
        }
        Some(rule(matches, jump("KUBE-MARK-MASQ")))
    }

    fn external(&mut self, port: &'a ServicePort, names: &'a PortNames) {
        let spn = &port.spn;
        let mut chain = Chain::user(names.ext.as_str());
        let text = |words: &str| comment(format!("{words} {spn} external destinations"));
        if port.external_local {
            if let Some(detector) = &self.family.detector {
                let matches = vec![detected(detector, false), text("pod traffic for")];
                chain.rules.push(rule(matches, jump(names.svc.as_str())));
            }
            let local = vec![text("masquerade LOCAL traffic for"), from_local()];
            chain.rules.push(rule(local, jump("KUBE-MARK-MASQ")));
            let local = vec![text("route LOCAL traffic for"), from_local()];
            chain.rules.push(rule(local, jump(names.svc.as_str())));
        } else {
            let all = vec![text("masquerade traffic for")];
            chain.rules.push(rule(all, jump("KUBE-MARK-MASQ")));
        }
        if port.has_external() {
            let next = if port.external_local {
                &names.svl
            } else {
                &names.svc
            };
            chain.rules.push(rule(Vec::new(), jump(next.as_str())));
        }
        (self.take)(chain);
    }

    fn balance(
        &mut self,
        port: &'a ServicePort,
        names: &'a PortNames,
        chain: &'a str,
        positions: &[u32],
        first: Option<Rule<'a>>,
    ) {
        let mut chain = Chain::user(chain);
        chain.rules.reserve_exact(positions.len() + 1);
        if let Some(first) = first {
            chain.rules.push(first);
        }
        let text = |position: u32| {
            let endpoint = &port.endpoints[position as usize].text;
            (!self.family.large).then(|| comment(format!("{} -> {endpoint}", port.spn)))
        };
        if let Some(seconds) = port.affinity {
            for &position in positions {
                let sep = names.seps[position as usize].as_str();
                let mut matches = Vec::with_capacity(2);
                matches.extend(text(position));
                matches.push(recent(sep, self.family.family, Some(seconds)));
                chain.rules.push(rule(matches, jump(sep)));
            }
        }
        for (done, &position) in positions.iter().enumerate() {
            let left = positions.len() - done;
            let mut matches = Vec::with_capacity(2);
            matches.extend(text(position));
            if left > 1 {
                matches.push(one_in(left));
            }
            let sep = names.seps[position as usize].as_str();
            chain.rules.push(rule(matches, jump(sep)));
        }
        (self.take)(chain);
    }
}
