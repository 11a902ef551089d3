//! Running chains of nftables.

use std::net::IpAddr;

use smallvec::smallvec;

use super::matches;
use super::value::{Context, DSCP, Value, flags, keeps_way, read};
use crate::trace::branch::{self, Branch, Branches, End};
use crate::trace::hop::{Effect, Hook, Hop, Question, Subsystem};
use crate::trace::iptables::chain::{
    BY_PROXY, COPIED, mapped, masquerade, redirected, reunite, sources, split, translated,
    translations,
};
use crate::trace::packet::{Likelihood, Packet, Written};
use crate::trace::walk::Walker;
use crate::trace::{opening, region, tos};
use kpx_node::backend::chain_owner::BRIDGE;
use kpx_node::backend::nftables::model::{
    Chain, Datum, Expr, NatKind, Rule, Statement, Table, Verdict,
};
use kpx_node::backend::nftables::print;
use kpx_node::net::{Cidr, Family, Mark, Proto};

/// Chains nest no deeper in the kernel (`NFT_JUMP_STACK_SIZE`).
const DEEPEST: usize = 16;

/// The beginning of the names of sets in which kube-proxy and the bridge keep the backends of clients.
pub(crate) const AFFINITY: &str = "affinity-";

/// The target of a statement.
enum Next {
    /// The next statement of the rule.
    On(Branch),
    /// The next rule.
    Over(Branch),
    /// The end of the chain, or further.
    End(Branch, End),
}

/// The place of a rule.
struct At<'x, 'a> {
    hook: Hook,
    table: &'x Table,
    chain: &'x Chain,
    context: &'x Context<'x, 'a>,
    depth: usize,
}

impl At<'_, '_> {
    /// Names the rule at `index` as the cause of `kind`: `dropped by rule 3 of kube-proxy services`.
    fn by(&self, kind: &str, index: usize) -> String {
        let number = index + 1;
        format!(
            "{kind} by rule {number} of {} {}",
            self.table.name, self.chain.name
        )
    }
}

impl<'a> Walker<'_, 'a, '_> {
    /// Runs a base chain of nftables.
    pub(crate) fn nftables(
        &self,
        branch: Branch,
        hook: Hook,
        table: &Table,
        chain: &Chain,
    ) -> branch::Ends {
        let context = Context {
            router: &self.router,
            table,
            index: self.index.as_ref(),
            lasting: self.world.lasting && !matches!(table.name.as_str(), "kube-proxy" | BRIDGE),
        };
        let mut ends = self.run_nft(
            branch,
            &At {
                hook,
                table,
                chain,
                context: &context,
                depth: 0,
            },
        );
        let drops = chain
            .base
            .as_ref()
            .is_some_and(|base| base.policy == "drop");
        for (branch, end) in &mut ends {
            if *end == End::Return {
                *end = if drops {
                    record_policy(branch, hook, table, chain);
                    End::Drop(format!(
                        "dropped by the policy of {} {} {}",
                        table.family, table.name, chain.name
                    ))
                } else {
                    End::Accept
                };
            }
        }
        ends
    }

    fn run_nft(&self, branch: Branch, at: &At<'_, 'a>) -> branch::Ends {
        if at.depth > DEEPEST {
            return smallvec![(
                branch,
                End::Unknown(format!("chain {} jumps to itself", at.chain.name)),
            )];
        }
        let mut live: Branches = smallvec![branch];
        let mut done = branch::Ends::new();
        for (index, rule) in at.chain.rules.iter().enumerate() {
            let mut next = Branches::with_capacity(live.len());
            for branch in live {
                self.run_rule(branch, at, index, rule, &mut next, &mut done);
            }
            live = branch::bounded(reunite(next), &mut done);
            if live.is_empty() {
                break;
            }
        }
        done.extend(live.into_iter().map(|branch| (branch, End::Return)));
        done
    }

    fn run_rule(
        &self,
        branch: Branch,
        at: &At<'_, 'a>,
        index: usize,
        rule: &Rule,
        next: &mut Branches,
        done: &mut branch::Ends,
    ) {
        let mut live: Branches = smallvec![branch];
        for statement in &rule.statements {
            let mut on = Branches::new();
            for branch in live {
                for step in self.statement(branch, at, index, rule, statement) {
                    match step {
                        Next::On(branch) => on.push(branch),
                        Next::Over(branch) => next.push(branch),
                        Next::End(branch, end) => done.push((branch, end)),
                    }
                }
            }
            live = on;
        }
        next.extend(live);
    }

    fn statement(
        &self,
        mut branch: Branch,
        at: &At<'_, 'a>,
        index: usize,
        rule: &Rule,
        statement: &Statement,
    ) -> Vec<Next> {
        let note =
            |branch: &mut Branch, effect, chance| record(branch, at, index, rule, effect, chance);
        let by = |kind: &str| at.by(kind, index);
        match statement {
            Statement::Match { left, op, right } => {
                if let Expr::Named(set) = right
                    && set.starts_with(AFFINITY)
                {
                    branch.packet.look_up(set);
                    // As for the lists of `xt_recent`, a new client is assumed.
                    return part(branch, &Likelihood::sure(op == "!="));
                }
                let likelihood = matches::compare(left, op, right, &branch.packet, at.context);
                part(branch, &likelihood)
            }
            Statement::Vmap { key, data } => {
                let packet = branch.packet.clone();
                let have = read(key, &packet, at.context);
                let found = match matches::look_up(data, &have, &packet, at.context) {
                    Ok(found) => found,
                    Err(what) => return unread(branch, &what, &by("taken")),
                };
                Self::choose(branch, found, |branch, chance, datum| match datum {
                    Datum::Verdict(verdict) => {
                        self.verdict(branch, at, index, rule, verdict, chance)
                    }
                    Datum::Data(_) => vec![Next::End(
                        branch,
                        End::Unknown(by("taken") + ": a verdict map gives data"),
                    )],
                })
            }
            Statement::Verdict(verdict) => self.verdict(branch, at, index, rule, verdict, 1.0),
            Statement::Reject { kind, .. } if !is_for(kind.as_deref(), &branch.packet) => {
                vec![Next::Over(branch)]
            }
            Statement::Reject { kind, code } => {
                let with = [kind.as_deref(), code.as_deref()]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join(" ");
                note(&mut branch, Effect::Reject { with }, 1.0);
                vec![Next::End(branch, End::Reject(by("rejected")))]
            }
            // Of the other family, a packet passes.
            Statement::Nat {
                family: Some(family),
                ..
            } if *family != branch.packet.family().nft_name() => vec![Next::Over(branch)],
            Statement::Nat {
                kind,
                addr,
                port,
                flags,
                ..
            } => {
                let to = Aim {
                    kind: *kind,
                    addr: addr.as_ref(),
                    port: port.as_ref(),
                    flags,
                };
                Self::nat_statement(branch, at, index, rule, &to)
            }
            Statement::Masquerade { .. } => {
                let addr = masquerade(self, &mut branch);
                note(&mut branch, Effect::Masquerade { address: addr }, 1.0);
                vec![Next::End(branch, End::Accept)]
            }
            Statement::Redirect { port, flags } => {
                let addr = redirected(self, &branch, at.hook);
                let go = |branch, ports, chance: f64| {
                    let ways = translations(
                        branch,
                        addr.map(|addr| (addr, addr)),
                        ports,
                        is_random(flags),
                    );
                    let ways = ways.into_iter().map(|(mut branch, part)| {
                        let effect = translated(&branch);
                        note(&mut branch, effect, chance * part);
                        Next::End(branch, End::Accept)
                    });
                    ways.collect()
                };
                let Some(port) = port else {
                    return go(branch, None, 1.0);
                };
                let packet = branch.packet.clone();
                match choices(port, &packet, at.context) {
                    Err(what) => unread(branch, &what, &by("taken")),
                    Ok(found) => Self::choose(branch, found, |branch, chance, to| match to.ports {
                        Some(ports) => go(branch, Some(ports), chance),
                        None => vec![Next::End(branch, End::Unknown(UNREAD.to_owned()))],
                    }),
                }
            }
            Statement::Mangle { key, value } => {
                let mut all = mangle(branch, at, (key, value), &by, &note);
                for next in &mut all {
                    if let Next::End(_, End::Unknown(why)) = next {
                        *why = format!("{}: {why}", by("changed"));
                    }
                }
                all
            }
            Statement::SetOp {
                op, set, elem, run, ..
            } => {
                let key = read(elem, &branch.packet, at.context);
                if matches!(key, Value::None) {
                    return vec![Next::Over(branch)];
                }
                let is_added = op != "delete";
                let key = matches::written_key(&key);
                if set.starts_with(AFFINITY) {
                    branch.packet.sticky |= is_added && branch.packet.was_looked_up(set);
                } else if let Some(key) = key {
                    branch.packet.write(Written {
                        set: matches::name_of(at.table, set),
                        key,
                        is_added,
                    });
                }
                note(
                    &mut branch,
                    Effect::Other {
                        what: format!("{op} @{set}"),
                    },
                    1.0,
                );
                let of_set = || at.table.set(set).map_or(&[][..], |set| &set.run);
                let run = if run.is_empty() { of_set() } else { run };
                if is_added {
                    part(branch, &matches::conditions(run))
                } else {
                    vec![Next::On(branch)]
                }
            }
            Statement::Counter { .. } => vec![Next::On(branch)],
            Statement::Xt { kind, name } => match (kind.as_str(), name.as_str()) {
                ("match", "comment") => vec![Next::On(branch)],
                ("match", _) => undecided(
                    branch,
                    &format!("xt {kind} {name} matches: nft does not show its options"),
                ),
                _ => vec![Next::End(
                    branch,
                    End::Unknown(format!(
                        "{}: the effect of xt {kind} {name} is unknown: nft does not show it",
                        by("taken")
                    )),
                )],
            },
            Statement::Other(value) => {
                let name = value
                    .as_object()
                    .and_then(|o| o.keys().next())
                    .cloned()
                    .unwrap_or_default();
                let object = object(value[&name].as_str(), &name, &branch.packet, at.context);
                match name.as_str() {
                    // The map has no object for the packet, so the rule ends.
                    _ if object.as_ref().is_some_and(Vec::is_empty) => vec![Next::Over(branch)],
                    "dup"
                        if value["dup"].as_str().is_some_and(|words| {
                            at.context.router.copies(&branch.packet, words)
                        }) =>
                    {
                        vec![Next::End(
                            branch,
                            End::Unknown(format!("{}: {COPIED}", by("copied"))),
                        )]
                    }
                    // These leave the packet and its way as they are.
                    "log" | "comment" | "flow" | "ct helper" | "ct timeout" | "ct expectation"
                    | "secmark" | "dup" => vec![Next::On(branch)],
                    "synproxy" => vec![Next::End(
                        branch,
                        End::Unknown(format!("{}: {BY_PROXY}", by("taken by synproxy"))),
                    )],
                    "notrack" => {
                        branch.packet.untrack();
                        note(&mut branch, Effect::Untrack, 1.0);
                        vec![Next::On(branch)]
                    }
                    "limit" | "ct count" => {
                        let named = object.as_ref().and_then(|names| names.first());
                        let named = named.and_then(|name| at.table.limits.get(name));
                        let text = named
                            .cloned()
                            .unwrap_or_else(|| print::statement(statement));
                        let is_over = text.split(' ').any(|word| word == "over");
                        if name == "ct count" && text.ends_with(" 0") {
                            return part(branch, &Likelihood::sure(is_over));
                        }
                        let question = Question::rate(&format!("`{text}`"), is_over);
                        part(branch, &Likelihood::undecided(question))
                    }
                    "quota" => {
                        let quota = object.and_then(|mut names| names.pop()).map_or_else(
                            || format!("`{}`", print::statement(statement)),
                            |name| format!("quota {name} of table {}", at.table.name),
                        );
                        undecided(branch, &format!("{quota} is used up"))
                    }
                    "queue" if print::statement(statement).contains("bypass") => {
                        let what = "a program reads the queue";
                        let steps = undecided(branch, what).into_iter().map(|step| match step {
                            Next::On(branch) => {
                                Next::End(branch, End::Unknown(queued(&by("queued"))))
                            }
                            Next::Over(branch) => Next::End(branch, End::Accept),
                            step @ Next::End(..) => step,
                        });
                        steps.collect()
                    }
                    "tproxy"
                        if print::statement(statement)
                            .rsplit_once(':')
                            .and_then(|(_, port)| port.parse().ok())
                            .is_some_and(|port| {
                                opening::lacks_proxy(port, &branch.packet, at.context.router)
                            }) =>
                    {
                        vec![Next::Over(branch)]
                    }
                    "queue" | "tproxy" | "fwd" => {
                        let mut branch = branch;
                        if name == "tproxy" {
                            let what = opening::TPROXY.to_owned();
                            note(&mut branch, Effect::Other { what }, 1.0);
                        }
                        vec![Next::End(
                            branch,
                            End::Unknown(format!(
                                "{}: the effect of {name} is unknown",
                                by("taken")
                            )),
                        )]
                    }
                    _ => undecided(branch, &format!("`{}` holds", print::statement(statement))),
                }
            }
        }
    }

    /// Follows each entry of a map that may apply; the rest of the probability continues with the next rule.
    fn choose<T>(
        branch: Branch,
        found: Vec<(f64, T)>,
        mut take: impl FnMut(Branch, f64, T) -> Vec<Next>,
    ) -> Vec<Next> {
        let taken: f64 = found.iter().map(|(chance, _)| chance).sum();
        let mut steps = Vec::new();
        for (chance, datum) in found {
            let mut taken = branch.clone();
            taken.weight *= chance;
            steps.extend(take(taken, chance, datum));
        }
        if taken < 1.0 - 1e-9 {
            let mut rest = branch;
            rest.weight *= 1.0 - taken;
            steps.push(Next::Over(rest));
        }
        steps
    }

    fn verdict(
        &self,
        mut branch: Branch,
        at: &At<'_, 'a>,
        index: usize,
        rule: &Rule,
        verdict: &Verdict,
        chance: f64,
    ) -> Vec<Next> {
        let by = |kind: &str| at.by(kind, index);
        let mut note = |effect| record(&mut branch, at, index, rule, effect, chance);
        let end = match verdict {
            Verdict::Accept => {
                note(Effect::Accept);
                End::Accept
            }
            Verdict::Drop => {
                note(Effect::Drop);
                End::Drop(by("dropped"))
            }
            Verdict::Return => {
                note(Effect::Return);
                End::Return
            }
            Verdict::Continue => return vec![Next::Over(branch)],
            Verdict::Queue => {
                note(Effect::Queue);
                End::Unknown(queued(&by("queued")))
            }
            Verdict::Jump(to) | Verdict::Goto(to) => {
                let goes = matches!(verdict, Verdict::Goto(_));
                note(if goes {
                    Effect::Goto { to: to.clone() }
                } else {
                    Effect::Jump { to: to.clone() }
                });
                let found = match &self.index {
                    Some(index) => index.chain(at.table, to),
                    None => at.table.chain(to),
                };
                let Some(chain) = found else {
                    return vec![Next::End(
                        branch,
                        End::Unknown(format!(
                            "chain {to} does not exist, but {} jumps to it",
                            at.chain.name
                        )),
                    )];
                };
                let inside = At {
                    chain,
                    depth: at.depth + 1,
                    ..*at
                };
                let ends = self.run_nft(branch, &inside);
                return ends
                    .into_iter()
                    .map(|(branch, end)| match end {
                        End::Return if !goes => Next::Over(branch),
                        end => Next::End(branch, end),
                    })
                    .collect();
            }
        };
        vec![Next::End(branch, end)]
    }

    fn nat_statement(
        branch: Branch,
        at: &At<'_, 'a>,
        index: usize,
        rule: &Rule,
        to: &Aim<'_>,
    ) -> Vec<Next> {
        let packet = branch.packet.clone();
        let of = |expr: Option<&Expr>| match expr {
            Some(expr) => choices(expr, &packet, at.context),
            None => Ok(vec![(1.0, Ends::default())]),
        };
        // `dnat to KEY map { … }` may choose among several.
        let (addrs, ports) = match (of(to.addr), of(to.port)) {
            (Ok(addrs), Ok(ports)) => (addrs, ports),
            (Err(what), _) | (_, Err(what)) => {
                return unread(branch, &what, &at.by("taken", index));
            }
        };
        Self::choose(branch, addrs, |branch, chance, found| {
            Self::choose(branch, ports.clone(), |branch, part, with| {
                let addrs = match found.addrs {
                    Some(range) if to.flags.iter().any(|flag| flag == "netmap") => {
                        let old = match to.kind {
                            NatKind::Dnat => branch.packet.destination(),
                            NatKind::Snat => branch.packet.source(),
                        };
                        let new = mapped(old.exact(), range);
                        Some((new, new))
                    }
                    addrs => addrs,
                };
                if addrs.is_none() && to.addr.is_some() {
                    return vec![Next::End(branch, End::Unknown(UNREAD.to_owned()))];
                }
                let ways = match to.kind {
                    NatKind::Dnat => {
                        let ports = with.ports.or(found.ports);
                        translations(branch, addrs, ports, is_random(to.flags))
                    }
                    NatKind::Snat => sources(branch, addrs),
                };
                let ways = ways.into_iter().map(|(mut branch, share)| {
                    let effect = match to.kind {
                        NatKind::Dnat => translated(&branch),
                        NatKind::Snat => Effect::Snat {
                            address: addrs.map(|_| branch.packet.source().shown()),
                        },
                    };
                    record(&mut branch, at, index, rule, effect, chance * part * share);
                    Next::End(branch, End::Accept)
                });
                ways.collect()
            })
        })
    }
}

/// Why a translation is not followed.
const UNREAD: &str = "the address it is translated to is unknown";

/// The parts of a nat statement.
struct Aim<'s> {
    kind: NatKind,
    addr: Option<&'s Expr>,
    port: Option<&'s Expr>,
    flags: &'s [String],
}

/// First and last address, and first and last port, that a translation may choose.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    addrs: Option<(IpAddr, IpAddr)>,
    ports: Option<(u16, u16)>,
}

/// Returns the values that `expr` gives a translation, each with its chance; the chances are 1 together unless a map may
/// have no entry.
fn choices(
    expr: &Expr,
    packet: &Packet,
    context: &Context<'_, '_>,
) -> Result<Vec<(f64, Ends)>, String> {
    let Expr::Lookup { key, data } = expr else {
        return ends(expr, packet, context).map(|ends| vec![(1.0, ends)]);
    };
    let have = read(key, packet, context);
    let found = matches::look_up(data, &have, packet, context)?;
    let found = found.into_iter().filter_map(|(chance, datum)| match datum {
        Datum::Data(expr) => Some(ends(expr, packet, context).map(|ends| (chance, ends))),
        Datum::Verdict(_) => None,
    });
    found.collect()
}

/// Reads addresses and ports that are written, or computed.
fn ends(expr: &Expr, packet: &Packet, context: &Context<'_, '_>) -> Result<Ends, String> {
    let unknown = || format!("what `{}` gives", print::expr(expr));
    let mut all = Ends::default();
    match expr {
        Expr::Concat(parts) => {
            for part in parts {
                let part = ends(part, packet, context)?;
                all.addrs = all.addrs.or(part.addrs);
                all.ports = all.ports.or(part.ports);
            }
        }
        Expr::Range(first, last) => {
            let (first, last) = (ends(first, packet, context)?, ends(last, packet, context)?);
            all.addrs = first
                .addrs
                .zip(last.addrs)
                .map(|((first, _), (_, last))| (first, last));
            all.ports = first
                .ports
                .zip(last.ports)
                .map(|((first, _), (_, last))| (first, last));
        }
        Expr::Prefix { addr, len } => {
            let (addr, _) = ends(addr, packet, context)?.addrs.ok_or_else(unknown)?;
            let family = Family::of(addr);
            let (first, last) = region::ends(Cidr { addr, prefix: *len });
            let of = |number| region::address(family, number);
            all.addrs = Some((of(first), of(last)));
        }
        expr => match read(expr, packet, context) {
            Value::Addr(addr) => {
                let addr = addr.exact();
                all.addrs = Some((addr, addr));
            }
            value => {
                let port = value.number().and_then(|port| u16::try_from(port).ok());
                let port = port.ok_or_else(unknown)?;
                all.ports = Some((port, port));
            }
        },
    }
    Ok(all)
}

fn is_random(flags: &[String]) -> bool {
    flags.iter().any(|flag| flag.ends_with("random"))
}

fn queued(by: &str) -> String {
    format!("{by}: a program in user space decides")
}

/// Returns whether a rejection with this answer is for packets such as this one.
fn is_for(kind: Option<&str>, packet: &Packet) -> bool {
    match kind {
        Some("icmp") => packet.family() == Family::V4,
        Some("icmpv6") => packet.family() == Family::V6,
        Some("tcp reset") => packet.is(Proto::Tcp),
        _ => true,
    }
}

/// Splits a branch at a match.
fn part(branch: Branch, likelihood: &Likelihood) -> Vec<Next> {
    if likelihood.is_no() {
        return vec![Next::Over(branch)];
    }
    let (hit, miss) = split(branch, likelihood);
    let mut steps = vec![Next::On(hit)];
    steps.extend(miss.map(Next::Over));
    steps
}

/// Returns the object, such as a quota, that a map gives to the packet in a statement with these words: at most one. `None` for a
/// statement without a map, and if that is not known.
fn object(
    words: Option<&str>,
    kind: &str,
    packet: &Packet,
    context: &Context<'_, '_>,
) -> Option<Vec<String>> {
    let words = words?.strip_prefix(kind)?.strip_prefix(" name ")?;
    let Some((key, map)) = words.split_once(" map @") else {
        return Some(vec![words.trim_matches('"').to_owned()]);
    };
    let parts: Option<Vec<Expr>> = key.split(" . ").map(field).collect();
    let mut parts = parts?;
    let key = if parts.len() == 1 {
        parts.remove(0)
    } else {
        Expr::Concat(parts)
    };
    let have = read(&key, packet, context);
    let map = Expr::Named(map.to_owned());
    let found = matches::look_up(&map, &have, packet, context).ok()?;
    match found.as_slice() {
        [] => Some(Vec::new()),
        [(chance, Datum::Data(Expr::Word(name)))] if *chance >= 1.0 => Some(vec![name.clone()]),
        _ => None,
    }
}

/// Reads a field of a packet: `ip daddr`, `meta mark`, `iifname`.
fn field(words: &str) -> Option<Expr> {
    match words.split_once(' ') {
        None | Some(("meta", _)) => {
            let key = words.trim_start_matches("meta ");
            Some(Expr::Meta(key.to_owned()))
        }
        Some(("ct", _)) => None,
        Some((protocol, field)) => Some(Expr::Payload {
            protocol: protocol.to_owned(),
            field: field.to_owned(),
        }),
    }
}

fn undecided(branch: Branch, what: &str) -> Vec<Next> {
    part(branch, &Likelihood::unknown(what))
}

/// A map with an unknown entry ends the packet's way, or has no entry for it.
fn unread(branch: Branch, what: &str, taken: &str) -> Vec<Next> {
    let ends = |step| match step {
        Next::On(branch) => Next::End(
            branch,
            End::Unknown(format!("{taken}: it is unknown {what}")),
        ),
        step => step,
    };
    let steps = undecided(branch, "an entry of the map fits");
    steps.into_iter().map(ends).collect()
}

fn mangle(
    mut branch: Branch,
    at: &At<'_, '_>,
    (key, value): (&Expr, &Expr),
    by: &dyn Fn(&str) -> String,
    note: &impl Fn(&mut Branch, Effect, f64),
) -> Vec<Next> {
    // A rule that changes a field that the packet lacks ends.
    if let Expr::Payload { .. } = key
        && matches!(read(key, &branch.packet, at.context), Value::None)
    {
        return vec![Next::Over(branch)];
    }
    if let Expr::Lookup { key: asked, data } = value {
        let packet = branch.packet.clone();
        let have = read(asked, &packet, at.context);
        // Each way of a random choice is followed.
        if let (Value::Random { .. }, Ok(found)) =
            (&have, matches::look_up(data, &have, &packet, at.context))
        {
            return Walker::choose(branch, found, |branch, _, datum| match datum {
                Datum::Data(value) => mangle(branch, at, (key, value), by, note),
                Datum::Verdict(_) => vec![Next::On(branch)],
            });
        }
    }
    let new = read(value, &branch.packet, at.context);
    match (key, &new) {
        (_, Value::None) => return vec![Next::Over(branch)],
        (Expr::Meta(name), Value::Number(to)) if name == "mark" => {
            let from = branch.packet.mark.shown();
            let to = u32::try_from(*to & u64::from(u32::MAX)).unwrap_or(0);
            branch.packet.mark.change(Mark {
                value: to,
                mask: u32::MAX,
            });
            note(&mut branch, Effect::Mark { from, to }, 1.0);
        }
        (Expr::Payload { protocol, field }, Value::Number(to))
            if matches!(
                (protocol.as_str(), field.as_str()),
                ("ip", "ttl") | ("ip6", "hoplimit")
            ) =>
        {
            let to = u8::try_from(*to).unwrap_or(u8::MAX);
            branch.packet.ttl = to;
            note(&mut branch, Effect::Ttl { to }, 1.0);
        }
        (Expr::Payload { field, .. }, _) if field == "dscp" && at.context.router.asks_for_tos() => {
            let why = "routing policy rules look at the type of service, which the rule changes and kpx does not follow";
            return vec![Next::End(branch, End::Unknown(why.to_owned()))];
        }
        (Expr::Payload { field, .. }, _) if field == "dscp" => {
            let dscp = new.number().or_else(|| flags(value, DSCP));
            let dscp = dscp.and_then(|dscp| u8::try_from(dscp).ok());
            branch.packet.tos = dscp.and_then(|dscp| tos::with_dscp(branch.packet.tos, dscp));
        }
        (Expr::Ct { key, dir: None }, Value::Number(zone)) if key == "zone" => {
            let zone = u16::try_from(*zone).unwrap_or_default();
            branch.packet.set_zone(zone);
            note(&mut branch, Effect::Zone { zone }, 1.0);
        }
        (Expr::Ct { key, .. }, _) if key == "zone" => {
            branch.packet.unknown_zone = Some(by("").trim_start().into());
        }
        (Expr::Ct { .. }, _) if !branch.packet.is_tracked() => {}
        (Expr::Ct { key, .. }, Value::Number(to)) if key == "mark" => {
            branch.packet.ct_mark = u32::try_from(*to & u64::from(u32::MAX)).unwrap_or(0);
            note(
                &mut branch,
                Effect::Other {
                    what: format!("ct mark set {to:#x}"),
                },
                1.0,
            );
        }
        (Expr::Meta(name), _) if name == "mark" => {
            return vec![Next::End(
                branch,
                End::Unknown(format!(
                    "the mark that is set is unknown: {}",
                    print::expr(value)
                )),
            )];
        }
        // A frame may have any sender.
        (Expr::Payload { protocol, field }, _) if protocol == "ether" && field == "saddr" => {}
        (Expr::Payload { protocol, field }, Value::Word(mac))
            if protocol == "ether"
                && field == "daddr"
                && keeps_way(mac, &branch.packet, at.context) => {}
        (Expr::Payload { protocol, field }, _) if !WITHOUT_EFFECT.contains(&field.as_str()) => {
            let why = format!("kpx does not follow a packet with another {protocol} {field}");
            return vec![Next::End(branch, End::Unknown(why))];
        }
        (Expr::Other(json), _) if json.get("payload").is_some() => {
            let why = "kpx does not follow a packet whose headers a rule writes";
            return vec![Next::End(branch, End::Unknown(why.to_owned()))];
        }
        // Priorities, trace flags and the like.
        _ => note(
            &mut branch,
            Effect::Other {
                what: "changes a field".to_owned(),
            },
            1.0,
        ),
    }
    vec![Next::On(branch)]
}

/// Fields that a packet's way does not depend on.
const WITHOUT_EFFECT: [&str; 7] = [
    "checksum",
    "csum",
    "ecn",
    "flowlabel",
    "frag-off",
    "id",
    "window",
];

/// Records that the policy of a base chain drops the packet.
fn record_policy(branch: &mut Branch, hook: Hook, table: &Table, chain: &Chain) {
    branch
        .path
        .push(|| policy(hook, table, chain, Effect::Drop));
}

fn record(
    branch: &mut Branch,
    at: &At<'_, '_>,
    index: usize,
    rule: &Rule,
    effect: Effect,
    chance: f64,
) {
    let counted = |statement: &Statement| match statement {
        Statement::Counter {
            packets,
            name: None,
            ..
        } => Some(*packets),
        _ => None,
    };
    branch.path.push(|| Hop {
        number: index + 1,
        rule: print::rule(rule),
        packets: rule.statements.iter().find_map(counted),
        chance,
        ..policy(at.hook, at.table, at.chain, effect)
    });
}

/// Returns the hop at the policy of a chain.
fn policy(hook: Hook, table: &Table, chain: &Chain, effect: Effect) -> Hop {
    Hop {
        table: format!("{} {}", table.family, table.name),
        chain: chain.name.clone(),
        ..Hop::without_rule(hook, Subsystem::Nftables, effect)
    }
}
