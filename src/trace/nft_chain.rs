//! Running chains of nftables.

use std::net::IpAddr;

use super::hop::{Effect, Hook, Hop, Layer};
use super::ipt_chain::{masquerade, redirect, split, translate, translate_source};
use super::nft::{self, Context, Value};
use super::packet::Odds;
use super::walk::{End, Ends, State, Walker};
use crate::backend::nftables::model::{
    Chain, Datum, Expr, NatKind, Rule, Statement, Table, Verdict,
};
use crate::backend::nftables::print;

/// Chains nest no deeper in the kernel (`NFT_JUMP_STACK_SIZE`).
const DEEPEST: usize = 16;

/// What a statement leads to.
enum Next {
    /// The next statement of the rule.
    On(State),
    /// The next rule.
    Over(State),
    /// The end of the chain, or further.
    End(State, End),
}

/// Where a rule stands.
struct At<'x, 'a> {
    hook: Hook,
    table: &'x Table,
    chain: &'x Chain,
    context: &'x Context<'x, 'a>,
    depth: usize,
}

impl<'a> Walker<'_, 'a, '_> {
    /// Runs a base chain of nftables.
    pub(crate) fn nftables(&self, state: State, hook: Hook, table: &Table, chain: &Chain) -> Ends {
        let context = Context {
            router: &self.router,
            table,
        };
        let mut ends = self.run_nft(
            state,
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
        for (state, end) in &mut ends {
            if *end == End::Return {
                *end = if drops {
                    record_policy(state, hook, table, chain);
                    End::Drop(format!(
                        "the policy of {} {} {} drops it",
                        table.family, table.name, chain.name
                    ))
                } else {
                    End::Accept
                };
            }
        }
        ends
    }

    fn run_nft(&self, state: State, at: &At<'_, 'a>) -> Ends {
        if at.depth > DEEPEST {
            return vec![(
                state,
                End::Unknown(format!("chain {} leads into itself", at.chain.name)),
            )];
        }
        let mut live = vec![state];
        let mut done = Ends::new();
        for (index, rule) in at.chain.rules.iter().enumerate() {
            let mut next = Vec::with_capacity(live.len());
            for state in live {
                self.run_rule(state, at, index, rule, &mut next, &mut done);
            }
            live = next;
            if live.is_empty() {
                break;
            }
        }
        done.extend(live.into_iter().map(|state| (state, End::Return)));
        done
    }

    fn run_rule(
        &self,
        state: State,
        at: &At<'_, 'a>,
        index: usize,
        rule: &Rule,
        next: &mut Vec<State>,
        done: &mut Ends,
    ) {
        let mut live = vec![state];
        for statement in &rule.statements {
            let mut on = Vec::new();
            for state in live {
                for step in self.statement(state, at, index, rule, statement) {
                    match step {
                        Next::On(state) => on.push(state),
                        Next::Over(state) => next.push(state),
                        Next::End(state, end) => done.push((state, end)),
                    }
                }
            }
            live = on;
        }
        next.extend(live);
    }

    fn statement(
        &self,
        mut state: State,
        at: &At<'_, 'a>,
        index: usize,
        rule: &Rule,
        statement: &Statement,
    ) -> Vec<Next> {
        let note =
            |state: &mut State, effect, chance| record(state, at, index, rule, effect, chance);
        let by = |kind: &str| {
            format!(
                "{kind} by rule {} of {} {}",
                index + 1,
                at.table.name,
                at.chain.name
            )
        };
        match statement {
            Statement::Match { left, op, right } => {
                let odds = nft::compare(left, op, right, &state.packet, at.context);
                part(state, &odds)
            }
            Statement::Vmap { key, data } => {
                let have = nft::value(key, &state.packet, at.context);
                let found = match nft::look_up(data, &have, at.context) {
                    Ok(found) => found,
                    Err(what) => return undecided(state, &what),
                };
                Self::choose(state, found, |state, chance, datum| match datum {
                    Datum::Verdict(verdict) => {
                        self.verdict(state, at, index, rule, verdict, chance)
                    }
                    Datum::Data(_) => vec![Next::End(
                        state,
                        End::Unknown(by("taken") + ": a verdict map gives data"),
                    )],
                })
            }
            Statement::Verdict(verdict) => self.verdict(state, at, index, rule, verdict, 1.0),
            Statement::Reject { kind, code } => {
                let with = [kind.as_deref(), code.as_deref()]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join(" ");
                note(&mut state, Effect::Reject { with }, 1.0);
                vec![Next::End(state, End::Reject(by("rejected")))]
            }
            Statement::Nat {
                kind, addr, port, ..
            } => Self::nat_statement(state, at, index, rule, *kind, addr.as_ref(), port.as_ref()),
            Statement::Masquerade { .. } => {
                let addr = masquerade(self, &mut state);
                note(&mut state, Effect::Masquerade { address: addr }, 1.0);
                vec![Next::End(state, End::Accept)]
            }
            Statement::Redirect { port, .. } => {
                let port = port
                    .as_ref()
                    .and_then(|port| number(&nft::value(port, &state.packet, at.context)));
                redirect(self, &mut state, at.hook, port);
                let effect = Effect::Dnat {
                    address: state.packet.destination,
                    port: state.packet.port,
                };
                note(&mut state, effect, 1.0);
                vec![Next::End(state, End::Accept)]
            }
            Statement::Mangle { key, value } => mangle(state, at, key, value, &note),
            Statement::SetOp { op, set, .. } => {
                note(
                    &mut state,
                    Effect::Other {
                        what: format!("{op} @{set}"),
                    },
                    1.0,
                );
                vec![Next::On(state)]
            }
            Statement::Counter { .. } => vec![Next::On(state)],
            Statement::Xt { kind, name } => match (kind.as_str(), name.as_str()) {
                ("match", "comment") => vec![Next::On(state)],
                ("match", _) => undecided(
                    state,
                    &format!("whether xt {kind} {name} matches: nft does not show its options"),
                ),
                _ => vec![Next::End(
                    state,
                    End::Unknown(format!(
                        "{}: what xt {kind} {name} does, nft does not show",
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
                    "log" | "quota" | "comment" | "flow" | "ct helper" | "ct timeout"
                    | "ct expectation" | "secmark" | "synproxy" | "dup" => vec![Next::On(state)],
                    "notrack" => {
                        state.packet.untracked = true;
                        note(&mut state, Effect::Untrack, 1.0);
                        vec![Next::On(state)]
                    }
                    "limit" => undecided(state, "whether the rate of a limit is used up"),
                    "queue" | "tproxy" | "fwd" => {
                        vec![Next::End(
                            state,
                            End::Unknown(format!(
                                "{}: what {name} does with it is decided elsewhere",
                                by("taken")
                            )),
                        )]
                    }
                    _ => undecided(state, &format!("whether `{value}` holds")),
                }
            }
        }
    }

    /// Follows each entry of a map that may apply; what is left of the probability goes on with the next rule.
    fn choose<'d>(
        state: State,
        found: Vec<(f64, &'d Datum)>,
        mut take: impl FnMut(State, f64, &'d Datum) -> Vec<Next>,
    ) -> Vec<Next> {
        let taken: f64 = found.iter().map(|(chance, _)| chance).sum();
        let mut steps = Vec::new();
        for (chance, datum) in found {
            let mut way = state.clone();
            way.weight *= chance;
            steps.extend(take(way, chance, datum));
        }
        if taken < 1.0 - 1e-9 {
            let mut rest = state;
            rest.weight *= 1.0 - taken;
            steps.push(Next::Over(rest));
        }
        steps
    }

    fn verdict(
        &self,
        mut state: State,
        at: &At<'_, 'a>,
        index: usize,
        rule: &Rule,
        verdict: &Verdict,
        chance: f64,
    ) -> Vec<Next> {
        let by = |kind: &str| {
            format!(
                "{kind} by rule {} of {} {}",
                index + 1,
                at.table.name,
                at.chain.name
            )
        };
        let mut note = |effect| record(&mut state, at, index, rule, effect, chance);
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
            Verdict::Continue => return vec![Next::Over(state)],
            Verdict::Queue => End::Unknown(by("queued") + ": a program in user space decides"),
            Verdict::Jump(to) | Verdict::Goto(to) => {
                let goes = matches!(verdict, Verdict::Goto(_));
                note(if goes {
                    Effect::Goto { to: to.clone() }
                } else {
                    Effect::Jump { to: to.clone() }
                });
                let Some(chain) = at.table.chain(to) else {
                    return vec![Next::End(
                        state,
                        End::Unknown(format!(
                            "chain {to} is not there, but {} leads to it",
                            at.chain.name
                        )),
                    )];
                };
                let inside = At {
                    chain,
                    depth: at.depth + 1,
                    ..*at
                };
                let ends = self.run_nft(state, &inside);
                return ends
                    .into_iter()
                    .map(|(state, end)| match end {
                        End::Return if !goes => Next::Over(state),
                        end => Next::End(state, end),
                    })
                    .collect();
            }
        };
        vec![Next::End(state, end)]
    }

    fn nat_statement(
        state: State,
        at: &At<'_, 'a>,
        index: usize,
        rule: &Rule,
        kind: NatKind,
        addr: Option<&Expr>,
        port: Option<&Expr>,
    ) -> Vec<Next> {
        // `dnat to KEY map { … }` may choose among several.
        let targets: Vec<(f64, Vec<Value>)> = match addr {
            Some(Expr::Lookup { key, data }) => {
                let have = nft::value(key, &state.packet, at.context);
                match nft::look_up(data, &have, at.context) {
                    Err(what) => return undecided(state, &what),
                    Ok(found) => found
                        .into_iter()
                        .filter_map(|(chance, datum)| match datum {
                            Datum::Data(expr) => {
                                Some((chance, parts(nft::value(expr, &state.packet, at.context))))
                            }
                            Datum::Verdict(_) => None,
                        })
                        .collect(),
                }
            }
            Some(addr) => vec![(1.0, parts(nft::value(addr, &state.packet, at.context)))],
            None => vec![(1.0, Vec::new())],
        };
        let taken: f64 = targets.iter().map(|(chance, _)| chance).sum();
        let mut steps = Vec::new();
        for (chance, target) in targets {
            let mut way = state.clone();
            way.weight *= chance;
            let to = target.iter().find_map(address);
            let port = match port {
                Some(port) => number(&nft::value(port, &way.packet, at.context)),
                None => target.iter().find_map(number),
            };
            if target
                .iter()
                .any(|value| matches!(value, Value::Unknown(_)))
            {
                steps.push(Next::End(
                    way,
                    End::Unknown("the address of a translation is not known".to_owned()),
                ));
                continue;
            }
            let effect = match kind {
                NatKind::Dnat => {
                    translate(&mut way, to, port);
                    Effect::Dnat {
                        address: way.packet.destination,
                        port: way.packet.port,
                    }
                }
                NatKind::Snat => {
                    translate_source(&mut way, to);
                    Effect::Snat { address: to }
                }
            };
            record(&mut way, at, index, rule, effect, chance);
            steps.push(Next::End(way, End::Accept));
        }
        if taken < 1.0 - 1e-9 {
            let mut rest = state;
            rest.weight *= 1.0 - taken;
            steps.push(Next::Over(rest));
        }
        steps
    }
}

/// Splits a way at a match.
fn part(state: State, odds: &Odds) -> Vec<Next> {
    if odds.is_no() {
        return vec![Next::Over(state)];
    }
    let (hit, miss) = split(state, odds);
    let mut steps = vec![Next::On(hit)];
    steps.extend(miss.map(Next::Over));
    steps
}

fn undecided(state: State, what: &str) -> Vec<Next> {
    part(state, &Odds::unknown(what))
}

fn mangle(
    mut state: State,
    at: &At<'_, '_>,
    key: &Expr,
    value: &Expr,
    note: &impl Fn(&mut State, Effect, f64),
) -> Vec<Next> {
    let new = nft::value(value, &state.packet, at.context);
    match (key, &new) {
        (Expr::Meta(name), Value::Number(to)) if name == "mark" => {
            let from = state.packet.mark;
            let to = u32::try_from(*to & u64::from(u32::MAX)).unwrap_or(0);
            state.packet.mark = to;
            note(&mut state, Effect::Mark { from, to }, 1.0);
        }
        (Expr::Ct { key, .. }, Value::Number(to)) if key == "mark" => {
            state.packet.ct_mark = u32::try_from(*to & u64::from(u32::MAX)).unwrap_or(0);
            note(
                &mut state,
                Effect::Other {
                    what: format!("ct mark set {to:#x}"),
                },
                1.0,
            );
        }
        (Expr::Meta(name), _) if name == "mark" => {
            return vec![Next::End(
                state,
                End::Unknown(format!(
                    "the mark it gets is not known: {}",
                    print::expr(value)
                )),
            )];
        }
        // Priorities, trace flags and the like.
        _ => note(
            &mut state,
            Effect::Other {
                what: "changes a field".to_owned(),
            },
            1.0,
        ),
    }
    vec![Next::On(state)]
}

fn parts(value: Value) -> Vec<Value> {
    match value {
        Value::Concat(values) => values,
        value => vec![value],
    }
}

fn address(value: &Value) -> Option<IpAddr> {
    match value {
        Value::Addr(addr) => Some(*addr),
        _ => None,
    }
}

fn number(value: &Value) -> Option<u16> {
    match value {
        Value::Number(number) => u16::try_from(*number).ok(),
        _ => None,
    }
}

/// Records that the policy of a base chain drops the packet.
fn record_policy(state: &mut State, hook: Hook, table: &Table, chain: &Chain) {
    state.path.push(Hop {
        hook,
        layer: Layer::Nftables,
        table: format!("{} {}", table.family, table.name),
        chain: chain.name.clone(),
        number: 0,
        rule: String::new(),
        packets: None,
        effect: Effect::Drop,
        chance: 1.0,
        when: None,
    });
}

fn record(
    state: &mut State,
    at: &At<'_, '_>,
    index: usize,
    rule: &Rule,
    effect: Effect,
    chance: f64,
) {
    let packets = rule
        .statements
        .iter()
        .find_map(|statement| match statement {
            Statement::Counter {
                packets,
                name: None,
                ..
            } => Some(*packets),
            _ => None,
        });
    state.path.push(Hop {
        hook: at.hook,
        layer: Layer::Nftables,
        table: format!("{} {}", at.table.family, at.table.name),
        chain: at.chain.name.clone(),
        number: index + 1,
        rule: print::rule(rule),
        packets,
        effect,
        chance,
        when: None,
    });
}
