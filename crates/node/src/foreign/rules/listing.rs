//! Rules as `iptables -L` lists them: a title for each chain, columns, and a row for each rule.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::super::command::Iptables;
use super::super::extras;
use super::{
    Chain, Columns, Open, Rules, cut, hollow, is_complete, is_cut, jump, lacks_chains, push,
    table_of,
};
use crate::backend::iptables::model::NO_LINKS;
use crate::net::Cidr;

impl Rules {
    /// Reads the lines of a listing of `iptables -L`, which `command` gave, if it is known.
    pub(in crate::foreign) fn listing(
        &mut self,
        lines: &[String],
        command: Option<&Iptables>,
        fragment: Option<&str>,
    ) {
        let mut groups: Vec<Vec<Chain>> = vec![Vec::new()];
        let mut open: Option<Open> = None;
        let mut rows = 0_usize;
        let mut loose = Vec::new();
        let mut last_failed = false;
        for (at, line) in lines.iter().enumerate() {
            let text = line.trim();
            if let Some(chain) = chain_line(text) {
                if let Some(open) = open.take() {
                    push(&mut groups, open.chain);
                }
                open = Some(Open {
                    chain,
                    columns: None,
                    next: 1,
                });
                continue;
            }
            if let Some(columns) = header(text) {
                if let Some(open) = &mut open {
                    open.columns = Some(columns);
                }
                continue;
            }
            if text.is_empty() || is_noise(text) {
                continue;
            }
            if is_cut(text) {
                if let Some(open) = &mut open {
                    cut(&mut open.chain);
                }
                continue;
            }
            let Some(open) = &mut open else {
                loose.push(text);
                continue;
            };
            let read = row(text, open.columns, &open.chain.name);
            last_failed = read.is_err() && at + 1 == lines.len();
            match read {
                Ok(row) => {
                    rows += 1;
                    // A gap between numbers: rows were cut out.
                    if row.number.is_some_and(|number| number != open.next) {
                        cut(&mut open.chain);
                    }
                    open.next = row.number.unwrap_or(open.next) + 1;
                    self.lost.extend(row.lost);
                    open.chain.rules.push(row.rule);
                }
                Err(why) => {
                    self.lost.insert(format!(
                        "a row of chain {} is not read: {why}",
                        open.chain.name
                    ));
                    cut(&mut open.chain);
                }
            }
        }
        if let Some(open) = open.take() {
            push(&mut groups, open.chain);
        }
        if last_failed {
            self.lost
                .insert("the listing ends in the middle of a row".to_owned());
        }
        if !loose.is_empty() {
            self.loose(&loose, command);
        }
        let _ = rows;
        for mut chains in groups.into_iter().filter(|group| !group.is_empty()) {
            if let Some(why) = fragment {
                chains.iter_mut().for_each(hollow);
                self.lost.insert(why.to_owned());
            }
            let asked = command.and_then(|command| command.chain.as_deref());
            let Some(table) = table_of(command, &chains) else {
                let names: Vec<&str> = chains.iter().map(|chain| chain.name.as_str()).collect();
                self.lost.insert(format!(
                    "chain {}: its table is not shown",
                    names.join(", ")
                ));
                continue;
            };
            let is_all = asked.is_none() && fragment.is_none();
            let is_whole = is_all && is_complete(&table, &chains);
            if is_all
                && lacks_chains(&chains)
                && let Some(last) = chains.last_mut().filter(|chain| !ends(chain))
            {
                cut(last);
            }
            self.add(&table, chains, is_whole);
        }
    }

    /// Reads rows without a chain: of one that the command names, or of an unknown one.
    fn loose(&mut self, rows: &[&str], command: Option<&Iptables>) {
        let named = command.and_then(|command| Some((command, command.chain.clone()?)));
        let Some((command, name)) = named else {
            let count = rows
                .iter()
                .filter(|line| row(line, None, "").is_ok())
                .count();
            if count > 0 {
                self.lost
                    .insert(format!("{count} rows without their chains are not used"));
            }
            return;
        };
        let mut chain = Chain {
            name,
            ..Chain::default()
        };
        let read = rows
            .iter()
            .filter_map(|line| row(line, None, &chain.name).ok());
        chain.rules = read.map(|row| row.rule).collect();
        if chain.rules.is_empty() {
            return;
        }
        hollow(&mut chain);
        self.lost.insert(format!(
            "chain {} is shown without its other rules",
            chain.name
        ));
        let table = command.table.clone().unwrap_or_else(|| "filter".to_owned());
        self.add(&table, vec![chain], false);
    }
}

/// Returns whether the last rule of a chain is kube-proxy's last one.
fn ends(chain: &Chain) -> bool {
    let conditions = ["--probability", "-m recent"];
    chain.rules.last().is_some_and(|rule| {
        let is_endpoint = jump(rule).is_some_and(|to| to.starts_with("KUBE-SEP-"));
        rule.contains("this must be the last rule in this chain")
            || is_endpoint && !conditions.iter().any(|word| rule.contains(word))
    })
}

/// Reads `Chain NAME (policy ACCEPT 5 packets, 300 bytes)` or `Chain NAME (2 references)`.
fn chain_line(line: &str) -> Option<Chain> {
    let rest = line.strip_prefix("Chain ")?;
    let (name, rest) = rest.trim_start().split_once(char::is_whitespace)?;
    let inside = rest.trim().strip_prefix('(')?.split(')').next()?;
    if name.contains('"') {
        return None;
    }
    let words: Vec<&str> = inside.split_whitespace().collect();
    let (policy, counters) = match words.as_slice() {
        ["policy", policy @ ("ACCEPT" | "DROP"), rest @ ..] => {
            let counters = match rest {
                [packets, _, bytes, ..] => Some((count(packets)?, count(bytes)?)),
                _ => None,
            };
            (Some((*policy).to_owned()), counters)
        }
        [_, "references" | "references,", ..] => (None, None),
        _ => return None,
    };
    Some(Chain {
        name: name.to_owned(),
        policy,
        counters,
        is_whole: true,
        ..Chain::default()
    })
}

/// Returns whether `line` begins a chain of a listing.
pub(in crate::foreign) fn is_chain_line(line: &str) -> bool {
    chain_line(line.trim()).is_some()
}

/// Returns whether `line` begins a chain or a row of a listing, complete or not.
pub(in crate::foreign) fn starts_row(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let counted = words
        .windows(2)
        .take(2)
        .any(|pair| pair.iter().all(|word| count(word).is_some()));
    is_chain_line(line) || header(line.trim()).is_some() || counted && words.contains(&"--")
}

/// Returns whether `line` fits into a listing.
pub(in crate::foreign) fn is_of_listing(line: &str) -> bool {
    let line = line.trim();
    chain_line(line).is_some() || header(line).is_some() || row(line, None, "").is_ok()
}

/// Reads `num pkts bytes target prot opt in out source destination`.
fn header(line: &str) -> Option<Columns> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "target")?;
    (words.get(at + 1..at + 3)? == ["prot", "opt"] && words.contains(&"source")).then(|| Columns {
        number: words.first() == Some(&"num"),
        counters: words.contains(&"pkts"),
        links: words.contains(&"in") && words.contains(&"out"),
    })
}

/// Returns whether `line` does not belong to a listing: footers and warnings.
fn is_noise(line: &str) -> bool {
    line.starts_with('#')
        || line.starts_with("===")
        || line.starts_with("Total Number of Rules")
        || line.starts_with("iptables v")
        || line.starts_with("ip6tables v")
        || line.starts_with("Perhaps iptables")
}

/// Returns a number, `37M` in units.
fn count(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1000),
        b'M' => (&text[..text.len() - 1], 1_000_000),
        b'G' => (&text[..text.len() - 1], 1_000_000_000),
        b'T' => (&text[..text.len() - 1], 1_000_000_000_000),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

struct Row {
    number: Option<usize>,
    rule: String,
    lost: Option<String>,
}

/// Protocols by their numbers, as `iptables-save` names them.
const PROTOCOLS: [(&str, &str); 9] = [
    ("1", "icmp"),
    ("6", "tcp"),
    ("17", "udp"),
    ("33", "dccp"),
    ("50", "esp"),
    ("51", "ah"),
    ("58", "ipv6-icmp"),
    ("132", "sctp"),
    ("136", "udplite"),
];

fn protocol(word: &str) -> Option<(bool, &str)> {
    const NAMES: [&str; 13] = [
        "all", "ip", "ipv6", "gre", "ipip", "ipencap", "igmp", "vrrp", "ospf", "pim", "mh",
        "ipv6-mh", "icmpv6",
    ];
    let (inverted, plain) = match word.strip_prefix('!') {
        Some(rest) => (true, rest),
        None => (false, word),
    };
    if let Some((_, name)) = PROTOCOLS
        .iter()
        .find(|(number, name)| *number == plain || *name == plain)
    {
        return Some((inverted, name));
    }
    let is_known = NAMES.contains(&plain) || plain.parse::<u8>().is_ok();
    is_known.then_some((inverted, plain))
}

/// Returns `-s`'s value; `None` for any address. The error is a name.
pub(super) fn address(word: &str) -> Result<Option<(bool, String)>, String> {
    let (inverted, plain) = match word.strip_prefix('!') {
        Some(rest) => (true, rest),
        None => (false, word),
    };
    let plain = match plain {
        "anywhere" | "0.0.0.0/0" | "::/0" => {
            return if inverted {
                Err(format!("{word} matches nothing"))
            } else {
                Ok(None)
            };
        }
        "loopback/8" => "127.0.0.0/8",
        "localhost" | "localhost.localdomain" => "127.0.0.1",
        _ => plain,
    };
    let host = match plain.parse::<IpAddr>() {
        Ok(IpAddr::V4(addr)) => Some(format!("{addr}/32")),
        Ok(IpAddr::V6(addr)) => Some(format!("{addr}/128")),
        Err(_) => None,
    };
    let is_masked = || {
        let ends = plain
            .split_once('/')
            .map(|(addr, mask)| (addr.parse::<IpAddr>(), mask.parse::<IpAddr>()));
        plain.parse::<Cidr>().is_ok() || matches!(ends, Some((Ok(_), Ok(_))))
    };
    match host {
        Some(host) => Ok(Some((inverted, host))),
        None if is_masked() => Ok(Some((inverted, plain.to_owned()))),
        None => Err(format!("{plain} is a name, not an address")),
    }
}

/// Returns whether `word` may be an address column.
fn is_address(word: &str) -> bool {
    address(word).is_ok() || word.starts_with("!anywhere")
}

/// Reads a row of `chain`.
fn row(line: &str, columns: Option<Columns>, chain: &str) -> Result<Row, String> {
    let mut words: Vec<(usize, &str)> = Vec::new();
    for word in line.split_whitespace() {
        words.push((word.as_ptr() as usize - line.as_ptr() as usize, word));
    }
    let mut at = 0;
    let word = |at: usize| words.get(at).map(|(_, word)| *word);
    let is_count = |at: usize| word(at).is_some_and(|text| count(text).is_some());
    let counters = columns.map_or_else(|| is_count(0) && is_count(1), |columns| columns.counters);
    let begins_option = |at: usize| word(at).is_some_and(|text| ["--", "-f", "!f"].contains(&text));
    // Without a target, a protocol's number follows the counters.
    let number = columns.is_some_and(|columns| columns.number)
        || columns.is_none() && counters && is_count(2) && !begins_option(3);
    let number = if number {
        at += 1;
        Some(
            word(0)
                .and_then(|text| text.parse().ok())
                .ok_or("it has no number")?,
        )
    } else {
        None
    };
    let mut rule = String::new();
    if counters {
        let pair = word(at).and_then(count).zip(word(at + 1).and_then(count));
        let (packets, bytes) = pair.ok_or("it has no counters")?;
        let _ = write!(rule, "[{packets}:{bytes}] ");
        at += 2;
    }
    let is_option = |at: usize| {
        at > 0
            && word(at).is_some_and(|text| ["--", "-f", "!f"].contains(&text))
            && word(at - 1).is_some_and(|text| protocol(text).is_some())
    };
    // A target is at most one word.
    let option = (at + 1..at + 3).find(|at| is_option(*at));
    let shows_links = |next: usize| {
        columns.map_or_else(
            || !(word(next).is_some_and(is_address) && word(next + 1).is_some_and(is_address)),
            |columns| columns.links,
        )
    };
    let (target, proto, fragment, links, source) = if let Some(option) = option {
        let target = (option - at == 2).then(|| word(at)).flatten();
        let links = shows_links(option + 1).then_some(option + 1);
        let source = option + 1 + if links.is_some() { 2 } else { 0 };
        (
            target,
            option - 1,
            word(option).unwrap_or("--"),
            links,
            source,
        )
    } else {
        // ip6tables up to 1.8.8 leaves the column empty: the addresses are the first two in a row.
        let pair = (at + 1..words.len()).find(|at| {
            [*at, at + 1]
                .into_iter()
                .all(|at| word(at).is_some_and(|text| text.contains(':') && is_address(text)))
        });
        let source = pair.ok_or("it is not a row")?;
        let has_links = columns.map_or(source >= at + 3, |columns| columns.links);
        let links = if has_links {
            Some(source.checked_sub(2).ok_or("it is not a row")?)
        } else {
            None
        };
        let proto = links
            .unwrap_or(source)
            .checked_sub(1)
            .filter(|index| *index >= at)
            .ok_or("it is not a row")?;
        let target = match proto - at {
            0 => None,
            1 => word(at),
            _ => return Err("it is not a row".to_owned()),
        };
        (target, proto, "--", links, source)
    };
    let (inverted, name) = word(proto).and_then(protocol).ok_or("it has no protocol")?;
    let _ = write!(rule, "-A {chain}");
    for (option, word) in [("-s", word(source)), ("-d", word(source + 1))] {
        if let Some((inverted, value)) = address(word.ok_or("it has no addresses")?)? {
            let _ = write!(
                rule,
                "{} {option} {value}",
                if inverted { " !" } else { "" }
            );
        }
    }
    if let Some(links) = links {
        for (option, word) in [("-i", word(links)), ("-o", word(links + 1))] {
            let name = word.ok_or("it has no links")?;
            let (inverted, name) = match name.strip_prefix('!') {
                Some(rest) => (" !", rest),
                None => ("", name),
            };
            if !["*", "any"].contains(&name) {
                let _ = write!(rule, "{inverted} {option} {name}");
            }
        }
    }
    if inverted || !["all", "0", "ip"].contains(&name) {
        let _ = write!(rule, "{} -p {name}", if inverted { " !" } else { "" });
    }
    match fragment {
        "-f" => rule.push_str(" -f"),
        "!f" => rule.push_str(" ! -f"),
        _ => {}
    }
    let mut lost = None;
    if links.is_none() && !chain.starts_with("KUBE-") {
        let _ = write!(rule, " {NO_LINKS}");
        lost = Some("the links (-i, -o) of rules are not shown".to_owned());
    }
    let rest = words
        .get(source + 1)
        .map_or("", |(at, word)| &line[at + word.len()..]);
    let target = target.unwrap_or_default();
    match extras::read(rest, target) {
        Ok(extras) => {
            rule.push_str(&extras.matches);
            if !target.is_empty() {
                let _ = write!(
                    rule,
                    " {} {target}{}",
                    if extras.goes { "-g" } else { "-j" },
                    extras.options
                );
            }
            if rule.contains("--hashlimit-name not-shown") {
                lost = lost.or_else(|| Some("names of -m hashlimit are not shown".to_owned()));
            }
        }
        Err(what) => {
            // A part that is not understood may restrict the rule.
            let _ = write!(
                rule,
                " -m kpx --not-read {}",
                extras::quoted(&what.replace('"', "'"))
            );
            if !target.is_empty() {
                let _ = write!(rule, " -j {target}");
            }
            lost = Some(format!("not understood: {what}"));
        }
    }
    Ok(Row { number, rule, lost })
}
