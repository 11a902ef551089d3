//! Policies and security associations of IPsec (xfrm).

use std::fmt;
use std::net::IpAddr;

use crate::evidence::{Gap, Item};
use crate::net::{Cidr, Proto};

/// Policies of IPsec, the first that may match first.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    /// Policies: type sub first, then by priority, then by the time when they were made.
    pub all: Vec<Policy>,
}

/// The packets that a policy is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    /// To the node itself.
    In,
    /// Out of the node, its own and forwarded ones.
    Out,
    /// Through the node.
    Forward,
}

impl Direction {
    /// Returns the word of `ip xfrm policy`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
            Self::Forward => "fwd",
        }
    }
}

/// A policy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Policy {
    /// The packets that it is for.
    pub direction: Direction,
    /// The sources.
    pub source: Cidr,
    /// The destinations.
    pub destination: Cidr,
    /// The protocol; `None` for all.
    pub proto: Option<Proto>,
    /// The source port; `None` for all.
    pub source_port: Option<u16>,
    /// The destination port; `None` for all.
    pub destination_port: Option<u16>,
    /// The link by which the packets leave; `None` for all.
    pub link: Option<String>,
    /// Value and mask of the packets' mark.
    pub mark: Option<(u32, u32)>,
    /// The number of its links of kind xfrm; 0 for links of other kinds.
    pub if_id: u32,
    /// Whether it drops the packets.
    pub blocks: bool,
    /// The priority; a lower one is first.
    pub priority: u32,
    /// Whether it is of type sub.
    pub is_sub: bool,
    /// The templates: packets pass only in IPsec.
    pub templates: Vec<Template>,
    /// The words of its selector that are not known.
    pub unknown: Vec<String>,
}

/// What a policy asks of the security association for its packets.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Template {
    /// The association.
    pub of: State,
    /// Whether packets may pass without one: level `use`.
    pub is_optional: bool,
}

/// A security association. In a template, unspecified addresses, and SPI 0, are those of any.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct State {
    /// The source of the packets of IPsec.
    pub source: IpAddr,
    /// Their destination.
    pub destination: IpAddr,
    /// `esp`, `ah` or `comp`.
    pub proto: String,
    /// The SPI; 0 while a daemon is asked for the association.
    pub spi: u32,
    /// The number by which policies ask for it.
    pub request: u32,
    /// `tunnel`, `transport` or `beet`.
    pub mode: String,
    /// The number of its links of kind xfrm; 0 for links of other kinds.
    pub if_id: u32,
}

impl fmt::Display for Policy {
    /// Writes the policy in the words with which `ip xfrm policy` finds it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "src {} dst {}", self.source, self.destination)?;
        if let Some(link) = &self.link {
            write!(f, " dev {link}")?;
        }
        if let Some(proto) = self.proto {
            write!(f, " proto {proto}")?;
        }
        if let Some(port) = self.source_port {
            write!(f, " sport {port}")?;
        }
        if let Some(port) = self.destination_port {
            write!(f, " dport {port}")?;
        }
        write!(f, " dir {}", self.direction.name())?;
        if let Some((value, mask)) = self.mark {
            write!(f, " mark {value:#x} mask {mask:#x}")?;
        }
        if self.is_sub {
            f.write_str(" ptype sub")?;
        }
        if self.if_id != 0 {
            write!(f, " if_id {}", self.if_id)?;
        }
        Ok(())
    }
}

/// Parses `ip xfrm policy`, without the policies of single sockets: only the daemons of IPsec have such.
pub fn parse(text: &str) -> Result<Policies, Gap> {
    let mut all: Vec<Policy> = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((number, head)) = lines.next() {
        if head.trim().is_empty() {
            continue;
        }
        let mut block = vec![head];
        while let Some((_, line)) = lines.next_if(|(_, line)| line.starts_with(['\t', ' '])) {
            block.push(line);
        }
        let read = policy(&block).map_err(|why| {
            Gap::Failed(Item::XfrmPolicies, format!("line {}: {why}", number + 1))
        })?;
        all.extend(read);
    }
    // The kernel lists the newest first, and asks the oldest of one priority first.
    all.reverse();
    all.sort_by_key(|policy| (!policy.is_sub, policy.priority));
    Ok(Policies { all })
}

/// Parses `ip xfrm state`.
pub fn states(text: &str) -> Result<Vec<State>, Gap> {
    let failed = |why| Gap::Failed(Item::XfrmStates, why);
    let mut all: Vec<State> = Vec::new();
    for line in text.lines() {
        let words = Words::of(line);
        if line.starts_with("src ") {
            all.push(ends(words).map_err(failed)?);
        } else if let Some(state) = all.last_mut() {
            associate(state, words).map_err(failed)?;
        }
    }
    Ok(all)
}

/// Reads `src ADDRESS dst ADDRESS`.
fn ends(mut words: Words<'_>) -> Result<State, String> {
    let (mut source, mut destination) = (None, None);
    while let Some(word) = words.next() {
        match word {
            "src" => source = Some(words.parsed(word)?),
            "dst" => destination = Some(words.parsed(word)?),
            _ => {}
        }
    }
    Ok(State {
        source: source.ok_or("an association without \"src\"")?,
        destination: destination.ok_or("an association without \"dst\"")?,
        proto: String::new(),
        spi: 0,
        request: 0,
        mode: String::new(),
        if_id: 0,
    })
}

/// Returns a number without its repetition in parentheses: `7(0x00000007)`.
fn without_note(text: &str) -> &str {
    text.split_once('(').map_or(text, |(number, _)| number)
}

/// Adds what a line below the addresses says of `state`.
fn associate(state: &mut State, mut words: Words<'_>) -> Result<(), String> {
    let first = words.next();
    let mut word = first;
    while let Some(of) = word {
        match (first, of) {
            (Some("proto"), "proto") => words.value(of)?.clone_into(&mut state.proto),
            (Some("proto"), "spi") => {
                state.spi = number(without_note(words.value(of)?))?;
            }
            (Some("proto"), "reqid") => {
                state.request = number(without_note(words.value(of)?))?;
            }
            (Some("proto"), "mode") => words.value(of)?.clone_into(&mut state.mode),
            (Some("if_id"), "if_id") => state.if_id = number(words.value(of)?)?,
            _ => {}
        }
        word = words.next();
    }
    Ok(())
}

/// Reads the lines of one policy; returns `None` for one of a socket.
fn policy(block: &[&str]) -> Result<Option<Policy>, String> {
    let mut head = Words::of(block[0]);
    let (mut source, mut destination) = (None, None);
    let mut policy = Policy {
        direction: Direction::In,
        source: Cidr::host([0, 0, 0, 0].into()),
        destination: Cidr::host([0, 0, 0, 0].into()),
        proto: None,
        source_port: None,
        destination_port: None,
        link: None,
        mark: None,
        if_id: 0,
        blocks: false,
        priority: 0,
        is_sub: false,
        templates: Vec::new(),
        unknown: Vec::new(),
    };
    while let Some(word) = head.next() {
        match word {
            "src" => source = Some(head.parsed(word)?),
            "dst" => destination = Some(head.parsed(word)?),
            "proto" => policy.proto = Some(head.parsed(word)?),
            "dev" => policy.link = Some(head.value(word)?.to_owned()),
            // Only `ip -s` prints it, and a policy of a single user is of a socket.
            "uid" => {
                head.value(word)?;
            }
            "sport" | "dport" => match head.value(word)? {
                ports if ports.contains('/') => policy.unknown.push(format!("{word} {ports}")),
                port => {
                    let port = port
                        .parse()
                        .map_err(|_| format!("{word} {port:?} is no port"))?;
                    let of = if word == "sport" {
                        &mut policy.source_port
                    } else {
                        &mut policy.destination_port
                    };
                    *of = Some(port);
                }
            },
            other => policy.unknown.push(other.to_owned()),
        }
    }
    policy.source = source.ok_or("a policy without \"src\"")?;
    policy.destination = destination.ok_or("a policy without \"dst\"")?;
    let mut has_direction = false;
    for line in &block[1..] {
        let mut words = Words::of(line);
        while let Some(word) = words.next() {
            match word {
                "socket" => return Ok(None),
                "dir" => {
                    has_direction = true;
                    policy.direction = match words.value(word)? {
                        "in" => Direction::In,
                        "out" => Direction::Out,
                        "fwd" => Direction::Forward,
                        other => return Err(format!("direction {other:?} is unknown")),
                    };
                }
                "action" => match words.value(word)? {
                    "allow" => {}
                    "block" => policy.blocks = true,
                    other => policy.unknown.push(format!("action {other}")),
                },
                "index" => drop(words.next()),
                "priority" => policy.priority = words.parsed(word)?,
                "ptype" => policy.is_sub = words.value(word)? == "sub",
                "mark" => policy.mark = Some(mark(words.value(word)?)?),
                "if_id" => policy.if_id = number(words.value(word)?)?,
                "tmpl" => {
                    let of = ends(words)?;
                    let is_optional = false;
                    policy.templates.push(Template { of, is_optional });
                    break;
                }
                "proto" => {
                    if let Some(template) = policy.templates.last_mut() {
                        associate(&mut template.of, Words::of(line))?;
                    }
                    break;
                }
                "level" => {
                    if let Some(template) = policy.templates.last_mut() {
                        template.is_optional = words.value(word)? == "use";
                    }
                    break;
                }
                // The rest of the line is of templates, or decides nothing.
                _ => break,
            }
        }
    }
    if !has_direction {
        return Err("a policy without \"dir\"".to_owned());
    }
    Ok(Some(policy))
}

/// The words of a line.
struct Words<'t>(std::str::SplitAsciiWhitespace<'t>);

impl<'t> Words<'t> {
    fn of(line: &'t str) -> Self {
        Self(line.split_ascii_whitespace())
    }

    fn next(&mut self) -> Option<&'t str> {
        self.0.next()
    }

    fn value(&mut self, word: &str) -> Result<&'t str, String> {
        self.next()
            .ok_or_else(|| format!("{word:?} without a value"))
    }

    fn parsed<T: std::str::FromStr>(&mut self, word: &str) -> Result<T, String> {
        let value = self.value(word)?;
        value
            .parse()
            .map_err(|_| format!("{word} {value:?} is not understood"))
    }
}

/// Reads `VALUE/MASK`.
fn mark(text: &str) -> Result<(u32, u32), String> {
    let (value, mask) = text.split_once('/').unwrap_or((text, "0xffffffff"));
    Ok((number(value)?, number(mask)?))
}

fn number(text: &str) -> Result<u32, String> {
    let read = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    read.map_err(|_| format!("{text:?} is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
src 10.0.0.0/24 dst 10.0.2.0/24 proto 99 \n\
\tdir in priority 0 ptype main \n\
src 0.0.0.0/0 dst 0.0.0.0/0 uid 0\n\
\tsocket in action allow index 3 priority 0 ptype main share any flag  (0x00000000)\n\
src fd00::/8 dst ::/0 \n\
\tdir out priority 9 ptype main flag localok\n\
\ttmpl src fd01::1 dst fd01::2\n\
\t\tproto esp spi 0x00000005 reqid 1 mode tunnel\n\
\t\tlevel use \n\
\ttmpl src :: dst ::\n\
\t\tproto ah reqid 0 mode transport\n\
\tif_id 0x7\n\
src 10.0.0.0/24 dst 10.0.1.0/24 proto tcp sport 5 dport 80 dev eth0 \n\
\tdir fwd action block priority 5 ptype main \n\
\tmark 0x1/0xff \n";

    #[test]
    fn policies_are_parsed_in_their_order() {
        let all = parse(TEXT).unwrap().all;
        let names: Vec<_> = all.iter().map(ToString::to_string).collect();
        assert_eq!(
            names,
            [
                "src 10.0.0.0/24 dst 10.0.2.0/24 proto 99 dir in",
                "src 10.0.0.0/24 dst 10.0.1.0/24 dev eth0 proto tcp sport 5 dport 80 dir fwd mark 0x1 mask 0xff",
                "src fd00::/8 dst ::/0 dir out if_id 7",
            ]
        );
        let of = |at: usize| (all[at].blocks, all[at].templates.len(), all[at].priority);
        assert_eq!(
            [of(0), of(1), of(2)],
            [(false, 0, 0), (true, 0, 5), (false, 2, 9)]
        );
        let [tunnel, transport] = &all[2].templates[..] else {
            panic!("{all:?}");
        };
        assert!(tunnel.is_optional && !transport.is_optional);
        assert_eq!(
            (tunnel.of.spi, tunnel.of.request, &*tunnel.of.mode),
            (5, 1, "tunnel")
        );
        assert!(transport.of.source.is_unspecified() && transport.of.proto == "ah");
        assert!(parse("").unwrap().all.is_empty());
    }

    #[test]
    fn associations_are_parsed_without_their_keys() {
        let text = "src 10.0.0.1 dst 10.0.0.2\n\
                    \tproto esp spi 0xc0ffee01(3237998081) reqid 7(0x00000007) mode tunnel\n\
                    \treplay-window 32 flag af-unspec\n\
                    \tauth-trunc hmac(sha256) <<Keys hidden>> 128\n\
                    \tif_id 0x9\n\
                    src fd00::1 dst fd00::2\n\tproto ah spi 0x00000000 reqid 0 mode transport\n\
                    \tsel src fd00::/64 dst ::/0 proto tcp\n";
        let all = states(text).unwrap();
        let of = |at: usize| {
            (
                &*all[at].proto,
                all[at].spi,
                all[at].request,
                &*all[at].mode,
                all[at].if_id,
            )
        };
        assert_eq!(all.len(), 2);
        assert_eq!(of(0), ("esp", 0xc0ff_ee01, 7, "tunnel", 9));
        assert_eq!(of(1), ("ah", 0, 0, "transport", 0));
        assert!(states("src 10.0.0.1\n").is_err());
    }

    #[test]
    fn what_is_no_policy_is_an_error() {
        for text in [
            "src 10.0.0.0/24\n\tdir in\n",
            "src 10.0.0.0/24 dst 10.0.0.0/33 \n\tdir in\n",
            "src 10.0.0.0/24 dst 10.0.0.0/24 \n",
            "src 10.0.0.0/24 dst 10.0.0.0/24 \n\tdir up\n",
            "src 10.0.0.0/24 dst 10.0.0.0/24 \n\tdir in mark 1/x\n",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        let masked = parse("src ::/0 dst ::/0 dport 80/0xfff0 \n\tdir in\n").unwrap();
        assert_eq!(masked.all[0].unknown, ["dport 80/0xfff0"]);
    }
}
