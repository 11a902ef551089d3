//! Statements and values.

use serde_json::{Map, Value, json};

use super::super::model::{Datum, Expr, NatKind, Statement, Verdict};
use super::text::DEEPEST;
use super::texts::{kept, of_statement, of_value};
use super::{take_text, take_words};

/// Reads one statement; one that is not of the model is kept as listed.
pub(super) fn statement(value: Value) -> Statement {
    if let Some(verdict) = verdict(&value) {
        return Statement::Verdict(verdict);
    }
    let one = value.as_object().and_then(|object| object.iter().next());
    let Some((kind, body)) = one else {
        return Statement::Other(value);
    };
    // A copy is read, because unreadable text is kept whole.
    let mut fields = body.as_object().cloned().unwrap_or_default();
    if let Some(read) = typed(kind, body, &mut fields) {
        return read;
    }
    match of_statement(kind, body) {
        Some(text) => kept(kind, &text),
        None => Statement::Other(value),
    }
}

/// Reads the statements that run for an element, without those that hold for every packet.
pub(super) fn conditions(list: impl IntoIterator<Item = Value>) -> Vec<Statement> {
    let all = list.into_iter().map(statement);
    all.filter(|statement| !matches!(statement, Statement::Counter { .. }) && !is_last(statement))
        .collect()
}

/// Returns whether the statement records when it last ran.
fn is_last(statement: &Statement) -> bool {
    matches!(statement, Statement::Other(value) if value.get("last").is_some())
}

fn typed(kind: &str, body: &Value, fields: &mut Map<String, Value>) -> Option<Statement> {
    Some(match kind {
        "match" => {
            let is_list = fields.get("right").is_some_and(Value::is_array);
            // nft 0.9 omits `==` in places.
            let op = take_text(fields, "op").unwrap_or_else(|| "==".to_owned());
            compared(take(fields, "left")?, op, take(fields, "right")?, is_list)
        }
        "vmap" => Statement::Vmap {
            key: take(fields, "key")?,
            data: take(fields, "data")?,
        },
        "reject" => Statement::Reject {
            kind: take_text(fields, "type"),
            code: fields
                .get("expr")
                .and_then(Value::as_str)
                .map(str::to_owned),
        },
        "dnat" | "snat" => Statement::Nat {
            kind: if kind == "dnat" {
                NatKind::Dnat
            } else {
                NatKind::Snat
            },
            family: take_text(fields, "family"),
            addr: take(fields, "addr"),
            port: take(fields, "port"),
            flags: take_words(fields, "flags"),
        },
        "masquerade" => Statement::Masquerade {
            port: take(fields, "port"),
            flags: take_words(fields, "flags"),
        },
        "redirect" => Statement::Redirect {
            port: take(fields, "port"),
            flags: take_words(fields, "flags"),
        },
        "mangle" => Statement::Mangle {
            key: take(fields, "key")?,
            value: take(fields, "value")?,
        },
        "counter" => Statement::Counter {
            name: body.as_str().map(str::to_owned),
            packets: fields.get("packets").and_then(Value::as_u64).unwrap_or(0),
            bytes: fields.get("bytes").and_then(Value::as_u64).unwrap_or(0),
        },
        "set" => {
            let mut elem = fields.get_mut("elem").map(Value::take)?;
            let mut timeout = None;
            let run = match fields.get_mut("stmt").map(Value::take) {
                Some(Value::Array(list)) => conditions(list),
                one => conditions(one),
            };
            if let Some(inner) = elem.get_mut("elem").map(Value::take) {
                timeout = inner.get("timeout").and_then(Value::as_u64);
                elem = inner.get("val").cloned()?;
            }
            Statement::SetOp {
                op: take_text(fields, "op")?,
                set: take_text(fields, "set")?.trim_start_matches('@').to_owned(),
                elem: expr(elem),
                value: take(fields, "data"),
                timeout,
                run,
            }
        }
        // `{"xt": null}` up to 1.0.5.
        "xt" => Statement::Xt {
            kind: take_text(fields, "type").unwrap_or_default(),
            name: take_text(fields, "name").unwrap_or_default(),
        },
        _ => return None,
    })
}

fn take(fields: &mut Map<String, Value>, key: &str) -> Option<Expr> {
    fields.get_mut(key).map(Value::take).map(expr)
}

/// Reads `{"drop": null}`, `{"goto": {"target": …}}` and the like.
fn verdict(value: &Value) -> Option<Verdict> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    let (kind, body) = object.iter().next()?;
    let target = || Some(body.get("target")?.as_str()?.to_owned());
    Some(match kind.as_str() {
        "accept" => Verdict::Accept,
        "drop" => Verdict::Drop,
        "continue" => Verdict::Continue,
        "return" => Verdict::Return,
        "jump" => Verdict::Jump(target()?),
        "goto" => Verdict::Goto(target()?),
        "queue" if of_statement(kind, body).is_none() => Verdict::Queue,
        _ => return None,
    })
}

/// Reads the value of a map for a key.
pub(super) fn datum(value: Value) -> Datum {
    match verdict(&value) {
        Some(verdict) => Datum::Verdict(verdict),
        None => Datum::Data(expr(value)),
    }
}

/// Returns the match `left op right`. `is_list`: whether `right` is a list, and not a set.
pub(super) fn compared(left: Expr, op: String, right: Expr, is_list: bool) -> Statement {
    let right = match right {
        // `fib … oif 0`, whose index is a word in JSON.
        Expr::Word(word) if matches!(left, Expr::Fib { .. }) && word == "0" => Expr::Number(0),
        // `tcp flags fin,syn / fin,syn`: both flags, not only one.
        Expr::Set(flags) if is_list && op != "in" && of_tcp_flags(&left) => {
            let both = |left, right| Expr::Bits {
                op: "|".to_owned(),
                left: Box::new(left),
                right: Box::new(right),
            };
            let all = flags.into_iter().reduce(both);
            all.unwrap_or_else(|| Expr::Set(Vec::new()))
        }
        right => right,
    };
    Statement::Match { left, op, right }
}

fn of_tcp_flags(expr: &Expr) -> bool {
    match expr {
        Expr::Payload { protocol, field } => protocol == "tcp" && field == "flags",
        Expr::Bits { left, .. } => of_tcp_flags(left),
        _ => false,
    }
}

/// Reads one value; one that is not of the model is kept as listed.
pub(super) fn expr(value: Value) -> Expr {
    match value {
        Value::String(text) => match text.strip_prefix('@') {
            Some(name) => Expr::Named(name.to_owned()),
            None if text == "*" => Expr::Any,
            None => Expr::Word(text),
        },
        Value::Bool(truth) => Expr::Bool(truth),
        Value::Number(ref number) => match number.as_u64() {
            Some(number) => Expr::Number(number),
            None => Expr::Other(value),
        },
        Value::Array(list) => Expr::Set(list.into_iter().map(expr).collect()),
        Value::Object(ref object) if object.len() == 1 => {
            let read = object.iter().next();
            let kept = read.and_then(|(kind, body)| Some((kind, of_value(kind, body)?)));
            let kept = kept.map(|(kind, text)| Expr::Other(json!({ kind: text })));
            let read = read.and_then(|(kind, body)| composed(kind, body));
            read.or(kept).unwrap_or(Expr::Other(value))
        }
        Value::Object(_) | Value::Null => Expr::Other(value),
    }
}

fn composed(kind: &str, body: &Value) -> Option<Expr> {
    let text = |key: &str| body.get(key).and_then(Value::as_str).map(str::to_owned);
    let number = |key: &str| body.get(key).and_then(Value::as_u64);
    let part = |key: &str| body.get(key).cloned().map(expr).map(Box::new);
    let items = || body.as_array();
    Some(match kind {
        "payload" => Expr::Payload {
            protocol: text("protocol")?,
            field: text("field")?,
        },
        "meta" => Expr::Meta(text("key")?),
        "ct" => Expr::Ct {
            key: text("key")?,
            dir: text("dir"),
        },
        "fib" => Expr::Fib {
            result: text("result")?,
            flags: super::words(body.get("flags").cloned()),
        },
        "numgen" => Expr::Numgen {
            mode: text("mode")?,
            modulus: u32::try_from(number("mod")?).ok()?,
            offset: u32::try_from(number("offset").unwrap_or(0)).ok()?,
        },
        "prefix" => Expr::Prefix {
            addr: part("addr")?,
            len: u8::try_from(number("len")?).ok()?,
        },
        "range" => match items()?.as_slice() {
            [first, last] => {
                Expr::Range(Box::new(expr(first.clone())), Box::new(expr(last.clone())))
            }
            _ => return None,
        },
        "concat" => Expr::Concat(items()?.iter().cloned().map(expr).collect()),
        "set" => set(body),
        "map" => Expr::Lookup {
            key: part("key")?,
            data: part("data")?,
        },
        "|" | "&" | "^" | "<<" | ">>" => match items()?.as_slice() {
            // Newer releases of nft print a chain of one operator as one list. Each operator nests the expression
            // before it.
            [first, rest @ ..] if (1..=DEEPEST).contains(&rest.len()) => {
                rest.iter()
                    .fold(expr(first.clone()), |left, right| Expr::Bits {
                        op: kind.to_owned(),
                        left: Box::new(left),
                        right: Box::new(expr(right.clone())),
                    })
            }
            _ => return None,
        },
        // A key with a timeout or counter; the value is what counts here.
        "elem" => expr(body.get("val")?.clone()),
        _ => return None,
    })
}

/// Reads an anonymous set, or an inline map, whose members are pairs.
fn set(body: &Value) -> Expr {
    let Some(list) = body.as_array() else {
        return Expr::Set(vec![expr(body.clone())]);
    };
    let pairs = list
        .iter()
        .map(|member| match member.as_array()?.as_slice() {
            [key, value] => Some((key, value)),
            _ => None,
        });
    // Members are read only once: a second time at each level would double the time per level.
    match pairs.collect::<Option<Vec<_>>>() {
        Some(pairs) if !pairs.is_empty() => {
            let pair = |(key, value): (&Value, &Value)| (expr(key.clone()), datum(value.clone()));
            Expr::Map(pairs.into_iter().map(pair).collect())
        }
        _ => Expr::Set(list.iter().cloned().map(expr).collect()),
    }
}
