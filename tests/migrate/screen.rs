//! The plan and the status of `kpx migrate`, for people and programs.

use std::fs;
use std::sync::Arc;

use kpx_node::evidence::{self, ITEMS, Manifest};
use serde_json::{Value, json};

use super::*;
use crate::support::{Ran, kpx, kpx_on, kpx_once_on, root};

/// The recording of a node in mode `mode`.
pub(crate) const fn recorded(mode: Mode) -> &'static str {
    match mode {
        Mode::Iptables => "full-iptables",
        Mode::Ipvs => "full-ipvs",
        Mode::Nftables => "full-nftables",
        Mode::Userspace => "userspace-1.25",
    }
}

/// The recording of a node in mode `mode` with few Services.
const fn small(mode: Mode) -> &'static str {
    match mode {
        Mode::Iptables => "seed-iptables",
        Mode::Ipvs => "seed-ipvs",
        Mode::Nftables => "seed-nftables",
        Mode::Userspace => "userspace-1.25",
    }
}

async fn dry_run(recording: &str, to: Mode, more: &[&str]) -> Arc<Ran> {
    let mut args = vec!["migrate", "--to", to.name(), "--dry-run"];
    args.extend(more);
    kpx_once_on(recording, &args).await
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_dry_run_prints_the_plan() {
    dry_runs_print_plans(CIRCLE).await;
}

pub(crate) async fn dry_runs_print_plans(directions: impl IntoIterator<Item = (Mode, Mode)>) {
    for (from, to) in directions {
        let ran = dry_run(recorded(from), to, &[]).await;
        insta::assert_snapshot!(format!("dry_run_{from}_to_{to}"), ran);
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_class_of_packets_that_the_new_mode_loses_blocks_until_it_is_accepted() {
    let class = "host-to-load-balancer-ip";
    let run = |more: &'static [&'static str]| dry_run("full-iptables", Mode::Ipvs, more);
    let blocked = run(&["--brief"]).await;
    assert_eq!(blocked.code, 1, "{blocked}");
    let text: Vec<&str> = blocked.out.split_whitespace().collect();
    let text = text.join(" ");
    for words in [
        "blocked by MX12; mode ipvs loses connections from the host to load-balancer IPs",
        "blocked: MX12: in mode ipvs, connections from the host to load-balancer IPs of edge/web-remote-only get no answer, \
         by design of mode ipvs",
        "expected loss: in the new mode connections from the host to load-balancer IPs; during the switch no new connections",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    // In any order, several at once, in addition to the loss of connections.
    for more in [
        &["--brief", "--accept-loss", "host-to-load-balancer-ip"][..],
        &[
            "--brief",
            "--accept-loss",
            "pod-to-cluster-ip,host-to-load-balancer-ip",
        ],
        &[
            "--accept-loss",
            "--brief",
            "--accept-loss",
            "host-to-load-balancer-ip",
        ],
    ] {
        let free = run(more).await;
        // What the recording lacks stays unknown, as for `kpx preflight`.
        assert_eq!(free.code, 3, "{more:?}: {free}");
    }
    let other = run(&["--brief", "--accept-loss", "pod-to-node-port"]).await;
    assert_eq!(other.code, 1, "{other}");
    let text = other.out.split_whitespace().collect::<Vec<_>>().join(" ");
    let words = "note: --accept-loss pod-to-node-port has no effect: mode ipvs loses no such packets on this node";
    assert!(text.contains(words), "{text}");
    // It stands for connections that do not drain in time, and for no class.
    assert_eq!(run(&["--brief", "--accept-loss"]).await.code, 1);
    let unknown = kpx_on(
        "full-iptables",
        &[
            "migrate",
            "--to",
            "ipvs",
            "--dry-run",
            "--accept-loss",
            "pods",
        ],
    );
    let unknown = unknown.await;
    assert_eq!(unknown.code, 2, "{unknown}");
    assert!(unknown.err.contains("the classes are"), "{unknown}");
    assert!(unknown.err.contains(class), "{unknown}");
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn every_strategy_has_its_loss_and_the_chosen_one_its_reason() {
    strategies_have_their_loss(small, CIRCLE).await;
}

/// Plans every direction with every strategy, on the recording of the mode that is left.
pub(crate) async fn strategies_have_their_loss(
    recording: fn(Mode) -> &'static str,
    directions: impl IntoIterator<Item = (Mode, Mode)>,
) {
    for (from, to) in directions {
        let usual = Strategy::usual(from, to);
        for asked in [None, Some("bridge"), Some("in-place")] {
            let more: Vec<&str> = asked
                .into_iter()
                .flat_map(|strategy| ["--strategy", strategy])
                .collect();
            let ran = dry_run(recording(from), to, &more).await;
            let table = ran.out.split("cost of the switch: lost connections").nth(1);
            let table = table.unwrap();
            let rows = table.lines().skip(2).take(Strategy::ALL.len());
            let rows: Vec<Vec<&str>> = rows.map(|row| row.split_whitespace().collect()).collect();
            let (chosen, others): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row[0] == "->");
            let name = asked.map_or_else(|| usual.to_string(), str::to_owned);
            assert_eq!(chosen.len(), 1, "{table}");
            assert_eq!(chosen[0][1], name, "{table}");
            let mut named: Vec<&str> = others.iter().map(|row| row[0]).collect();
            named.push(&name);
            named.sort_unstable();
            let mut all = Strategy::ALL.map(|strategy| strategy.to_string());
            all.sort();
            assert_eq!(named, all, "{table}");
            let why = format!("\n{name}: requested\n");
            assert_eq!(table.contains(&why), asked.is_some(), "{table}");
            // Only the bridge follows endpoints.
            let row = |of: &str| rows.iter().find(|row| row.contains(&of)).unwrap();
            assert_eq!(row("bridge").last(), Some(&"-"), "{table}");
            assert_eq!(row("in-place").last(), Some(&"s"), "{table}");
        }
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn json_has_the_same_plan() {
    json_has_plans(CIRCLE.into_iter().take(1)).await;
}

pub(crate) async fn json_has_plans(directions: impl IntoIterator<Item = (Mode, Mode)>) {
    for (from, to) in directions {
        let ran = dry_run(recorded(from), to, &["-o", "json"]).await;
        let mut report: Value = serde_json::from_str(&ran.out).unwrap();
        let plan = &mut report["plan"];
        let without = &plan["strategies"]["withoutKpx"];
        let deletes = [from, to].contains(&Mode::Nftables);
        let seconds = without["unservedSeconds"].as_u64().unwrap();
        assert_eq!(seconds > 0, deletes, "{without}");
        // The text for people has the input of each step; here only the titles count.
        for stage in plan["stages"].as_array_mut().unwrap() {
            let steps = stage["steps"].as_array().cloned().unwrap_or_default();
            for step in &steps {
                assert!(
                    !step["action"].is_null() && !step["undo"].is_null(),
                    "{step}"
                );
            }
            let titles = steps.iter().map(|step| &step["title"]);
            stage["steps"] = titles.cloned().collect();
        }
        let findings = plan["assessment"]["findings"].as_array().unwrap();
        let ids: Value = findings
            .iter()
            .map(|finding| finding["id"].clone())
            .collect();
        plan["assessment"] = json!({ "findings": ids });
        insta::assert_json_snapshot!(format!("dry_run_json_{from}_to_{to}"), report);
    }
}

/// Asks for the status of a node with this journal.
async fn status(journal: &str) -> Ran {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("var/lib/kpx/migrate/test");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("journal.jsonl"), journal).unwrap();
    let root = root.path().to_str().unwrap();
    let mut ran = kpx(&["--root", root, "migrate", "status"]).await;
    ran.out = ran.out.replace(root, "ROOT");
    // The bridge is read from this machine's kernel, where that is possible.
    if let Some(at) = ran.out.find("\nbridge: ") {
        let end = ran.out.find("\nnext: ").unwrap();
        ran.out.replace_range(at..end, "\nbridge: STATE");
    }
    ran
}

fn place() -> Place {
    let migration = migration(Mode::Ipvs, Mode::Iptables, Strategy::Bridge);
    Place::new(Machine::new(SMALL, Mode::Ipvs), &migration)
}

#[tokio::test]
async fn status_shows_the_state_and_the_next_command() {
    insta::assert_snapshot!("status_none", status("").await);
    let mut killed = place();
    killed.life = Some(12);
    assert_eq!(killed.go_on(false), None);
    insta::assert_snapshot!("status_killed", status(&killed.journal).await);
    let torn = format!("{}{{\"entry\":\"done\",\"at", killed.journal);
    insta::assert_snapshot!("status_torn", status(&torn).await);
    let mut migrated = place();
    assert_eq!(migrated.go_on(false), Some(Ended::Migrated));
    insta::assert_snapshot!("status_migrated", status(&migrated.journal).await);
    let mut silent = place();
    silent.silent = vec![Mode::Iptables];
    assert!(matches!(silent.go_on(false), Some(Ended::RolledBack(_))));
    insta::assert_snapshot!("status_rolled_back", status(&silent.journal).await);
    let mut stuck = place();
    stuck.silent = vec![Mode::Iptables, Mode::Ipvs];
    assert!(matches!(stuck.go_on(false), Some(Ended::Stopped(_))));
    insta::assert_snapshot!(
        "status_stopped_on_the_way_back",
        status(&stuck.journal).await
    );
    stuck.limits.accept_loss = true;
    assert!(matches!(stuck.go_on(false), Some(Ended::RolledBack(_))));
    let ended = status(&stuck.journal).await;
    assert!(!ended.out.contains("unfinished"), "{ended}");
    let mut external = place();
    external.journal = line(&Entry::Began {
        kpx: "test".to_owned(),
        migration: Box::new(Migration {
            external: true,
            ..migration(Mode::Ipvs, Mode::Iptables, Strategy::Bridge)
        }),
    });
    assert_eq!(external.go_on(false), Some(Ended::Prepared));
    insta::assert_snapshot!("status_prepared", status(&external.journal).await);
}

/// A kube-proxy that hangs is the same blocker, with the same exit status, for every command that judges a switch.
#[tokio::test]
async fn a_kube_proxy_that_hangs_blocks_whatever_command_is_asked() {
    let path = root().join("testdata/nodes/full-iptables");
    let mut evidence = evidence::load(&path, ITEMS).unwrap();
    for item in [Item::Healthz, Item::ProxyMode, Item::Metrics, Item::Configz] {
        let late = Gap::Late(item, "127.0.0.1:10249: no complete answer".to_owned());
        evidence.insert(item, Err(late));
    }
    let stopped = r#"{"processes":[{"pid":4711,"name":"kube-proxy","args":["kube-proxy"],"state":"T","sameNetwork":true}]}"#;
    evidence.insert(Item::Processes, Ok(stopped.to_owned()));
    let manifest = Manifest::of(&evidence, "2026-11-20T12:44:00Z".to_owned(), None);
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("hangs.tar.gz");
    evidence::save(&evidence, &manifest, &bundle).unwrap();
    let from = ["--from", bundle.to_str().unwrap()];
    for command in [
        &["migrate", "--to", "nftables", "--dry-run"][..],
        &["migrate", "--to", "nftables", "--dry-run", "--brief"],
        &["preflight", "--to", "nftables"],
        &["doctor", "--to", "nftables"],
    ] {
        let ran = kpx(&[&from[..], command].concat()).await;
        assert_eq!(ran.code, 1, "{command:?}: {ran}");
        let text = ran.to_string();
        for tells in ["KP05", "process 4711 is stopped (state T)"] {
            assert!(text.contains(tells), "{command:?}: {tells}: {ran}");
        }
    }
}
