//! Reads routes and policy rules, in the format of `ip -j route show table all` and `ip -j rule`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteNextHop, RoutePreference,
    RouteProtocol, RouteScope, RouteType, RouteVia,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use serde_json::{Map, Value, json};

use super::context::Context;
use super::links::{address_family, link_names, print};
use super::netlink::dump;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;

const TABLE_DEFAULT: u32 = 253;
const TABLE_MAIN: u32 = 254;
const TABLE_LOCAL: u32 = 255;

/// Route flags that `ip` prints, in its order.
const ROUTE_FLAGS: &[(RouteFlags, &str)] = &[
    (RouteFlags::Dead, "dead"),
    (RouteFlags::Onlink, "onlink"),
    (RouteFlags::Pervasive, "pervasive"),
    (RouteFlags::Offload, "offload"),
    (RouteFlags::Trap, "trap"),
    (RouteFlags::Notify, "notify"),
    (RouteFlags::Linkdown, "linkdown"),
    (RouteFlags::Unresolved, "unresolved"),
    (RouteFlags::RtOffload, "rt_offload"),
    (RouteFlags::RtTrap, "rt_trap"),
    (RouteFlags::OffloadFailed, "rt_offload_failed"),
];

/// Reads the routes of every table, as one list.
pub(super) fn routes(item: Item, context: &Context) -> Result<String, Gap> {
    let names = link_names(item)?;
    let mut routes = Vec::new();
    for &family in &context.options.families {
        let mut message = RouteMessage::default();
        message.header.address_family = address_family(family);
        let answers = dump(item, NETLINK_ROUTE, &RouteNetlinkMessage::GetRoute(message))?;
        for answer in answers {
            if let RouteNetlinkMessage::NewRoute(message) = answer
                && !message.header.flags.contains(RouteFlags::Cloned)
            {
                routes.push(Value::Object(route(&message, &names)));
            }
        }
    }
    Ok(print(&Value::Array(routes)))
}

/// Returns the destinations of the routes with the protocol number `by`.
pub(super) fn destinations(item: Item, by: u8) -> Result<Vec<IpAddr>, Gap> {
    let mut all = Vec::new();
    for family in Family::BOTH {
        let mut message = RouteMessage::default();
        message.header.address_family = address_family(family);
        for answer in dump(item, NETLINK_ROUTE, &RouteNetlinkMessage::GetRoute(message))? {
            let RouteNetlinkMessage::NewRoute(route) = answer else {
                continue;
            };
            if route.header.protocol != RouteProtocol::Other(by) {
                continue;
            }
            all.extend(
                route
                    .attributes
                    .iter()
                    .find_map(|attribute| match attribute {
                        RouteAttribute::Destination(RouteAddress::Inet(addr)) => {
                            Some(IpAddr::V4(*addr))
                        }
                        RouteAttribute::Destination(RouteAddress::Inet6(addr)) => {
                            Some(IpAddr::V6(*addr))
                        }
                        _ => None,
                    }),
            );
        }
    }
    Ok(all)
}

/// Reads the policy rules: one list per family, IPv4 first. The list of a family that is not selected is empty.
pub(super) fn rules(item: Item, context: &Context) -> Result<String, Gap> {
    let mut text = String::new();
    for family in Family::BOTH {
        let mut rules = Vec::new();
        if context.options.families.contains(&family) {
            let mut message = RuleMessage::default();
            message.header.family = address_family(family);
            for answer in dump(item, NETLINK_ROUTE, &RouteNetlinkMessage::GetRule(message))? {
                if let RouteNetlinkMessage::NewRule(message) = answer {
                    rules.push(Value::Object(rule(&message)));
                }
            }
        }
        text.push_str(&print(&Value::Array(rules)));
    }
    Ok(text)
}

pub(super) fn route(message: &RouteMessage, names: &BTreeMap<u32, String>) -> Map<String, Value> {
    let header = &message.header;
    let v6 = header.address_family == AddressFamily::Inet6;
    let mut route = Map::new();
    let mut set = |key: &str, value: Value| route.insert(key.to_owned(), value);
    if header.kind != RouteType::Unicast {
        set("type", json!(route_type(header.kind)));
    }
    let find = |wanted: fn(&RouteAttribute) -> Option<&RouteAddress>| {
        message.attributes.iter().find_map(wanted)
    };
    let destination = find(|attribute| match attribute {
        RouteAttribute::Destination(address) => Some(address),
        _ => None,
    });
    let source = find(|attribute| match attribute {
        RouteAttribute::Source(address) => Some(address),
        _ => None,
    });
    set(
        "dst",
        json!(prefix(destination, header.destination_prefix_length, v6)),
    );
    if source.is_some() {
        set(
            "from",
            json!(prefix(source, header.source_prefix_length, v6)),
        );
    }
    let mut table = u32::from(header.table);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Gateway(address) => set("gateway", json!(plain(address))),
            RouteAttribute::Via(via) => set("via", via_value(via)),
            RouteAttribute::Oif(index) => set("dev", device(*index, names)),
            RouteAttribute::PrefSource(address) => set("prefsrc", json!(plain(address))),
            RouteAttribute::Priority(metric) => set("metric", json!(metric)),
            RouteAttribute::NhId(id) => set("nhid", json!(id)),
            RouteAttribute::Preference(preference) => set("pref", json!(named(*preference))),
            RouteAttribute::MultiPath(hops) => {
                let hops = hops.iter().map(|hop| Value::Object(next_hop(hop, names)));
                set("nexthops", Value::Array(hops.collect()))
            }
            RouteAttribute::Table(wide) => {
                table = *wide;
                None
            }
            _ => None,
        };
    }
    if table != TABLE_MAIN {
        set("table", json!(table_name(table)));
    }
    if header.protocol != RouteProtocol::Boot {
        set("protocol", json!(protocol(header.protocol)));
    }
    if header.scope != RouteScope::Universe {
        set("scope", json!(scope(header.scope)));
    }
    let flags = ROUTE_FLAGS
        .iter()
        .filter(|(flag, _)| header.flags.contains(*flag));
    set("flags", flags.map(|&(_, name)| name).collect());
    route
}

fn next_hop(hop: &RouteNextHop, names: &BTreeMap<u32, String>) -> Map<String, Value> {
    let mut map = Map::new();
    let mut set = |key: &str, value: Value| map.insert(key.to_owned(), value);
    for attribute in &hop.attributes {
        match attribute {
            RouteAttribute::Gateway(address) => set("gateway", json!(plain(address))),
            RouteAttribute::Via(via) => set("via", via_value(via)),
            _ => None,
        };
    }
    set("dev", device(hop.interface_index, names));
    set("weight", json!(u32::from(hop.hops) + 1));
    let bits = RouteFlags::from_bits_retain(hop.flags.bits().into());
    let flags = ROUTE_FLAGS.iter().filter(|(flag, _)| bits.contains(*flag));
    set("flags", flags.map(|&(_, name)| name).collect());
    map
}

pub(super) fn rule(message: &RuleMessage) -> Map<String, Value> {
    let header = &message.header;
    let v6 = header.family == AddressFamily::Inet6;
    let width = if v6 { 128 } else { 32 };
    let mut rule = Map::new();
    let mut set = |key: &str, value: Value| rule.insert(key.to_owned(), value);
    // The kernel omits a priority of 0.
    set("priority", json!(0));
    if header.flags.contains(RuleFlags::Invert) {
        set("not", Value::Null);
    }
    set("src", json!("all"));
    let mut table = u32::from(header.table);
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Priority(priority) => set("priority", json!(priority)),
            RuleAttribute::Source(ip) => {
                if header.src_len != width {
                    set("srclen", json!(header.src_len));
                }
                set("src", json!(ip))
            }
            RuleAttribute::Destination(ip) => {
                if header.dst_len != width {
                    set("dstlen", json!(header.dst_len));
                }
                set("dst", json!(ip))
            }
            RuleAttribute::FwMark(mark) => set("fwmark", json!(hex(*mark))),
            RuleAttribute::FwMask(u32::MAX) => None,
            RuleAttribute::FwMask(mask) => set("fwmask", json!(hex(*mask))),
            RuleAttribute::Iifname(name) => set("iif", json!(name)),
            RuleAttribute::Oifname(name) => set("oif", json!(name)),
            RuleAttribute::L3MDev(true) => set("l3mdev", Value::Null),
            // The kernel represents "none" with all bits set.
            RuleAttribute::SuppressPrefixLen(length) if *length != u32::MAX => {
                set("suppress_prefixlen", json!(length))
            }
            RuleAttribute::Goto(priority) => set("goto", json!(priority)),
            RuleAttribute::IpProtocol(ip) => {
                set("ipproto", json!(format!("{ip:?}").to_lowercase()))
            }
            RuleAttribute::SourcePortRange(ports) => {
                if ports.start != ports.end {
                    set("sport_end", json!(ports.end));
                }
                set("sport", json!(ports.start))
            }
            RuleAttribute::DestinationPortRange(ports) => {
                if ports.start != ports.end {
                    set("dport_end", json!(ports.end));
                }
                set("dport", json!(ports.start))
            }
            RuleAttribute::UidRange(uids) => {
                set("uid_end", json!(uids.end));
                set("uid_start", json!(uids.start))
            }
            RuleAttribute::Protocol(by)
                if !matches!(by, RouteProtocol::Kernel | RouteProtocol::Unspec) =>
            {
                set("protocol", json!(protocol(*by)))
            }
            RuleAttribute::Table(wide) => {
                table = *wide;
                None
            }
            _ => None,
        };
    }
    if header.tos != 0 {
        set("tos", json!(format!("{:#x}", header.tos)));
    }
    if table != 0 {
        set("table", json!(table_name(table)));
    }
    match header.action {
        RuleAction::Nop => set("nop", Value::Null),
        RuleAction::Blackhole => set("action", json!("blackhole")),
        RuleAction::Unreachable => set("action", json!("unreachable")),
        RuleAction::Prohibit => set("action", json!("prohibit")),
        RuleAction::Other(number) => set("action", json!(number.to_string())),
        _ => None,
    };
    rule
}

fn prefix(address: Option<&RouteAddress>, length: u8, v6: bool) -> String {
    let width = if v6 { 128 } else { 32 };
    match address {
        None if length == 0 => "default".to_owned(),
        None => format!("{}/{length}", if v6 { "::" } else { "0.0.0.0" }),
        Some(address) if length == width => plain(address),
        Some(address) => format!("{}/{length}", plain(address)),
    }
}

fn plain(address: &RouteAddress) -> String {
    match address {
        RouteAddress::Inet(ip) => ip.to_string(),
        RouteAddress::Inet6(ip) => ip.to_string(),
        other => format!("{other:?}"),
    }
}

fn via_value(via: &RouteVia) -> Value {
    let host: IpAddr = match via {
        RouteVia::Inet(ip) => (*ip).into(),
        RouteVia::Inet6(ip) => (*ip).into(),
        _ => return json!({"family": "link"}),
    };
    let family = if host.is_ipv6() { "inet6" } else { "inet" };
    json!({"family": family, "host": host})
}

fn device(index: u32, names: &BTreeMap<u32, String>) -> Value {
    names
        .get(&index)
        .map_or_else(|| json!(format!("if{index}")), |name| json!(name))
}

fn hex(mark: u32) -> String {
    // `ip` prints C's `%#x`, which has no prefix for 0.
    match mark {
        0 => "0".to_owned(),
        mark => format!("{mark:#x}"),
    }
}

fn table_name(table: u32) -> String {
    match table {
        TABLE_DEFAULT => "default".to_owned(),
        TABLE_MAIN => "main".to_owned(),
        TABLE_LOCAL => "local".to_owned(),
        other => other.to_string(),
    }
}

fn scope(scope: RouteScope) -> String {
    match scope {
        RouteScope::Universe => "global".to_owned(),
        RouteScope::NoWhere => "nowhere".to_owned(),
        RouteScope::Other(number) => number.to_string(),
        named => named.to_string(),
    }
}

fn route_type(kind: RouteType) -> String {
    match kind {
        RouteType::Unspec => "none".to_owned(),
        RouteType::BlackHole => "blackhole".to_owned(),
        RouteType::ExternalResolve => "xresolve".to_owned(),
        RouteType::Other(number) => number.to_string(),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// Returns iproute2's name for the origin of a route.
fn protocol(by: RouteProtocol) -> String {
    match by {
        RouteProtocol::IcmpRedirect => "redirect".to_owned(),
        RouteProtocol::DnRouted => "dnrouted".to_owned(),
        RouteProtocol::Other(number) => number.to_string(),
        other => format!("{other:?}").to_lowercase(),
    }
}

fn named(preference: RoutePreference) -> String {
    match preference {
        RoutePreference::Other(number) => number.to_string(),
        other => format!("{other:?}").to_lowercase(),
    }
}
