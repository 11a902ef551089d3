//! What happened to a packet, step by step, and how it ended.

use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;

use serde::Serialize;

use super::packet::{AsSent, Carried, Link};

/// A netfilter hook.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Hook {
    /// Before routing, for packets from a link.
    Prerouting,
    /// To the node itself.
    Input,
    /// From link to link.
    Forward,
    /// From the node itself.
    Output,
    /// After routing, for every packet that leaves.
    Postrouting,
}

impl Hook {
    /// Returns the name nft uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
        }
    }

    /// Returns the name of iptables' built-in chain.
    pub const fn chain(self) -> &'static str {
        match self {
            Self::Prerouting => "PREROUTING",
            Self::Input => "INPUT",
            Self::Forward => "FORWARD",
            Self::Output => "OUTPUT",
            Self::Postrouting => "POSTROUTING",
        }
    }
}

/// The part of the node that a hop is in.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Subsystem {
    /// A rule of iptables, in the back end in use.
    Iptables,
    /// A rule of the iptables back end that is not in use.
    IptablesOther,
    /// A rule of nftables.
    Nftables,
    /// A rule of arptables, in the legacy back end.
    Arptables,
    /// A virtual server.
    Ipvs,
    /// The routing decision.
    Routing,
    /// kube-proxy's process, in mode userspace.
    Process,
}

/// One step of a packet's path.
#[derive(Clone, Debug, PartialEq)]
pub struct Hop {
    /// The hook.
    pub hook: Hook,
    /// The subsystem.
    pub subsystem: Subsystem,
    /// The table; empty for routing and IPVS.
    pub table: String,
    /// The chain; empty for routing and IPVS.
    pub chain: String,
    /// The number of the rule in its chain, from 1; 0 for the policy.
    pub number: usize,
    /// The rule in full.
    pub rule: String,
    /// Packets that matched it, if counted.
    pub packets: Option<u64>,
    /// The effect.
    pub effect: Effect,
    /// The probability that this happens, once the packet is here.
    pub chance: f64,
    /// The condition of this hop, if it is unknown whether it holds.
    pub when: Option<String>,
}

impl Hop {
    /// Returns a certain step that no rule decides.
    pub(super) const fn without_rule(hook: Hook, subsystem: Subsystem, effect: Effect) -> Self {
        Self {
            hook,
            subsystem,
            table: String::new(),
            chain: String::new(),
            number: 0,
            rule: String::new(),
            packets: None,
            effect,
            chance: 1.0,
            when: None,
        }
    }
}

/// The effect of a hop.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Effect {
    /// Into a chain, and back.
    Jump {
        /// The chain.
        to: String,
    },
    /// Into a chain, not back.
    Goto {
        /// The chain.
        to: String,
    },
    /// Back to the caller.
    Return,
    /// This base chain lets it pass.
    Accept,
    /// Dropped.
    Drop,
    /// Rejected with an answer.
    Reject {
        /// The kind of answer.
        with: String,
    },
    /// The destination is translated.
    Dnat {
        /// The new address.
        address: IpAddr,
        /// The new port.
        port: u16,
    },
    /// The source is translated; `None` if unknown to which.
    Snat {
        /// The new address.
        address: Option<IpAddr>,
    },
    /// The source is translated to the link's own address; `None` if unknown.
    Masquerade {
        /// The new address.
        address: Option<IpAddr>,
    },
    /// The mark is changed.
    Mark {
        /// From.
        from: u32,
        /// To.
        to: u32,
    },
    /// The time to live (hop limit) is changed.
    Ttl {
        /// To.
        to: u8,
    },
    /// Waits for a program in user space; the kernel drops it if none reads the queue.
    Queue,
    /// Taken out of connection tracking.
    Untrack,
    /// Put into a zone of connection tracking.
    Zone {
        /// The zone.
        zone: u16,
    },
    /// A virtual server chose a real server.
    Balance {
        /// The virtual server, as `PROTO ADDRESS:PORT`.
        server: String,
        /// Its scheduler.
        scheduler: String,
        /// The real server's address.
        address: IpAddr,
        /// The real server's port.
        port: u16,
    },
    /// The virtual server has no real server that accepts connections.
    NoServer {
        /// The virtual server, as `PROTO ADDRESS:PORT`.
        server: String,
        /// The number of its real servers, all of weight 0.
        idle: usize,
    },
    /// kube-proxy's process opens a connection to an endpoint, the next one in turn.
    Relay {
        /// The service port.
        service: String,
        /// The endpoint's address.
        address: IpAddr,
        /// The endpoint's port.
        port: u16,
    },
    /// Routed: to this host.
    ToHost,
    /// Routed: out through a link, by a gateway.
    Out {
        /// The link.
        device: Option<String>,
        /// The gateway.
        gateway: Option<IpAddr>,
    },
    /// Routed: no route.
    Nowhere {
        /// `no route`, `blackhole`, …
        why: String,
    },
    /// An effect that does not change the path, such as an affinity entry.
    Other {
        /// The effect, as text.
        what: String,
    },
}

impl Effect {
    /// Returns the verb of a rule with this effect, for the noun "packets" behind it.
    pub const fn verb(&self) -> &'static str {
        match self {
            Self::Drop => "drops",
            Self::Reject { .. } => "rejects",
            Self::Accept => "accepts",
            Self::Dnat { .. } => "translates",
            Self::Snat { .. } | Self::Masquerade { .. } => "replaces the source of",
            Self::Mark { .. } => "marks",
            Self::Ttl { .. } => "sets the TTL of",
            Self::Untrack => "untracks",
            Self::Zone { .. } => "sets the conntrack zone of",
            _ => "takes",
        }
    }
}

/// The verdict on a packet.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Translated to a backend, and sent to it.
    Deliver,
    /// Rejected with an answer.
    Reject,
    /// Dropped without one.
    Drop,
    /// Delivered to the host itself.
    Local,
    /// No Service rule applies; routed unchanged.
    Unmatched,
    /// Unknown.
    Unknown,
    /// Outcomes differ.
    Mixed,
}

impl Verdict {
    /// Returns whether the rules let the packet reach where it is sent.
    pub const fn arrives(self) -> bool {
        match self {
            Self::Deliver | Self::Local | Self::Unmatched => true,
            Self::Reject | Self::Drop | Self::Unknown | Self::Mixed => false,
        }
    }
}

/// A condition that the node's state does not decide.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Question {
    /// Whether the route back leads through the link of the packet, as `-m rpfilter` asks.
    RouteBack {
        /// The condition, as text.
        text: String,
        /// Whether the condition holds if the route leads elsewhere.
        inverted: bool,
    },
    /// The order in which the kernel runs several nat chains with the same priority, as text.
    Order(String),
    /// Whether a limit on rates or numbers of connections is exceeded.
    Rate {
        /// The limit, in words.
        limit: String,
        /// Whether the condition holds if the limit is exceeded.
        over: bool,
        /// How many packets it lets through, if it is one of rates.
        pace: Option<Pace>,
    },
    /// Whether an IP set that was not read has the packet, as text.
    UnreadSet(String),
    /// A value that is not known, as a question: `what the source port is`.
    Value(String),
    /// Any other condition, as text.
    Other(String),
}

/// How many packets a limit lets through.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pace {
    /// The packets.
    pub count: u32,
    /// The seconds in which they pass.
    pub seconds: u32,
    /// Whether all clients share them.
    pub is_shared: bool,
}

impl Pace {
    /// Packets per second that usual traffic exceeds.
    const LOW: u64 = 20;

    /// Reads it from the options of a match, or from a statement: `--limit 10/sec`, `limit rate 10/second burst 5 packets`.
    fn of(text: &str) -> Option<Self> {
        let mut words = text
            .split([' ', '`'])
            .filter_map(|word| word.split_once('/'));
        let (count, seconds) = words.find_map(|(count, unit)| {
            let units = [("sec", 1), ("min", 60), ("hour", 3600), ("day", 86_400)];
            let (_, seconds) = units.into_iter().find(|(name, _)| unit.starts_with(name))?;
            Some((count.parse().ok()?, seconds))
        })?;
        let mode = text.split_once("--hashlimit-mode ");
        let is_by_source =
            mode.is_some_and(|(_, mode)| mode.starts_with("src") || mode.contains(",src"));
        Some(Self {
            count,
            seconds,
            is_shared: !is_by_source,
        })
    }

    /// Returns whether usual traffic exceeds it: the traffic of several clients, if they share it, or of one busy
    /// client.
    pub const fn is_low(self) -> bool {
        self.count as u64 <= Self::LOW * self.seconds as u64
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} new connections per ", self.count)?;
        match self.seconds {
            1 => f.write_str("second")?,
            60 => f.write_str("minute")?,
            3600 => f.write_str("hour")?,
            86_400 => f.write_str("day")?,
            seconds => write!(f, "{seconds} seconds")?,
        }
        if self.is_shared {
            return Ok(());
        }
        f.write_str(" and client")
    }
}

/// The assumption of a path about an unknown fact.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Assumption {
    /// A condition holds, or not.
    Answer {
        /// The condition.
        question: Question,
        /// Whether it holds.
        holds: bool,
    },
    /// This address of a range is chosen.
    Address {
        /// The chosen address.
        chosen: IpAddr,
        /// The first address of the range.
        first: IpAddr,
        /// The last address of the range.
        last: IpAddr,
    },
    /// This port of a range is chosen: some kernels take the first that is free, others any.
    Port {
        /// The chosen port.
        chosen: u16,
        /// The first port of the range.
        first: u16,
        /// The last port of the range.
        last: u16,
    },
    /// The chains that the evidence does not show let the packet pass as it is.
    Unseen {
        /// Their tables.
        tables: Vec<String>,
    },
}

/// The first words of a limit on the packets or bytes of one connection.
pub(crate) const COUNT: &str = "the count in ";

impl Question {
    /// Returns the question in full: `whether …`, or that of a value.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Value(text) => text.clone(),
            condition => format!("whether {condition}"),
        }
    }

    /// Returns the question whether the rate limit `what` lets a rule match: while it is exceeded if it is a limit `over`, else until then.
    pub(crate) fn rate(what: &str, over: bool) -> Self {
        Self::Rate {
            limit: what.to_owned(),
            over,
            pace: Pace::of(what),
        }
    }

    /// Returns the question whether a connection has more packets or bytes than the rule with `text` is for, or, if it is `over`, than it
    /// leaves alone.
    pub(crate) fn count(text: &str, over: bool) -> Self {
        Self::Rate {
            limit: format!("{COUNT}{text}"),
            over,
            pace: None,
        }
    }

    /// Returns the same question of a limit with this pace.
    pub(crate) fn at(mut self, of: Option<Pace>) -> Self {
        if let Self::Rate { pace, .. } = &mut self {
            *pace = of;
        }
        self
    }
}

impl Assumption {
    /// Returns the condition, without its answer.
    pub fn condition(&self) -> String {
        match self {
            Self::Answer { question, .. } => question.to_string(),
            assumed => assumed.to_string(),
        }
    }

    /// Returns whether it is about an IP set that was not read.
    pub(crate) const fn is_of_unread_set(&self) -> bool {
        matches!(
            self,
            Self::Answer {
                question: Question::UnreadSet(_),
                ..
            }
        )
    }

    /// Returns whether a limit is exceeded: one connection alone exceeds none.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.exceeded().is_some()
    }

    /// Returns the limit that is exceeded, in words, and how many packets it lets through, if it is one of rates.
    pub(crate) fn exceeded(&self) -> Option<(&str, Option<Pace>)> {
        let Self::Answer {
            question: Question::Rate { limit, over, pace },
            holds,
        } = self
        else {
            return None;
        };
        (holds == over).then_some((limit.as_str(), *pace))
    }

    /// Returns whether the packet would have come in by another link than that of its return route. The walk puts packets where
    /// their return route is.
    pub(crate) fn is_astray(&self) -> bool {
        match self {
            Self::Answer {
                question: Question::RouteBack { inverted, .. },
                holds,
            } => holds == inverted,
            Self::Answer { .. }
            | Self::Address { .. }
            | Self::Port { .. }
            | Self::Unseen { .. } => false,
        }
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate { limit, over, .. } => {
                let state = if *over { "is exceeded" } else { "has room" };
                write!(f, "{limit} {state}")
            }
            Self::RouteBack { text, .. }
            | Self::Order(text)
            | Self::UnreadSet(text)
            | Self::Value(text)
            | Self::Other(text) => f.write_str(text),
        }
    }
}

impl fmt::Display for Assumption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer { question, holds } => {
                write!(f, "{question}: {}", if *holds { "yes" } else { "no" })
            }
            Self::Address {
                chosen,
                first,
                last,
            } => write!(f, "{chosen} is chosen from {first}-{last}"),
            Self::Port {
                chosen,
                first,
                last,
            } => write!(f, "port {chosen} is chosen from {first}-{last}"),
            Self::Unseen { tables } => {
                let noun = if tables.len() == 1 { "table" } else { "tables" };
                let tables = tables.join(", ");
                write!(
                    f,
                    "the chains of {noun} {tables} that the evidence does not show let the packet pass"
                )
            }
        }
    }
}

/// One possible end of the packet.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The verdict.
    pub verdict: Verdict,
    /// The probability, over all paths: 0 to 1.
    pub probability: f64,
    /// Its final address and port.
    pub destination: (IpAddr, u16),
    /// Whether its source is rewritten on the way out.
    pub masquerade: bool,
    /// Whether the client is bound to that backend from now on: session affinity.
    pub sticky: bool,
    /// The source it was sent from.
    pub sent_from: IpAddr,
    /// The source it has in the end.
    pub source: IpAddr,
    /// The fields of the packet that no rule changed.
    pub as_sent: AsSent,
    /// The assumptions about unknown facts.
    pub when: Vec<Assumption>,
    /// The reason of the verdict.
    pub reason: String,
    /// The hops, in order; none where the walk did not keep them.
    pub hops: Vec<Rc<Hop>>,
    /// The link by which it goes out.
    pub(crate) output: Link,
    /// The gateway that it is sent to there, if its route has one.
    pub(crate) gateway: Option<IpAddr>,
    /// Whether it goes from port to port of one bridge.
    pub(crate) bridged: bool,
    /// Its time to live or hop limit when it leaves.
    pub(crate) ttl: u8,
    /// Its mark when it leaves; its connection gets the same mark.
    pub(crate) carried: Carried,
}

impl Outcome {
    /// Returns the link by which it leaves the node, if known.
    pub(crate) fn leaves_by(&self) -> Option<&str> {
        match &self.output {
            Link::Named(name) => Some(name),
            Link::None | Link::Unknown => None,
        }
    }
}

/// A path under construction: the newest hop, and those before it.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    newest: Option<Rc<Node>>,
    is_kept: bool,
}

#[derive(Debug)]
struct Node {
    hop: Rc<Hop>,
    before: Path,
}

impl Path {
    /// Returns an empty path, which keeps its hops if `is_kept`.
    pub(crate) const fn new(is_kept: bool) -> Self {
        Self {
            newest: None,
            is_kept,
        }
    }

    /// Adds the hop that `hop` makes, if hops are kept.
    pub(crate) fn push(&mut self, hop: impl FnOnce() -> Hop) {
        if !self.is_kept {
            return;
        }
        let before = std::mem::replace(self, Self::new(true));
        self.newest = Some(Rc::new(Node {
            hop: Rc::new(hop()),
            before,
        }));
    }

    pub(crate) fn hops(&self) -> Vec<Rc<Hop>> {
        let mut hops = Vec::new();
        let mut at = self;
        while let Some(node) = &at.newest {
            hops.push(Rc::clone(&node.hop));
            at = &node.before;
        }
        hops.reverse();
        hops
    }
}

impl Drop for Path {
    /// Takes a long path apart without recursion.
    fn drop(&mut self) {
        let mut next = self.newest.take();
        while let Some(node) = next {
            next = match Rc::try_unwrap(node) {
                Ok(mut node) => node.before.newest.take(),
                Err(_) => None,
            };
        }
    }
}

/// Returns the comment of a rule as iptables or nft prints it.
pub(crate) fn comment(rule: &str) -> Option<&str> {
    let (_, rest) = rule
        .split_once("--comment ")
        .or_else(|| rule.split_once(" comment "))?;
    match rest.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"').map(|(text, _)| text),
        None => rest.split(' ').next(),
    }
}
