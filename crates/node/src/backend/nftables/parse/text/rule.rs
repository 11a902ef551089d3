//! One rule.

use serde_json::json;

use super::super::super::model::{Expr, NatKind, Rule, Statement, Verdict};
use super::super::expr::compared;
use super::tokens::{Token, Tokens};
use super::value::{bits, constant, expr, literal, operand, selector, verdict};
use super::{quoted, seconds};

/// What may begin a statement: where one that is not understood ends at the latest.
const STARTS: &[&str] = &[
    "accept",
    "continue",
    "counter",
    "dnat",
    "drop",
    "goto",
    "jump",
    "log",
    "masquerade",
    "queue",
    "redirect",
    "reject",
    "return",
    "snat",
    "xt",
];

/// How a translation picks ports and addresses.
const NAT_FLAGS: &[&str] = &["fully-random", "persistent", "random"];

/// Reads a rule of a chain of `family`.
pub(super) fn rule(line: &str, family: &str) -> Result<Rule, String> {
    let (line, handle) = match line.rsplit_once(" # handle ") {
        Some((line, handle)) => (line, handle.trim().parse().ok()),
        None => (line, None),
    };
    // A comment comes last, and may contain what looks like a statement.
    let (line, comment) = match line.find(" comment \"") {
        Some(at) if line.ends_with('"') => (&line[..at], quoted(&line[at..])),
        _ => (line, None),
    };
    let mut tokens = Tokens::new(line);
    let mut statements = Vec::new();
    while tokens.peek().is_some() {
        statements.push(statement(&mut tokens, family));
    }
    tokens.check_depth()?;
    Ok(Rule {
        handle,
        comment,
        statements,
    })
}

fn statement(tokens: &mut Tokens<'_>, family: &str) -> Statement {
    let place = tokens.place();
    if let Some(read) = typed(tokens, family) {
        return read;
    }
    tokens.back_to(place);
    other(tokens)
}

fn typed(tokens: &mut Tokens<'_>, family: &str) -> Option<Statement> {
    if tokens.peek() == Some(Token::Nothing) {
        tokens.next();
        return Some(Statement::Xt {
            kind: String::new(),
            name: String::new(),
        });
    }
    if let Some(verdict) = verdict(tokens) {
        return Some(Statement::Verdict(verdict));
    }
    if let Some(left) = selector(tokens) {
        return relation(tokens, left);
    }
    Some(match tokens.word()? {
        "queue" => {
            // The number of the queue follows; nothing runs after it.
            while tokens.next().is_some() {}
            Statement::Verdict(Verdict::Queue)
        }
        "counter" => counter(tokens)?,
        "reject" => reject(tokens, family)?,
        "masquerade" => {
            let port = port(tokens).ok()?;
            let flags = flags(tokens);
            Statement::Masquerade { port, flags }
        }
        "redirect" => {
            let port = port(tokens).ok()?;
            let flags = flags(tokens);
            Statement::Redirect { port, flags }
        }
        "dnat" => nat(tokens, NatKind::Dnat)?,
        "snat" => nat(tokens, NatKind::Snat)?,
        op @ ("add" | "update" | "delete") => set_operation(tokens, op)?,
        "xt" => extension(tokens)?,
        _ => return None,
    })
}

/// Reads `match NAME`, of which newer releases of nft quote the name; nothing follows where kpx printed one without a name.
fn extension(tokens: &mut Tokens<'_>) -> Option<Statement> {
    let (mut kind, mut name) = ("", "");
    if let Some(word @ ("match" | "target" | "watcher")) = tokens.peek_word() {
        tokens.next();
        kind = word;
        name = match tokens.next()? {
            Token::Quoted(name) | Token::Word(name) => name,
            Token::Mark(_) | Token::Nothing => return None,
        };
    }
    Some(Statement::Xt {
        kind: kind.to_owned(),
        name: name.to_owned(),
    })
}

/// Reads what follows what is looked at: `vmap`, `set`, or a comparison.
fn relation(tokens: &mut Tokens<'_>, left: Expr) -> Option<Statement> {
    let key = behind(tokens, left)?;
    if tokens.take("vmap") {
        let data = literal(tokens)?;
        return Some(Statement::Vmap { key, data });
    }
    if tokens.take("set") {
        // `ct helper set` names an object of the table, and is no number that is written.
        if matches!(&key, Expr::Ct { key, .. } if key == "helper") {
            return None;
        }
        let value = expr(tokens)?;
        return Some(Statement::Mangle { key, value });
    }
    let op = match tokens.peek_word() {
        Some(op @ ("==" | "!=" | "<" | ">" | "<=" | ">=" | "!")) => {
            tokens.next();
            Some(op)
        }
        _ => None,
    };
    let listed = matches!(tokens.peek(), Some(Token::Mark("{")))
        || tokens.peek_word().is_some_and(|word| word.starts_with('@'));
    let right = literal(tokens)?;
    if tokens.take("/") {
        // `tcp flags syn / fin,syn,rst,ack`.
        let left = Expr::Bits {
            op: "&".to_owned(),
            left: Box::new(key),
            right: Box::new(literal(tokens)?),
        };
        let op = op.unwrap_or("==").to_owned();
        return Some(compared(left, op, right, !listed));
    }
    let op = match op {
        Some(op) => op,
        None if !listed && has_flags(&key) => "in",
        None => "==",
    };
    Some(compared(key, op.to_owned(), right, !listed))
}

/// Whether what is looked at is a set of flags, of which one is tested for.
fn has_flags(key: &Expr) -> bool {
    match key {
        Expr::Ct { key, .. } => matches!(key.as_str(), "state" | "status" | "label" | "event"),
        Expr::Payload { protocol, field } => protocol == "tcp" && field == "flags",
        _ => false,
    }
}

/// Reads the rest of a term, and those joined to it.
fn behind(tokens: &mut Tokens<'_>, first: Expr) -> Option<Expr> {
    let left = bits(tokens, first, operand)?;
    if tokens.peek_word() != Some(".") {
        return Some(left);
    }
    let mut parts = vec![left];
    while tokens.take(".") {
        parts.push(selector(tokens)?);
    }
    Some(Expr::Concat(parts))
}

fn counter(tokens: &mut Tokens<'_>) -> Option<Statement> {
    if tokens.take("name") {
        let name = match tokens.next()? {
            Token::Quoted(name) | Token::Word(name) => name.to_owned(),
            Token::Mark(_) | Token::Nothing => return None,
        };
        return Some(Statement::Counter {
            name: Some(name),
            packets: 0,
            bytes: 0,
        });
    }
    let mut number = |word: &str| -> Option<u64> {
        if tokens.take(word) {
            tokens.word()?.parse().ok()
        } else {
            Some(0)
        }
    };
    Some(Statement::Counter {
        name: None,
        packets: number("packets")?,
        bytes: number("bytes")?,
    })
}

fn reject(tokens: &mut Tokens<'_>, family: &str) -> Option<Statement> {
    let (kind, code) = if tokens.take("with") {
        let kind = tokens.word()?;
        if kind == "tcp" {
            tokens.take("reset").then_some(("tcp reset", None))?
        } else {
            // Releases before 1.0 print `icmp type`.
            tokens.take("type");
            (kind, Some(tokens.word()?))
        }
    } else {
        let kind = match family {
            "ip" => "icmp",
            "ip6" => "icmpv6",
            _ => "icmpx",
        };
        (kind, Some("port-unreachable"))
    };
    Some(Statement::Reject {
        kind: Some(kind.to_owned()),
        code: code.map(str::to_owned),
    })
}

/// Something other than a port.
struct NoPort;

/// Reads an optional `to :PORT`.
fn port(tokens: &mut Tokens<'_>) -> Result<Option<Expr>, NoPort> {
    if !tokens.take("to") {
        return Ok(None);
    }
    let port = tokens.word().and_then(|word| word.strip_prefix(':'));
    let port = match port.ok_or(NoPort)? {
        // A computed port comes after a colon of its own.
        "" => expr(tokens).ok_or(NoPort)?,
        port => constant(port),
    };
    Ok(Some(port))
}

fn flags(tokens: &mut Tokens<'_>) -> Vec<String> {
    let mut flags = Vec::new();
    while let Some(flag) = tokens.peek_word().filter(|word| NAT_FLAGS.contains(word)) {
        tokens.next();
        flags.push(flag.to_owned());
        tokens.take_mark(",");
    }
    flags
}

fn nat(tokens: &mut Tokens<'_>, kind: NatKind) -> Option<Statement> {
    let family = match tokens.peek_word()? {
        family @ ("ip" | "ip6") => {
            tokens.next();
            Some(family.to_owned())
        }
        _ => None,
    };
    // `addr . port`, `prefix` and `interval` repeat the type of the map.
    while tokens.peek_word()? != "to" {
        tokens.next();
    }
    tokens.next();
    let (addr, port) = match tokens.peek_word().and_then(with_port) {
        Some((addr, port)) => {
            tokens.next();
            (addr, Some(port))
        }
        None => (Some(expr(tokens)?), None),
    };
    Some(Statement::Nat {
        kind,
        family,
        addr,
        port,
        flags: flags(tokens),
    })
}

/// Reads `10.0.0.1:80`, `[fd00::1]:80` or `:80`.
fn with_port(word: &str) -> Option<(Option<Expr>, Expr)> {
    if let Some(rest) = word.strip_prefix('[') {
        let (addr, port) = rest.split_once("]:")?;
        return Some((Some(constant(addr)), constant(port)));
    }
    if word.matches(':').count() != 1 {
        return None;
    }
    let (addr, port) = word.split_once(':')?;
    let addr = (!addr.is_empty()).then(|| constant(addr));
    Some((addr, constant(port)))
}

/// Reads `add @SET { ELEM [timeout T] … }`.
fn set_operation(tokens: &mut Tokens<'_>, op: &str) -> Option<Statement> {
    let set = tokens.word()?.strip_prefix('@')?.to_owned();
    if !tokens.take_mark("{") {
        return None;
    }
    let elem = expr(tokens)?;
    let mut timeout = None;
    while !tokens.take_mark("}") {
        match tokens.next()? {
            Token::Word("timeout") => timeout = seconds(tokens.word()?),
            // An element of a map, or several, which the model has no statement for.
            Token::Word(":") | Token::Mark(",") => return None,
            // Statements that run for the element, such as a limit.
            _ => {}
        }
    }
    Some(Statement::SetOp {
        op: op.to_owned(),
        set,
        elem,
        timeout,
    })
}

/// Takes a statement that the model does not have, and keeps it as it is written.
fn other(tokens: &mut Tokens<'_>) -> Statement {
    let place = tokens.place();
    let first = match tokens.next() {
        Some(Token::Word(text) | Token::Quoted(text)) => text,
        Some(Token::Mark(mark)) => mark,
        Some(Token::Nothing) | None => "",
    };
    let mut name = first.to_owned();
    match first {
        "limit" | "quota" => amounts(tokens),
        "log" => log(tokens),
        "notrack" => {}
        "tproxy" => {
            while tokens.word().is_some_and(|word| word != "to") {}
            tokens.next();
        }
        "ct" => {
            if let Some(second) = tokens.word() {
                name = format!("ct {second}");
            }
            for word in ["set", "over"] {
                tokens.take(word);
            }
            tokens.next();
        }
        _ => {
            let mut depth = 0_u32;
            while let Some(token) = tokens.peek() {
                match token {
                    Token::Mark("{" | "(") => depth += 1,
                    Token::Mark("}" | ")") => depth = depth.saturating_sub(1),
                    Token::Word(word) if depth == 0 && STARTS.contains(&word) => break,
                    Token::Nothing if depth == 0 => break,
                    Token::Word(_) | Token::Quoted(_) | Token::Mark(_) | Token::Nothing => {}
                }
                tokens.next();
            }
        }
    }
    Statement::Other(json!({ name: tokens.since(place) }))
}

/// Takes `rate over 10 mbytes/second burst 5 packets`, `over 25 mbytes used 3 bytes`.
fn amounts(tokens: &mut Tokens<'_>) {
    while let Some(word) = tokens.peek_word() {
        let unit = matches!(
            word,
            "rate" | "over" | "until" | "burst" | "used" | "packets" | "name"
        ) || word.starts_with(|c: char| c.is_ascii_digit())
            || word.split('/').next().is_some_and(|u| u.ends_with("bytes"));
        if !unit {
            break;
        }
        tokens.next();
    }
}

/// Takes `prefix "…" level info flags all group 3`.
fn log(tokens: &mut Tokens<'_>) {
    while let Some("prefix" | "level" | "flags" | "group" | "snaplen" | "queue-threshold") =
        tokens.peek_word()
    {
        tokens.next();
        tokens.next();
        while tokens.take_mark(",") {
            tokens.next();
        }
    }
}
