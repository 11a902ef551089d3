//! Reads sockets and their processes: listening ones, in the format of `ss -lntuSHp`, and some connected ones.
//!
//! Only listening sockets are requested from the kernel, which makes this fast on a node with 100,000 connections. As
//! with `ss`, the first request may make the kernel load `tcp_diag` and `udp_diag`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::Duration;

use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{
    AF_INET, AF_INET6, IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP,
};
use netlink_packet_sock_diag::inet::nlas::Nla;
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags,
};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;

use super::context::Context;
use super::files;
use super::links::{self, link_names};
use super::netlink::dump;
use super::processes::{command, ids};
use super::routes;
use kpx_node::action::ROUTE_PROTOCOL;
use kpx_node::evidence::ipvs::DUMMY;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;

/// Protocols: number, name, socket state, and the name of that state.
const PROTOCOLS: &[(u8, &str, StateFlags, &str)] = &[
    (IPPROTO_UDP, "udp", StateFlags::CLOSE, "UNCONN"),
    (IPPROTO_TCP, "tcp", StateFlags::LISTEN, "LISTEN"),
    (IPPROTO_SCTP, "sctp", StateFlags::LISTEN, "LISTEN"),
];

/// The header of `ss`.
const HEADER: &str = "Netid State Recv-Q Send-Q Local Address:Port Peer Address:Port Process\n";

/// A process that owns a socket.
#[derive(Debug)]
struct Holder {
    name: String,
    pid: u32,
    fd: u32,
}

/// Reads listening sockets of `families` and their owners. Must run inside the network namespace.
pub(super) fn read(item: Item, context: &Context) -> Result<String, Gap> {
    let sockets = all_listening(item, context)?;
    let inodes = sockets.iter().map(|(.., socket)| socket.header.inode);
    let holders = holders(item, &context.path("proc"), &inodes.collect())?;
    let listed = list(item, &sockets, &holders)?;
    // A header distinguishes an empty table from a missing text.
    Ok(if listed.is_empty() {
        HEADER.to_owned()
    } else {
        listed
    })
}

/// Like [`read`], without the owners.
pub(super) fn listening(item: Item, context: &Context) -> Result<String, Gap> {
    list(item, &all_listening(item, context)?, &BTreeMap::new())
}

/// A socket with its protocol and the name of its state.
type Listening = (&'static str, &'static str, InetResponse);

/// The longest time that a connection waits for a healthy program.
const PATIENCE: Duration = Duration::from_millis(500);

/// Reads the listening sockets. If connections wait for a program to accept them, only those that still wait after a while count.
fn all_listening(item: Item, context: &Context) -> Result<Vec<Listening>, Gap> {
    let mut all = listening_now(item, context)?;
    let waits = |listening: &Listening| listening.0 == "tcp" && listening.2.header.recv_queue > 0;
    if !all.iter().any(waits) {
        return Ok(all);
    }
    let before = not_accepted(item, context)?;
    thread::sleep(PATIENCE);
    let mut still = not_accepted(item, context)?;
    still.retain(|ends| before.contains(ends));
    for (.., socket) in all.iter_mut().filter(|listening| waits(listening)) {
        let header = &mut socket.header;
        let own = (
            header.socket_id.source_address,
            header.socket_id.source_port,
        );
        let is_own = |(local, _): &&(SocketAddr, SocketAddr)| {
            local.port() == own.1 && (own.0.is_unspecified() || local.ip() == own.0)
        };
        let waiting = still.iter().filter(is_own).count();
        header.recv_queue = u32::try_from(waiting).unwrap_or(u32::MAX);
    }
    Ok(all)
}

/// Returns both ends of the TCP connections that no program has accepted: their sockets have no inode yet.
fn not_accepted(item: Item, context: &Context) -> Result<BTreeSet<(SocketAddr, SocketAddr)>, Gap> {
    let states = StateFlags::ESTABLISHED | StateFlags::CLOSE_WAIT;
    let mut found = BTreeSet::new();
    for &family in &context.options.families {
        let all = ask(item, IPPROTO_TCP, family, &states)?.into_iter();
        let waiting = all.filter(|socket| socket.header.inode == 0);
        found.extend(waiting.map(|socket| {
            let id = socket.header.socket_id;
            let local = SocketAddr::new(id.source_address, id.source_port);
            (
                local,
                SocketAddr::new(id.destination_address, id.destination_port),
            )
        }));
    }
    Ok(found)
}

fn listening_now(item: Item, context: &Context) -> Result<Vec<Listening>, Gap> {
    let proc = context.path("proc");
    let mut sockets = Vec::new();
    for (number, name, state, state_name) in PROTOCOLS {
        // A request for SCTP would load the module into a kernel without it.
        if *number == IPPROTO_SCTP && !proc.join("thread-self/net/sctp").exists() {
            continue;
        }
        for &family in &context.options.families {
            for socket in ask(item, *number, family, state)? {
                sockets.push((*name, *state_name, socket));
            }
        }
    }
    Ok(sockets)
}

/// Prints `sockets` with their owners in `holders`.
fn list(
    item: Item,
    sockets: &[Listening],
    holders: &BTreeMap<u32, Vec<Holder>>,
) -> Result<String, Gap> {
    let is_bound = sockets
        .iter()
        .any(|(.., socket)| socket.header.socket_id.interface_id != 0);
    let names = if is_bound {
        link_names(item)?
    } else {
        BTreeMap::new()
    };
    let mut text = String::new();
    for (name, state, socket) in sockets {
        let header = &socket.header;
        let id = &header.socket_id;
        let v6_only = socket.nlas.iter().find_map(|nla| match nla {
            Nla::SkV6Only(only) => Some(*only),
            _ => None,
        });
        let device = match id.interface_id {
            0 => String::new(),
            index => match names.get(&index) {
                Some(name) => format!("%{name}"),
                None => format!("%if{index}"),
            },
        };
        let (local, peer) = ends(
            id.source_address,
            v6_only == Some(true),
            &device,
            id.source_port,
        );
        let users = holders
            .get(&header.inode)
            .map(|list| users(list))
            .unwrap_or_default();
        let line = format!(
            "{name} {state} {} {} {local} {peer} {users}",
            header.recv_queue, header.send_queue
        );
        // Writing to a string cannot fail.
        writeln!(text, "{}", line.trim_end()).ok();
    }
    Ok(text)
}

/// Reads connected sockets whose source is an address of kube-ipvs0 or of a kpx route.
pub(super) fn held(item: Item, context: &Context) -> Result<String, Gap> {
    let mut addresses = links::addresses_of(item, DUMMY)?;
    addresses.extend(routes::destinations(item, ROUTE_PROTOCOL)?);
    if addresses.is_empty() {
        return Ok(String::new());
    }
    let open = StateFlags::ESTABLISHED;
    let opens = StateFlags::ESTABLISHED | StateFlags::SYN_SENT;
    let mut sockets = Vec::new();
    for (number, name, states) in [(IPPROTO_UDP, "udp", open), (IPPROTO_TCP, "tcp", opens)] {
        // An IPv6 socket may be connected over IPv4.
        for family in Family::BOTH {
            let all = ask(item, number, family, &states)?.into_iter();
            let own = |socket: &InetResponse| socket.header.socket_id.source_address;
            let held = all.filter(|socket| addresses.contains(&own(socket).to_canonical()));
            sockets.extend(held.map(|socket| (name, socket)));
        }
    }
    let inodes = sockets.iter().map(|(_, socket)| socket.header.inode);
    let holders = holders(item, &context.path("proc"), &inodes.collect())?;
    let mut text = String::new();
    for (name, socket) in &sockets {
        let header = &socket.header;
        let id = &header.socket_id;
        let [local, peer] = [
            (id.source_address, id.source_port),
            (id.destination_address, id.destination_port),
        ]
        .map(|(addr, port)| SocketAddr::new(addr, port));
        let (received, sent) = (header.recv_queue, header.send_queue);
        let by = holders.get(&header.inode).map(|list| users(list));
        let line = format!(
            "{name} ESTAB {received} {sent} {local} {peer} {}",
            by.unwrap_or_default()
        );
        // Writing to a string cannot fail.
        writeln!(text, "{}", line.trim_end()).ok();
    }
    Ok(text)
}

/// Reads a table of `/proc/net`, if netlink does not provide the sockets.
pub(super) fn table(item: Item, context: &Context) -> Result<String, Gap> {
    let name = match item {
        Item::Tcp4 => "tcp",
        Item::Tcp6 => "tcp6",
        Item::Udp4 => "udp",
        Item::Udp6 => "udp6",
        other => return Err(Gap::NotCollected(other)),
    };
    if ask(item, IPPROTO_TCP, Family::V4, &StateFlags::LISTEN).is_ok() {
        let what = format!("{} has the same data", Item::Sockets);
        return Err(Gap::NotApplicable(what));
    }
    files::text(item, &context.path("proc/thread-self/net").join(name))
}

fn ask(
    item: Item,
    protocol: u8,
    family: Family,
    states: &StateFlags,
) -> Result<Vec<InetResponse>, Gap> {
    let (family, socket_id) = match family {
        Family::V4 => (AF_INET, SocketId::new_v4()),
        Family::V6 => (AF_INET6, SocketId::new_v6()),
    };
    let request = SockDiagMessage::InetRequest(InetRequest {
        family,
        protocol,
        extensions: ExtensionFlags::empty(),
        states: states.clone(),
        socket_id,
    });
    let answers = dump(item, NETLINK_SOCK_DIAG, &request)?.into_iter();
    let sockets = answers.filter_map(|answer| match answer {
        SockDiagMessage::InetResponse(socket) => Some(*socket),
        _ => None,
    });
    Ok(sockets.collect())
}

/// Returns the name and id of each process that listens at the TCP address `address`, as far as they are seen; `None` if the process
/// with the folder `own` does, nothing does, or that is unknown, as without root. Must run inside the network namespace.
pub(super) fn others_at(
    item: Item,
    proc: &Path,
    address: SocketAddr,
    own: &Path,
) -> Option<Vec<(String, u32)>> {
    let inodes = inodes_at(item, address).ok()?;
    let mut entries = fs::read_dir(own.join("fd")).ok()?.flatten();
    let is_own = entries
        .any(|entry| socket_inode(&entry.path()).is_some_and(|inode| inodes.contains(&inode)));
    if is_own || inodes.is_empty() {
        return None;
    }
    let holders = holders(item, proc, &inodes).unwrap_or_default();
    let holders = holders.into_values().flatten();
    Some(holders.map(|holder| (holder.name, holder.pid)).collect())
}

/// Returns the sockets that take connections to the TCP address `address`: those bound to it, else those bound to all addresses.
fn inodes_at(item: Item, address: SocketAddr) -> Result<BTreeSet<u32>, Gap> {
    let mut all = Vec::new();
    for family in Family::BOTH {
        all.extend(ask(item, IPPROTO_TCP, family, &StateFlags::LISTEN)?);
    }
    all.retain(|socket| socket.header.socket_id.source_port == address.port());
    let of = |socket: &InetResponse| socket.header.socket_id.source_address;
    let exact = all.iter().any(|socket| of(socket) == address.ip());
    let takes = |socket: &&InetResponse| match of(socket) {
        ip if exact => ip == address.ip(),
        // A socket on all IPv6 addresses takes those of IPv4 as well.
        ip => ip.is_unspecified() && (ip.is_ipv6() || address.is_ipv4()),
    };
    let inodes = all.iter().filter(takes).map(|socket| socket.header.inode);
    Ok(inodes.collect())
}

/// Returns the local and the peer end in the format of `ss`: `*` means both families, `[::]` only IPv6.
fn ends(ip: IpAddr, v6_only: bool, device: &str, port: u16) -> (String, &'static str) {
    match ip {
        IpAddr::V4(ip) => (format!("{ip}{device}:{port}"), "0.0.0.0:*"),
        IpAddr::V6(ip) if ip.is_unspecified() && !v6_only => (format!("*{device}:{port}"), "*:*"),
        IpAddr::V6(ip) => (format!("[{ip}]{device}:{port}"), "[::]:*"),
    }
}

fn users(holders: &[Holder]) -> String {
    let each = holders
        .iter()
        .map(|Holder { name, pid, fd }| format!("(\"{name}\",pid={pid},fd={fd})"));
    format!("users:({})", each.collect::<Vec<_>>().join(","))
}

/// Finds the processes that own the sockets with these `inodes`; only root sees those of other users.
fn holders(
    item: Item,
    proc: &Path,
    inodes: &BTreeSet<u32>,
) -> Result<BTreeMap<u32, Vec<Holder>>, Gap> {
    let mut found: BTreeMap<u32, Vec<Holder>> = BTreeMap::new();
    if inodes.is_empty() {
        return Ok(found);
    }
    let mut pids = ids(item, proc)?;
    pids.sort_unstable();
    for pid in pids {
        let dir = proc.join(pid.to_string());
        // Not permitted without root, or the process has ended: `ss` also skips these.
        let Ok(entries) = fs::read_dir(dir.join("fd")) else {
            continue;
        };
        let mut name = None;
        for entry in entries.flatten() {
            let Some(inode) = socket_inode(&entry.path()).filter(|inode| inodes.contains(inode))
            else {
                continue;
            };
            let Some(fd) = entry.file_name().to_str().and_then(|fd| fd.parse().ok()) else {
                continue;
            };
            let name = name.get_or_insert_with(|| command(&dir).unwrap_or_else(|| "?".to_owned()));
            found.entry(inode).or_default().push(Holder {
                name: name.clone(),
                pid,
                fd,
            });
        }
    }
    Ok(found)
}

fn socket_inode(fd: &Path) -> Option<u32> {
    let target = fs::read_link(fd).ok()?;
    let inode = target
        .to_str()?
        .strip_prefix("socket:[")?
        .strip_suffix(']')?;
    inode.parse().ok()
}

/// Decodes any messages about sockets, for the fuzzer.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    use netlink_packet_core::NetlinkMessage;

    for (_, message) in super::netlink::messages(bytes) {
        NetlinkMessage::<SockDiagMessage>::deserialize(message).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::process::{self, Command};

    use super::*;

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "a process to compare with, which opens nothing"
    )]
    fn who_listens_is_named_unless_it_is_the_process_that_is_asked_for() {
        let others = |address: SocketAddr, pid: u32| {
            let (proc, own) = (Path::new("/proc"), format!("/proc/{pid}"));
            let all = others_at(Item::ProxyMode, proc, address, Path::new(&own));
            let all = all.into_iter().flatten();
            all.map(|(_, pid)| pid).collect::<Vec<_>>()
        };
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        for bind in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
            let listener = TcpListener::bind(bind).unwrap();
            let port = listener.local_addr().unwrap().port();
            let address = SocketAddr::new([127, 0, 0, 1].into(), port);
            assert_eq!(others(address, process::id()), [0; 0], "{bind}");
            assert_eq!(others(address, other.id()), [process::id()], "{bind}");
            drop(listener);
            assert_eq!(others(address, other.id()), [0; 0], "{bind}");
        }
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
