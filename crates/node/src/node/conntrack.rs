//! Tracked connections.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::NodeSnapshot;
use crate::evidence::{Gap, Item};
use crate::net::Proto;

/// Tracked connections.
#[derive(Clone, Debug, Default)]
pub struct Conntrack {
    /// Entries, in the order of the list.
    pub entries: Vec<Entry>,
}

/// A tracked connection. Protocols without ports have port 0.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Entry {
    /// Transport protocol.
    pub proto: Proto,
    /// Seconds until the entry expires.
    pub timeout: Option<u32>,
    /// TCP state: `ESTABLISHED`, `TIME_WAIT`, …; UDP has none.
    pub state: Option<String>,
    /// Addresses of packets in the original direction.
    pub original: Tuple,
    /// Addresses of packets in the reply direction.
    pub reply: Tuple,
    /// Whether the connection is established: packets were seen in both directions.
    pub assured: bool,
    /// Whether no reply was seen yet.
    pub unreplied: bool,
    /// Connection mark.
    pub mark: u32,
    /// Conntrack zone; connections in different zones may have the same addresses.
    pub zone: u16,
}

impl Entry {
    /// Returns whether its packets go to `at` and nothing translates them.
    pub fn is_untranslated_to(&self, at: SocketAddr) -> bool {
        self.original.destination == at && self.reply.source == at
    }
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Tuple {
    /// Source address and port.
    pub source: SocketAddr,
    /// Destination address and port.
    pub destination: SocketAddr,
}

impl Tuple {
    const NONE: Self = Self {
        source: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
        destination: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
    };
}

/// The table that shows where a connection went.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Table {
    /// Connections of IPVS.
    Ipvs,
    /// Tracked connections.
    Conntrack,
}

impl Table {
    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipvs => "ipvs",
            Self::Conntrack => "conntrack",
        }
    }
}

impl NodeSnapshot<'_> {
    /// Returns who answers the connection from `client` to `target`, and the table that shows it; `None` if no table has the
    /// connection. An unspecified address of the client stands for any.
    pub fn answerer(
        &self,
        client: SocketAddr,
        target: SocketAddr,
        proto: Proto,
    ) -> Option<(SocketAddr, Table)> {
        let is_ours = |addr: SocketAddr| {
            addr.port() == client.port()
                && (client.ip().is_unspecified() || addr.ip() == client.ip())
        };
        let by_ipvs = self.ipvs_connections().ok().and_then(|all| {
            let mut all = all.all.iter();
            let ours = all.find(|c| c.proto == proto && c.server == target && is_ours(c.client));
            ours.map(|c| (c.real, Table::Ipvs))
        });
        by_ipvs.or_else(|| {
            let mut all = self.conntrack().ok()?.entries.iter();
            let ours = all.find(|entry| {
                entry.proto == proto
                    && entry.original.destination == target
                    && is_ours(entry.original.source)
            });
            ours.map(|entry| (entry.reply.source, Table::Conntrack))
        })
    }
}

/// Parses `conntrack -L`, with or without extended fields.
pub fn parse(text: &str) -> Result<Conntrack, Gap> {
    let mut entries = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        // The last line, `conntrack v1.4.7 (conntrack-tools): 5 flow entries have been shown.`; an error begins in the same way.
        let is_count =
            line.starts_with("conntrack v") && line.trim_end().ends_with("have been shown.");
        if line.trim().is_empty() || is_count {
            continue;
        }
        let entry = entry(line)
            .map_err(|why| Gap::Failed(Item::Conntrack, format!("line {number}: {why}")))?;
        entries.push(entry);
    }
    Ok(Conntrack { entries })
}

/// One direction while it is parsed.
#[derive(Default)]
struct Half {
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    from: u16,
    to: u16,
}

impl Half {
    fn tuple(&self) -> Option<Tuple> {
        Some(Tuple {
            source: SocketAddr::new(self.source?, self.from),
            destination: SocketAddr::new(self.destination?, self.to),
        })
    }
}

fn entry(line: &str) -> Result<Entry, String> {
    let mut words = line.split_ascii_whitespace().peekable();
    if words
        .next_if(|word| matches!(*word, "ipv4" | "ipv6"))
        .is_some()
    {
        words.next();
    }
    let name = words.next().unwrap_or_default();
    let number = words.next().and_then(|number| number.parse().ok());
    let number = number.ok_or_else(|| format!("{name:?} has no protocol number after it"))?;
    let mut halves = [Half::default(), Half::default()];
    let mut count: usize = 0;
    let mut entry = Entry {
        proto: Proto::from_number(number),
        timeout: words
            .next_if(|word| word.parse::<u32>().is_ok())
            .and_then(|t| t.parse().ok()),
        state: None,
        original: Tuple::NONE,
        reply: Tuple::NONE,
        assured: false,
        unreplied: false,
        mark: 0,
        zone: 0,
    };
    for word in words {
        let Some((key, value)) = word.split_once('=') else {
            match word {
                "[ASSURED]" => entry.assured = true,
                "[UNREPLIED]" => entry.unreplied = true,
                word if word.starts_with('[') => {}
                word if count == 0 => entry.state = Some(word.to_owned()),
                _ => {}
            }
            continue;
        };
        if key == "src" {
            count += 1;
        }
        let wrong = || format!("{word:?} is not valid");
        let half = halves.get_mut(count.saturating_sub(1));
        match (key, half) {
            ("src", Some(half)) => half.source = Some(value.parse().map_err(|_| wrong())?),
            ("dst", Some(half)) => half.destination = Some(value.parse().map_err(|_| wrong())?),
            ("sport", Some(half)) => half.from = value.parse().map_err(|_| wrong())?,
            ("dport", Some(half)) => half.to = value.parse().map_err(|_| wrong())?,
            // A zone of only one direction counts as the connection's zone.
            ("zone" | "zone-orig" | "zone-reply", _) => {
                entry.zone = value.parse().map_err(|_| wrong())?;
            }
            ("mark", _) => entry.mark = value.parse().map_err(|_| wrong())?,
            _ => {}
        }
    }
    let lacks = "an address is missing";
    entry.original = halves[0].tuple().ok_or(lacks)?;
    entry.reply = halves[1].tuple().ok_or(lacks)?;
    Ok(entry)
}
