//! Whether the rules and routes of this node let the packets after the first one through: the replies, and the client's packets
//! of the established connection.

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::judge::{Judge, Question, index};
use super::place::Holder;
use super::ports::REPLY_PORT;
use super::tells::tells;
use super::{
    By, Diversion, Fate, Fault, Missing, Obstacle, Onward, Verdict, Way, Which, is_decided,
    is_likely,
};
use crate::trace::region::Region;
use crate::trace::why::decisive;
use crate::trace::{
    self, Carried, Effect, Entry, Flow, Follow, Further, Hop, Kept, Need, OriginalTuple, Outcome,
    Reply, World,
};
use kpx_node::backend::Mode;
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;

/// The most regions of replies that are kept: then the oldest is forgotten. Connections to one address are judged one after
/// another.
const MOST_REGIONS: usize = 32;

/// The key of replies: where they enter, their port, the client to which nat translates them back, whether it translates them,
/// whether they are later ones, and their marks.
type Key = (Entry, u16, Option<IpAddr>, bool, bool, Carried);

/// Replies that meet the same answers: their packets, and what they answer if a rule asks for it.
type Alike = (Region, Option<OriginalTuple>);

/// Marks that packets leave on their connection.
pub(super) type Marks = BTreeSet<u32>;

/// The results for packets after the first ones.
#[derive(Debug, Default)]
pub(super) struct Replies {
    /// The replies that arrive.
    arrive: VecDeque<(Key, Alike, Marks)>,
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

    /// Returns the packets after the first one of a connection with `outcomes` that rules of the node may stop, each with its ends, to
    /// which `follow` follows it.
    ///
    /// # Errors
    ///
    /// The errors of `follow`.
    pub fn further(
        &self,
        question: Question<'_>,
        outcomes: &[Outcome],
        follow: &Follow<'_>,
    ) -> Result<Vec<(Further, Vec<Outcome>)>, Need> {
        let mut all = Vec::new();
        for outcome in outcomes {
            let Some(reply) = self.reply_to(question, outcome) else {
                continue;
            };
            follow_on(&reply, self.sent_later(question), |_, packet| {
                let ends = follow(&packet)?;
                let marks = marks(of_way(&packet, &ends, outcome));
                all.push((packet, ends));
                Ok::<_, Need>(Some(marks))
            })?;
        }
        Ok(all)
    }

    /// Returns the packet that the client sends on the established connection, unless no rule treats it differently
    /// from the first one.
    pub(super) fn sent_later(&self, question: Question<'_>) -> Option<Flow> {
        let flow = question.flow;
        let is_told = matches!(flow.proto, Proto::Tcp | Proto::Udp) && !flow.established && {
            let family = Family::of(flow.destination);
            let told = &self.told[usize::from(family == Family::V6)];
            *told.get_or_init(|| tells(self.node, family)) || self.is_typed(flow)
        };
        is_told.then(|| {
            self.as_sent(Flow {
                established: true,
                ..flow.clone()
            })
        })
    }

    /// Returns the outcomes of the connection through `world`, whose rules may differ from the node's, and the verdict on it.
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
        let follow = |packet: &Further| Ok(world.further(packet).unwrap_or_default());
        self.further_are(
            self.further(question, outcomes, &follow)
                .unwrap_or_default(),
        );
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
            .then(|| self.reply_from(question, outcome, entry))
    }

    /// Returns the reply to a packet with `outcome`, which enters at `entry`, with the marks and fields that it got in the networks
    /// before.
    pub(super) fn reply_from(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
        entry: Entry,
    ) -> Reply {
        let mut reply = reply(self.node, question, outcome, entry);
        if entry == Entry::Outside {
            let input = self.comes_back_by(question, outcome);
            reply.flow.carried.input = input.map(Arc::from);
        }
        reply.flow.carried.tos = match entry {
            Entry::Host => Some(0),
            Entry::Pod => self.tos_of_replies(question, outcome),
            Entry::Outside => match self.onward(question, outcome) {
                Some(Onward::Far(far)) => {
                    let arrival = far.cell.arrival.as_ref();
                    let replies = arrival.map_or(&[][..], |arrival| &arrival.replies);
                    common_tos(replies)
                }
                _ => Some(0),
            },
        };
        reply
    }

    /// Returns `way` with the effect of this node on the packets after the first one, unless the first one fails
    /// already.
    pub(super) fn with_further(&self, question: Question<'_>, outcome: &Outcome, way: Way) -> Way {
        // Rules that are not read may translate the packet, and with it the reply; and the node may have no address to send from.
        let is_open = outcome.sent_from.is_unspecified() || self.unread[index(question)].is_some();
        if way.fate().fails() || way.fate() == Fate::Partly || is_open {
            return way;
        }
        let Some(reply) = self.reply_to(question, outcome) else {
            return way;
        };
        // Where each pod has a route of its own, an address that stands for any pod has none.
        let is_pod = matches!(self.places.holder(outcome.sent_from), Some(Holder::Pod(_)));
        let has_way =
            question.flow.entry == Entry::Pod && (!is_pod || self.is_on_its_bridge(outcome));
        let (mut which, mut lost) = (Which::Reply, Vec::new());
        let sent = self.sent_later(question);
        let followed = follow_on(&reply, sent, |of, packet| {
            let (mut ends, marks) = self.followed(&packet, outcome);
            if of != Which::Sent && has_way {
                ends.retain(|end| end.hops.last().is_none_or(|hop| !is_routing(hop)));
            }
            let is_lost = ends.iter().any(|end| self::ends(end) && is_likely(end));
            (which, lost) = (of, ends);
            Ok::<_, Infallible>((!is_lost).then_some(marks))
        });
        let Ok(()) = followed;
        if lost.is_empty()
            && !(has_way && self.is_on_its_bridge(outcome))
            && let Some((end, fault)) = self.led_back(question, &reply)
        {
            let fails = fault.fate().fails();
            return Way {
                lost: fails.then(|| Box::new(end)),
                fault: way.fault.filter(|_| !fails).or(Some(fault)),
                ..way
            };
        }
        if question.flow.proto == Proto::Udp && which != Which::Reply {
            which = Which::Datagram;
        }
        let Some(mut fault) = self.stopped(&lost, which, outcome.sent_from) else {
            return way;
        };
        // The rule that gave the connection its zone is on the way of the first packet.
        if let Fault::Obstacle(what) = &mut fault
            && let Obstacle::Further { by, .. } = &mut **what
        {
            *by = by.take().or_else(|| self.zoned_by(question, outcome));
        }
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

    /// Returns the rule that puts a packet with `outcome` into a zone of conntrack.
    fn zoned_by(&self, question: Question<'_>, outcome: &Outcome) -> Option<Box<By>> {
        if outcome.carried.zone == 0 {
            return None;
        }
        let family = Family::of(question.flow.destination);
        let outcomes = self.back(family).walk(question.flow);
        let mut hops = outcomes.iter().flat_map(|outcome| &outcome.hops);
        let hop = hops.find(|hop| matches!(hop.effect, Effect::Zone { .. }))?;
        By::foreign(hop, family, self.node).map(|by| Box::new(by.of_further(family, self.node)))
    }

    /// Returns whether a bridge carries the reply from port to port: it passes rules, but no route.
    pub(super) fn is_on_its_bridge(&self, outcome: &Outcome) -> bool {
        if self.stays_on_bridge(outcome) {
            return true;
        }
        let keeps_source = outcome.source == outcome.sent_from && !outcome.masquerade;
        let same = outcome.leaves_by().filter(|out| {
            let back = self.way_to(outcome.sent_from);
            keeps_source && back.is_some_and(|(back, _)| back == *out)
        });
        same.is_some_and(|out| self.ports(out).next().is_some())
    }

    /// Returns the walk for packets of `family` other than first ones.
    pub(super) fn back(&self, family: Family) -> &Kept<'n> {
        let walks = &self.back[usize::from(family == Family::V6)];
        walks.get_or_init(|| Box::new(Kept::new(self.node, family)))
    }

    /// Returns the outcomes of `packet`, a later packet of a connection whose first one had `outcome`, and the marks that it leaves on
    /// the connection; no outcomes if it arrives.
    pub(super) fn followed(&self, packet: &Further, outcome: &Outcome) -> (Vec<Outcome>, Marks) {
        let mut known = self.replies.borrow_mut();
        if let Some(followed) = &known.followed {
            let found = followed.iter().find(|(of, _)| of == packet);
            let ends = found.map_or(&[][..], |(_, ends)| ends);
            return lost(of_way(packet, ends, outcome));
        }
        match packet {
            Further::Reply(reply) => self.reply_ends(&mut known, reply),
            Further::Sent(sent) => {
                if known.sent.as_ref().is_none_or(|(of, _)| of != sent) {
                    let walked = self.back(Family::of(sent.destination)).brief(sent);
                    known.sent = Some((sent.clone(), walked));
                }
                let all = known.sent.as_ref().map_or(&[][..], |(_, all)| all);
                lost(of_way(packet, all, outcome))
            }
        }
    }

    fn reply_ends(&self, known: &mut Replies, reply: &Reply) -> (Vec<Outcome>, Marks) {
        let key = (
            reply.flow.entry,
            reply.from,
            reply.back,
            reply.translated,
            reply.later,
            reply.flow.carried.clone(),
        );
        let mut arrive = known.arrive.iter().rev();
        let is_it = |(of, (region, original), _): &&(Key, Alike, Marks)| {
            let is_same = original.is_none_or(|original| original == reply.original);
            is_same && *of == key && region.contains(&reply.flow)
        };
        if let Some((.., marks)) = arrive.find(is_it) {
            return (Vec::new(), marks.clone());
        }
        let walks = self.back(Family::of(reply.flow.destination));
        let Some((region, original, ends)) = walks.replies_arrive(reply) else {
            return lost(walks.reply(reply).iter());
        };
        if known.arrive.len() == MOST_REGIONS {
            known.arrive.pop_front();
        }
        let marks = marks(ends.iter());
        known
            .arrive
            .push_back((key, (region, original), marks.clone()));
        (Vec::new(), marks)
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
                Which::Datagram => "datagrams after the first one arrive",
            };
            // A chance, or what decides.
            let ended = packets.iter().filter(|packet| is_stopped(packet));
            let chance: f64 = ended.map(|packet| packet.probability).sum();
            let when = match super::conditions(&first.when) {
                when if when.is_empty() && chance > 0.0 && chance < 1.0 => {
                    format!(" ({:.0}% of them)", chance * 100.0)
                }
                when => when,
            };
            return Some(Fault::Unknown(Missing::Other(format!(
                "whether {what} is unknown: {reason}{when}"
            ))));
        }
        let missing = first
            .hops
            .last()
            .filter(|hop| is_routing(hop) && decisive(first).is_none());
        let to = match which {
            Which::Reply | Which::LaterReply => to,
            Which::Sent | Which::Datagram => first.destination.0,
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

/// Returns the rule that takes a reply out of connection tracking, or puts it into another zone, if it does not end for want of a
/// route.
fn untracking(of: &Outcome) -> Option<&Hop> {
    let mut hops = of.hops.iter().map(AsRef::as_ref);
    let is_routed = of.hops.last().is_some_and(|hop| is_routing(hop));
    hops.find(|hop| !is_routed && matches!(hop.effect, Effect::Untrack | Effect::Zone { .. }))
}

/// Lets `follow` follow `reply` and the packets after it until it returns none. The client sends `sent`. Each packet has the marks
/// that earlier packets leave on the connection.
pub(super) fn follow_on<E>(
    reply: &Reply,
    sent: Option<Flow>,
    mut follow: impl FnMut(Which, Further) -> Result<Option<Marks>, E>,
) -> Result<(), E> {
    let Some(marks) = follow(Which::Reply, Further::Reply(reply.clone()))? else {
        return Ok(());
    };
    let Some(sent) = sent else {
        return Ok(());
    };
    // All later packets find what the first packet added to sets.
    let with_mark = |flow: &Flow, ct_mark| Flow {
        carried: Carried {
            ct_mark,
            dnat: reply.flow.carried.dnat,
            snat: reply.flow.carried.snat,
            written: reply.flow.carried.written.clone(),
            ..flow.carried.clone()
        },
        ..flow.clone()
    };
    for ct_mark in marks {
        let sent = Further::Sent(with_mark(&sent, ct_mark));
        let Some(marks) = follow(Which::Sent, sent)? else {
            return Ok(());
        };
        for ct_mark in marks {
            let later = Reply {
                flow: with_mark(&reply.flow, ct_mark),
                later: true,
                ..reply.clone()
            };
            if follow(Which::LaterReply, Further::Reply(later))?.is_none() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Returns the outcomes in `all`, which are of a later packet, that belong to connections whose first packet had
/// `outcome`.
fn of_way<'o>(
    packet: &Further,
    all: &'o [Outcome],
    outcome: &Outcome,
) -> impl Iterator<Item = &'o Outcome> {
    let (is_reply, way) = (matches!(packet, Further::Reply(_)), outcome.destination);
    all.iter().filter(move |later| {
        is_reply || later.destination == way || ends(later) && later.as_sent.destination
    })
}

/// Returns the outcomes of a packet, none if it arrives, and the marks that it leaves on its connection.
fn lost<'o>(ends: impl Iterator<Item = &'o Outcome>) -> (Vec<Outcome>, Marks) {
    let ends: Vec<Outcome> = ends.cloned().collect();
    let marks = marks(ends.iter());
    if ends.iter().any(self::ends) {
        (ends, marks)
    } else {
        (Vec::new(), marks)
    }
}

pub(super) fn marks<'o>(ends: impl Iterator<Item = &'o Outcome>) -> Marks {
    ends.map(|end| end.carried.ct_mark).collect()
}

/// Returns the type of service with which packets with these outcomes leave; `None` if that depends on something.
pub(super) fn common_tos(outcomes: &[Outcome]) -> Option<u8> {
    let mut leaving = outcomes.iter().filter(|outcome| outcome.verdict.arrives());
    let Some(first) = leaving.next() else {
        return Some(0);
    };
    let tos = first.carried.tos;
    leaving
        .all(|other| other.carried.tos == tos)
        .then_some(tos)?
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

/// Returns the addresses and the port of the connection whose first packet has `outcome`, as its client sent it.
pub(super) fn original(question: Question<'_>, outcome: &Outcome) -> OriginalTuple {
    OriginalTuple {
        source: outcome.sent_from,
        destination: question.flow.destination,
        port: question.flow.port,
    }
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
            carried: Carried {
                tos: Some(0),
                // These are of the client.
                ports: None,
                ..outcome.carried.clone()
            },
            proto: question.flow.proto,
            established: true,
        },
        from: port,
        original: original(question, outcome),
        back: (outcome.source != outcome.sent_from).then_some(outcome.sent_from),
        translated: is_nat && !(outcome.as_sent.destination && outcome.as_sent.port)
            || outcome.source != outcome.sent_from,
        later: false,
    }
}

/// Returns whether both IPVS and conntrack follow the connection, which only IPVS translates. Without the reply, conntrack takes the
/// client's next packet for another connection, and gives it another source port. Datagrams are of one connection all the same.
fn tracks_twice(node: &NodeSnapshot<'_>, question: Question<'_>) -> bool {
    let sysctl = node.sysctl().ok();
    let tracks = sysctl.and_then(|all| all.get("net.ipv4.vs.conntrack"));
    question.flow.proto == Proto::Tcp && tracks.is_some_and(|value| value.trim() != "0")
}
