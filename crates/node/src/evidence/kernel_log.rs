//! Lines of the kernel's log, in the forms of `dmesg` and `journalctl -k`.

use std::net::{IpAddr, SocketAddr};

use super::Time;

/// A message of the kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry<'t> {
    /// When, as the log says it: `1361.000123`, `Sat Nov 28 04:01:02 2026`; empty without a time.
    pub at: &'t str,
    /// The same in seconds, from a moment that all lines of the log share.
    pub seconds: Option<f64>,
    /// The text after the time.
    pub text: &'t str,
    /// The line.
    pub line: &'t str,
}

/// Seconds before the end of the log within which a message counts as new.
const NEW: f64 = 3600.0;

/// A packet that the kernel dropped, as its way back leads by another link than it came in by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Martian<'t> {
    /// Its destination, before any rule.
    pub destination: IpAddr,
    /// Its source.
    pub source: IpAddr,
    /// The link by which it came in.
    pub link: &'t str,
}

impl<'t> Entry<'t> {
    /// Returns the packet of a line like `martian source DESTINATION from SOURCE, on dev LINK`.
    pub fn martian(&self) -> Option<Martian<'t>> {
        let (_, rest) = self.text.split_once("martian source ")?;
        let (destination, rest) = rest.split_once(" from ")?;
        let (source, link) = rest.split_once(", on dev ")?;
        Some(Martian {
            destination: destination.parse().ok()?,
            source: source.parse().ok()?,
            link: link.trim(),
        })
    }

    /// Returns source and destination of a datagram with a wrong checksum: `UDP: bad checksum. From SOURCE to DESTINATION ulen LENGTH`.
    pub fn bad_checksum(&self) -> Option<(SocketAddr, SocketAddr)> {
        let (_, rest) = self.text.split_once("UDP: bad checksum. From ")?;
        let (source, rest) = rest.split_once(" to ")?;
        let (destination, _) = rest.split_once(" ulen ")?;
        Some((source.parse().ok()?, destination.parse().ok()?))
    }

    /// Returns what refused an access, SELinux or AppArmor, and the name of the program that asked for it.
    pub fn denied(&self) -> Option<(&'static str, &'t str)> {
        let by = if self.text.contains("avc:") && self.text.contains(" denied ") {
            "SELinux"
        } else if self.text.contains("apparmor=\"DENIED\"") {
            "AppArmor"
        } else {
            return None;
        };
        let (_, rest) = self.text.split_once("comm=\"")?;
        Some((by, rest.split('"').next()?))
    }
}

/// Returns those of `entries` of the last hour of the log, and those without a time.
pub fn of_last_hour<'e, 't>(
    entries: &'e [Entry<'t>],
) -> impl Iterator<Item = &'e Entry<'t>> + use<'e, 't> {
    let last = entries.iter().rev().find_map(|entry| entry.seconds);
    entries.iter().filter(move |entry| {
        let age = last.zip(entry.seconds).map(|(last, at)| last - at);
        age.is_none_or(|age| age < NEW)
    })
}

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// Parses a log. The lines before the last start of the kernel are left out.
pub fn parse(text: &str) -> Vec<Entry<'_>> {
    let mut entries: Vec<Entry<'_>> = text.lines().map(entry).collect();
    let boot = |entry: &Entry<'_>| entry.text.starts_with("Linux version ");
    if let Some(start) = entries.iter().rposition(boot) {
        entries.drain(..start);
    }
    entries
}

fn entry(line: &str) -> Entry<'_> {
    let line = line.trim();
    let rest = match line.split_once('>') {
        Some((priority, rest)) if priority.starts_with('<') => rest,
        _ => line,
    };
    let (at, mut message) = match rest.strip_prefix('[').and_then(|text| text.split_once(']')) {
        Some((at, message)) => (at.trim(), message),
        None => of_journal(rest).unwrap_or(("", rest)),
    };
    // The thread or processor that wrote it, and the kernel's own time in a journal.
    while let Some((_, rest)) = message
        .trim_start()
        .strip_prefix('[')
        .and_then(|text| text.split_once(']'))
    {
        message = rest;
    }
    Entry {
        at,
        seconds: seconds(at),
        text: message.trim(),
        line,
    }
}

/// Returns the time and the message of a line of a journal: `Nov 28 04:01:02 w1 kernel: text`, `2026-11-28T04:01:02+0000 w1 kernel: text`.
fn of_journal(line: &str) -> Option<(&str, &str)> {
    let (head, message) = line.split_once(" kernel: ")?;
    let (at, _host) = head.rsplit_once(' ')?;
    Some((at, message))
}

/// Returns a time in seconds.
fn seconds(at: &str) -> Option<f64> {
    if let Ok(seconds) = at.parse() {
        return Some(seconds);
    }
    let of = |time: Time| {
        time.since(Time::from_epoch(0.0)?)
            .as_secs()
            .to_string()
            .parse()
            .ok()
    };
    if at.get(4..5) == Some("-") {
        return of(at.parse().ok()?);
    }
    let words: Vec<&str> = at.split_ascii_whitespace().collect();
    let month = words.iter().position(|word| MONTHS.contains(word))?;
    let number = MONTHS.iter().position(|name| *name == words[month])? + 1;
    let (day, clock) = (words.get(month + 1)?, words.get(month + 2)?);
    let year = words
        .get(month + 3)
        .filter(|word| word.len() == 4)
        .unwrap_or(&"1972");
    of(format!("{year}-{number:02}-{day:0>2}T{clock}Z")
        .parse()
        .ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_one_log_are_on_one_scale() {
        for (first, second, at) in [
            ("[ 1361.5] a", "<4>[ 1371.5][  T12] b", "1371.5"),
            (
                "[Sat Nov 28 04:01:02 2026] a",
                "[Sat Nov 28 04:01:12 2026] b",
                "Sat Nov 28 04:01:12 2026",
            ),
            (
                "Nov  8 04:01:02 w1 kernel: a",
                "Nov  8 04:01:12 w1 kernel: [ 1371.5] b",
                "Nov  8 04:01:12",
            ),
            (
                "2026-11-28T04:01:02+0000 w1 kernel: a",
                "2026-11-28T04:01:12+0000 w1 kernel: b",
                "2026-11-28T04:01:12+0000",
            ),
        ] {
            let text = format!("{first}\n{second}\n");
            let entries = parse(&text);
            assert_eq!((entries[1].at, entries[1].text), (at, "b"), "{second}");
            let [a, b] = [0, 1].map(|index| entries[index].seconds.unwrap());
            assert!((b - a - 10.0).abs() < 0.001, "{first}: {a} {b}");
        }
        assert_eq!(parse("no time").first().unwrap().seconds, None);
    }

    #[test]
    fn what_was_before_the_last_start_is_left_out() {
        let text = "Nov 28 04:01:02 w1 kernel: old\nNov 28 05:00:00 w1 kernel: Linux version 6.1.0\nNov 28 05:00:01 w1 kernel: new";
        let all: Vec<_> = parse(text)
            .into_iter()
            .map(|parsed| parsed.text.to_owned())
            .collect();
        assert_eq!(all, ["Linux version 6.1.0", "new"]);
    }
}
