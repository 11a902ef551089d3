//! KP05: a kube-proxy that does not answer is one error, not one unknown per check.

use kpx_judge::check::{self, Check, Facts, Finding, Outcome};
use kpx_node::backend::Mode;
use kpx_node::evidence::{self, Evidence, Gap, ITEMS, Item};
use kpx_node::node::NodeSnapshot;

use crate::support::root;

/// Items that only kube-proxy's two servers provide.
const ANSWERS: [Item; 4] = [Item::Healthz, Item::ProxyMode, Item::Metrics, Item::Configz];

/// The reason why an item of kube-proxy is missing.
type Why = fn(Item) -> Gap;

/// Returns a node whose kube-proxy does not answer for the reason `why`, with these `processes`.
fn silent(why: Why, processes: &str) -> Evidence {
    let path = root().join("testdata/nodes/full-iptables");
    let mut evidence = evidence::load(&path, ITEMS).unwrap();
    for item in ANSWERS {
        evidence.insert(item, Err(why(item)));
    }
    evidence.insert(
        Item::Processes,
        Ok(format!(r#"{{"processes":[{processes}]}}"#)),
    );
    evidence
}

fn process(state: &str, same_network: bool) -> String {
    format!(
        r#"{{"pid":4711,"name":"kube-proxy","args":["kube-proxy"],"state":"{state}","sameNetwork":{same_network}}}"#
    )
}

fn outcomes(evidence: &Evidence) -> Vec<(&'static Check, Outcome)> {
    let node = NodeSnapshot::new(evidence).called(Some("node1"));
    let facts = Facts::new(&node, None);
    let checks = check::asked(None).into_iter();
    let mut outcomes: Vec<_> = checks
        .map(|check| (check, check::run(check, &facts)))
        .collect();
    check::fold(&mut outcomes);
    outcomes
}

fn outcome<'o>(outcomes: &'o [(&'static Check, Outcome)], id: &str) -> &'o Outcome {
    let mut all = outcomes.iter();
    &all.find(|(check, _)| check.id == id).unwrap().1
}

/// Returns the only error, and asserts that no other check is unknown because of the missing answers.
fn only(outcomes: &[(&'static Check, Outcome)]) -> Finding {
    for (check, outcome) in outcomes {
        if let Outcome::Unknown(reason) = outcome {
            let text = reason.to_string();
            assert!(!text.starts_with("kube-proxy/"), "{}: {text}", check.id);
        }
    }
    for id in ["KP06", "KP07", "KP08"] {
        let outcome = outcome(outcomes, id);
        assert!(
            matches!(outcome, Outcome::Skip(why) if why.contains("KP05")),
            "{id}: {outcome:?}"
        );
    }
    let Outcome::Fail(findings) = outcome(outcomes, "KP05") else {
        panic!("KP05 does not report it: {:?}", outcome(outcomes, "KP05"));
    };
    assert_eq!(findings.len(), 1);
    let notes: Vec<_> = findings[0]
        .evidence
        .iter()
        .map(ToString::to_string)
        .collect();
    let folded = notes
        .iter()
        .any(|note| note.contains("kube-proxy's answers: ") && note.contains("KP06"));
    assert!(folded, "{notes:?}");
    findings[0].clone()
}

fn late(item: Item) -> Gap {
    Gap::Late(item, "127.0.0.1:10249: no complete answer".to_owned())
}

fn refused(item: Item) -> Gap {
    Gap::Unreachable(item, "127.0.0.1:10249: Connection refused".to_owned())
}

#[test]
fn a_stopped_process_is_named_with_the_command_that_continues_it() {
    let finding = only(&outcomes(&silent(late, &process("T", true))));
    assert!(
        finding
            .message
            .contains("process 4711 is stopped (state T)"),
        "{finding:?}"
    );
    let fix = finding.fix.unwrap();
    assert_eq!(fix.command().as_deref(), Some("kill -CONT 4711"));
}

#[test]
fn a_hung_process_is_restarted_by_deleting_its_pod() {
    let finding = only(&outcomes(&silent(late, &process("S", true))));
    assert!(
        finding
            .message
            .contains("process 4711 runs but does not answer"),
        "{finding:?}"
    );
    let command = finding.fix.unwrap().command().unwrap();
    assert!(
        command.starts_with("kubectl -n kube-system delete pod kube-proxy-"),
        "{command}"
    );
}

#[test]
fn a_kube_proxy_that_is_absent_is_one_error() {
    let all = outcomes(&silent(refused, ""));
    let finding = only(&all);
    assert!(
        finding.message.contains("does not run on this node"),
        "{finding:?}"
    );
    let command = finding.fix.unwrap().command().unwrap();
    assert!(command.ends_with("spec.nodeName=node1"), "{command}");
}

#[test]
fn without_evidence_the_check_stays_unknown() {
    // kube-proxy cannot be reached from another network namespace.
    let all = outcomes(&silent(refused, &process("S", false)));
    assert!(matches!(outcome(&all, "KP05"), Outcome::Unknown(_)));
    // An error status is an answer.
    let wrong = |item| Gap::Failed(item, "no answer from it but status 500".to_owned());
    let all = outcomes(&silent(wrong, &process("S", true)));
    assert!(matches!(outcome(&all, "KP05"), Outcome::Unknown(_)));
    assert!(matches!(outcome(&all, "KP07"), Outcome::Unknown(_)));
    // A container may not see the host's processes.
    let mut evidence = silent(refused, "");
    let why = "no service proxy among the visible processes".to_owned();
    evidence.insert(Item::Processes, Err(Gap::Absent(Item::Processes, why)));
    assert!(matches!(
        outcome(&outcomes(&evidence), "KP05"),
        Outcome::Unknown(_)
    ));
}

#[test]
fn its_rules_show_that_it_should_run() {
    let mut evidence = silent(refused, "");
    for item in [Item::DaemonSets, Item::Pods] {
        evidence.insert(item, Err(Gap::Denied(item, "list: forbidden".to_owned())));
    }
    let finding = only(&outcomes(&evidence));
    assert!(
        finding.message.contains("does not run on this node"),
        "{finding:?}"
    );
}

#[test]
fn another_service_proxy_replaces_it() {
    let router = r#"{"pid":9,"name":"kube-router","args":["kube-router"],"sameNetwork":true}"#;
    let all = outcomes(&silent(refused, router));
    // Nothing else that asks kube-proxy is unknown.
    for id in ["KP05", "KP06", "KP07", "KP08"] {
        assert!(matches!(outcome(&all, id), Outcome::Skip(_)), "{id}");
    }
}

#[test]
fn before_a_switch_one_that_is_stopped_or_hangs_is_an_error_and_one_that_does_not_run_is_none() {
    let of = |processes: &str| {
        let evidence = silent(late, processes);
        let node = NodeSnapshot::new(&evidence).called(Some("node1"));
        let facts = Facts::new(&node, None).before(Some(Mode::Nftables));
        check::run(check::named("KP05")[0], &facts)
    };
    for (state, tells) in [("T", "is stopped (state T)"), ("S", "does not answer")] {
        let Outcome::Fail(found) = of(&process(state, true)) else {
            panic!("{state}");
        };
        assert!(found[0].message.contains(tells), "{}", found[0].message);
    }
    assert!(matches!(of(""), Outcome::Unknown(_)));
}

#[test]
fn right_after_its_start_kube_proxy_has_no_durations_of_syncs() {
    let path = root().join("testdata/nodes/full-iptables");
    let mut evidence = evidence::load(&path, ITEMS).unwrap();
    let mut slow = |metrics: String| {
        evidence.insert(Item::Metrics, Ok(metrics));
        let node = NodeSnapshot::new(&evidence);
        check::run(check::named("KP08")[0], &Facts::new(&node, None))
    };
    let text = std::fs::read_to_string(path.join("kube-proxy/metrics.txt")).unwrap();
    let lines = text.lines();
    let lines = lines.filter(|line| !line.contains("sync_proxy_rules_duration"));
    let young: Vec<&str> = lines.collect();
    assert_eq!(slow(young.join("\n")), Outcome::Pass);
    let others = "process_start_time_seconds 1\n".to_owned();
    assert!(matches!(slow(others), Outcome::Unknown(_)));
}
