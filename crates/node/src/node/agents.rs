//! Network plugins on a node: whether their agents run, and whether their links carry pods.

use std::net::IpAddr;

use super::NodeSnapshot;
use crate::backend::chain_owner::{Maker, SOFTWARE, Software};
use crate::cluster::Pod;
use crate::evidence::Gap;

/// The state of a network plugin whose objects are on a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Agent {
    /// Its agent runs, or has a pod on the node that may run again.
    Runs,
    /// Its agent does not run, and pods are connected by its links.
    Missing,
    /// Its agent does not run, and no pod depends on it.
    Gone,
}

impl NodeSnapshot<'_> {
    /// Returns whether the agent of `plugin` runs on this node; a gap if neither its pods nor its processes were read.
    pub fn agent(&self, plugin: &Software) -> Result<Agent, Gap> {
        let pods = self.pods();
        if self.pod_of(plugin).is_some() {
            return Ok(Agent::Runs);
        }
        let processes = match (self.processes(), &pods) {
            (Ok(all), _) => all.processes.as_slice(),
            (Err(_), Ok(_)) => &[],
            (Err(gap), Err(_)) => return Err(gap),
        };
        let mut processes = processes.iter();
        if processes.any(|process| plugin.is_agent(&process.name)) || self.is_in_k3s(plugin) {
            return Ok(Agent::Runs);
        }
        Ok(if self.carries_pods(plugin) {
            Agent::Missing
        } else {
            Agent::Gone
        })
    }

    /// Returns the same for the network plugin that made an object; `None` if none did, or if it is unknown.
    pub fn agent_of(&self, maker: Maker) -> Option<Agent> {
        self.agent(plugin_of(maker)?).ok()
    }

    /// Returns the pod with the agent of the network plugin that made something.
    pub fn agent_pod(&self, maker: Maker) -> Option<&Pod> {
        self.pod_of(plugin_of(maker)?)
    }

    /// Returns the pod on this node with the agent of `plugin`.
    fn pod_of(&self, plugin: &Software) -> Option<&Pod> {
        let here = self.object_name().ok();
        let mut pods = self.pods().ok()?.iter();
        pods.find(|pod| here.is_some() && pod.spec.node_name == here && plugin.has_agent(pod))
    }

    /// Returns whether a process that is in no pod may be the agent: k3s contains flannel, and the policies of kube-router.
    fn is_in_k3s(&self, plugin: &Software) -> bool {
        let name = self.object_name().ok();
        let mut nodes = self.nodes().into_iter().flatten();
        let Some(node) = nodes.find(|node| Some(&node.metadata.name) == name.as_ref()) else {
            // An unknown node may be one of k3s.
            return matches!(plugin.name, "flannel" | "kube-router");
        };
        let version = &node.status.node_info.kubelet_version;
        let args = node.metadata.annotations.get("k3s.io/node-args");
        let args = args.map_or("", String::as_str);
        let processes = self
            .processes()
            .map_or(&[][..], |all| all.processes.as_slice());
        let runs = || {
            processes
                .iter()
                .any(|process| process.name.starts_with("k3s"))
        };
        (version.contains("+k3s") || runs())
            && match plugin.name {
                "flannel" => !args.contains("none"),
                "kube-router" => !args.contains("disable-network-policy"),
                _ => false,
            }
    }

    /// Returns whether a link or a route to a pod that runs here is one of `plugin`.
    fn carries_pods(&self, plugin: &Software) -> bool {
        let links = self.links();
        let networks = self.pod_networks().into_iter().flatten();
        let mut ends = networks.filter_map(|network| network.link_of(links.as_ref().ok()?));
        if ends.any(|link| plugin.has_link(&link.name)) {
            return true;
        }
        let running = self.pods().into_iter().flatten();
        let running = running.filter(|pod| pod.status.phase == "Running" && !pod.spec.host_network);
        let mut addresses = running.filter_map(|pod| pod.status.pod_ip.as_deref()?.parse().ok());
        let routes = self.routes().map_or(&[][..], |all| &all.all);
        addresses.any(|address: IpAddr| {
            routes.iter().any(|route| {
                let mut devices = route.devices().into_iter();
                let is_own = route.destination.is_host() && route.destination.addr == address;
                is_own && devices.any(|device| plugin.has_link(device))
            })
        })
    }
}

/// Returns the network plugin that is `maker`.
fn plugin_of(maker: Maker) -> Option<&'static Software> {
    let Maker::Other(name) = maker else {
        return None;
    };
    let mut plugins = SOFTWARE.iter().filter(|plugin| !plugin.agents.is_empty());
    plugins.find(|plugin| plugin.name == name)
}

impl Software {
    /// Returns whether `pod` is its agent.
    pub fn has_agent(&self, pod: &Pod) -> bool {
        let containers = &pod.spec.containers;
        self.is_agent(&pod.metadata.name)
            || containers
                .iter()
                .any(|container| self.is_agent(&container.name) || self.is_agent(&container.image))
    }
}
