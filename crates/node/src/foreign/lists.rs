//! Sockets, modules, settings, tracked connections and rules of nftables, as kpx reads them live.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::command::Command;
use super::rules::is_cut;

/// Returns whether `line` is the title or a row of `ss` or `netstat`.
pub(super) fn is_socket(line: &str) -> bool {
    let line = line.trim();
    line.starts_with("Netid ")
        || line.starts_with("State ") && line.contains("Recv-Q")
        || line.starts_with("Active Internet connections")
        || line.starts_with("Proto Recv-Q")
        || socket(line, None).is_some()
        || is_other_socket(line)
}

/// Returns whether `line` is of a socket that does not listen.
fn is_other_socket(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_kind = |word: &str| {
        [
            "tcp", "tcp6", "udp", "udp6", "raw", "raw6", "u_str", "u_dgr", "nl", "p_raw", "p_dgr",
            "icmp6",
        ]
        .contains(&word)
    };
    words.len() >= 5
        && is_kind(words[0])
        && words[1..4]
            .iter()
            .filter(|word| word.parse::<u64>().is_ok())
            .count()
            >= 2
}

/// Reads a row of `ss` or `netstat` as one of `ss -lntuSHp`; `given` is the protocol of rows that do not name it. `Some(None)` would
/// be one that does not listen.
fn socket(line: &str, given: Option<&str>) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_state = |word: &str| ["LISTEN", "UNCONN"].contains(&word);
    let number = |word: &&str| word.parse::<u64>().is_ok();
    let address = |word: &str| {
        let (host, port) = word.rsplit_once(':')?;
        (port == "*" || port.parse::<u16>().is_ok()).then_some((host.to_owned(), port.to_owned()))
    };
    match words.as_slice() {
        // ss, with and without the protocol.
        [
            proto @ ("tcp" | "udp" | "sctp"),
            state,
            recv,
            send,
            local,
            peer,
            rest @ ..,
        ] if is_state(state) && number(recv) && number(send) => {
            address(local)?;
            Some(
                format!(
                    "{proto} {state} {recv} {send} {local} {peer} {}",
                    users(rest)
                )
                .trim_end()
                .to_owned(),
            )
        }
        [state, recv, send, local, peer, rest @ ..]
            if is_state(state) && number(recv) && number(send) =>
        {
            address(local)?;
            let proto = given.unwrap_or(if *state == "LISTEN" { "tcp" } else { "udp" });
            Some(
                format!(
                    "{proto} {state} {recv} {send} {local} {peer} {}",
                    users(rest)
                )
                .trim_end()
                .to_owned(),
            )
        }
        // netstat.
        [
            proto @ ("tcp" | "tcp6" | "udp" | "udp6"),
            recv,
            send,
            local,
            peer,
            rest @ ..,
        ] if number(recv) && number(send) => {
            let (host, port) = address(local)?;
            let is_tcp = proto.starts_with("tcp");
            // The word for the state is translated in some languages; a socket with a peer does not listen.
            if !peer.ends_with(":*") || is_tcp && rest.is_empty() {
                return None;
            }
            let host = match host.as_str() {
                // It takes IPv4, too, unless it says otherwise.
                "::" => "*".to_owned(),
                host if host.contains(':') => format!("[{host}]"),
                host => host.to_owned(),
            };
            let (name, state) = if is_tcp {
                ("tcp", "LISTEN")
            } else {
                ("udp", "UNCONN")
            };
            let program = rest.iter().find_map(|word| {
                let (pid, program) = word.split_once('/')?;
                Some((pid.parse::<u32>().ok()?, program))
            });
            let program = program.map_or_else(String::new, |(pid, name)| {
                format!(" users:((\"{}\",pid={pid},fd=0))", name.replace('"', ""))
            });
            Some(format!(
                "{name} {state} {recv} {send} {host}:{port} *:*{program}"
            ))
        }
        _ => None,
    }
}

/// Returns the column of processes.
fn users(rest: &[&str]) -> String {
    rest.iter()
        .find(|word| word.starts_with("users:("))
        .map_or_else(String::new, |word| (*word).to_owned())
}

/// Reads `ss` or `netstat`; returns the listening sockets, and the missing part.
pub(super) fn sockets(lines: &[String], command: Option<&Command>) -> (String, Option<String>) {
    let flag = |letter: char, long: &str| command.is_some_and(|command| command.flag(letter, long));
    let given = match (flag('t', "--tcp"), flag('u', "--udp")) {
        (true, false) => Some("tcp"),
        (false, true) => Some("udp"),
        _ => None,
    };
    let mut text = String::new();
    let (mut kinds, mut cut) = ([false; 2], false);
    for line in lines {
        cut |= is_cut(line);
        if let Some(row) = socket(line, given) {
            kinds[usize::from(row.starts_with("udp"))] = true;
            text.push_str(&row);
            text.push('\n');
        }
    }
    let mut missing = Vec::new();
    if let Some(why) = command.and_then(|command| command.fragment.clone()) {
        missing.push(why);
    }
    if cut {
        missing.push("the list is cut".to_owned());
    }
    let only = match given {
        Some("tcp") => Some("TCP"),
        Some("udp") => Some("UDP"),
        _ if command.is_none() && !(kinds[0] && kinds[1]) => {
            Some(if kinds[0] { "TCP" } else { "UDP" })
        }
        _ => None,
    };
    missing.extend(only.map(|only| format!("only {only} sockets are shown")));
    if command.is_none() {
        missing.push("the command is not shown".to_owned());
    }
    (text, (!missing.is_empty()).then(|| missing.join("; ")))
}

/// Returns whether `line` is the title or a row of `lsmod`.
pub(super) fn is_module(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    words == ["Module", "Size", "Used", "by"] || module(line).is_some()
}

fn module(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_name = |name: &str| {
        name.chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
    };
    match words.as_slice() {
        [name, size, count] if is_name(name) => {
            let (size, count): (u64, u64) = (size.parse().ok()?, count.parse().ok()?);
            (size >= 1024 && !name.chars().all(|c| c.is_ascii_digit()))
                .then(|| format!("{name} {size} {count} -"))
        }
        [name, size, count, users, ..]
            if is_name(name) && name.contains(|c: char| c.is_ascii_alphabetic()) =>
        {
            let (size, count): (u64, i64) = (size.parse().ok()?, count.parse().ok()?);
            (size >= 1024).then(|| format!("{name} {size} {count} {users},"))
        }
        _ => None,
    }
}

/// Reads `lsmod`.
pub(super) fn modules(lines: &[String], command: Option<&Command>) -> (String, Option<String>) {
    let mut text = String::new();
    for row in lines.iter().filter_map(|line| module(line)) {
        text.push_str(&row);
        text.push('\n');
    }
    let titled = lines.iter().any(|line| line.starts_with("Module "))
        && !lines.iter().any(|line| is_cut(line));
    let fragment = command.and_then(|command| command.fragment.clone());
    let missing = fragment.or_else(|| (!titled).then(|| "only some modules are shown".to_owned()));
    (text, missing)
}

/// Returns the name of a setting: dots between its parts, and `/` for the dots of a link.
fn setting(line: &str) -> Option<(String, String)> {
    let (key, value) = line
        .split_once(" = ")
        .or_else(|| line.split_once('='))
        .or_else(|| line.split_once(": "))?;
    let key = key.trim();
    let key = match key.strip_prefix("/proc/sys/") {
        Some(path) => {
            // The dots of a path are those of a link's name.
            path.split('/').collect::<Vec<_>>().join(".")
        }
        None => key.replace('/', "."),
    };
    let starts = [
        "net.", "kernel.", "vm.", "fs.", "user.", "dev.", "debug.", "abi.", "crypto.", "sunrpc.",
    ];
    let is_key =
        starts.iter().any(|start| key.starts_with(start)) && !key.contains(char::is_whitespace);
    is_key.then(|| (key, value.trim().to_owned()))
}

/// Returns whether `line` is of `sysctl`.
pub(super) fn is_setting(line: &str) -> bool {
    setting(line.trim()).is_some() || line.starts_with("sysctl: ")
}

/// Reads `sysctl -a`; a list with few settings is a part.
pub(super) fn settings(lines: &[String], command: Option<&Command>) -> (String, Option<String>) {
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    for line in lines {
        all.extend(setting(line.trim()));
    }
    settings_text(&all, command)
}

/// Reads a JSON map of settings.
pub(super) fn settings_of(
    map: &serde_json::Map<String, Value>,
) -> Option<(String, Option<String>)> {
    let pairs = map
        .iter()
        .map(|(key, value)| Some((key.clone(), value.as_str()?.trim().to_owned())));
    let all: BTreeMap<String, String> = pairs.collect::<Option<_>>()?;
    all.keys()
        .next()?
        .starts_with(|c: char| c.is_ascii_lowercase())
        .then_some(())?;
    let known = all
        .keys()
        .filter(|key| key.starts_with("net.") || key.starts_with("kernel."))
        .count();
    (known * 2 > all.len()).then(|| settings_text(&all, None))
}

fn settings_text(
    all: &BTreeMap<String, String>,
    command: Option<&Command>,
) -> (String, Option<String>) {
    let mut text = String::new();
    for (key, value) in all {
        let _ = writeln!(text, "{key} = {value}");
    }
    let of_all = all.len() > 200;
    let fragment = command.and_then(|command| command.fragment.clone());
    (
        text,
        fragment.or_else(|| (!of_all).then(|| "only some settings are shown".to_owned())),
    )
}

/// Returns whether `line` is an entry of `conntrack -L` or `/proc/net/nf_conntrack`.
pub(super) fn is_tracked(line: &str) -> bool {
    line.contains("src=")
        && line.contains("dst=")
        && crate::node::conntrack::parse(line.trim()).is_ok_and(|all| all.entries.len() == 1)
        || line.starts_with("conntrack v")
}

/// Reads `conntrack -L`.
pub(super) fn tracked(lines: &[String], command: Option<&Command>) -> (String, Option<String>) {
    let mut text = String::new();
    let mut count = 0_usize;
    let mut shown = None;
    let mut cut = false;
    for line in lines {
        let line = line.trim();
        cut |= is_cut(line);
        if line.starts_with("conntrack v") {
            shown = line
                .split("): ")
                .nth(1)
                .and_then(|rest| rest.split_whitespace().next()?.parse::<usize>().ok());
        } else if is_tracked(line) {
            count += 1;
            text.push_str(line);
            text.push('\n');
        }
    }
    let fragment = command.and_then(|command| command.fragment.clone());
    let missing = if cut || shown.is_some_and(|shown| shown != count) {
        Some("the list is cut".to_owned())
    } else if fragment.is_some() {
        fragment
    } else if command.is_none() && shown.is_none() {
        Some("the command is not shown: connections may be missing".to_owned())
    } else {
        None
    };
    (text, missing)
}

/// Returns whether `line` is of `conntrack -S`.
pub(super) fn is_counter(line: &str) -> bool {
    line.trim().starts_with("cpu=") && line.contains("insert_failed=")
}

/// Reads `conntrack -S` as `/proc/net/stat/nf_conntrack`.
pub(super) fn counters(lines: &[String]) -> String {
    const NAMES: [&str; 17] = [
        "entries",
        "clashres",
        "found",
        "new",
        "invalid",
        "ignore",
        "delete",
        "chainlength",
        "insert",
        "insert_failed",
        "drop",
        "early_drop",
        "icmp_error",
        "expect_new",
        "expect_create",
        "expect_delete",
        "search_restart",
    ];
    let rows: Vec<BTreeMap<&str, u64>> = lines
        .iter()
        .filter(|line| is_counter(line))
        .map(|line| {
            let pairs = line
                .split_whitespace()
                .filter_map(|word| word.split_once('='));
            pairs
                .filter_map(|(key, value)| Some((key, value.parse().ok()?)))
                .collect()
        })
        .collect();
    // A counter that is not printed does not exist.
    let source = |name: &str| match name {
        "clashres" => "clash_resolve".to_owned(),
        "icmp_error" => "error".to_owned(),
        "chainlength" => "chaintoolong".to_owned(),
        name => name.to_owned(),
    };
    let shown: Vec<&str> = NAMES
        .into_iter()
        .filter(|name| {
            rows.iter()
                .all(|row| row.contains_key(source(name).as_str()))
        })
        .collect();
    let mut text = shown.join(" ") + "\n";
    for row in &rows {
        let values: Vec<String> = shown
            .iter()
            .map(|name| format!("{:08x}", row[source(name).as_str()]))
            .collect();
        let _ = writeln!(text, "{}", values.join(" "));
    }
    text
}

/// Returns whether `line` begins a table of nftables.
pub(super) fn is_table(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    matches!(
        words.as_slice(),
        [
            "table",
            "ip" | "ip6" | "inet" | "arp" | "bridge" | "netdev",
            _,
            "{",
            ..
        ]
    )
}

/// Reads `nft list ruleset`, with handles or without. The error says why it is not used.
pub(super) fn nft(lines: &[String], command: Option<&Command>) -> Result<String, String> {
    let mut text = String::new();
    let mut depth = 0_i64;
    for line in lines {
        if is_cut(line) {
            return Err("the ruleset is cut".to_owned());
        }
        if line.starts_with('#') || line.starts_with("netlink: Error") {
            continue;
        }
        let line = without_handle(line);
        depth += super::reader::braces(line);
        text.push_str(line);
        text.push('\n');
    }
    if depth != 0 {
        return Err("the ruleset is cut".to_owned());
    }
    if let Some(command) = command {
        if let Some(why) = &command.fragment {
            return Err(why.clone());
        }
        if command.program == "nft" && !command.has("ruleset") {
            return Err("only a part of the ruleset is listed".to_owned());
        }
    }
    Ok(text)
}

/// Removes ` # handle 5` from the end of a line, unless it is in quotes.
fn without_handle(line: &str) -> &str {
    let Some((before, number)) = line.rsplit_once(" # handle ") else {
        return line;
    };
    let is_number = number.trim().parse::<u64>().is_ok();
    if is_number && before.matches('"').count() % 2 == 0 {
        before
    } else {
        line
    }
}
