//! Incidents around the pods of a node whose networks are read: who has an address, and which way leads to it.

use serde_json::{Value, json};

use super::incidents::{answer, copy, write};
use crate::support::kpx;

const HEALTHY: &str = "pods-with-networks";

fn json(change: impl FnOnce(&mut Value)) -> impl FnOnce(&str) -> String {
    |text| {
        let mut value = serde_json::from_str(text).unwrap();
        change(&mut value);
        value.to_string()
    }
}

/// The fate of `service` in the bundle, its first cause, and the fix.
async fn why(dir: &tempfile::TempDir, service: &str) -> (String, String, String) {
    let answer = answer(dir.path().to_str().unwrap(), service).await;
    let text = |of: &Value| of.as_str().unwrap_or_default().to_owned();
    let cause = &answer["causes"][0];
    (
        text(&answer["fate"]),
        text(&answer["sentence"]),
        cause["fix"].to_string(),
    )
}

#[tokio::test]
async fn node_local_dns_and_pods_of_the_host_network_work() {
    let dir = copy(HEALTHY);
    for service in ["kube-system/kube-dns", "demo/ingress"] {
        let (fate, sentence, _) = why(&dir, service).await;
        assert_eq!(fate, "works", "{sentence}");
    }
    let ran = kpx(&[
        "--from",
        dir.path().to_str().unwrap(),
        "doctor",
        "-o",
        "json",
    ])
    .await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    for finding in report["findings"].as_array().unwrap() {
        assert_ne!(finding["severity"], "error", "{finding}");
        assert_ne!(finding["id"], "IR16", "{finding}");
    }
}

#[tokio::test]
async fn a_program_of_the_host_network_that_listens_on_loopback_alone_is_named() {
    let dir = copy(HEALTHY);
    write(&dir, "node/ss.txt", |text| {
        text.replace("*:10256", "127.0.0.1:10256")
    });
    let (fate, sentence, fix) = why(&dir, "demo/ingress").await;
    assert_eq!(fate, "partly", "{sentence}");
    let words = "nothing in the pod listens at 10.210.0.16:10256: it listens at 127.0.0.1:10256";
    assert!(sentence.contains(words), "{sentence}");
    assert!(fix.contains("listen at all addresses"), "{fix}");
}

#[tokio::test]
async fn a_socket_of_the_host_network_takes_what_comes_in_by_its_link() {
    for (device, open, closed) in [("lo", "host", "pod"), ("cni0", "pod", "host")] {
        let dir = copy(HEALTHY);
        write(&dir, "node/ss.txt", |text| {
            text.replace("*:10256", &format!("*%{device}:10256"))
        });
        let answer = answer(dir.path().to_str().unwrap(), "demo/ingress").await;
        let sentence = answer["sentence"].to_string();
        let words = format!("the socket at 10.210.0.16:10256 is bound to link {device}");
        assert!(sentence.contains(&words), "{sentence}");
        let paths = answer["paths"].as_array().unwrap();
        let is_open = |client: &str| {
            let mut of_client = paths.iter().filter(|path| path["client"] == client);
            of_client.all(|path| path["fate"] == "works")
        };
        assert!(is_open(open) && !is_open(closed), "{answer}");
    }
}

#[tokio::test]
async fn queries_to_a_node_local_dns_that_does_not_run_are_refused() {
    let dir = copy(HEALTHY);
    write(&dir, "node/ss.txt", |text| {
        let others = text.lines().filter(|line| !line.contains("node-cache"));
        others.fold(String::new(), |all, line| all + line + "\n")
    });
    let (fate, sentence, fix) = why(&dir, "kube-system/kube-dns").await;
    assert_eq!(fate, "refused", "{sentence}");
    assert!(
        sentence.contains("nothing listens on 10.96.0.10:53"),
        "{sentence}"
    );
    assert!(fix.contains("Start NodeLocal DNS"), "{fix}");
}

/// Gives the second pod of `demo` with the label `app` the address of the first endpoint of demo/web here.
fn share(phase: &'static str) -> impl FnOnce(&str) -> String {
    json(move |pods| {
        let mut all = pods["items"].as_array_mut().unwrap().iter_mut();
        let edge = all.find(|pod| {
            let name = pod["metadata"]["name"].as_str().unwrap();
            name.starts_with("edge-") && pod["spec"]["nodeName"] == "w1"
        });
        let status = &mut edge.unwrap()["status"];
        status["phase"] = phase.into();
        status["podIP"] = "10.244.1.3".into();
        status["podIPs"] = json!([{"ip": "10.244.1.3"}]);
    })
}

#[tokio::test]
async fn an_address_that_two_pods_have_misleads() {
    let dir = copy(HEALTHY);
    write(&dir, "cluster/pods.json", share("Running"));
    let (fate, sentence, fix) = why(&dir, "demo/web").await;
    assert_eq!(fate, "partly", "{sentence}");
    assert!(
        sentence.contains("both have the address 10.244.1.3"),
        "{sentence}"
    );
    assert!(fix.contains("delete pod"), "{fix}");
    // The address of a pod that has ended is free.
    let dir = copy(HEALTHY);
    write(&dir, "cluster/pods.json", share("Succeeded"));
    let (fate, sentence, _) = why(&dir, "demo/web").await;
    assert_eq!(fate, "works", "{sentence}");
}

/// Leaves the pod of demo/edge here as one that has ended with `phase`, and gives its address to a pod of `app`.
fn hand_over(phase: &'static str, app: &'static str) -> impl FnOnce(&str) -> String {
    json(move |pods| {
        let all = pods["items"].as_array_mut().unwrap();
        let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().to_owned();
        let edge = all
            .iter_mut()
            .find(|pod| name(pod) == "edge-z8g9h")
            .unwrap();
        let mut new = edge.clone();
        edge["status"]["phase"] = phase.into();
        edge["status"]["conditions"] = json!([]);
        new["metadata"]["name"] = "job-x7k2p".into();
        new["metadata"]["labels"] = json!({"app": app});
        all.push(new);
    })
}

#[tokio::test]
async fn the_pod_that_lives_is_meant_where_one_that_has_ended_had_its_address() {
    for phase in ["Failed", "Succeeded"] {
        let dir = copy(HEALTHY);
        write(&dir, "cluster/pods.json", hand_over(phase, "batch"));
        let (fate, sentence, fix) = why(&dir, "demo/edge:http").await;
        assert_eq!(fate, "partly", "{sentence}");
        let words = format!(
            "has ended (phase {phase}), but its EndpointSlice still says that it is ready: pod demo/job-x7k2p, which the Service does not select, \
             has the address now"
        );
        assert!(sentence.contains(&words), "{sentence}");
        assert!(fix.contains("kube-controller-manager"), "{fix}");
        // One that the Service selects serves it.
        let dir = copy(HEALTHY);
        write(&dir, "cluster/pods.json", hand_over(phase, "edge"));
        let (fate, sentence, _) = why(&dir, "demo/edge:http").await;
        assert_eq!(fate, "works", "{sentence}");
    }
}

/// Leads all packets to a VPN's link.
fn lead_away(dir: &tempfile::TempDir, kind: &str) {
    let link = json!({
        "ifindex": 20, "ifname": "vpn0", "link_type": "none", "operstate": "UNKNOWN", "mtu": 1280,
        "flags": ["POINTOPOINT", "NOARP", "UP", "LOWER_UP"], "linkinfo": {"info_kind": kind},
    });
    write(
        dir,
        "node/ip-link.json",
        json(|all| all.as_array_mut().unwrap().push(link)),
    );
    write(dir, "node/ip-rule.json", |text| {
        let rule = r#"{"priority":5270,"src":"all","table":"52"},"#;
        text.replacen(
            r#"{"priority":32766"#,
            &format!(r#"{rule}{{"priority":32766"#),
            1,
        )
    });
    let route = json!({"dst": "default", "dev": "vpn0", "table": "52", "flags": []});
    write(
        dir,
        "node/ip-route.json",
        json(|all| all.as_array_mut().unwrap().push(route)),
    );
}

#[tokio::test]
async fn a_pod_that_a_routing_policy_rule_leads_away_from_is_lost() {
    for kind in ["tun", "wireguard", "xfrm"] {
        let dir = copy(HEALTHY);
        lead_away(&dir, kind);
        let (fate, sentence, fix) = why(&dir, "demo/web").await;
        assert_ne!(fate, "works", "{sentence}");
        assert!(sentence.contains("by vpn0 leads elsewhere"), "{sentence}");
        let command = "ip rule add from all to 10.244.0.0/16 lookup main priority 5269";
        assert!(fix.contains(command), "{fix}");
    }
}
