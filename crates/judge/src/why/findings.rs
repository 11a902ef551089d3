//! The doctor's findings that concern a Service, or the whole node.

use serde::Serialize;

use crate::check::{Check, Finding, Fix, Outcome, ServiceRef, Severity, Subject, drifted, root};
use kpx_node::cluster::Service;

/// A finding of the doctor that concerns the Service.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Related {
    /// The check.
    pub id: &'static str,
    /// The severity.
    pub severity: Severity,
    /// The name of the object that it is about.
    pub subject: String,
    /// The object that it is about.
    pub about: Subject,
    /// The message.
    pub message: String,
    /// The check whose finding explains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub because: Option<&'static str>,
    /// Whether it names the Service; otherwise it concerns the whole node.
    pub by_name: bool,
    /// The fix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<Fix>,
}

/// Returns the findings in `outcomes` that concern `service`: those that name it, and errors that name no Service.
pub(super) fn related(outcomes: &[(&'static Check, Outcome)], service: &Service) -> Vec<Related> {
    let ours = service.into();
    let mut found = Vec::new();
    for (check, outcome) in outcomes {
        let Outcome::Fail(findings) = outcome else {
            continue;
        };
        found.extend(findings.iter().filter_map(|finding| {
            let by_name = concerns(finding, &ours)?;
            Some(Related {
                id: check.id,
                severity: finding.severity,
                subject: finding.subject.clone(),
                about: finding.about.clone(),
                message: finding.message.clone(),
                because: root(outcomes, check, finding).map(|(cause, _)| cause.id),
                by_name,
                fix: finding.fix.clone(),
            })
        }));
    }
    found.sort_by_key(|finding| {
        (
            std::cmp::Reverse(finding.severity),
            finding.because.is_some(),
            !finding.by_name,
            finding.id,
        )
    });
    found
}

/// Turns errors of drift in `found` into warnings, for a Service that works: the difference stops no connection.
pub(super) fn temper(found: &mut [Related], outcomes: &[(&'static Check, Outcome)]) {
    let drifted = drifted(outcomes);
    let of_drift = found
        .iter_mut()
        .filter(|finding| finding.by_name && drifted.iter().any(|check| check.id == finding.id));
    for of in of_drift {
        of.severity = of.severity.min(Severity::Warning);
    }
}

/// Returns whether `finding` names the Service `ours`; `None` if it does not concern it.
fn concerns(finding: &Finding, ours: &ServiceRef) -> Option<bool> {
    if finding.services.is_empty() {
        return (finding.severity == Severity::Error).then_some(false);
    }
    let mut services = finding.services.iter();
    services
        .any(|service| service.is_same_service(ours))
        .then_some(true)
}
