//! The guard of the bridge: when it removes the bridge, and when it does not.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use kpx_host::{Live, Options};
use serde_json::json;

use super::follow::{Node, VIP, set, slice};
use crate::kernel::stand_in::{self, KubeProxy};

/// How long kube-proxy has no rules.
const GAP: Duration = Duration::from_secs(12);

/// The time within which the guard must have seen what it waits for.
const SOON: Duration = Duration::from_secs(20);

impl Node {
    fn stands(&self) -> bool {
        self.netns.run("nft list tables").contains("kpx-bridge")
    }

    /// The lock that `kpx migrate` holds while it lives.
    fn lock(&self) -> Live {
        let options = Options {
            root: self.root.path().to_owned(),
            ..self.netns.options()
        };
        Live::new(&options).unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.root.path().join("var/log/kpx-bridge-guard.log")).unwrap()
    }

    fn wait(&self, what: &str, until: impl Fn() -> bool) {
        let begin = Instant::now();
        while !until() {
            assert!(begin.elapsed() < SOON, "{what}: {}", self.log());
            thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
#[ignore = "needs root and a network namespace"]
fn the_guard_removes_the_bridge_at_the_right_time() {
    let node = Node::new("seed-iptables");
    let scratch = tempfile::tempdir().unwrap();
    let folder = stand_in::recorded("seed-iptables", "iptables", scratch.path());
    let mut proxy = KubeProxy::start(&node.netns, &folder, Duration::ZERO);
    proxy.wait_synced(1);
    node.done(&["bridge", "up", "--apply", "--yes", "-q"]);
    // The rules of the mode are complete, but another kpx still needs the bridge.
    let migrating = node.lock();
    node.done(&["bridge", "guard", "--detach"]);
    node.done(&["bridge", "guard", "--detach"]);
    thread::sleep(Duration::from_secs(4));
    assert!(node.stands(), "{}", node.log());
    // kube-proxy is configured for another mode, and whoever did that is no more.
    proxy.stop();
    let config = fs::read_to_string(folder.config()).unwrap();
    fs::write(folder.config(), stand_in::with_mode(&config, "nftables")).unwrap();
    drop(migrating);
    node.wait("no kube-proxy", || node.log().contains("no answer from"));
    assert!(node.stands());
    let mut proxy = KubeProxy::start(&node.netns, &folder, GAP);
    proxy.wait_for("Using nftables Proxier", 1);
    node.wait("no sync", || node.log().contains("has not synced"));
    assert!(!node.netns.run("nft list tables").contains("kube-proxy"));
    // Meanwhile the cluster changes, which kube-proxy reads from a file.
    let slice = slice(&node.api);
    set(&node, &slice, &["10.244.1.16"]);
    let slices = node.api.with(|cluster| {
        let all: Vec<_> = cluster.list("endpointslices").cloned().collect();
        json!({"apiVersion": "v1", "kind": "List", "items": all})
    });
    let file = folder.0.join("cluster/endpointslices.json");
    stand_in::replace(&file, &slices.to_string());
    let expected = (
        "goto cluster-endpoint-0".to_owned(),
        vec!["10.244.1.16 . 80".to_owned()],
    );
    node.wait("the change", || node.endpoints(VIP) == expected);
    let synced = || {
        let log = proxy.log();
        ["IPv4", "IPv6"].iter().all(|family| {
            log.contains(&format!(
                "\"SyncProxyRules complete\" ipFamily=\"{family}\""
            ))
        })
    };
    while !synced() {
        assert!(node.stands() || synced(), "{}", node.log());
        thread::sleep(Duration::from_millis(50));
    }
    node.wait("its end", || !node.stands());
    let rules = node.netns.run("nft list map ip kube-proxy service-ips");
    assert!(rules.contains(VIP), "{rules}");
    node.wait("its word", || node.log().contains("the bridge is removed"));
    proxy.stop();
}
