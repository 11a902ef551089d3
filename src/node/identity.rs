//! Determines which Node of the cluster this machine is.
//!
//! The most reliable source is kube-proxy: its `--hostname-override`, or `hostnameOverride` in its configuration.
//! kubeadm leaves the latter empty, so the kubelet's report of each Node is compared with this machine: addresses,
//! hardware ID, boot ID, machine ID and host name. No single clue is trusted if another one narrows the choice: cloned
//! installations share a machine ID, and containers on one machine share the boot ID.

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;

use super::NodeSnapshot;
use crate::backend::ipvs::model::DUMMY;
use crate::cluster::Node;
use crate::cluster::flags::Flags;
use crate::evidence::{Gap, Item};

/// Items that [`NodeSnapshot::identity`] uses.
pub const NEEDS: &[Item] = &[
    Item::Host,
    Item::Addresses,
    Item::Processes,
    Item::ProxyConfig,
    Item::Nodes,
];

/// Programs that accept kube-proxy's flags.
const KUBE_PROXY: &[&str] = &["kube-proxy", "hyperkube"];

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
    /// Hardware UUID.
    SystemUuid,
    /// Machine ID of the cloud provider.
    ProviderId,
    /// Boot ID of the kernel.
    BootId,
    /// Machine ID of the installation.
    MachineId,
    /// Host name.
    HostName,
    /// The cluster has only one Node.
    Only,
}

impl Display for Clue {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Given => "the given name",
            Self::Flag => "kube-proxy's --hostname-override",
            Self::Config => "kube-proxy's hostnameOverride",
            Self::Address => "an address of this machine",
            Self::SystemUuid => "this machine's system UUID",
            Self::ProviderId => "this machine's provider ID",
            Self::BootId => "this machine's boot ID",
            Self::MachineId => "this machine's machine ID",
            Self::HostName => "this machine's host name",
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

/// Properties that a Node and its machine have in common, the strongest first.
const CLUES: [Clue; 6] = [
    Clue::Address,
    Clue::SystemUuid,
    Clue::ProviderId,
    Clue::BootId,
    Clue::MachineId,
    Clue::HostName,
];

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
        if let Some((name, by)) = self.hostname_override() {
            return known(&name, by);
        }
        let nodes = match self.nodes() {
            Ok(nodes) => nodes,
            Err(gap) => return Identity::Unknown(gap),
        };
        let host = Host::of(self);
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
            ([only], by) => known(&only.metadata.name, by.unwrap_or(Clue::Only)),
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

    /// Returns the name of this node: as requested, or from kube-proxy, or from the Node that matches this machine.
    pub fn name(&self) -> Result<String, Gap> {
        self.identity().name()
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
        let mut here = here.filter(|of| of.same_network != Some(false));
        let flag = here.find_map(|process| {
            let flags = if KUBE_PROXY.contains(&process.name.as_str()) {
                Flags::parse(process.args.get(1..).unwrap_or_default())
            } else {
                Flags::passed_on(&process.args)
            };
            named(flags.value("hostname-override")?)
        });
        if let Some(name) = flag {
            return Some((name, Clue::Flag));
        }
        let config = self.proxy_config().ok()?;
        named(&config.hostname_override).map(|name| (name, Clue::Config))
    }

    /// Compares this machine with the Node `name`.
    pub fn claim(&self, name: &str) -> Claim {
        let configured = self.hostname_override();
        let is_configured = configured.is_some_and(|(configured, _)| configured == name);
        let nodes = match self.nodes() {
            Ok(nodes) => nodes,
            Err(_) if is_configured => return Claim::Same,
            Err(gap) => return Claim::Unknown(gap),
        };
        let Some(claimed) = nodes.iter().find(|node| node.metadata.name == name) else {
            let names = nodes.iter().map(|node| node.metadata.name.clone());
            return Claim::NoNode(names.collect());
        };
        if let Some(why) = self.contradiction(name) {
            return Claim::Other(why);
        }
        let host = Host::of(self);
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

    /// Returns the evidence that this machine is not the Node `name`; `None` if there is none.
    ///
    /// Only positive evidence counts: the Node's addresses are not on this machine, and this machine has an address of
    /// another Node or another machine ID than the Node's kubelet reports.
    pub fn contradiction(&self, name: &str) -> Option<String> {
        let nodes = self.nodes().ok()?;
        let host = Host::of(self);
        let is = |node: &Node, clue| self.matches(&host, node, clue);
        let claimed = nodes.iter().find(|node| node.metadata.name == name);
        if claimed.is_some_and(|node| is(node, Clue::Address)) {
            return None;
        }
        let missing = match claimed {
            None => "the Node does not exist".to_owned(),
            Some(node) => match addresses_of(node).next() {
                None => format!("Node {name} has no address"),
                Some(address) => {
                    format!("its address {address} is not on an interface of this machine")
                }
            },
        };
        let other = nodes
            .iter()
            .filter(|node| node.metadata.name != name)
            .find_map(|node| Some((node, self.shared_address(node)?)));
        if let Some((node, address)) = other {
            let other = &node.metadata.name;
            return Some(format!(
                "{missing}, but address {address} of Node {other} is"
            ));
        }
        let claimed = claimed?;
        let reported = plain(&claimed.status.node_info.machine_id);
        let here = host.machine_id.as_deref()?;
        let differs = !reported.is_empty() && reported != here;
        (differs && !is(claimed, Clue::BootId)).then(|| {
            format!("{missing}, and its machine ID is {reported}, but this machine's is {here}")
        })
    }

    fn matches(&self, host: &Host, node: &Node, clue: Clue) -> bool {
        let info = &node.status.node_info;
        let same = |here: &Option<String>, reported: &str| {
            let reported = plain(reported);
            here.as_ref().is_some_and(|here| *here == reported)
        };
        match clue {
            Clue::Address => self.shared_address(node).is_some(),
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
                    .filter(|of| of.kind == "Hostname")
                    .map(|of| &of.address)
                    .chain([&metadata.name])
                    .chain(label);
                names.any(|name| name.to_lowercase() == *here)
            }),
            Clue::Given | Clue::Flag | Clue::Config | Clue::Only => false,
        }
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

fn addresses_of(node: &Node) -> impl Iterator<Item = IpAddr> {
    let all = node.status.addresses.iter();
    all.filter_map(|of| of.address.parse().ok())
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
mod tests {
    use super::*;
    use crate::evidence::Evidence;

    /// A cluster of three Nodes, as their kubelets report them.
    fn nodes(edit: impl Fn(usize, &mut serde_json::Value)) -> String {
        let one = |at: usize| {
            let mut node = serde_json::json!({
                "metadata": {"name": format!("w{at}"), "labels": {}},
                "spec": {"providerID": format!("aws:///eu-1a/i-0{at}")},
                "status": {
                    "addresses": [{"type": "InternalIP", "address": format!("10.0.0.{at}")}],
                    "nodeInfo": {
                        "machineID": format!("aa{at}"), "bootID": format!("bb-{at}"), "systemUUID": format!("CC-{at}"),
                    },
                },
            });
            edit(at, &mut node);
            node
        };
        serde_json::json!({"items": [one(1), one(2), one(3)]}).to_string()
    }

    fn evidence(nodes: String, host: &str, address: &str) -> Evidence {
        let mut all = Evidence::default();
        all.insert(Item::Nodes, Ok(nodes));
        all.insert(Item::Host, Ok(host.to_owned()));
        let addresses = format!(
            r#"[{{"ifname": "eth0", "addr_info": [
                {{"family": "inet", "local": "{address}", "prefixlen": 24, "scope": "global"}}]}},
               {{"ifname": "kube-ipvs0", "addr_info": [
                {{"family": "inet", "local": "10.0.0.3", "prefixlen": 32, "scope": "global"}}]}}]"#
        );
        all.insert(Item::Addresses, Ok(addresses));
        all
    }

    fn known(name: &str, by: Clue) -> Identity {
        let name = name.to_owned();
        Identity::Known { name, by }
    }

    #[test]
    fn each_clue_alone_identifies_one_of_three_nodes() {
        let elsewhere = "192.0.2.1";
        for (host, address, by) in [
            ("", "10.0.0.2", Clue::Address),
            ("system-uuid = cc-2", elsewhere, Clue::SystemUuid),
            ("asset-tag = i-02", elsewhere, Clue::ProviderId),
            ("boot-id = bb-2", elsewhere, Clue::BootId),
            ("machine-id = aa2", elsewhere, Clue::MachineId),
            ("host-name = W2", elsewhere, Clue::HostName),
        ] {
            let all = evidence(nodes(|_, _| ()), host, address);
            assert_eq!(NodeSnapshot::new(&all).identity(), known("w2", by));
        }
    }

    #[test]
    fn kube_proxys_own_name_comes_first_and_its_flag_before_its_file() {
        let mut all = evidence(nodes(|_, _| ()), "", "10.0.0.2");
        let config = "kind: KubeProxyConfiguration\nhostnameOverride: W1\n";
        all.insert(Item::ProxyConfig, Ok(config.to_owned()));
        assert_eq!(
            NodeSnapshot::new(&all).identity(),
            known("w1", Clue::Config)
        );
        let processes = r#"{"processes": [
            {"pid": 1, "name": "kube-proxy", "args": ["kube-proxy", "--hostname-override=other"], "sameNetwork": false},
            {"pid": 2, "name": "kube-proxy", "args": ["kube-proxy", "--hostname-override=w3"], "sameNetwork": true}]}"#;
        all.insert(Item::Processes, Ok(processes.to_owned()));
        assert_eq!(NodeSnapshot::new(&all).identity(), known("w3", Clue::Flag));
        let given = NodeSnapshot::new(&all).called(Some("w2"));
        assert_eq!(given.identity(), known("w2", Clue::Given));
    }

    #[test]
    fn a_shared_clue_is_narrowed_by_the_next_one() {
        // Nodes in containers on one cloned machine.
        let shared = nodes(|_, node| {
            node["status"]["nodeInfo"]["bootID"] = "bb".into();
            node["status"]["nodeInfo"]["machineID"] = "aa".into();
        });
        let host = "machine-id = aa\nboot-id = bb\n";
        let all = evidence(shared.clone(), host, "192.0.2.1");
        let ambiguous = NodeSnapshot::new(&all).identity();
        assert!(
            matches!(&ambiguous, Identity::Ambiguous { names, by: Clue::BootId } if names.len() == 3),
            "{ambiguous:?}"
        );
        let why = ambiguous.name().unwrap_err().to_string();
        assert!(why.contains("w1, w2, w3") && why.contains("--node NAME"));
        let all = evidence(shared, &format!("{host}host-name = w3\n"), "192.0.2.1");
        let identity = NodeSnapshot::new(&all).identity();
        assert_eq!(identity, known("w3", Clue::HostName));
        // No clue matches; a single Node needs no clue.
        let all = evidence(nodes(|_, _| ()), "host-name = laptop", "192.0.2.1");
        let identity = NodeSnapshot::new(&all).identity();
        assert!(matches!(identity, Identity::Unknown(_)), "{identity:?}");
        let mut all = all;
        let only = r#"{"items": [{"metadata": {"name": "a"}}]}"#;
        all.insert(Item::Nodes, Ok(only.to_owned()));
        assert_eq!(NodeSnapshot::new(&all).identity(), known("a", Clue::Only));
    }

    #[test]
    fn only_positive_evidence_contradicts_a_node_name() {
        let said = |host: &str, address: &str, name: &str| {
            let all = evidence(nodes(|_, _| ()), host, address);
            NodeSnapshot::new(&all).contradiction(name)
        };
        assert_eq!(said("", "10.0.0.2", "w2"), None);
        assert_eq!(
            said("", "10.0.0.2", "w1").as_deref(),
            Some(
                "its address 10.0.0.1 is not on an interface of this machine, but address 10.0.0.2 of Node w2 is"
            )
        );
        let stranger = said("", "10.0.0.2", "w9").unwrap();
        assert!(
            stranger.starts_with("the Node does not exist, but address 10.0.0.2"),
            "{stranger}"
        );
        // A machine behind a translated address may be any Node.
        assert_eq!(said("", "192.0.2.1", "w1"), None);
        let other = said("machine-id = aa9", "192.0.2.1", "w1").unwrap();
        assert!(
            other.contains("its machine ID is aa1") && other.ends_with("is aa9"),
            "{other}"
        );
        assert_eq!(
            said("machine-id = aa9\nboot-id = bb-1", "192.0.2.1", "w1"),
            None
        );
        assert_eq!(said("machine-id = aa9", "10.0.0.1", "w1"), None);
    }
}
