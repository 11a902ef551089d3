//! The doctor's findings that concern a Service: by its name or addresses, or because they concern the whole node.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::asked::full;
use crate::check::{Check, Finding, Fix, Outcome, Severity};
use crate::cluster::Service;
use crate::owner;

/// A finding of the doctor that concerns the Service.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Related {
    /// The check.
    pub id: &'static str,
    /// The severity.
    pub severity: Severity,
    /// The subject.
    pub subject: String,
    /// The message.
    pub message: String,
    /// Whether it names the Service; otherwise it concerns the whole node.
    pub by_name: bool,
    /// The fix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<Fix>,
}

/// Names and addresses of all Services.
#[derive(Debug, Default)]
pub(super) struct Names {
    services: BTreeSet<String>,
    addresses: HashMap<IpAddr, String>,
}

impl Names {
    pub(super) fn of(services: &[Service]) -> Self {
        let mut names = Self::default();
        for service in services {
            let name = full(service);
            for (_, addr) in owner::addresses(service) {
                names.addresses.insert(addr, name.clone());
            }
            names.services.insert(name);
        }
        names
    }

    /// Returns the Services that `text` names.
    fn in_text<'n>(&'n self, text: &'n str) -> impl Iterator<Item = &'n str> {
        let is_part = |c: char| c.is_alphanumeric() || "-./:[]".contains(c);
        text.split(move |c| !is_part(c)).filter_map(|word| {
            let addr = word
                .parse::<IpAddr>()
                .or_else(|_| word.parse().map(|at: SocketAddr| at.ip()));
            // A rule has addresses with a prefix: 10.96.0.1/32.
            let prefixed = || word.split_once('/')?.0.parse().ok();
            if let Some(addr) = addr.ok().or_else(prefixed) {
                return self.addresses.get(&addr).map(String::as_str);
            }
            let name = word.split_once(':').map_or(word, |(name, _)| name);
            self.services.get(name).map(String::as_str)
        })
    }
}

/// Returns the findings in `outcomes` that concern `service`: those that name it, and errors that name no Service.
pub(super) fn related(
    outcomes: &[(&'static Check, Outcome)],
    names: &Names,
    service: &Service,
) -> Vec<Related> {
    let ours = full(service);
    let mut found = Vec::new();
    for (check, outcome) in outcomes {
        let Outcome::Fail(findings) = outcome else {
            continue;
        };
        found.extend(findings.iter().filter_map(|finding| {
            let by_name = concerns(finding, names, &ours)?;
            Some(Related {
                id: check.id,
                severity: finding.severity,
                subject: finding.subject.clone(),
                message: finding.message.clone(),
                by_name,
                fix: finding.fix.clone(),
            })
        }));
    }
    found.sort_by_key(|of| (std::cmp::Reverse(of.severity), !of.by_name, of.id));
    found
}

/// Returns whether `finding` names the Service `ours`; `None` if it does not concern it.
fn concerns(finding: &Finding, names: &Names, ours: &str) -> Option<bool> {
    let proofs = finding.evidence.iter().map(ToString::to_string);
    let texts = [finding.subject.clone(), finding.message.clone()];
    let mut has_name = false;
    for text in texts.into_iter().chain(proofs) {
        for name in names.in_text(&text) {
            if name == ours {
                return Some(true);
            }
            has_name = true;
        }
    }
    (!has_name && finding.severity == Severity::Error).then_some(false)
}
