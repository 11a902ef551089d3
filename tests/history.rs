//! `kpx diff BUNDLE BUNDLE`: what changed.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{broken, kpx, root, without};

const RULES: &str = "node/iptables-save.txt";
const SLICES: &str = "cluster/endpointslices.json";

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn between_a_bundle_and_itself_nothing_changed() {
    for name in [
        "seed-iptables",
        "full-ipvs",
        "full-nftables",
        "dual-iptables",
    ] {
        let bundle = root().join("testdata/nodes").join(name);
        let ran = kpx(&["diff", text(&bundle), text(&bundle)]).await;
        assert!(ran.out.ends_with("nothing changed\n"), "{name}: {ran}");
        // Items that a bundle lacks are unknown, not unchanged.
        let is_unknown = ran.out.contains("unknown: ");
        assert_eq!(ran.code, if is_unknown { 3 } else { 0 }, "{name}: {ran}");
    }
}

#[tokio::test]
async fn rules_endpoints_and_findings_that_changed_are_listed() {
    let before = root().join("testdata/nodes/seed-iptables");
    let after = broken(
        "seed-iptables",
        &[
            (RULES, &|old| {
                let lost = without(old, "-j KUBE-SEP-BWHGELGX6BITPZVO");
                lost.replacen(
                    "-A FORWARD ",
                    "-A FORWARD -s 10.244.9.0/24 -j DROP\n[0:0] -A FORWARD ",
                    1,
                )
            }),
            (SLICES, &|old| {
                old.replacen("\"ready\": true", "\"ready\": false", 1)
            }),
        ],
    );
    // Counters of packets are no change.
    let counted = after.path().join(RULES);
    let rules = fs::read_to_string(&counted).unwrap();
    fs::write(
        &counted,
        rules.replace("[0:0] -A KUBE-SERVICES", "[7:420] -A KUBE-SERVICES"),
    )
    .unwrap();
    let line = ["diff", text(&before), text(after.path())];
    let mut ran = kpx(&[&line[..], &["-v"]].concat()).await;
    for (path, name) in [(before.as_path(), "BEFORE"), (after.path(), "AFTER")] {
        ran.out = ran.out.replace(text(path), name);
    }
    insta::assert_snapshot!(ran);
    let ran = kpx(&[&line[..], &["-o", "json"]].concat()).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let changes = report["changes"].as_array().unwrap();
    let of = |topic: &str, name: &str| {
        let mut all = changes.iter();
        all.find(|change| change["topic"] == topic && change["name"] == name)
            .unwrap_or_else(|| panic!("{topic} {name}: {ran}"))
    };
    let forward = of("rules", "IPv4 filter FORWARD");
    assert_eq!(forward["action"], "changed");
    assert_eq!(forward["after"][0], "-s 10.244.9.0/24 -j DROP");
    assert_eq!(ran.code, 1);
}

#[tokio::test]
async fn what_one_bundle_lacks_is_unknown_and_not_gone() {
    let before = root().join("testdata/nodes/seed-iptables");
    let after = broken("seed-iptables", &[]);
    for file in [RULES, SLICES] {
        fs::remove_file(after.path().join(file)).unwrap();
    }
    let ran = kpx(&["diff", text(&before), text(after.path())]).await;
    let words: Vec<_> = ran.out.split_whitespace().collect();
    let page = words.join(" ");
    assert!(
        page.contains("unknown: endpoint: cluster/endpointslices.json"),
        "{ran}"
    );
    assert!(page.contains("rules: node/iptables-save.txt"), "{ran}");
    let is_change = |line: &&str| {
        line.starts_with("- rules")
            || line.starts_with("- endpoint")
            || line.starts_with("- finding")
    };
    assert_eq!(ran.out.lines().find(is_change), None, "{ran}");
}

#[tokio::test]
async fn a_bundle_that_is_not_there_is_named() {
    let ran = kpx(&["diff", "nowhere.tar.gz", "elsewhere.tar.gz"]).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(ran.err.contains("nowhere.tar.gz"), "{ran}");
}
