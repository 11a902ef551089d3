//! Why a stage failed.

use std::time::Duration;

use thiserror::Error;

use crate::drain::Gauge;
use crate::migration::Stage;
use crate::stage::Unplanned;
use kpx_judge::plan::Step;
use kpx_node::action::Action;
use kpx_node::apply::StepError;
use kpx_node::cluster::pod::CrashLoop;
use kpx_node::evidence::Gap;

/// Why a stage failed.
#[derive(Debug, Error)]
pub(super) enum StageError {
    #[error("stopped on request")]
    StopRequested,
    #[error("cannot write the journal, so nothing more was done: {0}")]
    Journal(String),
    #[error("cannot {}: {error}", .stage.title())]
    Unplanned { stage: Stage, error: Unplanned },
    #[error("cannot {}: {error}{}", .stage.title(), not_undone(.left))]
    Step {
        stage: Stage,
        error: StepError,
        left: Vec<(usize, String)>,
        /// Whether another process that changes the kernel's state, such as kube-proxy, may have caused it.
        moved: bool,
    },
    #[error("cannot {}: {why}", .stage.title())]
    Failed { stage: Stage, why: String },
    #[error("timed out after {} s: {what}", .waited.as_secs())]
    Gates { waited: Duration, what: String },
    #[error("{0}")]
    SetBack(String),
    #[error("kube-proxy does not start: {0}")]
    Crashes(CrashLoop),
    #[error(
        "timed out after {} s: {} through virtual servers, or from their addresses, still open: {}",
        .waited.as_secs(), .gauge.connections(), .gauge.holders()
    )]
    Drain { waited: Duration, gauge: Gauge },
    #[error("timed out after {} s: pods have not left the node: {what}", .waited.as_secs())]
    Evict { waited: Duration, what: String },
}

impl StageError {
    /// Returns whether the stage may succeed when it is planned again.
    pub(super) const fn is_transient(&self) -> bool {
        match self {
            Self::Step { moved, .. } => *moved,
            Self::Unplanned { error, .. } => {
                matches!(error, Unplanned::Gap(Gap::Failed(..) | Gap::Late(..)))
            }
            _ => false,
        }
    }
}

/// Returns whether `step` may have failed because the node changed after it was read. Tools do not
/// report that in a form that kpx can parse; a retry does no harm.
pub(super) fn is_moved(error: &StepError, step: Option<&Step>) -> bool {
    let changes_kernel = step.is_some_and(|step| {
        matches!(
            step.action,
            Action::Iptables { .. }
                | Action::Nft { .. }
                | Action::Ipset { .. }
                | Action::Ipvs { .. }
                | Action::Link { .. }
                | Action::Routes { .. }
        )
    });
    match error {
        StepError::Moved(_) => true,
        StepError::Refused(_) => changes_kernel,
        StepError::Denied(_) | StepError::Absent(_) | StepError::Held(_) => false,
    }
}

fn not_undone(left: &[(usize, String)]) -> String {
    let left = left
        .iter()
        .map(|(step, why)| format!("; step {} was not undone: {why}", step + 1));
    left.collect()
}

/// Returns the notes of `stage`, which are empty, or its error.
pub(super) fn done(stage: Stage, result: Result<(), String>) -> Result<Vec<String>, StageError> {
    result
        .map(|()| Vec::new())
        .map_err(|why| StageError::Failed { stage, why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpx_node::evidence::Item;

    #[test]
    fn a_stage_is_planned_again_where_a_read_failed_and_not_where_it_was_denied() {
        let why = || "why".to_owned();
        for (gap, want) in [
            (Gap::Failed(Item::Nft, why()), true),
            (Gap::Late(Item::Nft, why()), true),
            (Gap::Denied(Item::Nft, why()), false),
            (Gap::Absent(Item::Nft, why()), false),
        ] {
            let (stage, error) = (Stage::Build, Unplanned::Gap(gap));
            let error = StageError::Unplanned { stage, error };
            assert_eq!(error.is_transient(), want, "{error}");
        }
        let (waited, what) = (Duration::ZERO, why());
        assert!(!StageError::Gates { waited, what }.is_transient());
    }
}
