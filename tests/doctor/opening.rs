//! Rules about rare properties of packets concern no connection, and connections show faults that no rule causes.

use serde_json::{Value, json};

use super::ends::{HEALTHY, PODS, findings, json, says};
use super::incidents::{answer, copy, write};
use super::meant::with_rule;
use crate::support::kpx;

const NFT: &str = "node/nft.json";
const RULES: &str = "node/iptables-save.txt";
const CONNTRACK: &str = "node/conntrack.txt";
const PROCESSES: &str = "node/processes.json";

/// A node with a rule of nftables that looks at `left` and then does `then`, for packets that it forwards.
fn with_nft(left: &Value, op: &str, right: &Value, then: &Value) -> tempfile::TempDir {
    let dir = copy(HEALTHY);
    let own = |kind: &str, more: Value| {
        let mut object = json!({"family": "inet", "table": "mine", "handle": 77});
        object
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({kind: object})
    };
    write(
        &dir,
        NFT,
        json(|rules| {
            let all = rules["nftables"].as_array_mut().unwrap();
            all.push(json!({"table": {"family": "inet", "name": "mine", "handle": 77}}));
            all.push(own("chain", json!({"name": "c", "type": "filter", "hook": "forward", "prio": 0, "policy": "accept"})));
            let expr = json!([{"match": {"op": op, "left": left, "right": right}}, then]);
            all.push(own("rule", json!({"chain": "c", "expr": expr})));
        }),
    );
    dir
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn rules_for_what_opening_packets_do_not_have_concern_no_connection() {
    let dir = copy(HEALTHY);
    write(&dir, RULES, |text| {
        let rules: String = [
            "FORWARD -f",
            "FORWARD -m length --length 1501:65535",
            "FORWARD -m ttl --ttl-lt 2",
            "FORWARD -m tos --tos 0x10/0x3f",
            "FORWARD -m dscp --dscp 0x2e",
            "FORWARD -p tcp -m tcp --tcp-option 64",
            "FORWARD -m connbytes --connbytes 10000000 --connbytes-mode bytes --connbytes-dir both",
            "FORWARD -m helper --helper sip",
            "FORWARD -m cgroup --path user.slice",
            "FORWARD -m addrtype --src-type BROADCAST,MULTICAST",
            "OUTPUT -m owner --uid-owner 1000",
        ]
        .map(|rule| format!("[0:0] -A {rule} -j DROP\n"))
        .concat();
        let at = text.find("*filter\n").unwrap();
        let at = at + text[at..].find("\n[").unwrap() + 1;
        format!("{}{rules}{}", &text[..at], &text[at..])
    });
    says(&dir, "demo/web", "works", &[]).await;
    let found = findings(&dir).await;
    assert!(
        !found.iter().any(|finding| finding.0 == "IR16"),
        "{found:?}"
    );
    let payload =
        |protocol: &str, field: &str| json!({"payload": {"protocol": protocol, "field": field}});
    let drop = json!({"drop": null});
    for (left, op, right) in [
        (payload("ip", "ttl"), "<", json!(5)),
        (payload("ip", "dscp"), "==", json!("ef")),
        (json!({"meta": {"key": "length"}}), ">", json!(1500)),
        (json!({"ct": {"key": "bytes"}}), ">", json!(10_000_000)),
        (
            json!({"&": [payload("ip", "frag-off"), 8191]}),
            "!=",
            json!(0),
        ),
        (json!({"ip option": {"name": "lsrr"}}), "==", json!(true)),
    ] {
        let dir = with_nft(&left, op, &right, &drop);
        says(&dir, "demo/web:http", "works", &[]).await;
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn rules_for_what_opening_packets_have_stop_connections() {
    for (rule, fate) in [
        (
            "-A FORWARD -p tcp -m length --length 40:80 -j DROP",
            "partly",
        ),
        ("-A FORWARD -p tcp -m ttl --ttl-lt 65 -j DROP", "partly"),
        (
            "-A FORWARD -p tcp -m length --length 41:60 -j DROP",
            "unknown",
        ),
        (
            "-A FORWARD -p tcp -m string --string \"GET /\" --algo bm -j DROP",
            "unknown",
        ),
        ("-A OUTPUT -p tcp -m owner --uid-owner 0 -j DROP", "partly"),
    ] {
        says(&with_rule("filter", rule), "demo/web:http", fate, &[]).await;
    }
    // Its own mark decides then.
    let dir = with_rule("mangle", "-A PREROUTING -j TOS --set-tos 0x10/0x3f");
    write(&dir, RULES, |text| {
        text.replacen(
            "-A FORWARD ",
            "-A FORWARD -m tos --tos 0x10/0x3f -j DROP\n[0:0] -A FORWARD ",
            1,
        )
    });
    says(&dir, "demo/web:http", "partly", &[]).await;
    for (key, what) in [
        (("ip", "daddr"), "another ip daddr"),
        (("tcp", "dport"), "another tcp dport"),
    ] {
        let to = match key.1 {
            "daddr" => json!("203.0.113.1"),
            _ => json!(81),
        };
        let written = json!({"mangle": {"key": {"payload": {"protocol": key.0, "field": key.1}}, "value": to}});
        let proto = json!({"meta": {"key": "l4proto"}});
        let dir = with_nft(&proto, "==", &json!("tcp"), &written);
        says(
            &dir,
            "demo/web:http",
            "unknown",
            &["changed by rule 1 of mine c", what],
        )
        .await;
    }
}

#[tokio::test]
async fn a_copy_of_packets_to_a_node_that_serves_them_is_answered_twice() {
    for (gateway, fate) in [("10.210.0.17", "unknown"), ("10.210.0.250", "works")] {
        let dir = with_rule(
            "mangle",
            &format!("-A PREROUTING -p tcp -j TEE --gateway {gateway}"),
        );
        says(&dir, "demo/web:http", fate, &[]).await;
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn an_endpoint_that_answered_no_connection_lately_is_no_working_one() {
    let tracked = |state: &str, left: u32, port: u16| {
        let seen = if state == "SYN_SENT" {
            "[UNREPLIED] "
        } else {
            ""
        };
        format!(
            "tcp      6 {left} {state} src=10.244.1.2 dst=10.97.114.136 sport={port} dport=80 {seen}src=10.244.2.5 dst=10.244.1.2 sport=8080 dport={port} mark=0 use=1\n"
        )
    };
    let with = |more: &str| {
        let dir = copy(HEALTHY);
        write(&dir, CONNTRACK, |text| format!("{text}{more}"));
        dir
    };
    let lost: String = (0..4)
        .map(|at| tracked("SYN_SENT", 110, 40_000 + at))
        .collect();
    let words = [
        "4 connections to 10.244.2.5:8080, the last one 10 s before this was read, were not answered",
    ];
    says(&with(&lost), "demo/edge:http", "unknown", &words).await;
    // It answered before.
    let before = lost.clone() + &tracked("TIME_WAIT", 40, 40_010);
    says(&with(&before), "demo/edge:http", "unknown", &words).await;
    // A rule of which the effect is not known says more, everywhere.
    let ruled = with(&lost);
    write(
        &ruled,
        NFT,
        json(|rules| {
            let all = rules["nftables"].as_array_mut().unwrap();
            all.push(json!({"table": {"family": "netdev", "name": "guard", "handle": 33}}));
            all.push(json!({"chain": {"family": "netdev", "table": "guard", "name": "i", "handle": 1, "type": "filter",
                "hook": "ingress", "prio": 0, "policy": "accept", "dev": ["eth0"]}}));
            let from = json!({"payload": {"protocol": "ip", "field": "saddr"}});
            let expr = json!([{"match": {"op": "==", "left": from, "right": "10.244.2.5"}}, {"fwd": {"dev": "lo"}}]);
            all.push(json!({"rule": {"family": "netdev", "table": "guard", "chain": "i", "handle": 2, "expr": expr}}));
        }),
    );
    says(&ruled, "demo/edge:http", "unknown", &["effect of fwd"]).await;
    let path = ruled.path().to_str().unwrap();
    for command in [&["trace", "demo/edge:http"][..], &["doctor"]] {
        let ran = kpx(&[&["--from", path], command].concat()).await;
        let said = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains("the effect of fwd"), "{said}");
        assert!(!said.contains("were not answered"), "{said}");
    }
    // It has answered others since.
    let another = tracked("TIME_WAIT", 119, 40_012).replace("10.244.1.2", "10.210.0.16");
    let one = with(&(lost.clone() + &another));
    let path = one.path().to_str().unwrap();
    for (source, said) in [
        (
            "10.244.1.2",
            "4 connections from 10.244.1.2 to 10.244.2.5:8080",
        ),
        ("host", "WORKS"),
    ] {
        let ran = kpx(&[
            "--from",
            path,
            "trace",
            "demo/edge:http",
            "--source",
            source,
        ])
        .await;
        let shown = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.contains(said), "{shown}");
    }
    // It has answered since.
    let since = lost + &tracked("TIME_WAIT", 119, 40_011);
    says(&with(&since), "demo/edge:http", "works", &[]).await;
    let few: String = (0..2)
        .map(|at| tracked("SYN_SENT", 110, 40_020 + at))
        .collect();
    says(&with(&few), "demo/edge:http", "works", &[]).await;
}

#[tokio::test]
async fn connections_of_a_pod_that_a_rule_singles_out_are_no_doubt_about_others() {
    let line = |port: u16| {
        format!(
            "tcp      6 110 SYN_SENT src=10.244.1.2 dst=10.97.114.136 sport={port} dport=80 [UNREPLIED] src=10.244.2.5 \
             dst=10.244.1.2 sport=8080 dport={port} mark=0 use=1\n"
        )
    };
    let lost: String = (40_000..40_004).map(line).collect();
    let dir = with_rule("raw", "-A PREROUTING -s 10.244.1.2/32 -j CT --zone-reply 7");
    write(&dir, CONNTRACK, |text| format!("{text}{lost}"));
    says(
        &dir,
        "demo/edge:http",
        "unknown",
        &["put into a conntrack zone"],
    )
    .await;
}

#[tokio::test]
async fn datagrams_that_an_endpoint_did_not_answer_are_a_doubt_if_it_answers_any() {
    let tracked = |seen: &str, left: u32, port: u16| {
        format!(
            "udp      17 {left} src=10.244.1.2 dst=10.101.213.102 sport={port} dport=9001 {seen}src=10.244.1.3 dst=10.244.1.2 sport=9001 dport={port} mark=0 use=1\n"
        )
    };
    let elsewhere = |port: u16| {
        format!(
            "udp      17 28 src=10.244.1.3 dst=10.244.1.2 sport=50000 dport={port} [UNREPLIED] src=10.244.1.2 dst=10.244.1.3 sport={port} dport=50000 mark=0 use=1\n"
        )
    };
    let ports = 40_000..40_004;
    let open: String = (ports.clone())
        .map(|port| tracked("[UNREPLIED] ", 28, port))
        .collect();
    let answered = tracked("", 10, 40_009);
    let other: String = ports.map(elsewhere).collect();
    for (more, fate, words) in [
        // No one need answer.
        (open.clone(), "works", &[][..]),
        (
            format!("{open}{answered}"),
            "unknown",
            &["4 connections to 10.244.1.3:9001", "UNREPLIED"],
        ),
        (
            format!("{open}{other}"),
            "unknown",
            &["the program at 10.244.1.3:9001 answers from 10.244.1.3:50000"],
        ),
    ] {
        let dir = copy(HEALTHY);
        write(&dir, CONNTRACK, |text| format!("{text}{more}"));
        says(&dir, "demo/web:datagrams", fate, words).await;
    }
}

#[tokio::test]
async fn an_endpoint_here_that_is_not_ready_is_the_cause_under_policy_local() {
    let dir = copy(HEALTHY);
    write(
        &dir,
        "cluster/endpointslices.json",
        json(|slices| {
            let all = slices["items"].as_array_mut().unwrap().iter_mut();
            let ours = all.filter(|slice| {
                slice["metadata"]["labels"]["kubernetes.io/service-name"] == "edge-local"
            });
            let endpoints = ours.flat_map(|slice| slice["endpoints"].as_array_mut().unwrap());
            for endpoint in endpoints.filter(|endpoint| endpoint["nodeName"] == "w1") {
                endpoint["conditions"] =
                    json!({"ready": false, "serving": false, "terminating": false});
            }
        }),
    );
    let ran = kpx(&[
        "--from",
        dir.path().to_str().unwrap(),
        "why",
        "10.210.0.16:30081",
        "--source",
        "203.0.113.9",
        "-o",
        "json",
    ])
    .await;
    let answer: Value = serde_json::from_str(&ran.out).unwrap();
    let cause = answer["causes"].to_string();
    assert!(
        !cause.contains("externalTrafficPolicy\\\\\\\":\\\\\\\"Cluster"),
        "{cause}"
    );
    let text = answer["sentence"].as_str().unwrap();
    assert!(
        text.contains("no endpoint on w1 is ready") || text.contains("is missing"),
        "{text}"
    );
}

/// A node with one more process.
fn beside(name: &str, args: &[&str]) -> tempfile::TempDir {
    let dir = copy(HEALTHY);
    let new = json!({"pid": 88, "name": name, "args": args, "state": "S", "started": 1_795_838_900, "sameNetwork": true,
        "cgroup": format!("/system.slice/{name}.service")});
    write(
        &dir,
        PROCESSES,
        json(|all| all["processes"].as_array_mut().unwrap().push(new)),
    );
    dir
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn programs_that_start_kube_proxy_in_a_pod_are_no_second_one() {
    let two = async |name: &str, args: &[&str]| {
        let found = findings(&beside(name, args)).await;
        found.iter().any(|finding| finding.0 == "KP17")
    };
    assert!(!two("rke2", &["/usr/local/bin/rke2", "agent"]).await);
    assert!(!two("k0s", &["/usr/local/bin/k0s", "worker"]).await);
    assert!(
        !two(
            "k3s-server",
            &[
                "/usr/local/bin/k3s",
                "server",
                "--disable-kube-proxy",
                "--flannel-backend=none"
            ]
        )
        .await
    );
    assert!(two("k3s-server", &["/usr/local/bin/k3s", "server"]).await);
}

#[tokio::test]
async fn where_open_vswitch_serves_services_rules_decide_nothing() {
    let dir = copy(HEALTHY);
    write(&dir, RULES, |text| {
        let kept: Vec<&str> = text
            .lines()
            .filter(|line| !line.contains("KUBE-"))
            .collect();
        kept.join("\n") + "\n"
    });
    write(
        &dir,
        "node/ip-link.json",
        json(|links| {
            links.as_array_mut().unwrap().push(
                json!({"ifindex": 90, "ifname": "ovn-k8s-mp0", "mtu": 1400, "operstate": "UNKNOWN",
                "flags": ["BROADCAST", "UP", "LOWER_UP"], "address": "0a:58:0a:f4:01:02"}),
            );
        }),
    );
    write(&dir, PROCESSES, json(|all| all["processes"] = json!([])));
    says(
        &dir,
        "demo/web:http",
        "unknown",
        &["OVN-Kubernetes translates connections to Services in Open vSwitch"],
    )
    .await;
}

#[tokio::test]
async fn a_node_without_a_route_to_services_has_one_finding() {
    let dir = copy(HEALTHY);
    write(
        &dir,
        "node/ip-route.json",
        json(|routes| {
            routes
                .as_array_mut()
                .unwrap()
                .retain(|route| route["dst"] != "default");
        }),
    );
    let found = findings(&dir).await;
    let lost: Vec<_> = found
        .iter()
        .filter(|finding| finding.2.contains("no route that leads to"))
        .collect();
    assert_eq!(lost.len(), 1, "{found:?}");
}

#[tokio::test]
async fn marks_by_hash_and_proxies_of_handshakes_are_not_followed() {
    for (rule, words) in [
        (
            "-A PREROUTING -p tcp -j HMARK --hmark-tuple src --hmark-mod 4 --hmark-offset 200 --hmark-rnd 0x1",
            "marked by rule 1 of mangle PREROUTING",
        ),
        (
            "-A PREROUTING -p tcp -j SYNPROXY --sack-perm --timestamp --mss 1460",
            "taken by synproxy by rule 1 of mangle PREROUTING",
        ),
    ] {
        says(
            &with_rule("mangle", rule),
            "demo/web:http",
            "unknown",
            &[words],
        )
        .await;
    }
}

#[tokio::test]
async fn an_address_of_two_pods_here_is_in_doubt() {
    let dir = copy(HEALTHY);
    write(&dir, PODS, |text| text.replace("10.244.1.5", "10.244.1.4"));
    let words = ["more than one pod of this node has 10.244.1.4"];
    says(&dir, "demo/edge:http", "unknown", &words).await;
    // The other pod is known by its own address.
    let dir = copy(HEALTHY);
    write(&dir, PODS, |text| {
        let own = r#"{"family":"inet","local":"10.244.1.5""#;
        let other =
            own.replace("1.5", "1.4") + r#","prefixlen":32,"label":"eth0","scope":"global"},"#;
        text.replacen(own, &(other + own), 1)
    });
    let words = [
        "pods demo/edge-z8g9h and demo/web-5b4d88dc86-jxqhh both have the address 10.244.1.4",
        "delete pod web-5b4d88dc86-jxqhh",
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;
}

#[tokio::test]
async fn a_pod_with_a_route_of_its_own_is_asked_for_itself() {
    let dir = copy(HEALTHY);
    write(&dir, PODS, |text| {
        let first = r#"[{"dst":"default","gateway":"10.244.1.1","dev":"eth0","flags":[]},"#;
        let own = r#"{"dst":"10.97.114.136","gateway":"10.244.1.99","dev":"eth0","flags":[]},"#;
        text.replacen(first, &format!("{first}{own}"), 1)
    });
    let answer = answer(dir.path().to_str().unwrap(), "demo/edge:http").await;
    let paths = answer["paths"].as_array().unwrap();
    let single = paths.iter().find(|path| path["client"] == "single");
    let from = single.map(|path| path["from"].as_str().unwrap());
    assert!(
        from.is_some_and(|from| from.contains("10.244.1.2")),
        "{answer}"
    );
}

/// A connection is assured as soon as both sides have sent something.
#[tokio::test]
async fn rules_for_a_status_of_connections_stop_their_later_packets() {
    for status in ["ASSURED", "SEEN_REPLY,EXPECTED"] {
        let rule = format!("-A FORWARD -p tcp -m conntrack --ctstatus {status} -j DROP");
        let dir = with_rule("filter", &rule);
        says(&dir, "demo/edge:http", "partly", &["drops the replies"]).await;
    }
    for rule in [
        "-A FORWARD -p tcp -m conntrack --ctstatus EXPECTED -j DROP",
        "-A FORWARD -p tcp -m conntrack --ctstatus ASSURED -j ACCEPT",
    ] {
        says(&with_rule("filter", rule), "demo/edge:http", "works", &[]).await;
    }
}

#[tokio::test]
async fn counts_of_a_connection_are_those_of_one_request_and_its_answer() {
    let drop = json!({"drop": null});
    let ct = |key: &str, direction: &str| json!({"ct": {"key": key, "dir": direction}});
    let further = ["drops the later packets of each connection"];
    for (left, op, right, fate, words) in [
        (ct("packets", "original"), ">", 2, "partly", &further[..]),
        (ct("packets", "original"), ">", 4, "partly", &further),
        (ct("packets", "original"), ">", 100, "works", &[]),
        (ct("packets", "original"), "<", 2, "partly", &[]),
        (ct("packets", "reply"), ">", 3, "partly", &[]),
        (ct("bytes", "original"), ">", 150, "partly", &further),
        (ct("bytes", "original"), ">", 1_000_000, "works", &[]),
    ] {
        let dir = with_nft(&left, op, &json!(right), &drop);
        says(&dir, "demo/web:http", fate, words).await;
    }
    for (options, fate) in [
        (
            "3 --connbytes-mode packets --connbytes-dir original",
            "partly",
        ),
        (
            "1000000 --connbytes-mode bytes --connbytes-dir both",
            "works",
        ),
        (
            "0:1 --connbytes-mode packets --connbytes-dir original",
            "partly",
        ),
    ] {
        let rule = format!("-A FORWARD -p tcp -m connbytes --connbytes {options} -j DROP");
        says(&with_rule("filter", &rule), "demo/web:http", fate, &[]).await;
    }
}
