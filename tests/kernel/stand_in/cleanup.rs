//! The objects of other modes that kube-proxy removes when it starts: all of both in nftables mode, its own table in the
//! others, and nothing between iptables and ipvs. As 1.36 does it, with its gaps: jumps without a comment, counters, and
//! the sets of IPv6 stay, and a table whose chains something else still names stays whole.

use kpx_node::backend::Mode;

use super::sync::{Table, run, try_feed, try_run};

pub(super) fn at_start(mode: Mode) {
    if mode != Mode::Nftables {
        for family in ["ip", "ip6"] {
            try_run(&format!("nft delete table {family} kube-proxy"));
        }
        return;
    }
    for family in ["iptables", "ip6tables"] {
        iptables(family);
    }
    if try_run("modprobe -va ip_vs") {
        ipvs();
    }
}

/// Jumps of the iptables mode: table, chain, and the rest of the rule.
const JUMPS: &[(&str, &str, &str)] = &[
    ("filter", "INPUT", EXTERNAL),
    ("filter", "FORWARD", EXTERNAL),
    (
        "filter",
        "INPUT",
        "-m comment --comment \"kubernetes health check service ports\" -j KUBE-NODEPORTS",
    ),
    ("filter", "FORWARD", PORTALS),
    ("filter", "OUTPUT", PORTALS),
    (
        "filter",
        "FORWARD",
        "-m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD",
    ),
    ("filter", "INPUT", FIREWALL),
    ("filter", "OUTPUT", FIREWALL),
    ("filter", "FORWARD", FIREWALL),
    ("nat", "OUTPUT", SERVICES),
    ("nat", "PREROUTING", SERVICES),
    (
        "nat",
        "POSTROUTING",
        "-m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING",
    ),
];

const EXTERNAL: &str = "-m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" -j KUBE-EXTERNAL-SERVICES";
const PORTALS: &str = "-m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES";
const FIREWALL: &str = "-m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL";
const SERVICES: &str = "-m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES";

/// Jumps of the ipvs mode.
const IPVS_JUMPS: &[(&str, &str, &str)] = &[
    ("nat", "OUTPUT", SERVICES),
    ("nat", "PREROUTING", SERVICES),
    (
        "nat",
        "POSTROUTING",
        "-m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING",
    ),
    (
        "filter",
        "FORWARD",
        "-m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD",
    ),
    (
        "filter",
        "INPUT",
        "-m comment --comment \"kubernetes health check rules\" -j KUBE-NODE-PORT",
    ),
    ("filter", "INPUT", IPVS_FIREWALL),
    ("filter", "FORWARD", IPVS_FIREWALL),
    (
        "filter",
        "INPUT",
        "-m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-FILTER",
    ),
    (
        "filter",
        "OUTPUT",
        "-m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-OUT-FILTER",
    ),
];

const IPVS_FIREWALL: &str =
    "-m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL";

const NAT: &[&str] = &[
    "KUBE-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-POSTROUTING",
    "KUBE-MARK-MASQ",
    "KUBE-PROXY-CANARY",
];

const FILTER: &[&str] = &[
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-FORWARD",
    "KUBE-NODEPORTS",
    "KUBE-PROXY-FIREWALL",
    "KUBE-PROXY-CANARY",
];

const IPVS_NAT: &[&str] = &[
    "KUBE-SERVICES",
    "KUBE-POSTROUTING",
    "KUBE-NODE-PORT",
    "KUBE-LOAD-BALANCER",
    "KUBE-MARK-MASQ",
];

const IPVS_FILTER: &[&str] = &[
    "KUBE-FORWARD",
    "KUBE-NODE-PORT",
    "KUBE-PROXY-FIREWALL",
    "KUBE-SOURCE-RANGES-FIREWALL",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
];

/// Beginnings of the names of chains that are for one Service or endpoint.
pub(super) const HASHED: &[&str] = &[
    "KUBE-SVC-",
    "KUBE-SVL-",
    "KUBE-EXT-",
    "KUBE-FW-",
    "KUBE-SEP-",
];

fn iptables(command: &str) {
    delete_jumps(command, JUMPS);
    for (name, chains) in [("nat", NAT), ("filter", FILTER)] {
        let there = existing(command, name, |chain| {
            chains.contains(&chain)
                || name == "nat" && HASHED.iter().any(|start| chain.starts_with(start))
        });
        // All of a table or nothing: a chain that something else names keeps every other.
        let flushed = there.iter().map(|chain| format!(":{chain} - [0:0]\n"));
        let deleted = there.iter().map(|chain| format!("-X {chain}\n"));
        restore(command, name, &flushed.chain(deleted).collect::<String>());
    }
    try_run(&format!("{command} -w 5 -X KUBE-PROXY-CANARY -t mangle"));
}

fn ipvs() {
    try_run("ipvsadm -C");
    try_run("ip link delete kube-ipvs0");
    for command in ["iptables", "ip6tables"] {
        delete_jumps(command, IPVS_JUMPS);
        for (name, chains) in [("nat", IPVS_NAT), ("filter", IPVS_FILTER)] {
            let there = existing(command, name, |chain| chains.contains(&chain));
            let flushed = there.iter().map(|chain| format!(":{chain} - [0:0]\n"));
            restore(command, name, &flushed.collect::<String>());
            // Each in its own transaction: a chain that another rule refers to stays, the others go.
            for chain in there {
                restore(command, name, &format!("-X {chain}\n"));
            }
        }
    }
    let saved = run("ipset list -n");
    for set in saved.lines() {
        if set.starts_with("KUBE-") && !set.starts_with("KUBE-6-") {
            try_run(&format!("ipset destroy {set}"));
        }
    }
}

fn delete_jumps(command: &str, jumps: &[(&str, &str, &str)]) {
    let saved = run(&format!("{command}-save"));
    for table in Table::all(&saved) {
        let ours = jumps.iter().filter(|(name, _, _)| *name == table.name);
        let ours = ours.map(|(_, chain, rule)| format!("{chain} {rule}"));
        let there = ours.filter(|jump| table.rules.contains(jump.as_str()));
        let lines: Vec<String> = there.map(|jump| format!("-D {jump}\n")).collect();
        let lines = lines.concat();
        restore(command, table.name, &lines);
    }
}

/// The chains of a table that fit.
fn existing(command: &str, table: &str, fits: impl Fn(&str) -> bool) -> Vec<String> {
    let saved = run(&format!("{command}-save -t {table}"));
    let tables = Table::all(&saved).into_iter();
    let chains = tables.flat_map(|table| table.chains);
    chains
        .filter(|chain| fits(chain))
        .map(str::to_owned)
        .collect()
}

/// Changes a table, wholly or not at all.
fn restore(command: &str, table: &str, lines: &str) {
    if !lines.is_empty() {
        let text = format!("*{table}\n{lines}COMMIT\n");
        try_feed(&format!("{command}-restore -w 5 --noflush"), &text);
    }
}
