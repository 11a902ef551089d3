//! `iptables -v -S CHAIN` to one [`Chain`].

use super::model::Chain;
use super::parse;
use crate::evidence::{Gap, Item};

/// Returns `listing` of one chain of `table` as `iptables-save -c` would print it.
///
/// A listing has policies and counters in other places: `-P INPUT ACCEPT -c 1 60`, `-A INPUT … -c 1 60 -j …`.
pub(crate) fn as_saved(table: &str, listing: &str) -> String {
    let mut saved = format!("*{table}\n");
    for line in listing.lines() {
        let (line, counters) = take_counters(line);
        if let Some(policy) = line.strip_prefix("-P ") {
            saved.extend([":", policy, " ", &counters, "\n"]);
        } else if let Some(name) = line.strip_prefix("-N ") {
            saved.extend([":", name, " - [0:0]\n"]);
        } else if !line.is_empty() {
            saved.extend([&counters, " ", &line, "\n"]);
        }
    }
    saved.push_str("COMMIT\n");
    saved
}

/// Reads the one chain of a saved table; `item` names it in errors.
pub(crate) fn chain(item: Item, saved: &str) -> Result<Chain<'_>, Gap> {
    let mut rules = parse::ruleset(item, saved)?;
    let chain = rules
        .tables
        .first_mut()
        .and_then(|table| table.chains.pop());
    chain.ok_or_else(|| Gap::Failed(item, "a listing without a chain".to_owned()))
}

/// Takes ` -c PACKETS BYTES` out of a line; quoted text is passed over.
fn take_counters(line: &str) -> (String, String) {
    let mut quoted = false;
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            ' ' if !quoted && line[at..].starts_with(" -c ") => {
                let mut words = line[at + 4..].splitn(3, ' ');
                let (Some(packets), Some(bytes)) = (words.next(), words.next()) else {
                    break;
                };
                let rest = words
                    .next()
                    .map_or(String::new(), |rest| format!(" {rest}"));
                return (
                    format!("{}{rest}", &line[..at]),
                    format!("[{packets}:{bytes}]"),
                );
            }
            _ => {}
        }
    }
    (line.to_owned(), "[0:0]".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_becomes_what_is_saved() {
        let listing = "-P INPUT ACCEPT -c 5 300\n-A INPUT -m comment --comment \"a -c 1 2\" -c 3 180 -j DROP\n";
        let saved = as_saved("filter", listing);
        assert_eq!(
            saved,
            "*filter\n:INPUT ACCEPT [5:300]\n[3:180] -A INPUT -m comment --comment \"a -c 1 2\" -j DROP\nCOMMIT\n"
        );
        let chain = chain(Item::Iptables4, &saved).unwrap();
        assert_eq!(chain.rules.len(), 1);
        assert_eq!(chain.rules[0].counters.map(|c| c.packets), Some(3));
    }
}
