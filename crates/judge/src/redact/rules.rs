//! Redaction of rules and sets: chains, links, comments and addresses.

use std::net::IpAddr;

use super::Redactor;
use super::names::{Kind, nft_hash};
use super::words;
use kpx_node::backend::iptables::model::IN_PART;
use kpx_node::foreign;

/// Words that are followed by text of an administrator.
const TEXT: &[&str] = &[
    "--comment",
    "--gid-owner",
    "--hex-string",
    "--log-prefix",
    "--nflog-prefix",
    "--path",
    "--string",
    "--uid-owner",
    "--ulog-prefix",
];

/// Words that are followed by the name of a link.
const LINK: &[&str] = &[
    "-i",
    "-o",
    "--physdev-in",
    "--physdev-out",
    "ibrname",
    "iif",
    "iifname",
    "obrname",
    "oif",
    "oifname",
];

/// Words that are followed by the name of a chain or set.
const NAME: &[&str] = &[
    "--add-set",
    "--del-set",
    "--hashlimit-name",
    "--map-set",
    "--match-set",
    "--name",
    "-A",
    "-N",
    "goto",
    "jump",
];

/// Words that are followed by the name of a chain or set at the start of a line.
const DECLARED: &[&str] = &["add", "chain", "create", "flowtable", "map", "set"];

/// Families of nftables, which precede the name of a table.
const FAMILIES: &[&str] = &["arp", "bridge", "inet", "ip", "ip6", "netdev"];

/// Meaning of a word, as announced by the word before it.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Place {
    /// Text of an administrator.
    Text,
    /// Name of a link.
    Link,
    /// Name of a chain, table or set.
    Name,
    /// Name of a chain, or a target of iptables.
    Target,
    /// Family and name of a table.
    Table,
    /// The first word of a line.
    Start,
    /// Anything else.
    Code,
}

impl Redactor {
    /// Redacts rules and sets in the formats of iptables-save, nft and ipset.
    pub(super) fn rules(&mut self, text: &str) -> String {
        let mut new = String::with_capacity(text.len());
        if text.starts_with(IN_PART) {
            // Chains that rules jump to may be missing, and then no line declares them.
            let jumps = text.lines().filter_map(|line| {
                let (_, to) = line
                    .rsplit_once(" -j ")
                    .or_else(|| line.rsplit_once(" -g "))?;
                to.split_ascii_whitespace().next()
            });
            let chains = jumps.filter(|to| !foreign::is_target(to));
            self.targets.extend(chains.map(str::to_owned));
        }
        for line in text.split_inclusive('\n') {
            // It names tables alone.
            if line.starts_with(IN_PART) {
                new.push_str(line);
                continue;
            }
            // The tools' own remarks name incompatible tables.
            if line.starts_with('#') {
                new.push_str(&self.message(line));
                continue;
            }
            let mut place = Place::Start;
            let mut rest = line;
            while let Some((before, quoted, after)) = quoted(rest) {
                place = self.words(before, place, &mut new);
                let text = match place {
                    Place::Link => self.link_word(&quoted),
                    _ => self.comment(&quoted),
                };
                new.extend(["\"", &escape(&text), "\""]);
                place = Place::Code;
                rest = after;
            }
            match rest.split_once('"') {
                // The quotes do not end.
                Some((before, text)) => {
                    self.words(before, place, &mut new);
                    new.extend(["\"", &self.comment(text)]);
                }
                None => {
                    self.words(rest, place, &mut new);
                }
            }
        }
        new
    }

    /// Appends `text` word by word; returns what its last word announces.
    fn words(&mut self, text: &str, mut place: Place, new: &mut String) -> Place {
        for (word, rest) in pieces(text) {
            let replaced = match place {
                Place::Text => self.comment_word(word),
                Place::Link => self.link_word(word),
                Place::Name => self.object(word),
                Place::Target => self.target(word),
                Place::Start if word.starts_with(':') => {
                    self.targets.insert(word[1..].to_owned());
                    format!(":{}", self.object(&word[1..]))
                }
                Place::Table | Place::Start | Place::Code => self.code_word(word),
            };
            new.push_str(&replaced);
            new.push_str(rest);
            if matches!(word, "" | "!" | "!=" | "==") {
                continue;
            }
            place = match (place, word) {
                (Place::Table, _) if FAMILIES.contains(&word) => Place::Name,
                (Place::Start, "table") => Place::Table,
                (Place::Start, _) if DECLARED.contains(&word) => Place::Name,
                (Place::Start | Place::Code, "-g" | "-j") => Place::Target,
                (Place::Start | Place::Code, _) if TEXT.contains(&word) => Place::Text,
                (Place::Start | Place::Code, _) if LINK.contains(&word) => Place::Link,
                (Place::Start | Place::Code, _) if NAME.contains(&word) => Place::Name,
                _ => Place::Code,
            };
        }
        place
    }

    /// Redacts a comment.
    pub(super) fn comment(&mut self, text: &str) -> String {
        let mut new = String::new();
        for (word, rest) in pieces(text) {
            new.push_str(&self.comment_word(word));
            new.push_str(rest);
        }
        new
    }

    fn comment_word(&mut self, word: &str) -> String {
        let bare = word.trim_matches(words::AROUND);
        if words::IN_COMMENTS.contains(bare) {
            return word.to_owned();
        }
        let name = self.names.service_port(bare);
        if let Some(name) = name.or_else(|| self.names.known_link(bare)) {
            return word.replacen(bare, &name, 1);
        }
        let new = self.code_word(word);
        if new == word && bare.contains(|c: char| c.is_alphabetic()) {
            word.replacen(bare, &self.names.map(Kind::Other, bare), 1)
        } else {
            new
        }
    }

    /// Redacts a word outside comments: a chain name, a link of this node, or addresses.
    pub(super) fn code_word(&mut self, word: &str) -> String {
        if let Some(new) = self.service_chain(word) {
            return new;
        }
        match word.strip_prefix('@') {
            // nft prefixes the name of a set with `@` in expressions.
            Some(name) if !name.contains(['/', ':']) => format!("@{}", self.object(name)),
            _ => match self.names.known_link(word) {
                Some(link) => link,
                None => self.addresses(word),
            },
        }
    }

    /// Redacts the name of a chain, table or set.
    pub(super) fn object(&mut self, name: &str) -> String {
        match self.service_chain(name) {
            Some(new) => new,
            None => self.names.object(name),
        }
    }

    /// Redacts the target of a rule: a chain of the same text, or an extension.
    fn target(&mut self, word: &str) -> String {
        if self.targets.contains(word) {
            self.object(word)
        } else {
            self.code_word(word)
        }
    }

    /// Redacts the name of a link, which may have a wildcard.
    pub(super) fn link_word(&mut self, word: &str) -> String {
        let bare = word.trim_matches('"');
        let new = self.names.link(bare);
        word.replacen(bare, &new, usize::from(!bare.is_empty()))
    }

    /// Returns the replacement of a chain or set name that contains a Service's name or hash.
    fn service_chain(&mut self, word: &str) -> Option<String> {
        const IPTABLES: &[&str] = &["SVC", "SVL", "EXT", "FW", "SEP", "XLB"];
        if let Some((lead, rest)) = word.split_once("KUBE-") {
            let (kind, hash) = rest.split_once('-')?;
            let is_hash = hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_alphanumeric());
            return (IPTABLES.contains(&kind) && is_hash && matches!(lead, "" | ":"))
                .then(|| format!("{lead}KUBE-{kind}-{}", self.names.chain_hash(hash)));
        }
        let (lead, word) = match word.strip_prefix('@') {
            Some(name) => ("@", name),
            None => ("", word),
        };
        let (kind, rest) = word.split_once('-')?;
        let kinds = [
            "service", "local", "external", "firewall", "endpoint", "affinity",
        ];
        let (hash, name) = rest.split_once('-')?;
        if !kinds.contains(&kind) || hash.len() != 8 || !name.contains('/') {
            return None;
        }
        if let Some(base) = self.names.nft_base(hash) {
            return Some(format!("{lead}{kind}-{base}"));
        }
        let new = self.nft_name(name).unwrap_or_else(|| {
            // A truncated name cannot be split into its parts.
            format!("redacted/{}", self.names.keyed(name, 16))
        });
        let base = format!("{}-{new}", nft_hash(&new));
        self.names.learn_nft(&format!("{hash}-{name}"), &base);
        Some(format!("{lead}{kind}-{base}"))
    }

    /// Returns the replacement of `NS/NAME/PROTO/PORT` or `NS/NAME/PROTO/PORT__IP/PORT`.
    fn nft_name(&mut self, name: &str) -> Option<String> {
        let (service, endpoint) = match name.split_once("__") {
            Some((service, endpoint)) => (service, Some(endpoint)),
            None => (name, None),
        };
        let parts: Vec<&str> = service.split('/').collect();
        let &[namespace, service, proto, port] = parts.as_slice() else {
            return None;
        };
        let mut new = format!(
            "{}/{}/{proto}/{}",
            self.names.map(Kind::Namespace, namespace),
            self.names.map(Kind::Service, service),
            self.names.map(Kind::Port, port)
        );
        if let Some(endpoint) = endpoint {
            let (ip, port) = endpoint.split_once('/')?;
            let ip: IpAddr = ip.parse().or_else(|_| ip.replace('.', ":").parse()).ok()?;
            let ip = self.addresses.map(ip).to_string().replace(':', ".");
            new = format!("{new}__{ip}/{port}");
        }
        Some(new)
    }
}

/// Iterates over the words of `text`, each with the separators behind it.
fn pieces(text: &str) -> impl Iterator<Item = (&str, &str)> {
    const BETWEEN: [char; 6] = [' ', '\t', '\n', ',', '{', '}'];
    text.split_inclusive(BETWEEN).map(|piece| {
        let word = piece.trim_end_matches(BETWEEN);
        piece.split_at(word.len())
    })
}

/// Splits `text` at its first quoted part: the text before it, the part without escapes, and the text after it.
fn quoted(text: &str) -> Option<(&str, String, &str)> {
    let (before, rest) = text.split_once('"')?;
    let mut part = String::new();
    let mut chars = rest.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((before, part, &rest[at + 1..])),
            '\\' => part.extend(chars.next().map(|(_, escaped)| escaped)),
            _ => part.push(c),
        }
    }
    None
}

/// Escapes a quoted part as iptables-save does.
fn escape(text: &str) -> String {
    let mut new = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '"' | '\'' | '\\') {
            new.push('\\');
        }
        new.push(c);
    }
    new
}
