//! Reads the networks of pods: of each network namespace of this machine's processes but the node's own, its addresses, links,
//! routes, neighbours, listening sockets, rules, and some settings.
//!
//! A kpx that may not enter the namespace (it needs `CAP_SYS_ADMIN`, which `kpx serve` in a pod does not have) reads the files of a
//! process there; these do not show rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::unistd::geteuid;
use serde_json::{Value, json};

use super::context::{Context, denied};
use super::processes::ids;
use super::{Options, files, sockets, sysctl};
use kpx_node::evidence::pod_networks::{add_item, add_network};
use kpx_node::evidence::{Gap, Item};

/// The items that are read in addition to sockets and nftables.
const OF_EACH: &[Item] = &[
    Item::Addresses,
    Item::Links,
    Item::Routes,
    Item::Rules,
    Item::NeighbourTable,
    Item::Tc,
];

/// Files of `/proc/PID/net` with sockets, and the state of listening ones: `TCP_LISTEN`, or `TCP_CLOSE` for UDP.
const SOCKETS: &[(Item, &str, &str)] = &[
    (Item::Tcp4, "tcp", "0A"),
    (Item::Tcp6, "tcp6", "0A"),
    (Item::Udp4, "udp", "07"),
    (Item::Udp6, "udp6", "07"),
];

/// Reads all of them. One that disappears meanwhile is skipped.
pub(super) async fn read(item: Item, context: &Arc<Context>) -> Result<String, Gap> {
    let work = async move |context: Arc<Context>| namespaces(item, &context);
    let mut text = String::new();
    let mut unread = None;
    for (namespace, pid) in context.inside(item, work).await? {
        let path = context.path(format!("proc/{pid}/ns/net"));
        let options = Options {
            netns: Some(path.to_string_lossy().into_owned()),
            ..context.options.clone()
        };
        let mut read = network(&Context::reading(&[], &options)).await;
        if let Err(Gap::Denied(..)) = read {
            read = by_files(item, &context.path(format!("proc/{pid}/net")));
        }
        // By now, the ID may belong to another process.
        if fs::read_link(&path).is_ok_and(|target| target == namespace) {
            match read {
                Ok(Some(items)) => {
                    add_network(&mut text, pid);
                    text.push_str(&items);
                }
                Ok(None) => {}
                Err(gap) => unread = unread.or(Some(gap)),
            }
        }
    }
    match unread {
        Some(gap) if text.is_empty() => Err(gap.about(item)),
        _ => Ok(text),
    }
}

/// Returns the context of the network of the pod with address `addr`.
pub(super) async fn of(options: &Options, addr: IpAddr) -> Result<Arc<Context>, Gap> {
    let item = Item::PodNetworks;
    let node = Context::new(options);
    let work = async move |context: Arc<Context>| namespaces(item, &context);
    let all = node.inside(item, work).await?;
    let (wanted, mut unread) = (format!("\"{addr}\""), None);
    for pid in all.into_values() {
        let path = node.path(format!("proc/{pid}/ns/net"));
        let context = Context::reading(
            &[],
            &Options {
                netns: Some(path.to_string_lossy().into_owned()),
                ..options.clone()
            },
        );
        match super::read(Item::Addresses, &context).await {
            Ok(addresses) if addresses.contains(&wanted) => return Ok(context),
            Err(gap) if path.exists() => unread = unread.or(Some(gap)),
            // Another pod's, or its process has ended.
            Ok(_) | Err(_) => {}
        }
    }
    Err(match unread {
        Some(gap) => gap.about(item),
        None => Gap::Absent(item, format!("no pod of the node has address {addr}")),
    })
}

/// Returns the items of one network; `None` if it has only addresses of lo, and no other link that could have one.
async fn network(context: &Arc<Context>) -> Result<Option<String>, Gap> {
    let mut text = String::new();
    for item in OF_EACH {
        let read = Box::pin(super::read(*item, context)).await?;
        // A sandbox of one process has only lo; a pod that has lost its address keeps its link.
        let is_of_pod = ["\"global\"", "\"link_type\":\"ether\""]
            .iter()
            .any(|sign| read.contains(sign));
        if *item == Item::Addresses && !is_of_pod {
            return Ok(None);
        }
        add_item(&mut text, *item, &read);
    }
    let settings = context.look(Item::Sysctl, sysctl::of_pod).await?;
    add_item(&mut text, Item::Sysctl, &settings);
    let sockets = context.look(Item::Sockets, sockets::listening).await?;
    add_item(&mut text, Item::Sockets, &sockets);
    let rules = Box::pin(super::read(Item::Nft, context)).await?;
    add_item(&mut text, Item::Nft, &rules);
    if rules.contains("\"table\"") || has_legacy(context).await {
        for item in [Item::Iptables4, Item::Iptables6] {
            let read = Box::pin(super::read(item, context)).await?;
            add_item(&mut text, item, &read);
        }
    }
    Ok(Some(text))
}

/// Like [`network`], from the files in `net`, without routes and rules.
fn by_files(item: Item, net: &Path) -> Result<Option<String>, Gap> {
    let read = |name: &str| files::text(item, &net.join(name));
    let local = own_addresses(&read("fib_trie")?);
    // Without IPv6, the kernel does not have the file.
    let of_v6 = read("if_inet6").unwrap_or_default();
    let v6 = of_v6.lines().filter_map(global_v6).map(IpAddr::from);
    let own: Vec<IpAddr> = local.into_iter().map(IpAddr::from).chain(v6).collect();
    if own.is_empty() {
        return Ok(None);
    }
    let info = own.iter().map(|addr| {
        let (family, length) = if addr.is_ipv4() {
            ("inet", 32)
        } else {
            ("inet6", 128)
        };
        json!({"family": family, "local": addr, "prefixlen": length, "scope": "global"})
    });
    let info: Vec<_> = info.collect();
    let links = read("dev")?;
    let links = links.lines().filter_map(|line| line.split_once(':'));
    let links: Vec<_> = links
        .map(|(name, _)| json!({"ifname": name.trim()}))
        .collect();
    let mut text = String::new();
    // The files do not show which link has an address.
    let addresses = json!([{"ifname": "pod", "addr_info": info}]);
    add_item(&mut text, Item::Addresses, &addresses.to_string());
    add_item(&mut text, Item::Links, &Value::from(links).to_string());
    for (of, name, state) in SOCKETS {
        let Ok(all) = read(name) else {
            continue;
        };
        let is_of = |line: &&str| line.split_ascii_whitespace().nth(3) == Some(state);
        let listening: Vec<_> = all.lines().filter(is_of).collect();
        add_item(&mut text, *of, &listening.join("\n"));
    }
    Ok(Some(text))
}

/// Returns the addresses in `/proc/net/fib_trie` that the network itself has, except the addresses of lo.
fn own_addresses(trie: &str) -> BTreeSet<Ipv4Addr> {
    let mut own = BTreeSet::new();
    let mut last = None;
    for line in trie.lines().map(str::trim_start) {
        if let Some(leaf) = line.strip_prefix("|-- ") {
            last = leaf.parse::<Ipv4Addr>().ok();
        } else if line.starts_with("/32 host LOCAL") {
            own.extend(last.filter(|addr| !addr.is_loopback()));
        }
    }
    own
}

/// Returns the address of a line of `/proc/net/if_inet6`, if it is a global one:
/// `fd000000000000000000000000000005 02 40 00 80 eth0`.
fn global_v6(line: &str) -> Option<Ipv6Addr> {
    let mut words = line.split_ascii_whitespace();
    let digits = words.next()?;
    let is_global = words.nth(2) == Some("00");
    let number = u128::from_str_radix(digits, 16).ok()?;
    is_global.then(|| Ipv6Addr::from_bits(number))
}

/// Returns whether a network has tables of the legacy iptables.
async fn has_legacy(context: &Arc<Context>) -> bool {
    let read = async |context: Arc<Context>| {
        let names = ["ip_tables_names", "ip6_tables_names"];
        let paths = names.map(|name| context.path("proc/thread-self/net").join(name));
        Ok(paths
            .iter()
            .any(|path| fs::read_to_string(path).is_ok_and(|text| !text.is_empty())))
    };
    context.inside(Item::Iptables4, read).await.unwrap_or(false)
}

/// Returns the network namespaces of all processes that are visible, each with its first process, but for the node's own, in which
/// it must run.
fn namespaces(item: Item, context: &Context) -> Result<BTreeMap<PathBuf, u32>, Gap> {
    let proc = context.path("proc");
    let own = fs::read_link(proc.join("thread-self/ns/net")).ok();
    let mut pids = ids(item, &proc)?;
    pids.sort_unstable();
    let mut all = BTreeMap::new();
    for pid in pids {
        match fs::read_link(proc.join(format!("{pid}/ns/net"))) {
            Ok(namespace) if Some(&namespace) != own.as_ref() => {
                all.entry(namespace).or_insert(pid);
            }
            // Not even root sees the namespaces of a surrounding machine.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && !geteuid().is_root() => {
                return Err(denied(item, &format!("/proc/{pid}/ns/net: {error}")));
            }
            // The node's own, or it has ended.
            _ => {}
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_from_the_files_of_a_process() {
        let trie = "Main:\n  +-- 10.244.1.0/24 2 0 2\n     |-- 10.244.1.0\n        /24 link UNICAST\nLocal:\n     \
                    |-- 10.244.1.7\n        /32 host LOCAL\n     |-- 10.244.1.255\n        /32 link BROADCAST\n     \
                    |-- 127.0.0.1\n        /32 host LOCAL\n";
        let wanted: Ipv4Addr = "10.244.1.7".parse().unwrap();
        assert_eq!(
            own_addresses(trie).into_iter().collect::<Vec<_>>(),
            [wanted]
        );
        let line =
            |scope: &str| format!("fd000000000000000000000000000005 02 40 {scope} 80     eth0");
        assert_eq!(global_v6(&line("00")), "fd00::5".parse().ok());
        assert_eq!(global_v6(&line("20")), None);
        assert_eq!(global_v6(""), None);
    }
}
