//! How a real connection beside a trace went.

use std::fmt;

use serde::{Serialize, Serializer};

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
