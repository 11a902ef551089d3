//! What `kpx explain` and `kpx doctor --list` print.

use serde::Serialize;

use super::CLEAN;
use crate::backend::Mode;
use crate::check::{Check, GROUPS, Severity};
use crate::render::{Page, Report, Tone};

/// The catalogue, a line each.
#[derive(Debug, Serialize)]
pub struct CheckList {
    /// The checks, in the order of their groups.
    pub checks: Vec<CheckLine>,
}

/// One check in a line.
#[derive(Debug, Serialize)]
pub struct CheckLine {
    /// The id.
    pub id: &'static str,
    /// The slug.
    pub name: &'static str,
    /// The group.
    pub group: &'static str,
    /// How bad a finding is, at worst.
    pub severity: Severity,
    /// The modes that it tells what to heed before a move to.
    #[serde(rename = "for", skip_serializing_if = "<[Mode]>::is_empty")]
    pub targets: &'static [Mode],
    /// The healthy state.
    pub title: &'static str,
}

impl CheckList {
    /// Returns the list of `checks`.
    pub fn new(checks: impl IntoIterator<Item = &'static Check>) -> Self {
        let mut checks: Vec<_> = checks
            .into_iter()
            .map(|check| CheckLine {
                id: check.id,
                name: check.name,
                group: check.group(),
                severity: check.severity,
                targets: check.targets(),
                title: check.title,
            })
            .collect();
        checks.sort_by_key(|check| check.id);
        Self { checks }
    }
}

impl Report for CheckList {
    const KIND: &'static str = "CheckList";

    fn page(&self, page: &mut Page) {
        for (code, name, what) in GROUPS {
            let ours: Vec<_> = self
                .checks
                .iter()
                .filter(|check| check.id.starts_with(code))
                .collect();
            if ours.is_empty() {
                continue;
            }
            let title = format!("{code} {name}: {what}");
            page.line(&page.paint(Tone::Strong, &title));
            for check in ours {
                let lead = format!("  {}  {:7}  ", check.id, check.severity.name());
                page.para(&lead, check.title);
            }
        }
        page.line("");
        page.line("next: kpx explain ID");
    }

    fn exit(&self) -> u8 {
        CLEAN
    }
}

/// One check, explained.
#[derive(Debug, Serialize)]
pub struct Explanation {
    /// The id.
    pub id: &'static str,
    /// The slug.
    pub name: &'static str,
    /// The group.
    pub group: &'static str,
    /// How bad a finding is, at worst.
    pub severity: Severity,
    /// When it is asked, in words.
    pub asked: String,
    /// The healthy state.
    pub title: &'static str,
    /// What people notice.
    pub symptom: &'static str,
    /// The mechanism.
    pub why: &'static str,
    /// How to see it by hand.
    pub verify: &'static str,
    /// Standard tools' commands that show it.
    pub commands: &'static [&'static str],
    /// What to do about it.
    pub fix: &'static str,
    /// Where it was met.
    pub incidents: &'static [&'static str],
    /// What it reads, as files of a bundle.
    pub needs: Vec<&'static str>,
}

impl Explanation {
    /// Returns what is known of `check`.
    pub fn new(check: &Check) -> Self {
        Self {
            id: check.id,
            name: check.name,
            group: check.group(),
            severity: check.severity,
            asked: check.asked_in_words(),
            title: check.title,
            symptom: check.symptom,
            why: check.why,
            verify: check.verify,
            commands: check.commands,
            fix: check.fix,
            incidents: check.incidents,
            needs: check.items().map(crate::evidence::Item::file).collect(),
        }
    }
}

impl Report for Explanation {
    const KIND: &'static str = "Explanation";

    fn page(&self, page: &mut Page) {
        let title = format!("{} {}", self.id, self.name);
        page.line(&page.paint(Tone::Strong, &title));
        let worst = self.severity.name();
        page.para("  healthy    ", &format!("{}.", self.title));
        page.para("  at worst   ", &format!("{worst}, group {}", self.group));
        page.para("  asked      ", &self.asked);
        page.line("");
        page.para("  symptom    ", self.symptom);
        page.line("");
        page.para("  mechanism  ", self.why);
        page.line("");
        page.para("  verify     ", self.verify);
        for command in self.commands {
            page.line(&format!("             $ {command}"));
        }
        page.line("");
        page.para("  fix        ", self.fix);
        for (at, incident) in self.incidents.iter().enumerate() {
            if at == 0 {
                page.line("");
            }
            page.para(
                if at == 0 {
                    "  met in     "
                } else {
                    "             "
                },
                incident,
            );
        }
        page.line("");
        page.para("  reads      ", &self.needs.join(", "));
    }

    fn exit(&self) -> u8 {
        CLEAN
    }
}
