//! Running chains of iptables.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::hop::{Effect, Hook, Hop, Layer};
use super::ipt::{self, Context};
use super::packet::{Link, Odds};
use super::route::{Ask, Way};
use super::walk::{End, Ends, State, Walker, has_ports};
use super::{Chains, Stop};
use crate::backend::iptables::model::{Chain, Connmark, Nat, Policy, Rule, Target};
use crate::net::{Family, Mark};
use crate::node::Store;

/// Chains nest no deeper in the kernel.
const DEEPEST: usize = 256;

/// Targets that leave the packet and its way as they are.
const WITHOUT_EFFECT: [&str; 22] = [
    "LOG",
    "NFLOG",
    "ULOG",
    "TRACE",
    "AUDIT",
    "TCPMSS",
    "CHECKSUM",
    "CLASSIFY",
    "SET",
    "TTL",
    "HL",
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
    state: State,
    hook: Hook,
    chains: &Chains<'a>,
    table: &str,
    context: &Context<'_, 'n>,
) -> Result<Ends, Stop> {
    let Some(chain) = chains.chain(table, hook.chain())? else {
        return Ok(vec![(state, End::Accept)]);
    };
    let at = At {
        hook,
        chains,
        table,
        context,
    };
    let mut ends = run(walker, state, &at, chain, 0)?;
    for (state, end) in &mut ends {
        if *end == End::Return {
            *end = match chain.policy {
                Some(Policy::Drop) => {
                    record(
                        state,
                        &at,
                        chain,
                        0,
                        String::new(),
                        Effect::Drop,
                        None,
                        1.0,
                        None,
                    );
                    End::Drop(format!("the policy of {table} {} drops it", chain.name))
                }
                Some(Policy::Accept) | None => End::Accept,
            };
        }
    }
    Ok(ends)
}

fn run<'n, 'a>(
    walker: &Walker<'_, 'n, 'a>,
    state: State,
    at: &At<'_, 'n, 'a>,
    chain: &Chain<'a>,
    depth: usize,
) -> Result<Ends, Stop> {
    if depth > DEEPEST {
        return Ok(vec![(
            state,
            End::Unknown(format!("chain {} leads into itself", chain.name)),
        )]);
    }
    let mut live = vec![state];
    let mut done = Ends::new();
    for (index, rule) in chain.rules.iter().enumerate() {
        let mut next = Vec::with_capacity(live.len());
        for state in live {
            let odds = ipt::rule(rule, &state.packet, at.context);
            if odds.is_no() {
                next.push(state);
                continue;
            }
            let (hit, miss) = split(state, &odds);
            next.extend(miss);
            let when = odds.open.first().map(String::as_str);
            for (state, end) in hits(
                walker,
                hit,
                at,
                chain,
                index,
                rule,
                odds.chance,
                when,
                depth,
            )? {
                match end {
                    None => next.push(state),
                    Some(end) => done.push((state, end)),
                }
            }
        }
        live = reunite(next);
        if live.is_empty() {
            break;
        }
    }
    done.extend(live.into_iter().map(|state| (state, End::Return)));
    Ok(done)
}

/// Splits a way at a rule that may or may not match: with it, and without it.
pub(crate) fn split(state: State, odds: &Odds) -> (State, Option<State>) {
    if odds.open.is_empty() && odds.chance >= 1.0 {
        return (state, None);
    }
    let mut miss = state.clone();
    let mut hit = state;
    // What is not known shares evenly; `when` says what was assumed.
    let chance = if odds.open.is_empty() {
        odds.chance
    } else {
        odds.chance / 2.0
    };
    for what in &odds.open {
        hit.when.push(format!("{}: yes", question(what)));
        miss.when.push(format!("{}: no", question(what)));
    }
    hit.weight *= chance;
    miss.weight *= 1.0 - chance;
    (hit, Some(miss))
}

fn question(what: &str) -> &str {
    what.strip_prefix("whether ").unwrap_or(what)
}

/// Puts ways together that an undecided rule parted and that came out the same.
fn reunite(states: Vec<State>) -> Vec<State> {
    if states.len() < 2 {
        return states;
    }
    let mut united: Vec<State> = Vec::with_capacity(states.len());
    for state in states {
        match united.iter_mut().find(|other| other.packet == state.packet) {
            Some(other) => {
                other.weight += state.weight;
                other.when.retain(|when| state.when.contains(when));
            }
            None => united.push(state),
        }
    }
    united
}

/// Applies a rule that matched. `None` goes on with the next rule.
#[expect(
    clippy::too_many_arguments,
    reason = "the place of a rule has this many parts"
)]
fn hits<'n, 'a>(
    walker: &Walker<'_, 'n, 'a>,
    mut state: State,
    at: &At<'_, 'n, 'a>,
    chain: &Chain<'a>,
    index: usize,
    rule: &Rule<'a>,
    chance: f64,
    when: Option<&str>,
    depth: usize,
) -> Result<Vec<(State, Option<End>)>, Stop> {
    let text = rule.to_string().trim_start().to_owned();
    let packets = rule.counters.map(|counters| counters.packets);
    let mut note = |state: &mut State, effect| {
        record(
            state,
            at,
            chain,
            index + 1,
            text.clone(),
            effect,
            packets,
            chance,
            when.map(str::to_owned),
        );
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
                    let end = other(&mut state, to, "", &mut note, &name);
                    return Ok(vec![(state, end)]);
                }
                let reason = format!(
                    "chain {to} of table {} is not there, but rule {} of {} leads to it",
                    at.table,
                    index + 1,
                    chain.name
                );
                return Ok(vec![(state, Some(End::Unknown(reason)))]);
            };
            note(
                &mut state,
                if goes {
                    Effect::Goto { to: to.to_string() }
                } else {
                    Effect::Jump { to: to.to_string() }
                },
            );
            let ends = run(walker, state, at, target, depth + 1)?;
            return Ok(ends
                .into_iter()
                .map(|(state, end)| match end {
                    End::Return if !goes => (state, None),
                    end => (state, Some(end)),
                })
                .collect());
        }
        Some(Target::Return) => {
            note(&mut state, Effect::Return);
            Some(End::Return)
        }
        Some(Target::Accept) => {
            note(&mut state, Effect::Accept);
            Some(End::Accept)
        }
        Some(Target::Drop) => {
            note(&mut state, Effect::Drop);
            Some(End::Drop(name("dropped")))
        }
        Some(Target::Reject { with }) => {
            let with = with
                .as_deref()
                .unwrap_or("icmp-port-unreachable")
                .to_owned();
            note(&mut state, Effect::Reject { with });
            Some(End::Reject(name("rejected")))
        }
        Some(Target::Mark(mark)) => {
            let from = state.packet.mark;
            state.packet.mark = set_mark(from, *mark);
            let to = state.packet.mark;
            note(&mut state, Effect::Mark { from, to });
            None
        }
        Some(Target::Dnat(to)) => {
            dnat(&mut state, to);
            let (addr, port) = (state.packet.destination, state.packet.port);
            note(
                &mut state,
                Effect::Dnat {
                    address: addr,
                    port,
                },
            );
            Some(End::Accept)
        }
        Some(Target::Snat(to)) => {
            let addr = to.addrs.map(|(first, _)| first);
            translate_source(&mut state, addr);
            note(&mut state, Effect::Snat { address: addr });
            Some(End::Accept)
        }
        Some(Target::Masquerade { .. }) => {
            let addr = masquerade(walker, &mut state);
            note(&mut state, Effect::Masquerade { address: addr });
            Some(End::Accept)
        }
        Some(Target::Redirect { ports, .. }) => {
            redirect(walker, &mut state, at.hook, ports.map(|ports| ports.first));
            let (addr, port) = (state.packet.destination, state.packet.port);
            note(
                &mut state,
                Effect::Dnat {
                    address: addr,
                    port,
                },
            );
            Some(End::Accept)
        }
        Some(Target::Connmark(how)) => {
            let from = state.packet.mark;
            connmark(&mut state, how);
            let to = state.packet.mark;
            if from == to {
                note(
                    &mut state,
                    Effect::Other {
                        what: "CONNMARK".to_owned(),
                    },
                );
            } else {
                note(&mut state, Effect::Mark { from, to });
            }
            None
        }
        Some(Target::Notrack) => {
            state.packet.untracked = true;
            note(&mut state, Effect::Untrack);
            None
        }
        Some(Target::Tproxy(_)) => {
            note(
                &mut state,
                Effect::Other {
                    what: "TPROXY".to_owned(),
                },
            );
            Some(End::Unknown(format!(
                "{}: a local proxy takes it",
                name("diverted")
            )))
        }
        Some(Target::Other {
            name: kind,
            options,
        }) => other(&mut state, kind, options, &mut note, &name),
    };
    Ok(vec![(state, end)])
}

/// The new mark: `(old & !mask) ^ value`.
fn set_mark(old: u32, mark: Mark) -> u32 {
    (old & !mark.mask) ^ mark.value
}

/// Translates the destination, once per connection. To what it is already, that is no translation
/// (`nf_nat_setup_info`).
pub(crate) fn translate(state: &mut State, addr: Option<IpAddr>, port: Option<u16>) {
    let packet = &mut state.packet;
    let before = (packet.destination, packet.port);
    packet.destination = addr.unwrap_or(packet.destination);
    packet.port = port
        .filter(|_| has_ports(packet.proto))
        .unwrap_or(packet.port);
    packet.dnat |= before != (packet.destination, packet.port);
    packet.bound[0] = true;
}

fn dnat(state: &mut State, to: &Nat) {
    if let Some((first, last)) = to.addrs
        && first != last
    {
        state.when.push(format!(
            "the address chosen of {first} to {last} is {first}"
        ));
    }
    let addr = to.addrs.map(|(first, _)| first);
    translate(state, addr, to.ports.map(|ports| ports.first));
}

/// Rewrites the source, once per connection.
pub(crate) fn translate_source(state: &mut State, addr: Option<IpAddr>) {
    if let Some(addr) = addr {
        state.packet.source = addr;
    }
    state.packet.snat = true;
    state.packet.bound[1] = true;
}

/// Rewrites the source to the address of the link the packet leaves by; returns it where it is known.
pub(crate) fn masquerade(walker: &Walker<'_, '_, '_>, state: &mut State) -> Option<IpAddr> {
    let way = walker.router.way(Ask {
        destination: state.packet.destination,
        source: None,
        mark: state.packet.mark,
        input: None,
    });
    let addr = match (&state.packet.output, way) {
        (Link::Named(device), Way::Out { gateway, .. }) => {
            walker
                .router
                .masquerade(walker.family, Some(device), gateway)
        }
        (Link::Named(device), _) => walker.router.masquerade(walker.family, Some(device), None),
        (Link::None | Link::Unknown, _) => None,
    };
    translate_source(state, addr);
    addr
}

/// Sends the packet to this host: to 127.0.0.1 from the host itself, else to the address of the link it came by.
pub(crate) fn redirect(
    walker: &Walker<'_, '_, '_>,
    state: &mut State,
    hook: Hook,
    port: Option<u16>,
) {
    let addr = match (hook, &state.packet.input) {
        (Hook::Output, _) => Some(match walker.family {
            Family::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Family::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
        }),
        (_, Link::Named(device)) => walker.router.masquerade(walker.family, Some(device), None),
        (_, Link::None | Link::Unknown) => None,
    };
    translate(state, addr, port);
}

fn is_extension(name: &str) -> bool {
    WITHOUT_EFFECT.contains(&name)
        || matches!(
            name,
            "CT" | "QUEUE" | "NFQUEUE" | "NETMAP" | "TEE" | "CLUSTERIP"
        )
}

/// A target that is not one of the usual.
fn other(
    state: &mut State,
    kind: &str,
    options: &str,
    note: &mut impl FnMut(&mut State, Effect),
    name: &impl Fn(&str) -> String,
) -> Option<End> {
    let shown = || format!("{kind} {options}").trim_end().to_owned();
    match kind {
        "CT" => note(state, Effect::Other { what: shown() }),
        "QUEUE" | "NFQUEUE" => {
            note(state, Effect::Other { what: shown() });
            return Some(End::Unknown(format!(
                "{}: a program in user space decides",
                name("queued")
            )));
        }
        kind if WITHOUT_EFFECT.contains(&kind) => note(state, Effect::Other { what: shown() }),
        _ => {
            note(state, Effect::Other { what: shown() });
            return Some(End::Unknown(format!(
                "{}: what target {kind} does is not known",
                name("taken")
            )));
        }
    }
    None
}

/// Keeps marks between packets of a connection; for a first packet only what is set here counts.
fn connmark(state: &mut State, how: &Connmark) {
    let kept = &mut state.packet;
    match *how {
        Connmark::Set(mark) => kept.ct_mark = set_mark(kept.ct_mark, mark),
        Connmark::Save { packet, connection } => {
            kept.ct_mark = (kept.ct_mark & !connection) ^ (kept.mark & packet);
        }
        Connmark::Restore { packet, connection } => {
            kept.mark = (kept.mark & !packet) ^ (kept.ct_mark & connection);
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "a hop has this many parts")]
fn record(
    state: &mut State,
    at: &At<'_, '_, '_>,
    chain: &Chain<'_>,
    number: usize,
    rule: String,
    effect: Effect,
    packets: Option<u64>,
    chance: f64,
    when: Option<String>,
) {
    state.path.push(Hop {
        hook: at.hook,
        layer: if at.chains.store == Store::InUse {
            Layer::Iptables
        } else {
            Layer::IptablesOther
        },
        table: at.table.to_owned(),
        chain: chain.name.to_string(),
        number,
        rule,
        packets,
        effect,
        chance,
        when,
    });
}
