//! How long a change of an `EndpointSlice` takes until its rules are in the kernel, on a node with 2000 Services of 10
//! endpoints: with `kpx reconcile --watch`, and with kube-proxy, if `KUBE_BIN` is the folder of its program. As root, in a
//! network namespace of its own; `make bench` runs it.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark prints its result, and panics on errors"
)]

#[path = "../tests/fake_api/mod.rs"]
#[expect(
    dead_code,
    unused_imports,
    reason = "only what follows a cluster is used"
)]
mod fake_api;
#[path = "../tests/kernel/netns.rs"]
#[expect(dead_code, reason = "only what starts programs is used")]
mod netns;

use std::env;
use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use flate2::read::GzDecoder;
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::{Value, json};

use fake_api::{Api, Key};
use netns::Netns;

/// How many changes are measured.
const CHANGES: u8 = 15;

/// Pause between two changes: longer than what kube-proxy waits between two syncs.
const PAUSE: Duration = Duration::from_secs(4);

/// Longest wait for the first sync, or for a change.
const PATIENCE: Duration = Duration::from_secs(180);

/// The changes of nftables.
const NFNLGRP_NFTABLES: u32 = 7;

/// The last endpoint of the recordings.
const LAST: &str = "10.128.79.250";

/// How long a change may take with kpx.
const LIMIT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let proxy = env::var_os("KUBE_BIN").map(|folder| PathBuf::from(folder).join("kube-proxy"));
    if proxy.is_none() {
        println!("KUBE_BIN is not set: kube-proxy is not measured");
    }
    let mut slow = false;
    for mode in ["iptables", "nftables"] {
        if let Some(program) = &proxy {
            measure("kube-proxy", mode, |node| node.kube_proxy(program, mode));
        }
        slow |= measure("kpx", mode, |node| node.kpx(mode)) > LIMIT;
    }
    if slow {
        println!("kpx takes longer than {} s", LIMIT.as_secs());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// A node of a cluster whose API server is in the same network namespace.
struct Node {
    netns: Netns,
    api: Api,
    root: tempfile::TempDir,
}

/// Measures the program that `start` starts on a new node; returns how long the slowest change took.
fn measure(name: &str, mode: &str, start: impl Fn(&Node) -> Command) -> Duration {
    let node = Node::new(mode);
    let log = File::create(node.root.path().join("log")).unwrap();
    let mut command = start(&node);
    command.stdin(Stdio::null());
    command.stdout(log.try_clone().unwrap()).stderr(log);
    let mut program = Running(node.netns.inside(|| command.spawn().unwrap()));
    let begin = Instant::now();
    while !node.is_served(mode) {
        program.must_run(&node);
        assert!(begin.elapsed() < PATIENCE, "no first sync: {}", node.log());
        thread::sleep(Duration::from_secs(1));
    }
    let first = begin.elapsed();
    // The rest of the first sync, and what is read after it.
    thread::sleep(10 * PAUSE);
    let changes = node.changes();
    let mut times: Vec<Duration> = (1..=CHANGES)
        .map(|number| {
            while changes.try_recv().is_ok() {}
            let addr = Ipv4Addr::new(10, 200, 0, number);
            let begin = Instant::now();
            node.change(number.into(), addr);
            node.wait(&changes, addr, &mut program);
            let took = begin.elapsed();
            thread::sleep(PAUSE);
            took
        })
        .collect();
    times.sort();
    let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
    println!(
        "{mode:8}  {name:10}  first sync {:6.1} s  change: median {:6.3} s, at most {:6.3} s",
        first.as_secs_f64(),
        median.as_secs_f64(),
        most.as_secs_f64()
    );
    most
}

impl Node {
    fn new(mode: &str) -> Self {
        let netns = Netns::new();
        netns.feed(
            "ip -batch -",
            "link add eth0 type veth peer name far0\nlink set eth0 up\nlink set far0 up\naddr add 10.0.2.15/24 dev eth0\n",
        );
        let api = netns.inside(Api::new);
        let folder = Path::new("testdata/nodes").join(format!("scale-2000x10-{mode}"));
        api.with(|cluster| {
            for (kind, file) in [
                ("Node", "nodes"),
                ("Service", "services"),
                ("EndpointSlice", "endpointslices"),
            ] {
                for mut object in objects(&folder.join(format!("cluster/{file}.json.gz"))) {
                    object["kind"] = kind.into();
                    cluster.put(object);
                }
            }
            cluster.put(json!({
                "kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": "kubernetes"},
                "spec": {"cidrs": ["10.96.0.0/12"]},
            }));
            let config = fs::read_to_string(folder.join("kube-proxy/config.conf")).unwrap();
            cluster.put(json!({
                "kind": "ConfigMap", "metadata": {"name": "kube-proxy", "namespace": "kube-system"},
                "data": {"config.conf": config},
            }));
        });
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("run")).unwrap();
        for folder in ["proc", "sys", "lib", "usr", "run/netns"] {
            symlink(Path::new("/").join(folder), root.path().join(folder)).unwrap();
        }
        fs::write(root.path().join("kubeconfig"), api.kubeconfig()).unwrap();
        Self { netns, api, root }
    }

    fn kpx(&self, mode: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kpx"));
        command.arg("--root").arg(self.root.path());
        command
            .arg("--kubeconfig")
            .arg(self.root.path().join("kubeconfig"));
        command.args([
            "--node",
            "node1",
            "--timeout",
            "60s",
            "reconcile",
            "--watch",
        ]);
        command.args(["--apply", "--yes", "--mode", mode]);
        command
    }

    fn kube_proxy(&self, program: &Path, mode: &str) -> Command {
        let config = self.root.path().join("config.json");
        let text = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
            "mode": mode, "hostnameOverride": "node1", "clusterCIDR": "10.128.0.0/9",
            "clientConnection": {"kubeconfig": self.root.path().join("kubeconfig")},
            // Settings of the whole machine.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        });
        fs::write(&config, text.to_string()).unwrap();
        let mut command = Command::new(program);
        command.arg("--config").arg(config);
        command
    }

    fn log(&self) -> String {
        fs::read_to_string(self.root.path().join("log")).unwrap()
    }

    /// Returns whether the rules have the last endpoint of the recording.
    fn is_served(&self, mode: &str) -> bool {
        let rules = match mode {
            "iptables" => self.netns.run("iptables-save -t nat"),
            _ if !self.netns.run("nft list tables").contains("ip kube-proxy") => return false,
            _ => self.netns.run("nft list table ip kube-proxy"),
        };
        rules.contains(LAST)
    }

    /// Receives each change of the rules from now on.
    fn changes(&self) -> Receiver<io::Result<Vec<u8>>> {
        let socket = self.netns.inside(|| {
            let mut socket = Socket::new(NETLINK_NETFILTER).unwrap();
            socket.bind_auto().unwrap();
            socket.add_membership(NFNLGRP_NFTABLES).unwrap();
            // All messages of a transaction come at once: kube-proxy's has thousands.
            setsockopt(&socket, sockopt::RcvBufForce, &(64 << 20)).unwrap();
            socket
        });
        let (sender, receiver) = channel();
        thread::spawn(move || {
            loop {
                let mut bytes = Vec::with_capacity(64 << 10);
                let part = socket.recv(&mut bytes, 0).map(|_| bytes);
                if sender.send(part).is_err() {
                    break;
                }
            }
        });
        receiver
    }

    /// Replaces the last endpoint of a Service.
    fn change(&self, number: usize, addr: Ipv4Addr) {
        self.api.with(|cluster| {
            let slice = cluster.list("endpointslices").nth(17 + 37 * number);
            let key = Key::of(slice.unwrap());
            cluster.edit(&key, |slice| {
                let endpoints = slice["endpoints"].as_array_mut().unwrap();
                endpoints.last_mut().unwrap()["addresses"] = json!([addr.to_string()]);
            });
        });
    }

    /// Waits until a change of the rules has `addr`.
    fn wait(&self, changes: &Receiver<io::Result<Vec<u8>>>, addr: Ipv4Addr, program: &mut Running) {
        let begin = Instant::now();
        loop {
            if let Ok(bytes) = changes.recv_timeout(Duration::from_secs(1))
                && bytes
                    .unwrap()
                    .windows(4)
                    .any(|window| window == addr.octets())
            {
                return;
            }
            program.must_run(self);
            let waited = begin.elapsed();
            assert!(waited < PATIENCE, "{addr} is not served: {}", self.log());
        }
    }
}

/// Returns the objects of a list, or the single one, in a compressed file.
fn objects(path: &Path) -> Vec<Value> {
    let mut value: Value =
        serde_json::from_reader(GzDecoder::new(File::open(path).unwrap())).unwrap();
    match value["items"].take() {
        Value::Array(items) => items,
        _ => vec![value],
    }
}

/// A program; killed when dropped.
struct Running(Child);

impl Running {
    fn must_run(&mut self, node: &Node) {
        if let Some(status) = self.0.try_wait().unwrap() {
            panic!("the program ended: {status}: {}", node.log());
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
