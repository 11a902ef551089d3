//! `kpx watch`: a line per change.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::probe::node;

/// Who is asked to wait no longer than this.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
#[ignore = "needs root and a network namespace"]
fn a_rule_that_comes_and_goes_is_reported_twice() {
    let node = node();
    let scratch = tempfile::tempdir().unwrap();
    let heard = scratch.path().join("heard");
    let program = scratch.path().join("hook");
    fs::write(&program, format!("#!/bin/sh\ncat >>{}\n", heard.display())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let options = node.options();
    let name = options.netns.as_deref().unwrap();
    let cluster = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nodes/seed-iptables");
    let mut line = vec![env!("CARGO_BIN_EXE_kpx"), "--netns", name, "--cluster-from"];
    line.extend([cluster.to_str().unwrap(), "--node", "node1", "-o", "json"]);
    line.extend([
        "watch",
        "--interval",
        "200ms",
        "-v",
        "--exec",
        program.to_str().unwrap(),
    ]);
    let mut child = node.start_with(&line, Stdio::piped(), Stdio::piped());
    let told = BufReader::new(child.stderr.take().unwrap()).lines();
    let (teller, reasons) = mpsc::channel();
    let listener = thread::spawn(move || {
        let reasons = told.map(Result::unwrap);
        let reasons = reasons.filter(|line| line.contains("reading the node"));
        reasons.for_each(|line| teller.send(line).unwrap_or(()));
    });
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (sender, events) = mpsc::channel();
    let reader =
        thread::spawn(move || lines.for_each(|line| sender.send(line.unwrap()).unwrap_or(())));
    let chain = "KUBE-SERVICES";
    let rule = "-d 10.97.54.248/32 -p tcp -m comment --comment planted -m tcp --dport 80 -j ACCEPT";
    let next = |action: &str| loop {
        let line = events.recv_timeout(PATIENCE).unwrap();
        let event: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(event["kind"], "ChangeEvent");
        crate::schema::hold(&line);
        if event["name"] == format!("IPv4 nat {chain}") {
            assert_eq!(event["action"], action, "{event}");
            return event;
        }
    };
    // The first reading is over once its findings are printed.
    events.recv_timeout(PATIENCE).unwrap();
    // Nothing changes, and nothing is read.
    let quiet = reasons.recv_timeout(Duration::from_secs(6));
    assert!(quiet.is_err(), "{quiet:?}");
    node.run(&format!("iptables-nft -t nat -A {chain} {rule}"));
    let event = next("changed");
    let why = reasons.recv_timeout(PATIENCE).unwrap();
    assert_eq!(why, "kpx: reading the node: nftables changed");
    assert_eq!(event["after"].as_array().unwrap().len(), 1, "{event}");
    assert!(
        event["after"][0].as_str().unwrap().contains("planted"),
        "{event}"
    );
    node.run(&format!("iptables-nft -t nat -D {chain} {rule}"));
    let event = next("changed");
    assert!(
        event["before"][0].as_str().unwrap().contains("planted"),
        "{event}"
    );
    assert_eq!(event["after"].as_array().unwrap().len(), 0, "{event}");
    assert!(event["afterSeconds"].as_u64().is_some(), "{event}");
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap();
    listener.join().unwrap();
    let heard = fs::read_to_string(heard).unwrap();
    assert!(
        heard.lines().count() >= 2 && heard.contains("planted"),
        "{heard}"
    );
}
