//! A trace as a picture, for Mermaid and for Graphviz.

use std::fmt::Write as _;
use std::net::SocketAddr;

use super::human::all;
use super::steps::{Step, branch, effect, ending, place, share, steps};
use super::{SourceTrace, TraceReport};
use crate::render::Style;

/// A node of the picture.
struct Node {
    text: String,
    /// Whether a path begins or ends here.
    end: bool,
}

/// A picture: nodes, and edges from one to a later one with a word at each.
#[derive(Default)]
struct Graph {
    nodes: Vec<Node>,
    edges: Vec<(usize, usize, String)>,
}

impl Graph {
    fn of(report: &TraceReport, style: Style) -> Self {
        let mut graph = Self::default();
        for trace in all(report) {
            graph.trace(trace, &trace.from, style);
        }
        graph
    }

    fn node(&mut self, text: String, end: bool) -> usize {
        self.nodes.push(Node { text, end });
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
            self.join(&mut at, node);
        }
    }

    /// Adds the outcomes after the branch `from`; returns those whose packets continue.
    fn endings(&mut self, trace: &SourceTrace, from: usize) -> Vec<(usize, String)> {
        let mut on = Vec::new();
        for outcome in &trace.outcomes {
            let mut text = ending(outcome, trace);
            for when in &outcome.when {
                text.push_str("\nif ");
                text.push_str(when);
            }
            let node = self.node(text, true);
            self.edges.push((from, node, share(outcome)));
            if outcome.backend.is_some() {
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
