//! Virtual and real servers as `ipvsadm` takes them.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use super::model::{Flags, Forwarding, Key, RealServer, VirtualServer};
use crate::net::{Family, Proto};

/// Returns what `-A` and `-a` call `key`: `-t 10.96.0.1:443`.
pub fn key(key: Key) -> String {
    match key {
        Key::Address { proto, addr, port } => {
            let option = match proto {
                Proto::Udp => "-u",
                Proto::Sctp => "--sctp-service",
                _ => "-t",
            };
            format!("{option} {}", SocketAddr::new(addr, port))
        }
        Key::Fwmark { mark, family } => match family {
            Family::V4 => format!("-f {mark}"),
            Family::V6 => format!("-f {mark} -6"),
        },
    }
}

/// Returns the name of `key` in reports: `tcp 10.96.0.1:443`.
pub fn name(key: Key) -> String {
    match key {
        Key::Address { proto, addr, port } => format!("{proto} {}", SocketAddr::new(addr, port)),
        Key::Fwmark { mark, family } => format!("fwmark {mark} {family}"),
    }
}

/// Returns the options of `server` behind its key: `-s rr -p 10800`.
pub fn options(server: &VirtualServer) -> String {
    let mut text = format!("-s {}", server.scheduler);
    let has = |flag| server.flags.0 & flag != 0;
    if has(Flags::PERSISTENT) {
        write!(text, " -p {}", server.timeout).expect("writing to a String does not fail");
        let family = match server.key {
            Key::Address { addr, .. } => Family::of(addr),
            Key::Fwmark { family, .. } => family,
        };
        if server.prefix != family.bits() {
            let prefix = match family {
                Family::V4 => netmask(server.prefix).to_string(),
                Family::V6 => server.prefix.to_string(),
            };
            write!(text, " -M {prefix}").expect("writing to a String does not fail");
        }
    }
    if let Some(engine) = &server.engine {
        write!(text, " --pe {engine}").expect("writing to a String does not fail");
    }
    if has(Flags::ONE_PACKET) {
        text.push_str(" -o");
    }
    let scheduler = server.scheduler.as_str();
    let names = match scheduler {
        "sh" => ["sh-fallback", "sh-port", "flag-3"],
        "mh" => ["mh-fallback", "mh-port", "flag-3"],
        _ => ["flag-1", "flag-2", "flag-3"],
    };
    let set = [Flags::SCHED1, Flags::SCHED2, Flags::SCHED3];
    let set = set.into_iter().zip(names).filter(|(flag, _)| has(*flag));
    let set: Vec<_> = set.map(|(_, name)| name).collect();
    if !set.is_empty() {
        write!(text, " -b {}", set.join(",")).expect("writing to a String does not fail");
    }
    text
}

/// Returns the options of `real` behind its virtual server: `-r 10.244.1.2:53 -m -w 1`.
pub fn real(real: &RealServer) -> String {
    let method = match real.forwarding {
        Forwarding::Masq => "-m",
        Forwarding::Tunnel => "-i",
        Forwarding::Route => "-g",
        Forwarding::Local => "-l",
        Forwarding::Bypass => "-b",
    };
    let mut text = format!("{} {method} -w {}", real_key(real), real.weight);
    for (option, value) in [("-x", real.upper), ("-y", real.lower)] {
        if value != 0 {
            write!(text, " {option} {value}").expect("writing to a String does not fail");
        }
    }
    text
}

/// Returns what `-d` calls `real`: `-r 10.244.1.2:53`.
pub fn real_key(real: &RealServer) -> String {
    format!("-r {}", real.socket())
}

fn netmask(prefix: u8) -> IpAddr {
    let bits = u32::MAX
        .checked_shl(32 - u32::from(prefix.min(32)))
        .unwrap_or(0);
    IpAddr::V4(bits.into())
}
