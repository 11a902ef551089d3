//! Checks that read rules of iptables read those of both backends.

use kpx_judge::check::{self, Facts, Outcome};
use kpx_node::evidence::{self, Evidence, ITEMS, Item};
use kpx_node::node::NodeSnapshot;

use crate::support::root;

const EMPTY: &str = "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n\
                     *filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n";

/// A check, and a recording where it finds something in the rules of iptables.
const FOUND: &[(&str, &str)] = &[
    ("CN06", "cases/seen-05-portmap-duplicate"),
    ("CN12", "nodes/cn12-flannel-left"),
    ("IR06", "nodes/faults-rules"),
    ("IR12", "nodes/faults-rules"),
    ("IR14", "nodes/faults-rules"),
    ("IR15", "nodes/scale-2000x10-iptables"),
    ("MX08", "nodes/leftover-iptables-to-ipvs"),
];

fn load(name: &str) -> Evidence {
    let mut evidence = evidence::load(&root().join("testdata").join(name), ITEMS).unwrap();
    let version = "iptables v1.8.9 (nf_tables)\n".to_owned();
    evidence.insert(Item::IptablesVersion, Ok(version));
    evidence
}

/// Moves the rules to the legacy backend; the node's tools use the other one.
fn move_rules(evidence: &mut Evidence) {
    for (used, legacy) in [
        (Item::Iptables4, Item::IptablesLegacy4),
        (Item::Iptables6, Item::IptablesLegacy6),
    ] {
        if let Ok(rules) = evidence.text(used).map(str::to_owned) {
            evidence.insert(legacy, Ok(rules));
            evidence.insert(used, Ok(EMPTY.to_owned()));
        }
    }
}

/// Returns what check `id` finds, with its fixes.
fn found(id: &str, evidence: &Evidence) -> String {
    let node = NodeSnapshot::new(evidence);
    let check = check::named(id)[0];
    match check::run(check, &Facts::new(&node, None)) {
        Outcome::Fail(findings) => format!("{findings:#?}"),
        other => format!("{other:?}"),
    }
}

#[test]
fn what_is_wrong_in_the_legacy_backend_is_found() {
    for (id, recording) in FOUND {
        let mut evidence = load(recording);
        move_rules(&mut evidence);
        let found = found(id, &evidence);
        assert!(found.contains("legacy"), "{id}: {found}");
    }
}

#[test]
fn a_firewall_of_the_legacy_backend_closes_node_ports() {
    let mut evidence = load("nodes/full-ipvs");
    let legacy = EMPTY.replace(":INPUT ACCEPT", ":INPUT DROP");
    assert_ne!(legacy, EMPTY);
    evidence.insert(Item::IptablesLegacy4, Ok(legacy));
    let found = found("VS14", &evidence);
    assert!(found.contains("in the legacy backend drops"), "{found}");
}

#[test]
fn the_backends_are_compared_for_each_family() {
    let mut evidence = load("nodes/full-iptables");
    let rules = evidence.text(Item::Iptables6).unwrap().to_owned();
    evidence.insert(Item::IptablesLegacy4, Ok(EMPTY.to_owned()));
    evidence.insert(Item::IptablesLegacy6, Ok(rules));
    evidence.insert(Item::Iptables6, Ok(EMPTY.to_owned()));
    let found = found("IB02", &evidence);
    assert!(
        found.contains("writes its IPv6 rules to the legacy backend"),
        "{found}"
    );
}

#[test]
fn chains_of_the_kubelet_in_the_other_backend_are_not_kube_proxys() {
    // As kubelets up to 1.27 write them.
    let kubelets = "*mangle\n:PREROUTING ACCEPT [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n\
        *filter\n:INPUT ACCEPT [0:0]\n:KUBE-FIREWALL - [0:0]\nCOMMIT\n\
        *nat\n:POSTROUTING ACCEPT [0:0]\n:KUBE-MARK-DROP - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-POSTROUTING - [0:0]\n\
        -A POSTROUTING -j KUBE-POSTROUTING\n-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000\n\
        -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n\
        -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\nCOMMIT\n";
    let mut evidence = load("nodes/full-iptables");
    evidence.insert(Item::IptablesLegacy6, Ok(EMPTY.to_owned()));
    evidence.insert(Item::IptablesLegacy4, Ok(kubelets.to_owned()));
    assert_eq!(found("IB01", &evidence), "Pass");
    let all = found("IB02", &evidence);
    for words in [
        "the kubelet uses the legacy backend for IPv4, but kube-proxy uses nft",
        "KUBE-KUBELET-CANARY, KUBE-FIREWALL, KUBE-MARK-DROP",
    ] {
        assert!(all.contains(words), "{words}: {all}");
    }
    let chain = ":KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -j ACCEPT\nCOMMIT";
    let proxys = kubelets.replace(
        "COMMIT\n*filter",
        &format!("COMMIT\n*filter\n{chain}\n*raw"),
    );
    evidence.insert(Item::IptablesLegacy4, Ok(proxys));
    assert!(found("IB01", &evidence).contains("both backends contain"));
}

#[test]
fn rules_in_the_legacy_backend_are_rules_of_the_mode() {
    let mut evidence = load("nodes/full-iptables");
    move_rules(&mut evidence);
    let found = found("KP01", &evidence);
    assert!(!found.contains("the kernel has no rules"), "{found}");
}
