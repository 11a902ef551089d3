//! The reports of `kpx explain`.

use serde::Serialize;

use crate::render::{Page, Report, Tone};
use crate::report::{CLEAN, markdown};
use kpx_judge::check::{Check, Example, GROUPS, Reach, Severity};
use kpx_node::backend::Mode;

/// A list of checks.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct CheckList {
    /// The checks, in the order of their groups.
    pub checks: Vec<CheckLine>,
}

/// One check in a list.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct CheckLine {
    /// Id of the check, as `MX01`.
    pub id: &'static str,
    /// Name of the check, in kebab case.
    pub name: &'static str,
    /// Name of its group.
    pub group: &'static str,
    /// The highest severity of its findings.
    pub severity: Severity,
    /// The target modes of the switches before which it runs.
    #[serde(rename = "for", skip_serializing_if = "<[Mode]>::is_empty")]
    pub targets: &'static [Mode],
    /// The healthy state.
    pub title: &'static str,
}

impl CheckList {
    /// Returns the list of `checks`.
    pub(crate) fn new(checks: impl IntoIterator<Item = &'static Check>) -> Self {
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
        for group in GROUPS {
            let ours: Vec<_> = self
                .checks
                .iter()
                .filter(|check| check.id.starts_with(group.code))
                .collect();
            if ours.is_empty() {
                continue;
            }
            let title = format!("{} {}: {}", group.code, group.name, group.about);
            page.line(&page.paint(Tone::Strong, &title));
            for check in ours {
                let lead = format!("  {}  {:7}  ", check.id, check.severity.name());
                page.para(&lead, check.title);
            }
        }
        page.line("");
        page.next(&format!("{} explain ID", page.style().program));
    }

    fn exit(&self) -> u8 {
        CLEAN
    }
}

/// A page of the documents.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Document {
    /// The word that names it: a topic, `providers`, or the short name of a provider.
    pub id: &'static str,
    /// Path of the page in the repository.
    pub page: String,
    /// Text of the page, in Markdown.
    pub text: &'static str,
}

impl Report for Document {
    const KIND: &'static str = "Document";

    fn page(&self, page: &mut Page) {
        markdown::add(self.text, page);
    }

    fn exit(&self) -> u8 {
        CLEAN
    }
}

/// One check, explained.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Explanation {
    /// Id of the check, as `MX01`.
    pub id: &'static str,
    /// Name of the check, in kebab case.
    pub name: &'static str,
    /// Name of its group.
    pub group: &'static str,
    /// The highest severity of its findings.
    pub severity: Severity,
    /// The time when it runs, in words.
    pub asked: String,
    /// The healthy state.
    pub title: &'static str,
    /// The effect that users notice.
    pub symptom: &'static str,
    /// The mechanism.
    pub why: &'static str,
    /// How to verify it manually.
    pub verify: &'static str,
    /// Commands of standard tools that show it.
    pub commands: Vec<String>,
    /// How to fix it.
    pub fix: String,
    /// Issues and incidents.
    pub incidents: &'static [&'static str],
    /// The files of a bundle that it reads.
    pub needs: Vec<&'static str>,
}

impl Explanation {
    /// Returns the explanation of `check`, with commands as `reach` says.
    pub(crate) fn new(check: &Check, reach: &Reach) -> Self {
        let command = |example: &Example| reach.command(&example.advice());
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
            commands: check.commands.iter().map(command).collect(),
            fix: reach.prose(&check.fix.prose()),
            incidents: check.incidents,
            needs: check.items().map(kpx_node::evidence::Item::file).collect(),
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
        page.para("  runs       ", &self.asked);
        page.line("");
        page.para("  symptom    ", self.symptom);
        page.line("");
        page.para("  mechanism  ", self.why);
        page.line("");
        page.para("  verify     ", self.verify);
        for command in &self.commands {
            page.line(&format!("             $ {command}"));
        }
        page.line("");
        page.para("  fix        ", &self.fix);
        for (at, incident) in self.incidents.iter().enumerate() {
            if at == 0 {
                page.line("");
            }
            page.para(
                if at == 0 {
                    "  seen in    "
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
