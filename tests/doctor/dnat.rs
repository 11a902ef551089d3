//! IR18: DNAT rules of other software that lead to cluster IPs.

use kpx_judge::check::{Finding, Outcome};
use kpx_node::backend::Mode;
use kpx_node::evidence::{Evidence, Gap, Item};
use serde_json::{Value, json};

use super::case::{append, edit, finding, load, replace, run};
use crate::support::kpx_on;

const NODE: &str = "ir18-dnat-to-cluster-ip";

/// The rule of the recording.
const RULE: &str = "-A PREROUTING -d 100.125.134.8/32 -j DNAT --to-destination 10.96.23.134\n";

/// Returns the recording without the rule.
fn clean() -> Evidence {
    let mut evidence = load(NODE);
    replace(&mut evidence, Item::IptablesLegacy4, RULE, "");
    evidence
}

/// Puts `rule` in the nat table in use.
fn with_rule(rule: &str) -> Evidence {
    let mut evidence = clean();
    let end = ":KUBE-MARK-MASQ - [0:0]\n";
    let rules = evidence.text(Item::Iptables4).unwrap();
    let at = rules.find("*nat").unwrap();
    let at = at + rules[at..].find("COMMIT").unwrap();
    assert!(rules.contains(end));
    let rules = format!("{}{rule}\n{}", &rules[..at], &rules[at..]);
    evidence.insert(Item::Iptables4, Ok(rules));
    evidence
}

/// Returns a node with a table of nftables with a base chain at `hook` and a rule of `statements`.
fn with_nft(hook: &str, statements: &Value) -> Evidence {
    let mut evidence = clean();
    edit(&mut evidence, Item::Nft, |rules| {
        let all = rules["nftables"].as_array_mut().unwrap();
        let chain = |name: &str| json!({"family": "ip", "table": "vpn", "name": name, "handle": 1});
        let mut base = chain("pre");
        for (key, value) in [("type", "nat"), ("hook", hook), ("policy", "accept")] {
            base[key] = json!(value);
        }
        base["prio"] = json!(-100);
        let map = json!({"family": "ip", "table": "vpn", "name": "services", "handle": 4, "type": "inet_service",
            "map": "ipv4_addr", "elem": [[443, "10.96.23.134"]]});
        let jump = json!([{"jump": {"target": "fwd"}}]);
        let rule = |chain: &str, expr: &Value| json!({"rule": {"family": "ip", "table": "vpn", "chain": chain, "handle": 7, "expr": expr}});
        all.extend([
            json!({"table": {"family": "ip", "name": "vpn", "handle": 1}}),
            json!({ "map": map }),
            json!({ "chain": base }),
            json!({"chain": chain("fwd")}),
            rule("pre", &jump),
            rule("fwd", statements),
        ]);
    });
    evidence
}

fn found(evidence: &Evidence) -> Finding {
    finding(run(evidence, "IR18", None))
}

#[track_caller]
fn passes(evidence: &Evidence) {
    assert_eq!(run(evidence, "IR18", None), Outcome::Pass);
}

#[tokio::test]
async fn the_rule_and_the_service_are_named() {
    insta::assert_snapshot!(kpx_on(NODE, &["doctor", "--only", "IR18"]).await);
}

#[test]
fn a_rule_of_the_backend_in_use_is_found_too() {
    passes(&clean());
    let rule = "-A PREROUTING -d 203.0.113.7/32 -p tcp -m tcp --dport 443 -j DNAT --to-destination 10.96.23.134:443";
    let of = found(&with_rule(rule));
    assert_eq!(of.subject, "iptables-nft nat PREROUTING rule 2");
    assert_eq!(of.services.len(), 1);
    // In a chain that packets reach, whatever its name.
    let rule = "-A OUTPUT -j VPN\n-A VPN -j DNAT --to-destination 10.96.0.1-10.96.0.20";
    let mut evidence = with_rule(rule);
    replace(
        &mut evidence,
        Item::Iptables4,
        ":KUBE-MARK-MASQ - [0:0]\n",
        ":KUBE-MARK-MASQ - [0:0]\n:VPN - [0:0]\n",
    );
    let of = found(&evidence);
    assert_eq!(of.services.len(), 2, "{of:?}");
    replace(&mut evidence, Item::Iptables4, "-A OUTPUT -j VPN\n", "");
    passes(&evidence);
}

#[test]
fn a_rule_of_nftables_is_found_with_its_map() {
    let to = |addr: &Value| json!([{"dnat": {"family": "ip", "addr": addr, "port": 443}}]);
    let direct = with_nft("prerouting", &to(&json!("10.96.23.134")));
    assert_eq!(found(&direct).subject, "nft ip vpn fwd rule 1");
    let key = json!({"payload": {"protocol": "tcp", "field": "dport"}});
    let by_map = to(&json!({"map": {"key": key, "data": "@services"}}));
    assert_eq!(found(&with_nft("output", &by_map)).services.len(), 1);
    let prefix = to(&json!({"prefix": {"addr": "10.96.0.0", "len": 12}}));
    assert_eq!(found(&with_nft("prerouting", &prefix)).services.len(), 3);
    // An endpoint needs no further translation.
    passes(&with_nft("prerouting", &to(&json!("10.244.1.40"))));
    // A rule that it cannot read is not judged.
    let outcome = run(&with_nft("prerouting", &to(&key)), "IR18", None);
    assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
}

/// IPVS does not use the nat table.
#[test]
fn ipvs_serves_such_packets_if_it_has_the_virtual_server() {
    let evidence = load(NODE);
    assert_eq!(run(&evidence, "IR18", Some(Mode::Ipvs)), Outcome::Pass);
    for mode in [Mode::Iptables, Mode::Nftables] {
        let of = finding(run(&evidence, "IR18", Some(mode)));
        assert!(of.message.contains(&format!("in mode {mode}")), "{of:?}");
    }
    let mut ipvs = evidence;
    ipvs.insert(Item::ProxyMode, Ok("ipvs".to_owned()));
    let mut without = ipvs.clone();
    assert!(matches!(run(&ipvs, "IR18", None), Outcome::Unknown(_)));
    let server = |port| Ok(format!("-A -t 10.96.23.134:{port} -s rr\n"));
    ipvs.insert(Item::IpvsSave, server(443));
    edit(&mut ipvs, Item::Addresses, |links| {
        let address =
            json!({"family": "inet", "local": "10.96.23.134", "prefixlen": 32, "scope": "global"});
        let link = json!({"ifname": "kube-ipvs0", "flags": [], "addr_info": [address]});
        links.as_array_mut().unwrap().push(link);
    });
    passes(&ipvs);
    without.insert(Item::IpvsSave, server(80));
    assert!(found(&without).message.contains("no virtual server"));
}

/// A cache of the node has the cluster IP of DNS on a link of its own.
#[test]
fn a_program_of_the_node_may_have_the_address() {
    let mut evidence = load(NODE);
    edit(&mut evidence, Item::Addresses, |links| {
        let address =
            json!({"family": "inet", "local": "10.96.23.134", "prefixlen": 32, "scope": "global"});
        let link = json!({"ifname": "nodelocaldns", "flags": ["UP"], "addr_info": [address]});
        links.as_array_mut().unwrap().push(link);
    });
    passes(&evidence);
}

#[test]
fn rules_that_were_not_read_may_have_one() {
    let mut evidence = clean();
    evidence.insert(
        Item::IptablesLegacy4,
        Err(Gap::NotCollected(Item::IptablesLegacy4)),
    );
    let outcome = run(&evidence, "IR18", None);
    assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
    // A target that the node's iptables cannot print.
    let outcome = run(
        &with_rule("-A PREROUTING -p tcp -j DNAT [unsupported revision]"),
        "IR18",
        None,
    );
    assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
    // A finding stays one.
    let mut evidence = load(NODE);
    append(&mut evidence, Item::Sysctl, "");
    evidence.insert(Item::Nft, Err(Gap::NotCollected(Item::Nft)));
    assert!(!found(&evidence).evidence.is_empty());
}
