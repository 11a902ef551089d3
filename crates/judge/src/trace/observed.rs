//! The path of one packet as the kernel traced it, beside the path that was computed.

use std::cmp::Reverse;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use super::hop::{Assumption, Effect, Hook, Hop, Outcome, Subsystem, Verdict};
use kpx_node::evidence::traced::{
    About, ChainName, Event, Headers, InLegacy, LEGACY, OWN_CHAINS, Ruling, TRACKED, Traced,
};
use kpx_node::net::Family;

/// Index of `lo` in every network namespace.
const LO: u32 = 1;

/// The messages of one packet come within this time.
const REST: Duration = Duration::from_millis(60);

/// A packet without a message for this long reaches no further rule.
const LOST: Duration = Duration::from_millis(600);

/// One packet as the kernel traced it.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// The hook at which it entered: [`Hook::Prerouting`] or [`Hook::Output`].
    pub entry: Hook,
    /// The packet as it was sent.
    pub sent: Headers,
    /// Index of the link it came in by.
    pub input: Option<u32>,
    /// The rules that matched, and policies, in order.
    pub steps: Vec<Step>,
    /// How it ended.
    pub end: End,
}

/// A rule that matched, or a policy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Step {
    /// The hook.
    pub hook: Hook,
    /// Family and name of the table: `ip nat`; `legacy nat` in the legacy back end of iptables.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// The number of the rule in its chain, from 1; 0 for the policy; `None` for a rule that was gone when kpx asked.
    pub number: Option<usize>,
    /// Its effect.
    pub ruling: Ruling,
}

/// How a packet ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// It left the node: its kind, and the index of the link.
    Left(Headers, Option<u32>),
    /// It reached a socket of the node.
    Arrived(Headers),
    /// A rule or a policy dropped it, perhaps with an answer.
    Dropped,
    /// Its last message was about the last step.
    Vanished,
}

/// A predicted path beside an observed one.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The position of the outcome that fits the packet best.
    pub outcome: usize,
    /// Steps of both, in order.
    pub lines: Vec<Line>,
    /// Whether it ended as predicted.
    pub ends_alike: bool,
}

/// A step of the predicted path, of the observed one, or of both.
#[derive(Clone, Debug)]
pub enum Line {
    /// Both have it.
    Both(Rc<Hop>),
    /// Only the prediction has it, although the kernel traces such steps.
    Predicted(Rc<Hop>),
    /// The prediction has it, and the kernel traces no such step.
    Untraced(Rc<Hop>),
    /// Only the observed path has it.
    Observed(Step),
}

impl Comparison {
    /// Returns the position of the first line that differs.
    pub fn first_difference(&self) -> Option<usize> {
        let differs = |line: &Line| matches!(line, Line::Predicted(_) | Line::Observed(_));
        self.lines.iter().position(differs)
    }

    /// Returns whether the packet went and ended as predicted.
    pub fn agrees(&self) -> bool {
        self.ends_alike && self.first_difference().is_none()
    }
}

/// Returns whether `traced` has a packet's whole path, after `quiet` without a message.
pub fn is_complete(traced: &Traced, quiet: Duration) -> bool {
    observed(traced).is_some_and(|packet| {
        let patience = match packet.end {
            // Packets that leave by lo come in again.
            End::Left(_, Some(LO)) | End::Vanished => LOST,
            End::Left(..) | End::Arrived(_) | End::Dropped => REST,
        };
        quiet >= patience
    })
}

/// Returns the first wanted packet in `traced`: one that the rules of kpx's own table chose, and whose connection is in
/// the wanted state.
pub fn observed(traced: &Traced) -> Option<Observed> {
    let mut at = 0;
    loop {
        let mut rest = traced.events[at..].iter();
        let first = at + rest.position(|event| begins(traced, event))?;
        let packet = follow(traced, first);
        if packet.is_some() {
            return packet;
        }
        at = first + 1;
    }
}

/// Returns whether a rule of kpx's own chose the packet.
fn begins(traced: &Traced, event: &Event) -> bool {
    let mut chains = OWN_CHAINS[..4].iter();
    is_own(traced, event)
        && matches!(event.about, About::Rule(_))
        && chains.any(|own| own.name == event.chain.chain)
}

fn is_own(traced: &Traced, event: &Event) -> bool {
    event.chain.table == traced.own
}

/// Follows the packet of the event at `first`; `None` if its connection is in another state.
fn follow(traced: &Traced, first: usize) -> Option<Observed> {
    let start = &traced.events[first];
    let mut packet = Observed {
        entry: hook(
            OWN_CHAINS
                .iter()
                .find(|own| own.name == start.chain.chain)?
                .hook,
        )?,
        sent: start.headers?,
        input: start.input,
        steps: Vec::new(),
        end: End::Vanished,
    };
    let (mut id, mut at, mut last) = (start.packet, packet.entry, packet.sent);
    // Whether its connection is in the state that is wanted.
    let mut fits = OWN_CHAINS[2..4]
        .iter()
        .any(|own| own.name == start.chain.chain);
    for event in &traced.events[first + 1..] {
        // A packet that comes in by another link, such as lo or the bridge of its port, gets another number. Where rules are
        // in legacy tables, it may be noticed only when the packet leaves, after they changed its source.
        if event.packet != id {
            let leaves = is_own(traced, event) && event.chain.chain == "left";
            let goes_on = event.headers.is_some_and(|now| {
                now.source == last.source || leaves && now.destination == last.destination
            });
            if !goes_on || begins(traced, event) && event.input != Some(LO) {
                continue;
            }
            id = event.packet;
        }
        last = event.headers.unwrap_or(last);
        if let Some(Some(base)) = traced.chains.get(&event.chain) {
            at = hook(base.hook).unwrap_or(at);
        }
        if is_own(traced, event) {
            let own = OWN_CHAINS
                .iter()
                .find(|own| own.name == event.chain.chain)?;
            match (own.name, event.headers, event.about) {
                ("left", Some(headers), _) => packet.end = End::Left(headers, event.output),
                ("arrived", Some(headers), _) => packet.end = End::Arrived(headers),
                // The kernel uses numbers again.
                (_, _, About::Rule(_)) if event.chain == start.chain => break,
                (_, _, About::Rule(_)) if own.priority == TRACKED => fits = true,
                (_, _, About::Policy) if own.priority == TRACKED && at == packet.entry && !fits => {
                    return None;
                }
                _ => {}
            }
            continue;
        }
        let ruling = event.verdict.clone();
        packet.steps.push(Step {
            hook: at,
            table: format!("{} {}", event.chain.family, event.chain.table),
            chain: event.chain.chain.clone(),
            number: match event.about {
                About::Rule(handle) => traced.rules.get(&event.chain).and_then(|handles| {
                    let found = handles.iter().position(|other| *other == handle);
                    found.map(|at| at + 1)
                }),
                About::Policy => Some(0),
                About::End => continue,
            },
            ruling,
        });
        if event.verdict == Ruling::Drop {
            packet.end = End::Dropped;
            break;
        }
    }
    Some(packet)
}

/// Returns the hook with the kernel's number.
fn hook(number: u32) -> Option<Hook> {
    Some(match number {
        0 => Hook::Prerouting,
        1 => Hook::Input,
        2 => Hook::Forward,
        3 => Hook::Output,
        4 => Hook::Postrouting,
        _ => return None,
    })
}

/// How steps of both paths are compared.
#[derive(Clone, Copy, Debug)]
pub struct Means<'t> {
    /// The kernel's messages.
    pub traced: &'t Traced,
    /// Whether rules have the same numbers on both sides; not for rules that kube-proxy would write.
    pub numbered: bool,
    /// Whether the kernel traces packets before connection tracking.
    pub from_the_beginning: bool,
    /// Whether the nft back end of iptables, whose rules the kernel traces, is not the one in use.
    pub nft_is_other: bool,
}

/// The parts of a step that are compared.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Key {
    hook: Hook,
    table: String,
    chain: String,
    number: Option<usize>,
    ruling: Ruling,
}

impl Key {
    fn of(step: &Step, numbered: bool) -> Self {
        Self {
            hook: step.hook,
            table: step.table.clone(),
            chain: step.chain.clone(),
            number: step.number.filter(|_| numbered),
            ruling: step.ruling.clone(),
        }
    }
}

/// Compares the observed path with that outcome which it fits best. `outcomes` is not empty.
pub fn compare(outcomes: &[Outcome], packet: &Observed, means: &Means<'_>) -> Option<Comparison> {
    let all = outcomes.iter().enumerate().map(|(at, outcome)| Comparison {
        outcome: at,
        lines: lines(outcome, packet, means),
        ends_alike: ends_alike(outcome, packet),
    });
    all.min_by_key(|comparison| {
        let differs = |line: &&Line| matches!(line, Line::Predicted(_) | Line::Observed(_));
        let differing = comparison.lines.iter().filter(differs).count();
        (
            differing + usize::from(!comparison.ends_alike),
            Reverse(comparison.first_difference()),
        )
    })
}

fn lines(outcome: &Outcome, packet: &Observed, means: &Means<'_>) -> Vec<Line> {
    let family = Family::of(packet.sent.destination.ip());
    let predicted = groups(outcome, packet.entry, family, means);
    let keys: Vec<_> = predicted
        .iter()
        .filter_map(|(key, _)| key.clone())
        .collect();
    let observed: Vec<(Key, &Step)> = packet
        .steps
        .iter()
        .map(|step| (Key::of(step, means.numbered), step))
        // Rules without an effect on the way are no hops.
        .filter(|(key, step)| {
            let passes = step.ruling == Ruling::Continue
                || step.number == Some(0) && step.ruling == Ruling::Accept;
            !passes || keys.contains(key)
        })
        .collect();
    let common = common(&keys, &observed);
    let mut lines = Vec::new();
    let (mut seen, mut place) = (0, 0);
    for (key, hops) in predicted {
        let make: fn(Rc<Hop>) -> Line = if key.is_none() {
            Line::Untraced
        } else {
            // Observed steps between two common ones come before the predicted ones.
            let next = common[place..].iter().find_map(|at| *at);
            let between = observed[seen..next.unwrap_or(observed.len())].iter();
            lines.extend(between.map(|(_, step)| Line::Observed((*step).clone())));
            seen = next.unwrap_or(observed.len());
            let both = common[place].is_some();
            place += 1;
            seen += usize::from(both);
            if both { Line::Both } else { Line::Predicted }
        };
        lines.extend(hops.into_iter().map(make));
    }
    let rest = observed[seen..].iter();
    lines.extend(rest.map(|(_, step)| Line::Observed((*step).clone())));
    lines
}

/// Groups the hops of one rule, with the key of the kernel's message about it; without a key if the kernel has no
/// message.
fn groups(
    outcome: &Outcome,
    entry: Hook,
    family: Family,
    means: &Means<'_>,
) -> Vec<(Option<Key>, Vec<Rc<Hop>>)> {
    let mut groups: Vec<(Option<Key>, Vec<Rc<Hop>>)> = Vec::new();
    let iptables = !means.nft_is_other && is_nft(&outcome.hops, family, means.traced);
    let mut early = !means.from_the_beginning;
    for hop in &outcome.hops {
        let of_nft = match hop.subsystem {
            Subsystem::Iptables => Some(iptables),
            Subsystem::IptablesOther => Some(means.nft_is_other),
            Subsystem::Nftables
            | Subsystem::Arptables
            | Subsystem::Ipvs
            | Subsystem::Routing
            | Subsystem::Process => None,
        };
        let table = match of_nft {
            Some(true) => format!("{} {}", family.nft_name(), hop.table),
            Some(false) => format!("{LEGACY} {}", hop.table),
            None => hop.table.clone(),
        };
        let mut bases = means.traced.chains.iter();
        let of_base = bases.find_map(|(name, base)| {
            let base = base.filter(|_| name.chain == hop.chain)?;
            (format!("{} {}", name.family, name.table) == table).then_some(base)
        });
        if let Some(base) = of_base {
            early &= base.priority < TRACKED;
        }
        early &= hop.hook == entry;
        let traced = match of_nft {
            Some(of_nft) => of_nft || means.traced.legacy == InLegacy::Traced,
            None => hop.subsystem == Subsystem::Nftables,
        };
        let key = (traced && !early).then(|| Key {
            hook: hop.hook,
            table,
            chain: hop.chain.clone(),
            number: means.numbered.then_some(hop.number),
            ruling: ruling(&hop.effect),
        });
        let of_rule = |(_, hops): &&mut (Option<Key>, Vec<Rc<Hop>>)| {
            hops.last().is_some_and(|last| {
                hop.number != 0
                    && (
                        last.hook,
                        last.subsystem,
                        &last.table,
                        &last.chain,
                        last.number,
                    ) == (hop.hook, hop.subsystem, &hop.table, &hop.chain, hop.number)
            })
        };
        match groups.last_mut().filter(of_rule) {
            Some((last, hops)) => {
                *last = key;
                hops.push(Rc::clone(hop));
            }
            None => groups.push((key, vec![Rc::clone(hop)])),
        }
    }
    groups
}

/// Returns whether the rules of iptables on a path belong to the nft back end: it may have built-in chains although the
/// legacy one is in use, but no other chains.
fn is_nft(hops: &[Rc<Hop>], family: Family, traced: &Traced) -> bool {
    let has = |table: &str, chain: &str| {
        traced.chains.contains_key(&ChainName {
            family: family.nft_name(),
            table: table.to_owned(),
            chain: chain.to_owned(),
        })
    };
    let own =
        |hop: &&Rc<Hop>| hop.subsystem == Subsystem::Iptables && hop.chain != hop.hook.chain();
    let mut own = hops.iter().filter(own).peekable();
    if own.peek().is_none() {
        return has("nat", Hook::Prerouting.chain());
    }
    own.any(|hop| has(&hop.table, &hop.chain))
}

/// Returns the kernel's verdict for an effect.
fn ruling(effect: &Effect) -> Ruling {
    match effect {
        Effect::Jump { to } => Ruling::Jump(to.clone()),
        Effect::Goto { to } => Ruling::Goto(to.clone()),
        Effect::Return => Ruling::Return,
        Effect::Accept | Effect::Dnat { .. } | Effect::Snat { .. } | Effect::Masquerade { .. } => {
            Ruling::Accept
        }
        Effect::Drop | Effect::Reject { .. } => Ruling::Drop,
        Effect::Queue => Ruling::Taken,
        Effect::Mark { .. }
        | Effect::Ttl { .. }
        | Effect::Untrack
        | Effect::Zone { .. }
        | Effect::Balance { .. }
        | Effect::Relay { .. }
        | Effect::NoServer { .. }
        | Effect::ToHost
        | Effect::Out { .. }
        | Effect::Nowhere { .. }
        | Effect::Other { .. } => Ruling::Continue,
    }
}

/// Returns the position in `observed` of each predicted step that a longest common subsequence of both has.
fn common(predicted: &[Key], observed: &[(Key, &Step)]) -> Vec<Option<usize>> {
    let (rows, columns) = (predicted.len(), observed.len());
    // The lengths for what follows each pair of positions.
    let mut longest = vec![vec![0usize; columns + 1]; rows + 1];
    for row in (0..rows).rev() {
        for column in (0..columns).rev() {
            longest[row][column] = if predicted[row] == observed[column].0 {
                longest[row + 1][column + 1] + 1
            } else {
                longest[row + 1][column].max(longest[row][column + 1])
            };
        }
    }
    let mut column = 0;
    (0..rows)
        .map(|row| {
            while column < columns
                && predicted[row] != observed[column].0
                && longest[row][column + 1] == longest[row][column]
                && longest[row + 1][column] < longest[row][column]
            {
                column += 1;
            }
            let found = column < columns && predicted[row] == observed[column].0;
            found.then(|| {
                column += 1;
                column - 1
            })
        })
        .collect()
}

fn ends_alike(outcome: &Outcome, packet: &Observed) -> bool {
    let arrives = |headers: &Headers| {
        let to = headers.destination;
        let chosen = outcome.when.iter().find_map(|when| match when {
            Assumption::Address { first, last, .. } => Some((*first..=*last).contains(&to.ip())),
            Assumption::Answer { .. } | Assumption::Port { .. } | Assumption::Unseen { .. } => None,
        });
        let of_range = |when: &Assumption| matches!(when, Assumption::Port { first, last, .. } if (*first..=*last).contains(&to.port()));
        let port = to.port() == 0
            || to.port() == outcome.destination.1
            || outcome.when.iter().any(of_range);
        chosen.unwrap_or(to.ip() == outcome.destination.0)
            && port
            && headers.source.ip() == outcome.source
    };
    match (outcome.verdict, &packet.end) {
        (Verdict::Deliver | Verdict::Unmatched, End::Left(headers, _))
        | (Verdict::Deliver | Verdict::Local, End::Arrived(headers)) => arrives(headers),
        (Verdict::Drop | Verdict::Reject, End::Dropped | End::Vanished) => true,
        _ => false,
    }
}

impl Observed {
    /// Returns the packet as it ended, unless it was dropped.
    pub fn last(&self) -> Option<(SocketAddr, SocketAddr)> {
        match self.end {
            End::Left(headers, _) | End::Arrived(headers) => {
                Some((headers.source, headers.destination))
            }
            End::Dropped | End::Vanished => None,
        }
    }
}

#[cfg(test)]
mod tests;
