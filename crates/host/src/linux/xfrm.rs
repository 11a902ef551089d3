//! Reads policies of IPsec, in the format of `ip xfrm policy`, and security associations without their keys, in that of
//! `ip xfrm state list nokeys`.
//!
//! Sources: `xfrm_user.c` of Linux, `ip/ipxfrm.c` of iproute2.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST};
use netlink_sys::protocols::NETLINK_XFRM;

use super::context::Context;
use super::links::link_names;
use super::modules;
use super::netlink::{attributes, stream};
use kpx_node::evidence::{Gap, Item};

/// `XFRM_MSG_GETSA`.
const GET_STATE: u16 = 0x12;

/// `XFRM_MSG_GETPOLICY`.
const GET_POLICY: u16 = 0x15;

/// The netlink header.
const HEADER: usize = 16;

/// Size of `struct xfrm_userpolicy_info`.
const INFO: usize = 168;

/// Size of `struct xfrm_usersa_info`.
const STATE: usize = 224;

/// Size of `struct xfrm_user_tmpl`.
const TEMPLATE: usize = 64;

/// `XFRMA_*`.
mod attribute {
    pub(super) const TEMPLATES: u16 = 5;
    pub(super) const CONTEXT: u16 = 8;
    pub(super) const TYPE: u16 = 16;
    pub(super) const MARK: u16 = 21;
    pub(super) const IF_ID: u16 = 31;
}

const DIRECTIONS: [&str; 3] = ["in", "out", "fwd"];

const MODES: [&str; 5] = ["transport", "tunnel", "ro", "in_trigger", "beet"];

/// Reads the policies.
pub(super) fn policies(item: Item, context: &Context) -> Result<String, Gap> {
    let names = link_names(item)?;
    dump(item, context, GET_POLICY, |body| policy(body, &names))
}

/// Reads the security associations.
pub(super) fn states(item: Item, context: &Context) -> Result<String, Gap> {
    dump(item, context, GET_STATE, state)
}

/// Prints all objects of a kind. They exist only if `xfrm_user` is loaded: opening its socket would load it.
fn dump(
    item: Item,
    context: &Context,
    kind: u16,
    print: impl Fn(&[u8]) -> Result<String, String>,
) -> Result<String, Gap> {
    if modules::would_load(context, "xfrm_user") {
        let why = "xfrm_user is not loaded, so nothing has set up IPsec";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let asks = |sequence: u32| {
        let length = u32::try_from(HEADER + 4).unwrap_or_default();
        let mut bytes = Vec::with_capacity(HEADER + 4);
        bytes.extend(length.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes
    };
    stream(item, NETLINK_XFRM, asks, |text: &mut String, answer| {
        let body = answer.get(HEADER..).unwrap_or_default();
        let one = print(body)
            .map_err(|why| Gap::Failed(item, format!("cannot decode a netlink answer: {why}")))?;
        text.push_str(&one);
        Ok(())
    })
}

/// A structure of the kernel.
struct Bytes<'b>(&'b [u8]);

impl Bytes<'_> {
    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], String> {
        let bytes = self.0.get(at..at + N);
        let array = bytes.and_then(|bytes| bytes.try_into().ok());
        array.ok_or_else(|| "it is cut off".to_owned())
    }

    fn byte(&self, at: usize) -> Result<u8, String> {
        self.array::<1>(at).map(|[byte]| byte)
    }

    fn number(&self, at: usize) -> Result<u32, String> {
        self.array(at).map(u32::from_ne_bytes)
    }

    fn short(&self, at: usize) -> Result<u16, String> {
        self.array(at).map(u16::from_ne_bytes)
    }

    fn port(&self, at: usize) -> Result<u16, String> {
        self.array(at).map(u16::from_be_bytes)
    }

    /// Returns the address of a family: `AF_INET` or `AF_INET6`.
    fn address(&self, at: usize, family: u16) -> Result<IpAddr, String> {
        match family {
            2 => self
                .array(at)
                .map(|octets: [u8; 4]| Ipv4Addr::from(octets).into()),
            10 => self
                .array(at)
                .map(|octets: [u8; 16]| Ipv6Addr::from(octets).into()),
            other => Err(format!("it has addresses of family {other}")),
        }
    }
}

/// Returns a policy as text: its selector, then a line of each part.
fn policy(body: &[u8], names: &BTreeMap<u32, String>) -> Result<String, String> {
    let info = Bytes(body.get(..INFO).ok_or("it is cut off")?);
    let parts: Vec<(u16, &[u8])> = attributes(&body[INFO..]).collect::<Result<_, _>>()?;
    let part = |kind| {
        parts
            .iter()
            .find(|(of, _)| *of == kind)
            .map(|(_, value)| Bytes(value))
    };
    let mut text = selector(&info, names)?;
    if part(attribute::CONTEXT).is_some() {
        text.push_str("security context ");
    }
    text.push_str("\n\t");
    let direction = info.byte(160)?;
    // After these come the policies of single sockets.
    let (word, direction) = match direction.checked_sub(3) {
        None => ("dir", direction),
        Some(of_socket) => ("socket", of_socket),
    };
    match DIRECTIONS.get(usize::from(direction)) {
        Some(name) => write(&mut text, format_args!("{word} {name} ")),
        None => write(&mut text, format_args!("{word} {direction} ")),
    }
    match info.byte(161)? {
        0 => {}
        1 => text.push_str("action block "),
        other => write(&mut text, format_args!("action {other} ")),
    }
    write(&mut text, format_args!("priority {} ", info.number(152)?));
    if let Some(kind) = part(attribute::TYPE) {
        let kind = match kind.byte(0)? {
            0 => "main".to_owned(),
            1 => "sub".to_owned(),
            other => other.to_string(),
        };
        write(&mut text, format_args!("ptype {kind} "));
    }
    match info.byte(162)? {
        0 => {}
        1 => text.push_str("flag localok"),
        2 => text.push_str("flag icmp"),
        3 => text.push_str("flag localok icmp"),
        other => write(&mut text, format_args!("flag {other:x}")),
    }
    text.push('\n');
    if let Some(mark) = part(attribute::MARK) {
        let (value, mask) = (mark.number(0)?, mark.number(4)?);
        write(&mut text, format_args!("\tmark {value:#x}/{mask:#x} \n"));
    }
    if let Some(all) = part(attribute::TEMPLATES) {
        for one in all.0.chunks(TEMPLATE) {
            template(&mut text, &Bytes(one))?;
        }
    }
    if let Some(id) = part(attribute::IF_ID) {
        write(&mut text, format_args!("\tif_id {:#x}\n", id.number(0)?));
    }
    Ok(text)
}

/// Returns a security association as text.
fn state(body: &[u8]) -> Result<String, String> {
    let info = Bytes(body.get(..STATE).ok_or("it is cut off")?);
    let family = info.short(212)?;
    let (source, destination) = (info.address(80, family)?, info.address(56, family)?);
    let spi: [u8; 4] = info.array(72)?;
    let mode = info.byte(214)?;
    let name = MODES.get(usize::from(mode));
    let mode = name.map_or_else(|| mode.to_string(), |&name| name.to_owned());
    let mut text = format!(
        "src {source} dst {destination}\n\tproto {} spi {:#010x} reqid {} mode {mode}\n",
        proto_name(info.byte(76)?),
        u32::from_be_bytes(spi),
        info.number(208)?,
    );
    for part in attributes(&body[STATE..]) {
        let (kind, value) = part?;
        let value = Bytes(value);
        match kind {
            attribute::MARK => {
                let (bits, mask) = (value.number(0)?, value.number(4)?);
                write(&mut text, format_args!("\tmark {bits:#x}/{mask:#x} \n"));
            }
            attribute::IF_ID => {
                write(&mut text, format_args!("\tif_id {:#x}\n", value.number(0)?));
            }
            _ => {}
        }
    }
    Ok(text)
}

fn selector(info: &Bytes<'_>, names: &BTreeMap<u32, String>) -> Result<String, String> {
    let family = info.short(40)?;
    let (source, destination) = (info.address(16, family)?, info.address(0, family)?);
    let (of_destination, of_source) = (info.byte(42)?, info.byte(43)?);
    let mut text = format!("src {source}/{of_source} dst {destination}/{of_destination} ");
    let proto = info.byte(44)?;
    if proto != 0 {
        write(&mut text, format_args!("proto {} ", proto_name(proto)));
    }
    let words = match proto {
        1 | 58 => [("type", 36), ("code", 32)],
        _ => [("sport", 36), ("dport", 32)],
    };
    for (word, at) in words {
        let (port, mask) = (info.port(at)?, info.port(at + 2)?);
        match mask {
            0 => {}
            0xffff => write(&mut text, format_args!("{word} {port} ")),
            // `ip` does not print masks.
            mask => write(&mut text, format_args!("{word} {port}/{mask:#x} ")),
        }
    }
    let link = info.number(48)?;
    if link != 0 {
        let name = names.get(&link);
        let name = name.map_or_else(|| format!("if{link}"), Clone::clone);
        write(&mut text, format_args!("dev {name} "));
    }
    Ok(text)
}

fn template(text: &mut String, of: &Bytes<'_>) -> Result<(), String> {
    let family = of.short(24)?;
    let (source, destination) = (of.address(28, family)?, of.address(0, family)?);
    write(
        text,
        format_args!("\ttmpl src {source} dst {destination}\n"),
    );
    write(
        text,
        format_args!("\t\tproto {} ", proto_name(of.byte(20)?)),
    );
    let spi: [u8; 4] = of.array(16)?;
    if spi != [0; 4] {
        write(text, format_args!("spi {:#010x} ", u32::from_be_bytes(spi)));
    }
    let mode = of.byte(48)?;
    match MODES.get(usize::from(mode)) {
        Some(name) => write(text, format_args!("reqid {} mode {name}\n", of.number(44)?)),
        None => write(text, format_args!("reqid {} mode {mode}\n", of.number(44)?)),
    }
    if of.byte(50)? != 0 {
        text.push_str("\t\tlevel use \n");
    }
    Ok(())
}

fn proto_name(number: u8) -> String {
    let name = match number {
        1 => "icmp",
        6 => "tcp",
        17 => "udp",
        47 => "gre",
        50 => "esp",
        51 => "ah",
        58 => "ipv6-icmp",
        108 => "comp",
        132 => "sctp",
        other => return other.to_string(),
    };
    name.to_owned()
}

fn write(text: &mut String, of: std::fmt::Arguments<'_>) {
    text.write_fmt(of).expect("a String takes everything");
}

/// Returns the policies in answers of the kernel.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) -> Option<String> {
    let names = BTreeMap::new();
    let all = super::netlink::messages(bytes);
    let all = all.map(|(_, message)| policy(message.get(HEADER..)?, &names).ok());
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A policy out of 10.1.0.0/16 to 10.2.0.1:80 of TCP, which blocks.
    fn info() -> Vec<u8> {
        let mut bytes = vec![0; INFO];
        bytes[..4].copy_from_slice(&[10, 2, 0, 1]);
        bytes[16..20].copy_from_slice(&[10, 1, 0, 0]);
        bytes[32..36].copy_from_slice(&[0, 80, 255, 255]);
        bytes[40..42].copy_from_slice(&2u16.to_ne_bytes());
        bytes[42..45].copy_from_slice(&[32, 16, 6]);
        bytes[152..156].copy_from_slice(&7u32.to_ne_bytes());
        bytes[160..162].copy_from_slice(&[1, 1]);
        bytes
    }

    #[test]
    fn a_policy_is_printed_as_ip_prints_it() {
        let names = BTreeMap::new();
        assert_eq!(
            policy(&info(), &names).unwrap(),
            "src 10.1.0.0/16 dst 10.2.0.1/32 proto tcp dport 80 \n\tdir out action block priority 7 \n"
        );
        let mut of_socket = info();
        of_socket[160] = 4;
        assert!(
            policy(&of_socket, &names)
                .unwrap()
                .contains("\tsocket out ")
        );
    }

    #[test]
    fn a_state_is_printed_without_its_keys() {
        let mut bytes = vec![0; STATE];
        bytes[56..60].copy_from_slice(&[10, 0, 0, 2]);
        bytes[72..77].copy_from_slice(&[0, 0, 0, 5, 50]);
        bytes[80..84].copy_from_slice(&[10, 0, 0, 1]);
        bytes[208..212].copy_from_slice(&7u32.to_ne_bytes());
        bytes[212..214].copy_from_slice(&2u16.to_ne_bytes());
        bytes[214] = 1;
        super::super::netlink::append(&mut bytes, 2, &[0x5a; 72]);
        super::super::netlink::append(&mut bytes, attribute::IF_ID, &9u32.to_ne_bytes());
        assert_eq!(
            state(&bytes).unwrap(),
            "src 10.0.0.1 dst 10.0.0.2\n\tproto esp spi 0x00000005 reqid 7 mode tunnel\n\tif_id 0x9\n"
        );
        for at in 0..bytes.len() {
            drop(state(&bytes[..at]));
        }
    }

    #[test]
    fn no_bytes_cause_a_panic() {
        let names = BTreeMap::new();
        let mut bytes = info();
        let mut value = vec![0; TEMPLATE];
        value[24..26].copy_from_slice(&2u16.to_ne_bytes());
        super::super::netlink::append(&mut bytes, attribute::TEMPLATES, &value);
        super::super::netlink::append(&mut bytes, attribute::MARK, &[1; 8]);
        assert!(policy(&bytes, &names).unwrap().contains("tmpl src 0.0.0.0"));
        for at in 0..bytes.len() {
            drop(policy(&bytes[..at], &names));
            for byte in [0, 1, 10, 127, 255] {
                let mut changed = bytes.clone();
                changed[at] = byte;
                drop(policy(&changed, &names));
            }
        }
    }
}
