//! The display of a migration on a terminal.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZeroU16;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{Termios, tcgetattr};
use nix::unistd::Pid;

use super::World;
use crate::support::profile;

/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(240);

/// A terminal, and kpx on it.
struct Session {
    kpx: Child,
    /// The operator's side.
    keys: File,
    /// The side of the programs, kept open.
    line: OwnedFd,
    before: Termios,
    seen: Arc<Mutex<Previous>>,
    reader: JoinHandle<()>,
}

/// The screens.
struct Previous {
    glass: vt100::Parser,
    /// Every byte.
    bytes: Vec<u8>,
    /// The glass, whenever something had been written.
    all: Vec<Vec<String>>,
}

fn lines(glass: &vt100::Parser) -> Vec<String> {
    let rows = glass.screen().rows(0, glass.screen().size().1.get());
    let mut rows: Vec<_> = rows.map(|row| row.trim_end().to_owned()).collect();
    let used = rows.iter().rposition(|row| !row.is_empty());
    rows.truncate(used.map_or(0, |last| last + 1));
    rows
}

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

    fn run(
        world: &World,
        (rows, columns): (u16, u16),
        env: &[(&str, &str)],
        args: &[&str],
    ) -> Self {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let OpenptyResult { master, slave } = openpty(Some(&size), None).unwrap();
        // Not inherited by the kpx of other tests: the end is reached when all copies are closed.
        for end in [&master, &slave] {
            fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
        }
        let before = tcgetattr(slave.as_fd()).unwrap();
        let end = || slave.try_clone().unwrap();
        #[expect(
            clippy::disallowed_methods,
            reason = "the terminal is that of the whole process"
        )]
        let mut command = Command::new(env!("CARGO_BIN_EXE_kpx"));
        command
            .args([
                "--kubeconfig",
                world.dir.path().join("kubeconfig").to_str().unwrap(),
            ])
            .args(["--timeout", "20s"])
            .args(args)
            .env_clear()
            .envs(profile())
            .envs([("TERM", "xterm"), ("LANG", "C.UTF-8")])
            .envs(env.iter().copied())
            .stdin(end())
            .stdout(end())
            .stderr(end());
        let kpx = command.spawn().unwrap();
        let size = |size| NonZeroU16::new(size).unwrap();
        let seen = Arc::new(Mutex::new(Previous {
            glass: vt100::Parser::new(size(rows), size(columns), 10_000),
            bytes: Vec::new(),
            all: Vec::new(),
        }));
        let keys = File::from(master);
        let mut screen = keys.try_clone().unwrap();
        let shared = Arc::clone(&seen);
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            // After the other side is closed, reading fails.
            while let Ok(length @ 1..) = screen.read(&mut buffer) {
                let mut seen = shared.lock().unwrap();
                seen.glass.process(&buffer[..length]);
                seen.bytes.extend(&buffer[..length]);
                let now = lines(&seen.glass);
                seen.all.push(now);
            }
        });
        Self {
            kpx,
            keys,
            line: slave,
            before,
            seen,
            reader,
        }
    }

    /// Waits until a line on the glass meets `is`.
    fn wait(&self, what: &str, is: impl Fn(&str) -> bool) {
        let began = Instant::now();
        loop {
            let now = lines(&self.seen.lock().unwrap().glass);
            if now.iter().any(|line| is(line)) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "no {what}: {now:#?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn type_in(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the end of kpx; returns its status, and what was to be seen.
    fn end(mut self) -> (ExitStatus, Previous) {
        let status = self.kpx.wait().unwrap();
        let after = tcgetattr(self.line.as_fd()).unwrap();
        assert_eq!(
            (after.local_flags, after.input_flags, after.output_flags),
            (
                self.before.local_flags,
                self.before.input_flags,
                self.before.output_flags
            ),
            "the terminal is as it was"
        );
        drop(self.line);
        self.reader.join().unwrap();
        let seen = Arc::try_unwrap(self.seen).ok().unwrap();
        (status, seen.into_inner().unwrap())
    }
}

impl Previous {
    /// Returns all that was written, as lines: what scrolled away, and what is left.
    fn kept(&mut self) -> Vec<String> {
        let size = self.glass.screen().size();
        let tall = NonZeroU16::new(2000).unwrap();
        // The same bytes on a terminal where nothing scrolls away.
        let mut glass = vt100::Parser::new(tall, size.1, 0);
        glass.process(&self.bytes);
        lines(&glass)
    }

    /// Returns whether something was on the glass that meets `is`.
    fn ever(&self, is: impl Fn(&[String]) -> bool) -> bool {
        self.all.iter().any(|glass| is(glass))
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
        "kpx: on node worker1, run: kpx migrate prepare --to iptables --old-mode ipvs --strategy drain-node --delete-bare-pods ",
        "kpx: on node worker1, run: kpx migrate finish ",
    ] {
        assert!(said.contains(tells), "{tells}: {kept:#?}");
    }
    assert!(
        seen.ever(|glass| shows(glass, "worker1", " 2/5 ")),
        "{:#?}",
        seen.all
    );
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
    let first = said.find("on node worker1, run: kpx migrate rollback --until-restart ");
    let last = said.find("on node worker1, run: kpx migrate finish ");
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
