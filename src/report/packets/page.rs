//! The result of `kpx diff --packets` as a page.

use super::super::{CLEAN, FAILED, FOUND, UNKNOWN};
use super::{FateRow, PacketsReport, Row, WayRow};
use crate::render::{Page, Report, Tone};
use kpx_judge::proof::difference::Harm;
use kpx_judge::trace::Verdict;
use kpx_node::words::{listed, number_of};

/// The number of differences shown without `-v`.
const SHOWN: usize = 20;

const fn word(harm: Harm) -> &'static str {
    match harm {
        Harm::Lost => "lost",
        Harm::Misled => "misled",
        Harm::Open => "open",
        Harm::Rerouted => "rerouted",
        Harm::Source => "source",
        Harm::Affinity => "affinity",
        Harm::Uneven => "uneven",
        Harm::Ends => "ends",
        Harm::Unsure => "unsure",
    }
}

impl FateRow {
    /// Returns the most telling text: if every packet is stopped, the reason.
    fn shown(&self) -> &str {
        match self.ways.as_slice() {
            [
                WayRow {
                    verdict: Verdict::Drop | Verdict::Reject,
                    when,
                    ..
                },
            ] if when.is_empty() => &self.reason,
            _ => &self.text,
        }
    }
}

impl Row {
    /// Returns which packets they are.
    fn what(&self) -> String {
        let from = self.from.iter().map(|from| match *from {
            "pod" => "pods",
            "host" => "the host",
            _ => "outside",
        });
        let from: Vec<_> = from.collect();
        let services = match self.services.as_slice() {
            [] => String::new(),
            [one] => format!(" ({one})"),
            [first, rest @ ..] => format!(" ({first} and {} more)", rest.len()),
        };
        format!("{}{services}: from {}", self.target, listed(&from))
    }

    /// Adds rows; `labels` are for the two fates.
    fn page(page: &mut Page, rows: &[Self], labels: [&str; 2]) {
        let all = page.style().verbose > 0 || page.style().wide;
        let shown = if all { rows.len() } else { SHOWN };
        for row in rows.iter().take(shown) {
            page.line("");
            let lead = format!("{:<8} ", word(row.harm));
            page.hang(&lead, "         ", &row.what());
            for (label, fate) in labels.iter().zip([&row.is, &row.should]) {
                page.hang(&format!("  {label:<6} "), "         ", fate.shown());
            }
            if row.harm == Harm::Unsure {
                let conditions = row.conditions.join("; ");
                page.hang("  if     ", "         ", &conditions);
            }
            if let Some(uses) = row.uses {
                let uses = number_of(uses, "connection");
                page.hang("  in use ", "         ", &format!("{uses} now"));
            }
            if let Some(meaning) = row.meaning {
                page.hang("  means  ", "         ", meaning);
            }
            if let Some(rule) = &row.rule {
                let label = if rule.is_live { "rule" } else { "misses" };
                let place = match rule.chain.as_str() {
                    "" => rule.rule.clone(),
                    chain => format!("{} {chain}: {}", rule.table, rule.rule),
                };
                page.hang(&format!("  {label:<6} "), "         ", &place);
            }
            for command in &row.shown_by {
                page.hang("  try    ", "         ", command);
            }
            if !row.confirmed {
                page.hang(
                    "  ERROR  ",
                    "         ",
                    "internal error: a trace does not confirm this",
                );
            }
        }
        let rest = rows.len().saturating_sub(shown);
        if rest > 0 {
            page.line("");
            page.line(&format!("and {rest} more; -v shows all"));
        }
    }
}

impl PacketsReport {
    /// Adds what could not be compared.
    fn unknown(&self, page: &mut Page) {
        for unknown in &self.unknown {
            page.para("  ", &format!("{}: {}", unknown.what, unknown.gap));
        }
    }

    fn head(&self) -> String {
        let (Some(mode), Some(classes)) = (self.mode, self.classes) else {
            return "inconclusive: no packets were compared".to_owned();
        };
        let classes = number_of(classes, "class");
        let sides = if self.is_other_mode {
            format!("mode {mode} would treat")
        } else {
            "the live rules treat".to_owned()
        };
        match (self.differences.len(), self.foreign.len()) {
            (0, 0) if self.is_other_mode => {
                format!("no difference: mode {mode} would treat every packet as now ({classes})")
            }
            (0, 0) => {
                format!("no difference: every packet is treated as mode {mode} expects ({classes})")
            }
            (0, _) => format!(
                "every packet is treated as mode {mode} expects ({classes}), but rules of other software stop, redirect or \
                 change packets of Services, or may do so"
            ),
            (count, _) => format!(
                "{}: {sides} some packets differently ({classes})",
                number_of(count, "difference")
            ),
        }
    }

    /// Adds a paragraph for each difference, without packets and rules.
    pub(crate) fn summary(&self, page: &mut Page) {
        page.para("packets: ", &self.head());
        for row in &self.differences {
            let uses = row.uses.map_or(String::new(), |uses| {
                format!("; {} now", number_of(uses, "connection"))
            });
            let meaning = row
                .meaning
                .map_or(String::new(), |text| format!(": {text}"));
            let lead = format!("  {:<8} ", word(row.harm));
            page.para(&lead, &format!("{}{uses}{meaning}", row.what()));
        }
        self.unknown(page);
        if let (Some(mode), false) = (self.mode, self.differences.is_empty()) {
            let text =
                format!("`kpx diff --packets --mode {mode}` shows a packet and the rule for each");
            page.para("  ", &text);
        }
    }
}

impl Report for PacketsReport {
    const KIND: &'static str = "PacketsReport";

    fn page(&self, page: &mut Page) {
        let tone = match self.exit() {
            CLEAN => Tone::Good,
            UNKNOWN => Tone::Unclear,
            _ => Tone::Bad,
        };
        page.line(&page.paint(tone, &self.head()));
        let labels = if self.is_other_mode {
            ["then", "now"]
        } else {
            ["is", "should"]
        };
        Row::page(page, &self.differences, labels);
        if !self.foreign.is_empty() {
            page.line("");
            let title = "rules of other software that stop, redirect or change packets of Services";
            page.line(&page.paint(Tone::Strong, title));
            Row::page(page, &self.foreign, ["with", "else"]);
        }
        if !self.unknown.is_empty() {
            page.line("");
            self.unknown(page);
        }
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
        let mut all = self.differences.iter().chain(&self.foreign);
        if all.any(|row| !row.confirmed) {
            return FAILED;
        }
        match (
            self.differences.is_empty() && self.foreign.is_empty(),
            self.unknown.is_empty(),
        ) {
            (false, _) => FOUND,
            (true, false) => UNKNOWN,
            (true, true) => CLEAN,
        }
    }
}
