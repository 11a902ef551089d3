//! An nftables ruleset, as `nft -j` names it.

use std::collections::BTreeMap;

use serde_json::Value;

/// Every table that was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ruleset {
    /// The tables, in the order listed.
    pub tables: Vec<Table>,
}

impl Ruleset {
    /// Returns the table `name` of `family` (`ip`, `ip6`, `inet`, …).
    pub fn table(&self, family: &str, name: &str) -> Option<&Table> {
        self.tables
            .iter()
            .find(|table| table.family == family && table.name == name)
    }
}

/// One table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// `ip`, `ip6`, `inet`, `arp`, `bridge` or `netdev`.
    pub family: String,
    /// The table's name.
    pub name: String,
    /// The comment.
    pub comment: Option<String>,
    /// Whether the kernel runs none of its chains: flag `dormant`.
    pub dormant: bool,
    /// Whether it has a flag that the listing does not show: it may be dormant.
    pub has_unread_flag: bool,
    /// The program that owns it, which alone may change it: flag `owner`. Empty if its name is unknown.
    pub owner: Option<String>,
    /// The chains, in the order listed.
    pub chains: Vec<Chain>,
    /// Sets and maps, in the order listed.
    pub sets: Vec<Set>,
    /// Its limits by their names, each as a statement: `limit rate over 1/minute`.
    pub limits: BTreeMap<String, String>,
}

impl Table {
    /// Returns whether it is one of iptables-nft, whose rules are read as rules of iptables.
    pub fn is_of_iptables(&self) -> bool {
        let tables = ["raw", "mangle", "nat", "filter", "security"];
        self.family != "inet" && tables.contains(&self.name.as_str())
    }

    /// Returns whether it has the name of kube-proxy's table, and belongs to another program: kube-proxy owns no table, and gives its
    /// own a comment, where nft can.
    pub fn is_others(&self) -> bool {
        let comment = self.comment.as_deref();
        self.name == TABLE
            && (self.owner.is_some() || comment.is_some_and(|comment| comment != COMMENT))
    }

    /// Returns the chain called `name`.
    pub fn chain(&self, name: &str) -> Option<&Chain> {
        self.chains.iter().find(|chain| chain.name == name)
    }

    /// Returns the set or map called `name`.
    pub fn set(&self, name: &str) -> Option<&Set> {
        self.sets.iter().find(|set| set.name == name)
    }
}

/// One chain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chain {
    /// The chain's name.
    pub name: String,
    /// The comment.
    pub comment: Option<String>,
    /// The hook at which the kernel enters it, for a base chain.
    pub base: Option<Base>,
    /// The rules, in order.
    pub rules: Vec<Rule>,
}

/// The hook at which the kernel enters a base chain.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Base {
    /// `filter`, `nat` or `route`.
    pub kind: String,
    /// `prerouting`, `input`, `forward`, `output`, `postrouting`, `ingress`, `egress`.
    pub hook: String,
    /// The links of a chain at `ingress` or `egress`.
    pub devices: Vec<String>,
    /// Lower runs earlier.
    pub priority: i32,
    /// `accept` or `drop`.
    pub policy: String,
}

/// One rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    /// The kernel's number for it, if listed.
    pub handle: Option<u64>,
    /// The comment.
    pub comment: Option<String>,
    /// Statements, in order.
    pub statements: Vec<Statement>,
}

/// One statement of a rule.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// `left op right`.
    Match {
        /// The expression that is compared.
        left: Expr,
        /// `==`, `!=`, `<`, `>`, `<=`, `>=`, or `in` for an implicit flag test.
        op: String,
        /// The value that it is compared with.
        right: Expr,
    },
    /// `key vmap data`.
    Vmap {
        /// The key.
        key: Expr,
        /// A named map (`@x`) or an inline one.
        data: Expr,
    },
    /// A verdict.
    Verdict(Verdict),
    /// `reject`.
    Reject {
        /// `icmp`, `icmpv6`, `icmpx` or `tcp reset`; `None` for the default.
        kind: Option<String>,
        /// The ICMP code.
        code: Option<String>,
    },
    /// `dnat` or `snat`.
    Nat {
        /// Source or destination.
        kind: NatKind,
        /// `ip` or `ip6` where it is written.
        family: Option<String>,
        /// The address, or an address and port concatenation or map.
        addr: Option<Expr>,
        /// The port.
        port: Option<Expr>,
        /// `random`, `fully-random`, `persistent`.
        flags: Vec<String>,
    },
    /// `masquerade`.
    Masquerade {
        /// The ports.
        port: Option<Expr>,
        /// `random`, `fully-random`, `persistent`.
        flags: Vec<String>,
    },
    /// `redirect`.
    Redirect {
        /// The port.
        port: Option<Expr>,
        /// `random`, `fully-random`, `persistent`.
        flags: Vec<String>,
    },
    /// `key set value`, such as `meta mark set …`.
    Mangle {
        /// The written text.
        key: Expr,
        /// The new value.
        value: Expr,
    },
    /// `counter`, anonymous or named.
    Counter {
        /// The name of a counter object.
        name: Option<String>,
        /// Packets.
        packets: u64,
        /// Bytes.
        bytes: u64,
    },
    /// `add`/`update`/`delete @set { elem }`.
    SetOp {
        /// `add`, `update` or `delete`.
        op: String,
        /// The set's name.
        set: String,
        /// The element.
        elem: Expr,
        /// The value of a map for the key.
        value: Option<Expr>,
        /// Seconds the element lives, where written.
        timeout: Option<u64>,
        /// Statements that run for the element, such as `limit`: if one does not hold, the rule ends there.
        run: Vec<Statement>,
    },
    /// `xt`: a match or target of iptables-nft, whose arguments nft does not show.
    Xt {
        /// `match`, `target` or `watcher`.
        kind: String,
        /// The extension's name.
        name: String,
    },
    /// Anything else, as listed.
    Other(Value),
}

/// The translated address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NatKind {
    /// The destination.
    Dnat,
    /// The source.
    Snat,
}

/// The fate of a packet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// This hook's chain lets it pass.
    Accept,
    /// Dropped.
    Drop,
    /// Next rule of this chain.
    Continue,
    /// Back to the caller.
    Return,
    /// Into a chain, and back.
    Jump(String),
    /// Into a chain, not back.
    Goto(String),
    /// To user space.
    Queue,
}

/// A value or something a value is read from.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// A number.
    Number(u64),
    /// A word: an address, a name, a protocol.
    Word(String),
    /// A truth value (`exists`, `missing`).
    Bool(bool),
    /// A header field: `ip daddr`.
    Payload {
        /// `ip`, `ip6`, `tcp`, `udp`, `sctp`, `th`, …
        protocol: String,
        /// The field.
        field: String,
    },
    /// `meta KEY`.
    Meta(String),
    /// `ct [DIR] KEY`.
    Ct {
        /// The key.
        key: String,
        /// `original` or `reply`.
        dir: Option<String>,
    },
    /// `fib FLAGS RESULT`.
    Fib {
        /// `type`, `oif` or `oifname`.
        result: String,
        /// `saddr`, `daddr`, `iif`, `oif`, `mark`.
        flags: Vec<String>,
    },
    /// `numgen MODE mod N offset M`.
    Numgen {
        /// `random` or `inc`.
        mode: String,
        /// Numbers below this.
        modulus: u32,
        /// Added to the number.
        offset: u32,
    },
    /// `ADDR/LEN`.
    Prefix {
        /// The address.
        addr: Box<Expr>,
        /// The length.
        len: u8,
    },
    /// `FIRST-LAST`.
    Range(Box<Expr>, Box<Expr>),
    /// `a . b . c`.
    Concat(Vec<Expr>),
    /// An anonymous set, or flags in a list.
    Set(Vec<Expr>),
    /// An inline map: keys with their values.
    Map(Vec<(Expr, Datum)>),
    /// A look-up: `KEY map DATA`.
    Lookup {
        /// The key.
        key: Box<Expr>,
        /// A named map or an inline one.
        data: Box<Expr>,
    },
    /// `@NAME`: a named set or map.
    Named(String),
    /// `a OP b` on bits: `|`, `&`, `^`, `<<`, `>>`.
    Bits {
        /// The operator.
        op: String,
        /// The left side.
        left: Box<Expr>,
        /// The right side.
        right: Box<Expr>,
    },
    /// Any address or value (`*`).
    Any,
    /// Anything else, as listed.
    Other(Value),
}

/// The value of a map for a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Datum {
    /// Data.
    Data(Expr),
    /// A verdict, in a verdict map.
    Verdict(Verdict),
}

/// A named set or map.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Set {
    /// The set's name.
    pub name: String,
    /// The comment.
    pub comment: Option<String>,
    /// The types of the key's parts (`ipv4_addr`, `inet_proto`, `inet_service`).
    pub key: Vec<String>,
    /// For a map, the types of its data (`verdict`, `ipv4_addr`, …).
    pub data: Option<Vec<String>>,
    /// `interval`, `timeout`, `dynamic`, `constant`.
    pub flags: Vec<String>,
    /// Seconds an element lives, by default.
    pub timeout: Option<u64>,
    /// Statements that run for each element that a rule adds.
    pub run: Vec<Statement>,
    /// The elements, in the order listed.
    pub elements: Vec<Element>,
}

impl Set {
    /// Returns whether elements come and go by themselves.
    pub fn has_timeouts(&self) -> bool {
        let of_time = |flag: &String| matches!(flag.as_str(), "timeout" | "dynamic");
        self.timeout.is_some() || self.flags.iter().any(of_time)
    }
}

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq)]
pub struct Element {
    /// The key.
    pub key: Expr,
    /// The value of a map for it.
    pub value: Option<Datum>,
    /// The comment.
    pub comment: Option<String>,
    /// Seconds it lives.
    pub timeout: Option<u64>,
    /// Seconds left.
    pub expires: Option<u64>,
    /// Conditions of the element, such as `limit`: a rule that finds it goes on only where they hold.
    pub conditions: Vec<Statement>,
}

/// The name of kube-proxy's tables.
pub const TABLE: &str = "kube-proxy";

/// Its comment.
pub const COMMENT: &str = "rules for kube-proxy";
