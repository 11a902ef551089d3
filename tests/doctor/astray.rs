//! Packets and replies that leave by the wrong link, and pods with addresses of another node's range.

use serde_json::{Value, json};

use super::carriers::{add, link, tunnelled};
use super::ends::{HEALTHY, LINKS, json, lead_pods, says};
use super::first_causes::object;
use super::incidents::{copy, write};
use super::links::{add_policy_rules, add_routes, says_to};

/// A pod of the node, the link of its node's end, and the cluster's DNS, whose address `NodeLocal` DNS has.
const CLIENT: &str = "10.244.1.2";
const DNS: &str = "kube-system/kube-dns:dns-tcp";

/// A client of the internet.
const FAR: &str = "198.51.100.77";

#[tokio::test]
async fn a_rule_before_the_table_local_leads_packets_for_node_local_dns_out() {
    let table = json!({"dst": "default", "gateway": "10.210.0.2", "dev": "eth0", "table": "101", "flags": []});
    let rule = |priority: u32| json!({"priority": priority, "src": CLIENT, "table": "101"});
    for (priority, fate) in [(10, "works"), (0, "lost")] {
        let dir = copy(HEALTHY);
        write(&dir, "node/ip-rule.json", |text| {
            // The kernel asks rules of one priority in the order in which they were added.
            let (first, rest) = text.split_once('\n').unwrap();
            let mut rules: Vec<Value> = serde_json::from_str(first).unwrap();
            let at = usize::from(priority > 0);
            rules.insert(at, rule(priority));
            format!("{}\n{rest}", Value::from(rules))
        });
        add_routes(&dir, std::slice::from_ref(&table));
        write(&dir, "node/iptables-save.txt", |text| {
            let untracked =
                |proto: &str| format!("-A PREROUTING -d 10.96.0.10/32 -p {proto} -m {proto}");
            text.replace(&untracked("udp"), &untracked("tcp"))
        });
        let words: &[&str] = match fate {
            "works" => &[],
            _ => &[
                "routing policy rule 0",
                "comes before the table local",
                "10.96.0.10, the address of nodelocaldns",
                "a priority behind that of the table local",
            ],
        };
        says_to(&dir, DNS, CLIENT, fate, words).await;
    }
}

#[tokio::test]
async fn replies_to_the_internet_that_leave_by_a_vpn_are_lost() {
    // OpenVPN takes the place of the default route with two halves.
    let dir = copy(HEALTHY);
    add(&dir, LINKS, link("tun0", "tun"));
    let half = |to: &str| json!({"dst": to, "gateway": "10.8.0.1", "dev": "tun0", "flags": []});
    add_routes(&dir, &[half("0.0.0.0/1"), half("128.0.0.0/1")]);
    let words = [
        "replies to 198.51.100.77 leave by tun0, not by eth0",
        "the route to 128.0.0.0/1 by tun0 via 10.8.0.1 leads there",
        "ip route add 198.51.100.77 via 10.210.0.2 dev eth0",
    ];
    says_to(&dir, "nodeport:30080", FAR, "lost", &words).await;
    says_to(&dir, "nodeport:30080", "10.210.0.99", "works", &[]).await;

    // A VPN with a table of its own.
    let dir = copy(HEALTHY);
    add(&dir, LINKS, link("wg0", "wireguard"));
    add_routes(
        &dir,
        &[json!({"dst": "default", "dev": "wg0", "table": "51820", "flags": []})],
    );
    add_policy_rules(
        &dir,
        &[
            json!({"priority": 100, "src": "all", "dst": "192.0.0.0", "dstlen": 5, "table": "51820"}),
        ],
    );
    let words = [
        "the default route by wg0 leads there (routing policy rule 100",
        "to 198.51.100.77/32 lookup main priority 99",
    ];
    says_to(&dir, "nodeport:30080", FAR, "lost", &words).await;
}

#[tokio::test]
async fn replies_that_leave_by_the_link_of_a_pod_find_no_router() {
    // dhcpcd takes the links of pods for network cards.
    let dir = copy(HEALTHY);
    add_routes(
        &dir,
        &[
            json!({"dst": "0.0.0.0/1", "dev": "veth73dafea0", "flags": []}),
            json!({"dst": "128.0.0.0/1", "dev": "veth73dafea0", "flags": []}),
        ],
    );
    let words = [
        "leave by veth73dafea0",
        "where no router is",
        "denyinterfaces",
    ];
    says_to(&dir, "nodeport:30080", FAR, "lost", &words).await;
}

#[tokio::test]
async fn a_pod_of_another_node_with_an_address_of_this_nodes_range_is_not_reached() {
    let address = "10.244.1.77";
    let dir = copy(HEALTHY);
    write(&dir, "node/iptables-save.txt", |text| {
        text.replace("10.244.2.2", address)
    });
    write(
        &dir,
        "cluster/endpointslices.json",
        json(|slices| {
            for slice in slices["items"].as_array_mut().unwrap() {
                for endpoint in slice["endpoints"].as_array_mut().into_iter().flatten() {
                    if endpoint["addresses"][0] == "10.244.2.2" {
                        endpoint["addresses"][0] = address.into();
                    }
                }
            }
        }),
    );
    let words = [
        "where no pod has it",
        "on node w2",
        "in the range of this node's pods",
    ];
    says(&dir, "demo/web:http", "partly", &words).await;

    write(
        &dir,
        "cluster/pods.json",
        json(|pods| {
            let pods = pods["items"].as_array_mut().unwrap();
            let mut other = pods[0].clone();
            other["metadata"]["name"] = "other".into();
            other["status"]["podIP"] = address.into();
            other["status"]["podIPs"] = json!([{"ip": address}]);
            pods.push(other);
        }),
    );
    let words = ["and pod demo/other gets them"];
    says(&dir, "demo/web:http", "partly", &words).await;
}

#[tokio::test]
async fn what_keeps_a_tunnel_down_is_named_with_the_last_error_of_its_agent() {
    let down = || {
        let dir = tunnelled();
        write(
            &dir,
            LINKS,
            json(|links| {
                let mut all = links.as_array_mut().unwrap().iter_mut();
                let link = all.find(|link| link["ifname"] == "flannel.1").unwrap();
                link["flags"] = json!(["BROADCAST"]);
            }),
        );
        lead_pods(&dir, "flannel.1", &[]);
        dir
    };
    let dir = down();
    write(&dir, "node/ss.txt", |text| {
        format!(
            "{text}udp UNCONN 0 0 0.0.0.0:8472 0.0.0.0:* users:((\"telegraf\",pid=3120,fd=7))\n"
        )
    });
    let words = [
        "flannel.1 is down, as telegraf (pid 3120) has its UDP port",
        "ss -lunp",
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;

    let dir = down();
    object(&dir, "cluster/pods.json", "kube-proxy-lg2lh", |pod| {
        pod["metadata"]["name"] = "kube-flannel-ds-x".into();
        pod["status"]["containerStatuses"][0]["state"] =
            json!({"waiting": {"reason": "CrashLoopBackOff"}});
        pod["status"]["containerStatuses"][0]["lastState"] = json!({"terminated": {"exitCode": 1,
            "message": "E1103 03:58:08.025657 1 main.go:326] Error registering network: operation not supported"}});
    });
    let words = [
        "ends with: Error registering network: operation not supported",
        "modprobe vxlan",
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;
}
