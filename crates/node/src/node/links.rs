//! Links and their addresses.

use std::net::IpAddr;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::evidence::{Gap, Item};
use crate::net::{Cidr, Family};

/// Addresses of every link.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// Addresses, in the order of the list.
    pub all: Vec<Address>,
}

/// An address of a link.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Address {
    /// Name of the link.
    pub link: String,
    /// IP address with its prefix length, host bits kept.
    pub addr: Cidr,
    /// `global`, `link`, `host`, …
    pub scope: String,
    /// Flags in `ip`'s spelling: secondary, deprecated, tentative, ….
    pub flags: Vec<String>,
    /// Broadcast address.
    pub broadcast: Option<IpAddr>,
}

impl Address {
    /// Returns whether IPv6 found another machine with it: the kernel keeps it on the link, and does not use it.
    pub fn is_duplicate(&self) -> bool {
        self.flags.iter().any(|flag| flag == "dadfailed")
    }
}

/// Links of the node.
#[derive(Clone, Debug, Default)]
pub struct Links {
    /// Links, in the order of the list.
    pub all: Vec<Link>,
}

impl Links {
    /// Returns the VRF that the link called `name` is in.
    pub fn vrf_of(&self, name: &str) -> Option<&Link> {
        let named = |name: &str| self.all.iter().find(|link| link.name == name);
        let masters = std::iter::successors(named(name), |link| named(link.master.as_deref()?));
        // A link is in few others: a port of a bridge, in a bond, in a VRF.
        masters.take(4).find(|link| link.kind == "vrf")
    }
}

/// A program of eBPF.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Program {
    /// Its number.
    pub id: u64,
    /// Its name, if known.
    pub name: Option<String>,
}

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} (id {})", self.id),
            None => write!(f, "{}", self.id),
        }
    }
}

/// A network link.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    /// Index of the link that it is a pair with, in the other network namespace, or that it is on.
    pub peer: Option<u32>,
    /// Name of the link.
    pub name: String,
    /// `dummy`, `veth`, `bridge`, …; empty for a physical device.
    pub kind: String,
    /// `UP`, `NOARP`, `LOOPBACK`, …
    pub flags: Vec<String>,
    /// `UP`, `DOWN` or `UNKNOWN`.
    pub state: String,
    /// `ether`, `loopback`, …; `None` if not listed.
    pub link_type: Option<String>,
    /// Its group, by name or number; `None` if not listed.
    pub group: Option<String>,
    /// Bridge or bond that it belongs to.
    pub master: Option<String>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Its MAC address; `None` if not listed.
    pub mac: Option<String>,
    /// The number of the network that a VXLAN link carries; `None` if it is not listed.
    pub vni: Option<u64>,
    /// Of a bridge that filters VLANs: the VLAN of ports that are in none, 0 for none; `None` of other links, or if it is not listed.
    pub default_vlan: Option<u64>,
    /// The address from which a tunnel sends; `None` if it takes any.
    pub local: Option<IpAddr>,
    /// The fixed other end of an IP tunnel.
    pub remote: Option<IpAddr>,
    /// Whether the bridge hands its packets of IPv4 and of IPv6 to iptables, whatever the node's sysctls say (`nf_call_iptables`,
    /// `nf_call_ip6tables`).
    pub calls: [bool; 2],
    /// Whether hairpin mode is on; `None` if the link is not a bridge port.
    pub hairpin: Option<bool>,
    /// Of a bridge port: whether the bridge learns addresses from it; `None` if that is not known.
    pub learning: Option<bool>,
    /// Of a bridge port: whether it gets packets to addresses that the bridge does not know; `None` if that is not known.
    pub flood: Option<bool>,
    /// Of a bridge port: whether it gets the broadcasts and the multicasts of other ports, by which neighbours ask for each other in IPv4
    /// and in IPv6; `None` if that is not known.
    pub questions: [Option<bool>; 2],
    /// Whether it is an isolated port of a bridge; `None` if that is not known.
    pub isolated: Option<bool>,
    /// Of a bridge port: whether it takes only packets from MAC addresses that an entry has for it; `None` if unknown.
    pub locked: Option<bool>,
    /// Of a bridge port: `forwarding`, `disabled`, `blocking`, …; `None` if that is not known.
    pub port_state: Option<String>,
    /// The port to which a tunnel sends its packets over UDP; `None` if it is not listed.
    pub tunnel_port: Option<u16>,
    /// Whether a program, and not the link, says where each packet of a tunnel goes (Cilium, Open vSwitch).
    pub external: bool,
    /// The XDP programs that its packets pass.
    pub xdp: Vec<Program>,
}

/// Kinds of links that carry packets to other nodes, whatever the route's gateway is.
const TUNNELS: &[&str] = &[
    "vxlan",
    "geneve",
    "ipip",
    "sit",
    "ip6tnl",
    "gre",
    "ip6gre",
    "wireguard",
    "tun",
    "xfrm",
];

impl Link {
    /// Returns whether it has `flag`; `None` if its flags are not listed.
    pub fn flag(&self, flag: &str) -> Option<bool> {
        (!self.flags.is_empty()).then(|| self.flags.iter().any(|own_flag| own_flag == flag))
    }

    /// Returns whether the bridge hands its packets of `family` to iptables, whatever the node's sysctls say.
    pub fn calls_iptables(&self, family: Family) -> bool {
        self.calls[usize::from(family == Family::V6)]
    }

    /// Returns whether it is of a kind that carries packets to other nodes.
    pub fn is_tunnel(&self) -> bool {
        TUNNELS.contains(&self.kind.as_str())
    }
}

#[derive(Deserialize)]
#[serde(default)]
struct RawLink {
    ifindex: u32,
    link_index: Option<u32>,
    ifname: String,
    link_type: Option<String>,
    group: Option<String>,
    flags: Vec<String>,
    mtu: u32,
    address: Option<String>,
    operstate: String,
    master: Option<String>,
    linkinfo: RawInfo,
    xdp: RawXdp,
    addr_info: Vec<Map<String, Value>>,
}

impl Default for RawLink {
    fn default() -> Self {
        Self {
            ifindex: 0,
            link_index: None,
            ifname: String::new(),
            link_type: None,
            group: None,
            flags: Vec::new(),
            mtu: 0,
            address: None,
            // `ip` prints this if the kernel does not report a state.
            operstate: "UNKNOWN".to_owned(),
            master: None,
            linkinfo: RawInfo::default(),
            xdp: RawXdp::default(),
            addr_info: Vec::new(),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawInfo {
    #[serde(rename = "info_kind")]
    kind: Option<String>,
    #[serde(rename = "info_data")]
    data: Map<String, Value>,
    #[serde(rename = "info_slave_data")]
    slave_data: Map<String, Value>,
}

/// XDP of a link: one program, or several in different modes.
#[derive(Default, Deserialize)]
#[serde(default)]
struct RawXdp {
    prog: Option<RawProgram>,
    attached: Vec<RawAttached>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawAttached {
    prog: Option<RawProgram>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawProgram {
    id: u64,
    name: Option<String>,
}

/// Parses the list; iproute2 5.x leaves empty objects in place of filtered entries.
fn raw(item: Item, text: &str) -> Result<Vec<RawLink>, Gap> {
    let documents = serde_json::Deserializer::from_str(text).into_iter::<Vec<RawLink>>();
    let mut all = Vec::new();
    for document in documents {
        all.extend(document.map_err(|e| Gap::of_json(item, text, &e))?);
    }
    all.retain(|link| !link.ifname.is_empty());
    if all.is_empty() {
        // Every network namespace has lo.
        return Err(Gap::Failed(item, "it lists no link".to_owned()));
    }
    Ok(all)
}

/// Parses `ip -j addr`.
pub fn addresses(text: &str) -> Result<Addresses, Gap> {
    let mut all = Vec::new();
    for link in raw(Item::Addresses, text)? {
        for info in link.addr_info.iter().filter(|info| !info.is_empty()) {
            let address = address(&link.ifname, info).map_err(|why| {
                Gap::Failed(Item::Addresses, format!("link {}: {why}", link.ifname))
            })?;
            all.push(address);
        }
    }
    Ok(Addresses { all })
}

fn address(link: &str, info: &Map<String, Value>) -> Result<Address, String> {
    let text = |key: &str| info.get(key).and_then(Value::as_str);
    let ip = |key: &str| match text(key) {
        Some(text) => match text.parse::<IpAddr>() {
            Ok(addr) => Ok(Some(addr)),
            Err(_) => Err(format!("{key} {text:?} is not an address")),
        },
        None => Ok(None),
    };
    let addr = ip("local")?.ok_or("an address without \"local\"")?;
    let prefix = info.get("prefixlen").and_then(Value::as_u64);
    let prefix = prefix
        .and_then(|p| u8::try_from(p).ok())
        .filter(|p| *p <= Family::of(addr).bits())
        .ok_or_else(|| format!("{addr} has no usable \"prefixlen\""))?;
    let flags = info
        .iter()
        .filter(|(_, value)| **value == Value::Bool(true));
    Ok(Address {
        link: link.to_owned(),
        addr: Cidr { addr, prefix },
        scope: text("scope").unwrap_or("global").to_owned(),
        flags: flags.map(|(key, _)| key.clone()).collect(),
        broadcast: ip("broadcast")?,
    })
}

/// Parses `ip -j -d link`.
pub fn links(text: &str) -> Result<Links, Gap> {
    let all = raw(Item::Links, text)?.into_iter().map(|link| {
        let port = |key: &str| {
            let value = link.linkinfo.slave_data.get(key);
            value.and_then(Value::as_bool)
        };
        let (hairpin, isolated) = (port("hairpin"), port("isolated"));
        let (learning, flood) = (port("learning"), port("flood"));
        let questions = ["bcast_flood", "mcast_flood"].map(port);
        let locked = port("locked");
        let data = |key: &str| link.linkinfo.data.get(key).and_then(Value::as_u64);
        let filters = data("vlan_filtering") == Some(1);
        let (tunnel_port, vni) = (data("port"), data("id"));
        let default_vlan = data("vlan_default_pvid").filter(|_| filters);
        let end = |key: &str| {
            let text = link.linkinfo.data.get(key).and_then(Value::as_str);
            let addr = text.and_then(|text| text.parse::<IpAddr>().ok());
            addr.filter(|addr| !addr.is_unspecified())
        };
        let (local, remote) = (end("local").or_else(|| end("local6")), end("remote"));
        let calls = ["nf_call_iptables", "nf_call_ip6tables"].map(|key| data(key) == Some(1));
        let port_state = link.linkinfo.slave_data.get("state");
        let port_state = port_state.and_then(Value::as_str).map(str::to_owned);
        let several = link
            .xdp
            .attached
            .into_iter()
            .filter_map(|attached| attached.prog);
        let programs = link.xdp.prog.into_iter().chain(several);
        let xdp = programs.map(|program| Program {
            id: program.id,
            name: program.name.filter(|name| !name.is_empty()),
        });
        Link {
            index: link.ifindex,
            peer: link.link_index,
            name: link.ifname,
            kind: link.linkinfo.kind.unwrap_or_default(),
            flags: link.flags,
            state: link.operstate,
            link_type: link.link_type,
            group: link.group,
            master: link.master,
            mtu: link.mtu,
            mac: link.address,
            vni,
            default_vlan,
            local,
            remote,
            calls,
            hairpin,
            learning,
            flood,
            questions,
            isolated,
            locked,
            port_state,
            tunnel_port: tunnel_port.and_then(|port| u16::try_from(port).ok()),
            external: link
                .linkinfo
                .data
                .get("external")
                .is_some_and(|data| *data != json!(false)),
            xdp: xdp.collect(),
        }
    });
    Ok(Links { all: all.collect() })
}
