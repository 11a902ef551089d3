//! Service proxies in Open vSwitch, which translate connections without the rules of the kernel.

use super::NodeSnapshot;
use super::processes::kube_proxies;

/// OVN-Kubernetes' link between the node and its pods.
const OVN_LINK: &str = "ovn-k8s-mp0";

/// Antrea's link between the node and its pods.
const ANTREA_LINK: &str = "antrea-gw0";

/// Kube-OVN's link between the node and its pods.
const KUBE_OVN_LINK: &str = "ovn0";

impl NodeSnapshot<'_> {
    /// Returns whether the pods of this node are behind a router in Open vSwitch, as those of other nodes.
    pub fn has_router_in_open_vswitch(&self) -> bool {
        self.links().is_ok_and(|links| {
            let mut all = links.all.iter();
            all.any(|link| [OVN_LINK, KUBE_OVN_LINK].contains(&&*link.name))
        })
    }

    /// Returns the name of the program that serves Services in Open vSwitch here, by links and processes: for pods only, or
    /// for all clients. kpx does not read Open vSwitch.
    pub fn open_vswitch_proxy(&self, for_pods: bool) -> Option<&'static str> {
        let links = self.links().ok()?;
        let has_link = |name: &str| links.all.iter().any(|link| link.name == name);
        if has_link(OVN_LINK) {
            return Some("OVN-Kubernetes");
        }
        // The host uses kube-proxy.
        if has_link(KUBE_OVN_LINK) {
            return for_pods.then_some("Kube-OVN");
        }
        if !has_link(ANTREA_LINK) {
            return None;
        }
        // Antrea serves the host, too, if it replaces kube-proxy.
        let serves = match self.processes() {
            Ok(all) => {
                let runs = all
                    .processes
                    .iter()
                    .any(|process| process.name == "antrea-agent");
                runs && (for_pods || kube_proxies(all).next().is_none())
            }
            Err(_) => for_pods,
        };
        serves.then_some("Antrea")
    }
}
