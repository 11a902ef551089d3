//! Portals of the userspace mode: the kernel leads packets to a listener at the port that a trace names.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};

use kpx_judge::trace::{Carried, Effect, Flow, Outcome, Verdict, World};
use kpx_node::backend::iptables::portals::{PORTALS, portals};
use kpx_node::evidence::Item;
use kpx_node::net::{Family, Proto};
use kpx_node::node::{IptablesBackend, NodeSnapshot};

use super::network::Network;
use super::recording::{Recording, Store};
use super::send::{Order, Seen, Sender};

const ITEMS: &[Item] = &[
    Item::IptablesVersion,
    Item::Iptables4,
    Item::Nft,
    Item::Addresses,
    Item::Links,
    Item::Routes,
    Item::Rules,
    Item::Sysctl,
];

/// Returns where a portal on the way of `outcome` leads, if there is one.
fn portal(outcome: &Outcome) -> Option<SocketAddr> {
    outcome.hops.iter().find_map(|hop| match hop.effect {
        Effect::Dnat { address, port } if PORTALS.contains(&hop.chain.as_str()) => {
            Some(SocketAddr::new(address, port))
        }
        _ => None,
    })
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn host_the_kernel_leads_portals_to_the_port_that_a_trace_names() {
    let mut chains = BTreeSet::new();
    for (store, bridged) in [(Store::Nft, true), (Store::Legacy, false)] {
        let recording = Recording::named("userspace-1.25");
        let network = Network::new(&recording, bridged);
        recording.restore_iptables(&network.node, store);
        let mut evidence = network.node.collect(ITEMS).await;
        for (item, file) in [
            (Item::Services, "cluster/services.json"),
            (Item::EndpointSlices, "cluster/endpointslices.json"),
            (Item::Nodes, "cluster/nodes.json"),
        ] {
            evidence.insert(item, Ok(recording.text(file)));
        }
        let node = NodeSnapshot::new(&evidence);
        let rules = node.iptables(IptablesBackend::InUse, Family::V4).unwrap();
        let ports: BTreeSet<u16> = portals(rules)
            .filter(|portal| portal.proto == Proto::Tcp)
            .map(|portal| portal.proxy_port)
            .collect();
        assert!(ports.len() > 5, "{ports:?}");
        // The place of kube-proxy's process.
        let listeners: Vec<TcpListener> = network.node.inside(|| {
            let listen = |port: &u16| TcpListener::bind(("0.0.0.0", *port)).unwrap();
            ports.iter().map(listen).collect()
        });
        let world = World::whole(&node, Family::V4);
        let mut orders = Vec::new();
        let mut said = Vec::new();
        let targets = recording.targets();
        let targets = targets.into_iter().filter(|target| {
            target.proto == Proto::Tcp && target.port != 0 && target.addr.is_ipv4()
        });
        for target in targets {
            for source in network.sources(&target) {
                let outcomes = world
                    .walk(&Flow {
                        entry: source.entry(),
                        source: source.addr,
                        destination: target.addr,
                        port: target.port,
                        mark: 0,
                        carried: Carried::default(),
                        proto: target.proto,
                        established: false,
                    })
                    .unwrap();
                let Some(to) = outcomes.first().and_then(portal) else {
                    continue;
                };
                for outcome in &outcomes {
                    assert_eq!(portal(outcome), Some(to), "{target:?}");
                    let ends = outcome.verdict;
                    let known = matches!(ends, Verdict::Deliver | Verdict::Reject);
                    assert!(known, "{target:?}: {ends:?}: {}", outcome.reason);
                    let hops = outcome.hops.iter().map(|hop| hop.chain.clone());
                    chains.extend(hops.filter(|chain| chain.starts_with("KUBE-")));
                }
                said.push(to);
                orders.push(Order {
                    source,
                    target: target.clone(),
                    count: 1,
                });
            }
        }
        assert!(orders.len() > 40, "{}", orders.len());
        let sent = Sender::new(&network).send(&orders);
        for ((order, to), sent) in orders.iter().zip(&said).zip(&sent) {
            let Seen::Through { to: seen, .. } = sent[0].seen else {
                panic!("{order:?}: {:?}, instead of {to}", sent[0].seen);
            };
            assert_eq!(seen, *to, "{order:?}");
        }
        drop(listeners);
    }
    for chain in PORTALS {
        assert!(chains.contains(chain), "{chain}: {chains:?}");
    }
}
