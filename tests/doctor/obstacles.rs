//! SY16: settings, routes, links and filters that stop connections.

use std::collections::BTreeSet;

use kpx_judge::check::{Finding, Fix, Outcome, Subject};
use kpx_judge::why::{Asked, Look};
use kpx_node::evidence::{Evidence, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use serde_json::{Value, json};

use super::case::{edit, findings, load, replace, run};
use crate::support::{Change, HEALTHY, broken, kpx, kpx_on};

const NODE: &str = "sy16-obstacles";

/// Returns the recording without its obstacles.
fn clean() -> Evidence {
    let mut evidence = load(NODE);
    replace(
        &mut evidence,
        Item::Sysctl,
        "cni0.forwarding = 0",
        "cni0.forwarding = 1",
    );
    evidence.insert(Item::XfrmPolicies, Ok(String::new()));
    evidence
}

fn found(evidence: &Evidence) -> Vec<Finding> {
    findings(run(evidence, "SY16", None))
}

fn route(evidence: &mut Evidence, route: Value) {
    edit(evidence, Item::Routes, |all| {
        all.as_array_mut().unwrap().push(route);
    });
}

/// A routing policy rule for packets of pods on the other node, and a route of its table that leads away from pods here.
fn from_there() -> Value {
    json!({"priority": 100, "src": "10.244.2.0", "srclen": 24, "table": "200"})
}

fn elsewhere() -> Value {
    json!({"dst": "10.244.1.254", "gateway": "10.0.2.2", "dev": "eth0", "table": "200", "flags": []})
}

fn policy_rules(evidence: &mut Evidence, more: &Value) {
    let of =
        |priority: u32, table: &str| json!({"priority": priority, "src": "all", "table": table});
    let all = json!([
        of(0, "local"),
        more,
        of(32766, "main"),
        of(32767, "default")
    ]);
    evidence.insert(Item::Rules, Ok(all.to_string()));
}

/// Adds `rule` of iptables to `table`: before its first rule of FORWARD, if it has one.
fn add_rule(evidence: &mut Evidence, table: &str, rule: &str) {
    let rules = evidence.text(Item::Iptables4).unwrap();
    let at = rules.find(&format!("*{table}")).unwrap();
    let end = at + rules[at..].find("COMMIT").unwrap();
    let first = rules[at..end].find("[0:0] -A FORWARD");
    let at = first.map_or(end, |first| at + first);
    let rules = format!("{}{rule}\n{}", &rules[..at], &rules[at..]);
    evidence.insert(Item::Iptables4, Ok(rules));
}

/// Adds a port of the bridge of pods, isolated from the others.
fn isolated_ports(evidence: &mut Evidence) {
    edit(evidence, Item::Links, |links| {
        for at in [8, 9] {
            links.as_array_mut().unwrap().push(json!({
                "ifindex": at, "ifname": format!("veth{at}"), "master": "cni0", "flags": ["UP"],
                "linkinfo": {"info_kind": "veth", "info_slave_kind": "bridge",
                    "info_slave_data": {"isolated": true, "hairpin": true}},
            }));
        }
    });
}

/// A rule that stops pods of another node, and none of this one.
const FROM_OTHER_NODE: &str = "-A FORWARD -s 10.244.2.0/24 -d 10.244.1.14/32 -j DROP";

/// A fault of a healthy node, and the finding: its object and its command.
type Case = (&'static str, fn(&mut Evidence), Subject, &'static str);

fn cases() -> Vec<Case> {
    let address = |text: &str| Subject::from(text.parse::<std::net::IpAddr>().unwrap());
    vec![
        (
            "forwarding of a link",
            |evidence| {
                replace(
                    evidence,
                    Item::Sysctl,
                    "cni0.forwarding = 1",
                    "cni0.forwarding = 0",
                );
            },
            Subject::sysctl("net.ipv4.conf.cni0.forwarding"),
            "sysctl -w net.ipv4.conf.cni0.forwarding=1",
        ),
        (
            "a strict reverse path filter",
            |evidence| {
                replace(
                    evidence,
                    Item::Sysctl,
                    "cni0.rp_filter = 0",
                    "cni0.rp_filter = 1",
                );
                policy_rules(evidence, &from_there());
                route(evidence, elsewhere());
            },
            Subject::sysctl("net.ipv4.conf.cni0.rp_filter"),
            "sysctl -w net.ipv4.conf.cni0.rp_filter=2",
        ),
        (
            "isolated ports",
            isolated_ports,
            Subject::link("cni0"),
            "for port in /sys/class/net/cni0/brif/*/isolated; do echo 0 >$port; done",
        ),
        (
            "a policy of IPsec",
            |evidence| {
                let policy =
                    "src 0.0.0.0/0 dst 10.244.2.0/24 \n\tdir out action block priority 0 \n";
                evidence.insert(Item::XfrmPolicies, Ok(policy.to_owned()));
            },
            Subject::XfrmPolicy {
                policy: "src 0.0.0.0/0 dst 10.244.2.0/24 dir out".to_owned(),
            },
            "ip xfrm policy delete src 0.0.0.0/0 dst 10.244.2.0/24 dir out",
        ),
        (
            "a filter of traffic control",
            |evidence| {
                let filters = json!({"qdiscs": [], "filters": [{"dev": "eth0", "hook": "egress", "filters": [
                    {"protocol": "all", "pref": 3, "kind": "matchall", "chain": 0},
                    {"protocol": "all", "pref": 3, "kind": "matchall", "chain": 0,
                     "options": {"actions": [{"kind": "gact", "control_action": {"type": "drop"}}]}}]}]});
                evidence.insert(Item::Tc, Ok(filters.to_string()));
            },
            Subject::link("eth0"),
            "tc filter del dev eth0 egress protocol all pref 3",
        ),
        (
            "a neighbour that does not answer",
            |evidence| {
                let entry = json!([{"dst": "10.0.2.16", "dev": "eth0", "state": ["FAILED"]}]);
                evidence.insert(Item::NeighbourTable, Ok(entry.to_string()));
            },
            address("10.0.2.16"),
            "ping -c 1 -I eth0 10.0.2.16",
        ),
        (
            "an endpoint's address on the node",
            |evidence| {
                edit(evidence, Item::Addresses, |all| {
                    let address = json!({"family": "inet", "local": "10.244.2.3", "prefixlen": 32, "scope": "global"});
                    let links = all.as_array_mut().unwrap();
                    let eth0 = links
                        .iter_mut()
                        .find(|link| link["ifname"] == "eth0")
                        .unwrap();
                    eth0["addr_info"].as_array_mut().unwrap().push(address);
                });
                route(
                    evidence,
                    json!({"type": "local", "dst": "10.244.2.3", "dev": "eth0", "table": "local", "flags": []}),
                );
            },
            address("10.244.2.3"),
            "ip addr del 10.244.2.3 dev eth0",
        ),
        (
            "a TTL",
            |evidence| {
                add_rule(
                    evidence,
                    "mangle",
                    "[0:0] -A POSTROUTING -d 10.244.2.0/24 -j TTL --ttl-set 1",
                );
            },
            Subject::Kernel,
            "iptables -t mangle -D POSTROUTING -d 10.244.2.0/24 -j TTL --ttl-set 1",
        ),
        (
            "a rule that stops pods of another node alone",
            |evidence| add_rule(evidence, "filter", &format!("[0:0] {FROM_OTHER_NODE}")),
            Subject::Kernel,
            "iptables -t filter -D FORWARD -s 10.244.2.0/24 -d 10.244.1.14/32 -j DROP",
        ),
        (
            "a source of no node",
            |evidence| {
                let rules = evidence.text(Item::Iptables4).unwrap();
                let jump = "[0:0] -A POSTROUTING";
                let nat = rules.find("*nat").unwrap();
                let at = nat + rules[nat..].find("-A POSTROUTING").unwrap();
                let at = rules[..at].rfind('\n').unwrap() + 1;
                let new = format!("{jump} -d 10.244.2.0/24 -j SNAT --to-source 192.0.2.1\n");
                let rules = format!("{}{new}{}", &rules[..at], &rules[at..]);
                evidence.insert(Item::Iptables4, Ok(rules));
            },
            Subject::Kernel,
            "iptables -t nat -R POSTROUTING 1 -d 10.244.2.0/24 -j MASQUERADE",
        ),
        (
            "a chain of a link",
            |of| {
                edit(of, Item::Nft, |rules| {
                    let of = |more: Value| {
                        let mut of = json!({"family": "netdev", "table": "guard"});
                        let fields = more.as_object().unwrap().clone();
                        of.as_object_mut().unwrap().extend(fields);
                        of
                    };
                    let is_there = json!({"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}},
                        "right": "10.244.2.3"}});
                    rules["nftables"].as_array_mut().unwrap().extend([
                        json!({"table": {"family": "netdev", "name": "guard", "handle": 1}}),
                        json!({"chain": of(json!({"name": "out", "handle": 2, "dev": "eth0", "type": "filter",
                            "hook": "egress", "prio": 0, "policy": "accept"}))}),
                        json!({"rule": of(json!({"chain": "out", "handle": 3, "expr": [is_there, {"drop": null}]}))}),
                    ]);
                });
            },
            Subject::Kernel,
            "nft delete rule netdev guard out handle 3",
        ),
        (
            "a blackhole",
            |evidence| {
                route(
                    evidence,
                    json!({"type": "blackhole", "dst": "10.244.2.0/25", "flags": []}),
                );
            },
            Subject::Route {
                route: "blackhole 10.244.2.0/25".to_owned(),
            },
            "ip route del blackhole 10.244.2.0/25",
        ),
        (
            "a routing policy rule",
            |evidence| {
                policy_rules(
                    evidence,
                    &json!({"priority": 100, "src": "10.244.1.0", "srclen": 24, "action": "prohibit"}),
                );
            },
            Subject::RoutingRule {
                priority: 100,
                rule: "from 10.244.1.0/24 prohibit".to_owned(),
            },
            "ip rule del from 10.244.1.0/24 prohibit priority 100",
        ),
    ]
}

#[tokio::test(flavor = "current_thread")]
async fn obstacles_are_reported_with_the_services_that_they_break() {
    let args = ["doctor", "--only", "SY16", "--verbose"];
    let ran = kpx_on(NODE, &args).await;
    insta::assert_snapshot!(ran.to_string());
}

#[test]
#[ignore = "takes long: make test-loops"]
fn each_obstacle_is_one_finding_with_the_fix_of_why() {
    assert_eq!(found(&clean()), []);
    for (name, change, about, command) in cases() {
        let mut evidence = clean();
        change(&mut evidence);
        let all = found(&evidence);
        let of: Vec<_> = all
            .iter()
            .filter(|finding| finding.about == about || matches!(&finding.about, Subject::Rule(_)))
            .collect();
        assert_eq!((all.len(), of.len()), (1, 1), "{name}: {all:#?}");
        let fix = of[0].fix.as_ref().unwrap();
        assert_eq!(fix.command().as_deref(), Some(command), "{name}");
        assert!(!of[0].services.is_empty(), "{name}");
        // `why` says the same of each Service.
        let node = NodeSnapshot::new(&evidence);
        let look = Look::new(&node, &Family::BOTH, &[]).unwrap();
        let services: BTreeSet<String> = of[0]
            .services
            .iter()
            .map(|service| service.whole().to_string())
            .collect();
        for service in services {
            let answer = look.why(&Asked::parse(&service).unwrap(), None).unwrap();
            let fixes = answer.causes.iter().filter_map(|cause| cause.fix.as_ref());
            let mut commands = fixes.filter_map(Fix::command);
            assert!(
                commands.any(|advice| advice == command),
                "{name}: {service}: {:#?}",
                answer.causes
            );
        }
    }
}

#[test]
fn rules_of_ip_that_stop_usual_clients_are_left_to_their_own_check() {
    let mut evidence = clean();
    add_rule(&mut evidence, "filter", &format!("[0:0] {FROM_OTHER_NODE}"));
    let rule = "[0:0] -A FORWARD -d 10.244.1.16/32 -j DROP";
    add_rule(&mut evidence, "filter", rule);
    let all = found(&evidence);
    let rules: Vec<_> = all.iter().map(|finding| finding.subject.as_str()).collect();
    assert_eq!(rules.len(), 1, "{all:#?}");
    let ir16 = findings(run(&evidence, "IR16", None));
    assert!(!ir16.is_empty());
    let fix = |of: &Finding| of.fix.as_ref().unwrap().command().unwrap();
    assert!(fix(&all[0]).contains("-s 10.244.2.0/24"), "{all:#?}");
    assert!(
        ir16.iter().all(|ir16| fix(ir16).contains("10.244.1.16")),
        "{ir16:#?}"
    );
}

/// Returns the checks with findings, each with the number of those that follow from it.
async fn reported(changes: &[(&str, Change<'_>)], ids: &str) -> Vec<(String, usize)> {
    let dir = broken(NODE, changes);
    let from = dir.path().to_str().unwrap();
    let args = ["doctor", "--from", from, "--only", ids, "-o", "json"];
    let report: Value = serde_json::from_str(&kpx(&args).await.out).unwrap();
    let findings = report["findings"].as_array().unwrap().iter();
    let of = findings.map(|finding| {
        let below = finding["consequences"].as_array().map_or(0, Vec::len);
        (finding["id"].as_str().unwrap().to_owned(), below)
    });
    of.collect()
}

#[tokio::test(flavor = "current_thread")]
async fn what_another_check_names_is_reported_once() {
    // The node forwards nothing: that each link does not is a part of it.
    let off = |text: &str| {
        let text = text.replace("ip_forward = 1", "ip_forward = 0");
        text.replace("all.forwarding = 1", "all.forwarding = 0")
    };
    let off = ("node/sysctl.txt", &off as Change<'_>);
    assert_eq!(
        reported(&[off], "SY01,SY16").await,
        [("SY01".to_owned(), 1)]
    );

    // The filter of a tunnel is a risk, until it stops connections.
    let tunnel = |text: &str| text.replace("cni0", "vxlan0");
    let strict = |text: &str| {
        let text = tunnel(text).replace("vxlan0.forwarding = 0", "vxlan0.forwarding = 1");
        text.replace("vxlan0.rp_filter = 0", "vxlan0.rp_filter = 1")
    };
    let changes: [(&str, Change<'_>); 4] = [
        ("node/sysctl.txt", &strict),
        ("node/ip-link.json", &tunnel),
        ("node/ip-addr.json", &tunnel),
        ("node/ip-route.json", &tunnel),
    ];
    assert_eq!(
        reported(&changes, "SY09,SY16").await,
        [("SY09".to_owned(), 0)]
    );
    // Another table leads replies elsewhere.
    let routes = |text: &str| {
        let mut all: Value = serde_json::from_str(&tunnel(text)).unwrap();
        all.as_array_mut().unwrap().push(elsewhere());
        all.to_string()
    };
    let mut changes = changes;
    changes[3] = ("node/ip-route.json", &routes);
    let rules = |text: &str| {
        let mut evidence = Evidence::default();
        policy_rules(&mut evidence, &from_there());
        assert!(text.contains("local"));
        evidence.text(Item::Rules).unwrap().to_owned()
    };
    let changes = [&changes[..], &[("node/ip-rule.json", &rules)]].concat();
    assert_eq!(
        reported(&changes, "SY09,SY16").await,
        [("SY16".to_owned(), 1)]
    );
}

#[test]
#[ignore = "takes long: make test-loops"]
fn doubts_and_healthy_nodes_have_no_finding() {
    for name in HEALTHY.iter().filter(|name| !name.starts_with("scale-")) {
        let outcome = run(&load(name), "SY16", None);
        assert!(!matches!(outcome, Outcome::Fail(_)), "{name}: {outcome:#?}");
    }
    let mut evidence = clean();
    let marked = "src 0.0.0.0/0 dst 10.244.2.0/24 \n\tdir out action block priority 0 \n\tmark 0x100/0x100 \n";
    evidence.insert(Item::XfrmPolicies, Ok(marked.to_owned()));
    assert_eq!(found(&evidence), []);
}
