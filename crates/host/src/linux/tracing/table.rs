//! kpx's own table, which marks the packets to trace.
//!
//! It has the flag `owner` (Linux 5.12), so that the kernel removes it when the socket that made it closes.

use std::net::IpAddr;

use crate::linux::netlink::{append, nested};
use kpx_node::evidence::traced::{ChainName, OWN_CHAINS, OwnChain, TRACKED, Wanted};
use kpx_node::net::{Family, Proto};

/// `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = 0;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const NEW_RULE: u16 = 6;
const GET_RULE: u16 = 7;
const GET_GENERATION: u16 = 16;

/// `NLM_F_REQUEST | NLM_F_ACK`, and with `NLM_F_EXCL | NLM_F_CREATE`.
const REQUEST: u16 = 0x5;
const CREATE: u16 = REQUEST | 0x200 | 0x400;
/// `NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_APPEND`.
const ADD: u16 = REQUEST | 0x400 | 0x800;

/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;

/// `NFT_TABLE_F_OWNER`.
const OWNER: u32 = 2;
/// `NFT_REG_1`.
const REGISTER: u32 = 1;
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
/// Flags of TCP.
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const FIN_SYN_RST_ACK: u8 = 0x17;
/// `NF_CT_STATE_BIT`; `NEW` includes untracked packets.
const ESTABLISHED: u32 = 1 << 1;
const NEW: u32 = 1 << 3 | 1 << 6;

/// Most packets traced in a second, and at once.
const RATE: (u64, u32) = (20, 5);

/// Requests in one transaction.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    /// The sequence number of the last request that is answered.
    pub(super) last: u32,
    sequence: u32,
    family: u8,
}

/// Returns the transaction that makes the table `name`.
pub(super) fn create(name: &str, wanted: &Wanted) -> Batch {
    let mut batch = Batch::begin(wanted);
    let mut table = named(1, name);
    append(&mut table, 2, &OWNER.to_be_bytes());
    batch.request(NEW_TABLE, CREATE, &table);
    for chain in &OWN_CHAINS {
        let mut body = named(1, name);
        body.extend(named(3, chain.name));
        let mut hook = Vec::new();
        append(&mut hook, 1, &chain.hook.to_be_bytes());
        append(&mut hook, 2, &chain.priority.to_be_bytes());
        nested(&mut body, 4, &hook);
        body.extend(named(7, "filter"));
        batch.request(NEW_CHAIN, CREATE, &body);
        if let Some(expressions) = rule(chain, wanted) {
            let mut body = named(1, name);
            body.extend(named(2, chain.name));
            nested(&mut body, 4, &expressions);
            batch.request(NEW_RULE, ADD, &body);
        }
    }
    batch.end()
}

/// Returns the transaction that removes the table `name`.
pub(super) fn remove(name: &str, wanted: &Wanted) -> Batch {
    let mut batch = Batch::begin(wanted);
    batch.request(DELETE_TABLE, REQUEST, &named(1, name));
    batch.end()
}

/// Returns the request for all rules of `chain`.
pub(super) fn list_rules(chain: &ChainName, sequence: u32) -> Vec<u8> {
    let mut body = named(1, &chain.table);
    body.extend(named(2, &chain.chain));
    let mut batch = Batch {
        sequence: sequence - 1,
        family: number(chain.family),
        ..Batch::default()
    };
    batch.request(GET_RULE, DUMP, &body);
    batch.bytes
}

/// Returns the request for the generation of all rules.
pub(super) fn get_generation() -> Vec<u8> {
    let mut batch = Batch::default();
    batch.request(GET_GENERATION, 1, &[]);
    batch.bytes
}

/// Returns the number of a family of tables.
pub(super) fn number(family: &str) -> u8 {
    match family {
        "inet" => 1,
        "ip" => 2,
        "arp" => 3,
        "netdev" => 5,
        "bridge" => 7,
        "ip6" => 10,
        _ => 0,
    }
}

impl Batch {
    fn begin(wanted: &Wanted) -> Self {
        let family = Family::of(wanted.destination.ip());
        let mut batch = Self {
            family: number(family.nft_name()),
            ..Self::default()
        };
        batch.message(BATCH_BEGIN, 1, 0, SUBSYSTEM, &[]);
        batch
    }

    fn end(mut self) -> Self {
        self.last = self.sequence;
        self.message(BATCH_END, 1, 0, SUBSYSTEM, &[]);
        self
    }

    fn request(&mut self, kind: u16, flags: u16, body: &[u8]) {
        self.message(SUBSYSTEM << 8 | kind, flags, self.family, 0, body);
    }

    fn message(&mut self, kind: u16, flags: u16, family: u8, resource: u16, body: &[u8]) {
        self.sequence += 1;
        let length = u32::try_from(16 + 4 + body.len()).expect("a rule has some 500 bytes");
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(self.sequence.to_ne_bytes());
        self.bytes.extend(0u32.to_ne_bytes());
        self.bytes.extend([family, 0]);
        self.bytes.extend(resource.to_be_bytes());
        self.bytes.extend(body);
    }
}

/// Returns the expressions of the rule of `chain`; `None` for a chain without one.
fn rule(chain: &OwnChain, wanted: &Wanted) -> Option<Vec<u8>> {
    let here = match chain.hook {
        0 => wanted.from_links,
        3 => wanted.from_host,
        _ => return None,
    };
    let tracked = chain.priority == TRACKED;
    let by_flags = wanted.proto == Proto::Tcp;
    // For other protocols, only connection tracking knows which packet opens a connection.
    if !here || !tracked && !by_flags {
        return None;
    }
    let mut list = Vec::new();
    if tracked {
        state(&mut list, wanted.established);
        if by_flags {
            return Some(list);
        }
    }
    // meta l4proto
    load(&mut list, "meta", &[(1, REGISTER), (2, 16)]);
    compare(&mut list, EQUAL, &[wanted.proto.number()]);
    let (ipv4, source, destination) = match wanted.destination.ip() {
        IpAddr::V4(_) => (true, 12, 16),
        IpAddr::V6(_) => (false, 8, 24),
    };
    let length = if ipv4 { 4 } else { 16 };
    payload(&mut list, NETWORK, destination, length);
    compare(&mut list, EQUAL, &octets(wanted.destination.ip()));
    if let Some(from) = wanted.source {
        payload(&mut list, NETWORK, source, length);
        compare(&mut list, EQUAL, &octets(from));
    }
    if wanted.destination.port() != 0 {
        payload(&mut list, TRANSPORT, 2, 2);
        compare(&mut list, EQUAL, &wanted.destination.port().to_be_bytes());
    }
    if by_flags {
        let (mask, value) = if wanted.established {
            (SYN | ACK, ACK)
        } else {
            (FIN_SYN_RST_ACK, SYN)
        };
        payload(&mut list, TRANSPORT, 13, 1);
        mask_with(&mut list, &[mask]);
        compare(&mut list, EQUAL, &[value]);
    }
    limit(&mut list);
    // meta nftrace set 1
    let mut one = Vec::new();
    append(&mut one, 1, &REGISTER.to_be_bytes());
    let mut data = Vec::new();
    append(&mut data, 1, &[1]);
    nested(&mut one, 2, &data);
    expression(&mut list, "immediate", &one);
    load(&mut list, "meta", &[(3, REGISTER), (2, 12)]);
    Some(list)
}

/// `ct state`: new, or established.
fn state(list: &mut Vec<u8>, established: bool) {
    let bits = if established { ESTABLISHED } else { NEW };
    load(list, "ct", &[(1, REGISTER), (2, 0)]);
    mask_with(list, &bits.to_ne_bytes());
    compare(list, NOT_EQUAL, &0u32.to_ne_bytes());
}

/// Adds an expression whose data are numbers.
fn load(list: &mut Vec<u8>, name: &str, numbers: &[(u16, u32)]) {
    let mut data = Vec::new();
    for (kind, number) in numbers {
        append(&mut data, *kind, &number.to_be_bytes());
    }
    expression(list, name, &data);
}

/// Loads `length` bytes of the packet, from `offset` of a header.
fn payload(list: &mut Vec<u8>, header: u32, offset: u32, length: u32) {
    load(
        list,
        "payload",
        &[(1, REGISTER), (2, header), (3, offset), (4, length)],
    );
}

fn compare(list: &mut Vec<u8>, how: u32, with: &[u8]) {
    let mut data = Vec::new();
    append(&mut data, 1, &REGISTER.to_be_bytes());
    append(&mut data, 2, &how.to_be_bytes());
    value(&mut data, 3, with);
    expression(list, "cmp", &data);
}

fn mask_with(list: &mut Vec<u8>, mask: &[u8]) {
    let length = u32::try_from(mask.len()).expect("at most 16 bytes");
    let mut data = Vec::new();
    append(&mut data, 1, &REGISTER.to_be_bytes());
    append(&mut data, 2, &REGISTER.to_be_bytes());
    append(&mut data, 3, &length.to_be_bytes());
    value(&mut data, 4, mask);
    value(&mut data, 5, &vec![0; mask.len()]);
    expression(list, "bitwise", &data);
}

fn limit(list: &mut Vec<u8>) {
    let mut data = Vec::new();
    append(&mut data, 1, &RATE.0.to_be_bytes());
    append(&mut data, 2, &1u64.to_be_bytes());
    append(&mut data, 3, &RATE.1.to_be_bytes());
    append(&mut data, 4, &0u32.to_be_bytes());
    expression(list, "limit", &data);
}

fn value(to: &mut Vec<u8>, kind: u16, bytes: &[u8]) {
    let mut data = Vec::new();
    append(&mut data, 1, bytes);
    nested(to, kind, &data);
}

fn expression(list: &mut Vec<u8>, name: &str, data: &[u8]) {
    let mut element = named(1, name);
    nested(&mut element, 2, data);
    nested(list, 1, &element);
}

fn named(kind: u16, name: &str) -> Vec<u8> {
    let mut attribute = Vec::new();
    append(&mut attribute, kind, format!("{name}\0").as_bytes());
    attribute
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
