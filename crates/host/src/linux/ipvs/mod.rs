//! Reads and writes IPVS over generic netlink, without `ipvsadm`.
//!
//! Existing crates misread persistence and IPv6 masks, and panic at unknown attributes, so this is our own: [`socket`]
//! exchanges messages, [`decode`] parses them, [`encode`] creates them, and [`proc`] parses the text that is readable
//! without privileges.

mod decode;
mod encode;
mod proc;
mod socket;
mod wire;
mod write;

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use nix::errno::Errno;

use kpx_node::evidence::ipvs::Dump;
use kpx_node::evidence::{Gap, Item};
use socket::Socket;
pub(super) use write::write;

/// `IPVS_CMD_GET_SERVICE`.
const GET_SERVICE: u8 = 4;
/// `IPVS_CMD_GET_DEST`.
const GET_DEST: u8 = 8;
/// `IPVS_CMD_GET_CONFIG`.
const GET_CONFIG: u8 = 13;
/// `IPVS_CMD_GET_INFO`.
const GET_INFO: u8 = 15;

/// Returns the text of [`Item::Ipvs`] for the network namespace of the calling thread; `root` is the mount point of the
/// host's root file system.
pub(super) fn read(root: &Path) -> Result<String, Gap> {
    let failed = |e: serde_json::Error| Gap::Failed(Item::Ipvs, e.to_string());
    let mut text = serde_json::to_string_pretty(&table(root)?).map_err(failed)?;
    text.push('\n');
    Ok(text)
}

/// Returns the table of the network namespace of the calling thread.
///
/// Nothing is requested from a kernel without `ip_vs`: looking up the netlink family would load the module.
pub(super) fn table(root: &Path) -> Result<Dump, Gap> {
    let table = root.join("proc/thread-self/net/ip_vs");
    let text = match fs::read_to_string(&table) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let what = "/proc/net/ip_vs does not exist: the module ip_vs is not loaded";
            return Err(Gap::Absent(Item::Ipvs, what.to_owned()));
        }
        Err(e) => {
            let what = format!("cannot read {}: {e}", table.display());
            return Err(Gap::Failed(Item::Ipvs, what));
        }
    };
    let mut dump = match dump() {
        Ok(dump) => dump,
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            proc::parse(&text, proc::ticks(root)).map_err(|why| {
                let what = format!(
                    "CAP_NET_ADMIN is required (run kpx as root), and the fallback /proc/net/ip_vs {why}"
                );
                Gap::Denied(Item::Ipvs, what)
            })?
        }
        Err(e) => {
            let what = format!("cannot read IPVS over netlink: {e}");
            return Err(Gap::Failed(Item::Ipvs, what));
        }
    };
    dump.sort();
    Ok(dump)
}

fn dump() -> io::Result<Dump> {
    let mut socket = Socket::open("IPVS")?;
    let info = first(&socket.ask(GET_INFO, &[])?, decode::info);
    let timeouts = first(&socket.ask(GET_CONFIG, &[])?, decode::timeouts);
    let mut services = Vec::new();
    for message in socket.dump(GET_SERVICE, &[])? {
        let attributes = decode::service_attributes(&message);
        let Some(mut service) = decode::service(attributes) else {
            // A virtual server of an unknown kind: not TCP, UDP, SCTP or a firewall mark.
            continue;
        };
        let key = decode::service_key(attributes);
        service.destinations = match socket.dump(GET_DEST, &key) {
            Ok(messages) => messages
                .iter()
                .filter_map(|message| decode::destination(message, service.family))
                .collect(),
            // Deleted since it was listed.
            Err(e) if e.raw_os_error() == Some(Errno::ESRCH as i32) => continue,
            Err(e) => return Err(e),
        };
        services.push(service);
    }
    Ok(Dump {
        partial: false,
        info,
        timeouts,
        services,
    })
}

fn first<T>(messages: &[Vec<u8>], decode: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
    messages.iter().find_map(|message| decode(message))
}

/// Decodes any messages, for the fuzzer: each as a virtual server with all messages as its real servers.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) -> Option<String> {
    let messages: Vec<&[u8]> = crate::linux::netlink::messages(bytes)
        .filter_map(|(_, message)| message.get(20..))
        .collect();
    let services = messages.iter().filter_map(|message| {
        let mut service = decode::service(decode::service_attributes(message))?;
        let all = messages.iter();
        service.destinations = all
            .filter_map(|message| decode::destination(message, service.family))
            .collect();
        Some(service)
    });
    let mut dump = Dump {
        partial: false,
        info: messages.iter().find_map(|message| decode::info(message)),
        timeouts: messages
            .iter()
            .find_map(|message| decode::timeouts(message)),
        services: services.collect(),
    };
    dump.sort();
    serde_json::to_string(&dump).ok()
}

/// Parses any `/proc/net/ip_vs`, for the fuzzer.
#[cfg(fuzzing)]
pub fn fuzz_proc(text: &str) -> Option<String> {
    let mut dump = proc::parse(text, Some(250)).ok()?;
    dump.sort();
    serde_json::to_string(&dump).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_requested_from_a_kernel_without_ip_vs() {
        let root = tempfile::tempdir().unwrap();
        let gap = read(root.path()).unwrap_err();
        assert!(matches!(gap, Gap::Absent(Item::Ipvs, _)), "{gap:?}");
    }
}
