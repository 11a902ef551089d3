//! Whether the reply returns: it must pass the node that translated the packet, and reach the client as if from the Service.

use std::net::{IpAddr, SocketAddr};

use super::judge::{Judge, Question};
use super::{Fault, Missing, Obstacle};
use crate::trace::region::Asked;
use crate::trace::route::{Decision, Lookup};
use crate::trace::{Entry, Outcome};
use kpx_node::backend::Mode;
use kpx_node::evidence::Gap;
use kpx_node::net::{Cidr, Family, Proto};

/// How long connection tracking keeps a connection that is being opened, and one that is open, with the usual value in seconds: the
/// kernel's, and kube-proxy's for open connections.
const TCP_TIMEOUTS: &[(&str, &str)] = &[
    ("net.netfilter.nf_conntrack_tcp_timeout_syn_sent", "120"),
    ("net.netfilter.nf_conntrack_tcp_timeout_syn_recv", "60"),
    (
        "net.netfilter.nf_conntrack_tcp_timeout_established",
        "86400",
    ),
];
const UDP_TIMEOUTS: &[(&str, &str)] = &[("net.netfilter.nf_conntrack_udp_timeout", "30")];

impl Judge<'_> {
    /// Returns why the reply to a packet that arrives is lost, or why that is unknown.
    pub(super) fn reply(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let (addr, number) = outcome.destination;
        let at = SocketAddr::new(addr, number);
        if self.ends_here(outcome) {
            return None;
        }
        let entry = question.flow.entry;
        let keeps_source = !outcome.masquerade && outcome.source == outcome.sent_from;
        // Without the node's addresses, it may be one of them: a packet from there to there does not leave the node.
        let may_be_own = self.node.addresses().is_err() && !self.places.is_pod(addr);
        if keeps_source && entry != Entry::Host && addr == outcome.sent_from && !may_be_own {
            return Some(Fault::Hairpin { address: at });
        }
        if addr == outcome.sent_from
            && let Some(fault) = self.hairpin_port(outcome)
        {
            return Some(fault);
        }
        if let Some(forgotten) = self.forgotten(question, outcome) {
            return Some(forgotten);
        }
        let here = self.is_here(question, outcome);
        match entry {
            Entry::Pod if keeps_source => match here {
                Some(false) => None,
                Some(true) | None => self.bypassed(question, outcome),
            },
            // Without a translation, the endpoint answers the client, which asked it.
            Entry::Outside if keeps_source && outcome.as_sent.destination => None,
            Entry::Outside if keeps_source => match here {
                Some(true) => None,
                Some(false) => Some(Fault::DirectReply { address: at }),
                None => Some(Fault::Unknown(Missing::Other(format!(
                    "whether endpoint {at} runs on this node is unknown, and with it whether the reply returns"
                )))),
            },
            _ => self.returns(outcome, here),
        }
    }

    /// Returns the fault of a translated connection of which connection tracking keeps nothing. IPVS keeps its own.
    fn forgotten(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let is_kept = match self.node.configured_mode() {
            Ok(Mode::Ipvs) => outcome.as_sent.source,
            _ => outcome.as_sent.source && outcome.as_sent.destination,
        };
        let timeouts = match question.flow.proto {
            _ if is_kept => return None,
            Proto::Tcp => TCP_TIMEOUTS,
            Proto::Udp => UDP_TIMEOUTS,
            _ => return None,
        };
        let sysctl = self.node.sysctl().ok()?;
        let is_zero = |key: &str| sysctl.get(key).is_some_and(|value| value.trim() == "0");
        let &(key, usual) = timeouts.iter().find(|(key, _)| is_zero(key))?;
        Some(Fault::Obstacle(Box::new(Obstacle::Forgotten {
            key,
            usual,
        })))
    }

    /// Returns whether the destination of `outcome` is on this node; `None` if unknown.
    pub(super) fn is_here(&self, question: Question<'_>, outcome: &Outcome) -> Option<bool> {
        let (addr, number) = outcome.destination;
        let at = SocketAddr::new(addr, number);
        let endpoints = question.port.iter().flat_map(|port| &port.endpoints);
        let endpoint = endpoints.into_iter().find(|endpoint| endpoint.addr == at);
        let by_api = endpoint
            .filter(|endpoint| endpoint.node.is_some())
            .and_then(|endpoint| endpoint.local);
        by_api
            .or_else(|| self.places.is_pod_here(addr))
            .or_else(|| {
                let gateway = outcome.gateway?;
                self.places.own(gateway).is_none().then_some(false)
            })
    }

    /// Returns the link that leads to `addr`, and the source that its route prefers.
    pub(super) fn way_to(&self, addr: IpAddr) -> Option<(String, Option<IpAddr>)> {
        let lookup = Lookup::to(Asked::new(addr, None));
        match self.router.decide(lookup) {
            Decision::Out {
                device: Some(device),
                source,
                ..
            } => Some((device.to_string(), source)),
            _ => None,
        }
    }

    /// Returns the fault of a reply that a bridge carries from the endpoint to a client on the same bridge, past the rules.
    fn bypassed(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        // Without a translation there is nothing to translate back.
        if outcome.as_sent.destination {
            return None;
        }
        let out = outcome.leaves_by()?;
        let (back, _) = self.way_to(outcome.sent_from)?;
        if back != out {
            return None;
        }
        let key = match Family::of(question.flow.destination) {
            Family::V4 => "net.bridge.bridge-nf-call-iptables",
            Family::V6 => "net.bridge.bridge-nf-call-ip6tables",
        };
        let gap = |what, gap: Gap| Some(Fault::Unknown(Missing::Gap { what, gap }));
        match self.node.sysctl().and_then(|all| all.known(key)) {
            Ok(Some("1")) => return None,
            Ok(_) => {}
            Err(missing) => {
                return gap("whether bridged packets pass the rules is unknown", missing);
            }
        }
        let links = match self.node.links() {
            Ok(links) => links,
            Err(missing) => return gap("whether the pods' link is a bridge is unknown", missing),
        };
        let mut found = links.all.iter().filter(|link| link.name == out);
        let family = Family::of(question.flow.destination);
        let is_bridge = found.any(|link| link.kind == "bridge" && !link.calls_iptables(family));
        is_bridge.then(|| Fault::BypassedReply {
            bridge: out.to_owned(),
            key,
        })
    }

    /// Returns the fault of a bridged packet to its own sender: the bridge sends it back only by a port with hairpin mode.
    fn hairpin_port(&self, outcome: &Outcome) -> Option<Fault> {
        let links = match self.node.links() {
            Ok(links) => links,
            Err(gap) => {
                return Some(Fault::Unknown(Missing::Gap {
                    what: "whether the client's link is a bridge port without hairpin mode is unknown",
                    gap,
                }));
            }
        };
        if !outcome.bridged {
            return None;
        }
        let bridge = outcome.leaves_by()?;
        // A promiscuous bridge takes the packet itself, and sends it to any port.
        let mut all = links.all.iter();
        if all.any(|link| link.name == bridge && link.flag("PROMISC") == Some(true)) {
            return None;
        }
        let ports: Vec<_> = self
            .ports(bridge)
            .filter(|port| port.kind == "veth")
            .collect();
        let modes: Vec<Option<bool>> = match self.port_of(outcome.sent_from, &ports) {
            Some(own) => vec![own.hairpin],
            None => ports.iter().map(|port| port.hairpin).collect(),
        };
        if modes.iter().all(|mode| *mode == Some(true)) {
            return None;
        }
        let bridge = bridge.to_owned();
        Some(if modes.iter().all(|mode| *mode == Some(false)) {
            Fault::HairpinPort { bridge }
        } else {
            let why = format!(
                "whether hairpin mode is on at the client's port of bridge {bridge} is unknown"
            );
            Fault::Unknown(Missing::Other(why))
        })
    }

    /// Returns why a reply to the source that this node gave the packet does not come back to it. `here` is whether the
    /// endpoint runs on this node.
    fn returns(&self, outcome: &Outcome, here: Option<bool>) -> Option<Fault> {
        let source = outcome.source;
        // The address of a masquerade is not known without addresses, which is a gap of its own.
        if outcome.masquerade && source == outcome.sent_from || source.is_unspecified() {
            return None;
        }
        let addresses = self.node.addresses().ok()?;
        let Some(link) = self.places.own(source) else {
            let is_local = addresses.all.iter().any(|at| at.addr.addr == source);
            let is_on_link = |out: &str| {
                let mut on_it = addresses.all.iter().filter(|at| at.link == out);
                on_it.any(|at| at.addr.contains(source))
            };
            let is_routed = outcome.leaves_by().is_some_and(|out| !is_on_link(out));
            let is_shared = is_local || self.places.service(source).is_some();
            return match here {
                // A pod of this node sends its reply to this node, which translates it back, unless it looks for the source on its
                // own link.
                Some(true) if is_local || is_routed => None,
                _ if is_shared => Some(Fault::SharedSource { source }),
                _ => Some(Fault::ForeignSource { source }),
            };
        };
        let out = outcome.leaves_by()?;
        if here == Some(true) || link == out || link == "lo" && !source.is_loopback() {
            return None;
        }
        let is_on_out = addresses
            .all
            .iter()
            .any(|at| at.link == out && at.addr.addr == source);
        let prefers = self
            .way_to(outcome.destination.0)
            .and_then(|(_, source)| source);
        let is_pod = self.places.is_pod(source);
        if is_on_out || is_pod || prefers == Some(source) {
            return None;
        }
        match self.places.is_of_node_object(source) {
            Ok(true) => None,
            Ok(false) => Some(Fault::OtherLink {
                source,
                link: link.to_owned(),
                out: out.to_owned(),
            }),
            Err(_) => Some(Fault::Unknown(Missing::WayBack {
                source,
                out: out.to_owned(),
            })),
        }
    }

    /// Returns the ranges of this node's pods.
    pub fn pod_ranges(&self) -> &[Cidr] {
        &self.places.pods_here
    }
}
