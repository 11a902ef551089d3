//! The bridge of a cluster that changes.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{self, Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fake_api::{Api, Key};
use crate::kernel::netns::Netns;

/// Within which time a change must be seen. `kpx bridge` promises a second.
const SECOND: Duration = Duration::from_secs(1);

/// Returns a root of its own: no other process on this machine holds locks in it.
pub(crate) fn own_root() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("run")).unwrap();
    for folder in ["proc", "sys", "lib", "usr", "run/netns"] {
        symlink(Path::new("/").join(folder), root.path().join(folder)).unwrap();
    }
    root
}

/// A node whose cluster is a fake one.
pub(crate) struct Node {
    pub(crate) netns: Netns,
    pub(crate) api: Api,
    pub(crate) root: TempDir,
}

impl Node {
    pub(crate) fn new(recording: &str) -> Self {
        let api = Api::new();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nodes");
        api.seed(&folder.join(recording), &["node1"]);
        let netns = Netns::new();
        netns.feed(
            "ip -batch -",
            "link add eth0 type veth peer name far0\nlink set eth0 up\nlink set far0 up\naddr add 10.0.2.15/24 dev eth0\n",
        );
        let root = own_root();
        fs::write(root.path().join("kubeconfig"), api.kubeconfig()).unwrap();
        Self { netns, api, root }
    }

    #[expect(clippy::disallowed_methods, reason = "kpx itself is what is tested")]
    pub(crate) fn kpx(&self, args: &[&str]) -> process::Command {
        let mut command = process::Command::new(env!("CARGO_BIN_EXE_kpx"));
        let path = |name: &str| self.root.path().join(name);
        command
            .arg("--netns")
            .arg(self.netns.options().netns.unwrap());
        command.arg("--root").arg(self.root.path());
        command.arg("--kubeconfig").arg(path("kubeconfig"));
        command
            .args(["--node", "node1", "--timeout", "60s"])
            .args(args);
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn done(&self, args: &[&str]) -> String {
        let output = self.kpx(args).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.success(), "{args:?}: {text}");
        text
    }

    fn follow(&self) -> Following<'_> {
        self.follow_with(&[])
    }

    pub(crate) fn follow_with(&self, more: &[&str]) -> Following<'_> {
        let mut child = self
            .kpx(&[&["bridge", "follow", "--mode", "iptables"], more].concat())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        assert!(first.contains("following the cluster"), "{first}");
        // Whoever writes must not be stopped by a full pipe.
        thread::spawn(move || lines.for_each(|line| drop(line.unwrap())));
        Following { node: self, child }
    }

    /// What leads to the tutorial's Service: where its address leads, and all of its endpoints.
    pub(crate) fn endpoints(&self, vip: &str) -> (String, Vec<String>) {
        let text = self.netns.run("nft list table ip kpx-bridge");
        let of = |line: &str| {
            let (key, to) = line.split_once(" : ")?;
            let to = to.trim_end_matches([',', ' ', '}']);
            key.contains(&format!("{vip} .")).then(|| to.to_owned())
        };
        let all: Vec<_> = text.lines().filter_map(of).collect();
        let (chains, mut endpoints): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|to| to.starts_with("goto "));
        endpoints.sort();
        (chains.concat(), endpoints)
    }
}

/// A `kpx bridge follow`; killed when dropped.
pub(crate) struct Following<'n> {
    node: &'n Node,
    child: Child,
}

impl Drop for Following<'_> {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Following<'_> {
    /// Waits until `vip` leads to `chain` and `endpoints`.
    fn sees(&self, vip: &str, chain: &str, endpoints: &[&str]) -> Duration {
        let begin = Instant::now();
        loop {
            let seen = self.node.endpoints(vip);
            let took = begin.elapsed();
            if seen.0 == chain && seen.1 == endpoints {
                return took;
            }
            assert!(took < SECOND, "{chain} {endpoints:?}: {seen:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

pub(crate) const VIP: &str = "10.97.54.248";

/// The EndpointSlice of the tutorial's Service.
pub(crate) fn slice(api: &Api) -> Key {
    api.with(|cluster| {
        let mut all = cluster.list("endpointslices");
        let of = all.find(|slice| {
            slice["metadata"]["labels"]["kubernetes.io/service-name"] == "nginx-svc"
                && slice["addressType"] == "IPv4"
        });
        let metadata = &of.unwrap()["metadata"];
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        Key::new(
            "endpointslices",
            &word(&metadata["namespace"]),
            &word(&metadata["name"]),
        )
    })
}

pub(crate) fn set(node: &Node, slice: &Key, addresses: &[&str]) {
    let endpoints = addresses.iter().map(
        |addr| json!({"addresses": [addr], "nodeName": "node1", "conditions": {"ready": true}}),
    );
    let endpoints: Vec<_> = endpoints.collect();
    node.api.with(|cluster| {
        cluster.edit(slice, |slice| slice["endpoints"] = endpoints.into());
    });
}

#[test]
#[ignore = "needs root and a network namespace"]
fn changes_of_the_cluster_are_followed_within_a_second() {
    let node = Node::new("seed-iptables");
    node.done(&[
        "bridge", "up", "--mode", "iptables", "--apply", "--yes", "-q",
    ]);
    node.netns.run("nft add table ip foreign");
    let following = node.follow();
    let (a, b, c) = ("10.244.1.14 . 80", "10.244.1.16 . 80", "10.244.1.17 . 80");
    following.sees(VIP, "goto cluster-3", &[a, b, c]);
    let slice = slice(&node.api);
    // Removed, added, all gone, and back.
    set(&node, &slice, &["10.244.1.14", "10.244.1.17"]);
    following.sees(VIP, "goto cluster-2", &[a, c]);
    set(
        &node,
        &slice,
        &["10.244.1.14", "10.244.1.17", "10.244.1.99", "10.244.1.16"],
    );
    following.sees(VIP, "goto cluster-4", &[a, b, c, "10.244.1.99 . 80"]);
    set(&node, &slice, &[]);
    following.sees(VIP, "goto refuse-reject", &[]);
    set(&node, &slice, &["10.244.1.16"]);
    following.sees(VIP, "goto cluster-endpoint-0", &[b]);
    // The API server ends its watches, and is away for a while.
    node.api.with(crate::fake_api::Cluster::cut_watches);
    set(&node, &slice, &["10.244.1.14"]);
    following.sees(VIP, "goto cluster-endpoint-0", &[a]);
    node.api.with(|cluster| cluster.set_away(true));
    thread::sleep(Duration::from_millis(700));
    set(&node, &slice, &["10.244.1.17"]);
    node.api.with(|cluster| cluster.set_away(false));
    thread::sleep(Duration::from_millis(1500));
    following.sees(VIP, "goto cluster-endpoint-0", &[c]);
    // A Service that was not there.
    node.api.with(|cluster| {
        cluster.put(json!({
            "kind": "Service", "apiVersion": "v1",
            "metadata": {"name": "late", "namespace": "default"},
            "spec": {"type": "ClusterIP", "clusterIP": "10.98.7.6", "clusterIPs": ["10.98.7.6"], "ipFamilies": ["IPv4"],
                "ports": [{"port": 8080, "protocol": "UDP", "targetPort": 80}]},
        }));
    });
    following.sees("10.98.7.6", "goto refuse-reject", &[]);
    node.api.with(|cluster| {
        cluster.put(json!({
            "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
            "metadata": {"name": "late-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "late"}},
            "endpoints": [{"addresses": ["10.244.1.77"], "conditions": {"ready": true}}],
            "ports": [{"name": "", "port": 80, "protocol": "UDP"}],
        }));
    });
    following.sees(
        "10.98.7.6",
        "goto cluster-endpoint-0",
        &["10.244.1.77 . 80"],
    );
    assert!(
        node.netns
            .run("nft list tables")
            .contains("table ip foreign")
    );
}

#[test]
#[ignore = "needs root and a network namespace"]
fn killed_at_any_moment_it_leaves_a_whole_table() {
    let node = Node::new("seed-iptables");
    node.done(&[
        "bridge", "up", "--mode", "iptables", "--apply", "--yes", "-q",
    ]);
    let slice = slice(&node.api);
    let all = ["10.244.1.14", "10.244.1.16", "10.244.1.17", "10.244.1.18"];
    for moment in 0..12 {
        let following = node.follow();
        set(&node, &slice, &all[..=moment % 4]);
        thread::sleep(Duration::from_millis(u64::try_from(moment).unwrap() * 7));
        drop(following);
        let (chain, endpoints) = node.endpoints(VIP);
        let count = endpoints.len();
        let leads = match count {
            1 => "goto cluster-endpoint-0".to_owned(),
            many => format!("goto cluster-{many}"),
        };
        assert!(
            (1..=4).contains(&count) && chain == leads,
            "{chain} {endpoints:?}"
        );
    }
}

#[test]
#[ignore = "needs root and a network namespace"]
fn what_was_removed_by_hand_stays_removed() {
    let node = Node::new("seed-iptables");
    let refused = node
        .kpx(&["bridge", "follow", "--mode", "iptables"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("no bridge is loaded on this node"), "{said}");
    node.done(&[
        "bridge", "up", "--mode", "iptables", "--apply", "--yes", "-q",
    ]);
    let mut following = node.follow();
    for family in ["ip", "ip6"] {
        node.netns
            .run(&format!("nft delete table {family} kpx-bridge"));
    }
    set(&node, &slice(&node.api), &["10.244.1.14"]);
    let status = following.child.wait().unwrap();
    assert_eq!(status.code(), Some(4));
    assert_eq!(node.netns.run("nft list tables"), "");
}
