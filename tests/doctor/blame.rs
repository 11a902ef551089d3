//! Causes and owners: one cause for one rule, with all its clients; workloads that a selector is not meant for; and the owners
//! of rules.

use serde_json::{Value, json};

use super::ends::{EDGE, HEALTHY, json, says};
use super::incidents::{answer, copy, write};
use super::pods::in_edge;

const RULES: &str = "node/iptables-save.txt";

/// Puts `rules` before the first rule of FORWARD.
fn forward(dir: &tempfile::TempDir, rules: &str) {
    write(dir, RULES, |text| {
        text.replacen("[0:0] -A FORWARD ", &format!("{rules}[0:0] -A FORWARD "), 1)
    });
}

/// Changes the pods whose label app is `app`.
fn pods(dir: &tempfile::TempDir, app: &str, change: impl Fn(&mut Value)) {
    write(
        dir,
        "cluster/pods.json",
        json(|pods| {
            let all = pods["items"].as_array_mut().unwrap().iter_mut();
            all.filter(|of| of["metadata"]["labels"]["app"] == *app)
                .for_each(change);
        }),
    );
}

#[tokio::test]
async fn one_rule_is_one_cause_with_all_its_clients() {
    let dir = copy(HEALTHY);
    let rule = "[0:0] -A PREROUTING -s 10.244.0.0/16 -d 10.244.0.0/16 -j CT --notrack\n";
    write(&dir, RULES, |text| {
        let (before, raw) = text.split_at(text.find("*raw").unwrap());
        let first = "[0:0] -A ";
        format!(
            "{before}{}",
            raw.replacen(first, &format!("{rule}{first}"), 1)
        )
    });
    let answer = answer(dir.path().to_str().unwrap(), "demo/web:http").await;
    let causes = answer["causes"].as_array().unwrap();
    let untracks: Vec<&Value> = causes
        .iter()
        .filter(|of| of["effect"] == "untracks")
        .collect();
    assert_eq!(untracks.len(), 1, "{causes:?}");
    let from = untracks[0]["from"].as_array().unwrap();
    assert!(from.contains(&json!("pod")) && from.len() > 1, "{from:?}");
}

#[tokio::test]
async fn the_cause_for_pods_comes_first_and_the_others_that_fail_are_named() {
    let dir = copy(HEALTHY);
    let drop = format!("-d {EDGE}/32 -p tcp -m tcp --dport 8080 -j DROP\n");
    write(&dir, RULES, |text| {
        let (before, filter) = text.split_at(text.find("*filter").unwrap());
        let first = "[0:0] -A OUTPUT ";
        let filter = filter.replacen(first, &format!("[0:0] -A OUTPUT {drop}{first}"), 1);
        format!("{before}{filter}")
    });
    let alone = answer(dir.path().to_str().unwrap(), "demo/edge:http").await;
    let sentence = alone["sentence"].as_str().unwrap();
    assert!(sentence.contains("from the host"), "{sentence}");
    assert!(!sentence.contains("another reason"), "{sentence}");
    forward(&dir, &format!("[0:0] -A FORWARD {drop}"));
    let both = answer(dir.path().to_str().unwrap(), "demo/edge:http").await;
    assert_eq!(both["causes"][0]["chain"], "FORWARD", "{both}");
    let words = "connections from the host fail for another reason";
    assert!(both["sentence"].as_str().unwrap().contains(words), "{both}");
}

#[tokio::test]
async fn a_selector_that_matches_another_workload_is_corrected_and_not_the_target_port() {
    let deaf = || {
        let dir = copy(HEALTHY);
        in_edge(&dir, |text| {
            let all = text.lines().filter(|line| !line.contains(":8080 "));
            all.collect::<Vec<_>>().join("\n")
        });
        pods(&dir, "edge", |pod| {
            pod["metadata"]["ownerReferences"][0]["name"] = "agent".into();
        });
        dir
    };
    let target_port = "Correct the Service's targetPort";
    // Pods of Service web have the port, but they have their own Service.
    let dir = deaf();
    says(&dir, "demo/edge:http", "partly", &[target_port]).await;
    // They are called as this Service is.
    pods(&dir, "web", |pod| {
        let hash = pod["metadata"]["labels"]["pod-template-hash"].clone();
        pod["metadata"]["ownerReferences"][0]["name"] =
            format!("edge-{}", hash.as_str().unwrap()).into();
    });
    let words = [
        "selector app=edge matches the pods of DaemonSet agent and not those of Deployment edge",
        "they have app=web",
        "kubectl -n demo edit service edge",
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;
    // The pod declares the port: its program is to listen.
    pods(&dir, "edge", |pod| {
        pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 8080}]);
    });
    says(&dir, "demo/edge:http", "partly", &[target_port]).await;
    // The selector matches both.
    let dir = deaf();
    pods(&dir, "web", |pod| {
        pod["metadata"]["labels"]["app"] = "edge".into();
        pod["metadata"]["labels"]["role"] = "front".into();
    });
    let words = [
        "selector app=edge matches the pods of DaemonSet agent as well as those of Deployment web",
        "Add role=front to the selector",
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;
}

#[tokio::test]
async fn csf_and_calico_are_known_by_their_chains() {
    let dir = copy(HEALTHY);
    write(&dir, RULES, |text| {
        let (before, filter) = text.split_at(text.find("*filter").unwrap());
        let filter = filter
            .replacen(":FORWARD ACCEPT", ":FORWARD DROP", 1)
            .replacen(":OUTPUT ACCEPT", ":OUTPUT DROP\n:LOGDROPOUT - [0:0]", 1)
            .replacen(
                "COMMIT",
                "[0:0] -A OUTPUT -o lo -j ACCEPT\n[0:0] -A OUTPUT -j LOGDROPOUT\n\
                 [0:0] -A LOGDROPOUT -j REJECT --reject-with icmp-port-unreachable\nCOMMIT",
                1,
            );
        format!("{before}{filter}")
    });
    let answer = answer(dir.path().to_str().unwrap(), "demo/edge:http").await;
    for cause in answer["causes"].as_array().unwrap() {
        assert_eq!(cause["owner"], "CSF", "{cause}");
        let fix = cause["fix"]["command"].as_str().unwrap();
        assert!(
            fix.contains("-I FORWARD -d 10.244.0.0/16 -j ACCEPT"),
            "{fix}"
        );
    }
    assert_eq!(answer["causes"][0]["chain"], "FORWARD");

    let dir = copy(HEALTHY);
    let block =
        "-A FORWARD -j cali-cidr-block\n[0:0] -A cali-cidr-block -d 10.244.0.0/16 -j DROP\n";
    forward(&dir, &format!("[0:0] {block}"));
    write(&dir, RULES, |text| {
        text.replacen(
            ":KUBE-FORWARD",
            ":cali-cidr-block - [0:0]\n:KUBE-FORWARD",
            1,
        )
    });
    // Its agent runs: a rule that is left behind has another fix.
    write(
        &dir,
        "cluster/pods.json",
        json(|pods| {
            let all = pods["items"].as_array_mut().unwrap();
            let is_proxy = |of: &&Value| {
                of["metadata"]["labels"]["k8s-app"] == "kube-proxy"
                    && of["spec"]["nodeName"] == "w1"
            };
            let mut agent = all.iter().find(is_proxy).unwrap().clone();
            agent["metadata"]["name"] = "calico-node-x7k2p".into();
            agent["spec"]["containers"][0]["name"] = "calico-node".into();
            agent["spec"]["containers"][0]["image"] = "docker.io/calico/node:v3.30.0".into();
            all.push(agent);
        }),
    );
    let words = [
        "owner of the rule: Calico",
        "bgpconfigurations",
        "serviceClusterIPs",
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;
}

#[tokio::test]
async fn what_a_load_balancer_does_at_its_own_address_is_not_known() {
    let balancer = "10.210.0.201";
    let dir = copy(HEALTHY);
    write(
        &dir,
        "cluster/services.json",
        json(|services| {
            let mut all = services["items"].as_array_mut().unwrap().iter_mut();
            let own = all
                .find(|of| of["metadata"]["name"] == "web-nodeport")
                .unwrap();
            own["spec"]["type"] = "LoadBalancer".into();
            own["status"] =
                json!({"loadBalancer": {"ingress": [{"ip": balancer, "ipMode": "Proxy"}]}});
        }),
    );
    let at = format!("{balancer}:80");
    let unseen = answer(dir.path().to_str().unwrap(), &at).await;
    assert_eq!(unseen["fate"], "unknown", "{unseen}");
    let words = "does not serve (ipMode Proxy)";
    assert!(
        unseen["sentence"].as_str().unwrap().contains(words),
        "{unseen}"
    );
}

#[tokio::test]
async fn an_address_that_nothing_announces_is_noted() {
    let dir = copy(HEALTHY);
    let said = answer(dir.path().to_str().unwrap(), "demo/edge-balanced").await;
    let words = "nothing is known to announce 10.210.0.200 to its network";
    assert!(said["notes"].to_string().contains(words), "{said}");
    write(
        &dir,
        "cluster/daemonsets.json",
        json(|sets| {
            let mut speaker = sets["items"][0].clone();
            speaker["metadata"]["name"] = "metallb-speaker".into();
            sets["items"].as_array_mut().unwrap().push(speaker);
        }),
    );
    let said = answer(dir.path().to_str().unwrap(), "demo/edge-balanced").await;
    assert!(!said["notes"].to_string().contains("announce"), "{said}");
}
