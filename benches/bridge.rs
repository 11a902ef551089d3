//! The costs of the bridge on a node with 2000 Services of 10 endpoints, compared with kube-proxy's nftables mode: how long
//! `nft -f` takes to load it, and how many connections begin in a second through it. As root, in a network namespace of its
//! own; `make bench` runs it.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark prints its result, and panics on errors"
)]

use std::fs::File;
use std::io::Write as _;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio, id};
use std::time::{Duration, Instant};

use kpx_judge::bridge;
use kpx_judge::diff;
use kpx_node::backend::Mode;
use kpx_node::backend::program::{self, Part};
use kpx_node::evidence;
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;

/// How often each is measured, in turns; the best counts.
const RUNS: usize = 7;

/// How many connections begin in one run.
const CONNECTIONS: usize = 100_000;

/// How much slower than kube-proxy's rules the way through the bridge may be.
const LIMIT: f64 = 1.05;

struct Side {
    name: &'static str,
    text: String,
    loading: Duration,
    beginning: Duration,
}

fn main() -> ExitCode {
    let path = Path::new("testdata/nodes/scale-2000x10-nftables");
    let evidence = evidence::load(path, &diff::needs(Mode::Nftables)).unwrap();
    let node = NodeSnapshot::new(&evidence);
    let state = node.desired(Mode::Nftables).unwrap();
    let families = [Family::V4];
    let marks = bridge::marks(&node, state).unwrap();
    let ours = bridge::text(
        &bridge::tables(
            state,
            &families,
            marks,
            &bridge::Lease::of(Duration::from_secs(60)),
        )
        .unwrap(),
    );
    let theirs = program::text(state, Part::Nftables, &families, &[]).unwrap();
    let ports = state.family(Family::V4).unwrap().ports.iter();
    let targets: Vec<_> = ports
        .filter(|port| port.proto == Proto::Tcp && port.has_internal())
        .map(|port| (port.cluster_ip, port.port))
        .collect();
    // A UDP connection begins with its first packet and needs no answer.
    let [ours, theirs] = [ours, theirs].map(|text| {
        text.replace(" tcp ", " udp ")
            .replace("l4proto tcp", "l4proto udp")
    });
    let side = |name, text| Side {
        name,
        text,
        loading: Duration::MAX,
        beginning: Duration::MAX,
    };
    let mut sides = [side("bridge", ours), side("kube-proxy", theirs)];
    let netns = Netns::new();
    for _ in 0..RUNS {
        for side in &mut sides {
            netns.feed("nft -f -", "flush ruleset");
            let begin = Instant::now();
            netns.feed("nft -f -", &side.text);
            side.loading = side.loading.min(begin.elapsed());
            side.beginning = side.beginning.min(netns.begin(&targets));
        }
    }
    for side in &sides {
        let rate = f64::from(u32::try_from(CONNECTIONS).unwrap()) / side.beginning.as_secs_f64();
        println!(
            "{:10}  loaded in {:6.1} ms  {rate:8.0} connections per second",
            side.name,
            side.loading.as_secs_f64() * 1000.0
        );
    }
    let [ours, theirs] = sides;
    let slower = ours.beginning.as_secs_f64() / theirs.beginning.as_secs_f64();
    println!(
        "loading takes {:.2} times as long, a connection {slower:.3} times",
        ours.loading.as_secs_f64() / theirs.loading.as_secs_f64()
    );
    if ours.loading < theirs.loading && slower <= LIMIT {
        ExitCode::SUCCESS
    } else {
        println!("the bridge takes longer than it may");
        ExitCode::FAILURE
    }
}

/// A node, and a place where what it sends to pods ends.
struct Netns([String; 2]);

impl Netns {
    fn new() -> Self {
        let [node, pods] = ["node", "pods"].map(|name| format!("kpx-bench-{name}-{}", id()));
        let netns = Self([node.clone(), pods.clone()]);
        let lines = [
            format!("ip netns add {node}"),
            format!("ip netns add {pods}"),
            format!("ip -n {node} link set lo up"),
            format!("ip -n {node} link add eth0 type veth peer name eth0 netns {pods}"),
            format!("ip -n {node} addr add 10.0.2.15/24 dev eth0"),
            format!("ip -n {node} link set eth0 up"),
            format!("ip -n {pods} link set eth0 address 02:00:00:00:00:02"),
            format!("ip -n {pods} link set eth0 up"),
            format!(
                "ip -n {node} neigh add 10.0.2.2 lladdr 02:00:00:00:00:02 dev eth0 nud permanent"
            ),
            format!("ip -n {node} route add default via 10.0.2.2"),
            format!("ip netns exec {pods} nft add table ip mute"),
            format!(
                "ip netns exec {pods} nft add chain ip mute arriving {{ type filter hook prerouting priority raw; policy drop; }}"
            ),
        ];
        for line in &lines {
            run(line, "");
        }
        netns
    }

    fn feed(&self, line: &str, input: &str) {
        run(&format!("ip netns exec {} {line}", self.0[0]), input);
    }

    /// Returns how long it takes until so many connections to `targets` have begun.
    fn begin(&self, targets: &[(std::net::IpAddr, u16)]) -> Duration {
        self.feed("conntrack -F", "");
        let file = File::open(format!("/run/netns/{}", self.0[0])).unwrap();
        let send = move || {
            nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let begin = Instant::now();
            for target in targets.iter().cycle().take(CONNECTIONS) {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
                socket.send_to(b"?", target).unwrap();
            }
            begin.elapsed()
        };
        std::thread::scope(|scope| scope.spawn(send).join().unwrap())
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        for name in &self.0 {
            run(&format!("ip netns del {name}"), "");
        }
    }
}

fn run(line: &str, input: &str) {
    let mut words = line.split(' ');
    let mut child = Command::new(words.next().unwrap())
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let status = child.wait().unwrap();
    assert!(status.success(), "{line}: {status}");
}
