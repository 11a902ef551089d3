//! Causes in kube-proxy's rules: what it does not write, or no longer.

use std::net::{IpAddr, SocketAddr};

use crate::check::{
    Finding, Fix, Outcome as CheckOutcome, Subject, drifted, flushed, idle_proxy, ipv6_fix,
    ipv6_refusal, is_repairable, lost_conditions, rewriting_fix, root,
};
use crate::diff::{Change, Delta, Object};
use crate::trace::mismatch;
use crate::verdict::{Cell, Fault};
use crate::why::look::Look;
use crate::why::{Cause, Idle};
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::evidence::proxy_log;
use kpx_node::net::{Cidr, Family};
use kpx_node::node::routes::Route;

impl Look<'_> {
    /// Returns the rules that kube-proxy left behind at an address and port that no Service has.
    pub(super) fn leftover(&self, cell: &Cell) -> Option<Cause> {
        let faults = cell.verdict.faults();
        let left = faults
            .iter()
            .find(|fault| matches!(fault, Fault::Leftover { .. }))?;
        let flow = &cell.flow;
        let known = self.node.addresses().ok()?;
        let is_own = known
            .all
            .iter()
            .any(|own| own.addr.addr == flow.destination && own.link != DUMMY);
        let is_it = |addr: Option<IpAddr>, port: Option<u16>| {
            port == Some(flow.port) && addr.map_or(is_own, |addr| addr == flow.destination)
        };
        let names = |change: &&Change| match &change.object {
            Object::IptablesRule {
                rule: Delta::Extra(rule),
                ..
            } => {
                let to = rule.destination();
                is_it(to.addr, to.port)
            }
            Object::VirtualServer {
                key,
                server: Delta::Extra(_),
            } => key.socket() == Some(SocketAddr::new(flow.destination, flow.port)),
            Object::Address(Delta::Extra(addr)) => **addr == flow.destination,
            Object::NftablesElement {
                element: Delta::Extra(element),
                ..
            } => element
                .destination()
                .is_some_and(|to| is_it(to.addr, Some(to.port))),
            _ => false,
        };
        let changes: Vec<&Change> = self.diff().ok()?.changes.iter().filter(names).collect();
        match self.rules(&changes, Family::of(flow.destination))? {
            Cause::Rules {
                object,
                common,
                synced,
                proxy,
                fix,
                ..
            } => Some(Cause::Rules {
                difference: left.to_string(),
                more: 0,
                object,
                common,
                synced,
                proxy,
                fix,
            }),
            _ => None,
        }
    }

    /// Returns the doctor's finding that kube-proxy runs with a name that is not its Node's, so that no endpoint is local to it.
    pub(in crate::why) fn misnamed(&self) -> Option<Idle> {
        let finding = self.failed("KP11")?;
        Some(Idle {
            check: "KP11",
            reason: match &finding.about {
                Subject::Node { name: Some(name) }
                    if self.node.by_clues().name().ok().as_ref() != Some(name) =>
                {
                    format!(
                        "kube-proxy runs with the name {name}, which is not that of this Node, so no endpoint is local to it"
                    )
                }
                _ => finding.message.clone(),
            },
            lasts: true,
            fix: finding.fix.clone(),
        })
    }

    /// Returns the same if `change` follows from it: an object that kube-proxy writes for local endpoints alone.
    pub(super) fn misnamed_for(&self, change: &Change) -> Option<Idle> {
        let services = &self.failed("KP11")?.services;
        let is_of = |name: &str| services.iter().any(|service| service.to_string() == name);
        let follows = change.object.hairpin().is_some()
            || change.object.is_of_node()
            || change.service.as_deref().is_some_and(is_of);
        let idle = follows.then(|| self.misnamed()).flatten()?;
        // Its next sync removes what kpx writes.
        Some(Idle {
            lasts: false,
            ..idle
        })
    }

    /// Returns the type of the route to just `range` that ends packets, if there is one.
    pub(super) fn ending_route(&self, range: Cidr) -> Option<&str> {
        let routes = &self.node.routes().ok()?.all;
        let ends = |route: &&Route| {
            let kinds = ["blackhole", "unreachable", "prohibit"];
            route.destination.normal() == range.normal() && kinds.contains(&route.kind.as_str())
        };
        routes.iter().find(ends).map(|route| route.kind.as_str())
    }

    pub(super) fn rules(&self, changes: &[&Change], family: Family) -> Option<Cause> {
        let first = changes.first()?;
        // The time of both families is the time of the answer as long as kube-proxy is healthy.
        let health = self.node.health().ok();
        let own = health.and_then(|health| health.status.get(&family.to_string()));
        let synced = own.and_then(|own| own.last_updated.as_deref()?.parse().ok());
        let (reason, known_fix) = self.known_cause(first).unwrap_or_default();
        // The doctor's reason explains all differences, and when kube-proxy last wrote.
        let is_explained = reason.is_some();
        Some(Cause::Rules {
            difference: reason.unwrap_or_else(|| mismatch::in_words(first)),
            object: (first.object.to_string(), first.kind()),
            more: if is_explained { 0 } else { changes.len() - 1 },
            common: first.service.is_none(),
            synced: synced.filter(|_| !is_explained),
            proxy: self
                .idle(family)
                .or_else(|| self.unopened(first, family))
                .or_else(|| self.misnamed_for(first)),
            fix: setting_fix(first)
                .or_else(|| self.refused_address(first))
                .or_else(|| self.portal_fix(first))
                .or(known_fix)
                .or_else(|| {
                    let is_known = self.compared().contains(first) && is_repairable(self.node);
                    (!is_known).then(|| rewriting_fix(self.node))
                })
                .map(Box::new),
        })
    }

    /// Returns why kube-proxy does not write rules of `family`, if the doctor found that.
    pub(in crate::why) fn idle(&self, family: Family) -> Option<Idle> {
        let (check, reason, fix) = idle_proxy(&self.outcomes, family)?;
        // It writes its outdated Services again and again, or rules of another mode.
        let takes_back = [proxy_log::Kind::Watch, proxy_log::Kind::Fallback];
        let is_vain = self
            .node
            .proxy_log()
            .is_ok_and(|log| log.has(&takes_back) || log.refuses_all())
            || check.id == "KP17";
        // Modules that the kernel lacks, kpx lacks, too.
        let lacks_modules = self
            .outcomes
            .iter()
            .any(|(check, outcome)| check.id == "KM10" && matches!(outcome, CheckOutcome::Fail(_)));
        let is_of_kernel = check.id.starts_with("KM");
        Some(Idle {
            check: check.id,
            reason,
            lasts: !lacks_modules && !is_of_kernel && !is_vain,
            fix,
        })
    }

    /// Returns the doctor's finding that kube-proxy cannot open the port of the rule in `change`: it then writes none for it.
    pub(super) fn unopened(&self, change: &Change, family: Family) -> Option<Idle> {
        let (name, want) = (change.service.as_deref()?, change.want()?);
        let is_it = |finding: &&Finding| {
            let number = match &finding.about {
                Subject::NodePort { number, .. } => Some(*number),
                Subject::ServiceAddress { port, .. } => *port,
                _ => None,
            };
            let is_of = finding
                .ties
                .family
                .is_none_or(|own_family| own_family == family);
            let is_port = number.is_some_and(|number| want.contains(&number.to_string()));
            is_of
                && is_port
                && finding
                    .services
                    .iter()
                    .any(|service| service.to_string() == *name)
        };
        let mut logs = self.outcomes.iter().filter(|(check, _)| check.id == "KP21");
        let (check, finding) = logs.find_map(|(check, outcome)| match outcome {
            CheckOutcome::Fail(findings) => Some((check, findings.iter().find(is_it)?)),
            _ => None,
        })?;
        Some(Idle {
            check: check.id,
            reason: finding.message.clone(),
            // Its next sync removes them again.
            lasts: false,
            fix: finding.fix.clone(),
        })
    }

    /// Returns the doctor's cause of `change`, in words if they are better than the difference itself, and its fix: kube-proxy is
    /// about to write the change, has a bug that loses it, or another tool has broken the rule.
    pub(super) fn known_cause(&self, change: &Change) -> Option<(Option<String>, Option<Fix>)> {
        if let Object::IptablesRule {
            table, chain, rule, ..
        } = &change.object
            && let Delta::Extra(rule) | Delta::Differs { have: rule, .. } = rule
            && let Some(family) = change.family.filter(|_| table == "filter")
            && let Some((reason, fix)) = lost_conditions(family, chain, rule)
        {
            return Some((Some(reason), Some(fix)));
        }
        // A kube-proxy that writes nothing explains that there are none.
        if let Some(family) = change.family
            && self.idle(family).is_none()
            && let Some(flushed) = flushed(&self.outcomes, family)
        {
            return Some((Some(flushed.message.clone()), flushed.fix.clone()));
        }
        let name = change.service.as_ref()?;
        let is_it = |finding: &&Finding| {
            finding
                .services
                .iter()
                .any(|service| service.to_string() == **name)
        };
        drifted(&self.outcomes).into_iter().find_map(|check| {
            let (_, outcome) = self.outcomes.iter().find(|(of, _)| of.id == check.id)?;
            let CheckOutcome::Fail(findings) = outcome else {
                return None;
            };
            findings.iter().filter(is_it).find_map(|finding| {
                if finding.ties.queued.is_some() {
                    return Some((None, finding.fix.clone()));
                }
                if finding.ties.unheard {
                    return Some((Some(finding.message.clone()), finding.fix.clone()));
                }
                let (cause, of) = root(&self.outcomes, check, finding)?;
                match cause.id {
                    "KB01" => Some((None, of.fix.clone())),
                    // The program that removed it would remove it again.
                    "DV06" => Some((Some(of.message.clone()), of.fix.clone())),
                    _ => None,
                }
            })
        })
    }

    /// Returns how to let the kernel take the address of kube-ipvs0 that is missing: it refuses those of IPv6 where that is off.
    pub(super) fn refused_address(&self, change: &Change) -> Option<Fix> {
        let Object::Address(Delta::Missing(addr)) = &change.object else {
            return None;
        };
        (addr.is_ipv6() && ipv6_refusal(self.node).is_some()).then(|| ipv6_fix(DUMMY))
    }

    /// Returns the fix of the doctor's finding on a portal: kpx cannot compute its rule.
    pub(super) fn portal_fix(&self, change: &Change) -> Option<Fix> {
        let mut findings = self
            .outcomes
            .iter()
            .filter(|(check, _)| check.id == "IR17")
            .filter_map(|(_, outcome)| match outcome {
                CheckOutcome::Fail(findings) => Some(findings),
                _ => None,
            });
        let is_it = |finding: &&Finding| {
            change
                .service
                .as_ref()
                .is_none_or(|name| finding.subject == *name)
        };
        findings.find_map(|all| all.iter().find(is_it)?.fix.clone())
    }
}

/// Returns the fix of a sysctl that is not as kube-proxy sets it when it starts.
pub(super) fn setting_fix(change: &Change) -> Option<Fix> {
    let Object::Sysctl { key, value } = &change.object else {
        return None;
    };
    let text = "Set the sysctl again, and find out what changed it: kube-proxy writes it only when it starts.";
    Some(Fix::on_node(
        text,
        format!("sysctl -w {key}={}", value.want()?),
    ))
}
