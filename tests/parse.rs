//! Parsers on the recorded nodes.

mod cluster;
mod iptables;
mod ipvs;
mod nftables;
mod node;
mod robust;
