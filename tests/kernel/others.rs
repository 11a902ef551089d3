//! The state of other software on a node: `testdata/others`, shaped like the state of Calico, Cilium, flannel, Docker,
//! nerdctl, firewalld, ufw, fail2ban, keepalived, Istio and an administrator.

use super::change;
use super::netns::Netns;
use super::reconcile_ipvs::node::Node;

const SETS: &str = include_str!("../../testdata/others/ipset.txt");
const RULES: &str = include_str!("../../testdata/others/iptables.txt");

/// Adds it to a node with the links `eth0` and `cni0`: each base chain's rules behind those that it has.
pub(crate) fn add(netns: &Netns) {
    netns.feed("ipset restore", SETS);
    netns.feed("iptables-nft-restore --noflush", RULES);
    netns.feed(
        "ip6tables-nft-restore --noflush",
        include_str!("../../testdata/others/ip6tables.txt"),
    );
    netns.feed(
        "nft -f -",
        include_str!("../../testdata/others/ruleset.nft"),
    );
    netns.feed("ip -batch -", include_str!("../../testdata/others/ip.txt"));
}

/// Adds its rules to the legacy back end.
pub(crate) fn add_legacy(netns: &Netns) {
    netns.feed("ipset restore", SETS);
    netns.feed("iptables-legacy-restore", RULES);
}

/// Returns what is not kube-proxy's on the node, byte for byte and in order.
pub(crate) fn state(netns: &Netns) -> Vec<String> {
    let mut lines = Vec::new();
    let mut add = |command: &str, is_other: &dyn Fn(&str) -> bool| {
        let text = netns.run(command);
        for line in text.lines().filter(|line| is_other(line)) {
            // The policy of a chain has counters.
            let counted = line.find(" [").filter(|_| line.starts_with(':'));
            let rest = &line[..counted.unwrap_or(line.len())];
            lines.push(format!("{command}: {rest}"));
        }
    };
    for save in [
        "iptables-nft-save",
        "ip6tables-nft-save",
        "iptables-legacy-save",
        "ip6tables-legacy-save",
    ] {
        let is_other = |line: &str| {
            // An empty built-in chain with its first policy says nothing.
            let is_head = line.starts_with(['#', '*', 'C']) || line.contains(" ACCEPT [");
            !is_head && !line.contains("KUBE-")
        };
        add(save, &is_other);
    }
    for table in netns.run("nft list tables").lines() {
        let name = table.trim_start_matches("table ");
        let (family, own) = name.split_once(' ').unwrap();
        let is_iptables =
            family.starts_with("ip") && ["raw", "mangle", "filter", "nat"].contains(&own);
        if family == "inet" || own != "kube-proxy" && !is_iptables {
            add(&format!("nft -s list table {name}"), &|_| true);
        }
    }
    add("ipset save", &|line| !line.contains(" KUBE-"));
    for list in [
        "ip -o addr show",
        "ip rule",
        "ip -6 rule",
        "ip route show table all",
        "sysctl net.ipv4.conf.all.rp_filter net.ipv4.conf.default.rp_filter net.ipv4.conf.eth0.rp_filter",
    ] {
        // The kernel gives a link its own IPv6 address some time later.
        add(list, &|line| {
            !line.contains("kube-ipvs0") && !line.contains("fe80::")
        });
    }
    assert!(!lines.is_empty());
    lines
}

/// Fails with what changed if the state is not `before`.
pub(crate) fn assert_same(netns: &Netns, before: &[String]) {
    let now = state(netns);
    change::assert_same(&now, before, "other software");
    // In the same order, too.
    assert_eq!(now, before);
}

/// On a kernel with the modules for all of it.
#[test]
#[ignore = "needs root and ip_vs"]
fn vm_it_stays_where_mode_ipvs_is_written_and_removed() {
    let node = Node::new("seed-ipvs");
    add(&node.netns);
    let foreign = state(&node.netns);
    node.apply();
    assert!(!node.state().servers.is_empty());
    assert_same(&node.netns, &foreign);
    node.cleanup();
    assert!(node.state().servers.is_empty());
    assert_same(&node.netns, &foreign);
}
