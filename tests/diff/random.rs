//! Random clusters: the desired state, printed and read again, does not differ from itself; a missing line does.

use kpx_judge::diff::{self, Change};
use kpx_node::backend::Mode;
use kpx_node::backend::iptables::expect::{self, Names};
use kpx_node::backend::iptables::print::WithoutCounters;
use kpx_node::backend::ipvs;
use kpx_node::backend::program::{self, Part};
use kpx_node::desired::{DesiredState, FamilyState};
use kpx_node::evidence::{Evidence, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::random::{DUAL, ONLY_V6, evidence};

/// The output of `iptables-save` on the node.
fn rules(desired: &DesiredState, state: &FamilyState) -> String {
    if desired.mode == Mode::Ipvs {
        let sets = ipvs::expect::expect(desired, state).unwrap();
        WithoutCounters(&ipvs::rules::expect(desired, state, &sets)).to_string()
    } else {
        let names = Names::of(state);
        WithoutCounters(&expect::expect(desired, state, &names).unwrap()).to_string()
    }
}

/// Adds what a node in the desired state would list.
fn program(evidence: &mut Evidence, mode: Mode) {
    let mut read = Vec::new();
    {
        let node = NodeSnapshot::new(evidence);
        let desired = node.desired(mode).unwrap();
        for state in &desired.families {
            read.push((Item::iptables(state.family), rules(desired, state)));
        }
        let part = |part| program::text(desired, part, &Family::BOTH, &[]).unwrap();
        read.push((Item::Sysctl, part(Part::Sysctl)));
        if mode == Mode::Ipvs {
            read.push((Item::Ipset, part(Part::Ipset).replace(" -exist", "")));
            read.push((Item::IpvsSave, part(Part::Ipvs)));
            let text = part(Part::Addresses);
            let bound = text
                .lines()
                .filter_map(|line| line.strip_prefix("addr add "));
            let bound: Vec<_> = bound
                .map(|rest| {
                    let (addr, length) = rest.split(' ').next().unwrap().split_once('/').unwrap();
                    let length: u8 = length.parse().unwrap();
                    let family = if addr.contains(':') { "inet6" } else { "inet" };
                    json!({ "family": family, "local": addr, "prefixlen": length, "scope": "global" })
                })
                .collect();
            let all = evidence.text(Item::Addresses).unwrap();
            let mut all: Value = serde_json::from_str(all).unwrap();
            let dummy = json!({ "ifname": "kube-ipvs0", "addr_info": bound });
            all.as_array_mut().unwrap().push(dummy);
            read.push((Item::Addresses, all.to_string()));
            read.push((
                Item::Links,
                r#"[{"ifindex":3,"ifname":"kube-ipvs0"}]"#.to_owned(),
            ));
        }
    }
    for (item, text) in read {
        evidence.insert(item, Ok(text));
    }
}

fn changes(evidence: &Evidence, mode: Mode) -> Vec<Change> {
    let node = NodeSnapshot::new(evidence);
    let found = diff::compare(&node, mode, &Family::BOTH).unwrap();
    assert!(found.unknown.is_empty(), "{:?}", found.unknown);
    found.changes
}

const VERSIONS: &[&str] = &[
    "v1.26.9", "v1.27.2", "v1.28.3", "v1.29.0", "v1.30.5", "v1.33.1", "v1.36.2",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
#[ignore = "takes long: make test-loops"]
    fn the_desired_state_does_not_differ_from_itself(seed: u64, version in 0..VERSIONS.len(), v6: bool) {
        let families = if v6 { ONLY_V6 } else { DUAL };
        for mode in [Mode::Iptables, Mode::Ipvs] {
            let mut all = evidence(seed, families, mode.name(), VERSIONS[version]);
            program(&mut all, mode);
            prop_assert_eq!(changes(&all, mode), []);
        }
    }

    #[test]
#[ignore = "takes long: make test-loops"]
    fn a_missing_line_is_found(seed: u64, line: proptest::sample::Index) {
        for (mode, items) in [
            (Mode::Iptables, &[Item::Iptables4, Item::Iptables6][..]),
            (Mode::Ipvs, &[Item::Iptables4, Item::Ipset, Item::IpvsSave]),
        ] {
            let mut all = evidence(seed, DUAL, mode.name(), "v1.36.2");
            program(&mut all, mode);
            for &item in items {
                let text = all.text(item).unwrap().to_owned();
                let lines: Vec<&str> = text.lines().collect();
                let can_go = |line: &str| line.starts_with(['-', 'a']) && !line.starts_with("-A -")
                    || line.starts_with("-A KUBE") || line.starts_with("-a ");
                let rules: Vec<_> = (0..lines.len()).filter(|&at| can_go(lines[at])).collect();
                if rules.is_empty() {
                    continue;
                }
                let at = rules[line.index(rules.len())];
                // The same rule may be there for another port of the Service, and one of them is enough.
                if lines.iter().filter(|other| **other == lines[at]).count() > 1 {
                    continue;
                }
                let mut fewer = lines.clone();
                fewer.remove(at);
                let mut all = all.clone();
                all.insert(item, Ok(fewer.join("\n") + "\n"));
                prop_assert!(!changes(&all, mode).is_empty(), "{}", lines[at]);
            }
        }
    }
}
