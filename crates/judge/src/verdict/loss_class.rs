//! Classes of packets that a switch of the mode may lose: who sends them, and to what kind of address.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Client, Kind};
use crate::trace::Entry;
use kpx_node::owner::Role;

/// The sender of packets.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Sender {
    /// Pods of the node.
    Pod,
    /// Processes of the host.
    Host,
    /// Pods of other nodes, and machines outside the cluster.
    Outside,
}

/// The kind of address that packets are sent to.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Place {
    /// A cluster IP.
    ClusterIp,
    /// A NodePort.
    NodePort,
    /// An address of a load balancer.
    LoadBalancerIp,
    /// An external IP.
    ExternalIp,
    /// An endpoint of a headless Service.
    Endpoint,
    /// A port of the node that other software publishes: a hostPort, for example.
    HostPort,
}

/// A class of packets, as `pod-to-cluster-ip`. The first one in order hurts the most.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(into = "String", try_from = "String")]
#[cfg_attr(feature = "testing", schemars(with = "String"))]
pub struct LossClass {
    /// Their destination.
    pub to: Place,
    /// Their sender.
    pub from: Sender,
}

impl Sender {
    /// Every sender.
    pub const ALL: [Self; 3] = [Self::Pod, Self::Host, Self::Outside];

    const fn name(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Host => "host",
            Self::Outside => "outside",
        }
    }

    /// Returns the senders, as in `from pods`.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Pod => "pods",
            Self::Host => "the host",
            Self::Outside => "outside",
        }
    }
}

impl From<Client> for Sender {
    fn from(client: Client) -> Self {
        match client {
            Client::Pod | Client::Single | Client::Itself => Self::Pod,
            Client::Host => Self::Host,
            Client::Elsewhere | Client::Outside => Self::Outside,
        }
    }
}

impl From<Entry> for Sender {
    fn from(entry: Entry) -> Self {
        match entry {
            Entry::Pod => Self::Pod,
            Entry::Host => Self::Host,
            Entry::Outside => Self::Outside,
        }
    }
}

impl Place {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::ClusterIp,
        Self::NodePort,
        Self::LoadBalancerIp,
        Self::ExternalIp,
        Self::Endpoint,
        Self::HostPort,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::ClusterIp => "cluster-ip",
            Self::NodePort => "node-port",
            Self::LoadBalancerIp => "load-balancer-ip",
            Self::ExternalIp => "external-ip",
            Self::Endpoint => "endpoint",
            Self::HostPort => "host-port",
        }
    }

    /// Returns the addresses in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::ClusterIp => "cluster IPs",
            Self::NodePort => "NodePorts",
            Self::LoadBalancerIp => "load-balancer IPs",
            Self::ExternalIp => "external IPs",
            Self::Endpoint => "endpoints",
            Self::HostPort => "host ports",
        }
    }
}

impl From<Role> for Place {
    fn from(role: Role) -> Self {
        match role {
            Role::ClusterIp => Self::ClusterIp,
            Role::ExternalIp => Self::ExternalIp,
            Role::LoadBalancerIp => Self::LoadBalancerIp,
        }
    }
}

impl From<Kind> for Place {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Address(role) => role.into(),
            Kind::NodePort => Self::NodePort,
            Kind::Endpoint => Self::Endpoint,
        }
    }
}

impl LossClass {
    /// Returns the class of packets from `from` to `to`.
    pub fn new(from: impl Into<Sender>, to: impl Into<Place>) -> Self {
        Self {
            to: to.into(),
            from: from.into(),
        }
    }

    /// Iterates over every class, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        let each = |to| Sender::ALL.map(|from| Self { to, from });
        Place::ALL.into_iter().flat_map(each)
    }

    /// Returns the class in words, as in `pods to cluster IPs`.
    pub fn words(self) -> String {
        format!("{} to {}", self.from.words(), self.to.words())
    }
}

impl fmt::Display for LossClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-to-{}", self.from.name(), self.to.name())
    }
}

impl FromStr for LossClass {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = Self::all().find(|class| class.to_string() == word);
        found.ok_or_else(|| {
            let all: Vec<String> = Self::all().map(|class| class.to_string()).collect();
            format!("unknown class; the classes are {}", all.join(", "))
        })
    }
}

impl From<LossClass> for String {
    fn from(class: LossClass) -> Self {
        class.to_string()
    }
}

impl TryFrom<String> for LossClass {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        word.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_is_read_as_it_is_written() {
        let mut all: Vec<LossClass> = LossClass::all().collect();
        assert_eq!(all.len(), 18);
        assert!(all.is_sorted());
        for class in &all {
            assert_eq!(class.to_string().parse(), Ok(*class));
        }
        all.dedup();
        assert_eq!(all.len(), 18);
        assert_eq!(all[0].to_string(), "pod-to-cluster-ip");
        let unknown = "pods".parse::<LossClass>().unwrap_err();
        assert!(unknown.contains("host-to-load-balancer-ip"), "{unknown}");
    }
}
