//! Runs a check, and contains its panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use thiserror::Error;

use crate::check::{Check, Facts, Finding, Fix, Question, When};
use kpx_node::evidence::Gap;

/// The outcome of a check.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// It found nothing wrong.
    Pass,
    /// It found something wrong.
    Fail(Vec<Finding>),
    /// It does not apply here; the text is the reason.
    Skip(String),
    /// It has no result.
    Unknown(Unknown),
}

/// Why a check has no result.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum Unknown {
    /// Its data is missing.
    #[error(transparent)]
    Gap(#[from] Gap),
    /// It did not end within this time.
    #[error("the check took longer than {0:?} and was aborted; a longer --timeout allows more")]
    Late(Duration),
    /// It panicked.
    #[error("the check panicked: this is a bug in kpx")]
    Panicked,
}

/// Runs `check` on `facts`. A check that panics is unknown.
pub fn run(check: &Check, facts: &Facts<'_>) -> Outcome {
    if !check.is_asked(facts.question) {
        return Outcome::Skip(match (facts.question, check.when) {
            (Question::Upgrade(goal), _) => format!("not asked before an upgrade to {goal}"),
            (_, When::Upgrade) => "asked only before an upgrade: --release RELEASE".to_owned(),
            (Question::Switch(target), _) => format!("not asked before a switch to {target}"),
            (Question::Now, _) => "asked only before a switch of the mode: --to MODE".to_owned(),
        });
    }
    // A parser that panics leaves its section unparsed, so a panic cannot corrupt shared state.
    let verdict = catch_unwind(AssertUnwindSafe(|| (check.run)(facts)));
    match verdict {
        Ok(Ok(findings)) if findings.is_empty() => Outcome::Pass,
        Ok(Ok(mut findings)) => {
            for finding in &mut findings {
                finding.evidence.sort();
                finding.fix.get_or_insert_with(|| Fix::from(check.fix));
            }
            findings.sort_by(|a, b| {
                (b.severity, &a.subject, &a.message).cmp(&(a.severity, &b.subject, &b.message))
            });
            Outcome::Fail(findings)
        }
        Ok(Err(Gap::NotApplicable(reason))) => Outcome::Skip(reason),
        Ok(Err(gap)) => Outcome::Unknown(gap.into()),
        Err(_) => Outcome::Unknown(Unknown::Panicked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Severity, Subject, Verdict};
    use kpx_node::evidence::{Evidence, Item};
    use kpx_node::node::NodeSnapshot;

    fn outcome(run: fn(&Facts<'_>) -> Verdict) -> Outcome {
        let check = Check::made_up("ZZ99", run);
        let evidence = Evidence::default();
        let node = NodeSnapshot::new(&evidence);
        super::run(&check, &Facts::new(&node, None))
    }

    #[test]
    fn a_check_that_panics_is_unknown() {
        assert_eq!(
            outcome(|_| panic!("made up")),
            Outcome::Unknown(Unknown::Panicked)
        );
    }

    #[test]
    fn a_missing_item_is_unknown_not_ok() {
        assert_eq!(
            outcome(|facts| facts.node.sysctl().map(|_| Vec::new())),
            Outcome::Unknown(Gap::NotCollected(Item::Sysctl).into())
        );
    }

    #[test]
    fn a_check_that_does_not_apply_is_skipped() {
        assert_eq!(
            outcome(|_| Err(Gap::NotApplicable("not here".to_owned()))),
            Outcome::Skip("not here".to_owned())
        );
    }

    #[test]
    fn a_finding_without_a_fix_gets_the_fix_of_its_check() {
        let Outcome::Fail(findings) = outcome(|_| {
            Ok(vec![Finding::new(
                Severity::Error,
                Subject::Kernel,
                "is wrong",
            )])
        }) else {
            panic!("it should fail");
        };
        assert_eq!(findings[0].fix.as_ref().unwrap().text(), "Fix it.");
    }
}
