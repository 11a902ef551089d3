//! Service proxies in Open vSwitch: they answer connections of pods before the packets get to the rules of the node.

use super::judge::{Judge, Question};
use super::{Fault, Missing};
use crate::trace::Entry;

/// The links of network plugins whose switch has a service proxy of its own, and the plugins.
const SWITCHES: [(&str, &str); 3] = [
    ("antrea-gw0", "Antrea"),
    ("ovn-k8s-mp0", "OVN-Kubernetes"),
    ("ovn0", "Kube-OVN"),
];

impl Judge<'_> {
    /// Returns the doubt about a packet of a pod to an address of a Service, if the switch between the pod and the node may translate it.
    pub(super) fn by_switch(&self, question: Question<'_>) -> Option<Fault> {
        let flow = question.flow;
        if flow.entry != Entry::Pod || self.places.service(flow.destination).is_none() {
            return None;
        }
        let links = &self.node.links().ok()?.all;
        let is_port = |name: &str| {
            let mut all = links.iter();
            all.any(|link| link.name == *name && link.kind == "openvswitch")
        };
        let (link, plugin) = SWITCHES.iter().find(|(name, _)| is_port(name))?;
        Some(Fault::Unknown(Missing::Unmodelled(format!(
            "the service proxy of {plugin} may translate the packet in Open vSwitch, before it comes to {link} and the rules of the node: \
             kpx does not read its flows"
        ))))
    }
}
