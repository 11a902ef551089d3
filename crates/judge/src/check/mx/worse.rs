//! Connections that a switch of the mode breaks.

use std::collections::BTreeSet;
use std::mem::{Discriminant, discriminant};

use crate::check::core::{MODE, PATH, proof_of, some_services};
use crate::check::{
    Check, Example, Facts, Finding, Fix, Proof, ServiceRef, Severity, Subject, Text, Verdict, When,
    rule_fix,
};
use crate::trace::{self, Hop, Rule, why};
use crate::verdict::{By, Fate, Fault, Worse};
use kpx_node::backend::Mode;
use kpx_node::evidence::Gap;
use kpx_node::net::Family;
use kpx_node::node::desired::NEEDS;
use kpx_node::owner::PortName;
use kpx_node::owner::software::Maker;
use kpx_node::words::number_of;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "MX12",
    name: "worse-connections",
    severity: Severity::Error,
    when: When::For(&[Mode::Iptables, Mode::Ipvs, Mode::Nftables]),
    title: "Connections that work now work in the new mode",
    symptom: "After the switch, connections to some Services reach another program, are refused or get no answer.",
    why: "The modes meet the rules of other software at different places. In ipvs mode the addresses of Services are the node's \
          own, so their packets pass the chain INPUT, and rules for packets to the node itself apply to them: a hostPort takes \
          the same port of every Service. Each connection is judged with the rules of the new mode beside those of other \
          software.",
    verify: "Trace a packet in the new mode.",
    commands: &[
        Example::kpx(&["trace", "NAMESPACE/SERVICE", "--mode", "MODE"])
            .with(&["NAMESPACE/SERVICE", "MODE"]),
        Example::kpx(&["diff", "--packets", "--mode", "MODE"]).with(&["MODE"]),
    ],
    fix: Text::plain(
        "Keep the node in its mode, or change what stops the connections before the switch.",
    ),
    incidents: &["kubernetes/kubernetes#66103", "kubernetes/kubernetes#60305"],
    needs: &[MODE, NEEDS, PATH, trace::NOTES_NEEDS],
    caused_by: &[],
    run: worse,
}];

/// Connections that are worse for one reason.
struct Class<'w> {
    first: &'w Worse,
    services: BTreeSet<ServiceRef>,
    count: usize,
}

/// What makes two connections worse for the same reason.
#[derive(PartialEq)]
struct Reason<'w> {
    rule: Option<(&'w str, &'w str, usize)>,
    fault: Option<Discriminant<Fault>>,
    then: Fate,
}

fn worse(facts: &Facts<'_>) -> Verdict {
    let mode = facts
        .target()
        .ok_or_else(|| Gap::NotApplicable("no switch of the mode is planned".to_owned()))?;
    let outlook = facts.outlook(mode)?;
    let mut classes: Vec<Class<'_>> = Vec::new();
    // What fails now as well is no reason against the switch.
    let lost = |of: &&Worse| matches!(of.now, Fate::Works | Fate::Partly);
    for of in outlook.worse.iter().filter(lost) {
        let service = PortName::parse(&of.service).map(ServiceRef::from);
        let at = classes
            .iter()
            .position(|class| reason(class.first) == reason(of));
        let at = at.unwrap_or_else(|| {
            classes.push(Class {
                first: of,
                services: BTreeSet::new(),
                count: 0,
            });
            classes.len() - 1
        });
        classes[at].services.extend(service);
        classes[at].count += 1;
    }
    Ok(classes.iter().map(|of| finding(facts, mode, of)).collect())
}

fn reason(of: &Worse) -> Reason<'_> {
    let rule = of.rule.as_ref();
    Reason {
        rule: rule.map(|hop| (&*hop.table, &*hop.chain, hop.number)),
        fault: of.fault.as_ref().map(discriminant),
        then: of.then,
    }
}

fn finding(facts: &Facts<'_>, mode: Mode, class: &Class<'_>) -> Finding {
    let of = class.first;
    let family = Family::of(of.to.ip());
    let reason = of.reason.as_deref().unwrap_or_default();
    let services = some_services(&class.services);
    let then = match of.then {
        Fate::Misled => "reach another program",
        Fate::Refused => "are refused",
        Fate::Partly => "fail in part",
        _ => "get no answer",
    };
    let (about, message) = match &of.rule {
        Some(hop) => (
            Subject::Rule(Rule::of(hop, family)),
            format!(
                "in mode {mode}, connections to {services} {then}: {} of chain {} in table {}{}",
                match hop.number {
                    0 => "the policy".to_owned(),
                    number => format!("rule {number}"),
                },
                hop.chain,
                hop.table,
                owner(hop)
            ),
        ),
        None => (
            Subject::from(mode),
            format!("in mode {mode}, connections to {services} {then}: {reason}"),
        ),
    };
    let shown = format!(
        "{} {} from {}: {}, now {}",
        of.service,
        of.to,
        of.client.name(),
        of.then,
        of.now
    );
    let count = number_of(class.count, "connection");
    let mut seen = vec![
        Proof::Note(shown),
        Proof::Note(reason.to_owned()),
        Proof::Note(format!("{count} in all")),
    ];
    seen.extend(of.rule.as_ref().map(|hop| proof_of(&Rule::of(hop, family))));
    Finding::new(severity(facts, of), about, message)
        .called(services)
        .evidence(seen)
        .services(class.services.clone())
        .fix(fix(facts, mode, of, family))
}

fn owner(hop: &Hop) -> String {
    match why::maker(hop) {
        Maker::Other(who) => format!(" ({who})"),
        _ => String::new(),
    }
}

/// Returns whether the node breaks the connections in the new mode, or the mode itself treats them otherwise.
fn severity(facts: &Facts<'_>, of: &Worse) -> Severity {
    let is_of_mode = match &of.fault {
        // Each mode has its own limits for replies and traffic policies.
        Some(
            Fault::SharedSource { .. }
            | Fault::DirectReply { .. }
            | Fault::ForeignSource { .. }
            | Fault::OtherLink { .. }
            | Fault::Hairpin { .. },
        ) => true,
        Some(Fault::Stopped { .. }) => is_local(facts, of),
        _ => false,
    };
    if of.rule.is_none() && is_of_mode {
        Severity::Warning
    } else {
        Severity::Error
    }
}

/// Returns whether a traffic policy of the Service is Local.
fn is_local(facts: &Facts<'_>, of: &Worse) -> bool {
    let name = PortName::parse(&of.service);
    let mut services = facts.node.services().into_iter().flatten();
    let service = name.and_then(|name| {
        services.find(|service| {
            let meta = &service.metadata;
            *meta.name == *name.name && *meta.namespace == *name.namespace
        })
    });
    service.is_some_and(|service| {
        let policies = [
            &service.spec.internal_traffic_policy,
            &service.spec.external_traffic_policy,
        ];
        policies.iter().any(|of| of.as_deref() == Some("Local"))
    })
}

fn fix(facts: &Facts<'_>, mode: Mode, of: &Worse, family: Family) -> Fix {
    match (&of.rule, &of.fault) {
        (
            Some(_),
            Some(Fault::NoEndpoint {
                holder: Some(holder),
                address,
            }),
        ) => Fix::kubectl(
            format!(
                "Remove the hostPort of {holder}, which has {address}, and expose it by a Service before the switch; or keep the \
                 node in its mode: in mode {mode} the rule takes this port at every Service address."
            ),
            "kubectl get pods -A -o wide",
        ),
        (Some(hop), _) => {
            let mut fix = rule_fix(&By::new(Rule::of(hop, family), why::maker(hop), facts.node));
            fix.text = fix
                .text
                .and(format!(" Do so before the switch to mode {mode}."));
            fix
        }
        _ => Fix::kpx(
            "Keep the node in its mode, or change what stops the connections before the switch.",
            [
                "trace".to_owned(),
                of.to.to_string(),
                "--mode".to_owned(),
                mode.to_string(),
            ],
        ),
    }
}
