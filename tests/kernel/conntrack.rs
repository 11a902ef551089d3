//! Tracked connections are deleted by exact tuple.

use std::fmt::Write as _;
use std::net::SocketAddr;

use kpx::action::{Action, Flow};
use kpx::apply::Apply as _;
use kpx::host::Live;
use kpx::net::Proto;

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
