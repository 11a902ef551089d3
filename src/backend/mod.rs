//! The proxy modes: how each one's rules are read, what they should be, how they change.

pub mod ipset;
pub mod iptables;
pub mod ipvs;
pub mod nftables;

use std::fmt;

use serde::{Serialize, Serializer};

/// A mode of kube-proxy.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Mode {
    /// Chains of `KUBE-*` rules.
    Iptables,
    /// Virtual servers, kube-ipvs0, sets, and a few rules.
    Ipvs,
    /// The nftables table `kube-proxy`.
    Nftables,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::Iptables, Self::Ipvs, Self::Nftables];

    /// Returns the mode called `name`, as kube-proxy's configuration spells it.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// Returns the name kube-proxy's configuration uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
            Self::Nftables => "nftables",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Mode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
