//! Reads programs and maps of eBPF with the system call: bpftool is rarely installed, and older ones do not show tcx.
//!
//! Source: `linux/bpf.h` of Linux 6.18 for the numbers of types and hooks.

mod call;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::context::{Context, denied, gap};
use super::links::link_names;
use super::processes;
use call::{Kind, Target};
use kpx_node::evidence::bpf::{self, AtCgroup, AtLink, Dump, Map, Part, Program};
use kpx_node::evidence::{Gap, Item};

/// Hooks of control groups at which a service proxy has programs, as `BPF_CGROUP_*`.
const CGROUP_HOOKS: &[(u32, &str)] = &[
    (10, "cgroup_inet4_connect"),
    (11, "cgroup_inet6_connect"),
    (14, "cgroup_udp4_sendmsg"),
    (15, "cgroup_udp6_sendmsg"),
    (19, "cgroup_udp4_recvmsg"),
    (20, "cgroup_udp6_recvmsg"),
    (29, "cgroup_inet4_getpeername"),
    (30, "cgroup_inet6_getpeername"),
    (8, "cgroup_inet4_bind"),
    (9, "cgroup_inet6_bind"),
    (12, "cgroup_inet4_post_bind"),
    (13, "cgroup_inet6_post_bind"),
    (34, "cgroup_inet_sock_release"),
];

/// Hooks of links without a qdisc, as `BPF_TCX_*` and `BPF_NETKIT_*`.
const LINK_HOOKS: &[(u32, &str)] = &[
    (46, "tcx_ingress"),
    (47, "tcx_egress"),
    (54, "netkit_primary"),
    (55, "netkit_peer"),
];

/// Types of programs, by their numbers.
const PROGRAM_TYPES: &[&str] = &[
    "unspec",
    "socket_filter",
    "kprobe",
    "sched_cls",
    "sched_act",
    "tracepoint",
    "xdp",
    "perf_event",
    "cgroup_skb",
    "cgroup_sock",
    "lwt_in",
    "lwt_out",
    "lwt_xmit",
    "sock_ops",
    "sk_skb",
    "cgroup_device",
    "sk_msg",
    "raw_tracepoint",
    "cgroup_sock_addr",
    "lwt_seg6local",
    "lirc_mode2",
    "sk_reuseport",
    "flow_dissector",
    "cgroup_sysctl",
    "raw_tracepoint_writable",
    "cgroup_sockopt",
    "tracing",
    "struct_ops",
    "ext",
    "lsm",
    "sk_lookup",
    "syscall",
    "netfilter",
];

/// Types of maps, by their numbers.
const MAP_TYPES: &[&str] = &[
    "unspec",
    "hash",
    "array",
    "prog_array",
    "perf_event_array",
    "percpu_hash",
    "percpu_array",
    "stack_trace",
    "cgroup_array",
    "lru_hash",
    "lru_percpu_hash",
    "lpm_trie",
    "array_of_maps",
    "hash_of_maps",
    "devmap",
    "sockmap",
    "cpumap",
    "xskmap",
    "sockhash",
    "cgroup_storage",
    "reuseport_sockarray",
    "percpu_cgroup_storage",
    "queue",
    "stack",
    "sk_storage",
    "devmap_hash",
    "struct_ops",
    "ringbuf",
    "inode_storage",
    "task_storage",
    "bloom_filter",
    "user_ringbuf",
    "cgroup_storage",
    "arena",
];

/// Types of maps of which one key has one value.
const PLAIN: &[&str] = &["hash", "lru_hash", "lpm_trie"];

/// The most control groups that are read; a node with 500 pods has about 3,000.
const MOST_CGROUPS: usize = 50_000;

/// The most files of bpffs.
const MOST_PINS: usize = 20_000;

/// Reads programs and maps. Must run inside the network namespace.
pub(super) fn read(item: Item, context: &Context) -> Result<String, Gap> {
    let dump = Dump {
        cgroups: cgroups(item, context).into(),
        links: links(item).into(),
        programs: programs(item, context).into(),
        maps: maps(item).into(),
        pins: pins(item, context).into(),
    };
    if let Part::Unread { unread: gap } = &dump.cgroups
        && dump.links.get().is_err()
        && dump.programs.get().is_err()
        && dump.maps.get().is_err()
    {
        return Err(gap.clone());
    }
    serde_json::to_string(&dump)
        .map(|text| text + "\n")
        .map_err(|e| Gap::Failed(item, e.to_string()))
}

/// Returns the gap for an error of the system call.
fn refused(item: Item, what: &str, right: &str, errno: Errno) -> Gap {
    match errno {
        Errno::EPERM | Errno::EACCES => {
            denied(item, &format!("cannot read {what}: {right} is required"))
        }
        Errno::ENOSYS => Gap::NotApplicable("the kernel has no system call bpf".to_owned()),
        _ => Gap::Failed(item, format!("cannot read {what}: {errno}")),
    }
}

/// Returns whether a hook does not exist: in this kernel, or on a link of this kind.
const fn lacks_hook(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENXIO | Errno::ENODEV | Errno::ENOENT
    )
}

fn cgroups(item: Item, context: &Context) -> Result<Vec<AtCgroup>, Gap> {
    let mut all = Vec::new();
    let mut seen = BTreeSet::new();
    for mount in mounts(item, context, "cgroup2")? {
        let root = context.path(mount.point.trim_start_matches('/'));
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            // A control group that ends meanwhile is skipped.
            let Ok(file) = File::open(&folder) else {
                continue;
            };
            let Ok(about) = file.metadata() else { continue };
            // Cilium and Calico mount the hierarchy once more.
            if !seen.insert((about.dev(), about.ino())) {
                continue;
            }
            if seen.len() > MOST_CGROUPS {
                let why = format!("more than {MOST_CGROUPS} control groups");
                return Err(Gap::Failed(item, why));
            }
            for &(hook, name) in CGROUP_HOOKS {
                match call::attached(Target::Cgroup(file.as_fd()), hook) {
                    Ok(programs) => all.extend(programs.into_iter().map(|program| AtCgroup {
                        cgroup: shown(&root, &folder, &mount.root),
                        attach_type: name.to_owned(),
                        program,
                    })),
                    Err(errno) if lacks_hook(errno) => {}
                    Err(errno) => {
                        let what = "the programs of control groups";
                        return Err(refused(item, what, "CAP_NET_ADMIN", errno));
                    }
                }
            }
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            let inner = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            folders.extend(inner.map(|inner| inner.path()));
        }
    }
    all.sort_by(|a, b| (&a.cgroup, &a.attach_type).cmp(&(&b.cgroup, &b.attach_type)));
    Ok(all)
}

/// Returns the path of `inner`, which is `root` or below it, with `place` instead of `root`.
fn shown(root: &Path, inner: &Path, place: &str) -> String {
    let rest = inner.strip_prefix(root).unwrap_or(inner);
    let path = Path::new(place).join(rest);
    let text = path.to_string_lossy();
    match text.trim_end_matches('/') {
        "" => "/".to_owned(),
        text => text.to_owned(),
    }
}

/// A mounted file system.
struct Mount {
    /// The part of it that is mounted.
    root: String,
    /// The folder at which it is mounted.
    point: String,
}

/// Returns where the host has mounted file systems of this type.
fn mounts(item: Item, context: &Context, kind: &str) -> Result<Vec<Mount>, Gap> {
    let path = context.path("proc/1/mountinfo");
    let text = fs::read_to_string(&path)
        .or_else(|_| fs::read_to_string(context.path("proc/thread-self/mountinfo")))
        .map_err(|e| gap(item, path.display(), &e))?;
    let found = text.lines().filter_map(|line| {
        // proc_pid_mountinfo(5): the root is field 4, the mount point is field 5, the type follows the dash.
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        (after.split(' ').next()? == kind).then(|| Mount {
            root: root.to_owned(),
            point: point.replace("\\040", " "),
        })
    });
    Ok(found.collect())
}

fn links(item: Item) -> Result<Vec<AtLink>, Gap> {
    let names: BTreeMap<u32, String> = link_names(item)?;
    let mut all = Vec::new();
    for (index, dev) in names {
        for &(hook, name) in LINK_HOOKS {
            match call::attached(Target::Link(index), hook) {
                Ok(programs) => all.extend(programs.into_iter().map(|program| AtLink {
                    dev: dev.clone(),
                    attach_type: name.to_owned(),
                    program,
                })),
                Err(errno) if lacks_hook(errno) => {}
                Err(errno) => {
                    let what = "the programs of links";
                    return Err(refused(item, what, "CAP_NET_ADMIN", errno));
                }
            }
        }
    }
    Ok(all)
}

/// Returns the word for number `kind`, or the number.
fn word(words: &[&str], kind: u32) -> String {
    let word = usize::try_from(kind).ok().and_then(|at| words.get(at));
    word.map_or_else(|| kind.to_string(), |word| (*word).to_owned())
}

/// Reads each object of `kind` with `one`; objects that end meanwhile are skipped.
fn objects<T>(
    item: Item,
    what: &str,
    kind: Kind,
    mut one: impl FnMut(OwnedFd) -> Result<T, Errno>,
) -> Result<Vec<T>, Gap> {
    let refused = |errno| refused(item, what, "CAP_SYS_ADMIN", errno);
    let mut all = Vec::new();
    for id in call::ids(kind).map_err(refused)? {
        match call::open(kind, id).and_then(&mut one) {
            Ok(object) => all.push(object),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(refused(errno)),
        }
    }
    Ok(all)
}

fn programs(item: Item, context: &Context) -> Result<Vec<Program>, Gap> {
    let boot = processes::boot_time(item, &context.path("proc")).ok();
    objects(item, "the programs", Kind::Program, |file| {
        let info = call::program(&file)?;
        Ok(Program {
            id: info.id,
            r#type: word(PROGRAM_TYPES, info.kind),
            name: info.name,
            tag: format!("{:016x}", u64::from_be_bytes(info.tag)),
            loaded_at: boot.map(|boot| boot + info.loaded / 1_000_000_000),
            uid: info.uid,
            maps: info.maps,
        })
    })
}

fn maps(item: Item) -> Result<Vec<Map>, Gap> {
    objects(item, "the maps", Kind::Map, |file| {
        let info = call::map(&file)?;
        let r#type = word(MAP_TYPES, info.kind);
        let layout = bpf::layout(&info.name, info.key_size, info.value_size)
            .filter(|_| PLAIN.contains(&r#type.as_str()));
        let content = layout.map(|layout| {
            let pairs = pairs(item, &file, &info)?;
            let why = || {
                let why = format!("the entries of map {} have another layout", info.name);
                Gap::Failed(item, why)
            };
            layout(&pairs).ok_or_else(why)
        });
        let (content, unread) = match content {
            None => (None, None),
            Some(Ok(content)) => (Some(content), None),
            Some(Err(gap)) => (None, Some(gap)),
        };
        Ok(Map {
            id: info.id,
            r#type,
            name: info.name,
            key_size: info.key_size,
            value_size: info.value_size,
            max_entries: info.max_entries,
            content,
            unread,
        })
    })
}

/// Returns the keys and values of a map. If the map changes meanwhile, new entries may be missing, but no old ones.
fn pairs(item: Item, file: &OwnedFd, info: &call::MapInfo) -> Result<bpf::Pairs, Gap> {
    let failed = |errno| {
        let what = format!("the entries of map {}", info.name);
        refused(item, &what, "CAP_BPF", errno)
    };
    let size = |size: u32| usize::try_from(size).unwrap_or(0);
    let mut all = BTreeMap::new();
    let mut key: Option<Vec<u8>> = None;
    // After a key that was deleted meanwhile, the kernel starts from the first key.
    for _ in 0..u64::from(info.max_entries).saturating_mul(4) {
        let mut next = vec![0; size(info.key_size)];
        match call::next_key(file.as_fd(), key.as_deref_mut(), &mut next) {
            Ok(()) => {}
            Err(Errno::ENOENT) => return Ok(all.into_iter().collect()),
            Err(errno) => return Err(failed(errno)),
        }
        let mut value = vec![0; size(info.value_size)];
        match call::value(file.as_fd(), &mut next, &mut value) {
            Ok(()) => {
                all.insert(next.clone(), value);
            }
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(failed(errno)),
        }
        key = Some(next);
    }
    let why = format!("map {} changes faster than it can be read", info.name);
    Err(Gap::Failed(item, why))
}

/// Returns the files of bpffs.
fn pins(item: Item, context: &Context) -> Result<Vec<String>, Gap> {
    let mut all = BTreeSet::new();
    for mount in mounts(item, context, "bpf")? {
        let root = context.path(mount.point.trim_start_matches('/'));
        let mut folders: Vec<PathBuf> = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(gap(item, folder.display(), &e)),
            };
            for entry in entries.flatten() {
                if entry.file_type().is_ok_and(|file_type| file_type.is_dir()) {
                    folders.push(entry.path());
                } else {
                    all.insert(shown(&root, &entry.path(), &mount.point));
                }
            }
            if all.len() > MOST_PINS {
                return Err(Gap::Failed(item, format!("more than {MOST_PINS} files")));
            }
        }
    }
    Ok(all.into_iter().collect())
}

/// Decodes `bytes` as the entries of a map with Services.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) -> String {
    let layouts = [
        ("cilium_lb4_serv", 12, 12),
        ("cilium_lb6_back", 4, 24),
        ("cilium_lb4_sour", 12, 1),
        ("cali_v4_nat_fe3", 16, 20),
        ("cali_v6_nat_be", 8, 20),
    ];
    let all = layouts.map(|(name, key, value)| {
        let layout = bpf::layout(name, key, value)?;
        let (key, value) = (usize::try_from(key).ok()?, usize::try_from(value).ok()?);
        let pairs = bytes.chunks_exact(key + value);
        let pairs: Vec<_> = pairs
            .map(|pair| (pair[..key].to_vec(), pair[key..].to_vec()))
            .collect();
        layout(&pairs)
    });
    serde_json::to_string(&all).unwrap_or_default()
}
