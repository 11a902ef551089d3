//! DP: what later releases drop.

use super::facts::MODE;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::evidence::{Gap, Item};

pub(super) const CHECKS: &[Check] = &[Check {
    id: "DP01",
    name: "ipvs-deprecated",
    severity: Severity::Warning,
    when: When::Now,
    title: "The mode is one that later releases keep",
    symptom: "kube-proxy logs and records an event that the ipvs mode is deprecated.",
    why: "Upstream gave up the ipvs mode: deprecated since 1.35, to be off by default in 1.40 and removed in 1.43 \
          (KEP-5495); some vendors are faster. A node still on ipvs when the mode goes has no service proxy after the \
          upgrade.",
    verify: "Compare the mode in use with the release of kube-proxy.",
    commands: &[
        "curl -s http://127.0.0.1:10249/proxyMode",
        "curl -s http://127.0.0.1:10249/metrics | grep kubernetes_build_info",
    ],
    fix: "Plan the move to the nftables mode (kernel 5.13 or newer), or to iptables where the kernel or the network \
          plug-in does not allow it, before the upgrade to 1.40.",
    incidents: &[
        "KEP-5495: deprecate the ipvs mode of kube-proxy",
        "kubernetes/kubernetes#134539",
        "aws/containers-roadmap#2826: EKS removes it in 1.36",
    ],
    needs: &[
        MODE,
        &[
            Item::Metrics,
            Item::Pods,
            Item::DaemonSets,
            Item::Nodes,
            Item::Addresses,
        ],
    ],
    caused_by: &[],
    run: ipvs,
}];

fn ipvs(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    if mode != Mode::Ipvs {
        return Err(Gap::NotApplicable(format!("the mode is {mode}")));
    }
    let found = facts.version()?;
    if !found.version.at_least(1, 35) {
        return Ok(Vec::new());
    }
    let message = "the ipvs mode is deprecated since 1.35, off by default in 1.40, removed in 1.43";
    let seen = Proof::Setting {
        source: found.source.to_string(),
        key: "version".to_owned(),
        value: found.version.to_string(),
    };
    Ok(vec![
        Finding::new(Severity::Warning, "mode ipvs", message).seen([seen]),
    ])
}
