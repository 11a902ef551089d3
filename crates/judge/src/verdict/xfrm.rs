//! Policies of IPsec: each packet asks them when it is routed out, forwarded or taken in, and so does its reply.
//!
//! Sources: `xfrm_policy.c`, `ip_forward.c`, `nf_nat_core.c` and `nf_nat_proto.c` of Linux 5.10 to 6.18. Before a packet is
//! forwarded or delivered, policies see the addresses that it came with; before it goes out, its current ones.
//!
//! Older bundles do not have this item.

use std::net::IpAddr;

use super::judge::{Judge, Question};
use super::{Fault, Missing, Obstacle};
use crate::trace::{Entry, Outcome};
use kpx_node::net::Proto;
use kpx_node::node::xfrm::{Direction, Policy, State, Template};

/// A packet that asks for a policy.
#[derive(Clone, Copy, Debug)]
struct Asks<'o> {
    direction: Direction,
    /// The port of a client is one of many.
    source: (IpAddr, Option<u16>),
    destination: (IpAddr, Option<u16>),
    /// The link by which it came.
    input: Option<&'o str>,
    /// The link by which it leaves.
    output: Option<&'o str>,
}

/// The effect of the policies on a packet.
#[derive(Debug, Default)]
struct Answer<'n> {
    /// The policies that drop it: each drops it once the policies before are removed.
    blocked: Vec<&'n Policy>,
    /// The first policy with an unknown effect, and whether a daemon may still set up its security association.
    unsure: Option<(&'n Policy, bool)>,
}

/// The ports of the daemons that set up security associations on demand (IKE).
const IKE: [u16; 2] = [500, 4500];

/// What a packet finds for the templates of a policy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Association {
    /// It may be in IPsec.
    Possible,
    /// It needs none, and there is none.
    Unneeded,
    /// There is none.
    Missing,
    /// There is none, and a daemon may set one up.
    Awaited,
}

impl Judge<'_> {
    /// Returns the fault of a packet that policies of IPsec drop, or its reply.
    pub(super) fn blocked_by_ipsec(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
    ) -> Option<Fault> {
        if self.node.xfrm().ok()?.all.is_empty() {
            return None;
        }
        let mut policies: Vec<Policy> = Vec::new();
        let mut refused = false;
        let came_by = self.came_in_by(question, outcome);
        let asks = self.asks(question, outcome, came_by.as_deref());
        for (at, asks) in asks.into_iter().enumerate() {
            let answer = self.answer(question.flow.proto, asks);
            // A program's own first packet fails before it is sent.
            if at == 0 && question.flow.entry == Entry::Host && !answer.blocked.is_empty() {
                refused = true;
            }
            for policy in answer.blocked {
                if !policies.contains(policy) {
                    policies.push(policy.clone());
                }
            }
        }
        (!policies.is_empty())
            .then(|| Fault::Obstacle(Box::new(Obstacle::Xfrm { policies, refused })))
    }

    /// Returns the fault of the messages by which the node at `own` and its neighbour `next` on `link` find each other (IPv6), if policies
    /// block them.
    pub(super) fn blocked_messages(&self, link: &str, own: IpAddr, next: IpAddr) -> Option<Fault> {
        let message = |direction, source, destination| Asks {
            direction,
            source: (source, None),
            destination: (destination, None),
            input: Some(link),
            output: Some(link),
        };
        let all = [
            message(Direction::In, next, own),
            message(Direction::Out, own, next),
        ];
        let mut answers = all.map(|asks| self.answer(Proto::Icmpv6, asks)).into_iter();
        let blocked = answers.find(|answer| !answer.blocked.is_empty())?.blocked;
        Some(Fault::Obstacle(Box::new(Obstacle::Xfrm {
            policies: blocked.into_iter().cloned().collect(),
            refused: false,
        })))
    }

    /// Returns the doubt about a packet for which a policy asks for IPsec, or may drop it.
    pub(super) fn unsure_ipsec(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        match self.node.xfrm() {
            Ok(policies) if policies.all.is_empty() => return None,
            Ok(_) => {}
            Err(gap) if self.is_of_old(&gap) => return None,
            Err(gap) => {
                let what = "the policies of IPsec are unknown";
                return Some(Fault::Unknown(Missing::Gap { what, gap }));
            }
        }
        let came_by = self.came_in_by(question, outcome);
        let mut all = self.asks(question, outcome, came_by.as_deref()).into_iter();
        let unsure = all.find_map(|asks| self.answer(question.flow.proto, asks).unsure);
        let (policy, is_awaited) = unsure?;
        Some(Fault::Unknown(Missing::Unmodelled(format!(
            "the xfrm policy `{policy}` {}",
            if is_awaited {
                "has no security association: the packets are lost until a daemon of IPsec sets one up".to_owned()
            } else if let Some(end) = self.foreign_end(policy) {
                format!(
                    "sends the packets through IPsec to {end}, which is no Node: whether they reach their endpoints from there is unknown"
                )
            } else if !policy.templates.is_empty() {
                "sends the packets through IPsec, which kpx does not model".to_owned()
            } else {
                "may block the packets".to_owned()
            }
        ))))
    }

    /// Returns the doubt about a packet that a policy of IPsec is for until a rule replaces its source: it leaves without IPsec then.
    pub(super) fn past_ipsec(&self, proto: Proto, outcome: &Outcome) -> Option<Fault> {
        let all = &self.node.xfrm().ok()?.all;
        let asks = |source| Asks {
            direction: Direction::Out,
            source: (source, None),
            destination: (outcome.destination.0, Some(outcome.destination.1)),
            input: None,
            output: outcome.leaves_by(),
        };
        let takes = |policy: &&Policy, source| {
            policy.direction == Direction::Out
                && !policy.templates.is_empty()
                && matches(policy, proto, asks(source)) == Some(true)
        };
        let policy = all.iter().find(|policy| takes(policy, outcome.sent_from))?;
        let is_left = !all.iter().any(|policy| takes(&policy, outcome.source));
        (outcome.source != outcome.sent_from && is_left).then(|| {
            Fault::Unknown(Missing::Unmodelled(format!(
                "a rule replaces the source {} of the packets by {}, so the xfrm policy `{policy}` does not take them, and they leave without \
                 IPsec: whether anything answers them then is unknown. A rule before it can spare them (`-m policy --dir out --pol ipsec -j \
                 ACCEPT`)",
                outcome.sent_from, outcome.source
            )))
        })
    }

    /// Returns the other end of the tunnel of `policy`, if no Node and no link of this one has that address.
    fn foreign_end(&self, policy: &Policy) -> Option<IpAddr> {
        self.node.nodes().ok()?;
        let mut ends = policy
            .templates
            .iter()
            .map(|template| template.of.destination);
        ends.find(|end| {
            !end.is_unspecified()
                && self.peers().with_address(*end).is_none()
                && self.places.own(*end).is_none()
        })
    }

    /// Returns what the packet and its reply ask for, in their order.
    fn asks<'o>(
        &self,
        question: Question<'_>,
        outcome: &'o Outcome,
        came_by: Option<&'o str>,
    ) -> Vec<Asks<'o>> {
        use Direction::{Forward, In, Out};
        let flow = question.flow;
        let client = (outcome.sent_from, None);
        let source = (outcome.source, None);
        let service = (flow.destination, Some(flow.port));
        let end = (outcome.destination.0, Some(outcome.destination.1));
        let leaves_by = outcome.leaves_by();
        let there = |direction, source, destination| Asks {
            direction,
            source,
            destination,
            input: came_by,
            output: leaves_by,
        };
        let back = |direction, source, destination| Asks {
            direction,
            source,
            destination,
            input: leaves_by,
            output: came_by,
        };
        let is_own = flow.entry == Entry::Host;
        // lo is outside of IPsec, and a bridge passes packets on without asking.
        if outcome.bridged || is_own && self.ends_here(outcome) {
            return Vec::new();
        }
        if self.ends_here(outcome) {
            return vec![
                there(In, client, service),
                back(Out, end, client),
                back(Out, service, client),
            ];
        }
        if is_own {
            return vec![
                // The link of the address that is translated is not known.
                Asks {
                    output: None,
                    ..there(Out, client, service)
                },
                there(Out, client, end),
                there(Out, source, end),
                back(In, end, source),
            ];
        }
        vec![
            there(Forward, client, service),
            there(Out, client, end),
            there(Out, source, end),
            back(Forward, end, source),
            back(Out, end, client),
            back(Out, service, client),
        ]
    }

    fn answer(&self, proto: Proto, asks: Asks<'_>) -> Answer<'_> {
        let mut answer = Answer::default();
        if self.asks_nothing(asks) {
            return answer;
        }
        let all = self.node.xfrm().map_or(&[][..], |all| all.all.as_slice());
        let mut may_pass = false;
        for policy in all
            .iter()
            .filter(|policy| policy.direction == asks.direction)
        {
            let association = self.association(policy, asks);
            let passes = !policy.blocks && association == Association::Unneeded;
            let stops = policy.blocks || association == Association::Missing;
            let unsure = (policy, association == Association::Awaited);
            match matches(policy, proto, asks) {
                Some(false) => {}
                Some(true) if passes => break,
                None if passes => may_pass = true,
                Some(true) if stops && !may_pass && answer.unsure.is_none() => {
                    answer.blocked.push(policy);
                }
                Some(true) => {
                    answer.unsure = answer.unsure.or(Some(unsure));
                    break;
                }
                None => answer.unsure = answer.unsure.or(Some(unsure)),
            }
        }
        answer
    }

    /// Returns whether the node has the security associations that `policy` asks for.
    fn association(&self, policy: &Policy, asks: Asks<'_>) -> Association {
        let needed = || {
            policy
                .templates
                .iter()
                .filter(|template| !template.is_optional)
        };
        if asks.direction != Direction::Out {
            // Packets that come without IPsec pass if the templates are optional.
            return match needed().next() {
                None => Association::Unneeded,
                Some(_) => Association::Possible,
            };
        }
        let states = match self.node.xfrm_states() {
            Ok(states) => states,
            Err(_) if policy.templates.is_empty() => return Association::Unneeded,
            Err(_) => return Association::Possible,
        };
        let fits = |template: &Template, state: &State| {
            let of = &template.of;
            let (source, destination) = match of.mode.as_str() {
                "transport" => (asks.source.0, asks.destination.0),
                _ => (of.source, of.destination),
            };
            let is_end = |wanted: IpAddr, address| wanted.is_unspecified() || wanted == address;
            is_end(source, state.source)
                && is_end(destination, state.destination)
                && (of.spi == 0 || of.spi == state.spi)
                && (&of.proto, &of.mode, of.request, policy.if_id)
                    == (&state.proto, &state.mode, state.request, state.if_id)
        };
        let found = |template: &Template, is_set_up: bool| {
            let mut states = states.iter();
            states.any(|state| fits(template, state) && (state.spi != 0) == is_set_up)
        };
        if needed().all(|template| found(template, true)) {
            let mut all = policy.templates.iter();
            return if all.any(|template| found(template, true)) {
                Association::Possible
            } else {
                Association::Unneeded
            };
        }
        let is_asked_for = needed().any(|template| found(template, false));
        let has_daemon = || {
            let sockets = self.node.sockets().ok().filter(|all| all.gaps.is_empty())?;
            let mut all = sockets.listening.iter();
            Some(all.any(|socket| socket.proto == Proto::Udp && IKE.contains(&socket.local.port())))
        };
        if is_asked_for || has_daemon() != Some(false) {
            Association::Awaited
        } else {
            Association::Missing
        }
    }

    /// Returns whether a setting of the link takes packets out of IPsec.
    fn asks_nothing(&self, asks: Asks<'_>) -> bool {
        let (link, name) = match asks.direction {
            Direction::Out => (asks.output, "disable_xfrm"),
            Direction::In | Direction::Forward => (asks.input, "disable_policy"),
        };
        let (Some(link), Ok(sysctl)) = (link, self.node.sysctl()) else {
            return false;
        };
        let family = match asks.source.0 {
            IpAddr::V4(_) => "ipv4",
            IpAddr::V6(_) => "ipv6",
        };
        let is_on = |device: &str| {
            let key = format!("net.{family}.conf.{device}.{name}");
            sysctl.get(&key) == Some("1")
        };
        is_on("all") || is_on(&link.replace('.', "/"))
    }
}

/// Returns whether `policy` is for a packet; `None` if that is not known.
fn matches(policy: &Policy, proto: Proto, asks: Asks<'_>) -> Option<bool> {
    let known = |policy: Option<u16>, packet: Option<u16>| match (policy, packet) {
        (None, _) => Some(true),
        (Some(of), Some(port)) => Some(of == port),
        (Some(_), None) => None,
    };
    let link = match (&policy.link, asks.output) {
        (None, _) => Some(true),
        (Some(of), Some(link)) => Some(of == link),
        (Some(_), None) => None,
    };
    // If only some packets have a mark, kpx does not know whether these have it.
    let mark = match policy.mark {
        None | Some((_, 0)) => Some(true),
        Some(_) => None,
    };
    let parts = [
        Some(policy.if_id == 0),
        Some(policy.source.contains(asks.source.0)),
        Some(policy.destination.contains(asks.destination.0)),
        Some(
            policy
                .proto
                .is_none_or(|policy_proto| policy_proto == proto),
        ),
        known(policy.source_port, asks.source.1),
        known(policy.destination_port, asks.destination.1),
        link,
        mark,
        policy.unknown.is_empty().then_some(true),
    ];
    if parts.contains(&Some(false)) {
        return Some(false);
    }
    parts.iter().all(Option::is_some).then_some(true)
}
