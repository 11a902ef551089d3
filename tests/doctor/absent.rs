//! Incidents of programs that should run and do not: pods of a Service, kube-proxy, the agent of a network plugin; and of rules that hold
//! packets back on purpose.

use serde_json::{Value, json};

use super::ends::{EDGE, HEALTHY, PODS as POD_NETWORKS, findings, json, own_node, says};
use super::incidents::{copy, write};
use crate::support::{kpx, without};

const PODS: &str = "cluster/pods.json";
const SLICES: &str = "cluster/endpointslices.json";
const RULES: &str = "node/iptables-save.txt";
const PROCESSES: &str = "node/processes.json";

/// Changes each pod of Service web.
fn web_pods(dir: &tempfile::TempDir, change: impl Fn(&mut Value)) {
    write(
        dir,
        PODS,
        json(|pods| {
            let all = pods["items"].as_array_mut().unwrap().iter_mut();
            all.filter(|pod| pod["metadata"]["labels"]["app"] == "web")
                .for_each(change);
        }),
    );
}

/// Changes the slice of Service web.
fn web_slice(dir: &tempfile::TempDir, change: impl FnOnce(&mut Value)) {
    write(
        dir,
        SLICES,
        json(|slices| {
            let mut all = slices["items"].as_array_mut().unwrap().iter_mut();
            let own = all
                .find(|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] == "web");
            change(own.unwrap());
        }),
    );
}

/// Leaves of the rules of Service web what kube-proxy writes without endpoints.
fn reject_web(dir: &tempfile::TempDir) {
    let reject = "[0:0] -A KUBE-SERVICES -d 10.101.213.102/32 -p tcp -m comment --comment \"demo/web:http has no endpoints\" \
        -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable";
    write(dir, RULES, |text| {
        let text = without(text, "demo/web:http");
        let first = "[0:0] -A KUBE-FORWARD ";
        text.replacen(first, &format!("{reject}\n{first}"), 1)
    });
}

/// Lets this readiness probe of the pods of Service web fail.
fn unready_web(dir: &tempfile::TempDir, probe: &Value) {
    reject_web(dir);
    web_slice(dir, |slice| {
        for endpoint in slice["endpoints"].as_array_mut().unwrap() {
            endpoint["conditions"] =
                json!({"ready": false, "serving": false, "terminating": false});
        }
    });
    web_pods(dir, |pod| {
        pod["spec"]["containers"][0]["readinessProbe"] = probe.clone();
        pod["status"]["containerStatuses"][0]["ready"] = false.into();
        for condition in pod["status"]["conditions"].as_array_mut().unwrap() {
            if condition["type"] == "Ready" {
                condition["status"] = "False".into();
            }
        }
    });
}

/// Puts rules before the first one of FORWARD.
fn before_forward(dir: &tempfile::TempDir, rules: &str) {
    write(dir, RULES, |text| {
        text.replacen("[0:0] -A FORWARD ", &format!("{rules}[0:0] -A FORWARD "), 1)
    });
}

/// The events of the pod do not tell of a rule that stops the probe.
#[tokio::test]
async fn the_doctor_asks_why_of_a_service_whose_probes_fail() {
    let dir = copy(HEALTHY);
    unready_web(&dir, &json!({"tcpSocket": {"port": 8080}}));
    let ran = kpx(&["--from", dir.path().to_str().unwrap(), "doctor"]).await;
    assert!(ran.out.contains("why demo/web --all-nodes"), "{}", ran.out);
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_service_without_endpoints_says_why_its_pods_take_no_connections() {
    let pending = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient cpu."}]});
    let crashing = json!({"phase": "Running", "containerStatuses": [{"name": "app", "ready": false, "restartCount": 7,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]});
    for (status, words) in [
        (
            pending,
            [
                "no node runs it: 0/3 nodes are available",
                "describe pod web-",
            ],
        ),
        (
            crashing,
            ["exit status 137 (OOMKilled)", "-c app --previous"],
        ),
    ] {
        let dir = copy(HEALTHY);
        web_slice(&dir, |slice| slice["endpoints"] = json!([]));
        web_pods(&dir, |pod| pod["status"] = status.clone());
        reject_web(&dir);
        says(&dir, "demo/web:http", "refused", &words).await;
        let found = findings(&dir).await;
        assert!(found.iter().any(|finding| finding.0 == "AP01"), "{found:?}");
    }
    // Not ready: a probe asks a port at which nothing listens.
    let dir = copy(HEALTHY);
    unready_web(&dir, &json!({"httpGet": {"port": 9200, "path": "/"}}));
    let words = ["asks port 9200 for /, and nothing in the pod listens there (as in 1 more)"];
    says(&dir, "demo/web:http", "refused", &words).await;
    // A rule drops the probes of the kubelet, all or some.
    for odds in ["", "-m statistic --mode random --probability 0.5 "] {
        let dir = copy(HEALTHY);
        unready_web(&dir, &json!({"tcpSocket": {"port": 8080}}));
        write(&dir, RULES, |text| {
            let rule = format!("[0:0] -A OUTPUT -p tcp -m tcp --dport 8080 {odds}-j DROP\n");
            let start = text.find("*filter").unwrap();
            let end = start + text[start..].find("COMMIT").unwrap();
            format!("{}{rule}{}", &text[..end], &text[end..])
        });
        let words = [
            "asks port 8080; rule",
            "of chain OUTPUT in table filter drops the packets",
            "iptables -t filter -D OUTPUT",
        ];
        says(&dir, "demo/web:http", "refused", &words).await;
    }
    // A label too many.
    let dir = copy(HEALTHY);
    reject_web(&dir);
    web_slice(&dir, |slice| slice["endpoints"] = json!([]));
    write(&dir, "cluster/services.json", |text| {
        let own = "\"selector\": {\"app\": \"web\"}";
        let (from, to) = if text.contains(own) {
            (own, "\"selector\": {\"app\": \"web\", \"tier\": \"front\"}")
        } else {
            (
                "\"selector\":{\"app\":\"web\"}",
                "\"selector\":{\"app\":\"web\",\"tier\":\"front\"}",
            )
        };
        text.replace(from, to)
    });
    let words = ["without tier=front it would match demo/web-", "edit"];
    says(&dir, "demo/web:http", "refused", &words).await;
    // The pods in another namespace.
    let dir = copy(HEALTHY);
    reject_web(&dir);
    web_slice(&dir, |slice| slice["endpoints"] = json!([]));
    web_pods(&dir, |pod| pod["metadata"]["namespace"] = "front".into());
    let words = [
        "in namespace front has these labels",
        "Create the Service in namespace front",
    ];
    says(&dir, "demo/web:http", "refused", &words).await;
}

#[tokio::test]
async fn a_label_keeps_kube_proxy_from_endpoint_slices() {
    for label in [
        "service.kubernetes.io/service-proxy-name",
        "service.kubernetes.io/headless",
    ] {
        let dir = copy(HEALTHY);
        web_slice(&dir, |slice| {
            slice["metadata"]["labels"][label] = "cilium".into();
        });
        // The label, and the command that removes it.
        let words = [label, "label endpointslice web-bfvpk"];
        let found = findings(&dir).await;
        let named: Vec<_> = found
            .iter()
            .filter(|finding| finding.0 == "AP01" && finding.2.contains(label))
            .collect();
        assert_eq!(named.len(), 1, "{found:?}");
        reject_web(&dir);
        let path = dir.path().to_str().unwrap();
        let answer = super::incidents::answer(path, "demo/web:http")
            .await
            .to_string();
        assert!(words.iter().all(|word| answer.contains(word)), "{answer}");
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn the_reason_why_kube_proxy_does_not_run_is_the_cause() {
    let dir = copy(HEALTHY);
    write(&dir, PROCESSES, |_| json!({"processes": []}).to_string());
    let without_proxy = |pods: &mut Value| {
        let all = pods["items"].as_array_mut().unwrap();
        all.retain(|pod| pod["metadata"]["name"] != "kube-proxy-lg2lh");
    };
    write(&dir, PODS, json(without_proxy));
    own_node(&dir, |own| {
        own["spec"]["taints"] =
            json!([{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]);
    });
    write(
        &dir,
        "cluster/daemonsets.json",
        json(|sets| sets["items"][0]["spec"]["template"]["spec"]["tolerations"] = json!([])),
    );
    write(&dir, RULES, |text| without(text, "KUBE-S"));
    for file in [
        "healthz.json",
        "proxy-mode.txt",
        "metrics.txt",
        "configz.json",
    ] {
        std::fs::remove_file(dir.path().join("kube-proxy").join(file)).unwrap();
    }
    let found = findings(&dir).await;
    let first = &found[0];
    assert_eq!(
        (first.0.as_str(), first.1.as_str()),
        ("KP05", "error"),
        "{found:?}"
    );
    assert!(
        first
            .2
            .contains("does not tolerate taint dedicated=gpu:NoSchedule"),
        "{}",
        first.2
    );
    let words = [
        "does not tolerate taint dedicated=gpu:NoSchedule",
        "daemonset",
    ];
    says(&dir, "demo/web:http", "lost", &words).await;

    let twice = copy(HEALTHY);
    write(
        &twice,
        PROCESSES,
        json(|processes| {
            let mut other = processes["processes"][0].clone();
            other["pid"] = 4242.into();
            other["cgroup"] = "/system.slice/kube-proxy.service".into();
            processes["processes"].as_array_mut().unwrap().push(other);
        }),
    );
    let found = findings(&twice).await;
    let is_two = |of: &(String, String, String)| {
        of.0 == "KP17" && of.2.starts_with("2 processes of kube-proxy")
    };
    assert!(found.iter().any(is_two), "{found:?}");
}

#[tokio::test]
async fn a_lock_that_another_program_holds_is_the_cause_of_missing_rules() {
    let line = "E1128 11:32:30.367127       1 proxier.go:1579] \"Failed to execute iptables-restore\" err=<\n\
        \texit status 4: Another app is currently holding the xtables lock; still 4s 0us time ahead to have a chance to grab the lock...\n \
        > ipFamily=\"IPv4\"\n";
    let dir = copy(HEALTHY);
    write(&dir, "kube-proxy/kube-proxy.log", |text| {
        format!("{}\n{}", text.trim_end(), line.repeat(3))
    });
    write(&dir, "kube-proxy/healthz.json", |_| {
        json!({"healthy": false, "status": {"IPv4": {"healthy": false, "lastUpdated": "2026-11-28T04:08:40Z"}}}).to_string()
    });
    std::fs::remove_file(dir.path().join("kube-proxy/metrics.txt")).unwrap();
    write(&dir, RULES, |text| {
        text.replace(
            "--to-destination 10.244.1.5:8080",
            "--to-destination 10.244.1.99:8080",
        )
    });
    let words = [
        "another program holds the lock of iptables; therefore",
        "lslocks",
        "last sync was at 2026-11-28T04:08:40Z",
    ];
    says(&dir, "demo/web:http", "partly", &words).await;
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn policies_are_meant_and_what_a_plugin_left_behind_is_not() {
    let chain = "KUBE-POD-FW-4LQ6GMH7TAX3VOQF";
    let with = |running: bool| {
        let dir = copy(HEALTHY);
        write(&dir, RULES, |text| {
            text.replacen(
                ":KUBE-FORWARD - [0:0]\n",
                &format!(":KUBE-FORWARD - [0:0]\n:{chain} - [0:0]\n:KUBE-ROUTER-FORWARD - [0:0]\n"),
                1,
            )
        });
        before_forward(
            &dir,
            &format!(
                "[0:0] -A FORWARD -j KUBE-ROUTER-FORWARD\n[0:0] -A KUBE-ROUTER-FORWARD -s 10.244.1.2/32 -j {chain}\n\
                 [0:0] -A {chain} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
                 [0:0] -A {chain} -m mark ! --mark 0x10000/0x10000 -j REJECT --reject-with icmp-port-unreachable\n"
            ),
        );
        if running {
            let router = json!({"pid": 99, "name": "kube-router", "args": ["kube-router", "--run-firewall=true", "--run-service-proxy=false"], "sameNetwork": true});
            write(
                &dir,
                PROCESSES,
                json(|processes| processes["processes"].as_array_mut().unwrap().push(router)),
            );
        }
        dir
    };
    let dir = with(true);
    says(&dir, "demo/edge:http", "works", &[]).await;
    let path = dir.path().to_str().unwrap();
    let ran = kpx(&["--from", path, "why", "demo/edge:http"]).await;
    let text = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
    let words = "what NetworkPolicies forbid pod 10.244.1.2 (--source 10.244.1.2 asks for it)";
    assert!(text.contains(words), "{text}");
    let asked = [
        "--from",
        path,
        "why",
        "demo/edge:http",
        "--source",
        "demo/client-vfxvm",
    ];
    let ran = kpx(&asked).await;
    for words in [
        "does not work on w1 from pods",
        "no rule of one lets these packets pass",
        "get networkpolicies",
    ] {
        let text = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(words), "{ran}");
    }
    let errors = |found: &[(String, String, String)]| {
        found.iter().find(|finding| finding.1 == "error").cloned()
    };
    assert_eq!(errors(&findings(&dir).await), None);

    let dir = with(false);
    let words = ["left the rule behind", &format!("-D {chain}")];
    says(&dir, "demo/edge:http", "partly", &words).await;
    let found = findings(&dir).await;
    assert!(errors(&found).is_some(), "{found:?}");
}

#[tokio::test]
async fn a_list_of_those_who_may_is_kept() {
    let dir = copy(HEALTHY);
    before_forward(
        &dir,
        "[0:0] -A FORWARD -s 10.9.0.0/16 -p tcp -m tcp --dport 8080 -j ACCEPT\n[0:0] -A FORWARD -p tcp -m tcp --dport 8080 -j DROP\n",
    );
    let words = [
        "keep it",
        "-I FORWARD 2 -s 10.244.0.0/16 -p tcp -m tcp --dport 8080 -j ACCEPT",
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;

    let dir = copy(HEALTHY);
    write(&dir, "node/ipset-save.txt", |text| {
        format!(
            "create trusted hash:net family inet hashsize 1024 maxelem 65536\nadd trusted 10.9.0.0/16\n{text}"
        )
    });
    before_forward(
        &dir,
        "[0:0] -A FORWARD -m set ! --match-set trusted src -j DROP\n",
    );
    let words = ["add the address to the set", "ipset list trusted"];
    says(&dir, "demo/edge:http", "partly", &words).await;

    // A ban of one pod.
    let dir = copy(HEALTHY);
    write(&dir, "node/ipset-save.txt", |text| {
        format!(
            "create banned hash:ip family inet hashsize 1024 maxelem 65536\nadd banned 10.244.1.2\n{text}"
        )
    });
    before_forward(
        &dir,
        "[0:0] -A FORWARD -m set --match-set banned src -j DROP\n",
    );
    let words = ["from single pods", "take the address out of it"];
    says(&dir, "demo/edge:http", "partly", &words).await;

    // Docker leaves this chain to the administrator.
    let dir = copy(HEALTHY);
    write(&dir, RULES, |text| {
        text.replacen(
            ":KUBE-FORWARD - [0:0]\n",
            ":KUBE-FORWARD - [0:0]\n:DOCKER-USER - [0:0]\n",
            1,
        )
    });
    before_forward(
        &dir,
        "[0:0] -A FORWARD -j DOCKER-USER\n[0:0] -A DOCKER-USER -d 10.244.1.4/32 -j DROP\n",
    );
    let words = ["owner of the rule: the administrator", "-D DOCKER-USER"];
    assert_eq!(EDGE, "10.244.1.4");
    says(&dir, "demo/edge:http", "partly", &words).await;
}

/// A rule may end packets, or send them to another table.
#[tokio::test]
async fn without_the_routing_policy_rules_nothing_is_certain() {
    let dir = copy(HEALTHY);
    std::fs::remove_file(dir.path().join("node/ip-rule.json")).unwrap();
    let words = ["the routing policy rules are unknown: node/ip-rule.json was not collected"];
    says(&dir, "demo/web:http", "unknown", &words).await;
}

/// An error message of a tool is no list without entries.
#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn an_error_in_place_of_a_list_is_unknown() {
    let dir = copy(HEALTHY);
    let before = findings(&dir).await;
    write(&dir, "node/ss.txt", |_| {
        "bash: ss: command not found\n".to_owned()
    });
    let denied = "conntrack v1.4.7 (conntrack-tools): Operation failed: sorry, you must be root\n";
    write(&dir, "node/conntrack.txt", |_| denied.to_owned());
    assert_eq!(findings(&dir).await, before);
    let run = ["--from", dir.path().to_str().unwrap(), "doctor", "-v"];
    let ran = kpx(&run).await;
    for gap in ["\"bash:\" is no protocol that ss lists", "line 1: "] {
        assert!(ran.out.contains(gap), "{gap}: {ran}");
    }
}

/// Part of the pods' networks shows nothing of the pods that are missing there.
#[tokio::test]
async fn a_list_of_networks_that_was_cut_loses_no_address() {
    let dir = copy(HEALTHY);
    write(&dir, POD_NETWORKS, |text| {
        let last = text.rfind("\n=== ").unwrap();
        text[..=last].to_owned()
    });
    let lost = findings(&dir).await;
    let lost = lost
        .iter()
        .find(|(.., message)| message.contains("lost its address"));
    assert_eq!(lost, None);
}

/// Adds a chain to the table filter, and rules before the first of FORWARD.
fn with_chain(chain: Option<&str>, rules: &str) -> tempfile::TempDir {
    let dir = copy(HEALTHY);
    before_forward(&dir, rules);
    if let Some(chain) = chain {
        write(&dir, RULES, |text| {
            let own = ":KUBE-FORWARD - [0:0]\n";
            text.replacen(own, &format!("{own}:{chain} - [0:0]\n"), 1)
        });
    }
    dir
}

fn runs(dir: &tempfile::TempDir, name: &str) {
    let process = json!({"pid": 99, "name": name, "args": [name], "sameNetwork": true});
    write(
        dir,
        PROCESSES,
        json(|processes| processes["processes"].as_array_mut().unwrap().push(process)),
    );
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn the_end_of_weave_nets_policies_is_never_removed() {
    let jump = "[0:0] -A FORWARD -o cni0 -m comment --comment \"NOTE: this must go before '-j KUBE-FORWARD'\" -j WEAVE-NPC\n";
    let end = "[0:0] -A FORWARD -o cni0 -j DROP\n";
    let inner = "[0:0] -A WEAVE-NPC -m state --state RELATED,ESTABLISHED -j ACCEPT\n\
                 [0:0] -A WEAVE-NPC -d 10.244.1.2/32 -m state --state NEW -j ACCEPT\n";
    let dir = with_chain(Some("WEAVE-NPC"), &format!("{jump}{end}{inner}"));
    runs(&dir, "weave-npc");
    let path = dir.path().to_str().unwrap();
    for asked in [&["doctor"][..], &["why", "demo/edge:http"]] {
        let ran = kpx(&[&["--from", path], asked].concat()).await;
        assert!(!ran.out.contains("-D FORWARD"), "{ran}");
    }
    let ran = kpx(&["--from", path, "why", "demo/edge:http", "-o", "json"]).await;
    assert!(
        ran.out.contains("A NetworkPolicy applies to the pod"),
        "{ran}"
    );
    // Without the jump, the owner of the same rule is not known.
    let dir = with_chain(None, end);
    let words = ["owner of the rule: unknown", "keep it"];
    says(&dir, "demo/edge:http", "partly", &words).await;
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_rule_that_closes_a_link_or_an_address_is_kept() {
    let dir = with_chain(
        Some("DOCKER-USER"),
        "[0:0] -A FORWARD -j DOCKER-USER\n[0:0] -A DOCKER-USER -i eth0 -j DROP\n",
    );
    let words = ["keep it", "-I DOCKER-USER 1"];
    says(&dir, "demo/edge:http", "partly", &words).await;
    let path = dir.path().to_str().unwrap();
    let ran = kpx(&["--from", path, "doctor"]).await;
    assert!(!ran.out.contains("-D DOCKER-USER"), "{ran}");

    // The end of a list of those who may use an address; alone, the rule is about the address.
    let list = "[0:0] -A FORWARD -s 192.0.2.0/24 -d 10.244.1.4/32 -j ACCEPT\n";
    let end = "[0:0] -A FORWARD -d 10.244.1.4/32 -j DROP\n";
    for (rules, words) in [
        (format!("{list}{end}"), "keep it"),
        (end.to_owned(), "-D FORWARD"),
    ] {
        let dir = with_chain(None, &rules);
        says(&dir, "demo/edge:http", "partly", &[words]).await;
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn policies_of_a_pod_with_the_hosts_network_are_not_meant_for_the_node() {
    let chain = "KUBE-POD-FW-VT4J2LHIJ337GGVJ";
    let rules = |address: &str| {
        format!(
            "[0:0] -A OUTPUT -s {address}/32 -m comment --comment \"rule to jump traffic from POD name:busybox namespace: ingress to chain {chain}\" -j {chain}\n\
             [0:0] -A {chain} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
             [0:0] -A {chain} -m mark ! --mark 0x10000/0x10000 -j REJECT --reject-with icmp-port-unreachable\n"
        )
    };
    let dir = with_chain(Some(chain), &rules("10.210.0.16"));
    runs(&dir, "k3s-server");
    let words = [
        "kube-router applies the policies of ingress/busybox, which uses the host's network, to the whole node",
        "-n ingress get networkpolicies",
    ];
    says(&dir, "demo/web:http", "partly", &words).await;
    let found = findings(&dir).await;
    assert!(
        found.iter().any(|finding| finding.1 == "error"),
        "{found:?}"
    );
    let dir = with_chain(Some(chain), &rules("10.244.1.77"));
    runs(&dir, "k3s-server");
    says(&dir, "demo/web:http", "works", &[]).await;
}

#[tokio::test]
async fn the_kubelets_rule_for_marked_packets_is_no_drift() {
    let mark = "-m mark --mark 0x8000/0x8000 ";
    for (conditions, is_drift) in [(mark, false), ("-s 192.0.2.1/32 ", true)] {
        let dir = copy(HEALTHY);
        write(&dir, RULES, |text| {
            let own = "[0:0] -A KUBE-FIREWALL ";
            text.replacen(own, &format!("{own}{conditions}-j DROP\n{own}"), 1)
        });
        let found = findings(&dir).await;
        assert_eq!(
            found.iter().any(|finding| finding.0 == "IR11"),
            is_drift,
            "{found:?}"
        );
    }
}

#[tokio::test]
async fn flows_of_sctp_to_a_pod_that_is_gone_are_found() {
    for (pod, is_stale) in [("10.244.1.77", true), (EDGE, false)] {
        let dir = copy(HEALTHY);
        let flow = format!(
            "sctp     132 209 ESTABLISHED src=10.210.0.99 dst=10.210.0.16 sport=36412 dport=38412 src={pod} dst=10.210.0.99 sport=38412 \
             dport=36412 [ASSURED] mark=0 use=1\n"
        );
        write(&dir, "node/conntrack.txt", |text| format!("{text}{flow}"));
        let found = findings(&dir).await;
        let words =
            "SCTP flows are translated to 10.244.1.77, which no pod on this node has any more";
        let is_it = |of: &(String, String, String)| of.0 == "CT02" && of.2 == words;
        assert_eq!(found.iter().any(is_it), is_stale, "{found:?}");
    }
}

#[tokio::test]
async fn endpoints_that_name_neither_node_nor_pod_are_known_by_their_address() {
    const VIA: &str = "-j KUBE-SVL-F3GRYTE7HT6BGIBF";
    // A Service with a Local policy, and the rules that kube-proxy writes where no endpoint is known to be local.
    for (writer, fix) in [
        (
            "endpointslicemirroring-controller.k8s.io",
            "edit endpoints local",
        ),
        (
            "someone",
            "edit endpointslices -l kubernetes.io/service-name=local",
        ),
    ] {
        let dir = copy("dual-iptables");
        write(
            &dir,
            SLICES,
            json(|slices| {
                for slice in slices["items"].as_array_mut().unwrap() {
                    let labels = &mut slice["metadata"]["labels"];
                    if labels["kubernetes.io/service-name"] != "local" {
                        continue;
                    }
                    labels["endpointslice.kubernetes.io/managed-by"] = writer.into();
                    for of in slice["endpoints"].as_array_mut().unwrap() {
                        of.as_object_mut()
                            .unwrap()
                            .retain(|key, _| !["nodeName", "targetRef"].contains(&key.as_str()));
                    }
                }
            }),
        );
        for (file, address) in [
            (RULES, "203.0.113.31/32"),
            ("node/ip6tables-save.txt", "2001:db8:99::31/128"),
        ] {
            write(&dir, file, |text| {
                let text = without(text, VIA);
                let comment =
                    "-p tcp -m comment --comment \"shop/local:http has no local endpoints\"";
                let drops = format!(
                    "[0:0] -A KUBE-EXTERNAL-SERVICES -d {address} {comment} -m tcp --dport 80 -j DROP\n\
                     [0:0] -A KUBE-EXTERNAL-SERVICES {comment} -m addrtype --dst-type LOCAL -m tcp --dport 31081 -j DROP\n"
                );
                let first = "[0:0] -A KUBE-FORWARD ";
                text.replacen(first, &format!("{drops}{first}"), 1)
            });
        }
        let words = [
            "kube-proxy takes 10.244.1.12 for endpoints of other nodes, although they run on node1",
            fix,
        ];
        says(&dir, "shop/local:http", "partly", &words).await;
        let found = findings(&dir).await;
        assert!(
            found
                .iter()
                .any(|finding| finding.0 == "SV01" && finding.1 == "error"),
            "{found:?}"
        );
    }
}
