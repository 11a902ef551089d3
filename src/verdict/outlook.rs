//! The verdicts of two modes side by side: what happens to connections if kube-proxy switches?

use std::net::SocketAddr;

use serde::Serialize;

use super::survey::{Brief, Surveyed, Tally, survey};
use super::{Client, Fate};
use crate::backend::Mode;
use crate::evidence::Gap;
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::owner::Port;
use crate::trace::Assumed;

/// The verdict on the Services in another mode, and the connections that are worse there.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Outlook {
    /// The other mode.
    pub mode: Mode,
    /// The verdict on the Services there.
    pub services: Tally,
    /// The connections that are worse there.
    pub worse: Vec<Worse>,
}

/// Connections that are worse in another mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Worse {
    /// The Service port, as `NAMESPACE/NAME:PORT`.
    pub service: String,
    /// The address and port.
    pub to: SocketAddr,
    /// The client.
    pub client: Client,
    /// What happens to them now.
    pub now: Fate,
    /// What happens to them in the other mode.
    pub then: Fate,
    /// Why they fail there.
    pub reason: Option<String>,
}

impl Outlook {
    /// Judges the connections to `ports` on `node` as it is and with kube-proxy in `mode`.
    ///
    /// # Errors
    ///
    /// What has to be known for that, and is not.
    pub fn of<'n>(node: &'n NodeSnapshot<'n>, ports: &[Port], mode: Mode) -> Result<Self, Gap> {
        let families = &Family::BOTH;
        let assumed = Assumed::new(node, mode)?;
        let name = node.name().ok();
        let other = assumed.snapshot().called(name.as_deref());
        let now = survey(node, ports, families, None);
        let then = survey(&other, ports, families, None);
        let pairs = now.iter().zip(&then);
        let worse = pairs.flat_map(|(now, then)| worse_cells(now, then));
        Ok(Self {
            mode,
            services: Tally::of(&then),
            worse: worse.collect(),
        })
    }
}

fn worse_cells<'s>(now: &'s Surveyed, then: &'s Surveyed) -> impl Iterator<Item = Worse> + 's {
    then.cells.iter().filter_map(|cell| {
        let is_same = |of: &&Brief| of.to == cell.to && of.client == cell.client;
        let before = now.cells.iter().find(is_same)?;
        let is_worse = cell.fate.fails() && before.fate < cell.fate;
        is_worse.then(|| Worse {
            service: then.name.to_string(),
            to: cell.to,
            client: cell.client,
            now: before.fate,
            then: cell.fate,
            reason: cell.fault.as_ref().map(ToString::to_string),
        })
    })
}
