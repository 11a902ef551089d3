//! The gates of a migration on recorded nodes.

use kpx::backend::Mode;
use kpx::cluster::edit::Fields;
use kpx::evidence::{Evidence, Gap, ITEMS, Item, load};
use kpx::migrate::gates::{self, Expected, Gate, Name, Previous, Status};
use kpx::node::NodeSnapshot;

use crate::support::{root, without};

fn recording(name: &str) -> Evidence {
    load(&root().join("testdata/nodes").join(name), ITEMS).unwrap()
}

fn fields(mode: Mode) -> Fields {
    Fields {
        mode,
        scheduler: None,
        strict_arp: None,
    }
}

/// All gates, checked for the first time.
fn all(evidence: &Evidence, fields: &Fields, cleaned: Option<Mode>) -> Vec<Gate> {
    let node = NodeSnapshot::new(evidence);
    let expected = Expected {
        fields,
        before: Some(gates::proxy(&node)),
        cleaned,
    };
    let mut previous = Previous::default();
    let mut all = gates::of_proxy(&node, expected, &mut previous);
    all.extend(gates::of_state(&node, expected, &mut previous));
    all
}

/// The names of the gates that are waited for, and why.
fn blocking(gates: &[Gate]) -> Vec<(Name, &str)> {
    let blocking = gates.iter().filter(|gate| gate.is_blocking());
    blocking.map(|gate| (gate.name, &*gate.reason)).collect()
}

const NOT_RESTARTED: (Name, &str) = (Name::Restarted, "kube-proxy was not restarted");

#[test]
fn a_healthy_node_passes_every_gate_but_the_restart() {
    for (name, mode, cleaned) in [
        ("full-iptables", Mode::Iptables, Mode::Nftables),
        ("full-ipvs", Mode::Ipvs, Mode::Nftables),
        ("full-nftables", Mode::Nftables, Mode::Ipvs),
    ] {
        let gates = all(&recording(name), &fields(mode), Some(cleaned));
        assert_eq!(blocking(&gates), [NOT_RESTARTED], "{name}");
        let passed = gates.iter().filter(|gate| gate.status == Status::Passed);
        let passed: Vec<Name> = passed.map(|gate| gate.name).collect();
        for gate in [Name::Mode, Name::Synced, Name::Desired, Name::Leftovers] {
            assert!(passed.contains(&gate), "{name}: {gates:?}");
        }
    }
}

#[test]
fn leftovers_of_the_old_mode_are_waited_for_only_once_they_should_be_gone() {
    let evidence = recording("leftover-ipvs-to-nftables");
    let fields = fields(Mode::Nftables);
    let gates = all(&evidence, &fields, Some(Mode::Ipvs));
    let last = *blocking(&gates).last().unwrap();
    assert_eq!(last.0, Name::Leftovers);
    assert!(
        last.1.ends_with(" of mode ipvs are leftovers"),
        "{}",
        last.1
    );
    for other in [None, Some(Mode::Iptables)] {
        let gates = all(&evidence, &fields, other);
        let names = blocking(&gates).into_iter().map(|(name, _)| name);
        assert!(!names.collect::<Vec<_>>().contains(&Name::Leftovers));
    }
}

#[test]
fn what_kube_proxy_runs_with_is_compared_with_what_was_set() {
    let wrong = Fields {
        mode: Mode::Nftables,
        scheduler: Some("lc".to_owned()),
        strict_arp: Some(true),
    };
    let evidence = recording("full-ipvs");
    let node = NodeSnapshot::new(&evidence);
    let blocks = |fields: &Fields| {
        let expected = Expected {
            fields,
            before: None,
            cleaned: None,
        };
        let gates = gates::of_proxy(&node, expected, &mut Previous::default());
        let blocking = blocking(&gates).into_iter();
        blocking
            .map(|(_, why)| why.to_owned())
            .collect::<Vec<_>>()
            .join("; ")
    };
    assert_eq!(
        blocks(&wrong),
        "kube-proxy reports mode ipvs; \
         kube-proxy does not run with the mode, ipvs.scheduler, ipvs.strictARP that was set"
    );
    let right = Fields {
        mode: Mode::Ipvs,
        scheduler: Some(String::new()),
        strict_arp: Some(false),
    };
    assert_eq!(blocks(&right), "");
}

#[test]
fn a_kube_proxy_that_does_not_run_is_waited_for_and_one_that_is_not_seen_is_unknown() {
    let mut evidence = recording("full-ipvs");
    let restarted = |evidence: &Evidence| all(evidence, &fields(Mode::Ipvs), None).swap_remove(0);
    let away = |item| Err(Gap::Absent(item, "away".to_owned()));
    evidence.insert(Item::Metrics, away(Item::Metrics));
    evidence.insert(Item::Processes, Ok("{\"processes\": []}".to_owned()));
    let gate = restarted(&evidence);
    assert_eq!(gate.status, Status::Waiting, "{gate:?}");
    assert_eq!(gate.reason, "kube-proxy is not running");
    evidence.insert(Item::Processes, away(Item::Processes));
    let gate = restarted(&evidence);
    assert_eq!(gate.status, Status::Unknown, "{gate:?}");
}

/// In a busy cluster, every look finds some difference, but never the same one twice.
#[test]
fn a_difference_counts_if_it_persists() {
    let mut evidence = recording("seed-iptables");
    let rules = evidence.text(Item::Iptables4).unwrap().to_owned();
    let [nginx, redis] = ["10.97.54.248", "10.100.0.11"]
        .map(|ip| without(&rules, &format!("-A KUBE-SERVICES -d {ip}/32")));
    let fields = fields(Mode::Iptables);
    let expected = Expected {
        fields: &fields,
        before: None,
        cleaned: None,
    };
    let mut previous = Previous::default();
    let mut look = |rules: &str| {
        evidence.insert(Item::Iptables4, Ok(rules.to_owned()));
        let node = NodeSnapshot::new(&evidence);
        let gates = gates::of_state(&node, expected, &mut previous);
        let gate = gates.into_iter().find(|gate| gate.name == Name::Desired);
        gate.unwrap()
    };
    let first = look(&nginx);
    assert_eq!(first.status, Status::Waiting);
    assert!(first.reason.ends_with(" is missing"), "{}", first.reason);
    assert_eq!(look(&redis).status, Status::Passed);
    let again = look(&redis);
    assert_eq!(again.status, Status::Waiting);
    assert_ne!(again.reason, first.reason);
    assert_eq!(look(&rules).status, Status::Passed);
}
