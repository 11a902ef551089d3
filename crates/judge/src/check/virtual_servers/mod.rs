//! VS: the tables of IPVS.

mod drift;
mod foreign;
mod node_ports;
mod table;

use super::Check;

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[
    drift::CHECKS,
    foreign::CHECKS,
    node_ports::CHECKS,
    table::CHECKS,
];
