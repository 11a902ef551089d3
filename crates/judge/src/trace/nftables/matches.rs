//! Comparisons of nftables rules, and their sets and maps.

use super::value::{Context, Value, flags, read};

use crate::trace::hop::Question;
use crate::trace::index::Part;
use crate::trace::iptables::matches::state as in_state;
use crate::trace::packet::{Likelihood, Packet};
use kpx_node::backend::iptables::model::States;
use kpx_node::backend::nftables::model::{Datum, Element, Expr, Set};
use kpx_node::backend::nftables::print;
use kpx_node::net::{Cidr, Proto};

/// Returns the likelihood that `left op right` holds.
pub(crate) fn compare(
    left: &Expr,
    op: &str,
    right: &Expr,
    packet: &Packet,
    context: &Context<'_, '_>,
) -> Likelihood {
    if let Expr::Ct { key, .. } = left
        && let "state" | "status" = key.as_str()
    {
        return connection(key, op, right, packet);
    }
    let have = read(left, packet, context);
    let mut likelihood = match have {
        Value::Random { modulus, offset } if modulus <= MOST_NUMBERS => {
            let numbers = (offset..).take(modulus as usize);
            each(numbers.map(|n| holds(&Value::Number(u64::from(n)), op, right, packet, context)))
        }
        have => holds(&have, op, right, packet, context),
    };
    for question in &mut likelihood.undecided {
        if let Question::Other(what) = question
            && what.is_empty()
        {
            let (left, right) = (print::expr(left), print::expr(right));
            *what = format!("whether `{left} {op} {right}` holds");
        }
    }
    likelihood
}

/// Numbers a random one is looked at one by one for.
const MOST_NUMBERS: u32 = 65_536;

/// Returns the likelihood of one of several equally likely cases.
fn each(cases: impl Iterator<Item = Likelihood>) -> Likelihood {
    let (mut all, mut sum) = (0.0, 0.0);
    for likelihood in cases {
        if !likelihood.undecided.is_empty() {
            return likelihood;
        }
        all += 1.0;
        sum += likelihood.chance;
    }
    Likelihood::chance(sum / f64::max(all, 1.0))
}

/// Returns the likelihood that `have op right` holds; the unknown part is not described yet.
fn holds(
    have: &Value<'_>,
    op: &str,
    right: &Expr,
    packet: &Packet,
    context: &Context<'_, '_>,
) -> Likelihood {
    match op {
        // `tcp flags ! syn`: none of the bits.
        "!" if matches!(have, Value::None) => Likelihood::NO,
        "!" => bits(have, right).not(true),
        "==" | "in" | "!=" => {
            let likelihood = if op == "in" && matches!(have, Value::Number(_) | Value::Port(_)) {
                bits(have, right)
            } else {
                contains(right, have, packet, context)
            };
            if matches!(have, Value::None) {
                Likelihood::NO
            } else {
                likelihood.not(op == "!=")
            }
        }
        "<" | ">" | "<=" | ">=" => match (have, read(right, packet, context)) {
            (Value::None, _) => Likelihood::NO,
            (Value::Unknown(what), _) => Likelihood::unknown(what),
            (have, bound) => {
                let is_below = |bound: u64| match bound.checked_sub(1) {
                    Some(last) => have.between(0, last),
                    None => have.between(0, 0).map(|_| false),
                };
                let holds = bound.number().and_then(|bound| match op {
                    "<" => is_below(bound),
                    ">" => have.between(0, bound).map(|holds| !holds),
                    "<=" => have.between(0, bound),
                    _ => is_below(bound).map(|holds| !holds),
                });
                holds.map_or(Likelihood::unknown(""), Likelihood::sure)
            }
        },
        _ => Likelihood::unknown(""),
    }
}

/// `flags in number`: any of the bits.
fn bits(have: &Value<'_>, right: &Expr) -> Likelihood {
    let mask = match right {
        Expr::Number(number) => Some(*number),
        right => flags(right),
    };
    match (have.number(), mask) {
        (Some(have), Some(mask)) => Likelihood::sure(have & mask != 0),
        _ => Likelihood::unknown(""),
    }
}

/// `ct state` and `ct status`.
fn connection(key: &str, op: &str, right: &Expr, packet: &Packet) -> Likelihood {
    let words: Vec<&str> = match right {
        Expr::Word(word) => vec![word],
        Expr::Set(list) => list
            .iter()
            .filter_map(|e| {
                if let Expr::Word(word) = e {
                    Some(word.as_str())
                } else {
                    None
                }
            })
            .collect(),
        other => return Likelihood::unknown(format!("whether ct {key} is {}", print::expr(other))),
    };
    let mut any = false;
    for word in words {
        any |= match (key, word) {
            ("state", word) => {
                let bit = match word {
                    "invalid" => States::INVALID,
                    "new" => States::NEW,
                    "related" => States::RELATED,
                    "established" => States::ESTABLISHED,
                    "untracked" => States::UNTRACKED,
                    other => return Likelihood::unknown(format!("whether ct state is {other}")),
                };
                in_state(States(bit), packet)
            }
            (_, "dnat") => packet.dnat,
            (_, "snat") => packet.snat,
            (_, "confirmed" | "assured" | "seen-reply") => packet.established,
            (_, other) => return Likelihood::unknown(format!("whether ct status has {other}")),
        };
    }
    Likelihood::sure(any != matches!(op, "!=" | "!"))
}

/// Returns the likelihood that `want` (a value, range, prefix, anonymous or named set) contains `have`.
pub(crate) fn contains(
    want: &Expr,
    have: &Value<'_>,
    packet: &Packet,
    context: &Context<'_, '_>,
) -> Likelihood {
    if let Value::Unknown(what) = have {
        return Likelihood::unknown(what.clone());
    }
    if matches!(have, Value::None) {
        return Likelihood::NO;
    }
    match want {
        Expr::Named(name) => match context.table.set(name) {
            None => Likelihood::unknown(format!("what set @{name} holds: it was not read")),
            Some(set) if context.lasting && set.has_timeouts() => {
                Likelihood::unknown(format!("whether set @{name} has it at the time"))
            }
            Some(set) => in_set(set, have, context),
        },
        Expr::Set(list) => any(list
            .iter()
            .map(|want| contains(want, have, packet, context))),
        Expr::Any => Likelihood::YES,
        want => match same(want, have) {
            Some(holds) => Likelihood::sure(holds),
            None => match read(want, packet, context).number() {
                Some(want) => have
                    .between(want, want)
                    .map_or(Likelihood::unknown(""), Likelihood::sure),
                None => Likelihood::unknown(""),
            },
        },
    }
}

/// Returns whether a named set has `have`; of a set with timeouts only what is alive was listed.
fn in_set(set: &Set, have: &Value<'_>, context: &Context<'_, '_>) -> Likelihood {
    if let Some(found) = indexed(set, have, context) {
        return Likelihood::sure(found.is_ok());
    }
    let elements = set.elements.iter();
    any(elements
        .map(|element| same(&element.key, have).map_or(Likelihood::unknown(""), Likelihood::sure)))
}

fn any(all: impl Iterator<Item = Likelihood>) -> Likelihood {
    let mut undecided = None;
    for likelihood in all {
        if likelihood.undecided.is_empty() && likelihood.chance >= 1.0 {
            return likelihood;
        }
        if !likelihood.undecided.is_empty() {
            undecided.get_or_insert(likelihood);
        }
    }
    undecided.unwrap_or(Likelihood::NO)
}

/// No element has the key.
struct Absent;

/// Finds the element of `set` whose key is `have`; `None` if there is no index for it.
fn indexed<'s>(
    set: &'s Set,
    have: &Value<'_>,
    context: &Context<'_, '_>,
) -> Option<Result<&'s Element, Absent>> {
    let values = match have {
        Value::Concat(values) => values.as_slice(),
        one => std::slice::from_ref(one),
    };
    let parts = values.iter().map(|value| {
        Some(match value {
            Value::Addr(addr) => Part::Addr(*addr),
            Value::Port(port) => Part::Port(*port),
            Value::Proto(proto) => Part::Proto(*proto),
            Value::Number(number) => Part::Number(*number),
            Value::Word(_)
            | Value::Concat(_)
            | Value::Random { .. }
            | Value::None
            | Value::Unknown(_) => return None,
        })
    });
    let parts: Vec<Part<'_>> = parts.collect::<Option<_>>()?;
    if parts.len() != set.key.len() {
        return None;
    }
    let found = context.index?.elements(set)?.find(&parts);
    Some(found.map(|at| &set.elements[at]).ok_or(Absent))
}

/// Finds what a map gives for `have`: every entry that may apply, with its chance.
pub(crate) fn look_up<'m>(
    map: &'m Expr,
    have: &Value<'_>,
    context: &'m Context<'_, '_>,
) -> Result<Vec<(f64, &'m Datum)>, String> {
    let mut entries: Vec<(&Expr, &Datum)> = match map {
        Expr::Map(entries) => entries.iter().map(|(key, datum)| (key, datum)).collect(),
        Expr::Named(name) => {
            let set = context
                .table
                .set(name)
                .ok_or_else(|| format!("what map @{name} gives: it was not read"))?;
            if context.lasting && set.has_timeouts() {
                return Err(format!("what map @{name} has at the time"));
            }
            if let Some(found) = indexed(set, have, context) {
                let datum = found.ok().and_then(|element| element.value.as_ref());
                return Ok(datum.map(|datum| (1.0, datum)).into_iter().collect());
            }
            set.elements
                .iter()
                .filter_map(|e| Some((&e.key, e.value.as_ref()?)))
                .collect()
        }
        other => return Err(format!("what map `{}` is", print::expr(other))),
    };
    // The kernel takes `*` for keys without an entry.
    entries.sort_by_key(|(key, _)| **key == Expr::Any);
    match have {
        Value::Random { modulus, offset } => {
            let chance = 1.0 / f64::from((*modulus).max(1));
            let mut found = Vec::new();
            for number in *offset..offset.saturating_add(*modulus) {
                let hit = entries
                    .iter()
                    .find(|(key, _)| same(key, &Value::Number(u64::from(number))) == Some(true));
                found.extend(hit.map(|(_, datum)| (chance, *datum)));
            }
            Ok(found)
        }
        Value::Unknown(what) => Err(what.clone()),
        Value::None => Ok(Vec::new()),
        have => {
            for (key, datum) in entries {
                match same(key, have) {
                    Some(true) => return Ok(vec![(1.0, datum)]),
                    Some(false) => {}
                    None => {
                        return Err(format!("whether key `{}` of a map fits", print::expr(key)));
                    }
                }
            }
            Ok(Vec::new())
        }
    }
}

/// Compares a written value with one read from a packet; `None` where they cannot be compared.
fn same(want: &Expr, have: &Value<'_>) -> Option<bool> {
    Some(match (want, have) {
        (Expr::Any, _) => true,
        (Expr::Concat(parts), Value::Concat(values)) => {
            if parts.len() != values.len() {
                return None;
            }
            for (part, value) in parts.iter().zip(values) {
                if !same(part, value)? {
                    return Some(false);
                }
            }
            true
        }
        (Expr::Number(want), Value::Number(_) | Value::Port(_)) => have.between(*want, *want)?,
        (Expr::Bool(want), Value::Number(have)) => u64::from(*want) == *have,
        // Protocols may be listed by number.
        (Expr::Number(want), Value::Proto(have)) => have.lies((*want).into(), (*want).into()),
        (Expr::Word(want), Value::Proto(have)) => match want.strip_suffix('*') {
            Some(prefix) => Proto::from_number(have.exact())
                .to_string()
                .starts_with(prefix),
            None => want.parse().is_ok_and(|want: Proto| have.is(want.number())),
        },
        (Expr::Word(want), Value::Word(have)) => match want.strip_suffix('*') {
            Some(prefix) => have.starts_with(prefix),
            None => want == have,
        },
        (Expr::Word(want), Value::Addr(have)) => have.is_address(want.parse().ok()?),
        (word @ Expr::Word(want), Value::Number(_) | Value::Port(_)) => {
            let want = service(want).or_else(|| flags(word))?;
            have.between(want, want)?
        }
        (Expr::Prefix { addr, len }, Value::Addr(have)) => {
            let Expr::Word(addr) = addr.as_ref() else {
                return None;
            };
            have.is_in(Cidr {
                addr: addr.parse().ok()?,
                prefix: *len,
            })
        }
        (Expr::Range(first, last), have) => in_range(have, first, last)?,
        (Expr::Set(list), have) => {
            let mut any = false;
            for want in list {
                any |= same(want, have)?;
            }
            any
        }
        _ => return None,
    })
}

/// Service names that nft prints for ports by default.
fn service(name: &str) -> Option<u64> {
    Some(match name {
        "domain" => 53,
        "http" => 80,
        "https" => 443,
        "ssh" => 22,
        _ => return None,
    })
}

fn in_range(have: &Value<'_>, first: &Expr, last: &Expr) -> Option<bool> {
    match (have, first, last) {
        (_, Expr::Number(first), Expr::Number(last)) => have.between(*first, *last),
        (Value::Addr(have), Expr::Word(first), Expr::Word(last)) => {
            Some(have.is_between(first.parse().ok()?, last.parse().ok()?))
        }
        _ => None,
    }
}
