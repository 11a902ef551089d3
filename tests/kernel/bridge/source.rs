//! Source addresses of host processes while kube-ipvs0 has the addresses of Services, and after it is removed.
//!
//! A veth link without ARP that is down stands in for the dummy link: its addresses get the same routes.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::process::{self, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use kpx_node::evidence::Item;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::sockets::Connected;
use socket2::{Domain, Protocol, Socket, Type};
use tempfile::TempDir;

use super::follow::own_root;
use crate::kernel::netns::{Netns, run};
use crate::kernel::traffic::{NAME, World};

/// The Service's addresses, with the address that the node sends from.
const TARGETS: [(&str, &str); 4] = [
    ("10.100.9.1:80", "10.0.2.15"),
    ("203.0.113.90:80", "10.0.2.15"),
    ("[fd00:10:96::901]:80", "fd00:10:0:2::15"),
    ("[2001:db8:99::90]:80", "fd00:10:0:2::15"),
];

/// Who is asked to wait no longer than this.
const PATIENCE: Duration = Duration::from_secs(3);

/// Gives the node a link like kube-ipvs0, with the Service's addresses and `more` of each family.
fn add_link(node: &Netns, more: usize) {
    let mut batch = "link add kube-ipvs0 arp off type veth peer name far9\n".to_owned();
    for (target, _) in TARGETS {
        let addr: SocketAddr = target.parse().unwrap();
        writeln!(batch, "addr add {} dev kube-ipvs0", addr.ip()).unwrap();
    }
    for number in 0..more {
        let (high, low) = (number / 250, number % 250 + 1);
        writeln!(batch, "addr add 10.100.{}.{low} dev kube-ipvs0", high + 20).unwrap();
        writeln!(
            batch,
            "addr add fd00:10:96::{:x} dev kube-ipvs0",
            number + 0x2000
        )
        .unwrap();
    }
    node.feed("ip -batch -", &batch);
    settle(node, 2 * (more + 2));
}

/// Waits for the kernel's routes to the `count` addresses of the link: those of IPv6 come a moment later.
fn settle(node: &Netns, count: usize) {
    let begin = Instant::now();
    while routes(node).matches("dev kube-ipvs0 proto kernel").count() < count {
        assert!(begin.elapsed() < PATIENCE, "{}", routes(node));
        thread::sleep(Duration::from_millis(20));
    }
}

/// Local routes, and addresses, of both families, to the letter.
fn routes(node: &Netns) -> String {
    let lists = ["ip route show table local", "ip -6 route show table local"];
    lists.map(|list| node.run(list)).concat()
}

fn addresses(node: &Netns) -> String {
    node.run("ip addr show dev kube-ipvs0")
}

/// A TCP connection to the Service.
struct Connection(TcpStream);

impl Connection {
    /// From whichever address the kernel chooses.
    fn to(node: &Netns, target: &str) -> Self {
        let target = target.parse().unwrap();
        let stream = node.inside(|| TcpStream::connect_timeout(&target, PATIENCE).unwrap());
        Self::greeted(stream)
    }

    /// From the Service's own address, as a process without kpx's routes has it.
    fn from_itself(node: &Netns, target: &str) -> Self {
        let target: SocketAddr = target.parse().unwrap();
        let socket = node.inside(|| {
            let socket = Socket::new(
                Domain::for_address(target),
                Type::STREAM,
                Some(Protocol::TCP),
            );
            let socket = socket.unwrap();
            socket
                .bind(&SocketAddr::new(target.ip(), 0).into())
                .unwrap();
            socket.connect_timeout(&target.into(), PATIENCE).unwrap();
            socket
        });
        Self::greeted(socket.into())
    }

    fn greeted(mut stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_exact(&mut [0; NAME]).unwrap();
        Self(stream)
    }

    fn source(&self) -> IpAddr {
        self.0.local_addr().unwrap().ip()
    }

    fn passes(&mut self) -> bool {
        let mut answer = [0; 5];
        self.0.write_all(b"still").is_ok() && self.0.read_exact(&mut answer).is_ok()
    }
}

/// A UDP socket that stays, from the Service's own address.
struct Datagrams(UdpSocket);

impl Datagrams {
    fn from_itself(node: &Netns, target: &str) -> Self {
        let target: SocketAddr = target.parse().unwrap();
        let socket = node.inside(|| UdpSocket::bind((target.ip(), 0)).unwrap());
        socket.connect(target).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    fn passes(&self) -> bool {
        self.0.send(b"?").is_ok() && self.0.recv(&mut [0; NAME]).is_ok()
    }
}

/// A node, and what kpx has for its root there.
struct Place {
    world: World,
    root: TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            world: World::new("iptables"),
            root: own_root(),
        }
    }

    fn node(&self) -> &Netns {
        &self.world.network.node
    }

    /// The words of `kpx bridge`.
    fn line(&self, args: &[&str]) -> Vec<String> {
        let netns = self.node().options().netns.unwrap();
        let mut line = vec![env!("CARGO_BIN_EXE_kpx"), "--netns", &netns];
        line.extend(["--node", "node1", "--timeout", "60s", "--root"]);
        line.push(self.root.path().to_str().unwrap());
        line.extend([
            "--cluster-from",
            self.world.folder.0.to_str().unwrap(),
            "bridge",
        ]);
        line.extend(args);
        line.into_iter().map(str::to_owned).collect()
    }

    fn kpx(&self, args: &[&str]) {
        let line = self.line(args);
        run(&line.iter().map(String::as_str).collect::<Vec<_>>(), "");
    }

    fn up(&self) {
        self.kpx(&["up", "--apply", "--yes", "-q"]);
    }

    fn down(&self) {
        self.kpx(&["down", "--apply", "--yes", "-q"]);
    }
}

/// New connections get through, from the node's address.
fn new_ones_pass(node: &Netns) {
    for (target, source) in TARGETS {
        let mut new = Connection::to(node, target);
        assert_eq!(new.source().to_string(), source, "{target}");
        assert!(new.passes(), "{target}");
    }
}

/// How many sockets the drain has to wait for.
async fn awaited(node: &Netns) -> usize {
    let evidence = node.collect(&[Item::HeldSockets]).await;
    let held = NodeSnapshot::new(&evidence).held_sockets().unwrap().clone();
    let mine = |of: &Connected| of.processes.iter().any(|by| by.pid == process::id());
    assert!(held.iter().all(mine), "{held:?}");
    held.len()
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn what_a_process_of_the_node_opens_outlives_kube_ipvs0() {
    let place = Place::new();
    let node = place.node();
    let without = routes(node);
    add_link(node, 0);
    // Routes of another program, to one of the same addresses and to another address.
    for route in [
        "local 10.100.9.1 dev client0 table local proto 98 metric 7",
        "local 10.100.77.7 dev client0 table local proto 98",
    ] {
        node.run(&format!("ip route add {route}"));
    }
    node.run("ip -6 route add local fd00:10:96::777 dev client0 table local proto 98");
    let with = routes(node);
    place.up();
    let mut opened: Vec<_> = TARGETS
        .map(|(target, _)| Connection::to(node, target))
        .into();
    let sources = opened.iter().map(|opened| opened.source().to_string());
    assert!(sources.eq(TARGETS.map(|(_, source)| source)));
    let mut bound: Vec<_> = TARGETS
        .map(|(target, _)| Connection::from_itself(node, target))
        .into();
    let datagrams = TARGETS.map(|(target, _)| Datagrams::from_itself(node, target));
    assert!(datagrams.iter().all(Datagrams::passes));
    assert_eq!(awaited(node).await, bound.len() + datagrams.len());

    node.run("ip link delete kube-ipvs0");
    new_ones_pass(node);
    for (at, (target, _)) in TARGETS.iter().enumerate() {
        assert!(opened[at].passes(), "{target}");
        // Its address is one of the node's still, by kpx's route.
        assert!(bound[at].passes(), "{target}");
        assert!(datagrams[at].passes(), "{target}");
    }
    assert_eq!(awaited(node).await, bound.len() + datagrams.len());
    drop(datagrams);
    assert_eq!(awaited(node).await, bound.len());
    place.down();
    for line in without.lines() {
        assert!(routes(node).contains(line), "{line}");
    }
    let left: Vec<_> = with
        .lines()
        .filter(|line| line.contains("proto 98"))
        .collect();
    assert_eq!(left.len(), 3);
    let now = routes(node);
    let others = now.lines().filter(|line| !without.contains(line));
    assert!(others.eq(left), "{now}");
    // What had the node's own address lives on; the others' is gone, which is why they are counted before.
    assert!(opened.iter_mut().all(Connection::passes));
    for (bound, (target, _)) in bound.iter_mut().zip(TARGETS).skip(1) {
        assert!(!bound.passes(), "{target}");
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn long_routes_are_as_before_where_kube_ipvs0_stays() {
    let place = Place::new();
    let node = place.node();
    add_link(node, 40);
    let before = (routes(node), addresses(node));
    place.up();
    assert_ne!(routes(node), before.0);
    new_ones_pass(node);
    // Again, over what stands.
    let standing = routes(node);
    place.up();
    assert_eq!(routes(node), standing);
    place.down();
    assert_eq!((routes(node), addresses(node)), before);
    // By hand, what kube-proxy would: addresses come and go while the bridge stands.
    place.up();
    node.run("ip addr delete 10.100.9.1/32 dev kube-ipvs0");
    node.run("ip addr delete fd00:10:96::901/128 dev kube-ipvs0");
    new_ones_pass(node);
    place.down();
    let gone = |text: &str| {
        let lines = text
            .lines()
            .filter(|line| !line.contains("10.100.9.1 ") && !line.contains("96::901 "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(gone(&routes(node)), gone(&before.0));
    assert_eq!(routes(node).lines().count() + 2, before.0.lines().count());
}

#[test]
#[ignore = "needs root and network namespaces"]
fn long_killed_at_some_moments_routes_are_as_before_in_the_end() {
    killed(6);
}

#[test]
#[ignore = "needs root and network namespaces"]
fn long_killed_at_any_moment_routes_are_as_before_in_the_end() {
    killed(24);
}

/// Killed after more routes in each round, while there is much to do.
fn killed(rounds: usize) {
    let place = Place::new();
    let node = place.node();
    add_link(node, 600);
    let before = routes(node);
    place.up();
    let all = routes(node).matches("proto 107").count();
    place.down();
    assert_eq!(routes(node), before);
    let mut partly = 0;
    for (round, verb) in (0..rounds).zip(["up", "down"].into_iter().cycle()) {
        if verb == "down" {
            place.up();
        }
        let mut monitor = node.start(&["ip", "monitor", "route"], Stdio::piped());
        let lines = BufReader::new(monitor.stdout.take().unwrap()).lines();
        let (sender, changed) = mpsc::channel();
        let reader = thread::spawn(move || lines.for_each(|line| sender.send(line).unwrap_or(())));
        while changed.recv_timeout(Duration::from_millis(50)).is_err() {
            node.run("ip route add blackhole 192.0.2.99 table 99");
            node.run("ip route del blackhole 192.0.2.99 table 99");
        }
        let line = place.line(&[verb, "--apply", "--yes", "-q"]);
        let line: Vec<_> = line.iter().map(String::as_str).collect();
        let mut child = node.start(&line, Stdio::inherit());
        for _ in 0..=all * round / rounds {
            // On a busy machine the monitor loses lines, so that kpx ends first.
            if changed.recv_timeout(PATIENCE).is_err() {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        monitor.kill().unwrap();
        monitor.wait().unwrap();
        reader.join().unwrap();
        // The kernel ends what it has begun.
        thread::sleep(Duration::from_millis(200));
        let now = routes(node).matches("proto 107").count();
        partly += u32::from(now != 0 && now != all);
        // Some routes are changed and some are not: every Service address still works.
        new_ones_pass_where_it_stands(node);
        place.down();
        assert_eq!(routes(node), before, "{verb} {round}");
    }
    assert!(partly > 0, "none was killed between two routes");
}

/// Addresses of kube-ipvs0 are local at any moment, by the kernel's route or by kpx's.
fn new_ones_pass_where_it_stands(node: &Netns) {
    for (target, _) in TARGETS {
        let addr = target.parse::<SocketAddr>().unwrap().ip();
        let way = node.run(&format!("ip route get {addr}"));
        assert!(way.starts_with("local "), "{way}");
    }
    let tables = node.run("nft list tables");
    if tables.contains("kpx-bridge") {
        for (target, _) in TARGETS {
            assert!(Connection::to(node, target).passes(), "{target}");
        }
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn the_guard_takes_routes_down_with_the_bridge_or_without() {
    let place = Place::new();
    let node = place.node();
    let mut proxy = place.world.proxy(Duration::ZERO);
    proxy.wait_synced(1);
    add_link(node, 3);
    let before = routes(node);
    for table in [true, false] {
        place.up();
        assert_ne!(routes(node), before);
        if !table {
            for family in ["ip", "ip6"] {
                node.run(&format!("nft delete table {family} kpx-bridge"));
            }
        }
        place.kpx(&["guard"]);
        assert_eq!(routes(node), before);
        assert!(!node.run("nft list tables").contains("kpx-bridge"));
    }
    proxy.stop();
}
