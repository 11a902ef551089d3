//! Tests of the stand-in itself.

use std::fs;
use std::time::{Duration, Instant};

use kpx_node::evidence::Item;

use super::{FOLDER, Folder, KubeProxy, daemon, recorded, replace, with_mode};
use crate::kernel::netns::Netns;
use crate::kernel::reconcile_ipvs::node::Node;

/// With the environment of one, this is its process.
#[test]
#[ignore = "needs root and a network namespace"]
fn kube_proxy_answers_and_leaves_its_rules() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        daemon::run(&Folder(folder.into()));
    }
    let netns = Netns::new();
    netns.feed(
        "ip -batch -",
        "addr add 10.0.2.15/24 dev lo\naddr add fd00:10:0:2::15/64 dev lo\n",
    );
    let scratch = tempfile::tempdir().unwrap();
    let folder = recorded("dual-iptables", "iptables", scratch.path());
    let mut proxy = KubeProxy::start(&netns, &folder, Duration::from_millis(500));
    proxy.wait_for("Using iptables Proxier", 1);
    let look = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let items = [
            Item::ProxyConfig,
            Item::ProxyMode,
            Item::Metrics,
            Item::Healthz,
            Item::Processes,
        ];
        runtime.unwrap().block_on(netns.collect(&items))
    };
    let begin = Instant::now();
    while look().text(Item::Healthz).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", proxy.log());
    }
    let first = |metrics: &str| {
        !metrics.contains("kubeproxy_sync_proxy_rules_last_timestamp_seconds{")
            && metrics.contains("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{")
    };
    assert!(first(look().text(Item::Metrics).unwrap()));
    proxy.wait_synced(1);
    let seen = look();
    assert!(!first(seen.text(Item::Metrics).unwrap()));
    assert_eq!(seen.text(Item::ProxyMode), Ok("iptables"));
    assert!(seen.text(Item::Healthz).unwrap().contains("\"IPv6\":{"));
    let config = fs::read_to_string(folder.config()).unwrap();
    assert_eq!(seen.text(Item::ProxyConfig), Ok(config.as_str()));
    let processes = seen.text(Item::Processes).unwrap();
    assert!(
        processes.contains("\"name\": \"kube-proxy\""),
        "{processes}"
    );

    let state = || {
        let saved = ["iptables-save", "ip6tables-save"].map(|tool| netns.run(tool));
        saved.map(|text| rules(&text))
    };
    let written = state();
    assert!(written[0].len() > 50, "{written:?}");
    let file = folder.0.join("cluster/endpointslices.json");
    let slices = fs::read_to_string(&file).unwrap();
    replace(&file, &slices.replace("10.244.2.10", "10.244.2.99"));
    proxy.wait_synced(2);
    let changed = state();
    assert!(changed[0].iter().any(|line| line.contains("10.244.2.99")));
    assert!(!changed[0].iter().any(|line| line.contains("10.244.2.10")));
    replace(&file, &slices);
    proxy.wait_synced(3);
    assert_eq!(state(), written);
    proxy.stop();
    // Another one finds its work done, and jumps only once.
    let mut proxy = KubeProxy::start(&netns, &folder, Duration::ZERO);
    proxy.wait_synced(1);
    assert_eq!(state(), written);
    proxy.stop();

    fs::write(folder.config(), with_mode(&config, "nftables")).unwrap();
    let mut proxy = KubeProxy::start(&netns, &folder, Duration::ZERO);
    proxy.wait_synced(1);
    let left = state().concat();
    let left: Vec<_> = left.iter().filter(|line| line.contains("KUBE")).collect();
    assert!(
        left.iter().all(|line| line.contains("KUBE-FIREWALL")),
        "{left:?}"
    );
    assert!(
        netns
            .run("nft list table ip6 kube-proxy")
            .contains("fd00:10:96::30a")
    );
    proxy.stop();

    fs::write(folder.config(), with_mode(&config, "iptables")).unwrap();
    let mut proxy = KubeProxy::start(&netns, &folder, Duration::ZERO);
    proxy.wait_synced(1);
    assert_eq!(state(), written);
    assert!(!netns.run("nft list tables").contains("kube-proxy"));
    proxy.stop();
}

/// The lines of `iptables-save` that are chains and rules, in one order.
fn rules(saved: &str) -> Vec<String> {
    let lines = saved.lines().filter(|line| line.starts_with([':', '-']));
    let lines = lines.map(|line| line.split(" [").next().unwrap().to_owned());
    let mut lines: Vec<_> = lines.collect();
    lines.sort();
    lines
}

#[test]
#[ignore = "needs root and ip_vs"]
fn vm_in_mode_ipvs_it_writes_what_was_recorded() {
    let node = Node::new("dual-ipvs");
    let scratch = tempfile::tempdir().unwrap();
    let folder = recorded("dual-ipvs", "ipvs", scratch.path());
    let mut proxy = KubeProxy::start(&node.netns, &folder, Duration::ZERO);
    proxy.wait_synced(1);
    let (state, recorded) = (node.state(), node.recorded());
    assert_eq!(state.sets, recorded.sets);
    assert_eq!(state.servers, recorded.servers);
    assert_eq!(state.addresses, recorded.addresses);
    assert_eq!(state.sysctls, recorded.sysctls);
    assert_eq!(state.rules, recorded.rules);

    let file = folder.0.join("cluster/endpointslices.json");
    let slices = fs::read_to_string(&file).unwrap();
    replace(&file, &slices.replace("10.244.2.10", "10.244.2.99"));
    proxy.wait_synced(2);
    let servers = node.state().servers;
    let has = |line: &str| servers.contains(line);
    assert!(
        has("-a -t 10.100.3.10:80 -r 10.244.2.99:8080 -m -w 1"),
        "{servers:?}"
    );
    assert!(
        has("-a -t 10.100.3.10:80 -r 10.244.2.10:8080 -m -w 0"),
        "{servers:?}"
    );
    proxy.stop();

    let config = fs::read_to_string(folder.config()).unwrap();
    fs::write(folder.config(), with_mode(&config, "nftables")).unwrap();
    let mut proxy = KubeProxy::start(&node.netns, &folder, Duration::ZERO);
    proxy.wait_synced(1);
    proxy.stop();
    let left = node.state();
    assert!(
        left.servers.is_empty() && left.addresses.is_empty(),
        "{left:?}"
    );
    let rules = left.rules.concat();
    assert!(!rules.iter().any(|rule| rule.contains("KUBE")), "{rules:?}");
    // The real one forgets it, too.
    assert!(
        left.sets.iter().all(|line| line.contains(" KUBE-6-")),
        "{:?}",
        left.sets
    );
    assert!(!left.sets.is_empty());
}
