//! Rules that every check follows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use kpx_judge::check::{self, Facts, GROUPS, Outcome, Question};
use kpx_judge::why;
use kpx_node::backend::Mode;
use kpx_node::evidence::{self, Evidence, Gap, ITEMS};
use kpx_node::node::NodeSnapshot;

use crate::support::{chosen, every, root};

/// Returns every source file below `crates/judge/src/check`, with its path below that folder, without comments and unit tests.
fn check_sources() -> Vec<(String, String)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else {
                found.push(path);
            }
        }
    }
    let folder = root().join("crates/judge/src/check");
    let mut found = Vec::new();
    walk(&folder, &mut found);
    let code = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap();
        let lines = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        lines.collect::<Vec<_>>().join("\n")
    };
    found
        .iter()
        .map(|path| {
            let below = path.strip_prefix(&folder).unwrap();
            (below.to_str().unwrap().to_owned(), code(path))
        })
        .collect()
}

/// Returns the folder, or the file without its ending, of the group that `id` belongs to.
fn folder_of(id: &str) -> String {
    let group = GROUPS.iter().find(|group| id.starts_with(group.code));
    group.unwrap().name.replace('-', "_")
}

fn is_below(path: &str, folder: &str) -> bool {
    path.split(['/', '.']).next() == Some(folder)
}

/// Iterates over the ids between `before` and `after` in `text`.
fn ids<'t>(text: &'t str, before: &'t str, after: &'t str) -> impl Iterator<Item = &'t str> {
    text.match_indices(before).filter_map(move |(at, _)| {
        let rest = &text[at + before.len()..];
        let id = rest.get(..4)?;
        let known = GROUPS.iter().any(|group| id.starts_with(group.code));
        let digits = id[2..].bytes().all(|b| b.is_ascii_digit());
        (known && digits && rest[4..].starts_with(after)).then_some(id)
    })
}

#[test]
fn a_check_is_defined_once_and_below_its_group() {
    let mut defined = BTreeSet::new();
    for (path, code) in check_sources() {
        for id in ids(&code, "id: \"", "\"") {
            let folder = folder_of(id);
            assert!(
                is_below(&path, &folder),
                "{id} is defined in crates/judge/src/check/{path}: move it to crates/judge/src/check/{folder}, or give it an id of the other group"
            );
            assert!(defined.insert(id.to_owned()), "{id} is defined twice");
        }
    }
    let registered: BTreeSet<_> = check::all().map(|check| check.id.to_owned()).collect();
    let unlisted: Vec<_> = defined.difference(&registered).collect();
    assert!(
        unlisted.is_empty(),
        "no group runs {unlisted:?}: list their table in `CHECKS` of the group's mod.rs"
    );
    assert_eq!(defined, registered);
}

/// Other groups name an id only as a cause. `drift` sorts differences to the checks of several groups.
#[test]
fn an_id_is_used_only_below_its_group() {
    for (path, code) in check_sources() {
        let causes = code.split("caused_by: &[").enumerate();
        let code: String = causes
            .map(|(at, part)| match at {
                0 => part,
                _ => part.split_once(']').unwrap().1,
            })
            .collect();
        let shared = is_below(&path, "drift") || path == "core/not_checked.rs";
        for id in ids(&code, "\"", "\"") {
            assert!(
                shared || is_below(&path, &folder_of(id)),
                "crates/judge/src/check/{path} uses {id}: only crates/judge/src/check/{} may",
                folder_of(id)
            );
        }
    }
}

#[test]
fn texts_refer_to_existing_checks() {
    for (path, code) in check_sources() {
        for word in code.split(|c: char| !c.is_ascii_alphanumeric()) {
            for id in ids(&format!(" {word} "), " ", " ") {
                let is_check = check::all().any(|check| check.id == id);
                let reserved = check::NOT_CHECKED.iter().any(|(of, _, _)| *of == id);
                assert!(
                    is_check || reserved,
                    "crates/judge/src/check/{path} refers to {id}"
                );
            }
        }
    }
}

#[test]
fn a_group_has_only_its_own_checks() {
    for group in GROUPS {
        for check in group.checks() {
            assert!(
                check.id.starts_with(group.code),
                "the tables of group {} contain check {}: move it to the tables of crates/judge/src/check/{}",
                group.code,
                check.id,
                folder_of(check.id)
            );
            assert_eq!(check.group(), group.name);
        }
    }
}

#[test]
fn ids_are_two_letters_of_a_group_and_two_digits() {
    let mut seen = BTreeSet::new();
    for check in check::all() {
        assert!(seen.insert(check.id), "{} is defined twice", check.id);
        let (letters, digits) = check.id.split_at(2);
        assert!(
            GROUPS.iter().any(|group| group.code == letters),
            "{}: no group {letters}",
            check.id
        );
        let good = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_digit());
        assert!(good, "{} does not end in two digits", check.id);
    }
}

#[test]
fn names_are_unique_and_kebab_case() {
    let mut seen: BTreeSet<_> = GROUPS.iter().map(|group| group.name).collect();
    for check in check::all() {
        assert!(seen.insert(check.name), "{} is used twice", check.name);
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
fn texts_are_sentences_and_titles_are_short() {
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
            ("fix", &check.fix.to_string()),
        ] {
            let first = text.chars().next().unwrap_or(' ');
            // kube-proxy begins a sentence in its own spelling.
            let begins =
                first.is_uppercase() || text.starts_with("kube-") || text.starts_with("iptables ");
            assert!(
                begins && text.ends_with('.'),
                "{id}: {what} is not a sentence: begin it with a capital letter and end it with a full stop"
            );
            assert!(!text.contains("  "), "{id}: {what} has two spaces");
        }
        assert!(!check.commands.is_empty(), "{id}: no command verifies it");
        assert!(check.items().next().is_some(), "{id}: needs no evidence");
    }
}

#[test]
fn texts_name_only_existing_commands() {
    let command = kpx::cli::command();
    let known: BTreeSet<_> = command
        .get_subcommands()
        .map(clap::Command::get_name)
        .collect();
    for check in check::all() {
        let texts = [check.symptom, check.why, check.verify].map(str::to_owned);
        let commands = check.commands.iter().map(ToString::to_string);
        for text in texts
            .into_iter()
            .chain(commands)
            .chain([check.fix.to_string()])
        {
            for after in text.split("kpx ").skip(1) {
                let word: String = after.chars().take_while(char::is_ascii_lowercase).collect();
                assert!(
                    known.contains(word.as_str()),
                    "{}: no command `kpx {word}`",
                    check.id
                );
            }
        }
    }
}

#[test]
fn reserved_ids_are_no_checks_and_have_a_reason() {
    let mut seen = BTreeSet::new();
    for (id, what, why) in check::NOT_CHECKED {
        assert!(seen.insert(id), "{id} is reserved twice");
        assert!(
            check::all().all(|check| check.id != *id),
            "{id} is reserved in crates/judge/src/check/core/not_checked.rs: give the check another number"
        );
        assert!(!what.is_empty() && !why.is_empty(), "{id}: no reason");
    }
}

#[test]
fn causes_are_checks_without_cycles() {
    for check in check::all() {
        let mut above = vec![check.id];
        let mut at = 0;
        while at < above.len() {
            let id = above[at];
            let here = check::all().find(|check| check.id == id);
            let here = here.unwrap_or_else(|| panic!("{}: no check {id}", check.id));
            for cause in here
                .caused_by
                .iter()
                .flat_map(check::Because::checks)
                .copied()
            {
                assert_ne!(cause, check.id, "{id} and {} cause each other", check.id);
                if !above.contains(&cause) {
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
#[ignore = "takes long: make test-loops"]
fn every_check_has_a_node_that_fails_it_and_one_that_passes() {
    let mut failed = BTreeSet::new();
    let mut passed = BTreeSet::new();
    for (_, evidence) in nodes(every()) {
        let node = NodeSnapshot::new(&evidence);
        for facts in all_facts(&node) {
            for check in check::asked(facts.question) {
                if failed.contains(check.id) && passed.contains(check.id) {
                    continue;
                }
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
        "no node in testdata/nodes fails these checks: add one, named after the id"
    );
    assert_eq!(
        passed,
        Vec::<&str>::new(),
        "no node in testdata/nodes passes these checks: add the files that they read to a healthy one"
    );
}

#[test]
fn a_node_named_after_a_check_fails_it() {
    for (name, evidence) in nodes(every()) {
        let id = name.get(..4).unwrap_or("").to_uppercase();
        let Some(check) = check::all().find(|check| check.id == id) else {
            continue;
        };
        let node = NodeSnapshot::new(&evidence);
        let all = all_facts(&node);
        let mut outcomes = all.iter().map(|facts| check::run(check, facts));
        assert!(
            outcomes.any(|outcome| matches!(outcome, Outcome::Fail(_))),
            "{name} passes {id}: name it after another check, or change its files until {id} finds them"
        );
    }
}

#[test]
#[ignore = "takes long: make test-loops"]
fn a_finding_is_no_worse_than_the_severity_of_its_check() {
    severities_hold(chosen());
}

/// Fails if a finding is worse than its check, or has no evidence.
pub(crate) fn severities_hold(names: Vec<String>) {
    for (name, evidence) in nodes(names) {
        let node = NodeSnapshot::new(&evidence);
        let all = all_facts(&node);
        let asked = |facts| check::asked(facts).into_iter();
        for (facts, check) in all
            .iter()
            .flat_map(|f| asked(f.question).map(move |c| (f, c)))
        {
            if let Outcome::Fail(findings) = check::run(check, facts) {
                for finding in findings {
                    assert!(finding.severity <= check.severity, "{}: {name}", check.id);
                    assert!(
                        !finding.evidence.is_empty(),
                        "{}: {name}: no evidence",
                        check.id
                    );
                }
            }
        }
    }
}

#[test]
#[ignore = "takes long: make test-loops"]
fn a_check_reads_only_its_needs() {
    needs_suffice(chosen());
}

/// Fails if a check reads an item that it does not list.
pub(crate) fn needs_suffice(names: Vec<String>) {
    for (name, evidence) in nodes(names) {
        let whole = NodeSnapshot::new(&evidence);
        let whole = all_facts(&whole);
        // Checks with the same needs share parsed evidence.
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
                for check in checks.iter().filter(|c| c.is_asked(whole.question)) {
                    let verdict = (check.run)(&stripped);
                    if let Err(Gap::NotCollected(item)) = &verdict {
                        assert!(
                            needs.contains(item),
                            "{} reads {item}: add it to `needs`",
                            check.id
                        );
                    }
                    // The same outcome from less evidence: nothing else was read.
                    assert_eq!(
                        verdict,
                        (check.run)(whole),
                        "{} on {name} reads an item that `needs` lacks",
                        check.id
                    );
                }
            }
        }
    }
}

/// Returns these recordings.
pub(crate) fn nodes(names: Vec<String>) -> impl Iterator<Item = (String, Evidence)> {
    names.into_iter().map(|name| {
        let path = root().join("testdata/nodes").join(&name);
        let evidence = evidence::load(&path, ITEMS).unwrap();
        (name, evidence)
    })
}

/// Returns the questions: a normal run, a switch to each mode, and upgrades.
pub(crate) fn questions() -> Vec<Question> {
    let targets = std::iter::once(None).chain(Mode::ALL.map(Some));
    let upgrades = ["1.36", "1.40"].map(|goal| Question::Upgrade(goal.parse().unwrap()));
    targets.map(Question::from).chain(upgrades).collect()
}

/// Returns the facts for each question.
fn all_facts<'a>(node: &'a NodeSnapshot<'a>) -> Vec<Facts<'a>> {
    let questions = questions().into_iter();
    questions
        .map(|question| {
            let facts = Facts::new(node, None).before(question);
            facts.explained_by(why::rest)
        })
        .collect()
}
