//! Connections that a switch of the mode breaks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::check::core::{Collector, MODE, PATH, VERSION, proof_of, some_services};
use crate::check::{
    Check, Example, Facts, Finding, Fix, Proof, ServiceRef, Severity, Text, Verdict, When, rule_fix,
};
use crate::proof::difference::{Harm, Target};
use crate::proof::{Proved, beside_others};
use crate::trace::{self, Hop, Rule, Verdict as End, why};
use crate::verdict::{By, Fate, Fault, LossClass, Place, Worse, foreign_end};
use kpx_node::backend::Mode;
use kpx_node::backend::requirements::refusal;
use kpx_node::evidence::{Gap, IPTABLES, Item};
use kpx_node::net::Family;
use kpx_node::node::desired::NEEDS;
use kpx_node::owner::PortName;
use kpx_node::owner::chain_owner::Maker;
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
          the same port of every Service. Some losses are by design of a mode: in ipvs mode the host and pods have the \
          addresses of load balancers themselves. Every packet is judged with the rules of the new mode beside those of other \
          software; packets with the same sender and the same kind of address are one class.",
    verify: "Trace a packet in the new mode.",
    commands: &[
        Example::kpx(&["trace", "NAMESPACE/SERVICE", "--mode", "MODE"])
            .with(&["NAMESPACE/SERVICE", "MODE"]),
        Example::kpx(&["diff", "--packets", "--mode", "MODE"]).with(&["MODE"]),
    ],
    fix: Text::with(
        "Keep the node in its mode, or change what stops the connections before the switch. {} switches regardless.",
        &[
            Example::kpx(&["migrate", "--to", "MODE", "--accept-loss", "CLASS"])
                .with(&["MODE", "CLASS"]),
        ],
    ),
    incidents: &["kubernetes/kubernetes#66103", "kubernetes/kubernetes#60305"],
    needs: &[
        MODE,
        NEEDS,
        PATH,
        VERSION,
        IPTABLES,
        trace::NOTES_NEEDS,
        &[Item::Conntrack],
    ],
    caused_by: &[],
    run: worse,
}];

/// Packets of one class that are worse.
#[derive(Default)]
struct Lost<'w> {
    services: BTreeSet<ServiceRef>,
    losses: Vec<Loss<'w>>,
}

/// Connections that are worse, or packets with one fate that are.
struct Loss<'w> {
    /// Their fate in the new mode.
    then: Fate,
    /// Why they end there.
    reason: String,
    /// The rule of other software that decides it.
    rule: Option<&'w Hop>,
    fault: Option<&'w Fault>,
    /// Whether a traffic policy of the Service is Local.
    is_local: bool,
    to: SocketAddr,
    /// An example, in words.
    shown: String,
}

fn worse(facts: &Facts<'_>) -> Verdict {
    let mode = facts
        .target()
        .ok_or_else(|| Gap::NotApplicable("no switch of the mode is planned".to_owned()))?;
    refuse_missing(facts, mode)?;
    let outlook = facts.outlook(mode)?;
    let mut lost: BTreeMap<LossClass, Lost<'_>> = BTreeMap::new();
    // Connections that fail now as well do not block the switch.
    let may_work = |worse: &&Worse| !worse.now.fails() || worse.now == Fate::Partly;
    for of in outlook.worse.iter().filter(may_work) {
        let of_class = lost.entry(of.class).or_default();
        let service = PortName::parse(&of.service).map(ServiceRef::from);
        of_class.services.extend(service);
        of_class
            .losses
            .push(Loss::of_connection(of, is_local(facts, of)));
    }
    // The connections of each kind of client are judged by an example; here, every packet is.
    let mut findings = Collector::default();
    let packets = findings.read(beside_others(facts.node, mode, &Family::BOTH));
    for of in packets.iter().flat_map(|packets| &packets.differences) {
        // kube-proxy's own rules treat all senders of one kind alike: the examples above have been judged, with the
        // replies.
        let Some(rule) = foreign_end(&of.traces[0]) else {
            continue;
        };
        for class in classes(of) {
            let of_class = lost.entry(class).or_default();
            let before = of_class.services.len();
            let names = of.difference.names();
            let services = names.filter_map(|name| PortName::parse(name).map(ServiceRef::from));
            of_class.services.extend(services);
            if of_class.losses.is_empty() || of_class.services.len() > before {
                of_class.losses.push(Loss::of_packets(of, rule));
            }
        }
    }
    findings.extend(
        lost.iter()
            .map(|(class, lost)| finding(facts, mode, *class, lost)),
    );
    findings.verdict()
}

/// Fails if kube-proxy refuses `mode`, as KP22 says: nothing serves then, and no rule of others is the reason.
fn refuse_missing(facts: &Facts<'_>, mode: Mode) -> Result<(), Gap> {
    let (Ok(found), Ok(config)) = (facts.version(), facts.configuration()) else {
        return Ok(());
    };
    match refusal(mode, found.version, &config) {
        Some(_) => Err(Gap::NotApplicable(format!(
            "kube-proxy {} does not start in mode {mode}: see KP22",
            found.version
        ))),
        None => Ok(()),
    }
}

/// Returns the classes of packets that reach a backend now and do not in the new mode.
///
/// The checks NP05 and NP07 look for clients of NodePorts at addresses on which the new mode does not serve them.
fn classes(of: &Proved) -> Vec<LossClass> {
    let found = &of.difference;
    let place = match &found.target {
        Target::Service(_, role) => Place::from(*role),
        Target::NodePort(_) => Place::NodePort,
        Target::Other => Place::HostPort,
        Target::LocalNodePort(_)
        | Target::NodePortElsewhere(_)
        | Target::Ping(_)
        | Target::OtherPort(_) => return Vec::new(),
    };
    let mut ends = found.fates[0].ways.iter();
    let is_unserved = place == Place::NodePort
        && ends.all(|way| matches!(way.verdict, End::Local | End::Unmatched));
    if found.harm != Harm::Lost || is_unserved || found.witness.mark != 0 {
        return Vec::new();
    }
    let entries = found.entries.iter();
    entries.map(|entry| LossClass::new(*entry, place)).collect()
}

impl<'w> Loss<'w> {
    fn of_connection(of: &'w Worse, is_local: bool) -> Self {
        Self {
            then: of.then,
            reason: of.reason.clone().unwrap_or_default(),
            rule: of.rule.as_deref(),
            fault: of.fault.as_ref(),
            is_local,
            to: of.to,
            shown: format!(
                "{} {} from {}: {}, now {}",
                of.service,
                of.to,
                of.client.name(),
                of.then,
                of.now
            ),
        }
    }

    fn of_packets(of: &'w Proved, rule: &'w Hop) -> Self {
        let found = &of.difference;
        let [then, now] = &found.fates;
        let to = SocketAddr::new(found.witness.destination, found.witness.port);
        let source = found.witness.source;
        let from = source.map_or_else(|| "the host".to_owned(), |source| source.to_string());
        Self {
            then: match then.verdict() {
                Some(End::Reject) => Fate::Refused,
                Some(End::Drop) => Fate::Lost,
                Some(End::Local) => Fate::Misled,
                _ => Fate::Partly,
            },
            reason: then.to_string(),
            rule: Some(rule),
            fault: None,
            is_local: false,
            to,
            shown: format!("{} {to} from {from}: {then}, now {now}", found.target),
        }
    }

    /// Returns whether the mode itself is the reason, not a rule of other software or a setting.
    fn is_by_design(&self) -> bool {
        // Each mode has its own limits for replies and traffic policies.
        let is_of_mode = match self.fault {
            Some(
                Fault::SharedSource { .. }
                | Fault::DirectReply { .. }
                | Fault::ForeignSource { .. }
                | Fault::OtherLink { .. }
                | Fault::Hairpin { .. },
            ) => true,
            Some(Fault::Stopped { .. }) => self.is_local,
            _ => false,
        };
        self.rule.is_none() && is_of_mode
    }

    /// Returns why they are worse, in words.
    fn because(&self, mode: Mode) -> String {
        match self.rule {
            Some(hop) => format!(
                ": {} of chain {} in table {}{}",
                match hop.number {
                    0 => "the policy".to_owned(),
                    number => format!("rule {number}"),
                },
                hop.chain,
                hop.table,
                owner(hop)
            ),
            None if self.is_by_design() => format!(", by design of mode {mode}: {}", self.reason),
            None => format!(": {}", self.reason),
        }
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
        policies
            .iter()
            .any(|policy| policy.as_deref() == Some("Local"))
    })
}

fn finding(facts: &Facts<'_>, mode: Mode, class: LossClass, lost: &Lost<'_>) -> Finding {
    let first = &lost.losses[0];
    let mut reasons: Vec<String> = Vec::new();
    for loss in &lost.losses {
        let reason = loss.because(mode);
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    let others = match reasons.len() - 1 {
        0 => String::new(),
        count => format!("; and for {}", number_of(count, "other reason")),
    };
    let then = match first.then {
        Fate::Misled => "reach another program",
        Fate::Refused => "are refused",
        Fate::Partly => "fail in part",
        _ => "get no answer",
    };
    let of = if lost.services.is_empty() {
        String::new()
    } else {
        format!(" of {}", some_services(&lost.services))
    };
    let message = format!(
        "in mode {mode}, connections from {} to {}{of} {then}{}{others}",
        class.from.words(),
        class.to.words(),
        reasons[0]
    );
    let mut seen = vec![
        Proof::Note(first.shown.clone()),
        Proof::Note(first.reason.clone()),
        Proof::Note(format!("{} in all", number_of(lost.losses.len(), "case"))),
    ];
    for loss in &lost.losses {
        let Some(hop) = loss.rule else {
            continue;
        };
        let rule = proof_of(&Rule::of(hop, Family::of(loss.to.ip())));
        if !seen.contains(&rule) {
            seen.push(rule);
        }
    }
    Finding::new(Severity::Error, class, message)
        .evidence(seen)
        .services(lost.services.clone())
        .fix(fix(facts, mode, class, first))
}

fn owner(hop: &Hop) -> String {
    match why::maker(hop) {
        Maker::Other(who) => format!(" ({who})"),
        _ => String::new(),
    }
}

fn fix(facts: &Facts<'_>, mode: Mode, class: LossClass, of: &Loss<'_>) -> Fix {
    let mut fix = cure(facts, mode, of);
    let text = fix.text.and(" Or accept the loss with ");
    fix.text = text
        .kpx([
            "migrate".to_owned(),
            "--to".to_owned(),
            mode.to_string(),
            "--accept-loss".to_owned(),
            class.to_string(),
        ])
        .and(".");
    fix
}

fn cure(facts: &Facts<'_>, mode: Mode, of: &Loss<'_>) -> Fix {
    match (of.rule, of.fault) {
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
            let family = Family::of(of.to.ip());
            let by = By::new(Rule::of(hop, family), why::maker(hop), facts.node);
            let mut fix = rule_fix(&by.of_families([family], facts.node));
            fix.text = fix
                .text
                .and(format!(" Do so before the switch to mode {mode}."));
            fix
        }
        _ => Fix::kpx(
            if of.is_by_design() {
                "Keep the node in its mode: no setting of the new mode changes this."
            } else {
                "Keep the node in its mode, or change what stops the connections before the switch."
            },
            [
                "trace".to_owned(),
                of.to.to_string(),
                "--mode".to_owned(),
                mode.to_string(),
            ],
        ),
    }
}
