//! Limits on the rate of packets or the number of connections: the rule after a limit drops the excess. One connection exceeds no
//! limit, but those of many clients may.

use super::judge::{Judge, Question};
use super::{By, Fault, Obstacle, is_decided};
use crate::trace::why::decisive;
use crate::trace::{Assumption, COUNT, Further, Outcome, Pace, Rule, Verdict};
use kpx_node::backend::iptables::model::{Match, Rule as Saved, Target};
use kpx_node::backend::nftables::model::{Expr, Rule as Listed, Statement, Verdict as Ends};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use kpx_node::words::number_of;

/// A limit that usual traffic exceeds, or has exceeded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Limit {
    /// The limit in words: ``the rate limit `--limit 1/sec` ``.
    pub limit: String,
    /// Whether all clients share it.
    pub is_shared: bool,
    /// Whether it is one of the packets or bytes of each connection.
    pub is_of_connection: bool,
    /// Whether usual traffic exceeds it, or has exceeded it: the traffic of all clients, or of one client whose own
    /// limit is low.
    pub is_usual: bool,
    /// The number of packets beyond the limit, if a counter shows it.
    pub exceeded: Option<u64>,
}

impl Limit {
    /// Returns the number of packets beyond the limit, as the end of a sentence: `: 36 packets so far`.
    pub fn so_far(&self) -> String {
        let exceeded = self.exceeded.filter(|count| *count > 0);
        exceeded.map_or_else(String::new, |count| {
            format!(": {} so far", number_of(count, "packet"))
        })
    }

    /// Returns the limit beyond which a rule ends `outcome`, if it is low and shared, or packets have exceeded it.
    pub fn of(outcome: &Outcome, family: Family, node: &NodeSnapshot<'_>) -> Option<Self> {
        let is_ended = matches!(outcome.verdict, Verdict::Drop | Verdict::Reject);
        let when = &outcome.when;
        if !is_ended
            || when
                .iter()
                .any(|when| when.is_astray() || !is_decided(when))
        {
            return None;
        }
        let (limit, pace) = when.iter().find_map(Assumption::exceeded)?;
        let exceeded = beyond(&Rule::of(decisive(outcome)?, family), node);
        let is_met = exceeded.is_some_and(|count| count > 0);
        let is_shared = pace.is_some_and(|pace| pace.is_shared);
        let is_count = limit.starts_with(COUNT);
        let is_low = pace.is_some_and(Pace::is_low);
        (is_met || is_shared && is_low).then(|| Self {
            limit: limit.to_owned(),
            is_shared,
            is_of_connection: is_count,
            is_usual: is_shared || is_low || is_count,
            exceeded,
        })
    }
}

impl Judge<'_> {
    /// Returns the fault of the connections that exceed a limit, where the packet itself works. A high limit for each client is only
    /// exceeded by a flood.
    pub(super) fn limited(&self, question: Question<'_>, outcomes: &[Outcome]) -> Option<Fault> {
        let family = Family::of(question.flow.destination);
        let later = self.sent_later(question).map(Further::Sent);
        let later = later.iter().flat_map(|packet| {
            let of = outcomes.iter().filter(|outcome| outcome.verdict.arrives());
            of.flat_map(|outcome| self.followed(packet, outcome).0)
        });
        let later: Vec<Outcome> = later.collect();
        outcomes.iter().chain(&later).find_map(|outcome| {
            let limit = Limit::of(outcome, family, self.node).filter(|limit| limit.is_usual)?;
            let by = By::foreign(decisive(outcome)?, family, self.node)?;
            Some(Fault::Obstacle(Box::new(Obstacle::Limited { limit, by })))
        })
    }
}

/// Returns how many packets `rule` has dropped beyond a limit: its own limit, or that of the rule before it, which takes the same
/// packets. `None` if other packets meet it, too, or its counter is not shown.
fn beyond(rule: &Rule, node: &NodeSnapshot<'_>) -> Option<u64> {
    let at = rule.number.checked_sub(1)?;
    if let Some((family, name)) = rule.table.split_once(' ').filter(|_| rule.is_nft()) {
        let chain = node.nft().ok()?.table(family, name)?.chain(&rule.chain)?;
        let own = chain.rules.get(at)?;
        let before = at.checked_sub(1).and_then(|at| chain.rules.get(at));
        let is_it = own.statements.iter().any(limits)
            || before.is_some_and(|earlier_rule| {
                earlier_rule.statements.iter().any(limits) && same(earlier_rule, own)
            });
        return rule.counter(node).filter(|_| is_it);
    }
    let (own, before) = rule.with_those_before(node)?;
    let before = before.last();
    let is_it = own.matches.iter().any(is_limit)
        || before.is_some_and(|earlier_rule| {
            earlier_rule.matches.iter().any(is_limit) && same_saved(earlier_rule, own)
        });
    rule.counter(node).filter(|_| is_it)
}

fn is_limit(of: &Match<'_>) -> bool {
    match of {
        Match::Limit { .. } => true,
        Match::Recent(recent) => recent.hitcount.is_some(),
        Match::Unknown(text) => text.contains("--connlimit-") || text.contains("--connbytes "),
        _ => false,
    }
}

/// Returns whether `before`, without its limit, takes the packets that `own` takes. If so, only packets beyond the limit reach
/// `own`.
fn same_saved(before: &Saved<'_>, own: &Saved<'_>) -> bool {
    let is_end = matches!(before.target, Some(Target::Accept | Target::Return));
    let others = before.matches.iter().filter(|matched| !is_limit(matched));
    is_end && others.eq(own.matches.iter())
}

fn limits(of: &Statement) -> bool {
    match of {
        Statement::Other(value) => value.get("limit").is_some() || value.get("ct count").is_some(),
        Statement::Match {
            left: Expr::Ct { key, .. },
            ..
        } => matches!(key.as_str(), "packets" | "bytes"),
        _ => false,
    }
}

/// Returns the same for rules of nftables.
fn same(before: &Listed, own: &Listed) -> bool {
    let is_end = |statement: &Statement| {
        matches!(statement, Statement::Verdict(Ends::Accept | Ends::Return))
    };
    let is_match = |statement: &&Statement| matches!(statement, Statement::Match { .. });
    let asked = before.statements.iter().filter(is_match);
    before.statements.iter().any(is_end) && asked.eq(own.statements.iter().filter(is_match))
}
