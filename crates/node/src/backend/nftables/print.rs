//! Rules as `nft` writes them, and reads them again.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use super::model::{Chain, Datum, Element, Expr, NatKind, Rule, Set, Statement, Table, Verdict};

/// Returns `rule` as text, with its comment.
pub fn rule(rule: &Rule) -> String {
    let mut text = rule
        .statements
        .iter()
        .map(statement)
        .collect::<Vec<_>>()
        .join(" ");
    if let Some(comment) = &rule.comment {
        write!(text, " comment {}", quoted(comment)).expect("writing to a String does not fail");
    }
    text
}

/// Returns `table` as `nft -f` reads it, replacing a table of that name.
pub fn table(table: &Table) -> String {
    let name = format!("{} {}", table.family, table.name);
    format!("add table {name}\ndelete table {name}\n{}", block(table))
}

/// Returns `table` as `nft -f` reads it, added to a table of that name.
pub fn block(table: &Table) -> String {
    let mut text = format!("table {} {} {{\n", table.family, table.name);
    let mut add = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    if let Some(comment) = &table.comment {
        add(format!("\tcomment {}", quoted(comment)));
    }
    if table.dormant {
        add("\tflags dormant;".to_owned());
    }
    for name in counters(table.chains.iter()) {
        add(format!("\tcounter {name} {{\n\t}}"));
    }
    for of in &table.sets {
        set(of).into_iter().for_each(&mut add);
    }
    for of in &table.chains {
        chain(of).into_iter().for_each(&mut add);
    }
    add("}".to_owned());
    text
}

/// Returns the names of the counter objects that rules of `chains` use.
pub(super) fn counters<'c>(chains: impl Iterator<Item = &'c Chain>) -> BTreeSet<&'c str> {
    let statements = chains.flat_map(|chain| &chain.rules);
    let statements = statements.flat_map(|rule| &rule.statements);
    let names = statements.filter_map(|statement| match statement {
        Statement::Counter { name, .. } => name.as_deref(),
        _ => None,
    });
    names.collect()
}

fn set(set: &Set) -> Vec<String> {
    let kind = if set.data.is_some() { "map" } else { "set" };
    let mut kinds = set.key.join(" . ");
    if let Some(data) = set.data.as_ref().filter(|data| !data.is_empty()) {
        kinds = format!("{kinds} : {}", data.join(" . "));
    }
    let mut lines = vec![
        format!("\t{kind} {} {{", set.name),
        format!("\t\ttype {kinds}"),
    ];
    if !set.flags.is_empty() {
        lines.push(format!("\t\tflags {}", set.flags.join(",")));
    }
    if let Some(seconds) = set.timeout {
        lines.push(format!("\t\ttimeout {seconds}s"));
    }
    lines.extend(set.run.iter().map(|run| format!("\t\t{}", statement(run))));
    if let Some(comment) = &set.comment {
        lines.push(format!("\t\tcomment {}", quoted(comment)));
    }
    if !set.elements.is_empty() {
        let all: Vec<_> = set.elements.iter().map(element).collect();
        lines.push(format!(
            "\t\telements = {{ {} }}",
            all.join(",\n\t\t             ")
        ));
    }
    lines.push("\t}".to_owned());
    lines
}

/// Returns `element` as `add element` takes it.
pub fn element(element: &Element) -> String {
    let mut text = expr(&element.key);
    for condition in &element.conditions {
        write!(text, " {}", statement(condition)).expect("writing to a String does not fail");
    }
    if let Some(seconds) = element.timeout {
        write!(text, " timeout {seconds}s").expect("writing to a String does not fail");
    }
    if let Some(comment) = &element.comment {
        write!(text, " comment {}", quoted(comment)).expect("writing to a String does not fail");
    }
    if let Some(value) = &element.value {
        write!(text, " : {}", datum(value)).expect("writing to a String does not fail");
    }
    text
}

/// Returns the links of a base chain, as nft reads them; empty for a chain without.
fn devices(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let names: Vec<_> = names.iter().map(|name| format!("\"{name}\"")).collect();
    format!(" devices = {{ {} }}", names.join(", "))
}

fn chain(chain: &Chain) -> Vec<String> {
    let mut lines = vec![format!("\tchain {} {{", chain.name)];
    if let Some(comment) = &chain.comment {
        lines.push(format!("\t\tcomment {}", quoted(comment)));
    }
    if let Some(base) = &chain.base {
        lines.push(format!(
            "\t\ttype {} hook {}{} priority {}; policy {};",
            base.kind,
            base.hook,
            devices(&base.devices),
            base.priority,
            base.policy
        ));
    }
    lines.extend(
        chain
            .rules
            .iter()
            .map(|added| format!("\t\t{}", rule(added))),
    );
    lines.push("\t}".to_owned());
    lines
}

/// Returns `text` between quotes.
pub fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

/// Returns `verdict` as text.
pub fn verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Accept => "accept".to_owned(),
        Verdict::Drop => "drop".to_owned(),
        Verdict::Continue => "continue".to_owned(),
        Verdict::Return => "return".to_owned(),
        Verdict::Jump(to) => format!("jump {to}"),
        Verdict::Goto(to) => format!("goto {to}"),
        Verdict::Queue => "queue".to_owned(),
    }
}

/// Returns what a map gives, as text.
pub fn datum(datum: &Datum) -> String {
    match datum {
        Datum::Data(data) => expr(data),
        Datum::Verdict(to) => verdict(to),
    }
}

/// Returns `statement` as text.
pub fn statement(of: &Statement) -> String {
    match of {
        Statement::Match { left, op, right } => match op.as_str() {
            "==" | "in" => format!("{} {}", expr(left), expr(right)),
            op => format!("{} {op} {}", expr(left), expr(right)),
        },
        Statement::Vmap { key, data } => format!("{} vmap {}", expr(key), expr(data)),
        Statement::Verdict(to) => verdict(to),
        Statement::Reject { kind, code } => match (kind.as_deref(), code.as_deref()) {
            (None, _) => "reject".to_owned(),
            (Some("tcp reset"), _) => "reject with tcp reset".to_owned(),
            (Some(kind), None) => format!("reject with {kind}"),
            (Some(kind), Some(code)) => format!("reject with {kind} {code}"),
        },
        Statement::Nat {
            kind,
            family,
            addr,
            port,
            flags,
        } => nat(
            *kind,
            family.as_deref(),
            addr.as_ref(),
            port.as_ref(),
            flags,
        ),
        Statement::Masquerade { port, flags } => to_port("masquerade", port.as_ref(), flags),
        Statement::Redirect { port, flags } => to_port("redirect", port.as_ref(), flags),
        Statement::Mangle { key, value } => format!("{} set {}", expr(key), expr(value)),
        Statement::Counter {
            name: Some(name), ..
        } => format!("counter name {}", quoted(name)),
        Statement::Counter { packets, bytes, .. } => {
            format!("counter packets {packets} bytes {bytes}")
        }
        Statement::SetOp {
            op,
            set,
            elem,
            value,
            timeout,
            run,
        } => {
            let timeout = timeout
                .map(|seconds| format!(" timeout {seconds}s"))
                .unwrap_or_default();
            let run: String = run
                .iter()
                .flat_map(|run| [" ".to_owned(), statement(run)])
                .collect();
            let value = value.as_ref();
            let value = value.map_or_else(String::new, |value| format!(" : {}", expr(value)));
            format!(
                "{op} @{} {{ {}{timeout}{run}{value} }}",
                set.trim_start_matches('@'),
                expr(elem)
            )
        }
        Statement::Xt { kind, .. } if kind.is_empty() => "xt".to_owned(),
        Statement::Xt { kind, name } => format!("xt {kind} {}", quoted(name)),
        Statement::Other(value) => other(value),
    }
}

fn nat(
    kind: NatKind,
    family: Option<&str>,
    addr: Option<&Expr>,
    port: Option<&Expr>,
    flags: &[String],
) -> String {
    let mut text = match kind {
        NatKind::Dnat => "dnat".to_owned(),
        NatKind::Snat => "snat".to_owned(),
    };
    if let Some(family) = family {
        text.push(' ');
        text.push_str(family);
    }
    if flags.iter().any(|flag| flag == "netmap") {
        text.push_str(" prefix");
    }
    // A map from a number to an address and port is written with its elements.
    let pair = match addr {
        Some(Expr::Concat(_)) => true,
        Some(Expr::Lookup { data, .. }) => matches!(
            data.as_ref(),
            Expr::Map(entries) if entries.iter().any(|(_, to)| matches!(to, Datum::Data(Expr::Concat(_))))
        ),
        _ => false,
    };
    text.push_str(if pair { " addr . port to " } else { " to " });
    match (addr, port) {
        (Some(addr), None) => text.push_str(&expr(addr)),
        (Some(addr), Some(port)) => {
            let addr = expr(addr);
            let addr = if addr.contains(':') {
                format!("[{addr}]")
            } else {
                addr
            };
            text.push_str(&addr);
            text.push(':');
            text.push_str(&expr(port));
        }
        (None, Some(port)) => {
            text.push(':');
            text.push_str(&expr(port));
        }
        (None, None) => {}
    }
    let flags: Vec<_> = flags
        .iter()
        .filter(|flag| *flag != "netmap")
        .cloned()
        .collect();
    with_flags(text, &flags)
}

fn to_port(word: &str, port: Option<&Expr>, flags: &[String]) -> String {
    let text = match port {
        Some(port) => format!("{word} to :{}", expr(port)),
        None => word.to_owned(),
    };
    with_flags(text, flags)
}

fn with_flags(mut text: String, flags: &[String]) -> String {
    if !flags.is_empty() {
        text.push(' ');
        text.push_str(&flags.join(","));
    }
    text
}

/// Returns an unknown statement as it was listed; text stays text.
fn other(value: &Value) -> String {
    let text = match value {
        Value::Object(object) if object.len() == 1 => {
            object.values().next().and_then(Value::as_str)
        }
        value => value.as_str(),
    };
    text.map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns `expr` as text.
pub fn expr(of: &Expr) -> String {
    match of {
        Expr::Number(number) => number.to_string(),
        Expr::Word(word) => {
            if word.ends_with('*') || word.contains(' ') {
                quoted(word)
            } else {
                word.clone()
            }
        }
        Expr::Bool(true) => "exists".to_owned(),
        Expr::Bool(false) => "missing".to_owned(),
        Expr::Payload { protocol, field } => format!("{protocol} {field}"),
        // nft writes these without the keyword.
        Expr::Meta(key) if matches!(key.as_str(), "iif" | "oif" | "iifname" | "oifname") => {
            key.clone()
        }
        Expr::Meta(key) => format!("meta {key}"),
        Expr::Ct { key, dir } => match dir {
            Some(dir) => format!("ct {dir} {key}"),
            None => format!("ct {key}"),
        },
        Expr::Fib { result, flags } => format!("fib {} {result}", flags.join(" . ")),
        Expr::Numgen {
            mode,
            modulus,
            offset,
        } => {
            let offset = if *offset == 0 {
                String::new()
            } else {
                format!(" offset {offset}")
            };
            format!("numgen {mode} mod {modulus}{offset}")
        }
        Expr::Prefix { addr, len } => format!("{}/{len}", expr(addr)),
        Expr::Range(first, last) => format!("{}-{}", expr(first), expr(last)),
        Expr::Concat(parts) => parts.iter().map(expr).collect::<Vec<_>>().join(" . "),
        Expr::Set(list) => format!(
            "{{ {} }}",
            list.iter().map(expr).collect::<Vec<_>>().join(", ")
        ),
        Expr::Map(entries) => {
            let entry = |(key, to): &(Expr, Datum)| format!("{} : {}", expr(key), datum(to));
            format!(
                "{{ {} }}",
                entries.iter().map(entry).collect::<Vec<_>>().join(", ")
            )
        }
        Expr::Lookup { key, data } => format!("{} map {}", expr(key), expr(data)),
        Expr::Named(name) => format!("@{}", name.trim_start_matches('@')),
        Expr::Bits { op, left, right } => format!("{} {op} {}", expr(left), expr(right)),
        Expr::Any => "*".to_owned(),
        Expr::Other(value) => other(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_balancing_rule_reads_as_nft_writes_it() {
        let word = |text: &str| Expr::Word(text.to_owned());
        let target = |at, addr: &str| {
            (
                Expr::Number(at),
                Datum::Data(Expr::Concat(vec![word(addr), Expr::Number(80)])),
            )
        };
        let balance = Rule {
            handle: None,
            comment: Some("why".to_owned()),
            statements: vec![
                Statement::Match {
                    left: Expr::Meta("l4proto".to_owned()),
                    op: "==".to_owned(),
                    right: word("tcp"),
                },
                Statement::Nat {
                    kind: NatKind::Dnat,
                    family: Some("ip".to_owned()),
                    addr: Some(Expr::Lookup {
                        key: Box::new(Expr::Numgen {
                            mode: "random".to_owned(),
                            modulus: 2,
                            offset: 0,
                        }),
                        data: Box::new(Expr::Map(vec![
                            target(0, "10.0.0.1"),
                            target(1, "10.0.0.2"),
                        ])),
                    }),
                    port: None,
                    flags: Vec::new(),
                },
            ],
        };
        assert_eq!(
            rule(&balance),
            "meta l4proto tcp dnat ip addr . port to numgen random mod 2 map \
             { 0 : 10.0.0.1 . 80, 1 : 10.0.0.2 . 80 } comment \"why\""
        );
    }
}
