//! Rules of iptables, from any listing of them, as `iptables-save` writes them.
//!
//! Source: `print_firewall` and `print_header` in iptables' `iptables.c`, `nft-shared.c`, and the `print` functions of its
//! extensions, 1.4 to 1.8.11.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use super::command::Iptables;
use super::extras;
use crate::backend::iptables::model::{IN_PART, NO_LINKS, NOT_SHOWN};
use crate::backend::iptables::names;
use crate::net::{Cidr, Family, Proto};

/// Rules of one family and back end, as far as they are shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    tables: BTreeMap<String, Table>,
    /// Whether a table that is not shown does not exist.
    all_tables: bool,
    /// What the listings lose.
    lost: BTreeSet<String>,
}

#[derive(Clone, Debug, Default)]
struct Table {
    chains: Vec<Chain>,
    is_whole: bool,
}

#[derive(Clone, Debug, Default)]
struct Chain {
    name: String,
    policy: Option<String>,
    counters: Option<(u64, u64)>,
    rules: Vec<String>,
    /// Whether all of its rules are shown.
    is_whole: bool,
}

/// What the header of a chain's rows announces.
#[derive(Clone, Copy, Debug)]
struct Columns {
    number: bool,
    counters: bool,
    links: bool,
}

/// A chain as it is read.
struct Open {
    chain: Chain,
    columns: Option<Columns>,
    next: usize,
}

/// Built-in chains by table.
const BUILT_IN: [(&str, &[&str]); 5] = [
    ("filter", &["INPUT", "FORWARD", "OUTPUT"]),
    ("nat", &["PREROUTING", "OUTPUT", "POSTROUTING"]),
    (
        "mangle",
        &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"],
    ),
    ("raw", &["PREROUTING", "OUTPUT"]),
    ("security", &["INPUT", "FORWARD", "OUTPUT"]),
];

/// Returns whether `name` is a target of iptables, and no chain.
pub fn is_target(name: &str) -> bool {
    const ALL: &[&str] = &[
        "ACCEPT",
        "DROP",
        "RETURN",
        "QUEUE",
        "REJECT",
        "DNAT",
        "SNAT",
        "MASQUERADE",
        "REDIRECT",
        "NETMAP",
        "MARK",
        "CONNMARK",
        "CT",
        "NOTRACK",
        "TPROXY",
        "LOG",
        "NFLOG",
        "ULOG",
        "TRACE",
        "AUDIT",
        "TCPMSS",
        "CHECKSUM",
        "CLASSIFY",
        "SET",
        "DSCP",
        "TOS",
        "ECN",
        "SECMARK",
        "CONNSECMARK",
        "IDLETIMER",
        "LED",
        "RATEEST",
        "TCPOPTSTRIP",
        "HMARK",
        "SYNPROXY",
        "NFQUEUE",
        "TEE",
        "CLUSTERIP",
        "HL",
        "TTL",
        "MIRROR",
        "SAME",
        "BALANCE",
        NOT_SHOWN,
    ];
    ALL.contains(&name)
}

/// Returns whether a line cuts what is shown: an ellipsis, or the word of a viewer.
pub(super) fn is_cut(line: &str) -> bool {
    let line = line.trim().trim_matches(['[', ']', '<', '>', '(', ')']);
    matches!(
        line,
        "..."
            | "…"
            | "snip"
            | "truncated"
            | "narrowed"
            | "END"
            | "--More--"
            | "omitted"
            | ". . ."
            | "...."
    ) || line.starts_with("output omitted")
}

impl Rules {
    /// Returns whether nothing is shown.
    pub(super) fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.lost.is_empty()
    }

    /// Returns why nothing of the rules is used, if so.
    pub(super) fn unused(&self) -> Option<String> {
        let lost: Vec<&str> = self.lost.iter().map(String::as_str).collect();
        self.tables.is_empty().then(|| lost.join("; "))
    }

    /// Returns whether there are chains of kube-proxy.
    pub(super) fn has_kube_proxy(&self) -> bool {
        let mut all = self.tables.values().flat_map(|table| &table.chains);
        all.any(|chain| chain.name.starts_with("KUBE-S") && !chain.rules.is_empty())
    }

    /// Reads the lines of a listing of `iptables -L`, which `command` gave, if it is known.
    pub(super) fn listing(
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
            let is_whole = asked.is_none() && fragment.is_none() && is_complete(&table, &chains);
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

    /// Reads lines of `iptables-save` or `iptables -S`.
    pub(super) fn saved(
        &mut self,
        lines: &[String],
        command: Option<&Iptables>,
        fragment: Option<&str>,
    ) {
        let mut table: Option<String> = None;
        let mut chains: Vec<Chain> = Vec::new();
        let mut is_cut_off = false;
        let (mut tables, mut commits) = (0, 0);
        let is_save = command.is_some_and(|command| command.saves);
        let mut has_header = false;
        let save =
            |rules: &mut Self, table: Option<String>, chains: Vec<Chain>, ends: bool, cut: bool| {
                let ends = ends && !cut && fragment.is_none();
                rules.save(table, chains, command, fragment, ends);
            };
        for line in lines {
            let text = line.trim();
            if text.starts_with("# Generated by") {
                has_header = true;
            } else if let Some(name) = text.strip_prefix('*').filter(|name| is_name(name)) {
                if !chains.is_empty() || table.is_some() {
                    let before = table.take();
                    save(self, before, std::mem::take(&mut chains), false, true);
                }
                table = Some(name.to_owned());
                tables += 1;
            } else if text == "COMMIT" {
                commits += 1;
                let before = table.take();
                save(self, before, std::mem::take(&mut chains), true, is_cut_off);
            } else if is_cut(text) {
                is_cut_off = true;
                if let Some(chain) = chains.last_mut() {
                    cut(chain);
                }
            } else if let Some(chain) = declared(text) {
                if !chains.iter().any(|of| of.name == chain.name) {
                    chains.push(chain);
                }
            } else if let Some((counters, name, rule)) = saved_rule(text) {
                if rule.contains("[unsupported revision]") || rule.contains("--to-destination :0 ")
                {
                    self.lost.insert(
                        "some rules were listed with an iptables that cannot read them".to_owned(),
                    );
                }
                let at = chains
                    .iter()
                    .position(|chain| chain.name == name)
                    .unwrap_or_else(|| {
                        chains.push(Chain {
                            name: name.to_owned(),
                            is_whole: true,
                            ..Chain::default()
                        });
                        chains.len() - 1
                    });
                chains[at].rules.push(format!("{counters}-A {name}{rule}"));
            }
        }
        if !chains.is_empty() || table.is_some() {
            // `-S` has no end; a save without COMMIT is cut.
            let is_open = table.is_some();
            let before = table.take();
            save(
                self,
                before,
                std::mem::take(&mut chains),
                !is_open,
                is_cut_off,
            );
        }
        let of_all =
            is_save && command.is_some_and(|command| command.table.is_none()) || has_header;
        let one = command.is_some_and(|command| command.table.is_some());
        if of_all && !one && fragment.is_none() && !is_cut_off && tables == commits && tables > 0 {
            self.all_tables = true;
        }
    }

    fn save(
        &mut self,
        table: Option<String>,
        mut chains: Vec<Chain>,
        command: Option<&Iptables>,
        fragment: Option<&str>,
        ends: bool,
    ) {
        let named = table.is_some();
        let Some(table) = table.or_else(|| table_of(command, &chains)) else {
            self.lost
                .insert("rules whose table is not shown are not used".to_owned());
            return;
        };
        if let Some(why) = fragment {
            chains.iter_mut().for_each(hollow);
            self.lost.insert(why.to_owned());
        } else if !ends && let Some(last) = chains.last_mut() {
            cut(last);
            self.lost.insert(format!("table {table} is cut"));
        }
        let one = command.is_some_and(|command| command.chain.is_some());
        let is_whole = ends && !one && (named || is_complete(&table, &chains));
        self.add(&table, chains, is_whole);
    }

    /// Adds chains of `table`. What is shown later wins, but for lists of Services, of which both are kept.
    fn add(&mut self, table: &str, chains: Vec<Chain>, is_whole: bool) {
        let of = self.tables.entry(table.to_owned()).or_default();
        of.is_whole |= is_whole;
        for mut chain in chains {
            let Some(at) = of.chains.iter().position(|old| old.name == chain.name) else {
                of.chains.push(chain);
                continue;
            };
            let old = &of.chains[at];
            if old.is_whole && !chain.is_whole || old.rules == chain.rules {
                continue;
            }
            let lists = ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES"];
            if chain.is_whole && lists.contains(&chain.name.as_str()) {
                let kept: Vec<String> = earlier(&old.rules, &chain.rules);
                if !kept.is_empty() {
                    let lines = kept.len();
                    self.lost.insert(format!(
                        "chain {} is shown twice: {lines} of the earlier rules that are not in the later listing are kept",
                        chain.name
                    ));
                    let is_last =
                        |rule: &String| !rule.contains(" -d ") && !rule.contains("--dport");
                    let at = chain
                        .rules
                        .iter()
                        .position(is_last)
                        .unwrap_or(chain.rules.len());
                    chain.rules.splice(at..at, kept);
                }
            } else if old.is_whole && chain.is_whole {
                self.lost.insert(format!(
                    "chain {} is shown twice: the later listing counts",
                    chain.name
                ));
            }
            of.chains[at] = chain;
        }
    }

    /// Adds the chains that are not shown and whose names prove what is in them: those of endpoints, of `endpoints`, and the
    /// one that marks packets to masquerade.
    pub(super) fn infer(&mut self, endpoints: &BTreeSet<SocketAddr>) {
        let Some(nat) = self.tables.get_mut("nat") else {
            return;
        };
        let is_shown = |nat: &Table, name: &str| nat.chains.iter().any(|chain| chain.name == name);
        let mut new = Vec::new();
        let mut wanted: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for rule in nat.chains.iter().flat_map(|chain| &chain.rules) {
            let Some(to) = jump(rule) else {
                continue;
            };
            if to.starts_with(names::SEP) && !is_shown(nat, to) {
                wanted
                    .entry(to.to_owned())
                    .or_default()
                    .extend(comment(rule));
            }
        }
        let has_masq = nat
            .chains
            .iter()
            .flat_map(|chain| &chain.rules)
            .any(|rule| jump(rule) == Some("KUBE-MARK-MASQ"));
        let mark = nat
            .chains
            .iter()
            .filter(|chain| chain.name == "KUBE-POSTROUTING")
            .flat_map(|chain| &chain.rules);
        let mark = mark
            .filter(|rule| rule.contains("-m mark ! --mark "))
            .find_map(|rule| rule.split("--mark ").nth(1)?.split_whitespace().next());
        let mark = mark.map(|mark| mark.split('/').next().unwrap_or(mark).to_owned());
        for (chain, comments) in wanted {
            let hash = &chain[names::SEP.len()..];
            let found = comments.iter().find_map(|text| {
                let (spn, shown) = text.split_once(" -> ").unwrap_or((text, ""));
                let shown = shown.parse().ok();
                let all = shown.iter().chain(endpoints);
                let mut fits = all.flat_map(|at: &SocketAddr| {
                    [Proto::Tcp, Proto::Udp, Proto::Sctp].map(|proto| (*at, proto))
                });
                fits.find(|(at, proto)| names::endpoint_hash(spn, *proto, *at) == hash)
                    .map(|(at, proto)| (spn.to_owned(), at, proto))
            });
            let Some((spn, at, proto)) = found else {
                continue;
            };
            let comment = extras::quoted(&spn);
            let host = if at.is_ipv4() { 32 } else { 128 };
            new.push(Chain {
                rules: vec![
                    format!("-A {chain} -s {}/{host} -m comment --comment {comment} -j KUBE-MARK-MASQ", at.ip()),
                    format!(
                        "-A {chain} -p {proto} -m comment --comment {comment} -m {proto} -j DNAT --to-destination {at}"
                    ),
                ],
                name: chain,
                is_whole: true,
                ..Chain::default()
            });
        }
        let (endpoints, masq) = (new.len(), !is_shown(nat, "KUBE-MARK-MASQ") && has_masq);
        if let Some(mark) = mark.filter(|_| masq) {
            new.push(Chain {
                name: "KUBE-MARK-MASQ".to_owned(),
                rules: vec![format!(
                    "-A KUBE-MARK-MASQ -j MARK --set-xmark {mark}/{mark}"
                )],
                is_whole: true,
                ..Chain::default()
            });
            self.lost.insert(
                "chain KUBE-MARK-MASQ is not shown: it is taken to set the mark that KUBE-POSTROUTING asks for".to_owned(),
            );
        }
        if endpoints > 0 {
            self.lost.insert(format!(
                "{endpoints} chains of endpoints are not shown: each is the one whose Service and endpoint give its name"
            ));
        }
        nat.chains.extend(new);
    }

    /// Returns the addresses and ports of DNAT rules.
    pub(super) fn targets(&self) -> impl Iterator<Item = SocketAddr> {
        let all = self
            .tables
            .values()
            .flat_map(|table| &table.chains)
            .flat_map(|chain| &chain.rules);
        all.filter_map(|rule| {
            rule.split("--to-destination ")
                .nth(1)?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        })
    }

    /// Returns the tables that are shown.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.tables.keys().map(String::as_str)
    }

    /// Returns the rules as `iptables-save` writes them, and what is missing.
    pub(super) fn text(&self) -> (String, Option<String>) {
        let mut text = String::new();
        let mut missing: Vec<String> = self.lost.iter().cloned().collect();
        let mut whole = Vec::new();
        for (name, table) in &self.tables {
            let listed: BTreeSet<&str> = table
                .chains
                .iter()
                .map(|chain| chain.name.as_str())
                .collect();
            let jumps = table
                .chains
                .iter()
                .flat_map(|chain| &chain.rules)
                .filter_map(|rule| jump(rule));
            let unlisted: BTreeSet<&str> = jumps
                .filter(|to| !is_target(to) && !listed.contains(to))
                .collect();
            let are_whole = table.chains.iter().all(|chain| chain.is_whole);
            if table.is_whole && are_whole && unlisted.is_empty() {
                whole.push(name.as_str());
            } else {
                missing.push(match unlisted.len() {
                    0 => format!("table {name} is not shown completely"),
                    1 => format!("table {name} is not shown completely: 1 chain that rules jump to is missing"),
                    more => format!("table {name} is not shown completely: {more} chains that rules jump to are missing"),
                });
            }
        }
        let usual = ["nat", "filter", "mangle", "raw"];
        let absent: Vec<&str> = usual
            .into_iter()
            .filter(|name| !self.tables.contains_key(*name))
            .collect();
        let is_part = whole.len() < self.tables.len() || !self.all_tables;
        if !self.all_tables && !absent.is_empty() {
            let noun = if absent.len() == 1 { "table" } else { "tables" };
            let verb = if absent.len() == 1 { "is" } else { "are" };
            missing.insert(
                0,
                format!("{noun} {} {verb} not shown", crate::words::listed(&absent)),
            );
        }
        if is_part {
            let all = if self.all_tables {
                let rest = usual
                    .iter()
                    .chain(&["security"])
                    .filter(|name| !self.tables.contains_key(**name));
                whole.iter().chain(rest).copied().collect()
            } else {
                whole
            };
            let _ = writeln!(text, "{IN_PART} {}", all.join(" "));
        }
        for (name, table) in &self.tables {
            let _ = writeln!(text, "*{name}");
            for chain in &table.chains {
                let policy = chain.policy.as_deref().unwrap_or("-");
                let (packets, bytes) = chain.counters.unwrap_or_default();
                let _ = writeln!(text, ":{} {policy} [{packets}:{bytes}]", chain.name);
            }
            for rule in table.chains.iter().flat_map(|chain| &chain.rules) {
                let _ = writeln!(text, "{rule}");
            }
            text.push_str("COMMIT\n");
        }
        let missing = (is_part || !self.lost.is_empty()).then(|| missing.join("; "));
        (text, missing)
    }
}

fn push(groups: &mut Vec<Vec<Chain>>, chain: Chain) {
    let is_again = groups
        .last()
        .is_some_and(|group| group.iter().any(|of| of.name == chain.name));
    if is_again {
        groups.push(Vec::new());
    }
    if let Some(group) = groups.last_mut() {
        group.push(chain);
    }
}

/// Marks the place in a chain where rules are missing.
fn cut(chain: &mut Chain) {
    chain.is_whole = false;
    chain
        .rules
        .push(format!("-A {} -j {NOT_SHOWN}", chain.name));
}

/// Marks that rules are missing anywhere in a chain.
fn hollow(chain: &mut Chain) {
    chain.is_whole = false;
    chain
        .rules
        .insert(0, format!("-A {} -j {NOT_SHOWN}", chain.name));
}

/// Returns those of the `old` rules whose destinations the `new` ones do not have.
fn earlier(old: &[String], new: &[String]) -> Vec<String> {
    let key = |rule: &String| -> Option<String> {
        let words: Vec<&str> = rule.split_whitespace().collect();
        let of = |option: &str| {
            let at = words.iter().position(|word| *word == option)?;
            words.get(at + 1).copied()
        };
        let (to, port) = (of("-d"), of("--dport"));
        (to.is_some() || port.is_some()).then(|| format!("{to:?} {port:?} {:?}", of("-p")))
    };
    let known: BTreeSet<String> = new.iter().filter_map(key).collect();
    let is_new = |rule: &&String| key(rule).is_some_and(|key| !known.contains(&key));
    old.iter().filter(is_new).cloned().collect()
}

fn jump(rule: &str) -> Option<&str> {
    let (_, to) = rule
        .rsplit_once(" -j ")
        .or_else(|| rule.rsplit_once(" -g "))?;
    to.split_whitespace().next()
}

fn comment(rule: &str) -> Option<String> {
    let (_, text) = rule.split_once("--comment ")?;
    match text.strip_prefix('"') {
        Some(text) => text.split('"').next().map(str::to_owned),
        None => text.split_whitespace().next().map(str::to_owned),
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric())
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
pub(super) fn is_chain_line(line: &str) -> bool {
    chain_line(line.trim()).is_some()
}

/// Returns whether `line` begins a chain or a row of a listing, complete or not.
pub(super) fn starts_row(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let counted = words
        .windows(2)
        .take(2)
        .any(|pair| pair.iter().all(|word| count(word).is_some()));
    is_chain_line(line) || header(line.trim()).is_some() || counted && words.contains(&"--")
}

/// Returns whether `line` fits into a listing.
pub(super) fn is_of_listing(line: &str) -> bool {
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

/// Returns whether `line` is none of a listing's own: footers and warnings.
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
fn address(word: &str) -> Result<Option<(bool, String)>, String> {
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
            .filter(|of| *of >= at)
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

/// Reads `:NAME POLICY [0:0]`, `-P NAME POLICY` or `-N NAME`.
fn declared(line: &str) -> Option<Chain> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (name, policy, counters) = match words.as_slice() {
        [first, policy, rest @ ..] if first.len() > 1 && first.starts_with(':') => {
            let counters = rest.first().and_then(|text| {
                let (packets, bytes) =
                    text.strip_prefix('[')?.strip_suffix(']')?.split_once(':')?;
                Some((packets.parse().ok()?, bytes.parse().ok()?))
            });
            (
                &first[1..],
                Some(*policy).filter(|policy| *policy != "-"),
                counters,
            )
        }
        ["-P", name, policy, rest @ ..] => {
            let counters = match rest {
                ["-c", packets, bytes] => Some((packets.parse().ok()?, bytes.parse().ok()?)),
                _ => None,
            };
            (*name, Some(*policy), counters)
        }
        ["-N", name] => (*name, None, None),
        _ => return None,
    };
    if name.contains('"') || policy.is_some_and(|policy| !["ACCEPT", "DROP"].contains(&policy)) {
        return None;
    }
    Some(Chain {
        name: name.to_owned(),
        policy: policy.map(str::to_owned),
        counters,
        is_whole: true,
        ..Chain::default()
    })
}

/// Reads `[5:300] -A CHAIN RULE`; returns the counters as they are written before a rule, the chain, and the rule.
fn saved_rule(line: &str) -> Option<(String, &str, &str)> {
    let (counters, rest) = match line.strip_prefix('[') {
        Some(inside) => {
            let (numbers, rest) = inside.split_once(']')?;
            let (packets, bytes) = numbers.split_once(':')?;
            let _: (u64, u64) = (packets.parse().ok()?, bytes.parse().ok()?);
            (format!("[{numbers}] "), rest.trim_start())
        }
        None => (String::new(), line),
    };
    let rest = rest.strip_prefix("-A ")?.trim_start();
    let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
    let (name, rule) = rest.split_at(end);
    // What kpx's own reader refuses is no rule.
    let is_rule = !name.is_empty()
        && !name.starts_with('-')
        && !name.contains('"')
        && crate::backend::iptables::parse::rule(rule).is_ok();
    is_rule.then_some((counters, name, rule))
}

/// Returns whether `line` is of `iptables-save` or `iptables -S`.
pub(super) fn is_of_save(line: &str) -> bool {
    let line = line.trim();
    declared(line).is_some()
        || saved_rule(line).is_some()
        || line == "COMMIT"
        || line
            .strip_prefix('*')
            .is_some_and(|name| BUILT_IN.iter().any(|(table, _)| *table == name))
        || [
            "# Generated by",
            "# Completed on",
            "# Warning: iptables-legacy",
        ]
        .iter()
        .any(|start| line.starts_with(start))
}

/// Returns the table of `chains`: the command's, or the one that they show.
fn table_of(command: Option<&Iptables>, chains: &[Chain]) -> Option<String> {
    if let Some(command) = command {
        let table = command.table.as_deref();
        return Some(table.unwrap_or("filter").to_owned());
    }
    let has = |name: &str| chains.iter().any(|chain| chain.name == name);
    let rules = || chains.iter().flat_map(|chain| &chain.rules);
    let goes = |to: &[&str]| {
        rules()
            .filter_map(|rule| jump(rule))
            .any(|target| to.iter().any(|of| target.starts_with(of)))
    };
    let begins = |starts: &[&str]| {
        chains
            .iter()
            .any(|chain| starts.iter().any(|of| chain.name.starts_with(of)))
    };
    let nat = goes(&[
        "DNAT",
        "SNAT",
        "MASQUERADE",
        "REDIRECT",
        "KUBE-SVC-",
        "KUBE-SEP-",
        "KUBE-EXT-",
        "KUBE-FW-",
        "KUBE-MARK-MASQ",
        "KUBE-NODEPORTS",
    ]) || begins(&[
        "KUBE-SVC-",
        "KUBE-SEP-",
        "KUBE-EXT-",
        "KUBE-FW-",
        "KUBE-XLB-",
        "KUBE-SVL-",
        "KUBE-POSTROUTING",
        "KUBE-MARK-MASQ",
        "KUBE-NODE-PORT",
    ]);
    let nat = nat
        || rules().any(|rule| {
            [
                "--match-set KUBE-CLUSTER-IP ",
                "--match-set KUBE-LOOP-BACK ",
            ]
            .iter()
            .any(|set| rule.contains(set))
        });
    let filter = begins(&[
        "KUBE-FORWARD",
        "KUBE-EXTERNAL-SERVICES",
        "KUBE-PROXY-FIREWALL",
    ]) || goes(&["REJECT", "DROP"]);
    let table = match () {
        () if has("PREROUTING") && has("FORWARD") && has("POSTROUTING") => "mangle",
        () if nat && !has("FORWARD") => "nat",
        () if has("PREROUTING") && has("POSTROUTING") => "nat",
        () if has("FORWARD") || filter => "filter",
        () if has("PREROUTING") && has("OUTPUT") => "raw",
        () => return None,
    };
    Some(table.to_owned())
}

/// Returns whether `chains` are all of `table`.
fn is_complete(table: &str, chains: &[Chain]) -> bool {
    let has = |name: &str| chains.iter().any(|chain| chain.name == name);
    let built_in = BUILT_IN.iter().find(|(name, _)| *name == table);
    let all_built_in = built_in.is_some_and(|(_, names)| names.iter().all(|name| has(name)));
    let jumps = chains
        .iter()
        .flat_map(|chain| &chain.rules)
        .filter_map(|rule| jump(rule));
    all_built_in
        && jumps.into_iter().all(|to| is_target(to) || has(to))
        && chains.iter().all(|chain| chain.is_whole)
}

/// Returns the family of lines of rules, as far as their addresses show it.
pub(super) fn family_of(lines: &[String]) -> Family {
    let is_six = |line: &String| {
        line.split_whitespace()
            .any(|word| word.starts_with("::/") || word.contains("::") && address(word).is_ok())
    };
    if lines.iter().any(is_six) {
        Family::V6
    } else {
        Family::V4
    }
}
