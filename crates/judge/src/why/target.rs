//! What to explain: from the words on the command line to a Service and its ports.

use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

use super::Cause;
use crate::trace::target::{Target, TargetError, port_in_words, proto_of};
use kpx_node::cluster::{EndpointSlice, Service, ServicePort};
use kpx_node::net::Proto;
use kpx_node::owner::{self, Port};

/// The target as given.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Asked {
    /// `NAMESPACE/SERVICE[:PORT]`, or the cluster's DNS name for it.
    Service {
        /// Namespace of the Service.
        namespace: String,
        /// Name of the Service.
        name: String,
        /// Name or number of the port.
        port: Option<String>,
    },
    /// An address, with or without a port and a protocol.
    Address(IpAddr, Option<u16>, Option<Proto>),
    /// `nodeport:N`.
    NodePort(u16),
}

/// A text that is not a target.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum NotATarget {
    /// Not one of the forms.
    #[error(
        "{0:?} is not a target: NAMESPACE/SERVICE[:PORT], a cluster DNS name, an address with or without a port, or nodeport:N"
    )]
    Form(String),
    /// The number of a port does not exist, or it is the DNS name of a pod.
    #[error(transparent)]
    Known(TargetError),
}

impl Asked {
    /// Parses a target.
    pub fn parse(text: &str) -> Result<Self, NotATarget> {
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        if let Ok(addr) = bare.parse() {
            return Ok(Self::Address(addr, None, None));
        }
        match Target::parse(text) {
            Ok(Target::Address(at, proto)) => Ok(Self::Address(at.ip(), Some(at.port()), proto)),
            Ok(Target::NodePort(port)) => Ok(Self::NodePort(port)),
            Ok(Target::Service {
                namespace,
                name,
                port,
            }) => Ok(Self::Service {
                namespace,
                name,
                port,
            }),
            Err(known @ (TargetError::Port(..) | TargetError::OfPod(_))) => {
                Err(NotATarget::Known(known))
            }
            Err(_) => Err(NotATarget::Form(text.to_owned())),
        }
    }

    /// Returns whether it selects `of`, a port that the rules name.
    pub(super) fn names(&self, of: &Port) -> bool {
        match self {
            Self::Service {
                namespace,
                name,
                port,
            } => of.is_of(namespace, name, port.as_deref()),
            Self::Address(addr, port, proto) => {
                let mut addresses = of.addresses.iter();
                addresses.any(|(_, at)| at == addr)
                    && port.is_none_or(|port| of.port == Some(port))
                    && proto.is_none_or(|proto| of.proto == proto)
            }
            Self::NodePort(number) => of.node_port == Some(*number),
        }
    }
}

/// The Service of a target, and its port if the target has one.
#[derive(Debug)]
pub(super) struct Found<'s> {
    pub(super) service: &'s Service,
    pub(super) only: Option<Only>,
    pub(super) at: At,
}

/// The addresses that a target asks about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum At {
    /// All of the Service.
    All,
    /// One of the Service.
    Address(IpAddr),
    /// The NodePort at this address of the node, or at its usual one.
    NodePort(Option<IpAddr>),
    /// An endpoint.
    Endpoint(IpAddr),
}

/// The ports that a target selects.
#[derive(Debug)]
pub(super) enum Only {
    /// The port with this name or number.
    Named(String),
    /// The port with this NodePort.
    NodePort(u16),
    /// The ports with this endpoint; `None` for any port of the address.
    Endpoint(IpAddr, Option<u16>),
}

impl Only {
    /// Returns whether a port is selected; `endpoints` are the addresses of its endpoints.
    pub(super) fn selects(
        &self,
        port: &str,
        number: u16,
        node_port: Option<u16>,
        mut endpoints: impl Iterator<Item = SocketAddr>,
    ) -> bool {
        match self {
            Self::Named(want) => port == want || want.parse() == Ok(number),
            Self::NodePort(want) => node_port == Some(*want),
            Self::Endpoint(addr, want) => {
                endpoints.any(|at| at.ip() == *addr && want.is_none_or(|want| want == at.port()))
            }
        }
    }
}

/// Finds the Service of `asked`; `local` returns whether an address is the node's own.
#[expect(clippy::result_large_err, reason = "a run has one answer")]
pub(super) fn find<'s>(
    asked: &Asked,
    services: &'s [Service],
    slices: &[EndpointSlice],
    local: impl Fn(IpAddr) -> bool,
) -> Result<Found<'s>, Cause> {
    match asked {
        Asked::Service {
            namespace,
            name,
            port,
        } => {
            let is_named = |service: &&Service| service.metadata.name == *name;
            let mut named = services.iter().filter(is_named);
            let service = named.find(|service| service.metadata.namespace == *namespace);
            let service = service.ok_or_else(|| Cause::NoService {
                namespace: namespace.clone(),
                name: name.clone(),
                elsewhere: services
                    .iter()
                    .filter(is_named)
                    .map(|service| service.metadata.namespace.clone())
                    .collect(),
                unread: None,
            })?;
            let only = port.clone().map(Only::Named);
            select(service, only, port.as_deref().unwrap_or_default())
        }
        Asked::NodePort(number) => {
            by_node_port(services, *number).ok_or(Cause::NoNodePort { port: *number })
        }
        Asked::Address(addr, port, proto) => {
            let has =
                |service: &&Service| owner::addresses(service).iter().any(|(_, at)| at == addr);
            // An address that kube-proxy leaves to a load balancer is an address of the Service, too.
            let is_balancers = |service: &&Service| {
                let mut ingress = service.status.load_balancer.ingress.iter();
                let is_it = |text: &String| text.parse() == Ok(*addr);
                ingress.any(|at| at.ip.as_ref().is_some_and(is_it))
            };
            let mut all = services.iter();
            let service = all.find(has).or_else(|| services.iter().find(is_balancers));
            if let Some(service) = service {
                let word = port.map(|port| port.to_string()).unwrap_or_default();
                // Ports of several protocols may have one number.
                let is_it = |of: &&ServicePort| {
                    Some(of.port) == *port && proto.is_some() && proto_of(&of.protocol) == *proto
                };
                let same = service.spec.ports.iter().find(is_it);
                let only = match (same, port, proto) {
                    (Some(same), ..) if !same.name.is_empty() => Some(same.name.clone()),
                    // A port of another protocol is another port.
                    (None, Some(port), Some(proto)) => Some(format!("{port}/{proto}")),
                    _ => port.map(|port| port.to_string()),
                };
                let word = only.clone().filter(|_| same.is_none()).unwrap_or(word);
                let found = select(service, only.map(Only::Named), &word)?;
                let at = At::Address(*addr);
                return Ok(Found { at, ..found });
            }
            if let Some(found) = port.and_then(|port| by_node_port(services, port))
                && local(*addr)
            {
                let at = At::NodePort(Some(*addr));
                return Ok(Found { at, ..found });
            }
            by_endpoint(services, slices, *addr, *port).ok_or(Cause::NoAddress {
                address: *addr,
                port: *port,
            })
        }
    }
}

/// Returns `service` if `only` selects one of its ports; `word` is the port as given.
#[expect(clippy::result_large_err, reason = "a run has one answer")]
fn select<'s>(service: &'s Service, only: Option<Only>, word: &str) -> Result<Found<'s>, Cause> {
    let fits = |port: &ServicePort| {
        only.as_ref().is_none_or(|only| {
            only.selects(&port.name, port.port, port.node_port, std::iter::empty())
        })
    };
    // ExternalName Services need no ports.
    let ports = &service.spec.ports;
    if ports.is_empty() || ports.iter().any(fits) {
        let at = At::All;
        return Ok(Found { service, only, at });
    }
    Err(Cause::NoPort {
        service: full(service),
        port: word.to_owned(),
        ports: ports.iter().map(port_in_words).collect(),
        is_health: word.parse().ok()
            == service
                .spec
                .health_check_node_port
                .filter(|port| *port != 0)
            && word.parse::<u16>().is_ok(),
    })
}

/// Returns the Service with NodePort `number`.
fn by_node_port(services: &[Service], number: u16) -> Option<Found<'_>> {
    let has = |service: &&Service| {
        service
            .spec
            .ports
            .iter()
            .any(|p| p.node_port == Some(number))
    };
    Some(Found {
        service: services.iter().find(has)?,
        only: Some(Only::NodePort(number)),
        at: At::NodePort(None),
    })
}

/// Returns the first Service with an endpoint at `addr`.
fn by_endpoint<'s>(
    services: &'s [Service],
    slices: &[EndpointSlice],
    addr: IpAddr,
    port: Option<u16>,
) -> Option<Found<'s>> {
    let is_at = |slice: &&EndpointSlice| {
        let mut addresses = slice
            .endpoints
            .iter()
            .flat_map(|endpoint| &endpoint.addresses);
        let fits = |number: Option<u16>| port.is_none_or(|want| number == Some(want));
        addresses.any(|text| text.parse() == Ok(addr)) && slice.ports.iter().any(|p| fits(p.port))
    };
    slices.iter().filter(is_at).find_map(|slice| {
        let owner = slice.service()?;
        let is_owner = |service: &&Service| {
            (
                service.metadata.namespace.as_str(),
                service.metadata.name.as_str(),
            ) == owner
        };
        Some(Found {
            service: services.iter().find(is_owner)?,
            only: Some(Only::Endpoint(addr, port)),
            at: At::Endpoint(addr),
        })
    })
}

/// Returns the namespace and name of a Service.
pub(super) fn full(service: &Service) -> String {
    format!("{}/{}", service.metadata.namespace, service.metadata.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_target_is_parsed() {
        let v6 = "fd00::1".parse().unwrap();
        assert_eq!(Asked::parse("fd00::1"), Ok(Asked::Address(v6, None, None)));
        assert_eq!(
            Asked::parse("[fd00::1]"),
            Ok(Asked::Address(v6, None, None))
        );
        for (text, proto) in [
            ("[fd00::1]:80", None),
            ("[fd00::1]:80/udp", Some(Proto::Udp)),
        ] {
            assert_eq!(Asked::parse(text), Ok(Asked::Address(v6, Some(80), proto)));
        }
        assert_eq!(Asked::parse("nodeport:30080"), Ok(Asked::NodePort(30080)));
        let service = Asked::Service {
            namespace: "demo".to_owned(),
            name: "web".to_owned(),
            port: Some("http".to_owned()),
        };
        for text in [
            "demo/web:http",
            "web.demo:http",
            "web.demo.svc.example:http",
        ] {
            assert_eq!(Asked::parse(text).as_ref(), Ok(&service), "{text}");
        }
        for bad in ["", "web", "www.example.com", "nodeport:x", "a/b/c"] {
            assert!(Asked::parse(bad).is_err(), "{bad}");
        }
    }
}
