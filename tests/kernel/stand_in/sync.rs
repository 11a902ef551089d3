//! Writes what a mode needs by the standard tools, in kube-proxy's order. Writing it again changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use kpx_node::backend::Mode;
use kpx_node::backend::program::{self, Part};
use kpx_node::desired::DesiredState;
use kpx_node::net::Family;

use super::cleanup::HASHED;
use crate::kernel::netns;

/// Runs a command that must succeed, split at spaces; returns what it printed.
pub(super) fn run(line: &str) -> String {
    feed(line, "")
}

fn feed(line: &str, input: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    netns::run(&words, input)
}

/// Runs a command that may fail; returns whether it succeeded.
pub(super) fn try_run(line: &str) -> bool {
    try_feed(line, "")
}

#[expect(
    clippy::disallowed_methods,
    reason = "the real tools are what kube-proxy uses"
)]
pub(super) fn try_feed(line: &str, input: &str) -> bool {
    let mut words = line.split(' ');
    let child = Command::new(words.next().unwrap())
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else {
        return false;
    };
    let mut stdin = child.stdin.take().unwrap();
    // A tool that refuses may not read to the end.
    stdin.write_all(input.as_bytes()).ok();
    drop(stdin);
    child.wait().unwrap().success()
}

/// Settings that a mode writes when it starts.
pub(super) fn settings(desired: &DesiredState) {
    for (key, value) in program::sysctls(desired) {
        let file = Path::new("/proc/sys").join(key.replace('.', "/"));
        if fs::read_to_string(&file).unwrap().trim() != value {
            fs::write(&file, &value).unwrap();
        }
    }
}

/// Brings the node to what `desired` says of `family`; `first` is the first time of this process.
pub(super) fn family(desired: &DesiredState, family: Family, first: bool) {
    let text = |part| program::text(desired, part, &[family], &[]).unwrap();
    match desired.mode {
        Mode::Iptables => {
            let rules = text(Part::Iptables(family));
            if first {
                for object in [
                    "ct_state_invalid_dropped_pkts",
                    "localhost_nps_accepted_pkts",
                ] {
                    try_run(&format!("nfacct add {object}"));
                }
                ensure_jumps(family, &rules);
            }
            restore(family, &rules, &stale(family, &rules));
        }
        Mode::Ipvs => ipvs(family, &text),
        Mode::Nftables => {
            feed("nft -f -", &text(Part::Nftables));
        }
        Mode::Userspace => panic!("the stand-in has no process that serves"),
    }
}

fn iptables(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

/// Makes the chains that are not there, and inserts the jumps that are not there.
fn ensure_jumps(family: Family, rules: &str) {
    let command = iptables(family);
    let saved = run(&format!("{command}-save"));
    let mut text = String::new();
    for table in Table::all(rules) {
        let there = Table::all(&saved)
            .into_iter()
            .find(|t| t.name == table.name);
        let there = there.unwrap_or_default();
        // Sets of Services are made with their rules.
        let chains = table.chains.iter().filter(|chain| {
            !there.chains.contains(chain) && !HASHED.iter().any(|start| chain.starts_with(start))
        });
        let chains = chains.map(|chain| format!(":{chain} - [0:0]\n"));
        let jumps = table.inserted.iter();
        let jumps = jumps.filter(|jump| !there.rules.contains(*jump));
        let jumps = jumps.map(|jump| format!("-I {jump}\n"));
        let lines: String = chains.chain(jumps).collect();
        if !lines.is_empty() {
            write!(text, "*{}\n{lines}COMMIT\n", table.name).unwrap();
        }
    }
    if !text.is_empty() {
        feed(&format!("{command}-restore -w 5 --noflush"), &text);
    }
}

/// A table of what `iptables-save` prints, and `iptables-restore` reads.
#[derive(Default)]
pub(super) struct Table<'a> {
    pub(super) name: &'a str,
    pub(super) chains: Vec<&'a str>,
    /// Chain and rule of each `-A`.
    pub(super) rules: BTreeSet<&'a str>,
    /// The same of each `-I`, in their order.
    inserted: Vec<&'a str>,
}

impl<'a> Table<'a> {
    pub(super) fn all(text: &'a str) -> Vec<Self> {
        let mut tables: Vec<Self> = Vec::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                tables.push(Self {
                    name,
                    ..Self::default()
                });
            } else if let Some(table) = tables.last_mut() {
                if let Some(chain) = line.strip_prefix(':') {
                    table.chains.push(chain.split(' ').next().unwrap());
                } else if let Some(rule) = line.strip_prefix("-A ") {
                    table.rules.insert(rule);
                } else if let Some(rule) = line.strip_prefix("-I ") {
                    table.inserted.push(rule);
                }
            }
        }
        tables
    }
}

/// The chains of Services and endpoints that `rules` have no more.
fn stale(family: Family, rules: &str) -> Vec<String> {
    let saved = run(&format!("{}-save -t nat", iptables(family)));
    let chains = |text| Table::all(text).into_iter().flat_map(|table| table.chains);
    let wanted: BTreeSet<&str> = chains(rules).collect();
    let stale = chains(&saved).filter(|chain| {
        HASHED.iter().any(|start| chain.starts_with(start)) && !wanted.contains(chain)
    });
    stale.map(str::to_owned).collect()
}

/// Writes the own chains anew, and deletes those that are `stale`.
fn restore(family: Family, rules: &str, stale: &[String]) {
    let (mut text, mut nat) = (String::new(), false);
    for line in rules.lines().filter(|line| !line.starts_with("-I ")) {
        if line == "COMMIT" && nat {
            text.extend(stale.iter().map(|chain| format!("-X {chain}\n")));
        }
        writeln!(text, "{line}").unwrap();
        if line.starts_with('*') {
            nat = line == "*nat";
            let flushed = stale.iter().filter(|_| nat);
            text.extend(flushed.map(|chain| format!(":{chain} - [0:0]\n")));
        }
    }
    let command = format!("{}-restore -w 5 --noflush --counters", iptables(family));
    feed(&command, &text);
}

/// Chains and jumps, kube-ipvs0, empty sets, virtual servers and their addresses and real servers, members of sets, rules;
/// then what is too much: addresses, and virtual servers.
fn ipvs(family: Family, text: &dyn Fn(Part) -> String) {
    let rules = text(Part::Iptables(family));
    ensure_jumps(family, &rules);
    try_run("ip link add kube-ipvs0 type dummy");
    let sets = text(Part::Ipset);
    let (sets, members): (Vec<&str>, Vec<&str>) =
        sets.lines().partition(|line| line.starts_with("create "));
    feed("ipset restore", &(sets.join("\n") + "\n"));

    let (wanted, have) = (text(Part::Ipvs), run("ipvsadm -Sn"));
    let (wanted, have) = (servers(wanted.lines()), servers(of(family, &have)));
    feed("ipvsadm --restore", &made(&wanted, &have, "-A", "-E"));
    let addresses = text(Part::Addresses);
    let addresses = addresses
        .lines()
        .filter_map(|line| line.strip_prefix("addr add "));
    let addresses: BTreeSet<&str> = addresses
        .filter_map(|rest| rest.split('/').next())
        .collect();
    let bound = bound(family);
    let missing = addresses
        .iter()
        .filter(|addr| !bound.iter().any(|bound| bound == **addr));
    let batch = |verb: &str, addr: &str| format!("addr {verb} {addr} dev kube-ipvs0\n");
    let missing: String = missing.map(|addr| batch("add", addr)).collect();
    feed("ip -batch -", &missing);
    feed("ipvsadm --restore", &made(&wanted, &have, "-a", "-e"));
    feed("ipvsadm --restore", &drained(&wanted, &have));

    sync_members(family, &sets, &members);
    // Leftovers of the iptables mode stay.
    restore(family, &rules, &[]);
    let superfluous = bound
        .iter()
        .filter(|addr| !addresses.contains(addr.as_str()));
    let superfluous: String = superfluous.map(|addr| batch("del", addr)).collect();
    feed("ip -batch -", &superfluous);
    let gone = have
        .keys()
        .filter(|key| key.starts_with("-A ") && !wanted.contains_key(*key));
    let gone: String = gone.map(|key| key.replacen("-A", "-D", 1) + "\n").collect();
    feed("ipvsadm --restore", &gone);
}

/// Virtual servers (`-A -t ADDRESS`) and real servers (`-a -t ADDRESS -r ADDRESS`) with their options.
type Servers = BTreeMap<String, String>;

fn servers<'a>(lines: impl Iterator<Item = &'a str>) -> Servers {
    let pairs = lines.map(|line| {
        let words = if line.starts_with("-A") { 3 } else { 5 };
        let all: Vec<&str> = line.split_whitespace().collect();
        let (key, options) = all.split_at(words);
        (key.join(" "), options.join(" "))
    });
    pairs.collect()
}

/// The lines of `ipvsadm -Sn` that are of `family`.
fn of(family: Family, saved: &str) -> impl Iterator<Item = &str> {
    let lines = saved.lines();
    lines.filter(move |line| line.contains('[') == (family == Family::V6))
}

/// Commands that make those of `wanted` that begin with `add`, or change them by `edit`.
fn made(wanted: &Servers, have: &Servers, add: &str, edit: &str) -> String {
    let of = wanted.iter().filter(|(key, _)| key.starts_with(add));
    let lines = of.filter_map(|(key, options)| match have.get(key) {
        None => Some(format!("{key} {options}\n")),
        Some(same) if same == options => None,
        Some(_) => Some(format!("{} {options}\n", key.replacen(add, edit, 1))),
    });
    lines.collect()
}

/// Commands for real servers that are wanted no more: those of TCP keep their connections.
fn drained(wanted: &Servers, have: &Servers) -> String {
    let gone = have.iter().filter(|(key, _)| {
        let server = key.split(" -r ").next().unwrap().replacen("-a", "-A", 1);
        key.starts_with("-a") && !wanted.contains_key(*key) && wanted.contains_key(&server)
    });
    let lines = gone.filter_map(|(key, options)| {
        if !key.starts_with("-a -t ") {
            return Some(key.replacen("-a", "-d", 1) + "\n");
        }
        let keeps = !options.ends_with("-w 0");
        keeps.then(|| format!("{} -m -w 0\n", key.replacen("-a", "-e", 1)))
    });
    lines.collect()
}

/// The addresses of kube-ipvs0.
fn bound(family: Family) -> Vec<String> {
    let flag = match family {
        Family::V4 => "-4",
        Family::V6 => "-6",
    };
    let text = run(&format!("ip {flag} -j addr show dev kube-ipvs0"));
    let links: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let all = links
        .iter()
        .flat_map(|link| link["addr_info"].as_array().into_iter().flatten());
    all.map(|addr| addr["local"].as_str().unwrap().to_owned())
        .collect()
}

/// Makes the members of `sets`, which are given as `create` lines, those of the `add` lines.
fn sync_members(family: Family, sets: &[&str], members: &[&str]) {
    let ours: BTreeSet<&str> = sets.iter().filter_map(|l| l.split(' ').nth(1)).collect();
    let pair = |line: &str| {
        let mut words = line.strip_prefix("add ")?.split(' ');
        Some((words.next()?.to_owned(), words.next()?.to_owned()))
    };
    // The kernel shows the network of one address without its length.
    let whole = match family {
        Family::V4 => "/32",
        Family::V6 => "/128",
    };
    let plain = |(set, member): (String, String)| {
        let member = member.strip_suffix(whole).unwrap_or(&member).to_owned();
        (set, member)
    };
    let saved = run("ipset save");
    let have: BTreeSet<_> = saved.lines().filter_map(pair).map(plain).collect();
    let wanted: BTreeSet<_> = members.iter().filter_map(|l| pair(l)).map(plain).collect();
    let mut text = String::new();
    for (set, member) in have.difference(&wanted) {
        if ours.contains(set.as_str()) {
            writeln!(text, "del {set} {member} -exist").unwrap();
        }
    }
    for (set, member) in wanted.difference(&have) {
        writeln!(text, "add {set} {member} -exist").unwrap();
    }
    feed("ipset restore", &text);
}
