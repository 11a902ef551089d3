//! Consequences: a finding is printed below another one only if it is gone without that.

use serde_json::Value;

use crate::support::{kpx, kpx_on};

/// A recording, and the finding of a check as it is printed there.
struct Case {
    recording: &'static str,
    /// The check, and the start of the subject.
    finding: (&'static str, &'static str),
    /// The check of its cause; `None` if it has no cause there.
    cause: Option<&'static str>,
}

const CASES: &[Case] = &[
    Case {
        recording: "dv01-no-kube-ipvs0",
        finding: ("DV01", "kube-ipvs0"),
        cause: Some("KM15"),
    },
    Case {
        recording: "fallback-no-ipvs-modules",
        finding: ("KP01", "IPv4"),
        cause: Some("KM01"),
    },
    // kube-proxy exits without the module, so nothing listens.
    Case {
        recording: "fallback-no-ipvs-modules",
        finding: ("NP06", "edge/web-local"),
        cause: Some("KM01"),
    },
    // The missing canaries are those of IPv6: the rules of other software for IPv4 have nothing to do with them.
    Case {
        recording: "faults-rules",
        finding: ("IR02", "IPv4 nat PREROUTING"),
        cause: None,
    },
    // Each address has its own cause.
    Case {
        recording: "faults-settings",
        finding: ("DV03", "10.0.2.15"),
        cause: Some("DV04"),
    },
    Case {
        recording: "faults-settings",
        finding: ("DV03", "169.254.20.10"),
        cause: Some("DV05"),
    },
    Case {
        recording: "faults-settings",
        finding: ("VS08", "default/nginx-svc"),
        cause: Some("KM02"),
    },
    // Faster syncs do not make the rules fewer.
    Case {
        recording: "faults-traffic",
        finding: ("IR15", "IPv4"),
        cause: None,
    },
    // The host's own packets are not forwarded.
    Case {
        recording: "ir16-foreign-drops",
        finding: ("AP12", "default/kubernetes"),
        cause: Some("IR16"),
    },
    // ip_vs is forbidden; the scheduler is not installed at all.
    Case {
        recording: "km01-ip-vs-forbidden",
        finding: ("KM02", "ip_vs_rr"),
        cause: None,
    },
    Case {
        recording: "km01-ip-vs-missing",
        finding: ("KM02", "ip_vs_rr"),
        cause: Some("KM01"),
    },
    // Nothing but the mode changed in the ConfigMap.
    Case {
        recording: "kp01-config-edited",
        finding: ("KP04", "kube-proxy"),
        cause: Some("KP01"),
    },
    Case {
        recording: "leftover-ipvs-to-iptables",
        finding: ("MX08", "IPv6"),
        cause: Some("MX02"),
    },
];

/// Returns whether `found`, a finding or a consequence, is the one of `case`.
fn is(case: &Case, found: &Value) -> bool {
    let (id, subject) = case.finding;
    found["id"] == id && found["subject"].as_str().unwrap().starts_with(subject)
}

#[tokio::test]
async fn a_consequence_is_below_the_cause_that_it_shares_something_with() {
    for case in CASES {
        let ran = kpx_on(case.recording, &["doctor", "-o", "json"]).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let findings = report["findings"].as_array().unwrap();
        let below = |finding: &Value| {
            let all = finding["consequences"].as_array().into_iter().flatten();
            all.filter(|consequence| is(case, consequence)).count()
        };
        let causes: Vec<&Value> = findings
            .iter()
            .filter(|finding| below(finding) > 0)
            .collect();
        let name = format!("{}: {:?}", case.recording, case.finding);
        match case.cause {
            None => {
                assert!(causes.is_empty(), "{name} is a consequence: {causes:?}");
                assert!(
                    findings.iter().any(|finding| is(case, finding)),
                    "{name} is missing"
                );
            }
            Some(cause) => {
                let ids: Vec<_> = causes
                    .iter()
                    .map(|cause| cause["id"].as_str().unwrap())
                    .collect();
                assert_eq!(ids, [cause], "{name}");
            }
        }
    }
}

/// A failing Service follows from the object at fault, and not the other way round.
#[tokio::test]
async fn what_only_why_finds_is_below_the_finding_on_the_same_object() {
    for (case, id) in [
        ("config-with-duplicate-key", "SY01"),
        ("mode-in-capitals", "SY01"),
        ("ipvs-03-hostport-before-services", "IR16"),
    ] {
        let from = format!("testdata/cases/{case}");
        let ran = kpx(&["--from", &from, "doctor", "-o", "json"]).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let all = report["findings"].as_array().unwrap();
        let named = |of: &&Value| of["id"] == id && of["severity"] == "error";
        let found = all
            .iter()
            .find(named)
            .unwrap_or_else(|| panic!("{case}: {ran}"));
        let consequences = found["consequences"].as_array().unwrap();
        assert!(
            consequences
                .iter()
                .any(|consequence| consequence["id"] == "SV01"),
            "{case}: {found:#}"
        );
        assert!(found["fix"]["command"].is_string(), "{case}: {found:#}");
        for of in all {
            let below = of["consequences"].as_array().into_iter().flatten();
            let same = below.filter(|below| of["id"] == "SV01" && below["about"] == of["about"]);
            assert_eq!(same.count(), 0, "{case}: {of:#}");
        }
    }
}
