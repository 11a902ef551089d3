//! `kpx preflight` on recorded and made-up nodes. Kernel tests cover `--load`.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Ran, kpx, kpx_on};

/// A made-up node.
struct Node(TempDir);

impl Node {
    /// Returns a node with kernel `release`, whose module tree has the modules of the ipvs mode.
    fn new(release: &str) -> Self {
        let node = Self(TempDir::new().unwrap());
        node.write("node/kernel-release.txt", release);
        node.write(
            "node/proc-modules.txt",
            "nf_defrag_ipv4 16384 0 - Live 0x0\n",
        );
        node.write(
            "node/modules-builtin.txt",
            "kernel/net/x_tables.ko\nkernel/net/xt_mark.ko\n",
        );
        let names = [
            "nf_conntrack",
            "nf_nat",
            "ip_vs",
            "ip_vs_rr",
            "ip_vs_wrr",
            "dummy",
            "ip_set",
            "xt_set",
            "ip_set_hash_ip",
            "xt_comment",
            "ipt_REJECT",
        ];
        let lines =
            names.map(|name| format!("kernel/net/{name}.ko.xz: kernel/net/nf_defrag_ipv4.ko\n"));
        node.write("node/modules-dep.txt", &lines.concat());
        node.write("node/modprobe.txt", "");
        node
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    async fn preflight(&self, args: &[&str]) -> Ran {
        let from = self.0.path().to_str().unwrap();
        let mut all = vec!["--from", from, "preflight"];
        all.extend_from_slice(args);
        kpx(&all).await
    }

    /// Returns the status and state of what the mode `to` needs by that name.
    async fn state(&self, to: &str, name: &str) -> Option<String> {
        let ran = self.preflight(&["--to", to, "-o", "json"]).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let needs = report["needs"].as_array().unwrap();
        let need = needs.iter().find(|need| need["name"] == name)?;
        let text = |key: &str| need[key].as_str().unwrap();
        Some(format!("{}: {}", text("status"), text("state")))
    }
}

#[tokio::test]
async fn everything_that_a_mode_needs_has_its_line() {
    for to in ["ipvs", "nftables"] {
        let ran = kpx_on("fit-for-moves", &["preflight", "--to", to]).await;
        insta::assert_snapshot!(format!("fit_{to}"), ran);
    }
    let ran = kpx_on("faults-moves", &["preflight", "--to", "ipvs"]).await;
    insta::assert_snapshot!("faults_ipvs", ran);
    let ran = kpx_on(
        "seed-ipvs",
        &["preflight", "--to", "iptables", "-o", "wide"],
    )
    .await;
    insta::assert_snapshot!("seed_iptables_wide", ran);
}

#[tokio::test]
async fn a_module_is_loaded_built_in_loadable_missing_or_blocked() {
    let node = Node::new("6.1.0");
    node.write(
        "node/modprobe.txt",
        "/etc/modprobe.d/hard.conf: install ip_vs_rr /bin/false\n",
    );
    assert_eq!(
        node.state("ipvs", "ip_vs").await.as_deref(),
        Some("loadable: loadable")
    );
    assert_eq!(
        node.state("ipvs", "xt_mark").await.as_deref(),
        Some("ready: built in")
    );
    assert_eq!(
        node.state("ipvs", "xt_conntrack").await.as_deref(),
        Some("fails: missing")
    );
    assert_eq!(
        node.state("ipvs", "ip_vs_rr").await.as_deref(),
        Some("fails: blocked")
    );
    let ran = node.preflight(&["--to", "ipvs", "-o", "wide"]).await;
    assert_eq!(ran.code, 1, "{ran}");
    let line = "/etc/modprobe.d/hard.conf forbids ip_vs_rr";
    assert!(ran.out.contains(line), "{ran}");
}

#[tokio::test]
async fn a_module_is_blocked_if_a_dependency_is() {
    let node = Node::new("6.1.0");
    node.write("node/proc-modules.txt", "");
    let rule = "/etc/modprobe.d/hard.conf: install nf_defrag_ipv4 /bin/true\n";
    node.write("node/modprobe.txt", rule);
    assert_eq!(
        node.state("ipvs", "ip_vs").await.as_deref(),
        Some("fails: blocked")
    );
}

#[tokio::test]
async fn the_configured_scheduler_is_required() {
    let node = Node::new("6.1.0");
    let config = "kind: KubeProxyConfiguration\nipvs:\n  scheduler: sed\n";
    node.write("kube-proxy/config.conf", config);
    assert_eq!(
        node.state("ipvs", "ip_vs_sed").await.as_deref(),
        Some("fails: missing")
    );
    assert_eq!(node.state("ipvs", "ip_vs_rr").await.as_deref(), None);
}

#[tokio::test]
async fn old_kernels_track_connections_by_family() {
    let old = Node::new("4.18.0-553.el8_10.x86_64");
    assert_eq!(
        old.state("ipvs", "nf_conntrack_ipv4").await.as_deref(),
        Some("fails: missing")
    );
    assert_eq!(
        old.state("ipvs", "ipt_MASQUERADE").await.as_deref(),
        Some("fails: missing")
    );
    let newer = Node::new("4.19.0");
    assert_eq!(
        newer.state("ipvs", "nf_conntrack_ipv4").await.as_deref(),
        None
    );
    let new = Node::new("5.2.0");
    assert_eq!(new.state("ipvs", "ipt_MASQUERADE").await.as_deref(), None);
}

#[tokio::test]
async fn the_nftables_mode_needs_a_newer_kernel() {
    let old = Node::new("5.10.0-30-amd64");
    assert_eq!(
        old.state("nftables", "release").await.as_deref(),
        Some("fails: 5.10.0-30-amd64")
    );
    let new = Node::new("5.13.0");
    assert_eq!(
        new.state("nftables", "release").await.as_deref(),
        Some("ready: 5.13.0")
    );
}

#[tokio::test]
async fn tools_are_listed_with_their_versions() {
    let node = Node::new("6.1.0");
    node.write(
        "node/ipset-version.txt",
        "ipset v7.17, protocol version: 7\n",
    );
    node.write("node/nft-version.txt", "nftables v0.9.8 (E.D.S.)\n");
    node.write("node/iptables-version.txt", "iptables v1.8.9 (nf_tables)\n");
    assert_eq!(
        node.state("ipvs", "ipset").await.as_deref(),
        Some("ready: 7.17")
    );
    assert_eq!(
        node.state("nftables", "nft").await.as_deref(),
        Some("risk: 0.9.8")
    );
    assert_eq!(
        node.state("iptables", "iptables").await.as_deref(),
        Some("ready: 1.8.9 (nf_tables)")
    );
}

#[tokio::test]
async fn permissions_are_those_that_the_api_server_grants() {
    let node = Node::new("6.1.0");
    node.write(
        "cluster/access.json",
        r#"{"kind": "List", "items": [
            {"spec": {"resourceAttributes": {"verb": "list", "resource": "services"}},
             "status": {"allowed": true}},
            {"spec": {"resourceAttributes": {"verb": "patch", "group": "apps", "resource": "daemonsets",
                      "namespace": "kube-system", "name": "kube-proxy"}},
             "status": {"allowed": false, "reason": "no RBAC policy matched"}}]}"#,
    );
    assert_eq!(
        node.state("ipvs", "list services").await.as_deref(),
        Some("ready: allowed")
    );
    let patch = "patch daemonsets.apps kube-proxy in kube-system";
    assert_eq!(
        node.state("ipvs", patch).await.as_deref(),
        Some("risk: denied")
    );
}

#[tokio::test]
async fn an_unknown_requirement_does_not_count_as_met() {
    let node = Node(TempDir::new().unwrap());
    node.write("node/kernel-release.txt", "6.1.0\n");
    let ran = node.preflight(&["--to", "ipvs"]).await;
    assert_eq!(ran.code, 3, "{ran}");
    assert_eq!(
        node.state("ipvs", "all modules").await.as_deref(),
        Some("unknown: unknown")
    );
}

#[tokio::test]
async fn modules_cannot_be_loaded_into_a_bundle() {
    for what in ["--load", "--persist"] {
        let ran = kpx_on("seed-ipvs", &["preflight", "--to", "ipvs", what, "--yes"]).await;
        assert_eq!(ran.code, 2, "{ran}");
        assert!(ran.err.contains("--from reads a bundle"), "{ran}");
    }
}
