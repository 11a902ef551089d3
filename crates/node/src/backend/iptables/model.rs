//! The rules of one family, as `iptables-save` names them.

use std::borrow::Cow;
use std::hash::BuildHasher;
use std::net::IpAddr;

use foldhash::fast::FixedState;

use crate::net::{Cidr, Mark, PortRange, Proto};

/// Text borrowed from evidence, or built by `expect`.
pub type Text<'a> = Cow<'a, str>;

/// All tables of one family, in the order saved.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Ruleset<'a> {
    /// The tables.
    pub tables: Vec<Table<'a>>,
    /// Whether the listing warns of tables in the legacy back end.
    pub legacy_too: bool,
    /// The tables that are shown completely, if not all are.
    pub whole: Option<Vec<Text<'a>>>,
}

/// How the remark begins that names the complete tables of rules that are shown in part.
pub const IN_PART: &str = "# kpx: shown in part; complete tables:";
/// Target of a rule that stands for the rest of a chain, which is not shown.
pub const NOT_SHOWN: &str = "KPX-NOT-SHOWN";
/// Match of a rule from a listing without links: it may be for some of them only.
pub const NO_LINKS: &str = "-m kpx --links-not-shown";

impl<'a> Ruleset<'a> {
    /// Returns the table called `name`.
    pub fn table(&self, name: &str) -> Option<&Table<'a>> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// Returns `chain` of `table`.
    pub fn chain(&self, table: &str, chain: &str) -> Option<&Chain<'a>> {
        self.table(table)?.chain(chain)
    }
}

/// One table.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Table<'a> {
    /// `nat`, `filter`, `mangle`, `raw` or `security`.
    pub name: Text<'a>,
    /// The chains, in the order saved.
    pub chains: Vec<Chain<'a>>,
    /// The hash of each chain's name and its position in `chains`, sorted; see [`Table::index`].
    by_hash: Vec<(u64, u32)>,
}

impl<'a> Table<'a> {
    /// Returns a table of `chains`, ready for look-ups by name.
    pub fn new(name: impl Into<Text<'a>>, chains: Vec<Chain<'a>>) -> Self {
        let mut table = Self {
            name: name.into(),
            chains,
            by_hash: Vec::new(),
        };
        table.index();
        table
    }

    /// Brings the look-up table up to date after `chains` changed.
    ///
    /// # Panics
    ///
    /// On 2^32 chains.
    pub fn index(&mut self) {
        let count = u32::try_from(self.chains.len()).expect("a table has fewer than 2^32 chains");
        let hashes = self.chains.iter().map(|chain| hash(&chain.name));
        self.by_hash = hashes.zip(0..count).collect();
        self.by_hash.sort_unstable();
    }

    /// Returns the chain called `name`.
    pub fn chain(&self, name: &str) -> Option<&Chain<'a>> {
        self.position(name).map(|at| &self.chains[at])
    }

    /// Returns where in `chains` the chain called `name` is.
    pub fn position(&self, name: &str) -> Option<usize> {
        let wanted = hash(name);
        let first = self.by_hash.partition_point(|(hash, _)| *hash < wanted);
        let same = self.by_hash[first..]
            .iter()
            .take_while(|(hash, _)| *hash == wanted);
        let mut positions = same.map(|(_, at)| *at as usize);
        positions.find(|at| self.chains[*at].name == name)
    }
}

/// Returns the hash of a chain's name, the same in each run.
fn hash(name: &str) -> u64 {
    FixedState::default().hash_one(name)
}

/// One chain with its rules in order.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Chain<'a> {
    /// The chain's name.
    pub name: Text<'a>,
    /// The policy of a built-in chain; `None` for a user chain, which returns.
    pub policy: Option<Policy>,
    /// Packets and bytes that met the policy.
    pub counters: Counters,
    /// The rules.
    pub rules: Vec<Rule<'a>>,
}

impl<'a> Chain<'a> {
    /// Returns an empty user chain called `name`.
    pub fn user(name: impl Into<Text<'a>>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }
}

/// The policy of a built-in chain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Policy {
    /// Packets pass.
    Accept,
    /// Packets are dropped.
    Drop,
}

/// Packets and bytes that matched.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// One rule: every match must hold, then the target applies.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Rule<'a> {
    /// Packets and bytes that matched, if saved with `-c`.
    pub counters: Option<Counters>,
    /// The matches, in the order written.
    pub matches: Vec<Match<'a>>,
    /// The target; `None` for a rule that only counts.
    pub target: Option<Target<'a>>,
}

impl Rule<'_> {
    /// Returns the chain that the rule leads to.
    pub fn leads_to(&self) -> Option<&str> {
        match &self.target {
            Some(Target::Jump(to) | Target::Goto(to)) => Some(to),
            _ => None,
        }
    }

    /// Returns whether both rules do the same; the order of matches does not count.
    pub fn is_same(&self, other: &Rule<'_>) -> bool {
        if self.target != other.target || self.matches.len() != other.matches.len() {
            return false;
        }
        self.matches == other.matches || {
            let mut left: Vec<_> = other.matches.iter().collect();
            self.matches.iter().all(|m| {
                let at = left.iter().position(|other| *other == m);
                at.map(|at| left.swap_remove(at)).is_some()
            })
        }
    }

    /// Returns the first comment.
    pub fn comment(&self) -> Option<&str> {
        self.matches.iter().find_map(|m| match m {
            Match::Comment(text) => Some(text.as_ref()),
            _ => None,
        })
    }
}

/// A value with an optional `!` before it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Invertible<T> {
    /// Whether the match is inverted.
    pub inverted: bool,
    /// The value.
    pub value: T,
}

impl<T> Invertible<T> {
    /// Returns the value, not inverted.
    pub const fn plain(value: T) -> Self {
        Self {
            inverted: false,
            value,
        }
    }

    /// Returns the value, inverted.
    pub const fn inverted(value: T) -> Self {
        Self {
            inverted: true,
            value,
        }
    }
}

/// One condition of a rule.
///
/// Matches that are not modelled are kept verbatim in [`Match::Unknown`], so that printing loses nothing.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Match<'a> {
    /// `-s`.
    Source(Invertible<Cidr>),
    /// `-d`.
    Destination(Invertible<Cidr>),
    /// `-i`; a trailing `+` matches any end.
    In(Invertible<Text<'a>>),
    /// `-o`; a trailing `+` matches any end.
    Out(Invertible<Text<'a>>),
    /// `-p`.
    Protocol(Invertible<Proto>),
    /// `-m tcp`, `-m udp` or `-m sctp` with ports or without; other options make the match unknown.
    Ports {
        /// The protocol.
        proto: Proto,
        /// `--sport`.
        source: Option<Invertible<PortRange>>,
        /// `--dport`.
        destination: Option<Invertible<PortRange>>,
    },
    /// `-m tcp --tcp-flags`; printed behind the ports of the same `-m tcp`.
    TcpFlags(Invertible<TcpFlags>),
    /// `-m multiport`.
    Multiport {
        /// `--sports`, `--dports` or `--ports`.
        side: Side,
        /// The ports.
        ports: Invertible<Vec<PortRange>>,
    },
    /// `-m comment --comment`.
    Comment(Text<'a>),
    /// `-m addrtype`.
    AddrType {
        /// `--src-type`: sets of [`AddrType`] bits.
        source: Option<Invertible<AddrType>>,
        /// `--dst-type`.
        destination: Option<Invertible<AddrType>>,
        /// `--limit-iface-in` or `--limit-iface-out`.
        limit: Option<Direction>,
    },
    /// `-m conntrack --ctstate` (or `-m state --state`, see `old`); other options make the match unknown.
    State {
        /// The states.
        states: Invertible<States>,
        /// Whether it is spelled `-m state --state`.
        old: bool,
    },
    /// `-m mark --mark`.
    Mark(Invertible<Mark>),
    /// `-m connmark --mark`.
    Connmark(Invertible<Mark>),
    /// `-m statistic --mode random`: matches with probability `chance` / 2^31.
    Random(Invertible<u32>),
    /// `-m statistic --mode nth`.
    Nth {
        /// `--every`: one packet in this many.
        every: Invertible<u32>,
        /// `--packet`: the position within each group of `every` packets, from 0.
        packet: u32,
    },
    /// `-m set --match-set`.
    Set {
        /// The set's name.
        name: Invertible<Text<'a>>,
        /// `src` or `dst` for each dimension.
        sides: Sides,
    },
    /// `-m recent`.
    Recent(Box<Recent<'a>>),
    /// `-m physdev`.
    Physdev(Box<Physdev<'a>>),
    /// `-m nfacct --nfacct-name`: counts, and always matches.
    Nfacct(Text<'a>),
    /// `-m ipvs`: options verbatim, for the few rules that use it.
    Ipvs(Text<'a>),
    /// `-m icmp --icmp-type` or `-m icmp6 --icmpv6-type`: the type as written.
    Icmp {
        /// Whether it is `icmp6`.
        v6: bool,
        /// The type, with a code or without, or `any`.
        kind: Invertible<Text<'a>>,
    },
    /// `-m limit` or `-m hashlimit`: matches until the rate is used up.
    Limit {
        /// Whether it is `hashlimit`, which counts by address or port.
        hash: bool,
        /// The options as written.
        options: Text<'a>,
    },
    /// `-m iprange`.
    IpRange(Box<IpRange>),
    /// `-m owner`: options verbatim; matches local senders only.
    Owner(Text<'a>),
    /// `-m rpfilter`: options verbatim; matches if the way back leads out of the same link.
    Rpfilter(Text<'a>),
    /// `-m socket`: options verbatim; matches if a local socket would take the packet.
    Socket(Text<'a>),
    /// `-m pkttype --pkt-type`: `unicast`, `broadcast` or `multicast`.
    PktType(Invertible<Text<'a>>),
    /// `-m conntrack` with other options than `--ctstate` alone: options verbatim.
    Conntrack(Text<'a>),
    /// `-m policy`: options verbatim; matches packets that IPsec took, or did not.
    Policy(Text<'a>),
    /// `-m rt`: options verbatim; matches packets with an IPv6 routing header only.
    Rt(Text<'a>),
    /// Anything else, word for word (`-m foo --bar 1`).
    Unknown(Text<'a>),
}

/// An end of a packet.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Side {
    /// The source.
    Source,
    /// The destination.
    Destination,
    /// Either (`--ports`).
    Either,
}

/// The ends of a packet that are looked up in a set, one for each of its dimensions.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Sides {
    all: [Side; Self::MAX],
    count: u8,
}

impl Sides {
    /// `IPSET_DIM_MAX`: how many dimensions a set can have.
    pub const MAX: usize = 6;

    /// Returns the sides in `from`; `None` if a set cannot have that many.
    pub fn new(from: &[Side]) -> Option<Self> {
        let mut all = [Side::Either; Self::MAX];
        all.get_mut(..from.len())?.copy_from_slice(from);
        let count = u8::try_from(from.len()).ok()?;
        Some(Self { all, count })
    }
}

impl std::ops::Deref for Sides {
    type Target = [Side];

    fn deref(&self) -> &[Side] {
        &self.all[..usize::from(self.count)]
    }
}

/// Sets of TCP flags, bit by bit as in the header: FIN is 1.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct TcpFlags {
    /// The flags that are looked at.
    pub mask: u8,
    /// The flags among them that must be set.
    pub set: u8,
}

impl TcpFlags {
    /// Names by bit, in the order iptables prints them.
    pub const NAMES: [&'static str; 6] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG"];
}

/// `-m physdev`: which port of a bridge.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Physdev<'a> {
    /// `--physdev-in`.
    pub input: Option<Invertible<Text<'a>>>,
    /// `--physdev-out`.
    pub output: Option<Invertible<Text<'a>>>,
    /// `--physdev-value-in`.
    pub is_in: Option<Invertible<()>>,
    /// `--physdev-value-out`.
    pub is_out: Option<Invertible<()>>,
    /// `--physdev-value-bridged`.
    pub is_bridged: Option<Invertible<()>>,
}

/// `-m iprange`: first and last address.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct IpRange {
    /// `--src-range`.
    pub source: Option<Invertible<(IpAddr, IpAddr)>>,
    /// `--dst-range`.
    pub destination: Option<Invertible<(IpAddr, IpAddr)>>,
}

/// A direction through an interface.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Direction {
    /// Coming in.
    In,
    /// Going out.
    Out,
}

/// A set of address types, as in `xt_addrtype.h` (bit n is type n of `RTN_*`).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct AddrType(pub u16);

impl AddrType {
    /// Names by bit, as iptables prints them.
    pub const NAMES: [&'static str; 12] = [
        "UNSPEC",
        "UNICAST",
        "LOCAL",
        "BROADCAST",
        "ANYCAST",
        "MULTICAST",
        "BLACKHOLE",
        "UNREACHABLE",
        "PROHIBIT",
        "THROW",
        "NAT",
        "XRESOLVE",
    ];
    /// An address of this host.
    pub const LOCAL: Self = Self(1 << 2);
}

/// A set of conntrack states.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct States(pub u8);

impl States {
    /// Names by bit, in the order iptables prints them.
    pub const NAMES: [&'static str; 7] = [
        "INVALID",
        "NEW",
        "RELATED",
        "ESTABLISHED",
        "UNTRACKED",
        "SNAT",
        "DNAT",
    ];
    /// Bit of `INVALID`.
    pub const INVALID: u8 = 1;
    /// Bit of `NEW`.
    pub const NEW: u8 = 1 << 1;
    /// Bit of `RELATED`.
    pub const RELATED: u8 = 1 << 2;
    /// Bit of `ESTABLISHED`.
    pub const ESTABLISHED: u8 = 1 << 3;
    /// Bit of `UNTRACKED`.
    pub const UNTRACKED: u8 = 1 << 4;
    /// Bit of `SNAT`: the source was translated.
    pub const SNAT: u8 = 1 << 5;
    /// Bit of `DNAT`: the destination was translated.
    pub const DNAT: u8 = 1 << 6;
    /// Bits that packets after the first one of a connection may have.
    pub const LATER: u8 = Self::ESTABLISHED | Self::SNAT | Self::DNAT;
}

/// `-m recent`, the state behind session affinity.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Recent<'a> {
    /// `--set`, `--rcheck`, `--update` or `--remove`.
    pub action: Invertible<RecentAction>,
    /// `--seconds`.
    pub seconds: Option<u32>,
    /// `--reap`.
    pub reap: bool,
    /// `--hitcount`.
    pub hitcount: Option<u32>,
    /// `--rttl`.
    pub rttl: bool,
    /// `--name`.
    pub name: Text<'a>,
    /// `--mask`: the bits of addresses that count; iptables prints it when it is full, too.
    pub mask: Option<IpAddr>,
    /// `--rsource` or `--rdest`.
    pub side: Side,
}

/// The action of `-m recent`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum RecentAction {
    /// Records the address; always matches.
    Set,
    /// Matches if the address was recorded.
    Check,
    /// As `Check`, and records it again.
    Update,
    /// As `Check`, and forgets it.
    Remove,
}

/// The effect of a rule on a packet.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Target<'a> {
    /// `-j CHAIN`: come back after its end.
    Jump(Text<'a>),
    /// `-g CHAIN`: a return goes where the caller would return.
    Goto(Text<'a>),
    /// `-j ACCEPT`.
    Accept,
    /// `-j DROP`.
    Drop,
    /// `-j RETURN`.
    Return,
    /// `-j REJECT --reject-with`.
    Reject {
        /// The kind of answer, as written; `None` without the option.
        with: Option<Text<'a>>,
    },
    /// `-j DNAT`.
    Dnat(Nat),
    /// `-j SNAT`.
    Snat(Nat),
    /// `-j MASQUERADE`.
    Masquerade {
        /// `--to-ports`.
        ports: Option<PortRange>,
        /// `--random`.
        random: bool,
        /// `--random-fully`.
        random_fully: bool,
    },
    /// `-j REDIRECT`.
    Redirect {
        /// `--to-ports`.
        ports: Option<PortRange>,
        /// `--random`.
        random: bool,
    },
    /// `-j MARK --set-xmark`: the new mark is `(old & !mask) ^ value`.
    Mark(Mark),
    /// `-j CONNMARK`.
    Connmark(Connmark),
    /// `-j CT --notrack` or `-j NOTRACK`.
    Notrack {
        /// Whether it is spelled `NOTRACK`.
        is_short: bool,
    },
    /// `-j TPROXY`.
    Tproxy(Box<Tproxy>),
    /// Anything else: its name and its options word for word (`LOG --log-prefix "x "`).
    Other {
        /// The target's name.
        name: Text<'a>,
        /// The options as written; may be empty.
        options: Text<'a>,
    },
}

impl Target<'_> {
    /// Returns whether the tool that listed the rules did not know the revision of this target, and wrote no options of it, or
    /// none that make sense: since 1.6 `DNAT [unsupported revision]`, before that DNAT to port 0.
    pub fn is_unreadable(&self) -> bool {
        match self {
            Self::Other { name, options } => {
                name == "DNAT" || options.contains("[unsupported revision]")
            }
            Self::Dnat(to) => to.ports.is_some_and(|ports| ports.first == 0),
            _ => false,
        }
    }
}

/// The result of a translation.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Nat {
    /// The first and last address; `None` keeps the address.
    pub addrs: Option<(IpAddr, IpAddr)>,
    /// The ports; `None` keeps the port.
    pub ports: Option<PortRange>,
    /// How a choice is made.
    pub flags: NatFlags,
}

/// How a translation chooses among addresses and ports.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct NatFlags {
    /// `--random`.
    pub random: bool,
    /// `--random-fully`.
    pub random_fully: bool,
    /// `--persistent`.
    pub persistent: bool,
}

/// The effect of `-j CONNMARK` on a connection's mark.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Connmark {
    /// `--set-xmark`: the connection's mark becomes `(old & !mask) ^ value`.
    Set(Mark),
    /// `--save-mark`: the packet's mark is stored in the connection.
    Save {
        /// Bits of the packet's mark.
        packet: u32,
        /// Bits of the connection's mark.
        connection: u32,
    },
    /// `--restore-mark`: the connection's mark is given to the packet.
    Restore {
        /// Bits of the packet's mark.
        packet: u32,
        /// Bits of the connection's mark.
        connection: u32,
    },
}

/// The destination of `-j TPROXY`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Tproxy {
    /// `--on-port`; 0 keeps the port.
    pub port: u16,
    /// `--on-ip`; `None` for the link's own.
    pub addr: Option<IpAddr>,
    /// `--tproxy-mark`.
    pub mark: Mark,
}
