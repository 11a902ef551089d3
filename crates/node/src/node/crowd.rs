//! What fills the table of tracked connections.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use super::NodeSnapshot;
use super::conntrack::{Conntrack, Entry};
use crate::net::Proto;

/// A kind of entries that are more than half of the table.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Crowd {
    /// The kind; `None` if no kind is more than half.
    pub kind: Option<&'static Kind>,
    /// Seconds for which the kernel keeps an entry of the kind, if known.
    pub kept: Option<u64>,
    /// The client of more than half of the entries.
    pub client: Option<IpAddr>,
    /// Per cent of the entries that are of the kind, or of the client without a kind.
    pub percent: usize,
    /// The number of entries that were read.
    pub read: usize,
}

/// A kind of entries, with the time-out that keeps them.
#[derive(Debug, Eq, PartialEq)]
pub struct Kind {
    /// The entries, in words.
    pub name: &'static str,
    /// The sysctl.
    pub sysctl: &'static str,
    /// The field of kube-proxy's configuration that sets it.
    pub field: Option<&'static str>,
    /// The kernel's own value in seconds, if it is a value to return to.
    pub default: Option<u64>,
}

const KINDS: &[(Of, Kind)] = &[
    (
        Of::State("CLOSE_WAIT"),
        Kind {
            name: "TCP in state CLOSE_WAIT (the program at one end does not close the connection)",
            sysctl: "net.netfilter.nf_conntrack_tcp_timeout_close_wait",
            field: Some("conntrack.tcpCloseWaitTimeout"),
            default: Some(60),
        },
    ),
    (
        Of::State("ESTABLISHED"),
        Kind {
            name: "established TCP connections",
            sysctl: "net.netfilter.nf_conntrack_tcp_timeout_established",
            field: Some("conntrack.tcpEstablishedTimeout"),
            default: None,
        },
    ),
    (
        Of::State("TIME_WAIT"),
        Kind {
            name: "TCP in state TIME_WAIT (connections that have ended)",
            sysctl: "net.netfilter.nf_conntrack_tcp_timeout_time_wait",
            field: None,
            default: Some(120),
        },
    ),
    (
        Of::State("SYN_SENT"),
        Kind {
            name: "TCP in state SYN_SENT (connections without an answer)",
            sysctl: "net.netfilter.nf_conntrack_tcp_timeout_syn_sent",
            field: None,
            default: Some(120),
        },
    ),
    (
        Of::Udp { stream: true },
        Kind {
            name: "answered UDP flows",
            sysctl: "net.netfilter.nf_conntrack_udp_timeout_stream",
            field: Some("conntrack.udpStreamTimeout"),
            default: Some(120),
        },
    ),
    (
        Of::Udp { stream: false },
        Kind {
            name: "UDP flows",
            sysctl: "net.netfilter.nf_conntrack_udp_timeout",
            field: Some("conntrack.udpTimeout"),
            default: Some(30),
        },
    ),
];

/// The required form of an entry.
#[derive(Clone, Copy)]
enum Of {
    /// TCP in this state.
    State(&'static str),
    /// UDP, with packets in both directions for some time or not.
    Udp {
        /// Whether it is assured.
        stream: bool,
    },
}

impl Of {
    fn is(self, entry: &Entry) -> bool {
        match self {
            Self::State(state) => {
                entry.proto == Proto::Tcp && entry.state.as_deref() == Some(state)
            }
            Self::Udp { stream } => entry.proto == Proto::Udp && entry.assured == stream,
        }
    }
}

/// Returns the per cent that `count` is of `all`, if it is more than half.
fn most(count: usize, all: usize) -> Option<usize> {
    (count * 2 > all).then(|| count * 100 / all)
}

impl NodeSnapshot<'_> {
    /// Returns the kind of more than half of the tracked connections; `None` if there is no such kind, or if they were
    /// not read.
    pub fn crowd(&self) -> Option<Crowd> {
        let mut crowd = self.conntrack().ok()?.crowd()?;
        let number = |key: &str| self.sysctl().ok()?.get(key)?.trim().parse().ok();
        crowd.kept = crowd.kind.and_then(|kind| number(kind.sysctl));
        Some(crowd)
    }
}

impl Conntrack {
    fn crowd(&self) -> Option<Crowd> {
        /// Fewer entries say nothing about a full table.
        const FEW: usize = 20;
        let read = self.entries.len();
        if read < FEW {
            return None;
        }
        let mut clients: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for entry in &self.entries {
            *clients.entry(entry.original.source.ip()).or_default() += 1;
        }
        let of_client = clients
            .into_iter()
            .find_map(|(addr, count)| Some((addr, most(count, read)?)));
        let of_kind = KINDS.iter().find_map(|(of, kind)| {
            let count = self.entries.iter().filter(|entry| of.is(entry)).count();
            Some((kind, most(count, read)?))
        });
        let percent = of_kind
            .map(|(_, percent)| percent)
            .or_else(|| of_client.map(|(_, percent)| percent))?;
        Some(Crowd {
            kind: of_kind.map(|(kind, _)| kind),
            kept: None,
            client: of_client.map(|(addr, _)| addr),
            percent,
            read,
        })
    }
}

impl Crowd {
    /// Returns how to have fewer of them.
    pub fn advice(&self) -> String {
        let client = self
            .client
            .map_or_else(|| "the clients".to_owned(), |addr| addr.to_string());
        let Some(kind) = self.kind else {
            return format!("Find out why {client} opens so many connections.");
        };
        let set = match (kind.field, kind.default) {
            (Some(field), Some(value)) => {
                format!(
                    "Set {field} in kube-proxy's configuration lower ({value}s is the kernel's default)"
                )
            }
            (Some(field), None) => format!("Set {field} in kube-proxy's configuration lower"),
            (None, _) => format!("Set {} lower", kind.sysctl),
        };
        format!("{set}, and find out why {client} keeps so many connections.")
    }

    /// Returns the assignments for `sysctl -w` that shorten the time-out now.
    pub fn shorter(&self) -> Option<String> {
        let (kind, kept) = (self.kind?, self.kept?);
        let value = kind.default.filter(|value| *value < kept)?;
        Some(format!("{}={value}", kind.sysctl))
    }
}

impl fmt::Display for Crowd {
    /// Writes `80 % of the 400 entries that were read are UDP flows, kept for 3600 s (net.netfilter…)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (percent, read) = (self.percent, self.read);
        write!(f, "{percent} % of the {read} entries that were read are ")?;
        let Some(kind) = self.kind else {
            let client = self
                .client
                .map_or_else(String::new, |addr| addr.to_string());
            return write!(f, "connections of {client}");
        };
        f.write_str(kind.name)?;
        if let Some(kept) = self.kept {
            write!(f, ", kept for {kept} s ({})", kind.sysctl)?;
        }
        match self.client {
            Some(addr) => write!(f, "; more than half of all are of client {addr}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(lines: impl IntoIterator<Item = String>) -> Conntrack {
        let all: Vec<String> = lines.into_iter().collect();
        super::super::conntrack::parse(&all.join("\n")).unwrap()
    }

    fn line(proto: &str, state: &str, from: u8, port: usize) -> String {
        format!(
            "{proto} 30 {state} src=10.244.1.{from} dst=10.96.0.10 sport={port} dport=80 src=10.244.1.2 dst=10.244.1.{from} \
             sport=80 dport={port} [ASSURED] mark=0 use=1"
        )
    }

    fn spread(at: usize) -> u8 {
        u8::try_from(at % 100).unwrap()
    }

    #[test]
    fn half_of_the_table_is_no_crowd_and_more_is_named_with_its_timeout() {
        let states = |waiting: usize| {
            table((0..100).map(|at| {
                let state = if at < waiting {
                    "CLOSE_WAIT"
                } else {
                    "LAST_ACK"
                };
                line("tcp 6", state, spread(at), 1000 + at)
            }))
        };
        assert_eq!(states(50).crowd(), None);
        let found = states(51).crowd().unwrap();
        assert_eq!(
            found.kind.unwrap().field,
            Some("conntrack.tcpCloseWaitTimeout")
        );
        assert_eq!((found.percent, found.client), (51, None));
    }

    #[test]
    fn udp_is_named_by_the_timeout_of_answered_flows() {
        let all = table((0..40).map(|at| line("udp 17", "", spread(at), 1000 + at)));
        let found = all.crowd().unwrap();
        assert_eq!(
            found.kind.unwrap().field,
            Some("conntrack.udpStreamTimeout")
        );
    }

    #[test]
    fn one_client_of_many_kinds_is_named_itself() {
        let kinds = ["CLOSE", "LAST_ACK", "FIN_WAIT"];
        let all = table((0..60).map(|at| line("tcp 6", kinds[at % 3], 7, 1000 + at)));
        let found = all.crowd().unwrap();
        assert_eq!(found.kind, None);
        assert_eq!(found.client, Some("10.244.1.7".parse().unwrap()));
        assert!(found.to_string().contains("connections of 10.244.1.7"));
        let few = table((0..9).map(|at| line("tcp 6", "CLOSE_WAIT", 7, 1000 + at)));
        assert_eq!(few.crowd(), None);
    }
}
