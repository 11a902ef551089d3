//! What the maps of a service proxy of eBPF have for the addresses and NodePorts of Services.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::programmed::Dest;
use super::{Gaps, Joined};
use kpx_node::evidence::Gap;
use kpx_node::net::Family;
use kpx_node::node::bpf::{Place, Proxy, Table};

/// What the map of a proxy has for one address or NodePort.
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
}

/// Returns the tables of all proxies; a proxy that only its links show is a gap.
pub(super) fn tables<'e>(joined: Joined<'_, 'e>, gaps: &mut Gaps) -> &'e [Table] {
    let read = joined.node.bpf().and_then(|bpf| bpf.tables());
    read.unwrap_or_else(|gap| {
        let is_old = gap.is_absence() || matches!(gap, Gap::NotCollected(_));
        let links = joined
            .node
            .links()
            .map_or(&[][..], |all| all.all.as_slice());
        let mut names = links.iter().map(|of| of.name.as_str());
        if !is_old && names.any(|name| matches!(name, "cilium_host" | "bpfin.cali")) {
            gaps.add(gap);
        }
        &[]
    })
}

/// Returns what `tables` have for `dests`.
pub(super) fn rows(tables: &[Table], dests: &[Dest]) -> Vec<InMap> {
    let mut rows = Vec::new();
    for dest in dests {
        for table in tables.iter().filter(|of| of.family == dest.family) {
            let front = match dest.addr {
                Some(addr) => table.lookup(addr, dest.port, dest.proto, false),
                None => table.frontends.iter().find(|of| {
                    (of.at, of.port, of.proto) == (Place::AnyNode, dest.port, dest.proto)
                }),
            };
            rows.push(InMap {
                proxy: table.proxy,
                family: dest.family,
                address: dest.addr,
                port: dest.port,
                backends: front.map(|of| of.active().map(|one| one.addr).collect()),
            });
        }
    }
    rows
}
