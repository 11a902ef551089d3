//! What changed between two states of a node.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{CLEAN, FOUND, UNKNOWN};
use crate::evidence::{Gap, Time};
use crate::history::{Action, Change, Topic};
use crate::render::{Page, Report};
use crate::words::number_of;

/// What changed between two bundles, or a bundle and now.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct HistoryReport {
    /// The earlier state: a bundle.
    pub(crate) from: String,
    /// The later state: a bundle, or this node.
    pub(crate) to: String,
    pub(crate) changes: Vec<Change>,
    /// What is not compared, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) unknown: Vec<(Topic, Gap)>,
}

/// A change at a time.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct ChangeEvent<'c> {
    pub(crate) at: Time,
    #[serde(flatten)]
    pub(crate) change: &'c Change,
    /// How long it was so before, in seconds; `null` if it was so from the start.
    pub(crate) after_seconds: Option<u64>,
}

impl ChangeEvent<'_> {
    /// The `kind` in the JSON envelope.
    pub(crate) const KIND: &'static str = "ChangeEvent";

    /// Returns the event as one line.
    pub(crate) fn line(&self) -> String {
        let after = self
            .after_seconds
            .map(|seconds| format!(" (after {seconds} s)"));
        format!(
            "{} {}{}",
            self.at,
            line(self.change),
            after.unwrap_or_default()
        )
    }
}

/// Returns a change as one line.
fn line(change: &Change) -> String {
    let of = change.service.as_ref().map(|name| format!(" of {name}"));
    let head = format!(
        "{} {} {}{}",
        sign(change.action),
        change.topic,
        change.name,
        of.unwrap_or_default()
    );
    let (before, after) = (change.before.join(", "), change.after.join(", "));
    match (change.topic, change.action) {
        (Topic::Rules | Topic::Set, Action::Added) => {
            format!("{head}: {}", count(change.topic, change.after.len()))
        }
        (Topic::Rules | Topic::Set, Action::Removed) => {
            format!("{head}: {}", count(change.topic, change.before.len()))
        }
        (Topic::Rules | Topic::Set, Action::Changed)
            if change.before.is_empty() && change.after.is_empty() =>
        {
            format!("{head}: in another order")
        }
        (Topic::Rules | Topic::Set, Action::Changed) => {
            let (gone, new) = (change.before.len(), change.after.len());
            format!("{head}: {} gone, {new} new", count(change.topic, gone))
        }
        (_, Action::Added) => format!("{head}: {after}"),
        (_, Action::Removed) => format!("{head}: {before}"),
        (_, Action::Changed) => format!("{head}: {before} -> {after}"),
    }
}

fn count(topic: Topic, count: usize) -> String {
    number_of(
        count,
        if topic == Topic::Rules {
            "rule"
        } else {
            "member"
        },
    )
}

const fn sign(action: Action) -> char {
    match action {
        Action::Added => '+',
        Action::Removed => '-',
        Action::Changed => '~',
    }
}

impl Report for HistoryReport {
    const KIND: &'static str = "HistoryReport";

    fn page(&self, page: &mut Page) {
        page.line(&format!("from {} to {}", self.from, self.to));
        let unknown = self.unknown.iter();
        let unknown: Vec<_> = unknown
            .map(|(topic, gap)| format!("{topic}: {gap}"))
            .collect();
        if !unknown.is_empty() {
            page.para("unknown: ", &unknown.join("; "));
        }
        let verbose = page.style().verbose > 0;
        for change in &self.changes {
            page.hang("", "  ", &line(change));
            if verbose && matches!(change.topic, Topic::Rules | Topic::Set) {
                for value in &change.before {
                    page.hang("  - ", "    ", value);
                }
                for value in &change.after {
                    page.hang("  + ", "    ", value);
                }
            }
        }
        let mut counts: BTreeMap<Topic, usize> = BTreeMap::new();
        for change in &self.changes {
            *counts.entry(change.topic).or_default() += 1;
        }
        let parts: Vec<_> = counts
            .iter()
            .map(|(topic, count)| format!("{topic} {count}"))
            .collect();
        if parts.is_empty() {
            page.line("nothing changed");
        } else {
            page.para("changes: ", &parts.join(", "));
        }
        let details = self
            .changes
            .iter()
            .any(|of| matches!(of.topic, Topic::Rules | Topic::Set));
        if details && !verbose {
            page.line("-v lists the rules and members");
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
