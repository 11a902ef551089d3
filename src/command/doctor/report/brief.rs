//! The doctor's report on one screen: the verdict, each cause with its fix, what passed, what is unknown, and the next command.

use super::human::{checked, later, next, notes, unknown, unseen, verdict, worse};
use super::{Block, DoctorReport, Status};
use crate::render::{Page, Style, Tone};
use kpx_judge::check::{GROUPS, Severity};
use kpx_node::words::number_of;

/// The rows of a terminal of the usual size, minus the prompt below the page and the line above it that names the node.
const ROWS: usize = 22;

/// Connections that are worse in the planned mode and listed before the rest is counted.
const MOST_WORSE: usize = 3;

/// Reasons of unknown checks that are listed before the rest is counted.
const REASONS: usize = 1;

/// Lines for a cause, and lines for its fix.
type Lines = (usize, usize);

/// The lines for causes of failing or unknown Services, and for other findings; from the most to the least detail.
const DETAILS: [(Lines, Lines); 8] = [
    ((8, 8), (8, 8)),
    ((5, 5), (4, 4)),
    ((3, 3), (3, 3)),
    ((2, 2), (2, 2)),
    ((2, 1), (2, 1)),
    ((2, 1), (1, 1)),
    ((1, 1), (1, 1)),
    ((1, 1), (1, 0)),
];

pub(super) fn page(report: &DoctorReport, page: &mut Page) {
    verdict(report, page);
    worse(report, MOST_WORSE, page);
    let mut end = Page::new(page.style());
    if !report.blocks.is_empty() {
        end.line("");
    }
    end.hang("", "  ", &checked(report, ""));
    passed(report, &mut end);
    unknown(report, REASONS, &mut end);
    if let Some(later) = later(&report.head.added) {
        end.para("  added    ", &later);
    }
    notes(report, &mut end);
    unseen(report, &mut end);
    next(report, &mut end);
    page.line("");
    let room = ROWS.saturating_sub(page.rows() + end.rows());
    page.append(&causes(report, room, page.style()));
    page.append(&end);
}

/// Writes the page of a machine that is no node.
pub(super) fn no_node(report: &DoctorReport, page: &mut Page) {
    let answer = "inconclusive: no kube-proxy, no kubelet and no kubeconfig on this machine";
    page.line(&page.paint(Tone::Unclear, answer));
    page.hang(
        "",
        "  ",
        "read a node with `kpx doctor NODE --kubeconfig FILE`, a recording with `kpx --from FILE doctor`; \
         snapshot.sh makes one on a node without kpx",
    );
    next(report, page);
}

/// Returns the errors, the causes of unknown Services, and the other findings that fit into `room` rows, as many as possible with
/// their fix.
fn causes(report: &DoctorReport, room: usize, style: Style) -> Page {
    let blocks: Vec<_> = report.in_blocks().collect();
    let of_level = |block: &Block<'_>, (vital, others): (Lines, Lines)| {
        if block.is_vital() { vital } else { others }
    };
    let written = |blocks: &[Block<'_>], lines: &[Lines]| {
        let mut page = Page::new(style);
        for (block, (cause, fix)) in blocks.iter().zip(lines) {
            block.cause("", *cause, &mut page);
            if *fix > 0 {
                block.remedy(*fix, |id| report.details_of(id), &mut page);
            }
        }
        page
    };
    let all_of = |level| {
        let lines = blocks.iter().map(|block| of_level(block, level));
        lines.collect::<Vec<Lines>>()
    };
    let fits = |page: &Page| page.rows() <= room;
    let mut levels = DETAILS.into_iter().map(all_of);
    if let Some(mut lines) = levels.find(|lines| fits(&written(&blocks, lines))) {
        // The first causes take the room that is left.
        for (at, block) in blocks.iter().enumerate() {
            for level in DETAILS {
                let before = std::mem::replace(&mut lines[at], of_level(block, level));
                if fits(&written(&blocks, &lines)) {
                    break;
                }
                lines[at] = before;
            }
        }
        return written(&blocks, &lines);
    }
    let vital = blocks.iter().take_while(|block| block.is_vital()).count();
    // One row counts the rest.
    let page = |count: usize, fixes: usize| {
        let (shown, left) = blocks.split_at(count);
        let lines = shown.iter().enumerate().map(|(at, block)| {
            let has_fix = block.is_vital() && at < fixes;
            (1, usize::from(has_fix))
        });
        let mut page = written(shown, &lines.collect::<Vec<Lines>>());
        rest(report, left, shown.is_empty(), &mut page);
        page
    };
    let counted = (vital..blocks.len()).rev().map(|count| page(count, count));
    let without_fixes = (1..vital).rev().map(|fixes| page(vital, fixes));
    let fewer = (1..vital).rev().map(|count| page(count, 1));
    let mut all = counted.chain(without_fixes).chain(fewer);
    all.find(fits).unwrap_or_else(|| page(vital.min(1), 1))
}

/// Adds the number of the findings in `blocks`, which do not fit; `is_first` if no finding is
/// shown.
fn rest(report: &DoctorReport, blocks: &[Block<'_>], is_first: bool, page: &mut Page) {
    let of = |severity| {
        let blocks = blocks
            .iter()
            .filter(move |block| block.severity() == severity);
        blocks.map(Block::count).sum()
    };
    // Nothing is more where nothing is shown.
    let more = if is_first { "" } else { "more " };
    let (error, warning) = match report.planned() {
        Some(_) => ("blocker", "risk"),
        None => ("error", "warning"),
    };
    let counted: [(usize, _); 3] = [
        (of(Severity::Error), error),
        (of(Severity::Warning), warning),
        (of(Severity::Info), "note"),
    ];
    let parts: Vec<_> = counted
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| number_of(count, &format!("{more}{what}")))
        .collect();
    if !parts.is_empty() {
        page.line(&format!("{} (-v lists them)", parts.join(", ")));
    }
}

/// Adds a tick for each group whose checks passed; for the Services, if they are known to work.
fn passed(report: &DoctorReport, page: &mut Page) {
    let has = |group: &str, status| report.with(status).any(|check| check.group == group);
    let tally = report.head.services.as_ref();
    let is_open = tally.is_some_and(|tally| !tally.failing.is_empty() || !tally.unknown.is_empty());
    let is_clean = |group: &str| {
        let is_open = is_open && group == "services";
        !has(group, Status::Fail) && !has(group, Status::Unknown) && !is_open
    };
    let names = GROUPS.iter().map(|group| group.name);
    let passed = names.filter(|name| has(name, Status::Pass) && is_clean(name));
    let tick = page.paint(Tone::Good, "✓");
    let ticks: Vec<_> = passed.map(|name| format!("{tick} {name}")).collect();
    if !ticks.is_empty() {
        page.items("  passed   ", &ticks);
    }
}
