//! Rules of arptables in the legacy back end.
//!
//! Source: `arptables.c` of arptables 0.0.5.

use std::net::Ipv4Addr;

use serde_json::Value;

use crate::backend::nftables::model::{Base, Chain, Expr, Rule, Statement, Table, Verdict};
use crate::evidence::{Gap, Item};

/// Parses `arptables-legacy -n --line-numbers -L` as a table of nftables.
pub fn parse(text: &str) -> Result<Table, Gap> {
    let mut table = Table {
        family: "arp".to_owned(),
        name: "filter".to_owned(),
        ..Table::default()
    };
    for (at, line) in text.lines().enumerate() {
        let failed = |why| Gap::Failed(Item::Arptables, format!("line {}: {why}", at + 1));
        if line.trim().is_empty() {
            continue;
        }
        if let Some(head) = line.strip_prefix("Chain ") {
            table.chains.push(chain(head).map_err(failed)?);
            continue;
        }
        let chain = table.chains.last_mut();
        let chain = chain.ok_or_else(|| failed("a rule outside of a chain".to_owned()))?;
        chain.rules.push(rule(line).map_err(failed)?);
    }
    if table.chains.is_empty() {
        let why = "it has no chain".to_owned();
        return Err(Gap::Failed(Item::Arptables, why));
    }
    Ok(table)
}

/// Reads `INPUT (policy ACCEPT)` or `OWN (1 references)`.
fn chain(head: &str) -> Result<Chain, String> {
    let (name, rest) = head
        .split_once(" (")
        .ok_or_else(|| format!("{head:?} is no chain"))?;
    let policy = rest.strip_prefix("policy ").map(|policy| {
        let policy = policy
            .split_once([' ', ')'])
            .map_or(policy, |(policy, _)| policy);
        Base {
            kind: "filter".to_owned(),
            hook: name.to_lowercase(),
            devices: Vec::new(),
            priority: 0,
            policy: policy.to_lowercase(),
        }
    });
    Ok(Chain {
        name: name.to_owned(),
        base: policy,
        ..Chain::default()
    })
}

/// Reads a rule behind its number: its target is before its matches.
fn rule(line: &str) -> Result<Rule, String> {
    let mut words = line.split_ascii_whitespace();
    let number = words.next().unwrap_or_default();
    number
        .parse::<u32>()
        .map_err(|_| format!("{number:?} is no number of a rule"))?;
    let mut statements = Vec::new();
    let mut end = None;
    let mut is_inverted = false;
    while let Some(option) = words.next() {
        if option == "!" {
            is_inverted = true;
            continue;
        }
        let value = words
            .next()
            .ok_or_else(|| format!("{option:?} without a value"))?;
        match option {
            "-j" => end = target(value),
            // They change nothing that a filter asks for.
            "--set-mark" | "--and-mark" | "--or-mark" | "--set-class" => {}
            option => statements.push(condition(option, value, is_inverted)),
        }
        is_inverted = false;
    }
    statements.extend(end);
    Ok(Rule {
        statements,
        ..Rule::default()
    })
}

/// Returns what a target does; `None` if the packet goes on to the next rule.
fn target(name: &str) -> Option<Statement> {
    let verdict = match name {
        "MARK" | "CLASSIFY" => return None,
        "mangle" => return Some(unknown(name)),
        "ACCEPT" => Verdict::Accept,
        "DROP" => Verdict::Drop,
        "QUEUE" => Verdict::Queue,
        "RETURN" => Verdict::Return,
        chain => Verdict::Jump(chain.to_owned()),
    };
    Some(Statement::Verdict(verdict))
}

fn condition(option: &str, value: &str, is_inverted: bool) -> Statement {
    let field = |name: &str| Expr::Payload {
        protocol: "arp".to_owned(),
        field: name.to_owned(),
    };
    let meta = |key: &str| Some((Expr::Meta(key.to_owned()), link(value)));
    let parts = match option {
        "-i" => meta("iifname"),
        "-o" => meta("oifname"),
        "-s" => network(value).map(|network| (field("saddr ip"), network)),
        "-d" => network(value).map(|network| (field("daddr ip"), network)),
        "--opcode" => number(value).map(|number| (field("operation"), number)),
        "--h-length" => number(value).map(|number| (field("hlen"), number)),
        "--h-type" => number(value).map(|number| (field("htype"), number)),
        "--proto-type" => number(value).map(|number| (field("ptype"), number)),
        _ => None,
    };
    let Some((left, right)) = parts else {
        return unknown(option);
    };
    Statement::Match {
        left,
        op: if is_inverted { "!=" } else { "==" }.to_owned(),
        right,
    }
}

fn unknown(word: &str) -> Statement {
    Statement::Other(Value::from(word))
}

/// Returns the name of a link, as nft writes it.
fn link(name: &str) -> Expr {
    Expr::Word(match name.strip_suffix('+') {
        Some(prefix) => format!("{prefix}*"),
        None => name.to_owned(),
    })
}

fn number(text: &str) -> Option<Expr> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.ok().map(Expr::Number)
}

/// Returns an address or a network; `None` if the mask is no prefix.
fn network(text: &str) -> Option<Expr> {
    let (address, len) = text.split_once('/').unwrap_or((text, "32"));
    address.parse::<Ipv4Addr>().ok()?;
    Some(Expr::Prefix {
        addr: Box::new(Expr::Word(address.to_owned())),
        len: len.parse().ok().filter(|len| *len <= 32)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::nftables::print;

    const TEXT: &str = "\
Chain INPUT (policy ACCEPT)
1 -j DROP -i cni+ ! -s 10.0.0.0/8 --opcode 1 
2 -j K ! -i eth0 --proto-type 0x800 
3 
4 -j MARK --set-mark 3

5 -j DROP -s 10.0.0.0/255.0.255.0 

Chain OUTPUT (policy DROP 7 packets, 196 bytes)

Chain K (1 references)
1 -j mangle --mangle-ip-s 1.2.3.4 
2 -j RETURN --src-mac 00:11:22:33:44:55 
";

    #[test]
    fn rules_are_those_of_nftables() {
        let table = parse(TEXT).unwrap();
        let policy = |chain: &Chain| {
            Some((
                chain.base.as_ref()?.hook.clone(),
                chain.base.as_ref()?.policy.clone(),
            ))
        };
        let pair = |hook: &str, policy: &str| Some((hook.to_owned(), policy.to_owned()));
        let policies: Vec<_> = table.chains.iter().map(policy).collect();
        assert_eq!(
            policies,
            [pair("input", "accept"), pair("output", "drop"), None]
        );
        let rules = &table.chains[0].rules;
        assert_eq!(rules.len(), 5);
        assert_eq!(
            print::rule(&rules[0]),
            "iifname \"cni*\" arp saddr ip != 10.0.0.0/8 arp operation 1 drop"
        );
        assert!(rules[2].statements.is_empty() && rules[3].statements.is_empty());
        assert!(matches!(rules[4].statements[0], Statement::Other(_)));
        assert_eq!(table.chains[2].rules.len(), 2);
    }

    #[test]
    fn another_text_is_an_error() {
        for text in [
            "",
            "*filter\n",
            "1 -j DROP\n",
            "Chain INPUT (policy ACCEPT)\n-j DROP\n",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
