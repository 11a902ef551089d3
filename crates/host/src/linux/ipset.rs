//! Reads IP sets over netlink, as the text of `ipset save`.
//!
//! `ipset` refuses sets of a kernel that is newer than itself; this reader needs no tool. A type, option or attribute
//! that it does not know makes the whole read an error, and the caller runs `ipset` instead.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::netlink::{append, attributes, list, text, wide, word};
use kpx_node::evidence::{Gap, Item};

/// `NFNL_SUBSYS_IPSET << 8 | IPSET_CMD_SAVE`.
const SAVE: u16 = 6 << 8 | 8;

/// `IPSET_PROTOCOL_MIN`, which every kernel answers.
const PROTOCOL: u8 = 6;

/// `IPSET_ATTR_*` of a message.
mod command {
    pub(super) const PROTOCOL: u16 = 1;
    pub(super) const SET_NAME: u16 = 2;
    pub(super) const TYPE_NAME: u16 = 3;
    pub(super) const REVISION: u16 = 4;
    pub(super) const FAMILY: u16 = 5;
    pub(super) const DATA: u16 = 7;
    pub(super) const MEMBERS: u16 = 8;
    pub(super) const INDEX: u16 = 11;
}

/// `IPSET_ATTR_*` of a set.
mod create {
    pub(super) const INITVAL: u16 = 17;
    pub(super) const HASH_SIZE: u16 = 18;
    pub(super) const MAX_ELEMENTS: u16 = 19;
    pub(super) const NETMASK: u16 = 20;
    pub(super) const BUCKET_SIZE: u16 = 21;
    pub(super) const SIZE: u16 = 23;
    pub(super) const ELEMENTS: u16 = 24;
    pub(super) const REFERENCES: u16 = 25;
    pub(super) const MEMORY: u16 = 26;
}

/// `IPSET_ATTR_*` of a set or a member.
mod common {
    pub(super) const IP: u16 = 1;
    pub(super) const IP_TO: u16 = 2;
    pub(super) const PREFIX: u16 = 3;
    pub(super) const PORT: u16 = 4;
    pub(super) const PORT_TO: u16 = 5;
    pub(super) const TIMEOUT: u16 = 6;
    pub(super) const PROTO: u16 = 7;
    pub(super) const FLAGS: u16 = 8;
}

/// `IPSET_ATTR_*` of a member.
mod member {
    pub(super) const ETHER: u16 = 17;
    pub(super) const NAME: u16 = 18;
    pub(super) const SECOND_IP: u16 = 20;
    pub(super) const SECOND_PREFIX: u16 = 21;
    pub(super) const LINK: u16 = 23;
    pub(super) const BYTES: u16 = 24;
    pub(super) const PACKETS: u16 = 25;
    pub(super) const COMMENT: u16 = 26;
    pub(super) const MARK: u16 = 27;
    pub(super) const PRIORITY: u16 = 28;
    pub(super) const QUEUE: u16 = 29;
    pub(super) const PAD: u16 = 30;
}

/// `IPSET_FLAG_*`.
mod flag {
    pub(super) const PHYSDEV: u32 = 1 << 1;
    pub(super) const NOMATCH: u32 = 1 << 2;
    pub(super) const COUNTERS: u32 = 1 << 3;
    pub(super) const COMMENT: u32 = 1 << 4;
    pub(super) const SKBINFO: u32 = 1 << 6;
    pub(super) const WILDCARD: u32 = 1 << 7;
}

/// A part of a member.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// An address or a network.
    Ip,
    /// A protocol and port.
    ProtoPort,
    /// A port without a protocol.
    Port,
    /// The second address or network.
    SecondIp,
    /// A network interface.
    Link,
    /// A MAC address, which may be missing.
    Ether,
    /// The name of a set.
    Name,
}

/// The types that kpx decodes, with the parts of their members.
const TYPES: &[(&str, &[Part])] = &[
    ("bitmap:ip", &[Part::Ip]),
    ("bitmap:ip,mac", &[Part::Ip, Part::Ether]),
    ("bitmap:port", &[Part::Port]),
    ("hash:ip", &[Part::Ip]),
    ("hash:ip,port", &[Part::Ip, Part::ProtoPort]),
    (
        "hash:ip,port,ip",
        &[Part::Ip, Part::ProtoPort, Part::SecondIp],
    ),
    (
        "hash:ip,port,net",
        &[Part::Ip, Part::ProtoPort, Part::SecondIp],
    ),
    ("hash:net", &[Part::Ip]),
    ("hash:net,iface", &[Part::Ip, Part::Link]),
    ("hash:net,port", &[Part::Ip, Part::ProtoPort]),
    ("list:set", &[Part::Name]),
];

/// The content of a dump.
#[derive(Debug, Default)]
struct Saved {
    text: String,
    /// The set whose members arrive, and their parts.
    current: Option<(String, &'static [Part])>,
}

/// Reads all sets of the network namespace of the calling thread. Blocks.
///
/// The caller must know that `ip_set` is loaded: the request would load it.
pub(super) fn save(item: Item) -> Result<String, Gap> {
    let mut body = Vec::new();
    append(&mut body, command::PROTOCOL, &[PROTOCOL]);
    let saved: Saved = list(item, SAVE, 0, &body, |saved: &mut Saved, _, answer| {
        saved.take(answer)
    })?;
    Ok(saved.text)
}

impl Saved {
    /// Adds the contents of one message: the head of a set, members, or both.
    fn take(&mut self, message: &[u8]) -> Result<(), String> {
        let mut name = None;
        let (mut kind, mut family, mut head, mut members) = (None, 0, None, None);
        for attribute in attributes(message) {
            match attribute? {
                (command::SET_NAME, value) => name = Some(text(value)?),
                (command::TYPE_NAME, value) => kind = Some(text(value)?),
                (command::FAMILY, value) => family = u32::from(byte(value)?),
                (command::DATA, value) => head = Some(value),
                (command::MEMBERS, value) => members = Some(value),
                (command::PROTOCOL | command::REVISION | command::INDEX, _) => {}
                (other, _) => return Err(format!("attribute {other} of a set is unknown")),
            }
        }
        let name = plain(name.ok_or("a set has no name")?)?;
        if let Some(kind) = kind {
            let known = TYPES.iter().find(|(of, _)| *of == kind);
            let (_, parts) = known.ok_or_else(|| format!("set {name} has the type {kind}"))?;
            let head = head.ok_or_else(|| format!("set {name} has no options"))?;
            let options = options(kind, family, head).map_err(|e| format!("set {name}: {e}"))?;
            // Writing to a string cannot fail.
            writeln!(self.text, "create {name} {kind}{options}").ok();
            self.current = Some((name.to_owned(), parts));
        }
        let Some(members) = members else {
            return Ok(());
        };
        let parts = match &self.current {
            Some((of, parts)) if of == name => *parts,
            _ => return Err(format!("the type of set {name} is missing")),
        };
        for one in attributes(members) {
            let (_, value) = one?;
            let start = self.text.len();
            write!(self.text, "add {name} ").ok();
            if let Err(why) = add_member(&mut self.text, parts, value) {
                self.text.truncate(start);
                return Err(format!("a member of set {name}: {why}"));
            }
            self.text.push('\n');
        }
        Ok(())
    }
}

/// Returns the options of `create`, each with a space before it.
fn options(kind: &str, family: u32, head: &[u8]) -> Result<String, String> {
    let mut line = String::new();
    let (mut first, mut last) = (None, None);
    let (mut first_port, mut last_port) = (None, None);
    let mut numbers = [None; 7];
    let [
        hash_size,
        max_elements,
        size,
        netmask,
        timeout,
        bucket_size,
        initval,
    ] = &mut numbers;
    let mut flags = 0;
    for attribute in attributes(head) {
        match attribute? {
            (common::IP, value) => first = Some(address(value)?),
            (common::IP_TO, value) => last = Some(address(value)?),
            (common::PORT, value) => first_port = Some(short(value)?),
            (common::PORT_TO, value) => last_port = Some(short(value)?),
            (common::TIMEOUT, value) => *timeout = Some(word(value)?),
            (common::FLAGS, value) => flags = word(value)?,
            (create::HASH_SIZE, value) => *hash_size = Some(word(value)?),
            (create::MAX_ELEMENTS, value) => *max_elements = Some(word(value)?),
            (create::SIZE, value) => *size = Some(word(value)?),
            (create::NETMASK, value) => *netmask = Some(u32::from(byte(value)?)),
            (create::BUCKET_SIZE, value) => *bucket_size = Some(u32::from(byte(value)?)),
            (create::INITVAL, value) => *initval = Some(word(value)?),
            (create::ELEMENTS | create::REFERENCES | create::MEMORY, _) => {}
            (other, _) => return Err(format!("attribute {other} is unknown")),
        }
    }
    // Releases of ipset differ in whether they print forceadd (1 << 5), so it is left to the one of the host.
    let known = flag::COUNTERS | flag::COMMENT | flag::SKBINFO;
    if flags & !known != 0 {
        return Err(format!("one of the flags {flags:#x} is unknown"));
    }
    if kind.starts_with("hash:") {
        line.push_str(match family {
            2 => " family inet",
            10 => " family inet6",
            other => return Err(format!("family {other} is unknown")),
        });
    }
    if let (Some(first), Some(last)) = (first, last) {
        write!(line, " range {}-{}", printed(first), printed(last)).ok();
    } else if first.is_some() || last.is_some() {
        return Err("its range is incomplete".to_owned());
    }
    if let (Some(first), Some(last)) = (first_port, last_port) {
        write!(line, " range {first}-{last}").ok();
    } else if first_port.is_some() || last_port.is_some() {
        return Err("its range is incomplete".to_owned());
    }
    let mut number = |name: &str, value: Option<u32>| {
        if let Some(value) = value {
            write!(line, " {name} {value}").ok();
        }
    };
    number("hashsize", *hash_size);
    number("maxelem", *max_elements);
    number("size", *size);
    number("netmask", *netmask);
    number("timeout", *timeout);
    for (name, bit) in [
        ("counters", flag::COUNTERS),
        ("comment", flag::COMMENT),
        ("skbinfo", flag::SKBINFO),
    ] {
        if flags & bit != 0 {
            write!(line, " {name}").ok();
        }
    }
    if let Some(size) = bucket_size {
        write!(line, " bucketsize {size}").ok();
    }
    if let Some(initval) = initval {
        write!(line, " initval 0x{initval:08x}").ok();
    }
    Ok(line)
}

/// The options of a member, undecoded.
#[derive(Debug, Default)]
struct Member<'a> {
    ip: Option<&'a [u8]>,
    prefix: Option<u8>,
    second_ip: Option<&'a [u8]>,
    second_prefix: Option<u8>,
    proto: Option<u8>,
    port: Option<u16>,
    ether: Option<&'a [u8]>,
    name: Option<&'a str>,
    link: Option<&'a str>,
    timeout: Option<u32>,
    flags: u32,
    packets: Option<u64>,
    bytes: Option<u64>,
    comment: Option<&'a str>,
    mark: Option<u64>,
    priority: Option<u32>,
    queue: Option<u16>,
}

impl<'a> Member<'a> {
    fn read(list: &'a [u8]) -> Result<Self, String> {
        let mut found = Self::default();
        for attribute in attributes(list) {
            match attribute? {
                (common::IP, value) => found.ip = Some(value),
                (common::PREFIX, value) => found.prefix = Some(byte(value)?),
                (common::PORT, value) => found.port = Some(short(value)?),
                (common::PROTO, value) => found.proto = Some(byte(value)?),
                (common::TIMEOUT, value) => found.timeout = Some(word(value)?),
                (common::FLAGS, value) => found.flags = word(value)?,
                (member::ETHER, value) => found.ether = Some(value),
                (member::NAME, value) => found.name = Some(plain(text(value)?)?),
                (member::SECOND_IP, value) => found.second_ip = Some(value),
                (member::SECOND_PREFIX, value) => found.second_prefix = Some(byte(value)?),
                (member::LINK, value) => found.link = Some(plain(text(value)?)?),
                (member::BYTES, value) => found.bytes = Some(wide(value)?),
                (member::PACKETS, value) => found.packets = Some(wide(value)?),
                (member::COMMENT, value) => found.comment = Some(text(value)?),
                (member::MARK, value) => found.mark = Some(wide(value)?),
                (member::PRIORITY, value) => found.priority = Some(word(value)?),
                (member::QUEUE, value) => found.queue = Some(short(value)?),
                (member::PAD, _) => {}
                (other, _) => return Err(format!("attribute {other} is unknown")),
            }
        }
        let known = flag::PHYSDEV | flag::NOMATCH | flag::WILDCARD;
        if found.flags & !known != 0 {
            return Err(format!("one of the flags {:#x} is unknown", found.flags));
        }
        Ok(found)
    }
}

/// Appends a member and its options.
fn add_member(line: &mut String, parts: &[Part], list: &[u8]) -> Result<(), String> {
    let member = Member::read(list)?;
    for (number, part) in parts.iter().enumerate() {
        if number > 0 && !(matches!(part, Part::Ether) && member.ether.is_none()) {
            line.push(',');
        }
        match part {
            Part::Ip => network(line, member.ip, member.prefix)?,
            Part::SecondIp => network(line, member.second_ip, member.second_prefix)?,
            Part::Port => {
                write!(line, "{}", member.port.ok_or("it has no port")?).ok();
            }
            Part::ProtoPort => {
                // Other protocols have types and codes, or names that only the system knows.
                let proto = match member.proto.ok_or("it has no protocol")? {
                    6 => "tcp",
                    17 => "udp",
                    132 => "sctp",
                    other => return Err(format!("kpx does not print ports of protocol {other}")),
                };
                write!(line, "{proto}:{}", member.port.ok_or("it has no port")?).ok();
            }
            Part::Link => {
                if member.flags & flag::PHYSDEV != 0 {
                    line.push_str("physdev:");
                }
                line.push_str(member.link.ok_or("it has no interface")?);
            }
            Part::Ether => {
                if let Some(ether) = member.ether {
                    let octets: Vec<_> = ether.iter().map(|o| format!("{o:02X}")).collect();
                    line.push_str(&octets.join(":"));
                }
            }
            Part::Name => line.push_str(member.name.ok_or("it has no name")?),
        }
    }
    // Writing to a string cannot fail.
    if let Some(seconds) = member.timeout {
        write!(line, " timeout {seconds}").ok();
    }
    if member.flags & flag::NOMATCH != 0 {
        line.push_str(" nomatch");
    }
    if member.flags & flag::WILDCARD != 0 {
        line.push_str(" wildcard");
    }
    if let Some(packets) = member.packets {
        write!(line, " packets {packets}").ok();
    }
    if let Some(bytes) = member.bytes {
        write!(line, " bytes {bytes}").ok();
    }
    if let Some(comment) = member.comment {
        if comment.contains(['"', '\n']) {
            return Err("its comment has a quote or a line break".to_owned());
        }
        write!(line, " comment \"{comment}\"").ok();
    }
    if let Some(mark) = member.mark {
        let (value, mask) = (mark >> 32, mark & u64::from(u32::MAX));
        write!(line, " skbmark {value:#x}").ok();
        if mask != u64::from(u32::MAX) {
            write!(line, "/{mask:#x}").ok();
        }
    }
    if let Some(priority) = member.priority {
        write!(
            line,
            " skbprio {:x}:{:x}",
            priority >> 16,
            priority & 0xffff
        )
        .ok();
    }
    if let Some(queue) = member.queue {
        write!(line, " skbqueue {queue}").ok();
    }
    Ok(())
}

/// Appends an address, with its prefix length unless that is the whole address.
fn network(line: &mut String, ip: Option<&[u8]>, prefix: Option<u8>) -> Result<(), String> {
    let address = address(ip.ok_or("it has no address")?)?;
    line.push_str(&printed(address));
    let whole = if address.is_ipv4() { 32 } else { 128 };
    if let Some(prefix) = prefix.filter(|&prefix| prefix != whole) {
        write!(line, "/{prefix}").ok();
    }
    Ok(())
}

/// Decodes the list that contains an address.
fn address(value: &[u8]) -> Result<IpAddr, String> {
    let mut all = attributes(value);
    match all.next().ok_or("an address is empty")?? {
        (1, octets) => <[u8; 4]>::try_from(octets).map(|o| Ipv4Addr::from(o).into()),
        (2, octets) => <[u8; 16]>::try_from(octets).map(|o| Ipv6Addr::from(o).into()),
        (other, _) => return Err(format!("address family {other} is unknown")),
    }
    .map_err(|_| "an address has a wrong length".to_owned())
}

/// Returns an address as the C library prints it.
fn printed(address: IpAddr) -> String {
    match address {
        IpAddr::V6(v6) if v6.segments()[..6] == [0; 6] && v6.segments()[6] != 0 => {
            let [.., a, b, c, d] = v6.octets();
            format!("::{}", Ipv4Addr::new(a, b, c, d))
        }
        other => other.to_string(),
    }
}

/// Returns a name that is a single word.
fn plain(name: &str) -> Result<&str, String> {
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '"') {
        return Err(format!("the name {name:?} is not one word"));
    }
    Ok(name)
}

fn byte(value: &[u8]) -> Result<u8, String> {
    let [byte] = value.try_into().map_err(|_| "a number is not a byte")?;
    Ok(byte)
}

fn short(value: &[u8]) -> Result<u16, String> {
    let bytes = value.try_into().map_err(|_| "a number is too short")?;
    Ok(u16::from_be_bytes(bytes))
}

/// Decodes any messages, for the fuzzer; `None` if they are not known.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) -> Option<String> {
    let mut saved = Saved::default();
    for (_, message) in super::netlink::messages(bytes) {
        saved.take(message.get(20..)?).ok()?;
    }
    Some(saved.text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::linux::netlink::nested;

    /// A set of the kernel, with one member that has `more`.
    fn message(kind: &str, more: &[u8]) -> Vec<u8> {
        let mut message = Vec::new();
        append(&mut message, command::PROTOCOL, &[6]);
        append(&mut message, command::SET_NAME, b"KUBE-CLUSTER-IP\0");
        append(
            &mut message,
            command::TYPE_NAME,
            format!("{kind}\0").as_bytes(),
        );
        append(&mut message, command::FAMILY, &[2]);
        append(&mut message, command::REVISION, &[7]);
        let mut head = Vec::new();
        append(&mut head, create::HASH_SIZE, &1024u32.to_be_bytes());
        append(&mut head, create::MAX_ELEMENTS, &65536u32.to_be_bytes());
        append(&mut head, create::MEMORY, &200u32.to_be_bytes());
        nested(&mut message, command::DATA, &head);
        let (mut list, mut member, mut ip) = (Vec::new(), Vec::new(), Vec::new());
        append(&mut ip, 1, &[10, 96, 0, 10]);
        nested(&mut member, common::IP, &ip);
        append(&mut member, common::PORT, &53u16.to_be_bytes());
        append(&mut member, common::PROTO, &[17]);
        member.extend(more);
        nested(&mut list, command::DATA, &member);
        nested(&mut message, command::MEMBERS, &list);
        message
    }

    fn read(message: &[u8]) -> Result<String, String> {
        let mut saved = Saved::default();
        saved.take(message)?;
        Ok(saved.text)
    }

    #[test]
    fn a_set_is_printed_as_ipset_saves_it() {
        assert_eq!(
            read(&message("hash:ip,port", &[])).unwrap(),
            "create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 65536\n\
             add KUBE-CLUSTER-IP 10.96.0.10,udp:53\n"
        );
    }

    #[test]
    fn an_unknown_type_or_attribute_is_an_error_that_names_it() {
        let why = read(&message("hash:future", &[])).unwrap_err();
        assert_eq!(why, "set KUBE-CLUSTER-IP has the type hash:future");
        let mut more = Vec::new();
        append(&mut more, 77, &[1]);
        let why = read(&message("hash:ip,port", &more)).unwrap_err();
        assert_eq!(
            why,
            "a member of set KUBE-CLUSTER-IP: attribute 77 is unknown"
        );
    }

    #[test]
    fn addresses_are_printed_as_the_c_library_does() {
        for (address, expected) in [
            ("::102:304", "::1.2.3.4"),
            ("::ffff:1.2.3.4", "::ffff:1.2.3.4"),
            ("::5", "::5"),
            ("2001:db8::1", "2001:db8::1"),
        ] {
            assert_eq!(printed(address.parse().unwrap()), expected);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _either = read(&bytes);
        }
    }
}
