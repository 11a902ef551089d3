//! The service port, or the Service, that owns an address or port.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use kpx_node::desired::FamilyState;
use kpx_node::net::Proto;

/// Service ports of one family by their addresses and ports.
#[derive(Default)]
pub(super) struct Owners<'a> {
    addr: HashMap<IpAddr, &'a str>,
    port: HashMap<(Proto, SocketAddr), &'a str>,
    node_port: HashMap<(Proto, u16), &'a str>,
    health_check: HashMap<u16, &'a str>,
    /// `None` for endpoints of several service ports.
    endpoint: HashMap<(Proto, SocketAddr), Option<&'a str>>,
}

impl<'a> Owners<'a> {
    pub(super) fn of(state: &'a FamilyState) -> Self {
        let mut owners = Self::default();
        for port in &state.ports {
            let spn = port.spn.as_str();
            // An address serves every port of the Service.
            let service = &spn[..port.namespace.len() + 1 + port.service.len()];
            let addrs = [port.cluster_ip];
            let addrs = addrs.iter().chain(&port.external_ips).chain(&port.lb_ips);
            for &addr in addrs {
                let key = (port.proto, SocketAddr::new(addr, port.port));
                owners.addr.entry(addr).or_insert(service);
                owners.port.entry(key).or_insert(spn);
            }
            if let Some(number) = port.node_port {
                owners.node_port.insert((port.proto, number), spn);
            }
            if let Some(number) = port.health_check {
                owners.health_check.insert(number, service);
            }
            for endpoint in port.endpoints.iter().filter(|e| e.local) {
                let key = (port.proto, endpoint.addr);
                let only = owners.endpoint.entry(key).or_insert(Some(spn));
                *only = only.filter(|other| *other == spn);
            }
        }
        owners
    }

    pub(super) fn of_addr(&self, addr: IpAddr) -> Option<String> {
        self.service(addr).map(str::to_owned)
    }

    /// Returns the Service that has `addr`.
    pub(super) fn service(&self, addr: IpAddr) -> Option<&'a str> {
        self.addr.get(&addr).copied()
    }

    /// Returns what is served at `addr` and `port`: a Service's address, or a NodePort of the node.
    pub(super) fn of_port(&self, addr: IpAddr, proto: Proto, port: u16) -> Option<String> {
        let spn = self.port.get(&(proto, SocketAddr::new(addr, port)));
        let spn = spn.map(|&spn| spn.to_owned());
        spn.or_else(|| self.of_addr(addr))
            .or_else(|| self.of_node_port(proto, port))
    }

    pub(super) fn of_node_port(&self, proto: Proto, port: u16) -> Option<String> {
        self.node_port
            .get(&(proto, port))
            .map(|&spn| spn.to_owned())
    }

    pub(super) fn of_health_check(&self, port: u16) -> Option<String> {
        self.health_check.get(&port).map(|&spn| spn.to_owned())
    }

    /// Returns what the endpoint of this node at `addr` and `port` serves; `None` if it serves several service ports.
    pub(super) fn of_endpoint(&self, addr: IpAddr, proto: Proto, port: u16) -> Option<String> {
        let only = self.endpoint.get(&(proto, SocketAddr::new(addr, port)));
        only.copied().flatten().map(str::to_owned)
    }
}
