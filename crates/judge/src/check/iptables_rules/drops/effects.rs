//! What a rule of others does to packets of Services.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::check::ServiceRef;
use crate::verdict::Limit;
use kpx_node::net::Family;
use kpx_node::owner::chain_owner::Maker;

/// The effect of a rule on a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Act {
    Drop,
    Reject,
    /// It makes the packet bypass kube-proxy's rules; whether the packet then ends at the node itself.
    Divert {
        to_host: bool,
    },
}

/// The effects of a rule on traced packets.
#[derive(Debug)]
pub(super) struct Effects {
    pub(super) act: Act,
    pub(super) maker: Maker,
    pub(super) services: BTreeSet<ServiceRef>,
    /// The families of the packets.
    pub(super) families: BTreeSet<Family>,
    /// Packets that are certainly lost: by kind of source, the first source and its destination.
    pub(super) certain: BTreeMap<&'static str, (String, SocketAddr)>,
    /// Unknown conditions that a drop depends on.
    pub(super) open: BTreeSet<String>,
    /// The limit beyond which packets are dropped, if usual traffic exceeds it.
    pub(super) limit: Option<Limit>,
}
