//! The IPVS table as kpx records it, because netlink's own bytes are not readable: `node/ipvs.json`.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::net::{Family, Proto};

/// The link that carries service addresses in ipvs mode.
pub const DUMMY: &str = "kube-ipvs0";

/// The whole of `node/ipvs.json`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Dump {
    /// Whether it is what everybody may read: no timeouts, counters, limits (`upper`, `lower`), templates (`persistent`)
    /// and scheduler flags.
    #[serde(skip_serializing_if = "is_false")]
    pub partial: bool,
    /// The kernel's IPVS version and connection hash size, where they were read.
    pub info: Option<Info>,
    /// Timeouts, where they were read.
    pub timeouts: Option<Timeouts>,
    /// Virtual servers.
    pub services: Vec<Service>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Dump {
    /// Sorts services and destinations, so that two dumps of one state are equal.
    pub fn sort(&mut self) {
        self.services.sort_by_key(|s| {
            let proto = s.protocol.map(Proto::number);
            (s.family, proto, s.address, s.port, s.fwmark)
        });
        for service in &mut self.services {
            service.destinations.sort_by_key(|d| (d.address, d.port));
        }
    }
}

/// The kernel's IPVS version and hash size.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Info {
    /// `major << 16 | minor << 8 | patch`.
    pub version: u32,
    /// Buckets of the connection table.
    pub conn_tab_size: u32,
}

/// IPVS timeouts, in seconds.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    /// Established TCP.
    pub tcp: u32,
    /// TCP after a FIN.
    pub tcp_fin: u32,
    /// UDP.
    pub udp: u32,
}

/// A virtual server: protocol, address and port, or a firewall mark.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// The family it balances.
    pub family: Family,
    /// TCP, UDP or SCTP; unset with a firewall mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Proto>,
    /// The address; unset with a firewall mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The port; unset with a firewall mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The firewall mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fwmark: Option<u32>,
    /// The scheduler: `rr`, `lc`, …
    pub scheduler: String,
    /// Flags as the kernel gives them (`IP_VS_SVC_F_*`), its own `HASHED` bit included.
    #[serde(default)]
    pub flags: u32,
    /// Persistence in seconds, as the kernel gives it: also where the flags do not ask for it.
    #[serde(default)]
    pub timeout: u32,
    /// The granularity of persistence, as a prefix length.
    pub prefix: u8,
    /// The persistence engine, such as `sip`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// Counters, where they were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<Stats>,
    /// Real servers.
    #[serde(default)]
    pub destinations: Vec<Destination>,
}

/// A real server.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Destination {
    /// The address; its family may differ from the service's with tunnelling.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// The weight; 0 takes no new connections.
    pub weight: u32,
    /// How packets reach it.
    pub forwarding: Forwarding,
    /// No new connections above this many; 0 for no limit.
    #[serde(default)]
    pub upper: u32,
    /// New connections again below this many.
    #[serde(default)]
    pub lower: u32,
    /// Established connections.
    #[serde(default)]
    pub active: u32,
    /// Closing connections, or such without a state.
    #[serde(default)]
    pub inactive: u32,
    /// Persistence templates.
    #[serde(default)]
    pub persistent: u32,
    /// Counters, where they were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<Stats>,
}

/// How packets reach a real server (`IP_VS_CONN_F_FWD_MASK`, in the order of its values).
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forwarding {
    /// `-m`: network address translation; the only one kube-proxy uses.
    Masq,
    /// A real server on this host.
    Local,
    /// `-i`: IP-in-IP.
    Tunnel,
    /// `-g`: direct routing.
    Route,
    /// Straight to the destination.
    Bypass,
}

/// 64-bit counters.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stats {
    /// Connections scheduled.
    pub conns: u64,
    /// Packets in.
    pub packets_in: u64,
    /// Packets out.
    pub packets_out: u64,
    /// Bytes in.
    pub bytes_in: u64,
    /// Bytes out.
    pub bytes_out: u64,
}
