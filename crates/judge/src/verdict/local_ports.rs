//! Ports that the kernel gives to clients on the node.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use foldhash::HashMap;

use super::judge::{Judge, Question};
use super::{Fault, Missing, Obstacle};
use crate::trace::{Entry, Outcome};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Proto;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::conntrack;

/// The sysctl with the first and the last of the ports.
pub const PORT_RANGE: &str = "net.ipv4.ip_local_port_range";

/// The sysctl with ports in the range that clients do not get.
pub const RESERVED_PORTS: &str = "net.ipv4.ip_local_reserved_ports";

/// The range that the kernel begins with.
pub const DEFAULT_RANGE: &str = "32768 60999";

/// Ports that the kernel gives to clients on the node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LocalPorts {
    /// The first one.
    pub first: u16,
    /// The last one.
    pub last: u16,
    /// Ranges of ports that clients do not get.
    reserved: Vec<(u16, u16)>,
}

impl LocalPorts {
    /// Reads the sysctls of `node`.
    pub fn read(node: &NodeSnapshot<'_>) -> Result<Self, Gap> {
        let sysctl = node.sysctl()?;
        let get = |key| {
            sysctl
                .known(key)?
                .ok_or_else(|| Gap::Absent(Item::Sysctl, format!("it has no {key}")))
        };
        let text = get(PORT_RANGE)?;
        let bad = || {
            Gap::Failed(
                Item::Sysctl,
                format!("{PORT_RANGE} = {text:?} is not a range"),
            )
        };
        let mut words = text.split_ascii_whitespace().map(str::parse::<u16>);
        let (Some(Ok(first)), Some(Ok(last))) = (words.next(), words.next()) else {
            return Err(bad());
        };
        let bounds = |part: &str| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            from.trim().parse().ok().zip(to.trim().parse().ok())
        };
        let reserved = get(RESERVED_PORTS)?.split(',').filter_map(bounds).collect();
        Ok(Self {
            first,
            last,
            reserved,
        })
    }

    /// Returns whether a client may get `port`.
    pub fn contains(&self, port: u16) -> bool {
        let mut reserved = self.reserved.iter();
        (self.first..=self.last).contains(&port)
            && !reserved.any(|(from, to)| (*from..=*to).contains(&port))
    }

    /// Returns how many there are.
    pub fn count(&self) -> usize {
        let all = self.first..=self.last;
        all.filter(|port| self.contains(*port)).count()
    }

    /// Returns whether clients get none.
    fn is_empty(&self) -> bool {
        !(self.first..=self.last).any(|port| self.contains(port))
    }

    /// Returns how many ports in the range are reserved.
    fn reserved(&self) -> usize {
        usize::from(self.last - self.first) + 1 - self.count()
    }
}

/// Returns whether the client's socket of `entry` still has its port: it waits for 60 s where the entry waits for 120 s.
fn has_port(entry: &conntrack::Entry) -> bool {
    match entry.state.as_deref() {
        Some("CLOSE") => false,
        Some("TIME_WAIT") => entry.timeout.is_none_or(|left| left > 60),
        _ => true,
    }
}

/// For each address of a client: its ports, the addresses to which each port has a connection, and whether all of these are open. After
/// a connection has ended, only the end that closed first keeps its port for a while, and the table does not show which one.
type UsedUp = HashMap<IpAddr, (LocalPorts, HashMap<SocketAddr, bool>)>;

/// Of each address, the ports with a connection to it, and whether one of a port is open.
type Taken = HashMap<SocketAddr, BTreeMap<u16, bool>>;

/// The addresses to which no port is left, once they are asked for.
pub(super) type LastPorts = OnceCell<UsedUp>;

/// The first port that masquerading gives to a connection from a port above it: lower ports are for programs with privileges.
const FIRST_MASQUERADED: u16 = 1024;

/// How many ports masquerading has for one address towards one endpoint.
pub(super) const MASQUERADED_PORTS: usize = (u16::MAX - FIRST_MASQUERADED) as usize + 1;

/// The most ports that may be free where connections fail: the kernel tries some at random, and gives up.
const FEW_PORTS: usize = MASQUERADED_PORTS / 1000;

/// For each masqueraded source, the endpoints towards which hardly a port is free: the number of ports with a connection, and with an
/// open one.
pub(super) type Masqueraded = OnceCell<HashMap<(IpAddr, SocketAddr, Proto), (usize, usize)>>;

impl Judge<'_> {
    /// Returns the fault of a masqueraded connection to an endpoint towards which all ports of its new source are in use.
    pub(super) fn out_of_masqueraded_ports(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
    ) -> Option<Fault> {
        let flow = question.flow;
        if flow.established || outcome.source == outcome.sent_from {
            return None;
        }
        let (source, to) = (outcome.source, SocketAddr::from(outcome.destination));
        let of_all = self.masqueraded.get_or_init(|| crowded(self.node));
        let (used, open) = *of_all.get(&(source, to, flow.proto))?;
        if is_crowded(open) {
            return Some(Fault::Obstacle(Box::new(Obstacle::NoSourcePort {
                source,
                to,
                used: open,
            })));
        }
        Some(Fault::Unknown(Missing::Unmodelled(format!(
            "whether a source port of {source} is left towards {to} is unknown: {used} of {MASQUERADED_PORTS} have a tracked connection, \
             and newer kernels give up those in TIME_WAIT"
        ))))
    }

    /// Returns the fault of clients on the node, or in a pod, all of whose ports have a connection to the same address: `connect` fails.
    pub(super) fn out_of_ports(&self, question: Question<'_>) -> Option<Fault> {
        let flow = question.flow;
        if flow.proto != Proto::Tcp || flow.established {
            return None;
        }
        let to = SocketAddr::new(flow.destination, flow.port);
        let is_it = |addr: &IpAddr| match flow.entry {
            Entry::Host => self.places.own(*addr).is_some(),
            Entry::Pod => flow.source == Some(*addr),
            Entry::Outside => false,
        };
        let mut used_up = self.used_up().iter();
        let (client, ports, is_open) = used_up.find_map(|(client, (ports, all))| {
            let is_open = all.get(&to).filter(|_| is_it(client))?;
            Some((client, ports, *is_open))
        })?;
        let pod = self.network_of(*client).ok().flatten();
        if pod.is_some() && !is_open {
            return Some(Fault::Unknown(Missing::Unmodelled(format!(
                "whether pod {client} has a port left for {to} is unknown: all from {} to {} have had connections to it, and those that \
                 have ended may still hold theirs",
                ports.first, ports.last
            ))));
        }
        Some(Fault::Obstacle(Box::new(Obstacle::NoLocalPort {
            to: Some(to),
            first: ports.first,
            last: ports.last,
            reserved: ports.reserved(),
            pod: pod.map(|network| (*client, network.pid)),
        })))
    }

    /// Returns the fault of a client on the node, or in a pod, all of whose ports are reserved: it connects to nothing.
    pub(super) fn portless(&self, question: Question<'_>) -> Option<Fault> {
        let flow = question.flow;
        if !matches!(flow.proto, Proto::Tcp | Proto::Udp) || flow.established {
            return None;
        }
        let (ports, pod) = match flow.entry {
            Entry::Host => (LocalPorts::read(self.node).ok()?, None),
            Entry::Pod => {
                let client = flow.source?;
                let network = self.network_of(client).ok().flatten()?;
                (self.ports_of_client(client)?, Some((client, network.pid)))
            }
            Entry::Outside => return None,
        };
        ports.is_empty().then(|| {
            Fault::Obstacle(Box::new(Obstacle::NoLocalPort {
                to: None,
                first: ports.first,
                last: ports.last,
                reserved: ports.reserved(),
                pod,
            }))
        })
    }

    /// Returns whether all ports of the pod with `address` are reserved.
    pub(super) fn has_no_ports(&self, address: IpAddr) -> bool {
        let ports = self.ports_of_client(address);
        ports.is_some_and(|ports| ports.is_empty())
    }

    /// Returns whether the pod with `address` has used up its ports to some address.
    pub(super) fn has_used_up(&self, address: IpAddr) -> bool {
        self.used_up().contains_key(&address)
    }

    fn used_up(&self) -> &UsedUp {
        self.last_ports.get_or_init(|| {
            let tracked = self.node.conntrack().map_or(&[][..], |all| &all.entries);
            let mut taken: HashMap<IpAddr, Taken> = HashMap::default();
            for entry in tracked
                .iter()
                .filter(|tracked| tracked.proto == Proto::Tcp && has_port(tracked))
            {
                let (from, to) = (entry.original.source, entry.original.destination);
                let of_client = taken.entry(from.ip()).or_default();
                let open = of_client.entry(to).or_default().entry(from.port());
                *open.or_default() |= entry.state.as_deref() != Some("TIME_WAIT");
            }
            let all = taken.into_iter().filter_map(|(client, taken)| {
                let ports = self.ports_of_client(client)?;
                let count = Some(ports.count()).filter(|count| *count > 0)?;
                let full = taken.into_iter().filter_map(|(to, of)| {
                    let own = || of.iter().filter(|(port, _)| ports.contains(**port));
                    let is_open = own().filter(|(_, open)| **open).count() >= count;
                    (own().count() >= count).then_some((to, is_open))
                });
                let full: HashMap<SocketAddr, bool> = full.collect();
                (!full.is_empty()).then_some((client, (ports, full)))
            });
            all.collect()
        })
    }

    /// Returns the source ports of clients with `address`: the range of the node, or of the pod with the address.
    fn ports_of_client(&self, address: IpAddr) -> Option<LocalPorts> {
        if self.places.own(address).is_some() {
            return LocalPorts::read(self.node).ok();
        }
        let network = self.network_of(address).ok().flatten()?;
        LocalPorts::read(&NodeSnapshot::new(&network.evidence)).ok()
    }
}

/// Returns whether hardly a port is free where `used` have a connection.
const fn is_crowded(used: usize) -> bool {
    used + FEW_PORTS >= MASQUERADED_PORTS
}

/// Returns the masqueraded sources and endpoints of the node's tracked connections between which hardly a port is free.
fn crowded(node: &NodeSnapshot<'_>) -> HashMap<(IpAddr, SocketAddr, Proto), (usize, usize)> {
    let tracked = node.conntrack().map_or(&[][..], |all| &all.entries);
    let mut taken: HashMap<_, BTreeMap<u16, bool>> = HashMap::default();
    for entry in tracked {
        let (source, to) = (entry.reply.destination, entry.reply.source);
        if source.ip() == entry.original.source.ip() || source.port() < FIRST_MASQUERADED {
            continue;
        }
        let ports = taken.entry((source.ip(), to, entry.proto)).or_default();
        let is_open = !matches!(entry.state.as_deref(), Some("TIME_WAIT" | "CLOSE"));
        *ports.entry(source.port()).or_default() |= is_open;
    }
    let all = taken
        .into_iter()
        .filter(|(_, ports)| is_crowded(ports.len()));
    all.map(|(key, ports)| {
        let open = ports.values().filter(|open| **open).count();
        (key, (ports.len(), open))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpx_node::evidence::Evidence;

    fn ports(range: &str, reserved: &str) -> Result<LocalPorts, Gap> {
        let mut evidence = Evidence::default();
        let text = format!("{PORT_RANGE} = {range}\n{RESERVED_PORTS} = {reserved}\n");
        evidence.insert(Item::Sysctl, Ok(text));
        LocalPorts::read(&NodeSnapshot::new(&evidence))
    }

    #[test]
    fn reserved_ports_are_left_out() {
        let ports = ports("30000\t30009", "30001,30003-30005,40000").unwrap();
        let given: Vec<_> = (30_000..=30_010)
            .filter(|port| ports.contains(*port))
            .collect();
        assert_eq!(given, [30_000, 30_002, 30_006, 30_007, 30_008, 30_009]);
        assert_eq!(ports.count(), 6);
    }

    #[test]
    fn what_is_no_range_is_not_read() {
        assert!(matches!(ports("30000", ""), Err(Gap::Failed(..))));
        assert!(matches!(ports("many ports", ""), Err(Gap::Failed(..))));
    }
}
