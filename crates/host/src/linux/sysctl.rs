//! Reads kernel settings, in the format of `sysctl -a`.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::context::{Context, gap};
use kpx_node::evidence::{Gap, Item};

/// Relevant settings, relative to `/proc/sys`. A `*` matches any name, or the rest of one.
const SETTINGS: &[&str] = &[
    "fs/file-max",
    "fs/file-nr",
    "fs/inotify/*",
    "fs/nr_open",
    "kernel/modules_disabled",
    "kernel/osrelease",
    "kernel/pid_max",
    "net/bridge/*",
    "net/core/netdev_max_backlog",
    "net/core/somaxconn",
    "net/ipv4/conf/*/accept_local",
    "net/ipv4/conf/*/arp_announce",
    "net/ipv4/conf/*/arp_ignore",
    "net/ipv4/conf/*/disable_policy",
    "net/ipv4/conf/*/disable_xfrm",
    "net/ipv4/conf/*/forwarding",
    "net/ipv4/conf/*/proxy_arp",
    "net/ipv4/conf/*/route_localnet",
    "net/ipv4/conf/*/rp_filter",
    "net/ipv4/conf/*/src_valid_mark",
    "net/ipv4/fwmark_reflect",
    "net/ipv4/icmp_ratelimit",
    "net/ipv4/ip_default_ttl",
    "net/ipv4/ip_forward*",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports",
    "net/ipv4/ip_nonlocal_bind",
    "net/ipv4/ip_unprivileged_port_start",
    "net/ipv4/neigh/default/gc_thresh*",
    "net/ipv4/tcp_early_demux",
    "net/ipv4/tcp_ecn",
    "net/ipv4/tcp_fwmark_accept",
    "net/ipv4/tcp_keepalive_*",
    "net/ipv4/tcp_l3mdev_accept",
    "net/ipv4/tcp_max_syn_backlog",
    "net/ipv4/tcp_timestamps",
    "net/ipv4/tcp_tw_recycle",
    "net/ipv4/tcp_tw_reuse",
    "net/ipv4/vs/*",
    "net/ipv6/bindv6only",
    "net/ipv6/conf/*/accept_ra",
    "net/ipv6/conf/*/disable_ipv6",
    "net/ipv6/conf/*/disable_policy",
    "net/ipv6/conf/*/forwarding",
    "net/ipv6/fwmark_reflect",
    "net/ipv6/ip_nonlocal_bind",
    "net/ipv6/neigh/default/gc_thresh*",
    "net/netfilter/nf_conntrack_*",
    "net/netfilter/nf_log_all_netns",
    "net/nf_conntrack_max",
    "user/max_net_namespaces",
];

/// The settings that are read in the network of a pod.
const OF_POD: &[&str] = &[
    "net/ipv4/conf/*/accept_local",
    "net/ipv4/conf/*/arp_ignore",
    "net/ipv4/ip_default_ttl",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports",
    "net/ipv4/tcp_ecn",
    "net/ipv4/tcp_timestamps",
];

/// Reads the relevant settings of the current thread's network namespace.
pub(super) fn read(item: Item, context: &Context) -> Result<String, Gap> {
    settings(item, context, SETTINGS)
}

/// Like [`read`], in the network of a pod.
pub(super) fn of_pod(item: Item, context: &Context) -> Result<String, Gap> {
    settings(item, context, OF_POD)
}

fn settings(item: Item, context: &Context, wanted: &[&str]) -> Result<String, Gap> {
    let root = context.path("proc/sys");
    fs::read_dir(&root).map_err(|e| gap(item, root.display(), &e))?;
    let mut found = BTreeMap::new();
    for setting in wanted {
        let parts: Vec<_> = setting.split('/').collect();
        walk(item, &root, "", &parts, &mut found)?;
    }
    let lines = found
        .iter()
        .map(|(key, value)| format!("{key} = {value}\n"));
    Ok(lines.collect())
}

/// Adds the settings below `dir` that match `parts`; `key` is the dotted name of `dir`. Settings that the kernel does
/// not have are skipped.
fn walk(
    item: Item,
    dir: &Path,
    key: &str,
    parts: &[&str],
    found: &mut BTreeMap<String, String>,
) -> Result<(), Gap> {
    let Some((part, rest)) = parts.split_first() else {
        return match fs::read_to_string(dir) {
            Ok(value) => {
                // A value with several lines is printed as several settings; none of them is relevant here.
                let line = value.trim_end().replace('\n', " ");
                found.insert(key.to_owned(), line);
                Ok(())
            }
            Err(e) if is_nothing(&e) => Ok(()),
            Err(e) => Err(gap(item, dir.display(), &e)),
        };
    };
    let names = match part.strip_suffix('*') {
        None => vec![(*part).to_owned()],
        Some(start) => match fs::read_dir(dir) {
            Ok(entries) => entries
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                .filter(|name| name.starts_with(start))
                .collect(),
            Err(e) if is_nothing(&e) => return Ok(()),
            Err(e) => return Err(gap(item, dir.display(), &e)),
        },
    };
    for name in names {
        // `sysctl` prints the dots of a link's name as slashes: net.ipv4.conf.eth0/100.rp_filter.
        let dotted = name.replace('.', "/");
        let key = match key {
            "" => dotted,
            key => format!("{key}.{dotted}"),
        };
        walk(item, &dir.join(&name), &key, rest, found)?;
    }
    Ok(())
}

/// Returns whether `error` means that the setting does not exist or is not readable: gone, a folder, write-only or only
/// for root.
fn is_nothing(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound
            | ErrorKind::IsADirectory
            | ErrorKind::NotADirectory
            | ErrorKind::PermissionDenied
            | ErrorKind::InvalidInput
    )
}
