//! The state of IPVS and dummy links that kpx reads, compared with the output of ipvsadm and ip.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::thread;
use std::time::Duration;

use kpx_judge::trace::choose;
use kpx_node::backend::ipvs::model::Table;
use kpx_node::backend::ipvs::parse;
use kpx_node::evidence::ipvs::{Dump, Forwarding, Service};
use kpx_node::evidence::{Evidence, Gap, Item};
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use super::netns::{Netns, run};

/// Virtual servers of every kind, as `ipvsadm --restore` takes them.
const SERVERS: &str = "\
-A -t 10.96.0.1:443 -s rr
-a -t 10.96.0.1:443 -r 10.0.2.15:6443 -m -w 1
-a -t 10.96.0.1:443 -r 10.0.2.16:6443 -m -w 0
-A -u 10.96.0.10:53 -s wrr
-a -u 10.96.0.10:53 -r 127.0.0.1:5353 -m -w 65535
-A --sctp-service 10.96.0.20:7777 -s lc -p 10800
-a --sctp-service 10.96.0.20:7777 -r 10.244.1.7:7777 -m -w 1
-A -t 10.96.0.30:0 -s sh -p 300 -M 255.255.255.0 -b sh-fallback,sh-port
-a -t 10.96.0.30:0 -r 10.244.1.8:0 -g -w 3
-a -t 10.96.0.30:0 -r 10.244.1.9:0 -g -w 3
-A -u 10.96.0.40:5060 -s mh -b mh-port
-a -u 10.96.0.40:5060 -r 10.244.1.10:5060 -i -w 2
-A -u 10.96.0.41:5060 -s rr -o
-A -t [fd00:10:96::1]:443 -s rr
-a -t [fd00:10:96::1]:443 -r [fd00:10:244::1]:6443 -m -w 1
-A -t [fd00:10:96::2]:80 -s sed -p 60 -M 64
-a -t [fd00:10:96::2]:80 -r [fd00:10:244::2]:8080 -m -w 1
-A -f 7 -s nq
-a -f 7 -r 10.244.1.11:0 -m -w 1
-A -f 2147483647 -6 -s dh -p 120 -M 48
-a -f 2147483647 -6 -r [fd00:10:244::3]:0 -m -w 1
";

#[tokio::test]
#[ignore = "needs root and ip_vs"]
async fn vm_every_kind_of_virtual_server_is_read_as_ipvsadm_prints_it() {
    let netns = Netns::new();
    netns.feed("ipvsadm --restore", SERVERS);
    netns.run("ipvsadm -e -t 10.96.0.1:443 -r 10.0.2.15:6443 -m -w 1 -x 100 -y 50");
    netns.run("ipvsadm --set 901 121 301");
    // One datagram, so that counters and connections are not all zero.
    netns.run("ip addr add 10.96.0.10/32 dev lo");
    netns.feed("bash", "echo hello >/dev/udp/10.96.0.10/53\n");

    // Kernels before 6.2 add the counters up every two seconds.
    let mut dump = read(&netns).await;
    for _ in 0..100 {
        if server(&dump, "10.96.0.10").stats.unwrap().conns > 0 {
            break;
        }
        thread::sleep(Duration::from_millis(100));
        dump = read(&netns).await;
    }
    let saved = netns.run("ipvsadm -Sn");
    assert_eq!(sorted(&save(&dump)), sorted(&saved));
    let printed = netns.run("ipvsadm -Ln --stats --exact");
    let heading = dump.info.map(|info| {
        let [_, major, minor, patch] = info.version.to_be_bytes();
        let size = info.conn_tab_size;
        format!("IP Virtual Server version {major}.{minor}.{patch} (size={size})")
    });
    assert_eq!(printed.lines().next(), heading.as_deref());
    assert_eq!(counters(&dump), counters_printed(&printed));
    let timeout = netns.run("ipvsadm -Ln --timeout");
    let seconds = dump.timeouts.unwrap();
    assert_eq!(
        timeout.trim(),
        format!(
            "Timeout (tcp tcpfin udp): {} {} {}",
            seconds.tcp, seconds.tcp_fin, seconds.udp
        )
    );
    let mut evidence = Evidence::default();
    evidence.insert(Item::Ipvs, Ok(serde_json::to_string(&dump).unwrap()));
    let ours = table(&evidence);
    let mut evidence = Evidence::default();
    evidence.insert(Item::IpvsSave, Ok(saved));
    evidence.insert(Item::IpvsStats, Ok(printed));
    evidence.insert(Item::IpvsTimeout, Ok(timeout));
    assert_eq!(ours, table(&evidence));

    let dns = server(&dump, "10.96.0.10");
    let seen = dns.stats.unwrap();
    assert_eq!((seen.conns, seen.packets_in), (1, 1));
    assert_eq!(dns.destinations[0].inactive, 1);
    let api = &server(&dump, "10.96.0.1").destinations[0];
    assert_eq!((api.upper, api.lower), (100, 50));
}

/// Virtual servers with hashing schedulers, each with its real servers and their weights.
const HASHED: &[(&str, &str, &[u32])] = &[
    ("10.96.0.50:5060", "sh", &[1, 1, 1]),
    ("10.96.0.51:5060", "sh", &[3, 1, 40, 500, 2]),
    ("10.96.0.52:5060", "sh", &[1, 0, 2, 0]),
    ("10.96.0.53:5060", "sh -b sh-fallback", &[1, 0, 2, 0, 0]),
    ("10.96.0.54:5060", "sh -b sh-port", &[1, 1, 1, 1]),
    ("10.96.0.55:5060", "sh -b sh-fallback", &[0, 0]),
    ("10.96.0.56:5060", "dh", &[1, 1, 1]),
    ("10.96.0.57:5060", "dh", &[5, 1, 0, 1, 1]),
    ("10.96.0.58:5060", "mh", &[1, 1, 1]),
    ("10.96.0.59:5060", "mh", &[2, 6, 4, 1000, 70000]),
    ("10.96.0.60:5060", "mh -b mh-port", &[1, 1, 1, 1, 1, 1, 1]),
    ("10.96.0.61:5060", "mh", &[7]),
    ("[fd00:10:96::50]:5060", "sh", &[1, 2, 3]),
    ("[fd00:10:96::51]:5060", "dh", &[1, 2, 3]),
    ("[fd00:10:96::52]:5060", "mh", &[1, 2, 3]),
];

#[tokio::test]
#[ignore = "needs root and ip_vs"]
async fn vm_hashing_schedulers_choose_as_kpx_computes() {
    const CLIENTS: u16 = 100;
    let netns = Netns::new();
    netns.run("ip link set lo up");
    netns.run("ip link add out type dummy");
    netns.run("ip link set out up");
    netns.run("ip addr add 10.244.0.1/16 dev out");
    netns.run("ip addr add fd00:10:244::1/64 dev out nodad");
    netns.run("ip addr add 10.9.0.0/16 dev lo");
    netns.run("ip -6 route add local fd00:9::/64 dev lo");
    netns.run("sysctl -q -w net.ipv6.ip_nonlocal_bind=1");
    let mut commands = String::new();
    for (at, scheduler, weights) in HASHED {
        let ip = at.parse::<SocketAddr>().unwrap().ip();
        netns.run(&format!("ip addr add {ip} dev lo"));
        writeln!(commands, "-A -u {at} -s {scheduler}").unwrap();
        for (n, weight) in weights.iter().enumerate() {
            // Not in the order of their addresses.
            let n = (n * 5 + 3) % 11 + 2;
            let real = match ip {
                IpAddr::V4(_) => format!("10.244.1.{n}:{}", 9000 + n),
                IpAddr::V6(_) => format!("[fd00:10:244::{n}]:{}", 9000 + n),
            };
            writeln!(commands, "-a -u {at} -r {real} -m -w {weight}").unwrap();
        }
    }
    netns.feed("ipvsadm --restore", &commands);
    let table = parse::records(&serde_json::to_string(&read(&netns).await).unwrap()).unwrap();
    let mut refused = 0;
    for server in &table.servers {
        let at = server.key.socket().unwrap();
        let mut expected = BTreeMap::new();
        netns.inside(|| {
            for n in 0..CLIENTS {
                let [high, low] = (n * 397 + 11).to_be_bytes();
                let ip: IpAddr = match at {
                    SocketAddr::V4(_) => [10, 9, high, low].into(),
                    SocketAddr::V6(_) => [0xfd00, 9, 0, 0, n, n * 7, 3, n * 31].into(),
                };
                let socket = UdpSocket::bind((ip, 0)).unwrap();
                let client = socket.local_addr().unwrap();
                // Without a real server, the kernel answers with an error.
                socket.send_to(b"x", at).ok();
                let chosen = choose(server, client, at.ip());
                let chosen = chosen.unwrap_or_else(|| panic!("{server:?}"));
                expected.insert(
                    client,
                    chosen.map(|real| SocketAddr::new(real.addr, real.port)),
                );
            }
        });
        let evidence = netns.collect(&[Item::IpvsConnections]).await;
        let node = NodeSnapshot::new(&evidence);
        let taken = node.ipvs_connections().unwrap().all.iter();
        let taken = taken.filter(|taken| taken.server == at);
        let taken: BTreeMap<_, _> = taken
            .map(|taken| (taken.client, Some(taken.real)))
            .collect();
        refused += expected.values().filter(|chosen| chosen.is_none()).count();
        expected.retain(|_, chosen| chosen.is_some());
        assert_eq!(taken, expected, "{server:?}");
    }
    assert!(refused > 100, "{refused} connections had no real server");
}

/// IPVS keeps the client's port where NAT of iptables and nftables would choose another: one port of a client reaches a real
/// server through one virtual server at a time, for the two minutes that connection tracking knows the closed connection.
#[test]
#[ignore = "needs root and ip_vs"]
fn vm_a_client_port_reaches_a_real_server_through_one_virtual_server_at_a_time() {
    let netns = Netns::new();
    netns.feed(
        "ip -batch -",
        "link set lo up\naddr add 10.96.0.1/32 dev lo\naddr add 10.96.0.2/32 dev lo\naddr add 10.244.1.7/32 dev lo\n",
    );
    netns.feed(
        "ipvsadm --restore",
        "-A -t 10.96.0.1:80 -s rr\n-a -t 10.96.0.1:80 -r 10.244.1.7:8080 -m\n\
         -A -t 10.96.0.2:80 -s rr\n-a -t 10.96.0.2:80 -r 10.244.1.7:8080 -m\n",
    );
    netns.run("sysctl -q net.ipv4.vs.conntrack=1");
    // kube-proxy's rules use connection tracking.
    netns.run("iptables -A INPUT -m conntrack --ctstate INVALID -j DROP");
    netns.inside(|| {
        let listener = TcpListener::bind("10.244.1.7:8080").unwrap();
        let connect = |port: u16, to: &str| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            let from: SocketAddr = ([127, 0, 0, 1], port).into();
            socket.bind(&from.into())?;
            let to: SocketAddr = to.parse().unwrap();
            socket.connect_timeout(&to.into(), Duration::from_secs(4))?;
            listener.accept().map(|_| ())
        };
        connect(40_000, "10.96.0.1:80").unwrap();
        let second = connect(40_000, "10.96.0.2:80").unwrap_err();
        assert_eq!(second.kind(), ErrorKind::TimedOut);
        connect(40_001, "10.96.0.2:80").unwrap();
    });
}

#[tokio::test]
#[ignore = "needs root and ip_vs"]
async fn vm_each_namespace_has_a_table_of_its_own() {
    let (one, other) = (Netns::new(), Netns::new());
    one.run("ipvsadm -A -t 10.0.0.1:80 -s rr");
    assert_eq!(read(&one).await.services.len(), 1);
    assert_eq!(read(&other).await.services.len(), 0);
}

#[tokio::test]
#[ignore = "needs root and ip_vs"]
async fn vm_thousands_of_virtual_servers_are_read_whole() {
    const SERVERS: u32 = 2000;
    let netns = Netns::new();
    let mut commands = String::new();
    for n in 0..SERVERS {
        let addr = std::net::Ipv4Addr::from(0x0a60_0000 + n);
        writeln!(commands, "-A -t {addr}:80 -s rr").unwrap();
        for backend in 1..=2 {
            writeln!(
                commands,
                "-a -t {addr}:80 -r 10.244.{backend}.1:8080 -m -w 1"
            )
            .unwrap();
        }
    }
    netns.feed("ipvsadm --restore", &commands);
    let dump = read(&netns).await;
    assert_eq!(dump.services.len(), SERVERS as usize);
    assert!(dump.services.iter().all(|s| s.destinations.len() == 2));
    assert_eq!(sorted(&save(&dump)), sorted(&netns.run("ipvsadm -Sn")));
}

#[tokio::test]
#[ignore = "needs root and ip_vs that is not loaded"]
async fn vm_reading_does_not_load_ip_vs() {
    unload();
    let netns = Netns::new();
    let before = modules();
    let evidence = netns.collect(&[Item::Ipvs]).await;
    let gap = evidence.text(Item::Ipvs).unwrap_err();
    assert!(matches!(gap, Gap::Absent(Item::Ipvs, _)), "{gap:?}");
    assert_eq!(modules(), before);
}

#[tokio::test]
#[ignore = "needs root and dummy links"]
async fn vm_kube_ipvs0_is_read_as_ip_prints_it() {
    let netns = Netns::new();
    netns.run("ip link add kube-ipvs0 type dummy");
    let addresses = ["10.96.0.1/32", "10.96.0.10/32", "fd00:10:96::1/128"];
    for address in addresses {
        netns.run(&format!("ip addr add {address} dev kube-ipvs0"));
    }
    let evidence = netns.collect(&[Item::Links, Item::Addresses]).await;
    let (ours, theirs) = (
        dummy(evidence.text(Item::Links).unwrap()),
        dummy(&netns.run("ip -j -d link show dev kube-ipvs0")),
    );
    for path in [
        "/ifindex",
        "/flags",
        "/mtu",
        "/operstate",
        "/linkinfo/info_kind",
    ] {
        assert_eq!(ours.pointer(path), theirs.pointer(path), "{path}");
    }
    assert_eq!(ours["linkinfo"]["info_kind"], "dummy");
    let (ours, theirs) = (
        dummy(evidence.text(Item::Addresses).unwrap()),
        dummy(&netns.run("ip -j addr show dev kube-ipvs0")),
    );
    let printed = theirs["addr_info"].as_array().unwrap();
    assert_eq!(printed.len(), addresses.len());
    for (at, theirs) in printed.iter().enumerate() {
        for key in ["family", "local", "prefixlen", "scope"] {
            assert_eq!(ours["addr_info"][at][key], theirs[key], "{theirs}");
        }
    }
}

/// The table in `evidence`, in one order and without what ipvsadm does not save.
fn table(evidence: &Evidence) -> Table {
    let mut table = parse::table(evidence).unwrap();
    table.servers.sort_by_key(|server| server.key);
    for server in &mut table.servers {
        // ipvsadm does not print it.
        server.order.clear();
        server.reals.sort_by_key(|real| (real.addr, real.port));
        for real in &mut server.reals {
            (real.connections, real.upper, real.lower) = (None, 0, 0);
        }
    }
    table
}

/// The link kube-ipvs0 in what `ip -j` prints.
fn dummy(text: &str) -> Value {
    let links: Vec<Value> = serde_json::from_str(text).unwrap();
    let mut links = links.into_iter();
    links.find(|link| link["ifname"] == "kube-ipvs0").unwrap()
}

async fn read(netns: &Netns) -> Dump {
    let evidence = netns.collect(&[Item::Ipvs]).await;
    serde_json::from_str(evidence.text(Item::Ipvs).unwrap()).unwrap()
}

fn server<'a>(dump: &'a Dump, address: &str) -> &'a Service {
    let address = address.parse().unwrap();
    let mut servers = dump.services.iter();
    servers.find(|s| s.address == Some(address)).unwrap()
}

/// The dump as `ipvsadm -Sn` prints it.
fn save(dump: &Dump) -> String {
    let mut text = String::new();
    for service in &dump.services {
        let key = key(service);
        write!(text, "-A {key} -s {}", service.scheduler).unwrap();
        if service.flags & 1 != 0 {
            write!(text, " -p {}", service.timeout).unwrap();
            match (service.family, service.prefix) {
                (Family::V4, 32) | (Family::V6, 128) => {}
                (Family::V4, 24) => text.push_str(" -M 255.255.255.0"),
                (_, prefix) => write!(text, " -M {prefix}").unwrap(),
            }
        }
        if service.flags & 4 != 0 {
            text.push_str(" -o");
        }
        let name = &service.scheduler;
        let flags: Vec<String> = [(0x8, "fallback"), (0x10, "port")]
            .iter()
            .filter(|(bit, _)| service.flags & bit != 0)
            .map(|(_, flag)| format!("{name}-{flag}"))
            .collect();
        if !flags.is_empty() {
            write!(text, " -b {}", flags.join(",")).unwrap();
        }
        text.push('\n');
        for d in &service.destinations {
            let method = match d.forwarding {
                Forwarding::Masq | Forwarding::Local => "-m",
                Forwarding::Tunnel => "-i",
                Forwarding::Route => "-g",
                Forwarding::Bypass => "bypass",
            };
            let address = socket(d.address, d.port);
            let kind = match d.forwarding {
                Forwarding::Tunnel => " --tun-type ipip",
                _ => "",
            };
            writeln!(text, "-a {key} -r {address} {method} -w {}{kind}", d.weight).unwrap();
        }
    }
    text
}

/// Every line of counters in the dump.
fn counters(dump: &Dump) -> Vec<[u64; 5]> {
    let servers = dump.services.iter().flat_map(|service| {
        let reals = service.destinations.iter().map(|d| d.stats);
        std::iter::once(service.stats).chain(reals)
    });
    let mut lines: Vec<_> = servers
        .map(|stats| {
            let s = stats.unwrap();
            [
                s.conns,
                s.packets_in,
                s.packets_out,
                s.bytes_in,
                s.bytes_out,
            ]
        })
        .collect();
    lines.sort_unstable();
    lines
}

/// Every line of counters of `ipvsadm -Ln --stats --exact`, below its three lines of heading.
fn counters_printed(text: &str) -> Vec<[u64; 5]> {
    let numbers = |line: &str| {
        let mut words = line.split_whitespace().rev();
        let mut numbers = [(); 5].map(|()| words.next().unwrap().parse().unwrap());
        numbers.reverse();
        numbers
    };
    let mut lines: Vec<_> = text.lines().skip(3).map(numbers).collect();
    lines.sort_unstable();
    lines
}

fn key(service: &Service) -> String {
    if let Some(mark) = service.fwmark {
        let six = match service.family {
            Family::V4 => "",
            Family::V6 => " -6",
        };
        return format!("-f {mark}{six}");
    }
    let kind = match service.protocol.unwrap() {
        Proto::Tcp => "-t",
        Proto::Udp => "-u",
        Proto::Sctp => "--sctp-service",
        other => panic!("{other}"),
    };
    let socket = socket(service.address.unwrap(), service.port.unwrap());
    format!("{kind} {socket}")
}

fn socket(address: IpAddr, port: u16) -> String {
    SocketAddr::new(address, port).to_string()
}

fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().map(|l| l.trim().to_owned()).collect();
    lines.sort();
    lines
}

pub(super) fn modules() -> Vec<String> {
    let text = fs::read_to_string("/proc/modules").unwrap();
    let mut names: Vec<_> = text
        .lines()
        .filter_map(|l| Some(l.split_once(' ')?.0.to_owned()))
        .collect();
    names.sort();
    names
}

/// Unloads `ip_vs` and its schedulers. A namespace that was deleted lets go of them a little later.
pub(super) fn unload() {
    for _ in 0..100 {
        let mut left: Vec<_> = modules();
        left.retain(|m| m == "ip_vs" || m.starts_with("ip_vs_"));
        if left.is_empty() {
            return;
        }
        left.sort_by_key(|m| m == "ip_vs");
        let line = format!("for m in {}; do rmmod $m; done; true", left.join(" "));
        run(&["bash", "-c", &line], "");
        thread::sleep(Duration::from_millis(100));
    }
    panic!("ip_vs is still in use: {:?}", modules());
}
