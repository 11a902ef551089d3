//! Services that fail for a reason which no check of the doctor names.

use std::collections::BTreeSet;

use super::cause::Degree;
use super::look::{Look, Unanswered};
use super::target::Asked;
use super::{Broken, Cause};
use crate::check::{
    Check, Collector, Facts, Finding, Fix, Outcome, Proof, ServiceRef, Severity, Subject, Verdict,
    flushed, idle_proxy, some_services,
};
use crate::trace::{Rule, Subsystem};
use crate::verdict::{Brief, Fault, Missing, Standing, Surveyed, client_names};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::words::listed;

/// The most Services to explain: further ones mostly have the same causes.
const MOST: usize = 12;

/// A cause, and the Services that it breaks.
struct Found {
    broken: Broken,
    services: BTreeSet<ServiceRef>,
    seen: Vec<Proof>,
}

/// Returns the causes of the Services that fail and that no error in `said`, the outcomes of the other checks, names.
pub fn rest(facts: &Facts<'_>, said: &[(&'static Check, Outcome)]) -> Verdict {
    let findings = said.iter().flat_map(|(_, outcome)| match outcome {
        Outcome::Fail(findings) => findings.as_slice(),
        _ => &[],
    });
    // A warning does not explain Services that fail.
    let errors: Vec<&Finding> = findings
        .filter(|finding| finding.severity == Severity::Error)
        .collect();
    let mut open = failing(facts, said)?;
    open.retain(|service| {
        let mut named = errors.iter().flat_map(|error| &error.services);
        !named.any(|affected| affected.is_same_service(service))
    });
    if open.is_empty() {
        return unjudged(facts);
    }
    let look = Look::new(facts.node, &Family::BOTH, said).map_err(gap_of)?;
    let look = match facts.across() {
        Some(across) => look.beside(across),
        None => look,
    };
    let (mut all, mut found) = (Collector::default(), Vec::new());
    for service in open.iter().take(MOST) {
        let asked = Asked::Service {
            namespace: service.namespace.to_string(),
            name: service.name.to_string(),
            port: None,
        };
        let answer = all.read(look.why(&asked, None).map_err(gap_of));
        let mut causes = answer.map_or_else(Vec::new, |answer| answer.causes);
        // A failure that a setting asks for is by design, even if the rules for it are missing.
        let is_setting = |cause: &Cause| match cause {
            Cause::SourceRanges { .. } => true,
            Cause::NoLocalEndpoints {
                here,
                unnamed,
                unready,
                ..
            } => !here && unnamed.is_empty() && unready.is_empty(),
            _ => false,
        };
        causes.retain(|cause| {
            cause.degree == Degree::Breaks && !cause.by_design && !is_setting(&cause.cause)
        });
        let is_alone = causes.len() == 1;
        for broken in causes {
            // The checks of drift name the rules that differ.
            let is_drift = matches!(broken.cause, Cause::Rules { .. });
            if (is_alone || !is_drift) && !is_said(&broken, &errors) {
                Found::add(&mut found, service, broken);
            }
        }
    }
    // An error that explains each of these explains the others, too.
    if open.len() > MOST && !found.is_empty() {
        let count = open.len();
        let why = format!(
            "of {count} Services that fail and that no error names, {MOST} were asked about: `kpx why` tells the causes of the others"
        );
        all.note(Gap::Unsupported(Item::Services, why));
    }
    all.extend(found.into_iter().filter_map(finding));
    all.verdict()
}

/// Passes if a Service was judged, or if there is none.
fn unjudged(facts: &Facts<'_>) -> Verdict {
    let surveyed = facts.surveyed()?;
    let is_unknown = |port: &Surveyed| port.standing() == Standing::Unknown;
    let is_judged = surveyed.is_empty() || !surveyed.iter().all(is_unknown);
    let cells = surveyed.iter().flat_map(|port| &port.cells);
    let mut gaps = cells.filter_map(|cell| match &cell.fault {
        Some(Fault::Unknown(Missing::Gap { gap, .. })) => Some(gap),
        _ => None,
    });
    match gaps.next().filter(|_| !is_judged) {
        Some(gap) => Err(gap.clone()),
        None => Ok(Vec::new()),
    }
}

/// Returns the Services that fail. Of a node that kube-proxy does not program, or whose rules are gone, another check says why.
fn failing(
    facts: &Facts<'_>,
    said: &[(&'static Check, Outcome)],
) -> Result<BTreeSet<ServiceRef>, Gap> {
    let is_served = Family::BOTH
        .map(|family| idle_proxy(said, family).is_none() && flushed(said, family).is_none());
    let fails = |cell: &Brief| {
        let at = usize::from(Family::of(cell.to.ip()) == Family::V6);
        is_served[at] && cell.fate.fails() && !cell.by_design
    };
    let ports = facts.surveyed()?.iter();
    let ports =
        ports.filter(|port| port.standing() == Standing::Fails && port.cells.iter().any(fails));
    Ok(ports
        .map(|port| ServiceRef::from(&port.name).whole())
        .collect())
}

fn gap_of(unanswered: Unanswered) -> Gap {
    match unanswered {
        Unanswered::Objects(gap) => gap,
        Unanswered::Source(error) => Gap::Failed(Item::Services, error.to_string()),
    }
}

/// Returns whether one of `errors` says what `broken` is: it names the same object, offers the same fix, or says more than that no
/// repair is found.
fn is_said(broken: &Broken, errors: &[&Finding]) -> bool {
    let about = broken.cause.about();
    let advice = |fix: &Option<Fix>| fix.as_ref().and_then(|fix| fix.advice.clone());
    let own = advice(&broken.fix);
    let says = |finding: &Finding| {
        let is_about = match (&finding.about, &about) {
            (Subject::Rule(one), Some(Subject::Rule(other))) => place(one) == place(other),
            (chain, Some(Subject::Rule(rule))) => {
                *chain == Subject::chain(rule.family, &rule.table, &rule.chain)
            }
            (one, other) => Some(one) == other.as_ref(),
        };
        let is_vague = is_unexplained(broken) && finding.services.is_empty();
        is_about || is_vague || own.is_some() && advice(&finding.fix) == own
    };
    let by_proxy = matches!(
        broken.cause,
        Cause::Idle(_) | Cause::Finding { .. } | Cause::Rules { proxy: Some(_), .. }
    );
    by_proxy || errors.iter().any(|error| says(error))
}

impl Found {
    /// Adds a cause of `service` to `all`.
    fn add(all: &mut Vec<Self>, service: &ServiceRef, broken: Broken) {
        let seen = Proof::Note(format!(
            "{} fails{}{}",
            broken.subject,
            client_names(&broken.from),
            match broken.to.as_slice() {
                [] => String::new(),
                to => format!(" at {}", listed(to)),
            }
        ));
        let is_same = |of: &&mut Self| {
            let both = [&of.broken, &broken];
            let rules = both.map(|broken| rule_of(&broken.cause).map(place));
            let no_route = both.map(|broken| match &broken.cause {
                Cause::NoRoute {
                    backend,
                    is_service: true,
                    ..
                } => Some(backend.is_ipv4()),
                _ => None,
            });
            of.broken.reason == broken.reason
                || no_route[0].is_some() && no_route[0] == no_route[1]
                || both.into_iter().all(is_unexplained)
                || rules[0].is_some() && rules[0] == rules[1]
        };
        match all.iter_mut().find(is_same) {
            Some(same) => {
                same.services.insert(service.clone());
                same.seen.push(seen);
            }
            None => all.push(Self {
                broken,
                services: BTreeSet::from([service.clone()]),
                seen: vec![seen],
            }),
        }
    }
}

/// Returns the rule of other software that a cause is.
fn rule_of(cause: &Cause) -> Option<&Rule> {
    match cause {
        Cause::ForeignRule { by, .. } => Some(&by.rule),
        _ => None,
    }
}

/// Returns where a rule is.
fn place(rule: &Rule) -> (Family, Subsystem, &str, &str, usize) {
    let Rule {
        family,
        subsystem,
        table,
        chain,
        number,
        ..
    } = rule;
    (*family, *subsystem, table, chain, *number)
}

const fn is_unexplained(of: &Broken) -> bool {
    matches!(of.cause, Cause::Unexplained { .. })
}

/// Returns the finding; `None` without a Service.
fn finding(of: Found) -> Option<Finding> {
    let first = of.services.first()?.clone();
    let about = of.broken.cause.about();
    let about = about.unwrap_or_else(|| first.clone().into());
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
