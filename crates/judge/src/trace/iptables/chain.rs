//! Running chains of iptables.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use smallvec::{SmallVec, smallvec};

use super::matches::{self, Context};
use super::sets;
use crate::trace::branch::{Branch, Branches, End, Ends, bounded};
use crate::trace::hop::{Assumption, Effect, Hook, Hop, Question, Subsystem};
use crate::trace::packet::{Likelihood, Link};
use crate::trace::region::{self, Coordinate as _};
use crate::trace::route::{Decision, Lookup};
use crate::trace::walk::Walker;
use crate::trace::{Chains, Stop, opening, tos, ttl};
use kpx_node::backend::iptables::model::{
    Chain, Connmark, Match, NOT_SHOWN, Policy, RecentAction, Rule, Target,
};
use kpx_node::net::{Cidr, Family, Mark};
use kpx_node::node::IptablesBackend;
use kpx_node::owner;

/// More levels than any known program uses; nftables allows 16.
const DEEPEST: usize = 64;

/// Targets that leave the packet and its way as they are.
const WITHOUT_EFFECT: [&str; 19] = [
    "TEE",
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
];

/// The effect of synproxy.
pub(crate) const BY_PROXY: &str =
    "the proxy answers new connections, and opens those that it lets pass itself";

/// Why a copy of a packet matters.
pub(crate) const COPIED: &str =
    "another Node gets a copy, and serves the address as well, so the client gets two answers";

/// The hook of a chain.
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
        // A packet that neither iptables nor IPVS translates does not reach a Service.
        let end = if translates
            && walker.world.node.ipvs().is_err()
            && may_be_of_service(walker, &branch)
        {
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
        // No way that is still open matches: nothing is moved then, either.
        if live.len() > 1
            && live
                .iter()
                .all(|branch| matches::rule(rule, &branch.packet, at.context).is_no())
        {
            continue;
        }
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
        live = bounded(reunite(next), &mut done);
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

/// Merges ways that an undecided rule split and that had the same result.
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
    let remembers = |matched: &Match<'_>| {
        matches!(matched, Match::Recent(recent)
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
                    let end = other(walker, &mut branch, (to, ""), &mut note, &name);
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
            let ports = to.ports.map(|ports| (ports.first, ports.last));
            let random = to.flags.random || to.flags.random_fully;
            let ways = translations(branch, to.addrs, ports, random);
            return Ok(accepted(ways, note, translated));
        }
        Some(Target::Snat(to)) => {
            let ways = sources(branch, to.addrs);
            return Ok(accepted(ways, note, |branch| Effect::Snat {
                address: to.addrs.map(|_| branch.packet.source().shown()),
            }));
        }
        Some(Target::Masquerade { .. }) => {
            let addr = masquerade(walker, &mut branch);
            note(&mut branch, Effect::Masquerade { address: addr });
            Some(End::Accept)
        }
        Some(Target::Redirect { ports, random }) => {
            let addr = redirected(walker, &branch, at.hook).map(|addr| (addr, addr));
            let ports = ports.map(|ports| (ports.first, ports.last));
            let ways = translations(branch, addr, ports, *random);
            return Ok(accepted(ways, note, translated));
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
            branch.packet.untrack();
            note(&mut branch, Effect::Untrack);
            None
        }
        Some(Target::Tproxy(to))
            if opening::lacks_proxy(to.port, &branch.packet, &walker.router) =>
        {
            note(&mut branch, Effect::Drop);
            Some(End::Drop(format!(
                "{}: TPROXY hands it to port {}, where nothing listens",
                name("dropped"),
                to.port
            )))
        }
        Some(Target::Tproxy(to)) => {
            note(
                &mut branch,
                Effect::Other {
                    what: opening::TPROXY.to_owned(),
                },
            );
            let at = match (to.addr, to.port) {
                (_, 0) => String::new(),
                (Some(address), port) => format!(" at {}", SocketAddr::new(address, port)),
                (None, port) => format!(" at port {port}"),
            };
            Some(End::Unknown(format!(
                "{}: TPROXY hands it to a local proxy{at}",
                name("diverted")
            )))
        }
        Some(Target::Other {
            name: kind,
            options,
        }) => match (&**kind, mapped_by(options, at.hook, &branch)) {
            ("NETMAP", Some((is_source, to))) => {
                let effect = if is_source {
                    translate_source(&mut branch, Some(to));
                    Effect::Snat { address: Some(to) }
                } else {
                    translate(&mut branch, Some(to), None);
                    translated(&branch)
                };
                note(&mut branch, effect);
                Some(End::Accept)
            }
            ("NFQUEUE", _) if options.contains("--queue-bypass") => {
                note(
                    &mut branch,
                    Effect::Other {
                        what: format!("{kind} {options}"),
                    },
                );
                let read = Likelihood::unknown("a program reads the queue");
                let (queued, passes) = split(branch, &read);
                let reason = format!("{}: a program in user space decides", name("queued"));
                let queued = (queued, Some(End::Unknown(reason)));
                let passes = passes.map(|branch| (branch, Some(End::Accept)));
                return Ok(std::iter::once(queued).chain(passes).collect());
            }
            _ => other(walker, &mut branch, (kind, options), &mut note, &name),
        },
    };
    Ok(smallvec![(branch, end)])
}

/// The new mark: `(old & !mask) ^ value`.
fn set_mark(old: u32, mark: Mark) -> u32 {
    (old & !mark.mask) ^ mark.value
}

/// Translates the destination, once per connection. A translation to the same address and port is none
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

/// The most ports of a range that are followed one by one; of a longer range, the first port is followed.
const MOST_OF_RANGE: u32 = 16;

/// Translates the destination to one of these addresses and ports: each way with its share. The kernel keeps a port that is one
/// of them. Otherwise it draws one if that is asked for (`random`), and without, since Linux 6.8, takes the first; the address
/// follows from both ends of the connection.
pub(crate) fn translations(
    branch: Branch,
    addrs: Option<(IpAddr, IpAddr)>,
    ports: Option<(u16, u16)>,
    random: bool,
) -> Vec<(Branch, f64)> {
    let keeps = |first, last| !random && branch.packet.port().between(first, last);
    let ports: Vec<(Option<u16>, f64, Option<Assumption>)> = match ports {
        Some((first, last)) if first < last && branch.packet.has_ports() => {
            let count = u32::from(last - first) + 1;
            if keeps(first, last) {
                vec![(None, 1.0, None)]
            } else {
                let followed = if count <= MOST_OF_RANGE { last } else { first };
                let share = 1.0 / f64::from(followed - first + 1);
                let when = |chosen| {
                    let range = Assumption::Port {
                        chosen,
                        first,
                        last,
                    };
                    (!random || followed < last).then_some(range)
                };
                let all = first..=followed;
                all.map(|port| (Some(port), share, when(port))).collect()
            }
        }
        ports => vec![(ports.map(|(first, _)| first), 1.0, None)],
    };
    let mut ways = Vec::new();
    for (branch, addr, share) in each_address(branch, addrs) {
        for (port, part, when) in &ports {
            let mut branch = branch.clone();
            branch.weight *= part;
            branch.when.extend(when.clone());
            translate(&mut branch, addr, *port);
            ways.push((branch, share * part));
        }
    }
    ways
}

/// Translates the source to one of these addresses: each way with its share.
pub(crate) fn sources(branch: Branch, addrs: Option<(IpAddr, IpAddr)>) -> Vec<(Branch, f64)> {
    let ways = each_address(branch, addrs).into_iter();
    ways.map(|(mut branch, addr, share)| {
        translate_source(&mut branch, addr);
        (branch, share)
    })
    .collect()
}

/// Returns the branch on its ways to both ends of a range of addresses, with the address and its share. The ends represent
/// the addresses between them. More addresses would differ in a redacted copy, where neighbours are not kept.
fn each_address(
    branch: Branch,
    addrs: Option<(IpAddr, IpAddr)>,
) -> Vec<(Branch, Option<IpAddr>, f64)> {
    // In a redacted copy, the first may be the greater one.
    let Some((first, last)) = addrs.filter(|(first, last)| first != last) else {
        return vec![(branch, addrs.map(|(first, _)| first), 1.0)];
    };
    let ways = [first, last].into_iter().map(|chosen| {
        let mut branch = branch.clone();
        branch.weight /= 2.0;
        branch.when.push(Assumption::Address {
            chosen,
            first,
            last,
        });
        (branch, Some(chosen), 0.5)
    });
    ways.collect()
}

/// Returns the address that `range`, a network, has in the place of `old`.
pub(crate) fn mapped(old: IpAddr, (first, last): (IpAddr, IpAddr)) -> IpAddr {
    let family = Family::of(first);
    let (old, first, last) = (old.number(), first.number(), last.number());
    let free = first ^ last;
    region::address(family, old & free | first & !free)
}

/// Returns whether `-j NETMAP --to NETWORK` at `hook` maps the source, and the new address.
fn mapped_by(options: &str, hook: Hook, branch: &Branch) -> Option<(bool, IpAddr)> {
    let net: Cidr = options.trim().strip_prefix("--to ")?.parse().ok()?;
    let (first, last) = region::ends(net);
    let of = |number| region::address(net.family(), number);
    let is_source = matches!(hook, Hook::Postrouting | Hook::Input);
    let old = if is_source {
        branch.packet.source()
    } else {
        branch.packet.destination()
    };
    Some((is_source, mapped(old.exact(), (of(first), of(last)))))
}

/// Returns the ways of a translation, each accepted.
fn accepted(
    ways: Vec<(Branch, f64)>,
    mut note: impl FnMut(&mut Branch, Effect),
    effect: impl Fn(&Branch) -> Effect,
) -> Hits {
    let ways = ways.into_iter().map(|(mut branch, _)| {
        let effect = effect(&branch);
        note(&mut branch, effect);
        (branch, Some(End::Accept))
    });
    ways.collect()
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
        source: None,
        ..Lookup::of(&branch.packet, None)
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

/// Returns the address of this host that a packet is redirected to: 127.0.0.1 from the host itself, else that of the link it came
/// by.
pub(crate) fn redirected(
    walker: &Walker<'_, '_, '_>,
    branch: &Branch,
    hook: Hook,
) -> Option<IpAddr> {
    match (hook, &branch.packet.input) {
        (Hook::Output, _) => Some(match walker.family {
            Family::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Family::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
        }),
        (_, Link::Named(device)) => walker.router.masquerade(walker.family, Some(device), None),
        (_, Link::None | Link::Unknown) => None,
    }
}

fn is_extension(name: &str) -> bool {
    WITHOUT_EFFECT.contains(&name)
        || matches!(
            name,
            "CT" | "TTL" | "HL" | "QUEUE" | "NFQUEUE" | "NETMAP" | "CLUSTERIP"
        )
}

/// A target that is not one of the usual ones.
fn other(
    walker: &Walker<'_, '_, '_>,
    branch: &mut Branch,
    (kind, options): (&str, &str),
    note: &mut impl FnMut(&mut Branch, Effect),
    name: &impl Fn(&str) -> String,
) -> Option<End> {
    let shown = || format!("{kind} {options}").trim_end().to_owned();
    match kind {
        "CT" => {
            let mut words = options.split_whitespace();
            let zone = words
                .by_ref()
                .find(|word| word.starts_with("--zone"))
                .map(|option| (option, words.next().and_then(|zone| zone.parse().ok())));
            match zone {
                Some(("--zone", Some(zone))) => {
                    branch.packet.set_zone(zone);
                    note(branch, Effect::Zone { zone });
                }
                Some(_) => {
                    branch.packet.unknown_zone = Some(name("").trim_start().into());
                    note(branch, Effect::Other { what: shown() });
                }
                None => note(branch, Effect::Other { what: shown() }),
            }
        }
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
            note(branch, Effect::Queue);
            return Some(End::Unknown(format!(
                "{}: a program in user space decides",
                name("queued")
            )));
        }
        "HMARK" => {
            note(branch, Effect::Other { what: shown() });
            let why = "the mark is a hash, which kpx does not compute";
            return Some(End::Unknown(format!("{}: {why}", name("marked"))));
        }
        "SYNPROXY" => {
            note(branch, Effect::Other { what: shown() });
            return Some(End::Unknown(format!(
                "{}: {BY_PROXY}",
                name("taken by synproxy")
            )));
        }
        "TEE" if walker.router.copies(&branch.packet, options) => {
            note(branch, Effect::Other { what: shown() });
            return Some(End::Unknown(format!("{}: {COPIED}", name("copied"))));
        }
        "TOS" | "DSCP" if walker.router.asks_for_tos() => {
            note(branch, Effect::Other { what: shown() });
            return Some(End::Unknown(format!(
                "{}: routing policy rules look at the type of service, which kpx does not follow",
                name("changed")
            )));
        }
        kind if WITHOUT_EFFECT.contains(&kind) => {
            match kind {
                "TOS" | "DSCP" => branch.packet.tos = tos::target(branch.packet.tos, options),
                "SET" => sets::write(options, &mut branch.packet),
                _ => {}
            }
            note(branch, Effect::Other { what: shown() });
        }
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

/// Keeps marks between packets of a connection; for a first packet, only marks that are set here count.
fn connmark(branch: &mut Branch, how: &Connmark) {
    let kept = &mut branch.packet;
    if !kept.is_tracked() {
        return;
    }
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
        Some(tables) if tables.iter().any(|name| name == table) => {}
        Some(tables) => tables.push(table.to_owned()),
        None => branch.when.push(Assumption::Unseen {
            tables: vec![table.to_owned()],
        }),
    }
}

/// Returns whether the packet may be one to a Service, as far as Services are shown: to one of their addresses or NodePorts.
fn may_be_of_service(walker: &Walker<'_, '_, '_>, branch: &Branch) -> bool {
    let Ok(services) = walker.world.node.services() else {
        return true;
    };
    let packet = &branch.packet;
    services.iter().any(|service| {
        let mut addresses = owner::addresses(service).into_iter();
        let mut ports = service.spec.ports.iter();
        addresses.any(|(_, addr)| packet.destination().is_address(addr))
            || ports.any(|port| port.node_port == Some(packet.port().exact()))
    })
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
