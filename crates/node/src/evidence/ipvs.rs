//! The IPVS table in `node/ipvs.json`, recorded as JSON because netlink messages are not readable.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::net::{Family, Proto};

/// The link that holds the Service addresses in ipvs mode.
pub const DUMMY: &str = "kube-ipvs0";

/// Content of `node/ipvs.json`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Dump {
    /// Whether the table comes from an unprivileged source, without timeouts, counters, limits (`upper`, `lower`),
    /// templates (`persistent`) and scheduler flags.
    #[serde(skip_serializing_if = "is_false")]
    pub partial: bool,
    /// IPVS version and connection hash size of the kernel, if known.
    pub info: Option<Info>,
    /// IPVS timeouts, if known.
    pub timeouts: Option<Timeouts>,
    /// Virtual servers.
    pub services: Vec<Service>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Dump {
    /// Sorts services and destinations, so that two dumps of the same state are equal.
    pub fn sort(&mut self) {
        self.services.sort_by_key(|s| {
            let proto = s.protocol.map(Proto::number);
            (s.family, proto, s.address, s.port, s.fwmark)
        });
        for service in &mut self.services {
            service.sort();
        }
    }
}

/// IPVS version and connection hash size of the kernel.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Info {
    /// `major << 16 | minor << 8 | patch`.
    pub version: u32,
    /// Number of buckets of the connection table.
    pub conn_tab_size: u32,
}

/// IPVS timeouts, in seconds.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    /// Timeout of established TCP connections.
    pub tcp: u32,
    /// Timeout of TCP connections after a FIN.
    pub tcp_fin: u32,
    /// Timeout of UDP flows.
    pub udp: u32,
}

/// A virtual server: protocol, address and port, or a firewall mark.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Address family.
    pub family: Family,
    /// TCP, UDP or SCTP; unset for a firewall mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Proto>,
    /// IP address; unset for a firewall mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Port; unset for a firewall mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Firewall mark; unset for an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fwmark: Option<u32>,
    /// Scheduler: `rr`, `lc`, …
    pub scheduler: String,
    /// Kernel flags (`IP_VS_SVC_F_*`), including the kernel's internal `HASHED` bit.
    #[serde(default)]
    pub flags: u32,
    /// Persistence timeout in seconds; the kernel reports it even if the flags do not enable persistence.
    #[serde(default)]
    pub timeout: u32,
    /// Granularity of persistence, as a prefix length.
    pub prefix: u8,
    /// Persistence engine, such as `sip`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// Counters, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<Stats>,
    /// Real servers.
    #[serde(default)]
    pub destinations: Vec<Destination>,
    /// Indexes of the real servers in the kernel's order, if the scheduler uses it; empty if unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub order: Vec<usize>,
}

impl Service {
    /// Sorts the destinations, and keeps the kernel's order for schedulers that use it.
    fn sort(&mut self) {
        let mut all: Vec<_> = self.destinations.drain(..).enumerate().collect();
        all.sort_by_key(|(_, d)| (d.address, d.port));
        if matches!(self.scheduler.as_str(), "sh" | "dh" | "mh") {
            let mut order: Vec<_> = all.iter().map(|(was, _)| *was).enumerate().collect();
            order.sort_by_key(|(_, was)| *was);
            self.order = order.into_iter().map(|(now, _)| now).collect();
        }
        self.destinations = all.into_iter().map(|(_, d)| d).collect();
    }
}

/// A real server.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Destination {
    /// IP address; with tunnelling, its family may differ from the virtual server's.
    pub address: IpAddr,
    /// Port number.
    pub port: u16,
    /// Weight; a server with weight 0 gets no new connections.
    pub weight: u32,
    /// Forwarding method.
    pub forwarding: Forwarding,
    /// Connection limit above which the server gets no new connections; 0 means no limit.
    #[serde(default)]
    pub upper: u32,
    /// Connection count below which the server gets new connections again.
    #[serde(default)]
    pub lower: u32,
    /// Number of established connections.
    #[serde(default)]
    pub active: u32,
    /// Number of closing or stateless connections.
    #[serde(default)]
    pub inactive: u32,
    /// Number of persistence templates.
    #[serde(default)]
    pub persistent: u32,
    /// Counters, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<Stats>,
}

/// Forwarding method of a real server (`IP_VS_CONN_F_FWD_MASK`, in the order of its values).
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Forwarding {
    /// `-m`: network address translation, the only method that kube-proxy uses.
    Masq,
    /// The real server runs on this host.
    Local,
    /// `-i`: IP-in-IP tunnelling.
    Tunnel,
    /// `-g`: direct routing.
    Route,
    /// Directly to the destination.
    Bypass,
}

/// 64-bit traffic counters.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stats {
    /// Number of scheduled connections.
    pub conns: u64,
    /// Number of received packets.
    pub packets_in: u64,
    /// Number of sent packets.
    pub packets_out: u64,
    /// Number of received bytes.
    pub bytes_in: u64,
    /// Number of sent bytes.
    pub bytes_out: u64,
}
