//! What the iptables mode requires of a node.

use crate::backend::requirements::{By, Condition, Module, Sysctl, Want};
use crate::cluster::release::Change;

/// Modules of the matches and targets in the rules of iptables and ipvs mode.
pub(in crate::backend) const RULES: &[Module] = &[
    Module::new("ipt_REJECT", "rejects packets").when(Condition::Ipv4),
    Module::new("ip6t_REJECT", "rejects packets").when(Condition::Ipv6),
    Module::new("xt_MASQUERADE", "masquerades"),
    Module::new("xt_addrtype", "matches addresses of the node"),
    Module::new("xt_comment", "names Services in comments of rules"),
    Module::new("xt_conntrack", "matches the state of connections"),
    Module::new("xt_mark", "marks packets to masquerade"),
];

/// Modules of the matches and targets in the rules of iptables mode alone.
pub(in crate::backend) const MODULES: &[Module] = &[
    Module::new("xt_nat", "translates to an endpoint"),
    Module::new("xt_nfacct", "counts dropped packets")
        .when(Condition::Since(Change::NfacctCounters)),
    Module::new("xt_recent", "remembers clients").when(Condition::SessionAffinity),
    Module::new("xt_statistic", "chooses an endpoint at random"),
];

/// Returns the sysctls that kube-proxy's `NewProxier` sets in iptables mode.
pub(crate) fn sysctls(localhost_node_ports: bool) -> Vec<Sysctl> {
    let localnet = Sysctl {
        key: "net.ipv4.conf.all.route_localnet",
        want: Want::Is(1),
        by: By::KubeProxy,
        purpose: "lets NodePorts answer on 127.0.0.1",
    };
    localhost_node_ports
        .then_some(localnet)
        .into_iter()
        .collect()
}
