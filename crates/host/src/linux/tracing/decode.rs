//! Decodes `NFT_MSG_TRACE`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink_packet_core::{NLA_TYPE_MASK, NlaBuffer, NlasIterator};

use crate::linux::nf_tables::family_name;
use kpx_node::evidence::traced::{About, ChainName, Event, Headers, Ruling};

/// `NFTA_TRACE_*`.
mod trace {
    pub(super) const TABLE: u16 = 1;
    pub(super) const CHAIN: u16 = 2;
    pub(super) const RULE_HANDLE: u16 = 3;
    pub(super) const TYPE: u16 = 4;
    pub(super) const VERDICT: u16 = 5;
    pub(super) const ID: u16 = 6;
    pub(super) const NETWORK_HEADER: u16 = 8;
    pub(super) const TRANSPORT_HEADER: u16 = 9;
    pub(super) const IIF: u16 = 10;
    pub(super) const OIF: u16 = 12;
    pub(super) const POLICY: u16 = 16;
}

/// `NFT_TRACETYPE_*`.
const POLICY: u32 = 1;
const RETURN: u32 = 2;
const RULE: u32 = 3;

/// The netlink header, and `struct nfgenmsg` behind it.
const HEADERS: usize = 16 + 4;

/// Decodes a netlink message of type `NFT_MSG_TRACE`, with its header.
pub(super) fn event(message: &[u8]) -> Result<Event, String> {
    let body = message.get(HEADERS..).ok_or("it has no header")?;
    let number = message[16];
    let family = family_name(number).ok_or_else(|| format!("family {number} is unknown"))?;
    let mut table = None;
    let mut chain = None;
    let mut handle = None;
    let mut kind = None;
    let mut ruling = None;
    let mut policy = None;
    let mut packet = None;
    let (mut network, mut transport) = (None, None);
    let (mut input, mut output) = (None, None);
    for attribute in attributes(body) {
        let (number, value) = attribute?;
        match number {
            trace::TABLE => table = Some(text(&value)?),
            trace::CHAIN => chain = Some(text(&value)?),
            trace::RULE_HANDLE => handle = Some(wide(&value)?),
            trace::TYPE => kind = Some(word(&value)?),
            trace::VERDICT => ruling = Some(verdict(&value)?),
            trace::POLICY => policy = Some(code(word(&value)?, None)?),
            trace::ID => packet = Some(word(&value)?),
            trace::NETWORK_HEADER => network = Some(value),
            trace::TRANSPORT_HEADER => transport = Some(value),
            trace::IIF => input = Some(word(&value)?),
            trace::OIF => output = Some(word(&value)?),
            _ => {}
        }
    }
    let about = match (kind.ok_or("it has no type")?, handle) {
        (POLICY, _) => About::Policy,
        (RULE | RETURN, Some(handle)) => About::Rule(handle),
        // The end of a chain is behind its last rule.
        (RULE | RETURN, None) => About::End,
        (other, _) => return Err(format!("type {other} is unknown")),
    };
    Ok(Event {
        packet: packet.ok_or("it has no number")?,
        chain: ChainName {
            family,
            table: table.ok_or("it names no table")?,
            chain: chain.ok_or("it names no chain")?,
        },
        about,
        verdict: match about {
            About::Policy => policy.ok_or("it has no policy")?,
            About::Rule(_) | About::End => ruling.ok_or("it has no verdict")?,
        },
        headers: network.and_then(|network| headers(&network, transport.as_deref())),
        input,
        output,
    })
}

/// Decodes the handle of a rule that `NFT_MSG_NEWRULE` describes.
pub(super) fn handle(message: &[u8]) -> Result<u64, String> {
    let body = message.get(HEADERS..).ok_or("it has no header")?;
    for attribute in attributes(body) {
        if let (3, value) = attribute? {
            return wide(&value);
        }
    }
    Err("it has no handle".to_owned())
}

/// Decodes `NFT_MSG_NEWGEN`.
pub(super) fn generation(message: &[u8]) -> Option<u32> {
    let mut all = attributes(message.get(HEADERS..)?).flatten();
    all.find_map(|(kind, value)| word(&value).ok().filter(|_| kind == 1))
}

/// Returns the attributes of a list, with their numbers.
pub(super) fn attributes(list: &[u8]) -> impl Iterator<Item = Result<(u16, Vec<u8>), String>> {
    NlasIterator::new(list).map(|attribute| {
        let attribute: NlaBuffer<&[u8]> = attribute.map_err(|e| e.to_string())?;
        Ok((attribute.kind() & NLA_TYPE_MASK, attribute.value().to_vec()))
    })
}

pub(super) fn text(value: &[u8]) -> Result<String, String> {
    let value = value.strip_suffix(&[0]).unwrap_or(value);
    let text = std::str::from_utf8(value).map_err(|_| "a name is no text")?;
    Ok(text.to_owned())
}

pub(super) fn word(value: &[u8]) -> Result<u32, String> {
    let bytes = value.try_into().map_err(|_| "a number is too short")?;
    Ok(u32::from_be_bytes(bytes))
}

fn wide(value: &[u8]) -> Result<u64, String> {
    let bytes = value.try_into().map_err(|_| "a number is too short")?;
    Ok(u64::from_be_bytes(bytes))
}

/// Decodes `NFTA_TRACE_VERDICT`: its number, and the chain that it leads to.
fn verdict(value: &[u8]) -> Result<Ruling, String> {
    let mut number = None;
    let mut chain = None;
    for attribute in attributes(value) {
        match attribute? {
            (1, value) => number = Some(word(&value)?),
            (2, value) => chain = Some(text(&value)?),
            _ => {}
        }
    }
    code(number.ok_or("a verdict has no number")?, chain)
}

/// Decodes a verdict: those of `enum nft_verdicts` are negative, those of netfilter are in the lower byte.
fn code(number: u32, chain: Option<String>) -> Result<Ruling, String> {
    let to = || chain.ok_or_else(|| "a verdict names no chain".to_owned());
    Ok(match number.cast_signed() {
        -1 | -2 => Ruling::Continue,
        -3 => Ruling::Jump(to()?),
        -4 => Ruling::Goto(to()?),
        -5 => Ruling::Return,
        other if other < 0 => return Err(format!("verdict {other} is unknown")),
        other => match other & 0xff {
            0 => Ruling::Drop,
            1 => Ruling::Accept,
            _ => Ruling::Taken,
        },
    })
}

/// Reads the addresses and ports; `None` for a header that is cut off.
pub(super) fn headers(network: &[u8], transport: Option<&[u8]>) -> Option<Headers> {
    let (source, destination, proto) = match network.first()? >> 4 {
        4 => (
            IpAddr::from(Ipv4Addr::from(*network.get(12..)?.first_chunk::<4>()?)),
            IpAddr::from(Ipv4Addr::from(*network.get(16..)?.first_chunk::<4>()?)),
            *network.get(9)?,
        ),
        6 => (
            IpAddr::from(Ipv6Addr::from(*network.get(8..)?.first_chunk::<16>()?)),
            IpAddr::from(Ipv6Addr::from(*network.get(24..)?.first_chunk::<16>()?)),
            *network.get(6)?,
        ),
        _ => return None,
    };
    let port = |at: usize| {
        let bytes = transport.and_then(|bytes| bytes.get(at..)?.first_chunk::<2>());
        bytes
            .filter(|_| matches!(proto, 6 | 17 | 132))
            .map_or(0, |bytes| u16::from_be_bytes(*bytes))
    };
    Some(Headers {
        source: SocketAddr::new(source, port(0)),
        destination: SocketAddr::new(destination, port(2)),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::linux::netlink::{append, nested};

    /// A message of the kernel about rule 7 of KUBE-SERVICES, which jumps.
    fn message() -> Vec<u8> {
        let mut body = vec![2, 0, 0, 0];
        append(&mut body, trace::TABLE, b"nat\0");
        append(&mut body, trace::CHAIN, b"KUBE-SERVICES\0");
        append(&mut body, trace::RULE_HANDLE, &7u64.to_be_bytes());
        append(&mut body, trace::TYPE, &RULE.to_be_bytes());
        append(&mut body, trace::ID, &0x1234u32.to_be_bytes());
        let mut verdict = Vec::new();
        append(&mut verdict, 1, &(-3i32).to_be_bytes());
        append(&mut verdict, 2, b"KUBE-SVC-A\0");
        nested(&mut body, trace::VERDICT, &verdict);
        let mut network = vec![0x45; 20];
        network[9] = 6;
        network[12..16].copy_from_slice(&[10, 244, 1, 5]);
        network[16..20].copy_from_slice(&[10, 97, 54, 248]);
        append(&mut body, trace::NETWORK_HEADER, &network);
        append(&mut body, trace::TRANSPORT_HEADER, &[0x9c, 0x40, 0, 80]);
        append(&mut body, trace::IIF, &3u32.to_be_bytes());
        let mut message = vec![0; 16];
        message.extend(body);
        message
    }

    #[test]
    fn a_message_names_the_rule_the_verdict_and_the_packet() {
        let event = event(&message()).unwrap();
        assert_eq!(event.about, About::Rule(7));
        assert_eq!(event.verdict, Ruling::Jump("KUBE-SVC-A".to_owned()));
        assert_eq!((event.packet, event.input), (0x1234, Some(3)));
        let headers = event.headers.unwrap();
        assert_eq!(headers.source.to_string(), "10.244.1.5:40000");
        assert_eq!(headers.destination.to_string(), "10.97.54.248:80");
    }

    #[test]
    fn a_message_that_is_cut_off_is_an_error() {
        let whole = message();
        for length in 0..whole.len() {
            // A message without its last attributes may still be complete.
            if let Ok(event) = event(&whole[..length]) {
                assert_eq!(event.chain.chain, "KUBE-SERVICES");
            }
        }
        assert!(event(&whole[..40]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _either = event(&bytes);
        }
    }
}
