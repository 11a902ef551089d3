//! The result of a real connection, next to a trace.

use std::fmt;
use std::net::SocketAddr;

use serde::{Serialize, Serializer};

/// The result of a real connection.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ProbeRow {
    /// How the connection went: `answered`, `refused`, …
    pub result: ProbeEnd,
    /// The backend that took it, as the kernel recorded it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<SocketAddr>,
    /// The source of that record: `conntrack` or `ipvs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<&'static str>,
    /// Whether the trace found the path to that backend; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agrees: Option<bool>,
    /// The result in words.
    pub message: String,
}

/// How a real connection went.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum ProbeEnd {
    /// There was an answer.
    Answered,
    /// The connection was refused.
    Refused,
    /// There was no answer in time.
    Silence,
    /// The destination is unreachable; the reason.
    Unreachable(String),
}

impl fmt::Display for ProbeEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Silence => "no answer",
            Self::Unreachable(why) => why,
        })
    }
}

impl Serialize for ProbeEnd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
