//! The end of a row of `iptables -L`, behind the addresses: matches and the target's options, as `iptables-save` writes them.

use std::fmt::Write as _;

use super::services::port;

/// Options of a rule.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Extras {
    /// The matches: ` -m comment --comment web`.
    pub(super) matches: String,
    /// The options of the target: ` --to-destination 10.0.0.1:80`.
    pub(super) options: String,
    /// Whether the rule is a goto.
    pub(super) goes: bool,
}

/// Reads `text`, behind a rule with target `target`. The error is what is not understood.
pub(super) fn read(text: &str, target: &str) -> Result<Extras, String> {
    let mut reader = Reader {
        words: words(text),
        at: 0,
        target,
        extras: Extras::default(),
        conntrack: false,
        protocol: false,
    };
    while reader.at < reader.words.len() {
        let before = reader.at;
        if !reader.one() {
            let rest: Vec<&str> = reader.words[before..].iter().map(Word::text).collect();
            return Err(rest.join(" "));
        }
    }
    Ok(reader.extras)
}

#[derive(Clone, Copy, Debug)]
enum Word<'a> {
    Plain(&'a str),
    Comment(&'a str),
    Quoted(&'a str),
}

impl<'a> Word<'a> {
    const fn text(&self) -> &'a str {
        let (Self::Plain(text) | Self::Comment(text) | Self::Quoted(text)) = *self;
        text
    }
}

fn words(text: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        if let Some(inside) = rest.strip_prefix("/* ") {
            // A comment may contain what ends it.
            let ends = |at: &usize| {
                let next = inside[at + 3..].trim_start();
                next.is_empty() || next.starts_with("/*") || begins_match(next)
            };
            let all: Vec<usize> = inside.match_indices(" */").map(|(at, _)| at).collect();
            let end = all.iter().copied().find(ends).or(all.last().copied());
            if let Some(end) = end {
                words.push(Word::Comment(&inside[..end]));
                rest = inside[end + 3..].trim_start();
                continue;
            }
        }
        if let Some(inside) = rest.strip_prefix('"')
            && let Some(end) = inside.find('"')
        {
            words.push(Word::Quoted(&inside[..end]));
            rest = inside[end + 1..].trim_start();
            continue;
        }
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        words.push(Word::Plain(&rest[..end]));
        rest = rest[end..].trim_start();
    }
    words
}

/// Words with which something begins behind a comment.
const BEGINS: &[&str] = &[
    "tcp",
    "udp",
    "sctp",
    "udplite",
    "dccp",
    "icmptype",
    "icmp",
    "ipv6-icmp",
    "ipv6-icmptype",
    "multiport",
    "mark",
    "connmark",
    "MARK",
    "CONNMARK",
    "ADDRTYPE",
    "state",
    "statistic",
    "recent:",
    "match-set",
    "limit:",
    "PHYSDEV",
    "MAC",
    "owner",
    "PKTTYPE",
    "length",
    "rpfilter",
    "socket",
    "source",
    "destination",
    "nfacct-name",
    "random",
    "random-fully",
    "persistent",
    "masq",
    "redir",
    "TPROXY",
    "CT",
    "TCPMSS",
    "CHECKSUM",
    "reject-with",
    "LOG",
    "nflog-prefix",
    "!",
    "vaddr",
    "ipvs",
];

fn begins_match(text: &str) -> bool {
    let word = text.split_whitespace().next().unwrap_or_default();
    BEGINS.contains(&word) || word.starts_with("to:") || word.starts_with("ct") && word.len() > 4
}

struct Reader<'a> {
    words: Vec<Word<'a>>,
    at: usize,
    target: &'a str,
    extras: Extras,
    /// Whether the last match is `-m conntrack`, to which another option is added.
    conntrack: bool,
    /// Whether the protocol's own match was read.
    protocol: bool,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<&'a str> {
        match self.words.get(self.at) {
            Some(Word::Plain(word)) => Some(word),
            _ => None,
        }
    }

    fn next(&mut self) -> Option<&'a str> {
        let word = self.peek()?;
        self.at += 1;
        Some(word)
    }

    fn takes(&mut self, word: &str) -> bool {
        let is = self.peek() == Some(word);
        self.at += usize::from(is);
        is
    }

    fn add(&mut self, text: &str) {
        self.extras.matches.push(' ');
        self.extras.matches.push_str(text);
    }

    fn option(&mut self, text: &str) {
        self.extras.options.push(' ');
        self.extras.options.push_str(text);
    }

    /// Adds `-m module`, then the option, inverted or not.
    fn matched(&mut self, module: &str, inverted: bool, option: &str) {
        let not = if inverted { "! " } else { "" };
        self.add(&format!("-m {module} {not}{option}"));
    }

    /// Reads one match or the options of the target; returns whether it is understood.
    fn one(&mut self) -> bool {
        let was_conntrack = std::mem::take(&mut self.conntrack);
        match self.words[self.at] {
            Word::Comment(text) => {
                self.at += 1;
                let text = quoted(text);
                self.add(&format!("-m comment --comment {text}"));
                return true;
            }
            Word::Quoted(_) => return false,
            Word::Plain(_) => {}
        }
        let Some(word) = self.next() else {
            return false;
        };
        let read = match word {
            "[goto]" => {
                self.extras.goes = true;
                Some(())
            }
            "!" => self.inverted(was_conntrack),
            "tcp" | "udp" | "sctp" | "udplite" | "dccp" => self.ports(word),
            "icmptype" | "ipv6-icmptype" => self.icmp_type(word),
            "icmp" | "ipv6-icmp" => self.icmp_name(word),
            "multiport" => self.multiport(),
            "mark" | "connmark" => self.marked(word),
            "MARK" => self.mark(),
            "CONNMARK" => self.connmark(),
            "ADDRTYPE" => self.addr_type(),
            "state" => self.value("state", false, "--state"),
            "statistic" => self.statistic(),
            "recent:" => self.recent(false),
            "match-set" => self.set(false),
            "limit:" => self.limit(),
            "PHYSDEV" => self.physdev(),
            "MAC" => {
                let inverted = self.takes("!");
                self.value("mac", inverted, "--mac-source")
            }
            "owner" => self.owner(false),
            "PKTTYPE" => {
                let inverted = self.takes("!=") || {
                    self.takes("=");
                    false
                };
                self.value("pkttype", inverted, "--pkt-type")
            }
            "length" => {
                let inverted = self.takes("!");
                self.value("length", inverted, "--length")
            }
            "rpfilter" => {
                let mut text = String::from("-m rpfilter");
                while let Some(word) = self
                    .peek()
                    .filter(|word| ["loose", "validmark", "accept-local", "invert"].contains(word))
                {
                    self.at += 1;
                    let _ = write!(text, " --{word}");
                }
                self.add(&text);
                Some(())
            }
            "socket" => {
                let mut text = String::from("-m socket");
                while let Some(word) = self.peek().filter(|word| word.starts_with("--")) {
                    self.at += 1;
                    let _ = write!(text, " {word}");
                }
                self.add(&text);
                Some(())
            }
            "source" | "destination" => self.range(word),
            "nfacct-name" => self.value("nfacct", false, "--nfacct-name"),
            "random" | "random-fully" | "persistent" => {
                let can = ["DNAT", "SNAT", "MASQUERADE", "REDIRECT"].contains(&self.target);
                can.then(|| self.option(&format!("--{word}")))
            }
            "masq" | "redir" => {
                self.takes("ports:");
                self.takes("ports");
                self.next()
                    .map(|ports| self.option(&format!("--to-ports {ports}")))
            }
            "TPROXY" => self.tproxy(),
            "CT" => self.takes("notrack").then(|| self.option("--notrack")),
            "NOTRACK" => Some(()),
            "TCPMSS" => self.tcpmss(),
            "CHECKSUM" => self.takes("fill").then(|| self.option("--checksum-fill")),
            "reject-with" => self
                .next()
                .map(|with| self.option(&format!("--reject-with {with}"))),
            "LOG" => self.log(),
            "nflog-prefix" => {
                let prefix = self.prefix();
                prefix.map(|text| self.option(&format!("--nflog-prefix {text}")))
            }
            "nflog-group" => self
                .next()
                .map(|group| self.option(&format!("--nflog-group {group}"))),
            _ if word.starts_with("to:") => {
                let option = match self.target {
                    "DNAT" => "--to-destination",
                    "SNAT" => "--to-source",
                    "NETMAP" => "--to",
                    _ => return false,
                };
                self.option(&format!("{option} {}", &word[3..]));
                Some(())
            }
            _ => self.conntrack(word, false, was_conntrack),
        };
        read.is_some()
    }

    fn inverted(&mut self, was_conntrack: bool) -> Option<()> {
        match self.next()? {
            "match-set" => self.set(true),
            "recent:" => self.recent(true),
            "owner" => self.owner(true),
            "state" => self.value("state", true, "--state"),
            word => self.conntrack(word, true, was_conntrack),
        }
    }

    /// Reads the value of the one option of `module`.
    fn value(&mut self, module: &str, inverted: bool, option: &str) -> Option<()> {
        let value = self.next()?;
        let (inverted, value) = bang(value, inverted);
        self.matched(module, inverted, &format!("{option} {value}"));
        Some(())
    }

    fn ports(&mut self, proto: &str) -> Option<()> {
        let mut text = format!("-m {proto}");
        let mut any = false;
        while let Some(word) = self.peek() {
            let mut add = |option: &str, value: &str| {
                let (inverted, value) = bang(value, false);
                let _ = write!(
                    text,
                    "{}{option} {value}",
                    if inverted { " ! " } else { " " }
                );
            };
            let ends = |text: &str| {
                let (inverted, plain) = bang(text, false);
                let all: Option<Vec<String>> = plain
                    .split(':')
                    .map(|one| Some(port(one)?.to_string()))
                    .collect();
                Some(format!(
                    "{}{}",
                    if inverted { "!" } else { "" },
                    all?.join(":")
                ))
            };
            if let Some(value) = word
                .strip_prefix("dpts:")
                .or_else(|| word.strip_prefix("dpt:"))
            {
                add("--dport", &ends(value)?);
            } else if let Some(value) = word
                .strip_prefix("spts:")
                .or_else(|| word.strip_prefix("spt:"))
            {
                add("--sport", &ends(value)?);
            } else if let Some(value) = word.strip_prefix("flags:") {
                let (inverted, value) = bang(value, false);
                let flags = flags(value)?;
                let _ = write!(
                    text,
                    "{}--tcp-flags {flags}",
                    if inverted { " ! " } else { " " }
                );
            } else if let Some(value) = word.strip_prefix("option=") {
                add("--tcp-option", value);
            } else {
                break;
            }
            any = true;
            self.at += 1;
        }
        // A bare word is the match without options.
        if any || !std::mem::replace(&mut self.protocol, true) {
            self.add(&text);
        }
        Some(())
    }

    fn icmp_type(&mut self, word: &str) -> Option<()> {
        let kind = self.next()?;
        let (inverted, kind) = bang(kind, false);
        let code = if self.takes("code") {
            format!("/{}", self.next()?)
        } else {
            String::new()
        };
        let six = word.starts_with("ipv6");
        let (module, option) = icmp(six);
        let kind = if kind == "255" && !six { "any" } else { kind };
        self.matched(module, inverted, &format!("{option} {kind}{code}"));
        Some(())
    }

    fn icmp_name(&mut self, word: &str) -> Option<()> {
        let kind = self.next()?;
        let (inverted, kind) = bang(kind, false);
        let six = word.starts_with("ipv6");
        let (module, option) = icmp(six);
        let names = if six { ICMPV6 } else { ICMP };
        let known = names.iter().find(|(name, _)| *name == kind);
        let kind = known.map_or(kind, |(_, number)| number);
        self.matched(module, inverted, &format!("{option} {kind}"));
        Some(())
    }

    fn multiport(&mut self) -> Option<()> {
        let side = self.next()?;
        if !["dports", "sports", "ports"].contains(&side) {
            return None;
        }
        let list = self.next()?;
        let (inverted, list) = bang(list, false);
        let ports = list.split(',').map(|range| {
            let ends: Option<Vec<String>> = range
                .split(':')
                .map(|one| Some(port(one)?.to_string()))
                .collect();
            Some(ends?.join(":"))
        });
        let ports: Vec<String> = ports.collect::<Option<_>>()?;
        self.matched(
            "multiport",
            inverted,
            &format!("--{side} {}", ports.join(",")),
        );
        Some(())
    }

    fn marked(&mut self, module: &str) -> Option<()> {
        self.takes("match").then_some(())?;
        let inverted = self.takes("!");
        self.value(module, inverted, "--mark")
    }

    fn mark(&mut self) -> Option<()> {
        let how = self.next()?;
        let value = self.next()?;
        let mark = set_mark(how, value)?;
        self.option(&mark);
        Some(())
    }

    fn connmark(&mut self) -> Option<()> {
        let how = self.next()?;
        if !["save", "restore"].contains(&how) {
            let value = self.next()?;
            let mark = set_mark(how, value)?;
            self.option(&mark);
            return Some(());
        }
        let mask = if self.takes("mask") {
            self.next()?
        } else {
            "0xffffffff"
        };
        self.option(&format!("--{how}-mark --nfmask {mask} --ctmask {mask}"));
        Some(())
    }

    fn addr_type(&mut self) -> Option<()> {
        self.takes("match").then_some(())?;
        let mut text = String::from("-m addrtype");
        let mut any = false;
        while let Some(side) = self.peek() {
            match side {
                "src-type" | "dst-type" => {
                    self.at += 1;
                    let (inverted, kinds) = bang(self.next()?, false);
                    let _ = write!(
                        text,
                        "{}--{side} {kinds}",
                        if inverted { " ! " } else { " " }
                    );
                }
                "limit-in" => {
                    self.at += 1;
                    text += " --limit-iface-in";
                }
                "limit-out" => {
                    self.at += 1;
                    text += " --limit-iface-out";
                }
                _ => break,
            }
            any = true;
        }
        self.add(&text);
        any.then_some(())
    }

    fn conntrack(&mut self, word: &str, inverted: bool, continues: bool) -> Option<()> {
        const KEYS: [&str; 12] = [
            "ctstate",
            "ctproto",
            "ctorigsrc",
            "ctorigdst",
            "ctreplsrc",
            "ctrepldst",
            "ctorigsrcport",
            "ctorigdstport",
            "ctreplsrcport",
            "ctrepldstport",
            "ctstatus",
            "ctexpire",
        ];
        if !KEYS.contains(&word) && word != "ctdir" {
            return None;
        }
        let value = self.next()?;
        // `-S` writes addresses with their length.
        let (inverted, value) = bang(value, inverted);
        let not = if inverted { "! " } else { "" };
        let option = format!("{not}--{word} {value}");
        if continues {
            self.add(&option);
        } else {
            self.add(&format!("-m conntrack {option}"));
        }
        self.conntrack = true;
        Some(())
    }

    fn statistic(&mut self) -> Option<()> {
        self.takes("mode").then_some(())?;
        match self.next()? {
            "random" => {
                let inverted = self.takes("!");
                self.takes("probability").then_some(())?;
                let chance = self.next()?;
                let not = if inverted { "! " } else { "" };
                self.add(&format!(
                    "-m statistic --mode random {not}--probability {chance}"
                ));
            }
            "nth" => {
                let inverted = self.takes("!");
                self.takes("every").then_some(())?;
                let every = self.next()?;
                let packet = if self.takes("packet") {
                    self.next()?
                } else {
                    "0"
                };
                let not = if inverted { "! " } else { "" };
                self.add(&format!(
                    "-m statistic --mode nth {not}--every {every} --packet {packet}"
                ));
            }
            _ => return None,
        }
        Some(())
    }

    fn recent(&mut self, inverted: bool) -> Option<()> {
        let action = match self.next()? {
            "SET" => "--set",
            "CHECK" => "--rcheck",
            "UPDATE" => "--update",
            "REMOVE" => "--remove",
            _ => return None,
        };
        let (mut before, mut name, mut mask, mut side) =
            (String::new(), "DEFAULT", None, "--rsource");
        while let Some(word) = self.peek() {
            match word {
                "seconds:" | "hit_count:" => {
                    self.at += 1;
                    let option = if word == "seconds:" {
                        "seconds"
                    } else {
                        "hitcount"
                    };
                    let _ = write!(before, " --{option} {}", self.next()?);
                    continue;
                }
                "reap" => before += " --reap",
                "TTL-Match" => before += " --rttl",
                "name:" => {
                    self.at += 1;
                    name = self.next()?;
                    continue;
                }
                "side:" => {
                    self.at += 1;
                    side = match self.next()? {
                        "source" => "--rsource",
                        "dest" => "--rdest",
                        _ => return None,
                    };
                    continue;
                }
                "mask:" => {
                    self.at += 1;
                    mask = Some(self.next()?);
                    continue;
                }
                _ => break,
            }
            self.at += 1;
        }
        let not = if inverted { "! " } else { "" };
        let mask = mask.map_or_else(String::new, |mask| format!(" --mask {mask}"));
        self.add(&format!(
            "-m recent {not}{action}{before} --name {name}{mask} {side}"
        ));
        Some(())
    }

    fn set(&mut self, inverted: bool) -> Option<()> {
        let name = self.next()?;
        let sides = self.next()?;
        let rest = if self.takes("return-nomatch") {
            " --return-nomatch"
        } else {
            ""
        };
        self.matched(
            "set",
            inverted,
            &format!("--match-set {name} {sides}{rest}"),
        );
        Some(())
    }

    fn limit(&mut self) -> Option<()> {
        if self.takes("avg") {
            let rate = self.next()?;
            self.takes("burst").then_some(())?;
            let burst = self.next()?;
            let burst = if burst == "5" {
                String::new()
            } else {
                format!(" --limit-burst {burst}")
            };
            self.add(&format!("-m limit --limit {rate}{burst}"));
            return Some(());
        }
        let (option, words) = match self.next()? {
            "up" => ("upto", "to"),
            "above" => ("above", ""),
            _ => return None,
        };
        if !words.is_empty() {
            self.takes(words).then_some(())?;
        }
        let rate = self.next()?;
        let mut text = format!("-m hashlimit --hashlimit-{option} {rate}");
        while let Some(word) = self
            .peek()
            .filter(|word| ["burst", "mode", "srcmask", "dstmask"].contains(word))
        {
            self.at += 1;
            let _ = write!(text, " --hashlimit-{word} {}", self.next()?);
        }
        // A listing does not show its name.
        self.add(&(text + " --hashlimit-name not-shown"));
        Some(())
    }

    fn physdev(&mut self) -> Option<()> {
        self.takes("match").then_some(())?;
        let mut text = String::from("-m physdev");
        loop {
            let inverted = self.peek() == Some("!");
            let option = match self.words.get(self.at + usize::from(inverted)) {
                Some(Word::Plain(option)) if option.starts_with("--physdev") => *option,
                _ => break,
            };
            self.at += 1 + usize::from(inverted);
            let _ = write!(text, " {}{option}", if inverted { "! " } else { "" });
            if ["--physdev-in", "--physdev-out"].contains(&option) {
                let _ = write!(text, " {}", self.next()?);
            }
        }
        self.add(&text);
        Some(())
    }

    fn owner(&mut self, inverted: bool) -> Option<()> {
        let option = match self.next()? {
            "UID" => "--uid-owner",
            "GID" => "--gid-owner",
            "socket" => {
                self.takes("exists").then_some(())?;
                self.matched("owner", inverted, "--socket-exists");
                return Some(());
            }
            _ => return None,
        };
        self.takes("match").then_some(())?;
        let value = self.next()?;
        let not = if inverted { "! " } else { "" };
        // Further options of the same match follow with their own `owner`.
        if self
            .extras
            .matches
            .rsplit(" -m ")
            .next()
            .is_some_and(|last| last.starts_with("owner"))
        {
            self.add(&format!("{not}{option} {value}"));
        } else {
            self.add(&format!("-m owner {not}{option} {value}"));
        }
        Some(())
    }

    fn range(&mut self, side: &str) -> Option<()> {
        (self.takes("IP") && self.takes("range")).then_some(())?;
        let inverted = self.takes("!");
        let option = if side == "source" {
            "--src-range"
        } else {
            "--dst-range"
        };
        self.value("iprange", inverted, option)
    }

    fn tproxy(&mut self) -> Option<()> {
        self.takes("redirect").then_some(())?;
        let to = self.next()?;
        self.takes("mark").then_some(())?;
        let mark = self.next()?;
        let (addr, port) = to.rsplit_once(':')?;
        let addr = addr.trim_matches(['[', ']']);
        self.option(&format!(
            "--on-port {port} --on-ip {addr} --tproxy-mark {mark}"
        ));
        Some(())
    }

    fn tcpmss(&mut self) -> Option<()> {
        match self.next()? {
            "clamp" => {
                (self.takes("to") && self.takes("PMTU")).then(|| self.option("--clamp-mss-to-pmtu"))
            }
            "set" => self
                .next()
                .map(|size| self.option(&format!("--set-mss {size}"))),
            _ => None,
        }
    }

    fn log(&mut self) -> Option<()> {
        const LEVELS: [&str; 8] = [
            "emerg", "alert", "crit", "error", "warn", "notice", "info", "debug",
        ];
        while let Some(word) = self.peek() {
            match word {
                "flags" => {
                    self.at += 1;
                    let bits = self.next()?;
                    let bits = bits.strip_prefix("0x").map_or_else(
                        || bits.parse::<u32>().ok(),
                        |hex| u32::from_str_radix(hex, 16).ok(),
                    )?;
                    for (bit, option) in [
                        (1, "--log-tcp-sequence"),
                        (2, "--log-tcp-options"),
                        (4, "--log-ip-options"),
                        (8, "--log-uid"),
                    ] {
                        if bits & bit != 0 {
                            self.option(option);
                        }
                    }
                }
                "level" => {
                    self.at += 1;
                    let level = self.next()?;
                    let number = LEVELS.iter().position(|name| *name == level);
                    let number = number.or_else(|| level.parse().ok())?;
                    if number != 4 {
                        self.option(&format!("--log-level {number}"));
                    }
                }
                "prefix" => {
                    self.at += 1;
                    let prefix = self.prefix()?;
                    self.option(&format!("--log-prefix {prefix}"));
                }
                _ => break,
            }
        }
        Some(())
    }

    /// Reads a prefix, in quotes or not.
    fn prefix(&mut self) -> Option<String> {
        let text = self.words.get(self.at)?.text();
        self.at += 1;
        Some(quoted(text))
    }
}

/// Names of types of ICMP, which a listing without `-n` has.
const ICMP: &[(&str, &str)] = &[
    ("echo-reply", "0"),
    ("destination-unreachable", "3"),
    ("fragmentation-needed", "3/4"),
    ("source-quench", "4"),
    ("redirect", "5"),
    ("echo-request", "8"),
    ("time-exceeded", "11"),
    ("parameter-problem", "12"),
    ("timestamp-request", "13"),
    ("timestamp-reply", "14"),
];

/// The same of `ICMPv6`.
const ICMPV6: &[(&str, &str)] = &[
    ("destination-unreachable", "1"),
    ("packet-too-big", "2"),
    ("time-exceeded", "3"),
    ("parameter-problem", "4"),
    ("echo-request", "128"),
    ("echo-reply", "129"),
    ("router-solicitation", "133"),
    ("router-advertisement", "134"),
    ("neighbour-solicitation", "135"),
    ("neighbour-advertisement", "136"),
    ("redirect", "137"),
];

const fn icmp(six: bool) -> (&'static str, &'static str) {
    if six {
        ("icmp6", "--icmpv6-type")
    } else {
        ("icmp", "--icmp-type")
    }
}

/// Takes a `!` off the value.
fn bang(value: &str, inverted: bool) -> (bool, &str) {
    match value.strip_prefix('!') {
        Some(rest) => (true, rest),
        None => (inverted, value),
    }
}

/// Quotes a text as `iptables-save` does.
pub(super) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    let mut new = String::from("\"");
    for c in text.chars() {
        if c == '"' || c == '\\' {
            new.push('\\');
        }
        new.push(c);
    }
    new + "\""
}

/// Returns `MARK or 0x4000` as an option.
fn set_mark(how: &str, text: &str) -> Option<String> {
    let number = |text: &str| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let mark = |value: u32, mask: u32| format!("--set-xmark {value:#x}/{mask:#x}");
    Some(match how {
        "or" => mark(number(text)?, number(text)?),
        "and" => mark(0, !number(text)?),
        "xor" => mark(number(text)?, 0),
        "set" => mark(number(text)?, u32::MAX),
        "xset" => {
            let (value, bits) = text.split_once('/')?;
            mark(number(value)?, number(bits)?)
        }
        _ => return None,
    })
}

/// Returns `0x17/0x02` or `FIN,SYN,RST,ACK/SYN` as the value of `--tcp-flags`.
fn flags(text: &str) -> Option<String> {
    const NAMES: [&str; 6] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG"];
    let (mask, set) = text.split_once('/')?;
    let list = |text: &str| {
        let Some(hex) = text.strip_prefix("0x") else {
            return Some(text.to_owned());
        };
        let bits = u8::from_str_radix(hex, 16).ok()?;
        let names = NAMES
            .iter()
            .enumerate()
            .filter(|(bit, _)| bits & (1 << bit) != 0);
        let names: Vec<&str> = names.map(|(_, name)| *name).collect();
        Some(if names.is_empty() {
            "NONE".to_owned()
        } else {
            names.join(",")
        })
    };
    Some(format!("{} {}", list(mask)?, list(set)?))
}
