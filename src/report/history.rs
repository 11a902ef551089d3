//! The changes between two states of a node.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{CLEAN, FOUND, UNKNOWN};
use crate::render::{Page, Report};
use kpx_judge::history::{Action, Change, Topic};
use kpx_node::evidence::{Gap, Time};
use kpx_node::words::number_of;

/// The changes between two bundles, or a bundle and now.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct HistoryReport {
    /// The earlier state: a bundle.
    pub(crate) from: String,
    /// The later state: a bundle, or this node.
    pub(crate) to: String,
    pub(crate) changes: Vec<Change>,
    /// The parts that are not compared, with the reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) unknown: Vec<(Topic, Gap)>,
}

/// A change at a time.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct ChangeEvent<'c> {
    pub(crate) at: Time,
    #[serde(flatten)]
    pub(crate) change: Cow<'c, Change>,
    /// How long the earlier state lasted, in seconds; `null` if it was there from the start.
    pub(crate) after_seconds: Option<u64>,
}

impl ChangeEvent<'_> {
    /// The `kind` in the JSON envelope.
    pub(crate) const KIND: &'static str = "ChangeEvent";

    /// Parses the lines that `kpx watch -o json` prints; fails with the number of the first invalid line.
    pub(crate) fn parse(text: &str) -> Result<Vec<ChangeEvent<'static>>, NotAnEvent> {
        let lines = text.lines().enumerate();
        let lines = lines.filter(|(_, line)| !line.trim().is_empty());
        let events = lines.map(|(at, line)| {
            let wrong = |why: String| NotAnEvent { line: at + 1, why };
            let head: Head = serde_json::from_str(line).map_err(|why| wrong(why.to_string()))?;
            if head.kind != Self::KIND {
                return Err(wrong(format!(
                    "its kind is {:?}, not {}",
                    head.kind,
                    Self::KIND
                )));
            }
            serde_json::from_str(line).map_err(|why| wrong(why.to_string()))
        });
        events.collect()
    }

    /// Returns what happened, as a word.
    pub(crate) fn verb(&self) -> &'static str {
        match self.change.action {
            Action::Added => "appeared",
            Action::Removed => "is gone",
            Action::Changed => "changed",
        }
    }

    /// Returns the object that changed, with its Service.
    pub(crate) fn subject(&self) -> String {
        subject(&self.change)
    }

    /// Returns the values before and after.
    pub(crate) fn details(&self) -> String {
        details(&self.change)
    }

    /// Returns the event as one line.
    pub(crate) fn line(&self) -> String {
        let after = self
            .after_seconds
            .map(|seconds| format!(" (after {seconds} s)"));
        format!(
            "{} {}{}",
            self.at,
            line(&self.change),
            after.unwrap_or_default()
        )
    }
}

/// The head of a line of JSON.
#[derive(Deserialize)]
struct Head {
    kind: String,
}

/// A line that is not an event of `kpx watch`.
#[derive(Debug, thiserror::Error)]
#[error("line {line} is not an event of `kpx watch -o json`: {why}")]
pub(crate) struct NotAnEvent {
    line: usize,
    why: String,
}

/// Returns a change as one line.
fn line(change: &Change) -> String {
    let sign = sign(change.action);
    format!("{sign} {}: {}", subject(change), details(change))
}

/// Returns the object that changed, with its Service.
fn subject(change: &Change) -> String {
    let of = change.service.as_ref().map(|name| format!(" of {name}"));
    let of = of.unwrap_or_default();
    format!("{} {}{of}", change.topic, change.name)
}

/// Returns the values before and after; of rules and members, their number.
fn details(change: &Change) -> String {
    let (before, after) = (change.before.join(", "), change.after.join(", "));
    match (change.topic, change.action) {
        (Topic::Rules | Topic::Set, Action::Added) => count(change.topic, change.after.len()),
        (Topic::Rules | Topic::Set, Action::Removed) => count(change.topic, change.before.len()),
        (Topic::Rules | Topic::Set, Action::Changed)
            if change.before.is_empty() && change.after.is_empty() =>
        {
            "in another order".to_owned()
        }
        (Topic::Rules | Topic::Set, Action::Changed) => {
            let (gone, new) = (change.before.len(), change.after.len());
            format!("{} gone, {new} new", count(change.topic, gone))
        }
        (_, Action::Added) => after,
        (_, Action::Removed) => before,
        (_, Action::Changed) => format!("{before} -> {after}"),
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
            .any(|change| matches!(change.topic, Topic::Rules | Topic::Set));
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
