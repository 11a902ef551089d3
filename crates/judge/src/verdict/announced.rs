//! Addresses of Services that clients outside look for in a network of this node: a machine must answer for them there.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::judge::{Judge, Question};
use super::{AddressHolder, Fault, Missing, Obstacle, sysctl_of};
use crate::trace::sources::near_the_end;
use crate::trace::{Entry, Flow};
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::cluster::{DaemonSet, Node, Pod, PodSpec, Service, Unready};
use kpx_node::evidence::Gap;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::links::Address;

/// Parts of the names of DaemonSets and pods that announce addresses of load balancers from the nodes themselves.
const ANNOUNCERS: &[&str] = &[
    "speaker",
    "metallb",
    "kube-vip",
    "cilium",
    "svclb",
    "purelb",
    "openelb",
    "loxilb",
    "kube-router",
    "calico",
    "antrea",
    "ovn",
    "keepalived",
    "porter",
];

/// Parts of the names of DaemonSets and pods that ask a cloud for its load balancers.
const CLOUDS: &[&str] = &["cloud", "ccm"];

/// Parts of the names of DaemonSets and pods of the speakers of `MetalLB`.
const SPEAKERS: &[&str] = &["speaker", "metallb"];

/// The port of BGP.
const BGP: u16 = 179;

/// Daemons that exchange routes with routers.
const ROUTERS: &[&str] = &[
    "bird", "zebra", "bgp", "ospf", "isis", "rip", "babel", "eigrp",
];

/// The beginning of the link-layer addresses of VRRP groups: keepalived may announce an address with one.
const VRRP: &str = "00:00:5e:00:0";

/// The label of Nodes that load balancers exclude: `MetalLB` announces nothing on them.
const LEFT_OUT: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// The option with which the speaker of `MetalLB` ignores that label.
const IGNORES: &str = "--ignore-exclude-lb";

/// Returns the Nodes that have endpoints of the Service called `service`, as `NAMESPACE/NAME`, if its externalTrafficPolicy is Local: no
/// other one may announce its addresses.
fn local_nodes<'n>(node: &'n NodeSnapshot<'_>, service: &str) -> Option<BTreeSet<&'n str>> {
    let asked = service.split_once('/')?;
    let mut services = node.services().ok()?.iter();
    let service = services
        .find(|service| (&*service.metadata.namespace, &*service.metadata.name) == asked)?;
    if service.spec.external_traffic_policy.as_deref() != Some("Local") {
        return None;
    }
    let slices = node.slices().ok()?.iter();
    let slices = slices.filter(|slice| slice.service() == Some(asked));
    let names = slices.flat_map(|slice| &slice.endpoints);
    Some(
        names
            .filter_map(|endpoint| endpoint.node_name.as_deref())
            .collect(),
    )
}

/// Returns that only `MetalLB` announces addresses, and that all Nodes which may announce those of `service` are excluded.
fn all_left_out(node: &NodeSnapshot<'_>, service: &str) -> Option<String> {
    let is_one = |name: &str| SPEAKERS.iter().any(|speaker| name.contains(speaker));
    let sets = node.daemon_sets().map_or(&[][..], Vec::as_slice).iter();
    let pods = node.pods().map_or(&[][..], Vec::as_slice).iter();
    let found: Vec<(&str, &PodSpec)> = sets
        .map(|set| (&*set.metadata.name, &set.spec.template.spec))
        .chain(pods.map(|pod| (&*pod.metadata.name, &pod.spec)))
        .filter(|(name, _)| is_announcer(name))
        .collect();
    let ignores = |spec: &PodSpec| {
        let mut containers = spec.containers.iter();
        containers.any(|container| container.args.iter().any(|arg| arg.starts_with(IGNORES)))
    };
    let is_metallb = !found.is_empty()
        && found
            .iter()
            .all(|(name, spec)| is_one(name) && !ignores(spec));
    if !is_metallb {
        return None;
    }
    let local = local_nodes(node, service);
    let may = |name: &str| local.as_ref().is_none_or(|local| local.contains(name));
    let nodes = node.nodes().ok()?.iter();
    let nodes: Vec<&Node> = nodes.filter(|node| may(&node.metadata.name)).collect();
    let is_excluded = |node: &&Node| node.metadata.labels.contains_key(LEFT_OUT);
    let is_left_out = !nodes.is_empty() && nodes.iter().all(is_excluded);
    is_left_out.then(|| {
        let which = match &local {
            Some(_) => "the address nowhere: all Nodes with an endpoint (externalTrafficPolicy is Local)",
            None => "no address: all Nodes",
        };
        format!(
            "MetalLB announces {which} have the label {LEFT_OUT}, which it honors. `kubectl label nodes NODE {LEFT_OUT}-` removes it from a \
             Node"
        )
    })
}

/// Returns whether what is called `name` may announce addresses of load balancers.
fn is_announcer(name: &str) -> bool {
    announces_itself(name) || CLOUDS.iter().any(|cloud| name.contains(cloud))
}

/// Returns whether what is called `name` may announce addresses of load balancers from its node.
fn announces_itself(name: &str) -> bool {
    ANNOUNCERS.iter().any(|announcer| name.contains(announcer))
}

/// Returns whether the containers of `pod` may run.
fn may_run(pod: &Pod) -> bool {
    let unready = pod.unready();
    !matches!(unready, Some(Unready::Container { .. } | Unready::Ended(_)))
}

/// Returns whether a DaemonSet or pod that may announce addresses of load balancers is in the cluster. If the pods of other nodes are
/// known, too, those do not count that do not run.
fn has_running_announcer(node: &NodeSnapshot<'_>) -> Option<bool> {
    let pods = node.pods().ok()?;
    let here = node.name().ok();
    if !pods.iter().any(|pod| pod.spec.node_name != here) {
        return has_one(node, is_announcer).ok();
    }
    let has_running = |set: &DaemonSet| {
        let is_of_set = |pod: &&Pod| {
            let mut owners = pod.metadata.owners.iter();
            pod.metadata.namespace == set.metadata.namespace
                && owners.any(|owner| owner.kind == "DaemonSet" && owner.name == set.metadata.name)
        };
        let mut own = pods.iter().filter(is_of_set).peekable();
        own.peek().is_none() || own.any(may_run)
    };
    let mut sets = node.daemon_sets().ok()?.iter();
    let is_set = sets.any(|set| is_announcer(&set.metadata.name) && has_running(set));
    let mut pods = pods.iter();
    Some(is_set || pods.any(|pod| is_announcer(&pod.metadata.name) && may_run(pod)))
}

/// Returns whether a DaemonSet or pod for whose name `is_one` holds is in the cluster.
fn has_one(node: &NodeSnapshot<'_>, is_one: impl Fn(&str) -> bool) -> Result<bool, Gap> {
    let is_set = |set: &DaemonSet| is_one(&set.metadata.name);
    let is_pod = |pod: &Pod| is_one(&pod.metadata.name);
    Ok(node.daemon_sets()?.iter().any(is_set) || node.pods()?.iter().any(is_pod))
}

/// Returns whether something on the nodes may announce addresses of load balancers itself.
pub(crate) fn announces_from_nodes(node: &NodeSnapshot<'_>) -> Result<bool, Gap> {
    has_one(node, announces_itself)
}

impl Judge<'_> {
    /// Returns the doubt about a packet from outside to an address of a Service in a network of this node, if it is known that nothing
    /// announces it: what could do so excludes it, or the address is on kube-ipvs0 alone and this node answers for no such address.
    pub(super) fn unannounced(&self, question: Question<'_>) -> Option<Fault> {
        let flow = question.flow;
        let address = flow.destination;
        if flow.entry != Entry::Outside || self.places.service(address).is_none() {
            return None;
        }
        let missing = self.silence(address)?;
        let is_told = matches!(&missing, Missing::Unannounced { why: Some(_), .. });
        let mut all = self.node.addresses().into_iter().flat_map(|all| &all.all);
        let is_on_dummy = all.any(|at| at.addr.addr == address);
        (is_told || is_on_dummy).then_some(Fault::Unknown(missing))
    }

    /// Returns the fault of a packet to the address of a load balancer in a network of this node that belongs to something else there.
    /// The packets of pods meet kube-proxy's rules before.
    pub(super) fn held_elsewhere(&self, question: Question<'_>) -> Option<Fault> {
        let Flow {
            destination: address,
            entry,
            ..
        } = *question.flow;
        if entry == Entry::Pod
            || self.places.service(address).is_none()
            || self.places.is_cluster_ip(address)
        {
            return None;
        }
        let own = self.node.addresses().ok()?.all.iter();
        let is_broadcast = |at: &&Address| {
            let last = near_the_end(at.addr, 0);
            address.is_ipv4() && at.addr.prefix < 31 && last == Some(address)
        };
        let is_own = own.clone().any(|at| at.addr.addr == address);
        let holder = match own.clone().find(is_broadcast) {
            Some(_) if is_own && entry == Entry::Host => None,
            Some(at) => Some((&*at.link, AddressHolder::All(at.addr.normal()))),
            None if entry == Entry::Outside => self.other_holder(address),
            None => None,
        };
        let (link, holder) = holder.filter(|_| self.node_of(address).is_none())?;
        Some(Fault::Obstacle(Box::new(Obstacle::HeldElsewhere {
            address,
            link: link.to_owned(),
            holder,
        })))
    }

    /// Returns the machine that has `address`, that of a load balancer, in a network of this node, and the link to it: programs on the nodes
    /// announce it, and its neighbour entry has the link-layer address of no node, router or VRRP group; or the machine is a gateway of
    /// this node.
    fn other_holder(&self, address: IpAddr) -> Option<(&str, AddressHolder)> {
        let routes = self.node.routes().ok()?.all.iter();
        let gateways = routes.filter_map(|route| route.gateway);
        let is_gateway = gateways.clone().any(|gateway| gateway == address);
        if !is_gateway && announces_from_nodes(self.node) != Ok(true) {
            return None;
        }
        let own = &self.node.addresses().ok()?.all;
        let table = self.node.neighbour_table().ok()?;
        let near =
            |at: &&Address| at.link != DUMMY && !at.addr.is_host() && at.addr.contains(address);
        let network = own.iter().find(near)?;
        let mac_of = |other: IpAddr| {
            let entry = table.on(other, &network.link)?;
            entry.mac.as_deref().filter(|_| !entry.failed)
        };
        let mac = mac_of(address).filter(|mac| !mac.to_lowercase().starts_with(VRRP))?;
        let is_other = |other: &str| !other.eq_ignore_ascii_case(mac);
        let mut links = self.node.links().ok()?.all.iter();
        let is_own = links.any(|link| link.mac.as_deref().is_some_and(|own| !is_other(own)));
        let mut others = own.iter().filter(|at| !is_gateway || at.link != DUMMY);
        if is_own || others.any(|at| at.addr.addr == address) {
            return None;
        }
        // The link-layer addresses of all Nodes in the network have to be known.
        let nodes = self.node.nodes().ok()?.iter();
        let nodes = nodes.flat_map(|node| &node.status.addresses);
        let nodes = nodes.filter_map(|at| at.address.parse::<IpAddr>().ok());
        let mut nodes = nodes.filter(|at| network.addr.contains(*at) && *at != network.addr.addr);
        let mut macs = gateways.filter_map(mac_of);
        let is_held =
            (is_gateway || macs.all(is_other)) && nodes.all(|at| mac_of(at).is_some_and(is_other));
        let holder = if is_gateway {
            AddressHolder::Gateway
        } else {
            AddressHolder::Machine
        };
        is_held.then(|| (&*network.link, holder(mac.to_owned())))
    }

    /// Returns a note for each address of `service` in a network of this node for which nothing is known to answer there, and for those of
    /// load balancers to which nothing is known to lead.
    pub(crate) fn unannounced_addresses(&self, service: &Service) -> Vec<String> {
        let ingress = service.status.load_balancer.ingress.iter();
        let ingress = ingress.filter(|ingress| ingress.ip_mode.as_deref() != Some("Proxy"));
        let balancers = ingress.filter_map(|ingress| ingress.ip.as_deref());
        let balancers = balancers.filter_map(|text| text.parse().ok());
        let balancers: Vec<IpAddr> = balancers.collect();
        let others = service.spec.external_ips.iter();
        let others = others.filter_map(|text| text.parse().ok());
        let unknown = balancers.iter().copied().chain(others);
        let unknown = unknown.filter_map(|address| {
            let silence = self.silence(address).map(|missing| missing.to_string());
            silence.or_else(|| self.without_speaker(address))
        });
        let class = service.spec.load_balancer_class.as_deref();
        let is_far = |address: &&IpAddr| {
            class.is_none_or(is_announcer) && self.is_unrouted(**address) == Some(true)
        };
        let far = balancers.iter().filter(is_far).map(|address| {
            format!(
                "{address} is in no network of this node, and nothing here announces it with BGP: clients outside reach it only if a router \
                 has a route that leads it to a node"
            )
        });
        unknown.chain(far).collect()
    }

    /// Returns that this node does not announce `address`, which is in a network of it, as the pod that does so here does not run.
    fn without_speaker(&self, address: IpAddr) -> Option<String> {
        let here = self.node.name().ok();
        let mut own = self.node.addresses().ok()?.all.iter();
        let is_near = |at: &Address| !at.addr.is_host() && at.addr.contains(address);
        if !own.any(|at| at.link != DUMMY && is_near(at)) || self.node_of(address).is_some() {
            return None;
        }
        let mut pods = self.node.pods().ok()?.iter();
        let stopped = pods.find(|pod| {
            let name = &pod.metadata.name;
            let is_one = SPEAKERS.iter().any(|speaker| name.contains(speaker));
            is_one && pod.spec.node_name == here && !may_run(pod)
        })?;
        let (meta, why) = (&stopped.metadata, stopped.unready()?);
        Some(format!(
            "this node does not announce {address}: pod {}/{} does not run ({why}); whether another node does is not known",
            meta.namespace, meta.name
        ))
    }

    /// Returns whether `address`, that of a load balancer, is in no network of this node, and what announces addresses in networks runs, and
    /// neither a cloud nor a routing daemon is known that leads packets for it here.
    fn is_unrouted(&self, address: IpAddr) -> Option<bool> {
        let own = &self.node.addresses().ok()?.all;
        let mut near = own.iter().filter(|at| at.link != DUMMY);
        if near.any(|at| at.addr.contains(address)) || self.node_of(address).is_some() {
            return Some(false);
        }
        let has = |names: &[&str]| {
            has_one(self.node, |name| {
                names.iter().any(|part| name.contains(part))
            })
            .ok()
        };
        let mut nodes = self.node.nodes().ok()?.iter();
        let is_in_cloud = nodes.any(|node| node.spec.provider_id.is_some()) || has(CLOUDS)?;
        // Without them, a machine outside may have the address itself.
        if !has(SPEAKERS)? && !has(&["kube-vip"])? {
            return Some(false);
        }
        let sockets = self.node.sockets().ok()?;
        let listens = sockets
            .listening
            .iter()
            .any(|socket| socket.local.port() == BGP);
        let tracked = &self.node.conntrack().ok()?.entries;
        let mut ends = tracked
            .iter()
            .flat_map(|entry| [entry.original.source, entry.original.destination]);
        let mut routes = self.node.routes().ok()?.all.iter();
        let by_daemon = routes.any(|route| {
            route
                .daemon()
                .is_some_and(|daemon| ROUTERS.contains(&daemon))
        });
        Some(!is_in_cloud && !listens && !ends.any(|end| end.port() == BGP) && !by_daemon)
    }

    /// Returns that nothing is known to answer for `address` in a network of this node; `None` if something may, or if the address is in
    /// no such network.
    fn silence(&self, address: IpAddr) -> Option<Missing> {
        if self.places.is_cluster_ip(address) || self.node_of(address).is_some() {
            return None;
        }
        let all = &self.node.addresses().ok()?.all;
        let mut own = all.iter().filter(|at| at.link != DUMMY);
        let is_near = |at: &Address| !at.addr.is_host() && at.addr.contains(address);
        let network = own.clone().find(|at| is_near(at))?;
        if own.any(|at| at.addr.addr == address) || self.answers(network, address) {
            return None;
        }
        let why = all_left_out(self.node, self.places.service(address)?);
        let is_silent = why.is_some() || has_running_announcer(self.node) == Some(false);
        is_silent.then_some(Missing::Unannounced { address, why })
    }

    /// Returns whether this node answers on the link of `network` for `address`, which no link with a network has: for IPv4, the kernel
    /// answers for the addresses of all links unless `arp_ignore` is set (`arp_ignore` of Linux), and for others with `proxy_arp`.
    fn answers(&self, network: &Address, address: IpAddr) -> bool {
        let Ok(sysctl) = self.node.sysctl() else {
            return true;
        };
        let is_zero = |name: &str| {
            let keys = [sysctl_of("all", name), sysctl_of(&network.link, name)];
            keys.iter()
                .all(|key| sysctl.get(key).is_some_and(|value| value == "0"))
        };
        let mut all = self.node.addresses().into_iter().flat_map(|all| &all.all);
        let is_own = all.any(|at| at.addr.addr == address);
        address.is_ipv4() && (is_own && is_zero("arp_ignore") || !is_zero("proxy_arp"))
    }
}
