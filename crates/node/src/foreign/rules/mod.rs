//! Rules of iptables, from any listing of them, as `iptables-save` writes them.
//!
//! Source: `print_firewall` and `print_header` in iptables' `iptables.c`, `nft-shared.c`, and the `print` functions of its
//! extensions, 1.4 to 1.8.11.

mod listing;
mod save;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use super::command::Iptables;
use super::extras;
use crate::backend::iptables::model::{IN_PART, NOT_SHOWN};
use crate::backend::iptables::names;
use crate::net::{Family, Proto};

use listing::address;
pub(super) use listing::{is_chain_line, is_of_listing, starts_row};
pub(super) use save::{begins_rule, is_of_save};

/// Rules of one family and back end, as far as they are shown.
#[derive(Clone, Debug, Default)]
pub(in crate::foreign) struct Rules {
    tables: BTreeMap<String, Table>,
    /// Whether the listings are of all tables.
    lists_all: bool,
    /// Whether a listing is cut: the tables after it are unknown.
    is_cut: bool,
    /// The parts that the listings lose.
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

/// The columns that the header of a chain's rows announces.
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

/// Returns whether a line marks a cut: an ellipsis, or the word of a viewer or a writer, `(20 lines omitted)`.
pub(in crate::foreign) fn is_cut(line: &str) -> bool {
    const WORDS: [&str; 7] = [
        "snip",
        "snipped",
        "truncated",
        "narrowed",
        "omitted",
        "skipped",
        "elided",
    ];
    const LINES: [&str; 6] = ["END", "(END)", "and so on", "etc", "etc.", "and more"];
    let text = line.trim();
    let inside = text.trim_matches(|c: char| !c.is_alphanumeric());
    if inside.is_empty() {
        return is_dots(line);
    }
    let words = || inside.split(|c: char| !c.is_alphanumeric());
    let is_short = words().count() < 7 && !text.contains([':', '=']);
    LINES.contains(&text)
        || text.starts_with("--More--")
        || inside.starts_with("output omitted")
        || is_short && text.starts_with("...")
        || is_short && words().any(|word| WORDS.contains(&word.to_ascii_lowercase().as_str()))
}

/// Returns whether a line is an ellipsis.
pub(in crate::foreign) fn is_dots(line: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric();
    !line.contains(is_word) && (line.contains('\u{2026}') || line.matches('.').count() > 2)
}

impl Rules {
    /// Returns whether nothing is shown.
    pub(in crate::foreign) fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.lost.is_empty()
    }

    /// Returns why nothing of the rules is used, if so.
    pub(in crate::foreign) fn unused(&self) -> Option<String> {
        let lost: Vec<&str> = self.lost.iter().map(String::as_str).collect();
        self.tables.is_empty().then(|| lost.join("; "))
    }

    /// Returns whether there are chains of kube-proxy.
    pub(in crate::foreign) fn has_kube_proxy(&self) -> bool {
        let mut all = self.tables.values().flat_map(|table| &table.chains);
        all.any(|chain| chain.name.starts_with("KUBE-S") && !chain.rules.is_empty())
    }

    /// Adds chains of `table`. Later listings win, except for lists of Services, which are merged.
    fn add(&mut self, table: &str, chains: Vec<Chain>, is_whole: bool) {
        let of = self.tables.entry(table.to_owned()).or_default();
        if of.is_whole && is_whole {
            of.chains.clear();
            self.lost.insert(format!(
                "table {table} is shown twice: the later listing counts"
            ));
        }
        of.is_whole |= is_whole;
        for mut chain in chains {
            // The last endpoint of a Service has no probability.
            let last = chain.rules.last();
            let is_short = last.is_some_and(|rule| rule.contains("--probability"));
            if !is_whole && is_short && chain.is_whole && chain.name.starts_with("KUBE-SV") {
                cut(&mut chain);
            }
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

    /// Adds the chains that are not shown and whose names prove their rules: the chains of `endpoints`, and the one that
    /// marks packets to masquerade.
    pub(in crate::foreign) fn infer(&mut self, endpoints: &BTreeSet<SocketAddr>) {
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
    pub(in crate::foreign) fn targets(&self) -> impl Iterator<Item = SocketAddr> {
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

    /// Returns the addresses of Services with the namespaces and names that comments give them.
    pub(in crate::foreign) fn named(&self) -> impl Iterator<Item = (IpAddr, String, String)> {
        let tables = self.tables.values();
        let chains = tables.flat_map(|table| &table.chains);
        let rules = chains.flat_map(|chain| &chain.rules);
        rules.filter_map(|rule| {
            let text = comment(rule)?;
            let (port, _) = text.split_once(' ')?;
            let (namespace, name) = port.split_once('/')?;
            let name = name.split(':').next().unwrap_or(name);
            let mut words = rule.split_whitespace().skip_while(|word| *word != "-d");
            let addr = words.nth(1)?.split('/').next()?.parse().ok()?;
            Some((addr, namespace.to_owned(), name.to_owned()))
        })
    }

    /// Returns whether a table that is not shown does not exist.
    fn are_all(&self) -> bool {
        // kube-proxy has rules in both.
        let is_short = self.has_kube_proxy() && !self.tables.contains_key("filter");
        self.lists_all && !self.is_cut && !is_short
    }

    /// Returns the tables that are shown.
    pub(in crate::foreign) fn names(&self) -> impl Iterator<Item = &str> {
        self.tables.keys().map(String::as_str)
    }

    /// Returns the rules as `iptables-save` writes them, and what is missing.
    pub(in crate::foreign) fn text(&self) -> (String, Option<String>) {
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
        let all_tables = self.are_all();
        let is_part = whole.len() < self.tables.len() || !all_tables;
        if !all_tables && !absent.is_empty() {
            let noun = if absent.len() == 1 { "table" } else { "tables" };
            let verb = if absent.len() == 1 { "is" } else { "are" };
            missing.insert(
                0,
                format!("{noun} {} {verb} not shown", crate::words::listed(&absent)),
            );
        }
        if is_part {
            let all = if all_tables {
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
        .is_some_and(|group| group.iter().any(|known| known.name == chain.name));
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

/// Returns the `old` rules whose destinations the `new` ones do not have.
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

/// Returns the table of `chains`: the command's, or the one that they show.
fn table_of(command: Option<&Iptables>, chains: &[Chain]) -> Option<String> {
    // Without the titles of its tables, a save is of any.
    if let Some(command) = command.filter(|command| !command.saves || command.table.is_some()) {
        let table = command.table.as_deref();
        return Some(table.unwrap_or("filter").to_owned());
    }
    let has = |name: &str| chains.iter().any(|chain| chain.name == name);
    let rules = || chains.iter().flat_map(|chain| &chain.rules);
    let goes = |to: &[&str]| {
        rules()
            .filter_map(|rule| jump(rule))
            .any(|target| to.iter().any(|prefix| target.starts_with(prefix)))
    };
    let begins = |starts: &[&str]| {
        chains
            .iter()
            .any(|chain| starts.iter().any(|start| chain.name.starts_with(start)))
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
    all_built_in && !lacks_chains(chains) && chains.iter().all(|chain| chain.is_whole)
}

/// Returns whether rules of `chains` jump to others.
fn lacks_chains(chains: &[Chain]) -> bool {
    let has = |name: &str| chains.iter().any(|chain| chain.name == name);
    let rules = chains.iter().flat_map(|chain| &chain.rules);
    let mut jumps = rules.filter_map(|rule| jump(rule));
    jumps.any(|to| !is_target(to) && !has(to))
}

/// Returns the family of lines of rules, as far as their addresses show it.
pub(in crate::foreign) fn family_of(lines: &[String]) -> Family {
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
