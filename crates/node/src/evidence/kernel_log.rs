//! Lines of the kernel's log, in the forms of `dmesg` and `journalctl -k`.

use std::net::{IpAddr, SocketAddr};

use super::Time;
use crate::net::Family;

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

/// A message that kpx looks for. The redaction keeps their lines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Message<'t> {
    /// The kernel starts: what is before is of another run.
    Start,
    /// The conntrack table was full.
    ConntrackFull,
    /// The neighbour table of a family was full.
    NeighboursFull(Family),
    /// The kernel kept as many routes of IPv6 connections as it may (before 6.3).
    RoutesFull,
    /// A packet from a source that its routes do not lead to.
    Martian(Martian<'t>),
    /// A datagram with a wrong checksum.
    BadChecksum {
        /// Where it came from.
        source: SocketAddr,
        /// Where it went.
        destination: SocketAddr,
    },
    /// `WireGuard` took no packets of a source from a peer.
    NotAllowed {
        /// `WireGuard`'s link.
        link: &'t str,
        /// The packets' source.
        source: IpAddr,
        /// Address and port of the peer, in the kernel's words.
        peer: &'t str,
    },
    /// A card hung, and its driver reset it.
    CardHangs(&'t str),
    /// A packet had more parts than a Xen guest's card takes.
    TooManyParts,
    /// The network device of a pod that is gone is still in use.
    DeviceInUse(&'t str),
    /// The queue of the listener at a port was full.
    ListenerFull(&'t str),
    /// TCP had no memory left.
    TcpMemory,
    /// The kernel killed kube-proxy, which had reached its memory limit, or as the node had no memory left.
    KubeProxyKilled {
        /// Whether it was kube-proxy's own limit.
        by_its_limit: bool,
    },
    /// A virtual server of IPVS had no real server.
    NoRealServer(SocketAddr),
    /// A driver is loaded that the distribution no longer maintains.
    Unmaintained,
    /// A processor was held by nft.
    HeldByNft,
    /// A processor was held by something else.
    Held,
    /// A network card, or a part of a bond, lost its carrier.
    CarrierLost(&'t str),
    /// There was no memory for packets that came in.
    NoMemoryForPackets,
    /// A file system was made read-only, or shut down, after an error of this disk.
    ReadOnly(&'t str),
    /// A program was refused an access.
    Denied {
        /// What refused it: `SELinux` or `AppArmor`.
        by: &'static str,
        /// The name of the program.
        program: &'t str,
    },
}

impl<'t> Entry<'t> {
    /// Returns what it says, if kpx looks for it.
    pub fn message(&self) -> Option<Message<'t>> {
        let line = self.text;
        let has = |part: &str| line.contains(part);
        let after = |mark: &str| word_after(line, mark);
        if line.starts_with("Linux version ") {
            return Some(Message::Start);
        }
        if has("nf_conntrack: table full") || has("nf_conntrack: nf_conntrack: table full") {
            return Some(Message::ConntrackFull);
        }
        if has("neighbor table overflow") || has("eighbour table overflow") {
            let is_v6 = has("ndisc_cache");
            let family = if is_v6 { Family::V6 } else { Family::V4 };
            return Some(Message::NeighboursFull(family));
        }
        if has("oute cache is full") {
            return Some(Message::RoutesFull);
        }
        if has("martian source ") {
            return martian(line).map(Message::Martian);
        }
        if has("UDP: bad checksum. From ") {
            return bad_checksum(line);
        }
        if has(": Packet has unallowed src IP (") {
            return not_allowed(line);
        }
        if let Some(card) = hanging(line) {
            return Some(Message::CardHangs(card));
        }
        if has("skb rides the rocket") {
            return Some(Message::TooManyParts);
        }
        if let Some(device) = after("unregister_netdevice: waiting for ") {
            return Some(Message::DeviceInUse(device));
        }
        if has("ossible SYN flooding") {
            let port = after("port ")?.rsplit(':').next()?;
            return Some(Message::ListenerFull(port.trim_end_matches('.')));
        }
        if has("TCP: out of memory") {
            return Some(Message::TcpMemory);
        }
        if has("Killed process ") {
            let (_, program) = line.split_once('(')?;
            let by_its_limit = has("emory cgroup out of memory");
            let is_kube_proxy = program.starts_with("kube-proxy)");
            return is_kube_proxy.then_some(Message::KubeProxyKilled { by_its_limit });
        }
        if has("IPVS: ") {
            // IPVS: SCHEDULER: PROTOCOL ADDRESS:PORT - no destination available
            let (before, _) = line.split_once(" - no destination available")?;
            let at = before.rsplit(' ').next()?.parse().ok()?;
            return Some(Message::NoRealServer(at));
        }
        if has("soft lockup") && has("[nft:") {
            return Some(Message::HeldByNft);
        }
        let stalls = [
            "BUG: soft lockup",
            "self-detected stall on CPU",
            "detected stalls on CPUs",
        ];
        if stalls.iter().any(|sign| has(sign)) {
            return Some(Message::Held);
        }
        if let Some(device) = without_carrier(line) {
            return Some(Message::CarrierLost(device));
        }
        if has("page allocation failure: order:") && (has("GFP_ATOMIC") || has("mode:0x20")) {
            return Some(Message::NoMemoryForPackets);
        }
        if let Some(disk) = read_only(line) {
            return Some(Message::ReadOnly(disk));
        }
        if let Some(denied) = denied(line) {
            return Some(denied);
        }
        let is_unmaintained = line.to_lowercase().contains("unmaintained driver");
        is_unmaintained.then_some(Message::Unmaintained)
    }

    /// Returns the part of the line before the text: the time and what stands around it.
    pub fn head(&self) -> &'t str {
        self.line.strip_suffix(self.text).unwrap_or_default()
    }
}

/// Reads `martian source DESTINATION from SOURCE, on dev LINK`.
fn martian(text: &str) -> Option<Martian<'_>> {
    let (_, rest) = text.split_once("martian source ")?;
    let (destination, rest) = rest.split_once(" from ")?;
    let (source, link) = rest.split_once(", on dev ")?;
    Some(Martian {
        destination: destination.parse().ok()?,
        source: source.parse().ok()?,
        link: link.trim(),
    })
}

/// Reads `UDP: bad checksum. From SOURCE to DESTINATION ulen LENGTH`.
fn bad_checksum(line: &str) -> Option<Message<'_>> {
    let (_, rest) = line.split_once("UDP: bad checksum. From ")?;
    let (source, rest) = rest.split_once(" to ")?;
    let (destination, _) = rest.split_once(" ulen ")?;
    Some(Message::BadChecksum {
        source: source.parse().ok()?,
        destination: destination.parse().ok()?,
    })
}

/// Reads `wireguard: LINK: Packet has unallowed src IP (SOURCE) from peer NUMBER (ADDRESS:PORT)`.
fn not_allowed(line: &str) -> Option<Message<'_>> {
    let (before, rest) = line.split_once(": Packet has unallowed src IP (")?;
    let (source, rest) = rest.split_once(')')?;
    Some(Message::NotAllowed {
        link: before.rsplit(' ').next()?,
        source: source.parse().ok()?,
        peer: rest.rsplit_once('(')?.1.trim_end_matches(')'),
    })
}

/// Returns the network card, or the part of a bond, that lost its carrier.
fn without_carrier(line: &str) -> Option<&str> {
    // `ixgbe 0000:04:00.0 eth0: NIC Link is Down`, `mlx5_core 0000:03:00.0 eth0: Link down`,
    // `bond0: (slave eth0): link status definitely down, disabling slave`.
    let signs = [
        " NIC Link is Down",
        ": Link is Down",
        ": Link is down",
        ": Link down",
        ": link status definitely down",
    ];
    let (before, _) = signs.iter().find_map(|sign| line.split_once(sign))?;
    Some(before.rsplit(' ').next()?.trim_matches([':', '(', ')']))
}

/// Returns the disk whose file system the kernel made read-only, or shut down: of ext4, XFS or Btrfs.
fn read_only(line: &str) -> Option<&str> {
    let signs = [
        ": Remounting filesystem read-only",
        ": Filesystem has been shut down",
        ": Log I/O Error Detected",
        ": forced readonly",
    ];
    let (before, _) = signs.iter().find_map(|sign| line.split_once(sign))?;
    // `EXT4-fs (vda1)`, `XFS (dm-0)`, `BTRFS info (device vda1)`.
    let (_, inside) = before.rsplit_once('(')?;
    let disk = inside.split(')').next()?;
    Some(disk.split(' ').next_back()?.trim_end_matches(':'))
}

/// Reads `avc: denied { read } for pid=1 comm="PROGRAM"` and `apparmor="DENIED" comm="PROGRAM"`.
fn denied(line: &str) -> Option<Message<'_>> {
    let by = if line.contains("avc:") && line.contains(" denied ") {
        "SELinux"
    } else if line.contains("apparmor=\"DENIED\"") {
        "AppArmor"
    } else {
        return None;
    };
    let (_, rest) = line.split_once("comm=\"")?;
    let program = rest.split('"').next()?;
    Some(Message::Denied { by, program })
}

/// Returns the link whose card hangs.
fn hanging(line: &str) -> Option<&str> {
    let marks = ["NETDEV WATCHDOG: ", "Detected Hardware Unit Hang"];
    let (before, after) = marks.iter().find_map(|mark| line.split_once(mark))?;
    // `eth0: NETDEV WATCHDOG: CPU: 2: …`; older kernels have `NETDEV WATCHDOG: eth0 (e1000e): …`.
    let named = before.trim_end().strip_suffix(':');
    let device = match named {
        Some(named) => named.rsplit(' ').find(|word| !word.starts_with('('))?,
        None => after.split(' ').next()?,
    };
    (!device.is_empty()).then_some(device)
}

/// Returns the word after `mark`, without a comma.
fn word_after<'t>(text: &'t str, mark: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(mark)?;
    let word = rest.split(' ').next()?.trim_end_matches(',');
    (!word.is_empty()).then_some(word)
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
    let is_start = |entry: &Entry<'_>| entry.message() == Some(Message::Start);
    if let Some(start) = entries.iter().rposition(is_start) {
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
