//! Missing evidence never makes anything work.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use kpx_judge::verdict::{Fate, Surveyed};
use kpx_node::evidence::{self, Evidence, Item};
use kpx_node::node::NodeSnapshot;

use super::{few, surveyed};

type Fates = BTreeMap<(String, SocketAddr, String), Fate>;

pub(super) fn fates(ports: &[Surveyed]) -> Fates {
    let cells = ports
        .iter()
        .flat_map(|port| port.cells.iter().map(move |cell| (port, cell)));
    cells
        .map(|(port, cell)| {
            let key = (
                format!("{}/{}", port.name, port.proto),
                cell.to,
                cell.client.name().to_owned(),
            );
            (key, cell.fate)
        })
        .collect()
}

pub(super) fn without(evidence: &Evidence, item: Item) -> Evidence {
    let kept: Vec<Item> = evidence::ITEMS
        .iter()
        .copied()
        .filter(|kept_item| *kept_item != item)
        .collect();
    evidence.only(&kept)
}

/// Items of which a bundle cannot tell whether the node has them: rules of the back end of iptables that is not in use, where the
/// loaded modules are unknown, and routing policy rules, of which every kernel has the same by default.
const MAY_BE_NONE: &[Item] = &[
    Item::IptablesLegacy4,
    Item::IptablesLegacy6,
    Item::IptablesNft4,
    Item::IptablesNft6,
];

/// Bundles in which something works without an item, and why.
const KNOWN_HOLES: &[(&str, Item, &str)] = &[
    (
        "seen-07-conntrack-close-wait",
        Item::Sysctl,
        "only sysctls tell that the table of tracked connections is full",
    ),
    (
        "seen-11-other-conflist",
        Item::Nodes,
        "only the Nodes tell whose pods have the range of a route",
    ),
    (
        "seen-11-other-conflist",
        Item::Pods,
        "only the objects of pods tell that one here has an address of another Node's range",
    ),
    (
        "healthy-cilium-beside",
        Item::Bpf,
        "bundles of before this item are judged by the rules alone",
    ),
    (
        "kp17-cilium-beside",
        Item::Bpf,
        "bundles of before this item are judged by the rules alone",
    ),
];

#[test]
#[ignore = "takes long: make test-loops"]
fn removing_evidence_never_turns_anything_into_works() {
    less_evidence_never_works(few());
}

/// Fails if a connection works without an item only.
pub(crate) fn less_evidence_never_works(dirs: Vec<PathBuf>) {
    let mut compared = 0;
    let mut wrong = BTreeMap::new();
    for dir in dirs {
        let evidence = evidence::load(&dir, evidence::ITEMS).unwrap();
        let node = NodeSnapshot::new(&evidence);
        let before = fates(&surveyed(&node));
        if before.values().all(|fate| *fate == Fate::Works) {
            continue;
        }
        for item in evidence::ITEMS {
            if evidence.text(*item).is_err() || MAY_BE_NONE.contains(item) {
                continue;
            }
            let fewer = without(&evidence, *item);
            let node = NodeSnapshot::new(&fewer);
            for (key, fate) in fates(&surveyed(&node)) {
                let was = before.get(&key).copied();
                let is_new = fate == Fate::Works && was.is_some_and(|was| was != Fate::Works);
                if is_new {
                    let name = dir.file_name().unwrap().to_str().unwrap();
                    let is_known =
                        |(of, without, _): &&(&str, Item, &str)| *of == name && *without == *item;
                    if !KNOWN_HOLES.iter().any(|hole| is_known(&hole)) {
                        let what = format!("{key:?}; before: {was:?}");
                        wrong.insert((name.to_owned(), *item), what);
                    }
                }
                compared += usize::from(was.is_some());
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(compared > 5_000, "{compared}");
}
