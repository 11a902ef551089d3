//! `kpx diff --packets` beyond the destination: sources, links, the time to live, and session affinity.

use kpx_judge::proof::difference::Harm;
use kpx_judge::proof::{Packets, of_node};
use kpx_node::backend::Mode;
use kpx_node::evidence::{Evidence, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use serde_json::{Value, json};

use super::{confirmed, evidence, mode};

/// Puts `rules` before all other rules of `table`.
fn first_in(evidence: &mut Evidence, table: &str, rules: &str) {
    let text = evidence.text(Item::Iptables4).unwrap();
    let (before, rest) = if let Some((before, rest)) = text.split_once(&format!("*{table}\n")) {
        (before.to_owned(), rest.to_owned())
    } else {
        let chains = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
        let heads = chains.map(|chain| format!(":{chain} ACCEPT [0:0]\n"));
        (text.to_owned(), format!("{}COMMIT\n", heads.concat()))
    };
    let ends = ["\n[", "\nCOMMIT"].map(|end| rest.find(end));
    let at = ends.into_iter().flatten().min().unwrap() + 1;
    let (heads, others) = rest.split_at(at);
    let text = format!("{before}*{table}\n{heads}{rules}\n{others}");
    evidence.insert(Item::Iptables4, Ok(text));
}

/// Adds a chain of another program to the tables of nftables.
fn with_chain(evidence: &mut Evidence, kind: &str, priority: i32, rule: &Value) {
    let text = evidence.text(Item::Nft).unwrap();
    let mut tables: Value = serde_json::from_str(text).unwrap();
    let all = tables["nftables"].as_array_mut().unwrap();
    let (family, table, chain) = ("ip", "corp", "post");
    all.push(json!({"table": {"family": family, "name": table, "handle": 900}}));
    all.push(
        json!({"chain": {"family": family, "table": table, "name": chain, "handle": 1, "type": kind,
        "hook": "postrouting", "prio": priority, "policy": "accept"}}),
    );
    let pods = json!({"prefix": {"addr": "10.244.0.0", "len": 16}});
    let daddr = json!({"payload": {"protocol": family, "field": "daddr"}});
    let expr = json!([{"match": {"op": "==", "left": daddr, "right": pods}}, rule]);
    all.push(json!({"rule": {"family": family, "table": table, "chain": chain, "handle": 2, "expr": expr}}));
    evidence.insert(Item::Nft, Ok(tables.to_string()));
}

fn packets(evidence: &Evidence, families: &[Family]) -> Packets {
    let node = NodeSnapshot::new(evidence);
    let packets = of_node(&node, mode(&node), families).unwrap();
    confirmed("stages", &packets);
    packets
}

/// Returns the harms that rules of other software do to `target`, and the texts of the first.
fn foreign(packets: &Packets, target: &str) -> (Vec<Harm>, [String; 2]) {
    assert!(
        packets.differences.is_empty(),
        "{:?}",
        packets.differences.len()
    );
    let found = packets.foreign.iter().map(|proved| &proved.difference);
    let found: Vec<_> = found
        .filter(|difference| difference.target.to_string() == target)
        .collect();
    let first = found
        .first()
        .unwrap_or_else(|| panic!("nothing about {target}"));
    let [is, should] = &first.fates;
    let texts = [is.text_beside(should), should.text_beside(is)];
    (
        found.iter().map(|difference| difference.harm).collect(),
        texts,
    )
}

/// Rules of other software in iptables: the table, the rule, the harm, and what it does to packets of a Service, and keeps from
/// them.
const RULES: &[(&str, &str, Harm, [&str; 2])] = &[
    (
        "nat",
        "-A POSTROUTING -d 10.244.0.0/16 -j SNAT --to-source 192.0.2.1",
        Harm::Source,
        ["masqueraded as 192.0.2.1", ""],
    ),
    (
        "nat",
        "-A POSTROUTING -d 10.244.0.0/16 -j MASQUERADE",
        Harm::Source,
        ["masqueraded as 10.0.2.15", ""],
    ),
    // An endpoint's connections to itself are no longer masqueraded.
    (
        "nat",
        "-A POSTROUTING -d 10.244.0.0/16 -j ACCEPT",
        Harm::Source,
        ["", "masqueraded as 10.0.2.15"],
    ),
    (
        "mangle",
        "-A PREROUTING -d 10.96.0.0/12 -j TTL --ttl-set 1",
        Harm::Lost,
        ["dropped", "to "],
    ),
    (
        "mangle",
        "-A POSTROUTING -d 10.244.0.0/16 -j TTL --ttl-set 1",
        Harm::Lost,
        ["with a TTL that ends at the next node", "to "],
    ),
    (
        "mangle",
        "-A PREROUTING -d 10.96.0.0/12 -j MARK --set-xmark 0x4000/0x4000",
        Harm::Source,
        ["masqueraded as 10.0.2.15", ""],
    ),
    (
        "mangle",
        "-A POSTROUTING -j MARK --set-xmark 0x0/0x4000",
        Harm::Source,
        ["", "masqueraded as 10.0.2.15"],
    ),
];

#[test]
#[ignore = "takes long: make test-loops"]
fn rules_of_others_that_change_packets_of_services_are_differences() {
    for (table, rule, harm, [does, keeps]) in RULES {
        let mut evidence = evidence("full-iptables");
        first_in(&mut evidence, table, rule);
        let packets = packets(&evidence, &[Family::V4]);
        let (harms, [is, should]) = foreign(&packets, "default/nginx-svc, cluster IP");
        assert_eq!(harms, [*harm], "{rule}");
        assert!(
            is.contains(does) && should.contains(keeps),
            "{rule}: {is} / {should}"
        );
        assert_ne!(is, should, "{rule}");
    }
}

#[test]
#[ignore = "takes long: make test-loops"]
fn tables_of_others_that_change_packets_of_services_are_differences() {
    let mark = json!({"mangle": {"key": {"meta": {"key": "mark"}}, "value": 0}});
    let ttl =
        json!({"mangle": {"key": {"payload": {"protocol": "ip", "field": "ttl"}}, "value": 1}});
    let cases = [
        (
            "nat",
            90,
            json!({"snat": {"addr": "192.0.2.1"}}),
            Harm::Source,
            "masqueraded as 192.0.2.1",
        ),
        (
            "nat",
            100,
            json!({"masquerade": null}),
            Harm::Source,
            "masqueraded as 10.0.2.15",
        ),
        (
            "filter",
            0,
            mark,
            Harm::Source,
            "to 10.244.1.50:8080 50.0%;",
        ),
        (
            "filter",
            0,
            ttl,
            Harm::Lost,
            "with a TTL that ends at the next node",
        ),
    ];
    for (kind, priority, rule, harm, text) in cases {
        let mut evidence = evidence("full-nftables");
        with_chain(&mut evidence, kind, priority, &rule);
        let packets = packets(&evidence, &[Family::V4]);
        let (harms, [is, should]) = foreign(&packets, "edge/web:http, cluster IP");
        assert_eq!(harms, [harm], "{rule}");
        assert!(is.contains(text) && is != should, "{rule}: {is} / {should}");
    }
    // A rule that accepts in a chain of its own does not keep kube-proxy's chain from masquerading.
    let mut evidence = evidence("full-nftables");
    with_chain(&mut evidence, "nat", 90, &json!({"accept": null}));
    assert!(packets(&evidence, &[Family::V4]).foreign.is_empty());
}

/// Returns the differences of session affinity.
fn unbound(packets: &Packets) -> Vec<(String, [String; 2])> {
    assert!(packets.foreign.is_empty());
    let found = packets
        .differences
        .iter()
        .map(|difference| &difference.difference);
    let found = found.map(|difference| {
        assert_eq!(difference.harm, Harm::Affinity);
        let [is, should] = &difference.fates;
        (
            difference.target.to_string(),
            [is.text_beside(should), should.text_beside(is)],
        )
    });
    found.collect()
}

#[test]
fn a_rule_of_session_affinity_that_is_gone_is_a_difference() {
    let text = "to 10.244.1.30:8080 50.0%; to 10.244.2.30:8080 50.0%, sticky".to_owned();
    let expected =
        "to 10.244.1.30:8080 50.0%, sticky; to 10.244.2.30:8080 50.0%, sticky".to_owned();
    let is_one = |found: &[(String, [String; 2])]| {
        assert_eq!(
            found,
            [(
                "shop/cart:http, cluster IP".to_owned(),
                [text.clone(), expected.clone()]
            )]
        );
    };
    let mut changed = evidence("full-iptables");
    let rules = changed.text(Item::Iptables4).unwrap().to_owned();
    let lines = rules
        .lines()
        .filter(|line| !(line.contains("--rcheck") && line.contains("10.244.1.30:8080")));
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len() + 1, rules.lines().count());
    changed.insert(Item::Iptables4, Ok(lines.join("\n") + "\n"));
    is_one(&unbound(&packets(&changed, &[Family::V4])));

    let mut changed = evidence("full-nftables");
    let mut tables: Value = serde_json::from_str(changed.text(Item::Nft).unwrap()).unwrap();
    let all = tables["nftables"].as_array_mut().unwrap();
    let before = all.len();
    all.retain(|object| {
        let looks_up = |expr: &Value| {
            let set = expr["match"]["right"].as_str().unwrap_or_default();
            set.starts_with("@affinity-") && set.ends_with("10.244.1.30/8080")
        };
        !object["rule"]["expr"]
            .as_array()
            .is_some_and(|all| all.iter().any(looks_up))
    });
    assert_eq!(all.len() + 1, before);
    changed.insert(Item::Nft, Ok(tables.to_string()));
    is_one(&unbound(&packets(&changed, &[Family::V4])));
    assert_eq!(mode(&NodeSnapshot::new(&changed)), Mode::Nftables);
}
