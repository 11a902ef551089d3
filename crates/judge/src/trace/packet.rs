//! The packet being traced, and the likelihood of a match.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;

use super::Need;
use super::hop::{Outcome, Question};
use super::region::{Asked, AskedMark, Field, Seen};
use kpx_node::net::{Family, Mark, Proto};

/// The time to live with which Linux sends packets (`IPDEFTTL`).
pub(crate) const SENT_TTL: u8 = 64;

/// The place where a packet enters the node.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Entry {
    /// Sent by a pod of this node: comes in through the pod's link.
    Pod,
    /// Sent by a process in the node's own network.
    Host,
    /// Comes in through the uplink.
    Outside,
}

/// The first packet of a flow, as it is sent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Flow {
    /// The place where it enters.
    pub entry: Entry,
    /// The source address; `None` lets the node choose, for [`Entry::Host`].
    pub source: Option<IpAddr>,
    /// The destination address.
    pub destination: IpAddr,
    /// The destination port.
    pub port: u16,
    /// The mark that it enters with, from a socket or a program of eBPF: 0 for almost all packets.
    pub mark: u32,
    /// Further properties with which it enters.
    pub carried: Carried,
    /// TCP, UDP or SCTP, or ICMP for an echo request; `ICMPv6` with a port of [`NDP`] for that type.
    pub proto: Proto,
    /// Whether the connection is already there.
    pub established: bool,
}

/// State that a packet brings: from another network, or from earlier packets of its connection.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Carried {
    /// The byte with its type of service; `None` if that is unknown.
    pub tos: Option<u8>,
    /// The mark of its connection on this node, which rules may copy to the packet.
    pub ct_mark: u32,
    /// Whether the client asks for ECN, at first: packets that it sends again do not.
    pub ecn: bool,
    /// The first and the last of the ports that the client gets for its packets, if they are known.
    pub ports: Option<(u16, u16)>,
    /// The link by which it comes in, where that is known to be another one than the route to its sender has.
    pub input: Option<Arc<str>>,
    /// The zone of conntrack that its connection is in, on this node.
    pub(crate) zone: u16,
    /// Whether nat of this node replaces the destination of its connection.
    pub(crate) dnat: bool,
    /// Whether nat of this node replaces the source of its connection.
    pub(crate) snat: bool,
    /// The elements that rules of this node added to sets, or took from them: the last one first.
    pub(crate) written: Option<Arc<Vec<Written>>>,
}

impl Carried {
    /// Returns what of it another network sees.
    pub(crate) fn elsewhere(&self) -> Self {
        Self {
            ct_mark: 0,
            input: None,
            zone: 0,
            dnat: false,
            snat: false,
            written: None,
            ..self.clone()
        }
    }
}

impl Default for Carried {
    /// Returns the state of a packet that no rule changed.
    fn default() -> Self {
        Self {
            tos: Some(0),
            ct_mark: 0,
            ecn: false,
            ports: None,
            input: None,
            zone: 0,
            dnat: false,
            snat: false,
            written: None,
        }
    }
}

/// The types of `ICMPv6` by which neighbours find each other: conntrack does not track them (`nf_conntrack_proto_icmpv6.c`).
pub(crate) const NDP: RangeInclusive<u16> = 133..=137;

/// The lowest port that Linux, and the systems of other clients, give to a client that asks for none.
pub(crate) const FIRST_EPHEMERAL: u16 = 32_768;

/// The addresses and the port of a connection as its client sent the first packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OriginalTuple {
    /// The client.
    pub source: IpAddr,
    /// The address that it sent to.
    pub destination: IpAddr,
    /// The port that it sent to.
    pub port: u16,
}

/// A reply on its way back.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Reply {
    /// The packet; its sender is the source.
    pub flow: Flow,
    /// The port that it is sent from.
    pub from: u16,
    /// What it answers.
    pub original: OriginalTuple,
    /// The client to which nat translates it back, if the first packet had another source when it left.
    pub back: Option<IpAddr>,
    /// Whether nat changed the first packet, so that it has to translate the reply.
    pub translated: bool,
    /// Whether it is one after the first reply.
    pub later: bool,
}

/// A packet after the first one of a connection.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Further {
    /// From the server.
    Reply(Reply),
    /// From the client.
    Sent(Flow),
}

/// Follows a packet after the first one to its ends, or asks for the chain to read next.
pub type Follow<'f> = dyn Fn(&Further) -> Result<Vec<Outcome>, Need> + 'f;

/// A packet on its way, with the state that the kernel keeps for it.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the kernel keeps each of these separately"
)]
pub(crate) struct Packet {
    source: IpAddr,
    destination: IpAddr,
    /// The destination port.
    port: u16,
    /// The source port of a reply. Any other packet has some ephemeral port.
    pub(crate) source_port: Option<u16>,
    proto: Proto,
    /// The address to which nat is to translate a reply back.
    pub(crate) back: Option<IpAddr>,
    /// Whether it is a reply that nat has to translate.
    pub(crate) translated: bool,
    /// The zone of conntrack that rules gave to it.
    pub(crate) zone: u16,
    /// The zone that its connection is in, if it is not the first packet.
    zone_of_connection: u16,
    /// The rule that gives it a zone that is not known, in words.
    pub(crate) unknown_zone: Option<Rc<str>>,
    /// The byte with its type of service; `None` if a rule set it to something unknown.
    pub(crate) tos: Option<u8>,
    /// Whether the client asks for ECN.
    pub(crate) ecn: bool,
    /// The first and the last of the ports that it may be sent from, if they are known and it is no reply.
    pub(crate) ports: Option<(u16, u16)>,
    /// The fields that no rule changed.
    pub(crate) as_sent: AsSent,
    /// Where the answers about it are recorded, if they are.
    pub(crate) seen: Option<Rc<Seen>>,
    /// Where the answers about its current destination are recorded, if the rest of its way also counts for packets that
    /// differ only in the destination.
    pub(super) alike: Option<Rc<Seen>>,
    pub(crate) mark: SentMark,
    /// The mark it was sent with.
    original_mark: u32,
    pub(crate) ct_mark: u32,
    /// The mark that nat chains left on the first packet, where this is a later one.
    pub(crate) first_mark: Option<SentMark>,
    /// Whether a program of this network sends it: its socket comes with it.
    pub(crate) has_socket: bool,
    /// The link it came in by; `None` for packets of the node itself, and where IPVS sends it again.
    pub(crate) input: Link,
    /// Whether that is known to be another link than the route to its sender has.
    pub(super) entered_elsewhere: bool,
    /// The link it goes out by, once routed.
    pub(crate) output: Link,
    /// The gateway it is sent to there, if its route has one.
    pub(crate) gateway: Option<IpAddr>,
    /// The link it goes out by after `OUTPUT`, if it was rerouted there: the rules of `OUTPUT` still see the first.
    pub(crate) rerouted: Option<Link>,
    /// Whether it goes from port to port of one bridge, so that only `br_netfilter` shows it to the rules of IP.
    pub(crate) bridged: bool,
    /// The bridge whose own hooks it passes, while it does: then its links are ports.
    pub(crate) bridge: Option<Rc<str>>,
    /// Whether the destination was translated by a nat rule.
    pub(crate) dnat: bool,
    /// Whether the source was translated.
    pub(crate) snat: bool,
    /// Whether nat replaces the destination of its connection, and the source: packets after the first one bring that.
    nat_of_connection: (bool, bool),
    /// Its time to live or hop limit.
    pub(crate) ttl: u8,
    /// Whether its client is bound to the backend from now on.
    pub(crate) sticky: bool,
    /// The sets of session affinity in nftables in which its client was looked up, each as a hash of its name.
    looked_up: Option<Rc<Vec<u64>>>,
    /// Whether it is not to be tracked.
    pub(crate) untracked: bool,
    /// Whether conntrack has seen it.
    pub(super) seen_by_conntrack: bool,
    /// The elements that rules added to sets, or took from them, on its way: the last one first.
    written: Option<Arc<Vec<Written>>>,
    /// Whether the connection is already there.
    pub(crate) established: bool,
    /// Whether it opens the connection: the first packet, or the first reply.
    pub(crate) opens: bool,
    /// What it answers, if it goes from the server to the client.
    pub(crate) answers: Option<OriginalTuple>,
    /// Whether nat decided on the destination, and on the source: once per connection.
    pub(crate) bound: [bool; 2],
    /// The virtual server that accepted it: protocol, address, port.
    pub(crate) virtual_server: Option<(Proto, IpAddr, u16)>,
    /// The address and port it was sent to.
    original: (IpAddr, u16),
    /// The address it was sent from.
    original_source: IpAddr,
    /// Whether the sender chose that address, and not the node.
    source_is_given: bool,
}

/// The fields of a packet that no rule changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AsSent {
    /// The destination address.
    pub destination: bool,
    /// The destination port.
    pub port: bool,
    /// The source address; not if the node chose it.
    pub source: bool,
}

/// A mark, and which of its bits follow from the one that the packet was sent with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SentMark {
    pub(super) value: u32,
    pub(super) kept: u32,
}

impl SentMark {
    /// Returns the mark for texts.
    pub(crate) const fn shown(self) -> u32 {
        self.value
    }

    /// Clears the bits of the mask, then inverts those of the value, as `--set-xmark` does.
    pub(crate) const fn change(&mut self, by: Mark) {
        self.value = (self.value & !by.mask) ^ by.value;
        self.kept &= !by.mask;
    }
}

/// A link a packet passes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Link {
    /// None.
    None,
    /// This one.
    Named(Rc<str>),
    /// An unknown link.
    Unknown,
}

fn is_ndp(proto: Proto, port: u16) -> bool {
    proto == Proto::Icmpv6 && NDP.contains(&port)
}

impl Packet {
    /// Returns the first packet of `flow`, before it is routed.
    pub(crate) fn of(flow: &Flow) -> Self {
        let unspecified = match Family::of(flow.destination) {
            Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        Self {
            source: flow.source.unwrap_or(unspecified),
            destination: flow.destination,
            port: flow.port,
            proto: flow.proto,
            as_sent: AsSent {
                destination: true,
                port: true,
                source: flow.source.is_some(),
            },
            seen: None,
            alike: None,
            mark: SentMark {
                value: flow.mark,
                kept: u32::MAX,
            },
            original_mark: flow.mark,
            ct_mark: flow.carried.ct_mark,
            first_mark: None,
            has_socket: flow.entry == Entry::Host,
            input: Link::None,
            entered_elsewhere: flow.carried.input.is_some(),
            output: Link::None,
            gateway: None,
            rerouted: None,
            bridged: false,
            bridge: None,
            dnat: false,
            snat: false,
            nat_of_connection: (flow.carried.dnat, flow.carried.snat),
            source_port: None,
            back: None,
            translated: false,
            zone: 0,
            zone_of_connection: flow.carried.zone,
            unknown_zone: None,
            tos: flow.carried.tos,
            ecn: flow.carried.ecn,
            ports: flow.carried.ports,
            // What has a smaller one has come from elsewhere: neighbours discard it.
            ttl: if is_ndp(flow.proto, flow.port) {
                u8::MAX
            } else {
                SENT_TTL
            },
            sticky: false,
            looked_up: None,
            untracked: is_ndp(flow.proto, flow.port),
            seen_by_conntrack: false,
            written: flow.carried.written.clone(),
            established: flow.established,
            opens: !flow.established,
            answers: None,
            bound: [false; 2],
            virtual_server: None,
            original: (flow.destination, flow.port),
            original_source: flow.source.unwrap_or(flow.destination),
            source_is_given: flow.source.is_some(),
        }
    }

    /// Translates a reply back to the client, if that is to be done.
    pub(crate) fn translate_back(&mut self) {
        if let Some(client) = self.back.take() {
            self.set_destination(client);
        }
    }

    pub(crate) fn family(&self) -> Family {
        Family::of(self.destination)
    }

    fn asked<T>(&self, value: T, field: Field, as_sent: bool) -> Asked<'_, T>
    where
        T: super::region::Coordinate,
    {
        let seen = self.seen.as_deref().filter(|_| as_sent);
        Asked::new(value, seen.map(|seen| (seen, field)))
    }

    pub(crate) fn source(&self) -> Asked<'_, IpAddr> {
        self.asked(self.source, Field::Source, self.as_sent.source)
    }

    pub(crate) fn destination(&self) -> Asked<'_, IpAddr> {
        match &self.alike {
            Some(seen) => Asked::new(self.destination, Some((seen, Field::Destination))),
            None => self.asked(
                self.destination,
                Field::Destination,
                self.as_sent.destination,
            ),
        }
    }

    pub(crate) fn port(&self) -> Asked<'_, u16> {
        self.asked(self.port, Field::Port, self.as_sent.port)
    }

    /// Returns the number of the protocol.
    pub(crate) fn proto(&self) -> Asked<'_, u8> {
        self.asked(self.proto.number(), Field::Proto, true)
    }

    pub(crate) fn is(&self, proto: Proto) -> bool {
        self.proto().is(proto.number())
    }

    /// Returns the mark, of which questions are recorded.
    pub(crate) fn mark(&self) -> AskedMark<'_> {
        AskedMark {
            of: self.mark,
            sent: self.seen.as_deref().map(|seen| (seen, self.original_mark)),
        }
    }

    /// Returns the protocol, for texts and for decisions that follow from a recorded answer.
    pub(crate) const fn shown_proto(&self) -> Proto {
        self.proto
    }

    /// Returns whether it belongs to a tracked connection.
    pub(crate) const fn is_tracked(&self) -> bool {
        self.seen_by_conntrack && !self.untracked
    }

    /// Returns whether its connection has left the node, or arrived, before.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.established || self.input == Link::Named("lo".into())
    }

    /// Takes it out of connection tracking, which it must not have passed.
    pub(crate) const fn untrack(&mut self) {
        self.untracked |= !self.seen_by_conntrack;
    }

    /// Returns whether conntrack looks for its connection in a zone where that is not.
    pub(crate) const fn is_in_other_zone(&self) -> bool {
        self.established && !self.untracked && self.zone != self.zone_of_connection
    }

    /// Gives it a zone of conntrack, unless conntrack has seen it.
    pub(crate) const fn set_zone(&mut self, zone: u16) {
        if !self.seen_by_conntrack {
            self.zone = zone;
        }
    }

    /// Returns its TCP flags, bit by bit as in the header.
    pub(crate) const fn tcp_flags(&self) -> u8 {
        tcp_flags(self.opens, self.is_reply())
    }

    /// Returns its type of ICMP: a ping, its answer, or a message between neighbours.
    pub(crate) fn icmp_type(&self) -> u8 {
        if is_ndp(self.proto, self.port) {
            return u8::try_from(self.port).unwrap_or_default();
        }
        match (self.is(Proto::Icmp), self.is_reply()) {
            (true, false) => 8,
            (true, true) => 0,
            (false, false) => 128,
            (false, true) => 129,
        }
    }

    /// Notes that a rule added an element to a set, or took it from there.
    pub(crate) fn write(&mut self, written: Written) {
        Arc::make_mut(self.written.get_or_insert_default()).insert(0, written);
    }

    /// Returns whether conntrack's entry of the connection says that nat replaces its destination, and its source.
    pub(crate) const fn is_translated(&self) -> (bool, bool) {
        let (dnat, snat) = self.nat_of_connection;
        (self.dnat || dnat, self.snat || snat)
    }

    /// Returns what packets that follow it bring.
    pub(super) fn carried(&self) -> Carried {
        let written = self.written.as_ref();
        let (dnat, snat) = self.is_translated();
        Carried {
            tos: self.tos,
            ct_mark: self.ct_mark,
            ecn: self.ecn,
            ports: self.ports,
            input: None,
            zone: if self.established {
                self.zone_of_connection
            } else {
                self.zone
            },
            dnat,
            snat,
            written: written.map(|all| Arc::new(all.iter().map(Written::for_others).collect())),
        }
    }

    /// Returns whether a rule added an element to the set `name` or took it from there, for which `is_it` holds.
    pub(crate) fn wrote(&self, name: u64, is_it: impl Fn(&[Part]) -> bool) -> Option<bool> {
        let all = self.written.as_deref()?;
        let found = all
            .iter()
            .find(|write| write.set == name && is_it(&write.key));
        found.map(|write| write.is_added)
    }

    /// Returns whether its protocol has ports that nat and IPVS look at.
    pub(crate) fn has_ports(&self) -> bool {
        [Proto::Tcp, Proto::Udp, Proto::Sctp]
            .into_iter()
            .any(|proto| self.is(proto))
    }

    /// Returns whether it goes from the server to the client.
    pub(crate) const fn is_reply(&self) -> bool {
        self.answers.is_some()
    }

    /// Returns what it answers, which a rule asks for.
    fn answered(&self) -> Option<OriginalTuple> {
        let asked = self.answers?;
        if let Some(seen) = &self.seen {
            seen.ask_original();
        }
        Some(asked)
    }

    /// Returns the address that the client sent to.
    pub(crate) fn original_destination(&self) -> Asked<'_, IpAddr> {
        match self.answered() {
            Some(first) => Asked::new(first.destination, None),
            None => self.asked(self.original.0, Field::Destination, true),
        }
    }

    /// Returns the port that the client sent to.
    pub(crate) fn original_port(&self) -> Asked<'_, u16> {
        match self.answered() {
            Some(first) => Asked::new(first.port, None),
            None => self.asked(self.original.1, Field::Port, true),
        }
    }

    /// Returns the address of the client.
    pub(crate) fn client(&self) -> Asked<'_, IpAddr> {
        match self.answered() {
            Some(first) => Asked::new(first.source, None),
            None => self.original_source(),
        }
    }

    /// Returns the address it was sent from.
    pub(crate) fn original_source(&self) -> Asked<'_, IpAddr> {
        self.asked(self.original_source, Field::Source, self.source_is_given)
    }

    /// Sets the source that the node chooses for its own packet.
    pub(crate) const fn choose_source(&mut self, addr: IpAddr) {
        self.source = addr;
        self.original_source = addr;
    }

    /// Rewrites the source.
    pub(crate) const fn set_source(&mut self, addr: IpAddr) {
        self.source = addr;
        self.ports = None;
        self.as_sent.source = false;
    }

    /// Rewrites the destination.
    pub(crate) fn set_destination(&mut self, addr: IpAddr) {
        if self.alike.is_some() {
            self.destination().exact();
            self.alike = None;
        }
        self.destination = addr;
        self.as_sent.destination = false;
    }

    /// Rewrites the destination port.
    pub(crate) const fn set_port(&mut self, port: u16) {
        self.port = port;
        self.as_sent.port = false;
    }

    /// Notes that its client was looked up in the set `name` of session affinity.
    pub(crate) fn look_up(&mut self, name: &str) {
        let all = self.looked_up.get_or_insert_default();
        Rc::make_mut(all).push(hash(name));
    }

    /// Returns whether its client was looked up in the set `name` of session affinity.
    pub(crate) fn was_looked_up(&self, name: &str) -> bool {
        self.looked_up
            .as_ref()
            .is_some_and(|all| all.contains(&hash(name)))
    }

    /// Takes the destination address of `other`, and returns whether it differs in nothing else.
    pub(super) fn is_like(&mut self, other: &Self) -> bool {
        self.destination = other.destination;
        self == other
    }

    /// Returns the destination for texts.
    pub(crate) const fn target(&self) -> (IpAddr, u16) {
        (self.destination, self.port)
    }
}

/// An element that a rule added to a set, or took from it.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Written {
    /// The set, as [`hash`] of what names it.
    pub(crate) set: u64,
    pub(crate) key: Vec<Part>,
    pub(crate) is_added: bool,
}

impl Written {
    /// Returns the same element for packets with other fields.
    fn for_others(&self) -> Self {
        let key = self.key.iter().map(|part| match part {
            Part::Number(number, _) => Part::Number(*number, None),
            Part::Word(word) => Part::Word(word.clone()),
        });
        Self {
            key: key.collect(),
            ..self.clone()
        }
    }
}

/// A part of an element, with its field, if questions about the field are recorded.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Part {
    Number(u128, Option<Field>),
    Word(String),
}

/// Returns the hash of a name.
pub(crate) fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// The likelihood that a rule matches.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Likelihood {
    /// The probability that it does, apart from unknown facts: 0 to 1.
    pub(crate) chance: f64,
    /// The unknown facts that decide it; empty when it is decided.
    pub(crate) undecided: Vec<Question>,
}

impl Likelihood {
    pub(crate) const NO: Self = Self {
        chance: 0.0,
        undecided: Vec::new(),
    };
    pub(crate) const YES: Self = Self {
        chance: 1.0,
        undecided: Vec::new(),
    };

    pub(crate) fn sure(holds: bool) -> Self {
        if holds { Self::YES } else { Self::NO }
    }

    pub(crate) fn chance(chance: f64) -> Self {
        Self {
            chance,
            undecided: Vec::new(),
        }
    }

    /// Returns the likelihood of a condition, as text, that is not known.
    pub(crate) fn unknown(what: impl Into<String>) -> Self {
        Self::undecided(Question::Other(what.into()))
    }

    /// Returns the likelihood of a condition on a value that is not known: `what the source port is`.
    pub(crate) fn of_unknown(value: impl Into<String>) -> Self {
        Self::undecided(Question::Value(value.into()))
    }

    pub(crate) fn undecided(question: Question) -> Self {
        Self {
            chance: 1.0,
            undecided: vec![question],
        }
    }

    pub(crate) fn is_no(&self) -> bool {
        self.chance == 0.0
    }

    /// Returns the likelihood that this does not hold, if `not`.
    pub(crate) fn not(self, not: bool) -> Self {
        match (not, self.undecided.is_empty()) {
            (false, _) | (true, false) => self,
            (true, true) => Self::chance(1.0 - self.chance),
        }
    }

    /// Returns the likelihood that both hold.
    pub(crate) fn and(mut self, other: Self) -> Self {
        if self.is_no() || other.is_no() {
            return Self::NO;
        }
        if other.undecided.is_empty() {
            self.chance *= other.chance;
            return self;
        }
        self.undecided.extend(other.undecided);
        Self {
            chance: self.chance * other.chance,
            undecided: self.undecided,
        }
    }
}

/// Returns the TCP flags of the packet that opens a connection, or of one with data once it is there, bit by bit as in the header.
pub(crate) const fn tcp_flags(opens: bool, reply: bool) -> u8 {
    const SYN: u8 = 0x02;
    const PSH: u8 = 0x08;
    const ACK: u8 = 0x10;
    match (opens, reply) {
        (true, false) => SYN,
        (true, true) => SYN | ACK,
        (false, _) => PSH | ACK,
    }
}
