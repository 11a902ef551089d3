//! Redaction of logs, journals and files: only the lines that kpx looks for are kept, with private words replaced.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::names::Kind;
use super::redactor::unreadable;
use super::{Redactor, words};
use kpx_node::evidence::processes::ProxyFiles;
use kpx_node::evidence::{Gap, Item, kernel_log, proxy_log};

/// Characters between the words of a message.
const BETWEEN: [char; 18] = [
    ' ', '\t', '\n', ',', '{', '}', '(', ')', '[', ']', '=', '"', '\'', '`', ';', '<', '>', '\\',
];

/// Keys of files that configure kube-proxy, in addition to the keys of its configuration.
const FILE_KEYS: &[&str] = &[
    "apiVersion",
    "args",
    "command",
    "containers",
    "hostNetwork",
    "hostPath",
    "image",
    "kind",
    "kube-proxy-arg",
    "kube-proxy-arg+",
    "labels",
    "metadata",
    "mountPath",
    "name",
    "namespace",
    "path",
    "priorityClassName",
    "privileged",
    "readOnly",
    "securityContext",
    "spec",
    "tier",
    "type",
    "volumeMounts",
    "volumes",
];

impl Redactor {
    /// Keeps the messages of kube-proxy's log that kpx looks for.
    pub(super) fn proxy_log(&mut self, text: &str) -> String {
        self.lines(text, &proxy_log::sought(text))
    }

    /// Keeps the messages of the kernel that kpx looks for.
    pub(super) fn kernel_log(&mut self, text: &str) -> String {
        let entries = kernel_log::parse(text);
        let sought = entries.iter().filter(|entry| entry.message().is_some());
        let kept: Vec<&str> = sought.map(|entry| entry.line).collect();
        let mut new = self.lines(text, &kept);
        // What is new is so by the end of the log.
        let last = entries.iter().rfind(|entry| entry.seconds.is_some());
        if let Some(last) = last.filter(|last| !kept.is_empty() && last.message().is_none()) {
            new += &self.message(last.head());
            new += "another message\n";
        }
        new
    }

    /// Redacts `kept`, lines of `text`. An empty result would look like a log that was not read.
    fn lines(&mut self, text: &str, kept: &[&str]) -> String {
        if kept.is_empty() && !text.trim().is_empty() {
            return format!("{}\n", proxy_log::NOTHING_KEPT);
        }
        let kept = kept.iter();
        kept.flat_map(|line| [self.message(line), "\n".to_owned()])
            .collect()
    }

    /// Redacts a message of a program: keeps words of known messages, and numbers.
    pub(super) fn message(&mut self, text: &str) -> String {
        let mut new = String::with_capacity(text.len());
        for piece in text.split_inclusive(BETWEEN) {
            let word = piece.trim_end_matches(BETWEEN);
            let bare = word.trim_end_matches(['.', ':']);
            new.push_str(&self.message_word(bare));
            new.push_str(&piece[bare.len()..]);
        }
        new
    }

    fn message_word(&mut self, word: &str) -> String {
        // A processor, a program with its process ID, a size: CPU#3, nft:5123, anon-rss:20kB.
        let numbered = word.split_once([':', '#']).is_some_and(|(name, number)| {
            let mut number = number.trim_end_matches("kB").bytes();
            words::IN_MESSAGES.contains(name) && number.all(|b| b.is_ascii_digit())
        });
        if numbered || words::IN_MESSAGES.contains(word) || is_place(word) {
            return word.to_owned();
        }
        let new = self.code_word(word);
        if new != word || is_number(word) || !word.contains(char::is_alphanumeric) {
            return new;
        }
        match self.names.service_port(word) {
            Some(name) => name,
            None if word.starts_with('/') => self.path(word),
            None => self.names.map(Kind::Other, word),
        }
    }

    /// Redacts the path of a file: keeps the usual folders and the type of the file.
    pub(super) fn path(&mut self, path: &str) -> String {
        let parts = path.split('/').map(|part| {
            let mut pieces = part.split(['.', '-', '_']);
            if pieces.all(words::in_names) || Kind::Program.is_known(part) {
                return part.to_owned();
            }
            let ended = part.rsplit_once('.');
            match ended.filter(|(_, end)| words::in_names(end) && !end.is_empty()) {
                Some((stem, end)) => format!("{}.{end}", self.names.map(Kind::Other, stem)),
                None => self.names.map(Kind::Other, part),
            }
        });
        parts.collect::<Vec<_>>().join("/")
    }

    /// Redacts lines of files, each prefixed with its file name, and removes comments.
    pub(super) fn filed(&mut self, text: &str) -> String {
        let mut new = String::new();
        for line in text.lines() {
            let Some((file, line)) = line.split_once(": ") else {
                continue;
            };
            if line.trim_start().starts_with(['#', ';']) {
                continue;
            }
            // A directive and its module or value; the rest may be a command.
            let words = line.split(' ').enumerate().map(|(i, word)| {
                let is_plain = i < 2 && !word.starts_with('/');
                if is_plain || is_number(word) || words::in_names(word) {
                    word.to_owned()
                } else if word.starts_with('/') {
                    self.path(word)
                } else {
                    self.message(word)
                }
            });
            let line = words.collect::<Vec<_>>().join(" ");
            // Writing to a String cannot fail.
            writeln!(new, "{}: {line}", self.path(file)).ok();
        }
        new
    }

    /// Replaces the host name and the IDs of a machine as in the Node objects.
    pub(super) fn host_identity(&mut self, text: &str) -> String {
        let mut new = String::new();
        for (key, value) in text.lines().filter_map(|line| line.split_once(" = ")) {
            let value = match key {
                "host-name" => self.node(&value.trim().to_lowercase()),
                "machine-id" | "boot-id" | "system-uuid" | "asset-tag" => self.names.id(value),
                _ => continue,
            };
            writeln!(new, "{key} = {value}").ok();
        }
        new
    }

    /// Redacts the journal of a migration.
    pub(super) fn journal(&mut self, text: &str) -> String {
        let mut new = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            match serde_json::from_str(line) {
                Ok(Value::Object(entry)) => {
                    new.push_str(&self.entry(entry).to_string());
                }
                // A line that cannot be parsed stays a line that cannot be parsed.
                _ => new.push('{'),
            }
            if line.ends_with('\n') {
                new.push('\n');
            }
        }
        new
    }

    /// Redacts an object of the journal.
    fn entry(&mut self, entry: Map<String, Value>) -> Value {
        // The pods and Services of a migration, and its steps, may be confidential.
        let dropped = ["steps", "evict", "probes"];
        let kept = entry
            .into_iter()
            .filter(|(key, _)| !dropped.contains(&key.as_str()));
        let new = kept.map(|(key, value)| {
            let value = match (key.as_str(), value) {
                ("node", Value::String(node)) => self.node(&node).into(),
                (
                    "began" | "at" | "entry" | "kpx" | "leg" | "stage" | "strategy" | "mode"
                    | "from" | "scheduler" | "modules",
                    value,
                ) => value,
                ("id", Value::String(id)) => self.migration_id(&id).into(),
                (_, Value::String(text)) => self.message(&text).into(),
                (_, Value::Array(all)) => all
                    .iter()
                    .filter_map(Value::as_str)
                    .map(|text| json!(self.message(text)))
                    .collect(),
                (_, Value::Object(inner)) => self.entry(inner),
                (_, other) => other,
            };
            (key, value)
        });
        Value::Object(new.collect())
    }

    /// Redacts the ID of a migration, which consists of its time and its modes.
    fn migration_id(&mut self, id: &str) -> String {
        let own = id.split('-').all(|part| {
            let is_time = part
                .bytes()
                .all(|b| b.is_ascii_digit() || matches!(b, b'T' | b'Z'));
            is_time || matches!(part, "iptables" | "ipvs" | "nftables")
        });
        if own {
            id.to_owned()
        } else {
            self.names.map(Kind::Other, id)
        }
    }

    /// Redacts the files that configure kube-proxy.
    pub(super) fn proxy_files(&mut self, item: Item, text: &str) -> Result<String, Gap> {
        let failed = |error| unreadable(item, &error);
        let mut files: ProxyFiles = serde_json::from_str(text).map_err(failed)?;
        for file in &mut files.files {
            file.path = self.path(&file.path.to_string_lossy()).into();
            file.text = if file.text.contains(CONFIGURATION) {
                self.config(&file.text)
            } else {
                self.arguments_file(&file.text)
            };
        }
        serde_json::to_string(&files).map_err(failed)
    }

    /// Redacts a manifest, or another file that contains flags.
    fn arguments_file(&mut self, text: &str) -> String {
        let mut new = String::with_capacity(text.len());
        let kept = text
            .split_inclusive('\n')
            .filter(|line| !line.trim_start().starts_with('#'));
        for piece in
            kept.flat_map(|line| line.split_inclusive([' ', '\n', ',', '"', '\'', '[', ']']))
        {
            let word = piece.trim_end_matches([' ', '\n', ',', '"', '\'', '[', ']']);
            new.push_str(&self.file_word(word));
            new.push_str(&piece[word.len()..]);
        }
        new
    }

    fn file_word(&mut self, word: &str) -> String {
        let key = word.strip_suffix(':');
        let is_known = |key: &str| FILE_KEYS.contains(&key) || words::in_names(key);
        match key {
            Some(key) if is_known(key) => word.to_owned(),
            Some(key) => self.names.map(Kind::Other, key) + ":",
            None if word.is_empty() || word == "-" || FILE_KEYS.contains(&word) => word.to_owned(),
            None if word.starts_with("--") || word.contains('=') => self.flag(word),
            None if word.starts_with('/') => self.path(word),
            None if words::in_names(word) || Kind::Program.is_known(word) => word.to_owned(),
            None if word.contains('/') && word.contains(':') => self.image(word),
            None => self.message_word(word),
        }
    }
}

/// Returns whether `word` is a number, time, duration, size or version.
pub(super) fn is_number(word: &str) -> bool {
    let word = word
        .strip_prefix(['-', '+', 'v', 'I', 'W', 'E', 'F'])
        .unwrap_or(word);
    let word = word.strip_prefix("0x").unwrap_or(word);
    word.starts_with(|c: char| c.is_ascii_digit())
        && word
            .bytes()
            .all(|b| b.is_ascii_digit() || b".:-/+smhuTZkMGi%".contains(&b))
}

/// Returns whether `word` is a place in a program: `proxier.go:990`.
fn is_place(word: &str) -> bool {
    word.split_once(".go:")
        .is_some_and(|(_, line)| line.bytes().all(|b| b.is_ascii_digit()))
}

/// Kind of a kube-proxy configuration.
pub(super) const CONFIGURATION: &str = "KubeProxyConfiguration";

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of each message that kpx looks for.
    const LINES: [&str; 24] = [
        "[    0.000000] Linux version 6.1.0-28-amd64 (debian-kernel@lists.debian.org)",
        "[81203.1] nf_conntrack: nf_conntrack: table full, dropping packet",
        "[81203.2] neighbour: arp_cache: neighbor table overflow!",
        "[81203.3] neighbour: ndisc_cache: neighbor table overflow!",
        "[81203.4] Route cache is full: consider increasing sysctl net.ipv6.route.max_size.",
        "[81203.5] IPv4: martian source 10.210.0.16 from 10.244.1.4, on dev eth0",
        "[81203.6] UDP: bad checksum. From 10.210.0.16:8472 to 10.210.0.17:8472 ulen 78",
        "[81203.7] wireguard: wg0: Packet has unallowed src IP (10.244.1.4) from peer 3 (10.210.0.15:51820)",
        "[81203.8] bcmgenet fd580000.ethernet eth0: NETDEV WATCHDOG: CPU: 2: transmit queue 1 timed out 5000 ms",
        "[81203.9] e1000e 0000:00:1f.6 eth0: Detected Hardware Unit Hang:",
        "[81204.0] xennet: skb rides the rocket: 21 slots",
        "[81204.1] unregister_netdevice: waiting for eth0 to become free. Usage count = 2",
        "[81204.2] TCP: request_sock_TCP: Possible SYN flooding on port 0.0.0.0:8080. Sending cookies.",
        "[81204.3] TCP: out of memory -- consider tuning tcp_mem",
        "[81204.4] Memory cgroup out of memory: Killed process 4242 (kube-proxy) total-vm:1290000kB, anon-rss:204800kB, UID:0",
        "[81204.5] IPVS: rr: TCP 10.96.0.10:53 - no destination available",
        "[81204.6] Warning: Unmaintained driver is detected: nft_compat",
        "[81204.7] watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [nft:5123]",
        "[81204.8] watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [kworker/3:1:77]",
        "[81204.9] ixgbe 0000:04:00.0 eth0: NIC Link is Down",
        "[81205.0] swapper/3: page allocation failure: order:2, mode:0x820(GFP_ATOMIC), nodemask=(null)",
        "[81205.1] EXT4-fs (vda1): Remounting filesystem read-only",
        "[81205.2] audit: type=1400 audit(1700000000.1:2): avc:  denied  { read } for  pid=1 comm=\"iptables\" name=\"xtables.lock\"",
        "[81205.3] audit: type=1400 audit(1700000000.1:3): apparmor=\"DENIED\" operation=\"open\" comm=\"iptables\" name=\"/run/x\"",
    ];

    #[test]
    fn a_message_of_the_kernel_says_the_same_after_redaction() {
        let evidence = kpx_node::evidence::Evidence::default();
        let mut redactor = Redactor::new([7; 32], &evidence);
        let log = LINES.join("\n") + "\n[99999.5] secret-device is up\n";
        let redacted = redactor.kernel_log(&log);
        let (before, after) = (kernel_log::parse(&log), kernel_log::parse(&redacted));
        assert_eq!(before.len(), after.len(), "{redacted}");
        for (before, after) in before.iter().zip(&after) {
            let kinds =
                [before, after].map(|entry| entry.message().as_ref().map(std::mem::discriminant));
            assert_eq!(kinds[0], kinds[1], "{}\n{}", before.line, after.line);
            assert_eq!(before.seconds, after.seconds);
        }
        assert!(!redacted.contains("secret"), "{redacted}");
        assert!(!redacted.contains("debian"), "{redacted}");
        assert!(!redacted.contains("10.244.1.4"), "{redacted}");
    }
}
