//! The expected loss of a migration and of a plain restart.

use kpx_migrate::drain::Gauge;
use kpx_migrate::loss::{Established, New, expect, plain};
use kpx_migrate::migration::Strategy;
use kpx_node::backend::Mode;
use kpx_node::evidence::{Evidence, ITEMS, Item, load};
use kpx_node::node::NodeSnapshot;

use super::migration;
use crate::support::root;

fn recording(name: &str) -> Evidence {
    load(&root().join("testdata/nodes").join(name), ITEMS).unwrap()
}

#[test]
fn without_open_connections_none_break() {
    let mut evidence = recording("full-ipvs");
    let header = "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires\n";
    evidence.insert(Item::IpvsConnections, Ok(header.to_owned()));
    let node = NodeSnapshot::new(&evidence);
    for to in [Mode::Iptables, Mode::Nftables] {
        let desired = node.desired(to).unwrap();
        let restart = plain(&node, desired, Mode::Ipvs, to);
        assert_eq!(restart.established, Established::None);
        // Modes iptables and ipvs do not delete each other's rules.
        assert_eq!(restart.unserved_seconds > 0, to == Mode::Nftables);
        for strategy in Strategy::ALL {
            let loss = expect(&node, desired, &migration(Mode::Ipvs, to, strategy));
            assert_eq!(loss.established, Established::None, "{strategy}");
            assert_eq!(loss.new, New::Kept, "{strategy}");
            let followed = strategy == Strategy::Bridge;
            assert_eq!(loss.unfollowed_seconds == 0, followed, "{strategy}");
        }
    }
}

#[test]
fn open_connections_break_unless_they_are_drained() {
    let evidence = recording("faults-setup");
    let node = NodeSnapshot::new(&evidence);
    let of = |to, strategy| {
        let desired = node.desired(to).unwrap();
        let loss = expect(&node, desired, &migration(Mode::Ipvs, to, strategy));
        match loss.established {
            Established::AfterDrain(gauge) => ("drain", gauge.count),
            Established::All(gauge) => ("all", gauge.count),
            other => panic!("{other:?}"),
        }
    };
    let (bridge, in_place) = (Strategy::Bridge, Strategy::InPlace);
    assert_eq!(of(Mode::Nftables, bridge), ("drain", 2100));
    assert_eq!(of(Mode::Iptables, bridge), ("drain", 2100));
    assert_eq!(of(Mode::Iptables, in_place), ("drain", 2100));
    // kube-proxy in mode nftables deletes virtual servers when it starts.
    assert_eq!(of(Mode::Nftables, in_place), ("all", 2100));
}

/// kube-proxy takes three seconds to start; its first sync takes as long as a full one did.
#[test]
fn the_seconds_are_those_of_the_start_and_of_the_first_sync() {
    let (bridge, in_place) = (Strategy::Bridge, Strategy::InPlace);
    for (name, from, to, strategy, new, unfollowed) in [
        (
            "full-iptables",
            Mode::Iptables,
            Mode::Nftables,
            in_place,
            New::Kept,
            13,
        ),
        (
            "full-iptables",
            Mode::Iptables,
            Mode::Nftables,
            bridge,
            New::Kept,
            0,
        ),
        (
            "userspace-1.25",
            Mode::Userspace,
            Mode::Iptables,
            in_place,
            New::Refused(13),
            13,
        ),
        (
            "userspace-1.25",
            Mode::Userspace,
            Mode::Iptables,
            bridge,
            New::Kept,
            0,
        ),
    ] {
        let mut evidence = recording(name);
        let metric = "kubeproxy_sync_full_proxy_rules_duration_seconds";
        let metrics = format!(
            "{metric}_sum{{ip_family=\"IPv4\"}} 20\n{metric}_count{{ip_family=\"IPv4\"}} 2\n"
        );
        evidence.insert(Item::Metrics, Ok(metrics));
        let node = NodeSnapshot::new(&evidence);
        let desired = node.desired(to).unwrap();
        let loss = expect(&node, desired, &migration(from, to, strategy));
        let found = (loss.new, loss.unfollowed_seconds);
        assert_eq!(found, (new, unfollowed), "{from} to {to} {strategy}");
    }
}

#[test]
fn connections_of_hosts_are_at_risk_where_their_packets_look_like_those_of_pods() {
    let evidence = recording("full-iptables");
    let node = NodeSnapshot::new(&evidence);
    for (to, strategy, new) in [
        (Mode::Ipvs, Strategy::InPlace, New::HostsAtRisk),
        (Mode::Ipvs, Strategy::DrainNode, New::HostsAtRisk),
        // There, their source is an address of the node.
        (Mode::Ipvs, Strategy::Bridge, New::Kept),
        (Mode::Nftables, Strategy::InPlace, New::Kept),
    ] {
        let mut desired = node.desired(to).unwrap().clone();
        desired.masquerade_all = false;
        for state in &mut desired.families {
            state.detector = None;
        }
        let loss = expect(&node, &desired, &migration(Mode::Iptables, to, strategy));
        assert_eq!(loss.new, new, "{to} {strategy}");
    }
}

/// In mode userspace, kube-proxy's process carries every connection to a Service.
#[test]
fn connections_that_the_process_carries_end_with_it() {
    let evidence = recording("userspace-1.25");
    let node = NodeSnapshot::new(&evidence);
    let desired = node.desired(Mode::Iptables).unwrap();
    let all = Gauge::carried(&node, desired, &[]).unwrap();
    assert_eq!(all.count, 2, "{all:?}");
    let restart = plain(&node, desired, Mode::Userspace, Mode::Iptables);
    assert_eq!(restart.established, Established::All(all));
    let clients = node.conntrack().unwrap().entries.iter();
    let clients: Vec<_> = clients.map(|client| client.original.source.ip()).collect();
    let gauge = Gauge::carried(&node, desired, &clients).unwrap();
    assert_eq!(gauge, Gauge::default());
    let mut closed = evidence.clone();
    let table = evidence.text(Item::Conntrack).unwrap();
    closed.insert(
        Item::Conntrack,
        Ok(table.replace("ESTABLISHED", "TIME_WAIT")),
    );
    let node = NodeSnapshot::new(&closed);
    let restart = plain(&node, desired, Mode::Userspace, Mode::Iptables);
    assert_eq!(restart.established, Established::None);
}
