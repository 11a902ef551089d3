//! Rules and routes that lead packets to machines that do not answer, ARP messages that rules drop, zones of connection tracking, and
//! classes of traffic control.

use std::{fs, slice};

use serde_json::{Value, json};

use super::ends::{HEALTHY, findings, json, says};
use super::incidents::{answer, copy, write};
use super::links::{add_policy_rules, add_routes};
use super::meant::{add_rule, with_rule};

const NFT: &str = "node/nft.json";
const SILENT: &str = "10.210.0.222";

fn neighbour(dir: &tempfile::TempDir, address: &str, state: &str) {
    write(
        dir,
        "node/ip-neigh.json",
        json(|all| {
            let mut entry = json!({"dst": address, "dev": "eth0", "state": [state]});
            if state != "FAILED" {
                entry["lladdr"] = "02:00:00:00:00:de".into();
            }
            all.as_array_mut().unwrap().push(entry);
        }),
    );
}

/// A node whose pods are led by a rule to a table with a default route by [`SILENT`], whose neighbour entry has this state.
fn ruled(state: &str) -> tempfile::TempDir {
    let dir = copy(HEALTHY);
    add_policy_rules(
        &dir,
        &[json!({"priority": 700, "src": "10.244.1.0", "srclen": 24, "table": "99"})],
    );
    let route =
        json!({"dst": "default", "gateway": SILENT, "dev": "eth0", "table": "99", "flags": []});
    add_routes(&dir, &[route]);
    neighbour(&dir, SILENT, state);
    dir
}

#[tokio::test]
async fn a_rule_that_leads_to_a_silent_next_hop_is_the_cause_and_has_one_fix() {
    let dir = ruled("FAILED");
    let fix = "ip rule del from 10.244.1.0/24 lookup 99 priority 700";
    let words = [
        "routing policy rule 700 (from 10.244.1.0/24 lookup 99) leads packets for 10.244.",
        "via 10.210.0.222, where nothing answers",
        fix,
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;
    let causes = answer(dir.path().to_str().unwrap(), "demo/edge:http").await;
    let causes = causes["causes"].as_array().unwrap();
    assert_eq!(causes.len(), 1, "{causes:?}");
    let found = findings(&dir).await;
    let errors: Vec<_> = found.iter().filter(|of| of.1 == "error").collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].2.contains("rule 700"), "{errors:?}");
    // A router that answers may lead the packets there.
    let answering = ruled("REACHABLE");
    let words = ["ip rule add from all to 10.244.0.0/16 lookup main priority 699"];
    says(&answering, "demo/edge:http", "partly", &words).await;
    let causes = answer(answering.path().to_str().unwrap(), "demo/edge:http").await;
    let causes = causes["causes"].as_array().unwrap();
    assert_eq!(causes.len(), 1, "{causes:?}");
    assert_eq!(causes[0]["cause"], "route", "{causes:?}");
}

/// A node with these rules in a chain of a table of its own.
fn with_table(family: &str, hook: &str, rules: &[Value]) -> tempfile::TempDir {
    let dir = copy(HEALTHY);
    write(
        &dir,
        NFT,
        json(|ruleset| {
            let all = ruleset["nftables"].as_array_mut().unwrap();
            all.push(json!({"table": {"family": family, "name": "guard", "handle": 1}}));
            all.push(json!({"chain": {"family": family, "table": "guard", "name": "c", "handle": 1, "type": "filter",
                "hook": hook, "prio": 0, "policy": "accept"}}));
            for (at, rule) in rules.iter().enumerate() {
                all.push(json!({"rule": {"family": family, "table": "guard", "chain": "c", "handle": at + 2, "expr": rule}}));
            }
        }),
    );
    dir
}

fn arp(field: &str, op: &str, value: &Value) -> Value {
    json!({"match": {"op": op, "left": {"payload": {"protocol": "arp", "field": field}}, "right": value}})
}

#[tokio::test]
async fn rules_that_drop_arp_messages_concern_the_addresses_that_they_name() {
    let drop = || json!({"drop": null});
    let names = |field: &str, op: &str, value: &Value| json!([arp(field, op, value), drop()]);
    // 10.210.0.17 is the node of an endpoint, 10.244.1.4 an endpoint here.
    let there = json!("10.210.0.17");
    let nobody = json!("10.210.0.250");
    let ether = json!([
        {"match": {"op": "==", "left": {"payload": {"protocol": "ether", "field": "type"}}, "right": 35020}},
        {"drop": null},
    ]);
    for (family, hook, rule, fate) in [
        ("arp", "output", names("daddr ip", "==", &there), "partly"),
        ("arp", "input", names("saddr ip", "==", &there), "partly"),
        ("arp", "input", names("saddr ip", "==", &nobody), "works"),
        ("arp", "output", names("daddr ip", "==", &nobody), "works"),
        ("arp", "input", names("saddr ip", "!=", &nobody), "lost"),
        (
            "arp",
            "input",
            names("saddr ip", "==", &json!({"set": [nobody, there]})),
            "partly",
        ),
        (
            "arp",
            "input",
            json!([
                arp("operation", "==", &json!("reply")),
                arp("saddr ip", "==", &there),
                drop()
            ]),
            "partly",
        ),
        (
            "bridge",
            "forward",
            names("daddr ip", "==", &nobody),
            "works",
        ),
        (
            "bridge",
            "output",
            names("daddr ip", "==", &json!("10.244.1.4")),
            "partly",
        ),
        ("bridge", "forward", ether, "works"),
    ] {
        let dir = with_table(family, hook, slice::from_ref(&rule));
        let words = ["rule 1 of chain c in table", "drops ARP packets"];
        let words = match fate {
            "works" => &[][..],
            _ => &words,
        };
        says(&dir, "demo/edge:http", fate, words).await;
    }
    // What comes first decides.
    let passed = [
        json!([arp("saddr ip", "==", &there), {"accept": null}]),
        names("saddr ip", "==", &there),
    ];
    let dir = with_table("arp", "input", &passed);
    says(&dir, "demo/edge:http", "works", &[]).await;
}

#[tokio::test]
async fn replies_in_another_zone_of_connection_tracking_are_lost() {
    let fix = "iptables -t raw -D PREROUTING -i eth0 -j CT --zone 5";
    let dir = with_rule("raw", "-A PREROUTING -i eth0 -j CT --zone 5");
    let words = ["sets the conntrack zone of the", "conntrack zone 5", fix];
    says(&dir, "demo/edge:http", "partly", &words).await;
    let found = findings(&dir).await;
    let is_it = |of: &&(String, String, String)| of.0 == "SY16" && of.1 == "error";
    assert_eq!(found.iter().filter(is_it).count(), 1, "{found:?}");
    // Both directions are in one zone.
    let both = with_rule("raw", "-A PREROUTING -j CT --zone 5");
    add_rule(&both, "raw", "-A OUTPUT -j CT --zone 5");
    says(&both, "demo/edge:http", "works", &[]).await;
    let other = with_rule("raw", "-A PREROUTING -i eth0 -p udp -j CT --zone 5");
    says(&other, "demo/edge:http", "works", &[]).await;
    let one_way = with_rule("raw", "-A PREROUTING -i eth0 -j CT --zone-orig 5");
    let words = ["put into a conntrack zone by rule 1 of raw PREROUTING"];
    says(&one_way, "demo/edge:http", "unknown", &words).await;
}

#[tokio::test]
async fn a_program_of_the_node_has_no_class_of_net_cls() {
    let dir = with_rule("filter", "-A OUTPUT -m cgroup --cgroup 1048577 -j DROP");
    says(&dir, "demo/edge:http", "works", &[]).await;
    let cgroup = json!([
        {"match": {"op": "==", "left": {"meta": {"key": "cgroup"}}, "right": 1_048_577}},
        {"drop": null},
    ]);
    says(
        &with_table("ip", "output", &[cgroup]),
        "demo/edge:http",
        "works",
        &[],
    )
    .await;
    let every = with_rule("filter", "-A OUTPUT -m cgroup --cgroup 0 -j DROP");
    says(
        &every,
        "demo/edge:http",
        "partly",
        &["rule 1 of chain OUTPUT"],
    )
    .await;
}

/// A node whose eth0 has this root qdisc with these classes, and a filter that leads packets for `to` into a class.
fn shaped(
    kind: &str,
    default: &str,
    classes: &[Value],
    to: Option<(&str, &str)>,
) -> tempfile::TempDir {
    let dir = copy(HEALTHY);
    write(
        &dir,
        "node/tc.json",
        json(|tc| {
            let all = tc["qdiscs"].as_array_mut().unwrap();
            all.retain(|qdisc| qdisc["dev"] != "eth0");
            all.push(json!({"kind": kind, "handle": "1:", "dev": "eth0", "root": true, "options": {"default": default}}));
            if !classes.is_empty() {
                tc["classes"] = json!([{"dev": "eth0", "classes": classes}]);
            }
            if let Some((value, class)) = to {
                tc["filters"] = json!([{"dev": "eth0", "hook": "root", "filters": [{
                    "protocol": "ip", "pref": 49152, "kind": "u32", "chain": 0, "options": {"flowid": class,
                        "match": [{"value": value, "mask": "ffffffff", "offmask": "", "off": 16}]}}]}]);
            }
        }),
    );
    dir
}

#[tokio::test]
async fn a_class_of_traffic_control_may_be_too_slow_for_its_packets() {
    let class = |handle: &str, rate: u64| json!({"class": "htb", "handle": handle, "parent": "1:", "rate": rate, "ceil": rate, "stats": {"drops": 7}});
    let (slow, fast) = (class("1:20", 125), class("1:30", 12_500_000));
    // 10.244.2.2 is an endpoint of demo/web on w2, 10.99.0.1 no address of the cluster.
    let (far, nobody) = ("af40202", "a630001");
    for (kind, default, classes, to, words) in [
        (
            "htb",
            "0",
            &[][..],
            Some((far, "1:20")),
            &["the tc filter `root protocol ip pref 49152 u32` of eth0"][..],
        ),
        ("htb", "0", &[], Some((nobody, "1:20")), &[]),
        (
            "htb",
            "0",
            slice::from_ref(&slow),
            Some((far, "1:20")),
            &["class 1:20 of eth0, which sends 125 bytes/s, and has dropped 7"],
        ),
        ("htb", "0", slice::from_ref(&fast), Some((far, "1:30")), &[]),
        (
            "htb",
            "0x20",
            &[slow.clone(), fast.clone()],
            None,
            &["packets that no tc filter chooses go into class 1:20 of eth0"],
        ),
        ("htb", "0x30", &[slow.clone(), fast.clone()], None, &[]),
        (
            "htb",
            "0x30",
            &[slow.clone(), fast.clone()],
            Some((far, "1:20")),
            &["leads packets into class 1:20"],
        ),
        ("prio", "0", &[], Some((far, "1:1")), &[]),
    ] {
        let dir = shaped(kind, default, classes, to);
        let fate = if words.is_empty() { "works" } else { "unknown" };
        says(&dir, "demo/web:http", fate, words).await;
    }
    // These drop packets that have no class.
    let hfsc = shaped("hfsc", "0x40", &[class("1:30", 12_500_000)], None);
    let words = ["eth0", "tc qdisc del dev eth0 root"];
    says(&hfsc, "demo/web:http", "partly", &words).await;
}

#[tokio::test]
async fn a_route_to_a_node_by_a_silent_gateway_is_removed() {
    for (to, device, gateway, is_silent) in [
        ("10.210.0.17", "eth0", Some(SILENT), true),
        ("10.210.0.16/28", "eth0", Some(SILENT), true),
        ("10.210.0.17", "eth0", Some(SILENT), false),
        ("10.99.0.0/16", "eth0", Some(SILENT), true),
    ] {
        let dir = copy(HEALTHY);
        let mut route = json!({"dst": to, "dev": device, "flags": []});
        if let Some(by) = gateway {
            route["gateway"] = by.into();
        }
        add_routes(&dir, &[route]);
        neighbour(&dir, SILENT, if is_silent { "FAILED" } else { "REACHABLE" });
        let fix = format!("ip route del {to}");
        let words = [
            "leads packets for 10.210.0.17",
            "without it they leave by eth0",
            &*fix,
        ];
        let (fate, words) = if is_silent && to.starts_with("10.210") {
            ("partly", &words[..])
        } else {
            ("works", &[][..])
        };
        says(&dir, "demo/ingress:http", fate, words).await;
    }
}

#[tokio::test]
async fn one_of_several_next_hops_may_be_no_address_of_the_node() {
    for (second, fate) in [("10.210.0.99", "unknown"), ("10.210.0.17", "works")] {
        let dir = copy(HEALTHY);
        write(
            &dir,
            "node/ip-route.json",
            json(|routes| {
                let mut all = routes.as_array_mut().unwrap().iter_mut();
                let there = all.find(|route| route["dst"] == "10.244.2.0/24").unwrap();
                let hop =
                    |by: &str| json!({"gateway": by, "dev": "eth0", "weight": 1, "flags": []});
                *there = json!({"dst": "10.244.2.0/24", "flags": [], "nexthops": [hop("10.210.0.17"), hop(second)]});
            }),
        );
        let words = [
            "the route to them has 2 next hops",
            "ip route replace 10.244.2.0/24 via 10.210.0.17",
        ];
        let words = if fate == "works" { &[][..] } else { &words[..] };
        says(&dir, "demo/edge:http", fate, words).await;
    }
}

/// Adds a set or a map to the table of [`with_table`].
fn add_set(dir: &tempfile::TempDir, set: Value) {
    write(
        dir,
        NFT,
        json(|ruleset| {
            let all = ruleset["nftables"].as_array_mut().unwrap();
            let is_table = |object: &Value| object["table"]["name"] == "guard";
            let at = all.iter().position(is_table).unwrap();
            all.insert(at + 1, set);
        }),
    );
}

#[tokio::test]
async fn a_list_of_what_may_pass_gets_the_addresses_that_it_lacks() {
    let daddr = || json!({"payload": {"protocol": "ip", "field": "daddr"}});
    let within = |right: Value| json!({"match": {"op": "==", "left": daddr(), "right": right}});
    let rules = [
        json!([within(json!("@ok")), {"accept": null}]),
        json!([within(json!({"prefix": {"addr": "10.244.0.0", "len": 16}})), {"drop": null}]),
    ];
    let dir = with_table("ip", "forward", &rules);
    let elements = json!([{"prefix": {"addr": "10.244.0.0", "len": 24}}, {"prefix": {"addr": "10.244.1.0", "len": 24}}]);
    add_set(
        &dir,
        json!({"set": {"family": "ip", "table": "guard", "name": "ok", "type": "ipv4_addr", "handle": 9, "flags": ["interval"],
            "elem": elements}}),
    );
    let words = [
        "rule 2 of chain c in table ip guard",
        "nft list set ip guard ok",
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;
}

#[tokio::test]
async fn a_map_of_quotas_concerns_the_addresses_that_it_has() {
    let rule = json!([
        {"quota": {"map": {"key": {"payload": {"protocol": "ip", "field": "daddr"}}, "data": "@q"}}},
        {"drop": null},
    ]);
    for (address, fate) in [("10.244.2.5", "unknown"), ("10.99.0.1", "works")] {
        let dir = with_table("ip", "forward", slice::from_ref(&rule));
        add_set(
            &dir,
            json!({"map": {"family": "ip", "table": "guard", "name": "q", "type": "ipv4_addr", "handle": 9, "map": "quota",
                "elem": [[address, "small"]]}}),
        );
        let words = ["quota small of table guard is used up"];
        let words = if fate == "works" { &[][..] } else { &words[..] };
        says(&dir, "demo/edge:http", fate, words).await;
    }
}

#[tokio::test]
async fn the_bit_by_which_the_kubelet_drops_packets_is_no_bit_for_masquerading() {
    for (bit, mark) in [(15, "0x8000"), (16, "0x10000")] {
        let dir = copy(HEALTHY);
        write(&dir, "node/iptables-save.txt", |text| {
            let text = text.replace("0x4000", mark);
            let first = "[0:0] -A KUBE-FIREWALL ";
            let rule = "[0:0] -A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP";
            text.replacen(first, &format!("{rule}\n{first}"), 1)
        });
        write(&dir, "kube-proxy/config.conf", |text| {
            text.replace("masqueradeBit: null", &format!("masqueradeBit: {bit}"))
        });
        write(&dir, "kube-proxy/configz.json", |text| {
            text.replace("\"masqueradeBit\":14", &format!("\"masqueradeBit\":{bit}"))
        });
        let found = findings(&dir).await;
        let is_it =
            |of: &&(String, String, String)| of.0 == "IR10" && of.2.contains("masqueradeBit 15");
        assert_eq!(
            found.iter().filter(is_it).count(),
            usize::from(bit == 15),
            "{found:?}"
        );
    }
}

#[tokio::test]
async fn the_bridge_of_a_docker_network_is_named() {
    for (bridge, words) in [
        ("br-5f3c0a1e22aa", "docker network rm 5f3c0a1e22aa"),
        ("br-lan", "a network plugin"),
    ] {
        let dir = copy(HEALTHY);
        add_routes(
            &dir,
            &[json!({"dst": "10.244.2.0/25", "dev": bridge, "flags": []})],
        );
        write(
            &dir,
            "node/ip-neigh.json",
            json(|all| {
                let entry = json!({"dst": "10.244.2.5", "dev": bridge, "state": ["FAILED"]});
                all.as_array_mut().unwrap().push(entry);
            }),
        );
        let path = dir.path().to_str().unwrap();
        let ran = crate::support::kpx(&["--from", path, "why", "demo/edge:http"]).await;
        let said = ran.out.replace("\n  ", " ");
        assert!(said.contains(words), "{ran}");
    }
}

#[tokio::test]
async fn rules_of_arptables_drop_arp_messages() {
    let sure = "in table filter of arptables-legacy drops ARP packets";
    for (rules, fate, words) in [
        ("1 -j DROP -i eth0 -s 10.210.0.17 \n", "partly", sure),
        ("1 -j DROP -i eth9 -s 10.210.0.17 \n", "works", ""),
        (
            "1 -j ACCEPT -s 10.210.0.17 \n2 -j DROP -s 10.210.0.17 \n",
            "works",
            "",
        ),
        ("1 -j DROP --opcode 2 -s 10.210.0.17 \n", "partly", sure),
        (
            "1 -j DROP --src-mac 00:11:22:33:44:55 -s 10.210.0.17 \n",
            "unknown",
            "may drop ARP packets of eth0",
        ),
        (
            "1 -j K -s 10.210.0.17 \n\nChain K (1 references)\n1 -j DROP \n",
            "partly",
            "rule 1 of chain K in table filter of arptables-legacy drops",
        ),
    ] {
        let dir = copy(HEALTHY);
        let text = format!("Chain INPUT (policy ACCEPT)\n{rules}");
        fs::write(dir.path().join("node/arptables-legacy.txt"), text).unwrap();
        says(&dir, "demo/edge:http", fate, &[words]).await;
        if rules.starts_with("1 -j DROP -i eth0") {
            let fix = ["arptables-legacy -t filter -D INPUT 1"];
            says(&dir, "demo/edge:http", fate, &fix).await;
        }
    }
}

#[tokio::test]
async fn a_policy_of_ipsec_without_an_association_loses_packets() {
    let policy = "src 10.244.1.0/24 dst 10.244.2.0/24 \n\tdir out priority 0 ptype main \n\
                  \ttmpl src 10.210.0.16 dst 10.210.0.17\n\t\tproto esp reqid 0 mode tunnel\n";
    let optional = format!("{policy}\t\tlevel use \n");
    let state = |to: &str, request: u32, mode: &str| {
        format!(
            "src 10.210.0.16 dst {to}\n\tproto esp spi 0x00000005 reqid {request} mode {mode}\n"
        )
    };
    let missing = "no security association exists for the xfrm policy";
    for (policy, states, fate, words) in [
        (policy, String::new(), "partly", missing),
        (policy, state("10.210.0.18", 0, "tunnel"), "partly", missing),
        (policy, state("10.210.0.17", 7, "tunnel"), "partly", missing),
        (
            policy,
            state("10.210.0.17", 0, "transport"),
            "partly",
            missing,
        ),
        (
            policy,
            state("10.210.0.17", 0, "tunnel"),
            "unknown",
            "sends the packets through IPsec",
        ),
        (
            &policy.replace("dst 10.210.0.17", "dst 203.0.113.9"),
            state("203.0.113.9", 0, "tunnel"),
            "unknown",
            "through IPsec to 203.0.113.9, which is no Node",
        ),
        (&optional, String::new(), "works", ""),
    ] {
        let dir = copy(HEALTHY);
        let write_to = |file: &str, text: &str| fs::write(dir.path().join(file), text).unwrap();
        write_to("node/ip-xfrm-policy.txt", policy);
        write_to("node/ip-xfrm-state.txt", &states);
        says(&dir, "demo/edge:http", fate, &[words]).await;
        if states.is_empty() && fate == "partly" {
            write(&dir, "node/ss.txt", |text| {
                format!(
                    "{text}udp UNCONN 0 0 0.0.0.0:500 0.0.0.0:* users:((\"charon\",pid=7,fd=3))\n"
                )
            });
            let words = ["until a daemon of IPsec sets one up"];
            says(&dir, "demo/edge:http", "unknown", &words).await;
        }
    }
}

#[tokio::test]
async fn a_full_neighbour_table_fails_some_connections() {
    let dir = copy(HEALTHY);
    let stat = |entries: &str| format!("entries  table_fulls\n{entries} 000003b1\n");
    let file = dir.path().join("node/arp_cache-stat.txt");
    write(&dir, "node/sysctl.txt", |text| {
        format!("{text}net.ipv4.neigh.default.gc_thresh3 = 1024\n")
    });
    fs::write(&file, stat("00000400")).unwrap();
    let words = [
        "the neighbour table is full (1024 of 1024",
        "net.ipv4.neigh.default.gc_thresh3=2048",
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;
    fs::write(&file, stat("00000100")).unwrap();
    says(&dir, "demo/edge:http", "works", &[]).await;
}

#[tokio::test]
async fn frames_that_the_node_sends_have_the_address_of_their_bridge() {
    let dir = copy(HEALTHY);
    let links = fs::read_to_string(dir.path().join("node/ip-link.json")).unwrap();
    let links: Value = serde_json::from_str(&links).unwrap();
    let mut links = links.as_array().unwrap().iter();
    let bridge = links.find(|link| link["ifname"] == "cni0").unwrap();
    let ether = |field: &str, value: &Value| json!({"match": {"op": "==", "left": {"payload": {"protocol": "ether", "field": field}}, "right": value}});
    let to = json!({"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}}, "right": "10.244.1.4"}});
    let drop = || json!({"drop": null});
    let set = |field: &str| json!({"mangle": {"key": {"payload": {"protocol": "ether", "field": field}}, "value": "0e:00:00:00:00:01"}});
    for (rule, fate) in [
        (
            json!([ether("saddr", &bridge["address"]), to, drop()]),
            "partly",
        ),
        (
            json!([ether("saddr", &json!("0e:00:00:00:00:01")), to, drop()]),
            "works",
        ),
        (json!([to, set("saddr")]), "works"),
    ] {
        let dir = with_table("bridge", "output", slice::from_ref(&rule));
        says(&dir, "demo/edge:http", fate, &[]).await;
    }
}
