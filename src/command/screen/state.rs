//! The state of the screen, and the effect of keys: pure, so that tests can type.

use ratatui::crossterm::event::{KeyCode, KeyEvent};

use crate::command::shared::display::{Filter, interrupts};
use crate::render::{Tone, runs, wrap};
use crate::view::matrix::{self, Line};
use crate::view::services::Row;
use kpx_judge::verdict::Tally;
use kpx_node::backend::Mode;
use kpx_node::net::Proto;
use kpx_node::owner::PortName;
use kpx_node::words::number_of;

/// The Services of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    /// The origin of the state.
    pub(super) head: String,
    /// The rows; Services that fail come first.
    pub(super) lines: Vec<Line>,
    /// The unknown part.
    pub(super) notes: Vec<String>,
    /// How many Services work, in the words of the doctor, if that is known.
    pub(super) count: Option<String>,
}

impl Table {
    /// Returns the table of `rows`; `count` is the doctor's verdict on the Services.
    pub(super) fn new(
        head: String,
        rows: &[Row],
        notes: Vec<String>,
        count: Option<String>,
    ) -> Self {
        Self {
            head,
            lines: matrix::lines(rows),
            notes,
            count,
        }
    }

    /// Returns whether a node was read.
    pub(super) const fn is_read(&self) -> bool {
        !self.head.is_empty()
    }

    /// Returns whether Services may exist that are not listed: none is, and something was not read.
    pub(super) fn is_unknown(&self) -> bool {
        self.lines.is_empty() && !self.notes.is_empty()
    }

    /// Returns how many Services work, in words.
    pub(super) fn count(&self) -> String {
        let known = self.count.clone().filter(|_| !self.is_unknown());
        known.unwrap_or_else(|| "the Services are unknown".to_owned())
    }
}

/// The request of a key, which has to be read or computed first.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Ask {
    /// The end.
    End,
    /// The node, read again.
    Read,
    /// The names of the nodes.
    Nodes,
    /// Another node.
    Open(String),
    /// The traffic of the Services.
    Traffic,
    /// A page.
    Show(Topic),
}

/// The subject of a page.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Topic {
    /// The picture of a Service's connections.
    Picture(String),
    /// Why it does not work, and what its findings mean.
    Explain(String),
    /// The plan of `kpx reconcile`.
    Plan,
}

impl Topic {
    pub(super) fn title(&self) -> String {
        match self {
            Self::Picture(target) => format!("connections to {target}"),
            Self::Explain(target) => format!("why {target}"),
            Self::Plan => "plan of kpx reconcile (nothing is changed from this screen)".to_owned(),
        }
    }
}

/// A page over the list.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) topic: Topic,
    /// The text, with the marks of colours.
    pub(super) text: String,
    /// The width for which it was written.
    pub(super) width: u16,
    /// The first line that is shown.
    pub(super) top: usize,
}

/// A node to choose.
#[derive(Clone, Debug)]
pub(super) struct NodeLine {
    pub(super) name: String,
    /// Why it cannot be opened.
    pub(super) unread: Option<String>,
    /// Its mode and the verdict on its Services, once they are known.
    pub(super) judged: Option<Judged>,
}

/// How a node stands: its errors and its Services.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Judged {
    /// The mode of kube-proxy, or a note that it is unknown.
    pub(super) mode: &'static str,
    pub(super) tone: Tone,
    pub(super) text: String,
}

impl Judged {
    pub(super) fn new(mode: Option<Mode>, tally: Option<&Tally>, errors: usize) -> Self {
        let mut judged = Self::of_services(mode, tally);
        if errors > 0 {
            judged.tone = Tone::Bad;
            judged.text = format!("{}, {}", number_of(errors, "error"), judged.text);
        }
        judged
    }

    fn of_services(mode: Option<Mode>, tally: Option<&Tally>) -> Self {
        let mode = mode.map_or("unknown", Mode::name);
        let Some(tally) = tally else {
            return Self {
                mode,
                tone: Tone::Unclear,
                text: "the Services are unknown".to_owned(),
            };
        };
        let all = number_of(tally.total, "Service");
        let (failing, unknown) = (tally.failing.len(), tally.unknown.len());
        let open = match unknown {
            0 => String::new(),
            count => format!(", {count} unknown"),
        };
        let (tone, text) = match (failing, unknown) {
            (0, 0) => (Tone::Good, format!("{all}, none fails")),
            (0, _) => (Tone::Unclear, format!("{all}, none fails{open}")),
            (count, _) => (Tone::Bad, format!("{count} of {all} fail{open}")),
        };
        Self { mode, tone, text }
    }
}

/// The content of the screen.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) table: Table,
    pub(super) filter: Filter,
    selected: Option<(PortName, Proto)>,
    pub(super) shown: Option<Shown>,
    /// The nodes to choose from, and the position of the selected one among those that the filter leaves.
    pub(super) nodes: Option<(Vec<NodeLine>, usize)>,
    pub(super) node_filter: Filter,
    pub(super) is_help: bool,
    /// The item being read, or the one that failed.
    pub(super) message: String,
    /// The lines that a page has room for.
    pub(super) room: usize,
}

impl State {
    /// Shows `table`; what was selected stays selected.
    pub(super) fn show_table(&mut self, table: Table) {
        self.table = table;
        self.shown = None;
        self.nodes = None;
        self.message.clear();
    }

    /// Shows `nodes`, to choose one.
    pub(super) fn show_nodes(&mut self, nodes: Vec<NodeLine>) {
        match nodes.as_slice() {
            [] | [_] => "there is no other node here".clone_into(&mut self.message),
            _ => {
                self.nodes = Some((nodes, 0));
                self.node_filter = Filter::default();
            }
        }
    }

    /// Returns the first node of which the verdict is not known.
    pub(super) fn unjudged(&self) -> Option<String> {
        let (nodes, _) = self.nodes.as_ref()?;
        let is_open = |node: &&NodeLine| node.unread.is_none() && node.judged.is_none();
        nodes.iter().find(is_open).map(|node| node.name.clone())
    }

    /// Adds the verdict on the node `name`, or why it cannot be read.
    pub(super) fn judge(&mut self, name: &str, judged: &Result<Judged, String>) {
        let nodes = self.nodes.iter_mut().flat_map(|(nodes, _)| nodes);
        for node in nodes.filter(|node| node.name == name) {
            match judged {
                Ok(judged) => node.judged = Some(judged.clone()),
                Err(why) => node.unread = Some(why.clone()),
            }
        }
    }

    /// Shows a page, from its first line unless it is the same one at another width.
    pub(super) fn show_page(&mut self, topic: Topic, text: &str, width: u16) {
        let before = self.shown.take().filter(|page| page.topic == topic);
        let lines = text.lines().flat_map(|line| folded(line, width.into()));
        self.shown = Some(Shown {
            topic,
            text: lines.collect::<Vec<_>>().join("\n"),
            width,
            top: before.map_or(0, |page| page.top),
        });
        self.message.clear();
    }

    /// Takes a key; returns its request.
    pub(super) fn press(&mut self, key: KeyEvent) -> Option<Ask> {
        if interrupts(key) {
            return Some(Ask::End);
        }
        if self.is_help {
            self.is_help = false;
            return None;
        }
        let filter = match (&self.nodes, &self.shown) {
            (Some(_), _) => Some(&mut self.node_filter),
            (None, None) => Some(&mut self.filter),
            (None, Some(_)) => None,
        };
        if filter.is_some_and(|filter| filter.press(key.code)) {
            if let Some((_, at)) = &mut self.nodes {
                *at = 0;
            }
            return None;
        }
        self.message.clear();
        match key.code {
            KeyCode::Char('q') => return Some(Ask::End),
            KeyCode::Char('?') => self.is_help = true,
            KeyCode::Char('r') => return Some(Ask::Read),
            KeyCode::Char('n') => return Some(Ask::Nodes),
            KeyCode::Char('p') => return Some(Ask::Show(Topic::Plan)),
            KeyCode::Char('t') => return Some(Ask::Traffic),
            KeyCode::Char('e') => return self.of_service(Topic::Explain),
            KeyCode::Enter => {
                if let Some((_, at)) = &self.nodes {
                    let node = self.listed_nodes().into_iter().nth(*at)?.clone();
                    if let Some(why) = &node.unread {
                        self.message = format!("{} was not read: {why}", node.name);
                        return None;
                    }
                    return Some(Ask::Open(node.name));
                }
                return self.of_service(Topic::Picture);
            }
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => self.back(),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::PageUp => self.go(-self.page_length()),
            KeyCode::PageDown | KeyCode::Char(' ') => self.go(self.page_length()),
            KeyCode::Home | KeyCode::Char('g') => self.go(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.go(isize::MAX),
            _ => {}
        }
        None
    }

    /// Returns the request for a page about the selected Service.
    fn of_service(&mut self, topic: fn(String) -> Topic) -> Option<Ask> {
        let listed = self.listed();
        let line = listed.get(self.at())?;
        Some(Ask::Show(topic(line.target())))
    }

    /// Closes what is on top.
    fn back(&mut self) {
        // Without Services there is no list below that of nodes.
        if self.nodes.is_some() && !self.node_filter.text.is_empty() {
            self.node_filter.text.clear();
        } else if self.nodes.is_some() && !self.table.lines.is_empty() {
            self.nodes = None;
        } else if self.shown.is_some() {
            self.shown = None;
        } else if self.nodes.is_none() {
            self.filter.text.clear();
        }
    }

    fn page_length(&self) -> isize {
        isize::try_from(self.room.saturating_sub(1).max(1)).unwrap_or(1)
    }

    /// Returns the lines that the filter leaves.
    pub(super) fn listed(&self) -> Vec<&Line> {
        let lines = self.table.lines.iter();
        lines.filter(|line| line.has(&self.filter.text)).collect()
    }

    /// Returns the nodes that the filter leaves.
    pub(super) fn listed_nodes(&self) -> Vec<&NodeLine> {
        let nodes = self.nodes.iter().flat_map(|(nodes, _)| nodes);
        let text = self.node_filter.text.to_lowercase();
        nodes
            .filter(|node| node.name.to_lowercase().contains(&text))
            .collect()
    }

    /// Returns the position of the selected line among the listed ones.
    pub(super) fn at(&self) -> usize {
        let listed = self.listed();
        let selected = self.selected.as_ref();
        let at = selected.and_then(|(name, proto)| {
            let mut lines = listed.iter();
            lines.position(|line| line.service == *name && line.protocol == *proto)
        });
        at.unwrap_or(0)
    }

    /// Moves by lines: in the nodes, in the page, or in the list.
    fn go(&mut self, by: isize) {
        let moved =
            |at: usize, count: usize| at.saturating_add_signed(by).min(count.saturating_sub(1));
        let count = self.listed_nodes().len();
        if let Some((_, at)) = &mut self.nodes {
            *at = moved(*at, count);
        } else if let Some(shown) = &mut self.shown {
            let last = shown.text.lines().count().saturating_sub(self.room);
            shown.top = moved(shown.top, last + 1);
        } else {
            let listed = self.listed();
            let to = listed.get(moved(self.at(), listed.len()));
            self.selected = to.map(|line| (line.service.clone(), line.protocol));
        }
    }
}

/// Returns `line`, a long one as several: a command has to be read as a whole.
fn folded(line: &str, width: usize) -> Vec<String> {
    // The marks of colours take no room.
    let parts = runs(line).into_iter();
    let length: usize = parts.map(|(_, part)| part.chars().count()).sum();
    if length <= width {
        return vec![line.to_owned()];
    }
    let body = line.trim_start_matches(' ');
    let indent = " ".repeat(line.len() - body.len());
    let lines = wrap(body, width.saturating_sub(indent.len() + 2));
    let lines = lines.into_iter().enumerate();
    lines
        .map(|(at, part)| match at {
            0 => format!("{indent}{part}"),
            _ => format!("{indent}  {part}"),
        })
        .collect()
}
