//! Changes in trouble: a lock that another program holds, tools that hang or print garbage, a kpx that is suspended.

use std::thread;
use std::time::{Duration, Instant};

use kpx_node::evidence::{self, Gap, Item};

use super::change::{
    APPLY, CLEANUP, RESTORES, assert_same, broken, kpx_with, legacy, node, programs, reconcile,
    restore, saved_rules, state, stopped,
};

const NAME: &str = "full-iptables";

#[test]
#[ignore = "needs root and a network namespace"]
fn a_tool_that_hangs_is_killed_and_the_node_is_as_it_was() {
    let (netns, broken) = broken(NAME);
    let hanging = programs(
        &["ip6tables-nft-restore", "ip6tables-restore"],
        "cat >/dev/null; sleep 600",
    );
    let began = Instant::now();
    let args = [&["--timeout", "500ms"], APPLY].concat();
    let out = stopped(&netns, NAME, &args, &hanging);
    assert!(began.elapsed() < Duration::from_secs(120), "{out}");
    assert!(out.contains("was killed: it took longer"), "{out}");
    assert!(out.contains("all changes were rolled back"), "{out}");
    assert_same(&state(&netns), &broken, "unwound");
}

#[test]
#[ignore = "needs root and a network namespace"]
fn a_kpx_that_is_suspended_in_a_change_finishes_it() {
    let netns = node();
    reconcile(&netns, NAME);
    let whole = state(&netns);
    let netns = node();
    let flag = tempfile::tempdir().unwrap();
    // For longer than a tool may take.
    let script = format!(
        "mkdir {}/stopped && {{ kill -STOP $PPID; (sleep 8; kill -CONT $PPID) & }}\nexec $REAL \"$@\"",
        flag.path().display()
    );
    let suspending = programs(&RESTORES, &script);
    let path = suspending.path().to_str().unwrap();
    let args = [&["--timeout", "200ms"], APPLY].concat();
    thread::scope(|scope| {
        let first = scope.spawn(|| kpx_with(&netns, NAME, &args, path));
        while !flag.path().join("stopped").exists() {
            assert!(!first.is_finished(), "nothing was changed");
            thread::sleep(Duration::from_millis(20));
        }
        thread::sleep(Duration::from_secs(1));
        let second = kpx_with(&netns, NAME, APPLY, "/nonexistent");
        let err = String::from_utf8_lossy(&second.stderr);
        assert!(err.contains("another kpx is changing this node"), "{err}");
        let first = first.join().unwrap();
        assert_eq!(first.status.code(), Some(0), "{first:?}");
    });
    assert_same(&state(&netns), &whole, "finished");
}

#[test]
#[ignore = "needs root and a network namespace"]
fn the_xtables_lock_is_waited_for_and_one_that_stays_changes_nothing() {
    let netns = node();
    restore(&netns, "full-nftables");
    let before = legacy(&netns);
    netns.feed("iptables-legacy-restore --noflush", &saved_rules(NAME));
    let left = legacy(&netns);
    let kpx = format!(
        "{} --cluster-from {}/testdata/nodes/full-nftables --node node1 --timeout 1s {} 9>&- 2>&1; echo \"status $?\"",
        env!("CARGO_BIN_EXE_kpx"),
        env!("CARGO_MANIFEST_DIR"),
        CLEANUP.join(" ")
    );
    // The lock is in a /run that only the test has.
    let hold = "mount -t tmpfs none /run && exec 9>/run/xtables.lock && flock 9\n";
    let said = netns.feed("sh", &format!("{hold}{kpx}\n"));
    assert!(
        said.contains("currently holding the xtables lock"),
        "{said}"
    );
    assert!(said.contains("all changes were rolled back"), "{said}");
    assert!(said.ends_with("status 4\n"), "{said}");
    assert_same(&legacy(&netns), &left, "locked");
    let said = netns.feed("sh", &format!("{hold}(sleep 1; flock -u 9) &\n{kpx}\n"));
    assert!(said.ends_with("status 0\n"), "{said}");
    assert_same(&legacy(&netns), &before, "cleaned");
}

#[test]
#[ignore = "needs root and a network namespace"]
fn garbage_of_a_tool_is_a_gap_that_names_it() {
    let netns = node();
    reconcile(&netns, NAME);
    // kpx leaves this table to nft.
    netns.run("nft add table bridge other");
    let garbage = programs(&["nft"], "head -c 300 /bin/sh");
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("bundle");
    let args = ["snapshot", "--file", bundle.to_str().unwrap()];
    kpx_with(&netns, NAME, &args, garbage.path().to_str().unwrap());
    let evidence = evidence::load(&bundle, &[Item::Nft, Item::Iptables4]).unwrap();
    let gap = evidence.text(Item::Nft).unwrap_err();
    assert!(
        matches!(&gap, Gap::Failed(_, why) if why.contains("`nft ")),
        "{gap:?}"
    );
    assert!(
        evidence
            .text(Item::Iptables4)
            .unwrap()
            .contains("KUBE-SERVICES")
    );
}

#[test]
#[ignore = "needs root and a network namespace"]
fn a_tool_that_succeeds_and_changes_nothing_is_seen() {
    let (netns, broken) = broken(NAME);
    let idle = programs(&RESTORES, "cat >/dev/null");
    let out = kpx_with(&netns, NAME, APPLY, idle.path().to_str().unwrap());
    let text = String::from_utf8_lossy(&out.stdout);
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    assert!(text.contains("; still needed to bring this node"), "{text}");
    assert!(text.contains("a step had no effect"), "{text}");
    assert_same(&state(&netns), &broken, "nothing was changed");
}
