//! The findings of the doctor in blocks: what one fix clears is one block.

use super::Problem;
use super::seen::seen;
use crate::check::{self, Severity};
use crate::owner::PortName;
use crate::render::{Page, Tone};
use crate::words::number_of;

/// Maximum of equal lines without -v.
const FEW: usize = 3;

/// Words in a command that stand for values.
const PLACEHOLDERS: &[&str] = &[
    "ADDRESS",
    "CHAIN",
    "FILE",
    "ID",
    "KEY",
    "LINK",
    "MODE",
    "NAME",
    "NAMESPACE",
    "NODE",
    "PID",
    "POD",
    "PORT",
    "RULE",
    "SELECTOR",
    "SERVICE",
    "SET",
];

/// Findings that one fix clears, or a finding without such a fix.
pub(in crate::report) struct Block<'r> {
    /// The command that clears all of them, if there is one.
    command: Option<String>,
    /// The findings, by message.
    groups: Vec<Vec<&'r Problem>>,
}

/// Returns the blocks of `findings`: the worst first, then those whose fix clears the most.
pub(in crate::report) fn blocks(findings: &[Problem]) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    for group in groups(findings) {
        let command = common(&group);
        let same = |block: &&mut Block<'_>| command.is_some() && block.command == command;
        match blocks.iter_mut().find(same) {
            Some(block) => block.groups.push(group),
            None => blocks.push(Block {
                command,
                groups: vec![group],
            }),
        }
    }
    blocks.sort_by_key(|block| {
        let cleared = block.shared_fix().map(|_| block.count());
        std::cmp::Reverse((block.severity(), cleared))
    });
    blocks
}

/// Groups findings that have the same message; they are sorted by severity and check already.
fn groups(findings: &[Problem]) -> Vec<Vec<&Problem>> {
    let mut groups: Vec<Vec<&Problem>> = Vec::new();
    for finding in findings {
        let same = |group: &&mut Vec<&Problem>| {
            let first = group[0];
            (first.id, first.severity, &first.message)
                == (finding.id, finding.severity, &finding.message)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(finding),
            None => groups.push(vec![finding]),
        }
    }
    groups
}

/// Returns the fix command that all findings of a group have.
fn common(group: &[&Problem]) -> Option<String> {
    let first = &group[0].fix;
    let same = |finding: &&Problem| finding.fix.advice == first.advice;
    first.command().filter(|_| group.iter().all(same))
}

/// Returns the command to run next: one of the worst findings' that clears the most or, without a fix command, that shows the
/// most; `None` without findings.
pub(super) fn next(blocks: &[Block<'_>]) -> Option<String> {
    let worst = blocks.first()?.severity();
    let worst = || blocks.iter().filter(|block| block.severity() == worst);
    let firsts = || worst().filter_map(|block| block.groups.first()?.first().copied());
    // The blocks whose fix clears several findings come first.
    worst()
        .find_map(|block| block.command.clone())
        .or_else(|| firsts().find_map(|finding| of_text(&finding.fix.text())))
        .or_else(|| firsts().find_map(shows))
        .or_else(|| {
            firsts()
                .next()
                .map(|finding| format!("kpx explain {}", finding.id))
        })
}

/// Returns the first command of kpx in the text of a fix.
fn of_text(text: &str) -> Option<String> {
    let spans = text.split('`').skip(1).step_by(2);
    let mut commands = spans.filter(|span| span.starts_with("kpx ") && is_complete(span));
    commands.next().map(str::to_owned)
}

/// Returns the command that shows a finding.
fn shows(finding: &Problem) -> Option<String> {
    if finding.id.starts_with("AP") && PortName::parse(&finding.subject).is_some() {
        return Some(format!("kpx why {}", finding.subject));
    }
    let check = check::all().find(|check| check.id == finding.id)?;
    let mut commands = check.commands.iter().filter(|command| is_complete(command));
    let own = check.commands.iter();
    let mut own = own.filter(|command| command.starts_with("kpx ") && is_complete(command));
    let command = own.next().or_else(|| commands.next())?;
    Some((*command).to_owned())
}

/// Returns whether `command` has no word that stands for a value.
fn is_complete(command: &str) -> bool {
    let mut words = command.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-');
    !words.any(|word| PLACEHOLDERS.contains(&word))
}

impl<'r> Block<'r> {
    /// Returns the findings, by message.
    pub(in crate::report) fn groups(&self) -> &[Vec<&'r Problem>] {
        &self.groups
    }

    /// Returns the command that clears all findings, if there are several.
    pub(in crate::report) fn shared_fix(&self) -> Option<&str> {
        self.command.as_deref().filter(|_| self.count() > 1)
    }

    /// Returns the number of findings.
    fn count(&self) -> usize {
        self.groups.iter().map(Vec::len).sum()
    }

    /// Returns the severity of the worst finding.
    fn severity(&self) -> Severity {
        let all = self.groups.iter().flatten().map(|finding| finding.severity);
        all.max().unwrap_or(Severity::Info)
    }

    /// Returns how many findings the fix clears, in words.
    pub(in crate::report) fn clears(&self) -> String {
        format!("1 fix clears {}", number_of(self.count(), "finding"))
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
        let text = match (&self.command, self.groups.as_slice()) {
            (_, [only]) => format!("{}: {}", subjects(only, 1), only[0].message),
            (Some(_), _) => self.clears(),
            (None, _) => number_of(self.count(), "finding"),
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
    page.line(&format!("  more  kpx explain {}", group[0].id));
}

/// Returns the text of each fix, once.
pub(in crate::report) fn texts(group: &[&Problem]) -> Vec<String> {
    let mut texts = Vec::new();
    for text in group.iter().map(|finding| finding.fix.text()) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts
}

/// Returns the command of each fix, once.
pub(in crate::report) fn commands(group: &[&Problem]) -> Vec<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_a_word_for_a_value_is_not_complete() {
        assert!(is_complete("kpx cleanup --mode iptables"));
        assert!(is_complete(
            "iptables-save | grep -c KUBE-SVC-; ipvsadm -Ln"
        ));
        assert!(!is_complete("kpx cleanup --mode MODE --force"));
        assert!(!is_complete("ipvsadm -Ln -t ADDRESS:PORT"));
        assert!(!is_complete("kubectl get pods -l SELECTOR"));
    }

    #[test]
    fn the_text_of_a_fix_gives_its_first_command_of_kpx() {
        let text = "Wait (`ipvsadm -Lnc`). Then run `kpx cleanup --mode ipvs` to see the plan.";
        assert_eq!(of_text(text).as_deref(), Some("kpx cleanup --mode ipvs"));
        assert_eq!(of_text("Run `kpx migrate --to MODE`."), None);
        assert_eq!(of_text("Restart it."), None);
    }
}
