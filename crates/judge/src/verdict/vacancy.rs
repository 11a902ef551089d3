//! Endpoints whose address no pod has: the pod is gone, has another address, or the EndpointSlice is behind.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::judge::Judge;
use super::place::Holder;
use super::{Fault, Missing, Obstacle};
use kpx_node::cluster::EndpointSlice;
use kpx_node::net::Family;
use kpx_node::owner::{Endpoint, Port};

impl Judge<'_> {
    /// Returns the fault of an endpoint whose pod runs here without the address that its object has.
    fn address_gone(&self, endpoint: &Endpoint) -> Option<Fault> {
        let addr = endpoint.addr.ip();
        let Some(Holder::Pod(pod)) = self.places.holder(addr) else {
            return None;
        };
        let is_gone = endpoint.local == Some(true)
            && self.node.addresses().is_ok()
            && self.places.own(addr).is_none()
            && self.is_in_no_network(addr)
            && self.sees_most_networks();
        is_gone.then(|| {
            Fault::Obstacle(Box::new(Obstacle::AddressGone {
                at: endpoint.addr,
                pod: pod.clone(),
            }))
        })
    }

    /// Returns whether the networks of most pods of this node with their own address were read, and at least as many networks as
    /// there are such pods.
    fn sees_most_networks(&self) -> bool {
        let name = self.node.name().ok();
        let pods = self.node.pods().into_iter().flatten();
        let here = pods.filter(|pod| pod.spec.node_name == name && !pod.spec.host_network);
        let here = here.filter(|pod| pod.status.phase != "Pending");
        let addresses = here.filter_map(|pod| pod.addresses().next());
        let (unseen, seen): (Vec<_>, Vec<_>) = addresses.partition(|at| self.is_in_no_network(*at));
        let read = self.node.pod_networks().map_or(0, Vec::len);
        unseen.len() < seen.len() && unseen.len() + seen.len() <= read
    }

    /// Returns whether no pod of this node has the address of `endpoint`.
    pub(super) fn is_vacant(&self, port: &Port, endpoint: &Endpoint) -> bool {
        self.vacant(port, endpoint)
            .is_some_and(|fault| fault.fate().fails())
    }

    /// Returns the fault of an endpoint in a range of pods whose address no pod has, or may have none.
    pub(super) fn vacant(&self, port: &Port, endpoint: &Endpoint) -> Option<Fault> {
        let (address, addr) = (endpoint.addr, endpoint.addr.ip());
        if let Some(gone) = self.address_gone(endpoint) {
            return Some(gone);
        }
        let is_pod = matches!(self.places.holder(addr), Some(Holder::Pod(_)));
        // A pod in the host's network has the address of the node.
        let may_be_own = self.node.addresses().is_err() || self.places.own(addr).is_some();
        if is_pod || may_be_own || !self.places.knows_pods() {
            return None;
        }
        if let Some(pod) = endpoint.pod.as_deref() {
            if endpoint.local != Some(true) {
                return None;
            }
            // The objects may be only some of the node's pods; the networks are not.
            if self.is_in_no_network(addr)
                || self.is_behind(port) && self.places.is_unlisted(pod, addr)
            {
                return Some(Fault::NoPod { address });
            }
            let is_in_doubt =
                self.node.pod_networks().is_err() && self.places.is_unlisted(pod, addr);
            return is_in_doubt.then(|| {
                let pod = Some(pod.to_owned());
                Fault::Unknown(Missing::Vacant { address, pod })
            });
        }
        let pods = self.node.pods();
        match (self.places.is_pod_here(addr), pods) {
            (Some(true), Ok(_)) => Some(Fault::NoPod { address }),
            (Some(true), Err(gap)) => Some(Fault::Unknown(Missing::Gap {
                what: "the pods of the node are unknown",
                gap,
            })),
            _ if self.places.is_pod(addr) => {
                Some(Fault::Unknown(Missing::Vacant { address, pod: None }))
            }
            _ => None,
        }
    }

    /// Returns whether the EndpointSlices of the Service of `port` are certainly behind: they list none of the addresses of a ready pod that
    /// the Service selects, or were made for a selector that the Service has no more.
    fn is_behind(&self, port: &Port) -> bool {
        let (namespace, name) = (&*port.name.namespace, &*port.name.name);
        let mut services = self.node.services().into_iter().flatten();
        let service = services.find(|service| {
            service.metadata.namespace == namespace && service.metadata.name == name
        });
        let Some(service) = service else {
            return false;
        };
        let slices = self.node.slices().map_or(&[][..], Vec::as_slice).iter();
        let ours: Vec<&EndpointSlice> = slices
            .filter(|slice| slice.service() == Some((namespace, name)))
            .collect();
        if ours.iter().any(|slice| slice.is_orphan(service)) {
            return true;
        }
        let listed: BTreeSet<IpAddr> = ours
            .iter()
            .flat_map(|slice| &slice.endpoints)
            .flat_map(|endpoint| &endpoint.addresses)
            .flat_map(|text| text.parse())
            .collect();
        let mut pods = self.node.pods().into_iter().flatten();
        pods.any(|pod| {
            let of_family = |addr: &IpAddr| service.has_family(Family::of(*addr));
            let mut addresses = pod.addresses().filter(of_family).peekable();
            service.selects(pod)
                && pod.is_ready()
                && addresses.peek().is_some()
                && addresses.all(|addr| !listed.contains(&addr))
        })
    }
}
