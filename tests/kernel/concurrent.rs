//! Reading and changing while another program writes rules.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::change::{assert_same, kpx_with, node, reconcile, state};
use super::netns::Netns;

/// Reads for each mode.
const READS: u32 = 500;

/// Repairs for each mode.
const REPAIRS: u32 = 40;

/// Calls `write` over and over until `act` has ended; returns how often.
fn beside(write: impl Fn() + Sync, act: impl FnOnce() -> Result<(), String>) -> u32 {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut written = 0;
            while !ended.load(Ordering::Relaxed) {
                write();
                written += 1;
            }
            written
        });
        // The writer ends, whatever becomes of the act.
        let acted = act();
        ended.store(true, Ordering::Relaxed);
        let written = writer.join().unwrap();
        acted.unwrap();
        written
    })
}

/// Compares a node with its cluster, `READS` times, while `write` replaces its rules by the same over and over: each
/// transaction is whole, so there is no difference at any time.
#[expect(clippy::print_stderr, reason = "the figures")]
fn no_read_finds_a_difference(name: &str, write: impl Fn(&Netns) + Sync) {
    let node = node();
    reconcile(&node, name);
    let (mut same, mut unknown) = (0, 0);
    let written = beside(
        || write(&node),
        || {
            for read in 0..READS {
                let output = kpx_with(&node, name, &["diff"], "/nonexistent");
                let text = [output.stdout, output.stderr].concat();
                let text = String::from_utf8_lossy(&text);
                match output.status.code() {
                    Some(0) => same += 1,
                    Some(3) if text.contains("changed while") => unknown += 1,
                    code => return Err(format!("read {read}: {code:?}\n{text}")),
                }
            }
            Ok(())
        },
    );
    eprintln!("{name}: {same} reads equal, {unknown} unknown, {written} writes");
    assert!(written > READS / 2, "{written}");
    assert!(same > READS / 2, "{same} {unknown}");
}

#[test]
#[ignore = "needs root and a network namespace"]
fn long_while_rules_of_iptables_are_written_no_read_finds_a_difference() {
    no_read_finds_a_difference("full-iptables", |node| {
        let rules = node.run("iptables-nft-save");
        node.feed("iptables-nft-restore", &rules);
    });
}

#[test]
#[ignore = "needs root and a network namespace"]
fn long_while_rules_of_nftables_are_written_no_read_finds_a_difference() {
    no_read_finds_a_difference("full-nftables", |node| {
        let rules = node.run("nft list table ip kube-proxy");
        node.feed("nft -f -", &format!("delete table ip kube-proxy\n{rules}"));
    });
}

/// A sync that replaces every endpoint of a Service is one transaction for the kernel; a trace reads a chain at a time.
#[test]
#[ignore = "needs root and a network namespace"]
fn long_while_endpoints_are_replaced_no_trace_follows_a_rule_to_a_chain_that_is_gone() {
    let (node, name) = (node(), "full-iptables");
    reconcile(&node, name);
    node.run("sysctl -qw net.ipv4.ip_forward=1");
    let saved = node.run("iptables-nft-save");
    let states = [saved.replace("KUBE-SEP-", "KUBE-SEP-A"), saved];
    let next = AtomicUsize::new(0);
    let replace = || {
        let at = next.fetch_add(1, Ordering::Relaxed) % 2;
        node.feed("iptables-nft-restore", &states[at]);
    };
    let written = beside(replace, || {
        for read in 0..READS {
            let args = ["trace", "shop/cart", "--source", "outside"];
            let output = kpx_with(&node, name, &args, "/nonexistent");
            let text = String::from_utf8_lossy(&output.stdout);
            if output.status.code() != Some(0) || !text.starts_with("WORKS") {
                return Err(format!("read {read}: {}\n{text}", output.status));
            }
        }
        Ok(())
    });
    eprintln!("{READS} traces beside {written} writes");
    assert!(written > READS / 2, "{written}");
}

/// Empties a chain and repairs the node, `REPAIRS` times, while `write` replaces other chains of the same tables.
#[expect(clippy::print_stderr, reason = "the figures")]
fn every_repair_succeeds(name: &str, empty: &str, node: &Netns, write: impl Fn() + Sync) {
    let all = state(node);
    let written = beside(write, || {
        for repair in 0..REPAIRS {
            node.run(empty);
            let args = ["reconcile", "--apply", "--yes"];
            let output = kpx_with(node, name, &args, "/nonexistent");
            if output.status.code() != Some(0) {
                let text = [output.stdout, output.stderr].concat();
                let text = String::from_utf8_lossy(&text);
                return Err(format!("repair {repair}: {}\n{text}", output.status));
            }
        }
        Ok(())
    });
    eprintln!("{name}: {REPAIRS} repairs beside {written} writes");
    assert!(written > REPAIRS, "{written}");
    assert_same(&state(node), &all, name);
}

#[test]
#[ignore = "needs root and a network namespace"]
fn long_while_chains_of_iptables_are_written_others_are_repaired() {
    let (node, name) = (node(), "full-iptables");
    reconcile(&node, name);
    let saved = node.run("iptables-nft-save -t nat");
    let is_service = |line: &&str| line.starts_with("-A KUBE-SVC-");
    let chain = |line: &str| line.split(' ').nth(1).unwrap().to_owned();
    let broken = chain(saved.lines().find(is_service).unwrap());
    let others = || {
        saved
            .lines()
            .filter(is_service)
            .filter(|line| chain(line) != broken)
    };
    let flushed: BTreeSet<_> = others()
        .map(|line| format!(":{} - [0:0]", chain(line)))
        .collect();
    let lines: Vec<_> = flushed.iter().map(String::as_str).chain(others()).collect();
    let sync = format!("*nat\n{}\nCOMMIT\n", lines.join("\n"));
    let empty = format!("iptables-nft -t nat -F {broken}");
    every_repair_succeeds(name, &empty, &node, || {
        node.feed("iptables-nft-restore --noflush", &sync);
    });
}

#[test]
#[ignore = "needs root and a network namespace"]
fn long_while_chains_of_nftables_are_written_others_are_repaired() {
    let (node, name) = (node(), "full-nftables");
    reconcile(&node, name);
    let saved = node.run("nft list table ip kube-proxy");
    let names = saved
        .lines()
        .filter_map(|line| line.strip_prefix("\tchain service-"));
    let mut names = names.map(|rest| format!("service-{}", rest.trim_end_matches(" {")));
    let (broken, other) = (names.next().unwrap(), names.next().unwrap());
    let start = saved.find(&format!("\tchain {other} {{")).unwrap();
    let block = &saved[start..start + saved[start..].find("\n\t}\n").unwrap() + 4];
    let sync = format!("flush chain ip kube-proxy {other}\ntable ip kube-proxy {{\n{block}\n}}\n");
    let empty = format!("nft flush chain ip kube-proxy {broken}");
    every_repair_succeeds(name, &empty, &node, || {
        node.feed("nft -f -", &sync);
    });
}
