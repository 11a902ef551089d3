//! KP: kube-proxy's configuration and health.

use super::facts::MODE;
use super::{Check, Facts, Finding, Proof, Severity, Verdict};

pub(super) const CHECKS: &[Check] = &[Check {
    id: "KP01",
    name: "mode-agrees",
    severity: Severity::Error,
    title: "The configured mode, the reported one and the kernel's state agree",
    symptom: "Services work by rules that nobody expects, and the next restart of kube-proxy changes how, or whether, they do.",
    why: "kube-proxy reads its configuration once, at its start. An edit of the ConfigMap reaches the file on the node \
          but not the running process: the mode changes at the next restart, whenever that comes. /proxyMode tells the \
          configuration the process started with, not what is in the kernel; releases before 1.26 fell back from ipvs \
          to iptables without a change there.",
    verify: "Compare what the file says, what the process says, and what the kernel holds.",
    commands: &[
        "kubectl -n kube-system get configmap kube-proxy -o yaml | grep 'mode:'",
        "curl -s http://127.0.0.1:10249/proxyMode",
        "iptables-save | grep -c KUBE-SVC-; ipvsadm -Ln | head; nft list tables | grep kube-proxy",
    ],
    fix: "Decide which mode this node should have. If the file is right, restart kube-proxy on this node at a time of \
          your choosing; if the process is right, put the file back.",
    incidents: &[
        "kubernetes/kubernetes#57144 and #86869: edits are not picked up until a restart",
        "kubernetes/kubernetes#111806 and #55864: silent fallback to iptables before 1.26",
    ],
    needs: &[MODE],
    caused_by: &["KM01"],
    run: mode,
}];

fn mode(facts: &Facts<'_>) -> Verdict {
    let (configured, source) = facts.configured()?;
    let reported = facts.reported()?;
    if configured == reported {
        return Ok(Vec::new());
    }
    let message = format!(
        "kube-proxy runs in mode {reported} but is configured for {configured}: its next restart changes the mode"
    );
    let seen = [
        Proof::Setting {
            source: source.name().to_owned(),
            key: "mode".to_owned(),
            value: configured.to_string(),
        },
        Proof::Setting {
            source: "/proxyMode".to_owned(),
            key: "mode".to_owned(),
            value: reported.to_string(),
        },
    ];
    Ok(vec![
        Finding::new(Severity::Error, "mode", message).seen(seen),
    ])
}
