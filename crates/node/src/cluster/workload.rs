//! Pods, their containers, and DaemonSets.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use serde::Deserialize;
use serde_json::Value;

use super::metadata::null_is_default;
use super::{Condition, Labels, Metadata};
use crate::net::Proto;

/// A Pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Name and labels.
    pub metadata: Metadata,
    /// Node and containers.
    pub spec: PodSpec,
    /// Phase, addresses and container states.
    pub status: PodStatus,
}

/// A port that a container declares.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct DeclaredPort {
    /// Its number.
    pub number: u16,
    /// Its protocol.
    pub proto: Proto,
}

impl Pod {
    /// Returns whether a kubelet runs it from a file: the API server then has only a mirror of it.
    pub fn is_static(&self) -> bool {
        let mirror = "kubernetes.io/config.mirror";
        self.metadata.annotations.contains_key(mirror)
    }

    /// Returns the addresses that `NodeLocal` DNS in it is to have on a link of its node (`-localip`); none of another pod.
    pub fn local_dns(&self) -> Vec<IpAddr> {
        let args = self
            .spec
            .containers
            .iter()
            .flat_map(|container| container.command.iter().chain(&container.args));
        let words: Vec<&str> = args.flat_map(|arg| arg.split('=')).collect();
        let at = words
            .iter()
            .position(|word| word.trim_start_matches('-') == "localip");
        let list = at.and_then(|at| words.get(at + 1)).copied();
        let all = list.unwrap_or_default().split(',');
        all.filter_map(|text| text.parse().ok()).collect()
    }

    /// Returns whether it has ended: then its object stays, and its address may be given to another pod.
    pub fn has_ended(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Returns its addresses; none once it has ended.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let all = self.status.pod_ips.iter().map(|pod_ip| pod_ip.ip.as_str());
        let all = all.chain(self.status.pod_ip.as_deref());
        let all = all.filter(|_| !self.has_ended());
        all.filter_map(|text| text.parse().ok())
    }

    /// Returns whether the address is its own, and not its node's.
    pub fn has_ip(&self, address: IpAddr) -> bool {
        !self.spec.host_network && self.addresses().any(|own_address| own_address == address)
    }

    /// Returns the ports that its containers declare.
    pub fn declared_ports(&self) -> BTreeSet<DeclaredPort> {
        let containers = self.spec.containers.iter();
        containers.flat_map(Container::declared_ports).collect()
    }

    /// Returns whether a container declares this port.
    pub fn declares(&self, number: u16, proto: Proto) -> bool {
        self.declared_ports()
            .contains(&DeclaredPort { number, proto })
    }

    /// Returns the hostPorts of its containers, with their protocols as `TCP`.
    pub(super) fn host_ports(&self) -> impl Iterator<Item = (u16, &str)> {
        let containers = self.spec.containers.iter();
        let ports = containers.flat_map(|container| &container.ports);
        ports.filter_map(|declared| {
            let number = declared.get("hostPort")?.as_u64()?;
            let protocol = declared.get("protocol").and_then(Value::as_str);
            Some((u16::try_from(number).ok()?, protocol.unwrap_or("TCP")))
        })
    }

    /// Returns whether a container of it has this hostPort.
    pub fn has_host_port(&self, port: u16) -> bool {
        self.host_ports().any(|(number, _)| number == port)
    }

    /// Returns whether it asks the resolver of the node, which does not know names of the cluster; `None` if its settings decide.
    pub fn asks_node_resolver(&self) -> Option<bool> {
        match &*self.spec.dns_policy {
            "Default" => Some(true),
            "ClusterFirst" => Some(self.spec.host_network),
            "ClusterFirstWithHostNet" => Some(false),
            _ => None,
        }
    }

    /// Returns its workload; `None` if it has no controller, or none is shown.
    pub fn workload(&self) -> Option<Workload> {
        let owner = self.metadata.owners.iter().find(|owner| owner.controller)?;
        // A Deployment makes one ReplicaSet for each template.
        let hash = self.metadata.labels.get("pod-template-hash");
        let deployment = hash.and_then(|hash| owner.name.strip_suffix(hash)?.strip_suffix('-'));
        Some(match deployment {
            Some(name) if owner.kind == "ReplicaSet" => Workload {
                kind: "Deployment".to_owned(),
                name: name.to_owned(),
            },
            _ => Workload {
                kind: owner.kind.clone(),
                name: owner.name.clone(),
            },
        })
    }
}

/// A workload: it creates pods of one template.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Workload {
    /// Its kind: `Deployment`, `DaemonSet`, ….
    pub kind: String,
    /// Name of the controller.
    pub name: String,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// `spec` of a Pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Name of the node.
    pub node_name: Option<String>,
    /// Whether the pod uses the node's network namespace.
    pub host_network: bool,
    /// `ClusterFirst` (the default), `ClusterFirstWithHostNet`, `Default` or `None`; empty if unknown.
    #[serde(deserialize_with = "null_is_default")]
    pub dns_policy: String,
    /// Labels that the node must have.
    #[serde(deserialize_with = "null_is_default")]
    pub node_selector: Labels,
    /// Affinity, as written.
    pub affinity: Value,
    /// Tolerations, as written.
    #[serde(deserialize_with = "null_is_default")]
    pub tolerations: Vec<Value>,
    /// Containers of the pod.
    #[serde(deserialize_with = "null_is_default")]
    pub containers: Vec<Container>,
    /// Readiness gates, as written.
    #[serde(deserialize_with = "null_is_default")]
    pub readiness_gates: Vec<Value>,
    /// Volumes, as written.
    #[serde(deserialize_with = "null_is_default")]
    pub volumes: Vec<Value>,
    /// Names of addresses, in the pod's hosts file.
    #[serde(deserialize_with = "null_is_default")]
    pub host_aliases: Vec<HostAlias>,
    /// Settings of its resolver.
    #[serde(deserialize_with = "null_is_default")]
    pub dns_config: DnsConfig,
}

/// An entry of a pod's hosts file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct HostAlias {
    /// The address.
    pub ip: String,
}

/// `dnsConfig` of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DnsConfig {
    /// Addresses of name servers.
    #[serde(deserialize_with = "null_is_default")]
    pub nameservers: Vec<String>,
}

/// A container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Name of the container.
    pub name: String,
    /// Image reference.
    pub image: String,
    /// Entry point.
    #[serde(deserialize_with = "null_is_default")]
    pub command: Vec<String>,
    /// Arguments of the entry point.
    #[serde(deserialize_with = "null_is_default")]
    pub args: Vec<String>,
    /// Environment variables, as written.
    #[serde(deserialize_with = "null_is_default")]
    pub env: Vec<Value>,
    /// Ports, as written.
    #[serde(deserialize_with = "null_is_default")]
    pub ports: Vec<Value>,
    /// Readiness probe, as written.
    pub readiness_probe: Option<Value>,
    /// Volume mounts, as written.
    #[serde(deserialize_with = "null_is_default")]
    pub volume_mounts: Vec<Value>,
}

impl Container {
    /// Returns the ports that it declares.
    pub fn declared_ports(&self) -> impl Iterator<Item = DeclaredPort> {
        self.ports.iter().filter_map(|port| {
            let protocol = port.get("protocol").and_then(Value::as_str);
            Some(DeclaredPort {
                number: u16::try_from(port.get("containerPort")?.as_u64()?).ok()?,
                proto: protocol.map_or(Some(Proto::Tcp), |name| name.parse().ok())?,
            })
        })
    }
}

/// `status` of a Pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Running`, …
    pub phase: String,
    /// Why it is in this phase: `Evicted`, `OutOfcpu`, ….
    pub reason: String,
    /// Details of the reason.
    pub message: String,
    /// First IP address.
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    /// IP addresses, one per family.
    #[serde(rename = "podIPs", deserialize_with = "null_is_default")]
    pub pod_ips: Vec<PodIp>,
    /// State of each container that runs before the others.
    #[serde(deserialize_with = "null_is_default")]
    pub init_container_statuses: Vec<ContainerStatus>,
    /// State of each container.
    #[serde(deserialize_with = "null_is_default")]
    pub container_statuses: Vec<ContainerStatus>,
    /// Conditions: `Ready`, ….
    #[serde(deserialize_with = "null_is_default")]
    pub conditions: Vec<Condition>,
}

/// State of a container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Name of the container.
    pub name: String,
    /// Whether its readiness probe succeeds; `None` if not shown.
    pub ready: Option<bool>,
    /// Number of restarts.
    pub restart_count: u32,
    /// Current state.
    pub state: ContainerState,
    /// State before the last restart.
    pub last_state: ContainerState,
}

/// State of a container: waiting, running or terminated.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// Set while the container waits to start.
    pub waiting: Option<ContainerWaiting>,
    /// Set after the container has ended.
    pub terminated: Option<ContainerTerminated>,
}

/// Details of a waiting container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContainerWaiting {
    /// `CrashLoopBackOff`, ….
    pub reason: Option<String>,
    /// Details of the reason.
    pub message: Option<String>,
}

/// Details of a terminated container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerTerminated {
    /// `Error`, `OOMKilled`, `Completed`, ….
    pub reason: Option<String>,
    /// Exit status.
    pub exit_code: i32,
    /// The text in its termination log.
    pub message: Option<String>,
}

/// An address of a Pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodIp {
    /// IP address.
    pub ip: String,
}

/// A DaemonSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DaemonSet {
    /// Name and labels.
    pub metadata: Metadata,
    /// Specification of the DaemonSet.
    pub spec: DaemonSetSpec,
}

/// `spec` of a DaemonSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetSpec {
    /// Pod template.
    pub template: PodTemplate,
    /// Update strategy, as written.
    pub update_strategy: Value,
}

/// A pod template.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodTemplate {
    /// Labels of the pods.
    pub metadata: Metadata,
    /// Specification of the pods.
    pub spec: PodSpec,
}
