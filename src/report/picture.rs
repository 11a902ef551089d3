//! The picture of connections to a Service, from left to right: clients, the Service, the stages of the node, endpoints.

use crate::render::scene::{Frame, Label, Scene, Stroke, Wire, columns, drawn};
use crate::render::{Page, Style, Tone, wrap};
use crate::report::fate::{headline, tone, tone_of};
use crate::view::matrix;
use crate::view::picture::{End, Picture, Stage, State, Station, Strand, Way};

/// The width of a picture in SVG, in characters.
const SVG_WIDTH: u16 = 110;

/// Strands that are drawn before the rest is counted.
const MOST_STRANDS: usize = 5;

/// Endpoints that are drawn in one box before the rest is counted.
const MOST_ENDS: usize = 4;

/// Lines of one text in a box.
const MOST_LINES: usize = 6;

/// The space between two boxes, for an arrow.
const GAP: usize = 3;

/// The width of a text that no box exceeds, and the one that it always has.
const WIDEST: usize = 36;
const NARROWEST: usize = 9;

/// The extra columns of the lane of endpoints if there is no room for all.
const ENDPOINT_MORE: usize = 6;

/// The lanes from left to right, with their titles.
const LANES: [&str; 7] = [
    "client",
    "Service",
    "enters",
    "translated",
    "forwarded",
    "leaves",
    "endpoint",
];
const CLIENT: usize = 0;
const SERVICE: usize = 1;
const ENTERS: usize = 2;
const TRANSLATED: usize = 3;
const FORWARDED: usize = 4;
const LEAVES: usize = 5;
const ENDPOINT: usize = 6;

/// The width from which every stage has a lane of its own.
const WIDE: u16 = 100;

/// The texts above and below a picture.
#[derive(Debug, Default)]
pub(crate) struct Caption {
    /// The name of the picture.
    pub(crate) title: String,
    /// The answers.
    pub(crate) heads: Vec<(matrix::End, String)>,
    /// The lines below the picture.
    pub(crate) feet: Vec<Foot>,
}

/// A text below a picture, behind a word.
#[derive(Debug)]
pub(crate) enum Foot {
    /// A command, which is never broken, so that it can be copied.
    Command(&'static str, String),
    /// Any other text.
    Text(&'static str, String),
}

/// A box before its place is known.
struct Draft {
    lane: usize,
    /// Texts; each begins on a line of its own.
    texts: Vec<String>,
    tone: Option<Tone>,
    border: Stroke,
    /// Whether packets get here.
    before: Stroke,
}

impl Draft {
    fn new(lane: usize, texts: &[String]) -> Self {
        Self {
            lane,
            texts: texts.iter().map(|text| drawn(text)).collect(),
            tone: None,
            border: Stroke::Solid,
            before: Stroke::Solid,
        }
    }
}

/// A strand before its place is known: the boxes of its clients, of the Service, and of each way.
struct Row {
    client: Draft,
    service: Draft,
    ways: Vec<Vec<Draft>>,
}

/// The place and the width of each lane, without the border of boxes; `None` for a lane without boxes.
type Lanes = [Option<(usize, usize)>; LANES.len()];

/// Returns the picture as text.
pub(crate) fn text(picture: &Picture, caption: &Caption, style: Style) -> String {
    let mut page = Page::new(style);
    for (end, text) in &caption.heads {
        page.hang(&format!("{}: ", headline(&page, *end)), "  ", text);
    }
    page.line("");
    let mut scene = Scene::default();
    let left = lay_out(&mut scene, picture, style.width, 0).1;
    scene.draw(&mut page);
    if let Some(left) = left {
        page.line(&left);
    }
    if !caption.feet.is_empty() {
        page.line("");
    }
    for foot in &caption.feet {
        match foot {
            Foot::Command(lead, command) => page.line(&format!("{lead}: {command}")),
            Foot::Text("", text) => page.para("  ", text),
            Foot::Text(lead, text) => page.hang(&format!("{lead}: "), "  ", text),
        }
    }
    page.into_text()
}

/// Returns the picture, with its texts, as a drawing for SVG.
pub(crate) fn scene(picture: &Picture, caption: &Caption) -> Scene {
    let mut scene = Scene {
        title: drawn(&caption.title),
        ..Scene::default()
    };
    let mut y = 0;
    for (end, text) in &caption.heads {
        let word = end.name().to_ascii_uppercase();
        head(&mut scene, &mut y, &word, Some(tone_of(*end)), text);
    }
    let (below, left) = lay_out(&mut scene, picture, SVG_WIDTH, y + 1);
    y = below;
    if let Some(left) = left {
        head(&mut scene, &mut y, "", None, &left);
    }
    y += 1;
    for foot in &caption.feet {
        let (Foot::Command(lead, text) | Foot::Text(lead, text)) = foot;
        head(&mut scene, &mut y, lead, Some(Tone::Strong), text);
    }
    scene
}

/// Adds the lanes of `picture` from the line `y` on; returns the line below, and, in words, the parts that are not
/// drawn.
fn lay_out(scene: &mut Scene, picture: &Picture, width: u16, y: usize) -> (usize, Option<String>) {
    let shown = picture.strands.len().min(MOST_STRANDS);
    let mut rows: Vec<Row> = picture.strands[..shown].iter().map(row).collect();
    if width < WIDE {
        rows.iter_mut().flat_map(|row| &mut row.ways).for_each(fold);
    }
    let lanes = lanes(&rows, width.into());
    for (title, lane) in LANES.iter().zip(lanes) {
        if let Some((x, _)) = lane {
            scene.labels.push(Label {
                x,
                y,
                text: (*title).to_owned(),
                tone: None,
                is_dim: true,
            });
        }
    }
    let below = rows
        .iter()
        .fold(y + 1, |y, row| place(scene, row, &lanes, y));
    let left = match picture.strands.len() - shown {
        0 => None,
        more => Some(format!("and {more} more, which are not drawn")),
    };
    (below, left)
}

/// Puts the translation of the source into the box that translates the destination, if there is no room for a separate lane.
fn fold(way: &mut Vec<Draft>) {
    let at = |lane| move |draft: &Draft| draft.lane == lane && draft.tone.is_none();
    let leaves = way.iter().position(at(LEAVES));
    let translated = way.iter().position(at(TRANSLATED));
    if let (Some(leaves), Some(translated)) = (leaves, translated) {
        let texts = way.remove(leaves).texts;
        way[translated].texts.extend(texts);
    }
}

/// Adds a text behind a word, over as many lines as it needs.
fn head(scene: &mut Scene, y: &mut usize, word: &str, tone: Option<Tone>, text: &str) {
    let indent = 2 + word.len();
    if !word.is_empty() {
        scene.labels.push(Label {
            x: 0,
            y: *y,
            text: format!("{word}:"),
            tone,
            is_dim: false,
        });
    }
    for line in wrap(&drawn(text), usize::from(SVG_WIDTH).saturating_sub(indent)) {
        scene.labels.push(Label {
            x: indent,
            y: *y,
            text: line,
            tone: None,
            is_dim: false,
        });
        *y += 1;
    }
}

fn row(strand: &Strand) -> Row {
    let clients = strand.clients.iter();
    let clients = clients.flat_map(|(name, at)| std::iter::once(name.clone()).chain(at.clone()));
    let mut service = Vec::from_iter(Some(strand.service.clone()).filter(|name| !name.is_empty()));
    for (target, kind) in &strand.targets {
        match *kind {
            "cluster-ip" => {}
            kind => service.push(kind.to_owned()),
        }
        service.push(target.clone());
    }
    let mut service = Draft::new(SERVICE, &service);
    // A faulty object is drawn in the place of the object.
    let of_object = |station: &&Station| station.stage == Stage::Service;
    let stations = strand.ways.iter().flat_map(|way| &way.stations);
    if let Some(station) = stations.clone().find(of_object) {
        service
            .texts
            .extend(texts(station).iter().map(|text| drawn(text)));
        paint(&mut service, station);
    }
    let clients: Vec<String> = clients.collect();
    Row {
        client: Draft::new(CLIENT, &clients),
        service,
        ways: strand.ways.iter().map(|way| boxes(way, strand)).collect(),
    }
}

/// Returns the texts of a station.
fn texts(station: &Station) -> Vec<String> {
    let mut texts: Vec<String> = station
        .node
        .iter()
        .map(|node| format!("on {node}:"))
        .collect();
    texts.push(station.text.clone());
    texts.extend(station.owner.iter().map(|owner| format!("owner: {owner}")));
    texts
}

/// Gives a box the colour and the border of its effect.
fn paint(draft: &mut Draft, station: &Station) {
    let tone = match station.state {
        State::Passes if station.owner.is_none() => return,
        State::Passes => Tone::Doubtful,
        State::Open => Tone::Unclear,
        State::Stops | State::Missing => Tone::Bad,
    };
    draft.tone = Some(tone);
    match station.state {
        State::Missing => draft.border = Stroke::Dashed,
        State::Open if draft.border == Stroke::Solid => draft.border = Stroke::Dotted,
        State::Open | State::Passes | State::Stops => {}
    }
}

/// Returns the boxes of a way behind the Service.
fn boxes(way: &Way, strand: &Strand) -> Vec<Draft> {
    let mut drafts: Vec<Draft> = Vec::new();
    let mut before = Stroke::Solid;
    for station in &way.stations {
        let after = match station.state {
            // The reply ends there.
            _ if station.stage == Stage::Leave => before,
            State::Stops | State::Missing => Stroke::Dashed,
            State::Open if before == Stroke::Solid => Stroke::Dotted,
            State::Open | State::Passes => before,
        };
        let lane = match station.stage {
            Stage::Service => {
                before = after;
                continue;
            }
            Stage::Enter => ENTERS,
            Stage::Translate => TRANSLATED,
            Stage::Forward => FORWARDED,
            Stage::Leave => LEAVES,
            Stage::Endpoint => ENDPOINT,
        };
        let next = Draft::new(lane, &texts(station));
        match drafts.last_mut().filter(|last| last.lane == lane) {
            Some(last) => last.texts.extend(next.texts),
            None => drafts.push(Draft { before, ..next }),
        }
        if let Some(last) = drafts.last_mut() {
            paint(last, station);
        }
        before = after;
    }
    if way.ends.is_empty() {
        return drafts;
    }
    let namespace = strand.service.split('/').next().unwrap_or_default();
    let texts = ends(&way.ends, namespace);
    match drafts.last_mut().filter(|last| last.lane == ENDPOINT) {
        Some(last) => last.texts.extend(texts.iter().map(|text| drawn(text))),
        None => drafts.push(Draft {
            tone: way.is_reached.then(|| tone(way.fate)),
            border: if way.is_reached {
                Stroke::Solid
            } else {
                Stroke::Dashed
            },
            before,
            ..Draft::new(ENDPOINT, &texts)
        }),
    }
    drafts
}

/// Returns the lines for endpoints; pods of the Service's own namespace are named without it, and a node that all share once.
fn ends(all: &[End], namespace: &str) -> Vec<String> {
    let mut texts = Vec::new();
    let node = all.first().and_then(|first| first.node.as_ref());
    let is_shared = all.iter().all(|end| end.node.as_ref() == node);
    for end in all.iter().take(MOST_ENDS) {
        let share = end.share.filter(|share| *share < 0.9999);
        texts.push(match share {
            Some(share) => format!("{} {:.0}%", end.name, share * 100.0),
            None => end.name.clone(),
        });
        if let Some(pod) = &end.pod {
            let bare = pod
                .strip_prefix(namespace)
                .and_then(|rest| rest.strip_prefix('/'));
            texts.push(bare.unwrap_or(pod).to_owned());
        }
        if let Some(node) = end.node.as_ref().filter(|_| !is_shared) {
            texts.push(format!("on {node}"));
        }
        if let Some(state) = end.state {
            texts.push(state.to_string());
        }
    }
    if let more @ 1.. = all.len().saturating_sub(MOST_ENDS) {
        texts.push(format!("and {more} more"));
    }
    if let Some(node) = node.filter(|_| is_shared) {
        texts.push(format!("on {node}"));
    }
    texts
}

/// Returns the lanes that have boxes, as wide as their texts, or as narrow as `width` asks.
fn lanes(rows: &[Row], width: usize) -> Lanes {
    let mut widths = [0; LANES.len()];
    let boxes = rows.iter().flat_map(|row| {
        let ways = row.ways.iter().flatten();
        [&row.client, &row.service].into_iter().chain(ways)
    });
    for draft in boxes {
        let longest = draft.texts.iter().map(|text| columns(text)).max();
        let longest = longest.unwrap_or_default().clamp(NARROWEST, WIDEST);
        widths[draft.lane] = longest.max(widths[draft.lane]);
    }
    let used = widths.iter().filter(|width| **width > 0).count();
    let borders = used * 2 + used.saturating_sub(1) * GAP;
    while widths.iter().sum::<usize>() + borders > width {
        // Endpoints have the longest names.
        let need = |(lane, width): &(usize, &mut usize)| match *lane {
            ENDPOINT => width.saturating_sub(ENDPOINT_MORE),
            _ => **width,
        };
        let Some((_, widest)) = widths.iter_mut().enumerate().max_by_key(need) else {
            break;
        };
        if *widest <= NARROWEST {
            break;
        }
        *widest -= 1;
    }
    let mut x = 0;
    widths.map(|width| {
        (width > 0).then(|| {
            let lane = (x, width);
            x += width + 2 + GAP;
            lane
        })
    })
}

/// Returns a box at its place.
fn framed(draft: &Draft, lanes: &Lanes, y: usize) -> Frame {
    let (x, width) = lanes[draft.lane].unwrap_or((0, NARROWEST));
    let mut all = Vec::new();
    for text in &draft.texts {
        let mut wrapped = wrapped(text, width);
        if wrapped.len() > MOST_LINES {
            wrapped.truncate(MOST_LINES);
            if let Some(last) = wrapped.last_mut() {
                while columns(last) >= width {
                    last.pop();
                }
                last.push('…');
            }
        }
        all.extend(wrapped);
    }
    Frame {
        x,
        y,
        width: width + 2,
        lines: all,
        tone: draft.tone,
        border: draft.border,
    }
}

/// Returns `text` on lines of at most `width` columns.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for line in wrap(text, width) {
        // Only characters of two columns make a line too long.
        let mut part = String::new();
        for c in line.chars() {
            part.push(c);
            if columns(&part) > width {
                part.pop();
                lines.push(std::mem::replace(&mut part, c.to_string()));
            }
        }
        lines.push(part);
    }
    lines
}

/// Adds the boxes and wires of a strand; returns the line below.
fn place(scene: &mut Scene, row: &Row, lanes: &Lanes, y: usize) -> usize {
    let client = framed(&row.client, lanes, y);
    let service = framed(&row.service, lanes, y);
    let mut below = y + client.height().max(service.height());
    let right = |frame: &Frame| frame.x + frame.width;
    scene.wires.push(Wire {
        from: (right(&client), y + 1),
        turn: right(&client) + 1,
        to: (service.x - 1, y + 1),
        tone: row.service.tone,
        stroke: Stroke::Solid,
    });
    let start = right(&service);
    scene.frames.extend([client, service]);
    let mut top = y;
    for way in &row.ways {
        let mut from = (start, y + 1);
        let mut bottom = top;
        for draft in way {
            let frame = framed(draft, lanes, top);
            let is_bad = draft.tone == Some(Tone::Bad) && draft.before != Stroke::Dashed;
            scene.wires.push(Wire {
                from,
                turn: from.0 + 1,
                to: (frame.x - 1, top + 1),
                tone: is_bad.then_some(Tone::Bad),
                stroke: draft.before,
            });
            from = (right(&frame), top + 1);
            bottom = bottom.max(top + frame.height());
            scene.frames.push(frame);
        }
        top = bottom;
    }
    below = below.max(top);
    below
}
