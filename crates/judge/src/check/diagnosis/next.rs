//! The command to run next.

use super::{Block, Diagnosed};
use crate::check::{Advice, Question, Severity, Subject, Word};
use crate::verdict::Tally;

/// The command to run next.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Next {
    /// The command.
    pub advice: Advice,
    /// Whether it needs root.
    pub as_root: bool,
}

impl From<Advice> for Next {
    fn from(advice: Advice) -> Self {
        Self {
            advice,
            as_root: false,
        }
    }
}

/// Returns the command to run next: one of the worst findings' that clears the most or, without a fix command, that shows the
/// most; without findings, the one that explains a Service whose connections fail, or that completes the data.
pub(super) fn next(
    findings: &[Diagnosed],
    blocks: &[Block],
    unknown: usize,
    question: Question,
    services: Option<&Tally>,
) -> Next {
    let failing = services.and_then(|tally| tally.failing.first());
    let explains =
        failing.map(|of| Advice::kpx([Word::from("why"), Word::from(of.service.clone())]));
    let is_error = |of: &Diagnosed| of.severity == Severity::Error;
    let found = of_findings(findings, blocks)
        .filter(|_| explains.is_none() || findings.iter().any(is_error));
    let found = found.or(explains).map(Next::from);
    found.unwrap_or_else(|| match (unknown, question) {
        (1.., _) => Next {
            advice: Advice::kpx([
                Word::from("doctor"),
                Word::from("--kubeconfig"),
                Word::Value("FILE"),
            ]),
            as_root: true,
        },
        (0, Question::Now) => Advice::kpx(["show", "services"]).into(),
        (0, Question::Switch(_) | Question::Upgrade(_)) => Advice::kpx(["doctor"]).into(),
    })
}

fn of_findings(findings: &[Diagnosed], blocks: &[Block]) -> Option<Advice> {
    let severity = blocks.first()?.severity;
    let worst = || {
        blocks
            .iter()
            .filter(move |block| block.severity == severity)
    };
    let firsts = || worst().filter_map(|block| findings.get(*block.groups.first()?.first()?));
    // The blocks whose fix clears several findings come first.
    worst()
        .find_map(|block| block.advice.clone())
        .or_else(|| firsts().find_map(of_text))
        .or_else(|| firsts().find_map(shows))
        .or_else(|| Some(Advice::kpx(["explain", firsts().next()?.check.id])))
}

/// Returns the first command of kpx in the text of the fix that can run as it is.
fn of_text(of: &Diagnosed) -> Option<Advice> {
    let fix = of.finding.fix.as_ref()?;
    fix.text.commands().find(|of| is_ready(of)).cloned()
}

/// Returns the command that shows the finding.
fn shows(of: &Diagnosed) -> Option<Advice> {
    if let Subject::Service(service) = &of.finding.about
        && of.check.group() == "api"
    {
        return Some(Advice::kpx(["why".to_owned(), service.to_string()]));
    }
    let examples = || of.check.commands.iter().map(|example| example.advice());
    let own = examples().find(is_ready);
    own.or_else(|| examples().find(Advice::is_complete))
}

/// Returns whether `advice` is a command of kpx that can run as it is.
fn is_ready(advice: &Advice) -> bool {
    matches!(advice, Advice::Kpx(_)) && advice.is_complete()
}
