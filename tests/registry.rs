//! Promises every check keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use kpx::backend::Mode;
use kpx::check::{self, Facts, GROUPS, Outcome};
use kpx::evidence::{self, Evidence, Gap, ITEMS};
use kpx::node::NodeSnapshot;

use crate::support::root;

#[test]
fn ids_are_two_letters_of_a_group_and_two_digits() {
    let mut seen = BTreeSet::new();
    for check in check::all() {
        assert!(seen.insert(check.id), "{} is taken", check.id);
        let (letters, digits) = check.id.split_at(2);
        assert!(
            GROUPS.iter().any(|(code, _, _)| *code == letters),
            "{}: there is no group {letters}",
            check.id
        );
        let good = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_digit());
        assert!(good, "{} does not end in two digits", check.id);
    }
}

#[test]
fn names_are_unique_kebab_case_and_no_group_s() {
    let mut seen: BTreeSet<_> = GROUPS.iter().map(|(_, name, _)| *name).collect();
    for check in check::all() {
        assert!(seen.insert(check.name), "{} is taken", check.name);
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let edges = check.name.starts_with('-') || check.name.ends_with('-');
        assert!(
            check.name.chars().all(good) && !edges,
            "{} is not kebab-case",
            check.name
        );
    }
}

#[test]
fn words_fit_the_page() {
    for check in check::all() {
        let id = check.id;
        assert!(check.title.chars().count() <= 72, "{id}: long title");
        assert!(
            !check.title.ends_with('.'),
            "{id}: title ends in a full stop"
        );
        for (what, text) in [
            ("symptom", check.symptom),
            ("why", check.why),
            ("verify", check.verify),
            ("fix", check.fix),
        ] {
            let first = text.chars().next().unwrap_or(' ');
            // kube-proxy begins a sentence in its own spelling.
            let begins =
                first.is_uppercase() || text.starts_with("kube-") || text.starts_with("iptables ");
            assert!(
                begins && text.ends_with('.'),
                "{id}: {what} is not a sentence"
            );
            assert!(!text.contains("  "), "{id}: {what} has a gap in it");
        }
        assert!(
            !check.commands.is_empty(),
            "{id}: verified by which command?"
        );
        assert!(check.items().next().is_some(), "{id}: needs nothing?");
    }
}

#[test]
fn no_text_names_a_command_that_kpx_does_not_have() {
    use clap::CommandFactory as _;
    let command = kpx::cli::Cli::command();
    let known: BTreeSet<_> = command
        .get_subcommands()
        .map(clap::Command::get_name)
        .collect();
    for check in check::all() {
        let texts = [check.symptom, check.why, check.verify, check.fix];
        for text in texts.iter().chain(check.commands) {
            for after in text.split("kpx ").skip(1) {
                let word: String = after.chars().take_while(char::is_ascii_lowercase).collect();
                assert!(
                    known.contains(word.as_str()),
                    "{}: there is no `kpx {word}`",
                    check.id
                );
            }
        }
    }
}

#[test]
fn what_is_left_out_is_no_check_and_says_why() {
    let mut seen = BTreeSet::new();
    for (id, what, why) in check::LEFT_OUT {
        assert!(seen.insert(id), "{id} is there twice");
        assert!(check::all().all(|check| check.id != *id), "{id} is a check");
        assert!(!what.is_empty() && !why.is_empty(), "{id}: why?");
    }
}

#[test]
fn causes_are_checks_and_end_somewhere() {
    for check in check::all() {
        let mut above = vec![check.id];
        let mut at = 0;
        while at < above.len() {
            let id = above[at];
            let here = check::all().find(|check| check.id == id);
            let here = here.unwrap_or_else(|| panic!("{}: there is no {id}", check.id));
            for cause in here.caused_by {
                assert_ne!(*cause, check.id, "{id} and {} cause each other", check.id);
                if !above.contains(cause) {
                    above.push(cause);
                }
            }
            at += 1;
        }
    }
}

#[test]
fn bundle_files_are_unique() {
    let files: BTreeSet<_> = ITEMS.iter().map(|item| item.file()).collect();
    assert_eq!(files.len(), ITEMS.len());
}

#[test]
fn every_check_has_a_node_that_fails_it_and_one_that_passes() {
    let mut failed = BTreeSet::new();
    let mut passed = BTreeSet::new();
    for (_, evidence) in nodes() {
        let node = NodeSnapshot::new(&evidence);
        for facts in all_facts(&node) {
            for check in check::asked(facts.target) {
                match check::run(check, &facts) {
                    Outcome::Pass => passed.insert(check.id),
                    Outcome::Fail(_) => failed.insert(check.id),
                    Outcome::Skip(_) | Outcome::Unknown(_) => false,
                };
            }
        }
    }
    let without = |nodes: &BTreeSet<_>| {
        let ids = check::all().map(|check| check.id);
        ids.filter(|id| !nodes.contains(id)).collect::<Vec<_>>()
    };
    let (failed, passed) = (without(&failed), without(&passed));
    assert_eq!(
        failed,
        Vec::<&str>::new(),
        "no node in testdata fails these"
    );
    assert_eq!(
        passed,
        Vec::<&str>::new(),
        "no node in testdata passes these"
    );
}

#[test]
fn a_node_named_after_a_check_fails_it() {
    for (name, evidence) in nodes() {
        let id = name.get(..4).unwrap_or("").to_uppercase();
        let Some(check) = check::all().find(|check| check.id == id) else {
            continue;
        };
        let node = NodeSnapshot::new(&evidence);
        let all = all_facts(&node);
        let mut outcomes = all.iter().map(|facts| check::run(check, facts));
        assert!(
            outcomes.any(|outcome| matches!(outcome, Outcome::Fail(_))),
            "{name} passes"
        );
    }
}

#[test]
fn a_finding_is_no_worse_than_its_check_says() {
    for (name, evidence) in nodes() {
        let node = NodeSnapshot::new(&evidence);
        let all = all_facts(&node);
        let asked = |facts| check::asked(facts).into_iter();
        for (facts, check) in all
            .iter()
            .flat_map(|f| asked(f.target).map(move |c| (f, c)))
        {
            if let Outcome::Fail(findings) = check::run(check, facts) {
                for finding in findings {
                    assert!(finding.severity <= check.severity, "{}: {name}", check.id);
                    assert!(
                        !finding.evidence.is_empty(),
                        "{}: {name}: seen where?",
                        check.id
                    );
                }
            }
        }
    }
}

#[test]
fn a_check_looks_only_at_what_it_needs() {
    for (name, evidence) in nodes() {
        let whole = NodeSnapshot::new(&evidence);
        let whole = all_facts(&whole);
        // Checks that need the same share what is parsed of it.
        let mut by_needs: BTreeMap<BTreeSet<_>, Vec<_>> = BTreeMap::new();
        for check in check::all() {
            by_needs
                .entry(check.items().collect())
                .or_default()
                .push(check);
        }
        for (needs, checks) in by_needs {
            let stripped = evidence.only(&needs.iter().copied().collect::<Vec<_>>());
            let node = NodeSnapshot::new(&stripped);
            for (whole, stripped) in whole.iter().zip(all_facts(&node)) {
                for check in checks.iter().filter(|c| c.is_asked(whole.target)) {
                    let verdict = (check.run)(&stripped);
                    if let Err(Gap::NotCollected(item)) = &verdict {
                        assert!(needs.contains(item), "{} also needs {item}", check.id);
                    }
                    // The same answer from less evidence: nothing else was looked at.
                    assert_eq!(
                        verdict,
                        (check.run)(whole),
                        "{} on {name} looks at more than it needs",
                        check.id
                    );
                }
            }
        }
    }
}

/// Every recorded node, but those whose size makes them slow and that hold nothing of their own kind.
fn nodes() -> Vec<(String, Evidence)> {
    let dirs = fs::read_dir(root().join("testdata/nodes")).unwrap();
    let mut nodes: Vec<_> = dirs
        .map(|dir| dir.unwrap())
        .map(|dir| (dir.file_name().into_string().unwrap(), dir.path()))
        .filter(|(name, _)| !name.starts_with("scale-"))
        .map(|(name, path)| (name, evidence::load(&path, ITEMS).unwrap()))
        .collect();
    nodes.sort_by(|(a, _), (b, _)| a.cmp(b));
    nodes
}

/// How a node is, and what a move to each mode would meet.
fn all_facts<'a>(node: &'a NodeSnapshot<'a>) -> Vec<Facts<'a>> {
    let targets = std::iter::once(None).chain(Mode::ALL.map(Some));
    targets
        .map(|target| Facts::new(node, None).before(target))
        .collect()
}
