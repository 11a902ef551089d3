//! Connections to every address of a Service port, from every kind of client, for reports.

use std::fmt;
use std::net::SocketAddr;

use serde::Serialize;

use crate::repair::Repair;
use crate::trace::mismatch;
use crate::verdict::{Cell, Client, Fate, Kind};
use kpx_node::net::Proto;

/// The connections from one client to one address.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Path {
    /// Service port, as `NAMESPACE/NAME:PORT`.
    pub service: String,
    /// Role of the address.
    pub kind: Kind,
    /// Address and port.
    pub to: SocketAddr,
    /// Transport protocol.
    pub protocol: Proto,
    /// Kind of the client.
    pub client: Client,
    /// The client's name and address.
    pub from: String,
    /// The fate of the connections.
    pub fate: Fate,
    /// The share of them that certainly fail: 0 to 1.
    pub failing: f64,
    /// The share of them whose fate is unknown: 0 to 1.
    #[serde(skip_serializing_if = "is_none")]
    pub unknown: f64,
    /// The endpoints that their packets are sent to.
    pub backends: Vec<SocketAddr>,
    /// Why they fail or why that is unknown, unless all work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether the Service's own settings keep this client out.
    pub by_design: bool,
    /// The smallest sets of repairs with which they work, if they fail; each set alone suffices.
    #[serde(skip)]
    pub repairs: Vec<Vec<Repair>>,
    /// The connections, with their packets.
    #[serde(skip)]
    pub cell: Cell,
}

impl Path {
    pub(super) fn new(service: String, cell: Cell) -> Self {
        Self {
            service,
            kind: cell.kind,
            to: cell.to(),
            protocol: cell.flow.proto,
            client: cell.client,
            from: cell.from.clone(),
            fate: cell.fate(),
            failing: cell.verdict.failing(),
            unknown: cell.verdict.unknown(),
            backends: mismatch::reached(&cell.outcomes).into_iter().collect(),
            reason: cell.verdict.reason(&cell.outcomes),
            by_design: false,
            repairs: Vec::new(),
            cell,
        }
    }

    /// Returns the share of the connections that fail, if only some do: `25%`, or `25 to 75%` if it is unknown of some.
    pub fn share(&self) -> Option<String> {
        let percent = |share: f64| format!("{:.0}", share * 100.0);
        let least = percent(self.failing);
        let most = percent((self.failing + self.unknown).min(1.0));
        (self.fate == Fate::Partly).then(|| {
            if self.failing == 0.0 || least == most {
                format!("{least}%")
            } else {
                format!("{least} to {most}%")
            }
        })
    }

    /// Returns the address with its protocol: `10.96.0.10:53/udp`.
    pub fn target(&self) -> PathTarget {
        PathTarget {
            at: self.to,
            protocol: self.protocol,
        }
    }
}

/// The address that connections of a path are made to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathTarget {
    pub(super) at: SocketAddr,
    pub(super) protocol: Proto,
}

impl fmt::Display for PathTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.at, self.protocol)
    }
}

/// Returns whether a share is of no connections.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_none(share: &f64) -> bool {
    *share == 0.0
}
