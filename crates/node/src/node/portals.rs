//! Ports on which kube-proxy's process serves in mode userspace.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::{IptablesBackend, NodeSnapshot};
use crate::backend::Mode;
use crate::backend::iptables::portals::portals;
use crate::net::{Family, Proto};

impl NodeSnapshot<'_> {
    /// Returns the port of a Service behind each port that portals lead to, as their rules name it; none if the rules are
    /// unknown.
    pub fn proxy_ports(&self) -> &BTreeMap<(Proto, u16), String> {
        self.proxy_ports.get_or_init(|| {
            let all = Family::BOTH.into_iter();
            let rules = all.filter_map(|family| self.iptables(IptablesBackend::InUse, family).ok());
            let found = rules.flat_map(portals);
            found
                .map(|portal| ((portal.proto, portal.proxy_port), portal.service.to_owned()))
                .collect()
        })
    }

    /// Returns whether kube-proxy's process takes the packets to `addr`: a portal leads there, and no other mode runs.
    pub fn is_proxy_port(&self, addr: SocketAddr, proto: Proto) -> bool {
        let other = self
            .reported_mode()
            .is_ok_and(|reported_mode| reported_mode != Mode::Userspace);
        let is_here = || {
            let known = self.addresses();
            known.map_or(true, |all| {
                all.all.iter().any(|at| at.addr.addr == addr.ip())
            })
        };
        !other && self.proxy_ports().contains_key(&(proto, addr.port())) && is_here()
    }
}
