//! The owner of the final destination of a packet.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use super::judge::{Judge, Question};
use super::place::{Holder, Reports, pod_ranges};
use super::{Fault, Missing, Obstacle, SameNetworkAs};
use crate::trace::region::Asked;
use crate::trace::{Effect, Flow, Hop, Outcome, Verdict, why};
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::cluster::release::Change;
use kpx_node::cluster::{EndpointSlice, Pod, Service};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Cidr, Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::routes::PolicyRule;
use kpx_node::owner::chain_owner::{Maker, is_aws_branch, is_node_local_dns};
use kpx_node::owner::{self, Endpoint, EndpointState, Port};

impl Judge<'_> {
    /// Returns whether `NodeLocal` DNS listens where `flow` goes: it untracks its connections on purpose.
    pub fn is_served_by_node_local_dns(&self, flow: &Flow) -> bool {
        let own = self.places.own(flow.destination);
        own.is_some_and(is_node_local_dns)
            && self.node.sockets().is_ok_and(|all| {
                let mut taking = all.taking(flow.proto, flow.destination, flow.port);
                taking.next().is_some()
            })
    }

    /// Returns why the packet does not end at a live endpoint, unless it does.
    pub(super) fn end(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let (addr, number) = outcome.destination;
        let at = SocketAddr::new(addr, number);
        if let Some(port) = question.port {
            if let Some(who) = &port.left_to {
                let why = format!(
                    "kube-proxy does not serve {}: its label assigns it to {who}",
                    port.name
                );
                return Some(Fault::Unknown(Missing::Other(why)));
            }
            if let Some(endpoint) = port.endpoints.iter().find(|endpoint| endpoint.addr == at) {
                return match endpoint.state {
                    Some(EndpointState::Ready | EndpointState::ServingTerminating) => self
                        .at_lost_home(endpoint)
                        .or_else(|| self.taken_endpoint(question, outcome, endpoint))
                        .or_else(|| self.ended(port, endpoint))
                        .or_else(|| self.two_pods(port, endpoint))
                        .or_else(|| self.kept_here(endpoint, outcome))
                        .or_else(|| self.wrong_way(endpoint.local == Some(true), outcome))
                        .or_else(|| self.duplicate(endpoint))
                        .or_else(|| self.vacant(port, endpoint))
                        .or_else(|| self.service_as_endpoint(question, outcome, endpoint))
                        .or_else(|| self.kept_on_bridge(endpoint, outcome))
                        .or_else(|| self.external(port, endpoint, outcome))
                        .or_else(|| self.deaf_here(question, outcome))
                        .or_else(|| self.without_cloud_route(endpoint, outcome))
                        .or_else(|| self.stray(endpoint, outcome))
                        .or_else(|| self.undeclared(port, endpoint))
                        .or_else(|| self.unready(endpoint))
                        .or_else(|| {
                            let doubt = self.silent(endpoint)?;
                            Some(self.unanswered(question, outcome).unwrap_or(doubt))
                        }),
                    Some(state) => Some(Fault::NotReady { address: at, state }),
                    None => Some(self.without_objects(question)),
                };
            }
        }
        if let Some(left) = self.left_behind(question, outcome, at) {
            return Some(left);
        }
        if self.ends_here(outcome) {
            return self.at_the_node(question, outcome, at);
        }
        if let Some(fault) = self.past_local(outcome, at.ip()) {
            return Some(fault);
        }
        if let Some(fault) = self.service_address(question, outcome, at) {
            return Some(fault);
        }
        let lacks_endpoints = question.port.is_some_and(|port| port.endpoints.is_empty());
        let in_part = self.objects_in_part();
        if (lacks_endpoints || self.node.slices().is_err() || in_part.is_some())
            && self.objects_gap().is_some()
        {
            return Some(self.without_objects(question));
        }
        self.somewhere(question, at, outcome)
    }

    /// Returns the fault of a packet to an address and port of no Service that kube-proxy's rules translate to `at`.
    fn left_behind(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
        at: SocketAddr,
    ) -> Option<Fault> {
        let flow = question.flow;
        if question.port.is_some() || outcome.as_sent.destination || self.objects_gap().is_some() {
            return None;
        }
        let is_proxys = |hop: &Rc<Hop>| match &hop.effect {
            Effect::Dnat { .. } => matches!(why::maker(hop), Maker::KubeProxy),
            // Virtual servers of other software have addresses of their own.
            Effect::Balance { .. } => self.node.addresses().is_ok_and(|known| {
                let mut all = known.all.iter();
                all.any(|own| own.link == DUMMY && own.addr.addr == flow.destination)
            }),
            _ => false,
        };
        if !outcome.hops.iter().any(is_proxys) {
            return None;
        }
        let has_it = |slice: &&EndpointSlice| {
            let mut all = slice
                .endpoints
                .iter()
                .flat_map(|endpoint| &endpoint.addresses);
            all.any(|text| text.parse() == Ok(at.ip()))
                && slice.ports.iter().any(|port| port.port == Some(at.port()))
        };
        let slices = self.node.slices().ok()?.iter().filter(has_it);
        let services: BTreeSet<String> = slices
            .filter_map(|slice| slice.service())
            .map(|(namespace, name)| format!("{namespace}/{name}"))
            .collect();
        Some(Fault::Leftover {
            asked: SocketAddr::new(flow.destination, flow.port),
            address: at,
            services: services.into_iter().collect(),
        })
    }

    /// Returns the fault of a packet to an endpoint whose address the node itself has, although a pod with a network of its own
    /// has it.
    fn taken_endpoint(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
        endpoint: &Endpoint,
    ) -> Option<Fault> {
        let at = endpoint.addr;
        let link = self.places.own(at.ip())?;
        let is_elsewhere =
            endpoint.node.is_some() && endpoint.local == Some(false) && self.places.is_pod(at.ip());
        if !is_elsewhere && self.taken(at.ip()).is_none() {
            return None;
        }
        let program = match self.at_the_node(question, outcome, at) {
            Some(Fault::OtherProgram { program, .. }) => Some(program),
            Some(Fault::NothingListens { .. }) => None,
            other => return other,
        };
        Some(Fault::Obstacle(Box::new(Obstacle::Taken {
            address: at.ip(),
            link: link.to_owned(),
            inside: None,
            end: Some((at, program)),
        })))
    }

    /// Returns the fault of an endpoint with the address of a Service: a connection is translated once. In mode ipvs the node
    /// itself has the addresses of all Services. In the other modes a machine outside may have them, except cluster IPs.
    fn service_as_endpoint(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
        endpoint: &Endpoint,
    ) -> Option<Fault> {
        let address = endpoint.addr;
        let name = self.places.service(address.ip())?;
        if endpoint.pod.is_some() || self.places.own(address.ip()).is_some() {
            return None;
        }
        if self.node.configured_mode().ok()? == Mode::Ipvs {
            return self.at_the_node(question, outcome, address);
        }
        let mut services = self.node.services().ok()?.iter();
        let is_cluster_ip = services.any(|service| {
            let mut all = service.spec.cluster_ips.iter();
            all.any(|text| text.parse() == Ok(address.ip()))
        });
        is_cluster_ip.then(|| Fault::Untranslated {
            address,
            service: Some(name.to_owned()),
            again: true,
        })
    }

    /// Returns the doubt about an endpoint outside of the cluster; API servers register their own addresses while they run.
    fn external(&self, port: &Port, endpoint: &Endpoint, outcome: &Outcome) -> Option<Fault> {
        let addr = endpoint.addr.ip();
        let is_of_api = &*port.name.namespace == "default" && &*port.name.name == "kubernetes";
        let is_known = endpoint.pod.is_some()
            || endpoint.node.is_some()
            || matches!(
                self.places.holder(addr),
                Some(Holder::Pod(_) | Holder::Node(_))
            )
            || self.places.own(addr).is_some()
            || self.places.is_pod(addr)
            || self.places.is_cluster_ip(addr)
            || self.places.service(addr).is_some();
        if is_of_api || is_known {
            return None;
        }
        if let Some(doubt) = self.past_ipsec(port.proto, outcome) {
            return Some(doubt);
        }
        let address = endpoint.addr;
        Some(Fault::Unknown(match self.node.nodes() {
            // A table does not show the ranges of pods.
            Ok(_) if self.node.evidence().part(Item::Nodes).is_some() => Missing::Other(format!(
                "whose address endpoint {address} has is not shown: no pod has it, and the Nodes are shown in part"
            )),
            Ok(_) => Missing::External {
                address,
                sees_pod: !outcome.masquerade && self.places.is_pod(outcome.source),
            },
            Err(gap) => Missing::Gap {
                what: "the nodes are unknown, and the endpoint may be outside of the cluster",
                gap,
            },
        }))
    }

    /// Returns the fault of a packet to an endpoint of the node's own network at which nothing listens. Bundles
    /// without the networks of pods are older, and many of them have no sockets of pods: there, a program that listens at
    /// another address tells it, and an address that is not the Node's.
    fn deaf_here(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let fault = self.unheard(question, outcome)?;
        let is_elsewhere =
            matches!(&fault, Fault::Obstacle(of) if matches!(**of, Obstacle::Deaf { .. }));
        let is_told = self.node.pod_networks().is_ok()
            || is_elsewhere
            || self.places.is_of_node_object(outcome.destination.0) == Ok(false);
        is_told.then_some(fault)
    }

    /// Returns the fault of an endpoint whose pod has ended or was deleted, unless another one that the Service selects has its address
    /// by now.
    fn ended(&self, port: &Port, endpoint: &Endpoint) -> Option<Fault> {
        let pod = endpoint.pod.as_deref()?;
        let now = match self.places.holder(endpoint.addr.ip()) {
            Some(Holder::Pod(other)) if other == pod => return None,
            Some(Holder::Pod(other)) => Some(other),
            _ => None,
        };
        let phase = self.places.ended(pod);
        // Only the pods of this node are certainly listed; a slice made by hand may have the wrong namespace.
        let name = |text: &str| text.rsplit('/').next().map(str::to_owned);
        let is_deleted = now.is_some_and(|now| name(now) != name(pod))
            && endpoint.local == Some(true)
            && self.places.declared_ports(pod).is_none();
        if phase.is_none() && !is_deleted || now.is_some_and(|now| self.is_selected(port, now)) {
            return None;
        }
        Some(Fault::Obstacle(Box::new(Obstacle::Ended {
            at: endpoint.addr,
            pod: pod.to_owned(),
            phase: phase.map(str::to_owned),
            now: now.cloned(),
        })))
    }

    /// Returns whether the Service of `port` selects `pod`, as `NAMESPACE/NAME`.
    fn is_selected(&self, port: &Port, pod: &str) -> bool {
        let mut services = self.node.services().into_iter().flatten();
        let service = services.find(|service| {
            *service.metadata.namespace == *port.name.namespace
                && *service.metadata.name == *port.name.name
        });
        let mut pods = self.node.pods().into_iter().flatten();
        let pod = pods.find(|listed_pod| {
            let parts = pod.split_once('/');
            parts
                == Some((
                    listed_pod.metadata.namespace.as_str(),
                    listed_pod.metadata.name.as_str(),
                ))
        });
        service
            .zip(pod)
            .is_some_and(|(service, pod)| service.selects(pod))
    }

    /// Returns the fault of an endpoint whose address another pod has, too, unless that is an endpoint of the same port.
    fn two_pods(&self, port: &Port, endpoint: &Endpoint) -> Option<Fault> {
        let address = endpoint.addr.ip();
        let sharing = self.places.sharing(address);
        let first = sharing.first().map(String::as_str);
        let pod = endpoint.pod.as_deref().or(first)?;
        let is_endpoint = |name: &str| {
            let mut all = port
                .endpoints
                .iter()
                .filter(|port_endpoint| port_endpoint.addr == endpoint.addr);
            all.any(|port_endpoint| port_endpoint.pod.as_deref() == Some(name))
        };
        let other = sharing
            .iter()
            .find(|sharing| **sharing != *pod && !is_endpoint(sharing))?;
        let mut pods = [pod.to_owned(), other.clone()];
        pods.sort();
        Some(Fault::Obstacle(Box::new(Obstacle::TwoPods {
            address,
            pods,
        })))
    }

    /// Returns the fault of an endpoint on another node whose packets stay here, as its address is in the range of this node's pods.
    fn kept_here(&self, endpoint: &Endpoint, outcome: &Outcome) -> Option<Fault> {
        let address = endpoint.addr.ip();
        let (pod, node) = (endpoint.pod.as_deref()?, endpoint.node.as_deref()?);
        let link = outcome.leaves_by()?;
        // Pods may have addresses of the nodes' network.
        let bridge = self.inner_network(link, address);
        let is_in_range = self.places.is_pod_here(address) == Some(true);
        let bridge = bridge.filter(|_| !is_in_range);
        let is_of_pods = (is_in_range || bridge.is_some())
            && outcome.gateway.is_none()
            && !self.is_tunnel(link)
            && !self.places.links_of_node().contains(link);
        // Two Nodes may have the same range.
        let is_of_both = self.places.node_called(node).is_some_and(|other| {
            pod_ranges(other)
                .iter()
                .any(|range| range.contains(address))
        });
        let is_there = endpoint.local == Some(false) && !is_of_both;
        if !is_there || !is_of_pods || !self.places.knows_pods() {
            return None;
        }
        let now = match self.places.holder(address) {
            // The slice is wrong about the node.
            Some(Holder::Pod(name)) if name == pod => return None,
            Some(Holder::Pod(name)) => Some(name.clone()),
            _ if matches!(self.network_of(address), Ok(Some(_))) => return None,
            _ => None,
        };
        Some(Fault::Obstacle(Box::new(Obstacle::KeptHere {
            address,
            pod: pod.to_owned(),
            node: node.to_owned(),
            link: link.to_owned(),
            bridge: bridge.map(Cidr::normal),
            now,
        })))
    }

    /// Returns the network with `address` that `link`, a bridge inside the node, has.
    fn inner_network(&self, link: &str, address: IpAddr) -> Option<Cidr> {
        self.link(link)
            .filter(|bridge| bridge.kind == "bridge" && self.is_inner(link))?;
        let mut own = self.node.addresses().ok()?.all.iter();
        let own = own.find(|own| own.link == link && own.addr.contains(address))?;
        Some(own.addr)
    }

    /// Returns the fault of an endpoint outside of the cluster whose packets stay on a bridge inside the node, where nothing has its
    /// address.
    fn kept_on_bridge(&self, endpoint: &Endpoint, outcome: &Outcome) -> Option<Fault> {
        let address = endpoint.addr.ip();
        let link = outcome.leaves_by()?;
        let is_known = endpoint.pod.is_some() || endpoint.node.is_some();
        if is_known || outcome.gateway.is_some() || self.places.own(address).is_some() {
            return None;
        }
        let own = self.inner_network(link, address)?;
        let is_silent = self
            .node
            .neighbour_table()
            .is_ok_and(|all| all.on(address, link).is_some_and(|entry| entry.failed));
        let is_empty = self
            .link(link)
            .is_some_and(|link| link.flag("NO-CARRIER") == Some(true));
        (is_silent || is_empty).then(|| {
            Fault::Obstacle(Box::new(Obstacle::SameNetwork {
                link: link.to_owned(),
                address: own,
                others: SameNetworkAs::Endpoint(address),
            }))
        })
    }

    /// Returns the doubt about an endpoint on a Node that has gone, or whose kubelet no longer reports.
    fn silent(&self, endpoint: &Endpoint) -> Option<Fault> {
        let node = endpoint.node.as_deref()?;
        if endpoint.local == Some(true) {
            return None;
        }
        let since = match self.places.reports(node)? {
            Reports::Does => return None,
            Reports::Not(since) => Some(since.to_owned()),
            Reports::Gone => None,
        };
        Some(Fault::Unknown(Missing::Silent {
            node: node.to_owned(),
            since,
            address: endpoint.addr,
        }))
    }

    /// Returns the doubt about an endpoint that gets connections although its pod is not ready.
    fn unready(&self, endpoint: &Endpoint) -> Option<Fault> {
        let pod = endpoint.pod.as_deref()?;
        let is_unready =
            endpoint.state == Some(EndpointState::Ready) && self.places.is_unready(pod);
        is_unready.then(|| {
            Fault::Unknown(Missing::Unready {
                pod: pod.to_owned(),
                address: endpoint.addr,
            })
        })
    }

    /// Returns the pod of `endpoint`: the one that its slice names, else the one that has its address.
    pub(super) fn pod_of<'s>(&'s self, endpoint: &'s Endpoint) -> Option<&'s str> {
        let by_address = || match self.places.holder(endpoint.addr.ip()) {
            Some(Holder::Pod(name)) => Some(name.as_str()),
            _ => None,
        };
        endpoint.pod.as_deref().or_else(by_address)
    }

    /// Returns why some objects are not known, if the evidence shows only a part of them.
    fn objects_in_part(&self) -> Option<Gap> {
        let all = [Item::EndpointSlices, Item::Services, Item::Pods];
        all.into_iter()
            .find_map(|item| self.node.evidence().part(item))
    }

    /// Returns why Services or endpoints are not known, if so.
    fn objects_gap(&self) -> Option<Gap> {
        let gap = self.node.services().err();
        gap.or_else(|| self.node.slices().err())
            .or_else(|| self.objects_in_part())
    }

    /// Returns the fault of a packet whose Service or endpoints are not known.
    fn without_objects(&self, question: Question<'_>) -> Fault {
        let gap = self.objects_gap();
        let name = question
            .port
            .map(|port| port.name.to_string())
            .unwrap_or_default();
        Fault::Unknown(match gap {
            Some(gap) => Missing::Gap {
                what: "the endpoints are unknown",
                gap,
            },
            None => Missing::Other(format!("the endpoints of {name} are unknown")),
        })
    }

    /// Returns the fault of a packet that leaves the node although its endpoint runs on it.
    fn wrong_way(&self, is_local: bool, outcome: &Outcome) -> Option<Fault> {
        if !is_local
            || !self.pod_network
            || self.ends_here(outcome)
            || self.node.has_router_in_open_vswitch()
        {
            return None;
        }
        let pod = outcome.destination.0;
        if let Some(down) = self.home_down(pod) {
            return Some(Fault::Obstacle(Box::new(down)));
        }
        let device = outcome.leaves_by().unwrap_or("a link");
        let home = || self.router.home(Asked::new(pod, None), &[device]);
        // A gateway of the node itself is none, unless the route leads past the pod's link.
        let is_away = outcome
            .gateway
            .is_some_and(|by| self.places.own(by).is_none() || home().is_some());
        if let Some(missing) = self.unrouted(pod).filter(|_| is_away) {
            return Some(Fault::Obstacle(Box::new(missing)));
        }
        let way = match outcome.gateway {
            Some(_) if !is_away => return None,
            Some(gateway) => format!("{device} via {gateway}"),
            None => {
                home()?;
                device.to_owned()
            }
        };
        // The network of AWS sends it back.
        if is_aws_branch(device) || self.node.has_branch_card(pod) {
            return None;
        }
        if outcome.gateway.is_some() && self.is_kept_apart(outcome.sent_from) {
            return Some(Fault::Unknown(Missing::Unmodelled(format!(
                "routing policy rules lead what pod {} sends to {pod}, a pod of this node, by {way}: whether that router sends it back \
                 is unknown",
                outcome.sent_from
            ))));
        }
        Some(Fault::WrongWay {
            address: outcome.destination.into(),
            way,
            home: self
                .places
                .home_elsewhere(outcome.destination.0)
                .map(Box::new),
        })
    }

    /// Returns the VRF of the node's link that has `address`.
    fn vrf_with(&self, address: IpAddr) -> Option<String> {
        let link = self.places.own(address)?;
        let vrf = self.node.links().ok()?.vrf_of(link)?;
        Some(vrf.name.clone())
    }

    /// Returns the fault of a packet that ends at the node itself, not at an endpoint.
    fn at_the_node(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
        at: SocketAddr,
    ) -> Option<Fault> {
        // Without its virtual servers, a packet to an address of kube-ipvs0 or to a NodePort seems to end here.
        let is_sent = question.port.is_some() && outcome.as_sent.destination;
        let is_ipvs = self.node.configured_mode().ok() == Some(Mode::Ipvs);
        if (self.places.own(at.ip()).is_none() || is_sent && is_ipvs)
            && let Err(gap) = self.node.ipvs_or_none()
            && !gap.is_absence()
        {
            return Some(Fault::Unknown(Missing::Gap {
                what: "the virtual servers are unknown",
                gap,
            }));
        }
        let proto = question.flow.proto;
        let unknown = |gap: Gap| {
            let what = "whether something listens on the node is unknown";
            Some(Fault::Unknown(Missing::Gap { what, gap }))
        };
        if !matches!(proto, Proto::Tcp | Proto::Udp) {
            return unknown(Gap::Unsupported(
                Item::Sockets,
                format!("it has no {proto} sockets"),
            ));
        }
        let sockets = match self.node.sockets() {
            Ok(sockets) => sockets,
            Err(gap) => return unknown(gap),
        };
        let mut taking = sockets.taking(proto, at.ip(), at.port());
        let Some(socket) = taking.find(|socket| self.is_open(socket, question, outcome)) else {
            return match sockets.gaps.first() {
                Some(gap) => unknown(gap.clone()),
                None if self.is_endpoint_of_old(question, at) => None,
                None => Some(match self.not_on_loopback(question, at) {
                    Some(why) => Fault::NotOnLoopback { address: at, why },
                    None => Fault::NothingListens {
                        address: at,
                        vrf: self.vrf_with(at.ip()),
                        link: None,
                    },
                }),
            };
        };
        if self.relays_on_loopback(question, at) {
            let why = "kube-proxy itself takes connections to NodePorts on loopback addresses, and connects to an endpoint: \
                       kpx does not follow that second connection";
            return Some(Fault::Unknown(Missing::Unmodelled(why.to_owned())));
        }
        let own = self.places.own(at.ip());
        if outcome.as_sent.destination && own.is_some_and(is_node_local_dns) {
            return None;
        }
        // Load balancers ask kube-proxy itself whether this node has endpoints.
        let mut services = self.node.services().into_iter().flatten();
        let is_health =
            services.any(|service| service.spec.health_check_node_port == Some(at.port()));
        if is_health
            && socket
                .processes
                .iter()
                .any(|process| process.name == "kube-proxy")
        {
            return None;
        }
        // If no Service is asked for, the program is the end that the translation leads to.
        let is_service = question.port.is_some()
            || [at.ip(), question.flow.destination]
                .into_iter()
                .any(|addr| self.places.service(addr).is_some());
        is_service.then(|| Fault::OtherProgram {
            address: at,
            program: socket.processes.first().map_or_else(
                || "an unknown process".to_owned(),
                |process| format!("{} (pid {})", process.name, process.pid),
            ),
        })
    }

    /// Returns whether `at`, a target without a Service, is an endpoint of a Service in a bundle that may lack the sockets of
    /// pods: then it is [deaf](Self::deaf_here) as for a target with the Service.
    fn is_endpoint_of_old(&self, question: Question<'_>, at: SocketAddr) -> bool {
        let has_it = |slice: &EndpointSlice| {
            let mut addresses = slice
                .endpoints
                .iter()
                .flat_map(|endpoint| &endpoint.addresses);
            addresses.any(|address| address.parse() == Ok(at.ip()))
                && slice.ports.iter().any(|port| port.port == Some(at.port()))
        };
        question.port.is_none()
            && self.node.pod_networks().is_err()
            && self.node.slices().is_ok_and(|all| all.iter().any(has_it))
    }

    /// Returns whether `at` is the NodePort that is asked for, at a loopback address.
    fn is_on_loopback(question: Question<'_>, at: SocketAddr) -> bool {
        let node_port = question.port.and_then(|port| port.node_port);
        at.ip().is_loopback() && node_port == Some(at.port())
    }

    /// Returns whether kube-proxy itself should listen on the NodePort of the target at the loopback address `at`.
    fn relays_on_loopback(&self, question: Question<'_>, at: SocketAddr) -> bool {
        let family = Family::of(at.ip());
        Self::is_on_loopback(question, at)
            && self.node.configured_mode().ok() == Some(Mode::Nftables)
            && question.flow.proto == Proto::Tcp
            && self
                .node
                .desired(Mode::Nftables)
                .is_ok_and(|state| state.listens_on_loopback(family))
    }

    /// Returns why kube-proxy does not serve the NodePort that is asked for at the loopback address `at`.
    fn not_on_loopback(&self, question: Question<'_>, at: SocketAddr) -> Option<&'static str> {
        if !Self::is_on_loopback(question, at) || self.relays_on_loopback(question, at) {
            return None;
        }
        let config = self.node.proxy_config().ok()?;
        match (Family::of(at.ip()), self.node.configured_mode().ok()?) {
            (_, Mode::Nftables) => {
                let state = self.node.desired(Mode::Nftables).ok();
                let can = state.is_some_and(|state| state.has(Change::LocalhostNodePorts));
                Some(if can {
                    "mode nftables serves localhost for TCP alone, with a feature gate and localhost in nodePortAddresses"
                } else {
                    "mode nftables has no NodePorts on localhost"
                })
            }
            (Family::V6, _) => {
                Some("IPv6 has no route_localnet, so such packets cannot leave the node")
            }
            (Family::V4, Mode::Ipvs) => Some("mode ipvs has no NodePorts on localhost"),
            (Family::V4, Mode::Iptables) => (config.iptables.localhost_node_ports == Some(false))
                .then_some("iptables.localhostNodePorts is false"),
            (Family::V4, Mode::Userspace) => None,
        }
    }

    /// Returns the fault of a packet for an address of the node, as that of `NodeLocal` DNS, if a routing policy rule before the table local
    /// leads it out.
    pub(super) fn past_local(&self, outcome: &Outcome, address: IpAddr) -> Option<Fault> {
        let holder = self.places.own(address)?;
        let device = outcome.leaves_by()?;
        let (route, first) = self.leading(address, (device, outcome.gateway))?;
        let mut rules = self.node.rules().ok()?.all.iter();
        // The same table may be for what comes in by that link.
        let is_it = |rule: &&PolicyRule| {
            rule.table.as_ref() == Some(&route.table) && rule.iif.as_deref() != Some(device)
        };
        let rule = rules.find(is_it).or(first)?;
        Some(Fault::Obstacle(Box::new(Obstacle::PastLocal {
            address,
            holder: holder.to_owned(),
            link: device.to_owned(),
            rule: Box::new(rule.clone()),
        })))
    }

    /// Returns the fault of a packet that leaves the node for an address of a Service.
    fn service_address(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
        at: SocketAddr,
    ) -> Option<Fault> {
        let service = self.places.service(at.ip());
        if service.is_none() && !self.places.is_cluster_ip(at.ip()) {
            return None;
        }
        // Without the virtual servers, it is unknown what translates it.
        if let Err(gap) = self.node.ipvs_or_none()
            && !gap.is_absence()
            && self.node.configured_mode().ok() == Some(Mode::Ipvs)
        {
            return Some(Fault::Unknown(Missing::Gap {
                what: "the virtual servers are unknown",
                gap,
            }));
        }
        let own = question.port.map(|port| port.name.to_string());
        Some(Fault::Untranslated {
            address: at,
            service: service.map(str::to_owned).or(own),
            again: !outcome.as_sent.destination,
        })
    }

    /// Returns the fault of a packet to an address that no endpoint of the Service has; without a Service, to an
    /// address without a known owner.
    fn somewhere(
        &self,
        question: Question<'_>,
        at: SocketAddr,
        outcome: &Outcome,
    ) -> Option<Fault> {
        let holder = self.places.holder(at.ip());
        let is_pod = self.places.is_pod(at.ip());
        let beyond = || {
            let mut lost = lost_dns(self.node).unwrap_or_default().into_iter();
            if let Some((pod, _)) = lost.find(|(_, address)| *address == at.ip()) {
                return Some(Fault::NoLocalDns {
                    address: at.ip(),
                    pod: format!("{}/{}", pod.metadata.namespace, pod.metadata.name),
                });
            }
            let out = outcome.leaves_by().map(str::to_owned);
            let balancer = self.node.services().ok().and_then(|all| {
                let has = |service: &&Service| {
                    let mut ips = service
                        .status
                        .load_balancer
                        .ingress
                        .iter()
                        .filter_map(|ingress| ingress.ip.as_deref());
                    ips.any(|ip| ip.parse() == Ok(at.ip()))
                };
                let service = all.iter().find(has)?;
                Some(format!(
                    "{}/{}",
                    service.metadata.namespace, service.metadata.name
                ))
            });
            Some(Fault::Unknown(Missing::Beyond {
                address: at,
                out,
                balancer,
            }))
        };
        if let Some(holder) = holder {
            return match question.port {
                // It was an endpoint of this port, or is one of another port.
                Some(port) if is_of(holder, port) => Some(Fault::NoEndpoint {
                    address: at,
                    holder: None,
                }),
                Some(_) => Some(Fault::NoEndpoint {
                    address: at,
                    holder: Some(holder.clone()),
                }),
                None if matches!(holder, Holder::Node(name) if self.places.object().is_some_and(|object| object.metadata.name == *name)) => {
                    Some(Fault::Unknown(Missing::Other(format!(
                        "{} is the address of this Node, but no link that was read on this machine has it",
                        at.ip()
                    ))))
                }
                None if matches!(holder, Holder::Node(_)) => {
                    Some(Fault::Unknown(Missing::OtherMachine(holder.clone())))
                }
                None => None,
            };
        }
        if self.places.is_pod_here(at.ip()) == Some(true) {
            return Some(match self.node.pods() {
                Ok(_) => Fault::NoPod { address: at },
                Err(gap) => Fault::Unknown(Missing::Gap {
                    what: "the pods of the node are unknown",
                    gap,
                }),
            });
        }
        match question.port {
            None => beyond(),
            Some(_) if outcome.verdict == Verdict::Unmatched && outcome.as_sent.destination => {
                beyond()
            }
            Some(_) => Some(Fault::NoEndpoint {
                address: at,
                holder: (!is_pod).then(|| Holder::Outside(Family::of(at.ip()))),
            }),
        }
    }
}

/// Returns the addresses that `NodeLocal` DNS should have on this node and that no link has, with its pod.
pub fn lost_dns<'n>(node: &'n NodeSnapshot<'_>) -> Result<Vec<(&'n Pod, IpAddr)>, Gap> {
    let mut all = local_dns(node)?;
    if !all.is_empty() {
        let own = &node.addresses()?.all;
        all.retain(|(_, address)| own.iter().all(|at| at.addr.addr != *address));
    }
    Ok(all)
}

/// Returns the addresses of `NodeLocal` DNS on this node that are not of Services, with its pod: kube-proxy serves those of Services.
pub fn local_dns<'n>(node: &'n NodeSnapshot<'_>) -> Result<Vec<(&'n Pod, IpAddr)>, Gap> {
    let here = node.name().ok();
    let pods = node.pods()?.iter();
    let here = pods.filter(|pod| here.is_some() && pod.spec.node_name == here && !pod.has_ended());
    let wanted: Vec<(&Pod, IpAddr)> = here
        .flat_map(|pod| {
            pod.local_dns()
                .into_iter()
                .map(move |address| (pod, address))
        })
        .collect();
    if wanted.is_empty() {
        return Ok(wanted);
    }
    let services = node.services()?;
    let is_other = |address: IpAddr| {
        let mut all = services.iter().flat_map(owner::addresses);
        all.all(|(_, at)| at != address)
    };
    let others = wanted.into_iter().filter(|(_, address)| is_other(*address));
    Ok(others.collect())
}

/// Returns whether `holder` is an endpoint of the Service that has `port`.
fn is_of(holder: &Holder, port: &Port) -> bool {
    let own = &port.name;
    matches!(holder, Holder::EndpointOf(namespace, name) if *namespace == *own.namespace && *name == *own.name)
}
