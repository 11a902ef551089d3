//! Values on either side of a match, in a set and in a translation.

use std::net::IpAddr;

use serde_json::json;

use super::super::super::model::{Datum, Element, Expr, Verdict};
use super::rule::{block, other};
use super::seconds;
use super::tokens::{Token, Tokens};

/// `meta` keys that nft prints without `meta`, in one release or another.
const BARE_META: &[&str] = &[
    "cpu",
    "iif",
    "iifgroup",
    "iifname",
    "iiftype",
    "mark",
    "oif",
    "oifgroup",
    "oifname",
    "oiftype",
    "pkttype",
    "rtclassid",
    "skgid",
    "skuid",
];

/// The beginning of a header field.
const HEADERS: &[&str] = &[
    "ah", "arp", "comp", "dccp", "esp", "ether", "gre", "icmp", "icmpv6", "igmp", "ip", "ip6",
    "sctp", "tcp", "th", "udp", "udplite", "vlan",
];

/// Fields of a connection that a match may read.
const CT_KEYS: &[&str] = &[
    "avgpkt",
    "bytes",
    "direction",
    "event",
    "expiration",
    "helper",
    "id",
    "l3proto",
    "label",
    "mark",
    "packets",
    "proto-dst",
    "proto-src",
    "protocol",
    "secmark",
    "state",
    "status",
    "zone",
];

/// Reads an expression: terms joined by ` . `, then `map`.
pub(super) fn expr(tokens: &mut Tokens<'_>) -> Option<Expr> {
    let mut parts = vec![term(tokens)?];
    while tokens.take(".") {
        parts.push(term(tokens)?);
    }
    let key = joined(parts);
    if tokens.take("map") {
        let data = literal(tokens)?;
        return Some(Expr::Lookup {
            key: Box::new(key),
            data: Box::new(data),
        });
    }
    Some(key)
}

fn joined(mut parts: Vec<Expr>) -> Expr {
    match parts.len() {
        1 => parts.remove(0),
        _ => Expr::Concat(parts),
    }
}

/// Reads operands with bit operators between them.
fn term(tokens: &mut Tokens<'_>) -> Option<Expr> {
    let first = operand(tokens)?;
    bits(tokens, first, operand)
}

/// Reads the operators and operands behind `left`. Each operator nests the expression before it.
pub(super) fn bits(
    tokens: &mut Tokens<'_>,
    left: Expr,
    operand: fn(&mut Tokens<'_>) -> Option<Expr>,
) -> Option<Expr> {
    let Some(op) = tokens.peek_word().and_then(bit_operator) else {
        return Some(left);
    };
    tokens.next();
    let left = Expr::Bits {
        op: op.to_owned(),
        left: Box::new(left),
        right: Box::new(operand(tokens)?),
    };
    tokens.within(|tokens| bits(tokens, left, operand))
}

fn bit_operator(word: &str) -> Option<&'static str> {
    Some(match word {
        "&" | "and" => "&",
        "|" | "or" => "|",
        "^" | "xor" => "^",
        "<<" | "lshift" => "<<",
        ">>" | "rshift" => ">>",
        _ => return None,
    })
}

/// Reads a field of a packet, or a constant.
pub(super) fn operand(tokens: &mut Tokens<'_>) -> Option<Expr> {
    match selector(tokens) {
        Some(read) => Some(read),
        None => plain(tokens),
    }
}

/// Reads a field of a packet or its connection; takes nothing if there is none.
pub(super) fn selector(tokens: &mut Tokens<'_>) -> Option<Expr> {
    let place = tokens.place();
    let read = selected(tokens);
    if read.is_none() {
        tokens.back_to(place);
    }
    read
}

fn selected(tokens: &mut Tokens<'_>) -> Option<Expr> {
    let place = tokens.place();
    let first = tokens.word()?;
    Some(match first {
        "meta" => Expr::Meta(tokens.word()?.to_owned()),
        "ct" => connection(tokens)?,
        "fib" => {
            let mut flags = vec![tokens.word()?.to_owned()];
            while tokens.take(".") {
                flags.push(tokens.word()?.to_owned());
            }
            Expr::Fib {
                result: tokens.word()?.to_owned(),
                flags,
            }
        }
        "numgen" => {
            let mode = tokens.word()?.to_owned();
            Expr::Numgen {
                mode,
                modulus: number_after(tokens, "mod")?,
                offset: number_after(tokens, "offset").unwrap_or(0),
            }
        }
        "jhash" => {
            tokens.within(expr)?;
            number_after(tokens, "mod")?;
            if tokens.take("seed") {
                tokens.word()?;
            }
            number_after(tokens, "offset");
            Expr::Other(json!({ first: tokens.since(place) }))
        }
        "symhash" => {
            number_after(tokens, "mod")?;
            number_after(tokens, "offset");
            Expr::Other(json!({ first: tokens.since(place) }))
        }
        "socket" | "osf" => {
            tokens.word()?;
            Expr::Other(json!({ first: tokens.since(place) }))
        }
        "rt" | "ipsec" => {
            tokens.word()?;
            if !matches!(tokens.peek_word(), Some("nexthop" | "saddr" | "daddr")) {
                return Some(Expr::Other(json!({ first: tokens.since(place) })));
            }
            tokens.word()?;
            Expr::Other(json!({ first: tokens.since(place) }))
        }
        "tcp" | "ip" | "sctp" if matches!(tokens.peek_word(), Some("option" | "chunk")) => {
            let kind = format!("{first} {}", tokens.word()?);
            tokens.word()?;
            if matches!(
                tokens.peek_word(),
                Some("size" | "count" | "left" | "right" | "tsval" | "tsecr" | "kind" | "length")
            ) {
                tokens.next();
            }
            Expr::Other(json!({ kind: tokens.since(place) }))
        }
        "hbh" | "frag" | "mh" | "dst" | "srh" | "exthdr" => {
            tokens.word()?;
            Expr::Other(json!({ "exthdr": tokens.since(place) }))
        }
        _ if first.starts_with('@') && matches!(tokens.peek(), Some(Token::Mark(","))) => {
            // `@th,16,16`: bits of a header.
            for _ in 0..2 {
                tokens.take_mark(",");
                tokens.word()?;
            }
            Expr::Other(json!({ "payload": tokens.since(place) }))
        }
        _ if HEADERS.contains(&first) => {
            let mut field = tokens.word()?.to_owned();
            // `arp saddr ip`.
            if first == "arp" && matches!(field.as_str(), "saddr" | "daddr") {
                field = format!("{field} {}", tokens.word()?);
            }
            Expr::Payload {
                protocol: first.to_owned(),
                field,
            }
        }
        _ if BARE_META.contains(&first) => Expr::Meta(first.to_owned()),
        _ => return None,
    })
}

fn connection(tokens: &mut Tokens<'_>) -> Option<Expr> {
    let mut key = tokens.word()?;
    let mut dir = None;
    if matches!(key, "original" | "reply") {
        dir = Some(key.to_owned());
        key = tokens.word()?;
    }
    let key = match key {
        "ip" | "ip6" if dir.is_some() => format!("{key} {}", tokens.word()?),
        "saddr" | "daddr" if dir.is_some() => key.to_owned(),
        _ if CT_KEYS.contains(&key) => key.to_owned(),
        _ => return None,
    };
    Some(Expr::Ct { key, dir })
}

fn number_after(tokens: &mut Tokens<'_>, word: &str) -> Option<u32> {
    if tokens.take(word) {
        tokens.word()?.parse().ok()
    } else {
        None
    }
}

/// Reads the right side of a comparison: constants, joined by ` . `, commas or bit operators; a set; a map.
pub(super) fn literal(tokens: &mut Tokens<'_>) -> Option<Expr> {
    let first = plain(tokens)?;
    if matches!(tokens.peek(), Some(Token::Mark(","))) {
        let mut list = vec![first];
        while tokens.take_mark(",") {
            list.push(plain(tokens)?);
        }
        return Some(Expr::Set(list));
    }
    let first = bits(tokens, first, plain)?;
    let mut parts = vec![first];
    while tokens.take(".") {
        parts.push(plain(tokens)?);
    }
    Some(joined(parts))
}

fn plain(tokens: &mut Tokens<'_>) -> Option<Expr> {
    match tokens.peek()? {
        Token::Mark("{") => {
            tokens.next();
            tokens.within(braced)
        }
        Token::Mark("(") => {
            tokens.next();
            tokens.within(|tokens| {
                let first = plain(tokens)?;
                let inner = bits(tokens, first, plain)?;
                tokens.take_mark(")").then_some(inner)
            })
        }
        Token::Quoted(text) => {
            tokens.next();
            let word = Expr::Word(text.to_owned());
            // `"08:00"-"10:00"`.
            match (tokens.peek(), tokens.ahead(1)) {
                (Some(Token::Word("-")), Some(Token::Quoted(last))) => {
                    tokens.next();
                    tokens.next();
                    let last = Expr::Word(last.to_owned());
                    Some(Expr::Range(Box::new(word), Box::new(last)))
                }
                _ => Some(word),
            }
        }
        Token::Word(word) => {
            tokens.next();
            Some(constant(word))
        }
        Token::Mark(_) | Token::Nothing => None,
    }
}

/// Reads the members of an anonymous set or inline map, behind its brace.
fn braced(tokens: &mut Tokens<'_>) -> Option<Expr> {
    let mut members = Vec::new();
    let mut pairs = Vec::new();
    while !tokens.take_mark("}") {
        let member = element(tokens);
        match member.value {
            Some(value) => pairs.push((member.key, value)),
            None => members.push(member.key),
        }
        if !tokens.take_mark(",") && !matches!(tokens.peek(), Some(Token::Mark("}"))) {
            return None;
        }
    }
    match (members.is_empty(), pairs.is_empty()) {
        (_, true) => Some(Expr::Set(members)),
        (true, false) => Some(Expr::Map(pairs)),
        (false, false) => None,
    }
}

/// Reads `KEY [timeout T] [expires T] [comment "…"] [: DATUM]`.
pub(super) fn element(tokens: &mut Tokens<'_>) -> Element {
    let place = tokens.place();
    let mut parts = Vec::new();
    loop {
        if let Some(part) = plain(tokens) {
            parts.extend(bits(tokens, part, plain));
        }
        if !tokens.take(".") {
            break;
        }
    }
    let mut element = plain_element(joined(parts));
    while let Some(word) = tokens.peek_word() {
        if matches!(word, "limit" | "quota" | "ct") {
            element.conditions.push(other(tokens));
            continue;
        }
        tokens.next();
        match word {
            "timeout" => element.timeout = tokens.word().and_then(seconds),
            "expires" => element.expires = tokens.word().and_then(seconds),
            "comment" => {
                if let Some(Token::Quoted(text)) = tokens.next() {
                    element.comment = Some(text.to_owned());
                }
            }
            ":" if element.value.is_none() => element.value = datum(tokens),
            // Counters of the element, and when it was last used.
            "counter" | "packets" | "bytes" | "last" | "used" | "never" | "ago" => {}
            _ if word.bytes().all(|b| b.is_ascii_digit()) => {}
            _ => {
                // Not an element that the model has: kept as it is written.
                while !matches!(tokens.peek(), None | Some(Token::Mark("," | "}"))) {
                    tokens.next();
                }
                return plain_element(Expr::Other(json!(tokens.since(place))));
            }
        }
    }
    element
}

const fn plain_element(key: Expr) -> Element {
    Element {
        key,
        value: None,
        comment: None,
        timeout: None,
        expires: None,
        conditions: Vec::new(),
    }
}

fn datum(tokens: &mut Tokens<'_>) -> Option<Datum> {
    if let Some(verdict) = verdict(tokens) {
        return Some(Datum::Verdict(verdict));
    }
    let mut parts = vec![plain(tokens)?];
    while tokens.take(".") {
        parts.push(plain(tokens)?);
    }
    Some(Datum::Data(joined(parts)))
}

/// Reads a verdict; takes nothing if there is none.
pub(super) fn verdict(tokens: &mut Tokens<'_>) -> Option<Verdict> {
    let to = |tokens: &mut Tokens<'_>| {
        tokens.next();
        match tokens.peek() {
            Some(Token::Word(to)) => Some(to.to_owned()),
            Some(Token::Mark("{")) => block(tokens),
            _ => None,
        }
    };
    let place = tokens.place();
    let read = match tokens.peek_word()? {
        "accept" => Some(Verdict::Accept),
        "drop" => Some(Verdict::Drop),
        "continue" => Some(Verdict::Continue),
        "return" => Some(Verdict::Return),
        "jump" => to(tokens).map(Verdict::Jump),
        "goto" => to(tokens).map(Verdict::Goto),
        _ => None,
    };
    match read {
        Some(_) => drop(tokens.next()),
        None => tokens.back_to(place),
    }
    read
}

/// Reads a literal word.
pub(super) fn constant(word: &str) -> Expr {
    match word {
        "*" => return Expr::Any,
        "exists" => return Expr::Bool(true),
        "missing" => return Expr::Bool(false),
        _ => {}
    }
    if let Some(name) = word.strip_prefix('@') {
        return Expr::Named(name.to_owned());
    }
    if let Some(known) = bounded(word) {
        return known;
    }
    // Only numbers and addresses have ranges; many names have hyphens.
    let range = word.match_indices('-').find_map(|(at, _)| {
        let (first, last) = (bounded(&word[..at])?, bounded(&word[at + 1..])?);
        Some(Expr::Range(Box::new(first), Box::new(last)))
    });
    range.unwrap_or_else(|| Expr::Word(word.to_owned()))
}

/// Reads a number, an address or a prefix.
fn bounded(word: &str) -> Option<Expr> {
    if !word.starts_with(|c: char| c.is_ascii_hexdigit() || c == ':') {
        return None;
    }
    let number = match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    };
    if let Some(number) = number {
        return Some(Expr::Number(number));
    }
    if let Some((addr, len)) = word.split_once('/') {
        addr.parse::<IpAddr>().ok()?;
        return Some(Expr::Prefix {
            addr: Box::new(Expr::Word(addr.to_owned())),
            len: len.parse().ok()?,
        });
    }
    word.parse::<IpAddr>()
        .ok()
        .map(|_| Expr::Word(word.to_owned()))
}
