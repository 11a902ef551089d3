//! Why the API server cannot be used, and why one request failed.

use std::time::Duration;

use super::session::Session;
use crate::apply::StepError;
use crate::evidence::{Gap, Item};

/// Why the API server cannot be used at all.
#[derive(Clone, Debug)]
pub(super) enum Refusal {
    NotApplicable(String),
    Denied(String),
    Failed(String),
    /// The server is not available or is starting.
    Away(String),
}

/// Why a request failed.
#[derive(Debug)]
pub(super) enum RequestError {
    /// The server answered with this status code and message.
    Status(u16, String),
    /// The server answered with this status code and message, and a time to retry after.
    Busy(u16, String, Duration),
    /// The server did not answer within the time limit.
    Late,
    /// The connection to the server failed.
    Transport(String),
    /// The answer is not valid.
    Answer(String),
}

impl Refusal {
    pub(super) fn step(self) -> StepError {
        match self {
            Self::NotApplicable(why) => StepError::Absent(why),
            Self::Denied(why) => StepError::Denied(why),
            Self::Failed(why) | Self::Away(why) => StepError::Refused(why),
        }
    }

    pub(super) fn gap(&self, item: Item) -> Gap {
        match self {
            Self::NotApplicable(why) => Gap::NotApplicable(why.clone()),
            Self::Denied(why) => Gap::Denied(item, why.clone()),
            Self::Failed(why) | Self::Away(why) => Gap::Failed(item, why.clone()),
        }
    }
}

impl RequestError {
    /// Returns the gap for a failed attempt to `verb` `what`.
    pub(super) fn gap(self, item: Item, session: &Session, verb: &str, what: &str) -> Gap {
        self.refusal(session, verb, what, "deploy/rbac.yaml")
            .gap(item)
    }

    /// Returns the refusal for a failed attempt to `verb` `what`, which the manifest `roles` allows.
    pub(super) fn refusal(self, session: &Session, verb: &str, what: &str, roles: &str) -> Refusal {
        let Session { origin, server, .. } = session;
        match self {
            Self::Status(401, _) => session.unauthorized(),
            Self::Status(403, message) => Refusal::Denied(format!(
                "{verb} {what}: {message} (credentials: {origin}); apply {roles} to allow it"
            )),
            Self::Status(code, message) | Self::Busy(code, message, _) => Refusal::Failed(format!(
                "{verb} {what}: {server} answered {code}: {message}"
            )),
            Self::Late => Refusal::Failed(format!("{verb} {what}: {server}: {}", session.late())),
            Self::Transport(why) | Self::Answer(why) => {
                Refusal::Failed(format!("{verb} {what}: {server}: {why}"))
            }
        }
    }

    /// Returns the reason without the request.
    pub(super) fn words(self) -> String {
        match self {
            Self::Status(code, message) | Self::Busy(code, message, _) => {
                format!("answered {code}: {message}")
            }
            Self::Late => "no answer within the time limit".to_owned(),
            Self::Transport(why) | Self::Answer(why) => why,
        }
    }

    pub(super) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Status(403, _))
    }

    /// Returns whether the request may succeed later: the server is not available, starting or overloaded.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Status(code, _) => matches!(code, 429 | 500 | 502 | 503 | 504),
            Self::Late | Self::Transport(_) | Self::Busy(..) => true,
            Self::Answer(_) => false,
        }
    }
}
