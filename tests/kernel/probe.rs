//! Probes: one real connection, and who took it.

use std::net::{IpAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use kpx_host::{self as host, Probe, ProbeOutcome};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Proto, Vantage};
use kpx_node::node::NodeSnapshot;
use serde_json::Value;

use super::netns::{Netns, run_to};

const BIN: &str = env!("CARGO_BIN_EXE_kpx");

pub(super) const PODS: [&str; 3] = ["10.244.1.14", "10.244.1.16", "10.244.1.17"];

/// A namespace with the rules of the tutorial's node; its pods are addresses of the node's own.
pub(super) fn node() -> Netns {
    node_in("nft")
}

/// The same with its rules in a back end of iptables.
pub(super) fn node_in(backend: &str) -> Netns {
    let netns = Netns::new();
    netns.run("ip link add eth0 type veth peer name far0");
    netns.run("ip addr add 10.0.2.15/24 dev eth0");
    netns.run("ip link set eth0 up");
    netns.run("ip link set far0 up");
    netns.run("ip route add default via 10.0.2.2");
    for pod in PODS {
        netns.run(&format!("ip addr add {pod}/32 dev eth0"));
    }
    netns.feed(
        &format!("iptables-{backend}-restore"),
        &super::tools::rules(),
    );
    netns
}

fn probe(netns: &Netns, target: &str, more: &[&str]) -> Value {
    let options = netns.options();
    let name = options.netns.as_deref().unwrap();
    let cluster = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nodes/seed-iptables");
    let cluster = cluster.to_str().unwrap();
    let mut line = vec![BIN, "--netns", name, "--cluster-from", cluster];
    line.extend(["--node", "node1", "--timeout", "3s"]);
    line.extend(["trace", target, "--source", "host", "--probe", "-o", "json"]);
    line.extend_from_slice(more);
    // Connections that fail are exit status 1.
    let report: Value = serde_json::from_str(&run_to(&line, "", &[0, 1])).unwrap();
    report["probe"].clone()
}

#[test]
#[ignore = "needs root and a network namespace"]
fn the_backend_that_took_a_connection_is_one_that_was_traced() {
    let netns = node();
    let listeners = netns.inside(|| PODS.map(|pod| TcpListener::bind((pod, 80)).unwrap()));
    let found = probe(&netns, "default/nginx-svc", &[]);
    assert_eq!(found["result"], "answered", "{found}");
    assert_eq!(found["recorded"], "conntrack", "{found}");
    assert_eq!(found["agrees"], true, "{found}");
    let backend = found["backend"].as_str().unwrap();
    assert!(PODS.iter().any(|pod| backend == format!("{pod}:80")));
    drop(listeners);
    let refused = probe(&netns, "default/nginx-svc", &[]);
    assert_eq!(refused["result"], "refused", "{refused}");
    // By a backend or by a rule: the kernel forgets both.
    assert_eq!(refused["agrees"], Value::Null, "{refused}");
}

#[test]
#[ignore = "needs root, ip_vs and dummy links"]
fn vm_the_real_server_that_ipvs_chose_is_one_that_was_traced() {
    let netns = node();
    netns.run("ip link add kube-ipvs0 type dummy");
    netns.run("ip addr add 10.97.54.248/32 dev kube-ipvs0");
    netns.run("iptables-nft -t nat -F");
    let server = "10.97.54.248:80";
    netns.run(&format!("ipvsadm -A -t {server} -s rr"));
    for pod in PODS {
        netns.run(&format!("ipvsadm -a -t {server} -r {pod}:80 -m"));
    }
    netns.run("sysctl -q -w net.ipv4.vs.conntrack=1");
    let listeners = netns.inside(|| PODS.map(|pod| TcpListener::bind((pod, 80)).unwrap()));
    let found = probe(&netns, server, &[]);
    assert_eq!(found["result"], "answered", "{found}");
    assert_eq!(found["recorded"], "ipvs", "{found}");
    assert_eq!(found["agrees"], true, "{found}");
    let backend = found["backend"].as_str().unwrap();
    assert!(PODS.iter().any(|pod| backend == format!("{pod}:80")));
    drop(listeners);
    for pod in PODS {
        netns.run(&format!("ipvsadm -d -t {server} -r {pod}:80"));
    }
    let refused = probe(&netns, server, &[]);
    assert_eq!(refused["result"], "refused", "{refused}");
    assert_eq!(refused["agrees"], true, "{refused}");
}

#[test]
#[ignore = "needs root and a network namespace"]
fn a_probe_prints_the_backend_that_the_kernel_chose() {
    let netns = node();
    netns.run("iptables-nft -t nat -I OUTPUT -p tcp -d 10.97.54.248 --dport 80 -m statistic --mode nth --every 1 --packet 0 -j DNAT --to-destination 10.244.1.14:8080");
    let listener = netns.inside(|| TcpListener::bind(("10.244.1.14", 8080)).unwrap());
    let found = probe(&netns, "10.97.54.248:80", &[]);
    assert_eq!(found["backend"], "10.244.1.14:8080", "{found}");
    drop(listener);
}

#[test]
#[ignore = "needs root and a network namespace"]
fn a_datagram_is_followed_without_an_answer() {
    let netns = node();
    netns.run("iptables-nft -t nat -I OUTPUT -p udp -d 10.97.54.248 --dport 53 -j DNAT --to-destination 10.244.1.16:53");
    let socket = netns.inside(|| UdpSocket::bind(("10.244.1.16", 53)).unwrap());
    let found = probe(&netns, "10.97.54.248:53", &["--protocol", "udp"]);
    assert_eq!(found["result"], "no answer", "{found}");
    assert_eq!(found["backend"], "10.244.1.16:53", "{found}");
    assert_eq!(found["agrees"], true, "{found}");
    drop(socket);
}

#[test]
#[ignore = "needs root and a network namespace"]
fn what_is_refused_and_what_is_dropped_agree_with_the_trace() {
    let netns = node();
    netns.run("iptables-nft -I OUTPUT -p tcp -d 10.97.54.249 -j REJECT");
    netns.run("iptables-nft -I OUTPUT -p tcp -d 10.97.54.250 -j DROP");
    let refused = probe(&netns, "10.97.54.249:80", &[]);
    assert_eq!(refused["result"], "refused", "{refused}");
    assert_eq!(refused["agrees"], true, "{refused}");
    let dropped = probe(&netns, "10.97.54.250:80", &[]);
    assert_eq!(dropped["result"], "no answer", "{dropped}");
    assert_eq!(dropped["agrees"], true, "{dropped}");
}

/// The links whose names begin like the links of probes.
fn links_of_probes(netns: &Netns) -> String {
    let links = netns.run("ip -br link");
    let ours = links.lines().filter(|line| line.starts_with("kpx"));
    ours.collect()
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn a_client_outside_the_cluster_reaches_a_node_port_and_leaves_nothing() {
    let netns = node();
    // Strict: without them, the node answers for addresses of any link.
    netns.run("sysctl -q -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2");
    netns.run("sysctl -q -w net.ipv4.conf.all.rp_filter=1");
    netns.run("ip addr add fd00:10:0:2::15/64 dev eth0 nodad");
    let v4 = netns.inside(|| TcpListener::bind("10.0.2.15:30999").unwrap());
    let v6 = netns.inside(|| TcpListener::bind("[fd00:10:0:2::15]:30999").unwrap());
    let options = netns.options();
    let mut probe = Probe {
        from: Vantage::Outside,
        ..Probe::new("10.0.2.15:30999".parse().unwrap(), Proto::Tcp)
    };
    for (target, source) in [
        ("10.0.2.15:30999", "198.51.100."),
        ("[fd00:10:0:2::15]:30999", "2001:db8:"),
    ] {
        probe.target = target.parse().unwrap();
        let probed = host::probe(&options, probe).await.unwrap();
        assert_eq!(probed.met, ProbeOutcome::Answered, "{target}");
        let from = probed.from.unwrap();
        assert!(from.ip().to_string().starts_with(source), "{from}");
        assert_eq!(links_of_probes(&netns), "", "{target}");
    }
    let at_once = (0..5).map(|_| host::probe(&options, probe));
    for probed in futures_util::future::join_all(at_once).await {
        assert_eq!(probed.unwrap().met, ProbeOutcome::Answered);
    }
    assert_eq!(links_of_probes(&netns), "");
    drop((v4, v6));
    let refused = host::probe(&options, probe).await.unwrap();
    assert_eq!(refused.met, ProbeOutcome::Refused);
    // Its sockets close without a word, as when kpx is killed.
    netns.run("nft add table inet mute");
    netns.run("nft add chain inet mute in { type filter hook input priority 0; policy drop; }");
    let probing = host::probe(&options, probe);
    let given_up = tokio::time::timeout(Duration::from_secs(1), probing).await;
    assert!(given_up.is_err());
    let begin = Instant::now();
    while !links_of_probes(&netns).is_empty() {
        let links = links_of_probes(&netns);
        assert!(begin.elapsed() < Duration::from_secs(10), "{links}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn a_probe_from_a_pod_has_its_address_and_shows_who_answers() {
    let (netns, pod) = (node(), Netns::new());
    let name = pod.options().netns.unwrap();
    netns.run(&format!(
        "ip link add veth0 type veth peer name up0 netns {name}"
    ));
    netns.run("ip link set veth0 up");
    netns.run("ip route add 10.244.1.99/32 dev veth0");
    netns.run("ip addr add 10.244.1.1/32 dev veth0");
    pod.run("ip link set up0 up");
    pod.run("ip addr add 10.244.1.99/24 dev up0");
    pod.run("ip route add default via 10.244.1.1 dev up0");
    let listeners = netns.inside(|| PODS.map(|pod| TcpListener::bind((pod, 80)).unwrap()));
    let options = netns.options();
    let addr: IpAddr = "10.244.1.99".parse().unwrap();
    let probe = Probe {
        from: Vantage::Pod(addr),
        ..Probe::new("10.97.54.248:80".parse().unwrap(), Proto::Tcp)
    };
    let without = host::probe(&options, probe).await;
    assert!(
        matches!(without, Err(Gap::Absent(Item::PodNetworks, _))),
        "no process is in its network: {without:?}"
    );
    let mut process = pod.start(&["sleep", "60"], Stdio::null());
    let probed = host::probe(&options, probe).await.unwrap();
    assert_eq!(probed.met, ProbeOutcome::Answered);
    let from = probed.from.unwrap();
    assert_eq!(from.ip(), addr);
    let evidence = netns.collect(&[Item::Conntrack]).await;
    let node = NodeSnapshot::new(&evidence);
    let (by, _) = node.answerer(from, probe.target, Proto::Tcp).unwrap();
    assert!(PODS.iter().any(|pod| by.ip().to_string() == *pod), "{by}");
    process.kill().unwrap();
    process.wait().unwrap();
    drop(listeners);
}
