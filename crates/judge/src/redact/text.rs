//! Redaction of tool output.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Redactor;
use super::names::Kind;
use kpx_node::net::Cidr;

impl Redactor {
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

    fn mac(&mut self, mac: [u8; 6]) -> String {
        let old = mac.map(|b| format!("{b:02x}")).join(":");
        if mac.iter().all(|&b| b == 0) || mac[0] & 1 == 1 {
            return old;
        }
        // A locally administered address belongs to no vendor.
        let hash = self.names.keyed(&format!("mac/{mac:?}"), 10);
        let bytes: Vec<String> = hash
            .as_bytes()
            .chunks(2)
            .map(|two| format!("{:02x}", two[0].wrapping_mul(31).wrapping_add(two[1])))
            .collect();
        let new = format!("02:{}", bytes.join(":"));
        self.names.remember(&new, &old);
        new
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
                let addr = if is_hex && i < 12 { read(hex) } else { None };
                match addr {
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
        // `ADDRESS%LINK:PORT` is a socket of one link.
        let mut text = self.addresses(text);
        if text.contains('%') {
            let words = text.split_inclusive([' ', '\n']).map(|word| {
                let Some((address, rest)) = word.split_once('%') else {
                    return word.to_owned();
                };
                let (link, port) =
                    rest.split_at(rest.find([']', ':', ' ', '\n']).unwrap_or(rest.len()));
                format!("{address}%{}{port}", self.names.link(link))
            });
            text = words.collect();
        }
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

    /// Keeps network settings that are not secret.
    pub(super) fn sysctl(&mut self, text: &str) -> String {
        let kept = text.lines().filter(|line| {
            let kernel = ["kernel.osrelease", "kernel.modules_disabled"];
            let secret = ["tcp_fastopen_key", "stable_secret"];
            (line.starts_with("net.") || kernel.iter().any(|name| line.starts_with(name)))
                && !secret.iter().any(|name| line.contains(name))
        });
        let mut new = String::with_capacity(text.len());
        for line in kept {
            let (key, value) = line.split_once('=').unwrap_or((line, ""));
            let mut parts: Vec<String> = key.split('.').map(str::to_owned).collect();
            // net.ipv4.conf.LINK.rp_filter: the name of a link has `/` for its dots.
            if let [_, _, table, link, ..] = parts.as_mut_slice()
                && matches!(table.as_str(), "conf" | "neigh")
            {
                *link = self
                    .names
                    .link(&link.trim().replace('/', "."))
                    .replace('.', "/");
            }
            new.push_str(&parts.join("."));
            if line.contains('=') {
                new.push('=');
                new.push_str(&self.addresses(value));
            }
            new.push('\n');
        }
        new
    }

    /// Redacts the lists of `xt_recent`, each line prefixed with its file.
    pub(super) fn recent(&mut self, text: &str) -> String {
        let mut new = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            let (file, rest) = line.split_once(": ").unwrap_or(("", line));
            let (folder, list) = file.rsplit_once('/').unwrap_or(("", file));
            let list = if folder.ends_with("/xt_recent") {
                self.object(list)
            } else {
                list.to_owned()
            };
            if !folder.is_empty() {
                new.extend([folder, "/"]);
            }
            new.push_str(&list);
            if !file.is_empty() {
                new.push_str(": ");
            }
            new.push_str(&self.addresses(rest));
        }
        new
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

#[cfg(test)]
mod tests {
    use super::*;
    use kpx_node::evidence::Evidence;

    #[test]
    fn a_damaged_address_of_a_socket_is_kept() {
        let mut redactor = Redactor::new([7; 32], &Evidence::default());
        let text = "   0: 010000\u{fffd}7F:0CEA 0A\n";
        assert_eq!(redactor.proc_net(text), text);
    }
}
