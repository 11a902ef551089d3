//! What the kernel's log and its connections say of packets that go astray, and addresses of load balancers that no client reaches.

use serde_json::json;

use super::carriers::{add, link, tunnelled};
use super::ends::{HEALTHY, LINKS, findings, json, says};
use super::first_causes::{SERVICES, found, object};
use super::incidents::{copy, write};
use super::links::says_to;
use super::meant::add_rule;

const LOG: &str = "node/dmesg.txt";
const BALANCED: &str = "10.210.0.200:80";

/// Adds a line to the kernel's log, and one after it at `end` seconds.
fn log(dir: &tempfile::TempDir, line: &str, end: u32) {
    write(dir, LOG, |text| {
        format!("{text}[ 1400.000001] {line}\n[ {end}.000001] random: crng reseeded\n")
    });
}

#[tokio::test]
async fn a_tunnel_whose_packets_have_wrong_checksums_may_lose_replies() {
    const LINE: &str = "UDP: bad checksum. From 10.210.0.17:41000 to 10.210.0.16:8472 ulen 82";
    let dir = tunnelled();
    log(&dir, LINE, 1500);
    let words = ["node w2 (10.210.0.17)", "wrong checksum", "by flannel.1"];
    says(&dir, "demo/edge:http", "unknown", &words).await;
    // The check alone, as it reads no more than it says.
    let all = found(&dir, "SY18").await;
    let is_told = |finding: &(String, String, String)| {
        finding.0 == "warning" && finding.1.contains("node w2")
    };
    assert!(all.iter().any(is_told), "{all:#?}");
    // Hours ago, or from a machine that is no node.
    let old = tunnelled();
    log(&old, LINE, 9000);
    let other = tunnelled();
    log(&other, &LINE.replace("0.17", "0.99"), 1500);
    for dir in [old, other] {
        says(&dir, "demo/edge:http", "works", &[]).await;
    }
}

#[tokio::test]
async fn the_kernels_log_tells_by_which_link_a_client_comes_in() {
    const CLIENT: &str = "10.30.0.77";
    let dir = copy(HEALTHY);
    add(&dir, LINKS, link("eth1", "dummy"));
    write(&dir, "node/sysctl.txt", |text| {
        format!("{text}net.ipv4.conf.eth1.rp_filter = 1\n")
    });
    says_to(&dir, BALANCED, CLIENT, "works", &[]).await;
    let line = format!("IPv4: martian source 10.210.0.200 from {CLIENT}, on dev eth1");
    log(&dir, &line, 1500);
    // No setting but 0 helps a link without an address.
    let words = [
        "the rp_filter of eth1 drops packets from 10.30.0.77",
        "eth1 has no IPv4 address",
        "ip route get 10.30.0.77",
    ];
    says_to(&dir, BALANCED, CLIENT, "lost", &words).await;
    says(&dir, "demo/edge-balanced:http", "partly", &words[..1]).await;
}

#[tokio::test]
async fn no_client_but_a_pod_reaches_a_broadcast_address() {
    let dir = copy(HEALTHY);
    object(&dir, SERVICES, "edge-balanced", |service| {
        service["status"]["loadBalancer"]["ingress"][0]["ip"] = "10.210.0.255".into();
    });
    write(&dir, "node/iptables-save.txt", |text| {
        text.replace("10.210.0.200", "10.210.0.255")
    });
    let words = [
        "10.210.0.255, the address of a load balancer, is the broadcast address of 10.210.0.0/24",
        "avoidBuggyIPs",
    ];
    for source in ["host", "10.210.0.17"] {
        says_to(&dir, "10.210.0.255:80", source, "refused", &words).await;
    }
    says_to(&dir, "10.210.0.255:80", "demo/client-vfxvm", "works", &[]).await;
    // A larger network has it as an ordinary address.
    write(
        &dir,
        "node/ip-addr.json",
        json(|links| {
            for address in links[1]["addr_info"].as_array_mut().unwrap() {
                if address["local"] == "10.210.0.16" {
                    address["prefixlen"] = json!(16);
                }
            }
        }),
    );
    says_to(&dir, "10.210.0.255:80", "host", "works", &[]).await;
}

#[tokio::test]
async fn a_bridge_of_an_earlier_cluster_keeps_pods_from_starting() {
    let dir = copy(HEALTHY);
    object(&dir, "cluster/pods.json", "client-vfxvm", |pod| {
        pod["metadata"]["labels"] = json!({"app": "nothing"});
        pod["status"] = json!({"phase": "Pending", "containerStatuses": [{"name": "app", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ContainerCreating"}}}]});
    });
    let told = async |dir: &tempfile::TempDir| {
        let all = findings(dir).await;
        let is_told = |finding: &(String, String, String)| {
            finding.2.contains("bridge cni0 has 10.244.7.1/24")
        };
        all.iter().any(is_told)
    };
    assert!(!told(&dir).await);
    write(&dir, "node/ip-addr.json", |text| {
        text.replace("\"10.244.1.1\"", "\"10.244.7.1\"")
    });
    assert!(told(&dir).await);
}

#[tokio::test]
async fn a_tunnel_carries_nothing_where_the_link_under_it_has_no_carrier() {
    let dir = tunnelled();
    says(&dir, "demo/edge:http", "works", &[]).await;
    write(
        &dir,
        LINKS,
        json(|links| {
            let mut all = links.as_array_mut().unwrap().iter_mut();
            let eth0 = all.find(|link| link["ifname"] == "eth0").unwrap();
            eth0["flags"] = json!(["NO-CARRIER", "BROADCAST", "MULTICAST", "UP"]);
            eth0["operstate"] = "DOWN".into();
        }),
    );
    says(&dir, "demo/edge:http", "partly", &["eth0 has no carrier"]).await;
    says_to(
        &dir,
        "10.244.2.5:8080",
        "demo/client-vfxvm",
        "lost",
        &["eth0 has no carrier"],
    )
    .await;
}

#[tokio::test]
async fn a_flow_of_datagrams_may_be_older_than_the_rule_of_a_host_port() {
    const CLIENT: &str = "10.210.0.77";
    let dir = copy(HEALTHY);
    object(&dir, "cluster/pods.json", "client-vfxvm", |pod| {
        pod["spec"]["containers"][0]["ports"] =
            json!([{"containerPort": 5060, "hostPort": 5060, "protocol": "UDP"}]);
    });
    add_rule(
        &dir,
        "nat",
        "-A PREROUTING -d 10.210.0.16/32 -p udp -m udp --dport 5060 -j DNAT --to-destination 10.244.1.2:5060",
    );
    let told = async |dir: &tempfile::TempDir| {
        let all = findings(dir).await;
        all.iter()
            .any(|finding| finding.0 == "CN06" && finding.2.contains("are older than its rule"))
    };
    assert!(!told(&dir).await);
    let flow = |reply: &str| {
        format!(
            "udp 17 22 src={CLIENT} dst=10.210.0.16 sport=5060 dport=5060 [UNREPLIED] src={reply} dst={CLIENT} sport=5060 dport=5060 \
             mark=0 use=1\n"
        )
    };
    write(&dir, "node/conntrack.txt", |text| {
        text.to_owned() + &flow("10.244.1.2")
    });
    assert!(!told(&dir).await);
    write(&dir, "node/conntrack.txt", |text| {
        text.to_owned() + &flow("10.210.0.16")
    });
    assert!(told(&dir).await);
    let words = [
        "is not translated",
        "conntrack -D -p udp -d 10.210.0.16 --dport 5060 -r 10.210.0.16",
    ];
    // In the pod, nothing listens at the port.
    says_to(&dir, "10.210.0.16:5060/udp", CLIENT, "refused", &words).await;
}
