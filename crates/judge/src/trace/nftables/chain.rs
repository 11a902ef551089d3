//! Running chains of nftables.

use std::net::IpAddr;

use smallvec::smallvec;

use super::matches;
use super::value::{Context, Value, read};
use crate::trace::hop::{Effect, Hook, Hop, Subsystem};
use crate::trace::iptables::chain::{
    masquerade, redirect, reunite, split, translate, translate_source, translated,
};
use crate::trace::packet::Likelihood;
use crate::trace::walk::{Branch, Branches, End, Ends, Walker};
use kpx_node::backend::nftables::model::{
    Chain, Datum, Expr, NatKind, Rule, Statement, Table, Verdict,
};
use kpx_node::backend::nftables::print;
use kpx_node::backend::software::BRIDGE;
use kpx_node::net::Mark;

/// Chains nest no deeper in the kernel (`NFT_JUMP_STACK_SIZE`).
const DEEPEST: usize = 16;

/// The beginning of the names of sets in which kube-proxy and the bridge keep the backends of clients.
pub(crate) const AFFINITY: &str = "affinity-";

/// What a statement leads to.
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
    ) -> Ends {
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

    fn run_nft(&self, branch: Branch, at: &At<'_, 'a>) -> Ends {
        if at.depth > DEEPEST {
            return smallvec![(
                branch,
                End::Unknown(format!("chain {} jumps to itself", at.chain.name)),
            )];
        }
        let mut live: Branches = smallvec![branch];
        let mut done = Ends::new();
        for (index, rule) in at.chain.rules.iter().enumerate() {
            let mut next = Branches::with_capacity(live.len());
            for branch in live {
                self.run_rule(branch, at, index, rule, &mut next, &mut done);
            }
            live = reunite(next);
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
        done: &mut Ends,
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
                }
                let likelihood = matches::compare(left, op, right, &branch.packet, at.context);
                part(branch, &likelihood)
            }
            Statement::Vmap { key, data } => {
                let packet = branch.packet.clone();
                let have = read(key, &packet, at.context);
                let found = match matches::look_up(data, &have, at.context) {
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
            Statement::Reject { kind, code } => {
                let with = [kind.as_deref(), code.as_deref()]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join(" ");
                note(&mut branch, Effect::Reject { with }, 1.0);
                vec![Next::End(branch, End::Reject(by("rejected")))]
            }
            Statement::Nat {
                kind, addr, port, ..
            } => Self::nat_statement(branch, at, index, rule, *kind, addr.as_ref(), port.as_ref()),
            Statement::Masquerade { .. } => {
                let addr = masquerade(self, &mut branch);
                note(&mut branch, Effect::Masquerade { address: addr }, 1.0);
                vec![Next::End(branch, End::Accept)]
            }
            Statement::Redirect { port, .. } => {
                let port = port
                    .as_ref()
                    .and_then(|port| number(&read(port, &branch.packet, at.context)));
                redirect(self, &mut branch, at.hook, port);
                let effect = translated(&branch);
                note(&mut branch, effect, 1.0);
                vec![Next::End(branch, End::Accept)]
            }
            Statement::Mangle { key, value } => mangle(branch, at, key, value, &note),
            Statement::SetOp { op, set, .. } => {
                branch.packet.sticky |=
                    op != "delete" && set.starts_with(AFFINITY) && branch.packet.was_looked_up(set);
                note(
                    &mut branch,
                    Effect::Other {
                        what: format!("{op} @{set}"),
                    },
                    1.0,
                );
                vec![Next::On(branch)]
            }
            Statement::Counter { .. } => vec![Next::On(branch)],
            Statement::Xt { kind, name } => match (kind.as_str(), name.as_str()) {
                ("match", "comment") => vec![Next::On(branch)],
                ("match", _) => undecided(
                    branch,
                    &format!("whether xt {kind} {name} matches: nft does not show its options"),
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
                match name.as_str() {
                    // These leave the packet and its way as they are.
                    "log" | "comment" | "flow" | "ct helper" | "ct timeout" | "ct expectation"
                    | "secmark" | "synproxy" | "dup" => vec![Next::On(branch)],
                    "notrack" => {
                        branch.packet.untracked = true;
                        note(&mut branch, Effect::Untrack, 1.0);
                        vec![Next::On(branch)]
                    }
                    "limit" => undecided(branch, "whether a rate limit is exceeded"),
                    "quota" => undecided(branch, "whether a quota is used up"),
                    "queue" | "tproxy" | "fwd" => {
                        vec![Next::End(
                            branch,
                            End::Unknown(format!(
                                "{}: the effect of {name} is unknown",
                                by("taken")
                            )),
                        )]
                    }
                    _ => undecided(branch, &format!("whether `{value}` holds")),
                }
            }
        }
    }

    /// Follows each entry of a map that may apply; what is left of the probability goes on with the next rule.
    fn choose<'d>(
        branch: Branch,
        found: Vec<(f64, &'d Datum)>,
        mut take: impl FnMut(Branch, f64, &'d Datum) -> Vec<Next>,
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
            Verdict::Queue => End::Unknown(by("queued") + ": a program in user space decides"),
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
        kind: NatKind,
        addr: Option<&Expr>,
        port: Option<&Expr>,
    ) -> Vec<Next> {
        // `dnat to KEY map { … }` may choose among several.
        let packet = branch.packet.clone();
        let targets: Vec<(f64, Vec<Value<'_>>)> = match addr {
            Some(Expr::Lookup { key, data }) => {
                let have = read(key, &packet, at.context);
                match matches::look_up(data, &have, at.context) {
                    Err(what) => return unread(branch, &what, &at.by("taken", index)),
                    Ok(found) => found
                        .into_iter()
                        .filter_map(|(chance, datum)| match datum {
                            Datum::Data(expr) => {
                                Some((chance, parts(read(expr, &packet, at.context))))
                            }
                            Datum::Verdict(_) => None,
                        })
                        .collect(),
                }
            }
            Some(addr) => vec![(1.0, parts(read(addr, &packet, at.context)))],
            None => vec![(1.0, Vec::new())],
        };
        let taken: f64 = targets.iter().map(|(chance, _)| chance).sum();
        let mut steps = Vec::new();
        for (chance, target) in targets {
            let mut taken = branch.clone();
            taken.weight *= chance;
            let to = target.iter().find_map(address);
            let port = match port {
                Some(port) => number(&read(port, &taken.packet, at.context)),
                None => target.iter().find_map(number),
            };
            if target
                .iter()
                .any(|value| matches!(value, Value::Unknown(_)))
            {
                steps.push(Next::End(
                    taken,
                    End::Unknown("the address it is translated to is unknown".to_owned()),
                ));
                continue;
            }
            let effect = match kind {
                NatKind::Dnat => {
                    translate(&mut taken, to, port);
                    translated(&taken)
                }
                NatKind::Snat => {
                    translate_source(&mut taken, to);
                    Effect::Snat { address: to }
                }
            };
            record(&mut taken, at, index, rule, effect, chance);
            steps.push(Next::End(taken, End::Accept));
        }
        if taken < 1.0 - 1e-9 {
            let mut rest = branch;
            rest.weight *= 1.0 - taken;
            steps.push(Next::Over(rest));
        }
        steps
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

fn undecided(branch: Branch, what: &str) -> Vec<Next> {
    part(branch, &Likelihood::unknown(what))
}

/// A map of which the entry is unknown ends the packet's way, or has none for it.
fn unread(branch: Branch, what: &str, taken: &str) -> Vec<Next> {
    let ends = |step| match step {
        Next::On(branch) => Next::End(
            branch,
            End::Unknown(format!("{taken}: it is unknown {what}")),
        ),
        step => step,
    };
    let steps = undecided(branch, "whether an entry of the map fits");
    steps.into_iter().map(ends).collect()
}

fn mangle(
    mut branch: Branch,
    at: &At<'_, '_>,
    key: &Expr,
    value: &Expr,
    note: &impl Fn(&mut Branch, Effect, f64),
) -> Vec<Next> {
    let new = read(value, &branch.packet, at.context);
    match (key, &new) {
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

fn parts(value: Value<'_>) -> Vec<Value<'_>> {
    match value {
        Value::Concat(values) => values,
        value => vec![value],
    }
}

fn address(value: &Value<'_>) -> Option<IpAddr> {
    match value {
        Value::Addr(addr) => Some(addr.exact()),
        _ => None,
    }
}

fn number(value: &Value<'_>) -> Option<u16> {
    u16::try_from(value.number()?).ok()
}

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
