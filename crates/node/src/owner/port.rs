//! A port of a Service with its addresses and endpoints.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Serialize, Serializer};

use crate::net::Proto;

/// Name of a service port.
#[derive(Clone, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PortName {
    /// Namespace of the Service.
    pub namespace: Box<str>,
    /// Name of the Service.
    pub name: Box<str>,
    /// Name of the port; empty for an unnamed one.
    pub port: Box<str>,
}

impl PortName {
    /// Parses `NS/NAME` or `NS/NAME:PORT`.
    pub fn parse(text: &str) -> Option<Self> {
        let (namespace, rest) = text.split_once('/')?;
        let (name, port) = rest.split_once(':').unwrap_or((rest, ""));
        let word = |text: &str| !text.is_empty() && !text.contains([' ', '/']);
        (word(namespace) && word(name)).then(|| Self {
            namespace: namespace.into(),
            name: name.into(),
            port: port.into(),
        })
    }

    /// Returns whether `asked`, `NS/NAME` or `NS/NAME:PORT`, selects this port.
    pub fn answers(&self, asked: &str) -> bool {
        let (service, port) = match asked.split_once(':') {
            Some((service, port)) => (service, Some(port)),
            None => (asked, None),
        };
        service
            .split_once('/')
            .is_some_and(|(ns, name)| *ns == *self.namespace && *name == *self.name)
            && port.is_none_or(|port| *port == *self.port)
    }
}

impl fmt::Display for PortName {
    /// Writes `NS/NAME` or `NS/NAME:PORT`, as kube-proxy does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)?;
        if self.port.is_empty() {
            Ok(())
        } else {
            write!(f, ":{}", self.port)
        }
    }
}

impl Serialize for PortName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Role of a Service address.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A cluster IP.
    ClusterIp,
    /// An external IP.
    ExternalIp,
    /// An IP of a load balancer.
    LoadBalancerIp,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClusterIp => "cluster IP",
            Self::ExternalIp => "external IP",
            Self::LoadBalancerIp => "load-balancer IP",
        })
    }
}

/// A service port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Port {
    /// Name of the service port.
    pub name: PortName,
    /// Transport protocol.
    pub proto: Proto,
    /// Port number; `None` if no rule contains it.
    pub port: Option<u16>,
    /// `ClusterIP`, `NodePort` or `LoadBalancer`; `None` if only rules are available.
    pub kind: Option<Box<str>>,
    /// Label value naming another proxy that handles the Service; kube-proxy ignores it.
    pub left_to: Option<Box<str>>,
    /// IP addresses with their roles, sorted.
    pub addresses: BTreeSet<(Role, IpAddr)>,
    /// NodePort, if it has one.
    pub node_port: Option<u16>,
    /// Port of the health-check server.
    pub health_check_port: Option<u16>,
    /// Endpoints, sorted by address.
    pub endpoints: Vec<Endpoint>,
}

impl Port {
    /// Returns the port `number` of an address that no Service has.
    pub fn nobody(number: u16, proto: Proto) -> Self {
        Self {
            port: Some(number),
            ..Self::new(PortName::default(), proto)
        }
    }

    /// Returns whether it is a port of the Service `namespace/name`: the one with the name or number `port`, if one is given.
    pub fn is_of(&self, namespace: &str, name: &str, port: Option<&str>) -> bool {
        let is_number = |word: &str| self.port.is_some_and(|number| word.parse() == Ok(number));
        let fits = |word: &str| *word == *self.name.port || is_number(word);
        *namespace == *self.name.namespace && *name == *self.name.name && port.is_none_or(fits)
    }

    /// Returns a port of which only the name is known.
    pub(super) fn new(name: PortName, proto: Proto) -> Self {
        Self {
            name,
            proto,
            port: None,
            kind: None,
            left_to: None,
            addresses: BTreeSet::new(),
            node_port: None,
            health_check_port: None,
            endpoints: Vec::new(),
        }
    }
}

/// An endpoint of a service port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Endpoint {
    /// Address and port.
    pub addr: SocketAddr,
    /// Pod as `NS/NAME`; `None` if unknown or not a pod.
    pub pod: Option<Box<str>>,
    /// Name of the node it runs on.
    pub node: Option<Box<str>>,
    /// Conditions; `None` if only rules are available.
    pub state: Option<EndpointState>,
    /// Whether it runs on this node; `None` if unknown.
    pub local: Option<bool>,
}

/// Conditions of an endpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum EndpointState {
    /// Receives traffic.
    Ready,
    /// Terminating but still serving: receives traffic if no endpoint is ready.
    ServingTerminating,
    /// Terminating.
    Terminating,
    /// Not ready.
    NotReady,
}

impl fmt::Display for EndpointState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "ready",
            Self::ServingTerminating => "terminating, serving",
            Self::Terminating => "terminating",
            Self::NotReady => "not ready",
        })
    }
}
