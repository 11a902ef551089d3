//! Matches of a row: what each module of iptables prints, as `iptables-save` writes it.

use std::fmt::Write as _;

use super::super::services::port;
use super::targets::set_mark;
use super::{Reader, Word};

impl Reader<'_> {
    pub(super) fn ports(&mut self, proto: &str) -> Option<()> {
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

    pub(super) fn icmp_type(&mut self, word: &str) -> Option<()> {
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

    pub(super) fn icmp_name(&mut self, word: &str) -> Option<()> {
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

    pub(super) fn multiport(&mut self) -> Option<()> {
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

    pub(super) fn mark(&mut self) -> Option<()> {
        let how = self.next()?;
        let value = self.next()?;
        let mark = set_mark(how, value)?;
        self.option(&mark);
        Some(())
    }

    pub(super) fn connmark(&mut self) -> Option<()> {
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

    pub(super) fn addr_type(&mut self) -> Option<()> {
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

    pub(super) fn conntrack(&mut self, word: &str, inverted: bool, continues: bool) -> Option<()> {
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

    pub(super) fn statistic(&mut self) -> Option<()> {
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

    pub(super) fn recent(&mut self, inverted: bool) -> Option<()> {
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

    pub(super) fn set(&mut self, inverted: bool) -> Option<()> {
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

    pub(super) fn limit(&mut self) -> Option<()> {
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

    pub(super) fn physdev(&mut self) -> Option<()> {
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

    pub(super) fn owner(&mut self, inverted: bool) -> Option<()> {
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

    pub(super) fn range(&mut self, side: &str) -> Option<()> {
        (self.takes("IP") && self.takes("range")).then_some(())?;
        let inverted = self.takes("!");
        let option = if side == "source" {
            "--src-range"
        } else {
            "--dst-range"
        };
        self.value("iprange", inverted, option)
    }

    pub(super) fn tcpmss(&mut self) -> Option<()> {
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

/// Takes a `!` off the value.
pub(super) fn bang(value: &str, inverted: bool) -> (bool, &str) {
    match value.strip_prefix('!') {
        Some(rest) => (true, rest),
        None => (inverted, value),
    }
}
