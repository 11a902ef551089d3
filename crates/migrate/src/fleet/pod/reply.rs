//! The log of a pod: the lines that kpx prints on the node.

use super::Finished;
use crate::loss::ObservedLoss;
use crate::migration::Stage;
use crate::preview::PreviewResult;
use crate::wire::{Event, Line, NodeReport, Outcome};

/// How a pod ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ended {
    /// Its job is done.
    Done,
    /// The job had nothing to do: the node already runs in the new mode.
    Already,
    /// The job failed, and why.
    Failed(String),
}

/// Returns the report in `log`, the last one.
pub(super) fn report(log: &str) -> Option<NodeReport> {
    let mut lines = log.lines().rev().filter_map(Line::parse);
    lines.find_map(|line| match line {
        Line::MigrateReport(report) => Some(*report),
        Line::MigrateEvent(_) => None,
    })
}

/// Returns the result of a preview.
pub fn previewed(finished: &Finished) -> PreviewResult {
    match report(&finished.log) {
        Some(NodeReport {
            preview: Some(preview),
            ..
        }) => PreviewResult::Known(preview),
        Some(NodeReport {
            outcome: Outcome::Already,
            ..
        }) => PreviewResult::Already,
        _ => PreviewResult::Failed(last_words(finished)),
    }
}

/// Returns how the pod ended. Neither exit status 0 nor a report is enough alone.
pub fn ended(finished: &Finished) -> Ended {
    let report = report(&finished.log);
    let outcome = report.as_ref().map(|report| report.outcome);
    match (finished.code, outcome) {
        (Some(0), Some(Outcome::Already)) => Ended::Already,
        (
            Some(0),
            Some(Outcome::Prepared | Outcome::Migrated | Outcome::RolledBack | Outcome::Reverted),
        ) => Ended::Done,
        _ => {
            let why = report.and_then(|report| report.why);
            Ended::Failed(why.unwrap_or_else(|| last_words(finished)))
        }
    }
}

/// Returns the loss that kpx has observed on the node since its migration began; `None` if it did not report it.
pub fn observed_loss(finished: &Finished) -> Option<ObservedLoss> {
    report(&finished.log)?.observed_loss
}

/// Returns the notes in the pod's report.
pub fn notes(finished: &Finished) -> Vec<String> {
    report(&finished.log).map_or_else(Vec::new, |report| report.notes)
}

/// The number of lines of a log that an error repeats.
const LAST: usize = 5;

/// Returns the exit status, the kubelet's reason, and the last lines of the log that are no messages of kpx to kpx.
fn last_words(finished: &Finished) -> String {
    let code = finished.code.map(|code| format!("exit status {code}"));
    let lines = finished.log.lines().map(str::trim);
    let lines = lines.filter(|text| !text.is_empty() && Line::parse(text).is_none());
    let lines: Vec<&str> = lines.collect();
    let lines = lines[lines.len().saturating_sub(LAST)..].join(" ");
    let parts = [code, Some(finished.reason.clone()), Some(lines)].into_iter();
    let parts = parts.flatten().filter(|part| !part.is_empty());
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() {
        "it ended and printed nothing".to_owned()
    } else {
        parts.join("; ")
    }
}

/// Returns whether a rollback that printed `log` waits for a kube-proxy in the old mode: all stages before that are done.
pub fn awaits_restart(log: &str) -> bool {
    log.lines().filter_map(Line::parse).any(|line| {
        let Line::MigrateEvent(line) = line else {
            return false;
        };
        matches!(
            line.event,
            Event::Begins {
                stage: Stage::Restart | Stage::Verify,
                ..
            }
        )
    })
}

/// A line of a log, in words.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Progress {
    /// Something begins, or an operator has to act.
    Reports(String),
    /// Its progress, or what it waits for: the next such line replaces it.
    Waits(String),
}

/// Returns the progress that `text`, a line of a log, reports; `None` if it reports none.
pub fn progress(text: &str) -> Option<Progress> {
    let Some(Line::MigrateEvent(line)) = Line::parse(text) else {
        return None;
    };
    match &line.event {
        Event::Begins { title, .. } => Some(Progress::Reports(title.clone())),
        event if event.needs_operator() => line.words.map(Progress::Reports),
        Event::Waits { .. } => line.words.map(Progress::Reports),
        Event::Step { .. } | Event::Undo { .. } | Event::Gates { .. } | Event::Drain { .. } => {
            line.words.map(Progress::Waits)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evict::Leaving;
    use crate::gates::{Gate, Name, Status};
    use crate::migration::Leg;
    use crate::preview::{MigrationBlocker, Preview};
    use crate::wire::EventLine;
    use kpx_node::backend::Mode;

    fn finished(code: Option<i64>, reason: &str, log: &str) -> Finished {
        Finished {
            code,
            reason: reason.to_owned(),
            log: log.to_owned(),
        }
    }

    fn line(event: Event) -> String {
        Line::MigrateEvent(EventLine::from(event)).to_text() + "\n"
    }

    fn begins(stage: Stage) -> String {
        line(Event::Begins {
            leg: Leg::Back,
            stage,
            title: "t".to_owned(),
            steps: 0,
            number: 1,
            of: 2,
        })
    }

    /// Returns a log that ends with a report of `outcome`.
    fn log(outcome: Outcome, change: impl FnOnce(&mut NodeReport)) -> String {
        let mut report = NodeReport::already(Mode::Ipvs);
        report.outcome = outcome;
        change(&mut report);
        begins(Stage::Build) + &Line::MigrateReport(Box::new(report)).to_text() + "\n"
    }

    #[test]
    fn a_preview_is_the_report_or_the_last_lines() {
        let preview = Preview {
            blockers: vec![MigrationBlocker {
                id: "KM01".to_owned(),
                message: "x".to_owned(),
            }],
            loss: "none".to_owned(),
            ..Preview::default()
        };
        let text = log(Outcome::Planned, |report| {
            report.preview = Some(preview.clone());
        });
        let result = previewed(&finished(Some(1), "", &text));
        assert_eq!(result, PreviewResult::Known(preview));
        let text = log(Outcome::Already, |_| {});
        assert_eq!(
            previewed(&finished(Some(0), "", &text)),
            PreviewResult::Already
        );
        let why = "exit status 4; kpx: no".to_owned();
        assert_eq!(
            previewed(&finished(Some(4), "", "kpx: no\n")),
            PreviewResult::Failed(why)
        );
    }

    #[test]
    fn a_job_is_done_by_its_report_and_its_exit_status() {
        let of = |code, reason: &str, log: &str| ended(&finished(code, reason, log));
        assert_eq!(
            of(Some(0), "", &log(Outcome::Prepared, |_| {})),
            Ended::Done
        );
        assert_eq!(
            of(Some(0), "", &log(Outcome::Already, |_| {})),
            Ended::Already
        );
        let stopped = log(Outcome::Stopped, |report| {
            report.why = Some("no ip_vs".to_owned());
        });
        assert_eq!(
            of(Some(4), "", &stopped),
            Ended::Failed("no ip_vs".to_owned())
        );
        let text = "kpx: cannot open\n  because x\n";
        assert_eq!(
            of(Some(4), "", text),
            Ended::Failed("exit status 4; kpx: cannot open because x".to_owned())
        );
        assert!(matches!(of(Some(0), "", text), Ended::Failed(_)));
        let migrated = log(Outcome::Migrated, |_| {});
        assert!(matches!(
            of(Some(137), "OOMKilled", &migrated),
            Ended::Failed(_)
        ));
        let deadline = of(None, "DeadlineExceeded", "");
        assert_eq!(deadline, Ended::Failed("DeadlineExceeded".to_owned()));
    }

    #[test]
    fn a_log_shows_the_progress() {
        assert!(!awaits_restart(&begins(Stage::Build)));
        assert!(awaits_restart(
            &(begins(Stage::Build) + &begins(Stage::Verify))
        ));
        assert_eq!(
            progress(begins(Stage::Build).trim()),
            Some(Progress::Reports("t".to_owned()))
        );
        let gates = |status| {
            line(Event::Gates {
                gates: vec![Gate {
                    name: Name::Synced,
                    status,
                    reason: "none yet".to_owned(),
                }],
            })
        };
        let words = "waiting: synced: none yet".to_owned();
        assert_eq!(
            progress(&gates(Status::Waiting)),
            Some(Progress::Waits(words.clone()))
        );
        assert_eq!(
            progress(&gates(Status::Failing)),
            Some(Progress::Reports(words))
        );
        // A disruption budget keeps a pod: an operator may have to act.
        let pods = Leaving {
            count: 1,
            kept: Vec::new(),
        };
        assert!(matches!(
            progress(&line(Event::Evict { pods })),
            Some(Progress::Reports(_))
        ));
        assert_eq!(progress("kpx: x"), None);
    }
}
