//! The path of a packet over several nodes.

use std::net::SocketAddr;

use super::steps::{Step, effect, ending, place, steps};
use super::{HopRow, OnwardRow, OutcomeRow, SourceTrace};
use crate::render::Page;
use kpx_judge::trace::Verdict;
use kpx_judge::verdict::Fate;

/// One path over several nodes, until it is known which node it begins at.
#[derive(Debug)]
pub(crate) struct Over {
    /// The client.
    from: String,
    /// The steps, each with its node; `None` for the first one.
    steps: Vec<(Option<String>, String)>,
}

impl Over {
    /// Returns the first way of `trace` that leads to another node, a failing one first.
    pub(super) fn of(trace: &SourceTrace) -> Option<Self> {
        let (at, way) = ways(trace)
            .into_iter()
            .find(|(_, way)| way.onward.is_some())?;
        let mut over = Self {
            from: trace.from.clone(),
            steps: Vec::new(),
        };
        over.walk(None, trace, at, way);
        Some(over)
    }

    fn walk(&mut self, node: Option<&str>, trace: &SourceTrace, at: usize, way: &OutcomeRow) {
        let node = node.map(str::to_owned);
        for step in steps(trace, true) {
            let (Step::Hop(hop) | Step::Branch(hop)) = step;
            let is_passed = hop
                .outcomes
                .as_ref()
                .is_none_or(|outcome| outcome.contains(&at));
            if is_passed && !is_jump(hop) {
                self.steps.push((node.clone(), line(hop)));
            }
        }
        let Some(onward) = &way.onward else {
            self.steps.push((node, format!("end: {}", end(way, trace))));
            return;
        };
        let there = onward.node.as_str();
        let Some(path) = &onward.path else {
            let reason = onward.unread.as_deref().unwrap_or("nothing is known of it");
            let text = format!("not followed: {reason}");
            self.steps.push((Some(there.to_owned()), text));
            return;
        };
        if let Some((at, way)) = ways(path).first() {
            self.walk(Some(there), path, *at, way);
        }
        self.reply(onward);
        if node.is_none() {
            let text = match &way.fault {
                Some(fault) => format!("{}: {fault}", way.fate),
                None if way.fate == Fate::Works => "the reply returns".to_owned(),
                None => way.fate.to_string(),
            };
            self.steps.push((None, text));
        }
    }

    fn reply(&mut self, onward: &OnwardRow) {
        for hop in onward.reply.iter().filter(|hop| !is_jump(hop)) {
            let text = format!("reply, {}", line(hop));
            self.steps.push((Some(onward.node.clone()), text));
        }
    }

    /// Returns the steps as lines, for a path that begins at node `first`.
    pub(super) fn lines(&self, first: &str) -> Vec<String> {
        let mut lines = vec![format!("path from {} of node {first}:", self.from)];
        let steps = self.steps.iter().map(|(node, text)| {
            let node = node.as_deref().unwrap_or(first);
            format!("node {node}: {text}")
        });
        lines.extend(steps);
        lines
    }
}

/// Returns the ways of `trace` with their positions, the worst first.
fn ways(trace: &SourceTrace) -> Vec<(usize, &OutcomeRow)> {
    let mut ways: Vec<_> = trace.outcomes.iter().enumerate().collect();
    ways.sort_by_key(|(_, way)| std::cmp::Reverse(way.fate));
    ways
}

fn is_jump(hop: &HopRow) -> bool {
    use kpx_judge::trace::Effect::{Goto, Jump, Return};
    matches!(hop.effect, Jump { .. } | Goto { .. } | Return)
}

fn line(hop: &HopRow) -> String {
    format!("{}: {} {}", hop.hook.name(), place(hop), effect(hop, "to"))
}

/// Returns where a way ends.
fn end(way: &OutcomeRow, trace: &SourceTrace) -> String {
    match way.verdict {
        Verdict::Unmatched | Verdict::Local if way.fate == Fate::Works => {
            let packet = &trace.packet;
            SocketAddr::new(packet.destination, packet.port).to_string()
        }
        _ => ending(way, trace),
    }
}

/// Adds a section for each other node to which packets of `trace` go.
pub(super) fn page(page: &mut Page, trace: &SourceTrace) {
    let mut told: Vec<&OnwardRow> = Vec::new();
    for (at, way) in trace.outcomes.iter().enumerate() {
        let Some(onward) = way.onward.as_ref().filter(|onward| !told.contains(onward)) else {
            continue;
        };
        told.push(onward);
        let mut over = Over {
            from: trace.from.clone(),
            steps: Vec::new(),
        };
        over.walk(None, trace, at, way);
        page.line("");
        for (node, text) in &over.steps {
            if let Some(node) = node {
                page.para("", &format!("node {node}: {text}"));
            }
        }
    }
}
