//! The gates of a migration on recorded nodes.

use kpx_migrate::gates::{self, Expected, Gate, Name, Previous, Status};
use kpx_migrate::journal::Proxy;
use kpx_node::backend::Mode;
use kpx_node::cluster::edit::Fields;
use kpx_node::evidence::{Evidence, Gap, ITEMS, Item, load};
use kpx_node::node::NodeSnapshot;

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

#[test]
fn each_kind_of_difference_has_its_words() {
    let evidence = recording("seed-iptables");
    let rules = evidence.text(Item::Iptables4).unwrap();
    let rule = "-A KUBE-SERVICES -d 10.97.54.248/32";
    let line = rules.lines().find(|line| line.contains(rule)).unwrap();
    let extra = "[0:0] -A KUBE-SERVICES -d 10.97.54.250/32 -p tcp -j RETURN";
    let fields = fields(Mode::Iptables);
    let expected = Expected {
        fields: &fields,
        before: None,
        cleaned: None,
    };
    for (rules, end) in [
        (without(rules, rule), " is missing"),
        (
            without(&without(rules, rule), "-A KUBE-SERVICES -d 10.100.0.11/32"),
            " is missing, and 1 more",
        ),
        (
            rules.replace(line, &format!("{extra}\n{line}")),
            " is extra",
        ),
        (
            rules.replace(
                "--to-destination 10.244.1.22:",
                "--to-destination 10.244.9.9:",
            ),
            " differs",
        ),
    ] {
        let mut evidence = evidence.clone();
        evidence.insert(Item::Iptables4, Ok(rules));
        let node = NodeSnapshot::new(&evidence);
        let gates = gates::of_state(&node, expected, &mut Previous::default());
        let gate = gates.iter().find(|gate| gate.name == Name::Desired);
        let why = &gate.unwrap().reason;
        assert!(why.ends_with(end), "{end}: {why}");
    }
}

#[test]
fn what_cannot_be_checked_is_unknown() {
    let mut evidence = recording("full-nftables");
    let away = |item| Err(Gap::Denied(item, "run kpx as root".to_owned()));
    evidence.insert(Item::Metrics, away(Item::Metrics));
    evidence.insert(Item::Iptables4, away(Item::Iptables4));
    let gates = all(&evidence, &fields(Mode::Nftables), Some(Mode::Iptables));
    let unknown = gates.iter().filter(|gate| gate.status == Status::Unknown);
    let unknown: Vec<Name> = unknown.map(|gate| gate.name).collect();
    assert_eq!(
        unknown,
        [Name::Restarted, Name::Synced, Name::Leftovers],
        "{gates:?}"
    );
    // Without the live rules, the desired ones cannot be compared.
    for item in [Item::Nft, Item::NftText] {
        evidence.insert(item, away(item));
    }
    let gates = all(&evidence, &fields(Mode::Nftables), None);
    let desired = gates.iter().find(|gate| gate.name == Name::Desired);
    assert_eq!(desired.unwrap().status, Status::Unknown, "{gates:?}");
}

#[test]
fn syncs_that_failed_are_waited_for_until_no_more_fail() {
    let mut evidence = recording("full-iptables");
    let metrics = evidence.text(Item::Metrics).unwrap().to_owned();
    let failed = |back_end: &str, count| {
        let name = format!("kubeproxy_sync_proxy_rules_{back_end}_failures_total");
        format!("{name}{{ip_family=\"IPv4\"}} {count}\n")
    };
    let fields = fields(Mode::Iptables);
    let expected = Expected {
        fields: &fields,
        before: None,
        cleaned: None,
    };
    let mut previous = Previous::default();
    for (restores, syncs, why) in [
        (0, 0, ""),
        (1, 2, "3 syncs have failed since kube-proxy started"),
        (1, 2, ""),
        (2, 2, "4 syncs have failed since kube-proxy started"),
    ] {
        let lines = metrics
            .lines()
            .filter(|line| !line.contains("_failures_total"));
        let lines = lines.collect::<Vec<_>>().join("\n");
        let counts = failed("iptables_restore", restores) + &failed("nftables_sync", syncs);
        evidence.insert(Item::Metrics, Ok(format!("{lines}\n{counts}")));
        let node = NodeSnapshot::new(&evidence);
        let gates = gates::of_proxy(&node, expected, &mut previous);
        let gate = gates.iter().find(|gate| gate.name == Name::Failures);
        assert_eq!(gate.unwrap().reason, why);
    }
}

#[test]
fn a_kube_proxy_in_mode_userspace_does_not_report_its_syncs() {
    let evidence = recording("userspace-1.25");
    let fields = fields(Mode::Userspace);
    let gates = all(&evidence, &fields, None);
    let synced = gates.iter().find(|gate| gate.name == Name::Synced);
    assert_eq!(synced.unwrap().status, Status::Skipped, "{gates:?}");
}

#[test]
fn a_restart_that_neither_process_nor_metrics_show_is_unknown() {
    let mut evidence = recording("full-ipvs");
    let away = |item| Err(Gap::Absent(item, "away".to_owned()));
    evidence.insert(Item::Processes, away(Item::Processes));
    let fields = fields(Mode::Ipvs);
    let restarted = |evidence: &Evidence, before| {
        let expected = Expected {
            fields: &fields,
            before: Some(before),
            cleaned: None,
        };
        let node = NodeSnapshot::new(evidence);
        gates::of_proxy(&node, expected, &mut Previous::default()).swap_remove(0)
    };
    // The time of the start is in the metrics, too.
    let now = gates::proxy(&NodeSnapshot::new(&evidence));
    assert!(now.pid.is_none() && now.started.is_some(), "{now:?}");
    let earlier = Proxy {
        started: now.started.map(|at| at - 60),
        ..now
    };
    assert_eq!(restarted(&evidence, earlier).status, Status::Passed);
    assert_eq!(restarted(&evidence, now).status, Status::Waiting);
    let before = Proxy {
        pid: Some(7),
        started: None,
    };
    let gate = restarted(&evidence, before);
    assert_eq!(gate.status, Status::Unknown, "{gate:?}");
    assert!(
        gate.reason
            .ends_with("neither its process nor its metrics show whether kube-proxy was restarted"),
        "{gate:?}"
    );
}

#[test]
fn the_items_of_the_gates_are_those_of_the_mode_and_of_its_leftovers() {
    let needs = |mode, cleaned| {
        let fields = fields(mode);
        gates::state_needs(Expected {
            fields: &fields,
            before: None,
            cleaned,
        })
    };
    let usual = needs(Mode::Iptables, Some(Mode::Ipvs));
    for item in [Item::ProxyLog, Item::Metrics, Item::Iptables4] {
        assert_eq!(
            usual
                .iter()
                .filter(|needed_item| **needed_item == item)
                .count(),
            1,
            "{item}"
        );
    }
    // With many iptables rules, nft takes ten times as long as iptables-save.
    assert!(!usual.contains(&Item::Nft) && !usual.contains(&Item::NftText));
    let cleaned = needs(Mode::Iptables, Some(Mode::Nftables));
    assert!(cleaned.contains(&Item::Nft) && cleaned.contains(&Item::NftText));
}
