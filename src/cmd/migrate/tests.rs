//! The last lines: what came of it, and the exact command that goes on.

use clap::Parser as _;

use super::*;
use crate::cli::Cli;
use crate::cluster::edit::Fields;
use crate::evidence::Time;
use crate::migrate::journal::{Entry, Took};
use crate::migrate::journey::{Journey, Strategy};
use crate::plan::Consent;
use crate::render::{Page, Report as _, Style};

fn state(elsewhere: bool) -> State {
    let fields = |mode| Fields {
        mode,
        scheduler: None,
        strict_arp: None,
    };
    State::new(Journey {
        id: "test".to_owned(),
        began: Time { seconds: 0 },
        node: Some("worker1".to_owned()),
        from: Mode::Ipvs,
        there: fields(Mode::Nftables),
        back: fields(Mode::Ipvs),
        strategy: Strategy::Bridge,
        evict: Consent::default(),
        modules: Vec::new(),
        elsewhere,
        probes: Vec::new(),
    })
}

/// Returns what people read at the end, and the exit status.
fn last(state: &State, ended: Ended, asked: bool) -> (String, u8) {
    last_of(&["kpx", "migrate", "status"], state, ended, asked)
}

/// Returns the same for another command line.
fn last_of(args: &[&str], state: &State, ended: Ended, asked: bool) -> (String, u8) {
    let words: Vec<_> = args.iter().map(Into::into).collect();
    let mut cli = Cli::try_parse_from(args).unwrap();
    cli.gather(&words).unwrap();
    let report = outcome(&cli.global, state, ended, asked);
    let mut page = Page::new(Style {
        width: 80,
        color: false,
        ascii: true,
        wide: false,
        verbose: 0,
    });
    report.page(&mut page);
    (page.into_text(), report.exit())
}

#[test]
fn the_last_line_says_what_came_of_it() {
    let mut over = state(false);
    over.ended = true;
    let why = || "it is silent".to_owned();
    let because = "because it is silent\n";
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
                "{because}worker1: rolled back to mode ipvs, for it did not get to mode nftables\n"
            ),
            4,
        ),
    ] {
        assert_eq!(last(&over, ended, asked), (text, code));
    }
    // Only where it was there, it came back from there; and how long all took is known by then.
    over.reached = true;
    over.took = [(Stage::Backup, 0), (Stage::Restart, 5), (Stage::Verify, 12)]
        .map(|(stage, seconds)| Took {
            leg: Leg::There,
            stage,
            seconds,
        })
        .into();
    let text = "worker1: rolled back from mode nftables to mode ipvs\n\
                took 17 s (restart kube-proxy 5 s, wait until kube-proxy serves in the mode 12\n     s)\n";
    let told = last(&over, Ended::RolledBack(why()), true);
    assert_eq!(told, (text.to_owned(), 0));
}

#[test]
fn the_command_that_goes_on_has_the_options_that_it_takes() {
    let args = "kpx migrate --to nftables --node worker1 --this-node --kubeconfig /k --context c";
    let args: Vec<&str> = args.split(' ').collect();
    let stopped = Ended::Stopped("x".to_owned());
    let told = last_of(&args, &state(false), stopped, false).0;
    let flags = "--kubeconfig /k --context c --node worker1 --this-node";
    let next = format!("next: kpx migrate resume {flags}, or kpx migrate rollback {flags}\n");
    assert!(told.ends_with(&next), "{told}");
}

#[test]
fn the_journal_names_the_node_and_nobody_may_name_another() {
    let global = |args: &str| {
        let words: Vec<&str> = args.split(' ').collect();
        let mut cli = Cli::try_parse_from(&words).unwrap();
        let words: Vec<_> = words.iter().map(Into::into).collect();
        cli.gather(&words).unwrap();
        cli.global
    };
    let bare = global("kpx migrate rollback");
    let named = as_journal(&bare, &state(false)).ok().unwrap();
    assert_eq!(named.node.as_deref(), Some("worker1"));
    let other = global("kpx migrate rollback --node worker2 --this-node");
    let refused = as_journal(&other, &state(false)).err().unwrap().to_string();
    assert_eq!(
        refused,
        "the journal of test is that of node worker1, not of node worker2"
    );
    // Of an older kpx, it may be without the name.
    let mut old = state(false);
    old.journey.node = None;
    let named = as_journal(&other, &old).ok().unwrap();
    assert_eq!(named.node.as_deref(), Some("worker2"));
}

#[test]
fn journals_that_are_over_are_kept_up_to_ten() {
    let root = tempfile::tempdir().unwrap();
    let journals = Journals::below(root.path());
    let began = Entry::Began {
        kpx: "test".to_owned(),
        journey: Box::new(state(false).journey),
    };
    let began = serde_json::to_string(&began).unwrap();
    for number in 0..14 {
        let mut journal = journals.create(&format!("m{number:02}")).unwrap();
        journal.add(&began).unwrap();
        if number == 1 {
            // It is not over, however old it is.
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
    assert!(prune(&journals).is_ok());
    let kept = journals.all().unwrap();
    let over: Vec<String> = (4..14).map(|number| format!("m{number:02}")).collect();
    assert_eq!(kept, [&["m01".to_owned()][..], &over].concat());
}

#[test]
fn where_it_is_not_over_the_last_line_is_the_command_that_goes_on() {
    let stopped = || Ended::Stopped("the disk is full".to_owned());
    let text = "because the disk is full\n\
                worker1: stopped on the way from mode ipvs to mode nftables\n\
                next: kpx migrate resume, or kpx migrate rollback\n";
    assert_eq!(last(&state(false), stopped(), false), (text.to_owned(), 4));
    let mut prepared = state(true);
    while prepared.next() != Some(Stage::Configure) {
        prepared.done += 1;
    }
    let text = "worker1: prepared for mode nftables; it serves in mode ipvs still\n\
                next: kpx migrate finish\n";
    let told = last(&prepared, Ended::Prepared, false);
    assert_eq!(told, (text.to_owned(), 0));
    // Part-way between, it is not for others yet.
    let told = last(&state(true), stopped(), false);
    assert!(
        told.0
            .ends_with("next: kpx migrate resume, or kpx migrate rollback\n"),
        "{}",
        told.0
    );
}
