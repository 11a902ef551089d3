//! Service discovery: the names that cluster DNS holds, which of them a pod asks for, and what a container's environment
//! says of Services.
//!
//! Sources: Kubernetes DNS-Based Service Discovery, version 1.1.0; the `kubernetes` plugin of `CoreDNS`, for what that leaves
//! open; pkg/kubelet/envvars of Kubernetes.

mod message;
mod search;
mod variables;
mod zone;

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::Serialize;

pub use message::{Question, Reply, Unreadable, is_truncated};
pub use search::candidates;
pub use variables::{Variable, variables};
pub use zone::{Expected, Zone};

/// The records of a name. All are empty where the name is there and has none that is asked for.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Records {
    /// A and AAAA.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub addresses: BTreeSet<IpAddr>,
    /// CNAME, without the dot at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// SRV.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub servers: BTreeSet<Server>,
}

/// An SRV record.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Server {
    /// The name of the host, without the dot at the end.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Records {
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.alias.is_none() && self.servers.is_empty()
    }

    /// Adds those of `more`.
    pub fn extend(&mut self, more: Self) {
        self.addresses.extend(more.addresses);
        self.alias = self.alias.take().or(more.alias);
        self.servers.extend(more.servers);
    }

    /// Returns whether a name that should have `self` has `answered`. What an alias leads to is not the cluster's to say.
    pub fn agrees(&self, answered: &Self) -> bool {
        let aliased = self.alias.is_some();
        self.alias == answered.alias
            && self.servers == answered.servers
            && (aliased || self.addresses == answered.addresses)
    }
}
