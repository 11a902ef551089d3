//! Nat chains of the same priority: the kernel first runs the one that was registered last, which no evidence shows for certain
//! across tables. A packet is followed in every order; differing results are unknown.
//!
//! A connection that is tracked for the same address was translated in the kernel's order. If recent ones went where only the
//! likely order leads, that is the order. If they went elsewhere, the order stays unknown: they may be older than a chain.

use std::net::SocketAddr;

use super::branch::{Branch, End, Ends};
use super::hop::{Assumption, Question};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::conntrack::Entry;

/// One order of the chains: the question that would make it the kernel's order (none for the likely one), and its result.
pub(super) struct Ordered<'q> {
    pub(super) question: Option<&'q str>,
    pub(super) ends: Ends,
}

/// The place of the likely order among all.
const LIKELY: usize = 0;

/// Returns the ways of a packet over all possible `orders`; the first is the likely one. `can_be_seen` says whether tracked
/// connections show which one it is, and `is_sent_here` whether the node sends it: other chains translate what comes in.
pub(super) fn reconcile(
    node: &NodeSnapshot<'_>,
    sent: &Branch,
    can_be_seen: bool,
    is_sent_here: bool,
    mut orders: Vec<Ordered<'_>>,
) -> Ends {
    let mut different: Vec<Ordered<'_>> = Vec::new();
    for order in orders.drain(..) {
        if different
            .iter()
            .all(|other| !is_same(&other.ends, &order.ends))
        {
            different.push(order);
        }
    }
    let is_recorded = sent.packet.seen.is_some() || sent.packet.alike.is_some();
    let is_shown = || {
        can_be_seen && !is_recorded && shown(node, sent, is_sent_here, &different) == Some(LIKELY)
    };
    if different.len() == 1 || is_shown() {
        return different.swap_remove(LIKELY).ends;
    }
    let questions: Vec<&str> = different
        .iter()
        .filter_map(|order| order.question)
        .collect();
    let share = 1.0 / f64::from(u32::try_from(different.len().max(1)).unwrap_or(u32::MAX));
    let answer = |question: &str, holds| Assumption::Answer {
        question: Question::Order(question.to_owned()),
        holds,
    };
    let mut all = Ends::new();
    for order in &different {
        for (branch, end) in &order.ends {
            let mut branch = branch.clone();
            branch.weight *= share;
            match order.question {
                Some(question) => branch.when.push(answer(question, true)),
                None => branch
                    .when
                    .extend(questions.iter().map(|question| answer(question, false))),
            }
            all.push((branch, end.clone()));
        }
    }
    all
}

/// How long the kernel keeps a connection in each state of TCP, unless a sysctl says otherwise: from it follows when the entry
/// was last renewed. Established ones are kept for days.
const KEPT: &[(&str, u32)] = &[
    ("SYN_SENT", 120),
    ("SYN_RECV", 60),
    ("FIN_WAIT", 120),
    ("CLOSE_WAIT", 60),
    ("LAST_ACK", 30),
    ("TIME_WAIT", 120),
    ("CLOSE", 10),
];

/// The same for datagrams that got no answer.
const UNREPLIED: u32 = 30;

/// If two connections lead differently, the newer one shows the order only if it is newer by this many seconds.
const APART: u32 = 5;

/// Returns how many seconds ago `entry` was renewed, if its state shows it.
fn age(entry: &Entry) -> Option<u32> {
    let kept = match &entry.state {
        Some(state) => KEPT.iter().find(|(of, _)| of == state)?.1,
        None if entry.unreplied => UNREPLIED,
        None => return None,
    };
    kept.checked_sub(entry.timeout?)
}

/// Returns which of `orders` the newest tracked connections to the same address show.
fn shown(
    node: &NodeSnapshot<'_>,
    sent: &Branch,
    is_sent_here: bool,
    orders: &[Ordered<'_>],
) -> Option<usize> {
    let own = &node.addresses().ok()?.all;
    let is_own = |addr| own.iter().any(|at| at.addr.addr == addr);
    let target = SocketAddr::from(sent.packet.target());
    let proto = sent.packet.proto().exact();
    let of_target = node.conntrack().ok()?.entries.iter().filter(|entry| {
        entry.proto.number() == proto
            && entry.original.destination == target
            && is_own(entry.original.source.ip()) == is_sent_here
    });
    let leads = |order: &Ordered<'_>, to: SocketAddr| {
        let mut ends = order.ends.iter();
        ends.any(|(branch, _)| SocketAddr::from(branch.packet.target()) == to)
    };
    let mut newest: Vec<Option<u32>> = vec![None; orders.len()];
    for entry in of_target {
        let mut fitting = (0..orders.len()).filter(|at| leads(&orders[*at], entry.reply.source));
        if let (Some(only), None, Some(age)) = (fitting.next(), fitting.next(), age(entry)) {
            newest[only] = Some(newest[only].map_or(age, |other| other.min(age)));
        }
    }
    let seen = newest.iter().enumerate();
    let mut seen: Vec<(u32, usize)> = seen.filter_map(|(at, age)| Some(((*age)?, at))).collect();
    seen.sort_unstable();
    match seen.as_slice() {
        [(_, only)] => Some(*only),
        [(first, at), (second, _), ..] if second - first >= APART => Some(*at),
        _ => None,
    }
}

/// Returns whether packets end alike: as the same packets, as often.
fn is_same(one: &Ends, other: &Ends) -> bool {
    let is_in = |(branch, end): &(Branch, End), ends: &Ends| {
        let mut same = ends
            .iter()
            .filter(|(of, to)| to == end && of.packet == branch.packet);
        same.any(|(of, _)| (of.weight - branch.weight).abs() < 1e-9 && of.when == branch.when)
    };
    one.len() == other.len()
        && one.iter().all(|end| is_in(end, other))
        && other.iter().all(|end| is_in(end, one))
}
