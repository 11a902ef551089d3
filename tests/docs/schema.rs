//! The schemas in `docs/schema/`, against the reports of every command on recordings.
//!
//! Every other test of the suite that prints JSON compares it, too: see `schema::hold`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use kpx_migrate::migration::{Leg, Stage};
use kpx_migrate::wire::{Event, EventLine, Line};
use serde_json::{Value, json};

use crate::nodes::bundle_of;
use crate::schema::{kinds, misfit};
use crate::shell::shell;
use crate::support::{chosen, kpx, root};

/// Kinds that need a kernel or a cluster, with the test that compares them.
const ELSEWHERE: &[(&str, &str)] = &[
    ("AccessReport", "tests/access.rs"),
    ("ChangeEvent", "tests/kernel/watch.rs"),
    ("FleetEvent", "tests/fleet/moves.rs"),
    ("FleetReport", "tests/fleet/moves.rs"),
    ("MigrateEvent", "tests/docs/schema.rs"),
    ("TopReport", "tests/kernel/top.rs"),
];

/// Command lines, each with the `kind` of its report.
pub(crate) const COMMANDS: &[(&str, &str)] = &[
    ("DoctorReport", "doctor -v"),
    ("DoctorReport", "doctor --to nftables"),
    ("DoctorReport", "doctor --release 1.40"),
    ("DiffReport", "diff"),
    ("PacketsReport", "diff --packets"),
    ("PlanReport", "reconcile"),
    ("PlanReport", "reconcile --cleanup ipvs"),
    ("PreflightReport", "preflight --to ipvs"),
    ("ProgramReport", "render"),
    ("ResolveReport", "resolve kube-dns --namespace kube-system"),
    ("TraceReport", "trace default/kubernetes"),
    ("WhyReport", "why default/kubernetes"),
    ("MigrateReport", "migrate --to nftables --dry-run"),
    ("ShowReport", "show services"),
    ("ShowReport", "show services default/kubernetes"),
    ("ShowReport", "show chains"),
    ("ShowReport", "show chains default/kubernetes"),
    ("ShowReport", "show ipvs"),
    ("ShowReport", "show sets"),
    ("ShowReport", "show addresses"),
    ("ShowReport", "show nodeports"),
    ("ShowReport", "show portals"),
    ("ShowReport", "show conntrack"),
    ("ShowReport", "show affinity"),
    ("ShowReport", "show modules"),
    ("ShowReport", "show sysctls"),
    ("ShowReport", "show config"),
];

/// Runs a command; its report fits its schema, or it fails without one. Returns whether it printed one.
async fn fits(kind: &str, args: &[&str]) -> bool {
    let ran = kpx(&[args, &["-o", "json"]].concat()).await;
    let Ok(document) = serde_json::from_str::<Value>(&ran.out) else {
        assert!(matches!(ran.code, 2..=4), "{args:?}: {ran}");
        return false;
    };
    assert_eq!(document["kind"], kind, "{args:?}");
    true
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn every_report_on_recordings_fits_its_schema() {
    let whole = [
        "dual-nft",
        "faults-iptables",
        "full-",
        "seed-left",
        "userspace-",
    ];
    reports_fit(chosen(), &whole).await;
}

/// Runs every command on the recordings whose names begin with one of `whole`, and the doctor on all of these recordings.
pub(crate) async fn reports_fit(names: Vec<String>, whole: &[&str]) {
    let mut seen = BTreeSet::new();
    for name in names {
        let all = whole.iter().any(|start| name.starts_with(start));
        let commands = if all { COMMANDS } else { &COMMANDS[..1] };
        let from = root().join("testdata/nodes").join(&name);
        for (kind, command) in commands {
            let words: Vec<&str> = command.split(' ').collect();
            let args = [&["--from", from.to_str().unwrap()], &words[..]].concat();
            if fits(kind, &args).await {
                seen.insert((*kind).to_owned());
            }
        }
    }
    let recorded = |name: &str| root().join("testdata/nodes").join(name);
    let (from, other) = (recorded("full-iptables"), recorded("full-ipvs"));
    let (from, other) = (from.to_str().unwrap(), other.to_str().unwrap());
    let unfinished = recorded("mx06-unfinished-migration");
    let unfinished = unfinished.to_str().unwrap();
    let (_dir, several) = bundle_of(
        ".tar.gz",
        &[
            ("node1", Ok("full-iptables")),
            ("node2", Ok("full-ipvs")),
            ("node3", Err("refused")),
        ],
    );
    let several = several.to_str().unwrap();
    for (kind, args) in [
        ("CheckList", &["explain"][..]),
        ("Explanation", &["explain", "MX01"]),
        ("Document", &["explain", "modes"]),
        ("HistoryReport", &["diff", from, other]),
        ("NodeReports", &["--from", several, "doctor", "--all-nodes"]),
        ("NodeReports", &["--from", several, "diff", "--all-nodes"]),
        (
            "MigrateStatus",
            &["--from", unfinished, "migrate", "status"],
        ),
        ("VersionReport", &["version"]),
        (
            "NodeReports",
            &["--from", several, "why", "shop/cart", "--all-nodes"],
        ),
        (
            "NodeReports",
            &["--from", several, "trace", "shop/cart", "--all-nodes"],
        ),
        (
            "NodeReports",
            &["--from", several, "show", "services", "--all-nodes"],
        ),
        (
            "NodeReports",
            &[
                "--from",
                several,
                "preflight",
                "--to",
                "ipvs",
                "--all-nodes",
            ],
        ),
        (
            "NodeReports",
            &["--from", several, "reconcile", "--all-nodes"],
        ),
    ] {
        assert!(fits(kind, args).await, "{args:?}");
        seen.insert(kind.to_owned());
    }
    // It writes a bundle to its folder.
    let dir = tempfile::tempdir().unwrap();
    let (bin, line) = (
        Path::new(env!("CARGO_BIN_EXE_kpx")).parent().unwrap(),
        format!("kpx --from {from} snapshot -o json"),
    );
    let ran = shell(&line, bin, dir.path(), dir.path(), &[]);
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(misfit(&report), None);
    seen.insert(report["kind"].as_str().unwrap().to_owned());
    for (kind, test) in ELSEWHERE {
        assert!(root().join(test).exists(), "{test}");
        seen.insert((*kind).to_owned());
    }
    let all: BTreeSet<String> = kinds().into_iter().map(str::to_owned).collect();
    assert_eq!(seen, all);
}

#[tokio::test]
async fn a_report_with_a_wrong_unknown_or_missing_field_does_not_fit() {
    let from = root().join("testdata/nodes/full-ipvs");
    let args = ["--from", from.to_str().unwrap(), "doctor", "-o", "json"];
    let right: Value = serde_json::from_str(&kpx(&args).await.out).unwrap();
    assert_eq!(misfit(&right), None);
    let changed = |change: fn(&mut Value)| {
        let mut report = right.clone();
        change(&mut report);
        misfit(&report).is_some()
    };
    assert!(changed(
        |report| report["checks"][0]["status"] = json!("broken")
    ));
    assert!(changed(
        |report| report["checks"][0]["colour"] = json!("red")
    ));
    assert!(changed(|report| report["summary"]["errors"] = json!("none")));
    assert!(changed(|report| report["extra"] = json!(1)));
    assert!(changed(|report| report["kind"] = json!("NoReport")));
    assert!(changed(|report| {
        report.as_object_mut().unwrap().remove("findings");
    }));
    assert!(changed(|report| {
        report["findings"][0]
            .as_object_mut()
            .unwrap()
            .remove("message");
    }));
}

/// The events of a migration are written where it runs, which is no recording: this is their type.
#[test]
fn an_event_of_a_migration_fits_its_schema() {
    let event = Event::Begins {
        leg: Leg::Back,
        stage: Stage::Verify,
        title: "wait for kube-proxy".to_owned(),
        steps: 0,
        number: 1,
        of: 1,
    };
    let line = Line::MigrateEvent(EventLine::from(event)).to_text();
    let mut line: Value = serde_json::from_str(&line).unwrap();
    assert!(misfit(&line).is_some(), "{line}");
    line["apiVersion"] = json!("kpx/v1");
    line["kpx"] = json!("0.1.0");
    assert_eq!(misfit(&line), None);
}

/// A programmer finds the schema of each kind in the table.
#[test]
fn every_kind_is_in_the_table() {
    let text = fs::read_to_string(root().join("docs/api.md")).unwrap();
    for kind in kinds() {
        let link = format!("[{kind}](schema/{kind}.json)");
        assert!(text.contains(&link), "docs/api.md has no {kind}");
    }
}
