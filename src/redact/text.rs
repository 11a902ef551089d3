//! Redaction of tool output.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Redactor;
use super::names::{Kind, nft_hash};
use crate::net::Cidr;

/// Words in kube-proxy's own comments; any other word in a comment may be private.
const WORDS: &str = "+ -> @no-endpoint-nodeports @no-endpoint-services Active ClusterIP ClusterIPs Drop ExternalIP IP \
    IPs KUBE-FIREWALL KUBE-PROXY-FIREWALL KUBE-SERVICES Kubernetes LOCAL LoadBalancer LoadBalancerSourceRanges NOTE \
    NodePort NodePorts Reject SNAT TCP UDP SCTP accept accepted access active affinity all and are balancer be block by \
    chain check cidr cluster clusterIP connection connections conntrack destinations drop dropped dst endpoint endpoints \
    external externalIP externalTrafficPolicy=local externally-visible filter firewall for forwarding from hairpin has \
    health helper in incoming invalid ip ip:port ips ipvs is jump kube-proxy kubernetes last lb load loadbalancer local \
    localnet mark masq masquerade must no node nodeport nodeports not of off-cluster on or other outside packet packets \
    pod pods port portal portals ports postrouting purpose redirect reject requiring route rule rules service services \
    session set short-circuit solving source sourceRange src subject tcp that the this to traffic udp unallocated vmap \
    will with xlb";

/// Context of a word.
#[derive(Clone, Copy, PartialEq)]
enum Context {
    /// In quotes, or after `--comment`.
    Comment,
    /// Anywhere else.
    Code,
}

impl Redactor {
    /// Redacts rules and sets in the formats of iptables-save, nft and ipset.
    pub(super) fn rules(&mut self, text: &str) -> String {
        let mut new = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            if line.starts_with('#') {
                new.push_str(line);
                continue;
            }
            let mut after_comment = false;
            for (i, part) in line.split('"').enumerate() {
                if i > 0 {
                    new.push('"');
                }
                let place = if i % 2 == 1 {
                    Context::Comment
                } else {
                    Context::Code
                };
                after_comment = self.words(part, place, after_comment, &mut new);
            }
        }
        new
    }

    /// Appends `text` word by word; returns whether the last word is followed by a comment.
    fn words(&mut self, text: &str, place: Context, mut announced: bool, new: &mut String) -> bool {
        for piece in text.split_inclusive([' ', '\t', '\n', ',', '{', '}']) {
            let word = piece.trim_end_matches([' ', '\t', '\n', ',', '{', '}']);
            let place = if announced && !word.is_empty() {
                Context::Comment
            } else {
                place
            };
            match place {
                Context::Comment => new.push_str(&self.comment_word(word)),
                Context::Code => new.push_str(&self.code_word(word)),
            }
            new.push_str(&piece[word.len()..]);
            if !word.is_empty() {
                announced = place == Context::Code && word == "--comment";
            }
        }
        announced
    }

    /// Redacts a comment.
    pub(super) fn comment(&mut self, text: &str) -> String {
        let mut new = String::new();
        self.words(text, Context::Comment, false, &mut new);
        new
    }

    fn comment_word(&mut self, word: &str) -> String {
        let bare = word.trim_end_matches([';', ':', '.']);
        if bare.is_empty() || WORDS.split_ascii_whitespace().any(|known| known == bare) {
            return word.to_owned();
        }
        let tail = &word[bare.len()..];
        if let Some(name) = self.names.service_port(bare) {
            return name + tail;
        }
        let new = self.code_word(word);
        if new == word && bare.contains(|c: char| c.is_ascii_alphabetic()) {
            self.names.map(Kind::Other, bare) + tail
        } else {
            new
        }
    }

    /// Redacts a word outside comments: a chain name, or addresses.
    pub(super) fn code_word(&mut self, word: &str) -> String {
        self.chain(word).unwrap_or_else(|| self.addresses(word))
    }

    /// Returns the replacement of a chain or set name that contains a Service's name or hash.
    fn chain(&mut self, word: &str) -> Option<String> {
        const IPTABLES: &[&str] = &["SVC", "SVL", "EXT", "FW", "SEP", "XLB"];
        if let Some((lead, rest)) = word.split_once("KUBE-") {
            let (kind, hash) = rest.split_once('-')?;
            let is_hash = hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_alphanumeric());
            return (IPTABLES.contains(&kind) && is_hash && matches!(lead, "" | ":"))
                .then(|| format!("{lead}KUBE-{kind}-{}", self.names.chain_hash(hash)));
        }
        // nft prefixes a set name with `@` in expressions.
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
        let new = self.nft_name(name).unwrap_or_else(|| {
            // A truncated name cannot be split into its parts.
            format!("redacted/{}", self.names.keyed(name, 16))
        });
        Some(format!("{lead}{kind}-{}-{new}", nft_hash(&new)))
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
            if port.is_empty() {
                String::new()
            } else {
                self.names.map(Kind::Port, port)
            }
        );
        if let Some(endpoint) = endpoint {
            let (ip, port) = endpoint.split_once('/')?;
            let ip: IpAddr = ip.parse().or_else(|_| ip.replace('.', ":").parse()).ok()?;
            let ip = self.addresses.map(ip).to_string().replace(':', ".");
            new = format!("{new}__{ip}/{port}");
        }
        Some(new)
    }

    /// Redacts every address in `text`.
    pub(super) fn addresses(&mut self, text: &str) -> String {
        let mut new = String::with_capacity(text.len());
        let mut rest = text;
        let is_part = |c: char| c.is_ascii_hexdigit() || matches!(c, '.' | ':');
        while let Some(start) = rest.find(is_part) {
            let (before, tail) = rest.split_at(start);
            new.push_str(before);
            let end = tail.find(|c| !is_part(c)).unwrap_or(tail.len());
            let (run, after) = tail.split_at(end);
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let bounded = !new.ends_with(is_word) && !after.starts_with(is_word);
            rest = after;
            let length = after.strip_prefix('/').map(|tail| {
                let end = tail
                    .find(|c: char| !c.is_ascii_digit())
                    .unwrap_or(tail.len());
                &tail[..end]
            });
            let trimmed = run.trim_end_matches(['.', ':']);
            // `::` may be the end of an address.
            let found = if bounded {
                self.run(run, length)
                    .map(|(text, took)| (text, took, run.len()))
                    .or_else(|| {
                        self.run(trimmed, None)
                            .map(|(text, took)| (text, took, trimmed.len()))
                    })
            } else {
                None
            };
            if let Some((text, took_length, used)) = found {
                new.push_str(&text);
                new.push_str(&run[used..]);
                if took_length {
                    rest = &after[1 + length.map_or(0, str::len)..];
                }
            } else {
                new.push_str(run);
            }
        }
        new.push_str(rest);
        new
    }

    /// Redacts one address, with `length` if it is a prefix; returns the text and whether it includes the length.
    fn run(&mut self, run: &str, length: Option<&str>) -> Option<(String, bool)> {
        if run.len() < 2 {
            return None;
        }
        if let Ok(addr) = run.parse::<IpAddr>() {
            let prefix = length.and_then(|length| format!("{addr}/{length}").parse::<Cidr>().ok());
            return Some(match prefix {
                Some(cidr) => (self.addresses.map_prefix(cidr).to_string(), true),
                None => (self.addresses.map(addr).to_string(), false),
            });
        }
        if let Some(mac) = mac(run) {
            return Some((self.mac(mac), false));
        }
        let (addr, port) = run.split_once(':')?;
        let addr: Ipv4Addr = addr.parse().ok()?;
        Some((format!("{}:{port}", self.addresses.map(addr.into())), false))
    }

    fn mac(&self, mac: [u8; 6]) -> String {
        if mac.iter().all(|&b| b == 0) || mac[0] & 1 == 1 {
            return mac.map(|b| format!("{b:02x}")).join(":");
        }
        // A locally administered address belongs to no vendor.
        let hash = self.names.keyed(&format!("mac/{mac:?}"), 10);
        let bytes: Vec<String> = hash
            .as_bytes()
            .chunks(2)
            .map(|two| format!("{:02x}", two[0].wrapping_mul(31).wrapping_add(two[1])))
            .collect();
        format!("02:{}", bytes.join(":"))
    }

    /// Redacts the format of `/proc/net/tcp`: addresses are hexadecimal words in the host's byte order.
    pub(super) fn proc_net(&mut self, text: &str) -> String {
        self.hex(
            text,
            |hex| {
                let words: Vec<u32> = (0..hex.len() / 8)
                    .filter_map(|i| u32::from_str_radix(&hex[8 * i..8 * i + 8], 16).ok())
                    .map(u32::swap_bytes)
                    .collect();
                match *words.as_slice() {
                    [v4] => Some(Ipv4Addr::from_bits(v4).into()),
                    [a, b, c, d] => {
                        let bits = [a, b, c, d]
                            .iter()
                            .fold(0, |bits, &word| bits << 32 | u128::from(word));
                        Some(Ipv6Addr::from_bits(bits).into())
                    }
                    _ => None,
                }
            },
            |addr| match addr {
                IpAddr::V4(v4) => format!("{:08X}", v4.to_bits().swap_bytes()),
                IpAddr::V6(v6) => format!("{:032X}", swapped(v6.to_bits())),
            },
        )
    }

    /// Redacts `/proc/net/ip_vs_conn`: IPv4 addresses are hexadecimal in network byte order.
    pub(super) fn connections(&mut self, text: &str) -> String {
        let text = self.hex(
            text,
            |hex| {
                (hex.len() == 8).then(|| {
                    u32::from_str_radix(hex, 16)
                        .ok()
                        .map(|v4| Ipv4Addr::from_bits(v4).into())
                })?
            },
            |addr| match addr {
                IpAddr::V4(v4) => format!("{:08X}", v4.to_bits()),
                IpAddr::V6(v6) => v6.to_string(),
            },
        );
        self.addresses(&text)
    }

    fn hex(
        &mut self,
        text: &str,
        read: impl Fn(&str) -> Option<IpAddr>,
        write: impl Fn(IpAddr) -> String,
    ) -> String {
        let mut new = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            // The other fields are queue lengths, timers and pointers.
            for (i, field) in line
                .split_inclusive(' ')
                .filter(|f| !f.is_empty())
                .enumerate()
            {
                let hex = field.trim_end().split(':').next().unwrap_or(field);
                let is_hex = hex.len() >= 8 && hex.bytes().all(|b| b.is_ascii_hexdigit());
                match read(hex).filter(|_| is_hex && i < 12) {
                    Some(addr) => {
                        let to = self.addresses.map(addr);
                        new.push_str(&write(to));
                        new.push_str(&field[hex.len()..]);
                    }
                    None => new.push_str(field),
                }
            }
        }
        new
    }

    /// Redacts sockets in the format of ss, including program names.
    pub(super) fn sockets(&mut self, text: &str) -> String {
        let text = self.addresses(text);
        let mut parts = text.split("((\"");
        let mut new = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            new.push_str("((\"");
            for (i, program) in part.split("),(\"").enumerate() {
                if i > 0 {
                    new.push_str("),(\"");
                }
                let (name, rest) = program.split_once('"').unwrap_or((program, ""));
                new.push_str(&self.names.map(Kind::Program, name));
                new.push('"');
                new.push_str(rest);
            }
        }
        new
    }

    /// Redacts `KEY: VALUE` lines of a kube-proxy configuration.
    pub(super) fn config(&mut self, text: &str) -> String {
        let mut new = String::with_capacity(text.len());
        for line in text.lines() {
            let line = line.split(" #").next().unwrap_or(line);
            if line.trim_start().starts_with('#') {
                continue;
            }
            let name = line
                .split_once("hostnameOverride:")
                .map(|(lead, value)| (lead, value.trim().trim_matches(['"', '\''])));
            match name {
                Some((lead, name)) if !name.is_empty() => {
                    new.extend([lead, "hostnameOverride: ", &self.node(name)]);
                }
                _ => new.push_str(&self.addresses(line)),
            }
            new.push('\n');
        }
        new
    }

    /// Keeps network settings that are not secret.
    pub(super) fn sysctl(&mut self, text: &str) -> String {
        let kept = text.lines().filter(|line| {
            let kernel = ["kernel.osrelease", "kernel.modules_disabled"];
            let secret = ["tcp_fastopen_key", "stable_secret"];
            (line.starts_with("net.") || kernel.iter().any(|name| line.starts_with(name)))
                && !secret.iter().any(|name| line.contains(name))
        });
        let kept: String = kept.flat_map(|line| [line, "\n"]).collect();
        self.addresses(&kept)
    }

    /// Removes comments from configuration lines that are prefixed with their file name.
    pub(super) fn without_comments(text: &str) -> String {
        let is_comment = |line: &str| {
            line.split_once(": ")
                .is_some_and(|(_, line)| line.trim_start().starts_with('#'))
        };
        let kept = text.lines().filter(|line| !is_comment(line));
        kept.flat_map(|line| [line, "\n"]).collect()
    }

    /// Redacts metrics, including host names in `host` labels.
    pub(super) fn metrics(&mut self, text: &str) -> String {
        let mut new = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            let host = line
                .split_once("host=\"")
                .and_then(|(lead, rest)| Some((lead, rest.split_once('"')?)));
            match host {
                Some((lead, (host, rest))) => {
                    let host = self.host(host);
                    new.extend([lead, "host=\"", &host, "\"", rest]);
                }
                None if line.starts_with('#') => new.push_str(line),
                None => new.push_str(&self.addresses(line)),
            }
        }
        new
    }

    /// Redacts the reason of a gap, which may contain addresses and host names.
    pub fn reason(&mut self, text: &str) -> String {
        let words = text.split(' ').map(|word| match word.split_once("://") {
            Some((scheme, rest)) => {
                let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                format!("{scheme}://{}{path}", self.host(host))
            }
            None => self.addresses(word),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// Returns the replacement of a host name or address, with or without a port.
    pub(super) fn host(&mut self, host: &str) -> String {
        if host.parse::<SocketAddr>().is_ok() || host.parse::<IpAddr>().is_ok() {
            return self.addresses(host);
        }
        match host.rsplit_once(':') {
            Some((name, port)) => format!("{}:{port}", self.names.map(Kind::Host, name)),
            None => self.names.map(Kind::Host, host),
        }
    }
}

/// Returns `bits` with the bytes of each 32-bit word in reverse order.
fn swapped(bits: u128) -> u128 {
    let bytes = bits.to_be_bytes();
    let word = |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
    [0, 4, 8, 12]
        .into_iter()
        .fold(0, |bits, i| bits << 32 | u128::from(word(i)))
}

fn mac(text: &str) -> Option<[u8; 6]> {
    let bytes: Vec<u8> = text
        .split(':')
        .filter(|byte| byte.len() == 2)
        .filter_map(|byte| u8::from_str_radix(byte, 16).ok())
        .collect();
    (text.len() == 17).then(|| bytes.try_into().ok())?
}
