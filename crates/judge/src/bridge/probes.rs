//! Probes of kube-proxy's own rules pass the bridge: it would answer in their place.
//!
//! A set of the bridge's table holds the clients of probes, each with a timeout. The base chains skip their packets.

use std::net::SocketAddr;

use super::TABLE;
use kpx_node::backend::nftables::build::{address, equals, meta, named, number, payload, protocol};
use kpx_node::backend::nftables::expect::address_type;
use kpx_node::backend::nftables::model::{Expr, Set, Statement, Verdict};
use kpx_node::backend::nftables::print;
use kpx_node::net::{Family, Proto};

/// The name of the set.
pub const SET: &str = "probes";

/// How long a probe's packets pass the bridge, in seconds.
const TIME: u64 = 10;

/// Returns the set, without a probe.
pub(super) fn set(family: Family) -> Set {
    let key = [address_type(family), "inet_proto", "inet_service"];
    Set {
        name: SET.to_owned(),
        key: key.map(str::to_owned).to_vec(),
        flags: vec!["timeout".to_owned()],
        ..Set::default()
    }
}

/// Returns the rule that skips packets of probes.
pub(super) fn rule(family: Family) -> Vec<Statement> {
    let client = Expr::Concat(vec![
        payload(family.nft_name(), "saddr"),
        meta("l4proto"),
        payload("th", "sport"),
    ]);
    vec![
        equals(client, named(SET)),
        Statement::Verdict(Verdict::Return),
    ]
}

/// Returns the input of `nft -f` that lets the packets of `client` pass the loaded bridge for ten seconds.
pub fn pass(client: SocketAddr, proto: Proto) -> String {
    let family = Family::of(client.ip()).nft_name();
    let key = Expr::Concat(vec![
        address(client.ip()),
        protocol(proto),
        number(client.port()),
    ]);
    let key = print::expr(&key);
    format!("add element {family} {TABLE} {SET} {{ {key} timeout {TIME}s }}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_of_either_family_passes() {
        let of = |client: &str| pass(client.parse().unwrap(), Proto::Tcp);
        assert_eq!(
            of("10.244.1.5:40000"),
            "add element ip kpx-bridge probes { 10.244.1.5 . tcp . 40000 timeout 10s }\n"
        );
        assert_eq!(
            of("[fd00::5]:40000"),
            "add element ip6 kpx-bridge probes { fd00::5 . tcp . 40000 timeout 10s }\n"
        );
    }
}
