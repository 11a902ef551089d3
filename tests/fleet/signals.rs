//! Signals during a migration.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Child;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{World, flat};
use crate::fake_api::Fate;

/// kpx, with its output.
struct Running {
    kpx: Child,
    err: BufReader<std::process::ChildStderr>,
}

impl Running {
    fn start(world: &World, args: &[&str]) -> Self {
        let mut kpx = world.process(args);
        let err = BufReader::new(kpx.stderr.take().unwrap());
        Self { kpx, err }
    }

    /// Reads its log up to a line with `what`.
    fn until(&mut self, what: &str) {
        let mut line = String::new();
        while !line.contains(what) {
            line.clear();
            assert_ne!(self.err.read_line(&mut line).unwrap(), 0, "never: {what}");
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.kpx.id()).unwrap()), signal).unwrap();
    }

    /// Returns its exit status, and all that it printed at the end.
    fn end(mut self) -> (Option<i32>, String) {
        let mut text = String::new();
        self.err.read_to_string(&mut text).unwrap();
        let mut out = self.kpx.stdout.take().unwrap();
        out.read_to_string(&mut text).unwrap();
        (self.kpx.wait().unwrap().code(), flat(&text))
    }
}

fn holder(world: &World) -> serde_json::Value {
    world.object("leases", "kpx-migrate").unwrap()["spec"]["holderIdentity"].clone()
}

/// Whether the tests were started to outlive their terminal, as kpx is then, too.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    u64::from_str_radix(mask.unwrap().trim(), 16).unwrap() & 1 == 1
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_signal_stops_after_the_step_and_keeps_the_guard() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        if signal == Signal::SIGHUP && ignores_hangup() {
            continue;
        }
        let world = World::new();
        let slow = Duration::from_millis(400);
        let job = "worker1 prepare".to_owned();
        world.nodes.slow.lock().unwrap().insert(job, slow);
        let mut kpx = Running::start(&world, &["--soak", "0s"]);
        kpx.until("Z worker1: build the new mode");
        kpx.signal(signal);
        kpx.until("stopping after the step in progress");
        let (code, said) = kpx.end();
        assert_eq!(code, Some(4), "{signal}: {said}");
        for tells in [
            "reason: stopped on request; next step: change the configuration of all nodes",
            "bridge: worker1: lease of 60 s, renewed by pod kube-system/kpx-guard-",
            "next: kpx migrate resume --all-nodes --kubeconfig ",
            ", or kpx migrate rollback --all-nodes --kubeconfig ",
        ] {
            assert!(said.contains(tells), "{signal}: {tells}: {said}");
        }
        assert!(holder(&world).is_null(), "{signal}");
        // Only the guard of the bridge is left.
        let left = world.leftovers();
        assert_eq!(left.len(), 1, "{left:?}");
        assert!(left[0].starts_with("kpx-guard-"), "{left:?}");
        let ran = world
            .kpx(&["migrate", "resume", "--all-nodes", "--yes"])
            .await;
        assert_eq!(ran.code, 0, "{ran}");
        assert_eq!(world.modes(), ["iptables"; 3]);
        assert_eq!(world.leftovers(), [""; 0]);
    }
}

#[tokio::test]
async fn a_second_signal_stops_at_once() {
    let world = World::new();
    // It never ends.
    world.nodes.fates("worker1 prepare", &[Fate::Ready]);
    let mut kpx = Running::start(&world, &["--soak", "0s"]);
    kpx.until("Z worker1: build the new mode");
    kpx.signal(Signal::SIGTERM);
    kpx.until("a second signal stops at once");
    let made = |world: &World| {
        let left = world.leftovers();
        left.iter().any(|name| name.starts_with("kpx-prepare-"))
    };
    while !made(&world) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let began = Instant::now();
    kpx.signal(Signal::SIGTERM);
    let (code, said) = kpx.end();
    assert!(began.elapsed() < Duration::from_secs(3));
    assert_eq!(code, Some(4), "{said}");
    for tells in [
        "left: pod kube-system/kpx-prepare-",
        " on node worker1 runs its stage to the end",
        "bridge: worker1: lease of 60 s, renewed by pod kube-system/kpx-guard-",
    ] {
        assert!(said.contains(tells), "{tells}: {said}");
    }
    let tells = "stopped at once on a second signal; not finished: build the new mode beside the old one on node worker1";
    assert!(said.contains(tells), "{said}");
    assert!(holder(&world).is_null());
    let left = world.leftovers();
    let pod = left.iter().find(|name| name.starts_with("kpx-prepare-"));
    world.api.with(|cluster| {
        let key = crate::fake_api::Key::new("pods", "kube-system", pod.unwrap());
        cluster.remove(&key);
    });
    let ran = world
        .kpx(&["migrate", "resume", "--all-nodes", "--yes"])
        .await;
    assert_eq!(ran.code, 0, "{ran}");
    assert_eq!(world.leftovers(), [""; 0]);
}

#[tokio::test]
async fn interrupted_previews_leave_nothing_behind() {
    let world = World::new();
    for node in world.names {
        let job = format!("{node} preview");
        world.nodes.fates(&job, &[Fate::Ready]);
    }
    let mut kpx = Running::start(&world, &["--soak", "0s"]);
    kpx.until("previewing 3 nodes");
    // Until the pods are there.
    while world.leftovers().len() < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    kpx.signal(Signal::SIGINT);
    let (code, said) = kpx.end();
    assert_eq!(code, Some(4), "{said}");
    assert!(
        said.contains("stopped on request; nothing was changed"),
        "{said}"
    );
    while !world.leftovers().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(world.nodes.story(), [""; 0]);
}

#[tokio::test]
async fn a_signal_ends_the_watch_of_a_node() {
    let world = World::new();
    let mut kpx = Running::start(&world, &["--soak", "60s"]);
    kpx.until("Z worker1: watch the node");
    let began = Instant::now();
    kpx.signal(Signal::SIGTERM);
    let (code, said) = kpx.end();
    assert!(began.elapsed() < Duration::from_secs(5), "{said}");
    assert_eq!(code, Some(4), "{said}");
    assert!(
        said.contains("stopped on request; not finished: watch the node on node worker1"),
        "{said}"
    );
    assert_eq!(world.modes(), ["ipvs", "iptables", "ipvs"]);
}
