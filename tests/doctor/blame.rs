//! Causes and owners: one cause for one rule, with all its clients; workloads that a selector is not meant for; and the owners
//! of rules.

use serde_json::{Value, json};

use super::ends::{EDGE, HEALTHY, findings, json, says};
use super::incidents::{answer, copy, write};
use super::pods::in_edge;
use crate::support::kpx;

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
            all.filter(|pod| pod["metadata"]["labels"]["app"] == *app)
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
        .filter(|cause| cause["effect"] == "untracks")
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
#[ignore = "takes long: make test-loops"]
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
                .find(|service| service["metadata"]["name"] == "web-nodeport")
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

const FULL: &str = "full-iptables";
const LOG: &str = "kube-proxy/kube-proxy.log";

/// Makes the recording `name` one of kube-proxy 1.22.5.
fn of_old_release(name: &str) -> tempfile::TempDir {
    let dir = copy(name);
    for file in ["kube-proxy/metrics.txt", "cluster/pods.json"] {
        write(&dir, file, |text| text.replace("v1.36.2", "v1.22.5"));
    }
    dir
}

/// Removes the lines of `file` with all of `words`.
fn remove(dir: &tempfile::TempDir, file: &str, words: &[&str]) {
    write(dir, file, |text| {
        let has = |line: &&str| words.iter().all(|word| line.contains(word));
        let kept: Vec<&str> = text.lines().filter(|line| !has(line)).collect();
        kept.join("\n") + "\n"
    });
}

/// Says that the node was recorded two hours after kube-proxy's last sync.
fn two_hours_later(dir: &tempfile::TempDir) {
    write(
        dir,
        "kube-proxy/healthz.json",
        json(|health| health["currentTime"] = "2026-11-20T14:09:51Z".into()),
    );
}

/// The doctor's page, without line breaks.
async fn page(dir: &tempfile::TempDir) -> String {
    let ran = kpx(&["--from", dir.path().to_str().unwrap(), "doctor", "-v"]).await;
    ran.out.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn rules_that_kpx_cannot_compute_are_written_by_a_restart_of_kube_proxy() {
    for (name, file, words) in [
        (FULL, RULES, &["-A KUBE-NODEPORTS", "--dport 30080"][..]),
        (
            "full-ipvs",
            "node/ipvsadm-save.txt",
            &["-t 10.100.1.1:8080 "],
        ),
    ] {
        let dir = of_old_release(name);
        remove(&dir, file, words);
        let service = if name == FULL {
            "edge/web:http"
        } else {
            "shop/cart:http"
        };
        let answer = answer(dir.path().to_str().unwrap(), service)
            .await
            .to_string();
        assert!(answer.contains("delete pod kube-proxy-"), "{answer}");
        assert!(!answer.contains("reconcile"), "{answer}");
        let page = page(&dir).await;
        assert!(!page.contains("kpx reconcile --apply"), "{page}");
        assert!(page.contains("delete pod kube-proxy-"), "{page}");
    }
    // A release whose rules kpx computes.
    let dir = copy(FULL);
    remove(&dir, RULES, &["-A KUBE-NODEPORTS", "--dport 30080"]);
    says(&dir, "edge/web:http", "partly", &["reconcile"]).await;
    // A kube-proxy inside another program is restarted with it.
    let dir = of_old_release(FULL);
    remove(&dir, RULES, &["-A KUBE-NODEPORTS", "--dport 30080"]);
    let k3s = json!({"processes": [{"pid": 812, "name": "k3s-server", "args": ["/usr/local/bin/k3s", "server"], "sameNetwork": true,
        "cgroup": "/system.slice/k3s.service"}]});
    std::fs::write(dir.path().join("node/processes.json"), k3s.to_string()).unwrap();
    says(
        &dir,
        "edge/web:http",
        "partly",
        &["systemctl restart k3s.service"],
    )
    .await;
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_port_that_kube_proxy_cannot_open_is_of_one_service_family_and_address() {
    let message = |network: &str, address: &str, error: &str| {
        format!(
            "E1120 12:09:48.000000     141 proxier.go:1278] \"can't open port, skipping this nodePort\" err=\"listen {network} \
             {address}:30080: bind: {error}\" port=\"\\\"nodePort for edge/web:http\\\" ({address}:30080/{network})\"\n"
        )
    };
    let said = async |message: String, is_missing: bool| {
        let dir = of_old_release(FULL);
        if is_missing {
            remove(&dir, RULES, &["-A KUBE-NODEPORTS", "--dport 30080"]);
        }
        write(&dir, LOG, |text| format!("{text}{message}"));
        let answer = answer(dir.path().to_str().unwrap(), "edge/web:http").await;
        let found = findings(&dir).await;
        let found = found
            .into_iter()
            .find(|finding| finding.0 == "KP21")
            .map(|finding| finding.2);
        (answer["sentence"].as_str().unwrap().to_owned(), found)
    };
    let used = "address already in use";
    let (sentence, found) = said(message("tcp4", "", used), true).await;
    assert!(
        sentence.contains("on which another process listens"),
        "{sentence}"
    );
    assert!(
        found
            .unwrap()
            .contains("port 30080 of edge/web:http (IPv4)")
    );
    // The Service has no IPv6, so that port is not missed; and the rule is missing for another reason.
    let (sentence, found) = said(message("tcp6", "", used), true).await;
    assert!(!sentence.contains("another process"), "{sentence}");
    assert_eq!(found, None);
    // An address of another node.
    let other = message("tcp4", "10.0.9.9", "cannot assign requested address");
    let (sentence, found) = said(other, true).await;
    assert!(!sentence.contains("10.0.9.9"), "{sentence}");
    assert_eq!(found, None);
    // A rule of another Service does not follow from it.
    let dir = of_old_release(FULL);
    remove(&dir, RULES, &["-A KUBE-NODEPORTS", "--dport 30083"]);
    write(&dir, LOG, |text| {
        format!("{text}{}", message("tcp4", "", used))
    });
    let answer = answer(dir.path().to_str().unwrap(), "edge/lb-proxy:http").await;
    assert!(
        !answer["sentence"]
            .as_str()
            .unwrap()
            .contains("another process"),
        "{answer}"
    );
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_kube_proxy_that_receives_no_changes_is_restarted() {
    let dir = copy(FULL);
    two_hours_later(&dir);
    write(
        &dir,
        "cluster/endpointslices.json",
        json(|slices| {
            let mut all = slices["items"].as_array_mut().unwrap().iter_mut();
            let is_it =
                |of: &&mut Value| of["metadata"]["labels"]["kubernetes.io/service-name"] == "cart";
            let own = all.find(is_it).unwrap();
            own["metadata"]["annotations"] =
                json!({"endpoints.kubernetes.io/last-change-trigger-time": "2026-11-20T13:00:00Z"});
            for (at, of) in own["endpoints"]
                .as_array_mut()
                .unwrap()
                .iter_mut()
                .enumerate()
            {
                of["addresses"] = json!([format!("10.244.{}.130", at + 1)]);
            }
        }),
    );
    let words = [
        "kube-proxy has not received the change of 2026-11-20T13:00:00Z",
        "its watch of the API server hangs",
        "delete pod kube-proxy-",
    ];
    says(&dir, "shop/cart:http", "lost", &words).await;
    // A change that it may not have received yet is no sign of that.
    write(
        &dir,
        "kube-proxy/healthz.json",
        json(|health| health["currentTime"] = "2026-11-20T13:00:51Z".into()),
    );
    says(&dir, "shop/cart:http", "lost", &["reconcile"]).await;
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn rules_that_were_flushed_are_one_cause_and_who_flushes_is_sought() {
    let iptables = copy(FULL);
    for file in [RULES, "node/ip6tables-save.txt"] {
        remove(&iptables, file, &["KUBE-"]);
    }
    let nftables = copy("full-nftables");
    write(
        &nftables,
        "node/nft.json",
        json(|rules| {
            let all = rules["nftables"].as_array_mut().unwrap();
            all.retain(|object| !object.to_string().contains("kube-proxy"));
        }),
    );
    for dir in [iptables, nftables] {
        two_hours_later(&dir);
        let words = [
            "something removed those that kube-proxy wrote at",
            "find what removed them",
        ];
        says(&dir, "shop/cart:http", "lost", &words).await;
        let found = findings(&dir).await;
        let errors: Vec<_> = found
            .iter()
            .filter(|finding| finding.1 == "error")
            .collect();
        assert!(
            errors.iter().all(|error| error.0 == "KP01") && !errors.is_empty(),
            "{errors:?}"
        );
    }
    // A service that is known to flush is named.
    let dir = copy(FULL);
    remove(&dir, RULES, &["KUBE-"]);
    let files = "/etc/systemd/system/multi-user.target.wants/nftables.service: enabled\n/etc/nftables.conf: flush ruleset\n";
    std::fs::write(dir.path().join("node/firewalls.txt"), files).unwrap();
    let page = page(&dir).await;
    for word in [
        "a start of the service nftables also flushes kube-proxy's rules",
        "sed -i 's/^flush ruleset/#&/' /etc/nftables.conf",
    ] {
        assert!(page.contains(word), "{page}");
    }
    let firewalld = "/etc/systemd/system/multi-user.target.wants/firewalld.service: enabled\n";
    std::fs::write(dir.path().join("node/firewalls.txt"), firewalld).unwrap();
    let words = [
        "a reload of firewalld also flushes",
        "FlushAllOnReload=no >> /etc/firewalld/firewalld.conf && firewall-cmd --reload",
        "Then `kpx reconcile --apply`",
    ];
    says(&dir, "shop/cart:http", "lost", &words).await;
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_rule_that_stops_replies_is_one_finding_with_all_services() {
    for name in [FULL, "dual-iptables", "dual-nftables"] {
        let dir = copy(name);
        write(
            &dir,
            "node/nft.json",
            json(|rules| {
                let chain = json!({"chain": {"family": "inet", "table": "fw", "name": "forward", "handle": 1, "type": "filter",
                    "hook": "forward", "prio": 0, "policy": "accept"}});
                let drops = json!({"rule": {"family": "inet", "table": "fw", "chain": "forward", "handle": 2, "expr": [
                    {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": "established"}}, {"drop": null}]}});
                let table = json!({"table": {"family": "inet", "name": "fw", "handle": 900}});
                let all = rules["nftables"].as_array_mut().unwrap();
                all.extend([table, chain, drops]);
            }),
        );
        let found = findings(&dir).await;
        let errors: Vec<_> = found
            .iter()
            .filter(|finding| finding.1 == "error")
            .collect();
        assert!(
            errors.len() == 1 && errors[0].0 == "SY16",
            "{name}: {errors:?}"
        );
        assert!(errors[0].2.contains(" more)"), "{name}: {errors:?}");
    }
}

#[tokio::test]
async fn the_address_of_a_load_balancer_that_kube_proxy_leaves_to_it_has_a_service() {
    for name in [FULL, "full-ipvs", "full-nftables"] {
        let from = format!("testdata/nodes/{name}");
        let ran = kpx(&["--from", &from, "trace", "203.0.113.14:80"]).await;
        let said = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            said.contains(
                "the load balancer of edge/lb-proxy, which kube-proxy leaves to it (ipMode Proxy)"
            ),
            "{ran}"
        );
        assert!(!said.contains("no object of the cluster has"), "{ran}");
    }
}

#[tokio::test]
async fn a_report_on_two_recordings_is_not_about_this_node() {
    let (from, to) = (
        "testdata/nodes/full-iptables",
        "testdata/nodes/ir03-missing-rule",
    );
    let ran = kpx(&["diff", from, to]).await;
    let first = ran.out.lines().next().unwrap();
    assert!(first.starts_with("node1, recording"), "{ran}");
}

#[tokio::test]
async fn a_port_of_another_node_is_named_and_left_to_it() {
    let dir = copy(HEALTHY);
    let from = dir.path().to_str().unwrap();
    let answer = answer(from, "10.210.0.17:30080").await;
    assert_eq!(answer["fate"], "unknown", "{answer:#}");
    let sentence = answer["sentence"].as_str().unwrap();
    let words = "10.210.0.17:30080 is the NodePort of demo/web-nodeport on w2";
    assert!(sentence.contains(words), "{sentence}");
    assert_eq!(answer["fix"]["machine"], "w2", "{answer:#}");
    pods(&dir, "web", |pod| {
        let port = json!([{"containerPort": 8080, "hostPort": 9999}]);
        pod["spec"]["containers"][0]["ports"] = port;
        pod["spec"]["nodeName"] = json!("w2");
    });
    let answer = super::incidents::answer(from, "10.210.0.17:9999").await;
    let sentence = answer["sentence"].as_str().unwrap();
    assert!(
        sentence.contains("is a hostPort of pod demo/web-"),
        "{sentence}"
    );
    let answer = super::incidents::answer(from, "10.210.0.17:9998").await;
    let sentence = answer["sentence"].as_str().unwrap();
    assert!(sentence.contains("is an address of w2"), "{sentence}");
}

#[tokio::test]
async fn packets_that_node_local_dns_answers_are_not_lost() {
    let from = format!("testdata/cases/{HEALTHY}");
    let ran = kpx(&["--from", &from, "diff", "--packets", "-o", "json"]).await;
    assert!(!ran.out.contains("kube-dns"), "{ran}");
}

#[tokio::test]
async fn an_endpoint_is_the_same_by_its_address_and_by_its_service() {
    let from = ["--from", "testdata/nodes/full-iptables"];
    let [why, trace] = ["why", "trace"].map(|of| [&from[..], &[of, "10.0.2.15:9100"]].concat());
    let (why, trace) = (kpx(&why).await, kpx(&trace).await);
    assert_eq!((why.code, trace.code), (0, 0), "{why} {trace}");
}
