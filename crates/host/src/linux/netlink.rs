//! Netlink dumps.
//!
//! A message that cannot be decoded fails the whole dump: an incomplete list must not look complete.

use std::{fmt, io};

use netlink_packet_core::{
    NLA_F_NESTED, NLA_HEADER_SIZE, NLA_TYPE_MASK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST,
    NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN, NetlinkBuffer, NetlinkDeserializable,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};

use super::context::gap;
use kpx_node::evidence::{Gap, Item};

/// Number of attempts at a dump that changes while it is read.
const TRIES: u32 = 5;

/// Maximum size of one answer.
const ANSWER: usize = 64 * 1024;

/// Sends `request` and returns all answers. Blocks.
pub(super) fn dump<M>(item: Item, protocol: isize, request: &M) -> Result<Vec<M>, Gap>
where
    M: Clone + NetlinkSerializable + NetlinkDeserializable,
{
    let asks = |sequence| {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        header.sequence_number = sequence;
        let mut message =
            NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request.clone()));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    };
    stream(item, protocol, asks, |found: &mut Vec<M>, bytes| {
        let message = NetlinkMessage::<M>::deserialize(bytes).map_err(|e| undecodable(item, &e))?;
        if let NetlinkPayload::InnerMessage(inner) = message.payload {
            found.push(inner);
        }
        Ok(())
    })
}

/// Sends the bytes that `asks` returns for a sequence number, and passes each answer with its header to `take` as it
/// arrives. Blocks.
pub(super) fn stream<T: Default>(
    item: Item,
    protocol: isize,
    asks: impl Fn(u32) -> Vec<u8>,
    take: impl FnMut(&mut T, &[u8]) -> Result<(), Gap>,
) -> Result<T, Gap> {
    Line::open(item, protocol)?.stream(asks, take)
}

/// A netlink socket for one request after the other.
pub(super) struct Line {
    item: Item,
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").finish_non_exhaustive()
    }
}

impl Line {
    /// Opens a socket in the network namespace of the calling thread.
    fn open(item: Item, protocol: isize) -> Result<Self, Gap> {
        let failed = |what: &str, e: &io::Error| gap(item, format!("netlink ({what})"), e);
        let mut socket = Socket::new(protocol).map_err(|e| failed("opening", &e))?;
        socket.bind_auto().map_err(|e| failed("binding", &e))?;
        Ok(Self {
            item,
            socket,
            sequence: 0,
            buffer: Vec::with_capacity(ANSWER),
        })
    }

    /// Opens a socket of netfilter.
    pub(super) fn netfilter(item: Item) -> Result<Self, Gap> {
        Self::open(item, NETLINK_NETFILTER)
    }

    /// Opens a socket of links and routes.
    pub(super) fn route(item: Item) -> Result<Self, Gap> {
        Self::open(item, NETLINK_ROUTE)
    }

    /// Like [`stream`], over this socket.
    pub(super) fn stream<T: Default>(
        &mut self,
        asks: impl Fn(u32) -> Vec<u8>,
        mut take: impl FnMut(&mut T, &[u8]) -> Result<(), Gap>,
    ) -> Result<T, Gap> {
        let item = self.item;
        for _ in 0..TRIES {
            self.sequence += 1;
            self.socket
                .send_to(&asks(self.sequence), &SocketAddr::new(0, 0), 0)
                .map_err(|e| gap(item, "netlink (asking)", &e))?;
            let mut found = T::default();
            if self.answers(|bytes| take(&mut found, bytes))? {
                return Ok(found);
            }
        }
        let what = format!("it changed while it was read, {TRIES} times");
        Err(Gap::Failed(item, what))
    }

    /// Passes the answers to the last request to `take`; returns whether the kernel reports them as consistent.
    fn answers(&mut self, mut take: impl FnMut(&[u8]) -> Result<(), Gap>) -> Result<bool, Gap> {
        let item = self.item;
        let mut consistent = true;
        loop {
            self.buffer.clear();
            self.socket
                .recv(&mut self.buffer, 0)
                .map_err(|e| gap(item, "netlink (answers)", &e))?;
            let mut rest = self.buffer.as_slice();
            while !rest.is_empty() {
                let header = NetlinkBuffer::new_checked(rest).map_err(|e| undecodable(item, &e))?;
                let length = header.length() as usize;
                let message = rest.get(..length).unwrap_or(rest);
                let of_this = header.sequence_number() == self.sequence;
                let (kind, flags) = (header.message_type(), header.flags());
                // Messages are padded to four bytes, except possibly the last one.
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
                if !of_this {
                    continue;
                }
                consistent &= flags & NLM_F_DUMP_INTR == 0;
                match kind {
                    NLMSG_NOOP => {}
                    NLMSG_OVERRUN => {
                        return Err(undecodable(item, &"an answer was lost"));
                    }
                    // Both contain an error number, which is 0 at the end of a dump and in an acknowledgement.
                    NLMSG_DONE | NLMSG_ERROR => match code(message) {
                        0 => return Ok(consistent),
                        code => {
                            let error = io::Error::from_raw_os_error(code.saturating_abs());
                            return Err(gap(item, "netlink (answer)", &error));
                        }
                    },
                    _ => take(message)?,
                }
            }
        }
    }
}

/// The netlink header, and `struct nfgenmsg` behind it.
pub(super) const HEADERS: usize = 16 + 4;

/// Returns a message of netfilter: the subsystem is in the upper byte of `kind`.
pub(super) fn message(
    kind: u16,
    flags: u16,
    sequence: u32,
    (family, resource): (u8, u16),
    body: &[u8],
) -> Vec<u8> {
    let length = u32::try_from(HEADERS + body.len()).expect("a request has some 500 bytes");
    let mut bytes = Vec::with_capacity(HEADERS + body.len());
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend([family, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes.extend(body);
    bytes
}

/// Sends a request to netfilter for a list, and passes family and attributes of each answer to `take`. Blocks.
pub(super) fn list<T: Default>(
    item: Item,
    kind: u16,
    family: u8,
    body: &[u8],
    mut take: impl FnMut(&mut T, u8, &[u8]) -> Result<(), String>,
) -> Result<T, Gap> {
    let asks = |sequence| {
        message(
            kind,
            NLM_F_REQUEST | NLM_F_DUMP,
            sequence,
            (family, 0),
            body,
        )
    };
    stream(item, NETLINK_NETFILTER, asks, |found: &mut T, answer| {
        let family = answer.get(16).copied().unwrap_or_default();
        let attributes = answer.get(HEADERS..).unwrap_or_default();
        take(found, family, attributes).map_err(|why| undecodable(item, &why))
    })
}

fn undecodable(item: Item, error: &dyn fmt::Display) -> Gap {
    Gap::Failed(item, format!("cannot decode a netlink answer: {error}"))
}

/// Returns the number after the header.
fn code(message: &[u8]) -> i32 {
    let bytes = message.get(16..20).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, i32::from_ne_bytes)
}

/// Appends the attribute `kind` with `value`.
pub(super) fn append(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(NLA_HEADER_SIZE + value.len()).expect("a key has some 50 bytes");
    to.extend(length.to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// Appends the attribute `kind` that contains `attributes`.
pub(super) fn nested(to: &mut Vec<u8>, kind: u16, attributes: &[u8]) {
    append(to, kind | NLA_F_NESTED, attributes);
}

/// The attributes of a list: number and value of each, or why it is malformed.
pub(super) fn attributes(mut list: &[u8]) -> impl Iterator<Item = Result<(u16, &[u8]), String>> {
    std::iter::from_fn(move || {
        let header = list.first_chunk::<NLA_HEADER_SIZE>()?;
        let [a, b, c, d] = *header;
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let kind = u16::from_ne_bytes([c, d]) & NLA_TYPE_MASK;
        let Some(value) = list.get(NLA_HEADER_SIZE..length) else {
            list = &[];
            return Some(Err("an attribute is cut off".to_owned()));
        };
        list = list.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok((kind, value)))
    })
}

/// Returns the text of an attribute, which a zero byte may end.
pub(super) fn text(value: &[u8]) -> Result<&str, String> {
    let value = value.strip_suffix(&[0]).unwrap_or(value);
    std::str::from_utf8(value).map_err(|_| "a name is no text".to_owned())
}

/// Returns the 32-bit number of an attribute of netfilter.
pub(super) fn word(value: &[u8]) -> Result<u32, String> {
    let bytes = value.try_into().map_err(|_| "a number is too short")?;
    Ok(u32::from_be_bytes(bytes))
}

/// Returns the 64-bit number of an attribute of netfilter.
pub(super) fn wide(value: &[u8]) -> Result<u64, String> {
    let bytes = value.try_into().map_err(|_| "a number is too short")?;
    Ok(u64::from_be_bytes(bytes))
}

/// The messages in `bytes`, one after the other: kind, and bytes with the header.
#[cfg(fuzzing)]
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = NetlinkBuffer::new_checked(bytes).ok()?;
        let length = header.length() as usize;
        let message = (header.message_type(), bytes.get(..length)?);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}
