//! `kpx serve`: its metrics, its answer about the node's health, and its costs while the cluster changes.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::bridge::follow::{self, Node};
use super::netns::{Netns, get, run};
use super::probe::node;

/// How long a change may take to be seen.
const PATIENCE: Duration = Duration::from_secs(90);

/// A running server; killed when dropped.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// Starts `kpx serve` with `command`, which has the options of the node, and with `more`.
    fn start(mut command: process::Command, more: &[&str]) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        command.args(["serve", "--listen", &format!("127.0.0.1:{port}")]);
        command.args(more);
        let child = command.spawn().unwrap();
        let server = Self { child, port };
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begin.elapsed() < PATIENCE, "no answer");
            thread::sleep(Duration::from_millis(20));
        }
        server
    }

    /// Returns the status and the text of `path`.
    fn ask(&self, path: &str) -> (u16, String) {
        let text = get(("127.0.0.1", self.port), path).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }

    /// Returns the value of `series`: a metric with its labels, as in the text.
    fn value(&self, series: &str) -> Option<f64> {
        let (_, text) = self.ask("/metrics");
        let value = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
        text.lines().find_map(value)
    }

    /// Waits until `is_so`, and returns how long it took.
    fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) -> Duration {
        let begin = Instant::now();
        while !is_so(self) {
            let (_, health) = self.ask("/healthz");
            assert!(begin.elapsed() < PATIENCE, "{what}: {health}");
            thread::sleep(Duration::from_millis(100));
        }
        begin.elapsed()
    }

    fn readings(&self) -> f64 {
        let series = "kpx_readings_total{reading=\"node\",result=\"ok\"}";
        self.value(series).unwrap_or(0.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Returns kpx for the tutorial's node.
#[expect(clippy::disallowed_methods, reason = "kpx itself is what is tested")]
fn kpx(node: &Netns) -> process::Command {
    let mut command = process::Command::new(env!("CARGO_BIN_EXE_kpx"));
    let cluster = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nodes/seed-iptables");
    command.arg("--netns").arg(node.options().netns.unwrap());
    command.arg("--cluster-from").arg(cluster);
    command.args(["--node", "node1"]).stdin(Stdio::null());
    command
}

fn bundles(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "gz"));
    files.sort();
    files
}

#[test]
#[ignore = "needs root and a network namespace"]
fn long_a_removed_jump_changes_health_metrics_and_the_record() {
    let node = node();
    // kpx writes no bundle to a disk that is nearly full, as that of a build machine may be.
    let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
    let record = scratch.path().join("record");
    let server = Server::start(
        kpx(&node),
        &[
            "--interval",
            "200ms",
            "--budget",
            "100",
            "--record",
            record.to_str().unwrap(),
            "--record-interval",
            "1s",
        ],
    );
    assert_eq!(server.ask("/livez"), (200, "ok\n".to_owned()));
    server.wait("the first reading", |server| server.readings() > 0.0);
    // The node has no rules of IPv6.
    let drift = || server.value("kpx_drift_objects{type=\"none\"}").unwrap();
    let (drift_before, rules_before) = (drift(), errors_of_rules(&server));
    server.wait("a bundle", |_| !bundles(&record).is_empty());
    let before = server.value("kpx_changes_total{source=\"nftables\"}");
    let portals = |action: &str| {
        let words = "-m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES";
        let rules = format!("*nat\n{action} PREROUTING {words}\nCOMMIT\n");
        node.feed("iptables-nft-restore --noflush", &rules);
    };
    portals("-D");
    server.wait("the change", |server| {
        server.value("kpx_changes_total{source=\"nftables\"}") > before
    });
    server.wait("drift", |_| drift() > drift_before);
    assert!((drift() - drift_before - 1.0).abs() < 0.5);
    assert_eq!(server.ask("/healthz").0, 503);
    let new: Vec<_> = errors_of_rules(&server)
        .into_iter()
        .filter(|line| !rules_before.contains(line))
        .collect();
    let [new] = new.as_slice() else {
        panic!("{new:?}");
    };
    assert!(new.starts_with("IR01 "), "{new}");
    server.wait("a second bundle", |_| bundles(&record).len() > 1);
    portals("-A");
    server.wait("no drift", |_| drift() < drift_before + 0.5);
    assert_eq!(errors_of_rules(&server), rules_before);
    // A missing part is unknown, and has no number.
    assert_eq!(server.value("kpx_unknown{what=\"sync\"}"), Some(1.0));
    assert_eq!(server.value("kpx_sync_healthy"), None);
    documented(&server);
    drop(server);
    let bundles = bundles(&record);
    let mode = fs::metadata(&bundles[0]).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let [first, second] = [0, 1].map(|at: usize| bundles[at].to_str().unwrap());
    let text = differences(first, second);
    assert!(text.contains("nat PREROUTING"), "{text}");
}

/// Returns the lines of `/healthz` about rules of iptables.
fn errors_of_rules(server: &Server) -> Vec<String> {
    let (_, health) = server.ask("/healthz");
    let lines = health.lines().filter(|line| line.starts_with("IR"));
    lines.map(str::to_owned).collect()
}

/// Returns the output of `kpx diff` of two bundles, which differ.
#[expect(clippy::disallowed_methods, reason = "kpx itself is what is tested")]
fn differences(first: &str, second: &str) -> String {
    let output = process::Command::new(env!("CARGO_BIN_EXE_kpx"))
        .args(["diff", first, second])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Fails for a metric that the man page does not have.
fn documented(server: &Server) {
    let page = run(&[env!("CARGO_BIN_EXE_kpx"), "man", "metrics"], "");
    let (_, text) = server.ask("/metrics");
    let heads = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let names: Vec<_> = heads.map(|line| line.split(' ').next().unwrap()).collect();
    assert!(names.len() > 20, "{text}");
    for name in names {
        let is_there = page.lines().any(|line| {
            line.strip_prefix(".B ")
                .and_then(|line| line.split('{').next())
                .is_some_and(|word| word == name)
        });
        assert!(is_there, "{name}");
    }
}

/// Changes of the cluster, and of the rules.
const CHANGES: u32 = 9_500;
const TRANSACTIONS: u32 = 500;

#[test]
#[ignore = "needs root and a network namespace"]
fn long_ten_thousand_changes_are_followed_in_the_same_memory() {
    let node = Node::new("seed-iptables");
    node.netns
        .feed("iptables-nft-restore", &super::tools::rules());
    node.netns.run("nft add table ip foreign");
    let more = ["--interval", "100ms", "--budget", "100"];
    let server = Server::start(node.kpx(&[]), &more);
    server.wait("the first reading", |server| server.readings() > 0.0);
    server.wait("the cluster", |server| {
        server.value("kpx_service_ports").is_some()
    });
    let ports = server.value("kpx_service_ports").unwrap();
    let slice = follow::slice(&node.api);
    let memory = || server.value("kpx_resident_memory_bytes").unwrap();
    // Most of it in the first fifth, which has the first reading, and after.
    let (mut first, mut later): (f64, f64) = (0.0, 0.0);
    for at in 0..CHANGES {
        let ends: Vec<_> = (0..=(at % 9))
            .map(|end| format!("10.244.{}.{}", 1 + at % 200, 10 + end))
            .collect();
        let ends: Vec<_> = ends.iter().map(String::as_str).collect();
        follow::set(&node, &slice, &ends);
        if at % (CHANGES / TRANSACTIONS) == 0 {
            let verb = ["add", "delete"][(at / (CHANGES / TRANSACTIONS) % 2) as usize];
            node.netns.run(&format!("nft {verb} chain ip foreign x"));
        }
        if at % 100 == 0 {
            // A slower pace than a burst of which only the end is seen.
            thread::sleep(Duration::from_millis(100));
            let now = memory();
            if at <= CHANGES / 5 {
                first = first.max(now);
            } else {
                later = later.max(now);
            }
        }
    }
    let cluster = server
        .value("kpx_changes_total{source=\"cluster\"}")
        .unwrap();
    let rules = server
        .value("kpx_changes_total{source=\"nftables\"}")
        .unwrap();
    assert!(cluster > 20.0 && rules > 20.0, "{cluster} {rules}");
    eprintln!(
        "resident memory: at most {first} in the first fifth, {later} later; {cluster} and {rules} changes seen"
    );
    assert!(later < first * 1.1, "{first} {later}");
    // The metrics follow.
    node.api.with(|cluster| {
        cluster.put(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "default", "name": "late"},
            "spec": {"type": "ClusterIP", "clusterIP": "10.97.0.99", "clusterIPs": ["10.97.0.99"],
                "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]},
        }));
    });
    server.wait("the new Service", |server| {
        server.value("kpx_service_ports") == Some(ports + 1.0)
    });
    let before = server.readings();
    server.wait("a reading", |server| server.readings() > before);
    server.wait("its drift", |server| {
        server.value("kpx_drift_objects{type=\"ClusterIP\"}") > Some(0.0)
    });
}
