//! Parts of a rule's text.

use crate::trace::hop;
use kpx_node::backend::iptables::model::{Match, Rule as Iptables};

/// Returns the matches of a rule, without comments.
pub(super) fn conditions<'r>(rule: &'r Iptables<'_>) -> Vec<&'r Match<'r>> {
    let all = rule.matches.iter();
    all.filter(|condition| !matches!(condition, Match::Comment(_)))
        .collect()
}

/// Returns the words of a rule that ends packets, but for its verdict, comments, counters and the state of connections.
pub(super) fn rest(rule: &str) -> impl Iterator<Item = &str> {
    const KNOWN: &[&str] = &[
        "-m",
        "comment",
        "--comment",
        "conntrack",
        "state",
        "--ctstate",
        "--state",
        "counter",
        "packets",
        "bytes",
        "ct",
        "-j",
        "NEW",
        "new",
        "DROP",
        "drop",
    ];
    let comment = hop::comment(rule);
    let (before, after) = comment
        .and_then(|comment| rule.split_once(comment))
        .unwrap_or((rule, ""));
    let end = |text: &str| {
        let ends = ["REJECT", "reject"].into_iter();
        ends.filter_map(|end| text.find(end)).min()
    };
    let (before, after) = match (end(before), end(after)) {
        (Some(at), _) => (&before[..at], ""),
        (None, Some(at)) => (before, &after[..at]),
        (None, None) => (before, after),
    };
    let is_number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    let words = before.split_whitespace().chain(after.split_whitespace());
    let words = words.filter(|word| *word != "\"");
    words.filter(move |word| !KNOWN.contains(word) && !is_number(word))
}

/// Returns the address to which a rule of iptables is restricted, as an option, after a blank.
pub(super) fn address(rule: &str) -> String {
    let words: Vec<&str> = rule.split_ascii_whitespace().collect();
    let mut pairs = words.windows(3);
    let found = pairs
        .find(|pair| pair[1] == "-d" && pair[0] != "!")
        .map(|pair| pair[2]);
    let first = (words.first() == Some(&"-d"))
        .then(|| words.get(1).copied())
        .flatten();
    first
        .or(found)
        .map_or_else(String::new, |destination| format!(" -d {destination}"))
}

/// Returns the protocol and the destination ports that a rule of iptables asks for, as its options, each after a blank.
pub(super) fn ports(rule: &str) -> String {
    let words: Vec<&str> = rule.split_ascii_whitespace().collect();
    let asks = |option: &str, value: &str| match option {
        "-p" | "--dport" | "--dports" => true,
        "-m" => matches!(value, "tcp" | "udp" | "sctp" | "multiport"),
        _ => false,
    };
    let pairs = words.windows(2).filter(|pair| asks(pair[0], pair[1]));
    let mut text = String::new();
    for word in pairs.flatten() {
        text.push(' ');
        text.push_str(word);
    }
    if text.contains("--dport") {
        text
    } else {
        String::new()
    }
}
