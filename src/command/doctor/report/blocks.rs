//! The findings of the doctor in blocks: a block has the findings that one fix clears.

use super::Problem;
use super::evidence_line::seen;
use crate::render::{Page, Tone};
use kpx_judge::check::{self, Advice, Fix, Severity};
use kpx_node::words::number_of;

/// Maximum of equal lines without -v.
const FEW: usize = 3;

/// The lines for a cause that leave room for its consequences.
const ROOMY: usize = 3;

/// The lines for what to change in an editor.
const EDITED: usize = 3;

/// Findings that one fix clears, or a finding without such a fix.
pub(crate) struct Block<'r> {
    of: &'r check::Block,
    /// The findings, by message.
    groups: Vec<Vec<&'r Problem>>,
}

impl<'r> Block<'r> {
    /// Returns the block `of`, whose findings are among `findings`.
    pub(super) fn new(of: &'r check::Block, findings: &'r [Problem]) -> Self {
        let groups = of.groups.iter();
        let groups = groups.map(|group| group.iter().filter_map(|at| findings.get(*at)).collect());
        Self {
            of,
            groups: groups.collect(),
        }
    }

    /// Returns the findings, by message.
    pub(crate) fn groups(&self) -> &[Vec<&'r Problem>] {
        &self.groups
    }

    /// Returns the command that clears all of several findings, behind the name of its machine if it is another one.
    pub(crate) fn shared_fix(&self) -> Option<String> {
        self.of.shared_fix()?;
        self.groups.first()?.first()?.fix.line()
    }

    /// Returns how many findings the fix clears, in words.
    pub(crate) fn clears(&self) -> String {
        format!("1 fix clears {}", number_of(self.of.count(), "finding"))
    }

    /// Adds the block, without an empty line before it.
    pub(super) fn page(&self, page: &mut Page) {
        let Some(command) = self.shared_fix() else {
            for group in &self.groups {
                problem(group, page);
                fixes(group, page);
                more(group, page);
            }
            return;
        };
        let title = format!("{}: {command}", self.clears());
        if title.chars().count() <= usize::from(page.style().width) {
            page.line(&page.paint(Tone::Strong, &title));
        } else {
            page.line(&page.paint(Tone::Strong, &format!("{}:", self.clears())));
            // A command that is cut or wrapped cannot be copied.
            let first = self.groups.first().and_then(|group| group.first());
            let command = first.and_then(|finding| prompt(&finding.fix));
            page.line(&format!("  {}", command.unwrap_or_default()));
        }
        for text in texts(&self.groups.concat()).iter().take(FEW) {
            page.para("  ", text);
        }
        for group in &self.groups {
            problem(group, page);
        }
        if let Some(first) = self.groups.first() {
            more(first, page);
        }
    }

    /// Adds the problem after `margin`, on at most `most` lines: the severity, the id, and the first finding.
    pub(super) fn cause(&self, margin: &str, most: usize, page: &mut Page) {
        let first = self.groups[0][0];
        let id = match self.count() {
            1 => first.id.to_owned(),
            count => format!("{} ({})", first.id, number_of(count, "finding")),
        };
        let name = self.severity().name().to_uppercase();
        let title = page.paint(first.tone(), &format!("{name} {id}"));
        let subject = check::lead(&first.subject, &first.message);
        page.brief(
            (&format!("{margin}{title}  "), &format!("{margin}  ")),
            &format!("{subject}{}", first.message),
            subject.len(),
            most,
        );
        let all = self.groups.iter().flatten();
        let mut consequences = all.flat_map(|finding| &finding.consequences);
        let error = consequences.find(|finding| finding.severity == Severity::Error);
        if let Some(of) = error.filter(|_| most >= ROOMY) {
            let start = format!("{margin}{}", lead(0, "so"));
            let subject = format!("{} {}", of.id, check::lead(&of.subject, &of.message));
            let below = " ".repeat(start.len());
            page.brief(
                (&start, &below),
                &format!("{subject}{}", of.message),
                subject.len(),
                1,
            );
        }
    }

    /// Adds how to fix it on about `most` lines: the command on one of its own, and the text; `details` returns the
    /// command that shows everything about the findings of a check.
    pub(super) fn remedy(
        &self,
        most: usize,
        details: impl Fn(&'static str) -> String,
        page: &mut Page,
    ) {
        let all = self.groups.concat();
        match each(&all, prompt).as_slice() {
            [] => {
                let texts = texts(&all);
                page.brief((lead(0, "fix"), lead(1, "fix")), &texts.join(" "), 0, most);
            }
            // A command that is cut or wrapped cannot be copied.
            [only] => {
                let looks = all.iter().any(|problem| problem.fix.only_looks());
                let label = if looks { "look" } else { "fix" };
                // A command that opens an editor does not say what to change.
                let edits = all.iter().any(|problem| problem.fix.edits());
                let room = (most - 1).max(if edits { EDITED } else { 0 });
                let text = texts(&all).join(" ");
                let leads_up = room > 1 && text.ends_with(':');
                if leads_up {
                    page.brief((lead(0, label), lead(1, label)), &text, 0, room);
                }
                page.line(&format!("{}{only}", lead(usize::from(leads_up), label)));
                if room > 0 && !leads_up {
                    page.brief((lead(1, label), lead(1, label)), &text, 0, room);
                }
            }
            several => {
                let count = number_of(several.len(), "command");
                let details = details(all[0].id);
                page.line(&format!("{}{count}: {details}", lead(0, "fix")));
            }
        }
    }

    /// Returns whether the plan of `kpx reconcile` clears it.
    pub(super) fn is_of_plan(&self) -> bool {
        self.of.advice == Some(Advice::kpx(["reconcile", "--apply"]))
    }

    /// Returns whether it is always shown with its fix.
    pub(super) const fn is_vital(&self) -> bool {
        self.of.is_vital
    }

    /// Returns the severity of the worst finding.
    pub(super) const fn severity(&self) -> Severity {
        self.of.severity
    }

    /// Returns the number of findings.
    pub(super) fn count(&self) -> usize {
        self.of.count()
    }
}

/// Returns the first `few` objects of a group, and how many more there are.
fn subjects(group: &[&Problem], few: usize) -> String {
    let mut all: Vec<&str> = group.iter().map(|f| f.subject.as_str()).collect();
    all.dedup();
    let shown = &all[..few.min(all.len())];
    match all.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{}, and {more} more", shown.join(", ")),
    }
}

/// Adds the problem, its evidence, and its consequences.
fn problem(group: &[&Problem], page: &mut Page) {
    let first = group[0];
    let all = page.style().verbose > 0;
    let severity = first.severity.name().to_uppercase();
    let mut title = format!("{} {}  {}", severity, first.id, first.name);
    if group.len() > 1 {
        title.extend([", ", &number_of(group.len(), "finding")]);
    }
    page.line(&page.paint(first.tone(), &title));
    let few = if all { group.len() } else { FEW };
    page.para("  ", &check::stated(&subjects(group, few), &first.message));

    let evidence: Vec<_> = group.iter().flat_map(|f| &f.evidence).collect();
    let few = if all || evidence.len() == FEW + 1 {
        evidence.len()
    } else {
        FEW
    };
    for (at, proof) in evidence.iter().take(few).enumerate() {
        seen(lead(at, "seen"), proof, page);
    }
    if evidence.len() > few {
        let rest = evidence.len() - few;
        page.line(&format!("        and {rest} more (-v shows all)"));
    }
    for (at, consequence) in group.iter().flat_map(|f| &f.consequences).enumerate() {
        let stated = check::stated(&consequence.subject, &consequence.message);
        let text = format!("{} {stated}", consequence.id);
        page.para(lead(at, "so"), &text);
    }
}

/// Returns the margin: `label` on the first line, blanks on the others.
fn lead(at: usize, label: &str) -> &'static str {
    match (at, label) {
        (0, "seen") => "  seen  ",
        (0, "so") => "  so    ",
        (0, "fix") => "  fix   ",
        (0, "look") => "  look  ",
        _ => "        ",
    }
}

fn more(group: &[&Problem], page: &mut Page) {
    let program = page.style().program;
    page.line(&format!("  more  {program} explain {}", group[0].id));
}

/// Returns the command of `fix` behind a prompt or, if it is for another machine, behind its name.
fn prompt(fix: &Fix) -> Option<String> {
    match fix.machine() {
        Some(_) => fix.line(),
        None => Some(format!("$ {}", fix.command()?)),
    }
}

/// Returns the result of `form` for each fix, once.
fn each(group: &[&Problem], form: impl Fn(&Fix) -> Option<String>) -> Vec<String> {
    let mut all = Vec::new();
    for text in group.iter().filter_map(|finding| form(&finding.fix)) {
        if !all.contains(&text) {
            all.push(text);
        }
    }
    all
}

/// Returns the text of each fix, once.
pub(crate) fn texts(group: &[&Problem]) -> Vec<String> {
    each(group, |fix| Some(fix.text()))
}

/// Adds each fix once, with the commands of all.
fn fixes(group: &[&Problem], page: &mut Page) {
    for (at, text) in texts(group).iter().take(FEW).enumerate() {
        page.para(lead(at, "fix"), text);
    }
    let looks = |fix: &Fix| fix.only_looks().then(|| prompt(fix)).flatten();
    let changes = |fix: &Fix| prompt(fix).filter(|_| !fix.only_looks());
    // A command that is cut or wrapped cannot be copied.
    for command in each(group, changes) {
        page.line(&format!("        {command}"));
    }
    for (at, command) in each(group, looks).iter().enumerate() {
        page.line(&format!("{}{command}", lead(at, "look")));
    }
}
