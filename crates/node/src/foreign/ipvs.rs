//! Virtual servers, from any listing of them, as `ipvsadm -Sn` writes them.
//!
//! Source: `print_service_entry` and `print_conn` in ipvsadm's `ipvsadm.c`; `ip_vs_info_seq_show` in the kernel's `ip_vs_ctl.c`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::command::Command;
use super::rules::is_cut;

/// Virtual servers, as far as they are shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Servers {
    all: Vec<Server>,
    /// Whether all are shown.
    is_whole: bool,
    lost: BTreeSet<String>,
    /// The text of `ipvsadm -Ln --timeout`.
    pub(super) timeout: Option<String>,
    /// The text of `ipvsadm -Ln --stats`, where its numbers are exact.
    pub(super) stats: Option<String>,
    /// Lines of `/proc/net/ip_vs_conn`, and whether all are shown.
    pub(super) connections: Option<(String, bool)>,
    /// Addresses of a listing without schedulers, in its order.
    order: Vec<(String, Vec<String>)>,
    /// Lines of `ipvsadm --save` with names.
    named: Vec<String>,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Server {
    /// `-t 10.96.0.1:443`.
    key: String,
    /// `-s rr -p 600`.
    options: String,
    /// `-r 10.244.1.5:53 -m -w 1`.
    reals: Vec<String>,
}

/// The listings; only their titles distinguish them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Form {
    Plain,
    Stats,
    Rate,
    Other,
}

/// The schedulers of the kernel.
const SCHEDULERS: [&str; 13] = [
    "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh",
];

/// Returns whether `line` begins a listing.
pub(super) fn begins(line: &str) -> bool {
    let line = line.trim();
    line.starts_with("IP Virtual Server version")
        || line.starts_with("Prot LocalAddress:Port")
        || line.starts_with("IPVS connection entries")
        || line.starts_with("Pro FromIP")
        || line.starts_with("Timeout (tcp tcpfin udp)")
        || is_saved(line)
        || server(line).is_some()
}

/// Returns whether `line` is of a virtual server: its real servers follow.
pub(super) fn is_server(line: &str) -> bool {
    server(line.trim()).is_some()
}

/// Returns whether `line` may be in a listing.
pub(super) fn goes_on(line: &str) -> bool {
    let line = line.trim();
    let is_row = || {
        let mut words = line.split_whitespace();
        let first = words.next();
        first.is_some_and(|word| ["TCP", "UDP", "SCTP", "FWM"].contains(&word))
    };
    begins(line)
        || is_row()
        || line.starts_with("->")
        || line == "-"
        || line.starts_with("pro expire")
        || connection(line).is_some()
        || in_proc(line).is_some()
}

fn is_saved(line: &str) -> bool {
    [
        "-A -t ",
        "-A -u ",
        "-A -f ",
        "-A --sctp-service ",
        "-a -t ",
        "-a -u ",
        "-a -f ",
        "-a --sctp-service ",
    ]
    .iter()
    .any(|start| line.starts_with(start))
}

impl Servers {
    /// Returns whether nothing is shown.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty() && !self.is_whole && self.named.is_empty() && self.order.is_empty()
    }

    /// Returns whether virtual servers are shown, or that there are none.
    pub(super) const fn has_any(&self) -> bool {
        self.is_whole || !self.all.is_empty()
    }

    /// Returns the number of virtual servers.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Reads the lines of a listing.
    pub(super) fn read(&mut self, lines: &[String], command: Option<&Command>) {
        let fragment = command.and_then(|command| command.fragment.clone());
        let is_one = command.is_some_and(|command| {
            ["-t", "-u", "-f"].iter().any(|option| command.has(option))
                && command.program == "ipvsadm"
        });
        let mut is_titled = command
            .is_some_and(|command| command.program == "ipvsadm" && command.flag('S', "--save"));
        let mut form = Form::Plain;
        let mut found: Vec<Server> = Vec::new();
        let (mut cut, mut is_open) = (false, false);
        let mut connections = String::new();
        let mut listing = String::new();
        let mut exact = true;
        let mut order: Vec<(String, Vec<String>)> = Vec::new();
        let mut timeouts_lost = false;
        for line in lines {
            let text = line.split(" #").next().unwrap_or(line).trim();
            if is_cut(text) {
                cut = true;
                self.cut(&mut found, &mut is_open);
            } else if text.starts_with("IP Virtual Server version") {
                if text.contains("version 0.") || text.contains("version 1.9") {
                    self.lost
                        .insert("the listing is not of the kernel's IPVS".to_owned());
                    return;
                }
                is_titled = true;
                form = Form::Plain;
                let _ = writeln!(listing, "{text}");
            } else if let Some(title) = text.strip_prefix("Prot LocalAddress:Port") {
                form = match title.split_whitespace().next() {
                    Some("Conns") => Form::Stats,
                    Some("CPS") => Form::Rate,
                    Some("Uthreshold" | "Weight") => Form::Other,
                    _ => Form::Plain,
                };
                if form == Form::Stats || form == Form::Rate {
                    order.clear();
                }
                let _ = writeln!(listing, "{text}");
            } else if text.starts_with("-> RemoteAddress")
                || text.starts_with("pro expire")
                || text.starts_with("IPVS connection")
            {
                let _ = writeln!(listing, "  {text}");
            } else if text.starts_with("Pro FromIP") {
            } else if text.starts_with("Timeout (tcp tcpfin udp)") {
                self.timeout = Some(format!("{text}\n"));
            } else if is_saved(text) {
                if self.saved(text, &mut found) {
                    is_open = true;
                } else {
                    cut = true;
                    self.cut(&mut found, &mut is_open);
                }
            } else if let Some(line) = connection(text).or_else(|| in_proc(text)) {
                connections.push_str(&line);
                connections.push('\n');
            } else if form == Form::Stats || form == Form::Rate {
                let words: Vec<&str> = text.split_whitespace().collect();
                exact &= !words
                    .iter()
                    .skip(2)
                    .any(|word| word.ends_with(['K', 'M', 'G', 'T']));
                let indent = if text.starts_with("->") { "  " } else { "" };
                if form == Form::Stats {
                    let _ = writeln!(listing, "{indent}{text}");
                }
                match words.as_slice() {
                    ["->", real, ..] => {
                        if let Some((_, reals)) = order.last_mut() {
                            reals.push((*real).to_owned());
                        }
                    }
                    [_, address, ..] => order.push(((*address).to_owned(), Vec::new())),
                    _ => {}
                }
            } else if let Some(server) = server(text) {
                timeouts_lost |= server.1;
                found.push(server.0);
                is_open = true;
            } else if let Some(rest) = text.strip_prefix("->") {
                if let Some(real) = real(rest) {
                    if let Some(server) = found.last_mut().filter(|_| is_open) {
                        server.reals.push(real);
                    }
                } else {
                    self.lost
                        .insert("real servers are shown by name, or cut".to_owned());
                    cut = true;
                    self.cut(&mut found, &mut is_open);
                }
            } else if !text.is_empty() {
                self.lost
                    .insert("virtual servers are shown by name, or cut".to_owned());
                cut = true;
                if text == "-" {
                    self.cut(&mut found, &mut is_open);
                }
                is_open = false;
            }
        }
        let last = found.last().filter(|last| is_open && last.reals.is_empty());
        let scheduler = last.and_then(|last| last.options.split_whitespace().nth(1));
        if scheduler.is_some_and(|name| !SCHEDULERS.contains(&name)) {
            cut = true;
            self.cut(&mut found, &mut is_open);
        }
        if timeouts_lost {
            self.lost
                .insert("timeouts of persistence are in the kernel's ticks".to_owned());
        }
        if !connections.is_empty() {
            self.connections = Some((connections, !cut && fragment.is_none()));
        }
        if listing.contains("Conns") && exact {
            self.stats = Some(listing);
        }
        if !order.is_empty() {
            self.order = order;
            self.pair();
        }
        if form == Form::Other {
            return;
        }
        let is_whole = is_titled && !is_one && !cut && fragment.is_none() && form == Form::Plain;
        if let Some(why) = fragment {
            self.lost.insert(why);
        }
        self.add(found, is_whole);
    }

    /// Drops the last server, of which real servers are missing: the rows that follow are not of a known one.
    fn cut(&mut self, found: &mut Vec<Server>, is_open: &mut bool) {
        if std::mem::take(is_open)
            && let Some(server) = found.pop()
        {
            let at = server.key.split(' ').next_back().unwrap_or_default();
            self.lost.insert(format!("virtual server {at} is cut"));
        }
    }

    fn add(&mut self, found: Vec<Server>, is_whole: bool) {
        if is_whole {
            self.all = found;
            self.is_whole = true;
            return;
        }
        for server in found {
            match self
                .all
                .iter_mut()
                .find(|known_server| known_server.key == server.key)
            {
                Some(of) => *of = server,
                None => self.all.push(server),
            }
        }
    }

    /// Reads a line of `ipvsadm --save`; returns whether it is complete.
    fn saved(&mut self, line: &str, found: &mut Vec<Server>) -> bool {
        let words: Vec<&str> = line.split_whitespace().collect();
        let numeric = |at: usize| {
            words.get(at).is_some_and(|word| {
                word.parse::<SocketAddr>().is_ok() || word.parse::<u32>().is_ok()
            })
        };
        let real = words.iter().position(|word| *word == "-r");
        let last = if words[0] == "-A" { "-s" } else { "-w" };
        let Some(_) = words.windows(2).find(|pair| pair[0] == last) else {
            return false;
        };
        if !numeric(2) || real.is_some_and(|at| !numeric(at + 1)) {
            self.named.push(line.to_owned());
            return true;
        }
        let key = words[1..3].join(" ");
        match real {
            None => found.push(Server {
                key,
                options: words[3..].join(" "),
                reals: Vec::new(),
            }),
            Some(at) => {
                if let Some(server) = found.iter_mut().rev().find(|server| server.key == key) {
                    server.reals.push(words[at..].join(" "));
                }
            }
        }
        true
    }

    /// Gives the lines with names the addresses of a numeric listing in the same order.
    pub(super) fn pair(&mut self) {
        if self.named.is_empty() {
            return;
        }
        let named = std::mem::take(&mut self.named);
        let mut servers: Vec<Server> = Vec::new();
        let mut place: Option<usize> = None;
        let mut fits = true;
        for line in &named {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.first() == Some(&"-A") {
                let at = place.map_or(0, |at| at + 1);
                place = Some(at);
                let Some((address, _)) = self.order.get(at) else {
                    fits = false;
                    break;
                };
                fits &= same_port(words.get(2).copied().unwrap_or_default(), address);
                servers.push(Server {
                    key: format!("{} {address}", words[1]),
                    options: words.get(3..).unwrap_or_default().join(" "),
                    reals: Vec::new(),
                });
            } else if let (Some(at), Some(server)) = (place, servers.last_mut()) {
                let real = self.order[at].1.get(server.reals.len());
                let from = words.iter().position(|word| *word == "-r");
                let (Some(real), Some(from)) = (real, from) else {
                    fits = false;
                    break;
                };
                fits &= same_port(words.get(from + 1).copied().unwrap_or_default(), real);
                let rest = words.get(from + 2..).unwrap_or_default().join(" ");
                server.reals.push(format!("-r {real} {rest}"));
            }
        }
        if fits && servers.len() == self.order.len() {
            self.add(servers, true);
        } else {
            self.lost
                .insert("virtual servers are shown by name, not by address".to_owned());
        }
    }

    /// Returns the text of `ipvsadm -Sn`, and the missing parts.
    pub(super) fn text(&self) -> (String, Option<String>) {
        let mut text = String::new();
        for Server {
            key,
            options,
            reals,
        } in &self.all
        {
            let _ = writeln!(text, "-A {key} {options}");
            for real in reals {
                let _ = writeln!(text, "-a {key} {real}");
            }
        }
        let mut lost: Vec<&str> = self.lost.iter().map(String::as_str).collect();
        if !self.is_whole {
            lost.insert(0, "only some virtual servers are shown");
        }
        (text, (!lost.is_empty()).then(|| lost.join("; ")))
    }

    /// Returns the lost part, if there is no virtual server to attach it to.
    pub(super) fn lost(&self) -> Option<String> {
        let mut lost: Vec<&str> = self.lost.iter().map(String::as_str).collect();
        if self.all.is_empty() && !self.order.is_empty() {
            lost.push("schedulers, forwarding methods and weights are not shown");
        }
        (!lost.is_empty()).then(|| lost.join("; "))
    }
}

fn same_port(named: &str, numeric: &str) -> bool {
    let port = |text: &str| {
        text.rsplit(':')
            .next()
            .and_then(|port| port.parse::<u16>().ok())
    };
    match (port(named), port(numeric)) {
        (Some(one), Some(other)) => one == other,
        (None, _) => true,
        (Some(_), None) => false,
    }
}

/// Reads `10.96.0.1:443` or the kernel's `0A600001:01BB`.
fn socket(text: &str) -> Option<SocketAddr> {
    if let Ok(at) = text.parse() {
        return Some(at);
    }
    let (addr, port) = text.rsplit_once(':')?;
    if addr.starts_with('[') {
        let addr = addr.trim_matches(['[', ']']).parse::<IpAddr>().ok()?;
        return Some(SocketAddr::new(addr, u16::from_str_radix(port, 16).ok()?));
    }
    (addr.len() == 8 && port.len() == 4).then_some(())?;
    let addr = Ipv4Addr::from(u32::from_str_radix(addr, 16).ok()?);
    Some(SocketAddr::new(
        addr.into(),
        u16::from_str_radix(port, 16).ok()?,
    ))
}

/// Returns whether a virtual server's line is of the kernel's file.
fn is_hex(text: &str) -> bool {
    text.len() == 13 && text.as_bytes().get(8) == Some(&b':') && text.parse::<SocketAddr>().is_err()
}

/// Reads `TCP 10.96.0.1:443 rr persistent 600`; also returns whether its timeout is not in seconds.
fn server(line: &str) -> Option<(Server, bool)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (key, mut at, hex) = match words.as_slice() {
        [proto @ ("TCP" | "UDP" | "SCTP"), address, _, ..] => {
            let option = match *proto {
                "TCP" => "-t",
                "UDP" => "-u",
                _ => "--sctp-service",
            };
            (format!("{option} {}", socket(address)?), 2, is_hex(address))
        }
        ["FWM", mark, _, ..] => {
            let hex = mark.len() == 8;
            let number = if hex {
                u32::from_str_radix(mark, 16).ok()?
            } else {
                mark.parse().ok()?
            };
            let six = words[2] == "IPv6";
            let family = if six { " -6" } else { "" };
            (format!("-f {number}{family}"), 2 + usize::from(six), hex)
        }
        _ => return None,
    };
    let scheduler = words.get(at)?;
    // A line of counters has a number here.
    let is_name = scheduler.chars().all(|c| c.is_ascii_lowercase());
    is_name.then_some(())?;
    at += 1;
    let mut options = format!("-s {scheduler}");
    let mut ticks = false;
    while let Some(word) = words.get(at) {
        let next = words.get(at + 1).copied();
        match *word {
            "persistent" => {
                let timeout: u32 = next?.parse().ok()?;
                at += 1;
                if hex
                    || words
                        .get(at + 1)
                        .is_some_and(|mask| mask.len() == 8 && mask.starts_with("FF"))
                {
                    ticks = true;
                    at += 1;
                    options.push_str(" -p 300");
                } else {
                    let _ = write!(options, " -p {timeout}");
                }
            }
            "mask" => {
                let _ = write!(options, " -M {}", next?);
                at += 1;
            }
            "pe" => {
                let _ = write!(options, " --pe {}", next?);
                at += 1;
            }
            "ops" => options.push_str(" -o"),
            flags if flags.starts_with('(') && flags.ends_with(')') => {
                let _ = write!(options, " -b {}", flags.trim_matches(['(', ')']));
            }
            _ => {}
        }
        at += 1;
    }
    Some((
        Server {
            key,
            options,
            reals: Vec::new(),
        },
        ticks,
    ))
}

/// Reads ` 10.244.1.5:53 Masq 1 0 0` behind an arrow.
fn real(text: &str) -> Option<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    // A number at the edge of a cut may lack digits.
    let [address, how, weight, _, _, ..] = words.as_slice() else {
        return None;
    };
    let address = socket(address)?;
    let how = match *how {
        "Masq" => "-m",
        "Local" | "Route" => "-g",
        "Tunnel" => "-i",
        _ => return None,
    };
    Some(format!(
        "-r {address} {how} -w {}",
        weight.parse::<u32>().ok()?
    ))
}

/// Reads a line of `ipvsadm -Lnc` as one of `/proc/net/ip_vs_conn`.
fn connection(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [
        proto @ ("TCP" | "UDP" | "SCTP" | "IP"),
        expire,
        state,
        client,
        server,
        real,
        ..,
    ] = words.as_slice()
    else {
        return None;
    };
    let (minutes, seconds) = expire.split_once(':')?;
    let expires = minutes
        .parse::<u64>()
        .ok()?
        .checked_mul(60)?
        .checked_add(seconds.parse().ok()?)?;
    let end = |text: &str| {
        let at: SocketAddr = text.parse().ok()?;
        Some(match at.ip() {
            IpAddr::V4(addr) => format!("{:08X} {:04X}", addr.to_bits(), at.port()),
            IpAddr::V6(addr) => format!("{addr} {:04X}", at.port()),
        })
    };
    Some(format!(
        "{proto} {} {} {} {state} {expires}",
        end(client)?,
        end(server)?,
        end(real)?
    ))
}

/// Returns a line of `/proc/net/ip_vs_conn` as it is.
fn in_proc(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_hex = |word: &&str| word.chars().all(|c| c.is_ascii_hexdigit() || c == ':');
    let fits = words.len() >= 9
        && ["TCP", "UDP", "SCTP", "IP"].contains(&words[0])
        && words[1..7].iter().all(is_hex)
        && words[8].parse::<u32>().is_ok();
    fits.then(|| line.to_owned())
}
