//! What to trace: from the words on the command line to an address, a port and a protocol.

use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

use kpx_node::cluster::{Node, Service, ServicePort};
use kpx_node::net::{Family, Proto};
use kpx_node::owner::Port;

/// The target as given.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Target {
    /// `IP:PORT` or `[IP6]:PORT`, and the protocol if `/tcp` or the like follows.
    Address(SocketAddr, Option<Proto>),
    /// `NS/SVC[:PORT]`, or the cluster's DNS name for it.
    Service {
        /// The namespace.
        namespace: String,
        /// The Service's name.
        name: String,
        /// The port's name or number.
        port: Option<String>,
    },
    /// `nodeport:N`.
    NodePort(u16),
}

/// An invalid target, or one that does not exist.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum TargetError {
    /// Not one of the forms.
    #[error(
        "{0:?} is not a target: IP:PORT, [IP6]:PORT, NAMESPACE/SERVICE[:PORT], a cluster DNS name with :PORT, or nodeport:N"
    )]
    Form(String),
    /// The DNS name of a pod.
    #[error("{0:?} is the DNS name of a pod: `kpx resolve` gives its address, which is a target")]
    OfPod(String),
    /// The number of a port does not exist.
    #[error("{0:?} is not a target: port {1} is not a number from 1 to 65535")]
    Port(String, String),
    /// No such Service.
    #[error("Service {0} not found")]
    NoService(String),
    /// A Service without an address to trace.
    #[error("Service {0} has no cluster IP of {1}: {2}")]
    NoAddress(String, Family, String),
    /// No such port.
    #[error("Service {0} has no port {1}; it has {2}")]
    NoPort(String, String, String),
    /// More than one port, and none named.
    #[error("Service {0} has several ports: name one of {1}")]
    WhichPort(String, String),
    /// The node's own address is unknown.
    #[error("the address of this node is unknown: give NODEIP:PORT instead")]
    NoNodeAddress,
}

/// A target found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Found {
    /// The address.
    pub addr: IpAddr,
    /// The port.
    pub port: u16,
    /// The protocol, if the target names it.
    pub proto: Option<Proto>,
}

impl Target {
    /// Reads the words of the command line.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        let form = || TargetError::Form(text.to_owned());
        if let Some(port) = text.strip_prefix("nodeport:") {
            let port = port.parse().ok().filter(|port| *port != 0);
            return port.map(Self::NodePort).ok_or_else(form);
        }
        // As pages of kpx print addresses.
        let (at, named) = match text.rsplit_once('/') {
            Some((at, name)) if !name.is_empty() => (at, proto_of(name)),
            _ => (text, None),
        };
        let at = if named.is_some() { at } else { text };
        if let Ok(address) = at.parse::<SocketAddr>() {
            return if address.port() == 0 {
                Err(TargetError::Port(text.to_owned(), "0".to_owned()))
            } else {
                Ok(Self::Address(address, named))
            };
        }
        if let Some((host, port)) = at.rsplit_once(':') {
            let is_address = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
            let is_number = !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit());
            if is_address && is_number && port.parse::<u16>().is_err() {
                return Err(TargetError::Port(text.to_owned(), port.to_owned()));
            }
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.is_empty() => (host, Some(port.to_owned())),
            Some(_) => return Err(form()),
            None => (text, None),
        };
        if let Some((namespace, name)) = host.split_once('/') {
            let fits = |label: &str| !label.is_empty() && !label.contains(['/', ':']);
            if !fits(namespace) || !fits(name) {
                return Err(form());
            }
            return Ok(Self::Service {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                port,
            });
        }
        // NAME.NAMESPACE, NAME.NAMESPACE.svc, NAME.NAMESPACE.svc.cluster.local
        let mut labels = host.trim_end_matches('.').split('.');
        match (labels.next(), labels.next(), labels.next()) {
            (Some(name), Some(namespace), None | Some("svc"))
                if !name.is_empty() && !namespace.is_empty() && host.parse::<IpAddr>().is_err() =>
            {
                Ok(Self::Service {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                    port,
                })
            }
            _ if host.split('.').nth(3) == Some("svc") => Err(TargetError::OfPod(host.to_owned())),
            _ => Err(form()),
        }
    }

    /// Finds the address behind the target among `services`; `host` returns the node's own address of a family. A NodePort has the
    /// families of its Service.
    pub fn find(
        &self,
        services: &[Service],
        host: impl Fn(Family) -> Option<IpAddr>,
        family: Option<Family>,
    ) -> Result<Found, TargetError> {
        match self {
            Self::Address(address, proto) => Ok(Found {
                addr: address.ip(),
                port: address.port(),
                proto: *proto,
            }),
            Self::NodePort(port) => {
                let mut all = services
                    .iter()
                    .flat_map(|service| service.spec.ports.iter().map(move |port| (service, port)));
                let found = all.find(|(_, p)| p.node_port == Some(*port));
                let proto = found.and_then(|(_, p)| proto_of(&p.protocol));
                let own = found.map_or(&[][..], |(of, _)| &of.spec.ip_families);
                let own = own.iter().filter_map(|text| text.parse().ok());
                let mut families: Vec<Family> =
                    family.map_or_else(|| own.collect(), |family| vec![family]);
                if families.is_empty() {
                    families.extend(Family::BOTH);
                }
                Ok(Found {
                    addr: families
                        .into_iter()
                        .find_map(host)
                        .ok_or(TargetError::NoNodeAddress)?,
                    port: *port,
                    proto,
                })
            }
            Self::Service {
                namespace,
                name,
                port,
            } => {
                let full = format!("{namespace}/{name}");
                let service = services
                    .iter()
                    .find(|s| s.metadata.namespace == *namespace && s.metadata.name == *name)
                    .ok_or_else(|| TargetError::NoService(full.clone()))?;
                let addr = cluster_ip(service, family).ok_or_else(|| {
                    let why = match (service.spec.kind.as_str(), service.spec.cluster_ip.as_str()) {
                        ("ExternalName", _) => {
                            "it is an ExternalName Service, which exists only in DNS"
                        }
                        (_, "None") => "it is headless: trace the address of a pod instead",
                        _ => "none is assigned yet",
                    };
                    TargetError::NoAddress(
                        full.clone(),
                        family.unwrap_or(Family::V4),
                        why.to_owned(),
                    )
                })?;
                let ports = &service.spec.ports;
                let named: Vec<String> = ports.iter().map(port_in_words).collect();
                let named = named.join(", ");
                let chosen = match port {
                    None if ports.len() == 1 => &ports[0],
                    None => return Err(TargetError::WhichPort(full, named)),
                    Some(want) => ports
                        .iter()
                        .find(|p| p.name == *want)
                        .or_else(|| ports.iter().find(|p| want.parse() == Ok(p.port)))
                        .or_else(|| ports.iter().find(|p| is_port(want, p)))
                        .ok_or(TargetError::NoPort(full, want.clone(), named))?,
                };
                Ok(Found {
                    addr,
                    port: chosen.port,
                    proto: proto_of(&chosen.protocol),
                })
            }
        }
    }

    /// Finds the cluster IP of a Service among `ports`, which the rules name, where the Services themselves are not read.
    pub fn among(&self, ports: &[Port], family: Option<Family>) -> Option<Found> {
        let Self::Service {
            namespace,
            name,
            port,
        } = self
        else {
            return None;
        };
        let port = port.as_deref();
        let port = ports
            .iter()
            .find(|candidate| candidate.is_of(namespace, name, port))?;
        let of_family = |addr: &IpAddr| family.is_none_or(|family| Family::of(*addr) == family);
        let mut addresses = port.addresses.iter().map(|(_, addr)| *addr);
        Some(Found {
            addr: addresses.find(of_family)?,
            port: port.port?,
            proto: Some(port.proto),
        })
    }
}

/// Returns a port of a Service as the user may name it: `http (80/TCP)`, `80/TCP`.
pub(crate) fn port_in_words(port: &ServicePort) -> String {
    let protocol = match port.protocol.as_str() {
        "" => "TCP",
        protocol => protocol,
    };
    match port.name.as_str() {
        "" => format!("{}/{protocol}", port.port),
        name => format!("{name} ({}/{protocol})", port.port),
    }
}

/// Returns whether `word` is number and protocol of `port`: `53/udp`.
pub(crate) fn is_port(word: &str, port: &ServicePort) -> bool {
    word.split_once('/').is_some_and(|(number, protocol)| {
        number.parse() == Ok(port.port)
            && !protocol.is_empty()
            && proto_of(protocol) == proto_of(&port.protocol)
    })
}

pub(crate) fn proto_of(name: &str) -> Option<Proto> {
    if name.is_empty() {
        Some(Proto::Tcp)
    } else {
        name.parse().ok()
    }
}

/// The cluster IP of `family`, or the first.
fn cluster_ip(service: &Service, family: Option<Family>) -> Option<IpAddr> {
    let spec = &service.spec;
    let all = spec
        .cluster_ips
        .iter()
        .chain(std::iter::once(&spec.cluster_ip));
    let mut parsed = all.filter_map(|ip| ip.parse::<IpAddr>().ok());
    parsed.find(|ip| family.is_none_or(|family| Family::of(*ip) == family))
}

/// Returns the node's first internal address of `family`.
pub(crate) fn node_address(node: &Node, family: Family) -> Option<IpAddr> {
    let of = |kind: &str| {
        node.status
            .addresses
            .iter()
            .filter(|a| a.kind == kind)
            .filter_map(|a| a.address.parse().ok())
            .find(|ip| Family::of(*ip) == family)
    };
    of("InternalIP").or_else(|| of("ExternalIP"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        let service = |port: Option<&str>| Target::Service {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            port: port.map(str::to_owned),
        };
        assert_eq!(
            Target::parse("10.0.0.1:80"),
            Ok(Target::Address("10.0.0.1:80".parse().unwrap(), None))
        );
        assert_eq!(
            Target::parse("[fd00::1]:80"),
            Ok(Target::Address("[fd00::1]:80".parse().unwrap(), None))
        );
        assert_eq!(
            Target::parse("10.96.0.10:53/udp"),
            Ok(Target::Address(
                "10.96.0.10:53".parse().unwrap(),
                Some(Proto::Udp)
            ))
        );
        for (text, port) in [
            ("10.0.0.1:99999", "99999"),
            ("10.0.0.1:0", "0"),
            ("[fd00::1]:70000", "70000"),
        ] {
            let error = TargetError::Port(text.to_owned(), port.to_owned());
            assert_eq!(Target::parse(text), Err(error));
        }
        assert_eq!(Target::parse("default/web"), Ok(service(None)));
        assert_eq!(Target::parse("default/web:http"), Ok(service(Some("http"))));
        assert_eq!(
            Target::parse("web.default.svc.cluster.local:80"),
            Ok(service(Some("80")))
        );
        assert_eq!(Target::parse("web.default:80"), Ok(service(Some("80"))));
        let of_pod = "db-0.web.default.svc.cluster.local";
        let error = TargetError::OfPod(of_pod.to_owned());
        assert_eq!(Target::parse(of_pod), Err(error));
        assert_eq!(Target::parse("nodeport:30080"), Ok(Target::NodePort(30080)));
        for bad in [
            "",
            "10.0.0.1",
            "10.0.0.1:",
            "nodeport:x",
            "nodeport:0",
            "a/b/c",
            "www.example.com:80",
            "/web",
        ] {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
    }

    /// Ports of a table have no names.
    #[test]
    fn a_port_without_a_name_is_found_by_its_number_and_protocol() {
        let service: Service = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "dns", "namespace": "demo"},
            "spec": {
                "clusterIP": "10.96.0.10",
                "ports": [{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}],
            },
        }))
        .unwrap();
        let find = |text: &str| {
            let target = Target::parse(text).unwrap();
            target.find(std::slice::from_ref(&service), |_| None, None)
        };
        let proto = |text: &str| find(text).unwrap().proto;
        assert_eq!(proto("demo/dns:53/udp"), Some(Proto::Udp));
        assert_eq!(proto("demo/dns:53/TCP"), Some(Proto::Tcp));
        let lacking = find("demo/dns:53/sctp").unwrap_err().to_string();
        assert_eq!(
            lacking,
            "Service demo/dns has no port 53/sctp; it has 53/TCP, 53/UDP"
        );
    }

    #[test]
    fn an_internal_address_of_a_node_is_used_before_an_external_one() {
        let node = |addresses: serde_json::Value| -> Node {
            serde_json::from_value(serde_json::json!({"status": {"addresses": addresses}})).unwrap()
        };
        let of = |kind: &str, address: &str| serde_json::json!({"type": kind, "address": address});
        let external = of("ExternalIP", "203.0.113.5");
        let both = [
            external.clone(),
            of("Hostname", "node1"),
            of("InternalIP", "10.0.0.5"),
            of("InternalIP", "10.0.0.6"),
            of("InternalIP", "fd00::5"),
        ];
        let both = node(both.to_vec().into());
        let found = |node: &Node, family| node_address(node, family).map(|ip| ip.to_string());
        assert_eq!(found(&both, Family::V4).as_deref(), Some("10.0.0.5"));
        assert_eq!(found(&both, Family::V6).as_deref(), Some("fd00::5"));
        let other = node(vec![of("Hostname", "10.0.0.7"), external].into());
        assert_eq!(found(&other, Family::V4).as_deref(), Some("203.0.113.5"));
        assert_eq!(found(&other, Family::V6), None);
    }
}
