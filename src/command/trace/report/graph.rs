//! A trace as a picture, for Mermaid and for Graphviz.

use std::fmt::Write as _;
use std::net::SocketAddr;

use super::human::{MOST_SHOWN, all, tone};
use super::steps::{Step, branch, effect, ending, percent, place, steps};
use super::{HopRow, OutcomeRow, SourceTrace, TraceReport};
use crate::render::{Style, Tone};
use kpx_judge::trace::Effect;
use kpx_judge::verdict::Fate;

/// Backends that a picture has a node for each; more share a node where that is asked for.
const MOST_APART: usize = 3;

/// A node of the picture.
#[derive(PartialEq)]
pub(super) struct Node {
    pub(super) text: String,
    /// Whether a path begins or ends here.
    pub(super) end: bool,
    /// What the node means for the packet, if a path ends here.
    pub(super) tone: Option<Tone>,
    /// The rule that drops or rejects the packet, if one does so here.
    pub(super) rule: Option<String>,
}

/// A picture: nodes, and edges from one to a later one with a word at each.
#[derive(Default)]
pub(super) struct Graph {
    pub(super) nodes: Vec<Node>,
    pub(super) edges: Vec<(usize, usize, String)>,
    /// Whether many backends share a node, and equal ends do.
    folds: bool,
}

impl Graph {
    fn of(report: &TraceReport, style: Style) -> Self {
        let mut graph = Self::default();
        for trace in all(report) {
            graph.trace(trace, &trace.from, style);
        }
        graph
    }

    /// Returns the picture of one path, on which many backends share a node; `from` names the sources that have it.
    pub(super) fn folded(trace: &SourceTrace, from: &str, style: Style) -> Self {
        let mut graph = Self {
            folds: true,
            ..Self::default()
        };
        graph.trace(trace, from, style);
        graph
    }

    fn node(&mut self, text: String, end: bool) -> usize {
        self.nodes.push(Node {
            text,
            end,
            tone: None,
            rule: None,
        });
        self.nodes.len() - 1
    }

    /// Adds one path: the common start, each branch, and the common end.
    fn trace(&mut self, trace: &SourceTrace, from: &str, style: Style) {
        let packet = &trace.packet;
        let target = SocketAddr::new(packet.destination, packet.port);
        let start = format!("from {from}\nto {target}/{}", packet.protocol);
        let mut at = vec![(self.node(start, true), String::new())];
        let mut ended = false;
        for step in steps(trace, false) {
            match step {
                // No packet goes on: the ends name the hop.
                Step::Hop(_) if at.is_empty() => {}
                Step::Hop(hop) if hop.outcomes.is_none() || trace.outcomes.len() == 1 => {
                    let arrow = if style.ascii { "->" } else { "→" };
                    let text = format!(
                        "{}: {}\n{}",
                        hop.hook.name(),
                        place(hop),
                        effect(hop, arrow)
                    );
                    let node = self.node(text, false);
                    if stops(hop) {
                        self.nodes[node].tone = Some(Tone::Bad);
                        self.nodes[node].rule = Some(hop.rule.clone());
                    }
                    self.join(&mut at, node);
                }
                // Hops of single paths are not drawn: the endings name them.
                Step::Hop(_) => {}
                Step::Branch(hop) => {
                    let (place, text) = branch(hop, trace);
                    let node = self.node(format!("{place}\n{text}"), false);
                    self.join(&mut at, node);
                    at = self.endings(trace, node);
                    ended = true;
                }
            }
        }
        let text = match trace.outcomes.as_slice() {
            [one] => ending(one, trace),
            _ => trace.fate.name().to_owned(),
        };
        if !ended || trace.outcomes.iter().all(|o| o.backend.is_some()) {
            let node = self.node(text, true);
            self.nodes[node].tone = Some(tone(trace.fate));
            self.join(&mut at, node);
        }
    }

    /// Adds the outcomes behind the branch `from`; returns those whose packets go on.
    fn endings(&mut self, trace: &SourceTrace, from: usize) -> Vec<(usize, String)> {
        let mut on = Vec::new();
        let works = trace.outcomes.iter().any(|of| of.fate == Fate::Works);
        let fate = if works { Fate::Works } else { Fate::Unknown };
        let is_plain = |outcome: &OutcomeRow| {
            outcome.backend.is_some() && outcome.when.is_empty() && outcome.fate == fate
        };
        let plain: Vec<_> = trace.outcomes.iter().filter(|o| is_plain(o)).collect();
        let folds = self.folds && plain.len() > MOST_APART;
        if folds {
            let share: f64 = plain.iter().map(|outcome| outcome.probability).sum();
            let node = self.node(together(&plain, trace), true);
            self.nodes[node].tone = Some(tone(fate));
            self.edges.push((from, node, percent(share)));
            on.push((node, String::new()));
        }
        // The other ends, each with its share of the packets.
        let mut ends: Vec<(Node, f64, bool)> = Vec::new();
        for (at, outcome) in trace.outcomes.iter().enumerate() {
            if folds && is_plain(outcome) {
                continue;
            }
            let mut text = ending(outcome, trace);
            for when in &outcome.when {
                text.push_str("\nif ");
                text.push_str(when);
            }
            let goes_on = outcome.backend.is_some();
            let end = Node {
                text,
                end: true,
                tone: Some(tone(outcome.fate)),
                rule: stop(trace, at),
            };
            let is_same = |(other, _, _): &&mut (Node, f64, bool)| *other == end;
            match ends.iter_mut().find(is_same) {
                Some((_, share, _)) if self.folds && !goes_on => *share += outcome.probability,
                _ => ends.push((end, outcome.probability, goes_on)),
            }
        }
        for (end, share, goes_on) in ends {
            self.nodes.push(end);
            let node = self.nodes.len() - 1;
            self.edges.push((from, node, percent(share)));
            if goes_on {
                on.push((node, String::new()));
            }
        }
        on
    }

    fn join(&mut self, at: &mut Vec<(usize, String)>, node: usize) {
        for (from, label) in at.drain(..) {
            self.edges.push((from, node, label));
        }
        at.push((node, String::new()));
    }
}

/// Returns the text of a node that `outcomes` share: a line for each of the first ones, with its share of the packets.
fn together(outcomes: &[&OutcomeRow], trace: &SourceTrace) -> String {
    let mut text = format!("{} backends", outcomes.len());
    for outcome in outcomes.iter().take(MOST_SHOWN) {
        let share = percent(outcome.probability);
        // Writing to a string cannot fail.
        write!(text, "\n{share}  {}", ending(outcome, trace)).ok();
    }
    if let more @ 1.. = outcomes.len().saturating_sub(MOST_SHOWN) {
        write!(text, "\nand {more} more").ok();
    }
    text
}

/// Returns whether the packet ends at `hop`: a rule drops or rejects it.
const fn stops(hop: &HopRow) -> bool {
    matches!(
        hop.effect,
        Effect::Drop | Effect::Reject { .. } | Effect::NoServer { .. }
    )
}

/// Returns the place and the rule that ends the outcome at position `at`, if one does.
fn stop(trace: &SourceTrace, at: usize) -> Option<String> {
    let passes = |hop: &&HopRow| hop.outcomes.as_ref().is_none_or(|of| of.contains(&at));
    let hop = trace
        .hops
        .iter()
        .rev()
        .filter(passes)
        .find(|hop| stops(hop))?;
    Some(format!("{} {}", place(hop), hop.rule).trim_end().to_owned())
}

/// Returns the picture as Mermaid's flowchart.
pub(crate) fn mermaid(report: &TraceReport, style: Style) -> String {
    let graph = Graph::of(report, style);
    let quoted = |text: &str| {
        let text = text.replace('#', "#35;").replace('"', "#quot;");
        let text = text.replace('<', "#lt;").replace('>', "#gt;");
        format!("\"{}\"", text.replace('\n', "<br>"))
    };
    let mut text = "flowchart TD\n".to_owned();
    for (at, node) in graph.nodes.iter().enumerate() {
        let (open, close) = if node.end { ("([", "])") } else { ("[", "]") };
        // Writing to a string cannot fail.
        writeln!(text, "  n{at}{open}{}{close}", quoted(&node.text)).ok();
    }
    for (from, to, label) in &graph.edges {
        if label.is_empty() {
            writeln!(text, "  n{from} --> n{to}").ok();
        } else {
            writeln!(text, "  n{from} -->|{}| n{to}", quoted(label)).ok();
        }
    }
    text
}

/// Returns the picture in Graphviz's language.
pub(crate) fn dot(report: &TraceReport, style: Style) -> String {
    let graph = Graph::of(report, style);
    let quoted = |text: &str| {
        let text = text.replace('\\', "\\\\").replace('"', "\\\"");
        format!("\"{}\"", text.replace('\n', "\\n"))
    };
    let mut text = "digraph trace {\n  node [shape=box];\n".to_owned();
    for (at, node) in graph.nodes.iter().enumerate() {
        let shape = if node.end { ", style=rounded" } else { "" };
        writeln!(text, "  n{at} [label={}{shape}];", quoted(&node.text)).ok();
    }
    for (from, to, label) in &graph.edges {
        if label.is_empty() {
            writeln!(text, "  n{from} -> n{to};").ok();
        } else {
            writeln!(text, "  n{from} -> n{to} [label={}];", quoted(label)).ok();
        }
    }
    text.push_str("}\n");
    text
}
