//! The lease of the bridge: the bridge serves while it is renewed, and kube-proxy's rules serve once it has expired.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::follow::{Node, VIP, set, slice};

/// Long enough for a machine that is short of time to renew it, and short enough to wait for its end.
const LEASE: &str = "20s";
const SECONDS: Duration = Duration::from_secs(20);

/// How much longer than it has to take anything may take.
const SLACK: Duration = Duration::from_secs(60);

/// The endpoint that the bridge knows, and the one that kube-proxy's rules lead to.
const OLD: &str = "10.244.1.14";
const NEW: &str = "10.244.1.16";

/// A stand-in for kube-proxy's rules, which are up to date when an abandoned bridge is not.
const RULES: &str = "table ip stand-in {
    chain output { type nat hook output priority -100; ip daddr 10.97.54.248 tcp dport 80 dnat to 10.244.1.16:80; }
}";

/// Answers each line on `at`, for ever, with `name` before it.
fn answer(node: &Node, at: &str, name: u8) {
    let listener = node.netns.inside(|| TcpListener::bind((at, 80)).unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() && stream.write_all(&[name]).is_ok() {}
            });
        }
    });
}

/// A connection to the Service.
struct Client(TcpStream);

impl Client {
    fn new(node: &Node) -> Self {
        let at = format!("{VIP}:80").parse().unwrap();
        let stream = node
            .netns
            .inside(|| TcpStream::connect_timeout(&at, Duration::from_secs(10)));
        let stream = stream.expect("every new connection is served");
        stream.set_read_timeout(Some(SLACK)).unwrap();
        Self(stream)
    }

    /// Asks who is at the other end.
    fn ask(&mut self) -> char {
        let mut byte = [b'?'];
        self.0.write_all(&byte).unwrap();
        self.0.read_exact(&mut byte).unwrap();
        byte[0].into()
    }
}

/// A node with both endpoints and kube-proxy's rules.
fn node() -> Node {
    let node = Node::new("seed-iptables");
    for (at, name) in [(OLD, b'o'), (NEW, b'n')] {
        node.netns.run(&format!("ip addr add {at}/32 dev lo"));
        answer(&node, at, name);
    }
    node.netns
        .run("ip route add 10.96.0.0/12 via 10.0.2.2 dev eth0");
    node.netns.feed("nft -f -", RULES);
    set(&node, &slice(&node.api), &[OLD]);
    node
}

fn up(node: &Node) {
    node.done(&[
        "bridge", "up", "--mode", "iptables", "--lease", LEASE, "--apply", "--yes", "-q",
    ]);
}

/// Opens one connection after the other, each of which must be served, until one is by kube-proxy's rules; returns how many
/// the bridge had before.
fn until_over(node: &Node) -> usize {
    let begin = Instant::now();
    let mut bridged = 0;
    while Client::new(node).ask() == 'o' {
        bridged += 1;
        assert!(begin.elapsed() < SECONDS + SLACK, "{}", lease(node));
        thread::sleep(Duration::from_millis(20));
    }
    // From then on all are.
    for _ in 0..100 {
        assert_eq!(Client::new(node).ask(), 'n');
    }
    bridged
}

/// Opens connections for longer than the lease is, which the bridge must have.
fn outlasts_its_lease(node: &Node) {
    let begin = Instant::now();
    while begin.elapsed() < SECONDS + SECONDS / 4 {
        assert_eq!(Client::new(node).ask(), 'o', "{}", lease(node));
        thread::sleep(Duration::from_millis(50));
    }
}

fn lease(node: &Node) -> String {
    node.netns.run("nft list set ip kpx-bridge alive")
}

/// Waits until `who` has renewed the lease; returns its process.
fn kept_by(node: &Node, who: &str) -> Pid {
    let begin = Instant::now();
    loop {
        let text = lease(node);
        if let Some((_, rest)) = text.split_once(&format!("\"{who}, pid ")) {
            let pid = rest.split('"').next().unwrap();
            return Pid::from_raw(pid.parse().unwrap());
        }
        assert!(begin.elapsed() < SECONDS + SLACK, "{who}: {text}");
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
#[ignore = "needs root and a network namespace"]
fn when_its_keeper_dies_new_connections_take_kube_proxys_rules() {
    let node = node();
    assert_eq!(Client::new(&node).ask(), 'n');
    up(&node);
    let following = node.follow_with(&["--lease", LEASE]);
    outlasts_its_lease(&node);
    let mut long = Client::new(&node);
    assert_eq!(long.ask(), 'o');
    kept_by(&node, "kpx bridge follow");
    let shown = node.done(&["bridge", "show", "--mode", "iptables"]);
    assert!(
        shown.contains("s left of 20 s, kept by kpx bridge follow, pid "),
        "{shown}"
    );
    // Killed; and the cluster changes, which kube-proxy sees.
    drop(following);
    set(&node, &slice(&node.api), &[NEW]);
    until_over(&node);
    assert_eq!(long.ask(), 'o', "what has begun goes on");
    let shown = node.done(&["bridge", "show", "--mode", "iptables"]);
    assert!(shown.contains("# note: lease: expired"), "{shown}");
    // `kpx bridge follow` loads a new bridge and does not renew the lease of the old one, which is out of date.
    let _following = node.follow_with(&["--lease", LEASE]);
    assert_eq!(node.endpoints(VIP).1, [format!("{NEW} . 80")]);
    kept_by(&node, "kpx bridge follow");
}

#[test]
#[ignore = "needs root and a network namespace"]
fn long_a_guard_that_waits_takes_over_and_without_it_the_lease_ends() {
    let node = node();
    // Before there is a bridge.
    node.done(&[
        "bridge", "guard", "--detach", "--mode", "iptables", "--lease", LEASE,
    ]);
    up(&node);
    let following = node.follow_with(&["--lease", LEASE]);
    kept_by(&node, "kpx bridge follow");
    drop(following);
    let guard = kept_by(&node, "kpx bridge guard");
    // It follows the cluster, too.
    let begin = Instant::now();
    for endpoint in [NEW, OLD] {
        set(&node, &slice(&node.api), &[endpoint]);
        while node.endpoints(VIP).1 != [format!("{endpoint} . 80")] {
            assert!(begin.elapsed() < SLACK, "{:?}", node.endpoints(VIP));
            thread::sleep(Duration::from_millis(50));
        }
    }
    outlasts_its_lease(&node);
    kill(guard, Signal::SIGKILL).unwrap();
    assert!(until_over(&node) > 0);
}
