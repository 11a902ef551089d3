//! The rules of one Service or chain as a tree, with probabilities, endpoints and pods.

mod iptables;
mod nftables;

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::{Gaps, Joined};
use kpx_node::net::{Family, Proto};
use kpx_node::owner::{Endpoint, EndpointState};

/// A rule or map element, and the rules of the chain that it leads to.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Node {
    pub(crate) family: Family,
    /// `TABLE CHAIN` of the rule, or `nft kube-proxy map NAME`.
    pub(crate) at: String,
    pub(crate) rule: String,
    /// The destination that a rule or element of a Service matches: `ADDRESS:PORT/PROTOCOL` or `PORT/PROTOCOL`.
    #[serde(skip)]
    pub(crate) destination: Option<String>,
    /// Packets counted; `null` without a counter.
    pub(crate) packets: Option<u64>,
    /// The share of the chain's packets that this rule takes at random, from 0 to 1.
    pub(crate) probability: Option<f64>,
    pub(crate) leads_to: Option<String>,
    /// The endpoint that the rule or its chain translates to.
    pub(crate) backend: Option<SocketAddr>,
    /// The pod, with its state unless ready.
    pub(crate) pod: Option<String>,
    pub(crate) children: Vec<Node>,
}

/// Chains are four deep; the kernel itself refuses loops.
const DEEPEST: usize = 16;

/// Returns the rules of the Service or chain in the query; `None` if the query names neither.
pub(crate) fn tree(joined: Joined<'_, '_>, gaps: &mut Gaps) -> Option<Vec<Node>> {
    let name = joined.query.name?;
    let mut roots = Vec::new();
    for family in joined.query.families() {
        if let Some(rules) = joined.relevant.iptables(joined.node, family, gaps) {
            for table in &rules.tables {
                roots.extend(iptables::roots(family, rules, table, joined.owners, name));
            }
        }
        if let Some(nft) = joined.relevant.nft(joined.node, gaps) {
            let of = family.nft_name();
            if let Some(table) = nft.table(of, "kube-proxy") {
                roots.extend(nftables::roots(family, table, joined.owners, name));
            }
        }
    }
    (!roots.is_empty()).then_some(roots)
}

/// Returns the pod of an endpoint, with its state unless ready.
fn pod(endpoint: &Endpoint) -> Option<String> {
    let pod = endpoint.pod.as_deref().unwrap_or_default();
    let text = match endpoint.state {
        None | Some(EndpointState::Ready) => pod.to_owned(),
        Some(state) => format!("{pod} ({state})").trim_start().to_owned(),
    };
    (!text.is_empty()).then_some(text)
}

/// Returns a destination as text; without an address, it is a NodePort.
fn destination(addr: Option<IpAddr>, port: u16, proto: Proto) -> String {
    match addr {
        Some(addr) => format!("{}/{proto}", SocketAddr::new(addr, port)),
        None => format!("{port}/{proto}"),
    }
}

/// Returns `share` with the digits that the kernel's 31 bits can hold.
fn rounded(share: f64) -> f64 {
    (share * 1e6).round() / 1e6
}
