//! KP: kube-proxy's configuration and health.

use super::facts::MODE;
use super::kernel::OBSERVED;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::evidence::Item;
use crate::net::Family;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "KP01",
    name: "mode-agrees",
    severity: Severity::Error,
    when: When::Now,
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
    needs: &[
        MODE,
        OBSERVED,
        &[Item::Services, Item::Nodes, Item::Addresses, Item::Pods],
    ],
    caused_by: &["KM01", "IB07"],
    run: mode,
}];

fn mode(facts: &Facts<'_>) -> Verdict {
    let (configured, source) = facts.configured()?;
    let reported = facts.reported();
    let setting = |source: &str, mode: Mode| Proof::Setting {
        source: source.to_owned(),
        key: "mode".to_owned(),
        value: mode.to_string(),
    };
    let mut seen = vec![setting(source.name(), configured)];
    seen.extend(reported.iter().map(|mode| setting("/proxyMode", *mode)));
    if let Ok(reported) = reported
        && reported != configured
    {
        if let Some(age) = facts.pending_to(reported) {
            let message = format!(
                "the ConfigMap was set to {reported} {age} s ago, and the node's file still says {configured}"
            );
            let finding = Finding::new(Severity::Info, "mode", message).seen(seen);
            return Ok(vec![finding.mend(
                "Wait: the kubelet writes it within two minutes. A kube-proxy that restarts before that reads the old file.",
            )]);
        }
        let message = format!(
            "kube-proxy runs in mode {reported} but is configured for {configured}: its next restart changes the mode"
        );
        return Ok(vec![
            Finding::new(Severity::Error, "mode", message).seen(seen),
        ]);
    }
    let families = match facts.families()? {
        // Without Services and pods to tell, IPv4 is what every node has rules for.
        none if none.is_empty() => vec![Family::V4],
        some => some,
    };
    for family in families {
        let held = facts.observed(family)?;
        if held == Some(configured) {
            continue;
        }
        let (held, text) = match held {
            Some(held) => (
                held.name(),
                format!("the kernel holds the rules of mode {held}"),
            ),
            None => ("none", "the kernel holds no rules of any mode".to_owned()),
        };
        let kernel = Proof::Setting {
            source: format!("kernel, {family}"),
            key: "mode".to_owned(),
            value: held.to_owned(),
        };
        let message = format!("kube-proxy is configured for {configured}, but {text}");
        let finding = Finding::new(Severity::Error, family.to_string(), message);
        return Ok(vec![finding.seen(seen).seen([kernel]).mend(if held == "none" {
            "If the rules were flushed, `kpx reconcile` shows what is missing and `kpx reconcile --apply` writes it now; \
             kube-proxy itself does so at its next full sync. See in its log why it has not."
        } else {
            "See in kube-proxy's log why it does not write its rules; it may have stopped, or fallen back."
        })]);
    }
    Ok(Vec::new())
}
