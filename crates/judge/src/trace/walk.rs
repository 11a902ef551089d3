//! The walk: hooks in the kernel's order, and the effect of each on the packet.
//!
//! A packet with several possible ways is followed on each, with its probability. Sources: `nf_hook_slow`,
//! `ipt_do_table`, `nft_do_chain`, `nf_nat_inet_fn` and `ip_vs_core.c` of Linux 5.10 to 6.18.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use smallvec::smallvec;

use super::branch::{Branch, Branches, End, Ends, MOST_OPEN, MOST_WAYS, Phase, TOO_OPEN, bounded};
use super::ending::{arrived, merge, outcome};
use super::hop::{Hook, Outcome, Verdict};
use super::index::Index;
use super::iptables::{chain, matches};
use super::link_hooks::LinkHooks;
use super::order::{Ordered, reconcile};
use super::packet::{Flow, Link, Reply};
use super::region::Seen;
use super::route::Router;
use super::stage::{Nat, Stage, stages};
use super::tail::Tail;
use super::{Chains, Stop, World, ttl};
use kpx_node::backend::Mode;
use kpx_node::net::{Family, Proto};

/// Where nat decides on the destination (index 0) or the source (index 1) of a connection.
const DESTINATION: usize = 0;
const SOURCE: usize = 1;

/// State of a walk besides the ends of the packet.
#[derive(Debug)]
pub(crate) enum Follows {
    /// Its hops.
    Hops,
    /// The questions about it.
    Questions(Rc<Seen>),
    /// Nothing.
    Ends,
}

/// Walks packets through one world.
#[derive(Debug)]
pub(crate) struct Walker<'w, 'n, 'r> {
    pub(crate) world: &'w World<'n, 'r>,
    pub(crate) router: Rc<Router<'n>>,
    pub(crate) family: Family,
    pub(super) bridges: Vec<String>,
    pub(super) link_hooks: LinkHooks<'w>,
    /// For recorded walks: skipped rules are recorded as one answer.
    pub(crate) index: Option<Index>,
    /// The registrations at the hooks that were passed.
    stages: RefCell<HashMap<Hook, Rc<Vec<Stage<'w, 'r>>>>>,
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
            (Some(value), Ok(links)) => {
                let bridges = links.all.iter().filter(|link| link.kind == "bridge");
                let calling = bridges.filter(|link| value == "1" || link.calls_iptables(family));
                calling.map(|link| link.name.clone()).collect()
            }
            _ => Vec::new(),
        };
        Self {
            world,
            router: Rc::new(Router::new(node)),
            family,
            bridges,
            link_hooks: LinkHooks::new(node.nft().ok(), node.links().ok()),
            index: None,
            stages: RefCell::default(),
        }
    }

    /// Returns a walker for [`Walker::record`].
    pub(crate) fn recording(world: &'w World<'n, 'r>, family: Family) -> Self {
        Self {
            index: Some(Index::default()),
            ..Self::new(world, family)
        }
    }

    /// Follows the first packet of `flow` to every end it may have.
    pub(crate) fn walk(&self, flow: &Flow) -> Result<Vec<Outcome>, Stop> {
        self.follow(flow, Follows::Hops)
    }

    /// Follows the first packet of `flow` without its hops.
    pub(crate) fn ends(&self, flow: &Flow) -> Result<Vec<Outcome>, Stop> {
        self.follow(flow, Follows::Ends)
    }

    /// Follows the first packet of `flow` without its hops, and records the questions about it in `seen`.
    pub(crate) fn record(&self, flow: &Flow, seen: &Rc<Seen>) -> Result<Vec<Outcome>, Stop> {
        self.follow(flow, Follows::Questions(Rc::clone(seen)))
    }

    /// Follows a reply to every end it may have. Nat has no say in it: the entry of the connection translates it.
    pub(crate) fn answer(&self, reply: &Reply, follows: Follows) -> Result<Vec<Outcome>, Stop> {
        let mut outcomes = Vec::new();
        let begun = self.start(&reply.flow, Some(reply.from), follows, &mut outcomes);
        let begun = begun.map(|(mut branch, phase)| {
            branch.packet.back = reply.back;
            branch.packet.translated = reply.translated;
            branch.packet.established = true;
            branch.packet.opens = !reply.later;
            branch.packet.answers = Some(reply.original);
            branch.packet.bound = [true; 2];
            self.by_link((branch, phase))
        });
        self.go_on(vec![begun], None, &mut outcomes)?;
        Ok(merge(outcomes))
    }

    fn follow(&self, flow: &Flow, follows: Follows) -> Result<Vec<Outcome>, Stop> {
        let mut outcomes = Vec::new();
        let mut tails = matches!(follows, Follows::Ends).then(Vec::new);
        let todo = vec![
            self.start(flow, None, follows, &mut outcomes)
                .map(|next| self.by_link(next)),
        ];
        self.go_on(todo, tails.as_mut(), &mut outcomes)?;
        Ok(merge(outcomes))
    }

    /// Follows the packets of `todo` to their ends; with `tails`, packets that all later rules treat alike are followed once.
    pub(super) fn go_on(
        &self,
        mut todo: Vec<Option<(Branch, Phase)>>,
        mut tails: Option<&mut Vec<Tail>>,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), Stop> {
        while let Some(next) = todo.pop() {
            let Some((branch, phase)) = next else {
                continue;
            };
            let ways = todo.len() + outcomes.len();
            let stop = match branch.when.is_empty() {
                false if ways > MOST_OPEN => Some(TOO_OPEN),
                _ if ways > MOST_WAYS => Some("too many possible paths to follow"),
                _ => None,
            };
            if let Some(reason) = stop {
                outcomes.push(outcome(branch, Verdict::Unknown, reason));
                continue;
            }
            match (phase, tails.as_deref_mut()) {
                (Phase::Route | Phase::Hook(Hook::Postrouting), Some(tails))
                    if !branch.packet.as_sent.destination =>
                {
                    self.share(&branch, phase, tails, outcomes)?;
                }
                (Phase::Link, _) => {
                    for (branch, end) in self.come_in(branch) {
                        todo.push(match end {
                            End::Return | End::Accept => {
                                Some((branch, Phase::Hook(Hook::Prerouting)))
                            }
                            end => Self::after(branch, Hook::Prerouting, end, outcomes),
                        });
                    }
                }
                (Phase::Route, _) => {
                    if let Some((branch, next)) = self.route_in(branch, outcomes) {
                        for (branch, end) in self.behind_bridge(branch) {
                            todo.push(match end {
                                End::Return | End::Accept => Some((branch, next)),
                                end => Self::after(branch, Hook::Forward, end, outcomes),
                            });
                        }
                    }
                }
                (Phase::Loopback, _) => todo.extend(self.loopback(branch, outcomes)?),
                (Phase::Hook(hook), _) => {
                    for (branch, end) in self.hook(branch, hook)? {
                        for (branch, end) in self.go_by_link(branch, hook, end) {
                            todo.push(Self::after(branch, hook, end, outcomes));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs a hook; nat and mangle of OUTPUT reroute a packet if they changed a field that routing depends on.
    fn hook(&self, branch: Branch, hook: Hook) -> Result<Ends, Stop> {
        let first = branch.packet.output.clone();
        let mut live: Branches = smallvec![branch];
        let mut done = Ends::new();
        for stage in self.stages(hook)?.iter() {
            let mut next = Branches::new();
            for branch in live {
                let sent = branch.packet.mark;
                let before = (branch.packet.destination().shown(), sent.shown());
                for (mut branch, end) in self.stage(branch, hook, stage)? {
                    match end {
                        End::Return | End::Accept => {
                            // A changed destination has already been compared with the old one.
                            let mark = branch.packet.mark;
                            let now = (branch.packet.destination().shown(), mark.shown());
                            if hook == Hook::Output && mark != sent {
                                // Whether the mark is another one now depends on the one before.
                                branch.packet.mark().exact();
                            }
                            if hook == Hook::Output && now != before {
                                match self.reroute(branch) {
                                    (mut routed, End::Accept) => {
                                        // The state of a hook is filled in once, when it begins.
                                        let output = &mut routed.packet.output;
                                        let now = std::mem::replace(output, first.clone());
                                        routed.packet.rerouted = Some(now);
                                        branch = routed;
                                    }
                                    lost => {
                                        done.push(lost);
                                        continue;
                                    }
                                }
                            }
                            next.push(branch);
                        }
                        end => done.push((branch, end)),
                    }
                }
            }
            live = bounded(next, &mut done);
        }
        done.extend(live.into_iter().map(|mut branch| {
            // Without a nat chain here, the kernel still runs nat.
            if matches!(hook, Hook::Prerouting | Hook::Output) {
                branch.packet.translate_back();
            }
            if let Some(output) = branch.packet.rerouted.take() {
                branch.packet.output = output;
            }
            (branch, End::Accept)
        }));
        Ok(done)
    }

    fn stages(&self, hook: Hook) -> Result<Rc<Vec<Stage<'w, 'r>>>, Stop> {
        if let Some(stages) = self.stages.borrow().get(&hook) {
            return Ok(Rc::clone(stages));
        }
        let made = Rc::new(stages(self.world, hook, self.family)?);
        self.stages.borrow_mut().insert(hook, Rc::clone(&made));
        Ok(made)
    }

    fn stage(&self, mut branch: Branch, hook: Hook, here: &Stage<'w, 'r>) -> Result<Ends, Stop> {
        match here {
            Stage::Iptables { chains, table } => self.iptables(branch, hook, chains, table),
            Stage::Nftables { table, chain } => Ok(self.nftables(branch, hook, table, chain)),
            Stage::Nat(nat) => {
                let side = match hook {
                    Hook::Prerouting | Hook::Output => DESTINATION,
                    Hook::Input | Hook::Forward | Hook::Postrouting => SOURCE,
                };
                if branch.packet.translated && branch.packet.untracked {
                    let is_of_ipvs = branch.packet.back.is_none()
                        && self.world.node.configured_mode() == Ok(Mode::Ipvs);
                    let reason = if is_of_ipvs {
                        "untracked, so that what the client sends next gets another source port"
                    } else {
                        "untracked before nat, which does not translate it back"
                    };
                    return Ok(smallvec![(branch, End::Drop(reason.to_owned()))]);
                }
                if branch.packet.translated && branch.packet.is_in_other_zone() {
                    let reason = format!(
                        "looked for in conntrack zone {}, where its connection is not, so nat does not translate it back",
                        branch.packet.zone
                    );
                    return Ok(smallvec![(branch, End::Drop(reason))]);
                }
                if side == DESTINATION {
                    branch.packet.translate_back();
                }
                if branch.packet.bound[side] || branch.packet.untracked {
                    return Ok(smallvec![(branch, End::Accept)]);
                }
                if branch.packet.established {
                    return self.nat_of_first(branch, hook, side, nat);
                }
                self.nat(branch, hook, side, nat)
            }
            Stage::Ipvs => Ok(self.ipvs(branch, hook)),
            Stage::Conntrack => {
                // No connection begins with such a packet of TCP; another one begins a new one.
                let is_other = branch.packet.is_in_other_zone();
                let is_invalid =
                    is_other && branch.packet.is_reply() && branch.packet.is(Proto::Tcp);
                branch.packet.seen_by_conntrack = !is_invalid;
                Ok(smallvec![(branch, End::Accept)])
            }
            Stage::Unknown(reason) => Ok(smallvec![(branch, End::Unknown(reason.clone()))]),
        }
    }

    /// nat of an established connection is the translation of its first packet. Marks that nat chains set on the first
    /// packet are not on later ones.
    fn nat_of_first(
        &self,
        mut branch: Branch,
        hook: Hook,
        side: usize,
        nat: &Nat<'w, 'r>,
    ) -> Result<Ends, Stop> {
        let mark = branch.packet.mark;
        branch.packet.established = false;
        branch.packet.mark = branch.packet.first_mark.unwrap_or(mark);
        let mut ends = self.nat(branch, hook, side, nat)?;
        for (branch, _) in &mut ends {
            branch.packet.established = true;
            branch.packet.first_mark = Some(branch.packet.mark);
            branch.packet.mark = mark;
        }
        Ok(ends)
    }

    /// nat chains, in every possible order. A result that is the same in all of them is certain.
    fn nat(
        &self,
        branch: Branch,
        hook: Hook,
        side: usize,
        nat: &Nat<'w, 'r>,
    ) -> Result<Ends, Stop> {
        if nat.others.is_empty() {
            return self.nat_in_order(branch, hook, side, nat.chains.iter());
        }
        let likely = nat.chains.iter();
        let mut orders = vec![Ordered {
            question: None,
            ends: self.nat_in_order(branch.clone(), hook, side, likely)?,
        }];
        for order in &nat.others {
            let chains = order.places.iter().map(|at| &nat.chains[*at]);
            orders.push(Ordered {
                question: Some(&order.question),
                ends: self.nat_in_order(branch.clone(), hook, side, chains)?,
            });
        }
        let node = self.world.node;
        Ok(reconcile(
            node,
            &branch,
            side == DESTINATION && nat.is_placed,
            hook == Hook::Output,
            orders,
        ))
    }

    /// nat chains in this order, until one binds the connection.
    fn nat_in_order<'s>(
        &self,
        branch: Branch,
        hook: Hook,
        side: usize,
        list: impl Iterator<Item = &'s Stage<'w, 'r>>,
    ) -> Result<Ends, Stop>
    where
        'w: 's,
        'r: 's,
    {
        let mut live: Branches = smallvec![branch];
        let mut done = Ends::new();
        for stage in list {
            let mut next = Branches::new();
            for branch in live {
                for (branch, end) in self.stage(branch, hook, stage)? {
                    match end {
                        End::Return | End::Accept if branch.packet.bound[side] => {
                            done.push((branch, End::Accept));
                        }
                        End::Return | End::Accept => next.push(branch),
                        end => done.push((branch, end)),
                    }
                }
            }
            live = next;
        }
        for mut branch in live {
            branch.packet.bound[side] = true;
            done.push((branch, End::Accept));
        }
        Ok(done)
    }

    /// A table's built-in chain for `hook`.
    fn iptables(
        &self,
        branch: Branch,
        hook: Hook,
        chains: &Chains<'r>,
        table: &str,
    ) -> Result<Ends, Stop> {
        let context = matches::Context {
            router: &self.router,
            sets: self.world.node.ipset(),
            bridges: &self.bridges,
            index: self.index.as_ref(),
            lasting: self.world.lasting,
        };
        chain::base(self, branch, hook, chains, table, &context)
    }

    /// Returns what follows `hook` for a packet that ended there with `end`.
    fn after(
        mut branch: Branch,
        hook: Hook,
        end: End,
        outcomes: &mut Vec<Outcome>,
    ) -> Option<(Branch, Phase)> {
        match end {
            End::Drop(reason) => outcomes.push(outcome(branch, Verdict::Drop, &reason)),
            End::Reject(reason) => outcomes.push(outcome(branch, Verdict::Reject, &reason)),
            End::Unknown(reason) => outcomes.push(outcome(branch, Verdict::Unknown, &reason)),
            // IPVS sends a translated packet through LOCAL_OUT, whichever hook it took it at.
            End::Stolen => {
                let branch = ttl::forwarded(branch, outcomes)?;
                return Some((branch, Phase::Hook(Hook::Output)));
            }
            End::Return | End::Accept => match hook {
                Hook::Prerouting => return Some((branch, Phase::Route)),
                Hook::Forward | Hook::Output => {
                    // br_nf_post_routing does not pass on the input link; ip_output does, since Linux 5.7.
                    if branch.packet.bridged {
                        branch.packet.input = Link::None;
                    }
                    return Some((branch, Phase::Hook(Hook::Postrouting)));
                }
                Hook::Postrouting if branch.packet.output == Link::Named("lo".into()) => {
                    return Some((branch, Phase::Loopback));
                }
                Hook::Postrouting | Hook::Input => outcomes.push(arrived(branch, hook)),
            },
        }
        None
    }

    /// A packet of the node for itself comes in over lo: the connection is bound already, filters see it again.
    fn loopback(
        &self,
        mut branch: Branch,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<Vec<Option<(Branch, Phase)>>, Stop> {
        branch.packet.has_socket = false;
        branch.packet.input = Link::Named("lo".into());
        branch.packet.output = Link::None;
        let mut next = Vec::new();
        for (branch, end) in self.hook(branch, Hook::Prerouting)? {
            next.push(match end {
                End::Return | End::Accept => Some((branch, Phase::Hook(Hook::Input))),
                end => Self::after(branch, Hook::Prerouting, end, outcomes),
            });
        }
        Ok(next)
    }
}
