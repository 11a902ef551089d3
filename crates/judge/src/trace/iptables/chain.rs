//! Running chains of iptables.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smallvec::{SmallVec, smallvec};

use super::matches::{self, Context};
use crate::trace::hop::{Assumption, Effect, Hook, Hop, Question, Subsystem};
use crate::trace::packet::{Likelihood, Link};
use crate::trace::route::{Decision, Lookup};
use crate::trace::walk::{Branch, Branches, End, Ends, Walker};
use crate::trace::{Chains, Stop, ttl};
use kpx_node::backend::iptables::model::{
    Chain, Connmark, Match, NOT_SHOWN, Nat, Policy, RecentAction, Rule, Target,
};
use kpx_node::net::{Family, Mark};
use kpx_node::node::IptablesBackend;

/// More levels than any known program uses; nftables allows 16.
const DEEPEST: usize = 64;

/// Targets that leave the packet and its way as they are.
const WITHOUT_EFFECT: [&str; 20] = [
    "LOG",
    "NFLOG",
    "ULOG",
    "TRACE",
    "AUDIT",
    "TCPMSS",
    "CHECKSUM",
    "CLASSIFY",
    "SET",
    "DSCP",
    "TOS",
    "ECN",
    "SECMARK",
    "CONNSECMARK",
    "IDLETIMER",
    "LED",
    "RATEEST",
    "TCPOPTSTRIP",
    "HMARK",
    "SYNPROXY",
];

/// Where a chain runs.
struct At<'x, 'n, 'a> {
    hook: Hook,
    chains: &'x Chains<'a>,
    table: &'x str,
    context: &'x Context<'x, 'n>,
}

/// Runs the built-in chain of `table` for `hook`.
pub(crate) fn base<'n, 'a>(
    walker: &Walker<'_, 'n, 'a>,
    mut branch: Branch,
    hook: Hook,
    chains: &Chains<'a>,
    table: &str,
    context: &Context<'_, 'n>,
) -> Result<Ends, Stop> {
    let Some(chain) = chains.chain(table, hook.chain())? else {
        let chain = hook.chain();
        if !chains.is_unseen(table, chain)? {
            return Ok(smallvec![(branch, End::Accept)]);
        }
        let translates = matches!(hook, Hook::Prerouting | Hook::Output) && table == "nat";
        // What iptables does not translate does not reach a Service, unless IPVS does it.
        let end = if translates && walker.world.node.ipvs().is_err() {
            End::Unknown(unseen(table, chain))
        } else {
            passes_unseen(&mut branch, table);
            End::Accept
        };
        return Ok(smallvec![(branch, end)]);
    };
    let at = At {
        hook,
        chains,
        table,
        context,
    };
    let mut ends = run(walker, branch, &at, chain, 0)?;
    for (branch, end) in &mut ends {
        if *end == End::Return {
            *end = match chain.policy {
                Some(Policy::Drop) => {
                    branch.path.push(|| policy(&at, chain, Effect::Drop));
                    End::Drop(format!("dropped by the policy of {table} {}", chain.name))
                }
                Some(Policy::Accept) | None => End::Accept,
            };
        }
    }
    Ok(ends)
}

fn run<'n, 'a>(
    walker: &Walker<'_, 'n, 'a>,
    branch: Branch,
    at: &At<'_, 'n, 'a>,
    chain: &Chain<'a>,
    depth: usize,
) -> Result<Ends, Stop> {
    if depth > DEEPEST {
        return Ok(smallvec![(
            branch,
            End::Unknown(format!("chain {} jumps to itself", chain.name)),
        )]);
    }
    // No rule changes the destination and goes on with the next one of its chain.
    let some = walker.index.as_ref();
    let some = some.and_then(|index| index.rules(chain, &branch.packet));
    let all = 0..if some.is_none() { chain.rules.len() } else { 0 };
    let mut live: Branches = smallvec![branch];
    let mut done = Ends::new();
    for index in some.into_iter().flatten().chain(all) {
        let rule = &chain.rules[index];
        let mut of_only = None;
        if let [only] = live.as_slice() {
            let likelihood = matches::rule(rule, &only.packet, at.context);
            // Most rules do not match: nothing is moved then.
            if likelihood.is_no() {
                continue;
            }
            of_only = Some(likelihood);
        }
        let mut next = Branches::with_capacity(live.len());
        for branch in live {
            let likelihood = of_only
                .take()
                .unwrap_or_else(|| matches::rule(rule, &branch.packet, at.context));
            if likelihood.is_no() {
                next.push(branch);
                continue;
            }
            let (hit, miss) = split(branch, &likelihood);
            if let Some(miss) = miss {
                next.push(miss);
            }
            let when = likelihood.undecided.first();
            for (branch, end) in hits(
                walker,
                hit,
                at,
                chain,
                index,
                rule,
                likelihood.chance,
                when,
                depth,
            )? {
                match end {
                    None => next.push(branch),
                    Some(end) => done.push((branch, end)),
                }
            }
        }
        live = reunite(next);
        if live.is_empty() {
            break;
        }
    }
    done.extend(live.into_iter().map(|branch| (branch, End::Return)));
    Ok(done)
}

/// Splits a branch at a rule that may or may not match: with it, and without it.
pub(crate) fn split(branch: Branch, likelihood: &Likelihood) -> (Branch, Option<Branch>) {
    if likelihood.undecided.is_empty() && likelihood.chance >= 1.0 {
        return (branch, None);
    }
    let mut miss = branch.clone();
    let mut hit = branch;
    // An unknown match counts half; `when` names the assumption.
    let chance = if likelihood.undecided.is_empty() {
        likelihood.chance
    } else {
        likelihood.chance / 2.0
    };
    for question in &likelihood.undecided {
        let answer = |holds| Assumption::Answer {
            question: question.clone(),
            holds,
        };
        hit.when.push(answer(true));
        miss.when.push(answer(false));
    }
    hit.weight *= chance;
    miss.weight *= 1.0 - chance;
    (hit, Some(miss))
}

/// Puts ways together that an undecided rule parted and that came out the same.
pub(in crate::trace) fn reunite(branches: Branches) -> Branches {
    if branches.len() < 2 {
        return branches;
    }
    let mut united = Branches::with_capacity(branches.len());
    for branch in branches {
        match united
            .iter_mut()
            .find(|other| other.packet == branch.packet)
        {
            Some(other) => {
                other.weight += branch.weight;
                other.when.retain(|when| branch.when.contains(when));
            }
            None => united.push(branch),
        }
    }
    united
}

/// The ways after a rule, each with its end, if it ended there.
type Hits = SmallVec<[(Branch, Option<End>); 1]>;

/// Applies a rule that matched. `None` goes on with the next rule.
#[expect(
    clippy::too_many_arguments,
    reason = "the place of a rule has this many parts"
)]
fn hits<'n, 'a>(
    walker: &Walker<'_, 'n, 'a>,
    mut branch: Branch,
    at: &At<'_, 'n, 'a>,
    chain: &Chain<'a>,
    index: usize,
    rule: &Rule<'a>,
    chance: f64,
    when: Option<&Question>,
    depth: usize,
) -> Result<Hits, Stop> {
    let packets = rule.counters.map(|counters| counters.packets);
    // kube-proxy's session affinity; in other tables, `recent` limits rates.
    let remembers = |of: &Match<'_>| {
        matches!(of, Match::Recent(recent)
        if recent.action.value == RecentAction::Set && at.chains.looks_up(&recent.name))
    };
    branch.packet.sticky |= at.table == "nat" && rule.matches.iter().any(remembers);
    let mut note = |branch: &mut Branch, effect| {
        branch.path.push(|| Hop {
            number: index + 1,
            rule: rule.to_string().trim_start().to_owned(),
            packets,
            chance,
            when: when.map(Question::text),
            ..policy(at, chain, effect)
        });
    };
    let name = |kind: &str| {
        format!(
            "{kind} by rule {} of {} {}",
            index + 1,
            at.table,
            chain.name
        )
    };
    let end = match rule.target.as_ref() {
        None => None,
        Some(Target::Jump(to) | Target::Goto(to)) => {
            let goes = matches!(rule.target, Some(Target::Goto(_)));
            let Some(target) = at.chains.chain(at.table, to)? else {
                if is_extension(to) {
                    let end = other(&mut branch, to, "", &mut note, &name);
                    return Ok(smallvec![(branch, end)]);
                }
                let reason = if at.chains.is_unseen(at.table, to)? {
                    if to == NOT_SHOWN {
                        format!(
                            "the evidence does not show the rest of chain {} of table {}",
                            chain.name, at.table
                        )
                    } else {
                        unseen(at.table, to)
                    }
                } else {
                    format!(
                        "chain {to} of table {} does not exist, but rule {} of {} jumps to it",
                        at.table,
                        index + 1,
                        chain.name
                    )
                };
                return Ok(smallvec![(branch, Some(End::Unknown(reason)))]);
            };
            note(
                &mut branch,
                if goes {
                    Effect::Goto { to: to.to_string() }
                } else {
                    Effect::Jump { to: to.to_string() }
                },
            );
            let ends = run(walker, branch, at, target, depth + 1)?;
            return Ok(ends
                .into_iter()
                .map(|(branch, end)| match end {
                    End::Return if !goes => (branch, None),
                    end => (branch, Some(end)),
                })
                .collect());
        }
        Some(Target::Return) => {
            note(&mut branch, Effect::Return);
            Some(End::Return)
        }
        Some(Target::Accept) => {
            note(&mut branch, Effect::Accept);
            Some(End::Accept)
        }
        Some(Target::Drop) => {
            note(&mut branch, Effect::Drop);
            Some(End::Drop(name("dropped")))
        }
        Some(Target::Reject { with }) => {
            let with = with
                .as_deref()
                .unwrap_or("icmp-port-unreachable")
                .to_owned();
            note(&mut branch, Effect::Reject { with });
            Some(End::Reject(name("rejected")))
        }
        Some(Target::Mark(mark)) => {
            let from = branch.packet.mark.shown();
            branch.packet.mark.change(*mark);
            let to = branch.packet.mark.shown();
            note(&mut branch, Effect::Mark { from, to });
            None
        }
        Some(Target::Dnat(to)) => {
            dnat(&mut branch, to);
            let effect = translated(&branch);
            note(&mut branch, effect);
            Some(End::Accept)
        }
        Some(Target::Snat(to)) => {
            let addr = to.addrs.map(|(first, _)| first);
            translate_source(&mut branch, addr);
            note(&mut branch, Effect::Snat { address: addr });
            Some(End::Accept)
        }
        Some(Target::Masquerade { .. }) => {
            let addr = masquerade(walker, &mut branch);
            note(&mut branch, Effect::Masquerade { address: addr });
            Some(End::Accept)
        }
        Some(Target::Redirect { ports, .. }) => {
            redirect(walker, &mut branch, at.hook, ports.map(|ports| ports.first));
            let effect = translated(&branch);
            note(&mut branch, effect);
            Some(End::Accept)
        }
        Some(Target::Connmark(how)) => {
            let from = branch.packet.mark.shown();
            connmark(&mut branch, how);
            let to = branch.packet.mark.shown();
            if from == to {
                note(
                    &mut branch,
                    Effect::Other {
                        what: "CONNMARK".to_owned(),
                    },
                );
            } else {
                note(&mut branch, Effect::Mark { from, to });
            }
            None
        }
        Some(Target::Notrack { .. }) => {
            branch.packet.untracked = true;
            note(&mut branch, Effect::Untrack);
            None
        }
        Some(Target::Tproxy(_)) => {
            note(
                &mut branch,
                Effect::Other {
                    what: "TPROXY".to_owned(),
                },
            );
            Some(End::Unknown(format!(
                "{}: delivered to a local proxy",
                name("diverted")
            )))
        }
        Some(Target::Other {
            name: kind,
            options,
        }) => other(&mut branch, kind, options, &mut note, &name),
    };
    Ok(smallvec![(branch, end)])
}

/// The new mark: `(old & !mask) ^ value`.
fn set_mark(old: u32, mark: Mark) -> u32 {
    (old & !mark.mask) ^ mark.value
}

/// Translates the destination, once per connection. To what it is already, that is no translation
/// (`nf_nat_setup_info`).
pub(crate) fn translate(branch: &mut Branch, addr: Option<IpAddr>, port: Option<u16>) {
    let packet = &mut branch.packet;
    let mut changes = false;
    if let Some(addr) = addr {
        changes |= !packet.destination().is_address(addr);
        packet.set_destination(addr);
    }
    if let Some(port) = port
        && packet.has_ports()
    {
        changes |= !packet.port().is(port);
        packet.set_port(port);
    }
    packet.dnat |= changes;
    packet.bound[0] = true;
}

/// Returns the effect of a translated destination.
pub(crate) fn translated(branch: &Branch) -> Effect {
    let (address, port) = branch.packet.target();
    Effect::Dnat { address, port }
}

fn dnat(branch: &mut Branch, to: &Nat) {
    if let Some((first, last)) = to.addrs
        && first != last
    {
        branch.when.push(Assumption::Address { first, last });
    }
    let addr = to.addrs.map(|(first, _)| first);
    translate(branch, addr, to.ports.map(|ports| ports.first));
}

/// Rewrites the source, once per connection.
pub(crate) fn translate_source(branch: &mut Branch, addr: Option<IpAddr>) {
    if let Some(addr) = addr {
        branch.packet.set_source(addr);
    }
    branch.packet.snat = true;
    branch.packet.bound[1] = true;
}

/// Rewrites the source to the address of the link the packet leaves by; returns it where it is known.
pub(crate) fn masquerade(walker: &Walker<'_, '_, '_>, branch: &mut Branch) -> Option<IpAddr> {
    let decision = walker.router.decide(Lookup {
        destination: branch.packet.destination(),
        source: None,
        mark: Some(branch.packet.mark()),
        input: None,
    });
    let addr = match (&branch.packet.output, decision) {
        (Link::Named(device), Decision::Out { gateway, .. }) => {
            walker
                .router
                .masquerade(walker.family, Some(device), gateway)
        }
        (Link::Named(device), _) => walker.router.masquerade(walker.family, Some(device), None),
        (Link::None | Link::Unknown, _) => None,
    };
    translate_source(branch, addr);
    addr
}

/// Sends the packet to this host: to 127.0.0.1 from the host itself, else to the address of the link it came by.
pub(crate) fn redirect(
    walker: &Walker<'_, '_, '_>,
    branch: &mut Branch,
    hook: Hook,
    port: Option<u16>,
) {
    let addr = match (hook, &branch.packet.input) {
        (Hook::Output, _) => Some(match walker.family {
            Family::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Family::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
        }),
        (_, Link::Named(device)) => walker.router.masquerade(walker.family, Some(device), None),
        (_, Link::None | Link::Unknown) => None,
    };
    translate(branch, addr, port);
}

fn is_extension(name: &str) -> bool {
    WITHOUT_EFFECT.contains(&name)
        || matches!(
            name,
            "CT" | "TTL" | "HL" | "QUEUE" | "NFQUEUE" | "NETMAP" | "TEE" | "CLUSTERIP"
        )
}

/// A target that is not one of the usual.
fn other(
    branch: &mut Branch,
    kind: &str,
    options: &str,
    note: &mut impl FnMut(&mut Branch, Effect),
    name: &impl Fn(&str) -> String,
) -> Option<End> {
    let shown = || format!("{kind} {options}").trim_end().to_owned();
    match kind {
        "CT" => note(branch, Effect::Other { what: shown() }),
        "TTL" | "HL" => {
            let effect = ttl::target(branch.packet.ttl, options);
            if let Some(Effect::Ttl { to }) = effect {
                branch.packet.ttl = to;
            }
            note(
                branch,
                effect.unwrap_or_else(|| Effect::Other { what: shown() }),
            );
        }
        "QUEUE" | "NFQUEUE" => {
            note(branch, Effect::Other { what: shown() });
            return Some(End::Unknown(format!(
                "{}: a program in user space decides",
                name("queued")
            )));
        }
        kind if WITHOUT_EFFECT.contains(&kind) => note(branch, Effect::Other { what: shown() }),
        _ => {
            note(branch, Effect::Other { what: shown() });
            return Some(End::Unknown(format!(
                "{}: the effect of target {kind} is unknown",
                name("taken")
            )));
        }
    }
    None
}

/// Keeps marks between packets of a connection; for a first packet only what is set here counts.
fn connmark(branch: &mut Branch, how: &Connmark) {
    let kept = &mut branch.packet;
    match *how {
        Connmark::Set(mark) => kept.ct_mark = set_mark(kept.ct_mark, mark),
        Connmark::Save { packet, connection } => {
            kept.ct_mark = (kept.ct_mark & !connection) ^ kept.mark().bits(packet);
        }
        Connmark::Restore { packet, connection } => {
            kept.mark.change(Mark {
                value: kept.ct_mark & connection,
                mask: packet,
            });
        }
    }
}

/// Assumes that the chains of `table` that the evidence does not show let the packet pass.
fn passes_unseen(branch: &mut Branch, table: &str) {
    let before = branch.when.iter_mut().find_map(|when| match when {
        Assumption::Unseen { tables } => Some(tables),
        _ => None,
    });
    match before {
        Some(tables) if tables.iter().any(|of| of == table) => {}
        Some(tables) => tables.push(table.to_owned()),
        None => branch.when.push(Assumption::Unseen {
            tables: vec![table.to_owned()],
        }),
    }
}

fn unseen(table: &str, chain: &str) -> String {
    format!("the evidence does not show chain {chain} of table {table}")
}

/// Returns the hop at the policy of a chain.
fn policy(at: &At<'_, '_, '_>, chain: &Chain<'_>, effect: Effect) -> Hop {
    let subsystem = match at.chains.store {
        IptablesBackend::InUse => Subsystem::Iptables,
        IptablesBackend::Legacy | IptablesBackend::Nft => Subsystem::IptablesOther,
    };
    Hop {
        table: at.table.to_owned(),
        chain: chain.name.to_string(),
        ..Hop::without_rule(at.hook, subsystem, effect)
    }
}
