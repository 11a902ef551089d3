//! `nft list ruleset` as text to a [`Ruleset`].
//!
//! kpx reads the JSON; the text is what users attach to a report, and the only output of an nft that was built without
//! JSON. A statement that is not of the model is kept as it is written; blocks of other objects (counters,
//! quotas, flowtables, helpers) are passed over, as in the JSON.

mod rule;
mod tokens;
mod value;

use super::super::model::{Base, Chain, Element, Expr, Rule, Ruleset, Set, Table};
use crate::evidence::{Gap, Item};
pub(super) use tokens::DEEPEST;
use tokens::{Token, Tokens};

pub(super) fn rule_of(line: &str, family: &str) -> Result<(Rule, Vec<Chain>), String> {
    rule::rule(line, family)
}

/// Reads `nft list ruleset`.
pub fn text(text: &str) -> Result<Ruleset, Gap> {
    Reader { text, at: 0 }
        .ruleset()
        .map_err(|why| Gap::Failed(Item::NftText, why))
}

/// The text, and how far it is read.
struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Reader<'t> {
    fn ruleset(&mut self) -> Result<Ruleset, String> {
        let mut ruleset = Ruleset::default();
        while let Some(line) = self.next() {
            let mut words = line.split_ascii_whitespace();
            match (words.next(), words.next(), words.next(), words.next()) {
                (Some("table"), Some(family), Some(name), Some("{")) => {
                    let table = Table {
                        family: family.to_owned(),
                        name: name.to_owned(),
                        ..Table::default()
                    };
                    let owner = line.split_once("# progname ").map_or("", |(_, name)| name);
                    ruleset.tables.push(self.table(table, owner.trim())?);
                }
                _ => {
                    return Err(self.at_line(
                        self.at,
                        &format!("{line:?} is not what `nft list ruleset` prints"),
                    ));
                }
            }
        }
        Ok(ruleset)
    }

    /// Reads the rest of `table`; `owner` is the name of its owner, if it has one.
    fn table(&mut self, mut table: Table, owner: &str) -> Result<Table, String> {
        let within = format!("table {} {}", table.family, table.name);
        // Behind those with a name, as in JSON.
        let mut blocks = Vec::new();
        loop {
            let line = self.line_of(&within)?;
            let mut words = line.split_ascii_whitespace();
            match (words.next(), words.next(), words.next()) {
                (Some("}"), ..) => {
                    table.chains.extend(blocks);
                    return Ok(table);
                }
                (Some("chain"), Some(name), Some("{")) => {
                    let (chain, inner) = self.chain(name, &table.family)?;
                    table.chains.push(chain);
                    blocks.extend(inner);
                }
                (Some(kind @ ("set" | "map" | "meter")), Some(name), Some("{")) => {
                    table.sets.push(self.set(kind, name)?);
                }
                (Some("limit"), Some(name), Some("{")) => {
                    if let Some(rate) = self.rate(name)? {
                        table
                            .limits
                            .insert(name.to_owned(), format!("limit {rate}"));
                    }
                }
                (Some("comment"), ..) => table.comment = quoted(line),
                // `flags dormant`, `flags dormant,owner;`
                (Some("flags"), Some(flags), _) => {
                    let is = |name| flags.split([',', ';']).any(|flag| flag == name);
                    table.dormant = is("dormant");
                    table.owner = is("owner").then(|| owner.to_owned());
                }
                _ if opens(line) => self.pass_over(line)?,
                _ => {}
            }
        }
    }

    /// Reads the limit called `name`: `rate over 1/minute burst 1 packets`.
    fn rate(&mut self, name: &str) -> Result<Option<String>, String> {
        let within = format!("limit {name}");
        let mut rate = None;
        loop {
            let line = self.line_of(&within)?.trim();
            match line {
                "}" => return Ok(rate),
                _ if line.starts_with("rate ") => rate = Some(line.to_owned()),
                _ => {}
            }
        }
    }

    /// Reads a chain, and those without a name that its rules jump to.
    fn chain(&mut self, name: &str, family: &str) -> Result<(Chain, Vec<Chain>), String> {
        let mut blocks = Vec::new();
        let within = format!("chain {name}");
        let mut chain = Chain {
            name: name.to_owned(),
            ..Chain::default()
        };
        loop {
            let line = self.line_of(&within)?;
            let words = line.trim_start();
            if words.starts_with('}') {
                return Ok((chain, blocks));
            }
            if words.starts_with("type ") && words.contains(" hook ") {
                let base = base(words, family);
                chain.base = Some(base.map_err(|why| self.at_line(self.at, &why))?);
            } else if words.starts_with("comment \"") {
                chain.comment = quoted(words);
            } else {
                let at = self.at;
                let rule = rule::rule(self.balanced(line)?, family);
                let (rule, inner) = rule.map_err(|why| self.at_line(at, &why))?;
                chain.rules.push(rule);
                blocks.extend(inner);
            }
        }
    }

    fn set(&mut self, kind: &str, name: &str) -> Result<Set, String> {
        let within = format!("{kind} {name}");
        let mut set = Set {
            name: name.to_owned(),
            data: (kind == "map").then(Vec::new),
            ..Set::default()
        };
        loop {
            let line = self.line_of(&within)?.trim();
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word.trim_end_matches(';') {
                "}" => return Ok(set),
                "type" | "typeof" => {
                    let rest = rest.trim_end_matches(';').trim_end();
                    let (key, data) = match rest.split_once(" : ") {
                        Some((key, data)) => (key, Some(data)),
                        None => (rest, None),
                    };
                    set.key = types(key);
                    if let Some(data) = data {
                        set.data = Some(types(data));
                    }
                }
                "flags" => {
                    let flags = rest.trim_end_matches(';').split(',');
                    set.flags = flags.map(|flag| flag.trim().to_owned()).collect();
                }
                "timeout" => set.timeout = seconds(rest.trim_end_matches(';')),
                "comment" => set.comment = quoted(line),
                "elements" => {
                    let at = self.at;
                    let elements = elements(self.balanced(line)?);
                    set.elements = elements.map_err(|why| self.at_line(at, &why))?;
                }
                "limit" | "quota" | "ct" => set.run.push(rule::other(&mut Tokens::new(line))),
                // `size`, `gc-interval`, `policy`, `auto-merge`, `counter`: storage options.
                _ => {}
            }
        }
    }

    /// Reads past the end of the block that `line` opens.
    fn pass_over(&mut self, line: &'t str) -> Result<(), String> {
        self.balanced(line).map(|_| ())
    }

    /// Returns the next line that is not empty, without its indentation and its number in the kernel's list.
    fn next(&mut self) -> Option<&'t str> {
        while self.at < self.text.len() {
            let rest = &self.text[self.at..];
            let end = rest.find('\n').map_or(rest.len(), |end| end + 1);
            self.at += end;
            let line = rest[..end].trim_end_matches(['\n', '\r']);
            let bare = line.trim();
            // A comment: of nft, that iptables-nft made a table.
            if !bare.is_empty() && !bare.starts_with('#') {
                return Some(outdented(line));
            }
        }
        None
    }

    fn line_of(&mut self, block: &str) -> Result<&'t str, String> {
        self.next()
            .ok_or_else(|| format!("the text ends within {block}; was it cut short?"))
    }

    /// Returns `line`, the last one read, together with the lines that follow until every brace is closed.
    fn balanced(&mut self, line: &'t str) -> Result<&'t str, String> {
        // Lines are slices of the text: their start gives their place.
        let start = line.as_ptr() as usize - self.text.as_ptr() as usize;
        let mut end = start + line.len();
        let mut open = braces(line);
        while open > 0 {
            let from = self.at;
            let Some(next) = self.next() else {
                let number = self.text[..start].matches('\n').count() + 1;
                return Err(format!(
                    "the text ends within the braces of line {number}; was it cut short?"
                ));
            };
            open += braces(next);
            end = from
                + self.text[from..self.at]
                    .trim_end_matches(['\n', '\r'])
                    .len();
        }
        Ok(&self.text[start..end])
    }

    /// Returns `why` with the number of the line that ends at `end`.
    fn at_line(&self, end: usize, why: &str) -> String {
        format!("line {}: {why}", self.text[..end].lines().count())
    }
}

/// Returns `line` without its tabs. A blank after them is kept: nft prints nothing for some statements of iptables.
fn outdented(line: &str) -> &str {
    if line.starts_with('\t') {
        line.trim_start_matches('\t')
    } else {
        line.trim_start()
    }
}

/// Whether `line` begins a block; `nft -a` puts the handle behind the brace.
fn opens(line: &str) -> bool {
    braces(line) > 0
}

/// Returns how many more braces `line` opens than it closes.
fn braces(line: &str) -> i32 {
    marks(line).fold(0, |open, byte| match byte {
        b'{' => open + 1,
        b'}' => open - 1,
        _ => open,
    })
}

/// Iterates over the bytes of `text` that are not quoted.
fn marks(text: &str) -> impl Iterator<Item = u8> {
    let mut quoted = false;
    text.bytes().filter(move |&byte| {
        quoted ^= byte == b'"';
        !quoted
    })
}

/// Returns the text between the first and the last quote.
fn quoted(line: &str) -> Option<String> {
    let (first, last) = (line.find('"')?, line.rfind('"')?);
    (first < last).then(|| line[first + 1..last].to_owned())
}

/// Reads `type FILTER hook HOOK [device …] priority NAME ± N; policy POLICY;`.
fn base(line: &str, family: &str) -> Result<Base, String> {
    let after = |word: &str| {
        let rest = &line[line.find(word)? + word.len()..];
        Some(rest.split(';').next()?.trim())
    };
    let word = |text: &str| Some(after(text)?.split(' ').next()?.to_owned());
    let none = || format!("{line:?} has no hook");
    let priority = after(" priority ").ok_or_else(none)?;
    Ok(Base {
        kind: word("type ").ok_or_else(none)?,
        hook: word(" hook ").ok_or_else(none)?,
        devices: devices(line),
        priority: priority_of(priority, family)
            .ok_or_else(|| format!("{priority:?} is not a priority that kpx knows"))?,
        // The kernel's default, and the only one a nat chain can have.
        policy: word(" policy ").unwrap_or_else(|| "accept".to_owned()),
    })
}

/// Reads `device "eth0"` or `devices = { eth0, eth1 }` before the priority.
fn devices(line: &str) -> Vec<String> {
    let before = line.split(" priority ").next().unwrap_or_default();
    let Some((_, list)) = before.split_once(" device") else {
        return Vec::new();
    };
    let list = list.strip_prefix('s').unwrap_or(list);
    let names = list.split([' ', ',', '{', '}', '=', '"']);
    let names = names.filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

/// Names of priorities. Source: `std_prios` and `bridge_std_prios` of nftables' `src/rule.c`.
const PRIORITIES: &[(&str, i32)] = &[
    ("raw", -300),
    ("mangle", -150),
    ("dstnat", -100),
    ("filter", 0),
    ("security", 50),
    ("srcnat", 100),
];
const BRIDGE_PRIORITIES: &[(&str, i32)] = &[
    ("dstnat", -300),
    ("filter", -200),
    ("out", 100),
    ("srcnat", 300),
];

fn priority_of(text: &str, family: &str) -> Option<i32> {
    let names = if family == "bridge" {
        BRIDGE_PRIORITIES
    } else {
        PRIORITIES
    };
    let mut words = text.split_ascii_whitespace();
    let first = words.next()?;
    let known = names.iter().find(|(name, _)| *name == first);
    let from = known.map_or_else(|| first.parse().ok(), |&(_, priority)| Some(priority))?;
    let by = |words: &mut std::str::SplitAsciiWhitespace<'_>| words.next()?.parse::<i32>().ok();
    match words.next() {
        None => Some(from),
        Some("+") => from.checked_add(by(&mut words)?),
        Some("-") => from.checked_sub(by(&mut words)?),
        Some(_) => None,
    }
}

/// Returns the types of `a . b`; types of fields (`typeof ip daddr`) have their own names.
fn types(text: &str) -> Vec<String> {
    let name = |part: &str| match part {
        "ip saddr" | "ip daddr" => "ipv4_addr".to_owned(),
        "ip6 saddr" | "ip6 daddr" => "ipv6_addr".to_owned(),
        "meta l4proto" | "ip protocol" | "ip6 nexthdr" => "inet_proto".to_owned(),
        "meta mark" | "ct mark" => "mark".to_owned(),
        "iifname" | "oifname" | "meta iifname" | "meta oifname" => "ifname".to_owned(),
        _ if part.ends_with(" dport") || part.ends_with(" sport") => "inet_service".to_owned(),
        _ => part.to_owned(),
    };
    text.split(" . ").map(|part| name(part.trim())).collect()
}

/// Reads `1d2h3m4s500ms` to seconds.
fn seconds(text: &str) -> Option<u64> {
    let mut rest = text.trim();
    let mut sum = 0_u64;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let scale = match &rest[..unit] {
            "w" => 604_800,
            "d" => 86_400,
            "h" => 3600,
            "m" => 60,
            "s" | "" => 1,
            // Less than a second counts for nothing, as in the JSON.
            "ms" => 0,
            _ => return None,
        };
        sum = sum.checked_add(number.checked_mul(scale)?)?;
        rest = &rest[unit..];
    }
    Some(sum)
}

/// Reads `elements = { … }`.
fn elements(text: &str) -> Result<Vec<Element>, String> {
    if text.lines().any(|line| line.matches('"').count() % 2 == 1) {
        return Err("a quote of an element is not closed".to_owned());
    }
    let mut tokens = Tokens::new(text);
    while !matches!(tokens.next(), None | Some(Token::Mark("{"))) {}
    let mut elements = Vec::new();
    while !matches!(tokens.peek(), None | Some(Token::Mark("}"))) {
        elements.push(value::element(&mut tokens));
        while !matches!(tokens.peek(), None | Some(Token::Mark("}" | ","))) {
            tokens.next();
        }
        tokens.take_mark(",");
    }
    tokens.check_depth()?;
    if elements
        .iter()
        .any(|element| element.key == Expr::Concat(Vec::new()))
    {
        return Err("an element has no value".to_owned());
    }
    if marks(text).filter(|&byte| byte == b'{').count() > 1 {
        return Err("an element has a brace".to_owned());
    }
    Ok(elements)
}
