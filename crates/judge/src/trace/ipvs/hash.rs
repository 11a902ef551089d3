//! The real server that a hashing scheduler chooses for one client.
//!
//! Sources: `ip_vs_sh.c`, `ip_vs_dh.c` and `ip_vs_mh.c` of Linux 5.10 to 6.18 with the default sizes of their tables, on
//! 64-bit kernels.

use std::hash::Hasher as _;
use std::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher13;

use kpx_node::backend::ipvs::model::{Flags, RealServer, VirtualServer};

/// Number of buckets of `sh` and `dh`.
const BUCKETS: usize = 256;

/// Number of buckets of `mh`, a prime.
const MAGLEV: u32 = 4093;

/// Logarithm of the greatest weight of `mh`.
const MAGLEV_BITS: u32 = 6;

/// The keys of `mh`: of a client and of the first bucket of a real server, and of the step to its next bucket.
const KEYS: [u64; 2] = [2_654_435_761, 2_654_446_892];

/// Returns the real server that takes a new connection from `client` to the address `target`; `Some(None)` if the scheduler
/// finds none.
///
/// `None` if the scheduler does not hash, or if its input is unknown: the order of the real servers, former weights, whether a
/// real server is overloaded.
pub fn choose(
    server: &VirtualServer,
    client: SocketAddr,
    target: IpAddr,
) -> Option<Option<&RealServer>> {
    if !matches!(server.scheduler.as_str(), "sh" | "dh" | "mh") {
        return None;
    }
    let reals = server.order.iter().map(|&at| server.reals.get(at));
    let reals: Vec<&RealServer> = reals.collect::<Option<_>>()?;
    if reals.len() != server.reals.len() || reals.iter().any(|real| real.upper > 0) {
        return None;
    }
    if reals.is_empty() {
        return Some(None);
    }
    let has = |flag| server.flags.0 & flag != 0;
    let port = if has(Flags::SCHED2) { client.port() } else { 0 };
    let first = u32::from(port).wrapping_add(fold(client.ip()));
    let takes = |at: usize| Some(reals[at]).filter(|real| real.weight > 0);
    match server.scheduler.as_str() {
        "dh" => Some(takes(bucket(fold(target)) % reals.len())),
        "sh" => {
            let table = by_weight(&reals);
            let at = |offset: usize| takes(table[(offset + bucket(first)) % BUCKETS]);
            let again = || {
                let start = bucket(first);
                (0..BUCKETS).find_map(|offset| at((offset + start) % BUCKETS))
            };
            Some(at(0).or_else(|| has(Flags::SCHED1).then(again).flatten()))
        }
        // The kernel fills the table by the weights before they became 0.
        _ if reals.iter().any(|real| real.weight == 0) => None,
        _ => {
            let at = siphash(first, KEYS[0]) % MAGLEV;
            Some(takes(maglev(&reals)[at as usize]))
        }
    }
}

/// Returns the exclusive or of the words of an address.
fn fold(addr: IpAddr) -> u32 {
    match addr {
        IpAddr::V4(addr) => addr.to_bits(),
        IpAddr::V6(addr) => {
            let bytes = addr.octets();
            let words = bytes.chunks_exact(4);
            words.fold(0, |folded, word| {
                folded ^ u32::from_be_bytes([word[0], word[1], word[2], word[3]])
            })
        }
    }
}

/// `hash_32` with 8 bits.
fn bucket(value: u32) -> usize {
    (value.wrapping_mul(0x61C8_8647) >> 24) as usize
}

/// Returns the index of the real server in each bucket of `sh`: as many buckets in a row as its weight, but at least one.
fn by_weight(reals: &[&RealServer]) -> Vec<usize> {
    let all = reals.iter().enumerate().cycle();
    all.flat_map(|(at, real)| (0..real.weight.max(1)).map(move |_| at))
        .take(BUCKETS)
        .collect()
}

fn siphash(value: u32, key: u64) -> u32 {
    let mut hasher = SipHasher13::new_with_keys(key, key);
    hasher.write(&value.to_le_bytes());
    #[expect(clippy::cast_possible_truncation, reason = "as `hsiphash` does")]
    let low = hasher.finish() as u32;
    low
}

/// Returns the index of the real server in each bucket of `mh`; all weights are above 0.
fn maglev(reals: &[&RealServer]) -> Vec<usize> {
    struct Turn {
        next: u32,
        step: u32,
        buckets: u32,
    }
    let weights = || reals.iter().map(|real| real.weight);
    let divisor = weights().fold(0, gcd);
    let greatest = weights().max().unwrap_or(1) / divisor;
    let shift = (u32::BITS - greatest.leading_zeros()).saturating_sub(MAGLEV_BITS);
    let turn = |real: &&RealServer| {
        let value = u32::from(real.port).wrapping_add(fold(real.addr));
        Turn {
            next: siphash(value, KEYS[0]) % MAGLEV,
            step: siphash(value, KEYS[1]) % (MAGLEV - 1) + 1,
            buckets: ((real.weight / divisor) >> shift).max(1),
        }
    };
    let mut turns: Vec<Turn> = reals.iter().map(turn).collect();
    let mut table = vec![None; MAGLEV as usize];
    let mut free = table.len();
    while free > 0 {
        for (at, turn) in turns.iter_mut().enumerate() {
            for _ in 0..turn.buckets.min(u32::try_from(free).unwrap_or(u32::MAX)) {
                while table[turn.next as usize].is_some() {
                    turn.next = (turn.next + turn.step) % MAGLEV;
                }
                table[turn.next as usize] = Some(at);
                free -= 1;
            }
        }
    }
    table.into_iter().flatten().collect()
}

const fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpx_node::backend::ipvs::parse;

    /// Computed by the code with which a Linux 6.1 agreed in `vm_hashing_schedulers_choose_as_kpx_computes`.
    #[test]
    fn choices_stay_those_of_the_kernel() {
        let chosen = |scheduler: &str, weights: &[u32]| -> Vec<Option<u16>> {
            let mut text = format!("-A -u 10.96.0.50:5060 -s {scheduler}\n");
            let real =
                |(n, weight)| format!("-a -u 10.96.0.50:5060 -r 10.244.1.{n}:{n} -m -w {weight}\n");
            text.extend(weights.iter().enumerate().map(real));
            let mut server = parse::saved(&text).unwrap().servers.remove(0);
            // ipvsadm does not print the order.
            assert_eq!(
                choose(
                    &server,
                    "10.9.0.1:0".parse().unwrap(),
                    [10, 96, 0, 50].into()
                ),
                None
            );
            server.order = (0..weights.len()).rev().collect();
            let clients = ["10.9.0.11:1", "10.9.1.152:1", "10.9.3.37:1", "10.9.4.178:2"];
            let clients = clients.iter().map(|client| client.parse().unwrap());
            let all =
                clients.map(|client| choose(&server, client, [10, 96, 0, 50].into()).unwrap());
            all.map(|real| real.map(|real| real.port)).collect()
        };
        assert_eq!(
            chosen("sh", &[1, 2, 3]),
            [Some(1), Some(2), Some(1), Some(2)]
        );
        assert_eq!(chosen("sh", &[1, 0]), [None, None, None, None]);
        assert_eq!(
            chosen("sh -b sh-fallback", &[1, 0]),
            [Some(0), Some(0), Some(0), Some(0)]
        );
        assert_eq!(
            chosen("dh", &[1, 2, 3]),
            [Some(2), Some(2), Some(2), Some(2)]
        );
        assert_eq!(
            chosen("mh", &[1, 2, 3]),
            [Some(2), Some(0), Some(1), Some(1)]
        );
        assert_eq!(
            chosen("mh -b mh-port", &[1, 2, 3]),
            [Some(2), Some(2), Some(2), Some(2)]
        );
    }
}
