//! The display of a migration on a terminal.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::World;
use crate::terminal::{Session, lines};

impl Session {
    /// Starts a migration to mode iptables.
    fn start(world: &World, size: (u16, u16), env: &[(&str, &str)], args: &[&str]) -> Self {
        let words = ["migrate", "--to", "iptables", "--ready-timeout", "60s"];
        Self::run(world, size, env, &[&words, args].concat())
    }

    /// Says yes to the next `count` questions.
    fn agree(&mut self, count: usize) {
        for _ in 0..count {
            self.wait("question", |line| {
                line.starts_with("Done? [y/N]") && !line.ends_with('y')
            });
            self.type_in("y\n");
            self.wait("answer", |line| line == "Done? [y/N] y");
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn run(world: &World, size: (u16, u16), env: &[(&str, &str)], args: &[&str]) -> Self {
        let kubeconfig = world.dir.path().join("kubeconfig");
        let cluster = ["--kubeconfig", kubeconfig.to_str().unwrap()];
        let all = [&cluster, &["--timeout", "20s"], args].concat();
        Self::on(size, env!("CARGO_BIN_EXE_kpx"), env, &all)
    }
}

fn line<'l>(glass: &'l [String], start: &str) -> Option<&'l str> {
    let mut lines = glass.iter().rev();
    lines
        .find(|line| line.starts_with(start))
        .map(String::as_str)
}

/// Whether the glass shows a bar for `node` that contains `what`.
fn shows(glass: &[String], node: &str, what: &str) -> bool {
    line(glass, &format!("{node} ")).is_some_and(|line| line.contains(what))
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn each_node_has_a_line_below_the_log() {
    let world = World::new();
    let args = ["--all-nodes", "--image", "kpx:1", "--soak", "2s"];
    let mut session = Session::start(&world, (30, 100), &[], &args);
    session.wait("question", |line| {
        line.starts_with("Apply the migration of 3 nodes?")
    });
    session.type_in("y\n");
    let (status, mut seen) = session.end();
    let kept = seen.kept();
    assert_eq!(status.code(), Some(0), "{kept:#?}");
    // One that is watched, one that waits, and how many are through.
    let at = |glass: &[String]| {
        shows(glass, "worker1", " 5/5 ")
            && shows(glass, "worker1", "watch the node")
            && shows(glass, "worker2", "──────────   0/5")
            && shows(glass, "cluster", " 0/3 ")
    };
    assert!(seen.ever(at), "{:#?}", seen.all);
    let later = |glass: &[String]| {
        shows(glass, "worker1", "━━━━━━━━━━   5/5 ")
            && shows(glass, "worker1", "done")
            && shows(glass, "worker2", " 5/5 ")
            && shows(glass, "control1", "waiting")
            && shows(glass, "cluster", " 1/3 ")
    };
    assert!(seen.ever(later), "{:#?}", seen.all);
    // The time is drawn while nothing happens.
    let watched = seen.all.iter().filter_map(|glass| line(glass, "worker1 "));
    let watched = watched.filter(|line| line.contains("watch"));
    let times = watched.filter_map(|line| line.split(' ').find(|word| word.contains(':')));
    let times: BTreeSet<&str> = times.collect();
    assert!(times.len() >= 2, "{times:?} {:#?}", seen.all);
    // The whole log is there, once, and no bars.
    for node in ["worker1", "worker2", "control1"] {
        for said in [
            "build the new mode beside the old one",
            "  wait for it",
            "restart kube-proxy with the new configuration",
            "check the log of kube-proxy",
            "verify the new mode and remove the old one",
            "watch the node",
            "done",
        ] {
            let said = format!("kpx: {node}: {said}");
            let times = if said.ends_with("wait for it") { 2 } else { 1 };
            let found = kept.iter().filter(|line| **line == said).count();
            assert_eq!(found, times, "{said}: {kept:#?}");
        }
        assert!(
            !kept
                .iter()
                .any(|line| line.starts_with(&format!("{node} "))),
            "{kept:#?}"
        );
    }
    assert!(!kept.iter().any(|line| line.contains('━')), "{kept:#?}");
    let last = kept.last().unwrap();
    let head = "migrated 3 nodes from mode ipvs to mode iptables in ";
    assert!(last.starts_with(head), "{last}");
}

#[tokio::test]
async fn questions_are_printed_above_the_lines_and_answered() {
    let world = World::new();
    let args = ["--node", "worker1", "--by-hand", "--soak", "0s", "--yes"];
    let args = [
        &args[..],
        &["--strategy", "drain-node", "--delete-bare-pods"],
    ]
    .concat();
    let mut session = Session::start(&world, (60, 200), &[], &args);
    for _ in 0..2 {
        session.wait("question", |line| {
            line.starts_with("Done? [y/N]") && !line.ends_with('y')
        });
        // Nothing is drawn over it while it is open.
        thread::sleep(Duration::from_millis(1500));
        let now = lines(&session.seen.lock().unwrap().glass);
        assert!(now.last().unwrap().starts_with("Done?"), "{now:#?}");
        session.type_in("y\n");
        session.wait("answer", |line| line == "Done? [y/N] y");
        thread::sleep(Duration::from_millis(100));
    }
    let (status, mut seen) = session.end();
    let kept = seen.kept();
    assert_eq!(status.code(), Some(0), "{kept:#?}");
    let said = kept.join(" ");
    for tells in [
        "kpx: run this on node worker1: $ kpx migrate prepare --to iptables --old-mode ipvs --strategy drain-node --delete-bare-pods ",
        "kpx: run this on node worker1: $ kpx migrate finish ",
    ] {
        assert!(said.contains(tells), "{tells}: {kept:#?}");
    }
    // Steps that end at once may not be drawn.
    let between = [" 2/5 ", " 3/5 ", " 4/5 "];
    assert!(
        seen.ever(|glass| between.iter().any(|step| shows(glass, "worker1", step))),
        "{:#?}",
        seen.all
    );
}

#[tokio::test]
async fn the_end_of_standard_input_stops_a_migration_by_hand() {
    let world = World::new();
    let args = ["--node", "worker1", "--by-hand", "--soak", "0s", "--yes"];
    let mut session = Session::start(&world, (60, 200), &[], &args);
    session.wait("question", |line| line.starts_with("Done? [y/N]"));
    session.type_in("\x04");
    let (status, mut seen) = session.end();
    let kept = seen.kept();
    assert_ne!(status.code(), Some(0), "{kept:#?}");
    let questions = kept.iter().filter(|line| line.starts_with("Done?"));
    assert_eq!(questions.count(), 1, "{kept:#?}");
    let said = kept.join(" ");
    assert!(said.contains("reason: stopped on request"), "{said}");
}

#[tokio::test]
async fn a_rollback_by_hand_builds_the_old_mode_before_kube_proxy_restarts() {
    let world = World::new();
    let args = ["--node", "worker1", "--by-hand", "--soak", "0s", "--yes"];
    let mut there = Session::start(&world, (60, 200), &[], &args);
    there.agree(2);
    assert_eq!(there.end().0.code(), Some(0));
    let args = ["migrate", "rollback", "--all-nodes", "--yes"];
    let mut back = Session::run(&world, (60, 200), &[], &args);
    back.agree(2);
    let (status, mut seen) = back.end();
    let kept = seen.kept();
    assert_eq!(status.code(), Some(0), "{kept:#?}");
    let said = kept.join(" ");
    let first = said.find("run this on node worker1: $ kpx migrate rollback --until-restart ");
    let last = said.find("run this on node worker1: $ kpx migrate finish ");
    assert!(first.is_some() && first < last, "{kept:#?}");
}

#[tokio::test]
async fn a_signal_restores_the_terminal() {
    let world = World::new();
    let args = ["--all-nodes", "--image", "kpx:1", "--soak", "60s", "--yes"];
    let session = Session::start(&world, (24, 80), &[], &args);
    session.wait("watch", |line| {
        line.starts_with("worker1 ") && line.contains("watch")
    });
    let pid = Pid::from_raw(i32::try_from(session.kpx.id()).unwrap());
    // As Ctrl-C, which is ignored where the tests themselves run in the background of a shell.
    kill(pid, Signal::SIGTERM).unwrap();
    let (status, seen) = session.end();
    assert_eq!(status.code(), Some(4));
    let screen = seen.glass.screen();
    assert!(!screen.hide_cursor() && !screen.alternate_screen());
}

#[tokio::test]
async fn a_signal_at_a_question_stops() {
    for (args, question, tells) in [
        (
            &["--node", "worker1", "--by-hand", "--soak", "0s"][..],
            "Apply the migration of 1 node?",
            "stopped on request; nothing was changed",
        ),
        (
            &["--node", "worker1", "--by-hand", "--soak", "0s", "--yes"],
            "Done? [y/N]",
            "next: kpx migrate resume --all-nodes",
        ),
    ] {
        let world = World::new();
        let session = Session::start(&world, (30, 100), &[], args);
        session.wait("question", |line| line.starts_with(question));
        let pid = Pid::from_raw(i32::try_from(session.kpx.id()).unwrap());
        kill(pid, Signal::SIGTERM).unwrap();
        let (status, mut seen) = session.end();
        let kept = seen.kept();
        assert_eq!(status.code(), Some(4), "{kept:#?}");
        let said = kept.join(" ");
        assert!(said.contains(tells), "{kept:#?}");
        assert_eq!(world.modes(), ["ipvs"; 3]);
    }
}

#[tokio::test]
async fn few_columns_and_lines_are_enough() {
    let world = World::new();
    let args = ["--all-nodes", "--image", "kpx:1", "--soak", "1s", "--yes"];
    let env = [("LANG", "C"), ("NO_COLOR", "1")];
    let session = Session::start(&world, (8, 40), &env, &args);
    let (status, mut seen) = session.end();
    let kept = seen.kept();
    assert_eq!(status.code(), Some(0), "{kept:#?}");
    assert!(
        seen.ever(|glass| shows(glass, "worker1", "  5/5 ") && shows(glass, "control1", " 0/5")),
        "{:#?}",
        seen.all
    );
    let bytes = String::from_utf8_lossy(&seen.bytes);
    assert!(bytes.is_ascii(), "{bytes}");
    assert!(!bytes.contains("\u{1b}[1;"), "NO_COLOR: {bytes}");
    // Each bar is a line of its own.
    for glass in &seen.all {
        let bars = glass.iter().filter(|line| line.starts_with("worker1 "));
        assert!(bars.count() <= 1, "{glass:#?}");
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn without_a_terminal_lines_follow_each_other() {
    for (env, args) in [
        ([("TERM", "dumb")], &["--yes"][..]),
        ([("TERM", "xterm")], &["--yes", "--quiet"]),
        ([("TERM", "xterm")], &["--yes", "-o", "json"]),
    ] {
        let world = World::new();
        let mut all = vec!["--all-nodes", "--image", "kpx:1", "--soak", "0s"];
        all.extend(args);
        let session = Session::start(&world, (24, 200), &env, &all);
        let (status, mut seen) = session.end();
        let kept = seen.kept();
        assert_eq!(status.code(), Some(0), "{kept:#?}");
        let bytes = String::from_utf8_lossy(&seen.bytes);
        for drawn in ["\u{1b}[2K", "\u{1b}[1A", "━", "    waiting"] {
            assert!(!bytes.contains(drawn), "{args:?}: {bytes}");
        }
        // With the time, which nothing else tells there.
        let said = kept
            .iter()
            .any(|line| line.starts_with("kpx: 20") && line.ends_with("Z worker1: watch the node"));
        assert_eq!(said, args.len() == 1, "{args:?}: {kept:#?}");
    }
}
