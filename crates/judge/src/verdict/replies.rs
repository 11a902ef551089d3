//! Whether the rules and routes of this node let the reply through.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use super::judge::{Judge, Question, index};
use super::place::Holder;
use super::ports::REPLY_PORT;
use super::{By, Diversion, Fate, Fault, Missing, Obstacle, Verdict, Way, is_decided};
use crate::trace::region::Region;
use crate::trace::why::decisive;
use crate::trace::{self, Assumption, Effect, Entry, Flow, Hop, Kept, Outcome, Reply, World};
use kpx_node::backend::Mode;
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;

/// Regions of replies that arrive, beyond which the oldest is forgotten: connections to one address are judged one after another.
const MOST_REGIONS: usize = 32;

/// Where replies enter, the port that they come from, the client that nat translates them back to, and whether it translates them.
type Key = (Entry, u16, Option<IpAddr>, bool);

/// What is known of replies.
#[derive(Debug, Default)]
pub(super) struct Replies {
    /// Those that arrive.
    arrive: VecDeque<(Key, Region)>,
    /// Those that were followed beforehand, where rules are read in parts.
    followed: Option<Vec<(Reply, Vec<Outcome>)>>,
}

impl<'n> Judge<'n> {
    /// Says that `followed` are the replies of all connections that are asked about.
    pub fn replies_are(&self, followed: Vec<(Reply, Vec<Outcome>)>) {
        self.replies.borrow_mut().followed = Some(followed);
    }

    /// Returns what happens to the connection through `world`, whose rules may be others than those of the node: its outcomes, and
    /// the verdict on it.
    pub fn judge_in(
        &self,
        world: &World<'_, '_>,
        question: Question<'_>,
    ) -> (Vec<Outcome>, Verdict) {
        let outcomes = world.walk(question.flow).unwrap_or_default();
        let replies = outcomes.iter().filter_map(|of| self.reply_to(question, of));
        let followed = replies.map(|reply| {
            let ends = world.reply(&reply).unwrap_or_default();
            (reply, ends)
        });
        self.replies_are(followed.collect());
        let verdict = self.judge(question, &outcomes);
        (outcomes, verdict)
    }

    /// Returns the reply to a packet that arrives, as it enters this node; `None` if it is unknown where.
    pub fn reply_to(&self, question: Question<'_>, outcome: &Outcome) -> Option<Reply> {
        let arrives = matches!(
            outcome.verdict,
            trace::Verdict::Deliver | trace::Verdict::Local | trace::Verdict::Unmatched
        );
        let entry = if self.ends_here(outcome) {
            Entry::Host
        } else if self.is_here(question, outcome)? {
            Entry::Pod
        } else {
            Entry::Outside
        };
        arrives.then(|| reply(self.node, question, outcome, entry))
    }

    /// Returns `way` with what this node does to its reply, unless the packet fails already.
    pub(super) fn with_reply(&self, question: Question<'_>, outcome: &Outcome, way: Way) -> Way {
        // Rules that are not read may translate the packet, and with it the reply; and the node may have no address to send from.
        let is_open = outcome.sent_from.is_unspecified() || self.unread[index(question)].is_some();
        if way.fate().fails() || way.fate() == Fate::Partly || is_open {
            return way;
        }
        let Some(reply) = self.reply_to(question, outcome) else {
            return way;
        };
        let mut lost = self.lost(&reply);
        // Where each pod has a route of its own, an address that stands for any pod has none.
        let is_pod = matches!(self.places.holder(outcome.sent_from), Some(Holder::Pod(_)));
        if question.flow.entry == Entry::Pod && !is_pod {
            lost.retain(|of| of.hops.last().is_none_or(|of| !is_routing(of)));
        }
        let Some(fault) = self.stopped(&lost, outcome.sent_from) else {
            return way;
        };
        Way {
            lost: lost.into_iter().find(ends).map(Box::new),
            fault: match way.fault {
                Some(unknown) if !fault.fate().fails() => Some(unknown),
                _ => Some(fault),
            },
            ..way
        }
    }

    /// Returns what follows replies of `family` through the node.
    fn back(&self, family: Family) -> &Kept<'n> {
        let walks = &self.back[usize::from(family == Family::V6)];
        walks.get_or_init(|| Box::new(Kept::new(self.node, family)))
    }

    /// Returns the outcomes of `reply`; nothing if it arrives.
    fn lost(&self, reply: &Reply) -> Vec<Outcome> {
        let mut known = self.replies.borrow_mut();
        if let Some(followed) = &known.followed {
            let of = followed.iter().find(|(of, _)| of == reply);
            return of.map_or_else(Vec::new, |(_, outcomes)| outcomes.clone());
        }
        let key = (reply.flow.entry, reply.from, reply.back, reply.translated);
        let mut arrive = known.arrive.iter().rev();
        if arrive.any(|(of, region)| *of == key && region.contains(&reply.flow)) {
            return Vec::new();
        }
        let walks = self.back(Family::of(reply.flow.destination));
        let Some(region) = walks.replies_arrive(reply) else {
            return walks.reply(reply);
        };
        if known.arrive.len() == MOST_REGIONS {
            known.arrive.pop_front();
        }
        known.arrive.push_back((key, region));
        Vec::new()
    }

    /// Returns why a reply with these outcomes does not arrive, if it certainly does not; or why that is unknown.
    pub(super) fn stopped(&self, replies: &[Outcome], to: IpAddr) -> Option<Fault> {
        let is_diverted = || !Diversion::all_of(self.node, &[SocketAddr::new(to, 0)]).is_empty();
        let is_possible = |of: &&Outcome| !of.when.iter().any(Assumption::is_astray);
        let mut possible = replies.iter().filter(is_possible);
        let first = possible.clone().find(|of| ends(of))?;
        let reason = trace::why(first, None);
        let is_certain = possible.all(|of| {
            of.when.iter().all(is_decided)
                && matches!(of.verdict, trace::Verdict::Drop | trace::Verdict::Reject)
        });
        if !is_certain {
            return Some(Fault::Unknown(Missing::Other(format!(
                "whether the reply returns is unknown: {reason}"
            ))));
        }
        let missing = first.hops.last().filter(|of| is_routing(of));
        Some(Fault::Obstacle(Box::new(Obstacle::ReplyHere {
            from: first.sent_from,
            to,
            reason,
            missing: missing
                .filter(|_| !is_diverted())
                .and_then(|_| self.route_to_pods_there(to)),
            by: decisive(first)
                .or_else(|| untracking(first))
                .and_then(|hop| By::foreign(hop, Family::of(to), self.node)),
        })))
    }
}

const fn is_routing(hop: &Hop) -> bool {
    matches!(hop.effect, Effect::Nowhere { .. })
}

/// Returns the rule that takes a reply out of connection tracking, if it does not end for want of a route.
fn untracking(of: &Outcome) -> Option<&Hop> {
    let mut hops = of.hops.iter().map(AsRef::as_ref);
    let is_routed = of.hops.last().is_some_and(|hop| is_routing(hop));
    hops.find(|hop| !is_routed && hop.effect == Effect::Untrack)
}

/// Returns whether a reply ends at this node, or may.
fn ends(of: &Outcome) -> bool {
    matches!(
        of.verdict,
        trace::Verdict::Drop | trace::Verdict::Reject | trace::Verdict::Unknown
    )
}

/// Returns the reply to a packet with `outcome`, which enters at `entry`: first it goes to the source that the packet left with, and
/// translated back, to where the packet was sent from.
pub(super) fn reply(
    node: &NodeSnapshot<'_>,
    question: Question<'_>,
    outcome: &Outcome,
    entry: Entry,
) -> Reply {
    // IPVS keeps its own table of connections.
    let is_nat = node.configured_mode().ok() != Some(Mode::Ipvs);
    let (from, port) = outcome.destination;
    Reply {
        flow: Flow {
            entry,
            source: Some(from),
            destination: outcome.source,
            port: REPLY_PORT,
            mark: 0,
            proto: question.flow.proto,
            established: true,
        },
        from: port,
        back: (outcome.source != outcome.sent_from).then_some(outcome.sent_from),
        translated: is_nat && !(outcome.as_sent.destination && outcome.as_sent.port)
            || outcome.source != outcome.sent_from,
    }
}
