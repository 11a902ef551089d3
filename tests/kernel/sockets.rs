//! Listening sockets against real ones, and `ss`.

use std::collections::VecDeque;
use std::fs;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{self, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kpx_node::evidence::{Evidence, Item};

use super::netns::Netns;

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn listening_sockets_are_named_with_their_holders() {
    let netns = Netns::new();
    let held = netns.inside(|| {
        let tcp = TcpListener::bind("127.0.0.1:8080").unwrap();
        let any = TcpListener::bind("[::]:8081").unwrap();
        let udp = UdpSocket::bind("0.0.0.0:53").unwrap();
        let connected = UdpSocket::bind("127.0.0.1:5300").unwrap();
        connected.connect("127.0.0.1:53").unwrap();
        (tcp, any, udp, connected)
    });
    let evidence = netns.collect(&[Item::Sockets, Item::Tcp4]).await;
    let text = evidence.text(Item::Sockets).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    let me = format!("pid={},", process::id());
    for (line, start, ends) in [
        (lines[0], "udp UNCONN 0 ", "0.0.0.0:53 0.0.0.0:*"),
        (lines[1], "tcp LISTEN 0 ", "127.0.0.1:8080 0.0.0.0:*"),
        (lines[2], "tcp LISTEN 0 ", "*:8081 *:*"),
    ] {
        assert!(
            line.starts_with(start) && line.contains(ends) && line.contains(&me),
            "{line}"
        );
    }
    assert!(
        evidence.text(Item::Tcp4).is_err(),
        "the same is not read twice"
    );
    drop(held);
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn sockets_are_printed_as_ss_prints_them() {
    let netns = Netns::new();
    netns.run("ip link add br0 type bridge");
    netns.run("ip addr add fd00::1/64 dev br0 nodad");
    netns.run("ip link set br0 up");
    let held = netns.inside(|| {
        let any = TcpListener::bind("0.0.0.0:80").unwrap();
        let one = TcpListener::bind("[fd00::1]:81").unwrap();
        let udp = UdpSocket::bind("[::1]:82").unwrap();
        (any, one, udp)
    });
    let words = |text: &str| -> Vec<Vec<String>> {
        let mut lines: Vec<Vec<String>> = text
            .lines()
            .map(|line| line.split_whitespace().map(str::to_owned).collect())
            .collect();
        lines.sort();
        lines
    };
    let evidence = netns.collect(&[Item::Sockets]).await;
    let theirs = netns.run("ss -lntuSHp");
    assert_eq!(words(evidence.text(Item::Sockets).unwrap()), words(&theirs));
    drop(held);
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn connections_wait_only_where_the_same_ones_wait_after_a_while() {
    let netns = Netns::new();
    netns.run("ip link set lo up");
    let stop = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&stop);
    let listener = netns.inside(|| TcpListener::bind("127.0.0.1:8080").unwrap());
    let busy = netns.start_thread(move || {
        let connect = || TcpStream::connect("127.0.0.1:8080").unwrap();
        let mut clients: VecDeque<TcpStream> = (0..3).map(|_| connect()).collect();
        while !ends.load(Ordering::Relaxed) {
            drop(listener.accept().unwrap());
            clients.pop_front();
            clients.push_back(connect());
            thread::sleep(Duration::from_millis(10));
        }
    });
    let hung = netns.inside(|| {
        let listener = TcpListener::bind("127.0.0.1:8081").unwrap();
        let clients = [(); 2].map(|()| TcpStream::connect("127.0.0.1:8081").unwrap());
        (listener, clients)
    });
    let evidence = netns.collect(&[Item::Sockets]).await;
    stop.store(true, Ordering::Relaxed);
    busy.join().unwrap();
    let text = evidence.text(Item::Sockets).unwrap();
    for (port, start) in [
        ("127.0.0.1:8080", "tcp LISTEN 0 "),
        ("127.0.0.1:8081", "tcp LISTEN 2 "),
    ] {
        let line = text.lines().find(|line| line.contains(port)).unwrap();
        assert!(line.starts_with(start), "{line}");
    }
    drop(hung);
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn settings_are_those_of_the_namespace() {
    let netns = Netns::new();
    netns.run("sysctl -qw net.ipv4.ip_local_reserved_ports=30000-32767");
    netns.run("ip link add name a.b type bridge");
    let evidence = netns.collect(&[Item::Sysctl]).await;
    let text = evidence.text(Item::Sysctl).unwrap();
    let lines: Vec<_> = text.lines().collect();
    for line in [
        "net.ipv4.ip_local_reserved_ports = 30000-32767",
        "net.ipv4.conf.a/b.rp_filter = 0",
        "net.ipv4.ip_forward = 0",
    ] {
        assert!(lines.contains(&line), "{line} is missing from\n{text}");
    }
    assert!(lines.is_sorted());
    let theirs = netns.run("sysctl -a");
    for line in lines.iter().filter(|line| !line.contains("nr = ")) {
        assert!(
            theirs.contains(line.trim()),
            "`sysctl -a` does not print {line}"
        );
    }
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn processes_of_proxies_are_found() {
    let netns = Netns::new();
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("kube-proxy");
    fs::copy("/bin/sleep", &program).unwrap();
    let mut child = netns.start(&[program.to_str().unwrap(), "60"], Stdio::inherit());
    let evidence = netns.collect(&[Item::Processes]).await;
    child.kill().unwrap();
    // Until its parent waits for it, it is a zombie.
    let stat = format!("/proc/{}/stat", child.id());
    while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
        thread::sleep(Duration::from_millis(5));
    }
    let after = netns.collect(&[Item::Processes]).await;
    child.wait().unwrap();
    let listed = |evidence: &Evidence| {
        let text = match evidence.text(Item::Processes) {
            Ok(text) => text,
            // Among the processes of the test alone, there is no other proxy.
            Err(gap) => {
                assert!(gap.is_absence(), "{gap}");
                return None;
            }
        };
        let found: serde_json::Value = serde_json::from_str(text).unwrap();
        let all = found["processes"].as_array().unwrap();
        all.iter()
            .find(|process| process["pid"] == child.id())
            .cloned()
    };
    assert_eq!(listed(&after), None);
    let process = listed(&evidence).unwrap();
    assert_eq!(process["name"], "kube-proxy");
    assert_eq!(process["sameNetwork"], true);
    assert!(process["started"].as_u64().unwrap() > 1_600_000_000);
}
