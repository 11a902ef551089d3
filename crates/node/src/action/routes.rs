//! Changes to routes of this node's own addresses, as data.

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::net::Family;

/// The protocol of kpx's routes (`rtm_protocol`).
///
/// The kernel gives numbers above `RTPROT_STATIC` no meaning. This one is not known to be in use: it is the letter k, in
/// none of iproute2's `rt_protos`, and apart from the numbers of FRR (186 to 198) and Calico (80). It must not be
/// `kernel`: kube-proxy before 1.27 takes local routes of that protocol for addresses of the node.
pub const ROUTE_PROTOCOL: u8 = 107;

/// One command about a route of the table local.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteCommand {
    /// Adds a route of kpx's own; in IPv4, in front of the existing ones.
    Add(LocalRoute),
    /// Deletes a route of kpx's own.
    Delete(LocalRoute),
    /// Deletes the kernel's route to an address of a link.
    Hide(Bound),
    /// Restores the kernel's route to an address of a link: removes the address and adds it again, at once.
    Renew(Bound),
}

/// A local route: makes an address one of this node, and sets the source address of processes that connect to it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct LocalRoute {
    /// The address.
    pub addr: IpAddr,
    /// The link that holds `source`.
    pub device: String,
    /// The source; of the same family.
    pub source: IpAddr,
}

/// An address of a link.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Bound {
    /// The address.
    pub addr: IpAddr,
    /// The link.
    pub link: String,
}

impl RouteCommand {
    /// Returns its undo.
    #[must_use]
    pub fn back(&self) -> Self {
        match self.clone() {
            Self::Add(route) => Self::Delete(route),
            Self::Delete(route) => Self::Add(route),
            Self::Hide(bound) => Self::Renew(bound),
            Self::Renew(bound) => Self::Hide(bound),
        }
    }

    /// Returns its address.
    pub const fn addr(&self) -> IpAddr {
        match self {
            Self::Add(route) | Self::Delete(route) => route.addr,
            Self::Hide(bound) | Self::Renew(bound) => bound.addr,
        }
    }
}

/// Returns `ip` for `addr`, and `addr` with the length of its prefix.
fn words(addr: IpAddr) -> (&'static str, String) {
    let family = Family::of(addr);
    let ip = match family {
        Family::V4 => "ip",
        Family::V6 => "ip -6",
    };
    (ip, format!("{addr}/{}", family.bits()))
}

impl Display for RouteCommand {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (ip, addr) = words(self.addr());
        match self {
            Self::Add(LocalRoute { device, source, .. }) => {
                let (verb, scope) = match source {
                    IpAddr::V4(_) => ("prepend", " scope host"),
                    IpAddr::V6(_) => ("add", ""),
                };
                write!(
                    f,
                    "{ip} route {verb} local {addr} dev {device} table local proto {ROUTE_PROTOCOL}{scope} src {source}"
                )
            }
            Self::Delete(LocalRoute { device, .. }) => write!(
                f,
                "{ip} route delete local {addr} dev {device} table local proto {ROUTE_PROTOCOL}"
            ),
            Self::Hide(Bound { link, .. }) => write!(
                f,
                "{ip} route delete local {addr} dev {link} table local proto kernel"
            ),
            Self::Renew(Bound { link, .. }) => write!(
                f,
                "{ip} addr delete {addr} dev {link}\n{ip} addr add {addr} dev {link}"
            ),
        }
    }
}
