//! A process that does to a node what kube-proxy does, for tests that restart it in another mode.
//!
//! kpx finds it as it finds kube-proxy: by its name and `--config`, in its network namespace. When it starts, it removes the
//! same rules of other modes as the real one. It writes the rules of its mode with the standard tools in the same order,
//! follows the cluster, and answers on the same two ports. It writes kpx's own desired state, which other tests compare with
//! recordings. A test can make its first sync take longer.
//!
//! The process is this test program, which runs only `tests::kube_proxy_answers_and_leaves_its_rules`.

mod cleanup;
mod daemon;
mod servers;
mod sync;
mod tests;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::netns::{Netns, processes};

/// In the environment of the process: the folder it works with.
const FOLDER: &str = "KPX_STAND_IN";

/// The folder of one node's kube-proxy.
///
/// It is a bundle's: `kube-proxy/config.conf` is its configuration, and in `cluster/` are the objects. Where there is a file
/// `kubeconfig`, it asks that API server instead.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn config(&self) -> PathBuf {
        self.0.join("kube-proxy/config.conf")
    }

    fn log(&self) -> PathBuf {
        self.0.join("kube-proxy.log")
    }

    /// How long the first sync takes longer, in milliseconds.
    fn delay(&self) -> PathBuf {
        self.0.join("first-sync")
    }
}

/// Writes `file` in one step: who reads meanwhile sees the old text or the new one.
pub(crate) fn replace(file: &Path, text: &str) {
    let part = file.with_extension("part");
    fs::write(&part, text).unwrap();
    fs::rename(part, file).unwrap();
}

/// A running stand-in; ended when dropped.
pub(crate) struct KubeProxy {
    child: process::Child,
    folder: PathBuf,
    _group: Option<Group>,
}

/// A control group as a kubelet makes for its pods; removed when dropped, after its process.
struct Group(PathBuf);

impl Group {
    /// Puts a process into one, in the hierarchy that says what it belongs to; `None` on a machine without.
    fn of(pid: u32) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mounts: Vec<Vec<&str>> = mounts
            .lines()
            .map(|line| line.split(' ').collect())
            .collect();
        let named = mounts.iter().find(|m| m[3].contains("name=systemd"));
        let mount = named.or_else(|| mounts.iter().find(|m| m[2] == "cgroup2"))?;
        let group = Path::new(mount[1]).join(format!("kubepods-kpx-test-{}-{pid}", processes()));
        fs::create_dir(&group).unwrap();
        fs::write(group.join("cgroup.procs"), pid.to_string()).unwrap();
        Some(Self(group))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A tool that it started itself and that was just at work may need a moment to end.
        let begin = Instant::now();
        while let Err(error) = fs::remove_dir(&self.0) {
            let busy = error.kind() == ErrorKind::ResourceBusy;
            assert!(
                busy && begin.elapsed() < Duration::from_secs(30),
                "{}: {error}",
                self.0.display()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl KubeProxy {
    /// Starts one inside `netns` that takes `first_sync` longer for its first sync.
    #[expect(clippy::disallowed_methods, reason = "a test may start itself")]
    pub(crate) fn start(netns: &Netns, folder: &Folder, first_sync: Duration) -> Self {
        // The kernel calls a process as the file is called that it was started by.
        let program = folder.0.join("bin/kube-proxy");
        if !program.exists() {
            symlink(std::env::current_exe().unwrap(), &program).unwrap();
        }
        fs::write(folder.delay(), first_sync.as_millis().to_string()).unwrap();
        fs::write(folder.log(), "").unwrap();
        let child = netns.inside(|| {
            process::Command::new(&program)
                .arg0("kube-proxy")
                // Words behind the dashes are for kube-proxy; the test program takes them for the name of a test.
                .args(["--ignored", "--exact", "--nocapture", "--test-threads=1"])
                .arg("kernel::stand_in::tests::kube_proxy_answers_and_leaves_its_rules")
                .args(["--", "--hostname-override=node1"])
                .arg(format!("--config={}", folder.config().display()))
                .env(FOLDER, &folder.0)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        });
        let group = Group::of(child.id());
        Self {
            child,
            folder: folder.0.clone(),
            _group: group,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns what it has logged so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("kube-proxy.log")).unwrap()
    }

    /// Waits until it has logged `what` as often as `times`.
    pub(crate) fn wait_for(&mut self, what: &str, times: usize) {
        let begin = Instant::now();
        while self.log().matches(what).count() < times {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", self.log());
            assert!(begin.elapsed() < Duration::from_secs(180), "{}", self.log());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until it has synced both families `times` times.
    pub(crate) fn wait_synced(&mut self, times: usize) {
        for family in ["IPv4", "IPv6"] {
            let line = format!("\"SyncProxyRules complete\" ipFamily=\"{family}\"");
            self.wait_for(&line, times);
        }
    }

    /// Ends it as a kubelet does; its rules stay.
    pub(crate) fn stop(mut self) {
        kill(Pid::from_raw(self.pid().cast_signed()), Signal::SIGTERM).unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for KubeProxy {
    fn drop(&mut self) {
        // It may have ended already.
        self.child.kill().ok();
        self.child.wait().unwrap();
    }
}

/// Copies the recorded cluster `name` into the folder of a node, with its configuration in `mode`.
pub(crate) fn recorded(name: &str, mode: &str, to: &Path) -> Folder {
    let from = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata/nodes")
        .join(name);
    for part in ["bin", "cluster", "kube-proxy"] {
        fs::create_dir(to.join(part)).unwrap();
    }
    for file in fs::read_dir(from.join("cluster")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join("cluster").join(file.file_name())).unwrap();
    }
    let config = fs::read_to_string(from.join("kube-proxy/config.conf")).unwrap();
    let folder = Folder(to.to_owned());
    fs::write(folder.config(), with_mode(&config, mode)).unwrap();
    folder
}

/// The configuration `config` with another mode.
pub(crate) fn with_mode(config: &str, mode: &str) -> String {
    let lines = config.lines().map(|line| {
        if line.starts_with("mode:") {
            format!("mode: \"{mode}\"\n")
        } else {
            format!("{line}\n")
        }
    });
    lines.collect()
}
