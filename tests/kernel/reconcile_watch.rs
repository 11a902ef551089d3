//! `kpx reconcile --watch`: the rules of a node whose cluster changes, without a kube-proxy.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::bridge::follow::{Node, set, slice};
use crate::random::Dice;

/// Longest wait for a change; how long one takes is measured, not tested.
const PATIENCE: Duration = Duration::from_secs(10);

/// Addresses that no other Service of the recording has.
const POOL: [&str; 5] = [
    "10.244.1.200",
    "10.244.1.201",
    "10.244.1.202",
    "10.244.1.203",
    "10.244.1.204",
];

fn start(node: &Node, mode: &str) -> Child {
    node.kpx(&[
        "reconcile",
        "--watch",
        "--apply",
        "--yes",
        "-q",
        "--mode",
        mode,
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap()
}

/// Waits for the line of the first sync; later lines are passed on.
fn first_sync(child: &mut Child) {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let Some(first) = lines.next() else {
        panic!("{}", ended(child).1);
    };
    let first = first.unwrap();
    assert!(first.contains(" start: "), "{first}");
    thread::spawn(move || lines.for_each(|line| eprintln!("{}", line.unwrap())));
}

/// Waits for the end; returns the exit status and what was printed on stderr.
fn ended(child: &mut Child) -> (Option<i32>, String) {
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > PATIENCE {
            child.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(20));
    }
    let mut text = String::new();
    let mut err = child.stderr.take().unwrap();
    err.read_to_string(&mut text).unwrap();
    (child.wait().unwrap().code(), text)
}

/// Returns the addresses of the pool that the rules translate to.
fn served(node: &Node, mode: &str) -> BTreeSet<&'static str> {
    let rules = match mode {
        "iptables" => node.netns.run("iptables-save -t nat"),
        _ => node.netns.run("nft list table ip kube-proxy"),
    };
    let to = rules
        .lines()
        .filter(|line| line.contains("DNAT") || mode == "nftables");
    let to: Vec<&str> = to.collect();
    let is_target = |addr: &&str| {
        to.iter().any(|line| {
            line.contains(&format!("{addr}:80")) || line.contains(&format!("{addr} . 80"))
        })
    };
    POOL.into_iter().filter(is_target).collect()
}

fn follows(mode: &str) {
    let node = Node::new("seed-iptables");
    let mut child = start(&node, mode);
    first_sync(&mut child);
    let slice = slice(&node.api);
    let mut dice = Dice::new(9);
    let mut slowest = Duration::ZERO;
    for round in 0..12 {
        if round == 6 {
            node.api.with(crate::fake_api::Cluster::cut_watches);
        }
        let want: BTreeSet<&str> = POOL.into_iter().filter(|_| dice.below(2) == 0).collect();
        let addresses: Vec<&str> = want.iter().copied().collect();
        set(&node, &slice, &addresses);
        let begin = Instant::now();
        while served(&node, mode) != want {
            let seen = served(&node, mode);
            if begin.elapsed() > PATIENCE {
                child.kill().unwrap();
                panic!("{round}: {want:?}, not {seen:?}\n{}", ended(&mut child).1);
            }
            thread::sleep(Duration::from_millis(10));
        }
        slowest = slowest.max(begin.elapsed());
        // Exits with 0 only if nothing differs.
        node.done(&["diff", "--mode", mode]);
    }
    eprintln!("mode {mode}: slowest change {slowest:?}");
    let second = node.kpx(&["reconcile", "--apply", "--yes", "--mode", mode]);
    let second = { second }.output().unwrap();
    assert_eq!(second.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&second.stderr).contains("another kpx"));
    let before = served(&node, mode);
    node.netns.run(&format!("kill -TERM {}", child.id()));
    let (code, text) = ended(&mut child);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("stopped by a signal; the rules stay"),
        "{text}"
    );
    assert!(text.contains("not served: /healthz"), "{text}");
    assert_eq!(served(&node, mode), before);
    node.done(&["diff", "--mode", mode]);
}

#[test]
#[ignore = "needs root and a network namespace"]
fn rules_of_iptables_follow_random_changes() {
    follows("iptables");
}

#[test]
#[ignore = "needs root and a network namespace"]
fn rules_of_nftables_follow_random_changes() {
    follows("nftables");
}

#[test]
#[ignore = "needs root and a network namespace"]
fn a_kube_proxy_that_hangs_is_accepted_and_one_that_runs_is_not() {
    let node = Node::new("seed-iptables");
    let program = node.root.path().join("kube-proxy");
    fs::copy("/bin/sleep", &program).unwrap();
    let line = [program.to_str().unwrap(), "600"];
    let mut proxy = node.netns.start(&line, Stdio::null());
    let (code, text) = ended(&mut start(&node, "iptables"));
    let rules = node.netns.run("iptables-save -t nat");
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("runs and is not known to hang"), "{text}");
    assert!(!rules.contains("KUBE-"), "{rules}");

    node.netns.run(&format!("kill -STOP {}", proxy.id()));
    let mut child = start(&node, "iptables");
    first_sync(&mut child);
    assert!(node.netns.run("iptables-save -t nat").contains("KUBE-SVC-"));
    // It continues.
    node.netns.run(&format!("kill -CONT {}", proxy.id()));
    let (code, text) = ended(&mut child);
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("hangs: it is stopped"), "{text}");
    assert!(text.contains("runs: stopped; the rules stay"), "{text}");
    proxy.kill().unwrap();
    proxy.wait().unwrap();

    let mut child = start(&node, "iptables");
    first_sync(&mut child);
    let mut proxy = node.netns.start(&line, Stdio::null());
    let (code, text) = ended(&mut child);
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("runs: stopped; the rules stay"), "{text}");
    proxy.kill().unwrap();
    proxy.wait().unwrap();
}
