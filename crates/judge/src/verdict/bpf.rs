//! Service proxies of eBPF: their programs at sockets (`connect`) and at links translate connections before any rule.
//!
//! kpx does not read the code of programs. Of those of Cilium and Calico it knows the maps with Services, which show where a
//! connection goes, or that it goes nowhere; what else such a program does with it stays unknown.

use std::net::SocketAddr;

use super::judge::{Judge, Question, is_of_old};
use super::{Fault, Missing};
use crate::trace::{Entry, Outcome};
use kpx_node::evidence::Gap;
use kpx_node::net::{Family, Proto};
use kpx_node::node::bpf::{Bpf, Frontend, Proxy};
use kpx_node::node::tc::{Does, Side};

/// The most backends in a text.
const MOST: usize = 4;

impl Judge<'_> {
    /// Returns what a service proxy of eBPF makes of a connection before the rules see it; `None` if none does anything to it, as
    /// far as its map shows.
    pub(super) fn by_proxy(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let bpf = match self.node.bpf() {
            Ok(bpf) => bpf,
            Err(gap) if is_of_old(&gap) => return None,
            // Without one of its links, there is no such proxy.
            // A text that shows such a proxy's Services does not show its programs.
            Err(gap) if self.has_links_of_proxy() || matches!(gap, Gap::Partial(..)) => {
                return Some(unread(gap));
            }
            Err(_) => return None,
        };
        self.at_socket(bpf, question)
            .or_else(|| self.at_link(bpf, question, outcome))
    }

    /// Returns the doubt about a fault that a program at a link may avert: it translates packets before the rules, or instead of
    /// them.
    pub(super) fn may_be_translated(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
    ) -> Option<Fault> {
        let bpf = self.node.bpf().ok()?;
        let (_, program) = self.first_program(bpf, question, outcome)?;
        let at = SocketAddr::new(question.flow.destination, question.flow.port);
        Some(Fault::Unknown(Missing::Unmodelled(format!(
            "{program} may translate the packet, although its map has no front end {at}: kpx does not read its code"
        ))))
    }

    fn has_links_of_proxy(&self) -> bool {
        let links = self.node.links().map_or(&[][..], |all| all.all.as_slice());
        links
            .iter()
            .any(|of| matches!(of.name.as_str(), "cilium_host" | "bpfin.cali"))
    }

    /// Returns what the programs at sockets make of a connection of a process of this node, its pods included.
    fn at_socket(&self, bpf: &Bpf, question: Question<'_>) -> Option<Fault> {
        let flow = question.flow;
        if flow.established
            || flow.entry == Entry::Outside
            || !matches!(flow.proto, Proto::Tcp | Proto::Udp)
        {
            return None;
        }
        let hook = match Family::of(flow.destination) {
            Family::V4 => "cgroup_inet4_connect",
            Family::V6 => "cgroup_inet6_connect",
        };
        let ids = match bpf.at_root(hook) {
            Ok(ids) => ids,
            Err(gap) if self.has_links_of_proxy() => return Some(unread(gap)),
            Err(_) => return None,
        };
        let names: Vec<String> = ids.iter().map(|id| bpf.called(*id)).collect();
        let (id, name) = match (ids.as_slice(), names.as_slice()) {
            ([id], [name]) => (*id, name),
            ([], _) => return None,
            _ => {
                return Some(unmodelled(format!(
                    "{} programs run one after the other at connect(), {}: each may translate the connection",
                    ids.len(),
                    names.join(" and ")
                )));
            }
        };
        if let Err(gap) = bpf.programs() {
            return Some(unread(gap));
        }
        let proxy = bpf.program(id).and_then(|of| Proxy::of_program(&of.name));
        let Some(proxy) = proxy else {
            return Some(unmodelled(format!(
                "program {name} at connect() may translate or refuse the connection: kpx does not read its code"
            )));
        };
        let at = SocketAddr::new(flow.destination, flow.port);
        let front = match self.front_end(bpf, proxy, question) {
            Ok(front) => front?,
            Err(gap) => return Some(unread(gap)),
        };
        let has_none = front.backends.is_empty() && front.missing == 0;
        if has_none && !front.l7_proxy && !front.drops && flow.entry == Entry::Host {
            return Some(Fault::NoBackend {
                address: at,
                program: name.clone(),
            });
        }
        // Only the backends of the map are used: if none of them is an endpoint, no connection works.
        if let Some(port) = question.port
            && flow.entry == Entry::Host
            && !front.l7_proxy
            && self.node.slices().is_ok()
            && front.missing == 0
            && front
                .backends
                .iter()
                .all(|of| port.endpoints.iter().all(|one| one.addr != of.addr))
            && let Some(first) = front.active().next()
        {
            return Some(Fault::NoEndpoint {
                address: first.addr,
                holder: None,
            });
        }
        Some(unmodelled(format!(
            "program {name} translates the connection at connect(): {}. kpx does not follow it from there",
            led_by(proxy, at, front)
        )))
    }

    /// Returns what the first program of a proxy at a link makes of a packet.
    fn at_link(&self, bpf: &Bpf, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        if let Err(gap) = bpf.links()
            && self.has_links_of_proxy()
        {
            return Some(unread(gap));
        }
        let (proxy, program) = self.first_program(bpf, question, outcome)?;
        let flow = question.flow;
        // A packet of the node itself has passed the rules by then.
        if flow.entry == Entry::Host && !outcome.as_sent.destination {
            return None;
        }
        let at = SocketAddr::new(flow.destination, flow.port);
        match self.front_end(bpf, proxy, question) {
            Ok(front) => Some(unmodelled(format!(
                "{program} serves {at} before the rules: {}. kpx does not read the program's code",
                led_by(proxy, at, front?)
            ))),
            Err(gap) => Some(unread(gap)),
        }
    }

    /// Returns the proxy of the first program that the packet meets at a link, and the program in words.
    fn first_program(
        &self,
        bpf: &Bpf,
        question: Question<'_>,
        outcome: &Outcome,
    ) -> Option<(Proxy, String)> {
        let came_by = self.came_in_by(question, outcome);
        let passages = self.passages(question, outcome, came_by.as_deref());
        let first = passages.iter().find(|of| !of.reply)?;
        let known = |name: &str| Proxy::of_program(name);
        let links = bpf.links().unwrap_or_default().iter();
        let mut of_link =
            links.filter(|of| of.dev == first.link && is_at(&of.attach_type, first.side));
        let without_qdisc = of_link.find_map(|of| {
            let proxy = known(&bpf.program(of.program)?.name)?;
            let name = bpf.called(of.program);
            Some((
                proxy,
                format!("program {name} ({}) on {}", of.attach_type, of.dev),
            ))
        });
        let xdp = || {
            let links = self
                .node
                .links()
                .ok()
                .filter(|_| first.side == Side::Ingress)?;
            let link = links.all.iter().find(|of| of.name == first.link)?;
            link.xdp.iter().find_map(|of| {
                let id = u32::try_from(of.id).ok();
                let name = of
                    .name
                    .clone()
                    .or_else(|| Some(bpf.program(id?)?.name.clone()))?;
                Some((
                    known(&name)?,
                    format!("XDP program {name} (id {}) on {}", of.id, link.name),
                ))
            })
        };
        let by_qdisc = || {
            let filters = self.node.tc().ok()?.filters.get(first.link)?.iter();
            let mut filters = filters.filter(|of| of.side == first.side && of.kind == "bpf");
            filters.find_map(|of| {
                let name = of.program.as_deref()?;
                let Does::Other(words) = &of.does else {
                    return None;
                };
                Some((known(name)?, format!("{words} on {}", first.link)))
            })
        };
        xdp().or(without_qdisc).or_else(by_qdisc)
    }

    /// Returns the front end of a connection in the map of `proxy`.
    fn front_end<'b>(
        &self,
        bpf: &'b Bpf,
        proxy: Proxy,
        question: Question<'_>,
    ) -> Result<Option<&'b Frontend>, Gap> {
        let flow = question.flow;
        let table = bpf.table(proxy, Family::of(flow.destination))?;
        let own = self.places.own(flow.destination).is_some();
        Ok(table.and_then(|table| table.lookup(flow.destination, flow.port, flow.proto, own)))
    }
}

/// Returns whether programs of this attach type see the packets of a side.
pub(super) fn is_at(attach_type: &str, side: Side) -> bool {
    match side {
        // The peer is the end in the pod: what it sends comes in.
        Side::Ingress => matches!(attach_type, "tcx_ingress" | "netkit_peer"),
        Side::Egress => matches!(attach_type, "tcx_egress" | "netkit_primary"),
    }
}

/// Returns where a front end leads, in words.
fn led_by(proxy: Proxy, at: SocketAddr, front: &Frontend) -> String {
    let backends: Vec<String> = front.active().map(|of| of.addr.to_string()).collect();
    if front.l7_proxy {
        return format!("the map of {proxy} leads {at} to an L7 proxy on the node");
    }
    match backends.as_slice() {
        [] => format!("the map of {proxy} has no backend for {at}"),
        all if all.len() > MOST => format!(
            "the map of {proxy} leads {at} to {} and {} others",
            all[..MOST].join(", "),
            all.len() - MOST
        ),
        all => format!("the map of {proxy} leads {at} to {}", all.join(", ")),
    }
}

fn unread(gap: Gap) -> Fault {
    Fault::Unknown(Missing::Gap {
        what: "programs of a service proxy of eBPF may translate the connection",
        gap,
    })
}

const fn unmodelled(why: String) -> Fault {
    Fault::Unknown(Missing::Unmodelled(why))
}
