//! The ignore file.

use std::fs;

use serde_json::Value;

use crate::support::{Ran, kpx, kpx_on, root};

/// Runs the doctor on a node with a finding of DP01, with an ignore file from this folder.
async fn ignoring(name: &str, args: &[&str]) -> Ran {
    // Relative, so that lines break at the same place everywhere.
    let path = format!("tests/doctor/{name}.yaml");
    let mut all = vec!["doctor", "--only", "DP01,SY01", "--ignore-file", &path];
    all.extend_from_slice(args);
    kpx_on("seed-ipvs", &all).await
}

#[tokio::test]
async fn ignored_findings_are_counted() {
    let args = ["--fail-on", "warning"];
    insta::assert_snapshot!("ignored", ignoring("used", &args).await);
    insta::assert_snapshot!("ignored_verbose", ignoring("used", &["-v"]).await);
    insta::assert_snapshot!("ignored_json", ignoring("used", &["-o", "json"]).await);
    insta::assert_snapshot!("ignored_junit", ignoring("used", &["-o", "junit"]).await);
}

#[tokio::test]
async fn expired_and_useless_entries_are_reported() {
    let args = ["--fail-on", "warning"];
    let ran = ignoring("vain", &args).await;
    assert_eq!(ran.code, 1);
    insta::assert_snapshot!("ignored_in_vain", ran);
    let ran = ignoring("vain", &["-o", "json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let entries = report["ignoreEntries"].as_array().unwrap();
    let states: Vec<_> = entries.iter().map(|entry| &entry["status"]).collect();
    assert_eq!(states, ["expired", "unused", "unused", "unknown"]);
}

#[tokio::test]
async fn an_invalid_file_is_refused_with_its_line() {
    insta::assert_snapshot!("ignore_malformed", ignoring("malformed", &[]).await);
    let ran = kpx_on("seed-ipvs", &["doctor", "--ignore-file", "/nonexistent"]).await;
    insta::assert_snapshot!("ignore_unread", ran);
}

#[tokio::test]
async fn a_hidden_cause_hides_no_consequence() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ignore.yaml");
    fs::write(
        &path,
        "- {check: KM01, reason: we know, expires: 2027-01-01}\n",
    )
    .unwrap();
    let path = path.to_str().unwrap();
    let node = "fallback-no-ipvs-modules";
    let ids = |ran: &Ran| {
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let findings = report["findings"].as_array().unwrap();
        let ids = findings
            .iter()
            .map(|f| f["id"].as_str().unwrap().to_owned());
        ids.collect::<Vec<_>>()
    };
    let whole = kpx_on(node, &["doctor", "-o", "json"]).await;
    assert!(ids(&whole).contains(&"KM01".to_owned()), "{whole}");
    assert!(!ids(&whole).contains(&"KP01".to_owned()), "{whole}");
    let args = ["doctor", "-o", "json", "--ignore-file", path];
    let hidden = kpx_on(node, &args).await;
    assert!(!ids(&hidden).contains(&"KM01".to_owned()), "{hidden}");
    // The next cause is that kube-proxy exits, as its log says.
    assert!(ids(&hidden).contains(&"KP21".to_owned()), "{hidden}");
    let report: Value = serde_json::from_str(&hidden.out).unwrap();
    let findings = report["findings"].as_array().unwrap().iter();
    let below =
        findings.flat_map(|finding| finding["consequences"].as_array().into_iter().flatten());
    let ids: Vec<&str> = below
        .map(|finding| finding["id"].as_str().unwrap())
        .collect();
    assert!(ids.contains(&"KP01"), "{hidden}");
}

#[tokio::test]
async fn a_live_node_has_a_default_ignore_file() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("etc/kpx")).unwrap();
    let path = dir.path().join("etc/kpx/ignore.yaml");
    fs::write(&path, "nonsense\n").unwrap();
    let at = dir.path().to_str().unwrap();
    let ran = kpx(&["--root", at, "--no-api", "doctor", "--only", "SY01"]).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(ran.err.contains("etc/kpx/ignore.yaml"), "{ran}");
    // A bundle belongs to another node.
    let bundle = root().join("testdata/nodes/seed-ipvs");
    let from = ["--root", at, "--from", bundle.to_str().unwrap()];
    let ran = kpx(&[&from[..], &["doctor", "--only", "SY01"]].concat()).await;
    assert_eq!(ran.code, 2, "{ran}");
}
