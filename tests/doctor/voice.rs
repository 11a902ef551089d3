//! The doctor's page on a screen of 80 columns and 24 rows.

use serde_json::Value;

use crate::nodes::bundle_of;
use crate::support::{broken, chosen, kpx, kpx_once_on, recordings};

/// Nodes with faults.
const FAULTY: [&str; 10] = [
    "fallback-no-ipvs-modules",
    "faults-iptables",
    "faults-ipvs",
    "faults-nftables",
    "faults-settings",
    "faults-traffic",
    "ib07-flushed",
    "kp01-config-edited",
    "leftover-ipvs-to-iptables",
    "mx04-no-kube-proxy",
];

/// The rows of a screen.
const ROWS: usize = 24;

/// Whether a line is the title of findings.
fn is_title(line: &&str) -> bool {
    let severities = ["ERROR ", "WARNING ", "INFO "];
    severities.iter().any(|severity| line.starts_with(severity))
}

/// The rows of a terminal of 80 columns that `page` takes.
fn rows(page: &str) -> usize {
    let rows = |line: &str| line.chars().count().div_ceil(80).max(1);
    page.lines().map(rows).sum()
}

async fn report(name: &str) -> Value {
    let ran = kpx_once_on(name, &["doctor", "-o", "json"]).await;
    serde_json::from_str(&ran.out).unwrap()
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_screen_suffices() {
    let mut taller = Vec::new();
    for name in recordings() {
        let ran = kpx_once_on(&name, &["doctor"]).await;
        if rows(&ran.out) > ROWS {
            taller.push((name, rows(&ran.out)));
        }
    }
    assert_eq!(taller, []);
}

#[tokio::test]
async fn the_screen_has_the_number_of_what_it_omits() {
    screens_are_whole(chosen()).await;
}

/// Fails if the screen counts what it omits otherwise than the report, or -v omits an error.
pub(crate) async fn screens_are_whole(names: Vec<String>) {
    for name in names {
        let ran = kpx_once_on(&name, &["doctor"]).await;
        let whole = kpx_once_on(&name, &["doctor", "-v"]).await;
        let report = report(&name).await;
        let findings = report["findings"].as_array().unwrap();
        // The numbers of findings on the page, and in the report.
        let titles = ran.out.lines().filter(is_title);
        let shown: u64 = titles.map(|title| number(title, "finding").max(1)).sum();
        let rest = ran
            .out
            .lines()
            .filter(|line| line.ends_with("(-v lists them)"));
        let rest: u64 = rest
            .map(|line| {
                let severities = ["more error", "more warning", "more note"];
                severities
                    .map(|word| number(line, word))
                    .iter()
                    .sum::<u64>()
            })
            .sum();
        assert_eq!(shown + rest, findings.len() as u64, "{name}:\n{ran}");
        let ids = findings
            .iter()
            .filter(|finding| finding["severity"] == "error");
        for id in ids.map(|id| id["id"].as_str().unwrap()) {
            assert!(
                whole.out.contains(&format!("ERROR {id}  ")),
                "{name}: {id}\n{whole}"
            );
        }
    }
}

#[tokio::test]
async fn what_operators_see_of_faulty_nodes() {
    for name in FAULTY {
        let ran = kpx_once_on(name, &["doctor"]).await;
        insta::assert_snapshot!(format!("screen_{name}"), ran);
    }
}

#[tokio::test]
async fn what_one_fix_clears_is_one_block() {
    let report = report("faults-iptables").await;
    let findings = report["findings"].as_array().unwrap();
    let cleared = findings
        .iter()
        .filter(|finding| finding["fix"]["command"] == "kpx reconcile --apply");
    let cleared = cleared.count();
    assert!(cleared > 1);
    let ran = kpx_once_on("faults-iptables", &["doctor", "-v"]).await;
    let title = format!("1 fix clears {cleared} findings: on node1: kpx reconcile --apply");
    assert_eq!(ran.out.matches(&title).count(), 1, "{ran}");
    // The command is the title's alone.
    assert!(!ran.out.contains("$ kpx reconcile"), "{ran}");
    assert_eq!(report["next"], "kpx reconcile --apply");
}

#[tokio::test]
async fn the_next_command_fixes_or_shows_if_there_is_one() {
    for (name, next) in [
        (
            "seed-leftover-iptables-to-ipvs",
            "kpx reconcile --cleanup iptables --apply",
        ),
        ("sy01-ip-forward-off", "sysctl -w net.ipv4.ip_forward=1"),
        ("mx06-unfinished-migration", "kpx migrate resume"),
    ] {
        let ran = kpx_once_on(name, &["doctor"]).await;
        let last = ran.out.lines().last().unwrap();
        assert_eq!(last, format!("next: on node1: {next}"), "{name}:\n{ran}");
    }
}

/// The number in front of `word` in `text`; 0 without it.
fn number(text: &str, word: &str) -> u64 {
    let words: Vec<&str> = text.split([' ', ',', ';', ':', '(', ')', '\n']).collect();
    let wanted: Vec<&str> = word.split(' ').collect();
    let is_it = |of: &[&str]| {
        let pairs = of.iter().zip(&wanted);
        pairs
            .into_iter()
            .all(|(of, wanted)| of.trim_end_matches('s') == *wanted)
    };
    let at = words.windows(wanted.len()).position(is_it);
    at.map_or(0, |at| words[at - 1].parse().unwrap_or(0))
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn every_output_has_the_same_counts() {
    counts_agree(chosen()).await;
}

/// Fails if two outputs of the doctor count otherwise.
pub(crate) async fn counts_agree(names: Vec<String>) {
    for name in &names {
        let report = report(name).await;
        let count = |key: &str| report["summary"][key].as_u64().unwrap();
        let findings = report["findings"].as_array().unwrap();
        let checks = report["checks"].as_array().unwrap();
        let status = |status: &str| {
            checks
                .iter()
                .filter(|check| check["status"] == status)
                .count()
        };
        for key in ["fail", "unknown"] {
            let of = if key == "fail" { "failed" } else { key };
            assert_eq!(count(of), status(key) as u64, "{name} {key}");
        }
        // Every failed check has findings of its own, or is explained by others.
        let mut own: Vec<&str> = findings
            .iter()
            .map(|finding| finding["id"].as_str().unwrap())
            .collect();
        own.dedup();
        own.sort_unstable();
        own.dedup();
        assert_eq!(
            count("failed"),
            own.len() as u64 + count("explained"),
            "{name}"
        );

        for args in [&["doctor"][..], &["doctor", "--quiet"]] {
            let ran = kpx_once_on(name, args).await;
            // The line below the Services, of which the first lines speak.
            let head = ran.out.lines().take_while(|line| !line.is_empty());
            let head = head.last().unwrap();
            // `1 check unknown` in the head; `, 0 unknown` in the summary.
            for (word, key) in [
                ("error", "errors"),
                ("warning", "warnings"),
                ("note", "infos"),
            ] {
                assert_eq!(number(head, word), count(key), "{name} {args:?}: {head}");
            }
            let tail = ran
                .out
                .lines()
                .find(|line| line.contains(" passed, "))
                .unwrap();
            for key in ["passed", "failed", "skipped"] {
                assert!(
                    tail.contains(&format!("{} {key}", count(key))),
                    "{name}: {tail}"
                );
            }
            // On the whole page, a title counts the findings below it.
            let ran = kpx_once_on(name, &[args, &["-v"]].concat()).await;
            let titles = ran.out.lines().filter(is_title);
            let shown = titles
                .map(|title| number(title, "finding").max(1))
                .sum::<u64>();
            assert_eq!(shown, findings.len() as u64, "{name}:\n{ran}");
        }
        let (_dir, path) = bundle_of(".tar", &[("a", Ok(name.as_str()))]);
        let from = ["--from", path.to_str().unwrap()];
        let args = [&from[..], &["doctor", "--all-nodes", "-o", "json"]].concat();
        let all: Value = serde_json::from_str(&kpx(&args).await.out).unwrap();
        // A bundle of all nodes has a time, which a recording may lack.
        let args = [&from[..], &["--node", "a", "doctor", "-o", "json"]].concat();
        let one: Value = serde_json::from_str(&kpx(&args).await.out).unwrap();
        // `kubectl kpx doctor NODE` is short for it.
        let args = [&from[..], &["doctor", "a", "-o", "json"]].concat();
        let same: Value = serde_json::from_str(&kpx(&args).await.out).unwrap();
        assert_eq!(same, one, "{name}");
        for (severity, key) in [
            ("error", "errors"),
            ("warning", "warnings"),
            ("info", "infos"),
        ] {
            let rows = all["summary"]["findings"].as_array().unwrap().iter();
            let rows = rows.filter(|row| row["severity"] == severity);
            let subjects = rows.map(|row| row["subjects"].as_array().unwrap().len());
            assert_eq!(
                subjects.sum::<usize>() as u64,
                one["summary"][key].as_u64().unwrap(),
                "{name} {severity}: {}",
                all["summary"]["findings"]
            );
        }
    }
}

#[tokio::test]
async fn a_rule_keeps_its_target() {
    for name in ["faults-iptables", "ir16-foreign-drops"] {
        let ran = kpx_once_on(name, &["doctor", "-v"]).await;
        let seen = ran.out.replace("\n        ", " ");
        let rules = seen.lines().filter(|line| line.contains("  seen  "));
        for rule in rules.filter(|line| line.contains(" -A ") || line.contains("missing: IPv4 nat"))
        {
            assert!(rule.contains("-j "), "{name}: {rule}");
        }
    }
}

#[tokio::test]
async fn the_path_to_the_api_server_is_unknown_without_rules() {
    let bundle = broken("seed-iptables", &[]);
    std::fs::remove_file(bundle.path().join("node/iptables-save.txt")).unwrap();
    let from = bundle.path().to_str().unwrap();
    let ran = kpx(&["--from", from, "doctor", "--only", "AP12", "-o", "short"]).await;
    assert_eq!(ran.code, 3, "{ran}");
    assert!(ran.out.starts_with("unknown AP12"), "{ran}");
}

#[tokio::test]
async fn no_line_repeats_its_object() {
    let names = ["cn12-flannel-left", "faults-tools", "kp21-refused-rules"];
    objects_stand_once(names.map(str::to_owned).to_vec()).await;
}

/// Fails if the line of a finding has its object twice: before the message, and in it.
pub(crate) async fn objects_stand_once(names: Vec<String>) {
    let (mut count, mut naming) = (0, 0);
    for name in names {
        let report = report(&name).await;
        let ran = kpx_once_on(&name, &["doctor", "-o", "short"]).await;
        for finding in report["findings"].as_array().unwrap() {
            let [subject, message] =
                ["subject", "message"].map(|key| finding[key].as_str().unwrap());
            let mut words = message.split([' ', ',', ';', '\'', '(', ')']);
            let is_word = words.any(|word| word.trim_end_matches(['.', ':']) == subject);
            count += 1;
            if is_word || message.starts_with(&format!("{subject} ")) {
                naming += 1;
                let twice = format!("{subject}: {message}");
                assert!(!ran.out.contains(&twice), "{name}: {twice}");
            }
        }
    }
    assert!(naming > 3 && count > naming, "{naming} of {count}");
}
