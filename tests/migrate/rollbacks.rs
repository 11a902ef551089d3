//! What rolls a migration back, and how that ends.

use kpx_migrate::engine::Ended;
use kpx_migrate::journal::{self, Entry, Recorded};
use kpx_migrate::migration::{Leg, Stage};
use kpx_node::action::Action;
use kpx_node::backend::Mode;
use kpx_node::evidence::Time;

use super::{CIRCLE, bound, directions, is_back, line};

#[test]
#[ignore = "takes long: make test-loops"]
fn gates_that_time_out_roll_back() {
    for (from, to) in directions() {
        let mut place = bound(from, to);
        let before = place.machine.clone();
        place.machine.proxy.broken = vec![to];
        let Some(Ended::RolledBack(why)) = place.go_on(false) else {
            panic!("{from} to {to}");
        };
        assert!(why.contains("after 30 s"), "{why}");
        place.machine.proxy.broken.clear();
        is_back(&place, &before, from);

        let mut place = bound(from, to);
        place.silent = vec![to];
        let Some(Ended::RolledBack(why)) = place.go_on(false) else {
            panic!("{from} to {to}");
        };
        assert!(
            why.contains("default/kubernetes:https (tcp 10.96.0.1:443): no answer"),
            "{why}"
        );
        // A rollback does not forget what failed.
        let observed = journal::read(&place.journal).unwrap().observed;
        assert!(observed.failed_probes > 1, "{observed:?}");
        is_back(&place, &before, from);
    }
}

/// kube-proxy's rules are complete, and something before them misleads packets.
#[test]
#[ignore = "takes long: make test-loops"]
fn a_service_that_something_else_answers_rolls_back() {
    misled_services_roll_back(CIRCLE);
}

pub(crate) fn misled_services_roll_back(directions: impl IntoIterator<Item = (Mode, Mode)>) {
    for (from, to) in directions {
        let mut place = bound(from, to);
        let before = place.machine.clone();
        place.misled = vec![to];
        let ended = place.go_on(false);
        // In mode userspace, kube-proxy itself answers.
        if to == Mode::Userspace {
            assert_eq!(ended, Some(Ended::Migrated));
            continue;
        }
        let Some(Ended::RolledBack(why)) = ended else {
            panic!("{from} to {to}: {ended:?}");
        };
        let words = "default/kubernetes:https (tcp 10.96.0.1:443): misled: 10.0.2.77:8443 answered";
        assert!(why.contains(words), "{why}");
        is_back(&place, &before, from);

        // Who answers is not known at all.
        let mut place = bound(from, to);
        place.untracked = vec![to];
        let Some(Ended::RolledBack(why)) = place.go_on(false) else {
            panic!("{from} to {to}");
        };
        assert!(why.contains("who answered is unknown: "), "{why}");
    }
}

#[test]
fn a_step_that_is_refused_rolls_back() {
    for refused in ["ipset restore", "ipvsadm", "ip addr add", "cat > /etc"] {
        let mut place = bound(Mode::Iptables, Mode::Ipvs);
        let before = place.machine.clone();
        place.refused = Some(refused);
        let ended = place.go_on(false);
        if refused == "ipvsadm" {
            // The tool refuses the undo of a partial step as well.
            assert!(matches!(ended, Some(Ended::Stopped(_))), "{ended:?}");
            let why = journal::read(&place.journal).unwrap().why.unwrap();
            let left = ": because; step 3 was not undone: because";
            assert!(why.ends_with(left), "{why}");
            place.refused = None;
            assert!(matches!(place.go_on(false), Some(Ended::RolledBack(_))));
        } else {
            let Some(Ended::RolledBack(why)) = ended else {
                panic!("{refused}: {ended:?}");
            };
            assert!(why.ends_with(": because"), "{why}");
            // kube-proxy cannot have caused that a file is not written.
            assert_eq!(place.again == 0, refused == "cat > /etc", "{refused}");
        }
        place.refused = None;
        is_back(&place, &before, Mode::Iptables);
        // Where the configuration was not changed yet, kube-proxy is not restarted.
        let restarts = place.journal.contains("\"restart\"");
        assert_eq!(
            restarts,
            refused == "cat > /etc",
            "{refused}: {}",
            place.journal
        );
    }
}

#[test]
fn a_bundle_or_a_controller_of_the_bridge_that_fails_rolls_back() {
    for (refused, title) in [
        ("backup", "back up the node's state"),
        ("guard", "load the bridge"),
        ("follow", "load the bridge"),
    ] {
        let mut place = bound(Mode::Iptables, Mode::Nftables);
        let before = place.machine.clone();
        place.refused = Some(refused);
        let why = format!("cannot {title}: no {refused} here");
        assert_eq!(place.go_on(false), Some(Ended::RolledBack(why)));
        is_back(&place, &before, Mode::Iptables);
    }
    let mut place = bound(Mode::Iptables, Mode::Nftables);
    assert_eq!(place.go_on(false), Some(Ended::Migrated));
    let state = journal::read(&place.journal).unwrap();
    // The kube-proxy before the restart.
    assert_eq!(state.proxy.and_then(|proxy| proxy.pid), Some(101));
    let [note] = state.notes.as_slice() else {
        panic!("{:?}", state.notes);
    };
    assert!(note.starts_with("gate log was skipped: "), "{note}");
    let mut lines = place.journal.lines();
    let line = lines.find(|line| line.contains("gate log")).unwrap();
    assert!(line.contains("\"stage\":\"verify\""), "{line}");
}

#[test]
fn a_module_that_is_in_use_does_not_stop_a_rollback() {
    let mut place = bound(Mode::Iptables, Mode::Ipvs);
    let names = vec!["ip_vs".to_owned()];
    let loaded = Recorded {
        title: "load 1 module for mode ipvs".to_owned(),
        action: Action::LoadModules {
            names: names.clone(),
        },
        undo: Some(Action::UnloadModules { names }),
    };
    let (at, leg) = (Time { seconds: 0 }, Leg::There);
    for (stage, steps) in [(Stage::Backup, Vec::new()), (Stage::Prepare, vec![loaded])] {
        let begins = Entry::Stage {
            at,
            leg,
            stage,
            steps,
            proxy: None,
        };
        let done = Entry::Done {
            at,
            leg,
            stage,
            notes: Vec::new(),
        };
        place.journal.push_str(&(line(&begins) + &line(&done)));
    }
    place.backed_up = true;
    place.refused = Some("rmmod ip_vs");
    let before = place.machine.clone();
    let ended = Ended::RolledBack("requested".to_owned());
    assert_eq!(place.go_on(true), Some(ended));
    assert_eq!(journal::read(&place.journal).unwrap().notes, ["because"]);
    is_back(&place, &before, Mode::Iptables);
}

#[test]
#[ignore = "takes long: make test-loops"]
fn an_ended_migration_can_be_rolled_back_and_that_may_be_interrupted() {
    rollbacks_may_be_interrupted(&CIRCLE[1..2]);
}

pub(crate) fn rollbacks_may_be_interrupted(directions: &[(Mode, Mode)]) {
    for &(from, to) in directions {
        let mut place = bound(from, to);
        let before = place.machine.clone();
        assert_eq!(place.go_on(false), Some(Ended::Migrated));
        for life in 0.. {
            let mut back = place.clone();
            back.life = Some(life);
            let killed = back.go_on(true).is_none();
            let begun = back.journal.contains("\"turned\"");
            back.life = None;
            // After it has turned to its rollback, resume continues the rollback.
            let ended = back.go_on(!begun);
            assert!(
                matches!(ended, Some(Ended::RolledBack(_))),
                "{life}: {ended:?}"
            );
            is_back(&back, &before, from);
            if !killed {
                break;
            }
        }
    }
}
