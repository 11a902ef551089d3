//! Whether the network plugin has set up a pod network.

use super::NodeSnapshot;
use super::links::Link;
use crate::net::Cidr;

impl NodeSnapshot<'_> {
    /// Returns whether the node has a pod network; true if that is unknown.
    pub fn has_pod_network(&self) -> bool {
        let (Ok(links), Ok(routes)) = (self.links(), self.routes()) else {
            return true;
        };
        let config = self.proxy_config().ok();
        let of_cluster = config.iter().flat_map(|c| c.cluster_cidr.split(','));
        let name = self.name().ok();
        let nodes = self.nodes().map_or(&[][..], Vec::as_slice);
        let node = nodes
            .iter()
            .find(|node| Some(&node.metadata.name) == name.as_ref());
        let of_node = node.iter().flat_map(|n| n.spec.pod_cidrs.iter());
        let pods: Vec<Cidr> = of_cluster
            .chain(of_node.map(String::as_str))
            .filter_map(|text| text.trim().parse().ok())
            .collect();
        let leads_to_pods = |to: Cidr| {
            let overlap = |pods: &Cidr| pods.contains(to.addr) || to.contains(pods.addr);
            to.prefix > 0 && pods.iter().any(overlap)
        };
        links.all.iter().any(Link::carries_pods)
            || routes
                .all
                .iter()
                .any(|r| r.kind == "unicast" && leads_to_pods(r.destination))
    }
}

impl Link {
    /// Returns whether it is one that network plugins make for pods.
    pub fn carries_pods(&self) -> bool {
        let kinds = ["veth", "ipvlan", "macvlan", "vxlan", "geneve", "wireguard"];
        // Bridges and tunnels often have other purposes; network plugins use these names.
        let names = ["cni", "cali", "cilium", "lxc", "flannel", "weave", "antrea"];
        kinds.contains(&self.kind.as_str()) || names.iter().any(|name| self.name.starts_with(name))
    }
}
