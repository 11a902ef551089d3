//! Ways of which a part is wrong: one of several endpoints, next hops and gateways, and rules of routing for some packets alone.

use std::fs;

use serde_json::{Value, json};

use super::ends::{HEALTHY, ROUTES, findings, json, says};
use super::incidents::{answer, copy, write};
use super::links::add_routes;
use super::meant::with_rule;
use crate::support::{broken, kpx};

const RULES: &str = "node/ip-rule.json";

/// The pods of w2, another node: one endpoint of `demo/web`, and the fourth of `demo/web-headless`.
const THERE: &str = "10.244.2.0/24";

/// A node whose route to [`THERE`] is another one.
fn routed(route: &Value) -> tempfile::TempDir {
    let dir = copy(HEALTHY);
    write(
        &dir,
        ROUTES,
        json(|all| {
            let all = all.as_array_mut().unwrap();
            all.retain(|route| route["dst"] != THERE);
            all.push(route.clone());
        }),
    );
    dir
}

/// Adds a routing policy rule of IPv4, which are those of the first line.
fn add_rule(dir: &tempfile::TempDir, rule: &Value) {
    write(dir, RULES, |text| {
        text.replacen('[', &format!("[{rule},"), 1)
    });
}

#[tokio::test]
async fn each_endpoint_of_a_headless_service_is_judged() {
    says(
        &copy(HEALTHY),
        "demo/web-headless",
        "works",
        &["4 endpoints"],
    )
    .await;
    let dir = routed(&json!({"type": "blackhole", "dst": THERE, "flags": []}));
    let words = ["end at its blackhole route"];
    says(&dir, "demo/web-headless", "partly", &words).await;
    says(&dir, "demo/web:http", "partly", &words).await;
}

#[tokio::test]
async fn each_next_hop_is_judged_and_a_stranger_beside_the_node_is_not_the_node() {
    let by = |gateway: &str| json!({"gateway": gateway, "dev": "eth0", "flags": []});
    let both = |other: &str| {
        let hops = [by("10.210.0.17"), by(other)];
        routed(&json!({"dst": THERE, "nexthops": hops, "flags": []}))
    };
    says(&both("10.210.0.17"), "demo/web:http", "works", &[]).await;
    let words = [
        "10.210.0.99",
        "ip route replace 10.244.2.0/24 via 10.210.0.17",
    ];
    says(&both("10.210.0.99"), "demo/web:http", "unknown", &words).await;
    let stranger = json!({"dst": THERE, "gateway": "10.210.0.99", "dev": "eth0", "flags": []});
    says(&routed(&stranger), "demo/web:http", "unknown", &words).await;
}

#[tokio::test]
async fn the_doctor_names_rules_for_marks_and_links_and_what_sets_the_ttl() {
    let fix = async |dir: &tempfile::TempDir| {
        let ran = kpx(&["--from", dir.path().to_str().unwrap(), "doctor", "SY16"]).await;
        assert!(!ran.out.contains("ip route get"), "{}", ran.out);
        assert!(!ran.out.contains("ip route replace"), "{}", ran.out);
        ran.out
    };
    let marked = copy(HEALTHY);
    add_rule(
        &marked,
        &json!({"priority": 100, "src": "all", "fwmark": "0x4000", "fwmask": "0x4000", "table": "88"}),
    );
    add_routes(
        &marked,
        &[json!({"type": "blackhole", "dst": "default", "table": "88", "flags": []})],
    );
    let said = fix(&marked).await;
    assert!(
        said.contains("fwmark 0x4000/0x4000 lookup 88 priority 100"),
        "{said}"
    );

    let of_link = copy(HEALTHY);
    add_rule(
        &of_link,
        &json!({"priority": 100, "src": "all", "iif": "cni0", "action": "unreachable"}),
    );
    let said = fix(&of_link).await;
    assert!(
        said.contains("ip rule del from all iif cni0 unreachable priority 100"),
        "{said}"
    );

    let said = fix(&with_rule(
        "mangle",
        "-A PREROUTING -i cni0 -j TTL --ttl-set 1",
    ))
    .await;
    assert!(
        said.contains("-D PREROUTING -i cni0 -j TTL --ttl-set 1"),
        "{said}"
    );
}

#[tokio::test]
async fn a_mark_that_no_rule_gives_to_replies_leads_none_back() {
    let asked = async |restores: bool| {
        let rule = "-A PREROUTING -i cni0 -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80";
        let dir = if restores {
            with_rule("mangle", rule)
        } else {
            copy(HEALTHY)
        };
        add_routes(
            &dir,
            &[
                json!({"dst": "0.0.0.0/1", "gateway": "10.8.0.1", "dev": "tun0", "flags": []}),
                json!({"dst": "128.0.0.0/1", "gateway": "10.8.0.1", "dev": "tun0", "flags": []}),
                json!({"dst": "default", "gateway": "10.210.0.2", "dev": "eth0", "table": "80", "flags": []}),
            ],
        );
        add_rule(
            &dir,
            &json!({"priority": 1024, "src": "all", "fwmark": "0x80", "fwmask": "0x80", "table": "80"}),
        );
        let path = dir.path().to_str().unwrap();
        let ran = kpx(&[
            "--from",
            path,
            "why",
            "demo/edge-local:http",
            "--source",
            "203.0.113.9",
            "-o",
            "json",
        ])
        .await;
        serde_json::from_str::<Value>(&ran.out).unwrap()
    };
    let lost = asked(false).await;
    let text = lost["sentence"].as_str().unwrap();
    assert!(
        text.contains("replies to 203.0.113.9 leave by tun0"),
        "{text}"
    );
    assert_eq!(lost["fate"], "unknown", "{text}");
    let marked = asked(true).await;
    assert_eq!(marked["fate"], "works", "{}", marked["sentence"]);
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_service_does_not_take_what_a_machine_serves() {
    let taking = |address: &str, port: u16| {
        let dir = copy(HEALTHY);
        write(
            &dir,
            "cluster/services.json",
            json(|all| {
                let mut all = all["items"].as_array_mut().unwrap().iter_mut();
                let edge = all
                    .find(|service| service["metadata"]["name"] == "edge")
                    .unwrap();
                edge["spec"]["externalIPs"] = json!([address]);
                edge["spec"]["ports"][0]["port"] = json!(port);
            }),
        );
        dir
    };
    let message = async |dir: tempfile::TempDir| {
        let all = findings(&dir).await.into_iter();
        let all = all.filter(|(id, severity, _)| id == "AP14" && severity == "error");
        all.map(|(_, _, text)| text).collect::<String>()
    };
    let of_api = message(taking("10.210.0.2", 6443)).await;
    assert!(
        of_api.contains("10.210.0.2:6443/tcp is an API server"),
        "{of_api}"
    );
    let of_kubelet = message(taking("10.210.0.17", 10250)).await;
    assert!(
        of_kubelet.contains("is the kubelet of node w2"),
        "{of_kubelet}"
    );
    assert_eq!(message(taking("10.210.0.17", 8081)).await, "");
    assert_eq!(message(taking("10.210.0.99", 6443)).await, "");
}

#[tokio::test]
async fn rules_that_another_tool_lists_are_not_gone() {
    let empty = |_: &str| String::new();
    let dir = broken("full-iptables", &[("node/iptables-save.txt", &empty)]);
    let all = findings(&dir).await;
    let wrong = |(id, severity, _): &&(String, String, String)| id == "KP01" && severity == "error";
    let has = fs::read_to_string(dir.path().join("node/nft.json"))
        .unwrap()
        .contains("KUBE-SERVICES");
    assert!(has && !all.iter().any(|finding| wrong(&finding)), "{all:?}");
    let answer = answer(dir.path().to_str().unwrap(), "edge/web").await;
    assert_eq!(answer["fate"], "unknown", "{}", answer["sentence"]);
}

/// Adds a failed neighbour entry.
fn fail_neighbour(dir: &tempfile::TempDir, address: &str, link: &str) {
    write(
        dir,
        "node/ip-neigh.json",
        json(|all| {
            let all = all.as_array_mut().unwrap();
            all.retain(|of| of["dst"] != address);
            all.push(json!({"dst": address, "dev": link, "state": ["FAILED"]}));
        }),
    );
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_way_that_may_be_wrong_is_a_warning_with_the_route_that_is_known() {
    let route = json!({"dst": THERE, "gateway": "10.210.0.15", "dev": "eth0", "flags": []});
    let dir = routed(&route);
    let fix = "ip route replace 10.244.2.0/24 via 10.210.0.17";
    says(&dir, "demo/web:http", "unknown", &[fix]).await;
    let found = findings(&dir).await;
    let is_it = |of: &&(String, String, String)| of.0 == "SY16" && of.1 == "warning";
    let warning = found.iter().find(is_it).unwrap();
    assert!(warning.2.contains("not by 10.210.0.17"), "{}", warning.2);
    assert!(warning.2.contains("may break"), "{}", warning.2);
    let ran = kpx(&["--from", dir.path().to_str().unwrap(), "doctor"]).await;
    assert!(ran.out.contains(fix) && ran.code == 3, "{ran}");
    let healthy = findings(&copy(HEALTHY)).await;
    assert!(
        !healthy.iter().any(|healthy| healthy.0 == "SY16"),
        "{healthy:?}"
    );
}

#[tokio::test]
async fn a_gateway_beside_the_node_that_does_not_answer_is_no_machine_to_bring_back() {
    let route = json!({"dst": THERE, "gateway": "10.210.0.99", "dev": "eth0", "flags": []});
    let dir = routed(&route);
    fail_neighbour(&dir, "10.210.0.99", "eth0");
    let fix = "ip route replace 10.244.2.0/24 via 10.210.0.17";
    let words = ["10.210.0.99, not by 10.210.0.17", fix];
    says(&dir, "demo/web:http", "partly", &words).await;
    let found = findings(&dir).await;
    let errors: Vec<_> = found.iter().filter(|of| of.1 == "error").collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    // The node's own address stays the one to bring back.
    let dir = copy(HEALTHY);
    fail_neighbour(&dir, "10.210.0.17", "eth0");
    says(
        &dir,
        "demo/web:http",
        "partly",
        &["10.210.0.17 did not answer"],
    )
    .await;
}

#[tokio::test]
async fn an_address_in_the_range_of_another_node_is_removed() {
    let dir = copy(HEALTHY);
    let route = json!({"dst": THERE, "dev": "cni0", "protocol": "kernel", "scope": "link",
        "prefsrc": "10.244.2.1", "flags": []});
    write(
        &dir,
        ROUTES,
        json(|all| all.as_array_mut().unwrap().insert(0, route)),
    );
    write(
        &dir,
        "node/ip-addr.json",
        json(|all| {
            let mut links = all.as_array_mut().unwrap().iter_mut();
            let bridge = links.find(|link| link["ifname"] == "cni0").unwrap();
            let own = json!({"family": "inet", "local": "10.244.2.1", "prefixlen": 24,
                "scope": "global", "label": "cni0"});
            bridge["addr_info"].as_array_mut().unwrap().push(own);
        }),
    );
    let fix =
        "ip addr del 10.244.2.1/24 dev cni0 && ip route replace 10.244.2.0/24 via 10.210.0.17";
    says(
        &dir,
        "demo/web:http",
        "partly",
        &["a bridge inside the node", fix],
    )
    .await;
    fail_neighbour(&dir, "10.244.2.2", "cni0");
    says(&dir, "demo/web:http", "partly", &["10.244.2.1/24", fix]).await;
}

#[tokio::test]
async fn a_rule_that_ends_packets_looks_up_no_table() {
    let dir = copy(HEALTHY);
    let rule = json!({"priority": 100, "src": "10.244.1.0", "srclen": 24, "table": "main", "action": "prohibit"});
    add_rule(&dir, &rule);
    let answer = answer(dir.path().to_str().unwrap(), "demo/web:http").await;
    assert_eq!(answer["fate"], "partly", "{answer:#}");
    assert!(
        answer["sentence"].as_str().unwrap().contains("rule 100"),
        "{answer:#}"
    );
}
