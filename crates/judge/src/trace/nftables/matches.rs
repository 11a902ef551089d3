//! Comparisons of nftables rules, and their sets and maps.

use super::value::{Context, Value, ct, flags, read};

use crate::trace::hop::Question;
use crate::trace::index::Part;
use crate::trace::packet::{self, FIRST_EPHEMERAL, Likelihood, Packet};
use crate::trace::region::{Asked, Coordinate as _};
use kpx_node::backend::nftables::model::{Datum, Element, Expr, Set, Statement, Table};
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
    // nft prints the number of a link that is gone.
    let of_index;
    let right = match (left, right, context.router.node.links()) {
        (Expr::Meta(key), Expr::Number(index), Ok(links)) if matches!(&**key, "iif" | "oif") => {
            let mut all = links.all.iter();
            let Some(link) = all.find(|link| u64::from(link.index) == *index) else {
                return Likelihood::sure(op == "!=");
            };
            of_index = Expr::Word(link.name.as_str().into());
            &of_index
        }
        _ => right,
    };
    let have = match read(left, packet, context) {
        // Only a packet of the node to itself passes lo, and its link is known.
        Value::Unknown(_) if is_link_name(left) && is_loopback(right) => Value::Word(String::new()),
        // Only its own packets have the address of a pod's link.
        Value::Unknown(_) if is_sender(left) && are_of_pods(right, context) => {
            Value::Word(String::new())
        }
        Value::Unknown(what) if is_link_name(left) && packet.bridge.is_some() => {
            return at_any_port(&what, op, right, packet, context);
        }
        Value::Unknown(_) if is_source_port(left) && is_below_ephemeral(right) => {
            Value::Port(Asked::new(FIRST_EPHEMERAL, None))
        }
        have => have,
    };
    let by_fib = matches!(left, Expr::Fib { .. });
    // `fib … oif 0` asks whether there is none.
    let none = Expr::Bool(false);
    let right = match right {
        Expr::Number(0) if by_fib => &none,
        right => right,
    };
    let asks_back = matches!(left, Expr::Fib { result, flags }
        if result != "type" && ["saddr", "iif"].iter().all(|wanted_flag| flags.iter().any(|flag| flag == wanted_flag)));
    // The walk assumes that packets come in by the link of their return route: the route leads elsewhere only by rules
    // that match on the link, and for packets that are known to come in by another.
    let is_open =
        matches!(&have, Value::Unknown(_)) || is_missing(&have) && !packet.entered_elsewhere;
    if asks_back && is_open {
        return Likelihood::undecided(Question::RouteBack {
            text: format!("`{} {op} {}` holds", print::expr(left), print::expr(right)),
            inverted: (*right == Expr::Bool(false)) != (op == "!="),
        });
    }
    let mut likelihood = match have {
        Value::Random { modulus, offset } if modulus <= MOST_NUMBERS => {
            let numbers = (offset..).take(modulus as usize);
            each(numbers.map(|n| holds(&Value::Number(u64::from(n)), op, right, packet, context)))
        }
        // The packets or bytes of a connection that goes on.
        Value::Within(values) if !packet.opens && matches!(left, Expr::Ct { .. }) => {
            let at = |count| holds(&Value::Number(count), op, right, packet, context);
            let (first, last) = (at(*values.start()), at(*values.end()));
            if first == last {
                first
            } else {
                let text = format!("`{} {op} {}`", print::expr(left), print::expr(right));
                Likelihood::undecided(Question::count(&text, last == Likelihood::YES))
            }
        }
        have => holds(&have, op, right, packet, context),
    };
    for question in &mut likelihood.undecided {
        if let Question::Other(what) = question
            && what.is_empty()
        {
            let (left, right) = (print::expr(left), print::expr(right));
            *what = format!("`{left} {op} {right}` holds");
        }
    }
    likelihood
}

/// Returns the likelihood that a comparison with a port of the packet's bridge holds, which is the same for all ports or unknown.
fn at_any_port(
    what: &str,
    op: &str,
    right: &Expr,
    packet: &Packet,
    context: &Context<'_, '_>,
) -> Likelihood {
    let links = context.router.node.links();
    let ports = links.iter().flat_map(|links| &links.all);
    let ports = ports.filter(|port| port.master.as_deref() == packet.bridge.as_deref());
    let mut cases = ports.map(|port| {
        let name = Value::Word(port.name.clone());
        holds(&name, op, right, packet, context)
    });
    let first = cases.next();
    first
        .filter(|first| cases.all(|other| other == *first))
        .unwrap_or_else(|| Likelihood::of_unknown(what.to_owned()))
}

fn is_link_name(expr: &Expr) -> bool {
    matches!(expr, Expr::Meta(key) if matches!(key.as_str(), "iif" | "iifname" | "oif" | "oifname"))
}

fn is_loopback(expr: &Expr) -> bool {
    match expr {
        Expr::Word(name) => name == "lo",
        Expr::Set(all) => all.iter().all(is_loopback),
        _ => false,
    }
}

fn is_sender(expr: &Expr) -> bool {
    matches!(expr, Expr::Payload { protocol, field } if protocol == "ether" && field == "saddr")
}

/// Returns whether `expr` has MAC addresses of the node's pods, and no others.
fn are_of_pods(expr: &Expr, context: &Context<'_, '_>) -> bool {
    match expr {
        Expr::Word(mac) => context.router.is_of_pod(mac),
        Expr::Set(all) => all.iter().all(|one| are_of_pods(one, context)),
        Expr::Named(name) => context.table.set(name).is_some_and(|set| {
            let mut elements = set.elements.iter();
            let is_written = set.flags.iter().any(|flag| flag == "dynamic") || set.has_timeouts();
            !is_written && elements.all(|element| are_of_pods(&element.key, context))
        }),
        _ => false,
    }
}

fn is_source_port(expr: &Expr) -> bool {
    matches!(expr, Expr::Payload { protocol, field }
        if field == "sport" && matches!(protocol.as_str(), "tcp" | "udp" | "sctp" | "th"))
}

/// Returns whether `expr` has only ports below the range of clients.
fn is_below_ephemeral(expr: &Expr) -> bool {
    match expr {
        Expr::Number(port) => *port < u64::from(FIRST_EPHEMERAL),
        Expr::Range(_, last) => is_below_ephemeral(last),
        Expr::Set(all) => all.iter().all(is_below_ephemeral),
        _ => false,
    }
}

/// Returns whether a look-up of a route found no link.
fn is_missing(have: &Value<'_>) -> bool {
    matches!(have, Value::Word(name) if name.is_empty())
}

/// Random numbers up to this limit are tried one by one.
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
            if matches!(have, Value::None) {
                return Likelihood::NO;
            }
            let is_number = matches!(have, Value::Number(_) | Value::Named(..) | Value::Port(_));
            if op == "in" && is_number {
                bits(have, right)
            } else if op == "!=" {
                // The statements of an element run only if it matches.
                contains(right, have, packet, context, false).not(true)
            } else {
                contains(right, have, packet, context, true)
            }
        }
        "<" | ">" | "<=" | ">=" => match (have, named(right, have, packet, context)) {
            (Value::None, _) => Likelihood::NO,
            (Value::Unknown(what), _) => Likelihood::of_unknown(what),
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

/// Reads the number to compare with, which may be written by name.
fn named<'p>(
    right: &Expr,
    have: &Value<'_>,
    packet: &'p Packet,
    context: &Context<'_, '_>,
) -> Value<'p> {
    let number = match have {
        Value::Named(_, names) => flags(right, names),
        _ => None,
    };
    number.map_or_else(|| read(right, packet, context), Value::Number)
}

/// `flags in number`: any of the bits.
fn bits(have: &Value<'_>, right: &Expr) -> Likelihood {
    let names = match have {
        Value::Named(_, names) => names,
        _ => &[][..],
    };
    match (have.number(), flags(right, names)) {
        (Some(have), Some(mask)) => Likelihood::sure(have & mask != 0),
        _ => Likelihood::unknown(""),
    }
}

/// `ct state` and `ct status`: one of several values must match.
fn connection(key: &str, op: &str, right: &Expr, packet: &Packet) -> Likelihood {
    let Value::Named(bits, names) = ct(key, None, packet) else {
        return Likelihood::NO;
    };
    match flags(right, names) {
        // Of a set, none.
        Some(0) => Likelihood::sure((bits == 0) != matches!(op, "!=" | "!")),
        Some(mask) => Likelihood::sure((bits & mask != 0) != matches!(op, "!=" | "!")),
        None => Likelihood::unknown(format!("ct {key} is {}", print::expr(right))),
    }
}

/// Returns the likelihood that `want` (a value, range, prefix, anonymous or named set) contains `have`, and with `runs`, that the
/// statements of the element let the rule continue.
fn contains(
    want: &Expr,
    have: &Value<'_>,
    packet: &Packet,
    context: &Context<'_, '_>,
    runs: bool,
) -> Likelihood {
    if let Value::Unknown(what) = have {
        return if is_empty(want, context) {
            Likelihood::NO
        } else {
            Likelihood::of_unknown(what.clone())
        };
    }
    if matches!(have, Value::None) {
        return Likelihood::NO;
    }
    match want {
        Expr::Named(name) => match context.table.set(name) {
            None => Likelihood::of_unknown(format!("what set @{name} holds: it was not read")),
            Some(set) => match (written(set, have, packet, context.table), runs) {
                (Some(true), true) => conditions(&set.run),
                (Some(is_added), _) => Likelihood::sure(is_added),
                (None, _) if context.lasting && set.has_timeouts() => {
                    Likelihood::unknown(format!("set @{name} has it at the time"))
                }
                (None, _) => in_set(set, have, context, runs),
            },
        },
        Expr::Set(list) => any(list
            .iter()
            .map(|want| contains(want, have, packet, context, runs))),
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

/// Returns whether `want` is a named set that holds nothing and to which no rule adds anything.
fn is_empty(want: &Expr, context: &Context<'_, '_>) -> bool {
    let Expr::Named(name) = want else {
        return false;
    };
    context.table.set(name).is_some_and(|set| {
        let may_be_added = context.lasting && set.has_timeouts();
        set.elements.is_empty() && !set.flags.iter().any(|flag| flag == "dynamic") && !may_be_added
    })
}

/// Returns whether a named set has `have`; of a set with timeouts, the list has only elements that have not expired.
fn in_set(set: &Set, have: &Value<'_>, context: &Context<'_, '_>, runs: bool) -> Likelihood {
    let found = |element: &Element| {
        if runs {
            conditions(&element.conditions)
        } else {
            Likelihood::YES
        }
    };
    if let Some(indexed) = indexed(set, have, context) {
        return indexed.map_or(Likelihood::NO, found);
    }
    let elements = set.elements.iter();
    any(elements.map(|element| match same(&element.key, have) {
        Some(true) => found(element),
        Some(false) => Likelihood::NO,
        None => Likelihood::unknown(""),
    }))
}

/// Returns the likelihood that all of these statements let a rule go on.
pub(super) fn conditions(all: &[Statement]) -> Likelihood {
    all.iter().fold(Likelihood::YES, |likelihood, of| {
        let text = print::statement(of);
        likelihood.and(Likelihood::unknown(format!(
            "`{text}` of the element holds"
        )))
    })
}

/// Returns whether a rule added `have` to `set`, or took it from there, while the packet was on its way.
fn written(set: &Set, have: &Value<'_>, packet: &Packet, table: &Table) -> Option<bool> {
    packet.wrote(name_of(table, &set.name), |key| {
        let values = match have {
            Value::Concat(values) => values.as_slice(),
            one => std::slice::from_ref(one),
        };
        key.len() == values.len()
            && key
                .iter()
                .zip(values)
                .all(|(part, value)| is_part(part, value))
    })
}

/// Returns whether `value` equals the written `part`.
fn is_part(of: &packet::Part, value: &Value<'_>) -> bool {
    match (of, value) {
        (packet::Part::Number(number, field), Value::Addr(addr)) => {
            addr.shown().number() == *number
                && (addr.field() == *field || addr.exact() == addr.shown())
        }
        (packet::Part::Number(number, field), Value::Port(port)) => {
            port.shown().number() == *number
                && (port.field() == *field || port.exact() == port.shown())
        }
        (packet::Part::Number(number, field), Value::Proto(proto)) => {
            proto.shown().number() == *number
                && (proto.field() == *field || proto.exact() == proto.shown())
        }
        (packet::Part::Number(number, _), Value::Number(other) | Value::Named(other, _)) => {
            u128::from(*other) == *number
        }
        (packet::Part::Word(word), Value::Word(other)) => word == other,
        _ => false,
    }
}

/// Returns the key that a rule writes to a set; `None` if a part of it is unknown.
pub(super) fn written_key(value: &Value<'_>) -> Option<Vec<packet::Part>> {
    let one = |value: &Value<'_>| {
        Some(match value {
            Value::Addr(addr) => packet::Part::Number(addr.shown().number(), addr.field()),
            Value::Port(port) => packet::Part::Number(port.shown().number(), port.field()),
            Value::Proto(of) => packet::Part::Number(of.shown().number(), of.field()),
            Value::Number(of) | Value::Named(of, _) => packet::Part::Number((*of).into(), None),
            Value::Word(word) => packet::Part::Word(word.clone()),
            Value::Concat(_)
            | Value::Within(_)
            | Value::Random { .. }
            | Value::None
            | Value::Unknown(_) => {
                return None;
            }
        })
    };
    match value {
        Value::Concat(values) => values.iter().map(one).collect(),
        value => one(value).map(|part| vec![part]),
    }
}

/// Returns the name of a set of a table, for comparing.
pub(super) fn name_of(table: &Table, set: &str) -> u64 {
    packet::hash(&format!("{} {} {set}", table.family, table.name))
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
            Value::Number(number) | Value::Named(number, _) => Part::Number(*number),
            Value::Word(_)
            | Value::Concat(_)
            | Value::Within(_)
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

/// Finds the results of a map for `have`: every entry that may apply, with its chance.
pub(crate) fn look_up<'m>(
    map: &'m Expr,
    have: &Value<'_>,
    packet: &Packet,
    context: &'m Context<'_, '_>,
) -> Result<Vec<(f64, &'m Datum)>, String> {
    let opened = |element: &Element| match element.conditions.first() {
        Some(of) => Err(format!(
            "whether `{}` of the element holds",
            print::statement(of)
        )),
        None => Ok(()),
    };
    let mut entries: Vec<(&Expr, &Datum)> = match map {
        Expr::Map(entries) => entries.iter().map(|(key, datum)| (key, datum)).collect(),
        Expr::Named(name) => {
            let set = context
                .table
                .set(name)
                .ok_or_else(|| format!("what map @{name} gives: it was not read"))?;
            if context.lasting && set.has_timeouts()
                || written(set, have, packet, context.table).is_some()
            {
                return Err(format!("what map @{name} has at the time"));
            }
            if let Some(found) = indexed(set, have, context) {
                found.as_ref().map_or(Ok(()), |element| opened(element))?;
                let datum = found.ok().and_then(|element| element.value.as_ref());
                return Ok(datum.map(|datum| (1.0, datum)).into_iter().collect());
            }
            let hit = set
                .elements
                .iter()
                .find(|element| same(&element.key, have) == Some(true));
            hit.map_or(Ok(()), opened)?;
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
        (Expr::Number(want), Value::Number(_) | Value::Named(..) | Value::Port(_)) => {
            have.between(*want, *want)?
        }
        (Expr::Bool(want), Value::Number(have)) => u64::from(*want) == *have,
        // Whether there is a link.
        (Expr::Bool(want), Value::Word(have)) => *want != have.is_empty(),
        (want @ (Expr::Word(_) | Expr::Bits { .. }), Value::Named(have, names)) => {
            flags(want, names)? == *have
        }
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
        (Expr::Word(want), Value::Number(_) | Value::Port(_)) => {
            let want = service(want)?;
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
