//! A cause on one path.

use super::{Cause, Degree};
use kpx_node::evidence::Time;

/// A cause on one path.
#[derive(Clone, Debug)]
pub(super) struct Blame {
    pub(super) cause: Cause,
    pub(super) degree: Degree,
    pub(super) since: Option<Time>,
    /// The node of the cause, if it is not the node that is asked.
    pub(super) there: Option<String>,
}

impl Blame {
    pub(super) fn breaks(cause: Cause) -> Self {
        Self {
            cause,
            degree: Degree::Breaks,
            since: None,
            there: None,
        }
    }

    pub(super) fn suspects(cause: Cause) -> Self {
        Self {
            degree: Degree::Suspect,
            ..Self::breaks(cause)
        }
    }
}
