//! Rules that are meant, but for packets of the cluster: they are restricted, and stay. Nodes on which kube-proxy does not run, as objects
//! alone show, and fields that it refuses.

use serde_json::Value;

use super::ends::{HEALTHY, json, says};
use super::incidents::{answer, copy, write};
use crate::support::kpx;

const RULES: &str = "node/iptables-save.txt";

/// A node with `rule` at the head of its chain in `table`.
pub(super) fn with_rule(table: &str, rule: &str) -> tempfile::TempDir {
    let dir = copy(HEALTHY);
    write(&dir, RULES, |text| {
        let at = text.find(&format!("*{table}\n")).unwrap();
        let chain = rule.split(' ').nth(1).unwrap();
        let commit = text[at..].find("COMMIT").unwrap();
        let first = text[at..at + commit].find(&format!("-A {chain} "));
        let line = at
            + first.map_or(commit, |first| {
                text[at..at + first].rfind('\n').unwrap() + 1
            });
        format!("{}[0:0] {rule}\n{}", &text[..line], &text[line..])
    });
    dir
}

async fn fixes(dir: &tempfile::TempDir, service: &str) -> String {
    let answer = answer(dir.path().to_str().unwrap(), service).await;
    answer["causes"].to_string()
}

#[tokio::test]
async fn a_range_of_sources_that_is_dropped_spares_the_networks_of_the_cluster() {
    let filter =
        |range: &str| with_rule("raw", &format!("-A PREROUTING -i eth0 -s {range} -j DROP"));
    let dir = filter("10.0.0.0/8");
    says(&dir, "demo/edge:http", "partly", &["in table raw drops"]).await;
    let fixes = fixes(&dir, "demo/edge:http").await;
    for range in ["10.210.0.0/24", "10.244.0.0/16"] {
        let spare = format!("iptables -t raw -I PREROUTING 1 -i eth0 -s {range} -j ACCEPT");
        assert!(fixes.contains(&spare), "{fixes}");
    }
    assert!(!fixes.contains("-t raw -D"), "{fixes}");
    says(&filter("192.168.0.0/16"), "demo/edge:http", "works", &[]).await;
}

#[tokio::test]
async fn a_rule_for_a_port_of_the_node_is_restricted_to_its_addresses() {
    let rule = |matched: &str| {
        let rule =
            format!("-A PREROUTING -p tcp -m tcp --dport 80 {matched}-j REDIRECT --to-ports 10250");
        with_rule("nat", &rule)
    };
    let fixes = fixes(&rule(""), "demo/web:http").await;
    let restricted = "iptables -t nat -R PREROUTING 1 -p tcp -m tcp --dport 80 -m addrtype --dst-type LOCAL -j REDIRECT --to-ports 10250";
    assert!(fixes.contains(restricted), "{fixes}");
    let local = rule("-m addrtype --dst-type LOCAL ");
    says(&local, "demo/web:http", "works", &[]).await;
}

#[tokio::test]
async fn what_is_redirected_where_no_service_is_asked_for_ends_as_it_is_meant() {
    let to = |port: u16| {
        let rule = format!(
            "-A PREROUTING -d 10.210.0.201/32 -p tcp -m tcp --dport 6443 -j REDIRECT --to-ports {port}"
        );
        with_rule("nat", &rule)
    };
    let source = ["--source", "10.210.0.99"];
    for (port, fate) in [(10250, "works"), (10999, "refused")] {
        let dir = to(port);
        let path = dir.path().to_str().unwrap();
        let args = ["--from", path, "why", "10.210.0.201:6443", "-o", "json"];
        let ran = kpx(&[&args[..], &source].concat()).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(report["fate"], fate, "{ran}");
    }
}

#[tokio::test]
async fn a_limit_of_no_connection_is_exceeded_by_each() {
    for (most, fate) in [(0, "partly"), (100, "works")] {
        let limit = format!(
            "-A FORWARD -p tcp -m connlimit --connlimit-above {most} --connlimit-mask 32 --connlimit-saddr -j DROP"
        );
        says(&with_rule("filter", &limit), "demo/edge:http", fate, &[]).await;
    }
}

/// The findings of `id`, each with its message and its fix.
async fn found(dir: &tempfile::TempDir, id: &str) -> Vec<String> {
    let path = dir.path().to_str().unwrap();
    let ran = kpx(&["--from", path, "doctor", "--only", id, "-o", "json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let all = report["findings"].as_array().unwrap().iter();
    all.map(ToString::to_string).collect()
}

#[tokio::test]
async fn objects_alone_show_a_node_without_kube_proxy() {
    let without = |pods: fn(&Value) -> bool| {
        let dir = copy(HEALTHY);
        for file in ["node/processes.json", "kube-proxy/healthz.json"] {
            std::fs::remove_file(dir.path().join(file)).unwrap();
        }
        let kept = |list: &mut Value| {
            list["items"]
                .as_array_mut()
                .unwrap()
                .retain(|pod| !pods(pod));
        };
        write(&dir, "cluster/pods.json", json(kept));
        dir
    };
    let is_proxy = |pod: &Value| pod["spec"]["containers"][0]["name"] == "kube-proxy";
    let here = |pod: &Value| {
        pod["spec"]["nodeName"] == "w1" && pod["spec"]["containers"][0]["name"] == "kube-proxy"
    };
    let absent = found(&without(here), "KP05").await;
    assert!(
        absent[0].contains("no pod of it is here, as there is on other nodes"),
        "{absent:?}"
    );
    assert!(found(&without(|_| false), "KP05").await.is_empty());
    // Pods of kube-proxy may not be listed at all.
    assert!(found(&without(is_proxy), "KP05").await.is_empty());
}

#[tokio::test]
async fn a_field_that_kube_proxy_refuses_is_named() {
    let dir = copy(HEALTHY);
    write(&dir, "kube-proxy/config.conf", |text| {
        assert!(text.contains("  masqueradeBit: null"), "{text}");
        text.replace("  masqueradeBit: null", "  masqueradeBit: 40")
    });
    let refused = found(&dir, "KP22").await;
    let words = "the next time it starts, since it refuses iptables.masqueradeBit 40: it must be a number from 0 to 31";
    assert!(refused[0].contains(words), "{refused:?}");
    assert!(
        refused[0].contains("\"severity\":\"warning\""),
        "{refused:?}"
    );
    assert!(found(&copy(HEALTHY), "KP22").await.is_empty());
}
