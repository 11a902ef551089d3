//! One difference, with the live and the desired object as they were parsed.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde::Serialize;

use kpx_node::backend::ipset::{ElementKey, Member, Set};
use kpx_node::backend::ipvs::model::{Key, RealServer, VirtualServer};
use kpx_node::backend::nftables::model::Expr;
use kpx_node::backend::nftables::print;
use kpx_node::backend::{iptables, ipvs, nftables};
use kpx_node::net::{Family, Proto};

/// One difference.
///
/// It has no counters or connections, so the changes of two readings of a node can be compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The family, if the object has one.
    pub family: Option<Family>,
    /// The service port it serves: `NAMESPACE/NAME:PORT`, or the Service where it serves all its ports.
    pub service: Option<String>,
    /// The object, with its live and its desired form.
    pub object: Object,
}

impl Change {
    /// Returns the part of the kernel's state that it is in.
    pub fn layer(&self) -> Layer {
        self.object.layer()
    }

    /// Returns the kind of the difference.
    pub fn kind(&self) -> ChangeKind {
        self.object.kind()
    }

    /// Returns the key that changes are sorted by: those without a Service come last.
    pub(super) fn order(&self) -> impl Ord + use<> {
        (
            self.service.is_none(),
            self.service.clone(),
            self.layer(),
            self.family,
            self.object.order(),
            self.kind(),
        )
    }
}

/// A kind of difference.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ChangeKind {
    /// Desired, but not live.
    Missing,
    /// Live, but not desired.
    Extra,
    /// Live, but not as desired.
    Differs,
}

/// A part of the kernel's state.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// Chains and rules.
    Iptables,
    /// IP sets.
    Ipset,
    /// Virtual and real servers.
    Ipvs,
    /// kube-ipvs0 and its addresses.
    Link,
    /// The nftables table.
    Nftables,
    /// Kernel settings.
    Sysctl,
}

impl Layer {
    /// Every layer.
    pub const ALL: [Self; 6] = [
        Self::Iptables,
        Self::Ipset,
        Self::Ipvs,
        Self::Link,
        Self::Nftables,
        Self::Sysctl,
    ];
}

/// The live and the desired state of one object.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta<T> {
    /// Desired, but not live.
    Missing(Box<T>),
    /// Live, but not desired.
    Extra(Box<T>),
    /// Live, but not as desired.
    Differs {
        /// The live object.
        have: Box<T>,
        /// The desired object.
        want: Box<T>,
    },
}

impl<T> Delta<T> {
    pub(super) fn missing(want: T) -> Self {
        Self::Missing(Box::new(want))
    }

    pub(super) fn extra(have: T) -> Self {
        Self::Extra(Box::new(have))
    }

    pub(super) fn differs(have: T, want: T) -> Self {
        Self::Differs {
            have: Box::new(have),
            want: Box::new(want),
        }
    }

    /// Returns the kind of the difference.
    pub fn kind(&self) -> ChangeKind {
        match self {
            Self::Missing(_) => ChangeKind::Missing,
            Self::Extra(_) => ChangeKind::Extra,
            Self::Differs { .. } => ChangeKind::Differs,
        }
    }

    /// Returns the live object; `None` if it is missing.
    pub fn have(&self) -> Option<&T> {
        match self {
            Self::Missing(_) => None,
            Self::Extra(have) | Self::Differs { have, .. } => Some(have),
        }
    }

    /// Returns the desired object; `None` if there is none.
    pub fn want(&self) -> Option<&T> {
        match self {
            Self::Extra(_) => None,
            Self::Missing(want) | Self::Differs { want, .. } => Some(want),
        }
    }

    /// Returns the same change with `f` applied to each object.
    pub(super) fn map<U>(self, f: impl Fn(T) -> U) -> Delta<U> {
        match self {
            Self::Missing(want) => Delta::missing(f(*want)),
            Self::Extra(have) => Delta::extra(f(*have)),
            Self::Differs { have, want } => Delta::differs(f(*have), f(*want)),
        }
    }

    /// Iterates over the live and the desired object; over one if the other does not exist.
    pub fn both(&self) -> impl Iterator<Item = &T> {
        self.have().into_iter().chain(self.want())
    }
}

/// An object of the kernel's state, with its live and its desired state. [`std::fmt::Display`] is its name in reports.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A chain of iptables, all of it missing or extra.
    IptablesChain {
        /// The table.
        table: String,
        /// The chain.
        chain: String,
        /// Its rules.
        rules: Delta<Vec<iptables::model::Rule<'static>>>,
    },
    /// A rule of iptables.
    IptablesRule {
        /// The table.
        table: String,
        /// The chain.
        chain: String,
        /// Its place in the chain.
        at: RuleNumber,
        /// The rule.
        rule: Delta<iptables::model::Rule<'static>>,
    },
    /// A portal of the userspace mode.
    Portal {
        /// The chain of table nat.
        chain: String,
        /// The destination that it takes, as `ADDRESS:PORT/PROTO` or `NodePort PORT/PROTO`.
        at: String,
        /// Where it leads, in words: the desired port is kube-proxy's choice.
        to: Delta<String>,
    },
    /// An IP set: missing with its members, or of another type or size.
    Set {
        /// The set's name.
        name: String,
        /// The set.
        set: Delta<Set<'static>>,
    },
    /// A member of an IP set.
    Member {
        /// The set's name.
        set: String,
        /// The member.
        member: Delta<Member<'static>>,
    },
    /// A virtual server; one that differs, without its real servers.
    VirtualServer {
        /// Its protocol, address and port.
        key: Key,
        /// The server.
        server: Delta<VirtualServer>,
    },
    /// A real server.
    RealServer {
        /// Its virtual server.
        server: Key,
        /// Its address and port.
        addr: SocketAddr,
        /// The server.
        real: Delta<RealServer>,
    },
    /// kube-ipvs0, which is missing.
    Link,
    /// An address of kube-ipvs0.
    Address(Delta<IpAddr>),
    /// The table kube-proxy, which is missing or dormant.
    NftablesTable {
        /// The family.
        family: Family,
        /// Whether it exists, but is dormant: the kernel runs none of its chains.
        dormant: bool,
        /// How many chains it should have.
        chains: usize,
        /// How many sets and maps it should have.
        sets: usize,
    },
    /// A chain of the table: missing or extra with its rules, or at another hook.
    NftablesChain {
        /// The chain's name.
        chain: String,
        /// The chain; one that differs, without its rules.
        of: Delta<nftables::model::Chain>,
    },
    /// A rule of the table.
    NftablesRule {
        /// The chain.
        chain: String,
        /// Its place in the chain.
        at: RuleNumber,
        /// The rule.
        rule: Delta<nftables::model::Rule>,
    },
    /// A set or map of the table: missing with its elements, or extra, or of another type.
    NftablesSet {
        /// The set's name.
        name: String,
        /// The set; unless it is missing, without its elements.
        set: Delta<nftables::model::Set>,
    },
    /// An element of a set or map of the table.
    NftablesElement {
        /// The set's name.
        set: String,
        /// The element.
        element: Delta<nftables::model::Element>,
    },
    /// A kernel setting.
    Sysctl {
        /// The dotted name.
        key: &'static str,
        /// The value.
        value: Delta<String>,
    },
}

/// The number of a rule in its chain, counted from 0.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RuleNumber {
    /// The live rule's, or for a missing rule the desired one's.
    pub number: usize,
    /// For a correct rule in the wrong place, the desired number.
    pub moved_to: Option<usize>,
}

impl Object {
    fn layer(&self) -> Layer {
        match self {
            Self::IptablesChain { .. } | Self::IptablesRule { .. } | Self::Portal { .. } => {
                Layer::Iptables
            }
            Self::Set { .. } | Self::Member { .. } => Layer::Ipset,
            Self::VirtualServer { .. } | Self::RealServer { .. } => Layer::Ipvs,
            Self::Link | Self::Address(_) => Layer::Link,
            Self::NftablesTable { .. }
            | Self::NftablesChain { .. }
            | Self::NftablesRule { .. }
            | Self::NftablesSet { .. }
            | Self::NftablesElement { .. } => Layer::Nftables,
            Self::Sysctl { .. } => Layer::Sysctl,
        }
    }

    fn kind(&self) -> ChangeKind {
        match self {
            Self::IptablesChain { rules, .. } => rules.kind(),
            Self::IptablesRule { rule, .. } => rule.kind(),
            Self::Portal { to, .. } => to.kind(),
            Self::Set { set, .. } => set.kind(),
            Self::Member { member, .. } => member.kind(),
            Self::VirtualServer { server, .. } => server.kind(),
            Self::RealServer { real, .. } => real.kind(),
            Self::NftablesTable { dormant: true, .. } => ChangeKind::Differs,
            Self::Link | Self::NftablesTable { .. } => ChangeKind::Missing,
            Self::Address(addr) => addr.kind(),
            Self::NftablesChain { of, .. } => of.kind(),
            Self::NftablesRule { rule, .. } => rule.kind(),
            Self::NftablesSet { set, .. } => set.kind(),
            Self::NftablesElement { element, .. } => element.kind(),
            Self::Sysctl { value, .. } => value.kind(),
        }
    }

    /// Returns the key that objects of one layer are sorted by: sort, parent, name and number.
    fn order(&self) -> (u8, String, String, usize) {
        let none = String::new;
        match self {
            Self::IptablesChain { table, chain, .. } => (0, table.clone(), chain.clone(), 0),
            Self::NftablesChain { chain, .. } => (0, none(), chain.clone(), 0),
            Self::IptablesRule {
                table, chain, at, ..
            } => (1, table.clone(), chain.clone(), at.number),
            Self::NftablesRule { chain, at, .. } => (1, none(), chain.clone(), at.number),
            Self::Portal { chain, at, .. } => (2, chain.clone(), at.clone(), 0),
            Self::Set { name, .. } | Self::NftablesSet { name, .. } => (2, none(), name.clone(), 0),
            Self::Member { set, member } => {
                let element = member
                    .both()
                    .next()
                    .map(|member| member.element.to_string());
                (3, set.clone(), element.unwrap_or_default(), 0)
            }
            Self::NftablesElement { set, element } => {
                let key = element
                    .both()
                    .next()
                    .map(|element| print::expr(&element.key));
                (3, set.clone(), key.unwrap_or_default(), 0)
            }
            Self::VirtualServer { key, .. } => (4, none(), ipvs::print::name(*key), 0),
            Self::RealServer { server, addr, .. } => {
                (5, ipvs::print::name(*server), addr.to_string(), 0)
            }
            Self::Link => (6, none(), none(), 0),
            Self::Address(addr) => {
                let addr = addr.both().next().map(IpAddr::to_string);
                (7, none(), addr.unwrap_or_default(), 0)
            }
            Self::NftablesTable { .. } => (8, none(), none(), 0),
            Self::Sysctl { key, .. } => (9, none(), (*key).to_owned(), 0),
        }
    }

    /// Returns whether it is an element with an address of the Node, at which NodePorts are served.
    pub fn is_of_node(&self) -> bool {
        matches!(self, Self::NftablesElement { set, .. } if set == "nodeport-ips")
    }

    /// Returns the protocol and address of the endpoint for whose own pod this element of a set masquerades.
    pub fn hairpin(&self) -> Option<(Proto, SocketAddr)> {
        match self {
            Self::Member { set, member } if set.ends_with("LOOP-BACK") => {
                match member.both().next()?.key()? {
                    ElementKey::Socket { proto, addr } => Some((proto, addr)),
                    ElementKey::Address(_) | ElementKey::Port(_) => None,
                }
            }
            Self::NftablesElement { set, element } if set == "hairpin-connections" => {
                let Expr::Concat(parts) = &element.both().next()?.key else {
                    return None;
                };
                let [addr, _, proto, port] = parts.as_slice() else {
                    return None;
                };
                let at = SocketAddr::new(word(addr)?, word(port)?);
                Some((word(proto)?, at))
            }
            _ => None,
        }
    }

    /// Returns the table and chain of an iptables chain or rule.
    pub fn iptables_chain(&self) -> Option<(&str, &str)> {
        match self {
            Self::IptablesChain { table, chain, .. } | Self::IptablesRule { table, chain, .. } => {
                Some((table, chain))
            }
            _ => None,
        }
    }

    /// Returns the chain of an nftables chain or rule.
    pub fn nftables_chain(&self) -> Option<&str> {
        match self {
            Self::NftablesChain { chain, .. } | Self::NftablesRule { chain, .. } => Some(chain),
            _ => None,
        }
    }
}

/// Reads a part of a key that is a word or a number.
pub(super) fn word<T: FromStr>(part: &Expr) -> Option<T> {
    match part {
        Expr::Word(word) => word.parse().ok(),
        Expr::Number(number) => number.to_string().parse().ok(),
        _ => None,
    }
}
