//! The result of `kpx diff`.

pub(crate) mod nodes;

use serde::Serialize;

use crate::render::{Page, Report, Tone};
use crate::report::{CLEAN, FOUND, UNKNOWN};
use crate::view::{Kind, Leftover};
use kpx_judge::diff::{ChangeKind, Diff, Layer, Row, Unknown};
use kpx_node::backend::Mode;
use kpx_node::evidence::Gap;
use kpx_node::words::number_of;

/// The outcome of `kpx diff`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct DiffReport {
    /// The mode compared with, if known.
    pub mode: Option<Mode>,
    /// The differences, by Service.
    pub changes: Vec<Row>,
    /// The number of each kind.
    pub summary: Summary,
    /// Leftovers of other modes: no difference, but unused.
    pub leftovers: Vec<Leftover>,
    /// Parts that could not be compared.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<Unknown>,
    /// Limits of the comparison, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The command that repairs the differences, or reads what could not be compared.
    #[serde(skip)]
    pub next: Option<String>,
    #[serde(skip)]
    compared: bool,
}

/// The number of differences.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Summary {
    /// Desired, but not live.
    pub missing: usize,
    /// Live, but not desired.
    pub extra: usize,
    /// Live, but not as desired.
    pub differs: usize,
}

impl DiffReport {
    /// Reports `diff`.
    pub(crate) fn new(mode: Mode, diff: Diff) -> Self {
        Self {
            mode: Some(mode),
            summary: Summary {
                missing: diff.count(ChangeKind::Missing),
                extra: diff.count(ChangeKind::Extra),
                differs: diff.count(ChangeKind::Differs),
            },
            unknown: diff.unknown,
            leftovers: diff.leftovers,
            notes: diff.notes,
            changes: diff.changes.iter().map(Row::new).collect(),
            next: None,
            compared: true,
        }
    }

    /// Reports that the desired state is unknown, and why; `hint` is the advice.
    pub(crate) fn nothing(mode: Option<Mode>, gap: Gap, hint: &str) -> Self {
        let what = match mode {
            Some(mode) => format!("the desired state of mode {mode}"),
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
            unknown: vec![Unknown {
                what,
                layers: &Layer::ALL,
                gap,
            }],
            notes: vec![hint.to_owned()],
            next: None,
            compared: false,
        }
    }

    /// Returns the number of differences in a sentence.
    pub(crate) fn head(&self) -> String {
        let Some(mode) = self.mode.filter(|_| self.compared) else {
            return "inconclusive: nothing was compared".to_owned();
        };
        let Summary {
            missing,
            extra,
            differs,
        } = self.summary;
        match self.changes.len() {
            0 if self.unknown.is_empty() => {
                format!("no difference: the node matches the desired state of mode {mode}")
            }
            0 => format!("no difference from mode {mode} in the parts that could be compared"),
            count => {
                let parts = [
                    (missing, "missing"),
                    (extra, "extra"),
                    (differs, "different"),
                ];
                let parts = parts.iter().filter(|(count, _)| *count > 0);
                let parts: Vec<_> = parts.map(|(n, what)| format!("{n} {what}")).collect();
                format!(
                    "{} from mode {mode}: {}",
                    number_of(count, "difference"),
                    parts.join(", ")
                )
            }
        }
    }
}

/// The number of differences shown without `-v`.
const SHOWN: usize = 60;
/// The number of lines shown of one object, such as the rules of a missing chain.
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
                let title = change.service.as_deref().unwrap_or("no specific Service");
                page.line(&page.paint(Tone::Strong, title));
            }
            object(page, change);
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
                "and {rest} more, of {}; -v shows all",
                number_of(services.len(), "service port")
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
                let title = format!("leftovers of mode {mode}");
                let title = page.paint(Tone::Strong, &title);
                page.line(&title);
            }
            page.para("  ", &leftover(left));
        }
    }
}

/// Returns a leftover in words: the number of its objects, or their names.
pub(crate) fn leftover(left: &Leftover) -> String {
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
        (Kind::Sets, members) => format!(" with {}", number_of(members, "member")),
        (_, rules) => format!(" with {}", number_of(rules, "rule")),
    };
    match (left.kind, left.names.as_slice()) {
        (Kind::Link | Kind::Table, names) => format!("{what} {}{inside}", names.join(", ")),
        (_, names) => format!("{family}{} {what}{inside}", names.len()),
    }
}

/// Returns the kind of a difference as a word.
pub(crate) const fn verb(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Missing => "missing",
        ChangeKind::Extra => "extra",
        ChangeKind::Differs => "differs",
    }
}

/// Adds the kind of a difference, and the object's name.
pub(crate) fn object(page: &mut Page, change: &Row) {
    let verb = verb(change.action);
    let family = change.family.map(|f| format!("{f} ")).unwrap_or_default();
    page.para(
        &format!("  {verb:<8} "),
        &format!("{family}{}", change.object),
    );
}

/// Adds the live or desired object, a line each, after its label.
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
        if let Some(next) = &self.next {
            page.line("");
            page.next(next);
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
