//! Drift that kube-proxy's next sync removes is not reported.

use kpx_judge::check::{self, Check, Facts, Outcome};
use kpx_node::evidence::{self, Evidence, Gap, ITEMS, Item};
use kpx_node::node::NodeSnapshot;

use crate::support::root;

/// Backends of two Services.
const BACKENDS: (&str, &str) = (
    "--to-destination 10.244.1.50:8443",
    "--to-destination 10.244.1.30:8080",
);

/// Returns a healthy node without the first rule that sends to `backend`.
fn without(backend: &str) -> Evidence {
    let path = root().join("testdata/nodes/full-iptables");
    let mut evidence = evidence::load(&path, ITEMS).unwrap();
    let text = evidence.text(Item::Iptables4).unwrap();
    let (at, _) = text.match_indices(backend).next().unwrap();
    let begin = text[..at].rfind('\n').unwrap();
    let end = at + text[at..].find('\n').unwrap();
    let text = format!("{}{}", &text[..begin], &text[end..]);
    evidence.insert(Item::Iptables4, Ok(text));
    evidence
}

fn outcomes(evidence: &Evidence) -> Vec<(&'static Check, Outcome)> {
    let node = NodeSnapshot::new(evidence).called(Some("node1"));
    let facts = Facts::new(&node, None);
    let checks = check::named("IR").into_iter();
    let run = |check| (check, check::run(check, &facts));
    checks.map(run).collect()
}

/// Returns the subjects of drift in `first` that the later reading `later` has as well.
fn persistent(first: &Evidence, later: &Evidence) -> Vec<String> {
    let mut found = outcomes(first);
    assert_eq!(check::drifted(&found).len(), 1);
    if check::is_as_complete(first, later) {
        check::keep_persistent(&mut found, outcomes(later));
    }
    let findings = found.into_iter().filter_map(|(_, outcome)| match outcome {
        Outcome::Fail(findings) => Some(findings),
        _ => None,
    });
    findings.flatten().map(|finding| finding.subject).collect()
}

#[test]
fn drift_is_a_finding_only_if_it_persists() {
    let path = root().join("testdata/nodes/full-iptables");
    let healthy = evidence::load(&path, ITEMS).unwrap();
    assert!(check::drifted(&outcomes(&healthy)).is_empty());
    let (one, other) = (without(BACKENDS.0), without(BACKENDS.1));
    assert_eq!(persistent(&one, &healthy), [""; 0]);
    // Another Service has changed meanwhile.
    assert_eq!(persistent(&one, &other), [""; 0]);
    assert_eq!(persistent(&one, &one).len(), 1);
}

#[test]
fn drift_stays_a_finding_if_the_node_cannot_be_read_again() {
    let one = without(BACKENDS.0);
    let mut unread = without(BACKENDS.0);
    let why = "iptables-save: timed out".to_owned();
    unread.insert(Item::Iptables4, Err(Gap::Failed(Item::Iptables4, why)));
    assert_eq!(persistent(&one, &unread).len(), 1);
}

#[test]
fn the_second_reading_is_after_the_next_sync() {
    const SYNCS: &str = "kubeproxy_sync_proxy_rules_duration_seconds";
    let settles_after = |period: &str, average: Option<u32>| {
        let mut evidence = without(BACKENDS.0);
        let config = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n\
             iptables:\n  minSyncPeriod: {period}\n"
        );
        evidence.insert(Item::ProxyConfig, Ok(config));
        let metrics = average
            .map(|average| format!("{SYNCS}_sum {}\n{SYNCS}_count 4\n", average * 4))
            .ok_or(Gap::NotCollected(Item::Metrics));
        evidence.insert(Item::Metrics, metrics);
        let node = NodeSnapshot::new(&evidence);
        Facts::new(&node, None).settles_after().as_millis()
    };
    assert_eq!(settles_after("1s", None), 3_000);
    assert_eq!(settles_after("\"\"", None), 3_000);
    assert_eq!(settles_after("5s", None), 7_000);
    assert_eq!(settles_after("1h", None), 30_000);
    // A sync takes twice the average of the last ones, and a change 200 ms to arrive.
    assert_eq!(settles_after("1s", Some(3)), 7_200);
    assert_eq!(settles_after("1s", Some(60)), 30_000);
}
