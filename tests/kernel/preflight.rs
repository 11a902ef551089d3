//! `kpx preflight --load` and `--persist` on a kernel that has nothing loaded.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::ipvs::{modules, unload};
use super::modules::Rule;
use super::netns::run;
use crate::support::kpx;

/// The file of `--persist`.
const AT_BOOT: &str = "/etc/modules-load.d/kpx.conf";

/// Runs kpx on this machine, with the cluster of the recording `name`; returns its report, errors and exit status.
async fn preflight(name: &str, args: &[&str]) -> (Value, String, u8) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nodes");
    let cluster = folder.join(name);
    let cluster = cluster.to_str().unwrap();
    // A namespace that is named is read whether this machine is a node of the cluster or not.
    let netns = ["--netns", "/proc/self/ns/net"];
    let mut all = vec!["--cluster-from", cluster, netns[0], netns[1], "preflight"];
    all.extend_from_slice(args);
    all.extend_from_slice(&["-o", "json"]);
    let ran = kpx(&all).await;
    let report = serde_json::from_str(&ran.out).unwrap_or(Value::Null);
    (report, ran.err, ran.code)
}

/// Unloads everything of IPVS, of sets and of rules.
fn blank() {
    unload();
    // Whatever other tests used of rules, sets and links.
    let line = "for i in 1 2 3 4 5; do lsmod | awk '$3 == 0 && $1 ~ /^(xt_|ip_set|ipt_|dummy)/ {print $1}' \
                | xargs -r rmmod 2>/dev/null; done; true";
    run(&["bash", "-c", line], "");
    if let Err(e) = fs::remove_file(AT_BOOT) {
        assert_eq!(e.kind(), std::io::ErrorKind::NotFound);
    }
}

fn loaded(name: &str) -> bool {
    modules().iter().any(|module| module == name)
}

fn status(report: &Value, name: &str) -> String {
    let needs = report["needs"].as_array().unwrap();
    let need = needs.iter().find(|need| need["name"] == name);
    need.unwrap_or_else(|| panic!("{name}: {report:#}"))["status"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Returns the modules that were loaded since `before`, of which none is gone.
fn added(before: &[String]) -> Vec<String> {
    // Modules that the kernel loads for readers of rules and sockets, such as `nft` and `ss`.
    let read = ["nfnetlink", "inet_diag", "tcp_diag", "udp_diag"];
    let after = modules();
    let gone = before.iter().find(|name| !after.contains(name));
    assert_eq!(gone, None, "{after:?}");
    let is_new = |name: &String| !before.contains(name) && !read.contains(&name.as_str());
    after.into_iter().filter(is_new).collect()
}

#[tokio::test]
#[ignore = "needs root and ip_vs that is not loaded"]
async fn vm_looking_loads_nothing() {
    blank();
    let before = modules();
    let (report, err, _) = preflight("seed-ipvs", &["--to", "ipvs"]).await;
    assert_eq!(status(&report, "ip_vs"), "loadable", "{err}");
    assert_eq!(status(&report, "ip_vs_rr"), "loadable");
    assert_eq!(added(&before), [""; 0]);
}

#[tokio::test]
#[ignore = "needs root and ip_vs that is not loaded"]
async fn vm_what_is_loaded_is_tested_and_can_be_unloaded() {
    blank();
    let before = modules();
    let args = ["--to", "ipvs", "--load", "--persist", "--yes"];
    let (report, err, code) = preflight("seed-ipvs", &args).await;
    assert_eq!(code, 0, "{err}\n{report:#}");
    assert_eq!(report["plan"]["applied"], true);
    for name in ["ip_vs", "ip_vs_rr", "dummy", "xt_set"] {
        assert!(loaded(name), "{name}");
        assert_eq!(status(&report, name), "ready");
    }
    let proofs = report["proofs"].as_array().unwrap();
    let what = "a virtual server 198.51.100.0:20000 with the scheduler rr";
    assert!(
        proofs.iter().any(|proof| proof["what"] == what),
        "{proofs:?}"
    );
    assert!(
        proofs.iter().all(|proof| proof["error"].is_null()),
        "{proofs:?}"
    );
    let text = fs::read_to_string(AT_BOOT).unwrap();
    assert!(
        text.contains("\nip_vs\n") && text.contains("\nip_vs_rr\n"),
        "{text}"
    );

    // A second time there is nothing to do, and it works still.
    let (again, err, code) = preflight("seed-ipvs", &args).await;
    assert_eq!(code, 0, "{err}");
    assert_eq!(
        again["plan"]["steps"],
        Value::Array(Vec::new()),
        "{again:#}"
    );
    assert!(!again["proofs"].as_array().unwrap().is_empty());

    let undo = report["undo"].as_array().unwrap();
    assert_eq!(undo.len(), 2, "{undo:?}");
    for command in undo {
        run(&["sh", "-ec", command.as_str().unwrap()], "");
    }
    assert!(!Path::new(AT_BOOT).exists());
    // It says that this one stays.
    let stayed = added(&before).into_iter().filter(|name| name != "dummy");
    assert_eq!(stayed.collect::<Vec<_>>(), [""; 0]);
}

#[tokio::test]
#[ignore = "needs root and ip_vs that is not loaded"]
async fn vm_the_configured_scheduler_is_proved() {
    blank();
    let bundle = tempfile::tempdir().unwrap();
    let config = bundle.path().join("kube-proxy/config.conf");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    fs::write(
        config,
        "kind: KubeProxyConfiguration\nipvs:\n  scheduler: mh\n",
    )
    .unwrap();
    let from = bundle.path().to_str().unwrap();
    let (report, err, code) = preflight(from, &["--to", "ipvs", "--load", "--yes"]).await;
    assert_eq!(code, 0, "{err}\n{report:#}");
    assert!(loaded("ip_vs_mh"));
    let proofs = report["proofs"].to_string();
    assert!(proofs.contains("the scheduler mh"), "{proofs}");
}

#[tokio::test]
#[ignore = "needs root and ip_vs that is not loaded"]
async fn vm_what_is_forbidden_is_not_loaded_around() {
    blank();
    let before = modules();
    let _rule = Rule::new("install ip_vs /bin/false\n");
    let (_, err, code) = preflight("seed-ipvs", &["--to", "ipvs", "--load", "--yes"]).await;
    assert_eq!(code, 4, "{err}");
    assert!(err.contains("kpx-test.conf forbids ip_vs"), "{err}");
    let mut after = modules();
    after.retain(|name| name != "nfnetlink");
    assert_eq!(after, before);
}

#[tokio::test]
#[ignore = "needs root and ip_vs that is not loaded"]
async fn vm_what_was_done_is_undone_when_a_step_fails() {
    blank();
    let before = modules();
    fs::create_dir_all("/etc/modules-load.d").unwrap();
    run(
        &[
            "mount",
            "-t",
            "tmpfs",
            "-o",
            "ro",
            "none",
            "/etc/modules-load.d",
        ],
        "",
    );
    let args = ["--to", "ipvs", "--load", "--persist", "--yes"];
    let (report, err, code) = preflight("seed-ipvs", &args).await;
    run(&["umount", "/etc/modules-load.d"], "");
    assert_eq!(code, 4, "{err}\n{report:#}");
    assert_eq!(report["plan"]["stopped"]["step"], 3, "{report:#}");
    let mut after = modules();
    after.retain(|name| name != "dummy" && (before.contains(name) || name != "nfnetlink"));
    assert_eq!(after, before);
}

#[tokio::test]
#[ignore = "needs root and modules"]
async fn vm_when_another_mode_is_asked_for_it_is_proved_too() {
    for to in ["nftables", "iptables"] {
        let args = ["--to", to, "--load", "--yes"];
        let (report, err, code) = preflight("seed-ipvs", &args).await;
        assert!(matches!(code, 0 | 1), "{to}: {err}\n{report:#}");
        let proofs = report["proofs"].as_array().unwrap();
        assert!(!proofs.is_empty(), "{to}");
        assert!(
            proofs.iter().all(|proof| proof["error"].is_null()),
            "{to}: {proofs:?}"
        );
    }
}
