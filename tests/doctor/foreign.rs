//! IR16: rules of other software that drop traffic to Services, and rules that only seem to.

use std::path::Path;

use kpx_judge::check::{self, Facts, Outcome};
use kpx_node::evidence::{self, Evidence, Gap, ITEMS, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use serde_json::Value;

use crate::support::{broken, kpx, kpx_on, recordings, root};

fn load(name: &str) -> Evidence {
    evidence::load(&root().join("testdata/nodes").join(name), ITEMS).unwrap()
}

fn foreign_drops(evidence: &Evidence) -> Outcome {
    let node = NodeSnapshot::new(evidence);
    let check = check::named("IR16")[0];
    check::run(check, &Facts::new(&node, None))
}

/// Returns a healthy node with `rule` in a table of nftables, whose base chain has `policy`.
fn with_nft(hook: &str, policy: &str, statements: &str) -> Evidence {
    let mut evidence = load("healthy-firewall");
    let rule = format!(
        r#"{{"nftables":[{{"table":{{"family":"inet","name":"corp","handle":1}}}},
        {{"chain":{{"family":"inet","table":"corp","name":"c","handle":1,"type":"filter","hook":"{hook}","prio":-300,"policy":"{policy}"}}}}
        {statements}]}}"#
    );
    evidence.insert(Item::Nft, Ok(rule));
    evidence
}

#[tokio::test]
async fn rules_that_drop_traffic_to_services_are_named_with_what_deletes_them() {
    let ran = kpx_on("ir16-foreign-drops", &["doctor", "--only", "IR16"]).await;
    insta::assert_snapshot!(ran);
}

#[test]
fn a_firewall_that_accepts_services_is_no_finding() {
    assert_eq!(foreign_drops(&load("healthy-firewall")), Outcome::Pass);
}

#[test]
fn no_other_recorded_node_has_such_a_rule() {
    for name in recordings() {
        if name.starts_with("ir16-") || name.starts_with("scale-") {
            continue;
        }
        let outcome = foreign_drops(&load(&name));
        assert!(!matches!(outcome, Outcome::Fail(_)), "{name}: {outcome:?}");
    }
}

#[test]
fn a_policy_that_drops_traffic_of_pods_is_an_error() {
    let Outcome::Fail(findings) = foreign_drops(&with_nft("forward", "drop", "")) else {
        panic!("pods do not reach Services");
    };
    let [finding] = findings.as_slice() else {
        panic!("one policy is one finding: {findings:?}");
    };
    assert_eq!(finding.subject, "nft inet corp c policy");
    assert_eq!(finding.severity, check::Severity::Error);
    let fix = finding.fix.as_ref().unwrap();
    let command = fix.command();
    let command = command.unwrap();
    for way in ["saddr", "daddr"] {
        let accept = format!("nft insert rule inet corp c ip {way} 10.244.0.0/16 accept");
        assert!(command.contains(&accept), "{command}");
    }
    let text = fix.text();
    assert!(
        text.contains("kpx trace") && text.contains("keep it"),
        "{fix:?}"
    );
}

/// Returns a node with `rule` before all others of a chain of iptables.
fn with_rule(table: &str, chain: &str, rule: &str) -> Evidence {
    let mut evidence = load("seed-iptables");
    let text = evidence.text(Item::Iptables4).unwrap();
    let (before, after) = text.split_once(&format!("*{table}\n")).unwrap();
    let at = after.find("-A ").unwrap();
    let (chains, rules) = after.split_at(after[..at].rfind('\n').unwrap() + 1);
    let changed = format!("{before}*{table}\n{chains}-A {chain} {rule}\n{rules}");
    evidence.insert(Item::Iptables4, Ok(changed));
    evidence
}

#[test]
fn a_rule_for_one_pod_is_found() {
    // No Service has this pod.
    let drop = with_rule("filter", "FORWARD", "-s 10.244.1.77/32 -p tcp -j DROP");
    let Outcome::Fail(findings) = foreign_drops(&drop) else {
        panic!("the pod reaches no Service");
    };
    let [finding] = findings.as_slice() else {
        panic!("one rule is one finding: {findings:?}");
    };
    assert_eq!(finding.severity, check::Severity::Error);
    let fix = finding.fix.as_ref().unwrap().text();
    assert!(fix.contains("--source 10.244.1.77"), "{fix}");
}

#[test]
fn a_rule_that_comes_before_the_translation_is_a_warning() {
    for rule in [
        "-d 10.97.54.248/32 -j ACCEPT",
        "-d 10.97.54.248/32 -p tcp -j DNAT --to-destination 192.0.2.1:8080",
    ] {
        let outcome = foreign_drops(&with_rule("nat", "PREROUTING", rule));
        let Outcome::Fail(findings) = outcome else {
            panic!("{rule}: {outcome:?}");
        };
        let [finding] = findings.as_slice() else {
            panic!("one rule is one finding: {findings:?}");
        };
        assert_eq!(finding.severity, check::Severity::Warning, "{rule}");
        assert!(
            finding
                .message
                .contains("diverts traffic to default/nginx-svc"),
            "{finding:?}"
        );
        let command = finding.fix.as_ref().unwrap().command().unwrap();
        assert!(
            command.contains("-t nat -D PREROUTING -d 10.97.54.248/32"),
            "{command}"
        );
    }
}

#[test]
fn a_rule_for_an_address_without_a_service_is_none() {
    let rule = "-d 10.97.54.249/32 -j DROP";
    assert_eq!(
        foreign_drops(&with_rule("filter", "FORWARD", rule)),
        Outcome::Pass
    );
}

#[test]
fn a_policy_that_drops_only_external_traffic_is_a_note() {
    let accept = r#",{"rule":{"family":"inet","table":"corp","chain":"c","handle":2,"expr":[
        {"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"saddr"}},"right":{"prefix":{"addr":"10.244.0.0","len":16}}}},{"accept":null}]}}"#;
    let Outcome::Fail(findings) = foreign_drops(&with_nft("prerouting", "drop", accept)) else {
        panic!("external clients do not reach NodePorts");
    };
    for finding in findings {
        assert_eq!(finding.severity, check::Severity::Info, "{finding:?}");
    }
}

#[test]
fn a_backend_that_cannot_be_read_is_not_empty() {
    let mut evidence = load("healthy-firewall");
    // The kernel's modules would show that it cannot have such rules.
    evidence.insert(Item::Modules, Err(Gap::NotCollected(Item::Modules)));
    let why = "program `iptables-legacy-save` not found";
    let gap = Gap::Absent(Item::IptablesLegacy4, why.to_owned());
    evidence.insert(Item::IptablesLegacy4, Err(gap));
    let Outcome::Unknown(reason) = foreign_drops(&evidence) else {
        panic!("the rules are unknown");
    };
    let reason = reason.to_string();
    assert!(reason.contains(why), "{reason}");
    let node = NodeSnapshot::new(&evidence);
    let notes = kpx_judge::trace::unread(&node, Family::V4);
    assert!(notes.len() == 1 && notes[0].contains(why), "{notes:?}");
    assert!(kpx_judge::trace::unread(&node, Family::V6).is_empty());
}

/// Returns the JSON of kpx on the recording below `dir`.
async fn kpx_in(dir: &Path, args: &[&str]) -> Value {
    let ran = kpx(&[&["--from", dir.to_str().unwrap()], args].concat()).await;
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran}"))
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_rule_that_breaks_many_services_is_related_to_each_of_them() {
    let drop = |text: &str| {
        let (before, after) = text.split_once("*filter\n").unwrap();
        let rule = "-A FORWARD -d 10.244.0.0/16 -p tcp -j DROP\n-A FORWARD ";
        format!(
            "{before}*filter\n{}",
            after.replacen("-A FORWARD ", rule, 1)
        )
    };
    let dir = broken("full-iptables", &[("node/iptables-save.txt", &drop)]);
    let dir = dir.path();
    let found = kpx_in(dir, &["doctor", "--only", "IR16", "-o", "json"]).await;
    let finding = &found["findings"][0];
    assert_eq!(finding["subject"], "iptables filter FORWARD rule 1");
    assert_eq!(finding["about"]["kind"], "rule");
    assert!(
        finding["message"].as_str().unwrap().contains(" more"),
        "the message does not name all"
    );
    let services = finding["services"].as_array().unwrap();
    assert!(services.len() > 10, "{services:?}");
    let names = |service: &Value| {
        let part = |part: &str| service[part].as_str().unwrap().to_owned();
        format!("{}/{}", part("namespace"), part("name"))
    };
    for service in ["shop/cart", "kube-system/kube-dns", "default/nginx-svc"] {
        assert!(
            services.iter().any(|affected| names(affected) == service),
            "{service}"
        );
        let why = kpx_in(dir, &["why", service, "-o", "json"]).await;
        let shown = kpx_in(dir, &["show", "services", service, "-o", "json"]).await;
        let page = &shown["service"]["findings"]["found"];
        for related in [&why["findings"], page] {
            let related = related.as_array().unwrap();
            let is_it = |of: &&Value| of["id"] == "IR16" && of["byName"] == true;
            assert!(
                related.iter().any(|finding| is_it(&finding)),
                "{service}: {related:?}"
            );
        }
    }
}
