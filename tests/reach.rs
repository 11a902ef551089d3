//! The machine or bundle that a command reads: never that of another node, and a bundle completed from its cluster.

use std::fs;
use std::path::{Path, PathBuf};

use kpx_node::evidence::{ITEMS, Item, load};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::identity::OF_MACHINE;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fake_api::Api;
use crate::support::{Ran, kpx, root};

/// A kubeconfig of an API server with `nodes`.
struct World {
    dir: TempDir,
    api: Api,
}

impl World {
    fn new(api: Api) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("kubeconfig"), api.kubeconfig()).unwrap();
        Self { dir, api }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn kpx(&self, args: &[&str]) -> Ran {
        let kubeconfig = self.path("kubeconfig");
        let first = ["--kubeconfig", kubeconfig.to_str().unwrap()];
        kpx(&[&first[..], args].concat()).await
    }

    /// Returns how often `path` was requested.
    fn asked(&self, path: &str) -> usize {
        let asked = self.api.asked();
        asked.iter().filter(|request| request.path == path).count()
    }
}

/// A Node with addresses and IDs of no machine.
fn node(name: &str, address: &str) -> Value {
    json!({
        "kind": "Node",
        "metadata": {"name": name},
        "spec": {},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address}],
            "nodeInfo": {"machineID": "00", "bootID": "00", "systemUUID": "00"},
        },
    })
}

fn cluster(nodes: &[Value]) -> World {
    let api = Api::new();
    api.with(|cluster| nodes.iter().for_each(|node| cluster.put(node.clone())));
    World::new(api)
}

/// Returns whether a kube-proxy runs on the machine of the tests; `None` if that is unknown.
async fn is_proxied() -> Option<bool> {
    let options = kpx_host::Options {
        netns: None,
        root: "/".into(),
        node: None,
        families: kpx_node::net::Family::BOTH.to_vec(),
        timeout: std::time::Duration::from_secs(60),
        kubeconfig: None,
        context: None,
        selection: kpx_host::Selection::default(),
        no_api: true,
        environment: kpx_host::Environment::default(),
    };
    let evidence = kpx_host::collect(OF_MACHINE, &options).await;
    NodeSnapshot::new(&evidence).runs_kube_proxy()
}

#[tokio::test]
async fn a_machine_that_is_no_node_is_refused() {
    let world = cluster(&[node("w1", "203.0.113.1"), node("w2", "203.0.113.2")]);
    let refused = "this machine is not a node of the cluster";
    for command in [
        &["doctor"][..],
        &["show", "modules"],
        &["diff"],
        &["trace", "10.96.0.1:443"],
        &["snapshot", "--file", "/nonexistent/x.tar.gz"],
        &["reconcile"],
        &["preflight", "--to", "ipvs"],
    ] {
        let before = is_proxied().await;
        let ran = world.kpx(command).await;
        // A machine with a kube-proxy is read whether its Node is known or not.
        if [before, is_proxied().await] != [Some(false); 2] && !ran.err.contains(refused) {
            continue;
        }
        assert_eq!((ran.code, ran.out.as_str()), (4, ""), "{command:?}: {ran}");
        // The rest names a kube-proxy in a container, if this machine has one.
        let lead = "kpx: this machine is not a node of the cluster: no Node (w1, w2) has an address or ID of this machine, \
                    and ";
        assert!(ran.err.starts_with(lead), "{command:?}: {ran}");
        let hint = "\n  hint: pass `--node NAME` or `--all-nodes` to read nodes from here, or `--from BUNDLE` to read a bundle";
        assert!(ran.err.contains(hint), "{command:?}: {ran}");
        let end = "; `--no-api` reads this machine without the cluster\n";
        assert!(ran.err.ends_with(end), "{command:?}: {ran}");
    }
    // A command that does not read this machine as a node of the cluster goes on.
    for command in [
        &["--no-api", "doctor", "--only", "SY01"][..],
        &["--root", "/nonexistent", "doctor", "--only", "SY01"],
        &["explain", "SY01"],
    ] {
        let ran = world.kpx(command).await;
        assert!(!ran.err.contains(refused), "{command:?}: {ran}");
    }
}

#[tokio::test]
async fn the_nodes_are_read_once_for_the_identity_and_the_command() {
    let name = nix::unistd::gethostname().unwrap();
    let mut own = node("w1", "203.0.113.1");
    own["metadata"]["labels"] = json!({"kubernetes.io/hostname": name.to_str().unwrap()});
    let world = cluster(&[own, node("w2", "203.0.113.2")]);
    let ran = world.kpx(&["show", "services", "-o", "json"]).await;
    assert!([0, 3].contains(&ran.code), "{ran}");
    assert_eq!(world.asked("/api/v1/nodes"), 1);
    assert_eq!(world.asked("/version"), 1);
}

#[tokio::test]
async fn an_unreadable_list_of_nodes_refuses_nothing() {
    let world = cluster(&[]);
    world.api.with(|cluster| cluster.set_away(true));
    let limits = ["--timeout", "200ms", "doctor", "--only", "SY01"];
    let ran = world.kpx(&limits).await;
    assert_ne!(ran.code, 4, "{ran}");
}

/// Copies the recording `name` without its cluster to `to`.
fn without_cluster(name: &str, to: &Path) {
    let from = root().join("testdata/nodes").join(name);
    for folder in ["node", "kube-proxy"] {
        fs::create_dir_all(to.join(folder)).unwrap();
        for entry in fs::read_dir(from.join(folder)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), to.join(folder).join(entry.file_name())).unwrap();
        }
    }
}

/// A recording's cluster, and the recording without it.
fn recorded(name: &str) -> World {
    let api = Api::new();
    api.seed(
        &root().join("testdata/nodes").join(name),
        &["node1", "node2"],
    );
    let world = World::new(api);
    without_cluster(name, &world.path("bundle"));
    world
}

#[tokio::test]
async fn a_bundle_is_completed_from_the_cluster() {
    let name = "seed-iptables";
    let world = recorded(name);
    // The other Node is not the recorded one.
    world.api.with(|cluster| {
        let key = crate::fake_api::Key::new("nodes", "", "node2");
        cluster.edit(&key, |node| {
            node["status"]["addresses"] = json!([{"type": "InternalIP", "address": "203.0.113.7"}]);
        });
    });
    let bundle = world.path("bundle");
    let bundle = bundle.to_str().unwrap();
    let services = |ran: &Ran| {
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        report["services"].clone()
    };
    let whole = root().join("testdata/nodes").join(name);
    let show = ["show", "services", "-o", "json"];
    let expected = kpx(&[&["--from", whole.to_str().unwrap()][..], &show].concat()).await;
    let ran = world.kpx(&[&["--from", bundle][..], &show].concat()).await;
    assert_eq!(services(&ran), services(&expected), "{ran}");
    let note = "added to the bundle from the API server, at a later time: cluster/services.json, cluster/endpointslices.json";
    assert!(ran.out.contains(note), "{ran}");
    let ran = world.kpx(&["--from", bundle, "doctor"]).await;
    assert!(ran.out.starts_with("node1, recording "), "{ran}");
    let words: Vec<_> = ran.out.split_ascii_whitespace().collect();
    assert!(
        words
            .join(" ")
            .contains("added from the API server, later: cluster/services.json,"),
        "{ran}"
    );
    // The configuration is the bundle's, not this machine's or the ConfigMap's.
    let ran = world.kpx(&["--from", bundle, "doctor", "-o", "json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let added = report["added"].as_array().unwrap();
    assert!(
        !added.contains(&json!("kube-proxy/config.conf")),
        "{added:?}"
    );

    let complete = world.path("complete.tar.gz");
    let complete = complete.to_str().unwrap();
    let ran = world
        .kpx(&["--from", bundle, "snapshot", "--file", complete])
        .await;
    assert!(
        ran.out
            .contains("Added from the API server: cluster/services.json"),
        "{ran}"
    );
    let asked = world.api.asked().len();
    let all = load(Path::new(complete), ITEMS).unwrap();
    assert!(
        all.text(Item::Pods)
            .unwrap()
            .contains("\"nodeName\":\"node1\"")
    );
    assert!(all.added().contains(&Item::Nodes));
    let ran = kpx(&[&["--from", complete][..], &show].concat()).await;
    assert_eq!(services(&ran), services(&expected), "{ran}");
    assert!(ran.out.contains(note), "{ran}");
    // A bundle alone is read without the API server.
    assert_eq!(world.api.asked().len(), asked);
}

#[tokio::test]
async fn what_a_bundle_has_stays() {
    let world = recorded("seed-iptables");
    let own = world.path("bundle/cluster/services.json");
    fs::create_dir_all(own.parent().unwrap()).unwrap();
    fs::write(&own, r#"{"items": []}"#).unwrap();
    let bundle = world.path("bundle");
    let ran = world
        .kpx(&[
            "--from",
            bundle.to_str().unwrap(),
            "show",
            "services",
            "-o",
            "json",
        ])
        .await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let notes = report["notes"].to_string();
    assert!(
        !notes.contains("services.json") && notes.contains("endpointslices.json"),
        "{ran}"
    );
    assert_eq!(world.asked("/api/v1/services"), 0);
    let ran = world
        .kpx(&["--no-api", "--from", bundle.to_str().unwrap(), "doctor"])
        .await;
    assert!(!ran.out.contains("from the API server"), "{ran}");
}

#[tokio::test]
async fn a_redacted_bundle_is_not_completed() {
    let world = recorded("seed-iptables");
    let redacted = world.path("redacted.tar.gz");
    let redacted = redacted.to_str().unwrap();
    let bundle = world.path("bundle");
    let from = ["--from", bundle.to_str().unwrap()];
    kpx(&[&from[..], &["snapshot", "--redact", "--file", redacted]].concat()).await;
    let ran = world.kpx(&["--from", redacted, "doctor"]).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(ran.err.contains("the bundle is redacted"), "{ran}");
}

#[tokio::test]
async fn a_bundle_of_the_script_says_how_to_add_the_cluster() {
    let world = recorded("seed-iptables");
    fs::write(
        world.path("bundle/errors.txt"),
        "cluster/services.json: kubectl is not installed\nnode/nft.json: nft is not installed\n",
    )
    .unwrap();
    let bundle = world.path("bundle");
    let ran = kpx(&["--from", bundle.to_str().unwrap(), "doctor"]).await;
    let words: Vec<_> = ran.out.split_ascii_whitespace().collect();
    assert!(
        words.join(" ").contains(
            "cluster/services.json: not in the bundle (kubectl is not installed); add it with `kpx --from BUNDLE --kubeconfig \
             FILE COMMAND`"
        ),
        "{ran}"
    );
}
