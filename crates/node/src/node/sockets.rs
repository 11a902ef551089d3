//! Listening sockets and their processes.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::evidence::{Evidence, Gap, Item};
use crate::net::Proto;

/// Sockets that accept connections or datagrams from any peer.
#[derive(Clone, Debug, Default)]
pub struct Sockets {
    /// Sockets, sorted by protocol, port and address.
    pub listening: Vec<Socket>,
    /// Socket lists that were not read.
    pub gaps: Vec<Gap>,
}

/// A listening socket.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Socket {
    /// TCP, UDP or SCTP.
    pub proto: Proto,
    /// Local address; an unspecified address means every address.
    pub local: SocketAddr,
    /// Whether an IPv6 wildcard socket accepts only IPv6; `None` if unknown.
    pub v6_only: Option<bool>,
    /// Link that it is bound to.
    pub device: Option<String>,
    /// The connections that wait to be accepted, of TCP; `None` if unknown.
    pub queue: Option<Queue>,
    /// The bytes of datagrams that no program has read yet, of UDP; `None` if unknown.
    pub unread: Option<u32>,
    /// Processes that own it; empty if unknown.
    pub processes: Vec<Holder>,
}

/// Connections that wait for a program to accept them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Queue {
    /// The number of those that wait.
    pub waiting: u32,
    /// The most that may.
    pub most: u32,
}

impl Queue {
    /// Returns whether the kernel takes no further one (`sk_acceptq_is_full`).
    pub const fn is_full(self) -> bool {
        self.waiting > self.most
    }
}

/// A process that owns a socket.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Holder {
    /// Command name.
    pub name: String,
    /// Process ID.
    pub pid: u32,
}

impl Sockets {
    /// Iterates over the sockets that receive `proto` traffic to `addr` and `port`.
    pub fn taking(
        &self,
        proto: Proto,
        addr: IpAddr,
        port: u16,
    ) -> impl Iterator<Item = &Socket> + Clone {
        self.listening.iter().filter(move |socket| {
            let ip = socket.local.ip();
            socket.proto == proto
                && socket.local.port() == port
                && (ip == addr
                    || ip.is_unspecified()
                        && (ip.is_ipv4() == addr.is_ipv4()
                            || ip.is_ipv6() && socket.v6_only != Some(true)))
        })
    }

    /// Iterates over the connections that wait for the programs at `addr` and `port`, of each socket: the kernel shares them out.
    pub fn queues(&self, addr: IpAddr, port: u16) -> impl Iterator<Item = Queue> {
        let all = self.taking(Proto::Tcp, addr, port);
        all.filter_map(|socket| socket.queue)
    }
}

/// A connected socket of this node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Connected {
    /// TCP or UDP.
    pub proto: Proto,
    /// Local address and port.
    pub local: SocketAddr,
    /// Processes that own it; empty if unknown.
    pub processes: Vec<Holder>,
}

/// Parses `ss -ntuHp`.
pub fn connected(text: &str) -> Result<Vec<Connected>, Gap> {
    lines(Item::HeldSockets, text, |line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let proto = match words.first() {
            Some(&"tcp") => Proto::Tcp,
            Some(&"udp") => Proto::Udp,
            _ => return Ok(None),
        };
        let local = words.get(4).ok_or("the line has no address")?;
        let local: SocketAddr = local
            .parse()
            .map_err(|_| format!("{local:?} is not an address and a port"))?;
        Ok(Some(Connected {
            proto,
            local: SocketAddr::new(local.ip().to_canonical(), local.port()),
            processes: holders(line),
        }))
    })
}

/// Parses `ss -lntuSHp`, or without it `/proc/net/{tcp,udp}*`.
pub fn parse(evidence: &Evidence) -> Result<Sockets, Gap> {
    let mut sockets = Sockets::default();
    if let Ok(text) = evidence.text(Item::Sockets) {
        // The kubelet listens on every node.
        if text.trim().is_empty() {
            return Err(Gap::Failed(Item::Sockets, "it lists no socket".to_owned()));
        }
        sockets.listening = lines(Item::Sockets, text, from_ss)?;
    } else {
        for (item, proto) in [
            (Item::Tcp4, Proto::Tcp),
            (Item::Tcp6, Proto::Tcp),
            (Item::Udp4, Proto::Udp),
            (Item::Udp6, Proto::Udp),
        ] {
            match evidence.text(item) {
                Ok(text) => {
                    let read = lines(item, text, |line| from_proc(proto, line))?;
                    sockets.listening.extend(read);
                }
                // The kernel has no IPv6.
                Err(Gap::Absent(..)) => {}
                Err(gap) => sockets.gaps.push(gap),
            }
        }
        if sockets.gaps.len() == 4 {
            let first = sockets.gaps.swap_remove(0);
            // The items of the kernel are not collected beside those of ss.
            let is_spare = matches!(first, Gap::NotApplicable(_));
            return Err(match evidence.text(Item::Sockets) {
                Err(gap) if is_spare => gap,
                _ => first,
            });
        }
    }
    let key = |s: &Socket| (s.proto.number(), s.local.port(), s.local.ip());
    sockets
        .listening
        .sort_by(|a, b| (key(a), &a.device).cmp(&(key(b), &b.device)));
    Ok(sockets)
}

fn lines<T>(
    item: Item,
    text: &str,
    read: impl Fn(&str) -> Result<Option<T>, String>,
) -> Result<Vec<T>, Gap> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let socket =
            read(line).map_err(|why| Gap::Failed(item, format!("line {number}: {why}")))?;
        found.extend(socket);
    }
    Ok(found)
}

/// Parses `tcp LISTEN 0 4096 127.0.0.1:10249 0.0.0.0:* users:(("kube-proxy",pid=142,fd=9))`.
fn from_ss(line: &str) -> Result<Option<Socket>, String> {
    let mut words = line.split_ascii_whitespace();
    let proto = match words.next() {
        Some("tcp") => Proto::Tcp,
        Some("udp") => Proto::Udp,
        Some("sctp") => Proto::Sctp,
        // An association of an SCTP socket is indented.
        None | Some("Netid") => return Ok(None),
        Some(_) if line.starts_with(char::is_whitespace) => return Ok(None),
        Some(other) => return Err(format!("{other:?} is no protocol that ss lists")),
    };
    if !matches!(words.next(), Some("LISTEN" | "UNCONN")) {
        return Ok(None);
    }
    let mut number = || words.next()?.parse().ok();
    let (waiting, most) = (number(), number());
    let queue = waiting.zip(most).filter(|_| proto == Proto::Tcp);
    let unread = waiting.filter(|_| proto == Proto::Udp);
    let local = words.next().ok_or("the line has no address")?;
    let wrong = || format!("{local:?} is not an address and a port (ss needs -n)");
    let (host, port) = local.rsplit_once(':').ok_or_else(wrong)?;
    let port = match port {
        "*" => 0,
        port => port.parse().map_err(|_| wrong())?,
    };
    let (host, device) = match host.split_once('%') {
        Some((host, device)) => (host, Some(device.trim_end_matches(']').to_owned())),
        None => (host, None),
    };
    let addr: IpAddr = match host.trim_matches(['[', ']']) {
        // An IPv6 socket that also accepts IPv4.
        "*" => Ipv6Addr::UNSPECIFIED.into(),
        host => host.parse().map_err(|_| wrong())?,
    };
    let v6_only = (addr.is_ipv6() && addr.is_unspecified()).then_some(!host.starts_with('*'));
    Ok(Some(Socket {
        proto,
        local: SocketAddr::new(addr, port),
        v6_only,
        device,
        queue: queue.map(|(waiting, most)| Queue { waiting, most }),
        unread,
        processes: holders(line),
    }))
}

/// Parses `users:(("kube-proxy",pid=142,fd=9),…)` at the end of a line.
fn holders(line: &str) -> Vec<Holder> {
    let users = line.split_once("users:(").map_or("", |(_, users)| users);
    let processes = users.split("(\"").skip(1).filter_map(|holder| {
        let (name, rest) = holder.split_once("\",pid=")?;
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        Some(Holder {
            name: name.to_owned(),
            pid: rest[..digits].parse().ok()?,
        })
    });
    processes.collect()
}

/// Parses `0: 0100007F:2809 00000000:0000 0A …`. The words of an address are in the node's byte order, which is
/// little-endian on every Kubernetes architecture except s390x.
fn from_proc(proto: Proto, line: &str) -> Result<Option<Socket>, String> {
    let mut words = line.split_ascii_whitespace();
    if !words.next().is_some_and(|first| first.ends_with(':')) {
        return Ok(None);
    }
    let local = words.next().ok_or("the line has no address")?;
    let state = words.nth(1).ok_or("the line has no state")?;
    let unread = words.next().and_then(|queues| queues.split_once(':'));
    // TCP_LISTEN, or TCP_CLOSE, the state of an unconnected UDP socket.
    if state != (if proto == Proto::Tcp { "0A" } else { "07" }) {
        return Ok(None);
    }
    let local = hex(local).ok_or_else(|| format!("{local:?} is not an address and a port"))?;
    Ok(Some(Socket {
        proto,
        local,
        v6_only: None,
        device: None,
        queue: None,
        unread: unread
            .filter(|_| proto == Proto::Udp)
            .and_then(|(_, unread)| u32::from_str_radix(unread, 16).ok()),
        processes: Vec::new(),
    }))
}

fn hex(text: &str) -> Option<SocketAddr> {
    let (addr, port) = text.split_once(':')?;
    let mut bytes = Vec::with_capacity(16);
    for word in addr.as_bytes().chunks(8) {
        let word = std::str::from_utf8(word).ok()?;
        bytes.extend(u32::from_str_radix(word, 16).ok()?.to_le_bytes());
    }
    let addr = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(four) => IpAddr::from(four),
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(bytes.as_slice()).ok()?),
    };
    Some(SocketAddr::new(addr, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_full_beyond_its_length() {
        let queue = |line| from_ss(line).unwrap().unwrap().queue;
        let full = queue("tcp LISTEN 129 128 *:8080 *:*").unwrap();
        assert_eq!((full.waiting, full.most), (129, 128));
        assert!(full.is_full());
        assert!(!queue("tcp LISTEN 128 128 *:8080 *:*").unwrap().is_full());
        let datagrams = from_ss("udp UNCONN 300 0 *:53 *:*").unwrap().unwrap();
        assert_eq!((datagrams.queue, datagrams.unread), (None, Some(300)));
    }
}
