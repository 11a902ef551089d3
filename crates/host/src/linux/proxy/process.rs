//! Finds kube-proxy's process and its flags.

use std::fs;
use std::path::{Path, PathBuf};

use crate::root_path;
use kpx_node::cluster::flags::Flags;

/// A process that is kube-proxy or embeds it.
#[derive(Clone, Debug)]
pub(super) struct Process {
    /// Process ID.
    pub(super) pid: u32,
    /// kube-proxy's flags.
    pub(super) flags: Flags,
    /// Whether it is a distribution's program that adds flags of its own (k3s, kubelite).
    pub(super) embedded: bool,
    /// Folder of the process in /proc.
    pub(super) folder: PathBuf,
}

impl Process {
    /// Returns whether a signal or a debugger has stopped it.
    fn is_stopped(&self) -> bool {
        let text = fs::read_to_string(self.folder.join("status")).unwrap_or_default();
        let mut states = text.lines().filter_map(|line| line.strip_prefix("State:"));
        states.any(|state| state.trim_start().starts_with(['T', 't']))
    }
}

/// Processes of kube-proxy on the node.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    /// The process in this network namespace.
    pub(super) here: Option<Process>,
    /// IDs of processes in other network namespaces.
    pub(super) elsewhere: Vec<u32>,
}

impl Table {
    /// Returns a description of the process, used as a reason if there is no better one.
    pub(super) fn describe(&self) -> String {
        match (&self.here, self.elsewhere.as_slice()) {
            (Some(process), _) if process.is_stopped() => {
                format!("kube-proxy (process {}) is stopped (state T)", process.pid)
            }
            (Some(process), _) => format!("kube-proxy (process {}) runs", process.pid),
            (None, []) => "no kube-proxy process found".to_owned(),
            (None, [pid, ..]) => {
                format!("kube-proxy (process {pid}) runs in another network namespace")
            }
        }
    }
}

/// Looks for kube-proxy in /proc below `root`. The calling thread must be in the network namespace.
pub(super) fn find(root: &Path) -> Table {
    let proc = root.join("proc");
    let ours = fs::read_link("/proc/thread-self/ns/net").ok();
    let mut table = Table::default();
    let mut candidates = Vec::new();
    // An unreadable process table is reported by the reader of `Item::Processes`.
    for entry in fs::read_dir(&proc).into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        let Some((flags, embedded)) = classify(root, &entry.path()) else {
            continue;
        };
        let theirs = fs::read_link(entry.path().join("ns/net")).ok();
        if ours.is_some() && theirs.is_some() && ours != theirs {
            table.elsewhere.push(pid);
            continue;
        }
        candidates.push(Process {
            pid,
            flags,
            embedded,
            folder: entry.path(),
        });
    }
    table.elsewhere.sort_unstable();
    table.here = candidates.into_iter().min_by_key(|p| (p.embedded, p.pid));
    table
}

/// Returns whether the process `pid` is kube-proxy, or embeds it.
pub(super) fn is_proxy(root: &Path, pid: u32) -> bool {
    classify(root, &root.join("proc").join(pid.to_string())).is_some()
}

/// Returns kube-proxy's flags, and whether it is embedded in another program; `None` for other processes.
fn classify(root: &Path, process: &Path) -> Option<(Flags, bool)> {
    let line = fs::read(process.join("cmdline")).ok()?;
    let line = String::from_utf8_lossy(&line);
    let args: Vec<&str> = line.trim_end_matches('\0').split('\0').collect();
    let name = args.first()?.rsplit('/').next()?;
    match (name, args.get(1)) {
        ("kube-proxy", _) => Some((Flags::parse(&args[1..]), false)),
        ("hyperkube", Some(&("kube-proxy" | "proxy"))) => Some((Flags::parse(&args[2..]), false)),
        ("k3s", Some(&("server" | "agent"))) | ("k3s-server" | "k3s-agent", _) => {
            let is_off = Flags::parse(&args).is_on("disable-kube-proxy");
            (!is_off).then(|| (Flags::passed_on(&args), true))
        }
        ("kubelite", _) => {
            let flags = Flags::parse(&args);
            let path = flags.value("kube-proxy-args-file")?;
            let path = root_path::resolve(root, Path::new(path)).ok()?;
            let text = fs::read_to_string(path).ok()?;
            let args: Vec<_> = text.split_whitespace().collect();
            Some((Flags::parse(&args), true))
        }
        _ => None,
    }
}

impl Process {
    /// Returns the path, for kpx, of the process's file `path`.
    pub(super) fn file(&self, path: &str) -> PathBuf {
        let path = Path::new(path);
        if path.is_relative() {
            return self.folder.join("cwd").join(path);
        }
        let root = self.folder.join("root");
        // A cycle of links is reported when the file is opened.
        root_path::resolve(&root, path).unwrap_or_else(|_| root.join(path))
    }
}
