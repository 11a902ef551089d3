//! The command to run next.

use super::{Block, Diagnosed};
use crate::check::{Advice, Question, Severity, Subject, Word, bugs, kube_proxy};
use crate::verdict::Tally;
use kpx_node::backend::Mode;

/// The command to run next.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Next {
    /// This one, on the node beside it if that is another one than the report's.
    Run(Advice, Option<String>),
    /// The dry run of a switch to this mode.
    DryRun(Mode),
    /// The one that reads the node again, with the rights to read everything.
    Read,
}

/// Returns the command to run next. It repairs the worst findings: the command that clears the most or, without one, a command of the fix
/// that changes something, or the one to decide about. Without any, it explains a Service with connections that fail or are unknown, or shows a finding. Where
/// there are only notes, it reads the unknown items. `known` are values for the command, by the words that stand for them.
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
    let explains = failing.map(|failure| (why(&failure.service), None));
    let is_error = |diagnosed: &Diagnosed| diagnosed.severity == Severity::Error;
    let has_error = findings.iter().any(is_error);
    let is_worth = explains.is_none() || has_error;
    let worst = Worst {
        findings,
        blocks,
        question,
        known,
    };
    let open = services.and_then(|tally| tally.unknown.first());
    let open = open.map(|service| (why(service), None));
    // A load balancer without any evidence is no reason to look there first.
    let is_doubtful = services.is_some_and(|tally| tally.unknown.len() > tally.behind_balancers);
    let are_notes = findings
        .iter()
        .all(|finding| finding.severity == Severity::Info);
    if are_notes && explains.is_none() && unknown > 0 {
        return Next::Read;
    }
    let open = open.filter(|_| !has_error);
    let found = worst
        .repair()
        .filter(|_| is_worth && (!are_notes || open.is_none()));
    let lesser = || worst.lesser_repair().filter(|_| is_worth && !has_error);
    let found = found
        .or_else(|| worst.decided().filter(|_| is_worth))
        .or(explains)
        .or_else(|| open.clone().filter(|_| is_doubtful));
    if let (None, Question::Switch(to)) = (&found, question) {
        return Next::DryRun(to);
    }
    let found = found.or_else(|| worst.looks_at_error());
    let found = found.or_else(lesser).or_else(|| worst.decides());
    let found = found.or(open);
    found.map_or_else(
        || match (unknown, question) {
            (1.., _) => Next::Read,
            (0, Question::Now) => Next::Run(Advice::kpx(["show", "services"]), None),
            (0, Question::Switch(_) | Question::Upgrade(_)) => {
                Next::Run(Advice::kpx(["doctor"]), None)
            }
        },
        |(advice, there)| Next::Run(advice, there),
    )
}

/// Returns whether the nft of kube-proxy's image crashes: rules that something else writes are not kept up to date then.
fn is_of_newer_sets(diagnosed: &Diagnosed) -> bool {
    let (check, finding) = (diagnosed.check, &diagnosed.finding);
    bugs::is_of_newer_sets(check, finding) || kube_proxy::is_of_newer_sets(check, finding)
}

/// A command, and its node if it is not the report's.
type Step = (Advice, Option<String>);

/// The findings of the highest severity.
struct Worst<'d> {
    findings: &'d [Diagnosed],
    blocks: &'d [Block],
    question: Question,
    /// Values for commands.
    known: &'d [(&'d str, String)],
}

/// Returns the node for the fix of a finding, if it is not the report's.
fn there(of: &Diagnosed) -> Option<String> {
    let fix = of.finding.fix.as_ref()?;
    fix.there().map(str::to_owned)
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
    fn repair(&self) -> Option<Step> {
        if self.question == Question::Now && self.findings.iter().any(is_of_newer_sets) {
            // The nft of this release reads the sets of newer ones.
            return Some((Advice::kpx(["doctor", "--release", "1.37"]), None));
        }
        // The blocks whose fix clears several findings come first.
        self.blocks().find_map(|block| self.repair_of(block))
    }

    /// Returns the command of the first error whose fix a person has to decide about.
    fn decided(&self) -> Option<Step> {
        let mut firsts = self.firsts().filter(|of| of.severity == Severity::Error);
        firsts.find_map(|of| {
            let fix = of.finding.fix.as_ref().filter(|fix| fix.is_to_decide)?;
            Some(self.with_text(self.repairs(fix.advice.as_ref()?)?, of))
        })
    }

    /// Returns `advice`, the fix of a finding; in place of an editor, the command that says what to change for a Service that fails.
    fn with_text(&self, advice: Advice, of: &Diagnosed) -> Step {
        let service = of.finding.services.first();
        match service.filter(|_| self.question == Question::Now && advice.edits()) {
            Some(service) => (Advice::kpx(["why".to_owned(), service.to_string()]), None),
            None => (advice, there(of)),
        }
    }

    /// Returns the command with which the fix of the first error begins, if it only looks.
    fn looks_at_error(&self) -> Option<Step> {
        let mut errors = self.firsts().filter(|of| of.severity == Severity::Error);
        errors.find_map(|of| Some((self.looks(of)?, there(of))))
    }

    /// Returns the command of the fix of a finding, if it only looks.
    fn looks(&self, of: &Diagnosed) -> Option<Advice> {
        let advice = of.finding.fix.as_ref()?.advice.as_ref()?;
        self.ready(advice).filter(|advice| !advice.changes())
    }

    /// Returns the command that repairs a finding below the worst severity.
    fn lesser_repair(&self) -> Option<Step> {
        let warnings = self.blocks.iter();
        let mut warnings = warnings.filter(|block| block.severity == Severity::Warning);
        warnings.find_map(|block| self.repair_of(block))
    }

    /// Returns the command that clears `block`, or the first one in the text of its first fix.
    fn repair_of(&self, block: &Block) -> Option<Step> {
        let first = self.findings.get(*block.groups.first()?.first()?)?;
        let whole = block.advice.as_ref();
        let found = whole.and_then(|advice| self.repairs(advice));
        let found = found.or_else(|| self.repair_in_text(first))?;
        Some(self.with_text(found, first))
    }

    /// Returns the first command in the text of the fix, unless a person has to decide about it.
    fn repair_in_text(&self, of: &Diagnosed) -> Option<Advice> {
        let fix = of.finding.fix.as_ref();
        if fix.is_some_and(|fix| fix.is_to_decide) {
            return None;
        }
        let text = fix.map_or_else(|| of.check.fix.prose(), |fix| fix.text.clone());
        text.commands().find_map(|advice| self.repairs(advice))
    }

    /// Returns the command that shows what to do about a finding.
    fn decides(&self) -> Option<Step> {
        let first = self.firsts().next()?;
        let mut firsts = self.firsts();
        let shown = firsts.find_map(|group| Some((self.shows(group)?, there(group))));
        let service = self
            .firsts()
            .find_map(|group| group.finding.services.first());
        let why = service.map(|service| Advice::kpx(["why".to_owned(), service.to_string()]));
        let explained = || Advice::kpx(["explain", first.check.id]);
        Some(shown.unwrap_or_else(|| (why.unwrap_or_else(explained), None)))
    }

    /// Returns the command that shows the finding: the command of its fix, or one of its check.
    fn shows(&self, of: &Diagnosed) -> Option<Advice> {
        if let Some(advice) = self.looks(of) {
            return Some(advice);
        }
        if let Subject::Service(service) = &of.finding.about
            && of.check.group() == "api"
        {
            return Some(Advice::kpx(["why".to_owned(), service.to_string()]));
        }
        let fix = of.finding.fix.iter();
        let in_text = fix.clone().flat_map(|fix| fix.text.commands().cloned());
        let given = fix.filter_map(|fix| fix.advice.clone());
        let examples = of.check.commands.iter().map(|example| example.advice());
        let all = in_text.chain(given).chain(examples);
        let is_again = |advice: &Advice| match advice {
            Advice::Kpx(words) => words.last().and_then(Word::text) == Some(of.check.id),
            _ => false,
        };
        let ready: Vec<Advice> = all
            .filter_map(|advice| self.ready(&advice))
            .filter(|advice| !advice.changes() && !is_again(advice))
            .collect();
        let own = ready.iter().find(|advice| matches!(advice, Advice::Kpx(_)));
        own.or(ready.first()).cloned()
    }

    /// Returns `advice` as it can run, if it changes something.
    fn repairs(&self, advice: &Advice) -> Option<Advice> {
        if *advice == Advice::kpx(["doctor"]) {
            // kube-proxy may be repairing the node itself.
            return Some(Advice::kpx(["doctor", "--wait", "1m"]));
        }
        let ready = self.ready(advice);
        // Errors are repaired now, not by a switch or an upgrade.
        let is_error = self
            .blocks
            .first()
            .is_some_and(|block| block.severity == Severity::Error);
        ready.filter(|advice| advice.changes() || !is_error && advice.decides())
    }

    /// Returns `advice` with the values that are known, if it can then run as it is.
    fn ready(&self, advice: &Advice) -> Option<Advice> {
        let leads_elsewhere = |advice: &Advice| match (self.question, advice) {
            (Question::Switch(to), Advice::Kpx(words)) => {
                let mut words = words.iter().filter_map(Word::text);
                words.next() == Some("migrate") && !words.any(|word| word == to.name())
            }
            _ => false,
        };
        let ready = Some(advice.filled(self.known)).filter(Advice::is_complete);
        ready.filter(|advice| !leads_elsewhere(advice))
    }
}
