//! A migration that is resumed after others changed kube-proxy or its configuration.

use kpx_migrate::migration::Stage;
use kpx_node::cluster::edit;

use super::machine::CONFIG;
use super::*;

/// Returns a node between iptables and nftables whose kpx was killed as soon as it waited, in direction `leg`, for kube-proxy.
fn verifying(leg: Leg) -> Place {
    let (from, to) = (Mode::Iptables, Mode::Nftables);
    let migration = migration(from, to, Strategy::usual(from, to));
    let mut first = Place::new(Machine::new(SMALL, from), &migration);
    if leg == Leg::Back {
        assert_eq!(first.go_on(false), Some(Ended::Migrated));
    }
    let killed = (0..).map(|life| {
        let mut place = first.clone();
        place.life = Some(life);
        place.go_on(leg == Leg::Back);
        place.life = None;
        place
    });
    let waits = |place: &Place| {
        let state = journal::read(&place.journal).unwrap();
        state.leg == leg && state.next() == Some(Stage::Verify) && state.begun
    };
    killed.into_iter().find(waits).unwrap()
}

#[test]
fn a_kube_proxy_that_is_older_than_its_configuration_is_restarted_again() {
    for (leg, mode, other) in [
        (Leg::Back, Mode::Iptables, Mode::Nftables),
        (Leg::There, Mode::Nftables, Mode::Iptables),
    ] {
        let mut place = verifying(leg);
        let machine = &mut place.machine;
        let text = machine.files.values().next().unwrap().clone();
        machine.restart_as(other);
        machine.files.insert(CONFIG.into(), text);
        let ended = place.go_on(leg == Leg::Back).unwrap();
        assert!(
            matches!(ended, Ended::Migrated | Ended::RolledBack(_)),
            "{ended:?}"
        );
        assert_eq!(place.machine.proxy.mode, mode);
        assert_eq!(place.machine.faults(mode), Vec::<String>::new());
    }
}

#[test]
fn a_configuration_that_is_set_back_is_not_waited_for() {
    let mut place = verifying(Leg::There);
    let began = place.clock;
    let text = place.machine.files.values_mut().next().unwrap();
    *text = edit::set(text, &fields(Mode::Iptables)).unwrap();
    let Some(Ended::RolledBack(why)) = place.go_on(false) else {
        panic!("{}", place.journal);
    };
    assert!(why.contains("set it back"), "{why}");
    assert!(place.clock - began < 30, "{}", place.clock - began);
    let faults = place.machine.faults(Mode::Iptables);
    assert_eq!(faults, Vec::<String>::new());
}
