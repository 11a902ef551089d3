//! Parsers against the recorded nodes.

mod iptables;
