//! The walk: hooks in the kernel's order, and what each does to the packet.
//!
//! A packet that may go several ways is followed on each, with the probability of each. Sources: `nf_hook_slow`,
//! `ipt_do_table`, `nft_do_chain`, `nf_nat_inet_fn` and `ip_vs_core.c` of Linux 5.10 to 6.18.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::hop::{Effect, Hook, Hop, Layer, Outcome, Path, Verdict};
use super::packet::{Entry, Flow, Link, Packet};
use super::route::{Ask, Router, Way};
use super::stage::{Stage, stages};
use super::{Chains, Stop, World, ipt};
use crate::net::{Family, Proto};

/// Ways beyond which a walk gives up; a real ruleset has one per endpoint.
const MOST_WAYS: usize = 100_000;

/// Where nat decides on the destination (index 0) or the source (index 1) of a connection.
const DESTINATION: usize = 0;
const SOURCE: usize = 1;

/// A packet on one of its ways.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) packet: Packet,
    pub(crate) weight: f64,
    pub(crate) when: Vec<String>,
    pub(crate) path: Path,
}

/// How a chain, a base chain or a hook ends for a packet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum End {
    /// The end of a chain, or RETURN: the caller goes on.
    Return,
    /// This base chain lets it pass.
    Accept,
    /// Dropped.
    Drop(String),
    /// Refused with an answer.
    Reject(String),
    /// IPVS sends it on from here.
    Stolen,
    /// Cannot be told.
    Unknown(String),
}

pub(crate) type Ends = Vec<(State, End)>;

/// A packet without a way on.
#[derive(Debug)]
struct Lost {
    state: State,
    verdict: Verdict,
    reason: String,
}

/// The next thing to do with a packet.
#[derive(Clone, Copy, Debug)]
enum Place {
    Hook(Hook),
    /// The routing decision for a packet that came in.
    Route,
    /// A packet of the node for itself, on its way in again over lo.
    Loopback,
}

/// Walks packets through one world.
#[derive(Debug)]
pub(crate) struct Walker<'w, 'n, 'r> {
    pub(crate) world: &'w World<'n, 'r>,
    pub(crate) router: Router<'n>,
    pub(crate) family: Family,
    bridges: Vec<String>,
}

impl<'w, 'n, 'r> Walker<'w, 'n, 'r> {
    pub(crate) fn new(world: &'w World<'n, 'r>, family: Family) -> Self {
        let node = world.node;
        let calls = node.sysctl().ok().and_then(|s| {
            s.get(match family {
                Family::V4 => "net.bridge.bridge-nf-call-iptables",
                Family::V6 => "net.bridge.bridge-nf-call-ip6tables",
            })
        });
        let bridges = match (calls, node.links()) {
            (Some("1"), Ok(links)) => {
                let bridges = links.all.iter().filter(|link| link.kind == "bridge");
                bridges.map(|link| link.name.clone()).collect()
            }
            _ => Vec::new(),
        };
        Self {
            world,
            router: Router::new(node),
            family,
            bridges,
        }
    }

    /// Follows the first packet of `flow` to every end it may have.
    pub(crate) fn walk(&self, flow: &Flow) -> Result<Vec<Outcome>, Stop> {
        let mut outcomes = Vec::new();
        let mut todo = vec![self.start(flow, &mut outcomes)];
        while let Some(next) = todo.pop() {
            let Some((state, place)) = next else { continue };
            if todo.len() + outcomes.len() > MOST_WAYS {
                outcomes.push(outcome(
                    state,
                    Verdict::Unknown,
                    "there are too many ways to follow",
                ));
                continue;
            }
            match place {
                Place::Route => todo.push(self.route_in(state, &mut outcomes)),
                Place::Loopback => todo.extend(self.loopback(state, &mut outcomes)?),
                Place::Hook(hook) => {
                    for (state, end) in self.hook(state, hook)? {
                        todo.push(Self::after(state, hook, end, &mut outcomes));
                    }
                }
            }
        }
        Ok(merge(outcomes))
    }

    /// Puts the packet where it enters.
    fn start(&self, flow: &Flow, outcomes: &mut Vec<Outcome>) -> Option<(State, Place)> {
        let mut packet = Packet {
            source: flow.source.unwrap_or(match self.family {
                Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            }),
            destination: flow.destination,
            port: flow.port,
            proto: flow.proto,
            mark: 0,
            ct_mark: 0,
            input: Link::None,
            output: Link::None,
            rerouted: None,
            bridged: false,
            dnat: false,
            snat: false,
            untracked: false,
            established: flow.established,
            bound: [flow.established; 2],
            virtual_server: None,
            original: (flow.destination, flow.port),
            original_source: flow.source.unwrap_or(flow.destination),
        };
        if flow.entry != Entry::Host {
            packet.input = self.input_of(flow.entry, packet.source);
            let state = State {
                packet,
                weight: 1.0,
                when: Vec::new(),
                path: Path::default(),
            };
            return Some((state, Place::Hook(Hook::Prerouting)));
        }
        let mut state = State {
            packet,
            weight: 1.0,
            when: Vec::new(),
            path: Path::default(),
        };
        let way = self.router.way(Ask {
            destination: flow.destination,
            source: flow.source,
            mark: 0,
            input: None,
        });
        if flow.source.is_none() {
            state.packet.source = match &way {
                // The kernel talks to its own addresses from the address itself.
                Way::Local { source } => source.unwrap_or(flow.destination),
                Way::Out {
                    source: Some(source),
                    ..
                } => *source,
                Way::Out {
                    device, gateway, ..
                } => self
                    .router
                    .masquerade(self.family, device.as_deref(), *gateway)
                    .unwrap_or(state.packet.source),
                Way::Nowhere(_) | Way::Unknown(_) => state.packet.source,
            };
            state.packet.original_source = state.packet.source;
        }
        self.gone(state, Hook::Output, way, outcomes)
    }

    /// Returns the link a packet from `source` comes in by.
    fn input_of(&self, entry: Entry, source: IpAddr) -> Link {
        let toward = match entry {
            Entry::Outside => match self.family {
                Family::V4 => IpAddr::V4(Ipv4Addr::new(192, 0, 2, 254)),
                Family::V6 => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 0xfe)),
            },
            Entry::Pod | Entry::Host => source,
        };
        let way = |destination| {
            self.router.way(Ask {
                destination,
                source: None,
                mark: 0,
                input: None,
            })
        };
        // An outside client next to the node answers through its own route; a far one through the default route.
        let found = match entry {
            Entry::Outside => match way(source) {
                found @ Way::Out {
                    device: Some(_), ..
                } => found,
                _ => way(toward),
            },
            Entry::Pod | Entry::Host => way(toward),
        };
        match found {
            Way::Out {
                device: Some(device),
                ..
            } => Link::Named(device),
            _ => Link::Unknown,
        }
    }

    /// Decides on the way of a packet that came in.
    fn route_in(&self, mut state: State, outcomes: &mut Vec<Outcome>) -> Option<(State, Place)> {
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
    fn gone(
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

    /// Runs a hook; nat and mangle of OUTPUT route anew where they changed what routing looks at.
    fn hook(&self, state: State, hook: Hook) -> Result<Ends, Stop> {
        let first = state.packet.output.clone();
        let mut live = vec![state];
        let mut done = Ends::new();
        for stage in stages(self.world, hook, self.family)? {
            let mut next = Vec::new();
            for state in live {
                let before = (state.packet.destination, state.packet.mark);
                for (mut state, end) in self.stage(state, hook, &stage)? {
                    match end {
                        End::Return | End::Accept => {
                            let now = (state.packet.destination, state.packet.mark);
                            if hook == Hook::Output && now != before {
                                match self.reroute(state) {
                                    (mut routed, End::Accept) => {
                                        // The state of a hook is filled in once, when it begins.
                                        let output = &mut routed.packet.output;
                                        let now = std::mem::replace(output, first.clone());
                                        routed.packet.rerouted = Some(now);
                                        state = routed;
                                    }
                                    lost => {
                                        done.push(lost);
                                        continue;
                                    }
                                }
                            }
                            next.push(state);
                        }
                        end => done.push((state, end)),
                    }
                }
            }
            live = next;
        }
        done.extend(live.into_iter().map(|mut state| {
            if let Some(output) = state.packet.rerouted.take() {
                state.packet.output = output;
            }
            (state, End::Accept)
        }));
        Ok(done)
    }

    fn reroute(&self, state: State) -> (State, End) {
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

    fn stage(&self, state: State, hook: Hook, here: &Stage<'w, 'r>) -> Result<Ends, Stop> {
        match here {
            Stage::Iptables { chains, table } => self.iptables(state, hook, chains, table),
            Stage::Nftables { table, chain } => Ok(self.nftables(state, hook, table, chain)),
            Stage::Nat(list) => {
                let side = match hook {
                    Hook::Prerouting | Hook::Output => DESTINATION,
                    Hook::Input | Hook::Forward | Hook::Postrouting => SOURCE,
                };
                if state.packet.bound[side] || state.packet.untracked {
                    return Ok(vec![(state, End::Accept)]);
                }
                self.nat(state, hook, side, list)
            }
            Stage::Ipvs => Ok(self.ipvs(state, hook)),
            Stage::Unknown(reason) => Ok(vec![(state, End::Unknown(reason.clone()))]),
        }
    }

    /// nat chains, in order of priority, until one binds the connection.
    fn nat(
        &self,
        state: State,
        hook: Hook,
        side: usize,
        list: &[Stage<'w, 'r>],
    ) -> Result<Ends, Stop> {
        let mut live = vec![state];
        let mut done = Ends::new();
        for stage in list {
            let mut next = Vec::new();
            for state in live {
                for (state, end) in self.stage(state, hook, stage)? {
                    match end {
                        End::Return | End::Accept if state.packet.bound[side] => {
                            done.push((state, End::Accept));
                        }
                        End::Return | End::Accept => next.push(state),
                        end => done.push((state, end)),
                    }
                }
            }
            live = next;
        }
        for mut state in live {
            state.packet.bound[side] = true;
            done.push((state, End::Accept));
        }
        Ok(done)
    }

    /// A table's built-in chain for `hook`.
    fn iptables(
        &self,
        state: State,
        hook: Hook,
        chains: &Chains<'r>,
        table: &str,
    ) -> Result<Ends, Stop> {
        let context = ipt::Context {
            router: &self.router,
            sets: self.world.node.ipset(),
            bridges: &self.bridges,
        };
        super::ipt_chain::base(self, state, hook, chains, table, &context)
    }

    /// Says what comes after `hook` for a packet that ended there with `end`.
    fn after(
        mut state: State,
        hook: Hook,
        end: End,
        outcomes: &mut Vec<Outcome>,
    ) -> Option<(State, Place)> {
        match end {
            End::Drop(reason) => outcomes.push(outcome(state, Verdict::Drop, &reason)),
            End::Reject(reason) => outcomes.push(outcome(state, Verdict::Reject, &reason)),
            End::Unknown(reason) => outcomes.push(outcome(state, Verdict::Unknown, &reason)),
            // IPVS sends a translated packet through LOCAL_OUT, whichever hook it took it at.
            End::Stolen => return Some((state, Place::Hook(Hook::Output))),
            End::Return | End::Accept => match hook {
                Hook::Prerouting => return Some((state, Place::Route)),
                Hook::Forward | Hook::Output => {
                    // br_nf_post_routing does not say where a packet came in; ip_output does, since Linux 5.7.
                    if state.packet.bridged {
                        state.packet.input = Link::None;
                    }
                    return Some((state, Place::Hook(Hook::Postrouting)));
                }
                Hook::Postrouting if state.packet.output == Link::Named("lo".to_owned()) => {
                    return Some((state, Place::Loopback));
                }
                Hook::Postrouting | Hook::Input => outcomes.push(arrived(state, hook)),
            },
        }
        None
    }

    /// A packet of the node for itself comes in over lo: the connection is bound already, filters see it again.
    fn loopback(
        &self,
        mut state: State,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<Vec<Option<(State, Place)>>, Stop> {
        state.packet.input = Link::Named("lo".to_owned());
        state.packet.output = Link::None;
        let mut next = Vec::new();
        for (state, end) in self.hook(state, Hook::Prerouting)? {
            next.push(match end {
                End::Return | End::Accept => Some((state, Place::Hook(Hook::Input))),
                end => Self::after(state, Hook::Prerouting, end, outcomes),
            });
        }
        Ok(next)
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

/// A packet that got through its last hook.
fn arrived(state: State, hook: Hook) -> Outcome {
    let translated = state.packet.dnat || state.packet.virtual_server.is_some();
    match (translated, hook) {
        (true, _) => outcome(state, Verdict::Deliver, "translated to a backend"),
        (false, Hook::Input) => outcome(state, Verdict::Local, "taken by the host itself"),
        (false, _) => outcome(
            state,
            Verdict::Unmatched,
            "no rule translates it; it is routed as it is",
        ),
    }
}

fn outcome(state: State, verdict: Verdict, reason: &str) -> Outcome {
    Outcome {
        verdict,
        probability: state.weight,
        destination: (state.packet.destination, state.packet.port),
        masquerade: state.packet.source != state.packet.original_source || state.packet.snat,
        sent_from: state.packet.original_source,
        source: state.packet.source,
        when: state.when,
        reason: reason.to_owned(),
        hops: state.path.hops(),
    }
}

/// Puts ways together that end alike and differ in nothing but an assumption without effect.
fn merge(outcomes: Vec<Outcome>) -> Vec<Outcome> {
    let mut merged: Vec<Outcome> = Vec::new();
    for outcome in outcomes {
        let same = |o: &&mut Outcome| {
            o.verdict == outcome.verdict
                && o.destination == outcome.destination
                && o.masquerade == outcome.masquerade
                && o.source == outcome.source
                && o.reason == outcome.reason
        };
        match merged.iter_mut().find(same) {
            Some(first) => {
                first.probability += outcome.probability;
                first.when.retain(|when| outcome.when.contains(when));
            }
            None => merged.push(outcome),
        }
    }
    merged.sort_by(|a, b| {
        b.probability
            .total_cmp(&a.probability)
            .then(a.destination.cmp(&b.destination))
    });
    merged
}

/// Returns whether a protocol has ports that nat and IPVS look at.
pub(crate) const fn has_ports(proto: Proto) -> bool {
    matches!(proto, Proto::Tcp | Proto::Udp | Proto::Sctp)
}
