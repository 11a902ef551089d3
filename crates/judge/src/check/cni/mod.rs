//! CN: the network plugin.

mod aws;
mod calico;
mod ebpf;
mod leftovers;
mod plugins;
mod sources;
mod tunnels;

use super::Check;
pub(super) use plugins::taken_by_dns;

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[
    aws::CHECKS,
    calico::CHECKS,
    ebpf::CHECKS,
    leftovers::CHECKS,
    plugins::CHECKS,
    sources::CHECKS,
    tunnels::CHECKS,
];
