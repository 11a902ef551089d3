//! A branch of a walk: a packet on one of its ways.

use smallvec::SmallVec;

use super::hop::{Assumption, Hook, Path};
use super::packet::Packet;

/// The number of paths at which a walk gives up; a real ruleset has one per endpoint.
pub(super) const MOST_WAYS: usize = 100_000;

/// The number of paths above which a walk gives up paths with undecided conditions: each such rule may double them.
pub(crate) const MOST_OPEN: usize = 1024;

/// Why such a path is not followed.
pub(crate) const TOO_OPEN: &str = "too many conditions that the evidence does not decide: they leave more than 1,024 possible paths";

/// A packet on one of its possible paths.
#[derive(Clone, Debug)]
pub(crate) struct Branch {
    /// In a box: ways are moved more often than they split.
    pub(crate) packet: Box<Packet>,
    pub(crate) weight: f64,
    pub(crate) when: Vec<Assumption>,
    pub(crate) path: Path,
}

/// How a chain, a base chain or a hook ends for a packet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum End {
    /// The end of a chain, or RETURN: the caller goes on.
    Return,
    /// This base chain lets it pass.
    Accept,
    /// Dropped.
    Drop(String),
    /// Rejected with an answer.
    Reject(String),
    /// IPVS sends it on from here.
    Stolen,
    /// Unknown.
    Unknown(String),
}

/// The ways of a packet, most often one.
pub(crate) type Branches = SmallVec<[Branch; 1]>;

pub(crate) type Ends = SmallVec<[(Branch, End); 1]>;

/// Returns `live`; the ways that conditions leave open end in `done` if they are too many, as one.
pub(crate) fn bounded(mut live: Branches, done: &mut Ends) -> Branches {
    if live.len() <= MOST_OPEN {
        return live;
    }
    let (mut open, rest): (Branches, Branches) =
        live.drain(..).partition(|branch| !branch.when.is_empty());
    if let Some(mut one) = open.pop() {
        one.weight += open.iter().map(|branch| branch.weight).sum::<f64>();
        one.when
            .retain(|when| open.iter().all(|branch| branch.when.contains(when)));
        done.push((one, End::Unknown(TOO_OPEN.to_owned())));
    }
    rest
}

/// The next thing to do with a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Phase {
    /// The link by which the packet came in.
    Link,
    Hook(Hook),
    /// The routing decision for a packet that came in.
    Route,
    /// A packet of the node for itself, on its way in again over lo.
    Loopback,
}
