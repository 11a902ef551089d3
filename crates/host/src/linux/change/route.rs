//! Changes routes to Service addresses on this node over route netlink.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use rtnetlink::{Error, Handle, RouteMessageBuilder};

use super::link::{WINDOW, address, connected, errno, index, io_error, refused};
use kpx_node::action::{LocalRoute, ROUTE_PROTOCOL, RouteCommand};
use kpx_node::apply::StepError;
use kpx_node::net::Family;

/// Time limit for the kernel to create the routes of added addresses.
const PATIENCE: Duration = Duration::from_secs(2);

/// Interval between two checks for these routes.
const LOOK: Duration = Duration::from_millis(10);

/// `RT_TABLE_LOCAL`.
const LOCAL: u32 = 255;

/// Runs `commands` in the network namespace of the calling thread. Successive commands of one kind run in parallel; the
/// next kind starts when they are done. Objects that already exist or no longer exist are not errors.
pub(super) async fn change(commands: &[RouteCommand]) -> Result<(), StepError> {
    connected(async |handle| {
        let mut links = BTreeMap::new();
        for command in commands {
            let name = link(command);
            if !links.contains_key(name) {
                links.insert(name, index(&handle, name).await?);
            }
        }
        let kind = std::mem::discriminant::<RouteCommand>;
        for part in commands.chunk_by(|a, b| kind(a) == kind(b)) {
            if matches!(part[0], RouteCommand::Renew(_)) {
                let bounds = part
                    .iter()
                    .filter_map(|command| Some((links[link(command)]?, command.addr())));
                renew(&handle, &bounds.collect()).await?;
                continue;
            }
            let doing = part
                .iter()
                .map(|command| one(&handle, links[link(command)], command));
            stream::iter(doing)
                .buffered(WINDOW)
                .try_collect::<()>()
                .await?;
        }
        Ok(())
    })
    .await
}

fn link(command: &RouteCommand) -> &str {
    match command {
        RouteCommand::Add(route) | RouteCommand::Delete(route) => &route.device,
        RouteCommand::Hide(bound) | RouteCommand::Renew(bound) => &bound.link,
    }
}

async fn one(handle: &Handle, link: Option<u32>, command: &RouteCommand) -> Result<(), StepError> {
    let (done, settled) = match (command, link) {
        (RouteCommand::Add(route), None) => {
            let what = format!("`{command}`: link {} does not exist", route.device);
            return Err(StepError::Absent(what));
        }
        // Deleting a link deletes its routes; addresses are renewed together.
        (_, None) | (RouteCommand::Renew(_), _) => return Ok(()),
        (RouteCommand::Add(route), Some(index)) => {
            (add(handle, ours(route, index)).await, Errno::EEXIST)
        }
        (RouteCommand::Delete(route), Some(index)) => {
            let deleting = handle.route().del(ours(route, index));
            (deleting.execute().await, Errno::ESRCH)
        }
        (RouteCommand::Hide(bound), Some(index)) => {
            let route = message(bound.addr, None, index, RouteProtocol::Kernel);
            (handle.route().del(route).execute().await, Errno::ESRCH)
        }
    };
    match done {
        Ok(()) => Ok(()),
        Err(e) if errno(&e) == Some(settled) => Ok(()),
        Err(e) => Err(refused(&format!("`{command}`"), &io_error(&e))),
    }
}

/// Adds a route, in IPv4 before others to the same destination: without `NLM_F_EXCL`, which rtnetlink's own request
/// sets.
async fn add(handle: &Handle, route: RouteMessage) -> Result<(), Error> {
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::NewRoute(route));
    request.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE;
    let mut handle = handle.clone();
    let mut answers = Box::pin(handle.request(request)?);
    while let Some(answer) = answers.next().await {
        if let NetlinkPayload::Error(error) = answer.payload
            && error.code.is_some()
        {
            return Err(Error::NetlinkError(error));
        }
    }
    Ok(())
}

fn ours(route: &LocalRoute, index: u32) -> RouteMessage {
    let by = RouteProtocol::Other(ROUTE_PROTOCOL);
    message(route.addr, Some(route.source), index, by)
}

fn message(addr: IpAddr, source: Option<IpAddr>, link: u32, by: RouteProtocol) -> RouteMessage {
    let bits = Family::of(addr).bits();
    match addr {
        IpAddr::V4(addr) => {
            let mut route = RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(addr, bits)
                .scope(RouteScope::Host);
            if let Some(IpAddr::V4(source)) = source {
                route = route.pref_source(source);
            }
            let route = route.table_id(LOCAL).kind(RouteType::Local);
            route.output_interface(link).protocol(by).build()
        }
        IpAddr::V6(addr) => {
            let mut route = RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(addr, bits);
            if let Some(IpAddr::V6(source)) = source {
                route = route.pref_source(source);
            }
            let route = route.table_id(LOCAL).kind(RouteType::Local);
            route.output_interface(link).protocol(by).build()
        }
    }
}

/// Removes the existing ones of `bounds`, by link index and address, and adds them again.
async fn renew(handle: &Handle, bounds: &BTreeSet<(u32, IpAddr)>) -> Result<(), StepError> {
    let told: Vec<AddressMessage> = handle
        .address()
        .get()
        .execute()
        .try_collect()
        .await
        .map_err(|e| refused("cannot list addresses", &io_error(&e)))?;
    let mut socket = connect().map_err(|e| refused("cannot open route netlink", &e))?;
    let mut done = BTreeSet::new();
    // The kernel lists the newest address first, and lists them in this order again.
    for message in told.iter().rev() {
        let index = message.header.index;
        let addr = message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                AddressAttribute::Address(addr) => Some(*addr),
                _ => None,
            });
        let Some(addr) = addr else { continue };
        let full = message.header.prefix_len == Family::of(addr).bits();
        if full && bounds.contains(&(index, addr)) {
            anew(&mut socket, index, addr)
                .map_err(|e| refused(&format!("cannot remove {addr} and add it again"), &e))?;
            done.insert((index, addr));
        }
    }
    let mut waited = Duration::ZERO;
    while waited < PATIENCE && !have_routes(handle, &done).await? {
        tokio::time::sleep(LOOK).await;
        waited += LOOK;
    }
    Ok(())
}

/// Returns whether the kernel has created its routes to `bounds`, which it does shortly after the addresses are added.
async fn have_routes(handle: &Handle, bounds: &BTreeSet<(u32, IpAddr)>) -> Result<bool, StepError> {
    let message = RouteMessageBuilder::<Ipv6Addr>::new().build();
    let routes: Vec<RouteMessage> = handle
        .route()
        .get(message)
        .execute()
        .try_collect()
        .await
        .map_err(|e| refused("cannot list routes", &io_error(&e)))?;
    let kernels = routes.iter().filter(|route| {
        route.header.protocol == RouteProtocol::Kernel && route.header.kind == RouteType::Local
    });
    let kernels = kernels.filter_map(|route| {
        let mut attributes = route.attributes.iter();
        let index = attributes.find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(*index),
            _ => None,
        });
        let mut attributes = route.attributes.iter();
        let addr = attributes.find_map(|attribute| match attribute {
            RouteAttribute::Destination(RouteAddress::Inet6(addr)) => Some(IpAddr::V6(*addr)),
            _ => None,
        });
        Some((index?, addr?))
    });
    let there: BTreeSet<_> = kernels.collect();
    Ok(bounds.is_subset(&there))
}

fn connect() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    Ok(socket)
}

/// Removes an address and adds it again in a single message, so that a killed process has done both or neither.
fn anew(socket: &mut Socket, index: u32, addr: IpAddr) -> io::Result<()> {
    let delete = RouteNetlinkMessage::DelAddress(address(index, addr));
    let add = RouteNetlinkMessage::NewAddress(address(index, addr));
    let mut bytes = Vec::new();
    for (message, flags) in [(delete, 0), (add, NLM_F_CREATE | NLM_F_EXCL)] {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        request.finalize();
        let begin = bytes.len();
        bytes.resize(begin + request.buffer_len().next_multiple_of(4), 0);
        request.serialize(&mut bytes[begin..]);
    }
    socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
    for _ in 0..2 {
        let (answer, _) = socket.recv_from_full()?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer)
            .map_err(|e| io::Error::other(e.to_string()))?;
        if let NetlinkPayload::Error(error) = answer.payload
            && error.code.is_some()
        {
            return Err(error.to_io());
        }
    }
    Ok(())
}
