//! Links and their addresses.

use std::net::IpAddr;

use crate::evidence::{Gap, Item};
use crate::net::Cidr;

/// Every link with its addresses.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// The addresses, in the order listed.
    pub all: Vec<Address>,
}

/// One address of a link.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Address {
    /// The link's name.
    pub link: String,
    /// The address with its prefix length, host bits kept.
    pub addr: Cidr,
    /// `global`, `link`, `host`, …
    pub scope: String,
    /// Whether it is a secondary address, deprecated, tentative: flags as `ip` names them.
    pub flags: Vec<String>,
    /// The broadcast address.
    pub broadcast: Option<IpAddr>,
}

/// Every link.
#[derive(Clone, Debug, Default)]
pub struct Links {
    /// The links, in the order listed.
    pub all: Vec<Link>,
}

/// One link.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Link {
    /// The kernel's number for it.
    pub index: u32,
    /// The name.
    pub name: String,
    /// `dummy`, `veth`, `bridge`, …; empty for a physical device.
    pub kind: String,
    /// `UP`, `NOARP`, `LOOPBACK`, …
    pub flags: Vec<String>,
    /// `UP`, `DOWN` or `UNKNOWN`.
    pub state: String,
    /// The bridge or bond it belongs to.
    pub master: Option<String>,
    /// Bytes.
    pub mtu: u32,
    /// Whether a bridge port sends frames back out of the port they came from.
    pub hairpin: Option<bool>,
}

/// Reads `ip -j addr`.
pub fn addresses(_text: &str) -> Result<Addresses, Gap> {
    Err(Gap::Failed(Item::Addresses, "not parsed yet".to_owned()))
}

/// Reads `ip -j -d link`.
pub fn links(_text: &str) -> Result<Links, Gap> {
    Err(Gap::Failed(Item::Links, "not parsed yet".to_owned()))
}
