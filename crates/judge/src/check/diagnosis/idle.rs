//! A kube-proxy that does not program the node, according to the findings.

use super::because::{outdates, process};
use super::causes::root;
use crate::check::kube_proxy::{OF_MODE, OF_PROXY};
use crate::check::{Check, Finding, Fix, Outcome, ProcessState, Subject};
use kpx_node::net::Family;

/// Returns why kube-proxy does not write the rules of `family`: the check, its message and its fix. The finding is about
/// kube-proxy's log or process, or is the cause of such a finding.
pub fn idle_proxy(
    outcomes: &[(&'static Check, Outcome)],
    family: Family,
) -> Option<(&'static Check, String, Option<Fix>)> {
    OF_PROXY.iter().find_map(|id| {
        let failed = outcomes.iter().filter(|(check, _)| check.id == *id);
        let mut idle: Vec<(&'static Check, &Finding)> = Vec::new();
        for (check, outcome) in failed {
            if let Outcome::Fail(findings) = outcome {
                let ours = findings.iter().filter(|finding| is_idle(finding, family));
                idle.extend(ours.map(|finding| (*check, finding)));
            }
        }
        // A kube-proxy that exits does nothing else.
        idle.sort_by_key(|(_, finding)| process(finding).is_none());
        let (check, finding) = *idle.first()?;
        Some(match root(outcomes, check, finding) {
            Some((cause, of)) => {
                let message = format!("{} ({})", finding.message, of.message);
                (cause, message, of.fix.clone())
            }
            None => (check, finding.message.clone(), finding.fix.clone()),
        })
    })
}

/// Returns the finding that the kernel has none of kube-proxy's rules of `family`, in whatever mode.
pub fn flushed<'o>(
    outcomes: &'o [(&'static Check, Outcome)],
    family: Family,
) -> Option<&'o Finding> {
    let failed = outcomes.iter().filter(|(check, _)| check.id == OF_MODE);
    let mut findings = failed.flat_map(|(_, outcome)| match outcome {
        Outcome::Fail(findings) => findings.as_slice(),
        _ => &[],
    });
    findings
        .find(|finding| finding.about == Subject::from(family) && !finding.ties.places.is_empty())
}

fn is_idle(finding: &Finding, family: Family) -> bool {
    // A kube-proxy that runs in another mode than the configured one does not write the rules of the configured one.
    let is_fallback = finding.about == Subject::setting("mode");
    let is_stopped = matches!(
        process(finding),
        Some(ProcessState::Stopped | ProcessState::Silent)
    );
    is_fallback || is_stopped || outdates(finding, Some(family))
}
