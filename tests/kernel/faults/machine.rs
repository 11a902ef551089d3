//! Faults outside of the rules: settings, sockets, connections, kube-proxy itself.

use super::{Fault, Node, findings, printed, through};

/// Checks that fail on the recorded cluster and its configuration.
const HEALTHY: &[&str] = &[
    "AP01", "AP04", "AP06", "AP07", "DP08", "KP09", "KP12", "KP21",
];

const FAULTS: &[Fault] = &[
    Fault {
        name: "packets are not forwarded",
        broken_by: "sysctl -qw net.ipv4.ip_forward=0",
        id: "SY01",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "NodePorts are given out as client ports",
        broken_by: "sysctl -qw net.ipv4.ip_local_port_range='30000 60999'",
        id: "SY12",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "clients on the node have few ports",
        broken_by: "sysctl -qw net.ipv4.ip_local_port_range='40000 40500'",
        id: "SY12",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "bridged packets pass the rules by",
        broken_by: "sysctl -qw net.bridge.bridge-nf-call-iptables=0",
        id: "KM13",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "a pod cannot reach itself",
        broken_by: "ip link set pod0 type bridge_slave hairpin off",
        id: "CN07",
        also: &["SV01"],
        undone_by: "",
    },
    Fault {
        name: "a timeout of conntrack is changed",
        broken_by: "sysctl -qw net.netfilter.nf_conntrack_tcp_timeout_established=600",
        id: "CT07",
        also: &[],
        undone_by: "sysctl -qw net.netfilter.nf_conntrack_tcp_timeout_established=86400",
    },
    Fault {
        name: "a UDP flow goes to an endpoint that is gone",
        broken_by: "conntrack -I -p udp -s 10.244.1.200 -d 10.96.0.10 --sport 4000 --dport 53 -t 300 -u SEEN_REPLY,ASSURED \
                    -r 10.244.1.99 -q 10.244.1.200 --reply-port-src 53 --reply-port-dst 4000",
        id: "CT02",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "a UDP flow goes untranslated",
        broken_by: "conntrack -I -p udp -s 10.244.1.200 -d 10.96.0.10 --sport 4000 --dport 53 -t 300 -u SEEN_REPLY \
                    -r 10.96.0.10 -q 10.244.1.200 --reply-port-src 53 --reply-port-dst 4000",
        id: "CT04",
        also: &[],
        undone_by: "",
    },
    Fault {
        name: "another program has a NodePort",
        broken_by: "start squatter 31082",
        id: "NP01",
        also: &[],
        undone_by: "stop 31082",
    },
    Fault {
        name: "no process answers on the ports of health checks",
        broken_by: "stop 32000",
        id: "NP06",
        also: &[],
        undone_by: "start kube-proxy 32000 32001",
    },
    Fault {
        name: "another program answers on the ports of health checks",
        broken_by: "stop 32000; start squatter 32000 32001",
        id: "NP06",
        also: &[],
        undone_by: "stop 32000; start kube-proxy 32000 32001",
    },
    Fault {
        name: "kube-proxy says that it is not healthy",
        broken_by: "sed 's/\"healthy\":true/\"healthy\":false/g' $R/kube-proxy/healthz.json >$D/healthz",
        id: "KP05",
        also: &[],
        undone_by: "cp $R/kube-proxy/healthz.json $D/healthz",
    },
    Fault {
        name: "kube-proxy does not answer",
        broken_by: "stop 10249",
        id: "KP05",
        // Its other questions are folded into the one error.
        also: &[],
        undone_by: "start kube-proxy 10249 10256",
    },
    Fault {
        name: "kube-proxy is stuck in a sync",
        broken_by: "sed -E -i 's/^(kubeproxy_sync_proxy_rules_last_timestamp_seconds.*) .*/\\1 1.0e9/
                    s/^(kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds.*) .*/\\1 1.5e9/' $D/metrics",
        id: "KP06",
        also: &[],
        undone_by: "metrics",
    },
    Fault {
        name: "iptables-restore refuses what kube-proxy writes",
        broken_by: "echo 'kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv4\"} 7' >>$D/metrics",
        id: "KP07",
        also: &[],
        undone_by: "metrics",
    },
    Fault {
        name: "kube-proxy started in another mode than it is configured for now",
        broken_by: "printf nftables >$D/proxyMode",
        id: "KP01",
        also: &["MX05"],
        undone_by: "cp $R/kube-proxy/proxy-mode.txt $D/proxyMode",
    },
];

#[test]
#[ignore = "needs root and a network namespace"]
fn long_every_fault_of_the_machine_is_found_until_it_is_fixed() {
    through(&Node::new("full-iptables", "rules"), HEALTHY, FAULTS);
}

/// Faults of the IPv6 rules, on a node with both families.
const IPV6: &[Fault] = &[Fault {
    name: "the rule of a Service is gone, in IPv6",
    broken_by: "at=$(ip6tables-nft -t nat -S KUBE-SERVICES | grep -e ^-A | grep -n fd00:10:96::30a/128 | head -n 1 | cut -d: -f1)
                ip6tables-nft -t nat -D KUBE-SERVICES $at",
    id: "IR03",
    also: &[],
    undone_by: "rules",
}];

#[test]
#[ignore = "needs root and a network namespace"]
fn every_fault_of_ipv6_is_found_until_it_is_fixed() {
    let node = Node::new(
        "dual-iptables",
        "ip addr add fd00:10:0:2::15/64 dev eth0 nodad; ip addr add fd00:10:244:1::1/64 dev cni0 nodad; rules; start kube-proxy 32010",
    );
    through(&node, &["AP01", "AP06", "DP08", "KP21"], IPV6);
}

#[test]
#[ignore = "needs root and a network namespace"]
fn a_stopped_kube_proxy_is_one_error_and_goes_on_by_the_printed_command() {
    let node = Node::new("full-iptables", "rules");
    let words = ["--fail-on", "never", "--timeout", "3s"];
    let before = findings(&node.doctor_with(&words));
    node.bash("stop", "kill -STOP $(cat $D/pid-10249)");
    let report = node.doctor_with(&words);
    let now = findings(&report);
    let new: Vec<_> = now.symmetric_difference(&before).collect();
    let [(id, _, message)] = new.as_slice() else {
        panic!("one error: {new:#?}");
    };
    assert!(
        id == "KP05" && message.contains("is stopped (state T)"),
        "{new:#?}"
    );
    let commands = printed(&report, "KP05", &before);
    assert!(commands[0].starts_with("kill -CONT "), "{commands:?}");
    node.bash("go on", &commands[0]);
    assert_eq!(findings(&node.doctor_with(&words)), before);
}

#[test]
#[ignore = "needs root and a network namespace"]
fn the_doctor_waits_until_nothing_is_wrong() {
    let node = Node::new("full-iptables", "rules; sysctl -qw net.ipv4.ip_forward=0");
    // The fault is fixed only when the doctor reads kube-proxy's health for the second time.
    let fix = "(until [ $(grep -c healthz $D/asked) = 2 ]; do sleep 0.05; done; sysctl -qw net.ipv4.ip_forward=1) </dev/null >/dev/null 2>&1 &";
    node.bash("prepare the fix", "rm -f $D/asked; touch $D/asked");
    node.bash("fix later", fix);
    let words = ["--only", "SY01,KP05", "--fail-on", "error", "--wait", "60s"];
    let report = node.doctor_with(&words);
    assert_eq!(report["summary"]["errors"], 0, "{report:#}");
    assert_eq!(report["summary"]["passed"], 2, "{report:#}");

    node.bash("break", "sysctl -qw net.ipv4.ip_forward=0");
    let words = ["--only", "SY01", "--fail-on", "never", "--wait", "60s"];
    let report = node.doctor_with(&words);
    assert_eq!(report["summary"]["errors"], 1, "{report:#}");
}
