//! Reads neighbours, in the format of `ip -j neigh`.

use std::collections::BTreeMap;

use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use serde_json::{Map, Value, json};

use super::context::Context;
use super::links::{address_family, hardware, link_names, print};
use super::netlink::dump;
use kpx_node::evidence::{Gap, Item};

/// Reads the neighbours of the selected families that `ip` lists: all but those that need no resolution.
pub(super) fn neighbours(item: Item, context: &Context) -> Result<String, Gap> {
    let names = link_names(item)?;
    let families = &context.options.families;
    let families: Vec<AddressFamily> = families
        .iter()
        .map(|&family| address_family(family))
        .collect();
    let request = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
    let answers = dump(item, NETLINK_ROUTE, &request)?.into_iter();
    let messages = answers.filter_map(|answer| match answer {
        RouteNetlinkMessage::NewNeighbour(message) => Some(message),
        _ => None,
    });
    let all = messages
        .filter(|message| families.contains(&message.header.family))
        .filter(|message| message.header.state != NeighbourState::Noarp);
    let all: Vec<Value> = all
        .filter_map(|message| neighbour(&message, &names).map(Value::Object))
        .collect();
    Ok(print(&Value::Array(all)))
}

fn neighbour(
    message: &NeighbourMessage,
    names: &BTreeMap<u32, String>,
) -> Option<Map<String, Value>> {
    let header = &message.header;
    let mut neighbour = Map::new();
    let mut attributes = message.attributes.iter();
    let address = attributes.find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(addr)) => Some(addr.to_string()),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(addr)) => Some(addr.to_string()),
        _ => None,
    })?;
    neighbour.insert("dst".to_owned(), json!(address));
    let device = names.get(&header.ifindex);
    let device = device.map_or_else(|| format!("if{}", header.ifindex), Clone::clone);
    neighbour.insert("dev".to_owned(), json!(device));
    for attribute in &message.attributes {
        if let NeighbourAttribute::LinkLayerAddress(bytes) = attribute {
            neighbour.insert("lladdr".to_owned(), json!(hardware(bytes)));
        }
    }
    neighbour.insert("state".to_owned(), json!([state(header.state)]));
    Some(neighbour)
}

fn state(state: NeighbourState) -> String {
    match state {
        NeighbourState::Incomplete => "INCOMPLETE".to_owned(),
        NeighbourState::Reachable => "REACHABLE".to_owned(),
        NeighbourState::Stale => "STALE".to_owned(),
        NeighbourState::Delay => "DELAY".to_owned(),
        NeighbourState::Probe => "PROBE".to_owned(),
        NeighbourState::Failed => "FAILED".to_owned(),
        NeighbourState::Noarp => "NOARP".to_owned(),
        NeighbourState::Permanent => "PERMANENT".to_owned(),
        NeighbourState::None => "NONE".to_owned(),
        other => format!("{:#x}", u16::from(other)),
    }
}
