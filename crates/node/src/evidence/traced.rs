//! The kernel's messages about packets that it traces: `NFT_MSG_TRACE` of `linux/netfilter/nf_tables.h`, and lines of
//! its log for the legacy back end of iptables.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::Gap;
use crate::net::Proto;

/// The packets to trace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Wanted {
    /// Destination as sent.
    pub destination: SocketAddr,
    /// Transport protocol.
    pub proto: Proto,
    /// Source address as sent; `None` means any.
    pub source: Option<IpAddr>,
    /// Whether packets that the node itself sends are wanted.
    pub from_host: bool,
    /// Whether packets that come in by a link are wanted.
    pub from_links: bool,
    /// Whether packets of established connections are wanted, instead of packets that begin one.
    pub established: bool,
}

/// A place in the rules, as the kernel names it.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct ChainName {
    /// `ip`, `ip6`, `inet`, …, or [`LEGACY`].
    pub family: &'static str,
    /// The table.
    pub table: String,
    /// The chain.
    pub chain: String,
}

/// Instead of a family, for the tables of iptables' legacy back end.
pub const LEGACY: &str = "legacy";

/// One message about one packet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event {
    /// The kernel's number of the packet: the same at every hook, unless it comes in by a link again.
    pub packet: u32,
    /// Where it is.
    pub chain: ChainName,
    /// The subject.
    pub about: About,
    /// Its effect on the packet.
    pub verdict: Ruling,
    /// The packet at this moment; only the first message of a base chain has it.
    pub headers: Option<Headers>,
    /// Index of the link it came in by.
    pub input: Option<u32>,
    /// Index of the link it goes out by.
    pub output: Option<u32>,
}

/// The subject of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum About {
    /// A rule that matched, by its handle; in the legacy back end, by its number.
    Rule(u64),
    /// The end of a chain that was jumped to.
    End,
    /// The policy of a base chain.
    Policy,
}

/// The effect of a rule or a policy on a packet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ruling {
    /// On to the next rule.
    Continue,
    /// Into a chain, and back.
    Jump(String),
    /// Into a chain, not back.
    Goto(String),
    /// Back to the caller.
    Return,
    /// The base chain lets it pass.
    Accept,
    /// Dropped, or rejected with an answer.
    Drop,
    /// Taken by another receiver, such as a program in user space.
    Taken,
}

/// Addresses of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Headers {
    /// Source; port 0 for protocols without ports.
    pub source: SocketAddr,
    /// Destination; port 0 for protocols without ports.
    pub destination: SocketAddr,
}

/// A base chain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Base {
    /// Number of the hook, from `NF_INET_PRE_ROUTING`.
    pub hook: u32,
    /// The priority.
    pub priority: i32,
}

/// The traces in the tables of iptables' legacy back end, as far as they are known.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum InLegacy {
    /// The back end has no tables.
    #[default]
    NoTables,
    /// The kernel traced them there, too.
    Traced,
    /// Nothing, with the reason.
    Unknown(Gap),
}

/// The traced packet.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Traced {
    /// Name of kpx's own table.
    pub own: String,
    /// Messages, in the order of the kernel.
    pub events: Vec<Event>,
    /// Every chain, with its hook if it is a base chain.
    pub chains: BTreeMap<ChainName, Option<Base>>,
    /// Handles of the rules of each chain in `events`, in order.
    pub rules: BTreeMap<ChainName, Vec<u64>>,
    /// The traces in the tables of iptables' legacy back end, as far as they are known.
    pub legacy: InLegacy,
    /// Whether messages were lost, because there were too many.
    pub lost: bool,
    /// Whether rules changed while the packets were traced.
    pub changed: bool,
    /// The generation of nftables' rules after kpx's own table was removed.
    pub generation: u32,
}

/// Chains of kpx's own table. The first two choose packets, the next two know the state of their connection, the last two
/// see packets that leave the node or reach it.
pub const OWN_CHAINS: [OwnChain; 6] = [
    OwnChain::new("from-links", 0, FIRST),
    OwnChain::new("from-host", 3, FIRST),
    OwnChain::new("state-from-links", 0, TRACKED),
    OwnChain::new("state-from-host", 3, TRACKED),
    OwnChain::new("arrived", 1, LAST),
    OwnChain::new("left", 4, LAST),
];

/// Before everything but defragmentation, as nothing has its own priority in between.
const FIRST: i32 = -399;
/// Just behind connection tracking (`NF_IP_PRI_CONNTRACK`).
pub const TRACKED: i32 = -199;
/// Behind everything but the confirmation of connections.
const LAST: i32 = i32::MAX - 1;

/// A chain of kpx's own table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OwnChain {
    /// Name of the chain.
    pub name: &'static str,
    /// Number of the hook, from `NF_INET_PRE_ROUTING`.
    pub hook: u32,
    /// The priority.
    pub priority: i32,
}

impl OwnChain {
    const fn new(name: &'static str, hook: u32, priority: i32) -> Self {
        Self {
            name,
            hook,
            priority,
        }
    }
}
