//! Reading while another program writes rules.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::change::{kpx, kpx_with, node};
use super::netns::Netns;

/// Reads for each mode.
const READS: u32 = 500;

/// Compares a node with its cluster, `READS` times, while `write` replaces its rules by the same over and over: each
/// transaction is whole, so there is no difference at any time.
#[expect(clippy::print_stderr, reason = "the figures")]
fn no_read_finds_a_difference(name: &str, write: impl Fn(&Netns) + Sync) {
    let node = node();
    kpx(&node, name, &["reconcile", "--apply", "--yes"], 0);
    let ended = AtomicBool::new(false);
    let (mut same, mut unknown) = (0, 0);
    let written = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut written = 0;
            while !ended.load(Ordering::Relaxed) {
                write(&node);
                written += 1;
            }
            written
        });
        // The writer ends, whatever a read finds.
        let fault = (0..READS).find_map(|read| {
            let output = kpx_with(&node, name, &["diff"], "/nonexistent");
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            match output.status.code() {
                Some(0) => same += 1,
                Some(3) if text.contains("changed while") => unknown += 1,
                code => return Some(format!("read {read}: {code:?}\n{text}")),
            }
            None
        });
        ended.store(true, Ordering::Relaxed);
        let written = writer.join().unwrap();
        assert!(fault.is_none(), "{}", fault.unwrap());
        written
    });
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
