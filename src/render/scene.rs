//! A drawing of boxes and wires on a grid of characters, with two outputs: text for a terminal, and SVG.

use std::sync::LazyLock;

use super::ascii;
use super::markup::{Markup, visible};
use super::page::{Page, Tone};
use super::palette;

/// The rules of style for a drawing in SVG, with the variables of the palette.
pub(crate) const DRAWING: &str = "\
.way text{font:13px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre;fill:var(--ink)}\
.way .page{fill:var(--paper)}\
.way .step{fill:var(--box);stroke:var(--line)}\
.way .ghost{stroke-dasharray:5 4}\
.way .open{stroke-dasharray:1.5 3.5;stroke-linecap:round}\
.way .edge{fill:none;stroke:var(--line);stroke-width:1.5}\
.way .tip{fill:var(--line)}\
.way .word{fill:var(--dim)}\
.way .said{font-weight:bold}\
.way .bad .step{fill:var(--bad-box);stroke:var(--bad);stroke-width:2.5}.way .bad .said{fill:var(--bad)}\
.way .bad .edge{stroke:var(--bad)}.way .bad .tip{fill:var(--bad)}\
.way .doubtful .step{fill:var(--doubtful-box);stroke:var(--doubtful)}.way .doubtful .said{fill:var(--doubtful)}\
.way .good .step{fill:var(--good-box);stroke:var(--good)}.way .good .said{fill:var(--good)}\
.way .unclear .step{fill:var(--unclear-box);stroke:var(--unclear)}.way .unclear .said{fill:var(--unclear)}";

static STYLE: LazyLock<String> = LazyLock::new(|| palette::themed(DRAWING));

/// The width and the height of a character in SVG, in pixels, of the widest usual font at this size.
const CHAR: usize = 8;
const LINE: usize = 18;

/// The space around the drawing in SVG, in pixels.
const MARGIN: usize = 12;

/// A drawing. Lengths and places are in characters, from the upper left corner.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scene {
    /// The name of the drawing.
    pub(crate) title: String,
    pub(crate) frames: Vec<Frame>,
    pub(crate) wires: Vec<Wire>,
    pub(crate) labels: Vec<Label>,
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Stroke {
    /// Solid: packets pass.
    #[default]
    Solid,
    /// Dotted: whether packets pass is not known.
    Dotted,
    /// Dashed: an object that is missing, or a way that no packet goes.
    Dashed,
}

impl Stroke {
    /// Returns the characters of a horizontal and of a vertical line.
    const fn chars(self) -> (char, char) {
        match self {
            Self::Solid => ('─', '│'),
            Self::Dotted => ('┈', '┊'),
            Self::Dashed => ('╌', '╎'),
        }
    }

    /// Returns the class of a line in SVG.
    const fn class(self) -> Option<&'static str> {
        match self {
            Self::Solid => None,
            Self::Dotted => Some("open"),
            Self::Dashed => Some("ghost"),
        }
    }
}

/// A box with lines of text inside its border.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) x: usize,
    pub(crate) y: usize,
    /// With the border.
    pub(crate) width: usize,
    /// The first line is bold.
    pub(crate) lines: Vec<String>,
    pub(crate) tone: Option<Tone>,
    pub(crate) border: Stroke,
}

impl Frame {
    /// Returns the height, with the border.
    pub(crate) fn height(&self) -> usize {
        self.lines.len() + 2
    }
}

/// An arrow from `from` to `to`, which is right of it; it turns in the column `turn`.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    pub(crate) from: (usize, usize),
    pub(crate) turn: usize,
    pub(crate) to: (usize, usize),
    pub(crate) tone: Option<Tone>,
    /// A dashed line has no tip.
    pub(crate) stroke: Stroke,
}

/// A line of text.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    pub(crate) x: usize,
    pub(crate) y: usize,
    pub(crate) text: String,
    pub(crate) tone: Option<Tone>,
    /// Whether it is drawn with less emphasis.
    pub(crate) is_dim: bool,
}

/// Returns the columns that a terminal takes for `c`: characters of East Asia and symbols may take two.
fn columns_of(c: char) -> usize {
    1 + usize::from(c >= '\u{1100}' && !('\u{2000}'..='\u{2bff}').contains(&c))
}

/// Returns the columns that `text` takes.
pub(crate) fn columns(text: &str) -> usize {
    text.chars().map(columns_of).sum()
}

/// A character on the grid, and its colour; `None` behind a character of two columns.
type Cell = Option<(char, Option<Tone>)>;

/// The directions in which lines leave a place.
const LEFT: u8 = 1;
const RIGHT: u8 = 2;
const UP: u8 = 4;
const DOWN: u8 = 8;

/// Returns the character for lines in these directions.
const fn crossing(directions: u8) -> char {
    match directions {
        12 | 4 | 8 => '│',
        10 => '╭',
        9 => '╮',
        6 => '╰',
        5 => '╯',
        14 => '├',
        13 => '┤',
        11 => '┬',
        7 => '┴',
        15 => '┼',
        _ => '─',
    }
}

/// The characters of a text drawing.
struct Grid {
    cells: Vec<Vec<Cell>>,
    lines: Vec<Vec<u8>>,
}

impl Grid {
    fn new(width: usize, height: usize) -> Self {
        Self {
            cells: vec![vec![Some((' ', None)); width]; height],
            lines: vec![vec![0; width]; height],
        }
    }

    fn put(&mut self, x: usize, y: usize, c: char, tone: Option<Tone>) {
        if let Some(cell) = self.cells.get_mut(y).and_then(|row| row.get_mut(x)) {
            *cell = Some((c, tone));
        }
    }

    fn text(&mut self, mut x: usize, y: usize, text: &str, tone: Option<Tone>) {
        for c in text.chars() {
            self.put(x, y, c, tone);
            if columns_of(c) == 2
                && let Some(behind) = self.cells.get_mut(y).and_then(|row| row.get_mut(x + 1))
            {
                *behind = None;
            }
            x += columns_of(c);
        }
    }

    /// Adds a line in `directions` from a place, joined to the existing lines.
    fn line(&mut self, x: usize, y: usize, directions: u8, wire: &Wire) {
        let Some(there) = self.lines.get_mut(y).and_then(|row| row.get_mut(x)) else {
            return;
        };
        let is_first = *there == 0;
        *there |= directions;
        let all = *there;
        let (across, upright) = wire.stroke.chars();
        let c = match (is_first, all) {
            (true, 3) => across,
            (true, 12) => upright,
            _ => crossing(all),
        };
        self.put(x, y, c, wire.tone);
    }

    fn wire(&mut self, wire: &Wire) {
        let ((x, y), (end, to)) = (wire.from, wire.to);
        for x in x..wire.turn {
            self.line(x, y, LEFT | RIGHT, wire);
        }
        if y == to {
            self.line(wire.turn, y, LEFT | RIGHT, wire);
        } else {
            self.line(wire.turn, y, LEFT | DOWN, wire);
            for y in y + 1..to {
                self.line(wire.turn, y, UP | DOWN, wire);
            }
            self.line(wire.turn, to, UP | RIGHT, wire);
        }
        for x in wire.turn + 1..=end {
            self.line(x, to, LEFT | RIGHT, wire);
        }
        if wire.stroke != Stroke::Dashed {
            self.put(end, to, '▶', wire.tone);
        }
    }

    fn frame(&mut self, frame: &Frame) {
        let (left, top) = (frame.x, frame.y);
        let (right, bottom) = (left + frame.width - 1, top + frame.height() - 1);
        let (across, upright) = frame.border.chars();
        for x in left + 1..right {
            self.put(x, top, across, frame.tone);
            self.put(x, bottom, across, frame.tone);
        }
        for y in top + 1..bottom {
            self.put(left, y, upright, frame.tone);
            self.put(right, y, upright, frame.tone);
        }
        for (x, y, corner) in [
            (left, top, '╭'),
            (right, top, '╮'),
            (left, bottom, '╰'),
            (right, bottom, '╯'),
        ] {
            self.put(x, y, corner, frame.tone);
        }
        for (at, line) in frame.lines.iter().enumerate() {
            let tone = if at == 0 {
                frame.tone.or(Some(Tone::Strong))
            } else {
                None
            };
            self.text(left + 1, top + 1 + at, line, tone);
        }
    }
}

impl Scene {
    /// Returns the width and the height.
    fn size(&self) -> (usize, usize) {
        let frames = self.frames.iter();
        let frames = frames.map(|frame| (frame.x + frame.width, frame.y + frame.height()));
        let labels = self.labels.iter();
        let labels = labels.map(|label| (label.x + columns(&label.text), label.y + 1));
        frames
            .chain(labels)
            .fold((0, 0), |(width, height), (x, y)| {
                (width.max(x), height.max(y))
            })
    }

    /// Adds the drawing to `page` as text.
    pub(crate) fn draw(&self, page: &mut Page) {
        let (width, height) = self.size();
        let mut grid = Grid::new(width, height);
        for wire in &self.wires {
            grid.wire(wire);
        }
        for frame in &self.frames {
            grid.frame(frame);
        }
        for label in &self.labels {
            grid.text(label.x, label.y, &label.text, label.tone);
        }
        let is_ascii = page.style().ascii;
        for row in &grid.cells {
            let mut line = String::new();
            let mut run = String::new();
            let mut last = None;
            let all: Vec<(char, Option<Tone>)> = row.iter().copied().flatten().collect();
            let used = all.iter().rposition(|(c, _)| *c != ' ');
            for &(c, tone) in &all[..used.map_or(0, |at| at + 1)] {
                if tone != last {
                    line.push_str(&painted(page, last, &run));
                    run.clear();
                    last = tone;
                }
                run.push(c);
            }
            line.push_str(&painted(page, last, &run));
            if is_ascii {
                page.line(&ascii::plain(&line));
            } else {
                page.line(&line);
            }
        }
    }

    /// Returns the drawing as a document of SVG.
    pub(crate) fn svg(&self) -> String {
        let mut markup = Markup::default();
        self.add_svg(&mut markup, Some(&STYLE));
        markup.fixed("\n");
        markup.into_text()
    }

    /// Adds the drawing to `markup` as SVG, with the rules `sheet` if the document around it does not have [`DRAWING`].
    pub(crate) fn add_svg(&self, markup: &mut Markup, sheet: Option<&'static str>) {
        let (width, height) = self.size();
        let w = (width * CHAR + 2 * MARGIN).to_string();
        let h = (height * LINE + 2 * MARGIN).to_string();
        let attributes = [
            ("xmlns", "http://www.w3.org/2000/svg"),
            ("class", "way"),
            ("role", "img"),
            ("width", w.as_str()),
            ("height", h.as_str()),
            ("viewBox", &format!("0 0 {w} {h}")),
        ];
        markup.element("svg", &attributes, |markup| {
            markup.leaf("title", &[], &self.title);
            let boxes = self.frames.iter().map(|frame| frame.lines.join(" "));
            let labels = self.labels.iter().map(|label| label.text.clone());
            let said: Vec<String> = labels.chain(boxes).collect();
            markup.leaf("desc", &[], &said.join("; "));
            if let Some(sheet) = sheet {
                markup.element("style", &[], |markup| markup.fixed(sheet));
            }
            markup.empty("rect", &[("class", "page"), ("width", &w), ("height", &h)]);
            for wire in &self.wires {
                grouped(markup, wire.tone, |markup| wire_svg(markup, wire));
            }
            for frame in &self.frames {
                grouped(markup, frame.tone, |markup| frame_svg(markup, frame));
            }
            for label in &self.labels {
                let class = match (label.tone, label.is_dim) {
                    (Some(_), _) => "said",
                    (None, true) => "word",
                    (None, false) => "",
                };
                grouped(markup, label.tone, |markup| {
                    text_svg(markup, label.x, label.y, class, &label.text);
                });
            }
        });
    }
}

/// Returns `text` in the colour of `tone`, if it has one.
fn painted(page: &Page, tone: Option<Tone>, text: &str) -> String {
    match tone {
        Some(tone) => page.paint(tone, text),
        None => text.to_owned(),
    }
}

/// Returns `text` as it is drawn: nothing in it changes the places of others.
pub(crate) fn drawn(text: &str) -> String {
    visible(text).replace(['\n', '\t'], " ")
}

fn grouped(markup: &mut Markup, tone: Option<Tone>, fill: impl FnOnce(&mut Markup)) {
    let class = tone.map_or("", Tone::class);
    markup.element("g", &[("class", class)], fill);
}

/// Returns the middle of a character, in pixels.
const fn middle((x, y): (usize, usize)) -> (usize, usize) {
    (MARGIN + x * CHAR + CHAR / 2, MARGIN + y * LINE + LINE / 2)
}

/// Returns the classes of a line of `kind` in SVG.
fn classes(kind: &str, stroke: Stroke) -> String {
    let all = [Some(kind), stroke.class()];
    all.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn frame_svg(markup: &mut Markup, frame: &Frame) {
    let (x, y) = middle((frame.x, frame.y));
    let width = (frame.width - 1) * CHAR;
    let height = (frame.height() - 1) * LINE;
    markup.empty(
        "rect",
        &[
            ("class", &classes("step", frame.border)),
            ("x", &x.to_string()),
            ("y", &y.to_string()),
            ("width", &width.to_string()),
            ("height", &height.to_string()),
            ("rx", "5"),
        ],
    );
    for (at, line) in frame.lines.iter().enumerate() {
        let class = if at == 0 { "said" } else { "" };
        text_svg(markup, frame.x + 1, frame.y + 1 + at, class, line);
    }
}

fn wire_svg(markup: &mut Markup, wire: &Wire) {
    let (x, y) = middle(wire.from);
    let (turn, _) = middle((wire.turn, 0));
    let (end, to) = middle(wire.to);
    let (x, end) = (x - CHAR / 2, end + CHAR / 2);
    let class = classes("edge", wire.stroke);
    let path = if y == to {
        format!("M{x} {y}H{end}")
    } else {
        format!("M{x} {y}H{turn}V{to}H{end}")
    };
    markup.empty("path", &[("class", &class), ("d", &path)]);
    if wire.stroke != Stroke::Dashed {
        let tip = format!("M{} {}V{}L{end} {to}Z", end - 8, to - 5, to + 5);
        markup.empty("path", &[("class", "tip"), ("d", &tip)]);
    }
}

/// Adds a line of text at a place of the grid.
fn text_svg(markup: &mut Markup, x: usize, y: usize, class: &str, line: &str) {
    let at = [
        ("class", class),
        ("x", &(MARGIN + x * CHAR).to_string()),
        ("y", &(MARGIN + (y + 1) * LINE - 5).to_string()),
    ];
    markup.leaf("text", &at, line);
}

#[cfg(test)]
mod tests {
    use super::super::Style;
    use super::*;

    fn style(ascii: bool) -> Style {
        Style {
            width: 80,
            color: false,
            ascii,
            wide: false,
            verbose: 0,
            program: "kpx",
        }
    }

    fn frame(x: usize, y: usize, line: &str, border: Stroke) -> Frame {
        Frame {
            x,
            y,
            width: columns(line) + 2,
            lines: vec![line.to_owned()],
            tone: None,
            border,
        }
    }

    fn text(scene: &Scene, is_ascii: bool) -> String {
        let mut page = Page::new(style(is_ascii));
        scene.draw(&mut page);
        page.into_text()
    }

    fn fork() -> Scene {
        let wire = |to, stroke| Wire {
            from: (5, 1),
            turn: 6,
            to,
            tone: None,
            stroke,
        };
        Scene {
            title: "a fork".to_owned(),
            frames: vec![
                frame(0, 0, "one", Stroke::Solid),
                frame(8, 0, "two", Stroke::Solid),
                frame(8, 3, "three", Stroke::Dashed),
                frame(8, 6, "four", Stroke::Dotted),
            ],
            wires: vec![
                wire((7, 1), Stroke::Solid),
                wire((7, 4), Stroke::Dashed),
                wire((7, 7), Stroke::Dotted),
            ],
            labels: Vec::new(),
        }
    }

    #[test]
    fn boxes_and_wires_are_drawn_with_lines() {
        assert_eq!(
            text(&fork(), false),
            "\
╭───╮   ╭───╮
│one│─┬▶│two│
╰───╯ │ ╰───╯
      │ ╭╌╌╌╌╌╮
      ├╌╎three╎
      ┊ ╰╌╌╌╌╌╯
      ┊ ╭┈┈┈┈╮
      ╰▶┊four┊
        ╰┈┈┈┈╯
"
        );
    }

    #[test]
    fn ascii_has_a_character_for_each() {
        let text = text(&fork(), true);
        assert!(text.is_ascii() && !text.contains('?'), "{text}");
        assert!(text.contains("|one|-+>|two|"), "{text}");
        assert!(text.contains(":three:"), "{text}");
    }

    #[test]
    fn both_outputs_have_every_text() {
        let svg = fork().svg();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let texts: Vec<_> = document
            .descendants()
            .filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "text")))
            .filter_map(|node| node.text())
            .collect();
        assert_eq!(texts, ["one", "two", "three", "four"]);
        assert_eq!(svg.matches("class=\"tip\"").count(), 2);
    }

    #[test]
    fn a_wide_character_takes_two_columns() {
        let scene = Scene {
            frames: vec![frame(0, 0, "名a", Stroke::Solid)],
            ..Scene::default()
        };
        assert_eq!(text(&scene, false), "╭───╮\n│名a│\n╰───╯\n");
        assert_eq!(drawn("a\u{1b}[2J\nb\u{202e}"), "a\\u{1b}[2J b\\u{202e}");
    }
}
