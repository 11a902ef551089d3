//! What a finding is about, as a type: commands and reports decide by it, and print its text.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use crate::trace::Rule;
use crate::verdict::LossClass;
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::Key;
use kpx_node::backend::ipvs::print;
use kpx_node::cluster::Service;
use kpx_node::net::{Cidr, Family, Proto};
use kpx_node::owner::PortName;

/// A Service, or one of its ports.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct ServiceRef {
    /// Namespace of the Service.
    pub namespace: Box<str>,
    /// Name of the Service.
    pub name: Box<str>,
    /// Name of the port; missing if the port has no name, or all ports are meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<Box<str>>,
}

impl ServiceRef {
    /// Returns the Service `namespace/name`.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            port: None,
        }
    }

    /// Returns whether it is the Service of the API servers, which write its endpoints themselves.
    pub fn is_of_api(&self) -> bool {
        &*self.namespace == "default" && &*self.name == "kubernetes"
    }

    /// Returns whether `other` is the same Service, whatever the port.
    pub fn is_same_service(&self, other: &Self) -> bool {
        (&self.namespace, &self.name) == (&other.namespace, &other.name)
    }

    /// Returns whether both are the same Service port, or one is the Service of the other.
    pub fn overlaps(&self, other: &Self) -> bool {
        let is_same = match (&self.port, &other.port) {
            (Some(port), Some(other)) => port == other,
            _ => true,
        };
        is_same && self.is_same_service(other)
    }

    /// Returns the Service without the port.
    #[must_use]
    pub fn whole(&self) -> Self {
        Self {
            port: None,
            ..self.clone()
        }
    }
}

impl Subject {
    /// Returns the address, if it is one.
    pub const fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Address { address } | Self::ServiceAddress { address, .. } => Some(*address),
            _ => None,
        }
    }
}

impl From<&Service> for ServiceRef {
    fn from(service: &Service) -> Self {
        Self::new(&service.metadata.namespace, &service.metadata.name)
    }
}

impl From<&PortName> for ServiceRef {
    fn from(name: &PortName) -> Self {
        let port = Some(name.port.clone()).filter(|port| !port.is_empty());
        Self {
            namespace: name.namespace.clone(),
            name: name.name.clone(),
            port,
        }
    }
}

impl From<PortName> for ServiceRef {
    fn from(name: PortName) -> Self {
        Self::from(&name)
    }
}

impl From<&Self> for ServiceRef {
    fn from(service: &Self) -> Self {
        service.clone()
    }
}

impl fmt::Display for ServiceRef {
    /// Writes `NAMESPACE/NAME` or `NAMESPACE/NAME:PORT`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)?;
        match &self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// The object that a finding is about. [`fmt::Display`] is its name in reports.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(
    tag = "kind",
    rename_all = "kebab-case",
    rename_all_fields = "camelCase"
)]
pub enum Subject {
    /// A Service, or one of its ports.
    Service(ServiceRef),
    /// An address of a Service.
    ServiceAddress {
        /// The Service.
        service: ServiceRef,
        /// The address.
        address: IpAddr,
        /// The port; missing if all ports are meant.
        #[serde(skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
    },
    /// A NodePort.
    NodePort {
        /// Its Service.
        service: ServiceRef,
        /// The port.
        number: u16,
    },
    /// A port for health checks of load balancers.
    HealthCheckPort {
        /// Its Service.
        service: ServiceRef,
        /// The port.
        number: u16,
    },
    /// The range of cluster IPs.
    ServiceRange,
    /// An address.
    Address {
        /// The address.
        address: IpAddr,
    },
    /// A prefix of addresses.
    Prefix {
        /// The prefix.
        prefix: Cidr,
    },
    /// Everything of one IP family.
    Family {
        /// The family.
        family: Family,
    },
    /// A transport protocol.
    Protocol {
        /// The protocol.
        protocol: Proto,
    },
    /// A mode of kube-proxy.
    Mode {
        /// The mode.
        mode: Mode,
    },
    /// A table of iptables or nftables.
    Table {
        /// Its IP family; missing for both.
        #[serde(skip_serializing_if = "Option::is_none")]
        family: Option<Family>,
        /// Name of the table; in nftables with its family.
        table: String,
    },
    /// A chain of iptables or nftables.
    Chain {
        /// Its IP family; missing for both.
        #[serde(skip_serializing_if = "Option::is_none")]
        family: Option<Family>,
        /// Its table.
        table: String,
        /// Name of the chain.
        chain: String,
    },
    /// A rule of other software, or the policy of a chain.
    Rule(Rule),
    /// Packets of one class.
    Packets {
        /// The class.
        class: LossClass,
    },
    /// A packet mark.
    Mark {
        /// The bits.
        mark: u32,
    },
    /// A virtual server.
    VirtualServer {
        /// Its protocol.
        protocol: Proto,
        /// Its address.
        address: IpAddr,
        /// Its port; 0 for every port.
        port: u16,
    },
    /// A virtual server for packets with a mark.
    MarkedServer {
        /// The mark.
        mark: u32,
        /// The family.
        family: Family,
    },
    /// The virtual servers of other software.
    VirtualServers,
    /// An IP set, or a set or map of nftables.
    Set {
        /// Name of the set.
        set: String,
    },
    /// A sysctl.
    Sysctl {
        /// The key.
        key: String,
    },
    /// A kernel module.
    Module {
        /// Name of the module.
        module: String,
    },
    /// Several kernel modules.
    Modules,
    /// The kernel.
    Kernel,
    /// The table of tracked connections.
    Conntrack,
    /// Open connections.
    Connections,
    /// A counter of the kernel.
    Counter {
        /// Name of the counter.
        counter: String,
    },
    /// A link.
    Link {
        /// Name of the link.
        link: String,
    },
    /// Routes that kpx added.
    Routes,
    /// A route of the node.
    Route {
        /// The route as `ip route` takes it.
        route: String,
    },
    /// A routing policy rule.
    RoutingRule {
        /// Its priority.
        priority: u32,
        /// The rule as `ip rule` takes it.
        rule: String,
    },
    /// A policy of IPsec.
    XfrmPolicy {
        /// The policy as `ip xfrm policy` takes it.
        policy: String,
    },
    /// The node.
    Node {
        /// Name of its Node object, if known.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// kube-proxy.
    Proxy,
    /// The process of kube-proxy.
    ProxyProcess {
        /// Its state.
        state: ProcessState,
    },
    /// A setting of kube-proxy, or of another program.
    Setting {
        /// The setting.
        setting: String,
    },
    /// A program of the node.
    Tool {
        /// Name of the program.
        tool: String,
    },
    /// Other software that manages rules, links or pods.
    Software {
        /// Name of the software.
        software: String,
    },
    /// A known bug of kube-proxy.
    Bug {
        /// Its key.
        bug: String,
    },
    /// A release of kube-proxy.
    Release {
        /// The release.
        release: String,
    },
    /// A migration of kpx.
    Migration {
        /// Its id.
        id: String,
    },
    /// The bridge of kpx.
    Bridge,
    /// The modes of all nodes.
    Modes,
    /// An object of the cluster.
    Object {
        /// Its kind.
        resource: String,
        /// Namespace of the object, if it has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        /// Name of the object.
        name: String,
    },
}

/// The state of a process of kube-proxy that does not do its work.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ProcessState {
    /// It does not run.
    Absent,
    /// It does not run, because it exits whenever it starts.
    Crashes,
    /// It does not run, because its container cannot be started.
    Unstarted,
    /// It runs, but has exited repeatedly.
    Restarts,
    /// It runs, but is stopped.
    Stopped,
    /// It runs, but does not answer.
    Silent,
}

impl ProcessState {
    /// Returns whether it does not run.
    pub const fn is_gone(self) -> bool {
        matches!(self, Self::Absent | Self::Crashes | Self::Unstarted)
    }

    /// Returns whether it does not run, or did not, because it exits.
    pub const fn is_exit(self) -> bool {
        matches!(self, Self::Absent | Self::Crashes | Self::Restarts)
    }
}

impl Subject {
    /// Returns a Service, or one of its ports.
    pub fn service(service: impl Into<ServiceRef>) -> Self {
        Self::Service(service.into())
    }

    /// Returns the address `at` of a Service, with the port.
    pub fn service_at(service: impl Into<ServiceRef>, at: SocketAddr) -> Self {
        Self::ServiceAddress {
            service: service.into(),
            address: at.ip(),
            port: Some(at.port()),
        }
    }

    /// Returns a table; `family` is `None` if it is of both, or its name has it.
    pub fn table(family: impl Into<Option<Family>>, table: impl Into<String>) -> Self {
        Self::Table {
            family: family.into(),
            table: table.into(),
        }
    }

    /// Returns a chain; `family` is `None` if it is of both.
    pub fn chain(
        family: impl Into<Option<Family>>,
        table: impl Into<String>,
        chain: impl Into<String>,
    ) -> Self {
        Self::Chain {
            family: family.into(),
            table: table.into(),
            chain: chain.into(),
        }
    }

    /// Returns the virtual server `key`.
    pub const fn server(key: Key) -> Self {
        match key {
            Key::Address { proto, addr, port } => Self::VirtualServer {
                protocol: proto,
                address: addr,
                port,
            },
            Key::Fwmark { mark, family } => Self::MarkedServer { mark, family },
        }
    }

    /// Returns a set.
    pub fn set(set: impl Into<String>) -> Self {
        Self::Set { set: set.into() }
    }

    /// Returns a sysctl.
    pub fn sysctl(key: impl Into<String>) -> Self {
        Self::Sysctl { key: key.into() }
    }

    /// Returns a kernel module.
    pub fn module(module: impl Into<String>) -> Self {
        Self::Module {
            module: module.into(),
        }
    }

    /// Returns a link.
    pub fn link(link: impl Into<String>) -> Self {
        Self::Link { link: link.into() }
    }

    /// Returns a counter of the kernel.
    pub fn counter(counter: impl Into<String>) -> Self {
        Self::Counter {
            counter: counter.into(),
        }
    }

    /// Returns a setting.
    pub fn setting(setting: impl Into<String>) -> Self {
        Self::Setting {
            setting: setting.into(),
        }
    }

    /// Returns a program of the node.
    pub fn tool(tool: impl Into<String>) -> Self {
        Self::Tool { tool: tool.into() }
    }

    /// Returns other software.
    pub fn software(software: impl Into<String>) -> Self {
        Self::Software {
            software: software.into(),
        }
    }

    /// Returns a known bug.
    pub fn bug(bug: impl Into<String>) -> Self {
        Self::Bug { bug: bug.into() }
    }

    /// Returns an object in a namespace.
    pub fn object(resource: &str, namespace: &str, name: &str) -> Self {
        Self::Object {
            resource: resource.to_owned(),
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
        }
    }

    /// Returns the IP family that it is of, if it is of one alone.
    pub const fn family(&self) -> Option<Family> {
        match self {
            Self::Family { family } | Self::MarkedServer { family, .. } => Some(*family),
            Self::Table { family, .. } | Self::Chain { family, .. } => *family,
            Self::Rule(rule) => Some(rule.family),
            Self::Address { address }
            | Self::ServiceAddress { address, .. }
            | Self::VirtualServer { address, .. } => Some(Family::of(*address)),
            _ => None,
        }
    }

    /// Returns the Service that it names.
    pub const fn named_service(&self) -> Option<&ServiceRef> {
        match self {
            Self::Service(service)
            | Self::ServiceAddress { service, .. }
            | Self::NodePort { service, .. }
            | Self::HealthCheckPort { service, .. } => Some(service),
            _ => None,
        }
    }
}

impl From<Family> for Subject {
    fn from(family: Family) -> Self {
        Self::Family { family }
    }
}

impl From<LossClass> for Subject {
    fn from(class: LossClass) -> Self {
        Self::Packets { class }
    }
}

impl From<Mode> for Subject {
    fn from(mode: Mode) -> Self {
        Self::Mode { mode }
    }
}

impl From<IpAddr> for Subject {
    fn from(address: IpAddr) -> Self {
        Self::Address { address }
    }
}

impl From<ServiceRef> for Subject {
    fn from(service: ServiceRef) -> Self {
        Self::Service(service)
    }
}

impl From<&Service> for Subject {
    fn from(service: &Service) -> Self {
        Self::service(service)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(service) => write!(f, "{service}"),
            Self::ServiceAddress {
                service,
                address,
                port: Some(port),
            } => write!(
                f,
                "{} {}",
                service.whole(),
                SocketAddr::new(*address, *port)
            ),
            Self::ServiceAddress {
                service,
                address,
                port: None,
            } => write!(f, "{} {address}", service.whole()),
            Self::NodePort { service, number } | Self::HealthCheckPort { service, number } => {
                write!(f, "{} port {number}", service.whole())
            }
            Self::ServiceRange => f.write_str("cluster IPs"),
            Self::Address { address } => write!(f, "{address}"),
            Self::Prefix { prefix } => write!(f, "{prefix}"),
            Self::Family { family } => write!(f, "{family}"),
            Self::Protocol { protocol } => f.write_str(&protocol.to_string().to_uppercase()),
            Self::Mode { mode } => write!(f, "mode {mode}"),
            Self::Packets { class } => f.write_str(&class.words()),
            Self::Table { family, table } => match family {
                Some(family) => write!(f, "{family} table {table}"),
                None => write!(f, "table {table}"),
            },
            Self::Chain {
                family,
                table,
                chain,
            } => match family {
                Some(family) => write!(f, "{family} {table} {chain}"),
                None => write!(f, "{table} chain {chain}"),
            },
            Self::Rule(rule) => write!(f, "{rule}"),
            Self::Mark { mark } => write!(f, "mark {mark:#x}"),
            Self::VirtualServer {
                protocol,
                address,
                port,
            } => f.write_str(&print::name(Key::Address {
                proto: *protocol,
                addr: *address,
                port: *port,
            })),
            Self::MarkedServer { mark, family } => f.write_str(&print::name(Key::Fwmark {
                mark: *mark,
                family: *family,
            })),
            Self::VirtualServers => f.write_str("virtual servers"),
            Self::Set { set } => write!(f, "set {set}"),
            Self::Sysctl { key } => f.write_str(key),
            Self::Module { module } => f.write_str(module),
            Self::Modules => f.write_str("modules"),
            Self::Kernel => f.write_str("kernel"),
            Self::Conntrack => f.write_str("conntrack"),
            Self::Connections => f.write_str("connections"),
            Self::Counter { counter } => f.write_str(counter),
            Self::Link { link } => f.write_str(link),
            Self::Routes => f.write_str("kpx's routes"),
            Self::Route { route } => write!(f, "route {route}"),
            Self::RoutingRule { priority, .. } => write!(f, "routing policy rule {priority}"),
            Self::XfrmPolicy { policy } => write!(f, "xfrm policy {policy}"),
            Self::Node { name } => f.write_str(name.as_deref().unwrap_or("node")),
            Self::Proxy => f.write_str("kube-proxy"),
            Self::ProxyProcess { .. } => f.write_str("kube-proxy process"),
            Self::Setting { setting } => f.write_str(setting),
            Self::Tool { tool } => f.write_str(tool),
            Self::Software { software } => f.write_str(software),
            Self::Bug { bug } => f.write_str(bug),
            Self::Release { release } => write!(f, "release {release}"),
            Self::Migration { id } => write!(f, "migration {id}"),
            Self::Bridge => f.write_str("the bridge"),
            Self::Modes => f.write_str("modes"),
            Self::Object {
                resource,
                namespace: None,
                name,
            } => write!(f, "{resource} {name}"),
            Self::Object {
                namespace: Some(namespace),
                name,
                ..
            } => write!(f, "{namespace}/{name}"),
        }
    }
}
