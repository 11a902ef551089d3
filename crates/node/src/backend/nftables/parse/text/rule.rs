//! One rule.

use super::super::super::model::{Chain, Expr, NatKind, Rule, Statement, Verdict};
use super::super::super::print;
use super::super::expr::compared;
use super::super::texts;
use super::tokens::{Token, Tokens};
use super::value::{bits, constant, expr, literal, operand, selector, verdict};
use super::{braces, quoted, seconds};

/// Words that may begin a statement: an unknown statement ends there at the latest.
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

/// Reads a rule of a chain of `family`; with it, the chains without a name that it jumps to.
pub(super) fn rule(line: &str, family: &str) -> Result<(Rule, Vec<Chain>), String> {
    let (rule, tokens) = within(line, family, 0);
    tokens.check_depth()?;
    Ok((rule, tokens.blocks))
}

fn within<'t>(line: &'t str, family: &str, depth: usize) -> (Rule, Tokens<'t>) {
    let (line, handle) = match line.rsplit_once(" # handle ") {
        Some((line, handle)) => (line, handle.trim().parse().ok()),
        None => (line, None),
    };
    // A comment comes last, and may contain text that looks like a statement.
    let (line, comment) = match line.find(" comment \"") {
        Some(at) if line.ends_with('"') => (&line[..at], quoted(&line[at..])),
        _ => (line, None),
    };
    let mut tokens = Tokens::new(line);
    tokens.depth = depth;
    family.clone_into(&mut tokens.family);
    let mut statements = Vec::new();
    while tokens.peek().is_some() {
        statements.push(statement(&mut tokens, family));
    }
    let rule = Rule {
        handle,
        comment,
        statements,
    };
    (rule, tokens)
}

/// Reads a chain without a name, from its first brace to its last, which is not taken; returns the name that it gets: its
/// rules.
pub(super) fn block(tokens: &mut Tokens<'_>) -> Option<String> {
    let text = tokens.braced()?;
    let (depth, family) = (tokens.depth + 1, tokens.family.clone());
    let mut lines = Vec::new();
    let (mut start, mut open) = (0, 0);
    for (at, line) in text.split_inclusive('\n').scan(0, |at, line| {
        let from = *at;
        *at += line.len();
        Some((from, line))
    }) {
        open += braces(line);
        let end = at + line.len();
        if open <= 0 {
            lines.push(text[start..end].trim());
            start = end;
        }
    }
    let rules = tokens.within(|tokens| {
        let mut rules = Vec::new();
        for line in lines.into_iter().filter(|line| !line.is_empty()) {
            let (rule, inner) = within(line, &family, depth);
            tokens.too_deep |= inner.too_deep;
            tokens.blocks.extend(inner.blocks);
            rules.push(rule);
        }
        Some(rules)
    })?;
    let texts: Vec<_> = rules.iter().map(print::rule).collect();
    let name = format!("{{ {} }}", texts.join("; "));
    tokens.blocks.push(Chain {
        name: name.clone(),
        rules,
        ..Chain::default()
    });
    Some(name)
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
        "queue" => queue(tokens),
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

/// Reads `flags bypass to 3` or `num 3 bypass`. Nothing runs after it.
fn queue(tokens: &mut Tokens<'_>) -> Statement {
    let (mut number, mut bypass) = ("0", false);
    while let Some(token) = tokens.next() {
        match token {
            Token::Word("bypass") => bypass = true,
            Token::Word(word) if word.starts_with(|c: char| c.is_ascii_digit()) => number = word,
            Token::Word(_) | Token::Quoted(_) | Token::Mark(_) | Token::Nothing => {}
        }
    }
    if bypass {
        texts::kept("queue", &texts::queue(number))
    } else {
        Statement::Verdict(Verdict::Queue)
    }
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

/// Reads the operator and the right side: `vmap`, `set`, or a comparison.
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

/// Whether the left side is a set of flags, one of which must be set.
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
    // `addr . port` and `interval` repeat the type of the map.
    let mut is_netmap = false;
    while tokens.peek_word()? != "to" {
        is_netmap |= tokens.take("prefix") || tokens.next().is_none();
    }
    tokens.next();
    // `10.0.0.1:tcp dport map …`: the port is computed.
    if let Some(word) = tokens.peek_word()
        && let Some(at) = word.rfind(':')
        && with_port(word).is_some_and(|(_, port)| matches!(port, Expr::Word(_)))
    {
        tokens.cut(at + 1);
        let addr = tokens
            .word()?
            .trim_end_matches(':')
            .trim_matches(['[', ']']);
        return Some(Statement::Nat {
            kind,
            family,
            addr: (!addr.is_empty()).then(|| constant(&addr.replace("]-[", "-"))),
            port: Some(expr(tokens)?),
            flags: flags(tokens),
        });
    }
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
        flags: {
            let netmap = is_netmap.then(|| "netmap".to_owned());
            netmap.into_iter().chain(flags(tokens)).collect()
        },
    })
}

/// Reads `10.0.0.1:80`, `[fd00::1]:80` or `:80`.
fn with_port(word: &str) -> Option<(Option<Expr>, Expr)> {
    if let Some(rest) = word.strip_prefix('[') {
        let (addr, port) = rest.rsplit_once("]:")?;
        return Some((Some(constant(&addr.replace("]-[", "-"))), constant(port)));
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
    let (mut value, mut timeout, mut run) = (None, None, Vec::new());
    while !tokens.take_mark("}") {
        match tokens.peek()? {
            Token::Word("timeout") => {
                tokens.next();
                timeout = seconds(tokens.word()?);
            }
            Token::Word(":") if value.is_none() => {
                tokens.next();
                value = Some(expr(tokens)?);
            }
            Token::Word("counter") => {
                tokens.next();
                counter(tokens)?;
            }
            // Statements that run for the element.
            Token::Word("limit" | "quota" | "ct") => run.push(other(tokens)),
            Token::Word("last") => drop(tokens.next()),
            // Several elements, or one that the model has no statement for.
            _ => return None,
        }
    }
    Some(Statement::SetOp {
        op: op.to_owned(),
        set,
        elem,
        value,
        timeout,
        run,
    })
}

/// Takes a statement that the model does not have, and keeps it as it is written.
pub(super) fn other(tokens: &mut Tokens<'_>) -> Statement {
    let place = tokens.place();
    let first = match tokens.next() {
        Some(Token::Word(text) | Token::Quoted(text)) => text,
        Some(Token::Mark(mark)) => mark,
        Some(Token::Nothing) | None => "",
    };
    let mut name = first.to_owned();
    match first {
        "limit" | "quota" if tokens.take("name") => {
            if let Some(of) = object(tokens) {
                return texts::kept(first, &texts::named(first, of));
            }
        }
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
    texts::kept(&name, tokens.since(place))
}

/// Reads the name of an object, or the map that has it.
fn object(tokens: &mut Tokens<'_>) -> Option<Expr> {
    if let Some(Token::Quoted(name)) = tokens.peek() {
        tokens.next();
        return Some(Expr::Word(name.to_owned()));
    }
    expr(tokens)
}

/// Takes `rate over 10 mbytes/second burst 5 packets`, `over 25 mbytes used 3 bytes`.
fn amounts(tokens: &mut Tokens<'_>) {
    while let Some(word) = tokens.peek_word() {
        let unit = matches!(
            word,
            "rate" | "over" | "until" | "burst" | "used" | "packets"
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
        // `flags tcp sequence,options flags ip options`
        if matches!(tokens.peek_word(), Some("tcp" | "ip")) {
            tokens.next();
        }
        tokens.next();
        while tokens.take_mark(",") {
            tokens.next();
        }
    }
}
