//! IP sets and their members, as `ipset save` names them.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use crate::net::Proto;

/// Every set, in the order saved.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Sets<'a> {
    /// The sets.
    pub sets: Vec<Set<'a>>,
}

impl<'a> Sets<'a> {
    /// Returns the set called `name`.
    pub fn set(&self, name: &str) -> Option<&Set<'a>> {
        self.sets.iter().find(|set| set.name == name)
    }
}

/// One set.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Set<'a> {
    /// The set's name.
    pub name: Cow<'a, str>,
    /// The type, such as `hash:ip,port`.
    pub kind: Cow<'a, str>,
    /// The options of `create` after the type, verbatim (`family inet hashsize 1024 …`).
    pub options: Cow<'a, str>,
    /// The members, in the order saved.
    pub members: Vec<Member<'a>>,
}

impl Set<'_> {
    /// Returns the value after the word `name` in the options of `create`.
    pub fn option(&self, name: &str) -> Option<&str> {
        let mut words = self.options.split_ascii_whitespace();
        words.find(|&word| word == name)?;
        words.next()
    }

    /// Returns whether members come and go by themselves.
    pub fn has_timeouts(&self) -> bool {
        self.option("timeout").is_some()
    }

    /// Returns the options that decide on the possible members of the set; its size follows from use.
    pub fn shape(&self) -> String {
        let of = |name| self.option(name).map(|value| format!("{name} {value}"));
        let parts: Vec<_> = ["family", "range", "maxelem"]
            .into_iter()
            .filter_map(of)
            .collect();
        parts.join(" ")
    }

    /// Returns the set without borrowed text.
    pub fn owned(&self) -> Set<'static> {
        Set {
            name: Cow::Owned(self.name.to_string()),
            kind: Cow::Owned(self.kind.to_string()),
            options: Cow::Owned(self.options.to_string()),
            members: self.members.iter().map(Member::owned).collect(),
        }
    }

    /// Returns whether the set holds IPv6 addresses.
    pub fn is_v6(&self) -> bool {
        self.option("family") == Some("inet6")
    }
}

/// One member of a set.
#[derive(Clone, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Member<'a> {
    /// The element as printed: `10.0.0.1,tcp:80,10.0.0.2`.
    pub element: Cow<'a, str>,
    /// The rest, verbatim (`timeout 30 nomatch`); may be empty.
    pub options: Cow<'a, str>,
}

impl Member<'_> {
    /// Returns the member without borrowed text.
    pub fn owned(&self) -> Member<'static> {
        Member {
            element: Cow::Owned(self.element.to_string()),
            options: Cow::Owned(self.options.to_string()),
        }
    }

    /// Returns the beginning of the element, for the types of kube-proxy's sets.
    pub fn key(&self) -> Option<ElementKey> {
        let mut parts = self.element.split(',');
        let first = parts.next()?;
        if let Ok(port) = first.parse() {
            return Some(ElementKey::Port(port));
        }
        let addr: IpAddr = first.parse().ok()?;
        let Some((proto, port)) = parts.next().and_then(|part| part.split_once(':')) else {
            return Some(ElementKey::Address(addr));
        };
        Some(ElementKey::Socket {
            proto: proto.parse().ok()?,
            addr: SocketAddr::new(addr, port.parse().ok()?),
        })
    }
}

/// The beginning of an element of a set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ElementKey {
    /// A port: `30080`.
    Port(u16),
    /// An address: `10.0.0.1`.
    Address(IpAddr),
    /// A protocol, address and port: `10.0.0.1,tcp:80`.
    Socket {
        /// The protocol.
        proto: Proto,
        /// The address and port.
        addr: SocketAddr,
    },
}
