//! Redacted evidence, fit for publication: each address and name is replaced consistently, so that relations are
//! preserved, and data that may be secret is removed.
//!
//! The key is random and not stored, so no one can reverse the replacement.

mod address;
mod json;
mod names;
mod text;

use std::net::SocketAddr;

use serde_json::Value;

use crate::cluster::{self, EndpointSlice, Service};
use crate::evidence::{Evidence, Forbidden, Gap, IPTABLES, Item};
use crate::net::Proto;
use address::Addresses;
use names::{Kind, Names};

/// Replaces addresses and names consistently under one key.
pub struct Redactor {
    addresses: Addresses,
    names: Names,
}

impl Redactor {
    /// Returns a redactor that maps the chain hashes of the Services and endpoints in `evidence`.
    pub fn new(key: [u8; 32], evidence: &Evidence) -> Self {
        let mut redactor = Self {
            addresses: Addresses::new(key),
            names: Names::new(key),
        };
        redactor.learn_from_cluster(evidence);
        for item in IPTABLES.iter().copied() {
            if let Ok(text) = evidence.text(item) {
                redactor.learn_from_rules(text);
            }
        }
        redactor
    }

    /// Returns the replacement of a node name.
    pub fn node(&self, name: &str) -> String {
        self.names.map(Kind::Node, name)
    }

    /// Returns redacted `evidence`, with gaps for removed items.
    pub fn evidence(&mut self, evidence: &Evidence) -> Evidence {
        let mut new = Evidence::default();
        for (item, read) in evidence.iter() {
            let read = match read {
                Ok(text) => self.item(item, text),
                Err(gap) => Err(self.gap(gap)),
            };
            new.insert(item, read);
        }
        new
    }

    /// Returns `text` redacted, or a gap if the item must not be published. Every item is listed: a new one does not
    /// compile until its redaction is decided here.
    #[deny(clippy::wildcard_enum_match_arm)]
    fn item(&mut self, item: Item, text: &str) -> Result<String, Gap> {
        Ok(match item {
            Item::KernelRelease
            | Item::ConntrackVersion
            | Item::IptablesVersion
            | Item::Modules
            | Item::ModulesBuiltin
            | Item::ModulesDep
            | Item::IpsetVersion
            | Item::NftVersion
            | Item::ConntrackStat
            | Item::Neighbours4
            | Item::Neighbours6
            | Item::ProxyTools
            | Item::ProxyMode => text.to_owned(),
            Item::ModulesLoad | Item::Modprobe | Item::Firewalls | Item::LinkManagers => {
                Self::without_comments(text)
            }
            Item::Iptables4
            | Item::Iptables6
            | Item::IptablesLegacy4
            | Item::IptablesLegacy6
            | Item::IptablesNft4
            | Item::IptablesNft6
            | Item::NftText
            | Item::Ipset => self.rules(text),
            Item::IpvsSave
            | Item::IpvsStats
            | Item::IpvsTimeout
            | Item::Conntrack
            | Item::Recent => self.addresses(text),
            Item::IpvsConnections => self.connections(text),
            Item::Tcp4 | Item::Tcp6 | Item::Udp4 | Item::Udp6 => self.proc_net(text),
            Item::Sockets | Item::HeldSockets => self.sockets(text),
            Item::Sysctl => self.sysctl(text),
            Item::ProxyConfig => self.config(text),
            Item::Metrics => self.metrics(text),
            // Logs, journals and manifests may contain anything, and the machine's identity is private.
            Item::Host | Item::ProxyLog | Item::KernelLog | Item::ProxyFiles | Item::Migration => {
                return Err(Gap::NotCollected(item));
            }
            Item::Services
            | Item::EndpointSlices
            | Item::Nodes
            | Item::ConfigMaps
            | Item::DaemonSets
            | Item::ServiceCidrs
            | Item::Pods => {
                let value = parse(item, text)?;
                self.api(value).to_string()
            }
            Item::Ipvs => {
                let mut value = parse(item, text)?;
                // Other addresses have other hashes.
                for service in value["services"].as_array_mut().into_iter().flatten() {
                    if let Some(service) = service.as_object_mut() {
                        service.remove("order");
                    }
                }
                self.document(value, "").to_string()
            }
            Item::Nft
            | Item::Addresses
            | Item::Links
            | Item::Routes
            | Item::Rules
            | Item::Processes
            | Item::Healthz
            | Item::Configz
            | Item::Access => {
                let value = parse(item, text)?;
                self.document(value, "").to_string()
            }
        })
    }

    fn gap(&mut self, gap: &Gap) -> Gap {
        match gap.clone() {
            Gap::Forbidden(item, of) => {
                let user = self.user(&of.user);
                let why = self.reason(&of.why.replace(&of.user, &user));
                let credentials = self.reason(&of.credentials);
                Gap::Forbidden(
                    item,
                    Box::new(Forbidden {
                        why,
                        user,
                        credentials,
                        ..*of
                    }),
                )
            }
            gap => gap.reworded(|why| self.reason(why)),
        }
    }

    /// Returns the replacement of a user of the API server.
    fn user(&self, user: &str) -> String {
        const NODE: &str = "system:node:";
        const ACCOUNT: &str = "system:serviceaccount:";
        if let Some(node) = user.strip_prefix(NODE) {
            return format!("{NODE}{}", self.node(node));
        }
        let account = user.strip_prefix(ACCOUNT).and_then(|of| of.split_once(':'));
        match account {
            Some((namespace, name)) => format!(
                "{ACCOUNT}{}:{}",
                self.names.map(Kind::Namespace, namespace),
                self.names.map(Kind::Other, name)
            ),
            None => self.names.map(Kind::Other, user),
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
            let Some(service) = slice.metadata.labels.get("kubernetes.io/service-name") else {
                continue;
            };
            for port in &slice.ports {
                let name = port.name.as_deref().unwrap_or_default();
                let spn = spn(&slice.metadata.namespace, service, name);
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
            let Some((_, comment)) = line.split_once("--comment \"") else {
                continue;
            };
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
        }
    }

    fn learn_endpoint(&mut self, spn: &str, endpoint: SocketAddr) {
        let to = self.addresses.map(endpoint.ip());
        for proto in [Proto::Tcp, Proto::Udp, Proto::Sctp] {
            self.names.learn_endpoint(spn, proto, endpoint, to);
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

fn parse(item: Item, text: &str) -> Result<Value, Gap> {
    serde_json::from_str(text).map_err(|_| {
        let reason = "removed by redaction: it is not valid JSON";
        Gap::Failed(item, reason.to_owned())
    })
}
