//! Answers of the kernel, as seeds.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::path::Path;

use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE, NETLINK_SOCK_DIAG};
use netlink_sys::{Socket, SocketAddr};

/// `NFT_MSG_GET…` of `nf_tables`, and the kinds of its answers.
const NFT: u16 = 10 << 8;
const GET_CHAIN: u16 = NFT | 4;
const GET_RULE: u16 = NFT | 7;
const GET_SET: u16 = NFT | 10;
const GET_ELEMENTS: u16 = NFT | 13;
const GET_OBJECT: u16 = NFT | 19;

/// Writes seeds below `folder`, in the folder of each target.
pub(crate) fn seeds(folder: &Path) {
    let write = |target: &str, bytes: &[u8]| {
        let mut hash = DefaultHasher::new();
        bytes.hash(&mut hash);
        let folder = folder.join(target);
        fs::create_dir_all(&folder).expect("the folder can be written");
        fs::write(folder.join(format!("kernel-{:x}", hash.finish())), bytes).expect("it has room");
    };
    // iptables-nft's tables have no sets: each rule behind its chain. The others: the sets before each rule.
    let netfilter = |kind, body: &[u8]| dump(NETLINK_NETFILTER, kind, body);
    for family in [2, 10] {
        let head = [family, 0, 0, 0];
        let chains = netfilter(GET_CHAIN, &head);
        let rules = netfilter(GET_RULE, &head);
        let sets = netfilter(GET_SET, &head);
        for chain in &chains {
            write("netlink-iptables", chain);
            write("netlink-nftables", chain);
            for rule in rules.iter().filter(|rule| name(rule, 2) == name(chain, 3)) {
                write("netlink-iptables", &[chain.as_slice(), rule].concat());
            }
        }
        for set in &sets {
            let key = [attribute(1, name(set, 1)), attribute(2, name(set, 2))].concat();
            let elements = netfilter(GET_ELEMENTS, &[head.as_slice(), &key].concat());
            write(
                "netlink-nftables",
                &[set.as_slice(), &elements.concat()].concat(),
            );
            for rule in rules.iter().filter(|rule| contains(rule, name(set, 2))) {
                write("netlink-nftables", &[set.as_slice(), rule].concat());
            }
        }
        for rule in rules.iter().chain(&netfilter(GET_OBJECT, &head)) {
            write("netlink-nftables", rule);
        }
    }
    // IPSET_CMD_SAVE with the protocol.
    let sets = netfilter(
        6 << 8 | 8,
        &[[0; 4].as_slice(), &attribute(1, &[6])].concat(),
    );
    sets.iter().for_each(|set| write("netlink", set));
    for family in [2, 10] {
        let all = netfilter(1 << 8 | 1, &[family, 0, 0, 0]);
        all.iter().for_each(|one| write("netlink", one));
    }
    for (kind, size) in [(18, 16), (22, 8), (26, 12), (34, 12)] {
        let all = dump(NETLINK_ROUTE, kind, &vec![0; size]);
        write("netlink", &all.concat());
        all.iter().for_each(|one| write("netlink", one));
    }
    for protocol in [6, 17] {
        let mut request = vec![2, protocol, 0, 0];
        request.extend([0xff; 4]);
        request.extend([0; 48]);
        let all = dump(NETLINK_SOCK_DIAG, 20, &request);
        all.iter().for_each(|one| write("netlink", one));
    }
    for (number, domain) in [(0, libc::AF_INET), (1, libc::AF_INET6)] {
        if let Some(table) = legacy(domain) {
            write("legacy-iptables", &[[number].as_slice(), &table].concat());
        }
    }
    write("netlink", &virtual_server());
    write("netlink", &traced());
}

/// Sends a request for a list; returns the answers, padded.
fn dump(protocol: isize, kind: u16, body: &[u8]) -> Vec<Vec<u8>> {
    let mut socket = Socket::new(protocol).expect("netlink can be opened");
    socket.bind_auto().expect("it can be bound");
    // NLM_F_REQUEST | NLM_F_DUMP.
    let request = message(kind, 0x301, body);
    socket
        .send_to(&request, &SocketAddr::new(0, 0), 0)
        .expect("the kernel takes it");
    let mut all = Vec::new();
    loop {
        let mut bytes = Vec::with_capacity(1 << 16);
        socket.recv(&mut bytes, 0).expect("the kernel answers");
        let mut rest = bytes.as_slice();
        while let Some(length) = rest
            .first_chunk()
            .map(|of| u32::from_ne_bytes(*of) as usize)
        {
            let (one, behind) = rest.split_at(length.next_multiple_of(4).min(rest.len()));
            // NLMSG_ERROR or NLMSG_DONE.
            if matches!(one[4..6], [2 | 3, 0]) {
                return all;
            }
            all.push(one.to_vec());
            rest = behind;
        }
    }
}

fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(16 + body.len()).expect("it is short");
    let [kind, flags] = [kind, flags].map(u16::to_ne_bytes);
    [
        &length.to_ne_bytes(),
        &kind[..],
        &flags,
        &1u32.to_ne_bytes(),
        &[0; 4],
        body,
    ]
    .concat()
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).expect("it is short");
    let mut bytes = [&length.to_ne_bytes(), &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns an attribute of a message of `nf_tables`; empty if it has none of the `kind`.
fn name(message: &[u8], kind: u16) -> &[u8] {
    let mut rest = message.get(20..).unwrap_or_default();
    while let [a, b, c, d, ..] = *rest {
        let length = usize::from(u16::from_ne_bytes([a, b]));
        if u16::from_ne_bytes([c, d]) == kind {
            return rest.get(4..length).unwrap_or_default();
        }
        rest = rest
            .get(length.max(4).next_multiple_of(4)..)
            .unwrap_or_default();
    }
    &[]
}

fn contains(message: &[u8], name: &[u8]) -> bool {
    !name.is_empty() && message.windows(name.len()).any(|part| part == name)
}

/// Returns table nat of iptables' legacy back end: `struct ipt_getinfo`, then `struct ipt_get_entries`.
fn legacy(domain: i32) -> Option<Vec<u8>> {
    const NAME: &[u8] = b"nat";
    let level = if domain == libc::AF_INET {
        libc::IPPROTO_IP
    } else {
        libc::IPPROTO_IPV6
    };
    // SAFETY: a socket is made, and the kernel writes at most `length` bytes to `to`.
    let socket = unsafe { libc::socket(domain, libc::SOCK_RAW, libc::IPPROTO_RAW) };
    let ask = |option: i32, to: &mut [u8]| {
        let mut length = u32::try_from(to.len()).expect("it is short");
        let ended = unsafe {
            libc::getsockopt(
                socket,
                level,
                option,
                to.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        (ended == 0).then_some(())
    };
    let mut info = [0; 84];
    info[..NAME.len()].copy_from_slice(NAME);
    ask(64, &mut info)?;
    let size = info.last_chunk::<4>().expect("it has 84 bytes");
    let mut entries = vec![0; 40 + u32::from_ne_bytes(*size) as usize];
    entries[..NAME.len()].copy_from_slice(NAME);
    entries[32..36].copy_from_slice(size);
    ask(65, &mut entries)?;
    Some([info.as_slice(), &entries].concat())
}

/// A virtual server with one real server, as `ip_vs` lists them: most kernels do not have it.
fn virtual_server() -> Vec<u8> {
    let word = |kind, value: u32| attribute(kind, &value.to_ne_bytes());
    let short = |kind, value: u16| attribute(kind, &value.to_ne_bytes());
    let address = [10, 96, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let port = attribute(4, &53u16.to_be_bytes());
    let flags = attribute(7, &[0, 0, 0, 0, 255, 255, 255, 255]);
    let server = [
        short(1, 2),
        short(2, 17),
        attribute(3, &address),
        port,
        attribute(6, b"rr\0"),
        flags,
        word(8, 0),
        attribute(9, &[255; 4]),
    ];
    let real = [
        attribute(1, &address),
        attribute(2, &8080u16.to_be_bytes()),
        word(3, 0),
        word(4, 1),
        word(5, 0),
        word(6, 0),
        word(7, 1),
        word(8, 2),
        word(9, 0),
        short(11, 2),
    ];
    let head = [1, 1, 0, 0];
    let one =
        |kind, list: &[u8]| message(0x21, 2, &[head.as_slice(), &attribute(kind, list)].concat());
    [
        one(1 | 0x8000, &server.concat()),
        one(2 | 0x8000, &real.concat()),
    ]
    .concat()
}

/// A packet that rule 7 of `KUBE-SERVICES` traced.
fn traced() -> Vec<u8> {
    let word = |kind, value: u32| attribute(kind, &value.to_be_bytes());
    let verdict = [word(1, 0xffff_fffd), attribute(2, b"KUBE-SVC-A\0")].concat();
    let mut network = [0; 20];
    (network[0], network[9], network[15], network[19]) = (0x45, 6, 1, 2);
    let all = [
        attribute(1, b"nat\0"),
        attribute(2, b"KUBE-SERVICES\0"),
        attribute(3, &7u64.to_be_bytes()),
        word(4, 3),
        attribute(5 | 0x8000, &verdict),
        word(6, 9),
        attribute(8, &network),
        attribute(9, &[4, 0, 0, 80]),
        word(10, 1),
    ];
    message(
        NFT | 17,
        0,
        &[[2, 0, 0, 0].as_slice(), &all.concat()].concat(),
    )
}
