//! Parsers against the recorded nodes.

mod iptables;
mod ipvs;
mod node;
mod robust;
