//! Routing decisions, the addresses that a node gives packets, and where packets come from.

use std::net::IpAddr;

use kpx_judge::trace::{Effect, Entry, Flow, Outcome, Verdict};
use kpx_node::evidence::{Evidence, Item};
use kpx_node::net::{Cidr, Proto};
use kpx_node::node::NodeSnapshot;
use serde_json::{Value, json};

use super::rules::{flow, iptables};
use super::{broken, recording, trace_in, walk};
use crate::support::Change;

/// From `entry`, which decides the source, to a port.
fn from(entry: Entry, destination: &str, port: u16, proto: Proto) -> Flow {
    let destination: IpAddr = destination.parse().unwrap();
    let source = match (entry, destination) {
        (Entry::Host, _) => None,
        (Entry::Pod, IpAddr::V4(_)) => Some("10.244.1.200"),
        (Entry::Pod, IpAddr::V6(_)) => Some("fd00:10:244:1::200"),
        (Entry::Outside, IpAddr::V4(_)) => Some("198.18.0.1"),
        (Entry::Outside, IpAddr::V6(_)) => Some("2001:2::1"),
    };
    Flow {
        entry,
        source: source.map(|addr| addr.parse().unwrap()),
        destination,
        port,
        proto,
        ..flow(false)
    }
}

fn outcomes(evidence: &Evidence, flow: &Flow) -> Vec<Outcome> {
    walk(&NodeSnapshot::new(evidence), flow)
}

/// Puts `routes` in front of the others.
pub(super) fn with_routes(evidence: &mut Evidence, routes: &str) {
    let all = evidence.text(Item::Routes).unwrap();
    let all = all.replacen('[', &format!("[{routes},"), 1);
    evidence.insert(Item::Routes, Ok(all));
}

/// Pods are behind the bridge cni0.
fn with_bridge(evidence: &mut Evidence) {
    let links = evidence.text(Item::Links).unwrap();
    let bridge = r#"[{"ifindex":9,"ifname":"cni0","flags":["UP"],"mtu":1500,"operstate":"UP","linkinfo":{"info_kind":"bridge"}},"#;
    let links = links.replacen('[', bridge, 1);
    evidence.insert(Item::Links, Ok(links));
    let pods = r#"{"dst":"10.244.1.0/24","dev":"cni0"},{"dst":"fd00:10:244:1::/64","dev":"cni0"}"#;
    with_routes(evidence, pods);
}

#[test]
fn a_program_gets_the_error_of_a_route_behind_the_translation_but_tcp_tries_again() {
    for (kind, proto, verdict) in [
        ("unreachable", Proto::Udp, Verdict::Reject),
        ("unreachable", Proto::Tcp, Verdict::Drop),
        ("blackhole", Proto::Tcp, Verdict::Drop),
        ("blackhole", Proto::Udp, Verdict::Reject),
    ] {
        for name in ["seed-iptables", "seed-nftables"] {
            let mut evidence = recording(name);
            let route = format!(r#"{{"type":"{kind}","dst":"10.244.0.0/16"}}"#);
            with_routes(&mut evidence, &route);
            for of in outcomes(&evidence, &from(Entry::Host, "10.96.0.10", 53, proto)) {
                assert_eq!(of.verdict, verdict, "{name} {kind} {proto}: {}", of.reason);
                assert!(of.reason.contains(kind), "{}", of.reason);
            }
        }
    }
}

/// `br_nf_pre_routing_finish_ipv6` frees a translated packet whose new destination has no route.
#[test]
fn only_a_bridge_drops_a_translated_packet_of_ipv6_without_an_answer() {
    let mut evidence = recording("dual-iptables");
    with_bridge(&mut evidence);
    let nowhere = [
        "fd00:10:244:1::a",
        "fd00:10:244:2::/64",
        "10.244.1.10",
        "10.244.2.0/24",
    ];
    for dst in nowhere {
        let route = format!(r#"{{"type":"unreachable","dst":"{dst}"}}"#);
        with_routes(&mut evidence, &route);
    }
    let (bridged, rejected) = (
        "no route after the translation (unreachable)",
        "a route of type unreachable rejects it",
    );
    for (entry, destination, verdict, reason) in [
        (Entry::Pod, "fd00:10:96::30a", Verdict::Drop, bridged),
        (Entry::Outside, "fd00:10:96::30a", Verdict::Reject, rejected),
        (Entry::Pod, "fd00:10:244:2::a", Verdict::Reject, rejected),
        (Entry::Pod, "10.100.3.10", Verdict::Reject, rejected),
    ] {
        for of in outcomes(&evidence, &from(entry, destination, 80, Proto::Tcp)) {
            assert_eq!(of.verdict, verdict, "{entry:?} {destination}");
            assert_eq!(of.reason, reason, "{entry:?} {destination}");
        }
    }
}

#[test]
fn a_packet_is_bridged_between_ports_of_one_bridge_alone() {
    let rule = "-A FORWARD -m physdev --physdev-is-bridged -j DROP";
    let mut with_cni0 = iptables(rule);
    with_bridge(&mut with_cni0);
    let eth0 = iptables(rule);
    for (evidence, entry, dropped) in [
        (&with_cni0, Entry::Pod, true),
        (&with_cni0, Entry::Outside, false),
        (&eth0, Entry::Pod, false),
    ] {
        for of in outcomes(evidence, &from(entry, "10.97.54.248", 80, Proto::Tcp)) {
            assert_eq!(of.verdict == Verdict::Drop, dropped, "{entry:?}");
        }
    }
}

#[test]
fn a_packet_from_another_network_has_no_owner() {
    let bridged = |rules: &str| {
        let mut evidence = iptables(rules);
        with_bridge(&mut evidence);
        evidence
    };
    let of_pod = from(Entry::Pod, "10.97.54.248", 80, Proto::Tcp);
    for (options, is_dropped) in [
        ("--uid-owner 0", false),
        ("--socket-exists", false),
        ("! --uid-owner 1000 --gid-owner 0", false),
        ("! --socket-exists", true),
        ("! --uid-owner 0 ! --gid-owner 0", true),
    ] {
        let rules = format!("-A POSTROUTING -m owner {options} -j DROP");
        for of in outcomes(&bridged(&rules), &of_pod) {
            assert_eq!(of.verdict == Verdict::Drop, is_dropped, "{options}");
        }
    }
    // IPVS sends what it forwards through OUTPUT.
    for (option, is_dropped) in [("! --uid-owner 0", true), ("--uid-owner 0", false)] {
        let mut evidence = recording("full-ipvs");
        let rules = format!(
            "*mangle\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -d 10.0.2.16/32 -m owner {option} -j DROP\nCOMMIT\n"
        );
        let own = evidence.text(Item::Iptables4).unwrap();
        let rules = format!("{own}\n{rules}");
        evidence.insert(Item::Iptables4, Ok(rules));
        let ends = outcomes(
            &evidence,
            &from(Entry::Outside, "10.100.1.10", 9100, Proto::Tcp),
        );
        let dropped = ends.iter().find(|of| of.verdict == Verdict::Drop);
        assert_eq!(dropped.is_some(), is_dropped, "{option}: {dropped:?}");
    }
}

#[test]
fn a_loopback_address_does_not_leave_the_node() {
    let evidence = recording("seed-nftables");
    for (destination, reason) in [
        (
            "203.0.113.8",
            "packets from 127.0.0.0/8 cannot leave the node (route_localnet is off)",
        ),
        ("127.0.0.1", "delivered to the host itself"),
        ("10.0.2.15", "delivered to the host itself"),
    ] {
        let own = Flow {
            source: Some([127, 0, 0, 1].into()),
            ..from(Entry::Host, destination, 22, Proto::Tcp)
        };
        assert_eq!(outcomes(&evidence, &own)[0].reason, reason, "{destination}");
    }
}

/// `connect` fails with `EINVAL`; what is forwarded vanishes.
#[test]
fn a_program_gets_an_error_where_a_forwarded_packet_is_dropped() {
    let mut evidence = recording("seed-iptables");
    with_routes(
        &mut evidence,
        r#"{"type":"blackhole","dst":"203.0.113.0/24"}"#,
    );
    for (entry, verdict, reason) in [
        (
            Entry::Host,
            Verdict::Reject,
            "a route of type blackhole rejects it",
        ),
        (Entry::Pod, Verdict::Drop, "a blackhole route drops it"),
    ] {
        for proto in [Proto::Tcp, Proto::Udp] {
            let of = &outcomes(&evidence, &from(entry, "203.0.113.8", 80, proto))[0];
            assert_eq!((of.verdict, of.reason.as_str()), (verdict, reason));
        }
    }
}

/// `ip_vs_nat_xmit` compares the source with 127.0.0.0/8 itself, and frees the packet.
#[test]
fn a_program_with_a_loopback_address_gets_an_error_unless_ipvs_sends_its_packet() {
    for (name, entry, verdict) in [
        ("seed-nftables", Entry::Host, Verdict::Reject),
        ("seed-nftables", Entry::Pod, Verdict::Drop),
        ("seed-ipvs", Entry::Host, Verdict::Drop),
    ] {
        let own = Flow {
            source: Some([127, 0, 0, 1].into()),
            ..from(entry, "10.96.0.10", 53, Proto::Udp)
        };
        for of in outcomes(&recording(name), &own) {
            let reason = &of.reason;
            assert_eq!(of.verdict, verdict, "{name} {entry:?}: {reason}");
        }
    }
}

/// A list that has rules of one family alone was not complete.
#[test]
fn a_family_without_policy_rules_has_those_of_every_kernel() {
    let mut evidence = recording("dual-iptables");
    let rules = r#"[{"priority":0,"src":"all","table":"local"},{"priority":9,"src":"all","action":"unreachable"}]"#;
    evidence.insert(Item::Rules, Ok(rules.to_owned()));
    for (destination, verdict) in [
        ("203.0.113.8", Verdict::Reject),
        ("2001:db8::8", Verdict::Unmatched),
    ] {
        let of = outcomes(&evidence, &from(Entry::Host, destination, 80, Proto::Tcp));
        assert_eq!(of[0].verdict, verdict, "{destination}");
    }
}

#[test]
fn without_routes_a_packet_leaves_through_the_link_of_its_network() {
    let mut items = kpx_node::evidence::ITEMS.to_vec();
    items.retain(|item| *item != Item::Routes);
    let mut evidence = recording("seed-nftables").only(&items);
    with_addresses(
        &mut evidence,
        &[
            json!({"family": "inet", "local": "10.244.1.16", "prefixlen": 32, "scope": "global"}),
            json!({"family": "inet", "local": "10.244.1.1", "prefixlen": 24, "scope": "global"}),
        ],
    );
    let of = outcomes(
        &evidence,
        &from(Entry::Outside, "10.244.1.14", 80, Proto::Tcp),
    );
    let device = of[0].hops.iter().find_map(|hop| match &hop.effect {
        Effect::Out { device, .. } => device.clone(),
        _ => None,
    });
    assert_eq!(device.as_deref(), Some("eth0"));
}

/// Replaces the addresses of eth0, and gives lo another.
fn with_addresses(evidence: &mut Evidence, addresses: &[Value]) {
    let mut links: Value = serde_json::from_str(evidence.text(Item::Addresses).unwrap()).unwrap();
    let of_lo = links[0]["addr_info"].as_array_mut().unwrap();
    of_lo.push(json!({"family": "inet", "local": "192.0.2.1", "prefixlen": 32, "scope": "global"}));
    of_lo.push(
        json!({"family": "inet6", "local": "2001:db8::1", "prefixlen": 128, "scope": "global"}),
    );
    links[1]["addr_info"] = addresses.into();
    evidence.insert(Item::Addresses, Ok(links.to_string()));
}

/// As `inet_select_addr` and `ipv6_dev_get_saddr` choose it. The gateways are 10.0.2.2 and `fe80::2`.
#[test]
fn masquerading_takes_the_address_of_the_link_that_is_next_to_the_gateway() {
    let of = |local: &str, flag: &str, scope: &str| {
        let net: Cidr = local.parse().unwrap();
        let family = if net.addr.is_ipv4() { "inet" } else { "inet6" };
        json!({"family": family, "local": net.addr, "prefixlen": net.prefix, "scope": scope, flag: true})
    };
    let global = |local: &str| of(local, "dynamic", "global");
    let v4 = "10.0.2.15/24";
    let v6 = "fd00:10:0:2::15/64";
    for (addresses, service, chosen) in [
        (
            vec![global("10.9.9.9/24"), global(v4)],
            "10.97.54.248",
            "10.0.2.15",
        ),
        (vec![global("10.9.9.9/24")], "10.97.54.248", "10.9.9.9"),
        (
            vec![of("10.0.2.7/24", "secondary", "global"), global(v4)],
            "10.97.54.248",
            "10.0.2.15",
        ),
        (
            vec![of("10.0.2.9/24", "dynamic", "link"), global(v4)],
            "10.97.54.248",
            "10.0.2.15",
        ),
        (vec![global(v6), global(v4)], "10.97.54.248", "10.0.2.15"),
    ] {
        let mut evidence = recording("seed-nftables");
        with_addresses(&mut evidence, &addresses);
        let of = outcomes(&evidence, &from(Entry::Outside, service, 80, Proto::Tcp));
        assert!(of[0].masquerade);
        assert_eq!(
            of[0].source,
            chosen.parse::<IpAddr>().unwrap(),
            "{addresses:?}"
        );
    }
    let addresses = [
        of("fd00:10:0:2::7/64", "deprecated", "global"),
        global(v4),
        global(v6),
    ];
    let mut evidence = recording("dual-nftables");
    with_addresses(&mut evidence, &addresses);
    let of = outcomes(
        &evidence,
        &from(Entry::Outside, "fd00:10:96::30a", 80, Proto::Tcp),
    );
    assert!(of[0].masquerade);
    assert_eq!(of[0].source, "fd00:10:0:2::15".parse::<IpAddr>().unwrap());
}

/// Without its Node object.
#[tokio::test]
async fn the_address_of_a_node_is_that_of_the_link_of_its_default_route() {
    let routes = |text: &str| {
        let docker = r#"[{"dst":"172.17.0.0/16","dev":"docker0"},{"dst":"default","via":{"host":"fe80::9"},"dev":"docker0","pref":"medium"},"#;
        text.replacen('[', docker, 1)
    };
    let addresses = |text: &str| {
        let mut links: Value = serde_json::from_str(text).unwrap();
        let info = links[1]["addr_info"].as_array().unwrap().clone();
        let mut all = vec![
            json!({"family": "inet6", "local": "fd00:10:0:2::15", "prefixlen": 64, "scope": "global"}),
            json!({"family": "inet", "local": "169.254.7.7", "prefixlen": 16, "scope": "link"}),
        ];
        all.extend(info);
        links[1]["addr_info"] = all.into();
        let docker = json!({"ifindex": 9, "ifname": "docker0", "addr_info": [
            {"family": "inet", "local": "172.17.0.1", "prefixlen": 16, "scope": "global"},
        ]});
        links.as_array_mut().unwrap().insert(1, docker);
        links.to_string()
    };
    let changes: &[(&str, Change<'_>)] = &[
        ("node/ip-route.json", &routes),
        ("node/ip-addr.json", &addresses),
        ("cluster/nodes.json", &|_| r#"{"items":[]}"#.to_owned()),
    ];
    let dir = broken("seed-iptables", changes);
    let ran = trace_in(&dir, &["nodeport:31082", "--source", "outside"]).await;
    assert!(ran.out.contains("10.0.2.15:31082"), "{ran}");
}

#[tokio::test]
async fn a_source_is_a_pod_of_this_node_the_host_or_outside() {
    let pod = |text: &str| {
        let mut pods: Value = serde_json::from_str(text).unwrap();
        pods["items"].as_array_mut().unwrap().push(json!({
            "metadata": {"namespace": "default", "name": "tools"},
            "spec": {"nodeName": "node1"},
            "status": {"podIPs": [{"ip": "fd00:10:244:1::77"}, {"ip": "10.250.0.77"}]},
        }));
        pods.to_string()
    };
    let dir = broken("seed-iptables", &[("cluster/pods.json", &pod)]);
    for (source, shown) in [
        (
            "10.244.1.14",
            "a pod (10.244.1.14, default/nginx-6799fc88d8-8jnxd)",
        ),
        ("10.244.1.200", "a pod (10.244.1.200)"),
        ("10.250.0.77", "a pod (10.250.0.77, default/tools)"),
        ("default/tools", "a pod (10.250.0.77, default/tools)"),
        ("tools", "a pod (10.250.0.77, default/tools)"),
        ("10.244.2.3", "outside (10.244.2.3)"),
        ("10.0.2.15", "the host (10.0.2.15)"),
    ] {
        let ran = trace_in(&dir, &["10.97.54.248:80", "--source", source]).await;
        let from = format!("from {shown}\n");
        assert!(ran.out.contains(&from), "{source}: {ran}");
    }
}

#[tokio::test]
async fn only_a_pod_of_this_node_is_a_source() {
    let slices = |text: &str| text.replace("10.244.1.22", "10.0.2.15");
    let dir = broken("seed-iptables", &[("cluster/endpointslices.json", &slices)]);
    for (source, error) in [
        ("default/coredns-2", "pod default/coredns-2 runs on node2"),
        ("default/redis-master-0", "is not a source"),
    ] {
        let ran = trace_in(&dir, &["10.97.54.248:80", "--source", source]).await;
        assert!(ran.err.contains(error), "{source}: {ran}");
    }
    // A pod in the host's network sends as the host.
    let own = [
        "10.97.54.248:80",
        "--source",
        "kube-system/kube-proxy-bwvs4",
    ];
    let ran = trace_in(&dir, &own).await;
    assert!(ran.out.contains("from the host (10.0.2.15)"), "{ran}");
}

/// The last address but one of the node's prefix, if no pod is known that is no backend.
#[tokio::test]
async fn a_pod_is_made_up_where_none_is_known() {
    let slices = |text: &str| {
        let mut all: Value = serde_json::from_str(text).unwrap();
        let items = all["items"].as_array_mut().unwrap();
        items.retain(|slice| {
            slice["metadata"]["name"]
                .as_str()
                .unwrap()
                .starts_with("front")
        });
        all.to_string()
    };
    let dir = broken("dual-nftables", &[("cluster/endpointslices.json", &slices)]);
    for (target, pod) in [
        ("10.100.3.10:80", "10.244.1.254"),
        ("[fd00:10:96::30a]:80", "fd00:10:244:1:ffff:ffff:ffff:fffe"),
    ] {
        let ran = trace_in(&dir, &[target]).await;
        assert!(
            ran.out.contains(&format!("from a pod ({pod})\n")),
            "{target}: {ran}"
        );
    }
}
