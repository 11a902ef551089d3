//! The fate of a packet.

use std::net::IpAddr;

use crate::trace::packet::Link;
use crate::trace::{Assumption, Outcome, Verdict};

/// The fate of a packet: its different ways.
#[derive(Clone, Debug, Default)]
pub struct Fate {
    /// The ways, in order.
    pub ways: Vec<Way>,
}

/// One way that a packet may go.
#[derive(Clone, Debug, PartialEq)]
pub struct Way {
    /// How it ends.
    pub verdict: Verdict,
    /// The new destination address; `None` if it is the one that the packet was sent to.
    pub address: Option<IpAddr>,
    /// The new destination port; `None` if it is the one that the packet was sent to.
    pub port: Option<u16>,
    /// Whether its source is rewritten.
    pub masquerade: bool,
    /// The new source address; `None` if it is not rewritten, or unknown to which.
    pub source: Option<IpAddr>,
    /// The link by which it leaves for its backend, and the gateway; `None` if that is unknown, or it does not leave.
    pub out: Option<(Box<str>, Option<IpAddr>)>,
    /// Whether its time to live ends at the gateway.
    pub expires: bool,
    /// Whether the client is bound to the backend from now on.
    pub sticky: bool,
    /// Conditions that the state does not determine.
    pub when: Vec<Assumption>,
    /// The probability, 0 to 1.
    pub share: f64,
}

/// Shares are equal up to this: rules of iptables round them to 2⁻³¹.
const EXACT: f64 = 1e-6;

impl Way {
    fn leads_like(&self, other: &Self) -> bool {
        let key = |way: &Self| {
            let Self {
                verdict,
                address,
                port,
                masquerade,
                source,
                expires,
                sticky,
                ..
            } = *way;
            (verdict, address, port, masquerade, source, expires, sticky)
        };
        key(self) == key(other) && self.out == other.out && self.when == other.when
    }
}

impl Fate {
    /// No way.
    pub const NONE: Self = Self { ways: Vec::new() };

    /// Returns the fate with these outcomes.
    pub fn of(outcomes: &[Outcome]) -> Self {
        let mut ways: Vec<Way> = Vec::with_capacity(outcomes.len());
        for outcome in outcomes {
            let ends = matches!(outcome.verdict, Verdict::Drop | Verdict::Reject);
            let delivers = outcome.verdict == Verdict::Deliver;
            let out = match &outcome.output {
                Link::Named(name) if delivers => Some((Box::from(&**name), outcome.gateway)),
                _ => None,
            };
            let (address, port) = outcome.destination;
            let way = Way {
                verdict: outcome.verdict,
                // The destination of a dropped packet makes no difference.
                address: Some(address).filter(|_| !ends && !outcome.as_sent.destination),
                port: Some(port).filter(|_| !ends && !outcome.as_sent.port),
                masquerade: !ends && outcome.masquerade,
                source: Some(outcome.source)
                    .filter(|_| !ends && outcome.masquerade && !outcome.as_sent.source),
                out,
                expires: delivers && outcome.ttl <= 1 && outcome.gateway.is_some(),
                sticky: !ends && outcome.sticky,
                when: outcome.when.clone(),
                share: outcome.probability,
            };
            match ways.iter_mut().find(|other| other.leads_like(&way)) {
                Some(other) => other.share += way.share,
                None => ways.push(way),
            }
        }
        ways.sort_by_key(|way| (way.verdict, way.address, way.port, way.masquerade));
        Self { ways }
    }

    /// Returns the only verdict; `None` if ways differ in it.
    pub fn verdict(&self) -> Option<Verdict> {
        let first = self.ways.first()?.verdict;
        let mut all = self.ways.iter();
        all.all(|way| way.verdict == first).then_some(first)
    }
}

impl PartialEq for Fate {
    fn eq(&self, other: &Self) -> bool {
        let same = |(a, b): (&Way, &Way)| a.leads_like(b) && (a.share - b.share).abs() < EXACT;
        self.ways.len() == other.ways.len() && self.ways.iter().zip(&other.ways).all(same)
    }
}
