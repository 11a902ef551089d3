//! `iptables-save` output to a [`Ruleset`].
//!
//! Both back ends' spellings are read, and those of iptables 1.4 to 1.8. Parts of a rule that the model does not have are
//! kept as written; a line outside the format is an error with its number.

mod matches;
mod saved;
mod targets;
mod words;

use std::collections::HashMap;

use super::model::{
    Chain, Counters, IN_PART, Invertible, Match, Policy, Rule, Ruleset, Table, Target, Text,
};
use crate::evidence::{Gap, Item};
use crate::net::{Cidr, Proto};
pub use saved::Saved;
use words::{Options, Word, reach, span};

/// Reads `iptables-save`, with counters or without.
pub fn ruleset(item: Item, text: &str) -> Result<Ruleset<'_>, Gap> {
    let mut reader = Reader::default();
    for (number, line) in (1..).zip(text.lines()) {
        reader
            .line(line.trim_ascii())
            .map_err(|why| Gap::Failed(item, format!("line {number}: {why}")))?;
    }
    if let Some(open) = &reader.table {
        let why = format!(
            "cut short: table {} has no COMMIT; collect it again",
            open.name
        );
        return Err(Gap::Failed(item, why));
    }
    Ok(reader.ruleset)
}

/// Reads one rule without its chain, as `iptables -A CHAIN` would take it.
pub fn rule(text: &str) -> Result<Rule<'_>, String> {
    RuleReader::default().rule(text)
}

/// Returns the tables that a listing of iptables omits, since they have native rules of nftables: nft shows them.
pub fn left_out(text: &str) -> impl Iterator<Item = &str> {
    // "# Table `nat' is incompatible, use 'nft' tool."
    text.lines().filter_map(|line| {
        let (name, what) = line.strip_prefix("# Table `")?.split_once('\'')?;
        what.contains("incompatible").then_some(name)
    })
}

#[derive(Default)]
struct Reader<'a> {
    ruleset: Ruleset<'a>,
    /// The current table, without its chains.
    table: Option<Table<'a>>,
    chains: Vec<Chain<'a>>,
    by_name: HashMap<&'a str, usize>,
    /// Where the last rule went: rules of a chain follow one another.
    last: usize,
    rules: RuleReader<'a>,
}

impl<'a> Reader<'a> {
    fn line(&mut self, line: &'a str) -> Result<(), String> {
        match line.as_bytes().first() {
            None => Ok(()),
            Some(b'#') => {
                self.remark(line);
                Ok(())
            }
            Some(b'*') => self.open(&line[1..]),
            Some(b':') => self.declare(&line[1..]),
            Some(b'[' | b'-') => self.add(line),
            Some(_) if line == "COMMIT" => self.close(),
            Some(_) => Err(format!(
                "expected a table, chain, rule or COMMIT, found {:?}",
                start(line)
            )),
        }
    }

    fn remark(&mut self, line: &'a str) {
        if line.contains("-legacy tables present") {
            self.ruleset.legacy_too = true;
        }
        self.ruleset.whole = whole(line).map_or_else(
            || self.ruleset.whole.take(),
            |names| Some(names.map(Text::Borrowed).collect()),
        );
    }

    fn open(&mut self, name: &'a str) -> Result<(), String> {
        let name = name.trim_ascii();
        if let Some(open) = &self.table {
            return Err(format!(
                "table {name} begins before COMMIT of {}",
                open.name
            ));
        }
        if self.ruleset.tables.iter().any(|table| table.name == name) {
            return Err(twice(name));
        }
        self.table = Some(Table::new(name, Vec::new()));
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        let table = self.table.take();
        let mut table = table.ok_or("COMMIT without a table")?;
        table.chains = std::mem::take(&mut self.chains);
        for chain in &mut table.chains {
            chain.rules.shrink_to_fit();
        }
        table.chains.shrink_to_fit();
        table.index();
        self.by_name.clear();
        self.last = 0;
        self.ruleset.tables.push(table);
        Ok(())
    }

    fn declare(&mut self, text: &'a str) -> Result<(), String> {
        if self.table.is_none() {
            return Err("a chain outside a table".to_owned());
        }
        let (name, policy, counters) = declared(text)?;
        if self.by_name.insert(name, self.chains.len()).is_some() {
            return Err(format!("chain {name} is declared twice"));
        }
        self.chains.push(Chain {
            name: Text::Borrowed(name),
            policy,
            counters,
            rules: Vec::new(),
        });
        Ok(())
    }

    fn add(&mut self, line: &'a str) -> Result<(), String> {
        if self.table.is_none() {
            return Err("a rule outside a table".to_owned());
        }
        let (counters, name, rest) = rule_line(line)?;
        let mut rule = self
            .rules
            .rule(rest)
            .map_err(|why| format!("rule of {name}: {why}"))?;
        rule.counters = counters.or(rule.counters);
        if self.chains.get(self.last).is_none_or(|c| c.name != name) {
            // While its memory is still the last allocation.
            if let Some(done) = self.chains.get_mut(self.last) {
                done.rules.shrink_to_fit();
            }
            // Input of iptables-restore may leave built-in chains undeclared.
            self.last = *self.by_name.entry(name).or_insert_with(|| {
                self.chains.push(Chain {
                    name: Text::Borrowed(name),
                    ..Chain::default()
                });
                self.chains.len() - 1
            });
        }
        self.chains[self.last].rules.push(rule);
        Ok(())
    }
}

/// Returns the complete tables that the remark `line` names, if it is about that.
fn whole(line: &str) -> Option<impl Iterator<Item = &str>> {
    Some(line.strip_prefix(IN_PART)?.split_ascii_whitespace())
}

/// Why the table `name` cannot be read: it is unknown which of two lists the node has.
fn twice(name: &str) -> String {
    format!("table {name} is listed twice")
}

/// Reads `CHAIN POLICY [PACKETS:BYTES]`, what follows the colon of a line.
fn declared(text: &str) -> Result<(&str, Option<Policy>, Counters), String> {
    let mut words = text.split_ascii_whitespace();
    let name = words.next().ok_or("a chain without a name")?;
    unquoted(name)?;
    let policy = match words.next() {
        Some("-") => None,
        Some("ACCEPT") => Some(Policy::Accept),
        Some("DROP") => Some(Policy::Drop),
        other => {
            let found = other.unwrap_or("nothing");
            return Err(format!("chain {name}: {found:?} is not a policy"));
        }
    };
    let counters = match words.next() {
        Some(text) => counters(text)
            .filter(|(_, rest)| rest.is_empty())
            .map(|(counters, _)| counters)
            .ok_or_else(|| format!("chain {name}: {text:?} are not counters"))?,
        None => Counters::default(),
    };
    Ok((name, policy, counters))
}

/// Reads the line of a rule as far as its chain: counters, chain, and the rule itself.
fn rule_line(line: &str) -> Result<(Option<Counters>, &str, &str), String> {
    let (counters, line) = match counters(line) {
        Some((counters, rest)) => (Some(counters), rest.trim_ascii_start()),
        None => (None, line),
    };
    let rest = line
        .strip_prefix("-A ")
        .ok_or_else(|| format!("expected a rule (-A CHAIN …), found {:?}", start(line)))?
        .trim_ascii_start();
    let (name, rest) = rest
        .split_once(|c: char| c.is_ascii_whitespace())
        .unwrap_or((rest, ""));
    let name = name.trim_matches('"');
    if name.is_empty() {
        return Err("a rule without a chain".to_owned());
    }
    unquoted(name)?;
    Ok((counters, name, rest))
}

/// Refuses a name of a chain with a quote: iptables prints it as it is, and cannot read it.
fn unquoted(name: &str) -> Result<(), String> {
    if name.contains('"') {
        return Err(format!("chain {name}: a name has no quotes"));
    }
    Ok(())
}

/// Reads `[PACKETS:BYTES]` at the start of `text`, and returns what follows.
fn counters(text: &str) -> Option<(Counters, &str)> {
    let (inside, rest) = text.strip_prefix('[')?.split_once(']')?;
    let (packets, bytes) = inside.split_once(':')?;
    let counters = Counters {
        packets: packets.parse().ok()?,
        bytes: bytes.parse().ok()?,
    };
    Some((counters, rest))
}

/// Returns the first characters of a line, for a message.
fn start(line: &str) -> &str {
    line.char_indices()
        .nth(40)
        .map_or(line, |(end, _)| &line[..end])
}

/// Reads rules; holds what is used again for each.
#[derive(Default)]
struct RuleReader<'a> {
    words: Vec<Word<'a>>,
    matches: Vec<Match<'a>>,
}

impl<'a> RuleReader<'a> {
    fn rule(&mut self, text: &'a str) -> Result<Rule<'a>, String> {
        let open = || "nothing follows the last !".to_owned();
        words::split(text, &mut self.words)?;
        if words::ends_open(&self.words) {
            return Err(open());
        }
        let matches = &mut self.matches;
        matches.clear();
        let mut counters = None;
        let mut target = None;
        let mut rest = self.words.as_slice();
        while let Some(first) = rest.first() {
            let whole = rest;
            let mut inverted = first.raw == "!";
            if inverted {
                rest = &rest[1..];
            }
            let Some((option, behind)) = rest.split_first() else {
                return Err(open());
            };
            let reach = reach(behind);
            let mut options = Options {
                words: &behind[..reach],
            };
            rest = &behind[reach..];
            let verbatim = || span(text, &whole[..whole.len() - rest.len()]);
            match option.raw {
                "-m" => {
                    let module = options.value(&mut inverted).ok_or("-m without a module")?;
                    if inverted || matches::read(module.raw, text, options, matches).is_none() {
                        matches.push(Match::Unknown(verbatim()));
                    }
                }
                "-j" | "-g" => {
                    let Some(name) = options.value(&mut inverted).filter(|_| !inverted) else {
                        return Err(format!("{} without a target", option.raw));
                    };
                    if target.is_some() {
                        return Err("more than one target".to_owned());
                    }
                    target = Some(if option.raw == "-j" {
                        targets::read(text, name, options)
                    } else if options.words.is_empty() {
                        Target::Goto(name.text())
                    } else {
                        return Err(format!("options behind -g {}", name.raw));
                    });
                }
                "-c" => {
                    let mut number =
                        || options.parse(&mut inverted).ok_or("-c without two numbers");
                    counters = Some(Counters {
                        packets: number()?,
                        bytes: number()?,
                    });
                }
                name => match own(name, inverted, &mut options) {
                    Some(own) => {
                        matches.extend(own);
                        // `-p tcp --dport 80`: the options of the protocol's own match need no -m.
                        if !options.words.is_empty() {
                            let module = matches.iter().rev().find_map(implied);
                            let read =
                                module.and_then(|m| matches::read(m, text, options, matches));
                            if read.is_none() {
                                matches.push(Match::Unknown(span(text, options.words)));
                            }
                        }
                    }
                    None if name.starts_with('-') => matches.push(Match::Unknown(verbatim())),
                    None => return Err(format!("{:?} is not an option", start(name))),
                },
            }
        }
        // Without spare capacity; the reader's own vector keeps its capacity for the next rule.
        let mut exact = Vec::with_capacity(matches.len());
        exact.append(matches);
        Ok(Rule {
            counters,
            matches: exact,
            target,
        })
    }
}

/// Reads an option of iptables itself; `Some(None)` for one without effect, such as `-p all`.
#[expect(
    clippy::option_option,
    reason = "an option may be valid and have no effect"
)]
fn own<'a>(
    name: &str,
    mut inverted: bool,
    options: &mut Options<'_, 'a>,
) -> Option<Option<Match<'a>>> {
    let value = options.value(&mut inverted);
    let cidr = || -> Option<Invertible<Cidr>> {
        let value = value?.text().parse().ok()?;
        Some(Invertible { inverted, value })
    };
    let link = || {
        let value = value?.text();
        Some(Invertible { inverted, value })
    };
    Some(Some(match name {
        "-s" => Match::Source(cidr()?),
        "-d" => Match::Destination(cidr()?),
        "-i" => Match::In(link()?),
        "-o" => Match::Out(link()?),
        "-p" => match value?.raw {
            "all" | "0" if !inverted => return Some(None),
            name => Match::Protocol(Invertible {
                inverted,
                value: proto(name)?,
            }),
        },
        _ => return None,
    }))
}

/// Protocols that iptables names itself, besides those of [`Proto`].
pub(super) const PROTOCOLS: [(&str, u8); 5] = [
    ("dccp", 33),
    ("esp", 50),
    ("ah", 51),
    ("ipv6-mh", 135),
    ("udplite", 136),
];

/// Further names in `/etc/protocols` that rules of nodes use; iptables prints the number where that file is missing.
const MORE_PROTOCOLS: [(&str, u8); 9] = [
    ("mh", 135),
    ("igmp", 2),
    ("ipencap", 4),
    ("ipv6", 41),
    ("gre", 47),
    ("ospf", 89),
    ("ipip", 94),
    ("pim", 103),
    ("vrrp", 112),
];

fn proto(name: &str) -> Option<Proto> {
    match name {
        "tcp" => Some(Proto::Tcp),
        "udp" => Some(Proto::Udp),
        _ => name.parse().ok().or_else(|| {
            let mut all = PROTOCOLS.iter().chain(&MORE_PROTOCOLS);
            all.find(|(known, _)| *known == name)
                .map(|&(_, number)| Proto::Other(number))
        }),
    }
}

/// Returns the module whose options may follow `-p` without a `-m`.
fn implied(protocol: &Match<'_>) -> Option<&'static str> {
    match protocol {
        Match::Protocol(Invertible {
            inverted: false,
            value,
        }) => match value {
            Proto::Tcp => Some("tcp"),
            Proto::Udp => Some("udp"),
            Proto::Sctp => Some("sctp"),
            Proto::Icmp => Some("icmp"),
            Proto::Icmpv6 => Some("icmp6"),
            Proto::Other(_) => None,
        },
        _ => None,
    }
}
