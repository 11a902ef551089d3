//! Incidents, rebuilt as bundles: the doctor's first finding names the cause, and what follows from it is below.

use serde_json::Value;

use crate::support::kpx;

struct Incident {
    /// The bundle below `testdata/cases`.
    case: &'static str,
    /// The check of the first finding, and words of its message and fix.
    first: (&'static str, &'static str, &'static str),
    /// Checks whose findings follow from it.
    below: &'static [&'static str],
    /// Checks that find nothing there.
    silent: &'static [&'static str],
}

const INCIDENTS: &[Incident] = &[
    Incident {
        case: "ipvs-01-clustercidr-covers-services",
        first: (
            "AP08",
            "clusterCIDR contains addresses of Services",
            "Set clusterCIDR to a prefix",
        ),
        below: &[],
        silent: &["IS05"],
    },
    Incident {
        case: "ipvs-06-parseip-old-kernel",
        first: ("KP21", "parseIP Error", "Upgrade kube-proxy to v1.18.3"),
        below: &["VS04"],
        silent: &["IS05"],
    },
    Incident {
        case: "ipvs-08-unknown-config-keys",
        first: (
            "KP21",
            "ignores fields of its configuration file that it does not know: kubeProxyIPTablesConfiguration",
            "below iptables, ipvs or nftables",
        ),
        below: &[],
        silent: &[],
    },
    Incident {
        case: "ipvs-10-nf-conntrack-ipv4-kernel-4.19",
        first: (
            "KP21",
            "cannot run in mode ipvs, and runs in mode iptables",
            "v1.13 or newer",
        ),
        below: &["KP01"],
        silent: &["KP04"],
    },
    Incident {
        case: "ipvs-12-ipset-exit-status-1-el10",
        first: ("KM10", "lacks modules", "extra kernel modules"),
        below: &["DV01", "KP01", "KP02", "KP21"],
        silent: &["KM01"],
    },
    Incident {
        case: "ipvs-14-clustercidr-is-the-service-range",
        first: (
            "AP08",
            "clusterCIDR contains addresses of Services",
            "(172.30.11.0/24)",
        ),
        below: &[],
        silent: &[],
    },
    Incident {
        case: "more-01-lxc-conntrack-readonly",
        first: (
            "KP21",
            "kube-proxy exits: could not set conntrack parameters",
            "Set conntrack.maxPerCore to 0",
        ),
        below: &["IR03", "IR04", "KP02"],
        silent: &[],
    },
    Incident {
        case: "more-08-tcp-entry-to-a-reused-pod-address",
        first: (
            "CT08",
            "waiting TCP connections lead to shop/payments",
            "nf_conntrack_tcp_timeout_syn_sent",
        ),
        below: &[],
        silent: &["CT02"],
    },
    Incident {
        case: "more-12-no-xt-recent-on-wsl2",
        first: ("KP21", "Couldn't load match `recent'", "xt_recent"),
        below: &["IR04", "KP07"],
        silent: &[],
    },
    Incident {
        case: "rules-01-unreadable-dnat",
        first: (
            "IB03",
            "too old to read the rules of kube-proxy's image",
            "Upgrade iptables",
        ),
        below: &[],
        silent: &["IR04"],
    },
    Incident {
        case: "rules-02-wireguard-mark",
        first: (
            "IR10",
            "the bit by which KUBE-FIREWALL drops packets",
            "without 0xc000",
        ),
        below: &[],
        silent: &[],
    },
    Incident {
        case: "rules-06-ip6-restore-fails",
        first: ("KP21", "unknown option \"--xor-mark\"", "xt_mark"),
        below: &["KP01"],
        silent: &[],
    },
    Incident {
        case: "rules-15-service-cidr-overlap",
        first: ("AP08", "in a range of pods, nodes or links", "link"),
        below: &[],
        silent: &[],
    },
];

/// Cases of a patched or an old release, whose rules are right: checks that find nothing there.
const RIGHT: &[(&str, &[&str])] = &[
    ("ipvs-16-backported-return-rule", &["DV08"]),
    ("more-07-endpoints-without-node-name", &["IR06"]),
];

async fn report(case: &str) -> Value {
    let dir = format!("testdata/cases/{case}");
    let ran = kpx(&["--from", &dir, "doctor", "-o", "json"]).await;
    serde_json::from_str(&ran.out).unwrap()
}

fn findings(of: &Value) -> impl Iterator<Item = &Value> {
    of.as_array().into_iter().flatten()
}

fn is_silent(report: &Value, id: &str) -> bool {
    let mut all = findings(&report["findings"]);
    all.all(|of| of["id"] != id && findings(&of["consequences"]).all(|of| of["id"] != id))
}

#[tokio::test]
async fn the_first_finding_names_the_cause() {
    for of in INCIDENTS {
        let report = report(of.case).await;
        let first = findings(&report["findings"]).next().unwrap();
        let (id, message, fix) = of.first;
        assert_eq!(first["id"], id, "{}", of.case);
        for (key, words) in [("message", message), ("fix", fix)] {
            let text = first[key].to_string().replace("\\\"", "\"");
            assert!(text.contains(words), "{}: {text}", of.case);
        }
        let mut below: Vec<_> = findings(&first["consequences"])
            .map(|of| of["id"].as_str().unwrap())
            .collect();
        below.dedup();
        assert_eq!(below, of.below, "{}", of.case);
        for id in of.silent {
            assert!(is_silent(&report, id), "{}: {id}", of.case);
        }
    }
}

#[tokio::test]
async fn what_a_release_writes_is_no_finding() {
    for (case, ids) in RIGHT {
        let report = report(case).await;
        for id in *ids {
            assert!(is_silent(&report, id), "{case}: {id}");
        }
    }
}

#[tokio::test]
async fn pods_that_a_slice_places_nowhere_are_named() {
    let dir = "testdata/cases/more-07-endpoints-without-node-name";
    let ran = kpx(&["--from", dir, "why", "web/front", "-o", "json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let cause = &report["causes"][0];
    assert_eq!(
        cause["unnamed"],
        serde_json::json!(["web/front-1"]),
        "{ran}"
    );
    assert_eq!(ran.code, 1);
    let fix = cause["fix"].to_string();
    assert!(fix.contains("delete endpointslices"), "{fix}");
}
