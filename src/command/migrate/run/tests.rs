//! The last lines of `kpx migrate`: the result, and the command that continues.

use std::fs;

use super::*;
use crate::command::shared::journals::prune;
use crate::command::shared::session::parsed;
use crate::render::{Page, Report as _, Style};
use kpx_judge::plan::Consent;
use kpx_migrate::journal::Took;
use kpx_migrate::migration::Strategy;
use kpx_node::cluster::edit::Fields;
use kpx_node::evidence::Time;

fn state(external: bool) -> MigrationState {
    let fields = |mode| Fields {
        mode,
        scheduler: None,
        strict_arp: None,
    };
    MigrationState::new(Migration {
        id: "test".to_owned(),
        began: Time { seconds: 0 },
        node: Some("worker1".to_owned()),
        from: Mode::Ipvs,
        there: fields(Mode::Nftables),
        back: fields(Mode::Ipvs),
        strategy: Strategy::Bridge,
        evict: Consent::default(),
        modules: Vec::new(),
        external,
        probes: Vec::new(),
    })
}

/// Returns the text at the end, and the exit status.
fn last(state: &MigrationState, ended: Ended, asked: bool) -> (String, u8) {
    last_of(&["kpx", "migrate", "status"], state, ended, asked)
}

/// Returns the same for another command line.
fn last_of(args: &[&str], state: &MigrationState, ended: Ended, asked: bool) -> (String, u8) {
    let (_, session) = parsed(args);
    let report = outcome(&session, state, ended, asked);
    let mut page = empty();
    report.page(&mut page);
    (page.into_text(), report.exit())
}

fn empty() -> Page {
    Page::new(Style {
        width: 80,
        color: false,
        ascii: true,
        wide: false,
        verbose: 0,
        program: "kpx",
    })
}

/// Returns a migration that has begun to change the configuration.
fn configured() -> MigrationState {
    let (at, leg) = (Time { seconds: 0 }, Leg::There);
    let mut state = state(false);
    while let Some(stage) = state.next() {
        let begins = Entry::Stage {
            at,
            leg,
            stage,
            steps: Vec::new(),
            proxy: None,
        };
        assert!(state.follow(begins));
        if stage == Stage::Configure {
            break;
        }
        let notes = Vec::new();
        assert!(state.follow(Entry::Done {
            at,
            leg,
            stage,
            notes,
        }));
    }
    state.took.clear();
    state
}

/// Returns the note about connections that began during a failed change.
fn connections() -> String {
    let mut page = empty();
    page.para("note: ", CONNECTIONS);
    page.into_text()
}

#[test]
fn the_last_line_is_the_result() {
    let mut over = configured();
    over.ended = true;
    let why = || "it is silent".to_owned();
    let because = format!("{}reason: it is silent\n", connections());
    for (ended, asked, text, code) in [
        (
            Ended::Migrated,
            false,
            "worker1: migrated from mode ipvs to mode nftables\n".to_owned(),
            0,
        ),
        (
            Ended::RolledBack(why()),
            true,
            "worker1: rolled back to mode ipvs\n".to_owned(),
            0,
        ),
        (
            Ended::RolledBack(why()),
            false,
            format!(
                "{because}worker1: rolled back to mode ipvs: the migration to mode nftables failed\n"
            ),
            4,
        ),
    ] {
        assert_eq!(last(&over, ended, asked), (text, code));
    }
    // The result names the new mode only if kube-proxy has served in it, and the duration of each stage is known.
    over.reached = true;
    over.took = [(Stage::Backup, 0), (Stage::Restart, 5), (Stage::Verify, 12)]
        .map(|(stage, seconds)| Took {
            leg: Leg::There,
            stage,
            seconds,
        })
        .into();
    let text = "worker1: rolled back from mode nftables to mode ipvs\n\
                took 17 s (restart kube-proxy 5 s, wait until kube-proxy serves in the mode 12\n     s)\n\
                observed loss: unknown: no Service was probed\n";
    let printed = last(&over, Ended::RolledBack(why()), true);
    assert_eq!(printed, (text.to_owned(), 0));
    over.observed = ObservedLoss {
        connections: 3,
        failed_probes: 1,
        ..ObservedLoss::default()
    };
    let printed = last(&over, Ended::RolledBack(why()), true).0;
    assert!(
        printed.ends_with(
            "\nobserved loss: 3 connections, 1 failed probe; more is unknown: no Service was probed\n"
        ),
        "{printed}"
    );
}

#[test]
fn the_next_command_has_the_options_that_it_takes() {
    let args = "kpx migrate --to nftables --node worker1 --this-node --kubeconfig /k --context c";
    let args: Vec<&str> = args.split(' ').collect();
    let stopped = Ended::Stopped("x".to_owned());
    let printed = last_of(&args, &state(false), stopped, false).0;
    let flags = "--kubeconfig /k --context c --node worker1 --this-node";
    let next = format!("next: kpx migrate resume {flags}, or kpx migrate rollback {flags}\n");
    assert!(printed.ends_with(&next), "{printed}");
}

#[test]
fn another_node_than_the_journal_names_is_refused() {
    let session = |args: &str| {
        let words: Vec<&str> = args.split(' ').collect();
        parsed(&words).1
    };
    let bare = session("kpx migrate rollback");
    let named = as_journal(&bare, &state(false)).ok().unwrap();
    assert_eq!(named.name(), Some("worker1"));
    let other = session("kpx migrate rollback --node worker2 --this-node");
    let refused = as_journal(&other, &state(false)).err().unwrap().to_string();
    assert_eq!(
        refused,
        "the journal of test belongs to node worker1, not to node worker2"
    );
    // A journal of an older kpx may lack the name.
    let mut old = state(false);
    old.migration.node = None;
    let named = as_journal(&other, &old).ok().unwrap();
    assert_eq!(named.name(), Some("worker2"));
}

#[test]
fn ten_journals_of_ended_migrations_are_kept() {
    let root = tempfile::tempdir().unwrap();
    let journals = Journals::below(root.path());
    let began = Entry::Began {
        kpx: "test".to_owned(),
        migration: Box::new(state(false).migration),
    };
    let began = serde_json::to_string(&began).unwrap();
    for number in 0..14 {
        let mut journal = journals.create(&format!("m{number:02}")).unwrap();
        journal.add(&began).unwrap();
        if number == 1 {
            // Unfinished, however old.
            continue;
        }
        let mut state = state(false);
        let at = Time { seconds: 0 };
        while let Some(stage) = state.next() {
            let leg = Leg::There;
            let entries = [
                Entry::Stage {
                    at,
                    leg,
                    stage,
                    steps: Vec::new(),
                    proxy: None,
                },
                Entry::Done {
                    at,
                    leg,
                    stage,
                    notes: Vec::new(),
                },
            ];
            for entry in entries {
                journal
                    .add(&serde_json::to_string(&entry).unwrap())
                    .unwrap();
                assert!(state.follow(entry));
            }
        }
        let over = Entry::Ended {
            at,
            leg: Leg::There,
        };
        journal.add(&serde_json::to_string(&over).unwrap()).unwrap();
    }
    // Neither a journal that cannot be read nor other files are kpx's to delete.
    let folder = journals.folder("m00-broken");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("journal.jsonl"), "no journal\n").unwrap();
    fs::create_dir(journals.folder("m00-other")).unwrap();
    fs::write(journals.folder("m00-file"), "").unwrap();
    // The backup goes with its journal.
    fs::write(journals.folder("m02").join("before.tar.gz"), "").unwrap();
    let notes = prune(&journals);
    let note = "removed the journals and backups of 3 old migrations; the newest 10 are kept";
    assert_eq!(notes, [note]);
    let kept = journals.all().unwrap();
    let over = (4..14).map(|number| format!("m{number:02}"));
    let others = ["m00-broken", "m00-file", "m00-other", "m01"];
    let others = others.map(str::to_owned).into_iter();
    assert_eq!(kept, others.chain(over).collect::<Vec<_>>());
    // Nothing was removed: nothing is reported.
    assert_eq!(prune(&journals), [""; 0]);
}

#[test]
fn the_last_line_of_an_unfinished_migration_is_the_next_command() {
    let stopped = || Ended::Stopped("the disk is full".to_owned());
    let text = "reason: the disk is full\n\
                worker1: stopped during the migration from mode ipvs to mode nftables\n\
                next: kpx migrate resume, or kpx migrate rollback\n";
    // The rules were not wrong yet.
    let ended = last(&state(false), stopped(), false);
    assert_eq!(ended, (text.to_owned(), 4));
    let ended = last(&configured(), stopped(), false);
    assert_eq!(ended, (connections() + text, 4));
    let mut prepared = state(true);
    while prepared.next() != Some(Stage::Configure) {
        prepared.done += 1;
    }
    let text = "worker1: prepared for mode nftables; kube-proxy still runs in mode ipvs\n\
                next: kpx migrate finish\n";
    let told = last(&prepared, Ended::Prepared, false);
    assert_eq!(told, (text.to_owned(), 0));
    // Before everything is prepared, the next command is resume.
    let told = last(&state(true), stopped(), false);
    assert!(
        told.0
            .ends_with("next: kpx migrate resume, or kpx migrate rollback\n"),
        "{}",
        told.0
    );
}
