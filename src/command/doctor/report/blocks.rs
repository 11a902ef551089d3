//! The findings of the doctor in blocks: what one fix clears is one block.

use super::Problem;
use super::seen::seen;
use crate::render::{Page, Tone};
use kpx_judge::check::{self, Severity};
use kpx_node::words::number_of;

/// Maximum of equal lines without -v.
const FEW: usize = 3;

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

    /// Returns the command that clears all findings, if there are several.
    pub(crate) fn shared_fix(&self) -> Option<String> {
        self.of.shared_fix()?;
        self.groups.first()?.first()?.fix.command()
    }

    const fn severity(&self) -> Severity {
        self.of.severity
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
            page.line(&format!("  $ {command}"));
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

    /// Adds one line: the severity, the ids, and what is wrong or how many findings the fix clears.
    pub(super) fn brief(&self, page: &mut Page) {
        let severity = self.severity();
        let mut ids: Vec<&str> = self.groups.iter().map(|group| group[0].id).collect();
        ids.dedup();
        let text = match (&self.of.advice, self.groups.as_slice()) {
            (_, [only]) => format!("{}: {}", subjects(only, 1), only[0].message),
            (Some(_), _) => self.clears(),
            (None, _) => number_of(self.of.count(), "finding"),
        };
        let more = match ids.len().saturating_sub(FEW) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        ids.truncate(FEW);
        let name = severity.name().to_uppercase();
        page.cut(&format!("  {name:<7}  {}{more}  {text}", ids.join(", ")));
    }
}

/// Returns the first `few` objects of a group, and how many more there are.
fn subjects(group: &[&Problem], few: usize) -> String {
    let shown: Vec<&str> = group.iter().take(few).map(|f| f.subject.as_str()).collect();
    match group.len().saturating_sub(few) {
        0 => shown.join(", "),
        more if few == 1 => format!("{} and {more} more", shown.join(", ")),
        more => format!("{}, and {more} more", shown.join(", ")),
    }
}

/// Adds what is wrong, what shows it, and what it explains.
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
    page.para(
        "  ",
        &format!("{}: {}", subjects(group, few), first.message),
    );

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
        let text = format!(
            "{} {}: {}",
            consequence.id, consequence.subject, consequence.message
        );
        page.para(lead(at, "so"), &text);
    }
}

/// Returns the margin: `label` on the first line, blanks on the others.
fn lead(at: usize, label: &str) -> &'static str {
    match (at, label) {
        (0, "seen") => "  seen  ",
        (0, "so") => "  so    ",
        (0, "fix") => "  fix   ",
        _ => "        ",
    }
}

fn more(group: &[&Problem], page: &mut Page) {
    let program = page.style().program;
    page.line(&format!("  more  {program} explain {}", group[0].id));
}

/// Returns the text of each fix, once.
pub(crate) fn texts(group: &[&Problem]) -> Vec<String> {
    let mut texts = Vec::new();
    for text in group.iter().map(|finding| finding.fix.text()) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts
}

/// Returns the command of each fix, once.
pub(crate) fn commands(group: &[&Problem]) -> Vec<String> {
    let mut commands = Vec::new();
    for command in group.iter().filter_map(|finding| finding.fix.command()) {
        if !commands.contains(&command) {
            commands.push(command);
        }
    }
    commands
}

/// Adds each fix once, with the commands of all.
fn fixes(group: &[&Problem], page: &mut Page) {
    for (at, text) in texts(group).iter().take(FEW).enumerate() {
        page.para(lead(at, "fix"), text);
    }
    for command in commands(group) {
        // A command that is cut or wrapped cannot be copied.
        page.line(&format!("        $ {command}"));
    }
}
