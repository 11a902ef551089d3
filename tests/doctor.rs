//! The output of `kpx doctor` and `kpx explain`, for people and programs.

mod absent;
mod advice;
mod astray;
mod backends;
mod behind;
mod blame;
mod carried;
mod carriers;
mod case;
mod causes;
mod config;
mod credentials;
mod detours;
mod dnat;
mod ends;
mod entrances;
mod first_causes;
mod foreign;
pub(crate) mod formats;
mod harmless;
mod ids;
mod ignore;
mod incidents;
mod interfaces;
pub(crate) mod known_bugs;
mod layers;
mod links;
mod logged;
mod lookalikes;
mod machines;
mod meant;
mod neighbours;
mod objects;
mod obstacles;
mod opening;
mod owners;
mod partial;
mod pod_networks;
mod pods;
mod reporting;
mod settle;
mod silence;
mod symptoms;
mod unread;
mod upgrade;
mod verdicts;
pub(crate) mod voice;
mod ways;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use crate::support::{HEALTHY, every, kpx, kpx_on, kpx_once_on, recordings, root};

#[tokio::test]
async fn a_healthy_node_has_no_error_in_any_mode() {
    let args = ["doctor"];
    insta::assert_snapshot!("seed_iptables", kpx_once_on("seed-iptables", &args).await);
    insta::assert_snapshot!("seed_ipvs", kpx_once_on("seed-ipvs", &args).await);
    insta::assert_snapshot!("seed_nftables", kpx_once_on("seed-nftables", &args).await);
}

#[tokio::test]
async fn leftovers_are_named() {
    let ran = kpx_once_on("seed-leftover-iptables-to-ipvs", &["doctor"]).await;
    insta::assert_snapshot!(ran);
}

#[tokio::test]
async fn nodes_that_share_addresses_a_kernel_that_recycles_connections_and_a_cause_of_why_are_found()
 {
    for (node, id) in [
        ("ap13-shared-by-nodes", "AP13"),
        ("ap14-shared-by-services", "AP14"),
        ("sv01-unnamed-nodes", "SV01"),
        ("sy17-recycling", "SY17"),
    ] {
        let ran = kpx_on(node, &["doctor", "--only", id, "-v"]).await;
        insta::assert_snapshot!(id, ran);
    }
}

#[tokio::test]
async fn verbose_shows_all() {
    let ran = kpx_on("seed-leftover-iptables-to-ipvs", &["doctor", "-v"]).await;
    insta::assert_snapshot!(ran);
}

#[tokio::test]
async fn consequences_are_printed_below_their_cause() {
    insta::assert_snapshot!(kpx_once_on("fallback-no-ipvs-modules", &["doctor"]).await);
}

#[tokio::test]
async fn every_leftover_of_ipvs_is_reported() {
    insta::assert_snapshot!(kpx_once_on("leftover-ipvs-to-iptables", &["doctor"]).await);
}

#[tokio::test]
async fn programs_get_the_same_facts() {
    for format in ["json", "junit", "prom", "short", "yaml"] {
        let ran = kpx_on("km01-ip-vs-missing", &["doctor", "-o", format]).await;
        insta::assert_snapshot!(format!("km01_{format}"), ran);
    }
}

#[tokio::test]
async fn an_unknown_check_is_refused_with_a_hint() {
    insta::assert_snapshot!(kpx(&["doctor", "--only", "ZZ01"]).await);
}

#[tokio::test]
async fn checks_are_named_by_id_name_or_group_in_either_case() {
    for word in ["sy01", "ip-forward", "SYSCTL", "Sy"] {
        let ran = kpx_on("seed-ipvs", &["doctor", "--only", word, "-o", "json"]).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(report["checks"][0]["id"], "SY01", "{word}");
    }
}

#[tokio::test]
async fn fail_on_decides_the_exit_status() {
    for (least, code) in [("error", 0), ("warning", 1), ("never", 0)] {
        let args = ["doctor", "--only", "DP01", "--fail-on", least];
        assert_eq!(kpx_on("seed-ipvs", &args).await.code, code, "{least}");
    }
    let args = ["doctor", "--only", "KM01", "--fail-on", "never"];
    assert_eq!(kpx_on("km01-ip-vs-missing", &args).await.code, 0);
    let args = [
        "doctor", "--only", "DP,VS", "--skip", "DP", "--skip", "VS10",
    ];
    let args = [&args[..], &["--fail-on", "warning"]].concat();
    assert_eq!(kpx_on("seed-ipvs", &args).await.code, 0);
    // A check without its data is no success.
    let args = ["doctor", "--only", "VS10"];
    assert_eq!(kpx_on("seed-ipvs", &args).await.code, 3);
}

#[tokio::test]
async fn checks_before_a_switch() {
    let ran = kpx_on("faults-moves", &["doctor", "--to", "ipvs"]).await;
    insta::assert_snapshot!("for_ipvs", ran);
    let ran = kpx_on(
        "faults-moves",
        &["doctor", "--to", "nftables", "-o", "json"],
    )
    .await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&report["for"], ran.code), (&Value::from("nftables"), 1));
    // A check that does not run before a switch is refused; one that runs only before a switch is skipped without one.
    assert_eq!(
        kpx_on(
            "faults-moves",
            &["doctor", "--to", "ipvs", "--only", "SY01"]
        )
        .await
        .code,
        2
    );
    let ran = kpx_on("faults-moves", &["doctor", "--only", "AP03", "-o", "json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["checks"][0]["status"], "skip");
    assert!(kpx(&["explain", "--to", "ipvs"]).await.out.contains("AP03"));
    assert!(
        !kpx(&["explain", "--to", "nftables"])
            .await
            .out
            .contains("AP03")
    );
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_node_that_is_ready_for_a_switch_has_no_blockers() {
    for mode in ["iptables", "ipvs", "nftables"] {
        let ran = kpx_on("fit-for-moves", &["doctor", "--to", mode]).await;
        assert!(
            !ran.out.contains("ERROR") && !ran.out.contains("WARNING"),
            "{mode}:\n{ran}"
        );
    }
    no_blockers_on(&["seed-", "dual-"]).await;
}

/// Looks at the recordings whose names start with `prefixes`.
pub(crate) async fn no_blockers_on(prefixes: &[&str]) {
    for name in recordings() {
        for mode in ["iptables", "ipvs", "nftables"] {
            if prefixes.iter().any(|prefix| name.starts_with(prefix)) {
                let ran = kpx_on(&name, &["doctor", "--to", mode, "-o", "json"]).await;
                let report: Value = serde_json::from_str(&ran.out).unwrap();
                let findings = report["findings"].as_array().unwrap();
                let errors = findings
                    .iter()
                    .filter(|finding| finding["severity"] == "error");
                // Limits of a mode, and a mode that a release does not have, are no faults of the node.
                let errors = errors.filter(|error| match error["id"].as_str().unwrap() {
                    "MX12" => !error["message"]
                        .as_str()
                        .unwrap()
                        .contains("by design of mode"),
                    "KP22" => !name.ends_with("-v1.30") || mode != "nftables",
                    _ => true,
                });
                assert_eq!(errors.count(), 0, "{name} to {mode}:\n{ran}");
            }
        }
    }
}

#[tokio::test]
async fn an_unknown_check_exits_three() {
    let ran = kpx_on("sy01-ip-forward-off", &["doctor", "--only", "IB01"]).await;
    insta::assert_snapshot!(ran);
}

#[tokio::test]
async fn the_catalogue_is_listed_and_explained() {
    insta::assert_snapshot!("list", kpx(&["explain"]).await);
    insta::assert_snapshot!("explain", kpx(&["explain", "sy01"]).await);
    let group = kpx(&["explain", "sysctl"]).await.out;
    assert!(group.contains("SY01") && !group.contains("MX01"), "{group}");
    assert_eq!(kpx(&["explain", "nothing"]).await.code, 2);
}

#[tokio::test]
async fn no_healthy_node_has_an_error() {
    for name in HEALTHY {
        let ran = kpx_once_on(name, &["doctor", "-o", "json"]).await;
        assert!(matches!(ran.code, 0 | 3), "{name}:\n{ran}");
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        for finding in report["findings"].as_array().unwrap() {
            let folded = finding["consequences"].as_array().into_iter().flatten();
            for one in folded.chain([finding]) {
                assert_ne!(one["severity"], "error", "{name}: {one:#}");
            }
        }
        assert_eq!(report["summary"]["errors"], 0, "{name}");
    }
}

#[tokio::test]
async fn the_findings_of_healthy_nodes_are_known() {
    let mut found = String::new();
    for name in HEALTHY {
        let ran = kpx_once_on(name, &["doctor", "-o", "json"]).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let mut ids = BTreeSet::new();
        for finding in report["findings"].as_array().unwrap() {
            let folded = finding["consequences"].as_array().into_iter().flatten();
            let all = folded.chain([finding]);
            ids.extend(all.map(|finding| finding["id"].as_str().unwrap().to_owned()));
        }
        let mut line = vec![format!("{name}:")];
        line.extend(ids);
        writeln!(found, "{}", line.join(" ")).unwrap();
    }
    let more = "The lists HEALTHY below tests/kernel/faults expect the same ids of full-*: change them too.";
    insta::with_settings!({ description => more }, { insta::assert_snapshot!(found); });
}

#[tokio::test]
async fn every_page_fits_eighty_columns() {
    pages_fit(every()).await;
}

/// Fails if a line of a page is longer than a terminal.
pub(crate) async fn pages_fit(names: Vec<String>) {
    for name in names {
        let ran = kpx_once_on(&name, &["doctor"]).await;
        for line in ran.out.lines() {
            // A command that is cut or wrapped cannot be copied.
            let text = line.trim_start().trim_start_matches("fix   ");
            let text = text.trim_start_matches("look  ");
            let command = text.starts_with(['$', '`'])
                || text.starts_with("on node1: ")
                || text.ends_with(" doctor -v")
                || line.starts_with("next: ");
            assert!(command || line.chars().count() <= 80, "{name}: {line}");
        }
    }
}

#[tokio::test]
async fn ranges_of_cluster_ips_are_the_clusters_where_it_has_them() {
    let from = root().join("testdata/nodes/faults-moves");
    let dir = tempfile::tempdir().unwrap();
    for part in ["cluster", "kube-proxy", "node"] {
        std::fs::create_dir(dir.path().join(part)).unwrap();
        for file in std::fs::read_dir(from.join(part)).unwrap() {
            let file = file.unwrap().path();
            let name = file.file_name().unwrap();
            std::fs::copy(&file, dir.path().join(part).join(name)).unwrap();
        }
    }
    let mut found = Vec::new();
    // First the API server's flag, then its objects.
    for range in [None, Some("10.97.0.0/16"), Some("10.96.0.0/16")] {
        if let Some(range) = range {
            let text = format!(
                "{{\"items\": [{{\"metadata\": {{\"name\": \"kubernetes\"}}, \"spec\": {{\"cidrs\": [\"{range}\"]}}}}]}}"
            );
            std::fs::write(dir.path().join("cluster/servicecidrs.json"), text).unwrap();
        }
        let args = [
            "--from",
            dir.path().to_str().unwrap(),
            "doctor",
            "--to",
            "nftables",
        ];
        let ran = kpx(&[&args[..], &["--only", "AP09", "-o", "json"]].concat()).await;
        found.push(
            ran.out
                .contains("addresses of the Service range that no Service has"),
        );
    }
    assert_eq!(found, [true, false, true]);
}

/// A node of release `version`, whose kube-proxy has these feature gates and this mode.
fn release(version: &str, gates: &str, mode: &str) -> tempfile::TempDir {
    let of = |text: &str| text.replace("v1.36.2", version);
    let config = |text: &str| {
        let text = text.replace("mode: \"iptables\"", &format!("mode: \"{mode}\""));
        format!("{text}\nfeatureGates: {{{gates}}}\n")
    };
    crate::support::broken(
        "seed-iptables",
        &[
            ("kube-proxy/metrics.txt", &of),
            ("kube-proxy/config.conf", &config),
        ],
    )
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_release_without_the_mode_or_its_gate_blocks_the_switch() {
    for (version, gates, words) in [
        ("v1.28.15", "", Some("does not have mode nftables")),
        (
            "v1.29.9",
            "",
            Some("without the feature gate NFTablesProxyMode"),
        ),
        (
            "v1.30.5",
            "NFTablesProxyMode: false",
            Some("without the feature gate"),
        ),
        ("v1.30.5", "NFTablesProxyMode: true", None),
        ("v1.30.5", "AllAlpha: true", None),
        ("v1.31.0", "", None),
        (
            "v1.32.1",
            "NFTablesProxyMode: false",
            Some("without the feature gate"),
        ),
        ("v1.33.0", "", None),
    ] {
        let dir = release(version, gates, "iptables");
        let from = dir.path().to_str().unwrap();
        for command in ["doctor", "preflight"] {
            let ran = kpx(&["--from", from, command, "--to", "nftables", "-v"]).await;
            let text = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
            match words {
                Some(words) => {
                    assert_eq!(ran.code, 1, "{version} {gates}: {ran}");
                    assert!(text.contains(words), "{version} {gates}: {ran}");
                    assert!(text.contains("ERROR KP22"), "{ran}");
                }
                None => assert!(!text.contains("ERROR KP22"), "{version} {gates}: {ran}"),
            }
        }
    }
    // The mode in kube-proxy's configuration, in which it will not start.
    let dir = release("v1.28.15", "", "nftables");
    let args = [
        "--from",
        dir.path().to_str().unwrap(),
        "doctor",
        "--only",
        "KP22",
    ];
    assert_eq!(kpx(&args).await.code, 1);
}

#[tokio::test]
async fn the_rules_that_serve_are_never_leftovers() {
    for (name, mode, new) in [
        ("seed-ipvs", "ipvs", "nftables"),
        ("seed-iptables", "iptables", "ipvs"),
        ("seed-nftables", "nftables", "iptables"),
    ] {
        // kube-proxy is configured for another mode, in which it does not start.
        let config =
            |text: &str| text.replace(&format!("mode: \"{mode}\""), &format!("mode: \"{new}\""));
        let dir = crate::support::broken(name, &[("kube-proxy/config.conf", &config)]);
        std::fs::remove_file(dir.path().join("kube-proxy/proxy-mode.txt")).unwrap();
        let from = dir.path().to_str().unwrap();
        let ran = kpx(&["--from", from, "doctor"]).await;
        assert!(!ran.out.contains("reconcile --cleanup"), "{name}: {ran}");
        assert!(!ran.out.contains("are left over"), "{name}: {ran}");
        // Nor are they when kube-proxy says that it runs in the other mode, and has no rules there.
        std::fs::write(dir.path().join("kube-proxy/proxy-mode.txt"), new).unwrap();
        for ran in [
            kpx(&["--from", from, "reconcile", "--cleanup", mode]).await,
            kpx(&["--from", from, "doctor"]).await,
        ] {
            assert!(!ran.out.contains("are left over"), "{name}: {ran}");
            assert_ne!(ran.code, 0, "{name}: {ran}");
        }
    }
}

#[tokio::test]
async fn a_planned_switch_has_one_exit_status() {
    switches_have_one_status(&["faults-iptables", "fit-for-moves", "seed-iptables"]).await;
}

/// Fails if the doctor, the preflight and a dry run of the migration have different statuses.
pub(crate) async fn switches_have_one_status(names: &[&str]) {
    let mut wrong = Vec::new();
    for name in names {
        for mode in ["iptables", "ipvs", "nftables"] {
            let doctor = kpx_on(name, &["doctor", "--to", mode]).await;
            let preflight = kpx_on(name, &["preflight", "--to", mode]).await;
            let dry_run = kpx_on(name, &["migrate", "--to", mode, "--dry-run"]).await;
            let mut codes = vec![doctor.code, preflight.code];
            let is_planned = !dry_run.out.contains("already runs") && dry_run.code < 4;
            codes.extend(is_planned.then_some(dry_run.code));
            if codes.iter().any(|code| *code != codes[0]) {
                wrong.push(format!("{name} {mode}: {codes:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
