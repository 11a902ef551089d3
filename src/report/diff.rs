//! What `kpx diff` found.

use serde::Serialize;

use super::{CLEAN, FOUND, UNKNOWN};
use crate::backend::Mode;
use crate::diff::{Action, Change, Diff};
use crate::evidence::Gap;
use crate::render::{Page, Report, Tone};
use crate::view::{Kind, Leftover};

/// The outcome of `kpx diff`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiffReport {
    /// The mode compared with, where it is known.
    pub mode: Option<Mode>,
    /// The differences, by Service.
    pub changes: Vec<Change>,
    /// How many there are of each kind.
    pub summary: Summary,
    /// What other modes left behind: no difference, but no use either.
    pub leftovers: Vec<Leftover>,
    /// What could not be compared.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<Unknown>,
    /// What limits the comparison.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    #[serde(skip)]
    compared: bool,
}

/// How many differences there are.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub struct Summary {
    /// Should be there, and are not.
    pub missing: usize,
    /// Are there, and should not be.
    pub extra: usize,
    /// Are there, but not as they should be.
    pub differs: usize,
}

/// Something that could not be compared.
#[derive(Clone, Debug, Serialize)]
pub struct Unknown {
    /// What.
    pub what: String,
    /// Why not.
    pub gap: Gap,
}

impl DiffReport {
    /// Reports `diff`.
    pub fn new(mode: Mode, diff: Diff) -> Self {
        let unknown = diff.unknown.iter().map(|(what, gap)| Unknown {
            what: what.clone(),
            gap: gap.clone(),
        });
        Self {
            mode: Some(mode),
            summary: Summary {
                missing: diff.count(Action::Missing),
                extra: diff.count(Action::Extra),
                differs: diff.count(Action::Differs),
            },
            unknown: unknown.collect(),
            leftovers: diff.leftovers,
            notes: diff.notes,
            changes: diff.changes,
            compared: true,
        }
    }

    /// Reports that what should be there is not known, and why; `hint` says what helps.
    pub fn nothing(mode: Option<Mode>, gap: Gap, hint: &str) -> Self {
        let what = match mode {
            Some(mode) => format!("what mode {mode} should have"),
            None => "the mode".to_owned(),
        };
        Self {
            mode,
            changes: Vec::new(),
            summary: Summary {
                missing: 0,
                extra: 0,
                differs: 0,
            },
            leftovers: Vec::new(),
            unknown: vec![Unknown { what, gap }],
            notes: vec![hint.to_owned()],
            compared: false,
        }
    }

    fn head(&self) -> String {
        let Some(mode) = self.mode.filter(|_| self.compared) else {
            return "could not tell: nothing is compared".to_owned();
        };
        let Summary {
            missing,
            extra,
            differs,
        } = self.summary;
        match self.changes.len() {
            0 if self.unknown.is_empty() => {
                format!("no difference: the node has what mode {mode} should have")
            }
            0 => format!("no difference from mode {mode} in what could be compared"),
            count => {
                let parts = [
                    (missing, "missing"),
                    (extra, "extra"),
                    (differs, "different"),
                ];
                let parts = parts.iter().filter(|(count, _)| *count > 0);
                let parts: Vec<_> = parts.map(|(n, what)| format!("{n} {what}")).collect();
                let s = if count == 1 { "" } else { "s" };
                format!(
                    "{count} difference{s} from mode {mode}: {}",
                    parts.join(", ")
                )
            }
        }
    }
}

/// How many differences people read before they want a summary.
const SHOWN: usize = 60;
/// How many lines of one object are shown, such as the rules of a chain that is missing.
const LINES: usize = 6;

impl DiffReport {
    fn changes(&self, page: &mut Page) {
        let all = page.style().verbose > 0 || page.style().wide;
        let shown = if all { self.changes.len() } else { SHOWN };
        let mut group = None;
        for change in self.changes.iter().take(shown) {
            if group != Some(&change.service) {
                group = Some(&change.service);
                page.line("");
                let title = change
                    .service
                    .as_deref()
                    .unwrap_or("no Service in particular");
                page.line(&page.paint(Tone::Strong, title));
            }
            let verb = match change.action {
                Action::Missing => "missing",
                Action::Extra => "extra",
                Action::Differs => "differs",
            };
            let family = change.family.map(|f| format!("{f} ")).unwrap_or_default();
            page.para(
                &format!("  {verb:<8} "),
                &format!("{family}{}", change.object),
            );
            for (label, text) in [("have", &change.have), ("want", &change.want)] {
                if let Some(text) = text {
                    lines(page, label, text, all);
                }
            }
        }
        let rest = self.changes.len().saturating_sub(shown);
        if rest > 0 {
            let mut services: Vec<_> = self.changes[shown..]
                .iter()
                .filter_map(|change| change.service.as_deref())
                .collect();
            services.dedup();
            page.line("");
            let text = format!(
                "and {rest} more, of {} service ports; -v shows all of them",
                services.len()
            );
            page.para("", &text);
        }
    }

    fn leftovers(&self, page: &mut Page) {
        let mut of = None;
        for left in &self.leftovers {
            if of != Some(left.mode) {
                of = Some(left.mode);
                let mode = left.mode;
                page.line("");
                let title = format!("left behind by mode {mode}");
                let title = page.paint(Tone::Strong, &title);
                page.line(&title);
            }
            let what = match left.kind {
                Kind::Chains => "chains",
                Kind::Sets => "sets",
                Kind::VirtualServers => "virtual servers",
                Kind::Addresses => "addresses of kube-ipvs0",
                Kind::Link => "the link",
                Kind::Table => "the table",
            };
            let family = left.family.map(|f| format!("{f} ")).unwrap_or_default();
            let inside = match (left.kind, left.rules) {
                (_, 0) => String::new(),
                (Kind::Sets, members) => format!(" with {members} members"),
                (_, rules) => format!(" with {rules} rules"),
            };
            let text = match (left.kind, left.names.as_slice()) {
                (Kind::Link | Kind::Table, names) => format!("{what} {}{inside}", names.join(", ")),
                (_, names) => format!("{family}{} {what}{inside}", names.len()),
            };
            page.para("  ", &text);
        }
    }
}

/// Adds what an object is or should be, a line each, behind its label.
fn lines(page: &mut Page, label: &str, text: &str, all: bool) {
    let count = text.lines().count();
    let shown = if all { count } else { LINES };
    for (number, line) in text.lines().take(shown).enumerate() {
        let lead = if number == 0 { label } else { "" };
        let bullet = if count > 1 { "- " } else { "" };
        let lead = format!("           {lead:<4} {bullet}");
        if page.style().wide {
            page.line(&format!("{lead}{line}"));
        } else {
            page.para(&lead, line);
        }
    }
    if count > shown {
        page.line(&format!("                and {} more", count - shown));
    }
}

impl Report for DiffReport {
    const KIND: &'static str = "DiffReport";

    fn page(&self, page: &mut Page) {
        let tone = match (self.changes.is_empty(), self.unknown.is_empty()) {
            (false, _) => Tone::Bad,
            (true, false) => Tone::Unclear,
            (true, true) => Tone::Good,
        };
        page.line(&page.paint(tone, &self.head()));
        self.changes(page);
        if !self.unknown.is_empty() {
            page.line("");
            page.line(&page.paint(Tone::Unclear, "not compared"));
            for unknown in &self.unknown {
                page.para("  ", &format!("{}: {}", unknown.what, unknown.gap));
            }
        }
        self.leftovers(page);
        for note in &self.notes {
            page.line("");
            page.para("note: ", note);
        }
    }

    fn exit(&self) -> u8 {
        match (self.changes.is_empty(), self.unknown.is_empty()) {
            (false, _) => FOUND,
            (true, false) => UNKNOWN,
            (true, true) => CLEAN,
        }
    }
}
