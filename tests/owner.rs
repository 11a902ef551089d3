//! Owners of chains and addresses, on the recorded nodes.

use kpx_node::backend::Mode;
use kpx_node::evidence::{self, Evidence, ITEMS, Item};
use kpx_node::net::{Family, Proto};
use kpx_node::node::mode::Kind;
use kpx_node::node::{IptablesBackend, NodeSnapshot};
use kpx_node::owner::chain_owner::{Maker, hashed, maker_of_chain};
use kpx_node::owner::{Owner, Owners, Source};

use crate::support::{recordings, root};

fn evidence(name: &str) -> Evidence {
    evidence::load(&root().join("testdata/nodes").join(name), ITEMS).unwrap()
}

fn without_api(name: &str) -> Evidence {
    let items: Vec<Item> = ITEMS
        .iter()
        .copied()
        .filter(|item| !item.file().starts_with("cluster/"))
        .collect();
    evidence(name).only(&items)
}

#[test]
fn every_chain_of_every_recording_has_a_maker() {
    for name in recordings() {
        let evidence = evidence(&name);
        let node = NodeSnapshot::new(&evidence);
        for family in Family::BOTH {
            let Ok(rules) = node.iptables(IptablesBackend::InUse, family) else {
                continue;
            };
            for table in &rules.tables {
                for chain in &table.chains {
                    let maker = maker_of_chain(&table.name, &chain.name);
                    assert_ne!(
                        maker,
                        Maker::Unknown,
                        "{name}: {} {}",
                        table.name,
                        chain.name
                    );
                }
            }
        }
    }
}

#[test]
fn objects_and_rules_show_the_same_service_for_every_hashed_chain() {
    for name in [
        "full-iptables",
        "full-iptables-v1.30",
        "dual-iptables",
        "seed-iptables",
    ] {
        let whole = evidence(name);
        let bare = without_api(name);
        let (whole, bare) = (NodeSnapshot::new(&whole), NodeSnapshot::new(&bare));
        let (api, rules) = (Owners::new(&whole), Owners::new(&bare));
        assert_eq!((api.source, rules.source), (Source::Api, Source::Rules));
        let mut count = 0;
        for family in Family::BOTH {
            let nat = whole.iptables(IptablesBackend::InUse, family).unwrap();
            for chain in nat.table("nat").map_or(&[][..], |nat| &nat.chains) {
                if hashed(&chain.name).is_none() {
                    continue;
                }
                count += 1;
                let by_api = api.chain(&chain.name);
                assert!(!matches!(by_api, Owner::Gone(_)), "{name}: {}", chain.name);
                let port = by_api.port().map(|port| &port.name);
                let by_rules = rules.chain(&chain.name).port().map(|port| &port.name);
                assert_eq!(port, by_rules, "{name}: {}", chain.name);
            }
        }
        assert!(count > 5, "{name} has {count} chains of Services");
    }
}

#[test]
fn the_service_of_an_address_a_node_port_and_an_endpoint_is_found() {
    let evidence = evidence("full-iptables");
    let node = NodeSnapshot::new(&evidence);
    let owners = Owners::new(&node);
    let (port, role) = owners
        .at("203.0.113.11".parse().unwrap(), 443, Proto::Tcp)
        .unwrap();
    assert_eq!(port.name.to_string(), "edge/web-restricted:https");
    assert_eq!(role.to_string(), "load-balancer IP");
    let port = owners.node_port(30555, Proto::Tcp).unwrap();
    assert_eq!(port.name.to_string(), "shop/empty-np:http");
    let any = owners
        .ports()
        .iter()
        .find(|port| !port.endpoints.is_empty());
    let any = any.unwrap();
    let (_, endpoint) = owners.endpoint(any.endpoints[0].addr, any.proto).unwrap();
    assert_eq!(endpoint.addr, any.endpoints[0].addr);
}

#[test]
fn leftovers_of_iptables_mode_are_found() {
    let evidence = evidence("leftover-iptables-to-ipvs");
    let node = NodeSnapshot::new(&evidence);
    let modes = node.modes();
    assert_eq!(modes.current(), Some(Mode::Ipvs));
    assert_eq!(modes.observed(), Some(Mode::Ipvs));
    let chains = modes.leftovers.iter().find(|left| {
        left.mode == Mode::Iptables && left.kind == Kind::Chains && left.family == Some(Family::V4)
    });
    let chains = chains.unwrap();
    assert!(
        chains
            .names
            .iter()
            .any(|name| name == "filter KUBE-SERVICES")
    );
    assert!(!chains.names.iter().any(|name| name == "nat KUBE-SERVICES"));
    assert!(chains.rules > 100, "{} rules", chains.rules);
}

#[test]
fn a_node_that_ran_in_one_mode_only_has_no_leftovers() {
    for (name, mode) in [
        ("full-iptables", Mode::Iptables),
        ("full-iptables-v1.30", Mode::Iptables),
        ("full-ipvs", Mode::Ipvs),
        ("full-ipvs-v1.30", Mode::Ipvs),
        ("seed-iptables", Mode::Iptables),
    ] {
        let evidence = evidence(name);
        let node = NodeSnapshot::new(&evidence);
        let modes = node.modes();
        assert_eq!(modes.observed(), Some(mode), "{name}");
        assert_eq!(modes.leftovers, [], "{name}");
    }
}
