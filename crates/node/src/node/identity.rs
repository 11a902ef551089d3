//! Determines which Node of the cluster this machine is.
//!
//! kube-proxy has a name: its `--hostname-override`, or `hostnameOverride` in its configuration. It counts unless the
//! evidence contradicts it: all nodes may share one `ConfigMap` with the name of one of them. Without it, the kubelet's
//! report of each Node is compared with this machine: addresses, the pod of kube-proxy, hardware ID, boot ID, machine ID, the
//! pods' network and host name. No single clue is trusted if another one narrows the choice: cloned installations share a
//! machine ID, and containers on one machine share the boot ID.

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;

use super::NodeSnapshot;
use super::processes::{Process, is_kube_proxy};
use crate::backend::ipvs::model::DUMMY;
use crate::cluster::config::ORIGIN;
use crate::cluster::flags::Flags;
use crate::cluster::{Node, Pod};
use crate::evidence::{Gap, Item};
use crate::net::Cidr;

/// Items that [`NodeSnapshot::identity`] uses.
pub const NEEDS: &[Item] = &[
    Item::Host,
    Item::Addresses,
    Item::Processes,
    Item::ProxyConfig,
    Item::Nodes,
];

/// Items that [`NodeSnapshot::mismatch`] uses.
pub const OF_BUNDLE: &[Item] = &[
    Item::Host,
    Item::Addresses,
    Item::Processes,
    Item::ProxyConfig,
    Item::Nodes,
    Item::Pods,
];

/// Items of the machine that [`NodeSnapshot::stranger`] uses, in addition to the Nodes.
pub const OF_MACHINE: &[Item] = &[
    Item::Host,
    Item::Addresses,
    Item::Processes,
    Item::ProxyFiles,
];

/// Programs that accept kube-proxy's flags.
const KUBE_PROXY: &[&str] = &["kube-proxy", "hyperkube"];

/// Returns the value of kube-proxy's `--hostname-override` in `process`.
fn override_of(process: &Process) -> Option<String> {
    let flags = if KUBE_PROXY.contains(&process.name.as_str()) {
        Flags::parse(process.args.get(1..).unwrap_or_default())
    } else {
        Flags::passed_on(&process.args)
    };
    flags.value("hostname-override").map(str::to_owned)
}

/// Result of the identification.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Identity {
    /// Exactly one Node matches.
    Known {
        /// Name of the Node.
        name: String,
        /// Clue that identified it.
        by: Clue,
    },
    /// Several Nodes match equally well.
    Ambiguous {
        /// Names of the Nodes, sorted.
        names: Vec<String>,
        /// Clue that they share with this machine.
        by: Clue,
    },
    /// No Node matches; the reason.
    Unknown(Gap),
}

/// Why a recording is not of a Node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mismatch {
    /// The Nodes that the recording may be of.
    pub of: Vec<String>,
    /// The evidence.
    pub why: String,
}

/// A machine that is not one of the cluster's Nodes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stranger {
    /// Names of the Nodes, sorted.
    pub nodes: Vec<String>,
    /// Process ID of a kube-proxy in a container with a network namespace of its own.
    pub container: Option<u32>,
}

/// A clue that identifies this machine's Node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Clue {
    /// Name given by `--node` or by the journal.
    Given,
    /// Command line of kube-proxy.
    Flag,
    /// Configuration of kube-proxy.
    Config,
    /// A Node address on an interface of this machine.
    Address,
    /// The Node of the pod in which this machine's kube-proxy runs.
    ProxyPod,
    /// Hardware UUID.
    SystemUuid,
    /// Machine ID of the cloud provider.
    ProviderId,
    /// Boot ID of the kernel.
    BootId,
    /// Machine ID of the installation.
    MachineId,
    /// The Node's range of pod addresses as the network of a link.
    PodNetwork,
    /// Host name.
    HostName,
    /// The cluster has only one Node.
    Only,
    /// The recording names it, and no Node is known.
    Recording,
}

impl Display for Clue {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Given => "the given name",
            Self::Flag => "kube-proxy's --hostname-override",
            Self::Config => "kube-proxy's hostnameOverride",
            Self::Address => "an address of this machine",
            Self::ProxyPod => "the pod of this machine's kube-proxy",
            Self::SystemUuid => "this machine's system UUID",
            Self::ProviderId => "this machine's provider ID",
            Self::BootId => "this machine's boot ID",
            Self::MachineId => "this machine's machine ID",
            Self::PodNetwork => "a pod network of this machine",
            Self::HostName => "this machine's host name",
            Self::Recording => "the name in its recording",
            Self::Only => "the cluster's only Node",
        })
    }
}

impl Identity {
    /// Returns the name, or why it is unknown.
    pub fn name(self) -> Result<String, Gap> {
        match self {
            Self::Known { name, .. } => Ok(name),
            Self::Ambiguous { names, by } => {
                let names = names.join(", ");
                let what = format!(
                    "cannot tell which Node this machine is: {names} all have {by}; pass --node NAME"
                );
                Err(Gap::Absent(Item::Nodes, what))
            }
            Self::Unknown(gap) => Err(gap),
        }
    }
}

/// Properties that a Node and its machine share, the strongest first.
const CLUES: [Clue; 8] = [
    Clue::Address,
    Clue::ProxyPod,
    Clue::SystemUuid,
    Clue::ProviderId,
    Clue::BootId,
    Clue::MachineId,
    Clue::PodNetwork,
    Clue::HostName,
];

/// Clues that one Node alone has.
const OWN: [Clue; 3] = [Clue::Address, Clue::ProxyPod, Clue::PodNetwork];

/// Whether this machine is a Node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Claim {
    /// It is.
    Same,
    /// It is another machine; the evidence.
    Other(String),
    /// There is no such Node; the names of all.
    NoNode(Vec<String>),
    /// The evidence is missing.
    Unknown(Gap),
}

impl NodeSnapshot<'_> {
    /// Identifies this machine's Node.
    pub fn identity(&self) -> Identity {
        let known = |name: &str, by| Identity::Known {
            name: name.to_owned(),
            by,
        };
        if let Some(name) = &self.named {
            return known(name, Clue::Given);
        }
        let Some((name, by)) = self.hostname_override() else {
            return self.by_clues();
        };
        let is_other = self.contradiction(&name).is_some();
        match self.by_clues() {
            real @ Identity::Known { .. } if is_other => real,
            _ => known(&name, by),
        }
    }

    /// Returns the name of this node's Node object. If kube-proxy uses a name that no Node has, it is the Node that matches this
    /// machine.
    pub fn object_name(&self) -> Result<String, Gap> {
        let name = self.name();
        let (Ok(name), Ok(nodes)) = (&name, self.nodes()) else {
            return name;
        };
        if nodes.iter().any(|node| node.metadata.name == *name) {
            return Ok(name.clone());
        }
        self.by_clues().name()
    }

    /// Identifies this machine's Node by common properties, whatever name kube-proxy uses.
    pub fn by_clues(&self) -> Identity {
        let known = |name: &str, by| Identity::Known {
            name: name.to_owned(),
            by,
        };
        let nodes = match self.nodes() {
            Ok(nodes) => nodes,
            Err(gap) => {
                let recorded = self.evidence().manifest();
                let name = recorded.and_then(|recorded| recorded.node.as_deref());
                let named = name.map(|name| known(name, Clue::Recording));
                return named.unwrap_or(Identity::Unknown(gap));
            }
        };
        let host = Host::of(self);
        // A cluster's only Node may still be another machine.
        let may_be_only = || !nodes.iter().all(|node| self.differs(&host, node));
        let mut left: Vec<&Node> = nodes.iter().collect();
        let mut by = None;
        for clue in CLUES {
            let matches = |node: &&&Node| self.matches(&host, node, clue);
            let found: Vec<&Node> = left.iter().filter(matches).copied().collect();
            if !found.is_empty() && (by.is_none() || found.len() < left.len()) {
                by = Some(clue);
                left = found;
            }
            if by.is_some() && left.len() == 1 {
                break;
            }
        }
        match (left.as_slice(), by) {
            ([only], Some(by)) => known(&only.metadata.name, by),
            ([only], None) if self.runs_kube_proxy() != Some(false) || may_be_only() => {
                known(&only.metadata.name, Clue::Only)
            }
            (several, Some(by)) => {
                let names = several.iter().map(|node| node.metadata.name.clone());
                let mut names: Vec<String> = names.collect();
                names.sort();
                Identity::Ambiguous { names, by }
            }
            (_, None) => {
                let what = "cannot tell which Node this machine is: no Node has its address, IDs or host name; pass --node NAME";
                Identity::Unknown(Gap::Absent(Item::Nodes, what.to_owned()))
            }
        }
    }

    /// Returns why this evidence, a recording, is not of the Node `name`; `None` if it is, or may be.
    pub fn mismatch(&self, name: &str) -> Option<Mismatch> {
        let contradiction = self.contradiction(name);
        let recorded = self
            .evidence()
            .manifest()
            .and_then(|manifest| manifest.node.clone());
        if recorded.as_deref() == Some(name) && contradiction.is_none() {
            return None;
        }
        let nodes = self.nodes().ok().filter(|nodes| !nodes.is_empty());
        let mut names = nodes
            .iter()
            .flat_map(|all| all.iter())
            .map(|node| &node.metadata.name);
        let exists = names.clone().any(|node_name| node_name == name);
        match self.identity() {
            Identity::Known { name: own, .. } if own == name => None,
            // All nodes may share the configuration.
            Identity::Known {
                by: Clue::Config, ..
            } if exists && contradiction.is_none() => None,
            Identity::Known { name: own, by } => Some(Mismatch {
                why: contradiction.unwrap_or_else(|| match by {
                    Clue::Only => format!("{own} is the cluster's only Node"),
                    by => format!("{own} has {by}"),
                }),
                of: vec![own],
            }),
            Identity::Ambiguous { names, .. }
                if names.iter().any(|node_name| node_name == name) =>
            {
                None
            }
            Identity::Ambiguous { names, by } => Some(Mismatch {
                why: format!("{} have {by}", names.join(", ")),
                of: names,
            }),
            Identity::Unknown(_) => match recorded {
                Some(own) if own != name => Some(Mismatch {
                    why: format!("its manifest names {own}"),
                    of: vec![own],
                }),
                _ if exists || nodes.is_none() => contradiction.map(|why| Mismatch {
                    of: Vec::new(),
                    why,
                }),
                _ => Some(Mismatch {
                    why: "its cluster has no such Node".to_owned(),
                    of: names.by_ref().cloned().collect(),
                }),
            },
        }
    }

    /// Returns the name of this node: as requested, or from kube-proxy, or from the Node that matches this machine.
    pub fn name(&self) -> Result<String, Gap> {
        self.identity().name()
    }

    /// Returns kube-proxy's pod on the node called `here`, as far as pods are known.
    pub fn proxy_pod(&self, here: Option<&str>) -> Option<&Pod> {
        let pods = self.pods().ok()?.iter().filter(|pod| {
            here.map_or(pod.spec.node_name.is_none(), |here| pod.belongs_to(here))
                && pod
                    .spec
                    .containers
                    .iter()
                    .any(|container| container.name == "kube-proxy")
        });
        // A pod that has ended stays listed next to its successor.
        pods.min_by_key(|pod| pod.has_ended())
    }

    /// Returns the node name configured for kube-proxy, with its source.
    pub fn hostname_override(&self) -> Option<(String, Clue)> {
        let named = |name: &str| {
            let name = name.trim().to_lowercase();
            (!name.is_empty()).then_some(name)
        };
        // The flag overrides the file.
        let processes = self.processes().ok().map(|all| all.processes.as_slice());
        let here = processes.unwrap_or_default().iter();
        let mut here = here.filter(|process| self.is_here(process));
        let flag = here.find_map(|process| named(&override_of(process)?));
        if let Some(name) = flag {
            return Some((name, Clue::Flag));
        }
        // The cluster's configuration names no machine without a kube-proxy.
        let text = self.evidence().text(Item::ProxyConfig).ok()?;
        let origin = text.strip_prefix(ORIGIN).unwrap_or_default();
        if origin.starts_with("ConfigMap") && self.runs_kube_proxy() == Some(false) {
            return None;
        }
        let config = self.proxy_config().ok()?;
        named(&config.hostname_override).map(|name| (name, Clue::Config))
    }

    /// Returns whether `process` is in this network namespace. A process in an unknown namespace counts as elsewhere if
    /// it serves the Node of another machine: one of a container.
    fn is_here(&self, process: &Process) -> bool {
        process.same_network.unwrap_or_else(|| {
            let name = override_of(process).map(|name| name.trim().to_lowercase());
            let nodes = self.nodes().map_or(&[][..], Vec::as_slice);
            let node = nodes
                .iter()
                .find(|node| Some(&node.metadata.name) == name.as_ref());
            !node.is_some_and(|node| self.differs(&Host::of(self), node))
        })
    }

    /// Returns whether kube-proxy runs in this network namespace, or left its link or files; `None` if that is unknown.
    pub fn runs_kube_proxy(&self) -> Option<bool> {
        let processes = &self.processes().ok()?.processes;
        let mut proxies = processes.iter().filter(|process| is_kube_proxy(process));
        if proxies.any(|process| self.is_here(process)) {
            return Some(true);
        }
        let addresses = self.addresses().ok()?;
        let files = self.proxy_files().is_ok_and(|all| !all.files.is_empty());
        Some(files || addresses.all.iter().any(|at| at.link == DUMMY))
    }

    /// Returns the evidence that this machine is none of the cluster's Nodes; `None` if it is one, or if that is unknown.
    ///
    /// Only positive evidence counts: no kube-proxy runs here, and every Node has an address or a machine ID other than
    /// this machine's.
    pub fn stranger(&self) -> Option<Stranger> {
        if self.runs_kube_proxy() != Some(false) {
            return None;
        }
        let nodes = self.nodes().ok()?;
        let host = Host::of(self);
        if nodes.is_empty() || !nodes.iter().all(|node| self.differs(&host, node)) {
            return None;
        }
        let mut names: Vec<String> = nodes
            .iter()
            .map(|node| node.metadata.name.clone())
            .collect();
        names.sort();
        let processes = self.processes().ok();
        let mut elsewhere = processes.iter().flat_map(|all| &all.processes);
        let container = elsewhere.find(|process| is_kube_proxy(process));
        Some(Stranger {
            nodes: names,
            container: container.map(|process| process.pid),
        })
    }

    /// Returns whether `node` is another machine: both have known properties, and none of them is the same. Containers on
    /// this machine share its boot ID.
    fn differs(&self, host: &Host, node: &Node) -> bool {
        let same = [
            Clue::Address,
            Clue::SystemUuid,
            Clue::ProviderId,
            Clue::MachineId,
            Clue::ProxyPod,
            Clue::PodNetwork,
            Clue::HostName,
        ];
        if same.iter().any(|clue| self.matches(host, node, *clue)) {
            return false;
        }
        let has_address = addresses_of(node).next().is_some();
        let here = self.addresses().is_ok_and(|all| !all.all.is_empty());
        let addresses = has_address && here;
        let ids = host.machine_id.is_some() && !node.status.node_info.machine_id.is_empty();
        if self.matches(host, node, Clue::BootId) {
            addresses && ids
        } else {
            addresses || ids
        }
    }

    /// Compares this machine with the Node `name`.
    pub fn claim(&self, name: &str) -> Claim {
        let configured = self.hostname_override();
        let is_configured = configured.is_some_and(|(configured, _)| configured == name);
        let host = Host::of(self);
        let nodes = match self.nodes() {
            Ok(nodes) => nodes,
            Err(_) if is_configured || host.name.as_deref() == Some(name) => return Claim::Same,
            Err(gap) => return Claim::Unknown(gap),
        };
        let Some(claimed) = nodes.iter().find(|node| node.metadata.name == name) else {
            let names = nodes.iter().map(|node| node.metadata.name.clone());
            return Claim::NoNode(names.collect());
        };
        if let Some(why) = self.contradiction(name) {
            return Claim::Other(why);
        }
        // Cloned machines share IDs, and containers on one machine its boot ID: then an ID identifies none of them.
        let is = |clue: &Clue| {
            let of = |node: &&Node| self.matches(&host, node, *clue);
            of(&claimed) && nodes.iter().filter(of).count() == 1
        };
        let same = is_configured || CLUES.iter().any(is);
        match (same, self.addresses()) {
            (true, _) => Claim::Same,
            (false, Err(gap)) => Claim::Unknown(gap),
            (false, Ok(_)) => Claim::Other(format!(
                "no address, ID or host name of Node {name} is one of this machine"
            )),
        }
    }

    /// Returns the names that this machine has without a cluster: kube-proxy's and the host's, each with its source.
    pub fn own_names(&self) -> Vec<(String, Clue)> {
        let host = Host::of(self).name.map(|name| (name, Clue::HostName));
        self.hostname_override().into_iter().chain(host).collect()
    }

    /// Returns the evidence that this machine is not the Node `name`; `None` if there is none.
    ///
    /// Only positive evidence counts: nothing that the Node alone has is on this machine, which has an address, a pod network
    /// or a kube-proxy of another Node, or another machine ID than the Node's kubelet reports.
    pub fn contradiction(&self, name: &str) -> Option<String> {
        let nodes = self.nodes().ok()?;
        let host = Host::of(self);
        let claimed = nodes.iter().find(|node| node.metadata.name == name);
        let has = |node: &Node| {
            OWN.into_iter()
                .find(|clue| self.matches(&host, node, *clue))
        };
        if claimed.is_some_and(|node| has(node).is_some()) {
            return None;
        }
        let missing = match (
            claimed.map(|node| addresses_of(node).next()),
            self.addresses(),
        ) {
            (None, _) => "the Node does not exist".to_owned(),
            (Some(None), _) => format!("Node {name} has no address"),
            (Some(Some(_)), Err(gap)) => format!("its addresses are unknown ({gap})"),
            (Some(Some(address)), Ok(_)) => {
                format!("no interface has {address} of {name}")
            }
        };
        let others = nodes.iter().filter(|node| node.metadata.name != name);
        let other = others.clone().find_map(|node| Some((node, has(node)?)));
        if let Some((node, clue)) = other {
            let sign = self.sign(node, clue);
            return Some(format!("{missing}, but {sign}"));
        }
        let claimed = claimed?;
        let reported = plain(&claimed.status.node_info.machine_id);
        let here = host.machine_id.as_deref()?;
        let differs = !reported.is_empty() && reported != here;
        (differs && !self.matches(&host, claimed, Clue::BootId)).then(|| {
            format!("{missing}, and its machine ID is {reported}, but the machine's is {here}")
        })
    }

    /// Returns, in words, the unique properties of `node` that this machine has too.
    fn sign(&self, node: &Node, clue: Clue) -> String {
        let name = &node.metadata.name;
        match (clue, self.shared_address(node)) {
            (Clue::Address, Some(address)) => {
                format!("an interface has {address} of {name}")
            }
            (Clue::ProxyPod, _) => format!("kube-proxy runs in a pod of {name}"),
            _ => {
                let networks = pod_networks(node).map(|network| network.to_string());
                let networks: Vec<_> = networks.collect();
                format!(
                    "a link has the pod network {} of Node {name}",
                    networks.join(", ")
                )
            }
        }
    }

    fn matches(&self, host: &Host, node: &Node, clue: Clue) -> bool {
        let info = &node.status.node_info;
        let same = |here: &Option<String>, reported: &str| {
            let reported = plain(reported);
            here.as_ref().is_some_and(|here| *here == reported)
        };
        match clue {
            Clue::Address => self.shared_address(node).is_some(),
            Clue::ProxyPod => self.proxy_runs_on(&node.metadata.name),
            Clue::PodNetwork => self.has_network_of(node),
            Clue::SystemUuid => same(&host.system_uuid, &info.system_uuid),
            Clue::BootId => same(&host.boot_id, &info.boot_id),
            Clue::MachineId => same(&host.machine_id, &info.machine_id),
            Clue::ProviderId => {
                let id = node.spec.provider_id.as_deref().unwrap_or_default();
                let last = id.rsplit('/').next().unwrap_or_default();
                same(&host.asset_tag, last)
            }
            Clue::HostName => host.name.as_ref().is_some_and(|here| {
                let metadata = &node.metadata;
                let label = metadata.labels.get("kubernetes.io/hostname");
                let addresses = node.status.addresses.iter();
                let mut names = addresses
                    .filter(|address| address.kind == "Hostname")
                    .map(|address| &address.address)
                    .chain([&metadata.name])
                    .chain(label);
                names.any(|name| name.to_lowercase() == *here)
            }),
            Clue::Given | Clue::Flag | Clue::Config | Clue::Only | Clue::Recording => false,
        }
    }

    /// Returns whether a kube-proxy of this machine runs in a pod of Node `name`.
    fn proxy_runs_on(&self, name: &str) -> bool {
        let (Ok(processes), Ok(pods)) = (self.processes(), self.pods()) else {
            return false;
        };
        let proxies = processes
            .processes
            .iter()
            .filter(|process| is_kube_proxy(process));
        let groups = proxies
            .filter(|proxy| proxy.same_network == Some(true))
            .filter_map(|proxy| proxy.cgroup.as_deref())
            .map(|group| plain(&group.replace('_', "-")));
        let groups: Vec<String> = groups.collect();
        let on_it = pods
            .iter()
            .filter(|pod| pod.spec.node_name.as_deref() == Some(name));
        on_it.map(|pod| plain(&pod.metadata.uid)).any(|uid| {
            let is_in = |group: &String| !uid.is_empty() && group.contains(&uid);
            groups.iter().any(is_in)
        })
    }

    /// Returns whether a link of this machine has the range of the pods of `node` as its network. Bridges of network plugins
    /// do, if they take their ranges from the Nodes.
    fn has_network_of(&self, node: &Node) -> bool {
        let Ok(here) = self.addresses() else {
            return false;
        };
        pod_networks(node)
            .filter(|network| !network.is_host())
            .any(|network| here.all.iter().any(|at| at.addr.normal() == network))
    }

    /// Returns an address of `node` that is on an interface of this machine.
    fn shared_address(&self, node: &Node) -> Option<IpAddr> {
        let here = &self.addresses().ok()?.all;
        // kube-ipvs0 and loopback have the same addresses on every machine.
        let here = || {
            here.iter()
                .filter(|at| at.link != DUMMY && at.scope != "link")
                .map(|at| at.addr.addr)
                .filter(|addr| !addr.is_loopback())
        };
        addresses_of(node).find(|addr| here().any(|at| at == *addr))
    }
}

/// Returns the ranges from which pods of `node` have their addresses.
fn pod_networks(node: &Node) -> impl Iterator<Item = Cidr> {
    let all = node.spec.pod_cidrs.iter().chain(&node.spec.pod_cidr);
    let mut all: Vec<Cidr> = all
        .filter_map(|text| text.parse().ok())
        .map(|network: Cidr| network.normal())
        .collect();
    all.dedup();
    all.into_iter()
}

fn addresses_of(node: &Node) -> impl Iterator<Item = IpAddr> {
    let all = node.status.addresses.iter();
    all.filter_map(|address| address.address.parse().ok())
}

/// Identifying properties of this machine; empty if unknown.
#[derive(Debug, Default)]
struct Host {
    name: Option<String>,
    machine_id: Option<String>,
    boot_id: Option<String>,
    system_uuid: Option<String>,
    asset_tag: Option<String>,
}

impl Host {
    fn of(node: &NodeSnapshot<'_>) -> Self {
        let mut host = Self::default();
        // Missing evidence leaves every property unknown.
        let text = node.evidence().text(Item::Host).unwrap_or_default();
        for (key, value) in text.lines().filter_map(|line| line.split_once(" = ")) {
            let value = value.trim();
            let (place, value) = match key {
                "host-name" => (&mut host.name, value.to_lowercase()),
                "machine-id" => (&mut host.machine_id, plain(value)),
                "boot-id" => (&mut host.boot_id, plain(value)),
                "system-uuid" => (&mut host.system_uuid, plain(value)),
                "asset-tag" => (&mut host.asset_tag, plain(value)),
                _ => continue,
            };
            *place = Some(value).filter(|value| !value.is_empty());
        }
        host
    }
}

/// Normalises an ID: its sources differ in dashes and upper case.
fn plain(id: &str) -> String {
    id.trim().replace('-', "").to_lowercase()
}

#[cfg(test)]
mod tests;
