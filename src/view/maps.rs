//! The entries of a service proxy of eBPF for the addresses and NodePorts of Services.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::programmed::Dest;
use super::{Gaps, Joined};
use kpx_node::evidence::Gap;
use kpx_node::net::Family;
use kpx_node::node::bpf::{Place, Proxy, Sought, Table};

/// The entry in the map of a proxy for one address or NodePort.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct InMap {
    pub(crate) proxy: Proxy,
    pub(crate) family: Family,
    /// `null` for a NodePort.
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: u16,
    /// Backends that get new connections; `null` if the map has no front end for it.
    pub(crate) backends: Option<Vec<SocketAddr>>,
    /// Whether an L7 proxy on the node gets its packets instead of the backends.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) l7_proxy: bool,
    /// Whether the map drops its packets.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) drops: bool,
}

/// Returns the tables of all proxies. Those that were not read are gaps, if anything hints at the proxy.
pub(super) fn tables<'e>(joined: Joined<'_, 'e>, gaps: &mut Gaps) -> Vec<&'e Table> {
    let node = joined.node;
    let mut found = Vec::new();
    let Ok(bpf) = node.bpf() else {
        if let Some(gap) = node
            .unread_ebpf()
            .filter(|gap| !matches!(gap, Gap::NotCollected(_)))
        {
            gaps.add(gap);
        }
        return found;
    };
    for proxy in Proxy::ALL {
        for family in Family::BOTH {
            match bpf.table(proxy, family) {
                Ok(table) => found.extend(table),
                Err(gap)
                    if node
                        .ebpf()
                        .iter()
                        .any(|ebpf| ebpf.proxy == proxy && ebpf.serves != Ok(false)) =>
                {
                    gaps.add(gap);
                }
                Err(_) => {}
            }
        }
    }
    found
}

/// Returns what `tables` have for `dests`.
pub(super) fn rows(tables: &[&Table], dests: &[Dest]) -> Vec<InMap> {
    let mut rows = Vec::new();
    for dest in dests {
        for table in tables.iter().filter(|table| table.family == dest.family) {
            let front = match dest.addr {
                Some(address) => table.lookup(&Sought {
                    address,
                    port: dest.port,
                    proto: dest.proto,
                    own: false,
                    outside: false,
                    client: None,
                }),
                None => table.frontends.iter().find(|frontend| {
                    (frontend.at, frontend.port) == (Place::AnyNode, dest.port)
                        && frontend.is_for(dest.proto)
                }),
            };
            rows.push(InMap {
                proxy: table.proxy,
                family: dest.family,
                address: dest.addr,
                port: dest.port,
                backends: front.map(|frontend| frontend.active().map(|one| one.addr).collect()),
                l7_proxy: front.is_some_and(|frontend| frontend.l7_proxy),
                drops: front.is_some_and(|frontend| frontend.drops),
            });
        }
    }
    rows
}
