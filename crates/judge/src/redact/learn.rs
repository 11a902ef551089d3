//! Learns the names that occur inside other names: hashes of Services and endpoints, links, foreign chains and sets.

use std::net::SocketAddr;

use serde_json::Value;

use super::Redactor;
use kpx_node::backend::nftables::names as nft;
use kpx_node::cluster::{self, EndpointSlice, Service};
use kpx_node::evidence::{Evidence, IPTABLES, Item};
use kpx_node::net::Proto;

impl Redactor {
    /// Learns from `evidence`.
    pub(super) fn learn(&mut self, evidence: &Evidence) {
        self.learn_links(evidence);
        self.learn_from_cluster(evidence);
        for item in IPTABLES.iter().copied() {
            if let Ok(text) = evidence.text(item) {
                self.learn_from_rules(text);
            }
        }
    }

    /// Learns the links of the node, and the beginning of the names of pods' links.
    fn learn_links(&mut self, evidence: &Evidence) {
        for item in [Item::ProxyConfig, Item::Configz] {
            let text = evidence.text(item).unwrap_or_default();
            let prefix = text
                .split_once("interfaceNamePrefix")
                .and_then(|(_, rest)| {
                    rest.trim_start_matches(['"', '\'', ':', ' '])
                        .split(['"', '\'', ',', '\n', ' ', '}'])
                        .next()
                });
            self.names.learn_link_prefix(prefix.unwrap_or_default());
        }
        for item in [Item::Links, Item::Addresses] {
            let text = evidence.text(item).unwrap_or_default();
            // An unreadable list is removed later.
            let list: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
            let names = list.iter().filter_map(|link| link["ifname"].as_str());
            for name in names {
                self.names.learn_link(name);
            }
        }
    }

    fn learn_from_cluster(&mut self, evidence: &Evidence) {
        // Unreadable objects are removed later, and so are the hashes of their names.
        let services = cluster::list::<Service>(evidence, Item::Services);
        for service in services.iter().flatten() {
            for port in &service.spec.ports {
                let spn = spn(
                    &service.metadata.namespace,
                    &service.metadata.name,
                    &port.name,
                );
                self.learn_service(&spn);
            }
        }
        let slices = cluster::list::<EndpointSlice>(evidence, Item::EndpointSlices);
        for slice in slices.iter().flatten() {
            let Some((namespace, service)) = slice.service() else {
                continue;
            };
            for port in &slice.ports {
                let name = port.name.as_deref().unwrap_or_default();
                let spn = spn(namespace, service, name);
                self.learn_service(&spn);
                let Some(number) = port.port else { continue };
                for address in slice.endpoints.iter().flat_map(|e| &e.addresses) {
                    if let Ok(ip) = address.parse() {
                        self.learn_endpoint(&spn, SocketAddr::new(ip, number));
                    }
                }
            }
        }
    }

    /// Adds the names of deleted Services that still occur in rules.
    fn learn_from_rules(&mut self, text: &str) {
        for line in text.lines() {
            let Some((_, comment)) = line.split_once("--comment ") else {
                continue;
            };
            let comment = comment.trim_start_matches('"');
            let spn = comment.split(['"', ' ']).next().unwrap_or_default();
            if !spn.contains('/') {
                continue;
            }
            let destination = line.split_once("--to-destination ");
            match destination.and_then(|(_, rest)| rest.split(' ').next()?.parse().ok()) {
                Some(endpoint) => self.learn_endpoint(spn, endpoint),
                None => self.learn_service(spn),
            }
        }
    }

    fn learn_service(&mut self, spn: &str) {
        for proto in [Proto::Tcp, Proto::Udp, Proto::Sctp] {
            self.names.learn_service(spn, proto);
            self.learn_nft(spn, proto, None);
        }
    }

    /// Learns the name of nftables chains and sets of the service port `spn`, or of its endpoint.
    fn learn_nft(&mut self, spn: &str, proto: Proto, endpoint: Option<(SocketAddr, SocketAddr)>) {
        let Some(new) = self.names.service_port(spn) else {
            return;
        };
        let base = |spn: &str, endpoint: Option<SocketAddr>| {
            let (service, port) = spn.split_once(':').unwrap_or((spn, ""));
            let (namespace, service) = service.split_once('/')?;
            Some(match endpoint {
                Some(endpoint) => nft::endpoint(namespace, service, proto, port, endpoint),
                None => nft::service(namespace, service, proto, port),
            })
        };
        let (from, to) = endpoint.unzip();
        if let (Some(old), Some(new)) = (base(spn, from), base(&new, to)) {
            self.names.learn_nft(&old, &new);
        }
    }

    fn learn_endpoint(&mut self, spn: &str, endpoint: SocketAddr) {
        let to = self.addresses.map(endpoint.ip());
        for proto in [Proto::Tcp, Proto::Udp, Proto::Sctp] {
            self.names.learn_endpoint(spn, proto, endpoint, to);
            let both = (endpoint, SocketAddr::new(to, endpoint.port()));
            self.learn_nft(spn, proto, Some(both));
        }
    }
}

fn spn(namespace: &str, service: &str, port: &str) -> String {
    if port.is_empty() {
        format!("{namespace}/{service}")
    } else {
        format!("{namespace}/{service}:{port}")
    }
}
