//! The judge: it follows each outcome of a walk to its end, and the reply back.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use foldhash::HashMap;

use super::across::Beyond;
use super::diversion::is_special;
use super::ingress::Ingress;
use super::inside::Insides;
use super::local_ports::{LastPorts, Masqueraded};
use super::logged::Corrupted;
use super::peers::Peers;
use super::place::Places;
use super::replies::Replies;
use super::single::Single;
use super::unanswered::Unanswered;
use super::witnesses::Witnesses;
use super::{Fate, Fault, Missing, Obstacle, Verdict, Way};
use crate::trace::mismatch::usable;
use crate::trace::route::{Router, is_of_own_tables, only_in_vrf};
use crate::trace::sources::Likely;
use crate::trace::{self, Assumption, Effect, Entry, Flow, Hook, Hop, Kept, Outcome};
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::VirtualServer;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Family, Proto};
use kpx_node::node::routes::Route;
use kpx_node::node::sysctl::Sysctl;
use kpx_node::node::{IptablesBackend, NodeSnapshot};
use kpx_node::owner::Port;

/// The sysctl with the number of tracked connections.
pub const TRACKED: &str = "net.netfilter.nf_conntrack_count";

/// The sysctl with the most tracked connections that there may be.
pub const MOST_TRACKED: &str = "net.netfilter.nf_conntrack_max";

/// The sysctl that ends connections of IPVS whose real server has gone.
const ENDS_WITH_SERVER: &str = "net.ipv4.vs.expire_nodest_conn";

/// Items that the same release began to read.
const OF_LINKS: [Item; 4] = [
    Item::NeighbourTable,
    Item::XfrmPolicies,
    Item::Tc,
    Item::PodNetworks,
];

/// Returns whether `node` was read by a kpx that reads [`OF_LINKS`]. A text that was pasted may be one of them.
fn is_of_new(node: &NodeSnapshot<'_>) -> bool {
    let is_tried = |item: &Item| {
        let read = node.evidence().text(*item);
        !matches!(read, Err(Gap::NotCollected(_)))
    };
    OF_LINKS.iter().filter(|item| is_tried(item)).count() > 1
}

/// A connection that is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Question<'q> {
    /// Its first packet.
    pub flow: &'q Flow,
    /// The Service port that it is for; `None` if it is for no Service.
    pub port: Option<&'q Port>,
}

/// Judges connections through one node.
#[derive(Debug)]
pub struct Judge<'n> {
    pub(super) node: &'n NodeSnapshot<'n>,
    pub(super) places: Places<'n>,
    pub(super) router: Router<'n>,
    pub(super) ingress: Ingress<'n>,
    peers: OnceCell<Peers>,
    pub(super) insides: Insides<'n>,
    /// Pods that rules, routes or addresses tell apart from others.
    pub(super) single: OnceCell<Single>,
    pub(super) unanswered: OnceCell<Unanswered>,
    pub(super) asks_for_hops: OnceCell<bool>,
    /// Pods with a chain for their NetworkPolicies, and whether these are in force.
    pub(super) policed: OnceCell<HashMap<IpAddr, bool>>,
    /// The virtual servers that bind clients to a real server.
    binding: OnceCell<Vec<&'n VirtualServer>>,
    /// Addresses to which clients on the node have no port left.
    pub(super) last_ports: LastPorts,
    pub(super) masqueraded: Masqueraded,
    /// By family, the addresses from which clients are chosen: without the slices, and with them.
    pub(super) likely: [(OnceCell<Likely>, OnceCell<Likely>); 2],
    /// By family, the walk of replies.
    pub(super) back: [OnceCell<Box<Kept<'n>>>; 2],
    /// Routes of tables to which no routing policy rule leads, of pods' own interfaces; `None` if there is no reason to look for them.
    pub(super) without_rules: OnceCell<Option<Vec<&'n Route>>>,
    /// By link and Node, and whether the Node's packets come first, the reason why a tunnel carries nothing; only for tunnels that were
    /// asked for.
    pub(super) tunnels: RefCell<HashMap<(String, String, bool), Option<Fault>>>,
    /// The faults of IPv6 neighbours, by their address and link.
    pub(super) neighbours: RefCell<HashMap<(IpAddr, String), Option<Fault>>>,
    /// Packets after the first ones: replies that arrive, and those that were followed.
    pub(super) replies: RefCell<Replies>,
    /// By family, whether rules may treat packets of an established connection worse than the packets that open one.
    pub(super) told: [OnceCell<bool>; 2],
    /// Follows packets to other nodes, if their states are given.
    pub(super) beyond: Option<Rc<dyn Beyond + 'n>>,
    /// Whether any link has an eBPF program.
    pub(super) link_programs: OnceCell<bool>,
    /// Datagrams of tunnels that arrived with a wrong checksum, once asked for.
    pub(super) corrupted: OnceCell<Vec<Corrupted>>,
    /// What the other nodes know of this one, if they were read.
    pub(crate) others: Option<Rc<dyn Witnesses + 'n>>,
    /// Whether chains of nftables are on links or bridges.
    pub(super) has_link_hooks: bool,
    /// Whether the node has a pod network: before, routes to pods prove nothing.
    pub(super) pod_network: bool,
    /// By family, the sysctl that turns forwarding off, if one does.
    forwarding: [Result<Option<&'static str>, Gap>; 2],
    /// Whether the evidence is as new as the items of links and pods: one that it lacks was not read, or was removed.
    reads_links: bool,
    /// The rules that were not read, by family.
    pub(super) unread: [Option<Missing>; 2],
    /// Whether they may be rules of kube-proxy, by family.
    lacks_own: [bool; 2],
}

impl<'n> Judge<'n> {
    /// Reads what all connections through `node` have in common.
    pub fn new(node: &'n NodeSnapshot<'n>) -> Self {
        Self {
            node,
            places: Places::new(node),
            router: Router::new(node),
            ingress: Ingress::new(node),
            peers: OnceCell::new(),
            insides: Insides::default(),
            single: OnceCell::new(),
            unanswered: OnceCell::new(),
            asks_for_hops: OnceCell::new(),
            policed: OnceCell::new(),
            link_programs: OnceCell::new(),
            corrupted: OnceCell::new(),
            binding: OnceCell::new(),
            last_ports: OnceCell::new(),
            masqueraded: OnceCell::new(),
            likely: Default::default(),
            back: Default::default(),
            without_rules: OnceCell::new(),
            tunnels: RefCell::default(),
            neighbours: RefCell::default(),
            replies: RefCell::default(),
            told: Default::default(),
            beyond: None,
            others: None,
            has_link_hooks: node.nft().is_ok_and(trace::link_hooks::any),
            pod_network: node.has_pod_network(),
            forwarding: Family::BOTH.map(|family| trace::not_forwarding(node, family)),
            reads_links: is_of_new(node),
            unread: Family::BOTH.map(|family| unread(node, family)),
            lacks_own: Family::BOTH.map(|family| match node.configured_mode() {
                Ok(Mode::Nftables) => node.nft().is_err(),
                Ok(Mode::Iptables | Mode::Ipvs | Mode::Userspace) => {
                    node.saved(IptablesBackend::InUse, family).is_err()
                }
                Err(_) => true,
            }),
        }
    }

    /// Says that the rules of `family` are read in parts, and that the parts in `unread` could not be read.
    pub fn reads_parts(&mut self, family: Family, unread: Option<&String>) {
        let at = usize::from(family == Family::V6);
        self.lacks_own[at] = unread.is_some();
        let of = &mut self.unread[at];
        let is_of_iptables = |missing: &Missing| matches!(missing, Missing::Gap { gap: Gap::NotCollected(item), .. } if kpx_node::evidence::IPTABLES.contains(item));
        if of.as_ref().is_some_and(is_of_iptables) {
            *of = None;
        }
        if let Some(unread) = unread {
            *of = Some(Missing::Other(unread.clone()));
        }
    }

    pub(super) fn peers(&self) -> &Peers {
        self.peers.get_or_init(|| Peers::new(self.node))
    }

    /// Returns whether the node has a pod network.
    pub const fn has_pod_network(&self) -> bool {
        self.pod_network
    }

    /// Returns the sysctl that turns forwarding off in `family`, if one does.
    pub fn forwarding_off(&self, family: Family) -> Option<&'static str> {
        let of = &self.forwarding[usize::from(family == Family::V6)];
        of.as_ref().ok().copied().flatten()
    }

    /// Returns the fate of the connection, whose first packet has these `outcomes`.
    pub fn judge(&self, question: Question<'_>, outcomes: &[Outcome]) -> Verdict {
        let kept = self.portless(question);
        let kept = kept.or_else(|| self.inside_client(question));
        let judged = outcomes.iter().map(|outcome| {
            let here = kept.clone().or_else(|| self.fault(question, outcome));
            let way = match &self.beyond {
                Some(beyond) => self.go_on(question, outcome, here, (beyond.as_ref(), 0)),
                None => Way::of(here, None),
            };
            let mut way = self.with_further(question, outcome, way);
            // A rule, or another open condition, says more.
            if way.fault.is_none() && outcome.verdict.arrives() {
                way.fault = self.unanswered_lately(question, outcome);
            }
            way
        });
        let mut verdict = Verdict::joined(outcomes, judged.collect());
        if verdict.fate == Fate::Unknown {
            // One reason for everything that depends on them.
            for (outcome, way) in outcomes.iter().zip(&mut verdict.ways) {
                if let Some(missing) = self.unread_sets([outcome]) {
                    way.fault = Some(Fault::Unknown(missing));
                }
            }
        }
        self.with_beside(question, outcomes, verdict)
    }

    /// Returns `verdict` with what fails some connections only, or some clients.
    pub(super) fn with_beside(
        &self,
        question: Question<'_>,
        outcomes: &[Outcome],
        mut verdict: Verdict,
    ) -> Verdict {
        let beside = self
            .table_full(question)
            .or_else(|| self.tracked(question, outcomes))
            .or_else(|| self.bound(question))
            .or_else(|| self.out_of_ports(question))
            .or_else(|| self.limited(question, outcomes))
            .or_else(|| self.full_neighbours(question, outcomes));
        if let Some(fault) = beside {
            let fate = match fault.fate() {
                Fate::Unknown => Fate::Unknown,
                // Other clients are not affected, or other connections.
                _ => Fate::Partly,
            };
            if matches!(verdict.fate, Fate::Works | Fate::Unknown) {
                verdict.fate = fate;
            }
            verdict.beside = Some(fault);
        }
        verdict
    }

    /// Returns that the IP sets were not read, if one of `outcomes` depends on them.
    pub(super) fn unread_sets<'o>(
        &self,
        outcomes: impl IntoIterator<Item = &'o Outcome>,
    ) -> Option<Missing> {
        let mut when = outcomes.into_iter().flat_map(|outcome| &outcome.when);
        let gap = self.node.ipset_or_none().err()?;
        when.any(Assumption::is_of_unread_set)
            .then_some(Missing::Gap {
                what: "the IP sets that the rules match were not read (`ipset save` lists them)",
                gap,
            })
    }

    pub(super) fn fault(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let fault = self.fault_of(question, outcome)?;
        let is_open = fault.fate() == Fate::Unknown;
        let lacks =
            |port: &&Port| lacks_endpoints(self.node, port, Family::of(question.flow.destination));
        match question
            .port
            .filter(|port| port.left_to.is_none())
            .filter(lacks)
        {
            // Whatever is unknown, it leads to no endpoint.
            Some(_) if is_open => Some(Fault::NoEndpoints),
            _ => Some(fault),
        }
    }

    fn fault_of(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let by_proxy = self.by_proxy(question, outcome);
        if let Some(fault) = by_proxy.or_else(|| self.by_switch(question)) {
            return Some(fault);
        }
        let fault = self.by_rules(question, outcome)?;
        if let Some(missing) = self.routed_in_vrf(&fault) {
            return Some(Fault::Unknown(missing));
        }
        Some(self.averted_unread(question, outcome, fault))
    }

    /// Returns the doubt about the lack of a route if the table of a VRF has one.
    pub(super) fn routed_in_vrf(&self, fault: &Fault) -> Option<Missing> {
        let to = match fault {
            Fault::NoRoute { to, .. } => to.ip(),
            Fault::Obstacle(what) => match &**what {
                Obstacle::Further { to, by: None, .. } => *to,
                Obstacle::RouteBack {
                    pod, route: None, ..
                } => *pod,
                _ => return None,
            },
            _ => return None,
        };
        only_in_vrf(self.node, to).map(Missing::Unmodelled)
    }

    /// Returns the fault of a packet that the rules decide about.
    fn by_rules(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        match outcome.verdict {
            trace::Verdict::Drop | trace::Verdict::Reject => {
                let fault = stopped(question, outcome);
                let known = match &fault {
                    Fault::NoRoute { to, refused, .. } => self
                        .wayless(to.ip(), *refused)
                        .or_else(|| self.cut_off(to.ip(), *refused)),
                    _ => None,
                };
                known.or(Some(fault))
            }
            trace::Verdict::Unknown | trace::Verdict::Mixed => self
                .proxied(question, outcome)
                .or_else(|| Some(Fault::Unknown(Missing::by_rules(outcome)))),
            trace::Verdict::Deliver | trace::Verdict::Local | trace::Verdict::Unmatched => {
                let fault = self.on_the_way_or_back(question, outcome);
                let fault = fault.map(|fault| {
                    let averts = fault.may_be_unread();
                    let doubt = averts.then(|| self.may_be_translated(question, outcome));
                    doubt.flatten().unwrap_or(fault)
                });
                match fault {
                    // A rule of kube-proxy that was not read may translate the packet, or its source.
                    Some(fault)
                        if rests_on_absence(question, outcome, &fault)
                            && self.lacks_own(question, &fault) =>
                    {
                        self.unread_of(question).map(Fault::Unknown).or(Some(fault))
                    }
                    Some(fault) => Some(fault),
                    None if self.lacks_own[index(question)] => {
                        self.unread_of(question).map(Fault::Unknown)
                    }
                    None => None,
                }
                .or_else(|| self.gap(question, outcome).map(Fault::Unknown))
                .or_else(|| self.unsure_ipsec(question, outcome))
                .or_else(|| self.unread_arp(question, outcome))
                .or_else(|| self.unsure_neighbour(question, outcome))
                .or_else(|| self.unknown_next_hop(question, outcome))
                .or_else(|| self.unsure_tc(question, outcome))
                .or_else(|| self.unlearnt(question, outcome))
                .or_else(|| self.unannounced(question))
                .or_else(|| self.unmodelled(question, outcome))
                // Rules of other software, if kube-proxy's were read: every other reason says more.
                .or_else(|| self.unread_of(question).map(Fault::Unknown))
            }
        }
    }

    /// Returns the fault of packets to `pod`, one of this node, if the route to its link is missing.
    fn cut_off(&self, pod: IpAddr, is_refused: bool) -> Option<Fault> {
        let mut missing = self.unrouted(pod)?;
        let Obstacle::RouteBack { refused, .. } = &mut missing else {
            return None;
        };
        *refused = is_refused;
        Some(Fault::Obstacle(Box::new(missing)))
    }

    /// Returns the fault of a packet that the rules let through, or of its reply: the first certain one, else the first doubt.
    fn on_the_way_or_back(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        // If the address may not be the node's, the other faults are about another packet.
        if let Some(fault) = self.at_home(question) {
            return Some(fault);
        }
        let asked: [&dyn Fn() -> Option<Fault>; 32] = [
            &|| self.held_elsewhere(question),
            &|| self.kept_by_route(question, outcome),
            &|| self.ingress(question, outcome),
            &|| self.hidden_route(question, outcome),
            &|| self.end(question, outcome),
            &|| self.not_forwarded(question, outcome),
            &|| self.ttl(question, outcome),
            &|| self.blocked_by_ipsec(question, outcome),
            &|| self.dropped_by_tc(question, outcome),
            &|| self.broken_link(question, outcome),
            &|| self.arp(question, outcome),
            &|| self.isolated(question, outcome),
            &|| self.dead_next_hop(question, outcome),
            &|| self.unanswered(question, outcome),
            &|| self.other_machine(question, outcome),
            &|| self.out_of_masqueraded_ports(question, outcome),
            &|| self.reply(question, outcome),
            &|| self.by_third_node(question, outcome),
            &|| self.stray_reply(question, outcome),
            &|| self.client_out_of_range(question, outcome),
            &|| self.reply_at_links(question, outcome),
            &|| self.stopped_tunnel(question, outcome),
            &|| self.back_into_tunnel(outcome),
            &|| self.home_gone(outcome),
            &|| self.tunnel_source(outcome),
            &|| self.off_tunnel(outcome),
            &|| self.off_interface(outcome),
            &|| self.too_large_there(question, outcome),
            &|| self.same_tunnel_end(outcome),
            &|| self.other_tunnel_mac(question, outcome),
            &|| self.beyond_wireguard(outcome),
            &|| self.inside(question, outcome),
        ];
        worst(&asked)
    }

    /// Returns the rules of `family` that may exist and are not read: rules of packets, and routing policy rules if there are tables that
    /// only they use.
    pub fn unread(&self, family: Family) -> Option<&Missing> {
        self.unread[usize::from(family == Family::V6)].as_ref()
    }

    /// Returns which rules may exist and are not read.
    fn unread_of(&self, question: Question<'_>) -> Option<Missing> {
        self.unread[index(question)].clone()
    }

    /// Returns whether rules of kube-proxy that were not read may prevent `fault`. In mode ipvs, no rule translates packets to
    /// Services.
    fn lacks_own(&self, question: Question<'_>, fault: &Fault) -> bool {
        let node = self.node;
        match fault {
            Fault::Untranslated { .. } if node.configured_mode().ok() == Some(Mode::Ipvs) => {
                node.ipvs().is_err() || node.addresses().is_err()
            }
            _ => self.lacks_own[index(question)],
        }
    }

    /// Returns whether `outcome` ends at this node itself.
    pub(super) fn ends_here(&self, outcome: &Outcome) -> bool {
        // A routing policy rule before the table local leads packets to the node's own address out again.
        let to = outcome.destination.0;
        let is_own = || self.places.own(to).is_some() && self.past_local(outcome, to).is_none();
        outcome.verdict == trace::Verdict::Local || is_own()
    }

    pub(super) fn is_forwarded(&self, question: Question<'_>, outcome: &Outcome) -> bool {
        // Translated on a bridge, IPv4 is routed once more, as if it were forwarded (`br_nf_pre_routing_finish`).
        let is_routed =
            !outcome.bridged || !outcome.as_sent.destination && question.flow.destination.is_ipv4();
        question.flow.entry != Entry::Host && is_routed && !self.ends_here(outcome)
    }

    fn not_forwarded(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        if !self.is_forwarded(question, outcome) {
            return None;
        }
        let key = self.forwarding_off(Family::of(question.flow.destination))?;
        if self.links_forward(question, outcome) {
            return None;
        }
        Some(Fault::NotForwarded { key })
    }

    /// Returns the evidence that is missing for a packet that works as far as it is read.
    fn gap(&self, question: Question<'_>, outcome: &Outcome) -> Option<Missing> {
        let gap = |what, gap: &Gap| Missing::Gap {
            what,
            gap: gap.clone(),
        };
        if let Err(missing) = self.node.addresses() {
            return Some(gap("the node's addresses are unknown", &missing));
        }
        if let Err(missing) = self.node.routes() {
            return Some(gap("the routes are unknown", &missing));
        }
        if let Err(missing) = self.node.rules()
            && !self.is_of_old(&missing)
        {
            return Some(gap("the routing policy rules are unknown", &missing));
        }
        if let Some(missing) = self.unplaced() {
            return Some(gap(
                "routing policy rules may lead packets elsewhere than to pods",
                &missing,
            ));
        }
        let is_relayed = |hop: &Rc<Hop>| matches!(hop.effect, Effect::Relay { .. });
        if outcome.hops.iter().any(is_relayed) {
            let what = "whether kube-proxy listens on the ports of its portals is unknown";
            let sockets = self.node.sockets();
            let missing = sockets.map_or_else(Some, |all| all.gaps.first().cloned());
            if let Some(missing) = missing {
                return Some(gap(what, &missing));
            }
        }
        if self.is_forwarded(question, outcome)
            && let Err(missing) = &self.forwarding[index(question)]
        {
            return Some(gap("whether the node forwards packets is unknown", missing));
        }
        self.in_vrf(question, outcome)
    }

    /// Returns which of the links and Nodes are not read, if routing policy rules lead some packets elsewhere: these tell where pods are.
    /// Without objects of the cluster, the rules alone answer.
    fn unplaced(&self) -> Option<Gap> {
        let mut rules = self.node.rules().ok()?.all.iter();
        if !rules.any(is_special) {
            return None;
        }
        let links = self.node.links().err().filter(|gap| !self.is_of_old(gap));
        let nodes = || {
            self.node
                .nodes()
                .err()
                .filter(|_| self.node.slices().is_ok())
        };
        links.or_else(nodes)
    }

    /// Returns the doubt about a packet that comes in or leaves by a link of a VRF.
    fn in_vrf(&self, question: Question<'_>, outcome: &Outcome) -> Option<Missing> {
        let links = self.node.links().ok()?;
        let input = self
            .came_in_by(question, outcome)
            .map(|link| link.to_string());
        let output = outcome.leaves_by().map(str::to_owned);
        let mut both = [input, output].into_iter().flatten();
        let (link, vrf) = both.find_map(|link| {
            let vrf = &links.vrf_of(&link)?.name;
            Some((link, vrf))
        })?;
        Some(Missing::Unmodelled(format!(
            "{link} is in VRF {vrf}, so the VRF's own table routes its packets: kpx does not follow that"
        )))
    }

    /// Returns the fault of new connections while the table of tracked ones is full. The kernel makes room for some: it drops
    /// others that have seen no reply.
    fn table_full(&self, question: Question<'_>) -> Option<Fault> {
        let sysctl = self.node.sysctl().ok()?;
        let number = |key| sysctl.get(key)?.trim().parse::<u64>().ok();
        let (count, most) = (number(TRACKED)?, number(MOST_TRACKED)?);
        // 0 is no limit.
        let is_full = most > 0 && count >= most && !question.flow.established;
        is_full.then_some(Fault::TableFull { count, most })
    }

    /// Returns tracked connections that take packets of the client past the rules to addresses that are no endpoints. A UDP
    /// client that keeps sending never gets another entry.
    fn tracked(&self, question: Question<'_>, outcomes: &[Outcome]) -> Option<Fault> {
        let flow = question.flow;
        if flow.proto != Proto::Udp || flow.established {
            return None;
        }
        let at = SocketAddr::new(flow.destination, flow.port);
        let Some(port) = question.port else {
            return self.untranslated(outcomes, at);
        };
        let is_endpoint = port.endpoints.iter().any(|endpoint| endpoint.addr == at);
        if is_endpoint {
            return None;
        }
        let source = outcomes.first().map(|outcome| outcome.sent_from);
        // In mode ipvs, connections are found before they are translated.
        let is_translated = matches!(
            self.node.configured_mode().ok(),
            Some(Mode::Iptables | Mode::Nftables)
        );
        let is_of_client = |entry: &kpx_node::node::conntrack::Entry| {
            let from = entry.original.source.ip();
            (entry.reply.source != at || is_translated)
                && (Some(from) == source || self.entry_of(from) == flow.entry)
                && port
                    .endpoints
                    .iter()
                    .all(|endpoint| endpoint.addr != entry.reply.source)
        };
        match trace::tracked(self.node, flow, None, Some(port), is_of_client) {
            Ok(tracked) if tracked.stale.is_empty() => None,
            Ok(tracked) => Some(Fault::Stale {
                count: tracked.count,
                backends: tracked.stale,
            }),
            Err(gap) if gap.is_absence() => None,
            Err(_) if self.node.configured_mode() == Ok(Mode::Ipvs) => self.balanced(question, at),
            Err(gap) => Some(Fault::Unknown(Missing::Gap {
                what: "the tracked connections are unknown, and UDP packets follow them",
                gap,
            })),
        }
    }

    /// Returns the tracked connections to `at`, the address of no Service, that take UDP packets of the client past the rules that
    /// translate them now: they are older than the rules.
    fn untranslated(&self, outcomes: &[Outcome], at: SocketAddr) -> Option<Fault> {
        let client = outcomes.first()?.sent_from;
        let is_translated = |outcome: &Outcome| SocketAddr::from(outcome.destination) != at;
        if !outcomes.iter().all(is_translated) {
            return None;
        }
        let entries = self.node.conntrack().ok()?.entries.iter();
        let stale = entries.filter(|entry| {
            entry.proto == Proto::Udp
                && entry.original.source.ip() == client
                && entry.is_untranslated_to(at)
        });
        let count = stale.count();
        (count > 0).then(|| Fault::Stale {
            count,
            backends: vec![at],
        })
    }

    fn knows_endpoints(&self, question: Question<'_>, port: &Port) -> bool {
        let family = Family::of(question.flow.destination);
        trace::knows_endpoints(self.node, &port.name, family)
    }

    /// Returns the connections of IPVS that take UDP packets to `at` to addresses that are no endpoints: in mode ipvs they decide, not
    /// those of conntrack.
    fn balanced(&self, question: Question<'_>, at: SocketAddr) -> Option<Fault> {
        let port = question
            .port
            .filter(|port| self.knows_endpoints(question, port))?;
        let is_gone =
            |real: SocketAddr| port.endpoints.iter().all(|endpoint| endpoint.addr != real);
        let servers = self.node.ipvs().map_or(&[][..], |table| &table.servers);
        let is_it = |server: &&VirtualServer| {
            server.key.socket() == Some(at) && server.key.proto() == Some(question.flow.proto)
        };
        let mut reals = servers
            .iter()
            .filter(is_it)
            .flat_map(|server| &server.reals);
        let keeps = reals.any(|real| is_gone(real.socket()));
        let ends = self
            .node
            .sysctl()
            .ok()
            .and_then(|all| all.get(ENDS_WITH_SERVER));
        if !keeps && ends.is_some_and(|value| value.trim() != "0") {
            // An entry whose real server has gone ends with its next packet.
            return None;
        }
        let entries = match self.node.ipvs_connections() {
            Ok(all) => all.all.iter(),
            Err(gap) if gap.is_absence() => return None,
            Err(gap) => {
                let what = "the connections of IPVS are unknown, and UDP packets follow them";
                return Some(Fault::Unknown(Missing::Gap { what, gap }));
            }
        };
        let stale = entries.filter(|entry| {
            entry.proto == Proto::Udp
                && entry.server == at
                && is_gone(entry.real)
                && entry.client.port() != 0
        });
        let backends: BTreeSet<SocketAddr> = stale.clone().map(|stale| stale.real).collect();
        (!backends.is_empty()).then(|| Fault::Stale {
            count: stale.count(),
            backends: backends.into_iter().collect(),
        })
    }

    /// Returns the entry of IPVS that binds a client to a real server that is no endpoint any more. The kernel ignores it if the
    /// server has gone, or if it takes no new connections and such entries end with it.
    fn bound(&self, question: Question<'_>) -> Option<Fault> {
        const ENDS: &str = "net.ipv4.vs.expire_quiescent_template";
        let (flow, port) = (question.flow, question.port?);
        if flow.established || !self.knows_endpoints(question, port) {
            return None;
        }
        let at = SocketAddr::new(flow.destination, flow.port);
        let binding = self.binding.get_or_init(|| {
            let servers = self.node.ipvs().map_or(&[][..], |table| &table.servers);
            servers
                .iter()
                .filter(|server| server.timeout != 0)
                .collect()
        });
        let mut servers = binding.iter();
        let server = servers.find(|server| {
            server.key.socket() == Some(at) && server.key.proto() == Some(flow.proto)
        })?;
        let is_endpoint = |addr| port.endpoints.iter().any(|endpoint| endpoint.addr == addr);
        let gone = server
            .reals
            .iter()
            .filter(|real| !is_endpoint(real.socket()));
        let gone: Vec<_> = gone.collect();
        if gone.is_empty() {
            return None;
        }
        let unknown = |gap: Gap| {
            let what = "whether session affinity binds clients to a server that is gone is unknown";
            (!gap.is_absence()).then_some(Fault::Unknown(Missing::Gap { what, gap }))
        };
        let ends = match self.node.sysctl() {
            Ok(sysctl) => match sysctl.known(ENDS) {
                Ok(value) => value?.trim() != "0",
                Err(gap) => return unknown(gap),
            },
            Err(gap) => return unknown(gap),
        };
        let binds = |real: SocketAddr| {
            let mut gone = gone.iter();
            gone.any(|server| server.socket() == real && (server.weight > 0 || !ends))
        };
        let mut entries = match self.node.ipvs_connections() {
            Ok(connections) => connections.all.iter(),
            Err(gap) => return unknown(gap),
        };
        let entry = entries.find(|entry| {
            entry.client.port() == 0
                && entry.proto == flow.proto
                && entry.server == at
                && self.entry_of(entry.client.ip()) == flow.entry
                && binds(entry.real)
        })?;
        Some(Fault::Obstacle(Box::new(Obstacle::Bound {
            client: entry.client.ip(),
            server: at,
            real: entry.real,
            proto: flow.proto,
            seconds: entry.expires,
            ends,
        })))
    }

    /// Returns whether `missing` is missing for every connection of `family`.
    pub fn lacks(&self, missing: &Missing, family: Family) -> bool {
        let at = usize::from(family == Family::V6);
        if self.unread[at].as_ref() == Some(missing) {
            return true;
        }
        let Missing::Gap { gap, .. } = missing else {
            return false;
        };
        let node = self.node;
        if let Gap::Partial(item, _) = gap {
            return node.evidence().part(*item).as_ref() == Some(gap);
        }
        let gaps = [
            node.addresses().err(),
            node.routes().err(),
            node.rules().err(),
            node.links().err(),
            node.sysctl().and_then(Sysctl::whole).err(),
            node.conntrack().err(),
            node.neighbour_table().err(),
            node.xfrm().err(),
            node.arptables().err(),
            node.tc().err(),
            node.pod_networks().err(),
            node.pods().err(),
            node.services().err(),
            node.slices().err(),
            self.forwarding[at].as_ref().err().cloned(),
        ];
        gaps.iter().flatten().any(|known_gap| known_gap == gap)
    }

    /// Returns whether an item of the links is missing because the bundle may be too old, or because the node has none.
    pub(super) const fn is_of_old(&self, gap: &Gap) -> bool {
        gap.is_absence() || matches!(gap, Gap::NotCollected(_)) && !self.reads_links
    }

    /// Returns where packets from `addr` enter.
    fn entry_of(&self, addr: IpAddr) -> Entry {
        if self.places.own(addr).is_some() {
            Entry::Host
        } else if self.places.is_pod_here(addr) == Some(true) {
            Entry::Pod
        } else {
            Entry::Outside
        }
    }
}

/// Returns whether `port` of a Service is known to have no usable endpoint of `family`.
pub fn lacks_endpoints(node: &NodeSnapshot<'_>, port: &Port, family: Family) -> bool {
    // A kube-proxy that is not strict reads these as addresses of IPv4.
    let is_mapped =
        |at: &SocketAddr| matches!(at.ip(), IpAddr::V6(addr) if addr.to_ipv4_mapped().is_some());
    let is_nobody = port.name.name.is_empty();
    if is_nobody
        || usable(port, family).next().is_some()
        || port
            .endpoints
            .iter()
            .any(|endpoint| is_mapped(&endpoint.addr))
    {
        return false;
    }
    trace::knows_endpoints(node, &port.name, family)
}

/// Returns whether the cause of `fault` is that no rule or program translates the packet.
pub(super) fn rests_on_absence(question: Question<'_>, outcome: &Outcome, fault: &Fault) -> bool {
    let is_untranslated = question.port.is_some() && outcome.as_sent.destination;
    fault.may_be_unread()
        || is_untranslated && !matches!(fault, Fault::Stopped { .. } | Fault::NoBackend { .. })
}

/// Returns the first of these faults that is certain, else the first doubt.
pub(super) fn worst(asked: &[&dyn Fn() -> Option<Fault>]) -> Option<Fault> {
    let mut doubt = None;
    for ask in asked {
        match ask() {
            Some(fault) if fault.fate() != Fate::Unknown => return Some(fault),
            unsure => doubt = doubt.or(unsure),
        }
    }
    doubt
}

pub(super) fn index(question: Question<'_>) -> usize {
    usize::from(Family::of(question.flow.destination) == Family::V6)
}

/// Returns the fault of a packet that a rule, a virtual server or the routing ends.
fn stopped(question: Question<'_>, outcome: &Outcome) -> Fault {
    let refused = outcome.verdict == trace::Verdict::Reject;
    let reason = trace::why(outcome, question.port);
    match trace::end(outcome) {
        Some(at) => {
            // A program that sends a datagram gets EPERM for its own packet, unless IPVS has taken that to send it on; TCP does not
            // look, and tries again.
            let is_taken = |hop: &Rc<Hop>| matches!(hop.effect, Effect::Balance { .. });
            let is_own = question.flow.entry == Entry::Host
                && matches!(outcome.hops[at].hook, Hook::Output | Hook::Postrouting)
                && !outcome.hops[..at].iter().any(is_taken);
            Fault::Stopped {
                hop: at,
                refused: refused || is_own && question.flow.proto == Proto::Udp,
                reason,
            }
        }
        None => Fault::NoRoute {
            to: outcome.destination.into(),
            refused,
            reason,
        },
    }
}

/// Returns the rules of `family` that may exist and are not read: rules of packets, and routing policy rules if there are tables that
/// only they use.
fn unread(node: &NodeSnapshot<'_>, family: Family) -> Option<Missing> {
    let missing = |what, gap: Gap| Some(Missing::Gap { what, gap });
    let routes = node.routes().into_iter().flat_map(|routes| &routes.all);
    let mut routes = routes.filter(|route| Family::of(route.destination.addr) == family);
    match node.rules() {
        Err(gap) if !gap.is_absence() && routes.any(|route| !is_of_own_tables(route)) => {
            return missing("the routing policy rules are unknown", gap);
        }
        _ => {}
    }
    let modules = node.modules().ok();
    let loaded = modules.and_then(|all| all.loaded.as_ref());
    let builtin = modules.and_then(|all| all.builtin.as_ref());
    let lacks = |name: &str| {
        loaded.is_some_and(|all| !all.contains_key(name))
            && !builtin.is_some_and(|all| all.contains(name))
    };
    match node.nft() {
        Ok(_) | Err(Gap::NotApplicable(_) | Gap::Absent(..)) => {}
        Err(Gap::NotCollected(_)) if lacks("nf_tables") => {}
        Err(gap) => return missing("the nftables rules are unknown", gap),
    }
    // Legacy tables exist once their module is loaded.
    let tables = match family {
        Family::V4 => [
            "iptable_raw",
            "iptable_mangle",
            "iptable_nat",
            "iptable_filter",
        ],
        Family::V6 => [
            "ip6table_raw",
            "ip6table_mangle",
            "ip6table_nat",
            "ip6table_filter",
        ],
    };
    // A kernel without loadable modules has all its modules built in, and not every kernel lists them.
    let is_monolithic = node
        .evidence()
        .text(Item::Modules)
        .is_err_and(|gap| gap.is_absence());
    let may_be_built_in = |name: &&str| builtin.is_none_or(|all| all.contains(*name));
    let has_legacy = loaded.is_some_and(|all| tables.iter().any(|name| all.contains_key(*name)))
        || is_monolithic && tables.iter().any(may_be_built_in);
    match node.saved(IptablesBackend::InUse, family) {
        Ok(_) => {}
        Err(gap) if gap.is_absence() => {}
        Err(gap) => return missing("the iptables rules are unknown", gap),
    }
    let version = node.evidence().text(Item::IptablesVersion);
    let uses_nft = version.is_ok_and(|text| text.contains("nf_tables"));
    match node.saved(IptablesBackend::Legacy, family) {
        Ok(_) => None,
        Err(gap @ Gap::NotCollected(_)) if has_legacy && uses_nft => {
            missing("the legacy iptables rules are unknown", gap)
        }
        Err(gap) if gap.is_absence() || matches!(gap, Gap::NotCollected(_)) => None,
        Err(gap) => missing("the legacy iptables rules are unknown", gap),
    }
}
