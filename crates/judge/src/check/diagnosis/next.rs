//! The command to run next.

use super::{Block, Diagnosed};
use crate::check::{Advice, Question, Severity, Subject, Word};
use crate::verdict::Tally;

/// The command to run next.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Next {
    /// This one.
    Run(Advice),
    /// The one that reads the node again, with the rights to read everything.
    Read,
}

/// Returns the command to run next. It repairs the worst findings, or decides what does: the command that clears the most or,
/// without one, of the fix; the one that explains a Service whose connections fail, or of which something is unknown, or that shows a
/// finding. Where there are only notes, the one that reads what is unknown. `known` are values for the command, by the words that stand for them.
pub(super) fn next(
    findings: &[Diagnosed],
    blocks: &[Block],
    unknown: usize,
    question: Question,
    services: Option<&Tally>,
    known: &[(&str, String)],
) -> Next {
    let why = |service: &String| Advice::kpx([Word::from("why"), Word::from(service.clone())]);
    let failing = services.and_then(|tally| tally.failing.first());
    let explains = failing.map(|of| why(&of.service));
    let is_error = |of: &Diagnosed| of.severity == Severity::Error;
    let is_worth = explains.is_none() || findings.iter().any(is_error);
    let worst = Worst {
        findings,
        blocks,
        known,
    };
    let open = services.and_then(|tally| tally.unknown.first()).map(why);
    let are_notes = findings.iter().all(|of| of.severity == Severity::Info);
    if are_notes && explains.is_none() && unknown > 0 {
        return Next::Read;
    }
    let open = open.filter(|_| !findings.iter().any(is_error));
    let found = worst.repair().filter(|_| is_worth);
    let found = found.or(explains).or(open).or_else(|| worst.decides());
    found.map_or_else(
        || match (unknown, question) {
            (1.., _) => Next::Read,
            (0, Question::Now) => Next::Run(Advice::kpx(["show", "services"])),
            (0, Question::Switch(_) | Question::Upgrade(_)) => Next::Run(Advice::kpx(["doctor"])),
        },
        Next::Run,
    )
}

/// The findings of the highest severity.
struct Worst<'d> {
    findings: &'d [Diagnosed],
    blocks: &'d [Block],
    /// Values for commands.
    known: &'d [(&'d str, String)],
}

impl<'d> Worst<'d> {
    fn blocks(&self) -> impl Iterator<Item = &'d Block> + use<'d> {
        let severity = self.blocks.first().map(|block| block.severity);
        let blocks = self.blocks.iter();
        blocks.filter(move |block| Some(block.severity) == severity)
    }

    /// Iterates over the first finding of each block.
    fn firsts(&self) -> impl Iterator<Item = &'d Diagnosed> + use<'d> {
        let findings = self.findings;
        self.blocks()
            .filter_map(|block| findings.get(*block.groups.first()?.first()?))
    }

    /// Returns the command that repairs the most, or the first one in the text of a fix.
    fn repair(&self) -> Option<Advice> {
        // The blocks whose fix clears several findings come first.
        let ready = |advice: &Advice| self.ready(advice);
        let whole = self
            .blocks()
            .find_map(|block| block.advice.as_ref().and_then(ready));
        whole.or_else(|| {
            self.firsts().find_map(|of| {
                let fix = of.finding.fix.as_ref();
                if fix.is_some_and(|fix| fix.is_to_decide) {
                    return None;
                }
                let text = fix.map_or_else(|| of.check.fix.prose(), |fix| fix.text.clone());
                text.commands().find_map(ready)
            })
        })
    }

    /// Returns the command that shows what to do about a finding.
    fn decides(&self) -> Option<Advice> {
        let first = self.firsts().next()?;
        let shown = self.firsts().find_map(|of| self.shows(of));
        Some(shown.unwrap_or_else(|| Advice::kpx(["doctor", first.check.id])))
    }

    /// Returns the command that shows the finding.
    fn shows(&self, of: &Diagnosed) -> Option<Advice> {
        if let Subject::Service(service) = &of.finding.about
            && of.check.group() == "api"
        {
            return Some(Advice::kpx(["why".to_owned(), service.to_string()]));
        }
        let examples = of.check.commands.iter().map(|example| example.advice());
        let ready: Vec<Advice> = examples.filter_map(|advice| self.ready(&advice)).collect();
        let own = ready.iter().find(|advice| matches!(advice, Advice::Kpx(_)));
        own.or(ready.first()).cloned()
    }

    /// Returns `advice` with the values that are known, if it can then run as it is.
    fn ready(&self, advice: &Advice) -> Option<Advice> {
        Some(advice.filled(self.known)).filter(Advice::is_complete)
    }
}
