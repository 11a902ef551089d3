//! No parser panics on any input.

use kpx_node::evidence::{Evidence, ITEMS, Item};
use kpx_node::net::Family;
use kpx_node::node::{IptablesBackend, NodeSnapshot};
use proptest::prelude::*;

use crate::support::{recorded, recordings};

/// Runs the parser of `item` on `text` and ignores the result.
fn parse(item: Item, text: &str) -> bool {
    let mut evidence = Evidence::default();
    evidence.insert(item, Ok(text.to_owned()));
    let node = NodeSnapshot::new(&evidence);
    match item {
        Item::Iptables4 => node.iptables(IptablesBackend::InUse, Family::V4).is_ok(),
        Item::Iptables6 => node.iptables(IptablesBackend::InUse, Family::V6).is_ok(),
        Item::Nft | Item::NftText => node.nft().is_ok(),
        Item::Ipset => node.ipset().is_ok(),
        Item::Ipvs | Item::IpvsSave => node.ipvs().is_ok(),
        Item::IpvsStats | Item::IpvsTimeout => {
            let save = "-A -t 203.0.113.10:80 -s rr\n".to_owned();
            let mut evidence = evidence.clone();
            evidence.insert(Item::IpvsSave, Ok(save));
            NodeSnapshot::new(&evidence).ipvs().is_ok()
        }
        Item::IpvsConnections => node.ipvs_connections().is_ok(),
        Item::Addresses => node.addresses().is_ok(),
        Item::Links => node.links().is_ok(),
        Item::Routes => node.routes().is_ok(),
        Item::Rules => node.rules().is_ok(),
        Item::NeighbourTable => node.neighbour_table().is_ok(),
        Item::Tc => node.tc().is_ok(),
        Item::Bpf => node.bpf().is_ok(),
        Item::PodNetworks => node.pod_networks().is_ok(),
        Item::XfrmPolicies => node.xfrm().is_ok(),
        Item::XfrmStates => node.xfrm_states().is_ok(),
        Item::Arptables => node.arptables().is_ok(),
        Item::HeldSockets => node.held_sockets().is_ok(),
        Item::Sockets | Item::Tcp4 | Item::Tcp6 | Item::Udp4 | Item::Udp6 => node.sockets().is_ok(),
        Item::Sysctl => node.sysctl().is_ok(),
        Item::Modules
        | Item::ModulesBuiltin
        | Item::ModulesDep
        | Item::ModulesLoad
        | Item::Modprobe => node.modules().is_ok(),
        Item::Conntrack => node.conntrack().is_ok(),
        Item::Processes => node.processes().is_ok(),
        Item::Migration => node.migration().is_ok(),
        Item::ProxyConfig => node.proxy_config().is_ok(),
        Item::Healthz => node.health().is_ok(),
        Item::Metrics => node.metrics().is_ok(),
        Item::Services => node.services().is_ok(),
        Item::EndpointSlices => node.slices().is_ok(),
        Item::Nodes => node.nodes().is_ok(),
        Item::ConfigMaps => node.config_maps().is_ok(),
        Item::DaemonSets => node.daemon_sets().is_ok(),
        Item::Pods => node.pods().is_ok(),
        _ => false,
    }
}

/// The recorded text of every item, from one node per mode; the first 20,000 characters of each.
fn texts() -> Vec<(Item, String)> {
    let mut texts = Vec::new();
    for name in ["dual-ipvs", "dual-nftables", "full-iptables"] {
        for &item in ITEMS {
            if let Some(mut text) = recorded(name, item.file()) {
                let end = (0..=text.len().min(20_000)).rev();
                let end = end.into_iter().find(|&at| text.is_char_boundary(at));
                text.truncate(end.unwrap_or(0));
                texts.push((item, text));
            }
        }
    }
    texts
}

#[test]
fn truncated_text_causes_no_panic() {
    let texts = texts();
    assert!(texts.len() > 60 && recordings().len() > 20);
    for (item, text) in &texts {
        let step = (text.len() / 40).max(1);
        for at in (0..text.len())
            .step_by(step)
            .filter(|&at| text.is_char_boundary(at))
        {
            let _ = parse(*item, &text[..at]);
            let _ = parse(*item, &text[at..]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_text_causes_no_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        length in 1..6000_usize,
    ) {
        thread_local!(static TEXTS: Vec<(Item, String)> = texts());
        TEXTS.with(|texts| for (item, text) in texts {
            let mut bytes = text.as_bytes()[..length.min(text.len())].to_vec();
            if bytes.is_empty() {
                continue;
            }
            for (at, byte) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            let _ = parse(*item, &String::from_utf8_lossy(&bytes));
        });
    }

    #[test]
    fn arbitrary_text_causes_no_panic(text in "[ -~\\n\"\\[\\]{}:,é]{0,200}") {
        for &item in ITEMS {
            let _ = parse(item, &text);
        }
    }
}
