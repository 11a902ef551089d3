//! Reads the processes that are or may be a service proxy.

use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::{SysconfVar, sysconf};

use super::context::{Context, gap};
use super::files;
use kpx_node::evidence::processes::{Process, Processes};
use kpx_node::evidence::{Gap, Item};

/// Programs that write Service rules or virtual servers, with a word that their command line must contain.
const PROXIES: &[(&str, Option<&str>)] = &[
    ("antrea-agent", None),
    ("calico-felix", None),
    ("calico-node", Some("-felix")),
    ("cilium-agent", None),
    ("hyperkube", Some("proxy")),
    // k3s contains kube-proxy; k0s and RKE2 start its pod.
    ("k0s", None),
    ("k3s", None),
    ("k3s-agent", None),
    ("k3s-server", None),
    ("keepalived", None),
    ("kpng", None),
    ("kube-proxy", None),
    ("kube-router", None),
    ("kube-vip", None),
    ("kubelite", None),
    ("ovnkube", None),
    ("rke2", None),
];

/// Name of the initial PID namespace: `PROC_PID_INIT_INO` in `linux/proc_ns.h`.
const INITIAL_PIDS: &str = "pid:[4026531836]";

/// Reads the processes of service proxies. Must run inside the network namespace.
pub(super) fn read(item: Item, context: &Context) -> Result<String, Gap> {
    let proc = context.path("proc");
    let boot = boot_time(item, &proc)?;
    let network = fs::read_link(proc.join("thread-self/ns/net")).ok();
    let mut processes = Vec::new();
    let mut has_kubelet = false;
    for pid in ids(item, &proc)? {
        // A process that ends meanwhile is skipped.
        let folder = proc.join(pid.to_string());
        if let Some(process) = process(&folder, pid, boot, network.as_ref()) {
            processes.push(process);
        } else if command(&folder).as_deref() == Some("kubelet") {
            has_kubelet = true;
        }
    }
    // A node can be a container itself, as in kind; its processes are the node's.
    if processes.is_empty()
        && !has_kubelet
        && fs::read_link(proc.join("1/ns/pid")).is_ok_and(|ns| ns != Path::new(INITIAL_PIDS))
    {
        let what = "no service proxy among the visible processes, which are only those of the container; \
                    set hostPID: true to see those of the host";
        return Err(Gap::Absent(item, what.to_owned()));
    }
    processes.sort_by_key(|process| process.pid);
    serde_json::to_string_pretty(&Processes { processes })
        .map(|text| text + "\n")
        .map_err(|e| Gap::Failed(item, e.to_string()))
}

/// Returns the IDs of all visible processes.
pub(super) fn ids(item: Item, proc: &Path) -> Result<Vec<u32>, Gap> {
    let entries = fs::read_dir(proc).map_err(|e| gap(item, proc.display(), &e))?;
    let mut ids = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| gap(item, proc.display(), &e))?;
        ids.extend(
            entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<u32>().ok()),
        );
    }
    Ok(ids)
}

/// Returns the control group of the process with the folder `dir`, as seen by the init system.
fn cgroup(dir: &Path) -> Option<String> {
    let text = fs::read_to_string(dir.join("cgroup")).ok()?;
    let of = |head: &str| text.lines().find_map(|line| line.split_once(head));
    // Version 2, or systemd's hierarchy of version 1: cgroups(7).
    let (_, path) = of(":name=systemd:").or_else(|| of("0::"))?;
    Some(path.to_owned())
}

/// Returns the command name of the process with the folder `dir`.
pub(super) fn command(dir: &Path) -> Option<String> {
    let bytes = fs::read(dir.join("comm")).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

fn process(dir: &Path, pid: u32, boot: u64, network: Option<&PathBuf>) -> Option<Process> {
    let name = command(dir)?;
    let line = fs::read(dir.join("cmdline")).ok()?;
    let args: Vec<_> = String::from_utf8_lossy(&line)
        .split_terminator('\0')
        .map(str::to_owned)
        .collect();
    let state = fields(dir).and_then(|all| all.first().cloned());
    // A zombie has ended; only its parent has not noticed.
    let runs = state.as_deref() != Some("Z");
    (runs && is_proxy(&name, &args)).then(|| Process {
        pid,
        state,
        started: started(dir, boot),
        same_network: network
            .and_then(|ours| Some(fs::read_link(dir.join("ns/net")).ok()? == *ours)),
        cgroup: cgroup(dir),
        name,
        args,
    })
}

fn is_proxy(name: &str, args: &[String]) -> bool {
    let program = args.first().and_then(|arg| {
        // k3s and others put a whole title into the first argument.
        Path::new(arg.split(' ').next()?).file_name()?.to_str()
    });
    PROXIES.iter().any(|&(proxy, word)| {
        (name == proxy || program == Some(proxy))
            && word.is_none_or(|word| {
                args.iter()
                    .any(|arg| arg.trim_start_matches('-') == word.trim_start_matches('-'))
            })
    })
}

/// Returns the start time of the process with the folder `dir` on the machine `root`, in seconds since the epoch.
pub(super) fn start_of(item: Item, root: &Path, dir: &Path) -> Option<u64> {
    started(dir, boot_time(item, &root.join("proc")).ok()?)
}

/// Returns the boot time of the machine, in seconds since the epoch.
pub(super) fn boot_time(item: Item, proc: &Path) -> Result<u64, Gap> {
    let stat = files::text(item, &proc.join("stat"))?;
    stat.lines()
        .find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
        .ok_or_else(|| Gap::Failed(item, "/proc/stat has no btime".to_owned()))
}

/// Returns the fields after the name in `stat` of the process with the folder `dir`.
fn fields(dir: &Path) -> Option<Vec<String>> {
    let stat = fs::read_to_string(dir.join("stat")).ok()?;
    // The name is in parentheses and may contain any character.
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

fn started(dir: &Path, boot: u64) -> Option<u64> {
    // starttime is field 22 of proc_pid_stat(5), and state, field 3, is the first one after the name.
    let ticks: u64 = fields(dir)?.get(22 - 3)?.parse().ok()?;
    let per_second = sysconf(SysconfVar::CLK_TCK).ok()??;
    Some(boot + ticks / u64::try_from(per_second).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_recognised_by_its_program_or_title() {
        let is = |name: &str, line: &str| {
            let args: Vec<_> = line.split(' ').map(str::to_owned).collect();
            is_proxy(name, &args)
        };
        assert!(is(
            "kube-proxy",
            "/usr/local/bin/kube-proxy --config=/var/lib/kube-proxy/config.conf"
        ));
        assert!(is("calico-node", "calico-node -felix"));
        assert!(!is("calico-node", "calico-node -confd"));
        assert!(is_proxy(
            "k3s-server",
            &["/usr/local/bin/k3s server".to_owned()]
        ));
        assert!(!is("bash", "bash -c kube-proxy"));
    }
}
