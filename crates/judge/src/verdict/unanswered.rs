//! Connections that connection tracking saw and no endpoint answered: a doubt where no rule, route or link explains it, as where another
//! machine or a network between drops packets.

use std::net::{IpAddr, SocketAddr};

use foldhash::{HashMap, HashSet};

use super::judge::{Judge, Question};
use super::{Fault, Missing};
use crate::trace::Outcome;
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::conntrack::Entry;

/// The fewest connections without an answer that are no accident.
const FEWEST: usize = 3;

/// The ports of DNS servers in pods: each question gets an answer.
const DNS_PORTS: [u16; 2] = [53, 5353];

/// The clients of connections.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Whose {
    /// The pods of this node, and the node itself.
    Here,
    /// All others.
    Elsewhere,
    /// This one.
    Of(IpAddr),
}

impl Whose {
    /// Returns the group of a client, which is one of this node or not.
    const fn group(is_here: bool) -> Self {
        if is_here { Self::Here } else { Self::Elsewhere }
    }
}

/// An endpoint, and the clients that asked it.
type Asked = (Proto, SocketAddr, Whose);

/// The connections that were not answered.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    /// Those that are younger than the last one that was answered, of each endpoint.
    lately: HashMap<Asked, Count>,
    /// The port from which an endpoint answers datagrams, where that is another one.
    from_elsewhere: HashMap<SocketAddr, SocketAddr>,
    /// Endpoints whose answers come, but do not get to the client.
    unacknowledged: HashSet<SocketAddr>,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    connections: usize,
    /// The seconds since the last packet of the last one.
    youngest: u32,
    /// Whether the endpoint answered some.
    answers: bool,
}

impl Unanswered {
    /// Reads the tracked connections of `node`; `is_inside` holds for the addresses of pods and of the node, `is_here` for those of this node
    /// alone.
    pub(super) fn of(
        node: &NodeSnapshot<'_>,
        is_inside: impl Fn(IpAddr) -> bool,
        is_here: impl Fn(IpAddr) -> bool,
    ) -> Self {
        let tracked = node.conntrack().map_or(&[][..], |all| &all.entries);
        let asked = |entry: &Entry| {
            let (at, client) = (entry.reply.source, entry.original.source.ip());
            [Whose::group(is_here(client)), Whose::Of(client)].map(|whose| (entry.proto, at, whose))
        };
        let mut ages: HashMap<Asked, Vec<u32>> = HashMap::default();
        let mut unacknowledged: HashSet<SocketAddr> = HashSet::default();
        for entry in tracked {
            if is_unacknowledged(entry) && is_inside(entry.original.source.ip()) {
                unacknowledged.insert(entry.reply.source);
            } else if !is_open(entry) {
                continue;
            }
            for of in asked(entry) {
                ages.entry(of).or_default().push(age(node, entry));
            }
        }
        ages.retain(|_, ages| ages.len() >= FEWEST);
        // A datagram needs no answer, unless others like it got one or it asks a DNS server.
        let mut answered: HashMap<Asked, u32> = HashMap::default();
        let is_answered = |entry: &&Entry| !entry.unreplied && !is_unacknowledged(entry);
        for entry in tracked.iter().filter(is_answered) {
            for of in asked(entry).into_iter().filter(|of| ages.contains_key(of)) {
                let age = age(node, entry);
                let last = answered.entry(of).or_insert(age);
                *last = age.min(*last);
            }
        }
        let from_elsewhere = from_elsewhere(tracked, &ages);
        ages.retain(|of, ages| {
            let last = answered.get(of);
            ages.retain(|age| last.is_none_or(|last| age < last));
            of.0 == Proto::Tcp || last.is_some() || DNS_PORTS.contains(&of.1.port())
        });
        let counts = ages.into_iter().filter_map(|(of, ages)| {
            let youngest = *ages.iter().min()?;
            let connections = ages.len();
            let count = Count {
                connections,
                youngest,
                answers: answered.contains_key(&of),
            };
            (connections >= FEWEST).then_some((of, count))
        });
        Self {
            lately: counts.collect(),
            from_elsewhere,
            unacknowledged,
        }
    }
}

/// Returns the address and port from which endpoints answer datagrams, of those that do not answer from the one that is asked: connection
/// tracking takes such an answer for another connection, and so do clients.
fn from_elsewhere(
    tracked: &[Entry],
    asked: &HashMap<Asked, Vec<u32>>,
) -> HashMap<SocketAddr, SocketAddr> {
    let is_asked = |at| {
        let mut all = [Whose::Here, Whose::Elsewhere].into_iter();
        all.any(|whose| asked.contains_key(&(Proto::Udp, at, whose)))
    };
    let open = tracked.iter().filter(|entry| is_open(entry));
    let questions: HashMap<SocketAddr, SocketAddr> = open
        .map(|entry| (entry.reply.destination, entry.reply.source))
        .filter(|(_, at)| is_asked(*at))
        .collect();
    let mut answers: HashMap<(SocketAddr, SocketAddr), usize> = HashMap::default();
    for entry in tracked.iter().filter(|entry| entry.proto == Proto::Udp) {
        let from = entry.original.source;
        let at = questions.get(&entry.original.destination);
        if let Some(at) = at.filter(|at| at.ip() == from.ip() && **at != from) {
            *answers.entry((*at, from)).or_default() += 1;
        }
    }
    let enough = answers.into_iter().filter(|(_, count)| *count >= FEWEST);
    enough.map(|(of, _)| of).collect()
}

/// Returns whether nothing has answered the first packet of a connection.
fn is_open(entry: &Entry) -> bool {
    let is_first = match entry.proto {
        Proto::Tcp => entry.state.as_deref() == Some("SYN_SENT"),
        proto => proto == Proto::Udp,
    };
    entry.unreplied && is_first
}

/// Returns whether the answer to the first packet of a connection came, and nothing from the client after it.
fn is_unacknowledged(entry: &Entry) -> bool {
    entry.proto == Proto::Tcp && entry.state.as_deref() == Some("SYN_RECV")
}

/// Returns the seconds since the last packet of a connection: each gives it the whole time of its state again. 0 if that is not known.
fn age(node: &NodeSnapshot<'_>, entry: &Entry) -> u32 {
    let whole = || {
        let key = match entry.proto {
            Proto::Udp if entry.assured => "udp_timeout_stream".to_owned(),
            Proto::Udp => "udp_timeout".to_owned(),
            _ => format!(
                "tcp_timeout_{}",
                entry.state.as_deref()?.to_ascii_lowercase()
            ),
        };
        let key = format!("net.netfilter.nf_conntrack_{key}");
        node.sysctl().ok()?.get(&key)?.parse::<u32>().ok()
    };
    let left = entry.timeout.zip(whole());
    left.map_or(0, |(left, whole)| whole.saturating_sub(left))
}

impl Judge<'_> {
    fn unanswered_connections(&self) -> &Unanswered {
        self.unanswered.get_or_init(|| {
            let is_inside = |addr| self.places.is_pod(addr) || self.places.own(addr).is_some();
            Unanswered::of(self.node, is_inside, |addr| self.is_client_here(addr))
        })
    }

    /// Returns whether `client` is a pod of this node, or may be one, or the node itself.
    fn is_client_here(&self, client: IpAddr) -> bool {
        let is_pod = || self.places.is_pod(client) && !self.leads_away(client);
        self.places.own(client).is_some() || self.places.is_pod_here(client).unwrap_or_else(is_pod)
    }

    /// Returns the group of clients that `client` belongs to.
    fn whose(&self, client: IpAddr) -> Whose {
        Whose::group(self.is_client_here(client))
    }

    /// Returns whether endpoints that answer others did not answer connections of `client`.
    pub(super) fn is_unanswered(&self, client: IpAddr) -> bool {
        let lately = &self.unanswered_connections().lately;
        lately.keys().any(|(proto, at, of)| {
            *of == Whose::Of(client) && !lately.contains_key(&(*proto, *at, self.whose(client)))
        })
    }

    /// Returns the doubt about a packet to an endpoint that answered none of several connections.
    pub(super) fn unanswered_lately(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
    ) -> Option<Fault> {
        let proto = question.flow.proto;
        let at = SocketAddr::from(outcome.destination);
        let all = self.unanswered_connections();
        let elsewhere = all.from_elsewhere.get(&at);
        if let Some(from) = elsewhere.filter(|_| proto == Proto::Udp) {
            return Some(Fault::Unknown(Missing::Unmodelled(format!(
                "the program at {at} answers from {from}: clients that wait for an answer from the address they asked, as most do, \
                 never get it"
            ))));
        }
        let client = outcome.sent_from;
        // An endpoint that answers pods may not answer the node, and the other way round.
        let is_host = |addr: IpAddr| self.places.own(addr).is_some();
        let is_of_others = |count: &Count| {
            let of_it = all.lately.keys().filter(|of| of.0 == proto && of.1 == at);
            let mut failing = of_it
                .filter_map(|of| match of.2 {
                    Whose::Of(client) => Some(client),
                    Whose::Here | Whose::Elsewhere => None,
                })
                .peekable();
            count.answers
                && failing.peek().is_some()
                && failing.all(|other| is_host(other) != is_host(client))
        };
        // A pod that something tells apart from others does not speak for them: it has a verdict of its own.
        let is_of_single = |count: &Count| {
            let of_single = all.lately.iter().filter_map(|(of, count)| match of.2 {
                Whose::Of(other) if of.0 == proto && of.1 == at && other != client => {
                    self.is_single(other).then_some(count.connections)
                }
                _ => None,
            });
            of_single.sum::<usize>() >= count.connections
        };
        let of_all = all.lately.get(&(proto, at, self.whose(client)));
        let counts = |count: &&Count| !is_of_others(count) && !is_of_single(count);
        let (count, whose) = if let Some(count) = of_all.filter(counts) {
            (count, String::new())
        } else {
            let count = all.lately.get(&(proto, at, Whose::Of(client)))?;
            (count, format!(" from {client}"))
        };
        let is_lost_back = proto == Proto::Tcp && all.unacknowledged.contains(&at);
        let (state, what) = match proto {
            _ if is_lost_back => ("SYN_RECV", "got no answer through to the client"),
            Proto::Tcp => ("SYN_SENT", "were not answered"),
            _ => ("UNREPLIED", "were not answered"),
        };
        let when = match count.youngest {
            0 => String::new(),
            seconds => format!(", the last one {seconds} s before this was read,"),
        };
        // Routers of clouds know the ranges of pods; of a network of one's own, they may not.
        let is_next = |name| {
            let by = self.peers().address(name, Family::of(at.ip()));
            by.is_some_and(|by| self.is_next_to(by))
        };
        let is_odd = self.goes_by_default(at.ip())
            && self
                .peers()
                .with_pod(at.ip())
                .is_some_and(|(name, _)| is_next(name));
        let way = if is_odd {
            " (only the default route leads there, although its node is in a network of this one)"
        } else {
            ""
        };
        Some(Fault::Unknown(Missing::Unmodelled(format!(
            "{} connections{whose} to {at}{when} {what} ({state} in the table of connection tracking), and nothing that kpx has \
             read of this node stops them{way}: look at the endpoint, its node and the network between",
            count.connections
        ))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpx_node::evidence::{Evidence, Item};

    #[test]
    fn a_dns_server_answers_each_question_and_other_programs_need_not() {
        for (port, counts) in [(53, true), (9001, false)] {
            let line = |at: u16| {
                format!(
                    "udp 17 28 src=10.244.1.2 dst=10.96.0.10 sport={at} dport=53 [UNREPLIED] src=10.244.0.9 dst=10.244.1.2 sport={port} \
                     dport={at} mark=0 use=1\n"
                )
            };
            let mut evidence = Evidence::default();
            evidence.insert(Item::Conntrack, Ok((40_000..40_003).map(line).collect()));
            let all = Unanswered::of(&NodeSnapshot::new(&evidence), |_| true, |_| true);
            let at = SocketAddr::from(([10, 244, 0, 9], port));
            assert_eq!(
                all.lately.contains_key(&(Proto::Udp, at, Whose::Here)),
                counts
            );
        }
    }

    #[test]
    fn connections_of_others_count_for_others() {
        let line = |source: &str, at: u16| {
            format!(
                "tcp 6 100 SYN_SENT src={source} dst=10.96.0.50 sport={at} dport=80 [UNREPLIED] src=10.244.2.6 dst={source} sport=8080 \
                 dport={at} mark=0 use=1\n"
            )
        };
        let mut evidence = Evidence::default();
        let lines = (40_000..40_003).map(|at| line("10.244.1.3", at));
        evidence.insert(Item::Conntrack, Ok(lines.collect()));
        let node = NodeSnapshot::new(&evidence);
        let all = Unanswered::of(
            &node,
            |_| true,
            |addr| addr == IpAddr::from([10, 244, 0, 3]),
        );
        let at = SocketAddr::from(([10, 244, 2, 6], 8080));
        let counts = |whose| all.lately.contains_key(&(Proto::Tcp, at, whose));
        assert!(!counts(Whose::Here) && counts(Whose::Elsewhere));
        assert!(counts(Whose::Of(IpAddr::from([10, 244, 1, 3]))));
    }
}
