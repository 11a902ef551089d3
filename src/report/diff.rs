//! What `kpx diff` found.

use serde::Serialize;

use super::{CLEAN, FOUND, UNKNOWN};
use crate::backend::Mode;
use crate::diff::{Action, Change, Diff};
use crate::evidence::Gap;
use crate::node::mode::{Kind, Leftover};
use crate::render::{Page, Report};

/// The outcome of `kpx diff`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiffReport {
    /// The mode compared with.
    pub mode: Mode,
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
            mode,
            summary: Summary {
                missing: diff.count(Action::Missing),
                extra: diff.count(Action::Extra),
                differs: diff.count(Action::Differs),
            },
            unknown: unknown.collect(),
            leftovers: diff.leftovers,
            notes: diff.notes,
            changes: diff.changes,
        }
    }

    fn head(&self) -> String {
        let Summary {
            missing,
            extra,
            differs,
        } = self.summary;
        let mode = self.mode;
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

impl DiffReport {
    fn leftovers(&self, page: &mut Page) {
        let mut of = None;
        for left in &self.leftovers {
            if of != Some(left.mode) {
                of = Some(left.mode);
                page.line("");
                let mode = left.mode;
                let text =
                    format!("left behind by mode {mode} (`kpx cleanup --mode {mode}` removes it)");
                wrapped(page, 0, 2, &text);
            }
            let what = match left.kind {
                Kind::Chains => "chains",
                Kind::Sets => "sets",
                Kind::VirtualServers => "virtual servers",
                Kind::Addresses => "addresses of kube-ipvs0",
                Kind::Link => "link",
                Kind::Table => "table",
            };
            let family = left.family.map(|f| format!("{f} ")).unwrap_or_default();
            let count = left.names.len();
            let inside = match (left.kind, left.rules) {
                (_, 0) => String::new(),
                (Kind::Sets, members) => format!(" with {members} members"),
                (_, rules) => format!(" with {rules} rules"),
            };
            let line = if count == 1 {
                format!("{family}{what} {}{inside}", left.names[0])
            } else {
                format!("{family}{count} {what}{inside}")
            };
            wrapped(page, 2, 4, &line);
        }
    }
}

impl Report for DiffReport {
    const KIND: &'static str = "DiffReport";

    fn page(&self, page: &mut Page) {
        page.line(&self.head());
        let mut group = None;
        for change in &self.changes {
            if group != Some(&change.service) {
                group = Some(&change.service);
                page.line("");
                page.line(
                    change
                        .service
                        .as_deref()
                        .unwrap_or("no Service in particular"),
                );
            }
            let verb = match change.action {
                Action::Missing => "is missing",
                Action::Extra => "should not be there",
                Action::Differs => "differs",
            };
            let family = change.family.map(|f| format!("{f} ")).unwrap_or_default();
            wrapped(page, 2, 4, &format!("{family}{} {verb}", change.object));
            for (label, text) in [("have", &change.have), ("want", &change.want)] {
                for (number, line) in text.iter().flat_map(|text| text.lines().enumerate()) {
                    let label = if number == 0 { label } else { "    " };
                    wrapped(page, 4, 9, &format!("{label} {line}"));
                }
            }
        }
        if !self.unknown.is_empty() {
            page.line("");
            page.line("not compared");
            for unknown in &self.unknown {
                wrapped(page, 2, 4, &format!("{}: {}", unknown.what, unknown.gap));
            }
        }
        self.leftovers(page);
        for note in &self.notes {
            page.line("");
            wrapped(page, 0, 2, &format!("note: {note}"));
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

/// Adds `text` at column `first`, and what does not fit on lines of their own at column `rest`.
fn wrapped(page: &mut Page, first: usize, rest: usize, text: &str) {
    let style = page.style();
    let width = if style.wide {
        usize::MAX
    } else {
        usize::from(style.width)
    };
    let mut line = " ".repeat(first);
    let mut bare = true;
    for word in text.split(' ') {
        let more = word.chars().count() + usize::from(!bare);
        if !bare && line.chars().count() + more > width {
            page.line(line.trim_end());
            line = " ".repeat(rest);
            bare = true;
        }
        if !bare {
            line.push(' ');
        }
        line.push_str(word);
        bare = false;
    }
    page.line(line.trim_end());
}
