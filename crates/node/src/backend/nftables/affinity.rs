//! Clients that stay with their endpoint: a chain and a set for each endpoint, as kube-proxy writes them.

use std::net::SocketAddr;

use super::build::{
    address, by_index, equals, goto, meta, named, number, payload, protocol, random,
};
use super::expect::address_type;
use super::model::{Datum, NatKind, Set, Statement, Verdict};
use super::names;
use super::table_builder::Draft;
use crate::desired::ServicePort;
use crate::net::Family;

/// Returns the names of the chain and of the affinity set of an endpoint.
pub fn chain_and_set(port: &ServicePort, addr: SocketAddr) -> (String, String) {
    let base = names::endpoint(
        &port.namespace,
        &port.service,
        port.proto,
        &port.port_name,
        addr,
    );
    (format!("endpoint-{base}"), format!("affinity-{base}"))
}

/// Returns the rules that send a client to its endpoint, and a new one to any of `endpoints`.
pub fn choice(
    family: Family,
    port: &ServicePort,
    endpoints: impl ExactSizeIterator<Item = SocketAddr>,
) -> Vec<Vec<Statement>> {
    let count = endpoints.len();
    let targets: Vec<_> = endpoints.map(|addr| chain_and_set(port, addr)).collect();
    let known = targets.iter().map(|(chain, set)| {
        let known = equals(payload(family.nft_name(), "saddr"), named(set));
        vec![known, goto(chain)]
    });
    let mut rules: Vec<_> = known.collect();
    let chains = targets.iter().map(|(chain, _)| chain.clone());
    rules.push(vec![Statement::Vmap {
        key: random(count),
        data: by_index(chains, |chain| Datum::Verdict(Verdict::Goto(chain))),
    }]);
    rules
}

/// Adds to the existing chain of an endpoint the rules that record the client, for session affinity, and translate.
pub fn endpoint(draft: &mut Draft, family: Family, port: &ServicePort, addr: SocketAddr) {
    let (chain, set) = chain_and_set(port, addr);
    if let Some(seconds) = port.affinity {
        let update = Statement::SetOp {
            op: "update".to_owned(),
            set: set.clone(),
            elem: payload(family.nft_name(), "saddr"),
            value: None,
            timeout: None,
            run: Vec::new(),
        };
        draft.rule(&chain, vec![update], None);
        draft.set(Set {
            name: set,
            key: vec![address_type(family).to_owned()],
            flags: vec!["dynamic".to_owned(), "timeout".to_owned()],
            timeout: Some(u64::from(seconds)),
            ..Set::default()
        });
    }
    let statements = vec![
        equals(meta("l4proto"), protocol(port.proto)),
        Statement::Nat {
            kind: NatKind::Dnat,
            family: None,
            addr: Some(address(addr.ip())),
            port: Some(number(addr.port())),
            flags: Vec::new(),
        },
    ];
    draft.rule(&chain, statements, None);
}
