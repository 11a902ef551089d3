//! What `kpx trace` says of a packet that fails, and of names that it does not know.

use std::fs;

use kpx_judge::trace::Assumed;
use kpx_node::backend::Mode;
use kpx_node::evidence::{self, Item};
use kpx_node::node::NodeSnapshot;

use super::{MODES, RULES, recording, trace, trace_in, traced_in, traces, verdict};
use crate::support::{Change, broken, without};

#[tokio::test]
async fn each_port_of_a_service_is_traced() {
    let (code, report, _) = traces("full-iptables", "shop/multi", &["--source", "host"]).await;
    assert_eq!(code, 0, "{report:#}");
    let ports = report["ports"].as_array().unwrap().iter();
    let all: Vec<_> = std::iter::once(&report).chain(ports).collect();
    let named: Vec<_> = all
        .iter()
        .map(|port_report| {
            (
                port_report["service"]["port"].as_str().unwrap(),
                port_report["fate"].as_str().unwrap(),
            )
        })
        .collect();
    let works = ["http", "admin", "http-udp"].map(|port| (port, "works"));
    assert_eq!(named, works);
    // One port that fails is the exit status of all.
    let lost = |text: &str| without(text, "-A KUBE-SERVICES -d 10.100.1.9/32 -p udp");
    let dir = broken("full-iptables", &[(RULES, &lost)]);
    let ran = trace_in(&dir, &["shop/multi", "--source", "host"]).await;
    assert_eq!(ran.code, 1, "{ran}");
    assert!(ran.out.contains("\nWORKS: shop/multi:http ("), "{ran}");
    assert!(ran.out.contains("\nLOST: shop/multi:http-udp ("), "{ran}");
}

#[tokio::test]
async fn an_address_whose_service_lacks_the_port_is_named() {
    for mode in MODES {
        let name = format!("seed-{mode}");
        let (_, _, all) = traces(&name, "10.97.54.248:81", &["--source", "host"]).await;
        let notes = all[0]["notes"].to_string();
        let want = "10.97.54.248 is the cluster IP of default/nginx-svc, which has no port 81/tcp; it has 80/tcp";
        assert!(notes.contains(want), "{name}: {notes}");
    }
}

#[tokio::test]
async fn a_client_outside_is_in_no_network_of_the_node() {
    let near = |text: &str| {
        text.replacen(
            r#""local":"127.0.0.1","prefixlen":8"#,
            r#""local":"198.18.7.7","prefixlen":16"#,
            1,
        )
    };
    let changes: &[(&str, Change<'_>)] = &[("node/ip-addr.json", &near)];
    for (changes, client) in [(&[][..], "198.18.0.1"), (changes, "198.19.255.254")] {
        let dir = broken("seed-iptables", changes);
        let ran = trace_in(&dir, &["10.0.2.15:31082"]).await;
        let client = format!("outside ({client})");
        assert!(ran.out.contains(&client), "{}", ran.out);
    }
}

#[tokio::test]
async fn a_service_port_is_traced_with_its_protocol() {
    for (target, address) in [
        ("kube-system/kube-dns:dns", "10.96.0.10:53/udp"),
        ("kube-system/kube-dns:dns-tcp", "10.96.0.10:53/tcp"),
        ("edge/syslog", "10.100.2.8:514/udp"),
        ("edge/sigtran", "10.100.2.9:2905/sctp"),
    ] {
        let ran = trace("full-iptables", &[target, "--source", "host"]).await;
        assert!(ran.out.contains(address), "{target}: {}", ran.out);
    }
}

/// A bundle of a node without nft can still tell what mode nftables would do.
#[test]
fn only_mode_nftables_is_simulated_without_rules_of_nftables() {
    let mut items = evidence::ITEMS.to_vec();
    items.retain(|item| !matches!(item, Item::Nft | Item::NftText));
    let evidence = recording("seed-iptables").only(&items);
    let node = NodeSnapshot::new(&evidence);
    let has_rules = |mode| Assumed::new(&node, mode).unwrap().snapshot().nft().is_ok();
    assert!(has_rules(Mode::Nftables));
    assert!(!has_rules(Mode::Ipvs));
}

/// A later packet of a connection goes where its first one did, and filters see it as established.
#[tokio::test]
async fn an_established_connection_is_translated_and_passes_filters_for_new_ones() {
    for mode in MODES {
        let name = format!("seed-{mode}");
        let (code, _, all) = traces(&name, "default/nginx-svc", &["--established"]).await;
        assert_eq!(code, 0, "{name}");
        for trace in &all {
            assert_eq!(trace["verdict"], "deliver", "{name}: {trace:#}");
            assert_eq!(trace["outcomes"].as_array().unwrap().len(), 3, "{name}");
        }
    }
    // kube-proxy rejects only new connections; packets of an established one pass.
    let (_, _, new) = traces("full-nftables", "shop/empty", &["--source", "host"]).await;
    assert_eq!(new[0]["verdict"], "reject", "{:#}", new[0]);
    let args = ["--source", "host", "--established"];
    let (_, _, old) = traces("full-nftables", "shop/empty", &args).await;
    assert_eq!(old[0]["verdict"], "unmatched", "{:#}", old[0]);
}

#[tokio::test]
async fn a_missing_rule_is_named() {
    let lost = |text: &str| without(text, "-A KUBE-SERVICES -d 10.100.1.1/32");
    let dir = broken("full-iptables", &[(RULES, &lost)]);
    insta::assert_snapshot!(
        "missing-rule",
        trace_in(&dir, &["shop/cart", "--source", "host"]).await
    );
    let lost = |text: &str| without(text, "-A PREROUTING");
    let dir = broken("full-iptables", &[(RULES, &lost)]);
    insta::assert_snapshot!(
        "missing-jump",
        trace_in(&dir, &["shop/cart", "--source", "outside"]).await
    );
}

#[tokio::test]
async fn of_several_differences_the_one_of_the_traced_address_is_named() {
    for target in ["10.109.235.134:80", "10.0.2.15:31082"] {
        let args = ["--source", "host"];
        let (_, report, _) = traces("fallback-no-ipvs-modules", target, &args).await;
        let why = report["notes"][0].as_str().unwrap();
        let fails = "why: default/nginx-svc-nodeport does not work on node1 from the host";
        let because = "kube-proxy exits: can't use the IPVS proxier";
        let wanted = format!("{fails} ({target}/tcp): {because}");
        assert!(why.starts_with(&wanted), "{why}");
        let difference = format!("; therefore virtual server tcp {target} is missing");
        assert!(why.contains(&difference), "{why}");
    }
}

#[tokio::test]
async fn a_rule_that_takes_the_packet_is_named_with_its_owner() {
    let before = |rule: &'static str| {
        move |text: &str| {
            let (jump, line) = (
                "[0:0] -A PREROUTING",
                format!("{rule}\n[0:0] -A PREROUTING"),
            );
            text.replacen(jump, &line, 1)
        }
    };
    let accept = before("[3:180] -A PREROUTING -d 10.100.1.1/32 -j ACCEPT");
    let dir = broken("full-iptables", &[(RULES, &accept)]);
    insta::assert_snapshot!(
        "shadowed",
        trace_in(&dir, &["shop/cart", "--source", "outside"]).await
    );
    let docker = |text: &str| {
        text.replacen("*nat\n", "*nat\n:DOCKER - [0:0]\n", 1).replacen(
            "[0:0] -A PREROUTING",
            "[9:540] -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n[9:540] -A DOCKER -p tcp -m tcp --dport 30081 -j DNAT --to-destination 172.17.0.2:80\n[0:0] -A PREROUTING",
            1,
        )
    };
    let dir = broken("full-iptables", &[(RULES, &docker)]);
    insta::assert_snapshot!(
        "taken-by-docker",
        trace_in(&dir, &["nodeport:30081", "--source", "outside"]).await
    );
    let inside = |text: &str| {
        text.replacen(
            "[0:0] -A KUBE-SERVICES -d 10.100.1.1/32",
            "[0:0] -A KUBE-SERVICES -d 10.100.1.0/24 -j RETURN\n[0:0] -A KUBE-SERVICES -d 10.100.1.1/32",
            1,
        )
    };
    let dir = broken("full-iptables", &[(RULES, &inside)]);
    insta::assert_snapshot!(
        "returned-early",
        trace_in(&dir, &["shop/cart", "--source", "outside"]).await
    );
}

#[tokio::test]
async fn a_chain_that_kube_proxy_did_not_write_is_named() {
    const CHAIN: &str = "KUBE-SVC-AAAAAAAAAAAAAAAA";
    let stolen = |text: &str| {
        let first = "[0:0] -A KUBE-SERVICES -d 10.100.1.1/32";
        let rules = format!(
            "[0:0] -A KUBE-SERVICES -d 10.100.1.1/32 -j {CHAIN}\n\
             [0:0] -A {CHAIN} -p tcp -j DNAT --to-destination 10.9.9.9:80\n{first}"
        );
        let text = text.replacen("*nat\n", &format!("*nat\n:{CHAIN} - [0:0]\n"), 1);
        text.replacen(first, &rules, 1)
    };
    let dir = broken("full-iptables", &[(RULES, &stolen)]);
    let ran = trace_in(&dir, &["shop/cart", "--source", "outside"]).await;
    assert_eq!(ran.code, 1, "{ran}");
    let lead = "MISLED: shop/cart:http (10.100.1.1:8080/tcp): the rules lead to 10.9.9.9:80";
    assert!(ran.out.contains(&format!("\n{lead}")), "{ran}");
    let unwrapped = ran.out.replace("\n  ", " ");
    let extra = format!("nat chain KUBE-SERVICES rule 13 is extra: -d 10.100.1.1/32 -j {CHAIN}");
    assert!(unwrapped.contains(&extra), "{ran}");
    assert!(
        ran.out.contains("fix: on node1: kpx reconcile --apply"),
        "{ran}"
    );
}

/// Only kube-proxy's own tables have chains and sets with these meanings.
#[tokio::test]
async fn a_chain_of_others_that_is_called_as_kube_proxys_refuses_for_its_own_reasons() {
    let table = "table inet vpn {\n\tchain firewall-guests {\n\t\ttype filter hook prerouting priority -300; policy accept;\n\
        \t\tip daddr . tcp dport @no-endpoint-hosts drop\n\t\tip daddr 10.97.54.248 drop\n\t}\n}\n";
    let foreign = |text: &str| format!("{text}{table}");
    let dir = broken("seed-nftables", &[("node/nft.txt", &foreign)]);
    fs::remove_file(dir.path().join("node/nft.json")).unwrap();
    let trace = traced_in(&dir, "10.97.54.248:80", "external").await;
    assert_eq!(verdict(&trace), "drop", "{trace:#}");
    let all = trace.to_string();
    for other in [
        "loadBalancerSourceRanges",
        "no endpoints",
        "no local endpoints",
    ] {
        assert!(!all.contains(other), "{trace:#}");
    }
}

#[tokio::test]
async fn a_scheduler_that_hashes_is_noted_with_what_it_hashes() {
    for (options, what) in [
        (
            "sh",
            "hashes addresses: the shares are those of all clients",
        ),
        ("sh -b sh-port", "hashes addresses and source ports"),
    ] {
        let change = |text: &str| text.replace(" -s rr", &format!(" -s {options}"));
        let dir = broken("seed-ipvs", &[("node/ipvsadm-save.txt", &change)]);
        let ran = trace_in(&dir, &["10.97.54.248:80", "--source", "outside"]).await;
        let words: Vec<_> = ran.out.split_whitespace().collect();
        assert!(words.join(" ").contains(what), "{what}: {ran}");
    }
}

/// The first rule of ufw's IPv6 chains: no packet of a connection has a routing header.
#[tokio::test]
async fn a_rule_for_routing_headers_takes_no_connection() {
    for rule in ["--rt-type 0", "! --rt-type 0", "--rt-segsleft 1:4"] {
        let ufw = |text: &str| {
            let first = "[0:0] -A FORWARD";
            text.replacen(first, &format!("{first} -m rt {rule} -j DROP\n{first}"), 1)
        };
        let dir = broken("dual-iptables", &[("node/ip6tables-save.txt", &ufw)]);
        let trace = traced_in(&dir, "[fd00:10:96::320]:80", "external").await;
        assert_eq!(verdict(&trace), "deliver", "{rule}: {trace:#}");
    }
}

#[tokio::test]
async fn stale_backends_and_connections_are_named() {
    // The rules still have an endpoint that the API has moved, and so has a connection.
    let moved = |text: &str| text.replace("\"10.244.1.30\"", "\"10.244.1.31\"");
    let old = |text: &str| {
        format!(
            "{text}tcp      6 86397 ESTABLISHED src=10.0.2.15 dst=10.100.1.1 sport=40000 dport=8080 src=10.244.1.30 dst=10.0.2.15 sport=8080 dport=40000 [ASSURED] mark=0 use=1\n"
        )
    };
    let dir = broken(
        "full-iptables",
        &[
            ("cluster/endpointslices.json", &moved),
            ("node/conntrack.txt", &old),
        ],
    );
    insta::assert_snapshot!(
        "stale",
        trace_in(&dir, &["shop/cart", "--source", "host"]).await
    );
    let lost = |text: &str| {
        text.replacen(
            '[',
            "[{\"type\":\"unreachable\",\"dst\":\"10.244.1.30\"},",
            1,
        )
    };
    let dir = broken("full-iptables", &[("node/ip-route.json", &lost)]);
    insta::assert_snapshot!(
        "no-route",
        trace_in(&dir, &["shop/cart", "--source", "10.0.2.15"]).await
    );
}
