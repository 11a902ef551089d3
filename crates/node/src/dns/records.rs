//! Records of a name, and the servers that are asked.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Why a query has no answer.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DnsFailure {
    /// Whether nothing came back in time.
    pub is_silent: bool,
    /// The reason, in words.
    pub why: String,
}

/// Records of a name. All are empty if the name exists without records of the queried types.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Records {
    /// A and AAAA records.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub addresses: BTreeSet<IpAddr>,
    /// CNAME record, without the trailing dot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// SRV records.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub servers: BTreeSet<Server>,
}

/// An SRV record.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Server {
    /// Target host name, without the trailing dot.
    pub host: String,
    /// Port of the service.
    pub port: u16,
}

impl Records {
    /// Returns whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.alias.is_none() && self.servers.is_empty()
    }

    /// Adds the records of `more`.
    pub fn extend(&mut self, more: Self) {
        self.addresses.extend(more.addresses);
        self.alias = self.alias.take().or(more.alias);
        self.servers.extend(more.servers);
    }

    /// Returns whether `answered` matches the expected records `self`. The target of an alias is outside the cluster
    /// and not compared.
    pub fn agrees(&self, answered: &Self) -> bool {
        let aliased = self.alias.is_some();
        self.alias == answered.alias
            && self.servers == answered.servers
            && (aliased || self.addresses == answered.addresses)
    }
}
