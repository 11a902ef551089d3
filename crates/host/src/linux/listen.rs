//! Sockets that listen in the network namespace of the options.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Socket, Type};

use super::Options;
use super::context::Context;
use kpx_node::evidence::{Gap, Item};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Listens at `address` on TCP. At an IPv6 wildcard, IPv4 connections are accepted only if `dual` is set.
///
/// # Errors
///
/// The address is in use, or does not belong to this machine.
pub async fn listen(
    options: &Options,
    address: SocketAddr,
    dual: bool,
) -> Result<TcpListener, Gap> {
    let work = async move |_| {
        bind(address, dual)
            .map_err(|error| Gap::Failed(Item::Sockets, format!("{address}: {error}")))
    };
    Context::new(options).inside(Item::Sockets, work).await
}

fn bind(address: SocketAddr, dual: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(!dual)?;
    }
    // Connections that have ended do not keep the address.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
