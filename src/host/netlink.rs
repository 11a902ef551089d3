//! Dumps by netlink.
//!
//! One message that cannot be decoded fails the whole dump: a list with a hole in it would be taken for the truth.

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer, NetlinkDeserializable,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};

use super::context::gap;
use crate::evidence::{Gap, Item};

/// How often a dump is tried that changed under the kernel's hands.
const TRIES: u32 = 5;

/// The kernel fills at most this much of one answer.
const ANSWER: usize = 64 * 1024;

/// Asks for everything that `request` names and returns the answers. Blocks.
pub(super) fn dump<M>(item: Item, protocol: isize, request: &M) -> Result<Vec<M>, Gap>
where
    M: Clone + NetlinkSerializable + NetlinkDeserializable,
{
    let failed = |what: &str, e: &std::io::Error| gap(item, format!("netlink ({what})"), e);
    let mut socket = Socket::new(protocol).map_err(|e| failed("opening", &e))?;
    socket.bind_auto().map_err(|e| failed("binding", &e))?;
    for sequence in 1..=TRIES {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        header.sequence_number = sequence;
        let mut message =
            NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request.clone()));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        socket
            .send_to(&bytes, &SocketAddr::new(0, 0), 0)
            .map_err(|e| failed("asking", &e))?;
        if let Some(answers) = answers(item, &socket, sequence)? {
            return Ok(answers);
        }
    }
    let what = format!("it changed while it was listed, {TRIES} times");
    Err(Gap::Failed(item, what))
}

/// Reads the answers to request number `sequence`; `None` if the kernel says they do not fit together.
fn answers<M>(item: Item, socket: &Socket, sequence: u32) -> Result<Option<Vec<M>>, Gap>
where
    M: NetlinkDeserializable,
{
    let undecodable = |e: &dyn std::fmt::Display| {
        Gap::Failed(item, format!("cannot decode what netlink answered: {e}"))
    };
    let mut found = Vec::new();
    let mut consistent = true;
    let mut buffer = Vec::with_capacity(ANSWER);
    loop {
        buffer.clear();
        socket
            .recv(&mut buffer, 0)
            .map_err(|e| gap(item, "netlink (answers)", &e))?;
        let mut rest = buffer.as_slice();
        while !rest.is_empty() {
            let length = NetlinkBuffer::new_checked(rest)
                .map_err(|e| undecodable(&e))?
                .length() as usize;
            let message = NetlinkMessage::<M>::deserialize(rest).map_err(|e| undecodable(&e))?;
            // Messages are padded to four bytes, the last one perhaps not.
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            if message.header.sequence_number != sequence {
                continue;
            }
            consistent &= message.header.flags & NLM_F_DUMP_INTR == 0;
            match message.payload {
                NetlinkPayload::InnerMessage(inner) => found.push(inner),
                NetlinkPayload::Done(_) => return Ok(consistent.then_some(found)),
                NetlinkPayload::Error(error) => {
                    return Err(gap(item, "netlink (answer)", &error.to_io()));
                }
                _ => {}
            }
        }
    }
}
