//! Ingress: whether the kernel accepts a packet, or its reply, at its link, and forwards it from there.
//!
//! Sources: `ip_route_input_slow`, `ip_error` and `__fib_validate_source` of Linux 5.10 to 6.18. IPv6 has no filter of reverse
//! paths, and forwards by one setting of all links.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};

use super::diversion::pods_with;
use super::judge::{Judge, Question};
use super::logged::martians;
use super::peers::outward;
use super::place::Holder;
use super::tells::sets_marks;
use super::tunnel::is_made_by_plugin;
use super::{Fault, FilterReason, Missing, Obstacle, Onward, sysctl_of};
use crate::trace::region::{Asked, AskedMark};
use crate::trace::route::Lookup;
use crate::trace::sources::is_assumed;
use crate::trace::{Entry, Flow, Outcome};
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::cluster::Pod;
use kpx_node::evidence::kernel_log::Martian;
use kpx_node::net::{Cidr, Family};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::links::{Address, Link};
use kpx_node::node::routes::{PolicyRule, Route};

/// Settings and links that decide which packets come in, of one node.
#[derive(Debug, Default)]
pub(super) struct Ingress<'n> {
    /// Whether IPv4 is forwarded from each link.
    forwarding: HashMap<String, bool>,
    /// The links with a strict filter of reverse paths.
    strict: HashSet<String>,
    /// Those with a loose one.
    loose: HashSet<String>,
    /// Whether the mark of a packet has a part in these filters (`src_valid_mark`), and rules of the node set marks.
    is_marked: bool,
    links: HashMap<&'n str, &'n Link>,
    /// Packets that the kernel dropped at a link in the last hour of its log, the newest first.
    martians: Vec<Martian<'n>>,
    /// The links of pods by their addresses, once asked for.
    entered: RefCell<HashMap<IpAddr, Rc<Entered>>>,
}

/// The link by which packets of a pod come in.
#[derive(Debug, Default)]
struct Entered {
    /// The link.
    link: Option<Rc<str>>,
    /// Why replies to the pod do not return by it.
    astray: Option<Obstacle>,
}

impl<'n> Ingress<'n> {
    pub(super) fn new(node: &'n NodeSnapshot<'n>) -> Self {
        let links = node.links().map_or(&[][..], |all| all.all.as_slice());
        let mut this = Self {
            links: links
                .iter()
                .map(|link| (link.name.as_str(), link))
                .collect(),
            martians: martians(node),
            ..Self::default()
        };
        let Ok(sysctl) = node.sysctl() else {
            return this;
        };
        let of_all = |name: &str| sysctl.get(&format!("net.ipv4.conf.all.{name}"));
        // Both are one variable of the kernel: evidence in which they differ was edited.
        let forwards = sysctl.get("net.ipv4.ip_forward");
        let is_sound = forwards.is_some() && forwards == of_all("forwarding");
        let filter_of_all = sysctl.known("net.ipv4.conf.all.rp_filter");
        let filter_of_all = filter_of_all.map(|value| value.unwrap_or("0")).ok();
        let mut asks_mark = sysctl.iter().filter(|(key, _)| {
            key.starts_with("net.ipv4.conf.") && key.ends_with(".src_valid_mark")
        });
        this.is_marked = asks_mark.any(|(_, value)| value != "0") && sets_marks(node, Family::V4);
        for (key, value) in sysctl.iter() {
            let Some((link, name)) = key
                .strip_prefix("net.ipv4.conf.")
                .and_then(|rest| rest.rsplit_once('.'))
            else {
                continue;
            };
            let link = || link.replace('/', ".");
            match name {
                "forwarding" if is_sound => {
                    this.forwarding.insert(link(), value != "0");
                }
                "rp_filter" => match filter_of_all.map(|all| value.max(all)) {
                    // The greater of both values applies.
                    Some("1") => {
                        this.strict.insert(link());
                    }
                    Some("2") => {
                        this.loose.insert(link());
                    }
                    _ => {}
                },
                _ => {}
            }
        }
        this
    }

    /// Returns the source of a packet to `destination` that the kernel dropped at a link.
    pub(super) fn martian_to(&self, destination: IpAddr) -> Option<IpAddr> {
        let mut all = self.martians.iter();
        let found = all.find(|martian| martian.destination == destination);
        found.map(|martian| martian.source)
    }

    /// Returns whether IPv4 is forwarded from `link`, if known.
    fn forwards(&self, link: &str) -> Option<bool> {
        self.forwarding.get(link).copied()
    }
}

impl Judge<'_> {
    /// Returns why the kernel does not take in or forward the packet or its reply.
    pub(super) fn ingress(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let entry = question.flow.entry;
        if entry == Entry::Host {
            return self.reply_astray(question, outcome);
        }
        let source = outcome.sent_from;
        let taken = match entry {
            Entry::Outside => self.places.own(source).map(str::to_owned),
            _ => self.taken(source),
        };
        // Without a filter of sources (IPv6), only the replies that the node routes end there.
        let may_pass = || source.is_ipv6() && self.is_on_its_bridge(outcome);
        if let Some(link) = taken.filter(|_| !may_pass()) {
            return Some(fault(Obstacle::Taken {
                address: source,
                link,
                inside: None,
                end: None,
            }));
        }
        if let (Entry::Pod, Err(gap)) = (entry, self.node.links())
            && self.leads_away(source)
        {
            let what = "the link of the client's packets is unknown, and the route back leads off the node";
            return Some(Fault::Unknown(Missing::Gap { what, gap }));
        }
        let entered = self.entered_by(question.flow, source);
        if let Some(obstacle) = self.on_own_link(question, source, entered.link.as_deref()) {
            return Some(fault(obstacle));
        }
        if let Some(astray) = &entered.astray
            && (!outcome.bridged || self.filters(entered.link.as_deref()))
        {
            return Some(fault(astray.clone()));
        }
        if let Some(link) = &entered.link
            && let Some(fault) = self.astray(link, source, outcome.destination.0)
        {
            let other = self.answers_too(link, question.flow.destination);
            return Some(match other {
                Some(other) => Fault::Unknown(Missing::Unmodelled(format!(
                    "{link} and {other} are in one network, and both answer ARP requests for {} (arp_ignore is 0): where packets from \
                     {source} come in by {link}, its rp_filter drops them",
                    question.flow.destination
                ))),
                None => fault,
            });
        }
        self.link_forwarding(question, outcome, entered.link.as_deref())
            .or_else(|| self.reply_astray(question, outcome))
            .or_else(|| self.by_other_link(question, outcome))
    }

    /// Returns the link by which the packet comes in, if one is known.
    pub(super) fn came_in_by(&self, question: Question<'_>, outcome: &Outcome) -> Option<Rc<str>> {
        let entry = question.flow.entry;
        let entered =
            (entry != Entry::Host).then(|| self.entered_by(question.flow, outcome.sent_from));
        entered.and_then(|entered| entered.link.clone())
    }

    /// Returns whether both links of a forwarded packet are known to forward.
    pub(super) fn links_forward(&self, question: Question<'_>, outcome: &Outcome) -> bool {
        let forwards = |link: Option<&str>| link.and_then(|link| self.ingress.forwards(link));
        let entered = self.entered_by(question.flow, outcome.sent_from);
        Family::of(question.flow.destination) == Family::V4
            && forwards(entered.link.as_deref()) == Some(true)
            && forwards(outcome.leaves_by()) == Some(true)
    }

    /// Returns the link without forwarding by which the packet or its reply comes in, unless the node forwards nothing at all.
    fn link_forwarding(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
        input: Option<&str>,
    ) -> Option<Fault> {
        let family = Family::of(question.flow.destination);
        if family == Family::V6
            || !self.is_forwarded(question, outcome)
            || self.forwarding_off(family).is_some() && !self.any_forwards()
        {
            return None;
        }
        let both = [input, outcome.leaves_by()];
        let mut off = both
            .into_iter()
            .flatten()
            .filter(|link| self.ingress.forwards(link) == Some(false));
        let link = off.next()?.to_owned();
        Some(fault(Obstacle::LinkForwarding { link }))
    }

    fn any_forwards(&self) -> bool {
        let mut all = self.ingress.forwarding.iter();
        all.any(|(link, on)| *on && self.ingress.links.contains_key(link.as_str()) && link != "lo")
    }

    /// Returns why the filter of the link by which the reply comes in drops it.
    fn reply_astray(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let ingress = &self.ingress;
        if self.ends_here(outcome) || ingress.strict.is_empty() && ingress.loose.is_empty() {
            return None;
        }
        let out = outcome.leaves_by()?;
        let back = self.comes_back_by(question, outcome);
        // Translated back, the reply goes to where the packet was sent from.
        self.astray(
            back.as_deref().unwrap_or(out),
            outcome.destination.0,
            outcome.sent_from,
        )
    }

    /// Returns the link by which a packet that left another node with the outcome `sent` comes in.
    pub(super) fn comes_in_by(&self, sent: &Outcome) -> Option<&str> {
        // Tunnels have the same name at both ends.
        let by = sent.leaves_by().and_then(|by| self.ingress.links.get(by));
        if let Some(tunnel) = by.filter(|link| link.is_tunnel()) {
            return Some(&tunnel.name);
        }
        let to = sent.destination.0;
        let link = self.places.own(sent.gateway.unwrap_or(to));
        let link = link.or_else(|| self.places.own(to));
        link.filter(|link| *link != "lo")
    }

    /// Returns the link by which the reply to a packet that left this node comes in, where that is known to be another one.
    pub(super) fn comes_back_by(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
    ) -> Option<String> {
        let out = outcome.leaves_by()?;
        if let Some(Onward::Far(far)) = self.onward(question, outcome) {
            let mut replies = far.cell.arrival.iter().flat_map(|arrival| &arrival.replies);
            let reply = replies.find(|reply| reply.verdict.arrives())?;
            let link = self.comes_in_by(reply)?;
            return (link != out).then(|| link.to_owned());
        }
        // Other nodes send to an address in a network of theirs by that network, not by a tunnel.
        let link = self.places.own(outcome.source)?;
        let mut own = self.node.addresses().ok()?.all.iter();
        let is_in_network = own.any(|at| at.addr.addr == outcome.source && !at.addr.is_host());
        let is_elsewhere = self.is_here(question, outcome) == Some(false);
        let is_other = link != out && link != "lo" && self.places.links_of_node().contains(link);
        (is_in_network && is_elsewhere && is_other).then(|| link.to_owned())
    }

    /// Returns why the filter of `link` drops packets from `source`; a doubt if that depends on a mark which rules of the node may set.
    fn astray(&self, link: &str, source: IpAddr, destination: IpAddr) -> Option<Fault> {
        let unmarked = self.astray_by(link, source, destination, None);
        let rules = self.node.rules().map_or(&[][..], |all| all.all.as_slice());
        let marks = rules.iter().filter(|_| self.ingress.is_marked);
        let mut others = marks.filter_map(|rule| Some((rule, rule.mark?.value)));
        let differs = |mark| {
            let marked = self.astray_by(link, source, destination, Some(mark));
            marked.is_some() != unmarked.is_some()
        };
        match others.find(|(_, mark)| differs(*mark)) {
            Some((rule, _)) => Some(Fault::Unknown(Missing::Unmodelled(format!(
                "rp_filter of {link} looks for the way to {source} with the packet's mark (src_valid_mark is 1), and routing policy rule {} \
                 ({rule}) decides by that: whether it drops the packet is unknown",
                rule.priority
            )))),
            None => unmarked.map(fault),
        }
    }

    /// Returns why the filter of `link` drops packets from `source` with this mark.
    fn astray_by(
        &self,
        link: &str,
        source: IpAddr,
        destination: IpAddr,
        mark: Option<u32>,
    ) -> Option<Obstacle> {
        let loose = self.ingress.loose.contains(link);
        if !source.is_ipv4() || !loose && !self.ingress.strict.contains(link) {
            return None;
        }
        let lookup = Lookup {
            source: Some(Asked::new(destination, None)),
            mark: mark.map(AskedMark::of),
            ..Lookup::to(Asked::new(source, None))
        };
        let back = self.router.found(lookup).ok()?;
        let devices = back.map_or_else(Vec::new, Route::devices);
        if devices.contains(&link) || back.is_some() && devices.is_empty() {
            return None;
        }
        let has_address = || {
            let mut all = self.node.addresses().into_iter().flat_map(|all| &all.all);
            all.any(|at| at.link == link && at.addr.addr.is_ipv4())
        };
        // `no_addr` of `__fib_validate_source`.
        let even_loose = back.is_none() || !has_address();
        if loose && !even_loose {
            return None;
        }
        Some(Obstacle::ReversePath {
            link: link.to_owned(),
            source,
            back: devices.first().map(|device| (*device).to_owned()),
            even_loose,
            because: back.and_then(|back| self.filter_reason(back, destination)),
        })
    }

    /// Returns another link of the network in which `link` has `address`, if it answers ARP requests for that address as well.
    fn answers_too(&self, link: &str, address: IpAddr) -> Option<&str> {
        let all = &self.node.addresses().ok()?.all;
        let others = all.iter().map(|at| at.link.as_str());
        let mut others = others.filter(|other| self.share_network(link, other, address));
        let other = others.next()?;
        let sysctl = self.node.sysctl().ok()?;
        let ignores = |name: &str| sysctl.get(&sysctl_of(name, "arp_ignore")) != Some("0");
        (!ignores("all") && !ignores(other)).then_some(other)
    }

    /// Returns whether the network in which `link` has `address` is that of `other`, a further link, as well.
    fn share_network(&self, link: &str, other: &str, address: IpAddr) -> bool {
        let all = self.node.addresses().map_or(&[][..], |all| &all.all);
        let mut own = all.iter().filter(|at| at.link == link);
        let own = own.find(|at| at.addr.addr == address && !at.addr.is_host());
        own.is_some_and(|own| {
            let mut its = all.iter().filter(|at| at.link == other && other != link);
            its.any(|at| at.addr.normal() == own.addr.normal())
        })
    }

    /// Returns the reason why the route `back` to the source of packets for `destination` does not lead to the link by which they come in.
    fn filter_reason(&self, back: &Route, destination: IpAddr) -> Option<FilterReason> {
        if self.places.own(destination).is_some() {
            let config = self.node.proxy_config().ok()?;
            let range = config.cluster_cidr(Family::of(destination))?;
            let is_used = matches!(&*config.detect_local_mode, "" | "ClusterCIDR");
            return (is_used && range.contains(destination)).then_some(FilterReason::InPodRange {
                range,
                address: destination,
            });
        }
        let here = self.node.name().ok()?;
        let mut pods = self.node.pods().ok()?.iter();
        let is_plugin = |pod: &Pod| {
            let mut containers = pod.spec.containers.iter();
            pod.spec.node_name.as_ref() == Some(&here)
                && containers.any(|container| container.name == "aws-node")
        };
        (back.table != "main" && pods.any(is_plugin)).then_some(FilterReason::VpcCni)
    }

    /// Returns whether the filter of `link` is strict.
    fn filters(&self, link: Option<&str>) -> bool {
        link.is_some_and(|link| self.ingress.strict.contains(link))
    }

    /// Returns the link of the node that has the address of a pod with a network of its own.
    pub(super) fn taken(&self, address: IpAddr) -> Option<String> {
        let link = self.places.own(address)?;
        let is_pod = matches!(self.places.holder(address), Some(Holder::Pod(_)));
        is_pod.then(|| link.to_owned())
    }

    /// Returns whether the route to `pod` has a gateway.
    pub(super) fn leads_away(&self, pod: IpAddr) -> bool {
        let lookup = Lookup::to(Asked::new(pod, None));
        let route = self.router.found(lookup).ok().flatten();
        route.is_some_and(|route| route.destination.prefix > 0 && route.gateway.is_some())
    }

    /// Returns why a pod of `link` does not send its packet to the node: the link's own network has its destination. The node
    /// answers for its own addresses, those of kube-ipvs0 among them.
    fn on_own_link(
        &self,
        question: Question<'_>,
        source: IpAddr,
        link: Option<&str>,
    ) -> Option<Obstacle> {
        let (link, address) = (link?, question.flow.destination);
        let is_of_service =
            self.places.service(address).is_some() || self.places.is_cluster_ip(address);
        if question.flow.entry != Entry::Pod || !is_of_service {
            return None;
        }
        let all = &self.node.addresses().ok()?.all;
        let mut own = all
            .iter()
            .filter(|at| at.link == link && at.addr.contains(source));
        let network = own.find(|at| at.addr.contains(address))?.addr.normal();
        let is_taken = all.iter().any(|at| at.addr.addr == address);
        (!is_taken).then(|| Obstacle::OnLink {
            address,
            link: link.to_owned(),
            network,
        })
    }

    /// Returns the link of the node called `name`.
    pub(super) fn link(&self, name: &str) -> Option<&Link> {
        self.ingress.links.get(name).copied()
    }

    /// Returns `flow` with the link by which it comes in from outside, where its replies leave by another one.
    pub(super) fn entering(&self, mut flow: Flow) -> Flow {
        if flow.carried.input.is_none()
            && let (Some(link), Some(client)) = (self.wire_of(&flow), flow.source)
            && self.way_to(client).is_some_and(|(back, _)| back != link)
        {
            flow.carried.input = Some(Arc::from(link));
        }
        flow
    }

    /// Returns the link on whose wire a client outside looks for the address of its packet.
    pub(super) fn wire_of(&self, flow: &Flow) -> Option<&str> {
        let address = flow.destination;
        let is_asked = self.places.service(address).is_some() || self.places.own(address).is_some();
        let is_pod = flow.source.is_some_and(|client| self.places.is_pod(client));
        if flow.entry != Entry::Outside || !is_asked || is_pod {
            return None;
        }
        let all = &self.node.addresses().ok()?.all;
        let has = |at: &&Address| at.scope == "global" && at.addr.contains(address);
        let mut having = all.iter().filter(has).filter(|at| at.link != DUMMY);
        let in_network = having.clone().filter(|at| !at.addr.is_host());
        let link = in_network
            .clone()
            .find(|at| at.addr.addr == address)
            .or_else(|| in_network.clone().next())
            .or_else(|| having.find(|at| self.is_alone_on_wire(at)));
        Some(link?.link.as_str())
    }

    /// Returns what may happen to the replies to packets from outside that come in by the link of the address which they ask for.
    fn by_other_link(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let address = question.flow.destination;
        let client = outcome.sent_from;
        let link = self.wire_of(question.flow)?;
        let back = self.leaves_elsewhere(question, outcome, link)?;
        if self.share_network(link, &back, address) {
            return None;
        }
        if let Some(away) = self.reply_away((client, address), link, &back) {
            return Some(away);
        }
        let mut rules = self.node.rules().ok()?.all.iter();
        let rule = rules.find(|rule| rule.from.is_some_and(|from| from.contains(address)));
        let missed = rule.map_or_else(String::new, |rule| {
            format!(
                "; routing policy rule {} ({rule}) does not lead them, as a reply has the address of its pod until it leaves: give the \
                 connections that come in by {link} a mark (CONNMARK), and look up the table by that mark",
                rule.priority
            )
        });
        Some(Fault::Unknown(Missing::Unmodelled(format!(
            "replies to {client} leave by {back}, although {address} is in the network of {link}: routers that check sources \
             drop them{missed}"
        ))))
    }

    /// Returns the fault of replies to a client, which asks an address in the network of the link `wire`, that leave by a link which
    /// leads to no router.
    fn reply_away(
        &self,
        (client, address): (IpAddr, IpAddr),
        wire: &str,
        back: &str,
    ) -> Option<Fault> {
        let link = self.link(back)?;
        let is_port = link.kind == "veth" && link.master.is_some();
        let is_of_pods = is_made_by_plugin(link) || is_port || self.is_inner(back);
        // Clients outside may all be in a network of the node.
        let is_vpn = matches!(link.kind.as_str(), "tun" | "wireguard") && !is_assumed(client);
        let route = self.router.found(Lookup::to(Asked::new(client, None)));
        let route = route.ok()??;
        // A route to a network of its own is the VPN's task.
        let is_wide = route.destination.prefix <= 8;
        if route.devices() != [back] || !is_wide || !(is_of_pods || is_vpn) {
            return None;
        }
        Some(Fault::Obstacle(Box::new(Obstacle::ReplyAway {
            client,
            address,
            wire: wire.to_owned(),
            route: Box::new(route.clone()),
            rule: self.rule_to(route).cloned().map(Box::new),
            is_vpn,
            gateway: self.default_gateway(wire, Family::of(client)),
        })))
    }

    fn default_gateway(&self, link: &str, family: Family) -> Option<IpAddr> {
        let mut routes = self.node.routes().ok()?.all.iter();
        let default = routes.find(|route| {
            route.family == family && route.destination.prefix == 0 && route.devices() == [link]
        })?;
        default.gateway
    }

    /// Returns whether clients look for the address, which is in no network of the node, on the wire of its link: no other link has a
    /// part in it, and the link has no other address.
    fn is_alone_on_wire(&self, at: &Address) -> bool {
        let all = self
            .node
            .addresses()
            .map_or(&[][..], |all| all.all.as_slice());
        let mut others = all.iter().filter(|other| other.link == at.link);
        let is_wire = self
            .ingress
            .links
            .get(at.link.as_str())
            .is_some_and(|link| {
                let is_virtual = matches!(
                    link.kind.as_str(),
                    "dummy" | "bridge" | "macvlan" | "ipvlan" | "vrf" | "tun" | "ifb"
                );
                !is_virtual && !link.is_tunnel() && link.name != "lo"
            });
        // A network that a route leads to by the link has clients of its own.
        let routes = self.node.routes().map_or(&[][..], |all| &all.all);
        let mut routes = routes.iter().filter(|route| route.devices() == [&*at.link]);
        let is_routed = routes.any(|route| {
            let to = route.destination;
            to.prefix > 0 && !to.is_host() && to.contains(at.addr.addr)
        });
        is_wire
            && !is_routed
            && others.all(|other| other.addr == at.addr || other.scope != "global")
    }

    /// Returns the link by which the reply leaves, if it is not `link`, by which the packet came in, whatever mark rules give to the
    /// connection.
    fn leaves_elsewhere(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
        link: &str,
    ) -> Option<String> {
        let rules = &self.node.rules().ok()?.all;
        let is_special =
            |rule: &PolicyRule| rule.from.is_some() || rule.iif.is_some() || rule.mark.is_some();
        if !rules.iter().any(is_special) {
            let back = self
                .router
                .found(Lookup::to(Asked::new(outcome.sent_from, None)));
            // Of several next hops, each gets some of the replies.
            let mut links = back.ok()??.devices().into_iter();
            return links.find(|back| *back != link).map(str::to_owned);
        }
        let reply = self.reply_to(question, outcome)?;
        let walks = self.back(Family::of(question.flow.destination));
        let links = |ct_mark: u32| -> BTreeSet<String> {
            let mut reply = reply.clone();
            reply.flow.carried.ct_mark = ct_mark;
            let outcomes = walks.reply(&reply);
            let all = outcomes.iter().filter_map(Outcome::leaves_by);
            all.map(str::to_owned).collect()
        };
        let mut marked = links(reply.flow.carried.ct_mark);
        let mut marks = rules.iter().filter_map(|rule| rule.mark);
        if marked.contains(link) || marks.any(|mark| links(mark.value).contains(link)) {
            return None;
        }
        marked.pop_first()
    }

    /// Returns whether replies to the pod `address` do not return by its link, or that link forwards nothing while others do.
    pub(super) fn is_cut_off(&self, address: IpAddr) -> bool {
        let entered = self.entered(Entry::Pod, address);
        let link = entered.link.as_deref();
        entered.astray.is_some()
            || link.and_then(|link| self.ingress.forwards(link)) == Some(false)
                && self.any_forwards()
    }

    /// Returns where a packet of `flow` from `source` comes in.
    fn entered_by(&self, flow: &Flow, source: IpAddr) -> Rc<Entered> {
        match &flow.carried.input {
            Some(link) => Rc::new(Entered {
                link: Some(Rc::from(&**link)),
                astray: None,
            }),
            None => self.entered(flow.entry, source),
        }
    }

    /// Returns where packets from `source` come in: for pods of this node by the link that has the network of their addresses.
    fn entered(&self, entry: Entry, source: IpAddr) -> Rc<Entered> {
        if let Some(known) = self.ingress.entered.borrow().get(&source) {
            return Rc::clone(known);
        }
        let found = Rc::new(self.enters(entry, source));
        let mut all = self.ingress.entered.borrow_mut();
        all.insert(source, Rc::clone(&found));
        found
    }

    /// Returns the rule that would lead packets to pods, of which `pod` is one, past the rule for the table of `route`.
    fn before(&self, route: &Route, pod: IpAddr) -> Option<Box<PolicyRule>> {
        let range = pods_with(self.node, pod)?;
        let is_default = matches!(route.table.as_str(), "main" | "local" | "default");
        let mut rules = self.node.rules().ok()?.all.iter();
        let leads_there = |rule: &&PolicyRule| {
            !is_default
                && rule.family == route.family
                && rule.action.is_empty()
                && rule.table.as_ref() == Some(&route.table)
        };
        rules.find(leads_there)?.bypass(range).map(Box::new)
    }

    /// Returns whether the kernel prefers `route` to another one that leads to `pod` by the link `home`.
    fn hides(&self, route: &Route, pod: IpAddr, home: &str) -> bool {
        let routes = self.node.routes().map_or(&[][..], |all| all.all.as_slice());
        let leads_home =
            |route: &&Route| route.destination.contains(pod) && route.devices().contains(&home);
        routes.iter().any(|route| leads_home(&route)) && !route.devices().contains(&home)
    }

    fn enters(&self, entry: Entry, source: IpAddr) -> Entered {
        let mut martians = self.ingress.martians.iter();
        if entry == Entry::Outside
            && let Some(martian) = martians.find(|martian| martian.source == source)
        {
            return Entered {
                link: Some(Rc::from(martian.link)),
                astray: None,
            };
        }
        let lookup = Lookup::to(Asked::new(source, None));
        let Ok(route) = self.router.found(lookup) else {
            return Entered::default();
        };
        let devices = route.map_or_else(Vec::new, Route::devices);
        let home = (entry == Entry::Pod)
            .then(|| self.router.home(Asked::new(source, None), &devices))
            .flatten();
        match home {
            Some(home) => Entered {
                link: Some(Rc::from(home)),
                astray: (!self.is_led_home(source, home) && !self.is_led_in(source, home))
                    .then(|| self.led_astray(source, home, route)),
            },
            None => Entered {
                link: devices.first().copied().map(Rc::from),
                astray: None,
            },
        }
    }

    /// Returns whether packets to `pod` that come in by a link to other machines reach it by the link `home`: a routing policy rule may lead
    /// the node's own packets elsewhere (`iif lo`).
    fn is_led_in(&self, pod: IpAddr, home: &str) -> bool {
        let mut links = outward(self.node).into_iter().peekable();
        links.peek().is_some()
            && links.all(|link| {
                let lookup = Lookup {
                    input: Some(link),
                    ..Lookup::to(Asked::new(pod, None))
                };
                let route = self.router.found(lookup).ok().flatten();
                route.is_some_and(|route| route.devices().contains(&home))
            })
    }

    /// Returns whether `pod`, one of this node, is reached by what comes in by a certain link alone.
    pub(super) fn is_kept_apart(&self, pod: IpAddr) -> bool {
        let home = self.router.home(Asked::new(pod, None), &[]);
        home.is_some_and(|home| self.is_led_home(pod, home))
    }

    /// Returns whether packets to `pod` that come in by a certain link reach it by the link `home`: AWS leads those to pods with
    /// security groups, and those from them, by a table of an interface of their own.
    fn is_led_home(&self, pod: IpAddr, home: &str) -> bool {
        let routes = self.node.routes().map_or(&[][..], |all| all.all.as_slice());
        let leads_home =
            |route: &&Route| route.destination == Cidr::host(pod) && route.devices() == [home];
        let mut home_routes = routes.iter().filter(leads_home);
        home_routes.any(|route| self.keeps_pod_apart(&route.table))
    }

    /// Returns whether rules lead to `table` both what comes in by the link of a pod, to whose address it has a route, and what comes in by
    /// another link.
    pub(super) fn keeps_pod_apart(&self, table: &str) -> bool {
        let (Ok(rules), Ok(routes)) = (self.node.rules(), self.node.routes()) else {
            return false;
        };
        let leads_there =
            |rule: &&PolicyRule| rule.action.is_empty() && rule.table.as_deref() == Some(table);
        let links = rules.all.iter().filter(leads_there);
        let links: Vec<&str> = links.filter_map(|rule| rule.iif.as_deref()).collect();
        let mut of_table = routes.all.iter().filter(|route| route.table == table);
        links.iter().any(|link| *link != "lo")
            && of_table.any(|route| {
                let is_of_pod = |link: &&str| route.devices() == [*link];
                route.destination.is_host() && links.len() > 1 && links.iter().any(is_of_pod)
            })
    }

    /// Returns why packets to `pod`, which is behind the link called `home`, take `route`: with a link that is down, and with the
    /// address of a bridge, the kernel removes the routes by it.
    pub(super) fn led_astray(&self, pod: IpAddr, home: &str, route: Option<&Route>) -> Obstacle {
        let gone = self.home_down(pod).or_else(|| self.without_gateway(pod));
        gone.or_else(|| self.no_bridge(pod)).unwrap_or_else(|| {
            let wins = route.filter(|route| self.hides(route, pod, home));
            let way = route.and_then(|route| route.devices().first().copied());
            Obstacle::RouteBack {
                pod,
                link: home.to_owned(),
                network: self.network_on(home, pod),
                way: way.map(str::to_owned),
                route: wins.map(|route| Box::new(route.clone())),
                before: wins.and_then(|route| self.before(route, pod)),
                home: self.places.home_elsewhere(pod).map(Box::new),
                refused: false,
            }
        })
    }

    /// Returns the network of the link called `link` that has `pod`; `None` if it has none, as links of single pods.
    fn network_on(&self, link: &str, pod: IpAddr) -> Option<Cidr> {
        let all = &self.node.addresses().ok()?.all;
        let mut own = all.iter().filter(|address| address.link == link);
        let own = own.find(|address| !address.addr.is_host() && address.addr.contains(pod))?;
        Some(own.addr.normal())
    }

    /// Returns why packets to `pod`, one of this node, leave by another link than its own, if no route leads there by that.
    pub(super) fn unrouted(&self, pod: IpAddr) -> Option<Obstacle> {
        let lookup = Lookup::to(Asked::new(pod, None));
        // A route that rejects packets is the fault itself.
        if self.router.rejecting(lookup).is_some() {
            return None;
        }
        let route = self.router.found(lookup).ok()?;
        let devices = route.map_or_else(Vec::new, Route::devices);
        let home = self.router.home(Asked::new(pod, None), &devices)?;
        let why = self.led_astray(pod, home, route);
        let is_missing = match &why {
            Obstacle::RouteBack { route, home, .. } => route.is_none() && home.is_none(),
            _ => true,
        };
        is_missing.then_some(why)
    }
}

fn fault(obstacle: Obstacle) -> Fault {
    Fault::Obstacle(Box::new(obstacle))
}
