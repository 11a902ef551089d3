//! Outcomes of work on the machine that kpx runs on.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use kpx_node::net::{Proto, Vantage};

/// A network namespace that cannot be entered.
#[derive(Debug, Error)]
#[error("{why}")]
pub struct NoNamespace {
    pub(super) why: String,
    /// Names that `ip netns` would list, sorted.
    pub names: Vec<String>,
}

/// The lock on the node cannot be taken.
#[derive(Debug, Error)]
pub enum Locked {
    /// Another kpx holds the lock.
    #[error("another kpx is changing this node: it holds {0}")]
    Held(PathBuf),
    /// The lock file cannot be opened or locked.
    #[error("cannot lock {0}")]
    Failed(PathBuf, #[source] io::Error),
}

/// Result of reading a chain.
#[derive(Debug)]
pub enum Listing {
    /// A table with this chain only, as `iptables-save -c` prints it.
    Chain(String),
    /// The chain does not exist.
    Missing,
    /// iptables cannot print the chain: it contains native nftables rules, or its table is not one of iptables.
    Incompatible,
}

/// A probe: one TCP connection, or one UDP datagram.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Address and port to connect to.
    pub target: SocketAddr,
    /// TCP or UDP.
    pub proto: Proto,
    /// The datagram to send.
    pub question: &'static [u8],
    /// The network that it connects from.
    pub from: Vantage,
    /// Returns the input of `nft -f` that is loaded on the node before anything is sent from this address and port.
    pub before: Option<fn(SocketAddr, Proto) -> String>,
}

impl Probe {
    /// Returns a probe of `target` from the node, with an empty datagram.
    pub const fn new(target: SocketAddr, proto: Proto) -> Self {
        Self {
            target,
            proto,
            question: &[],
            from: Vantage::Node,
            before: None,
        }
    }
}

/// Result of a probe.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ProbeResult {
    /// Source address; `None` if the connection had none.
    pub from: Option<SocketAddr>,
    /// Outcome of the probe.
    pub met: ProbeOutcome,
}

/// Outcome of a probe.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeOutcome {
    /// There was an answer.
    Answered,
    /// The connection was refused.
    Refused,
    /// There was no answer within the time limit.
    Silence,
    /// The destination is unreachable; the reason.
    Unreachable(String),
}
