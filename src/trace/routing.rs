//! Routing decisions between hooks.

use super::ending::outcome;
use super::hop::{Effect, Hook, Hop, Layer, Outcome, Verdict};
use super::packet::Link;
use super::route::{Ask, Way};
use super::walk::{End, Place, State, Walker};
use crate::net::{Family, Proto};

/// A packet without a way on.
#[derive(Debug)]
struct Lost {
    state: State,
    verdict: Verdict,
    reason: String,
}

impl Walker<'_, '_, '_> {
    /// Decides on the way of a packet that came in.
    pub(super) fn route_in(
        &self,
        mut state: State,
        outcomes: &mut Vec<Outcome>,
    ) -> Option<(State, Place)> {
        let input = match &state.packet.input {
            Link::Named(name) => Some(name.clone()),
            Link::None | Link::Unknown => None,
        };
        if state.packet.destination.is_loopback()
            && input.as_deref() != Some("lo")
            && !self.route_localnet(input.as_deref())
        {
            hop(
                &mut state,
                Hook::Prerouting,
                Effect::Nowhere {
                    why: "martian destination".to_owned(),
                },
            );
            let reason = "127.0.0.0/8 may not come in by a link (route_localnet is off)";
            outcomes.push(outcome(state, Verdict::Drop, reason));
            return None;
        }
        let way = self.router.way(Ask {
            destination: state.packet.destination,
            source: Some(state.packet.source),
            mark: state.packet.mark,
            input: input.as_deref(),
        });
        match &way {
            Way::Local { .. } => {
                hop(&mut state, Hook::Prerouting, Effect::ToHost);
                Some((state, Place::Hook(Hook::Input)))
            }
            // br_nf_pre_routing_finish_ipv6 sends no answer.
            Way::Nowhere(kind)
                if self.family == Family::V6
                    && state.packet.dnat
                    && input
                        .as_ref()
                        .is_some_and(|name| self.bridges.contains(name)) =>
            {
                let reason = format!("after the translation there is no way for it ({kind})");
                let effect = Effect::Nowhere { why: kind.clone() };
                hop(&mut state, Hook::Prerouting, effect);
                outcomes.push(outcome(state, Verdict::Drop, &reason));
                None
            }
            Way::Out { .. } | Way::Nowhere(_) | Way::Unknown(_) => {
                self.gone(state, Hook::Forward, way, outcomes)
            }
        }
    }

    /// Routes a packet into `hook`, or ends it.
    pub(super) fn gone(
        &self,
        state: State,
        hook: Hook,
        way: Way,
        outcomes: &mut Vec<Outcome>,
    ) -> Option<(State, Place)> {
        match self.go_out(state, hook, way) {
            Ok(state) => Some((state, Place::Hook(hook))),
            Err(lost) => {
                outcomes.push(outcome(lost.state, lost.verdict, &lost.reason));
                None
            }
        }
    }

    /// Records a routing decision; a packet without a way ends with a verdict and its reason.
    fn go_out(&self, mut state: State, hook: Hook, way: Way) -> Result<State, Box<Lost>> {
        state.packet.rerouted = None;
        match way {
            Way::Local { .. } => {
                state.packet.output = Link::Named("lo".to_owned());
                hop(&mut state, hook, Effect::ToHost);
            }
            Way::Out {
                device, gateway, ..
            } => {
                let off = device.as_deref() != Some("lo") && state.packet.source.is_loopback();
                if off && device.is_some() && !self.route_localnet(device.as_deref()) {
                    hop(
                        &mut state,
                        hook,
                        Effect::Nowhere {
                            why: "martian source".to_owned(),
                        },
                    );
                    let reason =
                        "a packet from 127.0.0.0/8 may not leave the node (route_localnet is off)";
                    return Err(Box::new(Lost {
                        state,
                        verdict: Verdict::Drop,
                        reason: reason.to_owned(),
                    }));
                }
                state.packet.output = device.clone().map_or(Link::Unknown, Link::Named);
                let bridge = device.as_ref().is_some_and(|d| self.bridges.contains(d));
                state.packet.bridged = bridge && state.packet.input == state.packet.output;
                hop(&mut state, hook, Effect::Out { device, gateway });
            }
            Way::Nowhere(kind) => {
                let (verdict, reason) = match kind.as_str() {
                    "blackhole" => (Verdict::Drop, "a blackhole route takes it".to_owned()),
                    "no route" => (Verdict::Reject, "the node has no route to it".to_owned()),
                    other => (
                        Verdict::Reject,
                        format!("a route of type {other} refuses it"),
                    ),
                };
                hop(&mut state, hook, Effect::Nowhere { why: kind });
                return Err(Box::new(Lost {
                    state,
                    verdict,
                    reason,
                }));
            }
            Way::Unknown(reason) => {
                // Without routes the way on is not known, but the rules still are.
                state.packet.output = Link::Unknown;
                hop(
                    &mut state,
                    hook,
                    Effect::Other {
                        what: format!("the route is not known: {reason}"),
                    },
                );
            }
        }
        Ok(state)
    }

    pub(super) fn reroute(&self, state: State) -> (State, End) {
        let way = self.router.way(Ask {
            destination: state.packet.destination,
            source: Some(state.packet.source),
            mark: state.packet.mark,
            input: None,
        });
        let tcp = state.packet.proto == Proto::Tcp;
        match self.leave(state, way, End::Accept) {
            // Other protocols hand the error to the program; TCP does not look, and asks again until it gives up.
            (state, End::Reject(reason)) if tcp => (state, End::Drop(reason)),
            end => end,
        }
    }

    /// Sends the node's own packet on its way; it ends with `end` unless there is no way.
    pub(crate) fn leave(&self, state: State, way: Way, end: End) -> (State, End) {
        match self.go_out(state, Hook::Output, way) {
            Ok(state) => (state, end),
            Err(lost) if lost.verdict == Verdict::Reject => (lost.state, End::Reject(lost.reason)),
            Err(lost) => (lost.state, End::Drop(lost.reason)),
        }
    }

    fn sysctl_on(&self, key: &str) -> Option<bool> {
        Some(self.world.node.sysctl().ok()?.get(key)? != "0")
    }

    /// Returns whether 127.0.0.0/8 may pass `device`: its own setting or that of all.
    fn route_localnet(&self, device: Option<&str>) -> bool {
        let of = |name: &str| self.sysctl_on(&format!("net.ipv4.conf.{name}.route_localnet"));
        of("all") == Some(true) || device.is_some_and(|name| of(name) == Some(true))
    }
}

/// Adds a hop of routing to the path.
fn hop(state: &mut State, hook: Hook, effect: Effect) {
    state.path.push(Hop {
        hook,
        layer: Layer::Routing,
        table: String::new(),
        chain: String::new(),
        number: 0,
        rule: String::new(),
        packets: None,
        effect,
        chance: 1.0,
        when: None,
    });
}
