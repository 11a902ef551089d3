//! A tunnel that carries no packets of pods, in words.

use std::net::IpAddr;

use super::TunnelState;

/// Returns what is wrong with the tunnel `link` to `node`, which has the pod with `to`; packets leave by `way` instead. `error` is with what
/// the network plugin's pod ends.
pub(super) fn off_tunnel(
    link: &str,
    state: &TunnelState,
    (node, to): (&str, IpAddr),
    way: &str,
    error: Option<&str>,
) -> String {
    let what = match state {
        TunnelState::OtherNetwork { own, announced, .. } => {
            return format!(
                "{link} has VNI {own}, but node {node} has VNI {announced}: each discards what the other sends through the tunnel"
            );
        }
        TunnelState::OtherPort { own, other } => {
            return format!(
                "{link} receives at UDP port {own}, but node {node} sends to port {other}: each drops what the other sends through the \
                 tunnel"
            );
        }
        TunnelState::Missing => format!("the tunnel's link {link} does not exist"),
        TunnelState::Down { held_by: None } => format!("the tunnel's link {link} is down"),
        TunnelState::Down {
            held_by: Some(other),
        } => format!("the tunnel's link {link} is down, as {other} has its UDP port"),
        TunnelState::OtherBackend { own, other } => {
            format!("flannel has backend {own} on this node, but {other} on node {node}")
        }
        TunnelState::NoRoute => format!("no route leads to {to} by tunnel {link}"),
        TunnelState::NoRouteOfVpn => format!(
            "no route leads to {to} by {link}, the VPN to which flannel leaves such packets (backend extension)"
        ),
        TunnelState::NoGateway(by) => format!(
            "no route leads to {to} by {by}, the address of its node, as flannel sets it (host-gw)"
        ),
    };
    let end = error.map_or_else(String::new, |error| {
        format!("; the network plugin's pod ends with: {error}")
    });
    format!(
        "{what}, so packets to pods of node {node} leave by {way}, where nothing knows them{end}"
    )
}
