//! Whether the rules and routes of this node let the packets after the first one through: the replies, and what the client sends
//! once the connection is there.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use super::judge::{Judge, Question, index};
use super::place::Holder;
use super::ports::REPLY_PORT;
use super::tells::tells;
use super::{
    By, Diversion, Fate, Fault, Missing, Obstacle, Verdict, Way, Which, is_decided, is_likely,
};
use crate::trace::region::Region;
use crate::trace::why::decisive;
use crate::trace::{self, Effect, Entry, Flow, Further, Hop, Kept, Outcome, Reply, World};
use kpx_node::backend::Mode;
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;

/// Regions of replies that arrive, beyond which the oldest is forgotten: connections to one address are judged one after another.
const MOST_REGIONS: usize = 32;

/// Where replies enter, the port that they come from, the client that nat translates them back to, whether it translates them,
/// whether they are later ones, and the mark of their connection.
type Key = (Entry, u16, Option<IpAddr>, bool, bool, u32);

/// What is known of packets after the first ones.
#[derive(Debug, Default)]
pub(super) struct Replies {
    /// The replies that arrive.
    arrive: VecDeque<(Key, Region)>,
    /// The packets that were followed beforehand, where rules are read in parts or changed.
    followed: Option<Vec<(Further, Vec<Outcome>)>>,
    /// The last flow whose later packets were followed.
    sent: Option<(Flow, Vec<Outcome>)>,
}

impl<'n> Judge<'n> {
    /// Says that `followed` are the packets after the first ones of all connections that are asked about.
    pub fn further_are(&self, followed: Vec<(Further, Vec<Outcome>)>) {
        self.replies.borrow_mut().followed = Some(followed);
    }

    /// Returns the packets after the first one of a connection with `outcomes` that rules of the node may stop.
    pub fn further(&self, question: Question<'_>, outcomes: &[Outcome]) -> Vec<Further> {
        let replies = outcomes
            .iter()
            .filter_map(|outcome| self.reply_to(question, outcome));
        let mut all: Vec<Further> = replies.map(Further::Reply).collect();
        if let Some(sent) = self.sent_later(question) {
            let later: Vec<_> = all
                .iter()
                .filter_map(|further| match further {
                    Further::Reply(reply) => Some(Further::Reply(Reply {
                        later: true,
                        ..reply.clone()
                    })),
                    Further::Sent(_) => None,
                })
                .collect();
            all.extend(later);
            all.push(Further::Sent(sent));
        }
        all
    }

    /// Returns what the client sends once the connection is there, unless no rule tells it from what opens it.
    fn sent_later(&self, question: Question<'_>) -> Option<Flow> {
        let flow = question.flow;
        let is_told = flow.proto == Proto::Tcp && !flow.established && {
            let family = Family::of(flow.destination);
            let told = &self.told[usize::from(family == Family::V6)];
            *told.get_or_init(|| tells(self.node, family))
        };
        is_told.then(|| Flow {
            established: true,
            ..flow.clone()
        })
    }

    /// Returns what happens to the connection through `world`, whose rules may be others than those of the node: its outcomes, and
    /// the verdict on it.
    pub fn judge_in(
        &self,
        world: &World<'_, '_>,
        question: Question<'_>,
    ) -> (Vec<Outcome>, Verdict) {
        let outcomes = world.walk(question.flow).unwrap_or_default();
        self.follow_further(world, question, &outcomes);
        let verdict = self.judge(question, &outcomes);
        (outcomes, verdict)
    }

    /// Follows the packets after the first one, which has `outcomes`, through `world`.
    pub(super) fn follow_further(
        &self,
        world: &World<'_, '_>,
        question: Question<'_>,
        outcomes: &[Outcome],
    ) {
        let further = self.further(question, outcomes).into_iter();
        let followed = further.map(|packet| {
            let ends = world.further(&packet).unwrap_or_default();
            (packet, ends)
        });
        self.further_are(followed.collect());
    }

    /// Returns the reply to a packet that arrives, as it enters this node; `None` if it is unknown where.
    pub fn reply_to(&self, question: Question<'_>, outcome: &Outcome) -> Option<Reply> {
        let entry = if self.ends_here(outcome) {
            Entry::Host
        } else if self.is_here(question, outcome)? {
            Entry::Pod
        } else {
            Entry::Outside
        };
        outcome
            .verdict
            .arrives()
            .then(|| reply(self.node, question, outcome, entry))
    }

    /// Returns `way` with what this node does to the packets after the first one, unless that one fails already.
    pub(super) fn with_further(&self, question: Question<'_>, outcome: &Outcome, way: Way) -> Way {
        // Rules that are not read may translate the packet, and with it the reply; and the node may have no address to send from.
        let is_open = outcome.sent_from.is_unspecified() || self.unread[index(question)].is_some();
        if way.fate().fails() || way.fate() == Fate::Partly || is_open {
            return way;
        }
        let Some(reply) = self.reply_to(question, outcome) else {
            return way;
        };
        let sent = self.sent_later(question);
        let mut lost = self.lost(&reply);
        let mut which = Which::Reply;
        if !lost.iter().any(ends) && sent.is_some() {
            which = Which::LaterReply;
            lost = self.lost(&Reply {
                later: true,
                ..reply
            });
        }
        // Where each pod has a route of its own, an address that stands for any pod has none.
        let is_pod = matches!(self.places.holder(outcome.sent_from), Some(Holder::Pod(_)));
        let is_carried = self.is_on_its_bridge(outcome);
        if question.flow.entry == Entry::Pod && (!is_pod || is_carried) {
            lost.retain(|lost_outcome| lost_outcome.hops.last().is_none_or(|hop| !is_routing(hop)));
        }
        if let Some(sent) = sent.filter(|_| !lost.iter().any(ends)) {
            which = Which::Sent;
            lost = self.lost_later(&sent, outcome);
        }
        let Some(fault) = self.stopped(&lost, which, outcome.sent_from) else {
            return way;
        };
        if let Some(missing) = self.routed_in_vrf(&fault) {
            return Way {
                fault: way.fault.or(Some(Fault::Unknown(missing))),
                ..way
            };
        }
        Way {
            lost: lost.into_iter().find(ends).map(Box::new),
            fault: match way.fault {
                Some(unknown) if !fault.fate().fails() => Some(unknown),
                _ => Some(fault),
            },
            ..way
        }
    }

    /// Returns whether a bridge carries the reply from port to port: it passes rules, but no route.
    fn is_on_its_bridge(&self, outcome: &Outcome) -> bool {
        let keeps_source = outcome.source == outcome.sent_from && !outcome.masquerade;
        let same = outcome.leaves_by().filter(|out| {
            let back = self.way_to(outcome.sent_from);
            keeps_source && back.is_some_and(|(back, _)| back == *out)
        });
        same.is_some_and(|out| self.ports(out).next().is_some())
    }

    /// Returns what follows packets of `family` other than first ones through the node.
    pub(super) fn back(&self, family: Family) -> &Kept<'n> {
        let walks = &self.back[usize::from(family == Family::V6)];
        walks.get_or_init(|| Box::new(Kept::new(self.node, family)))
    }

    /// Returns the outcomes of `reply`; nothing if it arrives and none are known.
    fn lost(&self, reply: &Reply) -> Vec<Outcome> {
        let mut known = self.replies.borrow_mut();
        if let Some(followed) = &known.followed {
            let is_it = |of: &Further| matches!(of, Further::Reply(of) if of == reply);
            let of = followed.iter().find(|(of, _)| is_it(of));
            return of.map_or_else(Vec::new, |(_, outcomes)| outcomes.clone());
        }
        let key = (
            reply.flow.entry,
            reply.from,
            reply.back,
            reply.translated,
            reply.later,
            reply.mark,
        );
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

    /// Returns the outcomes of the packets that `sent` has and that follow the first one, which had `outcome`; nothing if they arrive.
    fn lost_later(&self, sent: &Flow, outcome: &Outcome) -> Vec<Outcome> {
        let mut known = self.replies.borrow_mut();
        if let Some(followed) = &known.followed {
            let is_it = |of: &Further| matches!(of, Further::Sent(of) if of == sent);
            let of = followed.iter().find(|(of, _)| is_it(of));
            return of.map_or_else(Vec::new, |(_, all)| of_way(all, outcome));
        }
        if known.sent.as_ref().is_none_or(|(of, _)| of != sent) {
            let walked = self.back(Family::of(sent.destination)).brief(sent);
            known.sent = Some((sent.clone(), walked));
        }
        let all = known.sent.as_ref().map_or(&[][..], |(_, all)| all);
        of_way(all, outcome)
    }

    /// Returns why packets with these outcomes do not arrive, if they certainly do not; or why that is unknown. `to` is the client.
    pub(super) fn stopped(&self, packets: &[Outcome], which: Which, to: IpAddr) -> Option<Fault> {
        let is_diverted = || !Diversion::all_of(self.node, &[SocketAddr::new(to, 0)]).is_empty();
        let mut possible = packets.iter().filter(|packet| is_likely(packet));
        let first = possible.clone().find(|packet| ends(packet))?;
        let reason = trace::why(first, None);
        if !possible.all(is_stopped) {
            if let Some(missing) = self.unread_sets(packets) {
                return Some(Fault::Unknown(missing));
            }
            let what = match which {
                Which::Reply => "the reply returns",
                Which::LaterReply => "later replies return",
                Which::Sent => "packets after the first one arrive",
            };
            return Some(Fault::Unknown(Missing::Other(format!(
                "whether {what} is unknown: {reason}"
            ))));
        }
        let missing = first
            .hops
            .last()
            .filter(|hop| is_routing(hop) && decisive(first).is_none());
        let to = match which {
            Which::Reply | Which::LaterReply => to,
            Which::Sent => first.destination.0,
        };
        if missing.is_some()
            && let Some(known) = self.wayless(to, false)
        {
            return Some(known);
        }
        Some(Fault::Obstacle(Box::new(Obstacle::Further {
            which,
            from: first.sent_from,
            to,
            reason,
            missing: missing
                .filter(|_| !is_diverted())
                .and_then(|_| self.route_to_pods_there(to)),
            by: decisive(first)
                .or_else(|| untracking(first))
                .and_then(|hop| By::foreign(hop, Family::of(to), self.node))
                .map(|by| Box::new(by.of_further(Family::of(to), self.node))),
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

/// Returns those of `all`, the outcomes of later packets, that are of the connections whose first packet had `outcome`; nothing if
/// they arrive.
fn of_way(all: &[Outcome], outcome: &Outcome) -> Vec<Outcome> {
    let is_of_it =
        |of: &&Outcome| of.destination == outcome.destination || ends(of) && of.as_sent.destination;
    let of_it: Vec<Outcome> = all.iter().filter(is_of_it).cloned().collect();
    let is_lost = of_it.iter().any(ends);
    if is_lost { of_it } else { Vec::new() }
}

/// Returns whether a packet ends at this node, or may.
pub(super) fn ends(of: &Outcome) -> bool {
    matches!(
        of.verdict,
        trace::Verdict::Drop | trace::Verdict::Reject | trace::Verdict::Unknown
    )
}

/// Returns whether rules stop a packet, whatever the node's state leaves open.
pub(super) fn is_stopped(of: &Outcome) -> bool {
    of.when.iter().all(is_decided)
        && matches!(of.verdict, trace::Verdict::Drop | trace::Verdict::Reject)
}

/// Returns the reply to a packet with `outcome`, which enters at `entry`: first it goes to the source that the packet left with, and
/// translated back, to where the packet was sent from.
pub(super) fn reply(
    node: &NodeSnapshot<'_>,
    question: Question<'_>,
    outcome: &Outcome,
    entry: Entry,
) -> Reply {
    let is_nat = node.configured_mode().ok() != Some(Mode::Ipvs) || tracks_twice(node, question);
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
        later: false,
        mark: outcome.ct_mark,
    }
}

/// Returns whether both IPVS and conntrack follow the connection, which only IPVS translates: without the reply, conntrack takes what
/// the client sends next for another connection, and gives that another source port. Datagrams are of one connection all the same.
fn tracks_twice(node: &NodeSnapshot<'_>, question: Question<'_>) -> bool {
    let sysctl = node.sysctl().ok();
    let tracks = sysctl.and_then(|all| all.get("net.ipv4.vs.conntrack"));
    question.flow.proto == Proto::Tcp && tracks.is_some_and(|value| value.trim() != "0")
}
