//! Changes links and addresses over route netlink.

use std::io::{self, ErrorKind};
use std::net::IpAddr;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use netlink_packet_route::address::AddressMessage;
use nix::errno::Errno;
use rtnetlink::{AddressMessageBuilder, Error, Handle, LinkDummy};

use kpx_node::action::LinkCommand;
use kpx_node::apply::StepError;
use kpx_node::net::Family;

/// Number of pending requests: their answers fit the socket's receive buffer.
pub(super) const WINDOW: usize = 128;

/// Runs `commands` in the network namespace of the calling thread, in order; addresses of one link are changed in
/// parallel. Objects that already exist or no longer exist are not errors.
pub(super) async fn change(commands: &[LinkCommand]) -> Result<(), StepError> {
    let work = async |handle: Handle| {
        for part in commands.chunk_by(|a, b| link(a) == link(b)) {
            on_link(&handle, link(&part[0]), part).await?;
        }
        Ok(())
    };
    connected(work).await
}

/// Runs `work` with a route netlink connection in the network namespace of the calling thread.
pub(super) async fn connected(
    work: impl AsyncFnOnce(Handle) -> Result<(), StepError>,
) -> Result<(), StepError> {
    let opened = rtnetlink::new_connection();
    let (connection, handle, _) = opened.map_err(|e| refused("cannot open route netlink", &e))?;
    let connection = tokio::spawn(connection);
    let done = work(handle).await;
    connection.abort();
    done
}

fn link(command: &LinkCommand) -> &str {
    match command {
        LinkCommand::AddDummy { name } | LinkCommand::Delete { name } => name,
        LinkCommand::AddAddress { link, .. } | LinkCommand::DeleteAddress { link, .. } => link,
    }
}

/// Runs commands that all concern the link `name`.
async fn on_link(handle: &Handle, name: &str, commands: &[LinkCommand]) -> Result<(), StepError> {
    let is_about_address = |command: &LinkCommand| {
        matches!(
            command,
            LinkCommand::AddAddress { .. } | LinkCommand::DeleteAddress { .. }
        )
    };
    for part in commands.chunk_by(|a, b| is_about_address(a) && is_about_address(b)) {
        let index = index(handle, name).await?;
        let doing = part.iter().map(|command| one(handle, index, command));
        stream::iter(doing)
            .buffered(WINDOW)
            .try_collect::<()>()
            .await?;
    }
    Ok(())
}

/// Returns the interface index of the link `name`; `None` if it does not exist.
pub(super) async fn index(handle: &Handle, name: &str) -> Result<Option<u32>, StepError> {
    let mut found = Box::pin(handle.link().get().match_name(name).execute());
    match found.try_next().await {
        Ok(link) => Ok(link.map(|link| link.header.index)),
        Err(e) if errno(&e) == Some(Errno::ENODEV) => Ok(None),
        Err(e) => Err(refused(
            &format!("cannot look up link {name}"),
            &io_error(&e),
        )),
    }
}

async fn one(handle: &Handle, link: Option<u32>, command: &LinkCommand) -> Result<(), StepError> {
    let (done, settled) = match (command, link) {
        (LinkCommand::AddDummy { name }, _) => {
            let dummy = LinkDummy::new(name).arp(false).build();
            (handle.link().add(dummy).execute().await, Errno::EEXIST)
        }
        (LinkCommand::AddAddress { link, .. }, None) => {
            let what = format!("`{command}`: link {link} does not exist");
            return Err(StepError::Absent(what));
        }
        (LinkCommand::AddAddress { addr, .. }, Some(index)) => {
            let adding = handle.address().add(index, *addr, Family::of(*addr).bits());
            (adding.execute().await, Errno::EEXIST)
        }
        // Deleting a link deletes its addresses.
        (LinkCommand::Delete { .. } | LinkCommand::DeleteAddress { .. }, None) => return Ok(()),
        (LinkCommand::Delete { .. }, Some(index)) => {
            (handle.link().del(index).execute().await, Errno::ENODEV)
        }
        (LinkCommand::DeleteAddress { addr, .. }, Some(index)) => {
            let deleting = handle.address().del(address(index, *addr));
            (deleting.execute().await, Errno::EADDRNOTAVAIL)
        }
    };
    match done {
        Ok(()) => Ok(()),
        Err(e) if errno(&e) == Some(settled) => Ok(()),
        Err(e) => {
            let missing = matches!(command, LinkCommand::AddDummy { .. })
                && errno(&e) == Some(Errno::EOPNOTSUPP);
            Err(if missing {
                let why = "the kernel cannot load the module dummy";
                StepError::Absent(format!("`{command}`: {why}"))
            } else {
                refused(&format!("`{command}`"), &io_error(&e))
            })
        }
    }
}

pub(super) fn address(index: u32, addr: IpAddr) -> AddressMessage {
    let bits = Family::of(addr).bits();
    match addr {
        IpAddr::V4(v4) => AddressMessageBuilder::<std::net::Ipv4Addr>::new()
            .index(index)
            .address(v4, bits)
            .build(),
        IpAddr::V6(v6) => AddressMessageBuilder::<std::net::Ipv6Addr>::new()
            .index(index)
            .address(v6, bits)
            .build(),
    }
}

pub(super) fn errno(error: &Error) -> Option<Errno> {
    match error {
        Error::NetlinkError(e) => Some(Errno::from_raw(-e.raw_code())),
        _ => None,
    }
}

pub(super) fn io_error(error: &Error) -> io::Error {
    match error {
        Error::NetlinkError(e) => e.to_io(),
        other => io::Error::other(other.to_string()),
    }
}

pub(super) fn refused(what: &str, error: &io::Error) -> StepError {
    let text = format!("{what}: {error}");
    match error.kind() {
        ErrorKind::PermissionDenied => {
            StepError::Denied(format!("{text}; CAP_NET_ADMIN is required"))
        }
        _ => StepError::Refused(text),
    }
}
