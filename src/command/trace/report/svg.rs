//! A trace as a picture in SVG: boxes from top to bottom, and the possible ends side by side.

use std::sync::LazyLock;

use super::graph::{Graph, Node};
use super::human::{alike, all, names, sentence, simulated, tone};
use super::{SourceTrace, TraceReport};
use crate::render::markup::{Markup, visible};
use crate::render::{Style, Tone, palette, wrap};

/// The rules for a picture, with the variables of the palette.
pub(crate) const PICTURE: &str = "\
.way text{font:13px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre;fill:var(--ink)}\
.way .page{fill:var(--paper)}\
.way .step{fill:var(--box);stroke:var(--line)}\
.way .edge{fill:none;stroke:var(--line);stroke-width:1.5}\
.way .tip{fill:var(--line)}\
.way .word,.way .rule{fill:var(--dim)}\
.way .said{font-weight:bold}\
.way .bad .step{fill:var(--bad-box);stroke:var(--bad);stroke-width:2.5}.way .bad .said{fill:var(--bad)}\
.way .doubtful .step{fill:var(--doubtful-box);stroke:var(--doubtful)}.way .doubtful .said{fill:var(--doubtful)}\
.way .good .step{fill:var(--good-box);stroke:var(--good)}.way .good .said{fill:var(--good)}\
.way .unclear .step{fill:var(--unclear-box);stroke:var(--unclear)}.way .unclear .said{fill:var(--unclear)}";

static STYLE: LazyLock<String> = LazyLock::new(|| palette::themed(PICTURE));

// Lengths are in pixels.
/// The width of a character: that of the widest usual font at this size.
const CHAR: usize = 8;
const LINE: usize = 18;
const PAD: usize = 10;
const MARGIN: usize = 16;
/// The space between two boxes of a row, and the space with an arrow and a word between two rows.
const BESIDE: usize = 20;
const BELOW: usize = 38;
/// The place of arrows, from the left side of a box: the way is a straight line, also on a narrow screen.
const ANCHOR: usize = 30;
/// The space between two paths.
const APART: usize = 40;

/// Columns of a line of a caption, of a box that is alone in its row, and of a box beside others.
const CAPTION: usize = 42;
const ALONE: usize = 40;
const SHARED: usize = 30;

/// Returns the picture as a document.
pub(crate) fn svg(report: &TraceReport, style: Style) -> String {
    let mut markup = Markup::default();
    picture(&mut markup, report, style, Some(&STYLE));
    markup.fixed("\n");
    markup.into_text()
}

/// Adds the picture to `markup`, with the rules `sheet` if the document around it does not have [`PICTURE`].
pub(crate) fn picture(
    markup: &mut Markup,
    report: &TraceReport,
    style: Style,
    sheet: Option<&'static str>,
) {
    let groups = alike(all(report));
    let mut drawings: Vec<Drawing> = Vec::new();
    let mut height = MARGIN;
    for group in &groups {
        let drawing = Drawing::of(report, group, style, height);
        height = drawing.bottom + APART;
        drawings.push(drawing);
    }
    height = height + MARGIN - APART;
    let width = drawings.iter().map(|drawing| drawing.width).max();
    let width = width.unwrap_or_default() + 2 * MARGIN;
    let (w, h) = (width.to_string(), height.to_string());
    let attributes = [
        ("xmlns", "http://www.w3.org/2000/svg"),
        ("class", "way"),
        ("role", "img"),
        ("width", w.as_str()),
        ("height", h.as_str()),
        ("viewBox", &format!("0 0 {w} {h}")),
    ];
    markup.element("svg", &attributes, |markup| {
        markup.leaf("title", &[], &title(report));
        let said: Vec<_> = drawings
            .iter()
            .map(|drawing| drawing.said.as_str())
            .collect();
        markup.leaf("desc", &[], &said.join(" "));
        if let Some(sheet) = sheet {
            markup.element("style", &[], |markup| markup.fixed(sheet));
        }
        markup.empty("rect", &[("class", "page"), ("width", &w), ("height", &h)]);
        for drawing in &drawings {
            drawing.add(markup);
        }
    });
}

/// Returns the name of the picture.
fn title(report: &TraceReport) -> String {
    let packet = &report.first.packet;
    let target = std::net::SocketAddr::new(packet.destination, packet.port);
    let to = report.service.as_ref().map_or_else(String::new, |service| {
        format!("{}/{}, ", service.namespace, service.name)
    });
    format!("Path of a packet to {to}{target}/{}", packet.protocol)
}

/// A box at its place.
struct Placed {
    x: usize,
    y: usize,
    width: usize,
    height: usize,
    /// The lines of text, each with its class.
    lines: Vec<(&'static str, String)>,
    tone: Option<Tone>,
    round: bool,
}

/// The picture of one path, below a caption.
struct Drawing {
    caption: Vec<String>,
    tone: Tone,
    top: usize,
    bottom: usize,
    /// The width, without margins.
    width: usize,
    boxes: Vec<Placed>,
    edges: Vec<(usize, usize, String)>,
    /// The picture in words.
    said: String,
}

impl Drawing {
    /// Draws the path that the sources in `group` share, from `top` downwards.
    fn of(report: &TraceReport, group: &[&SourceTrace], style: Style, top: usize) -> Self {
        let trace = group[0];
        let graph = Graph::folded(trace, &names(group), style);
        let word = trace.fate.name().to_uppercase();
        let answer = format!("{word}: {}", visible(&sentence(report, trace)));
        let mut caption = wrap(&answer, CAPTION);
        caption.extend(
            simulated(report)
                .iter()
                .flat_map(|text| wrap(text, CAPTION)),
        );
        let rows = rows(&graph);
        let row_of = |at: &usize| rows.iter().find(|row| row.contains(at));
        let is_alone = |at: &usize| row_of(at).is_none_or(|row| row.len() == 1);
        let nodes = graph.nodes.iter().enumerate();
        let mut boxes: Vec<Placed> = nodes
            .map(|(at, node)| Placed::of(node, if is_alone(&at) { ALONE } else { SHARED }))
            .collect();
        let wide = |row: &Vec<usize>| -> usize {
            let all = row.iter().map(|&at| boxes[at].width);
            all.sum::<usize>() + BESIDE * (row.len() - 1)
        };
        let said = caption.iter().map(|line| columns(line) * CHAR);
        let width = rows.iter().map(wide).chain(said).max();
        let width = width.unwrap_or_default();
        let mut y = top + caption.len() * LINE + PAD;
        for row in &rows {
            let mut x = MARGIN;
            let mut tallest = 0;
            for &at in row {
                let placed = &mut boxes[at];
                (placed.x, placed.y) = (x, y);
                x += placed.width + BESIDE;
                tallest = tallest.max(placed.height);
            }
            y += tallest + BELOW;
        }
        let texts = graph.nodes.iter().map(|node| node.text.replace('\n', " "));
        let texts: Vec<String> = texts.collect();
        Self {
            caption,
            tone: tone(trace.fate),
            top,
            bottom: y - BELOW,
            width,
            edges: graph.edges,
            boxes,
            said: format!("{answer}. Steps: {}.", texts.join("; ")),
        }
    }

    fn add(&self, markup: &mut Markup) {
        markup.element("g", &[("class", self.tone.class())], |markup| {
            for (at, line) in self.caption.iter().enumerate() {
                let y = self.top + (at + 1) * LINE - 5;
                text(markup, MARGIN, y, "said", line);
            }
        });
        for (from, to, word) in &self.edges {
            edge(markup, &self.boxes[*from], &self.boxes[*to], word);
        }
        for placed in &self.boxes {
            placed.add(markup);
        }
    }
}

/// Returns the nodes by row: each is below those that lead to it.
fn rows(graph: &Graph) -> Vec<Vec<usize>> {
    let mut rank = vec![0; graph.nodes.len()];
    let mut edges: Vec<_> = graph
        .edges
        .iter()
        .map(|(from, to, _)| (*from, *to))
        .collect();
    // An edge leads to a later node.
    edges.sort_unstable();
    for (from, to) in edges {
        rank[to] = rank[to].max(rank[from] + 1);
    }
    let last = rank.iter().max().copied().unwrap_or_default();
    let row = |of: usize| (0..rank.len()).filter(|&at| rank[at] == of).collect();
    (0..=last).map(row).collect()
}

/// Returns the columns that `text` takes at most.
fn columns(text: &str) -> usize {
    // Characters of East Asia and symbols may take two.
    text.chars().map(|c| 1 + usize::from(c >= '\u{1100}')).sum()
}

impl Placed {
    /// Returns the box of `node`, with lines of at most `most` columns, at no place yet.
    fn of(node: &Node, most: usize) -> Self {
        let mut lines = Vec::new();
        for (at, part) in visible(&node.text).lines().enumerate() {
            let class = match (at, node.end) {
                (0, true) => "said",
                // The place of a step; its effect is below.
                (0, false) => "word",
                _ => "",
            };
            lines.extend(wrap(part, most).into_iter().map(|line| (class, line)));
        }
        let rule = node.rule.iter().filter(|rule| !rule.is_empty());
        let rule = rule.flat_map(|rule| wrap(&visible(rule), most));
        lines.extend(rule.map(|line| ("rule", line)));
        if node.tone.is_some() && !node.end {
            for line in lines.iter_mut().filter(|line| line.0.is_empty()) {
                line.0 = "said";
            }
        }
        let widest = lines.iter().map(|(_, line)| columns(line)).max();
        Self {
            x: 0,
            y: 0,
            width: widest.unwrap_or_default() * CHAR + 2 * PAD,
            height: lines.len() * LINE + 2 * PAD,
            lines,
            tone: node.tone,
            round: node.end,
        }
    }

    fn add(&self, markup: &mut Markup) {
        let class = self.tone.map_or("", Tone::class);
        markup.element("g", &[("class", class)], |markup| {
            markup.empty(
                "rect",
                &[
                    ("class", "step"),
                    ("x", &self.x.to_string()),
                    ("y", &self.y.to_string()),
                    ("width", &self.width.to_string()),
                    ("height", &self.height.to_string()),
                    ("rx", if self.round { "14" } else { "3" }),
                ],
            );
            for (at, (class, line)) in self.lines.iter().enumerate() {
                let y = self.y + PAD + (at + 1) * LINE - 5;
                text(markup, self.x + PAD, y, class, line);
            }
        });
    }
}

/// Adds a line of text; its base line is at `y`.
fn text(markup: &mut Markup, x: usize, y: usize, class: &str, line: &str) {
    let at = [
        ("class", class),
        ("x", &x.to_string()),
        ("y", &y.to_string()),
    ];
    markup.leaf("text", &at, line);
}

/// Adds an arrow from the bottom of a box to the top of another, with `word` at its end.
fn edge(markup: &mut Markup, from: &Placed, to: &Placed, word: &str) {
    let (x, y) = (from.x + ANCHOR, from.y + from.height);
    let (end, top) = (to.x + ANCHOR, to.y);
    let turn = top - BELOW * 2 / 3;
    let path = if x == end {
        format!("M{x} {y}V{top}")
    } else {
        format!("M{x} {y}V{turn}H{end}V{top}")
    };
    markup.empty("path", &[("class", "edge"), ("d", &path)]);
    let tip = format!("M{} {}H{}L{end} {top}Z", end - 5, top - 8, end + 5);
    markup.empty("path", &[("class", "tip"), ("d", &tip)]);
    if !word.is_empty() {
        text(markup, end + 10, top - 6, "word", word);
    }
}
