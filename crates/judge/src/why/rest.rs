//! Services that fail for a reason which no check of the doctor names.

use std::collections::BTreeSet;

use super::asked::Asked;
use super::cause::Degree;
use super::{Broken, Cause, Look, Unanswered};
use crate::check::{
    Check, Facts, Finding, Outcome, Proof, ServiceRef, Severity, Subject, Verdict, idle_proxy,
    some_services,
};
use crate::trace::Rule;
use crate::verdict::{Brief, Standing, client_names};
use kpx_node::net::Family;
use kpx_node::words::listed;

/// The most Services that are asked about: the causes of more are much the same.
const MOST: usize = 12;

/// A cause, and the Services that it breaks.
struct Found {
    broken: Broken,
    services: BTreeSet<ServiceRef>,
    seen: Vec<Proof>,
}

/// Returns the causes of the Services that fail and that no error in `said`, the outcomes of the other checks, names.
pub fn rest(facts: &Facts<'_>, said: &[(&'static Check, Outcome)]) -> Verdict {
    // Of a kube-proxy that does not program the node, another check says why.
    let is_served = Family::BOTH.map(|family| idle_proxy(said, family).is_none());
    let fails = |cell: &Brief| {
        let at = usize::from(Family::of(cell.to.ip()) == Family::V6);
        is_served[at] && cell.fate.fails() && !cell.by_design
    };
    let failing = facts
        .surveyed()?
        .iter()
        .filter(|port| port.standing() == Standing::Fails && port.cells.iter().any(fails));
    let failing: BTreeSet<ServiceRef> = failing
        .map(|port| ServiceRef::from(&port.name).whole())
        .collect();
    let errors: Vec<&Finding> = said
        .iter()
        .flat_map(|(_, outcome)| match outcome {
            Outcome::Fail(findings) => findings.as_slice(),
            _ => &[],
        })
        .filter(|finding| finding.severity == Severity::Error)
        .collect();
    let is_named = |service: &ServiceRef| {
        let mut named = errors.iter().flat_map(|finding| &finding.services);
        named.any(|of| of.is_same_service(service))
    };
    let open: Vec<ServiceRef> = failing.into_iter().filter(|of| !is_named(of)).collect();
    if open.is_empty() {
        return Ok(Vec::new());
    }
    let look = match Look::new(facts.node, &Family::BOTH, said) {
        Ok(look) => look,
        Err(Unanswered::Objects(gap)) => return Err(gap),
        Err(Unanswered::Source(_)) => return Ok(Vec::new()),
    };
    let look = match facts.across() {
        Some(across) => look.beside(across),
        None => look,
    };
    let mut found: Vec<Found> = Vec::new();
    for service in open.iter().take(MOST) {
        let asked = Asked::Service {
            namespace: service.namespace.to_string(),
            name: service.name.to_string(),
            port: None,
        };
        let Ok(answer) = look.why(&asked, None) else {
            continue;
        };
        let breaks = |of: &&Broken| of.degree == Degree::Breaks && !of.by_design;
        let count = answer.causes.iter().filter(breaks).count();
        for broken in answer.causes {
            // Other checks name what keeps kube-proxy from its work and what another mode left, and offer the same fix for the same cause.
            let about = match &broken.cause {
                Cause::Leftover { mode, .. } => Some(Subject::from(*mode)),
                _ => None,
            };
            let rule = rule_of(&broken.cause);
            let is_of_rule = |of: &&Finding| match (&of.about, rule) {
                (Subject::Rule(about), Some(rule)) => place(about) == place(rule),
                (about, Some(rule)) => {
                    *about == Subject::chain(rule.family, &rule.table, &rule.chain)
                }
                _ => false,
            };
            let advice = broken.fix.as_ref().and_then(|fix| fix.advice.as_ref());
            let is_its = |of: &&Finding| {
                let same = of.fix.as_ref().and_then(|fix| fix.advice.as_ref());
                about.as_ref() == Some(&of.about) || advice.is_some() && same == advice
            };
            let is_said = matches!(
                broken.cause,
                Cause::Idle(_) | Cause::Rules { proxy: Some(_), .. }
            ) || errors.iter().any(is_its)
                || errors.iter().any(is_of_rule);
            // An error of the whole node says more than that no repair is found.
            let is_vague =
                is_unexplained(&broken) && errors.iter().any(|of| of.services.is_empty());
            // The checks of drift name the rules that differ.
            let is_beside = count > 1 && matches!(broken.cause, Cause::Rules { .. });
            if broken.degree != Degree::Breaks
                || broken.by_design
                || is_said
                || is_beside
                || is_vague
            {
                continue;
            }
            let seen = Proof::Note(format!(
                "{} fails{}{}",
                broken.subject,
                client_names(&broken.from),
                match broken.to.as_slice() {
                    [] => String::new(),
                    to => format!(" at {}", listed(to)),
                }
            ));
            let is_same = |of: &&mut Found| {
                let both = [&of.broken, &broken];
                let rules = both.map(|of| rule_of(&of.cause).map(place));
                of.broken.reason == broken.reason
                    || both.into_iter().all(is_unexplained)
                    || rules[0].is_some() && rules[0] == rules[1]
            };
            match found.iter_mut().find(is_same) {
                Some(same) => {
                    same.services.insert(service.clone());
                    same.seen.push(seen);
                }
                None => found.push(Found {
                    broken,
                    services: BTreeSet::from([service.clone()]),
                    seen: vec![seen],
                }),
            }
        }
    }
    if let Some(first) = found.first_mut().filter(|_| open.len() > MOST) {
        let count = open.len();
        first.seen.push(Proof::Note(format!(
            "of {count} Services that fail and that no error names, {MOST} were asked about"
        )));
    }
    Ok(found.into_iter().filter_map(finding).collect())
}

/// Returns the rule of other software that a cause is.
fn rule_of(cause: &Cause) -> Option<&Rule> {
    match cause {
        Cause::ForeignRule { by, .. } => Some(&by.rule),
        _ => None,
    }
}

/// Returns where a rule is.
fn place(rule: &Rule) -> (&str, &str, usize) {
    (&rule.table, &rule.chain, rule.number)
}

const fn is_unexplained(of: &Broken) -> bool {
    matches!(of.cause, Cause::Unexplained { .. })
}

/// Returns the finding; `None` without a Service.
fn finding(of: Found) -> Option<Finding> {
    let first = of.services.first()?.clone();
    let about = match &of.broken.cause {
        Cause::ForwardingOff { key } => Subject::sysctl(*key),
        Cause::HairpinPort { bridge } => Subject::link(bridge),
        _ => first.clone().into(),
    };
    let message = if about == Subject::from(first) && of.services.len() == 1 {
        of.broken.reason
    } else {
        let services = some_services(&of.services);
        format!("{} (breaks {services})", of.broken.reason)
    };
    let owner = of.broken.owner.map(|owner| format!("owner: {owner}"));
    let finding = Finding::new(Severity::Error, about, message)
        .evidence(of.seen)
        .evidence(owner.map(Proof::Note))
        .services(of.services);
    Some(match of.broken.fix {
        Some(fix) => finding.fix(fix),
        None => finding,
    })
}
