//! Compares the answers of kpx with the kernel.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use kpx_judge::proof;
use kpx_judge::trace::{Assumption, Carried, Flow, Outcome, Question, Verdict, World};
use kpx_node::evidence::{Evidence, Item};
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;

use super::network::{Network, Source};
use super::recording::{Recording, Target};
use super::send::{Order, Seen, Sender, Sent};

/// The items that a live trace reads.
const ITEMS: &[Item] = &[
    Item::IptablesVersion,
    Item::Iptables4,
    Item::Iptables6,
    Item::IptablesLegacy4,
    Item::IptablesLegacy6,
    Item::IptablesNft4,
    Item::IptablesNft6,
    Item::Nft,
    Item::Ipset,
    Item::Ipvs,
    Item::Addresses,
    Item::Links,
    Item::Routes,
    Item::Rules,
    Item::Sysctl,
    Item::XfrmPolicies,
];

/// An outcome of this probability must be seen.
const LIKELY: f64 = 0.2;

/// The probability that one outcome of one flow is missed by chance. A run has some 10,000 of them.
const MISSED: f64 = 1e-14;

/// Judges one ruleset.
pub(crate) struct Judge<'n> {
    pub(super) name: String,
    pub(super) network: &'n Network,
    pub(super) evidence: Evidence,
    targets: Vec<Target>,
    /// Whether the kernel takes turns, so that few connections see every backend.
    turns: bool,
    /// Of how many flows one is judged.
    one_in: usize,
    /// Whether kpx may leave the fate open: the kernel's must then be one of the ways.
    open: bool,
}

/// How a packet ends, in words both sides share.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Fate {
    Through(SocketAddr),
    Reject,
    Drop,
}

impl<'n> Judge<'n> {
    pub(crate) async fn new(name: String, recording: &Recording, network: &'n Network) -> Self {
        Self {
            name,
            network,
            evidence: network.node.collect(ITEMS).await,
            targets: recording.targets(),
            turns: false,
            one_in: 1,
            open: false,
        }
    }

    /// Returns the judge of other targets, with whether kpx may leave open what happens.
    pub(super) fn of(mut self, targets: Vec<Target>, open: bool) -> Self {
        self.targets = targets;
        self.open = open;
        self
    }

    /// Returns the judge of a kernel that lets backends take turns.
    pub(crate) fn in_turns(mut self) -> Self {
        self.turns = true;
        self
    }

    /// Returns the judge of a sample, for a slow machine.
    pub(crate) fn one_in(mut self, many: usize) -> Self {
        self.one_in = many;
        self
    }

    /// Judges the flows, all of which must agree; returns how many there are.
    pub(crate) fn agree(&self) -> usize {
        let (flows, wrong) = self.differences();
        assert!(
            wrong.is_empty(),
            "{}: kpx and the kernel disagree about {} of {flows} flows:\n{}",
            self.name,
            wrong.len(),
            wrong.join("\n")
        );
        flows
    }

    /// Returns the number of flows, and a line on each about which kpx and the kernel disagree.
    pub(crate) fn differences(&self) -> (usize, Vec<String>) {
        let snapshot = NodeSnapshot::new(&self.evidence);
        let worlds = Family::BOTH.map(|family| World::whole(&snapshot, family));
        let mut said = Vec::new();
        let mut orders = self.orders();
        for order in &mut orders {
            let world = &worlds[usize::from(order.target.addr.is_ipv6())];
            let outcomes = world.walk(&flow(order)).unwrap();
            order.count = self.count(&outcomes);
            said.push(outcomes);
        }
        self.classes(&snapshot, &orders, &said);
        let mut sender = Sender::new(self.network);
        if self.turns {
            sender = sender.patient();
        }
        let sent = sender.send(&orders);
        let mut wrong = Vec::new();
        for ((order, outcomes), sent) in orders.iter().zip(&said).zip(&sent) {
            let complaints = compare(order, outcomes, sent, self.open);
            if !complaints.is_empty() {
                wrong.push(format!("{}: {}", shown(order), complaints.join("\n    ")));
            }
        }
        (orders.len(), wrong)
    }

    /// Returns the flows to judge, without how often each is sent.
    pub(super) fn orders(&self) -> Vec<Order> {
        let flows = self.targets.iter().flat_map(|target| {
            let sources = self.network.sources(target).into_iter();
            sources.map(|source| Order {
                source,
                target: target.clone(),
                count: 0,
            })
        });
        let place = |(at, order): (usize, Order)| ((at + 1) % self.one_in == 0).then_some(order);
        flows.enumerate().filter_map(place).collect()
    }

    /// Packets of one class, as the proof divides them, must have one fate: the kernel judges each of them.
    fn classes<'s>(&self, snapshot: &'s NodeSnapshot<'s>, orders: &[Order], said: &[Vec<Outcome>]) {
        let flows: Vec<Flow> = orders.iter().map(flow).collect();
        for family in Family::BOTH {
            let of = |flow: &Flow| Family::of(flow.destination) == family;
            let here: Vec<usize> = (0..flows.len()).filter(|at| of(&flows[*at])).collect();
            let these: Vec<Flow> = here.iter().map(|at| flows[*at].clone()).collect();
            let classes = proof::around(snapshot, family, &these).unwrap();
            for (at, (region, fate)) in here.iter().zip(&classes) {
                let name = || format!("{}: {}", self.name, shown(&orders[*at]));
                assert_eq!(*fate, proof::Fate::of(&said[*at]), "{}", name());
                for (other, flow) in here.iter().zip(&these) {
                    // A source that the node chooses is no field of the packet.
                    let alike = flow.entry == flows[*at].entry
                        && flow.source.is_some() == flows[*at].source.is_some();
                    if alike && region.contains(flow) {
                        assert_eq!(
                            *fate,
                            proof::Fate::of(&said[*other]),
                            "{}: {flow:?}",
                            name()
                        );
                    }
                }
            }
        }
    }

    /// Judges a later packet of a connection, of which it is known whether it arrives.
    pub(crate) fn later(&self, source: Source, target: SocketAddr, arrives: bool) {
        let snapshot = NodeSnapshot::new(&self.evidence);
        let flow = Flow {
            entry: source.entry(),
            source: source.addr,
            destination: target.ip(),
            port: target.port(),
            mark: 0,
            carried: Carried::default(),
            proto: Proto::Tcp,
            established: true,
        };
        let world = World::whole(&snapshot, Family::of(target.ip()));
        let outcomes = world.walk(&flow).unwrap();
        let expected = if arrives {
            Verdict::Deliver
        } else {
            Verdict::Drop
        };
        for outcome in &outcomes {
            assert!(
                outcome.verdict == expected && outcome.when.is_empty(),
                "{}: {flow:?}: {:?} because {}, and the packet {}",
                self.name,
                outcome.verdict,
                outcome.reason,
                if arrives { "arrives" } else { "does not" }
            );
        }
    }

    /// How often the kernel takes each way of one flow must be what kpx says.
    pub(crate) fn frequencies(&self, source: Source, target: &str, proto: Proto) {
        const CONNECTIONS: u32 = 3000;
        let snapshot = NodeSnapshot::new(&self.evidence);
        let to: SocketAddr = target.parse().unwrap();
        let target = self
            .targets
            .iter()
            .find(|t| (t.addr, t.port, t.proto) == (to.ip(), to.port(), proto));
        let order = Order {
            source,
            target: target.unwrap().clone(),
            count: CONNECTIONS as usize,
        };
        let world = World::whole(&snapshot, Family::of(to.ip()));
        let said = fates(&world.walk(&flow(&order)).unwrap());
        assert!(said.len() > 1, "{}", shown(&order));
        let sent = Sender::new(self.network).send(&[order]);
        let mut seen: BTreeMap<Fate, u32> = BTreeMap::new();
        for sent in &sent[0] {
            *seen.entry(fate(sent)).or_default() += 1;
        }
        let chi: f64 = said
            .iter()
            .map(|(fate, (chance, _))| {
                let expected = chance * f64::from(CONNECTIONS);
                let times = f64::from(seen.get(fate).copied().unwrap_or(0));
                (times - expected).powi(2) / expected
            })
            .sum();
        // Above this by chance once in 10^10 with up to four degrees of freedom.
        assert!(chi < 52.0, "{}: {chi:.1}: {said:?} {seen:?}", self.name);
    }

    /// Two tables have a nat chain of the same priority: the kernel sends all connections of one flow to `wanted`, and kpx leaves
    /// open what it does until connections are tracked, which show that it is as tables and chains are listed.
    pub(crate) async fn order(&self, source: Source, target: &str, wanted: &str, is_likely: bool) {
        let to: SocketAddr = target.parse().unwrap();
        let mut targets = self.targets.iter();
        let target = targets.find(|target| {
            (target.addr, target.port, target.proto) == (to.ip(), to.port(), Proto::Tcp)
        });
        let order = Order {
            source,
            target: target.unwrap().clone(),
            count: 8,
        };
        let walked = |evidence: &Evidence| {
            let snapshot = NodeSnapshot::new(evidence);
            World::whole(&snapshot, Family::V4)
                .walk(&flow(&order))
                .unwrap()
        };
        let wanted: SocketAddr = wanted.parse().unwrap();
        let is_wanted = |outcome: &Outcome| SocketAddr::from(outcome.destination) == wanted;
        let before = walked(&self.evidence);
        let name = &self.name;
        assert!(before.iter().any(is_wanted), "{name}: {before:#?}");
        assert!(!before.iter().all(is_wanted), "{name}: {before:#?}");
        let is_open = |outcome: &Outcome| {
            let mut when = outcome.when.iter();
            when.any(|when| {
                matches!(
                    when,
                    Assumption::Answer {
                        question: Question::Order(_),
                        ..
                    }
                )
            })
        };
        assert!(before.iter().all(is_open), "{name}: {before:#?}");
        for sent in &Sender::new(self.network).send(std::slice::from_ref(&order))[0] {
            assert!(
                matches!(sent.seen, Seen::Through { to, .. } if to == wanted),
                "{name}: {sent:?}"
            );
        }
        // The sender leaves no entries behind, and its entries would be kept for longer than usual.
        let kept = "net.netfilter.nf_conntrack_tcp_timeout_syn_sent=120";
        self.network.node.run(&format!("sysctl -qw {kept}"));
        let at = self.network.at(source.place);
        drop(at.inside(|| TcpStream::connect_timeout(&to, Duration::from_millis(100))));
        let items: Vec<Item> = ITEMS.iter().copied().chain([Item::Conntrack]).collect();
        let after = walked(&self.network.node.collect(&items).await);
        if !is_likely {
            assert!(after.iter().all(is_open), "{name}: {after:#?}");
            return;
        }
        assert!(after.iter().all(is_wanted), "{name}: {after:#?}");
        assert!(
            after.iter().all(|outcome| outcome.when.is_empty()),
            "{name}: {after:#?}"
        );
    }

    /// How many connections it takes to see every likely outcome.
    fn count(&self, outcomes: &[Outcome]) -> usize {
        if self.turns {
            return 3 * outcomes.len().max(2);
        }
        let likely = fates(outcomes).into_values().map(|(chance, _)| chance);
        let least = likely
            .filter(|chance| *chance >= LIKELY)
            .fold(1.0, f64::min);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and some hundreds"
        )]
        let count = (MISSED.ln() / (1.0 - least).max(1e-9).ln()).ceil() as usize;
        count.max(8)
    }
}

pub(crate) fn flow(order: &Order) -> Flow {
    Flow {
        entry: order.source.entry(),
        source: order.source.addr,
        destination: order.target.addr,
        port: order.target.port,
        mark: 0,
        carried: Carried::default(),
        proto: order.target.proto,
        established: false,
    }
}

fn fate(sent: &Sent) -> Fate {
    match sent.seen {
        Seen::Through { to, .. } => Fate::Through(to),
        Seen::Reject => Fate::Reject,
        Seen::Drop => Fate::Drop,
    }
}

/// The ways kpx sees: how likely each is, and whether the source is rewritten, and to what.
fn fates(outcomes: &[Outcome]) -> BTreeMap<Fate, (f64, Vec<(bool, IpAddr)>)> {
    let mut fates: BTreeMap<_, (f64, Vec<_>)> = BTreeMap::new();
    for outcome in outcomes {
        let fate = match outcome.verdict {
            Verdict::Reject => Fate::Reject,
            Verdict::Drop => Fate::Drop,
            _ => Fate::Through(SocketAddr::from(outcome.destination)),
        };
        let entry = fates.entry(fate).or_default();
        entry.0 += outcome.probability;
        entry.1.push((outcome.masquerade, outcome.source));
    }
    fates
}

fn compare(order: &Order, outcomes: &[Outcome], sent: &[Sent], open: bool) -> Vec<String> {
    let mut complaints = Vec::new();
    let original = SocketAddr::new(order.target.addr, order.target.port);
    for outcome in outcomes {
        if outcome.verdict == Verdict::Unknown || !outcome.when.is_empty() && !open {
            complaints.push(format!("not known: {} {:?}", outcome.reason, outcome.when));
        }
        let to = SocketAddr::from(outcome.destination);
        if outcome.verdict == Verdict::Deliver && to == original
            || matches!(outcome.verdict, Verdict::Local | Verdict::Unmatched) && to != original
        {
            complaints.push(format!("{:?} to {to}", outcome.verdict));
        }
    }
    let said = fates(outcomes);
    let mut seen: BTreeMap<Fate, (usize, Vec<(SocketAddr, SocketAddr)>)> = BTreeMap::new();
    for sent in sent {
        let sources = match sent.seen {
            Seen::Through { source, .. } => Some((sent.from, source)),
            Seen::Reject | Seen::Drop => None,
        };
        let entry = seen.entry(fate(sent)).or_default();
        entry.0 += 1;
        entry.1.extend(sources);
    }
    // Routing answers five times, and once a second from then on (`ip_error`).
    let tired = |o: &Outcome| o.verdict == Verdict::Reject && o.reason.contains("route");
    let tired = outcomes.iter().any(tired);
    // Both ends of a range of addresses stand for those between.
    let between = |fate: &Fate| {
        let Fate::Through(to) = fate else {
            return false;
        };
        let holds = |when: &Assumption| matches!(when, Assumption::Address { first, last, .. } if (*first..=*last).contains(&to.ip()));
        let mut outcomes = outcomes.iter();
        outcomes.any(|outcome| outcome.destination.1 == to.port() && outcome.when.iter().any(holds))
    };
    for (fate, (times, _)) in &seen {
        if !(said.contains_key(fate) || between(fate) || tired && *fate == Fate::Drop) {
            complaints.push(format!("the kernel: {fate:?} ({times} of {})", sent.len()));
        }
    }
    for (fate, (chance, _)) in &said {
        let is_sure = outcomes.iter().all(|outcome| outcome.when.is_empty());
        let must = *chance >= LIKELY
            && is_sure
            && !order.target.sticky
            && !(tired && *fate == Fate::Reject);
        if !seen.contains_key(fate) && (must || seen.is_empty()) {
            complaints.push(format!(
                "kpx: {fate:?} ({:.0}%), never seen in {}",
                chance * 100.0,
                sent.len()
            ));
        }
    }
    for (fate, (_, sources)) in &seen {
        let Some((_, expected)) = said.get(fate) else {
            continue;
        };
        // A rewritten source may keep its address, and by chance its port. One that is kept gets another port where
        // its own is taken, by chance.
        let changed = sources.iter().filter(|(from, now)| from != now).count();
        let rewritten = 2 * changed > sources.len();
        // Translating to the address it has need not change anything.
        let same = |to: &IpAddr| sources.first().is_some_and(|(from, _)| from.ip() == *to);
        let fits =
            |(masquerade, to): &(bool, IpAddr)| *masquerade == rewritten || *masquerade && same(to);
        if !sources.is_empty() && !expected.iter().any(fits) {
            complaints.push(format!(
                "{fate:?}: the source is {}, {:?}, {expected:?}",
                if rewritten { "rewritten" } else { "kept" },
                sources.first()
            ));
        }
        if let Some((from, now)) = sources
            .iter()
            .find(|(_, now)| !expected.iter().any(|(_, e)| *e == now.ip()))
        {
            complaints.push(format!(
                "{fate:?}: source {from} became {now}, kpx says {expected:?}"
            ));
        }
    }
    if let (Some(sent), Some(outcome)) = (sent.first(), outcomes.first())
        && sent.from.ip() != outcome.sent_from
    {
        complaints.push(format!(
            "sent from {}, kpx says {}",
            sent.from.ip(),
            outcome.sent_from
        ));
    }
    if complaints.is_empty() {
        return complaints;
    }
    for outcome in outcomes.iter().take(3) {
        complaints.push(format!(
            "  kpx: {:?} {:.2} to {:?} from {} because {}",
            outcome.verdict,
            outcome.probability,
            outcome.destination,
            outcome.source,
            outcome.reason
        ));
    }
    complaints
}

pub(super) fn shown(order: &Order) -> String {
    let source = order.source;
    let from = source.addr.map(|a| format!(" {a}")).unwrap_or_default();
    let to = SocketAddr::new(order.target.addr, order.target.port);
    let proto: Proto = order.target.proto;
    format!("{:?}{from} to {to}/{proto}", source.place)
}
