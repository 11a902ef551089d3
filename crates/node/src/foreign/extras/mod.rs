//! The end of a row of `iptables -L`, after the addresses: matches and the target's options, as `iptables-save` writes them.

mod matches;
mod targets;

use std::fmt::Write as _;

use matches::bang;

/// Options of a rule.
#[derive(Debug, Default, Eq, PartialEq)]
pub(in crate::foreign) struct Extras {
    /// The matches: ` -m comment --comment web`.
    pub(super) matches: String,
    /// The options of the target: ` --to-destination 10.0.0.1:80`.
    pub(super) options: String,
    /// Whether the rule is a goto.
    pub(super) goes: bool,
}

/// Reads `text`, the end of a rule with target `target`. The error is the part that is not understood.
pub(in crate::foreign) fn read(text: &str, target: &str) -> Result<Extras, String> {
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

/// Words that may begin the text after a comment.
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

    fn marked(&mut self, module: &str) -> Option<()> {
        self.takes("match").then_some(())?;
        let inverted = self.takes("!");
        self.value(module, inverted, "--mark")
    }
}

/// Quotes a text as `iptables-save` does.
pub(in crate::foreign) fn quoted(text: &str) -> String {
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
