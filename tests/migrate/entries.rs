//! The entries of a journal, and the state of a migration that they lead to.

use kpx_migrate::journal::{self, Entry, JournalError, MigrationState, Proxy, Recorded, Took};
use kpx_migrate::loss::ObservedLoss;
use kpx_migrate::migration::{Leg, Stage, Strategy};
use kpx_node::action::Action;
use kpx_node::backend::Mode;
use kpx_node::evidence::Time;

use super::{line, migration};

const AT: Time = Time { seconds: 0 };

/// Returns the entry that `stage` begins.
fn begins(leg: Leg, stage: Stage) -> Entry {
    Entry::Stage {
        at: AT,
        leg,
        stage,
        steps: Vec::new(),
        proxy: None,
    }
}

fn done(leg: Leg, stage: Stage) -> Entry {
    Entry::Done {
        at: AT,
        leg,
        stage,
        notes: Vec::new(),
    }
}

fn turned(external: bool) -> Entry {
    Entry::Turned {
        at: AT,
        why: "requested".to_owned(),
        requested: true,
        external,
        set_back: false,
    }
}

const fn ended(leg: Leg) -> Entry {
    Entry::Ended { at: AT, leg }
}

/// Runs the next stage of `state`.
#[track_caller]
fn advance(state: &mut MigrationState) {
    let next = state.next().unwrap();
    assert!(state.follow(begins(state.leg, next)), "{next:?}");
    assert!(state.follow(done(state.leg, next)), "{next:?}");
    assert_ne!(state.next(), Some(next));
}

/// Runs the stages of `state` up to `end`, which does not begin.
#[track_caller]
fn up_to(state: &mut MigrationState, end: Stage) {
    while state.next() != Some(end) {
        advance(state);
    }
}

fn state(from: Mode, to: Mode, strategy: Strategy, external: bool) -> MigrationState {
    let mut migration = migration(from, to, strategy);
    migration.external = external;
    MigrationState::new(migration)
}

/// Returns the stages of a migration before which `holds` is true.
fn before(mut state: MigrationState, holds: fn(&MigrationState) -> bool) -> Vec<Stage> {
    let mut found = Vec::new();
    while let Some(next) = state.next() {
        if holds(&state) {
            found.push(next);
        }
        advance(&mut state);
    }
    assert!(!holds(&state));
    assert!(state.follow(ended(state.leg)) && !holds(&state));
    found
}

#[test]
fn the_bridge_serves_from_its_load_until_kube_proxy_is_verified() {
    use Stage::{Build, Configure, Drain, Restart, Verify};
    let of = |from, to, strategy| {
        let state = state(from, to, strategy, false);
        before(state, MigrationState::is_bridged)
    };
    let (iptables, ipvs, nftables) = (Mode::Iptables, Mode::Ipvs, Mode::Nftables);
    let bridge = Strategy::Bridge;
    assert_eq!(
        of(iptables, nftables, bridge),
        [Build, Configure, Restart, Verify]
    );
    assert_eq!(
        of(ipvs, nftables, bridge),
        [Drain, Build, Configure, Restart, Verify]
    );
    assert_eq!(of(ipvs, nftables, Strategy::InPlace), []);
}

#[test]
fn connections_stay_drained_until_kube_proxy_is_restarted() {
    use Stage::{Build, Configure, Restart};
    let of = |strategy, to| {
        let state = state(Mode::Ipvs, to, strategy, false);
        before(state, MigrationState::is_drained)
    };
    assert_eq!(
        of(Strategy::Bridge, Mode::Nftables),
        [Build, Configure, Restart]
    );
    // There, the drain is the last thing.
    assert_eq!(of(Strategy::InPlace, Mode::Iptables), []);
}

#[test]
fn the_stages_are_those_of_the_modes_and_the_strategy() {
    use Stage::{
        Backup, BridgeDown, BridgeUp, Build, Clean, Configure, Cordon, Drain, Evict, Prepare,
        Recheck, Restart, Uncordon, Unlink, Verify,
    };
    let stages = |from, to, strategy| state(from, to, strategy, false).stages();
    let (iptables, ipvs, nftables) = (Mode::Iptables, Mode::Ipvs, Mode::Nftables);
    let change = [Build, Configure, Restart, Verify];
    assert_eq!(
        stages(iptables, nftables, Strategy::InPlace),
        [&[Backup, Prepare], &change[..], &[Clean, Recheck]].concat()
    );
    assert_eq!(
        stages(ipvs, iptables, Strategy::InPlace),
        [
            &[Backup, Prepare],
            &change[..],
            &[Unlink, Drain, Clean, Recheck]
        ]
        .concat()
    );
    assert_eq!(
        stages(ipvs, nftables, Strategy::Bridge),
        [
            &[Backup, Prepare, BridgeUp, Drain],
            &change[..],
            &[Clean, Recheck, BridgeDown]
        ]
        .concat()
    );
    assert_eq!(
        stages(ipvs, nftables, Strategy::DrainNode),
        [
            &[Backup, Prepare, Cordon, Evict],
            &change[..],
            &[Clean, Recheck, Uncordon]
        ]
        .concat()
    );
}

#[test]
fn only_an_external_configuration_is_waited_for() {
    for (external, prepared) in [
        (false, &[][..]),
        (true, &[Stage::Configure, Stage::Restart]),
    ] {
        let state = state(Mode::Iptables, Mode::Ipvs, Strategy::InPlace, external);
        assert_eq!(before(state, MigrationState::is_prepared), prepared);
    }
}

/// An external change may come as soon as everything is built.
#[test]
fn the_configuration_may_have_been_changed_once_its_stage_began() {
    for (external, before, first) in [
        (false, Stage::Configure, Stage::Configure),
        (true, Stage::Build, Stage::Build),
    ] {
        let mut state = state(Mode::Iptables, Mode::Ipvs, Strategy::InPlace, external);
        up_to(&mut state, before);
        assert!(!state.was_configured(), "{external}");
        assert!(state.follow(begins(Leg::There, first)));
        assert!(state.was_configured(), "{external}");
    }
}

#[test]
fn an_entry_follows_only_where_it_belongs() {
    let (there, back) = (Leg::There, Leg::Back);
    let new = || state(Mode::Iptables, Mode::Nftables, Strategy::Bridge, false);
    let at = |stage| {
        let mut state = new();
        up_to(&mut state, stage);
        state
    };
    let over = || {
        let mut state = new();
        while state.next().is_some() {
            advance(&mut state);
        }
        state.follow(ended(there));
        state
    };
    let returning = || {
        let mut state = at(Stage::Verify);
        state.follow(turned(false));
        state
    };
    let began = Entry::Began {
        kpx: "test".to_owned(),
        migration: Box::new(new().migration),
    };
    for (mut state, entry, follows) in [
        (new(), begins(there, Stage::Backup), true),
        (new(), begins(back, Stage::Backup), false),
        (new(), begins(there, Stage::Prepare), false),
        (new(), done(there, Stage::Backup), true),
        (new(), done(back, Stage::Backup), false),
        (new(), done(there, Stage::Prepare), false),
        (new(), ended(there), false),
        (new(), began, false),
        (over(), ended(there), false),
        (over(), begins(there, Stage::Backup), false),
        (over(), turned(false), true),
        (returning(), turned(false), false),
        (returning(), begins(back, Stage::Configure), true),
        (returning(), begins(there, Stage::Configure), false),
        (returning(), ended(back), false),
    ] {
        assert_eq!(state.follow(entry.clone()), follows, "{entry:?}");
    }
    // The end of the other direction is none.
    let mut state = over();
    state.ended = false;
    assert!(!state.follow(ended(back)));
}

#[test]
fn a_rollback_undoes_only_what_began() {
    use Stage::{
        BridgeDown, BridgeUp, Build, Clean, Configure, Cordon, Drain, Evict, Prepare, Recheck,
        Restart, Uncordon, Unprepare, Verify,
    };
    let rest = [Clean, Unprepare, Recheck];
    let configured = [Configure, Build, Restart, Verify];
    let stages = |from, to, strategy, last: Stage| {
        let mut state = state(from, to, strategy, false);
        up_to(&mut state, last);
        assert!(state.follow(begins(Leg::There, last)));
        assert!(state.follow(turned(false)));
        assert_eq!((state.done, state.begun), (0, false));
        assert_eq!(state.served(), from);
        state.stages()
    };
    let (iptables, ipvs, nftables) = (Mode::Iptables, Mode::Ipvs, Mode::Nftables);
    let (bridge, in_place) = (Strategy::Bridge, Strategy::InPlace);
    assert_eq!(stages(iptables, nftables, bridge, Prepare), rest);
    assert_eq!(stages(iptables, ipvs, in_place, Prepare), rest);
    assert_eq!(
        stages(iptables, nftables, bridge, BridgeUp),
        [&rest[..], &[BridgeDown]].concat()
    );
    assert_eq!(
        stages(iptables, nftables, bridge, Configure),
        [&configured[..], &rest, &[BridgeDown]].concat()
    );
    assert_eq!(
        stages(iptables, nftables, Strategy::DrainNode, Cordon),
        [&rest[..], &[Uncordon]].concat()
    );
    assert_eq!(
        stages(iptables, nftables, Strategy::DrainNode, Evict),
        [&rest[..], &[Uncordon]].concat()
    );
    // Virtual servers of the new mode are drained before they are removed.
    assert_eq!(
        stages(iptables, ipvs, in_place, Verify),
        [&configured[..], &[Stage::Unlink, Drain], &rest].concat()
    );
}

#[test]
fn a_rollback_after_the_end_begins_in_the_new_mode() {
    let mut state = state(Mode::Iptables, Mode::Ipvs, Strategy::DrainNode, false);
    assert_eq!(state.served(), Mode::Iptables);
    while state.next().is_some() {
        advance(&mut state);
    }
    assert!(state.reached && state.follow(ended(Leg::There)) && state.ended);
    assert!(state.follow(turned(true)));
    assert!(!state.ended && state.requested && state.migration.external);
    assert_eq!(state.served(), Mode::Ipvs);
    let stages = state.stages();
    let first = [
        Stage::BridgeUp,
        Stage::Drain,
        Stage::Build,
        Stage::Configure,
    ];
    assert_eq!(stages[..4], first);
    // After the end, a cordon is an operator's.
    assert_eq!(stages.last(), Some(&Stage::BridgeDown));
}

#[test]
fn a_journal_adds_up() {
    let there = Leg::There;
    let mut state = state(Mode::Iptables, Mode::Ipvs, Strategy::InPlace, false);
    let time = |seconds| Time { seconds };
    let proxy = |pid| Proxy {
        pid: Some(pid),
        started: None,
    };
    let step = |title: &str| Recorded {
        title: title.to_owned(),
        action: Action::RestartUnit {
            unit: title.to_owned(),
        },
        undo: None,
    };
    let begins = |seconds, stage, steps: &[&str], pid| Entry::Stage {
        at: time(seconds),
        leg: there,
        stage,
        steps: steps.iter().map(|title| step(title)).collect(),
        proxy: Some(proxy(pid)),
    };
    let done = |seconds, stage, note: &str| Entry::Done {
        at: time(seconds),
        leg: there,
        stage,
        notes: vec![note.to_owned()],
    };
    let loss = |connections, failed_probes| Entry::Observed {
        at: AT,
        loss: ObservedLoss {
            connections,
            failed_probes,
            ..ObservedLoss::default()
        },
    };
    let stopped = |why: &str| Entry::Stopped {
        at: AT,
        why: why.to_owned(),
    };
    for entry in [
        begins(10, Stage::Backup, &["a", "b"], 7),
        stopped("no disk"),
        begins(20, Stage::Backup, &["c"], 8),
        done(23, Stage::Backup, "one"),
        loss(1, 2),
        begins(30, Stage::Prepare, &["d"], 9),
        done(37, Stage::Prepare, "two"),
        loss(10, 20),
    ] {
        assert!(state.follow(entry.clone()), "{entry:?}");
    }
    assert_eq!(state.why.as_deref(), Some("no disk"));
    assert_eq!(state.proxy, Some(proxy(7)));
    assert_eq!(state.notes, ["one", "two"]);
    assert_eq!((state.done, state.begun, state.reached), (2, false, false));
    let titles = |stage| {
        let recorded = state.recorded(stage);
        recorded
            .map(|recorded| recorded.title.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(titles(Stage::Backup), ["c", "b", "a"]);
    assert_eq!(titles(Stage::Build), [""; 0]);
    let took = |stage, seconds| Took {
        leg: there,
        stage,
        seconds,
    };
    assert_eq!(
        state.took,
        [took(Stage::Backup, 3), took(Stage::Prepare, 7)]
    );
    assert_eq!(
        state.observed.in_words(),
        "11 connections, 22 failed probes"
    );
    // On the way back, the reason of the rollback stays.
    assert!(state.follow(turned(false)) && state.follow(stopped("no disk")));
    assert_eq!(state.why.as_deref(), Some("requested"));
}

#[test]
fn a_journal_begins_once() {
    let began = || Entry::Began {
        kpx: "test".to_owned(),
        migration: Box::new(migration(Mode::Iptables, Mode::Ipvs, Strategy::InPlace)),
    };
    let first = line(&begins(Leg::There, Stage::Backup));
    let text = line(&began());
    assert_eq!(journal::read(""), Err(JournalError::Empty));
    assert_eq!(journal::read(text.trim_end()), Err(JournalError::Empty));
    assert_eq!(journal::read(&first), Err(JournalError::Order(1)));
    assert_eq!(
        journal::read(&format!("{text}{text}")),
        Err(JournalError::Order(2))
    );
    let last = line(&ended(Leg::There));
    assert_eq!(
        journal::read(&format!("{text}{first}{last}")),
        Err(JournalError::Order(3))
    );
    let state = journal::read(&format!("{text}{first}")).unwrap();
    assert!(state.begun && !state.torn);
}

/// The start is computed from the boot time, which moves with the clock.
#[test]
fn a_restart_shows_in_the_process_id_or_in_the_time_of_the_start() {
    let proxy = |(pid, started)| Proxy { pid, started };
    for (now, before, differs) in [
        ((Some(7), None), (Some(7), None), Some(false)),
        ((Some(8), None), (Some(7), None), Some(true)),
        ((Some(8), Some(100)), (Some(7), Some(100)), Some(true)),
        ((Some(7), Some(101)), (Some(7), Some(100)), Some(false)),
        ((Some(7), Some(99)), (Some(7), Some(100)), Some(false)),
        // Process ids come again.
        ((Some(7), Some(102)), (Some(7), Some(100)), Some(true)),
        ((None, Some(101)), (Some(7), Some(100)), Some(false)),
        ((None, Some(102)), (None, Some(100)), Some(true)),
        ((None, None), (Some(7), Some(100)), None),
        ((Some(7), None), (None, Some(100)), None),
    ] {
        let found = proxy(now).differs(proxy(before));
        assert_eq!(found, differs, "{now:?} {before:?}");
    }
}
