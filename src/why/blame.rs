//! The cause on one path: why packets with an outcome do not reach an endpoint.

use std::collections::BTreeSet;

use super::endpoints::{lack, usable};
use super::paths::{Kind, Target};
use super::{Cause, Degree, Look};
use crate::check::{Finding, Fix, Outcome as CheckOutcome, Subject};
use crate::cluster::Service;
use crate::evidence::Time;
use crate::net::Family;
use crate::owner::Port;
use crate::owner::software::Maker;
use crate::trace::mismatch::{self, Stray};
use crate::trace::why::{self, Refusal};
use crate::trace::{Effect, Hop, Outcome, Verdict};

/// A cause on one path.
pub(super) struct Blame {
    pub(super) cause: Cause,
    pub(super) degree: Degree,
    pub(super) since: Option<Time>,
}

impl Blame {
    pub(super) fn breaks(cause: Cause) -> Self {
        Self {
            cause,
            degree: Degree::Breaks,
            since: None,
        }
    }
}

impl Look<'_> {
    /// Returns why a packet with this `outcome` does not reach an endpoint.
    pub(super) fn blame(&self, service: &Service, target: Target<'_>, outcome: &Outcome) -> Blame {
        match outcome.verdict {
            Verdict::Drop | Verdict::Reject => match why::decisive(outcome) {
                Some(hop) => self.refused(service, target, outcome, hop),
                None => Blame::breaks(self.lost(target, outcome)),
            },
            _ if usable(target.port, target.family).next().is_none() => {
                self.lacking(service, target)
            }
            _ => self.wrong_rules(target, outcome),
        }
    }

    /// Returns why the rule or virtual server at `hop` refuses the packet.
    fn refused(
        &self,
        service: &Service,
        target: Target<'_>,
        outcome: &Outcome,
        hop: &Hop,
    ) -> Blame {
        match why::refusal(outcome, hop) {
            Some(Refusal::NoRealServer | Refusal::NoEndpoints | Refusal::NoLocalEndpoints) => {
                if usable(target.port, target.family).next().is_none() {
                    return self.lacking(service, target);
                }
                let local = is_local(service, target.kind);
                let mut here = usable(target.port, target.family);
                if local && !here.any(|of| of.local == Some(true)) {
                    return Self::not_local(service, target);
                }
                self.wrong_rules(target, outcome)
            }
            Some(Refusal::SourceRanges) => Blame {
                since: service.metadata.last_edit(),
                ..Blame::breaks(Cause::SourceRanges {
                    ranges: service.spec.load_balancer_source_ranges.clone(),
                })
            },
            Some(Refusal::NoService | Refusal::NoPort) => self.wrong_rules(target, outcome),
            None => match why::maker(hop) {
                Maker::Other(_) | Maker::Unknown | Maker::Kubelet => {
                    Blame::breaks(self.foreign(hop))
                }
                Maker::Kernel if hop.number == 0 => Blame::breaks(self.foreign(hop)),
                Maker::KubeProxy | Maker::Both | Maker::Kernel => self.wrong_rules(target, outcome),
            },
        }
    }

    /// Returns why there is no endpoint at all.
    pub(super) fn lacking(&self, service: &Service, target: Target<'_>) -> Blame {
        self.lacking_of(service, target.port, target.family)
    }

    pub(super) fn lacking_of(&self, service: &Service, port: &Port, family: Family) -> Blame {
        let mut ports = service.spec.ports.iter();
        let of_service = ports.find(|of| of.name == *port.name.port);
        let target = of_service.and_then(|of| of.target_port.as_ref());
        let pods = self.node.pods().map_or(&[][..], Vec::as_slice);
        let (lack, since) = lack(service, target, family, self.slices, pods);
        Blame {
            since,
            ..Blame::breaks(Cause::NoEndpoints { lack })
        }
    }

    pub(super) fn not_local(service: &Service, target: Target<'_>) -> Blame {
        let nodes: BTreeSet<String> = usable(target.port, target.family)
            .filter_map(|of| of.node.as_deref().map(str::to_owned))
            .collect();
        let policy = if target.kind.is_internal() {
            "internalTrafficPolicy"
        } else {
            "externalTrafficPolicy"
        };
        Blame {
            since: service.metadata.last_edit(),
            ..Blame::breaks(Cause::NoLocalEndpoints {
                policy,
                nodes: nodes.into_iter().collect(),
            })
        }
    }

    /// Returns the cause of a packet that no rule refuses: it has no route.
    fn lost(&self, target: Target<'_>, outcome: &Outcome) -> Cause {
        let stray = self.stray(target, std::slice::from_ref(outcome));
        stray.unwrap_or_else(|| Cause::Unexplained {
            reason: outcome.reason.clone(),
        })
    }

    pub(super) fn stray(&self, target: Target<'_>, outcomes: &[Outcome]) -> Option<Cause> {
        let mut strays = mismatch::strays(self.node, Some(target.port), outcomes).into_iter();
        strays.next().map(|(backend, stray)| match stray {
            Stray::NoRoute(reason) => Cause::NoRoute { backend, reason },
            Stray::Away(way) => Cause::WrongNode { backend, way },
        })
    }

    /// Returns the rule of other software that takes packets before kube-proxy's rules.
    pub(super) fn taken(&self, target: Target<'_>, outcomes: &[Outcome]) -> Option<Cause> {
        let diff = self.diff.as_ref().ok()?;
        let reasons = mismatch::reasons(diff, target.port, target.at.ip(), outcomes);
        reasons.taken.map(|(hop, _)| self.foreign(hop))
    }

    /// Returns the difference of the rules that explains `outcome`, or the rule that takes the packet before them.
    fn wrong_rules(&self, target: Target<'_>, outcome: &Outcome) -> Blame {
        let unexplained = || Cause::Unexplained {
            reason: why::why(outcome, Some(target.port)),
        };
        let Ok(diff) = &self.diff else {
            return Blame::breaks(unexplained());
        };
        let reasons = mismatch::reasons(
            diff,
            target.port,
            target.at.ip(),
            std::slice::from_ref(outcome),
        );
        if let Some((hop, _)) = reasons.taken {
            return Blame::breaks(self.foreign(hop));
        }
        Blame::breaks(self.rules(&reasons.changes).unwrap_or_else(unexplained))
    }

    fn rules(&self, changes: &[&crate::diff::Change]) -> Option<Cause> {
        let first = changes.first()?;
        let health = self.node.health().ok();
        let synced = health.and_then(|health| health.last_updated.as_deref()?.parse().ok());
        Some(Cause::Rules {
            difference: mismatch::in_words(first),
            more: changes.len() - 1,
            common: first.service.is_none(),
            synced,
            fix: self.portal_fix(first),
        })
    }

    /// Returns the fix of the doctor's finding on a portal: kpx cannot compute its rule.
    fn portal_fix(&self, change: &crate::diff::Change) -> Option<Fix> {
        let mut findings = self
            .outcomes
            .iter()
            .filter(|(check, _)| check.id == "IR17")
            .filter_map(|(_, outcome)| match outcome {
                CheckOutcome::Fail(findings) => Some(findings),
                _ => None,
            });
        let is_it = |of: &&Finding| {
            change
                .service
                .as_ref()
                .is_none_or(|name| of.subject == *name)
        };
        findings.find_map(|all| all.iter().find(is_it)?.fix.clone())
    }

    fn foreign(&self, hop: &Hop) -> Cause {
        let software = match why::maker(hop) {
            Maker::Other(who) => Some(who.to_owned()),
            Maker::Kubelet => Some("the kubelet".to_owned()),
            _ => None,
        };
        let effect = match &hop.effect {
            Effect::Drop => "drops",
            Effect::Reject { .. } => "rejects",
            Effect::Accept => "accepts",
            Effect::Dnat { .. } => "translates",
            Effect::Untrack => "untracks",
            _ => "takes",
        };
        let rule = mismatch::short(&hop.rule);
        let findings = self.outcomes.iter().filter(|(check, _)| check.id == "IR16");
        let mut findings = findings.filter_map(|(_, outcome)| match outcome {
            CheckOutcome::Fail(findings) => Some(findings),
            _ => None,
        });
        let fix = findings.find_map(|all| {
            let is_it = |of: &&Finding| matches!(&of.about, Subject::Rule(rule) if rule.is(hop));
            all.iter().find(is_it)?.fix.clone()
        });
        Cause::ForeignRule {
            table: hop.table.clone(),
            chain: hop.chain.clone(),
            number: hop.number,
            rule,
            effect,
            software,
            fix: fix.filter(|fix| fix.advice.is_some()),
        }
    }
}

/// Returns whether the traffic policy of an address of this kind is Local.
pub(super) fn is_local(service: &Service, kind: Kind) -> bool {
    let spec = &service.spec;
    let policy = if kind.is_internal() {
        &spec.internal_traffic_policy
    } else {
        &spec.external_traffic_policy
    };
    policy.as_deref() == Some("Local")
}
