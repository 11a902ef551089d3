//! Service proxies of eBPF: their programs at sockets (`connect`) and at links translate connections before any rule.
//!
//! kpx does not read the code of programs. For Cilium and Calico it knows the maps with Services, which show where a
//! connection goes, or that it goes nowhere. Other effects of such a program stay unknown.

use std::net::SocketAddr;

use super::judge::{Judge, Question, rests_on_absence};
use super::{Fate, Fault, Missing};
use crate::trace::{Entry, Outcome};
use kpx_node::evidence::Gap;
use kpx_node::net::{Family, Proto};
use kpx_node::node::bpf::{Bpf, Frontend, Kind, Proxy, Sought};
use kpx_node::node::links::Link;
use kpx_node::node::tc::{Does, Side};

/// The most backends in a text.
const MOST: usize = 4;

impl Judge<'_> {
    /// Returns the effect of a service proxy of eBPF on a connection before the rules see it; `None` if its map shows no effect.
    pub(super) fn by_proxy(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let bpf = match self.node.bpf() {
            Ok(bpf) => bpf,
            // If a bundle is too old to have the programs, the rules count, unless such a proxy certainly serves.
            Err(gap)
                if (gap.is_absence() || matches!(gap, Gap::NotCollected(_)))
                    && self.node.ebpf().iter().all(|ebpf| ebpf.serves != Ok(true)) =>
            {
                return None;
            }
            // A text that shows such a proxy's Services does not show its programs.
            Err(gap @ Gap::Partial(..)) => return Some(unread(gap)),
            Err(_) => return self.node.unread_ebpf().map(unread),
        };
        self.at_socket(bpf, question)
            .or_else(|| self.at_link(bpf, question, outcome))
    }

    /// Returns `fault`, or the doubt about it if programs that were not read may translate the connection before the rules.
    pub(super) fn averted_unread(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
        fault: Fault,
    ) -> Fault {
        // Its own rules lead packets of NodePorts to cluster IPs, which Open vSwitch translates.
        if matches!(fault, Fault::Untranslated { .. })
            && let Some(name) = self
                .node
                .open_vswitch_proxy(question.flow.entry == Entry::Pod)
        {
            return by_switch(name);
        }
        if fault.fate() == Fate::Unknown || !rests_on_absence(question, outcome, &fault) {
            return fault;
        }
        let at = SocketAddr::new(question.flow.destination, question.flow.port);
        let sought = self.sought(question, Some(outcome));
        let serving = self
            .node
            .ebpf()
            .iter()
            .filter(|ebpf| ebpf.serves == Ok(true));
        let mut led = serving.filter_map(|ebpf| {
            let bpf = self.node.bpf().ok()?;
            let front = match self.front_end(bpf, ebpf.proxy, question, Some(outcome)) {
                Ok(front) => front?,
                Err(gap) => return Some(unread(gap)),
            };
            let leads = led_by(ebpf.proxy, at, front, &sought);
            Some(unmodelled(format!(
                "{leads}; which of its programs the packet meets is unknown"
            )))
        });
        let unread = self.node.unread_ebpf().map(unread);
        unread.or_else(|| led.next()).unwrap_or(fault)
    }

    /// Returns the doubt about a packet of a pod to an address of a Service, if Open vSwitch translates it before it comes to the node.
    pub(super) fn by_switch(&self, question: Question<'_>) -> Option<Fault> {
        let flow = question.flow;
        let is_asked = flow.entry == Entry::Pod && self.places.service(flow.destination).is_some();
        let name = self.node.open_vswitch_proxy(true).filter(|_| is_asked)?;
        let links = &self.node.links().ok()?.all;
        let is_switch = |name: &String| {
            let mut all = links.iter();
            all.any(|link| link.name == *name && link.kind == "openvswitch")
        };
        let mut ports = links.iter().filter_map(|link| link.master.as_ref());
        ports.any(is_switch).then(|| by_switch(name))
    }

    /// Returns the doubt about a fault that a program at a link may prevent: it translates packets before the rules, or instead
    /// of them.
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

    /// Returns the effect of the programs at sockets on a connection of a process of this node, its pods included.
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
        let Ok(ids) = bpf.at_root(hook) else {
            return self.node.unread_ebpf().map(unread);
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
        let proxy = bpf
            .program(id)
            .and_then(|program| Proxy::of_program(&program.name));
        let Some(proxy) = proxy else {
            return Some(unmodelled(format!(
                "program {name} at connect() may translate or refuse the connection: kpx does not read its code"
            )));
        };
        let at = SocketAddr::new(flow.destination, flow.port);
        // Calico leaves UDP to its programs at links by default.
        let by_message = match Family::of(flow.destination) {
            Family::V4 => "cgroup_udp4_sendmsg",
            Family::V6 => "cgroup_udp6_sendmsg",
        };
        if flow.proto == Proto::Udp {
            let messages = match bpf.at_root(by_message) {
                Ok(ids) => ids,
                Err(gap) => return Some(unread(gap)),
            };
            let whose = |id| {
                bpf.program(id)
                    .and_then(|program| Proxy::of_program(&program.name))
            };
            if !messages.into_iter().any(|id| whose(id) == Some(proxy)) {
                return None;
            }
        }
        let front = match self.front_end(bpf, proxy, question, None) {
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
            && front.kind != Kind::LocalRedirect
            && self.node.slices().is_ok()
            && front.missing == 0
            && front
                .backends
                .iter()
                .all(|backend| port.endpoints.iter().all(|one| one.addr != backend.addr))
            && let Some(first) = front.active().next()
        {
            return Some(Fault::NoEndpoint {
                address: first.addr,
                holder: None,
            });
        }
        Some(unmodelled(format!(
            "program {name} translates the connection at connect(): {}. kpx does not follow it from there",
            led_by(proxy, at, front, &self.sought(question, None))
        )))
    }

    /// Returns the effect of the first program of a proxy at a link on a packet.
    fn at_link(&self, bpf: &Bpf, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        if bpf.links().is_err()
            && let Some(gap) = self.node.unread_ebpf()
        {
            return Some(unread(gap));
        }
        let (proxy, program) = self.first_program(bpf, question, outcome)?;
        let Some(proxy) = proxy else {
            // The owner of a program without a name is not known.
            return bpf.programs().err().map(unread);
        };
        let flow = question.flow;
        // A packet of the node itself has already passed the rules.
        if flow.entry == Entry::Host && !outcome.as_sent.destination {
            return None;
        }
        let at = SocketAddr::new(flow.destination, flow.port);
        match self.front_end(bpf, proxy, question, Some(outcome)) {
            Ok(front) => Some(unmodelled(format!(
                "{program} serves {at} before the rules: {}. kpx does not read the program's code",
                led_by(proxy, at, front?, &self.sought(question, Some(outcome)))
            ))),
            Err(gap) => Some(unread(gap)),
        }
    }

    /// Returns the proxy of the first program that the packet meets at a link, and the program in words; no proxy if its name is
    /// unknown.
    fn first_program(
        &self,
        bpf: &Bpf,
        question: Question<'_>,
        outcome: &Outcome,
    ) -> Option<(Option<Proxy>, String)> {
        if !self.any_link_program(bpf) {
            return None;
        }
        let came_by = self.came_in_by(question, outcome);
        let passages = self.passages(question, outcome, came_by.as_deref());
        let first = passages.iter().find(|passage| !passage.reply);
        let of_passage = first.and_then(|first| {
            self.program_of(bpf, first.link, first.side).or_else(|| {
                // A packet that leaves by one end of a pair comes in by the other.
                let peer = self
                    .peer(first.link)
                    .filter(|_| first.side == Side::Egress)?;
                self.program_of(bpf, peer, Side::Ingress)
            })
        });
        let by_lo = || {
            // Packets of the node to its own addresses.
            let is_own = question.flow.entry == Entry::Host && self.ends_here(outcome);
            let mut sides = [Side::Egress, Side::Ingress].into_iter().filter(|_| is_own);
            sides.find_map(|side| self.program_of(bpf, "lo", side))
        };
        of_passage.or_else(by_lo)
    }

    /// Returns whether any link has a program, whoever made it.
    fn any_link_program(&self, bpf: &Bpf) -> bool {
        *self.link_programs.get_or_init(|| {
            let links = self.node.links().map_or(&[][..], |links| &links.all);
            let mut filters = self
                .node
                .tc()
                .into_iter()
                .flat_map(|tc| tc.filters.values());
            bpf.links().is_ok_and(|all| !all.is_empty())
                || links.iter().any(|link| !link.xdp.is_empty())
                || filters.any(|all| all.iter().any(|filter| filter.kind == "bpf"))
        })
    }

    /// Returns the other end of a pair, if both are in this network namespace.
    fn peer(&self, name: &str) -> Option<&str> {
        let links = &self.node.links().ok()?.all;
        let link = links
            .iter()
            .find(|link| link.name == name && link.kind == "veth")?;
        let is_pair = |candidate: &&Link| {
            candidate.kind == "veth"
                && (Some(candidate.index) == link.peer && candidate.peer == Some(link.index)
                    || (name, candidate.name.as_str()) == (CALICO_PAIR.0, CALICO_PAIR.1))
        };
        links.iter().find(is_pair).map(|link| link.name.as_str())
    }

    /// Returns the first program of a proxy, or without a known name, at one side of a link.
    fn program_of(&self, bpf: &Bpf, link: &str, side: Side) -> Option<(Option<Proxy>, String)> {
        let whose = |name: Option<&str>| match name {
            None => Some(None),
            Some(name) => Proxy::of_program(name).map(Some),
        };
        let named = |id: u32| bpf.program(id).map(|program| program.name.as_str());
        let links = bpf.links().unwrap_or_default().iter();
        let mut of_link =
            links.filter(|bpf_link| bpf_link.dev == link && is_at(&bpf_link.attach_type, side));
        let without_qdisc = of_link.find_map(|bpf_link| {
            let name = bpf.called(bpf_link.program);
            let words = format!("program {name} ({}) on {link}", bpf_link.attach_type);
            Some((whose(named(bpf_link.program))?, words))
        });
        let xdp = || {
            let mut links = self.node.links().ok()?.all.iter();
            let of_link =
                links.find(|node_link| node_link.name == link && side == Side::Ingress)?;
            of_link.xdp.iter().find_map(|xdp| {
                let id = u32::try_from(xdp.id).ok();
                let name = xdp.name.as_deref().or_else(|| named(id?));
                let words = match name {
                    Some(name) => format!("XDP program {name} (id {}) on {link}", xdp.id),
                    None => format!("XDP program with id {} on {link}", xdp.id),
                };
                Some((whose(name)?, words))
            })
        };
        let by_qdisc = || {
            let filters = self.node.tc().ok()?.filters.get(link)?.iter();
            let mut filters = filters.filter(|filter| filter.side == side && filter.kind == "bpf");
            filters.find_map(|filter| {
                let Does::Other(words) = &filter.does else {
                    return None;
                };
                let program = filter.program.as_ref();
                let name = program.and_then(|program| program.name.as_deref());
                Some((whose(name)?, format!("{words} on {link}")))
            })
        };
        xdp().or(without_qdisc).or_else(by_qdisc)
    }

    /// Returns the key of the connection in a map: at a link the key of the packet with `outcome`, else the key at
    /// `connect()`.
    fn sought(&self, question: Question<'_>, outcome: Option<&Outcome>) -> Sought {
        let flow = question.flow;
        Sought {
            address: flow.destination,
            port: flow.port,
            proto: flow.proto,
            own: self.places.own(flow.destination).is_some(),
            outside: flow.entry == Entry::Outside,
            client: outcome.map(|outcome| outcome.sent_from),
        }
    }

    /// Returns the front end of a connection in the map of `proxy`.
    fn front_end<'b>(
        &self,
        bpf: &'b Bpf,
        proxy: Proxy,
        question: Question<'_>,
        outcome: Option<&Outcome>,
    ) -> Result<Option<&'b Frontend>, Gap> {
        let table = bpf.table(proxy, Family::of(question.flow.destination))?;
        Ok(table.and_then(|table| table.lookup(&self.sought(question, outcome))))
    }
}

/// The pair by which Calico leads packets of the node to Services: its route, and its programs.
const CALICO_PAIR: (&str, &str) = ("bpfin.cali", "bpfout.cali");

/// Returns whether programs of this attach type see the packets of a side.
pub(super) fn is_at(attach_type: &str, side: Side) -> bool {
    match side {
        // The peer is the end in the pod: packets that it sends come in.
        Side::Ingress => matches!(attach_type, "tcx_ingress" | "netkit_peer"),
        Side::Egress => matches!(attach_type, "tcx_egress" | "netkit_primary"),
    }
}

/// Returns where a front end leads, in words.
fn led_by(proxy: Proxy, at: SocketAddr, front: &Frontend, sought: &Sought) -> String {
    let map = format!("the map of {proxy}");
    if front.is_wildcard() {
        return format!(
            "{map} drops packets to other ports of {} than those of Services",
            at.ip()
        );
    }
    if front.drops {
        return match sought.client {
            Some(client) => format!("{map} drops packets of {client} to {at}: its source ranges"),
            None => format!("{map} drops packets to {at} of clients outside its source ranges"),
        };
    }
    if sought.outside && front.admits(sought.client) == Some(false) {
        let client = sought
            .client
            .map_or_else(|| "the client".to_owned(), |ip| ip.to_string());
        return format!("{map} drops packets of {client} to {at}: its source ranges");
    }
    if front.l7_proxy {
        return format!("{map} leads {at} to an L7 proxy on the node");
    }
    let backends: Vec<String> = front
        .active()
        .map(|backend| backend.addr.to_string())
        .collect();
    let leads = match backends.as_slice() {
        [] if front.missing > 0 => {
            return format!("{map} leads {at} to backends that it does not have");
        }
        [] if sought.outside => {
            return format!(
                "{map} has no backend for {at} for clients outside: it drops their packets"
            );
        }
        [] => return format!("{map} has no backend for {at}"),
        all if all.len() > MOST => {
            format!("{} and {} others", all[..MOST].join(", "), all.len() - MOST)
        }
        all => all.join(", "),
    };
    let leads = match front.kind {
        Kind::LocalRedirect => {
            format!("a CiliumLocalRedirectPolicy in {map} leads {at} to {leads}")
        }
        _ => format!("{map} leads {at} to {leads}"),
    };
    match front.admits(sought.client) {
        None if sought.outside => {
            format!("{leads}, if its source ranges, which were not read, let the client in")
        }
        _ => leads,
    }
}

fn unread(gap: Gap) -> Fault {
    Fault::Unknown(Missing::Gap {
        what: "programs of a service proxy of eBPF may translate the connection",
        gap,
    })
}

/// Returns the doubt about connections that the program called `name` translates in Open vSwitch.
fn by_switch(name: &str) -> Fault {
    unmodelled(format!(
        "{name} translates connections to Services in Open vSwitch, which kpx does not read"
    ))
}

const fn unmodelled(why: String) -> Fault {
    Fault::Unknown(Missing::Unmodelled(why))
}
