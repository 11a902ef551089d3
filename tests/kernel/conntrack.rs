//! Tracked connections: listed as `conntrack -L` does, and deleted by exact tuple.

use std::fmt::Write as _;
use std::net::SocketAddr;

use std::time::{Duration, Instant};

use kpx_host::Live;
use kpx_node::action::{Action, Flow};
use kpx_node::apply::Apply as _;
use kpx_node::evidence::Item;
use kpx_node::net::Proto;
use kpx_node::node::NodeSnapshot;

use super::netns::Netns;

/// More than one batch of requests.
const MANY: u16 = 300;

fn flow(proto: Proto, source: &str, destination: &str) -> Flow {
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    Flow {
        proto,
        source: at(source),
        destination: at(destination),
    }
}

/// Makes the kernel track `flow`, which an endpoint answers.
fn track(netns: &Netns, flow: &Flow) {
    netns.run(&insert(flow));
}

fn insert(flow: &Flow) -> String {
    let (source, destination) = (flow.source, flow.destination);
    let state = match flow.proto {
        Proto::Tcp => " --state ESTABLISHED",
        _ => "",
    };
    format!(
        "conntrack -I -p {} -s {} -d {} --sport {} --dport {} -t 600{state}",
        flow.proto,
        source.ip(),
        destination.ip(),
        source.port(),
        destination.port()
    )
}

fn tracked(netns: &Netns) -> usize {
    let families = ["ipv4", "ipv6"];
    let listed = families.map(|family| netns.run(&format!("conntrack -L -f {family}")));
    listed.iter().map(|text| text.lines().count()).sum()
}

async fn delete(netns: &Netns, flows: Vec<Flow>) -> Result<(), String> {
    let mut node = Live::new(&netns.options()).unwrap();
    let deleted = node.apply(&Action::Conntrack { flows }).await;
    deleted.map_err(|e| e.to_string())
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn exactly_the_named_flows_are_deleted() {
    let netns = Netns::new();
    let gone = [
        flow(Proto::Tcp, "10.244.1.2:40000", "10.96.0.1:443"),
        flow(Proto::Udp, "10.244.1.2:40000", "10.96.0.10:53"),
        flow(Proto::Udp, "[fd00::2]:40000", "[fd00:10:96::a]:53"),
    ];
    let stay = [
        flow(Proto::Tcp, "10.244.1.2:40001", "10.96.0.1:443"),
        flow(Proto::Udp, "10.244.1.3:40000", "10.96.0.10:53"),
        flow(Proto::Udp, "[fd00::2]:40000", "[fd00:10:96::b]:53"),
    ];
    for flow in gone.iter().chain(&stay) {
        track(&netns, flow);
    }
    assert_eq!(tracked(&netns), 6);
    delete(&netns, gone.to_vec()).await.unwrap();
    assert_eq!(tracked(&netns), 3);
    let left = netns.run("conntrack -L -f ipv4") + &netns.run("conntrack -L -f ipv6");
    for of in &stay {
        let end = format!("dport={}", of.destination.port());
        let source = format!("src={} dst={}", of.source.ip(), of.destination.ip());
        assert!(left.contains(&source) && left.contains(&end), "{left}");
    }
    // Nothing of it is there any more.
    delete(&netns, gone.to_vec()).await.unwrap();
    assert_eq!(tracked(&netns), 3);
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn many_flows_are_deleted_in_batches() {
    let netns = Netns::new();
    let flows: Vec<_> = (0..MANY)
        .map(|port| {
            let source = format!("10.244.1.2:{}", 20_000 + port);
            flow(Proto::Udp, &source, "10.96.0.10:53")
        })
        .collect();
    let mut script = String::new();
    for flow in &flows {
        writeln!(script, "{} >/dev/null 2>&1", insert(flow)).unwrap();
    }
    netns.feed("sh", &script);
    let other = flow(Proto::Udp, "10.244.1.2:19999", "10.96.0.10:53");
    track(&netns, &other);
    assert_eq!(tracked(&netns), usize::from(MANY) + 1);
    delete(&netns, flows).await.unwrap();
    assert_eq!(tracked(&netns), 1);
}

/// Lines without what changes from one look to the next: the seconds left, and the order.
fn lasting(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| {
        let mut words: Vec<_> = line.split_ascii_whitespace().collect();
        words.remove(2);
        words.join(" ")
    });
    let mut lines: Vec<_> = lines.collect();
    lines.sort();
    lines
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn connections_are_listed_as_conntrack_does() {
    let netns = Netns::new();
    for of in [
        "tcp -s 10.0.0.1 -d 10.96.0.1 --sport 4000 --dport 443 --state ESTABLISHED -u ASSURED,SEEN_REPLY -m 5 \
         -r 10.244.1.5 -q 10.0.0.1 --reply-port-src 6443 --reply-port-dst 4000",
        "tcp -s fd00::1 -d fd00::2 --sport 4000 --dport 443 --state TIME_WAIT",
        "udp -s 10.0.0.1 -d 10.96.0.10 --sport 4000 --dport 53",
        "udp -s 10.0.0.1 -d 10.96.0.10 --sport 4000 --dport 53 -w 7",
        "udp -s fd00::1 -d fd00::2 --sport 4000 --dport 53",
        "icmp -s 10.0.0.1 -d 10.0.0.2 --icmp-type 8 --icmp-code 0 --icmp-id 9",
        "icmpv6 -s fd00::1 -d fd00::2 --icmpv6-type 128 --icmpv6-code 0 --icmpv6-id 9",
        "sctp -s 10.0.0.1 -d 10.0.0.2 --sport 4000 --dport 53 --state ESTABLISHED --orig-vtag 1 --reply-vtag 2",
        "gre -s 10.0.0.1 -d 10.0.0.2 --srckey 4 --dstkey 5",
    ] {
        netns.feed("sh", &format!("conntrack -I -t 600 -p {of}"));
    }
    let theirs = ["ipv4", "ipv6"].map(|family| netns.run(&format!("conntrack -L -f {family}")));
    let evidence = netns.collect(&[Item::Conntrack]).await;
    let ours = evidence.text(Item::Conntrack).unwrap();
    assert_eq!(lasting(ours), lasting(&theirs.concat()));
    assert_eq!(ours.lines().count(), 9);
    let node = NodeSnapshot::new(&evidence);
    assert_eq!(node.conntrack().unwrap().entries.len(), 9);
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn long_as_many_connections_as_a_busy_node_has_are_listed_in_time() {
    const COUNT: usize = 21_000;
    let netns = Netns::new();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for at in 0..COUNT {
        let port = 1_024 + at;
        std::io::Write::write_all(
            &mut file,
            format!("-I -p udp -s 10.244.1.2 -d 10.96.0.10 --sport {port} --dport 53 -t 600\n")
                .as_bytes(),
        )
        .unwrap();
    }
    netns.run(&format!("conntrack -R {}", file.path().display()));
    let begun = Instant::now();
    let evidence = netns.collect(&[Item::Conntrack]).await;
    let took = begun.elapsed();
    let text = evidence.text(Item::Conntrack).unwrap();
    assert_eq!(text.lines().count(), COUNT);
    // A program without optimization on a busy machine; the doctor waits ten seconds.
    assert!(took < Duration::from_secs(5), "{took:?}");
}
