//! Portals of the userspace mode: the addresses of Services, and the ports of kube-proxy's process behind them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Serialize;

use super::nodeports::{Listener, Listening, Look};
use super::{Gaps, Joined};
use kpx_node::backend::iptables::portals::portals;
use kpx_node::net::{Family, Proto};
use kpx_node::owner::PortName;

/// The portals of one address and port that lead to one port of the process.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// `null` if the rules do not name it.
    pub(crate) service: Option<PortName>,
    pub(crate) protocol: Proto,
    pub(crate) family: Family,
    /// `null` for a NodePort.
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: u16,
    /// Chains of table nat, in the order of the packets that come in and of those that the node sends.
    pub(crate) chains: Vec<String>,
    /// Port of kube-proxy's process.
    pub(crate) proxy_port: u16,
    /// Listening sockets at that port; `null` if unknown.
    pub(crate) listeners: Option<Vec<Listener>>,
    /// `null` if unknown.
    pub(crate) listening: Option<Listening>,
}

pub(crate) fn rows(joined: Joined<'_, '_>, gaps: &mut Gaps) -> Vec<Row> {
    let look = Look::new(joined, gaps);
    let mut rows = Vec::new();
    for family in joined.query.families() {
        let Some(rules) = joined.relevant.iptables(joined.node, family, gaps) else {
            continue;
        };
        let mut by: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for portal in portals(rules) {
            let key = (
                portal.service,
                portal.proto,
                portal.addr,
                portal.port,
                portal.proxy_port,
            );
            let chains = by.entry(key).or_default();
            if !chains.iter().any(|name| name == portal.chain) {
                chains.push(portal.chain.to_owned());
            }
        }
        for ((service, protocol, address, port, proxy_port), chains) in by {
            let service = PortName::parse(service);
            let text = address.map(|addr| addr.to_string());
            let names = [text.as_deref().unwrap_or_default(), &proxy_port.to_string()];
            let is_asked = service
                .as_ref()
                .is_some_and(|service| joined.query.is_of(service))
                || joined.query.wants(None, &names);
            if !is_asked {
                continue;
            }
            let listeners = look.listeners(proxy_port, protocol);
            rows.push(Row {
                listening: look.listening(listeners.as_deref(), true, false),
                listeners: listeners.map(|all| all.into_iter().map(Listener::of).collect()),
                service,
                protocol,
                family,
                address,
                port,
                chains,
                proxy_port,
            });
        }
    }
    rows
}
