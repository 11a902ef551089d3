//! Prefixes that logs and tools for several machines write before each line: times, numbers, names of hosts.

use std::collections::BTreeMap;

use super::command::is_host;
use super::links;

/// A line, with the host that its prefix names.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Line {
    pub(super) host: Option<String>,
    pub(super) text: String,
}

/// The fewest lines in a row that have a time: an output may have fewer.
const FEWEST: usize = 5;

/// Removes the prefixes, and groups the lines by host.
pub(super) fn without(lines: Vec<String>) -> Vec<Line> {
    let lines = lines.into_iter().map(|text| Line { host: None, text });
    let mut lines: Vec<Line> = lines.collect();
    timed(&mut lines);
    numbered(&mut lines);
    named(&mut lines);
    let mut hosts: Vec<Option<String>> = Vec::new();
    for line in lines.iter().filter(|line| !line.text.trim().is_empty()) {
        if !hosts.contains(&line.host) {
            hosts.push(line.host.clone());
        }
    }
    let place = |line: &Line| hosts.iter().position(|host| *host == line.host);
    if hosts.len() > 1 && hosts.iter().all(Option::is_some) {
        lines.sort_by_key(place);
    }
    lines
}

fn is_filled(line: &&mut Line) -> bool {
    !line.text.trim().is_empty()
}

/// Removes times, if a run of lines has them.
fn timed(lines: &mut [Line]) {
    let mut at = 0;
    while at < lines.len() {
        let run = lines[at..]
            .iter()
            .take_while(|line| line.text.trim().is_empty() || time(&line.text).is_some())
            .count();
        let count = lines[at..at + run]
            .iter()
            .filter(|line| !line.text.trim().is_empty())
            .count();
        if count >= FEWEST {
            for line in &mut lines[at..at + run] {
                if let Some((host, rest)) = time(&line.text) {
                    *line = Line {
                        host: host.map(str::to_owned),
                        text: rest.to_owned(),
                    };
                }
            }
        }
        at += run.max(1);
    }
}

/// Takes `2026-11-03T10:22:31.5Z `, `[10:22:31] `, `[  12.345678] ` or `Nov 03 10:22:31 w1 prog[812]: ` off; returns the host and the
/// rest.
fn time(line: &str) -> Option<(Option<&str>, &str)> {
    let text = line.trim_start();
    if let Some(inside) = text.strip_prefix('[') {
        let (inside, rest) = inside.split_once(']')?;
        let inside = inside.trim();
        let is_pod = inside.starts_with("pod/");
        let seconds = || inside.contains('.') && inside.parse::<f64>().is_ok();
        let is_time = || stamp(inside).is_some_and(|rest| ["", "AM", "PM"].contains(&rest.trim()));
        (is_pod || seconds() || is_time()).then_some(())?;
        return Some((None, rest.strip_prefix(' ').unwrap_or(rest)));
    }
    let rest = stamp(text).or_else(|| month(text))?;
    if !rest.is_empty() && !rest.starts_with([' ', '\t']) {
        return None;
    }
    let rest = rest.strip_prefix([' ', '\t']).unwrap_or(rest);
    if let Some((host, after)) = rest.split_once(' ')
        && let Some((program, after)) = after.split_once(':')
        && is_host(host)
        && program.ends_with(']')
        && !program.contains(' ')
    {
        return Some((Some(host), after.strip_prefix(' ').unwrap_or(after)));
    }
    for stream in ["stdout F ", "stderr F "] {
        if let Some(rest) = rest.strip_prefix(stream) {
            return Some((None, rest));
        }
    }
    Some((None, rest))
}

/// Removes digits from the start of `text`, as many as `count` allows.
fn digits(text: &str, count: std::ops::RangeInclusive<usize>) -> Option<&str> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    count.contains(&end).then(|| &text[end..])
}

/// Takes `10:22`, `10:22:31` or `10:22:31.123` off.
fn clock(text: &str) -> Option<&str> {
    let rest = digits(text, 1..=2)?.strip_prefix(':')?;
    let rest = digits(rest, 2..=2)?;
    let Some(seconds) = rest.strip_prefix(':') else {
        return Some(rest);
    };
    let rest = digits(seconds, 2..=2)?;
    match rest.strip_prefix(['.', ',']) {
        Some(part) => digits(part, 1..=9),
        None => Some(rest),
    }
}

/// Takes a date with a time and its zone, or a time with seconds, off.
fn stamp(text: &str) -> Option<&str> {
    let date = digits(text, 4..=4).and_then(|rest| {
        let rest = digits(rest.strip_prefix(['-', '/'])?, 1..=2)?;
        digits(rest.strip_prefix(['-', '/'])?, 1..=2)
    });
    let Some(rest) = date else {
        return clock(text);
    };
    let rest = clock(rest.strip_prefix(['T', ' '])?)?;
    if let Some(rest) = rest.strip_prefix('Z') {
        return Some(rest);
    }
    let zone = rest.strip_prefix(['+', '-']).and_then(|zone| {
        let rest = digits(zone, 2..=4)?;
        rest.strip_prefix(':')
            .map_or(Some(rest), |rest| digits(rest, 2..=2))
    });
    Some(zone.unwrap_or(rest))
}

/// Takes `Nov  3 10:22:31` off.
fn month(text: &str) -> Option<&str> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let rest = MONTHS.iter().find_map(|month| text.strip_prefix(month))?;
    let rest = digits(rest.strip_prefix(' ')?.trim_start(), 1..=2)?;
    clock(rest.strip_prefix(' ')?)
}

/// Removes the numbers that an editor or `cat -n` writes before each line.
fn numbered(lines: &mut [Line]) {
    let number = |text: &str| -> Option<(usize, usize)> {
        let start = text.len() - text.trim_start().len();
        let rest = digits(&text[start..], 1..=6)?;
        let value = text[start..text.len() - rest.len()].parse().ok()?;
        let taken = ['\t', ':', ' ', '|'];
        let after = rest.strip_prefix(taken).or(rest.is_empty().then_some(""))?;
        let after = if rest.starts_with([':', '|']) {
            after.strip_prefix(' ').unwrap_or(after)
        } else if rest.starts_with(' ') {
            after.trim_start_matches(' ')
        } else {
            after
        };
        Some((value, text.len() - after.len()))
    };
    let mut filled = lines.iter().filter(|line| !line.text.trim().is_empty());
    let mut counted = 0;
    let mut next = None;
    for line in filled.by_ref() {
        let Some((value, _)) = number(&line.text) else {
            return;
        };
        // A blank line may have lost its number.
        if next.is_some_and(|next| value < next || value > next + 3) || links::is_link(&line.text) {
            return;
        }
        next = Some(value + 1);
        counted += 1;
    }
    if counted < FEWEST {
        return;
    }
    for line in lines.iter_mut().filter(is_filled) {
        if let Some((_, taken)) = number(&line.text) {
            line.text.drain(..taken);
        }
    }
}

/// Removes from each line the name of the host that pdsh, clush and similar tools write.
fn named(lines: &mut [Line]) {
    let name = |text: &str| -> Option<(String, usize)> {
        let (name, rest) = text.split_once(": ").or_else(|| {
            let end = text.strip_suffix(':')?;
            Some((end, ""))
        })?;
        let is_name = is_host(name) && name.contains(|c: char| c.is_ascii_alphabetic());
        is_name.then(|| (name.to_owned(), text.len() - rest.len()))
    };
    let mut hosts: BTreeMap<String, usize> = BTreeMap::new();
    let mut filled = 0;
    for line in lines.iter().filter(|line| !line.text.trim().is_empty()) {
        filled += 1;
        if let Some((name, _)) = name(&line.text) {
            *hosts.entry(name).or_default() += 1;
        }
    }
    // A description has many keys, each only once.
    let count: usize = hosts.values().sum();
    let are_hosts =
        filled >= FEWEST && count * 10 >= filled * 9 && hosts.values().all(|lines| *lines >= 3);
    if !are_hosts {
        return;
    }
    for line in lines.iter_mut().filter(is_filled) {
        if let Some((host, taken)) = name(&line.text) {
            line.text.drain(..taken);
            line.host = Some(host);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        let lines = without(text.lines().map(str::to_owned).collect());
        lines.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn times_and_numbers_are_taken_off() {
        for prefix in [
            "2026-11-03T10:22:31.1234567Z ",
            "2026-11-03T10:22:31+01:00 ",
            "2026-11-03 10:22:31,123 ",
            "[10:22:31] ",
            "[10:22 AM] ",
            "[    12.345678] ",
            "10:22:31.5 ",
            "Nov  3 10:22:31 w1 collect.sh[812]: ",
            "2026-11-03T10:22:31+01:00 w1 collect[812]: ",
            "2026-11-03T10:22:31.5Z stdout F ",
            "[pod/kube-proxy-4xk2p/kube-proxy] ",
        ] {
            let text = format!("{prefix}  kind: Service\n").repeat(6);
            assert_eq!(texts(&text), vec!["  kind: Service"; 6], "{prefix}");
        }
        for form in ["{}: ", "{:>6}\t"] {
            let text: String = (1..8)
                .map(|at| match form {
                    "{}: " => format!("{at}:   kind: Service\n"),
                    _ => format!("{at:>6}\t  kind: Service\n"),
                })
                .collect();
            assert_eq!(texts(&text), vec!["  kind: Service"; 7], "{form}");
        }
    }

    #[test]
    fn what_has_no_prefix_stays() {
        for text in [
            "1: lo: <LOOPBACK,UP> mtu 65536\n2: eth0: <UP> mtu 1500\n3: a: <UP> mtu 1\n4: b: <UP> mtu 1\n5: c: <UP> mtu 1\n",
            "Name: a\nNamespace: b\nLabels: c\nType: d\nIP: e\nPort: f\n",
            "num  target\n1    A\n2    B\n3    C\n4    D\n5    E\n",
            "0:\tfrom all lookup local\n9:\tfrom all fwmark 0x10 lookup 100\n",
        ] {
            assert_eq!(texts(text).join("\n") + "\n", text);
        }
    }

    #[test]
    fn lines_of_several_hosts_are_put_together() {
        let text: String = (0..4).map(|_| "w1: *nat\nw2: *filter\n").collect();
        let lines = without(text.lines().map(str::to_owned).collect());
        let hosts: Vec<_> = lines
            .iter()
            .filter_map(|line| line.host.as_deref())
            .collect();
        assert_eq!(hosts, ["w1", "w1", "w1", "w1", "w2", "w2", "w2", "w2"]);
    }
}
