//! Routing decisions between hooks.

use std::rc::Rc;

use super::branch::{Branch, End, Phase};
use super::ending::outcome;
use super::hop::{Effect, Hook, Hop, Outcome, Subsystem, Verdict};
use super::packet::Link;
use super::route::{Decision, Lookup};
use super::ttl;
use super::walk::Walker;
use kpx_node::net::{Family, Proto};

/// A packet without a route.
#[derive(Debug)]
struct Lost {
    branch: Branch,
    verdict: Verdict,
    reason: String,
}

impl Walker<'_, '_, '_> {
    /// Routes a packet that came in.
    pub(super) fn route_in(
        &self,
        mut branch: Branch,
        outcomes: &mut Vec<Outcome>,
    ) -> Option<(Branch, Phase)> {
        let input = match &branch.packet.input {
            Link::Named(name) => Some(Rc::clone(name)),
            Link::None | Link::Unknown => None,
        };
        if branch.packet.destination().is_loopback()
            && input.as_deref() != Some("lo")
            && !self.route_localnet(input.as_deref())
        {
            hop(&mut branch, Hook::Prerouting, || Effect::Nowhere {
                why: "martian destination".to_owned(),
            });
            let reason =
                "packets to 127.0.0.0/8 are not accepted from a link (route_localnet is off)";
            outcomes.push(outcome(branch, Verdict::Drop, reason));
            return None;
        }
        let decision = self
            .router
            .decide(Lookup::of(&branch.packet, input.as_deref()));
        match &decision {
            Decision::Local { .. } => {
                branch.packet.gateway = None;
                hop(&mut branch, Hook::Prerouting, || Effect::ToHost);
                Some((branch, Phase::Hook(Hook::Input)))
            }
            // br_nf_pre_routing_finish_ipv6 sends no answer.
            Decision::Nowhere(kind)
                if self.family == Family::V6
                    && branch.packet.dnat
                    && input.as_ref().is_some_and(|name| self.is_bridge(name)) =>
            {
                let kind = named(kind.as_ref()).to_owned();
                let reason = format!("no route after the translation ({kind})");
                hop(&mut branch, Hook::Prerouting, || Effect::Nowhere {
                    why: kind,
                });
                outcomes.push(outcome(branch, Verdict::Drop, &reason));
                None
            }
            Decision::Out { .. } | Decision::Nowhere(_) | Decision::Unknown(_) => {
                self.route_into(branch, Hook::Forward, decision, outcomes)
            }
        }
    }

    /// Routes a packet into `hook`, or ends it.
    pub(super) fn route_into(
        &self,
        branch: Branch,
        hook: Hook,
        decision: Decision,
        outcomes: &mut Vec<Outcome>,
    ) -> Option<(Branch, Phase)> {
        match self.go_out(branch, hook, decision) {
            Ok(branch) if hook == Hook::Forward => {
                Some((ttl::forwarded(branch, outcomes)?, Phase::Hook(hook)))
            }
            Ok(branch) => Some((branch, Phase::Hook(hook))),
            Err(lost) => {
                outcomes.push(outcome(lost.branch, lost.verdict, &lost.reason));
                None
            }
        }
    }

    /// Records a routing decision; a packet without a route ends with a verdict and its reason. A program on the node gets an
    /// error whatever the reason, but IPVS drops packets from 127.0.0.0/8 without one.
    fn go_out(
        &self,
        mut branch: Branch,
        hook: Hook,
        decision: Decision,
    ) -> Result<Branch, Box<Lost>> {
        branch.packet.rerouted = None;
        branch.packet.gateway = None;
        match decision {
            Decision::Local { .. } => {
                branch.packet.output = Link::Named("lo".into());
                hop(&mut branch, hook, || Effect::ToHost);
            }
            Decision::Out {
                device, gateway, ..
            } => {
                let off = device.as_deref() != Some("lo") && branch.packet.source().is_loopback();
                if off && device.is_some() && !self.route_localnet(device.as_deref()) {
                    hop(&mut branch, hook, || Effect::Nowhere {
                        why: "martian source".to_owned(),
                    });
                    let reason =
                        "packets from 127.0.0.0/8 cannot leave the node (route_localnet is off)";
                    let verdict = match branch.packet.virtual_server {
                        None if hook == Hook::Output => Verdict::Reject,
                        _ => Verdict::Drop,
                    };
                    return Err(Box::new(Lost {
                        branch,
                        verdict,
                        reason: reason.to_owned(),
                    }));
                }
                let bridge = device.as_ref().is_some_and(|d| self.is_bridge(d));
                hop(&mut branch, hook, || Effect::Out {
                    device: device.as_deref().map(str::to_owned),
                    gateway,
                });
                branch.packet.gateway = gateway;
                branch.packet.output = device.map_or(Link::Unknown, Link::Named);
                branch.packet.bridged = bridge && branch.packet.input == branch.packet.output;
            }
            Decision::Nowhere(kind) => {
                let (verdict, reason) = match kind.as_deref() {
                    Some("blackhole") if hook != Hook::Output => {
                        (Verdict::Drop, "a blackhole route drops it".to_owned())
                    }
                    None => (Verdict::Reject, "the node has no route to it".to_owned()),
                    Some(other) => (
                        Verdict::Reject,
                        format!("a route of type {other} rejects it"),
                    ),
                };
                hop(&mut branch, hook, || Effect::Nowhere {
                    why: named(kind.as_ref()).to_owned(),
                });
                return Err(Box::new(Lost {
                    branch,
                    verdict,
                    reason,
                }));
            }
            Decision::Unknown(reason) => {
                // Without routes the output link is unknown, but the rules still apply.
                branch.packet.output = Link::Unknown;
                hop(&mut branch, hook, || Effect::Other {
                    what: format!("the route is unknown: {reason}"),
                });
            }
        }
        Ok(branch)
    }

    pub(super) fn reroute(&self, branch: Branch) -> (Branch, End) {
        let decision = self.router.decide(Lookup::of(&branch.packet, None));
        let tcp = branch.packet.is(Proto::Tcp);
        match self.leave(branch, decision, End::Accept) {
            // Other protocols hand the error to the program; TCP ignores the error, and retries until it gives up.
            (branch, End::Reject(reason)) if tcp => (branch, End::Drop(reason)),
            end => end,
        }
    }

    /// Sends the node's own packet out; it ends with `end` unless there is no route.
    pub(crate) fn leave(&self, branch: Branch, decision: Decision, end: End) -> (Branch, End) {
        match self.go_out(branch, Hook::Output, decision) {
            Ok(branch) => (branch, end),
            Err(lost) if lost.verdict == Verdict::Reject => (lost.branch, End::Reject(lost.reason)),
            Err(lost) => (lost.branch, End::Drop(lost.reason)),
        }
    }

    fn sysctl_on(&self, key: &str) -> Option<bool> {
        Some(self.world.node.sysctl().ok()?.get(key)? != "0")
    }

    fn is_bridge(&self, name: &str) -> bool {
        self.bridges.iter().any(|bridge| bridge == name)
    }

    /// Returns whether 127.0.0.0/8 may pass `device`, by its own setting or that of all links.
    fn route_localnet(&self, device: Option<&str>) -> bool {
        let of = |name: &str| self.sysctl_on(&format!("net.ipv4.conf.{name}.route_localnet"));
        of("all") == Some(true) || device.is_some_and(|name| of(name) == Some(true))
    }
}

/// Returns the name of a route type without a way out; `None` is for no route.
fn named(kind: Option<&String>) -> &str {
    kind.map_or("no route", String::as_str)
}

/// Adds a hop of routing to the path.
pub(super) fn hop(branch: &mut Branch, hook: Hook, effect: impl FnOnce() -> Effect) {
    branch
        .path
        .push(|| Hop::without_rule(hook, Subsystem::Routing, effect()));
}
