//! What the nftables mode requires of a node.

use crate::backend::requirements::{By, Condition, Module, Setup, Sysctl, TCP_BE_LIBERAL, Want};
use crate::evidence::Kernel;

/// The oldest kernel that kube-proxy supports in nftables mode.
pub(in crate::backend) const OLDEST_KERNEL: Kernel = Kernel(5, 13);

/// Modules of the table's expressions.
pub(in crate::backend) const MODULES: &[Module] = &[
    Module::new("nf_tables", "the nftables table"),
    Module::new("nft_chain_nat", "NAT chains"),
    Module::new("nft_ct", "matches the state of connections"),
    Module::new("nft_fib", "matches addresses of the node"),
    Module::new("nft_fib_ipv4", "matches addresses of the node").when(Condition::Ipv4),
    Module::new("nft_fib_ipv6", "matches addresses of the node").when(Condition::Ipv6),
    Module::new("nft_masq", "masquerades"),
    Module::new("nft_nat", "translates to an endpoint"),
    Module::new("nft_numgen", "chooses an endpoint at random"),
    Module::new("nft_reject", "rejects packets"),
    Module::new("nft_reject_ipv4", "rejects packets").when(Condition::Ipv4),
    Module::new("nft_reject_ipv6", "rejects packets").when(Condition::Ipv6),
];

/// Returns the sysctls of the mode. kube-proxy sets none of its own; without a rule that drops invalid packets,
/// packets out of the TCP window reset connections unless conntrack accepts them.
pub(crate) fn sysctls(setup: &Setup<'_>) -> Vec<Sysctl> {
    let set = setup.config.map(|config| config.conntrack.tcp_be_liberal);
    let liberal = Sysctl {
        key: TCP_BE_LIBERAL,
        want: Want::Is(1),
        by: By::Advice,
        purpose: "keeps out-of-window packets from resetting connections",
    };
    (set == Some(false))
        .then_some(liberal)
        .into_iter()
        .collect()
}
