//! Ports of bridges, and programs on links.

use std::net::IpAddr;
use std::rc::Rc;

use super::judge::{Judge, Question};
use super::logged::{Corrupted, corrupted};
use super::replies::original;
use super::{By, Fault, Missing, Obstacle, Which};
use crate::trace::{Carried, Effect, Entry, Flow, Hop, Outcome, link_hooks};
use kpx_node::evidence::{Item, Kernel};
use kpx_node::net::{Family, Proto};
use kpx_node::node::links::Link;
use kpx_node::node::pod_networks::PodNetwork;

/// A port that a client may send from: replies go to it.
pub const REPLY_PORT: u16 = 40_000;

impl Judge<'_> {
    /// Returns the fault of a packet that would have to go from one isolated port of a bridge to another.
    pub(super) fn isolated(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let end = outcome.destination.0;
        if question.flow.entry != Entry::Pod || end == outcome.sent_from {
            return None;
        }
        let bridge = outcome.leaves_by()?;
        // The port of the bridge to the network of machines is none of a pod.
        let ports: Vec<&Link> = self
            .ports(bridge)
            .filter(|port| port.kind == "veth")
            .collect();
        let isolated = ports.iter().filter(|port| port.isolated == Some(true));
        let isolated: Vec<&str> = isolated.map(|port| port.name.as_str()).collect();
        if isolated.len() < 2 {
            return None;
        }
        // A packet that is routed leaves by the bridge itself, but its reply goes from port to port unless it is masqueraded.
        let keeps_source = outcome.source == outcome.sent_from && !outcome.masquerade;
        let (back, _) = self.way_to(outcome.sent_from)?;
        if back != bridge || !outcome.bridged && !keeps_source {
            return None;
        }
        let both = [end, outcome.sent_from].map(|pod| self.port_of(pod, &ports));
        if let [Some(one), Some(other)] = both {
            return [one, other]
                .iter()
                .all(|port| port.isolated == Some(true))
                .then(|| {
                    Fault::Obstacle(Box::new(Obstacle::Isolated {
                        bridge: bridge.to_owned(),
                    }))
                });
        }
        Some(if isolated.len() == ports.len() {
            Fault::Obstacle(Box::new(Obstacle::Isolated {
                bridge: bridge.to_owned(),
            }))
        } else {
            Fault::Unknown(Missing::Unmodelled(format!(
                "whether the ports of both pods on bridge {bridge} are isolated is unknown: {} of {} are",
                isolated.len(),
                ports.len()
            )))
        })
    }

    /// Returns the doubt about a packet, or its reply, on a bridge: it leaves by a port where the bridge neither learns addresses nor
    /// floods, or enters by a locked port.
    pub(super) fn unlearnt(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        if self.ends_here(outcome) {
            return None;
        }
        if let Some(fault) = self.unasked_pod(outcome) {
            return Some(fault);
        }
        let there = outcome
            .leaves_by()
            .map(|link| (outcome.destination.0, link.to_owned()));
        let back = (question.flow.entry == Entry::Pod)
            .then(|| self.way_to(outcome.sent_from))
            .flatten()
            .map(|(link, _)| (outcome.sent_from, link));
        let (pod, port, bridge, is_locked) =
            [there, back]
                .into_iter()
                .flatten()
                .find_map(|(pod, bridge)| {
                    let ports: Vec<&Link> = self.ports(&bridge).collect();
                    let port = self.port_of(pod, &ports)?;
                    let is_locked = port.locked == Some(true);
                    let found = || (pod, port.name.clone(), bridge.clone(), is_locked);
                    is_restricted(port).then(found)
                })?;
        if is_locked {
            return Some(Fault::Unknown(Missing::Unmodelled(format!(
                "whether bridge {bridge} takes packets from {pod} is unknown: its port {port} is locked, as for 802.1X, so only those \
                 from MAC addresses that an entry has for it pass (`bridge fdb show dev {port}` lists them; \
                 `bridge link set dev {port} locked off` is the default)"
            ))));
        }
        Some(Fault::Unknown(Missing::Unmodelled(format!(
            "whether bridge {bridge} carries packets to {pod} is unknown: for its port {port}, both learning and flood are off, so \
             only an entry set by hand leads there (`bridge fdb show dev {port}` lists them; \
             `bridge link set dev {port} learning on flood on` is the default)"
        ))))
    }

    /// Returns the doubt about a packet whose reply a bridge carries from pod to pod, if the port of the client does not get the question for
    /// its MAC address, which the other pod does not know yet.
    fn unasked_pod(&self, outcome: &Outcome) -> Option<Fault> {
        let (client, end) = (outcome.sent_from, outcome.destination.0);
        if !self.is_on_its_bridge(outcome) || self.knows(end, client) {
            return None;
        }
        let (_, inside) = self.link_of_pod(client)?;
        let port = self.far_end(inside)?;
        let (index, key) = match Family::of(client) {
            Family::V4 => (0, "bcast_flood"),
            Family::V6 => (1, "mcast_flood"),
        };
        (port.questions[index] == Some(false)).then(|| {
            let port = &port.name;
            Fault::Unknown(Missing::Unmodelled(format!(
                "whether {end} finds {client} is unknown: port {port} of the bridge does not get the question for its MAC address ({key} is \
                 off; `bridge link set dev {port} {key} on` is the default)"
            )))
        })
    }

    /// Returns whether the port of `pod` may not carry its packets, by its own settings.
    pub(super) fn has_restricted_port(&self, pod: IpAddr) -> bool {
        let link = self.link_of_pod(pod);
        let port = link.and_then(|(_, inside)| self.far_end(inside));
        port.is_some_and(|port| {
            is_restricted(port) || port.isolated == Some(true) || self.is_lossy(&port.name)
        })
    }

    /// Returns the port of a bridge that `pod` has, if its network is read.
    pub(super) fn port_of<'p>(&self, pod: IpAddr, ports: &[&'p Link]) -> Option<&'p Link> {
        let (_, inside) = self.link_of_pod(pod)?;
        let mut ports = ports.iter().copied();
        ports.find(|port| Some(port.index) == inside.peer)
    }

    /// Returns the link of the node that is the other end of `inside`, a link of a pod. The ends of a veth pair name each other;
    /// otherwise the pod belongs to a node inside of this machine.
    pub(super) fn far_end(&self, inside: &Link) -> Option<&Link> {
        let links = &self.node.links().ok()?.all;
        let end = links.iter().find(|link| Some(link.index) == inside.peer)?;
        let is_pair = inside.kind != "veth" || end.peer == Some(inside.index);
        is_pair.then_some(end)
    }

    /// Returns the network of `pod` and the link there that has its other end elsewhere, if the network is read: the one with the
    /// address, or the only one.
    pub(super) fn link_of_pod(&self, pod: IpAddr) -> Option<(&PodNetwork, &Link)> {
        let network = self.network_of(pod).ok().flatten()?;
        let with_address = network.link_with(pod).filter(|link| link.peer.is_some());
        let only = || {
            let links = network.links.as_ref()?.all.iter();
            let mut links = links.filter(|link| link.peer.is_some());
            links.next().filter(|_| links.next().is_none())
        };
        Some((network, with_address.or_else(only)?))
    }

    /// Returns the fault of replies that chains on links or bridges stop.
    pub(super) fn reply_at_links(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
    ) -> Option<Fault> {
        if !self.has_link_hooks || self.ends_here(outcome) {
            return None;
        }
        let flow = Flow {
            entry: Entry::Outside,
            source: Some(outcome.destination.0),
            destination: outcome.source,
            port: REPLY_PORT,
            mark: 0,
            carried: Carried::default(),
            proto: question.flow.proto,
            established: true,
        };
        let entered = self.came_in_by(question, outcome);
        let back = outcome.leaves_by()?;
        let original = original(question, outcome);
        let stopped = link_hooks::reply(self.node, &flow, original, back, entered.as_deref())?;
        Some(if stopped.certainly {
            let family = Family::of(flow.destination);
            let rule = stopped.rule.as_deref();
            Fault::Obstacle(Box::new(Obstacle::Further {
                which: Which::Reply,
                from: outcome.destination.0,
                to: outcome.source,
                reason: stopped.reason,
                missing: None,
                by: rule.and_then(|hop| By::foreign(hop, family, self.node)),
            }))
        } else {
            let why = format!("whether the reply returns is unknown: {}", stopped.reason);
            Fault::Unknown(Missing::Unmodelled(why))
        })
    }

    /// Returns the doubt about a packet that works as far as kpx models its way: a program on a link may stop it, or IPVS.
    pub(super) fn unmodelled(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        self.by_program(question, outcome)
            .or_else(|| self.thinned(outcome))
            .or_else(|| narrowed(outcome))
            .or_else(|| self.corrupted(question, outcome))
            .or_else(|| self.corrupted_before(question, outcome))
            .or_else(|| self.in_no_vlan(outcome))
            .or_else(|| self.in_two_pods(outcome))
    }

    /// Returns the doubt about a masqueraded datagram in a VXLAN tunnel of a kernel that miscalculates its checksum: see CN11. TCP sends
    /// again until a packet gets through.
    fn corrupted(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let out = outcome.leaves_by()?;
        let mut links = self.node.links().ok()?.all.iter();
        let is_vxlan = links.any(|link| link.name == out && link.kind == "vxlan");
        let kernel = self.node.kernel().ok()?;
        let is_hit = question.flow.proto == Proto::Udp && outcome.masquerade && is_vxlan;
        (is_hit && kernel < WITH_CHECKSUMS).then(|| {
            Fault::Unknown(Missing::Unmodelled(format!(
                "kernels before 5.7 may send masqueraded datagrams by VXLAN tunnel {out} with a wrong checksum, and the other node drops \
                 them: `ethtool -k {out} | grep tx-checksum-ip-generic` must say off"
            )))
        })
    }

    /// Returns the doubt about a packet that comes by a tunnel from whose other end datagrams came with a wrong checksum, or whose reply
    /// does.
    fn corrupted_before(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let all = self.corrupted.get_or_init(|| corrupted(self.node));
        let by = |link: Option<&str>, far: IpAddr| {
            let mut of_link = all.iter().filter(|tunnel| Some(&*tunnel.link) == link);
            of_link.find(|tunnel| self.node_of(far).as_ref() == Some(&tunnel.node))
        };
        let comes_by = || {
            let link = self.came_in_by(question, outcome)?;
            by(Some(&link), outcome.sent_from).map(|tunnel| (tunnel, "packets come"))
        };
        let back = by(outcome.leaves_by(), outcome.destination.0);
        let found = back.map(|tunnel| (tunnel, "replies return"));
        let (tunnel, what) = found.or_else(|| (!all.is_empty()).then(comes_by)?)?;
        let Corrupted {
            link,
            node,
            address,
        } = tunnel;
        Some(Fault::Unknown(Missing::Unmodelled(format!(
            "what node {node} ({address}) sends by its tunnel has come with a wrong checksum, so the kernel dropped it: whether \
             {what} by {link} is unknown"
        ))))
    }

    /// Returns the doubt about a packet to a port of a bridge that filters VLANs, and in which a port is in none unless one is set.
    fn in_no_vlan(&self, outcome: &Outcome) -> Option<Fault> {
        let out = outcome.leaves_by()?;
        let bridge = self
            .node
            .links()
            .ok()?
            .all
            .iter()
            .find(|link| link.name == out)?;
        (bridge.default_vlan == Some(0)).then(|| {
            Fault::Unknown(Missing::Unmodelled(format!(
                "whether bridge {out} carries packets to its ports is unknown: it filters VLANs, and a port is in none unless one is set \
                 (vlan_default_pvid 0); kpx does not read them (`bridge vlan show` lists them)"
            )))
        })
    }

    /// Returns the doubt about a packet to a virtual server while IPVS drops some packets whatever memory is free.
    fn thinned(&self, outcome: &Outcome) -> Option<Fault> {
        let is_balanced = |hop: &Rc<Hop>| matches!(hop.effect, Effect::Balance { .. });
        if !outcome.hops.iter().any(is_balanced) {
            return None;
        }
        if let Err(gap) = self.node.sysctl()
            && !gap.is_absence()
        {
            let what = "whether IPVS drops some packets, whatever memory is free, is unknown";
            return Some(Fault::Unknown(Missing::Gap { what, gap }));
        }
        let key = self.thins()?;
        Some(Fault::Unknown(Missing::Unmodelled(format!(
            "{key} is 3, so IPVS drops some of the packets or connections, whatever memory is free"
        ))))
    }

    /// Returns the sysctl by which IPVS drops some packets whatever memory is free.
    fn thins(&self) -> Option<&'static str> {
        let sysctl = self.node.sysctl().ok()?;
        let mut all = ["net.ipv4.vs.drop_packet", "net.ipv4.vs.drop_entry"].into_iter();
        all.find(|key| sysctl.get(key) == Some("3"))
    }

    /// Returns whether doubts about packets that arrive depend on the rules that these pass: see [`Self::thinned`] and [`narrowed`].
    pub(super) fn asks_for_hops(&self) -> bool {
        *self.asks_for_hops.get_or_init(|| {
            let evidence = self.node.evidence();
            let rules = [Item::Iptables4, Item::Iptables6].into_iter();
            let mut rules = rules.filter_map(|item| evidence.text(item).ok());
            let narrows = |text: &str| {
                let mut lines = text.lines();
                lines.any(|line| {
                    let is_new = line.contains("-j MASQUERADE") || line.contains("-j SNAT");
                    is_new && new_ports(line).is_some()
                })
            };
            let of_nft = evidence.text(Item::Nft).is_ok_and(|text| {
                let words = [
                    "\"snat\"",
                    "\"masquerade\":{\"port",
                    "\"masquerade\": {\"port",
                ];
                words.iter().any(|word| text.contains(word))
            });
            self.thins().is_some() || of_nft || rules.any(narrows)
        })
    }

    fn by_program(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let links = self.node.links().ok()?;
        if links.all.iter().all(|link| link.xdp.is_empty()) {
            return None;
        }
        let entered = self.came_in_by(question, outcome);
        let passed = [entered.as_deref(), outcome.leaves_by()];
        let found = passed.into_iter().flatten().find_map(|name| {
            let own = links.all.iter().find(|link| link.name == name);
            let mut all = own.into_iter().chain(self.ports(name));
            all.find(|link| !link.xdp.is_empty())
        })?;
        let programs: Vec<_> = found.xdp.iter().map(ToString::to_string).collect();
        Some(Fault::Unknown(Missing::Unmodelled(format!(
            "XDP program {} on {} may drop or redirect packets: kpx does not read its code",
            programs.join(" and "),
            found.name
        ))))
    }

    pub(super) fn ports<'j>(&'j self, bridge: &'j str) -> impl Iterator<Item = &'j Link> {
        let links = self.node.links().map_or(&[][..], |all| all.all.as_slice());
        links
            .iter()
            .filter(move |link| link.master.as_deref() == Some(bridge))
    }
}

/// The first kernel that calculates the checksums of masqueraded packets in VXLAN tunnels correctly.
pub(crate) const WITH_CHECKSUMS: Kernel = Kernel(5, 7);

/// The ports that a rule gives to new connections: so few that the connections to one endpoint use them up.
const FEW_PORTS: u16 = 64;

/// Returns the doubt about a packet whose source a rule replaces by one of a few ports.
fn narrowed(outcome: &Outcome) -> Option<Fault> {
    let is_new =
        |hop: &&Rc<Hop>| matches!(hop.effect, Effect::Snat { .. } | Effect::Masquerade { .. });
    let mut hops = outcome.hops.iter().filter(is_new);
    let (hop, first, last) = hops.find_map(|hop| {
        let (first, last) = new_ports(&hop.rule)?;
        (last.checked_sub(first)? < FEW_PORTS).then_some((hop, first, last))
    })?;
    let (ports, count) = match last - first {
        0 => (format!("port {first}"), "one".to_owned()),
        more => (format!("ports {first}-{last}"), (more + 1).to_string()),
    };
    Some(Fault::Unknown(Missing::Unmodelled(format!(
        "whether a port is left for the connection is unknown: rule {} of {} {} gives connections the source {ports}, so at most {count} \
         to the same endpoint can be open or have just ended",
        hop.number, hop.table, hop.chain
    ))))
}

/// Returns the first and the last port that a rule of source translation gives: `--to-source 192.0.2.1:4000-4003`,
/// `--to-ports 4000`, `snat to [2001:db8::1]:4000`.
fn new_ports(rule: &str) -> Option<(u16, u16)> {
    let mut words = rule
        .split(' ')
        .skip_while(|word| !matches!(*word, "--to-source" | "--to-ports" | "to"));
    let ports = match (words.next()?, words.next()?) {
        ("--to-ports", ports) => ports,
        (_, to) => {
            let (address, ports) = to.rsplit_once(':')?;
            (!address.contains(':') || address.ends_with(']')).then_some(ports)?
        }
    };
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// Returns whether a bridge neither learns from `port` nor floods it, or takes only packets from it that entries allow.
fn is_restricted(port: &Link) -> bool {
    let is_closed = port.learning == Some(false) && port.flood == Some(false);
    is_closed || port.locked == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ports_of_a_new_source_are_read() {
        for (rule, ports) in [
            (
                "-p tcp -j SNAT --to-source 10.210.0.16:41000",
                Some((41000, 41000)),
            ),
            (
                "-p tcp -j SNAT --to-source 10.210.0.16:4000-4003 --random",
                Some((4000, 4003)),
            ),
            (
                "-p tcp -j MASQUERADE --to-ports 1024-65535",
                Some((1024, 65535)),
            ),
            (
                "meta l4proto tcp snat to [2001:db8::1]:4000",
                Some((4000, 4000)),
            ),
            (
                "meta l4proto tcp masquerade to :4000-4001",
                Some((4000, 4001)),
            ),
            ("-j SNAT --to-source 2001:db8::1", None),
            ("-j SNAT --to-source 10.210.0.16", None),
            ("-j MASQUERADE --random-fully", None),
        ] {
            assert_eq!(new_ports(rule), ports, "{rule}");
        }
    }
}
