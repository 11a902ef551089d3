//! A check that has not seen what it judges does not pass: for every recorded node and every check, without one of the items that
//! the check reads.

use std::collections::{BTreeMap, BTreeSet};

use kpx_judge::check::{self, Check, Facts, Outcome, Question};
use kpx_node::evidence::{Evidence, Gap, ITEMS, Item};
use kpx_node::node::NodeSnapshot;

use crate::registry::{nodes, questions};
use crate::support::{chosen, every};

/// Ways in which an item is missing.
const GAPS: [fn(Item) -> Gap; 3] = [
    Gap::NotCollected,
    |item| Gap::Failed(item, "made up".to_owned()),
    |item| Gap::Denied(item, "made up".to_owned()),
];

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Kind {
    Pass,
    Fail,
    Skip,
    Unknown,
}

impl Kind {
    const fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Pass => Self::Pass,
            Outcome::Fail(_) => Self::Fail,
            Outcome::Skip(_) => Self::Skip,
            Outcome::Unknown(_) => Self::Unknown,
        }
    }
}

/// An outcome that changes otherwise without the item: the checks (none: all), the items, and the outcome with and without them.
type Exception = (&'static [&'static str], &'static [Item], Kind, Kind);

const EXCEPTIONS: &[Exception] = &[
    // Without kube-proxy's answer, the configured mode counts, and the check does not apply to it.
    (&[], &[Item::ProxyMode], Kind::Unknown, Kind::Skip),
    // They show that kube-proxy has not finished its first sync, which excuses these differences.
    (
        &["DV08", "IR11", "VS16"],
        &[Item::Healthz, Item::Metrics],
        Kind::Unknown,
        Kind::Fail,
    ),
    // A difference of a set's members is reported with that of their virtual server, if it is known.
    (&["IS03"], &[Item::IpvsSave], Kind::Pass, Kind::Fail),
    // A rule of nftables that stops usual clients, too, is left to IR16; without the rules of iptables, their end is unknown, and
    // that of pods of other nodes, which pass fewer of them, is not.
    (&["SY16"], &[Item::Iptables4], Kind::Unknown, Kind::Fail),
    // kube-proxy has no chain in the backend of the node's tools; the finding says that the other one was not read.
    (&["KP01"], &[Item::IptablesLegacy4], Kind::Pass, Kind::Fail),
];

/// Returns the exception that allows a change of the outcome, by its position.
fn exception(id: &str, item: Item, before: Kind, after: Kind) -> Option<usize> {
    EXCEPTIONS.iter().position(|(ids, items, from, to)| {
        (ids.is_empty() || ids.contains(&id))
            && items.contains(&item)
            && (*from, *to) == (before, after)
    })
}

/// The outcomes that change otherwise, and the exceptions that allowed one.
#[derive(Debug, Default)]
struct Changes {
    wrong: BTreeMap<(String, Item, Kind, Kind), BTreeSet<String>>,
    used: BTreeSet<usize>,
    /// Outcomes that became unknown.
    unknown: usize,
}

impl Changes {
    /// Compares the outcomes of `evidence` with those without `item`.
    fn add(
        &mut self,
        name: &str,
        whole: &[(Question, Vec<(&'static Check, Kind)>)],
        evidence: &Evidence,
        item: Item,
    ) {
        let node = NodeSnapshot::new(evidence);
        for (question, outcomes) in whole {
            let facts = Facts::new(&node, None).before(*question);
            for (check, before) in outcomes {
                if !check.items().any(|needed_item| needed_item == item) {
                    continue;
                }
                let after = Kind::of(&check::run(check, &facts));
                if after == Kind::Unknown {
                    self.unknown += usize::from(*before != after);
                } else if after != *before {
                    let allowed = exception(check.id, item, *before, after);
                    self.used.extend(allowed);
                    if allowed.is_none() {
                        let key = (check.id.to_owned(), item, *before, after);
                        let of = self.wrong.entry(key).or_default();
                        of.insert(format!("{name}, {question:?}"));
                    }
                }
            }
        }
    }
}

/// Removes each item of each of these recordings in turn, in the ways of `gaps`.
fn changes(names: Vec<String>, questions: &[Question], gaps: &[fn(Item) -> Gap]) -> Changes {
    let mut changes = Changes::default();
    for (name, evidence) in nodes(names) {
        let node = NodeSnapshot::new(&evidence);
        let outcomes = questions.iter().map(|question| {
            let facts = Facts::new(&node, None).before(*question);
            let checks = check::asked(*question).into_iter();
            let all = checks.map(|check| (check, Kind::of(&check::run(check, &facts))));
            (*question, all.collect::<Vec<_>>())
        });
        let whole: Vec<_> = outcomes.collect();
        for item in ITEMS.iter().filter(|item| evidence.text(**item).is_ok()) {
            for gap in gaps {
                let mut without = evidence.clone();
                without.insert(*item, Err(gap(*item)));
                changes.add(&name, &whole, &without, *item);
            }
        }
    }
    changes
}

#[test]
#[ignore = "takes long: make test-loops"]
fn a_check_without_one_of_its_items_never_passes_for_that() {
    let changes = changes(chosen(), &[Question::Now], &GAPS[..1]);
    assert!(changes.wrong.is_empty(), "{:#?}", changes.wrong);
    assert!(changes.unknown > 1_000, "{}", changes.unknown);
}

#[test]
#[ignore = "takes minutes: make test-loops"]
fn a_check_without_one_of_its_items_never_passes_for_that_before_any_change() {
    let changes = changes(every(), &questions(), &GAPS);
    assert!(changes.wrong.is_empty(), "{:#?}", changes.wrong);
    let needed: BTreeSet<_> = (0..EXCEPTIONS.len()).collect();
    assert_eq!(changes.used, needed, "an exception that nothing needs");
}

/// Returns a node of which only `item` is known.
fn with(item: Item, text: &str) -> Evidence {
    let mut evidence = Evidence::default();
    evidence.insert(item, Ok(text.to_owned()));
    evidence
}

/// An empty file is no answer of a tool that always prints something, and is one of a tool that lists what there is.
#[test]
fn an_empty_text_is_a_gap_where_there_is_always_one() {
    for item in ITEMS {
        for text in ["", "\n", " \n"] {
            let evidence = with(*item, text);
            let is_gap = matches!(evidence.text(*item), Err(Gap::Failed(of, _)) if of == *item);
            assert_eq!(is_gap, item.is_never_empty(), "{item}");
        }
    }
    for item in [Item::Sysctl, Item::ProxyConfig, Item::Services, Item::Nft] {
        assert!(item.is_never_empty(), "{item}");
    }
    for item in [
        Item::Iptables4,
        Item::Ipset,
        Item::IpvsSave,
        Item::Conntrack,
    ] {
        assert!(!item.is_never_empty(), "{item}");
    }
}

#[test]
fn a_text_without_what_it_is_read_for_is_a_gap() {
    let failed = |item: Item, text: &str, is_gap: fn(&NodeSnapshot<'_>) -> bool| {
        let evidence = with(item, text);
        assert!(is_gap(&NodeSnapshot::new(&evidence)), "{item}: {text:?}");
    };
    failed(Item::Sysctl, "permission denied\n", |node| {
        node.sysctl().is_err()
    });
    failed(Item::Metrics, "# HELP up\n", |node| node.metrics().is_err());
    failed(Item::Links, "[]", |node| node.links().is_err());
    failed(Item::Addresses, "[]", |node| node.addresses().is_err());
    for text in ["# kube-proxy\n", "---\n", "null\n"] {
        failed(Item::ProxyConfig, text, |node| node.proxy_config().is_err());
    }
}
