//! Reads links and addresses, in the format of `ip -j -d link` and `ip -j addr`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{
    InfoBridge, InfoBridgePort, InfoData, InfoIpTunnel, InfoPortData, InfoVxlan, LinkAttribute,
    LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use serde_json::{Map, Value, json};

use super::context::Context;
use super::netlink::dump;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;

/// Link flags with `ip`'s names, in its order.
const LINK_FLAGS: &[(LinkFlags, &str)] = &[
    (LinkFlags::Loopback, "LOOPBACK"),
    (LinkFlags::Broadcast, "BROADCAST"),
    (LinkFlags::Pointopoint, "POINTOPOINT"),
    (LinkFlags::Multicast, "MULTICAST"),
    (LinkFlags::Noarp, "NOARP"),
    (LinkFlags::Allmulti, "ALLMULTI"),
    (LinkFlags::Promisc, "PROMISC"),
    (LinkFlags::Controller, "MASTER"),
    (LinkFlags::Port, "SLAVE"),
    (LinkFlags::Debug, "DEBUG"),
    (LinkFlags::Dynamic, "DYNAMIC"),
    (LinkFlags::Automedia, "AUTOMEDIA"),
    (LinkFlags::Portsel, "PORTSEL"),
    (LinkFlags::Notrailers, "NOTRAILERS"),
    (LinkFlags::Up, "UP"),
    (LinkFlags::LowerUp, "LOWER_UP"),
    (LinkFlags::Dormant, "DORMANT"),
    (LinkFlags::Echo, "ECHO"),
];

/// Address flags with `ip`'s names; an address that is not permanent is `dynamic`.
const ADDRESS_FLAGS: &[(AddressFlags, &str)] = &[
    (AddressFlags::Secondary, "secondary"),
    (AddressFlags::Tentative, "tentative"),
    (AddressFlags::Deprecated, "deprecated"),
    (AddressFlags::Homeaddress, "home"),
    (AddressFlags::Nodad, "nodad"),
    (AddressFlags::Managetempaddr, "mngtmpaddr"),
    (AddressFlags::Noprefixroute, "noprefixroute"),
    (AddressFlags::Mcautojoin, "autojoin"),
    (AddressFlags::Optimistic, "optimistic"),
    (AddressFlags::Dadfailed, "dadfailed"),
    (AddressFlags::StablePrivacy, "stable-privacy"),
];

/// Reads the links.
pub(super) fn links(item: Item, _context: &Context) -> Result<String, Gap> {
    let messages = link_messages(item)?;
    let names = names(&messages);
    let links = messages
        .iter()
        .map(|message| Value::Object(link(message, &names)));
    Ok(print(&Value::Array(links.collect())))
}

/// Reads the addresses of the selected families, link by link.
pub(super) fn addresses(item: Item, context: &Context) -> Result<String, Gap> {
    let messages = link_messages(item)?;
    let names = names(&messages);
    let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    let mut by_link: BTreeMap<u32, Vec<Value>> = BTreeMap::new();
    for answer in dump(item, NETLINK_ROUTE, &request)? {
        if let RouteNetlinkMessage::NewAddress(message) = answer
            && context
                .options
                .families
                .iter()
                .any(|&f| address_family(f) == message.header.family)
        {
            let list = by_link.entry(message.header.index).or_default();
            list.push(Value::Object(address(&message)));
        }
    }
    let links = messages.iter().map(|message| {
        let mut link = link(message, &names);
        link.shift_remove("linkinfo");
        let addresses = by_link.remove(&message.header.index);
        link.insert("addr_info".to_owned(), addresses.unwrap_or_default().into());
        Value::Object(link)
    });
    Ok(print(&Value::Array(links.collect())))
}

/// Returns the addresses of the link `name`; empty if it does not exist.
pub(super) fn addresses_of(item: Item, name: &str) -> Result<BTreeSet<IpAddr>, Gap> {
    let names = link_names(item)?;
    let Some((&index, _)) = names.iter().find(|(_, of)| *of == name) else {
        return Ok(BTreeSet::new());
    };
    let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    let answers = dump(item, NETLINK_ROUTE, &request)?.into_iter();
    let of_link = answers.filter_map(|answer| match answer {
        RouteNetlinkMessage::NewAddress(message) if message.header.index == index => Some(message),
        _ => None,
    });
    let addresses = of_link.filter_map(|message| {
        let mut attributes = message.attributes.into_iter();
        attributes.find_map(|attribute| match attribute {
            AddressAttribute::Address(addr) => Some(addr),
            _ => None,
        })
    });
    Ok(addresses.collect())
}

/// Returns the netlink constant for `family`.
pub(super) fn address_family(family: Family) -> AddressFamily {
    match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    }
}

/// Returns the name of each link by its index.
pub(super) fn link_names(item: Item) -> Result<BTreeMap<u32, String>, Gap> {
    Ok(names(&link_messages(item)?))
}

/// Returns `value` as one line.
pub(super) fn print(value: &Value) -> String {
    format!("{value}\n")
}

fn link_messages(item: Item) -> Result<Vec<LinkMessage>, Gap> {
    let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let answers = dump(item, NETLINK_ROUTE, &request)?;
    let links = answers.into_iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(message) => Some(message),
        _ => None,
    });
    Ok(links.collect())
}

fn names(messages: &[LinkMessage]) -> BTreeMap<u32, String> {
    let name = |message: &LinkMessage| {
        message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some((message.header.index, name.clone())),
                _ => None,
            })
    };
    messages.iter().filter_map(name).collect()
}

fn link(message: &LinkMessage, names: &BTreeMap<u32, String>) -> Map<String, Value> {
    let header = &message.header;
    let device = |index: &u32| match names.get(index) {
        Some(name) => json!(name),
        None => json!(format!("if{index}")),
    };
    let mut link = Map::new();
    let mut set = |key: &str, value: Value| link.insert(key.to_owned(), value);
    set("ifindex", json!(header.index));
    set("ifname", device(&header.index));
    set("flags", json!(link_flags(header.flags)));
    set("link_type", json!(link_type(header.link_layer_type)));
    let elsewhere = message
        .attributes
        .iter()
        .any(|attribute| matches!(attribute, LinkAttribute::LinkNetNsId(_)));
    for attribute in &message.attributes {
        match attribute {
            // The index of a link in another namespace has no meaning here.
            LinkAttribute::Link(index) if elsewhere => set("link_index", json!(index)),
            LinkAttribute::Link(0) => set("link", Value::Null),
            LinkAttribute::Link(index) => set("link", device(index)),
            LinkAttribute::LinkNetNsId(id) => set("link_netnsid", json!(id)),
            LinkAttribute::Mtu(mtu) => set("mtu", json!(mtu)),
            LinkAttribute::Qdisc(qdisc) => set("qdisc", json!(qdisc)),
            LinkAttribute::Controller(index) => set("master", device(index)),
            LinkAttribute::Group(0) => set("group", json!("default")),
            LinkAttribute::Group(group) => set("group", json!(group.to_string())),
            LinkAttribute::OperState(state) => set("operstate", json!(state.to_string())),
            LinkAttribute::TxQueueLen(length) => set("txqlen", json!(length)),
            LinkAttribute::Address(bytes) => set("address", json!(hardware(bytes))),
            LinkAttribute::Broadcast(bytes) => set("broadcast", json!(hardware(bytes))),
            LinkAttribute::IfAlias(alias) => set("ifalias", json!(alias)),
            LinkAttribute::Promiscuity(count) => set("promiscuity", json!(count)),
            LinkAttribute::Xdp(of) => xdp(of).and_then(|xdp| set("xdp", xdp)),
            LinkAttribute::LinkInfo(infos) => set("linkinfo", Value::Object(link_info(infos))),
            _ => None,
        };
    }
    link
}

fn link_flags(flags: LinkFlags) -> Vec<&'static str> {
    let idle = flags.contains(LinkFlags::Up) && !flags.contains(LinkFlags::Running);
    let named = LINK_FLAGS
        .iter()
        .filter(|(flag, _)| flags.contains(*flag))
        .map(|&(_, name)| name);
    idle.then_some("NO-CARRIER")
        .into_iter()
        .chain(named)
        .collect()
}

fn link_type(kind: LinkLayerType) -> String {
    match kind {
        LinkLayerType::Ether => "ether".to_owned(),
        LinkLayerType::Loopback => "loopback".to_owned(),
        LinkLayerType::Ipgre => "gre".to_owned(),
        LinkLayerType::Tunnel => "ipip".to_owned(),
        LinkLayerType::Tunnel6 => "tunnel6".to_owned(),
        LinkLayerType::Sit => "sit".to_owned(),
        LinkLayerType::None => "none".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    }
}

fn link_info(infos: &[LinkInfo]) -> Map<String, Value> {
    let mut all = Map::new();
    for info in infos {
        match info {
            LinkInfo::Kind(kind) => all.insert("info_kind".to_owned(), json!(kind.to_string())),
            LinkInfo::Data(InfoData::Vxlan(of)) => {
                let known = of.iter().filter_map(|option| match option {
                    InfoVxlan::Id(id) => Some(("id", json!(id))),
                    InfoVxlan::Port(port) => Some(("port", json!(port))),
                    InfoVxlan::CollectMetadata(on) => Some(("external", json!(on))),
                    InfoVxlan::Local(addr) => Some(("local", json!(addr))),
                    InfoVxlan::Local6(addr) => Some(("local6", json!(addr))),
                    _ => None,
                });
                let data = known.map(|(key, value)| (key.to_owned(), value));
                all.insert("info_data".to_owned(), Value::Object(data.collect()))
            }
            LinkInfo::Data(InfoData::IpTunnel(tunnel)) => {
                let ends = tunnel.iter().filter_map(|attribute| match attribute {
                    InfoIpTunnel::Local(addr) => Some(("local".to_owned(), json!(addr))),
                    InfoIpTunnel::Remote(addr) => Some(("remote".to_owned(), json!(addr))),
                    _ => None,
                });
                all.insert("info_data".to_owned(), Value::Object(ends.collect()))
            }
            LinkInfo::Data(InfoData::Bridge(bridge)) => {
                all.insert("info_data".to_owned(), Value::Object(bridge_data(bridge)))
            }
            LinkInfo::PortKind(kind) => {
                all.insert("info_slave_kind".to_owned(), json!(kind.to_string()))
            }
            LinkInfo::PortData(InfoPortData::BridgePort(port)) => all.insert(
                "info_slave_data".to_owned(),
                Value::Object(bridge_port(port)),
            ),
            _ => None,
        };
    }
    all
}

/// Returns the XDP programs of a link, as `ip` prints them; their names are not in the answer.
fn xdp(all: &[LinkXdp]) -> Option<Value> {
    let program = |mode: u8, id: u32| json!({ "mode": mode, "prog": { "id": id } });
    let ids = all.iter().filter_map(|attribute| match attribute {
        LinkXdp::DrvProgId(id) => Some(program(1, *id)),
        LinkXdp::SkbProgId(id) => Some(program(2, *id)),
        LinkXdp::HwProgId(id) => Some(program(3, *id)),
        _ => None,
    });
    let mut ids: Vec<Value> = ids.collect();
    match ids.len() {
        0 => None,
        1 => ids.pop(),
        _ => Some(json!({ "mode": 4, "attached": ids })),
    }
}

/// Returns the settings of a bridge that decide where its packets go.
fn bridge_data(bridge: &[InfoBridge]) -> Map<String, Value> {
    let known = bridge.iter().filter_map(|attribute| match attribute {
        InfoBridge::VlanFiltering(on) => Some(("vlan_filtering", u16::from(*on))),
        InfoBridge::VlanDefaultPvid(vlan) => Some(("vlan_default_pvid", *vlan)),
        InfoBridge::NfCallIpTables(on) => Some(("nf_call_iptables", u16::from(*on))),
        InfoBridge::NfCallIp6Tables(on) => Some(("nf_call_ip6tables", u16::from(*on))),
        _ => None,
    });
    known
        .map(|(key, value)| (key.to_owned(), json!(value)))
        .collect()
}

fn bridge_port(port: &[InfoBridgePort]) -> Map<String, Value> {
    let known = port.iter().filter_map(|attribute| match attribute {
        InfoBridgePort::State(state) => Some(("state", json!(state.to_string()))),
        InfoBridgePort::HairpinMode(on) => Some(("hairpin", json!(on))),
        InfoBridgePort::Learning(on) => Some(("learning", json!(on))),
        InfoBridgePort::UnicastFlood(on) => Some(("flood", json!(on))),
        InfoBridgePort::MulticastFlood(on) => Some(("mcast_flood", json!(on))),
        InfoBridgePort::BroadcastFlood(on) => Some(("bcast_flood", json!(on))),
        InfoBridgePort::Isolated(on) => Some(("isolated", json!(on))),
        InfoBridgePort::Locked(on) => Some(("locked", json!(on))),
        _ => None,
    });
    known.map(|(key, value)| (key.to_owned(), value)).collect()
}

pub(super) fn hardware(bytes: &[u8]) -> String {
    // Tunnels have IP addresses as their link-layer addresses; `ip` prints them as such.
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return std::net::Ipv4Addr::from(v4).to_string();
    }
    if let Ok(v6) = <[u8; 16]>::try_from(bytes) {
        return std::net::Ipv6Addr::from(v6).to_string();
    }
    let hex: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    hex.join(":")
}

fn address(message: &AddressMessage) -> Map<String, Value> {
    let mut address = Map::new();
    let mut set = |key: &str, value: Value| address.insert(key.to_owned(), value);
    let header = &message.header;
    let v6 = header.family == AddressFamily::Inet6;
    set("family", json!(if v6 { "inet6" } else { "inet" }));
    let (mut local, mut remote) = (None, None);
    let mut flags = AddressFlags::from_bits_retain(header.flags.bits().into());
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => local = Some(ip),
            AddressAttribute::Address(ip) => remote = Some(ip),
            AddressAttribute::Flags(all) => flags = *all,
            _ => {}
        }
    }
    if let Some(ip) = local.or(remote) {
        set("local", json!(ip));
    }
    // The peer of a point-to-point link; on other links both are the same.
    if let (Some(local), Some(remote)) = (local, remote)
        && local != remote
    {
        set("address", json!(remote));
    }
    set("prefixlen", json!(header.prefix_len));
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Broadcast(ip) => set("broadcast", json!(ip)),
            AddressAttribute::RoutePriority(metric) => set("metric", json!(metric)),
            AddressAttribute::Label(label) => set("label", json!(label)),
            AddressAttribute::CacheInfo(times) => {
                set("preferred_life_time", json!(times.ifa_preferred));
                set("valid_life_time", json!(times.ifa_valid))
            }
            _ => None,
        };
    }
    set("scope", json!(address_scope(header.scope)));
    for &(flag, name) in ADDRESS_FLAGS
        .iter()
        .filter(|(flag, _)| flags.contains(*flag))
    {
        // The kernel uses one bit for secondary addresses and for temporary IPv6 addresses.
        let temporary = v6 && flag == AddressFlags::Secondary;
        set(if temporary { "temporary" } else { name }, json!(true));
    }
    if !flags.contains(AddressFlags::Permanent) {
        set("dynamic", json!(true));
    }
    address
}

fn address_scope(scope: AddressScope) -> String {
    match scope {
        AddressScope::Universe => "global".to_owned(),
        AddressScope::Site => "site".to_owned(),
        AddressScope::Link => "link".to_owned(),
        AddressScope::Host => "host".to_owned(),
        AddressScope::Nowhere => "nowhere".to_owned(),
        other => u8::from(other).to_string(),
    }
}

/// Decodes any messages about links, addresses, routes and routing policy rules, for the fuzzer: the text of each kind.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) -> [String; 4] {
    use super::routes::{route, rule};
    use netlink_packet_core::{NetlinkMessage, NetlinkPayload};

    let mut all: [Vec<Value>; 4] = Default::default();
    for (_, message) in super::netlink::messages(bytes) {
        let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(message) else {
            continue;
        };
        let NetlinkPayload::InnerMessage(message) = message.payload else {
            continue;
        };
        match message {
            RouteNetlinkMessage::NewLink(message) => {
                let names = names(std::slice::from_ref(&message));
                all[0].push(Value::Object(link(&message, &names)));
            }
            RouteNetlinkMessage::NewAddress(message) => {
                all[1].push(json!({ "ifname": "lo", "addr_info": [address(&message)] }));
            }
            RouteNetlinkMessage::NewRoute(message) => {
                all[2].push(Value::Object(route(&message, &BTreeMap::new())));
            }
            RouteNetlinkMessage::NewRule(message) => all[3].push(Value::Object(rule(&message))),
            _ => {}
        }
    }
    all.map(|list| print(&Value::Array(list)))
}
