//! kube-proxy's log: how it started, and which troubles it reports. This is the only parser of the log.
//!
//! klog writes `Lmmdd hh:mm:ss.uuuuuu thread file:line] message`, and an error that has several lines below its message; with
//! `logging.format: json` an object a line, with `ts` in milliseconds, `caller`, `msg`, and `err` if it is an error.

use std::borrow::Cow;
use std::net::IpAddr;

use super::{Gap, Item, Time};
use crate::net::Family;

/// A redacted log without a line that kpx looks for.
pub const NOTHING_KEPT: &str = "no line that kpx looks for";
/// kube-proxy cannot use IPVS: it exits, or falls back to another mode.
pub const NO_IPVS: &str = "can't use the IPVS proxier";
/// The text of a tool before the reason of its failure.
const NO_REASON: &str = "Ignoring deprecated --wait-interval option.";
/// Another program holds the lock of iptables.
const LOCK_HELD: &str = "holding the xtables lock";

/// The error of a sync that did not get the lock.
pub const LOCKED: &str = "another program holds the lock of iptables";
/// The tool of iptables meets rules that it cannot read.
const NOT_PARSED: &str = "Parsing nftables rule failed";

/// The error of a sync whose tool cannot read the rules of its tables, without the tool's reason.
pub const UNREAD_RULES: &str =
    "iptables cannot read a rule that another program wrote into its tables with nftables";

/// The error of a sync that the kernel refused for want of IPVS, or of its scheduler.
pub const NO_SERVERS: &str = "the kernel takes no virtual servers (no such file or directory)";

/// It waits for a range of pods.
const NO_RANGE: &str = "awaiting podcidr allocation";
/// It waits no more.
const RANGE: &str = "\"nodeinfo\"";

/// The kernel's IP sets are newer than the tool.
const NEWER_SETS: &str = "not supported by userspace";
/// The tool of IP sets failed, which is no message about IPVS.
const NO_IPSET: &str = "ipset version";
/// Part of an error of IP sets, in front of the entry that was refused.
const ADDING: &str = "adding entry ";
/// Parts of errors, in lower case, that any writer would get.
const REFUSALS: &[&str] = &[ADDING, LOCKED, "could not process rule"];
/// kube-proxy's mode, with [`MODE_END`] after it: `"Using ipvs Proxier"` since 1.22, `Using ipvs Proxier.` before.
const MODE: &str = "Using ";
/// The end of the line with kube-proxy's mode.
const MODE_END: &str = " Proxier";
/// The message that it has found its Node, in lower case.
const NODE_FOUND: &str = "successfully retrieved node";
/// The message that it has read all objects of a kind, in lower case; one of [`LISTED`] names the kind.
const SYNCED: &str = "caches are synced";
/// Controllers, as messages name them, and the kinds of objects that they read.
const LISTED: &[(&str, &str)] = &[
    ("service config", "Service:"),
    ("endpoint slice config", "EndpointSlice:"),
    ("endpoints config", "Endpoints:"),
    ("node config", "Node:"),
    ("serviceCIDR config", "ServiceCIDR:"),
];
/// The default scheduler follows.
const SCHEDULER: &str = "IPVS scheduler not specified, use ";

/// The reports of kube-proxy's log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ProxyLog {
    /// Troubles of the last run that no later message ends, without duplicates, in the order of their first messages; or the
    /// reason why they cannot be read.
    pub troubles: Result<Vec<Trouble>, Gap>,
    /// Whether it is the log of a container, whose clock is UTC; a journal has the node's clock.
    pub of_container: bool,
    /// The last line about IP sets that the tool cannot read.
    pub newer_sets: Option<String>,
    /// The last line about a kernel without IPVS.
    pub no_ipvs: Option<String>,
}

/// How kube-proxy started.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Started {
    /// The name of its mode.
    pub mode: Option<String>,
    /// The scheduler of its virtual servers: logged only if the configuration sets none.
    pub scheduler: Option<String>,
}

/// A trouble, and how often it is reported.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Trouble {
    /// Its kind.
    pub kind: Kind,
    /// The IP family, where the message names one.
    pub family: Option<Family>,
    /// The error, without the message around it; one line.
    pub error: String,
    /// The number of messages.
    pub count: usize,
    /// When the first was written, `mmdd hh:mm:ss` in the time zone of the container.
    pub first: String,
    /// When the last was written.
    pub last: String,
    /// The first line of the last message.
    pub line: String,
}

/// The kind of a trouble.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// It exits.
    Exit,
    /// It cannot write its rules, virtual servers or sets.
    Sync,
    /// It cannot read objects of the cluster.
    Watch,
    /// It runs in mode iptables, since it cannot run in mode ipvs.
    Fallback,
    /// It does not know fields of its configuration file, and ignores them.
    UnknownFields,
    /// It does not find its Node.
    Node,
    /// It has not started: its Node has no range of pods yet.
    Range,
    /// It does not serve a NodePort on which another process listens: before 1.24 it opens them itself.
    Port,
}

/// Words of messages, as releases since 1.12 write them, and their meaning. The first match counts.
const SIGNS: &[(&str, Kind)] = &[
    ("\"command failed\"", Kind::Exit),
    ("error running proxyserver", Kind::Exit),
    ("can't determine whether to use ipvs proxy", Kind::Fallback),
    ("can't use ipvs proxier", Kind::Fallback),
    ("can't use the ipvs proxier", Kind::Fallback),
    ("using lenient decoding", Kind::UnknownFields),
    ("failed to execute iptables-restore", Kind::Sync),
    ("no iptables support for family", Kind::Sync),
    ("failed to ensure chain", Kind::Sync),
    ("failed to ensure that", Kind::Sync),
    ("nftables sync failed", Kind::Sync),
    ("failed to create dummy interface", Kind::Sync),
    ("failed to bind service address", Kind::Sync),
    ("failed to list ipvs destinations", Kind::Sync),
    ("failed to get ipvs service", Kind::Sync),
    ("failed to add ipvs service", Kind::Sync),
    ("failed to make sure existence of ip set", Kind::Sync),
    ("failed to add ip set entry", Kind::Sync),
    ("failed to delete ip set entry", Kind::Sync),
    ("failed to list ip set entries", Kind::Sync),
    // Before 1.20.
    ("failed to make sure ip set", Kind::Sync),
    ("failed to add entry: ", Kind::Sync),
    ("failed to retrieve node info", Kind::Node),
    (NO_RANGE, Kind::Range),
    ("can't open port, skipping", Kind::Port),
    ("can't open \"nodeport", Kind::Port),
    ("can't open \"externalip", Kind::Port),
    ("failed to watch *", Kind::Watch),
    ("\"failed to watch\"", Kind::Watch),
    ("failed to list *", Kind::Watch),
];

/// Returns the messages of `text` that kpx looks for, as lines.
pub fn sought(text: &str) -> Vec<&str> {
    let mut is_kept = false;
    let kept = text.lines().filter(|line| {
        let head = header(line).map(|header| header.severity);
        if head.is_some() {
            is_kept = false;
        }
        is_kept |= head == Some(b'F') || is_sign(line) || kind_of(&line.to_lowercase()).is_some();
        is_kept || head.is_none() && crash(line).is_some()
    });
    kept.collect()
}

/// Returns whether `line` has one of the signs that need no header of klog.
fn is_sign(line: &str) -> bool {
    let signs = [NO_IPVS, LOCK_HELD, NEWER_SETS, SCHEDULER];
    signs.iter().any(|sign| line.contains(sign))
        || mode_in(line).is_some()
        || [NODE_FOUND, SYNCED, RANGE]
            .iter()
            .any(|sign| line.to_lowercase().contains(sign))
}

/// Returns the name of the mode that `line` says kube-proxy starts in.
fn mode_in(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(MODE)?;
    let (name, _) = rest.split_once(MODE_END)?;
    Some(name).filter(|name| !name.contains(' '))
}

/// Reads how kube-proxy started, in `text`; the last start counts.
pub fn started(text: &str) -> Started {
    let mut started = Started::default();
    for line in text.lines() {
        if let Some(mode) = mode_in(line) {
            // A log may hold more than one start.
            started = Started {
                mode: Some(mode.to_owned()),
                scheduler: None,
            };
        }
        if let Some((_, rest)) = line.split_once(SCHEDULER) {
            started.scheduler = rest.split([' ', '"']).next().map(str::to_owned);
        }
    }
    started
}

fn kind_of(lowercase: &str) -> Option<Kind> {
    let sign = SIGNS.iter().find(|(words, _)| lowercase.contains(words));
    sign.map(|(_, kind)| *kind)
}

/// A message, with the lines that belong to it.
struct Entry<'a> {
    severity: u8,
    time: Cow<'a, str>,
    source: Cow<'a, str>,
    text: String,
}

/// Reads kube-proxy's log.
pub fn parse(text: &str) -> ProxyLog {
    let with = |sign: &'static str| {
        let lines = text.lines().filter(move |line| line.contains(sign));
        lines.map(|line| line.trim().to_owned())
    };
    ProxyLog {
        troubles: troubles(text),
        of_container: text.lines().any(|line| {
            header(line).is_some()
                && (line.starts_with(['I', 'W', 'E', 'F']) || line.contains(" stderr F "))
        }),
        newer_sets: with(NEWER_SETS).next_back(),
        no_ipvs: with(NO_IPVS).rfind(|line| !line.contains(NO_IPSET)),
    }
}

fn troubles(text: &str) -> Result<Vec<Trouble>, Gap> {
    let entries = entries(text);
    if entries.is_empty() && !["", NOTHING_KEPT].contains(&text.trim()) {
        let why = "no line begins as klog's do";
        return Err(Gap::Failed(Item::ProxyLog, why.to_owned()));
    }
    let mut troubles = Vec::new();
    let mut has_ended = false;
    for entry in &entries {
        let lowercase = entry.text.to_lowercase();
        let kind = kind_of(&lowercase).or((entry.severity == b'F').then_some(Kind::Exit));
        if has_ended && kind != Some(Kind::Exit) {
            // The next run begins.
            troubles.clear();
        }
        has_ended = kind == Some(Kind::Exit);
        match kind {
            // A failed clean-up of other modes does not stop its work.
            Some(_) if entry.source.starts_with("cleanup.go") => {}
            Some(kind) => note(&mut troubles, kind, entry),
            None if lowercase.contains("syncproxyrules complete") => {
                let family = family_in(&entry.text);
                let is_of =
                    |other: Option<Family>| other.is_none() || family.is_none() || other == family;
                troubles.retain(|trouble| trouble.kind != Kind::Sync || !is_of(trouble.family));
            }
            None if lowercase.contains(SYNCED) => {
                let is_of = |trouble: &Trouble| {
                    let mut kinds = LISTED.iter().filter(|(name, _)| entry.text.contains(name));
                    kinds.any(|(_, kind)| trouble.line.contains(&format!("v1.{kind}")))
                };
                troubles.retain(|trouble| trouble.kind != Kind::Watch || !is_of(trouble));
            }
            None if lowercase.contains(NODE_FOUND) => {
                troubles.retain(|trouble| trouble.kind != Kind::Node);
            }
            None if lowercase.contains(RANGE) => {
                troubles.retain(|trouble| trouble.kind != Kind::Range);
            }
            None => {}
        }
    }
    Ok(troubles)
}

/// A port that kube-proxy opens, so that no other process does.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Claim {
    /// The Service port, `NAMESPACE/NAME:PORT`.
    pub service: String,
    /// The IP family; `None` for both.
    pub family: Option<Family>,
    /// The address; `None` for all of the node.
    pub address: Option<IpAddr>,
    /// The port.
    pub port: u16,
}

impl Trouble {
    /// Returns the port that kube-proxy does not open, if the last message is about one.
    pub fn claim(&self) -> Option<Claim> {
        let line = &self.line;
        let lowercase = line.to_lowercase();
        let at = ["nodeport for ", "externalip for "]
            .iter()
            .find_map(|sign| Some(lowercase.find(sign)? + sign.len()))?;
        let service = line[at..].split([' ', '"', ',', '\\']).next()?;
        // `listen tcp4 :30080: bind: …`, with the address where it is not any of the node's.
        let (_, listen) = self.error.split_once("listen ")?;
        let mut words = listen.split(' ');
        let (network, at) = (words.next()?, words.next()?.trim_end_matches(':'));
        let (host, port) = at.rsplit_once(':')?;
        let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
        let named = [
            ("tcp4", Family::V4),
            ("udp4", Family::V4),
            ("tcp6", Family::V6),
            ("udp6", Family::V6),
        ];
        let named = named.iter().find(|(name, _)| *name == network);
        Some(Claim {
            service: service.to_owned(),
            family: named
                .map(|(_, family)| *family)
                .or_else(|| address.map(Family::of)),
            address,
            port: port.parse().ok()?,
        })
    }

    /// Returns the IP set and the entry that it refuses, if the last message is about one.
    pub fn refused_entry(&self) -> Option<(&str, &str)> {
        let (_, rest) = self.line.split_once(ADDING)?;
        let entry = rest.split(", error").next()?.split([' ', '"']).next()?;
        let mut words = self.line.split([' ', '"', ',', '=']);
        let set = words.find(|word| word.starts_with("KUBE-"))?;
        Some((set, entry))
    }
}

impl ProxyLog {
    /// Returns whether its last run reports a refusal that any other program meets, too: of the kernel, of the tool of IP sets, or by
    /// whoever holds the lock.
    pub fn refuses_all(&self) -> bool {
        let mut troubles = self.troubles.iter().flatten();
        troubles.any(|trouble| {
            let error = trouble.error.to_lowercase();
            let mut signs = REFUSALS.iter();
            trouble.kind == Kind::Sync && signs.any(|sign| error.contains(sign))
        })
    }

    /// Returns whether its last run reports trouble of one of `kinds`.
    pub fn has(&self, kinds: &[Kind]) -> bool {
        let troubles = self.troubles.iter().flatten();
        troubles
            .into_iter()
            .any(|trouble| kinds.contains(&trouble.kind))
    }
}

fn note(troubles: &mut Vec<Trouble>, kind: Kind, entry: &Entry<'_>) {
    let (family, error) = (family_in(&entry.text), error(&entry.text));
    let line = entry.text.lines().next().unwrap_or_default();
    let line = line.replace("err=<", &format!("err={error}"));
    let time = entry.time.to_string();
    // The same error about another address is the same trouble.
    let is_same = |trouble: &&mut Trouble| {
        let is_it = match kind {
            Kind::Exit => true,
            // Each is of a Service of its own.
            Kind::Port => trouble.error == error && trouble.line == line,
            _ => without_numbers(&trouble.error) == without_numbers(&error),
        };
        trouble.kind == kind && trouble.family == family && is_it
    };
    if let Some(known) = troubles.iter_mut().find(is_same) {
        (known.count, known.last, known.line) = (known.count + 1, time, line);
        return;
    }
    troubles.push(Trouble {
        kind,
        family,
        error,
        count: 1,
        first: time.clone(),
        last: time,
        line,
    });
}

/// Returns `text` without the parts that differ by Service.
fn without_numbers(text: &str) -> String {
    let text = text.replace(|c: char| c.is_ascii_digit(), "");
    // An entry of an IP set may be an address and a port, or a port.
    match text.split_once(ADDING) {
        Some((head, rest)) => {
            let (_, tail) = rest.split_once(", error").unwrap_or_default();
            format!("{head}{ADDING}{tail}")
        }
        None => text,
    }
}

fn entries(text: &str) -> Vec<Entry<'_>> {
    let mut all: Vec<Entry<'_>> = Vec::new();
    for line in text.lines() {
        let line = further(line).unwrap_or(line);
        match (
            header(line)
                .or_else(|| object(line))
                .or_else(|| crash(line)),
            all.last_mut(),
        ) {
            (Some(entry), _) => all.push(entry),
            (None, Some(last)) => {
                last.text.push('\n');
                last.text += line;
            }
            (None, None) => {}
        }
    }
    all
}

/// The most words in front of a message in a journal: the date, the time, the host and the program.
const MOST_WORDS: usize = 5;

/// Returns a further line of a message without the prefix of a journal: `Nov 02 23:10:04 node1 k3s[812]: `.
pub fn further(line: &str) -> Option<&str> {
    let (head, rest) = line.split_once("]: ")?;
    let (head, pid) = head.rsplit_once('[')?;
    let is_journal = head.split(' ').count() <= MOST_WORDS
        && !head.ends_with(' ')
        && !head.starts_with(char::is_whitespace)
        && !pid.is_empty()
        && pid.bytes().all(|c| c.is_ascii_digit());
    (is_journal && header(line).is_none()).then_some(rest)
}

/// Returns the message of a line that is an object of JSON, as klog would write it.
fn object(line: &str) -> Option<Entry<'static>> {
    let start = line.find('{')?;
    let object: serde_json::Value = serde_json::from_str(&line[start..]).ok()?;
    let text = |key: &str| object.get(key).and_then(serde_json::Value::as_str);
    let (message, error) = (text("msg")?, text("err"));
    let values = ["ipFamily", "type"].into_iter();
    let values = values.filter_map(|key| Some(format!(" {key}={:?}", text(key)?)));
    let error = error.map(|error| format!(" err={error:?}"));
    let text_of: String = error.clone().into_iter().chain(values).collect();
    Some(Entry {
        severity: if error.is_some() { b'E' } else { b'I' },
        time: Time::from_epoch(object.get("ts")?.as_f64()? / 1000.0)?
            .as_logged()
            .into(),
        source: text("caller")
            .unwrap_or_default()
            .rsplit('/')
            .next()?
            .to_owned()
            .into(),
        text: format!("\"{message}\"{text_of}"),
    })
}

/// Beginnings of lines that end a program without a time: Go's runtime, flags that it does not know, and a container runtime that
/// cannot start it.
const LAST_WORDS: &[&str] = &[
    "panic: ",
    "fatal error: ",
    "Error: ",
    "error: ",
    "exec ",
    "exec: ",
    "standard_init_linux.go:",
];

/// Returns the last words of a program that crashes, or cannot be started.
fn crash(line: &str) -> Option<Entry<'_>> {
    LAST_WORDS
        .iter()
        .any(|words| line.starts_with(words))
        .then(|| Entry {
            severity: b'F',
            time: "the end".into(),
            source: "".into(),
            text: line.to_owned(),
        })
}

/// Returns the message that begins in `line`; a journal or kubectl puts words in front of it.
fn header(line: &str) -> Option<Entry<'_>> {
    let starts = line.match_indices(['I', 'W', 'E', 'F']);
    let mut starts = starts.filter(|(at, _)| *at == 0 || line.as_bytes()[at - 1] == b' ');
    starts.find_map(|(at, _)| {
        let rest = &line[at..];
        let time = rest.get(1..14)?;
        let is_time = time.bytes().enumerate().all(|(at, byte)| match at {
            4 => byte == b' ',
            7 | 10 => byte == b':',
            _ => byte.is_ascii_digit(),
        });
        let (head, message) = rest.split_once("] ")?;
        is_time.then(|| Entry {
            severity: rest.as_bytes()[0],
            time: time.into(),
            source: head.rsplit(' ').next().unwrap_or_default().into(),
            text: message.to_owned(),
        })
    })
}

fn family_in(text: &str) -> Option<Family> {
    let names = |name: &str| text.contains(name);
    if names("ipFamily=\"IPv6\"") || names("ip6tables") {
        Some(Family::V6)
    } else if names("ipFamily=\"IPv4\"") || names("iptables-restore v") {
        Some(Family::V4)
    } else {
        None
    }
}

/// Returns the error of a message: the value of `err=`, or the text after the first colon; its first line with words, without
/// the exit status of a tool.
fn error(text: &str) -> String {
    let value = match text.split_once("err=") {
        Some((_, rest)) if rest.starts_with('"') => unquoted(&rest[1..]),
        Some((_, rest)) => rest
            .trim_start_matches('<')
            .split("\n >")
            .next()
            .unwrap_or_default()
            .to_owned(),
        None => {
            let after = ["panic: ", ", error: ", ", err: ", " error: ", ": "];
            // The path says what the error is about.
            let words = ["exec ", "open ", "write ", "read ", "mkdir "];
            if words.iter().any(|word| text.starts_with(word)) {
                return text.lines().next().unwrap_or_default().trim().to_owned();
            }
            let split = after.iter().find_map(|sign| text.split_once(sign));
            split.map_or(text, |(_, rest)| rest).to_owned()
        }
    };
    let mut value = value.trim();
    if let Some(rest) = value.strip_prefix("exit status ") {
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let rest = rest.trim_start_matches([':', '(', ' ']);
        value = if rest.is_empty() { value } else { rest };
    }
    if value.contains(LOCK_HELD) {
        return LOCKED.to_owned();
    }
    if value.contains("no such file or directory") && text.to_lowercase().contains("ipvs service") {
        return NO_SERVERS.to_owned();
    }
    if value.contains(NOT_PARSED) {
        let first = value.lines().next().unwrap_or_default();
        let reason = first.rsplit("Error: ").next().unwrap_or(first);
        return format!("{UNREAD_RULES} ({})", reason.trim());
    }
    let value = value.replace(NO_REASON, "");
    let mut lines = value.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let whole = match lines.next() {
        Some(next) if first.ends_with(':') => format!("{first} {next}"),
        _ => first.to_owned(),
    };
    without_query(&whole)
}

/// Returns `text` without the query of a URL in quotation marks, which is long and hides the reason.
fn without_query(text: &str) -> String {
    let query = text.split_once("\"http").and_then(|(_, url)| {
        let (url, _) = url.split_once('"')?;
        url.find('?').map(|at| &url[at..])
    });
    query.map_or_else(|| text.to_owned(), |query| text.replacen(query, "", 1))
}

/// Returns the beginning of `text`, up to the quotation mark that ends it, without escapes.
fn unquoted(text: &str) -> String {
    let mut value = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => match chars.next() {
                Some('n') => value.push('\n'),
                Some('t') => value.push('\t'),
                Some(other) => value.push(other),
                None => {}
            },
            _ => value.push(c),
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn troubles(text: &str) -> Vec<(Kind, Option<Family>, String, usize)> {
        let all = super::troubles(text).unwrap().into_iter();
        all.map(|trouble| (trouble.kind, trouble.family, trouble.error, trouble.count))
            .collect()
    }

    const UNKNOWN_OPTION: &str = "E1120 11:12:14.212635    9234 proxier.go:1432] \"Failed to execute iptables-restore\" err=<\n\
         \texit status 2: ip6tables-restore v1.8.7 (nf_tables): unknown option \"--xor-mark\"\n\
         \tError occurred at line: 11\n > ipFamily=\"IPv6\"\n\
         I1120 11:12:14.212700    9234 proxier.go:810] \"Sync failed\" ipFamily=\"IPv6\" retryingTime=\"30s\"\n";

    #[test]
    fn messages_of_each_form_have_their_reason() {
        let option = "ip6tables-restore v1.8.7 (nf_tables): unknown option \"--xor-mark\"";
        let twice = UNKNOWN_OPTION.repeat(2);
        assert_eq!(
            troubles(&twice),
            [(Kind::Sync, Some(Family::V6), option.to_owned(), 2)]
        );
        let old = "E0716 10:28:40.412330       1 proxier.go:1507] Failed to execute iptables-restore: exit status 2 \
                   (iptables-restore v1.8.3 (legacy): Couldn't load match `recent':No such file or directory\n\n\
                   Error occurred at line: 88\n)\n";
        let error = "iptables-restore v1.8.3 (legacy): Couldn't load match `recent':No such file or directory";
        assert_eq!(
            troubles(old),
            [(Kind::Sync, Some(Family::V4), error.to_owned(), 1)]
        );
        let exit = "Nov 20 11:00:00 node1 kube-proxy[1]: E0408 02:38:35.393347       1 run.go:72] \"command failed\" \
                    err=\"open \\\"x\\\": permission denied\"\n";
        assert_eq!(
            troubles(exit),
            [(Kind::Exit, None, "open \"x\": permission denied".into(), 1)]
        );
        let fell = "E1026 20:50:47.326512       1 server_others.go:259] can't determine whether to use ipvs proxy, error: no \
                    modules: [nf_conntrack_ipv4]\n";
        let fell = troubles(fell);
        assert_eq!(fell[0].0, Kind::Fallback);
        assert_eq!(fell[0].2, "no modules: [nf_conntrack_ipv4]");
        let watch = "E1120 11:00:00.000000       1 reflector.go:205] \"Failed to watch\" err=\"failed to list *v1.Service: \
                     Unauthorized\" type=\"*v1.Service\"\n";
        let watch = troubles(watch);
        assert_eq!(
            (watch[0].0, watch[0].2.as_str()),
            (Kind::Watch, "failed to list *v1.Service: Unauthorized")
        );
    }

    #[test]
    fn a_port_that_is_not_opened_is_of_a_service_an_address_and_a_family() {
        let claim = |message: &str| {
            let text = format!("E1102 23:10:04.959564 1 proxier.go:1278] {message}");
            let log = parse(&text).troubles.unwrap();
            log[0].claim()
        };
        let own = |family, address: Option<&str>, port| {
            Some(Claim {
                service: "shop/web:http".to_owned(),
                family,
                address: address.map(|address| address.parse().unwrap()),
                port,
            })
        };
        // Until 1.20, since then, and with the fields of the port.
        let old = "can't open \"nodePort for shop/web:http\" (:30080/tcp), skipping this nodePort: listen tcp :30080: bind: address \
                   already in use";
        assert_eq!(claim(old), own(None, None, 30080));
        let new = "\"can't open port, skipping this nodePort\" err=\"listen tcp6 [fd00::2]:30080: bind: cannot assign requested \
                   address\" port=\"\\\"nodePort for shop/web:http\\\" ([fd00::2]:30080/tcp6)\"";
        assert_eq!(claim(new), own(Some(Family::V6), Some("fd00::2"), 30080));
        let fields = "\"can't open port, skipping it\" err=\"listen udp4 :31234: bind: address already in use\" \
                      port={Description:nodePort for shop/web:http IP: IPFamily:4 Port:31234 Protocol:UDP}";
        assert_eq!(claim(fields), own(Some(Family::V4), None, 31234));
    }

    #[test]
    fn further_lines_of_a_journal_are_known_by_what_is_in_front_of_them() {
        for head in [
            "Nov 02 23:10:04 w1 k3s[812]: ",
            "Nov 02 23:10:04 k3s[812]: ",
            "2023-11-02T23:10:04+0000 w1 k3s[812]: ",
            "k3s[812]: ",
        ] {
            assert_eq!(
                further(&format!("{head}\texit status 2")),
                Some("\texit status 2")
            );
            assert_eq!(
                further(&format!("{head}E1102 23:10:04.9 1 a.go:1] x")),
                None
            );
        }
        assert_eq!(further("\texit status 2: line [76]: failed"), None);
    }

    #[test]
    fn a_node_that_is_not_found_is_trouble_until_it_is() {
        let lacks = "W0112 22:47:44.651776       1 node.go:103] Failed to retrieve node info: nodes \"10.9.57.240\" not found\n\
                     E0112 22:47:45.651776       1 server.go:1039] \"Failed to retrieve node info\" err=\"nodes \\\"10.9.57.240\\\" not found\"\n";
        let error = "nodes \"10.9.57.240\" not found".to_owned();
        assert_eq!(troubles(lacks), [(Kind::Node, None, error, 2)]);
        let found = "I0112 22:47:46.651776       1 node.go:172] Successfully retrieved node IP: 172.24.17.16\n";
        assert_eq!(troubles(&format!("{lacks}{found}")), []);
        let kept = sought(&format!("{lacks}{found}")).join("\n");
        assert_eq!(troubles(&kept), []);
    }

    #[test]
    fn only_the_last_run_counts_and_a_sync_that_ends_ends_the_trouble() {
        let ended = format!(
            "{UNKNOWN_OPTION}I1120 11:13:00.000000    9234 proxier.go:1500] \"SyncProxyRules complete\" ipFamily=\"IPv6\"\n"
        );
        assert_eq!(troubles(&ended), []);
        let other = ended.replace(
            "complete\" ipFamily=\"IPv6\"",
            "complete\" ipFamily=\"IPv4\"",
        );
        assert_eq!(troubles(&other).len(), 1);
        let exit = "F0424 02:55:01.0 1 server.go:495] open /etc/config.conf: no such file\n";
        let exit = exit.replace("01.0 ", "01.000000 ");
        assert_eq!(troubles(&exit)[0].0, Kind::Exit);
        let again = format!("{exit}I0424 02:56:01.000000 1 server.go:583] Version: v1.18.0\n");
        assert_eq!(troubles(&again), []);
        let clean = "E1120 11:12:14.212635 9 cleanup.go:89] \"Failed to execute iptables-restore\" err=\"x\"\n";
        assert_eq!(troubles(clean), []);
        let lock = clean.replace("cleanup.go:89", "proxier.go:9").replace(
            "err=\"x\"",
            "err=\"exit status 4: Another app is currently holding the xtables lock\"",
        );
        let found = troubles(&lock);
        assert_eq!((found[0].0, found[0].2.as_str()), (Kind::Sync, LOCKED));
        let paths = "F0515 10:12:01.348690 1 server.go:485] write /sys/module/x/parameters/hashsize: operation not supported\n";
        assert_eq!(
            troubles(paths)[0].2,
            "write /sys/module/x/parameters/hashsize: operation not supported"
        );
    }

    #[test]
    fn messages_of_many_releases_are_read() {
        let at = "2026-11-20T11:00:00Z E1120 11:00:00.000000       1 ";
        for (text, kind, reason) in [
            (
                "I1120 11:00:00.000000       1 a.go:1] \"Starting\"\npanic: runtime error: invalid memory address\n\ngoroutine 1:\n"
                    .to_owned(),
                Kind::Exit,
                "runtime error: invalid memory address",
            ),
            (
                format!(
                    "{at}proxier.go:1723] \"nftables sync failed\" err=<\n\t/dev/stdin:2:1-9: Error: Could not process rule: No such \
                     file or directory\n > ipFamily=\"IPv4\"\n"
                ),
                Kind::Sync,
                "/dev/stdin:2:1-9: Error: Could not process rule: No such file or directory",
            ),
            (
                format!(
                    "{at}reflector.go:227] \"Failed to watch\" err=\"tls: failed to verify certificate: x509: certificate has expired\" \
                     type=\"*v1.Service\"\n"
                ),
                Kind::Watch,
                "tls: failed to verify certificate: x509: certificate has expired",
            ),
            (
                format!(
                    "{at}reflector.go:158] \"Unhandled Error\" err=\"factory.go:160: Failed to watch *v1.EndpointSlice: failed to list \
                     *v1.EndpointSlice: the server could not find the requested resource\"\n"
                ),
                Kind::Watch,
                "factory.go:160: Failed to watch *v1.EndpointSlice: failed to list *v1.EndpointSlice: the server could not find the \
                 requested resource",
            ),
            (
                format!(
                    "{at}proxier.go:874] Failed to ensure that nat chain KUBE-SERVICES exists: error creating chain: exit status 3: \
                     Table does not exist\n"
                ),
                Kind::Sync,
                "error creating chain: exit status 3: Table does not exist",
            ),
            (
                format!("{at}ipset.go:188] \"Failed to make sure existence of ip set\" err=\"exit status 1\" ipSet=\"x\"\n"),
                Kind::Sync,
                "exit status 1",
            ),
        ] {
            let found = troubles(&text);
            assert_eq!(found.len(), 1, "{text}");
            assert_eq!((found[0].0, &*found[0].2), (kind, reason), "{text}");
        }
    }

    #[test]
    fn what_is_no_log_of_klog_is_unknown() {
        assert!(parse("hello\n").troubles.is_err());
        assert!(parse("{\"a\":1}\n").troubles.is_err());
        assert_eq!(parse("").troubles, Ok(Vec::new()));
    }

    #[test]
    fn objects_of_json_are_messages() {
        let json = "{\"ts\":1763636400000.0,\"caller\":\"app/server.go:136\",\"msg\":\"Error running ProxyServer\",\"err\":\"x \\\"y\\\"\"}\n";
        let log = parse(json).troubles.unwrap();
        assert_eq!(log.len(), 1);
        assert_eq!((log[0].kind, &*log[0].error), (Kind::Exit, "x \"y\""));
        assert_eq!(log[0].last, "1120 11:00:00");
        let sync = "{\"ts\":1763636400000.0,\"caller\":\"iptables/proxier.go:1\",\"msg\":\"Failed to execute iptables-restore\",\"err\":\"exit status 2: bad\",\"ipFamily\":\"IPv6\"}\n";
        assert_eq!(
            troubles(sync),
            [(Kind::Sync, Some(Family::V6), "bad".to_owned(), 1)]
        );
    }

    #[test]
    fn last_words_without_a_time_are_an_exit() {
        for (text, error) in [
            (
                "exec /usr/local/bin/kube-proxy: exec format error\n",
                "exec /usr/local/bin/kube-proxy: exec format error",
            ),
            (
                "Error: unknown flag: --proxy-mod\nUsage:\n  kube-proxy [flags]\n",
                "unknown flag: --proxy-mod",
            ),
        ] {
            assert_eq!(troubles(text), [(Kind::Exit, None, error.to_owned(), 1)]);
            assert_eq!(sought(text), [text.lines().next().unwrap()]);
        }
    }

    #[test]
    fn lines_of_other_checks_need_no_header() {
        let log =
            parse("b not supported by userspace\nc can't use the IPVS proxier: ipset version\n");
        assert_eq!(
            log.newer_sets.as_deref(),
            Some("b not supported by userspace")
        );
        assert_eq!(log.no_ipvs, None);
    }
}
