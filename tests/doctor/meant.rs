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
    add_rule(&dir, table, rule);
    dir
}

/// Adds `rule` at the head of its chain in `table`.
pub(super) fn add_rule(dir: &tempfile::TempDir, table: &str, rule: &str) {
    write(dir, RULES, |text| {
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
        absent[0].contains("other nodes have a pod of it, this node has none"),
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

#[tokio::test]
async fn what_a_release_does_not_know_or_allow_is_refused_at_the_next_start() {
    let refused = |change: fn(&str) -> String| async move {
        let dir = copy(HEALTHY);
        write(&dir, "kube-proxy/config.conf", change);
        found(&dir, "KP22").await
    };
    let gates = |gate: &str| format!("\nfeatureGates:\n  {gate}\n");
    for (found, words) in [
        (
            refused(|text| format!("{text}\nfeatureGates:\n  EndpointSliceProxying: true\n")).await,
            "featureGates.EndpointSliceProxying true: this release does not know the feature gate",
        ),
        (
            refused(|text| format!("{text}\nfeatureGates:\n  NFTablesProxyMode: false\n")).await,
            "featureGates.NFTablesProxyMode false: this release does not let the feature gate be off",
        ),
        (
            refused(|text| text.replace("clusterCIDR: 10.244.0.0/16", "clusterCIDR: 10.244.0.0"))
                .await,
            "it refuses clusterCIDR \\\"10.244.0.0\\\"",
        ),
        (
            refused(|text| text.replace("proxy.config.k8s.io/v1alpha1", "proxy.config.k8s.io/v1"))
                .await,
            "it refuses apiVersion",
        ),
        (
            refused(|text| text.replace("iptables:\n", "iptables\n")).await,
            "since it cannot read its configuration: ",
        ),
        (
            refused(|_| String::new()).await,
            "since it cannot read its configuration: it is empty",
        ),
    ] {
        assert!(
            found.len() == 1 && found[0].contains(words),
            "{words}: {found:?}"
        );
    }
    let dir = copy(HEALTHY);
    write(&dir, "kube-proxy/config.conf", |text| {
        text.to_owned() + &gates("NFTablesProxyMode: true")
    });
    assert!(found(&dir, "KP22").await.is_empty());
}

#[tokio::test]
async fn rules_follow_the_configuration_that_kube_proxy_runs_with() {
    let dir = copy(HEALTHY);
    write(&dir, "kube-proxy/config.conf", |text| {
        text.replace("clusterCIDR: 10.244.0.0/16", "clusterCIDR: 10.200.0.0/16")
    });
    assert!(found(&dir, "IR03").await.is_empty());
    std::fs::remove_file(dir.path().join("kube-proxy/configz.json")).unwrap();
    assert!(!found(&dir, "IR03").await.is_empty());
}

#[tokio::test]
async fn a_rule_that_hides_the_addresses_of_pods_is_named_with_its_owner() {
    let hidden = |rule: &'static str| async move { found(&with_rule("nat", rule), "CN16").await };
    let all = hidden("-A POSTROUTING -s 10.244.0.0/16 -j MASQUERADE").await;
    assert_eq!(all.len(), 1, "{all:?}");
    for words in [
        "see 10.2",
        "iptables -t nat -R POSTROUTING 1 ! -d 10.244.0.0/16 -s 10.244.0.0/16 -j MASQUERADE",
    ] {
        assert!(all[0].contains(words), "{words}: {all:?}");
    }
    for meant in [
        "-A POSTROUTING -s 10.244.0.0/16 ! -d 10.244.0.0/16 -j MASQUERADE",
        "-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
    ] {
        assert!(hidden(meant).await.is_empty(), "{meant}");
    }
    let agents = |range: &str| {
        let dir = copy(HEALTHY);
        let chain = format!(
            "*nat\n:IP-MASQ-AGENT - [0:0]\n[0:0] -A POSTROUTING -m comment --comment \"ip-masq-agent: ensure nat POSTROUTING directs all \
             non-LOCAL destination traffic to our custom IP-MASQ-AGENT chain\" -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT\n\
             [0:0] -A IP-MASQ-AGENT -d {range} -m comment --comment \"ip-masq-agent: local traffic is not subject to MASQUERADE\" -j RETURN\n\
             [0:0] -A IP-MASQ-AGENT -m comment --comment \"ip-masq-agent: outbound traffic is subject to MASQUERADE (must be last in chain)\" \
             -m addrtype ! --dst-type LOCAL -j MASQUERADE\n"
        );
        write(&dir, RULES, |text| text.replacen("*nat\n", &chain, 1));
        dir
    };
    let all = found(&agents("172.16.0.0/12"), "CN16").await;
    assert!(
        all.len() == 1 && all[0].contains("nonMasqueradeCIDRs"),
        "{all:?}"
    );
    assert!(found(&agents("10.0.0.0/8"), "CN16").await.is_empty());
}

#[tokio::test]
async fn what_the_kernel_says_of_lost_packets_is_found_with_its_count_and_time() {
    let said = |lines: &'static str| async move {
        let dir = copy(HEALTHY);
        write(&dir, "node/dmesg.txt", |text| format!("{text}{lines}\n"));
        found(&dir, "SY18").await
    };
    let full = "nf_conntrack: nf_conntrack: table full, dropping packet";
    let killed = "Memory cgroup out of memory: Killed process 4242 (kube-proxy) total-vm:1290000kB, anon-rss:204800kB";
    for (lines, severity, words) in [
        (
            "[ 1370.1] nf_conntrack: nf_conntrack: table full, dropping packet\n[ 1372.5] nf_conntrack: nf_conntrack: table full, dropping packet",
            "warning",
            "2 messages, the last 1372.5 s after the start of the kernel",
        ),
        (
            "[ 1370.1] nf_conntrack: nf_conntrack: table full, dropping packet\n[ 9000.0] cni0: port 1 entered disabled state",
            "info",
            "the conntrack table was full",
        ),
        (
            "[ 1370.1] neighbour: arp_cache: neighbor table overflow!",
            "warning",
            "gc_thresh3",
        ),
        (
            "[ 1370.1] Route cache is full: consider increasing sysctl net.ipv6.route.max_size.",
            "warning",
            "sysctl -w net.ipv6.route.max_size=1048576",
        ),
        (
            "[ 1370.1] Memory cgroup out of memory: Killed process 4242 (kube-proxy) total-vm:1290000kB, anon-rss:204800kB",
            "warning",
            "resources.limits.memory",
        ),
        (
            "[ 1370.1] IPv4: martian source 10.210.0.16 from 10.244.1.4, on dev eth0",
            "warning",
            "packets from 10.244.1.4 that came in by eth0",
        ),
        (
            "[ 1370.1] bcmgenet fd580000.ethernet eth0: NETDEV WATCHDOG: CPU: 2: transmit queue 1 timed out 5000 ms",
            "warning",
            "eth0 did not send packets",
        ),
        (
            "[ 1370.1] NETDEV WATCHDOG: eth0 (e1000e): transmit queue 0 timed out",
            "warning",
            "eth0 did not send packets",
        ),
        (
            "[ 1370.1] e1000e 0000:00:1f.6 eth0: Detected Hardware Unit Hang:",
            "warning",
            "eth0 did not send packets",
        ),
        (
            "[ 1370.1] TCP: request_sock_TCP: Possible SYN flooding on port 0.0.0.0:8080. Sending cookies.",
            "info",
            "at port 8080",
        ),
    ] {
        let all = said(lines).await;
        assert_eq!(all.len(), 1, "{lines}: {all:?}");
        let severity = format!("\"severity\":\"{severity}\"");
        assert!(
            all[0].contains(&severity) && all[0].contains(words),
            "{words}: {all:?}"
        );
    }
    for other in [
        "[ 1370.1] Memory cgroup out of memory: Killed process 4242 (nginx) total-vm:1290000kB",
        "[ 1370.1] nf_conntrack: default automatic helper assignment has been turned off for security reasons",
    ] {
        assert!(said(other).await.is_empty(), "{other}");
    }
    // A journal has earlier starts of the kernel, too.
    let dir = copy(HEALTHY);
    write(&dir, "node/dmesg.txt", |_| {
        format!(
            "Nov 28 03:01:02 w1 kernel: {full}\nNov 28 04:00:00 w1 kernel: Linux version 6.18\nNov 28 04:01:02 w1 kernel: {killed}\n"
        )
    });
    let all = found(&dir, "SY18").await;
    assert!(
        all.len() == 1 && all[0].contains("the last at Nov 28 04:01:02"),
        "{all:?}"
    );
}

/// The client's port, and the endpoint's, are in the tuple of the reply alone.
#[tokio::test]
async fn rules_for_replies_ask_what_the_client_sent_to() {
    for (port, fate) in [("80", "lost"), ("8080", "works"), ("40000", "works")] {
        let rule = format!(
            "-A POSTROUTING -p tcp -m conntrack --ctdir REPLY --ctorigdstport {port} -j DROP"
        );
        let dir = with_rule("mangle", &rule);
        let words: &[&str] = match fate {
            "works" => &[],
            _ => &["rule 1 of chain POSTROUTING", "drops the replies"],
        };
        let path = dir.path().to_str().unwrap();
        let args = [
            "--from",
            path,
            "why",
            "demo/web:http",
            "--source",
            "10.244.1.2",
        ];
        let said = kpx(&args).await.out.replace("\n  ", " ");
        assert!(
            said.contains(&format!("\n{}: ", fate.to_uppercase())),
            "{port}: {said}"
        );
        for part in words {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
