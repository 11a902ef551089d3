//! What looks broken and stops no connection, and names that cluster DNS does not tell.

use serde_json::json;

use super::carriers::{add, link};
use super::ends::{HEALTHY, LINKS, findings, json, says};
use super::first_causes::{SERVICES, SLICES, found, object};
use super::incidents::{copy, write};
use super::links::{add_policy_rules, add_routes, says_to};
use super::meant::add_rule;

#[tokio::test]
async fn a_range_of_services_in_the_network_of_a_link_is_an_error_where_a_service_fails() {
    let dir = copy(HEALTHY);
    add(&dir, LINKS, link("eth1", "veth"));
    write(
        &dir,
        "node/ip-addr.json",
        json(|links| {
            let address = json!({"family": "inet", "local": "10.97.112.9", "prefixlen": 20, "scope": "global"});
            links.as_array_mut().unwrap().push(
                json!({"ifindex": 40, "ifname": "eth1", "flags": ["UP", "LOWER_UP"],
                "mtu": 1500, "addr_info": [address]}),
            );
        }),
    );
    let severity = async |dir: &tempfile::TempDir| {
        let all = findings(dir).await;
        let ranges = all.into_iter().find(|finding| finding.0 == "AP08");
        ranges.map(|finding| finding.1)
    };
    assert_eq!(severity(&dir).await.as_deref(), Some("warning"));
    add_rule(&dir, "filter", "-A FORWARD -d 10.244.1.4/32 -j DROP");
    assert_eq!(severity(&dir).await.as_deref(), Some("error"));
}

#[tokio::test]
async fn no_socket_takes_a_packet_to_a_port_where_nothing_listens() {
    let dir = copy(HEALTHY);
    add_rule(
        &dir,
        "mangle",
        "-A PREROUTING -m socket --transparent -j MARK --set-xmark 0x200/0xffffffff",
    );
    add_policy_rules(
        &dir,
        &[
            json!({"priority": 9, "src": "all", "fwmark": "0x200", "fwmask": "0xf00", "table": "2004"}),
        ],
    );
    add_routes(
        &dir,
        &[
            json!({"type": "local", "dst": "default", "dev": "lo", "table": "2004", "scope": "host", "flags": []}),
        ],
    );
    says_to(&dir, "nodeport:30080", "10.210.0.77", "works", &[]).await;
    write(&dir, "node/ss.txt", |text| {
        format!(
            "{text}tcp LISTEN 0 128 10.210.0.16:30080 0.0.0.0:* users:((\"haproxy\",pid=77,fd=3))\n"
        )
    });
    says_to(&dir, "nodeport:30080", "10.210.0.77", "unknown", &[]).await;
}

#[tokio::test]
async fn a_service_whose_pods_do_not_start_comes_before_one_without_pods() {
    let dir = copy(HEALTHY);
    object(&dir, "cluster/pods.json", "client-vfxvm", |pod| {
        pod["metadata"]["labels"] = json!({"app": "nothing"});
        pod["status"] = json!({"phase": "Pending", "containerStatuses": [{"name": "app", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ImagePullBackOff"}}}]});
    });
    object(&dir, SERVICES, "edge-local", |service| {
        service["spec"]["selector"] = json!({"app": "nobody"});
    });
    write(
        &dir,
        SLICES,
        json(|slices| {
            for slice in slices["items"].as_array_mut().unwrap() {
                let of = &mut slice["metadata"]["labels"]["kubernetes.io/service-name"];
                if of == "edge-local" {
                    *of = "another".into();
                }
            }
        }),
    );
    let all = found(&dir, "AP01").await;
    assert!(all[0].1.contains("ImagePullBackOff"), "{all:?}");
}

#[tokio::test]
async fn a_name_is_found_as_often_as_cluster_dns_is_reached() {
    const NAME: &str = "web.demo.svc.cluster.local:80";
    let dir = copy(HEALTHY);
    object(&dir, SERVICES, "kube-dns", |dns| {
        dns["spec"]["ports"][0]["protocol"] = "UDP".into();
    });
    says(&dir, NAME, "works", &[]).await;
    add_rule(&dir, "filter", "-A INPUT -p udp -m udp --dport 53 -j DROP");
    let words = [
        "demo/web:http cannot be reached by its name, as cluster DNS fails: kube-system/kube-dns",
        "rule 1 of chain INPUT in table filter drops the packets",
        "iptables -t filter -D INPUT",
    ];
    says(&dir, NAME, "lost", &words).await;
    says(&dir, "demo/web:http", "works", &[]).await;
}
