//! The last lines: what came of it, and the exact command that goes on.

use super::*;
use crate::cluster::edit::Fields;
use crate::evidence::Time;
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
    let report = outcome(state, ended, asked);
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
            "worker1: rolled back from mode nftables to mode ipvs\n".to_owned(),
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
