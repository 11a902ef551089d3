//! Sends requests to a generic netlink family and receives the attributes of the answers.

use std::io;

use netlink_packet_core::{
    DecodeError, Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkMessage,
    NetlinkPayload, ParseableParametrized,
};
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket as Raw, SocketAddr};

/// Maximum size of one datagram of a dump.
const DATAGRAM: usize = 64 * 1024;

/// Number of commands sent at once: each answer takes about 1 kB in the socket's receive buffer of some 210 kB.
pub(super) const WINDOW: usize = 128;

/// Number of attempts at a dump that changes while it is read.
const TRIES: usize = 5;

/// A request or an answer: a command and its raw attributes.
#[derive(Clone, Debug)]
struct Message {
    command: u8,
    attributes: Vec<u8>,
}

impl GenlFamily for Message {
    fn family_name() -> &'static str {
        "IPVS"
    }

    fn command(&self) -> u8 {
        self.command
    }

    fn version(&self) -> u8 {
        1
    }
}

impl Emitable for Message {
    fn buffer_len(&self) -> usize {
        self.attributes.len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        buffer[..self.attributes.len()].copy_from_slice(&self.attributes);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Message {
    fn parse_with_param(buffer: &[u8], header: GenlHeader) -> Result<Self, DecodeError> {
        Ok(Self {
            command: header.cmd,
            attributes: buffer.to_vec(),
        })
    }
}

/// A socket for one family, in the network namespace of the thread that opened it.
pub(super) struct Socket {
    raw: Raw,
    family: u16,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens a socket and looks up the family. If the family does not exist, the kernel tries to load a module for it.
    pub(super) fn open(family: &str) -> io::Result<Self> {
        let mut raw = Raw::new(NETLINK_GENERIC)?;
        raw.bind_auto()?;
        raw.connect(&SocketAddr::new(0, 0))?;
        let mut socket = Self {
            raw,
            family: 0,
            sequence: 0,
            buffer: Vec::with_capacity(DATAGRAM),
        };
        let request = GenlMessage::from_payload(GenlCtrl {
            cmd: GenlCtrlCmd::GetFamily,
            nlas: vec![GenlCtrlAttrs::FamilyName(family.to_owned())],
        });
        socket.send(NetlinkMessage::from(request), NLM_F_ACK)?;
        let (answers, _) = socket.receive::<GenlCtrl>()?;
        let id = answers
            .iter()
            .flat_map(|a| &a.nlas)
            .find_map(|nla| match nla {
                GenlCtrlAttrs::FamilyId(id) => Some(*id),
                _ => None,
            });
        socket.family = id.ok_or_else(|| {
            let what = format!("the kernel has no number for the netlink family {family}");
            io::Error::new(io::ErrorKind::InvalidData, what)
        })?;
        Ok(socket)
    }

    /// Sends a command and returns the attributes of each answer.
    pub(super) fn ask(&mut self, command: u8, attributes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.request(command, attributes, NLM_F_ACK)
            .map(|(answers, _)| answers)
    }

    /// Sends a command that lists objects, and returns the attributes of each entry.
    pub(super) fn dump(&mut self, command: u8, attributes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        for _ in 0..TRIES {
            let (answers, whole) = self.request(command, attributes, NLM_F_DUMP)?;
            if whole {
                return Ok(answers);
            }
        }
        let what = format!("the table changed during each of {TRIES} dumps");
        Err(io::Error::other(what))
    }

    /// Sends up to [`WINDOW`] commands at once and returns the kernel's answer to each; `None` means success.
    pub(super) fn batch(
        &mut self,
        requests: Vec<(u8, Vec<u8>)>,
    ) -> io::Result<Vec<Option<io::Error>>> {
        let first = self.sequence + 1;
        let mut bytes = Vec::with_capacity(requests.len() * 256);
        let mut answers: Vec<Option<io::Error>> = Vec::new();
        answers.resize_with(requests.len(), || None);
        for (command, attributes) in requests {
            let mut request = GenlMessage::from_payload(Message {
                command,
                attributes,
            });
            request.set_resolved_family_id(self.family);
            let message = self.number(NetlinkMessage::from(request), NLM_F_ACK);
            let start = bytes.len();
            bytes.resize(start + message.buffer_len(), 0);
            message.serialize(&mut bytes[start..]);
        }
        self.raw.send(&bytes, 0)?;
        // The kernel processes them in order and answers each once.
        let mut left = answers.len();
        while left > 0 {
            self.fill()?;
            for message in messages::<Message>(&self.buffer) {
                let message = message?;
                let at = message.header.sequence_number.wrapping_sub(first);
                let answer = answers.get_mut(at as usize);
                if let (NetlinkPayload::Error(e), Some(answer)) = (message.payload, answer) {
                    *answer =
                        (e.raw_code() != 0).then(|| io::Error::from_raw_os_error(-e.raw_code()));
                    left -= 1;
                }
            }
        }
        Ok(answers)
    }

    fn request(
        &mut self,
        command: u8,
        attributes: &[u8],
        flags: u16,
    ) -> io::Result<(Vec<Vec<u8>>, bool)> {
        let mut request = GenlMessage::from_payload(Message {
            command,
            attributes: attributes.to_vec(),
        });
        request.set_resolved_family_id(self.family);
        self.send(NetlinkMessage::from(request), flags)?;
        let (answers, whole) = self.receive::<Message>()?;
        Ok((answers.into_iter().map(|a| a.attributes).collect(), whole))
    }

    /// Assigns the next sequence number to `message`.
    fn number<F>(
        &mut self,
        mut message: NetlinkMessage<GenlMessage<F>>,
        flags: u16,
    ) -> NetlinkMessage<GenlMessage<F>>
    where
        F: GenlFamily + Emitable + std::fmt::Debug,
    {
        self.sequence += 1;
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        message
    }

    fn send<F>(&mut self, message: NetlinkMessage<GenlMessage<F>>, flags: u16) -> io::Result<()>
    where
        F: GenlFamily + Emitable + std::fmt::Debug,
    {
        let message = self.number(message, flags);
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.raw.send(&bytes, 0).map(drop)
    }

    /// Returns the answers to the last request, and whether they are consistent.
    fn receive<F>(&mut self) -> io::Result<(Vec<F>, bool)>
    where
        F: ParseableParametrized<[u8], GenlHeader> + std::fmt::Debug,
    {
        let mut answers = Vec::new();
        let mut whole = true;
        loop {
            self.fill()?;
            for message in messages::<F>(&self.buffer) {
                let message = message?;
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                whole &= message.header.flags & NLM_F_DUMP_INTR == 0;
                match message.payload {
                    NetlinkPayload::InnerMessage(answer) => answers.push(answer.payload),
                    NetlinkPayload::Done(done) if done.code < 0 => {
                        return Err(io::Error::from_raw_os_error(-done.code));
                    }
                    NetlinkPayload::Error(e) if e.raw_code() != 0 => {
                        return Err(io::Error::from_raw_os_error(-e.raw_code()));
                    }
                    // The acknowledgement follows the answer to a request that is not a dump.
                    NetlinkPayload::Done(_) | NetlinkPayload::Error(_) => {
                        return Ok((answers, whole));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Receives one datagram.
    fn fill(&mut self) -> io::Result<()> {
        self.buffer.clear();
        let received = self.raw.recv(&mut self.buffer, 0)?;
        if received == 0 || received > self.buffer.len() {
            let what =
                format!("the kernel sent a datagram of {received} bytes, which is too large");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(())
    }
}

/// Iterates over the messages of one datagram.
fn messages<F>(datagram: &[u8]) -> impl Iterator<Item = io::Result<NetlinkMessage<GenlMessage<F>>>>
where
    F: ParseableParametrized<[u8], GenlHeader> + std::fmt::Debug,
{
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let message = NetlinkMessage::<GenlMessage<F>>::deserialize(rest)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()));
        let length = message.as_ref().map_or(rest.len(), |message| {
            (message.header.length as usize).next_multiple_of(4)
        });
        rest = rest.get(length.max(4)..).unwrap_or(&[]);
        Some(message)
    })
}
