//! The output of `kpx doctor` and `kpx explain`, for people and programs.

mod advice;
mod case;
mod causes;
mod config;
mod credentials;
mod dnat;
mod foreign;
pub(crate) mod formats;
mod ids;
mod ignore;
mod incidents;
mod known_bugs;
mod neighbours;
mod obstacles;
mod partial;
mod settle;
mod silence;
mod symptoms;
mod upgrade;
pub(crate) mod voice;

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
    assert!(
        kpx(&["doctor", "--list", "--to", "ipvs"])
            .await
            .out
            .contains("AP03")
    );
    assert!(
        !kpx(&["doctor", "--list", "--to", "nftables"])
            .await
            .out
            .contains("AP03")
    );
}

#[tokio::test]
async fn a_node_that_is_ready_for_a_switch_has_no_blockers() {
    for mode in ["iptables", "ipvs", "nftables"] {
        let ran = kpx_on("fit-for-moves", &["doctor", "--to", mode]).await;
        assert!(
            !ran.out.contains("ERROR") && !ran.out.contains("WARNING"),
            "{mode}:\n{ran}"
        );
    }
    for name in recordings() {
        for mode in ["iptables", "ipvs", "nftables"] {
            if ["seed-", "full-", "dual-"]
                .iter()
                .any(|p| name.starts_with(p))
            {
                let ran = kpx_on(&name, &["doctor", "--to", mode]).await;
                assert!(!ran.out.contains("ERROR"), "{name} to {mode}:\n{ran}");
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
    insta::assert_snapshot!("list", kpx(&["doctor", "--list"]).await);
    insta::assert_snapshot!("explain", kpx(&["explain", "sy01"]).await);
    assert_eq!(
        kpx(&["explain"]).await.out,
        kpx(&["doctor", "--list"]).await.out
    );
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
            ids.extend(all.map(|of| of["id"].as_str().unwrap().to_owned()));
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
