//! Draws the state of the screen.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

use super::state::{NodeLine, Shown, State};
use crate::render::{self, Tone, runs, shorten, wrap};
use crate::report::fate::tone;
use crate::view::matrix::{CLIENTS, End};

/// The width from which the reason has a column.
const WIDE: u16 = 120;

/// The width below which one column has what happens to connections.
const NARROW: u16 = 64;

/// The lines of the title: the verdict on the Services may name some.
const MOST_TITLES: usize = 3;

/// The lines of the reason of the selected row.
const MOST_REASONS: usize = 3;

/// The effects of the keys.
const KEYS: [(&str, &str); 13] = [
    ("Enter", "draw the connections of the Service"),
    ("e", "explain why it does not work, and its findings"),
    ("p", "plan what kpx reconcile would do; nothing is changed"),
    ("t", "traffic of the Services, as kpx top shows it"),
    ("/", "filter the Services by name, or by what happens: lost"),
    ("n", "choose another node"),
    ("r", "read the node again"),
    ("up, down", "select, or scroll; also k and j"),
    ("page up, page down", "the same by pages"),
    ("g, G", "the first and the last line"),
    ("Esc", "back"),
    ("?", "these keys"),
    ("q", "end"),
];

/// How the screen looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look(pub(super) render::Style);

impl Look {
    /// Draws `state`.
    pub(super) fn draw(self, state: &mut State, frame: &mut Frame<'_>) {
        let title = match (&state.nodes, &state.shown) {
            _ if state.is_help => "keys".to_owned(),
            (Some(_), _) => "choose a node".to_owned(),
            (None, Some(shown)) => shown.topic.title(),
            (None, None) if !state.table.is_read() => String::new(),
            (None, None) => state.table.count(),
        };
        let mut titles = wrap(&self.plain(&title), frame.area().width.into());
        titles.truncate(MOST_TITLES);
        let (messages, place) = self.message(state, frame.area().width);
        let rows = |lines: usize| u16::try_from(lines).unwrap_or(1).max(1);
        let [head, body, message, keys] = Layout::vertical([
            Constraint::Length(1 + rows(titles.len())),
            Constraint::Min(1),
            Constraint::Length(rows(messages.len())),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        state.room = usize::from(body.height);
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let dim = Style::new().add_modifier(Modifier::DIM);
        let mut lines = vec![Line::from(self.plain(&state.table.head)).style(bold)];
        lines.extend(titles.into_iter().map(Line::from));
        frame.render_widget(Paragraph::new(lines), head);
        if state.is_help {
            help(frame, body);
        } else if let Some((_, at)) = &state.nodes {
            self.nodes(&state.listed_nodes(), *at, frame, body);
        } else if let Some(shown) = &state.shown {
            self.page(shown, frame, body);
        } else {
            self.list(state, frame, body);
        }
        let lines: Vec<Line<'_>> = messages.into_iter().map(Line::from).collect();
        frame.render_widget(Paragraph::new(lines), message);
        frame.render_widget(Line::from(place).right_aligned(), message);
        let text = state.filter.prompt().unwrap_or_else(|| help_line(state));
        frame.render_widget(Line::from(self.cut(&text, keys.width)).style(dim), keys);
    }

    /// Returns the result of the last key, or else the reason of the selected row on as many lines as it needs, and its position.
    fn message(self, state: &State, width: u16) -> (Vec<String>, String) {
        let is_list = state.shown.is_none() && state.nodes.is_none() && !state.is_help;
        if !state.message.is_empty() || !is_list || state.table.is_unknown() {
            return (vec![self.clipped(&state.message, width)], String::new());
        }
        let listed = state.listed();
        let Some(line) = listed.get(state.at()) else {
            return (Vec::new(), String::new());
        };
        let place = format!("row {} of {}", state.at() + 1, listed.len());
        let room = usize::from(width).saturating_sub(place.len() + 2);
        let text = match (line.reason.as_str(), state.table.notes.first()) {
            ("", Some(note)) => note.clone(),
            ("", None) => String::new(),
            (reason, _) => format!("{}: {reason}", line.name()),
        };
        let mut lines = wrap(&self.plain(&text), room);
        lines.truncate(MOST_REASONS);
        (lines, place)
    }

    /// Returns `text` without control sequences, in ASCII if requested.
    fn plain(self, text: &str) -> String {
        let whole: String = runs(text).into_iter().map(|(_, part)| part).collect();
        if self.0.ascii {
            render::plain(&whole).into_owned()
        } else {
            whole
        }
    }

    fn cut(self, text: &str, width: u16) -> String {
        let text = self.plain(text);
        shorten(&text, width.into(), render::dots(self.0.ascii))
    }

    fn style(self, tone: Tone) -> Style {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let color = match tone {
            Tone::Bad => Color::Red,
            Tone::Doubtful => Color::Yellow,
            Tone::Good => Color::Green,
            Tone::Unclear => Color::Magenta,
            Tone::Strong => return bold,
        };
        if self.0.color { bold.fg(color) } else { bold }
    }

    fn list(self, state: &State, frame: &mut Frame<'_>, area: Rect) {
        let listed = state.listed();
        if !state.table.is_read() {
            return;
        }
        if state.table.is_unknown() {
            let notes = state.table.notes.iter();
            let lines = notes.flat_map(|note| wrap(&self.plain(note), area.width.into()));
            let lines: Vec<Line<'_>> = lines.map(Line::from).collect();
            return frame.render_widget(Paragraph::new(lines), area);
        }
        if listed.is_empty() {
            let text = match (state.table.lines.len(), state.filter.text.as_str()) {
                (0, _) => "no Services",
                _ => "no Service has this name or fate: Esc clears the filter",
            };
            return frame.render_widget(Line::from(text), area);
        }
        let (is_wide, is_narrow) = (area.width >= WIDE, area.width < NARROW);
        let columns = if is_narrow {
            vec!["FATE"]
        } else {
            CLIENTS.map(|(title, _)| title).to_vec()
        };
        let mut widths = vec![Constraint::Min(20)];
        widths.extend(columns.iter().enumerate().map(|(at, title)| {
            let ends = listed.iter().filter_map(|line| {
                if is_narrow {
                    line.end
                } else {
                    line.clients[at]
                }
            });
            let longest = ends.map(|end| end.name().len()).chain([title.len()]).max();
            Constraint::Length(u16::try_from(longest.unwrap_or(9)).unwrap_or(9))
        }));
        widths.push(Constraint::Length(6));
        let mut titles = vec!["SERVICE"];
        titles.extend(columns);
        titles.push("READY");
        if is_wide {
            titles.push("WHY");
            widths[0] = Constraint::Length(45);
            widths.push(Constraint::Min(20));
        }
        let columns = Layout::horizontal(widths.clone()).spacing(1).split(area);
        let rows = listed.iter().map(|line| {
            let mut cells = vec![Cell::from(self.cut(&line.name(), columns[0].width))];
            if is_narrow {
                cells.push(self.end(line.end));
            } else {
                cells.extend(line.clients.map(|end| self.end(end)));
            }
            let known =
                |count: Option<usize>| count.map_or("?".to_owned(), |number| number.to_string());
            let (ready, total) = line.ready;
            cells.push(Cell::from(format!("{}/{}", known(ready), known(total))));
            if is_wide {
                let width = columns.last().map_or(0, |column| column.width);
                cells.push(Cell::from(self.clipped(&line.reason, width)));
            }
            Row::new(cells)
        });
        let reversed = Style::new().add_modifier(Modifier::REVERSED);
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let table = Table::new(rows, widths)
            .header(Row::new(titles).style(bold))
            .row_highlight_style(reversed);
        let mut at = TableState::default().with_selected(state.at());
        frame.render_stateful_widget(table, area, &mut at);
    }

    /// Returns the beginning of `text`.
    fn clipped(self, text: &str, width: u16) -> String {
        let text = self.plain(text);
        let width = usize::from(width);
        if text.chars().count() <= width {
            return text;
        }
        let dots = render::dots(self.0.ascii);
        let kept = text
            .chars()
            .take(width.saturating_sub(dots.chars().count()));
        kept.chain(dots.chars()).collect()
    }

    fn end(self, end: Option<End>) -> Cell<'static> {
        match end {
            None => Cell::from("-"),
            Some(end @ End::ByDesign) => Cell::from(end.name()),
            Some(end @ End::Fate(fate)) => Cell::from(end.name()).style(self.style(tone(fate))),
        }
    }

    fn nodes(self, nodes: &[&NodeLine], at: usize, frame: &mut Frame<'_>, area: Rect) {
        const MODE: u16 = 9;
        let longest = |lengths: &mut dyn Iterator<Item = usize>| {
            u16::try_from(lengths.max().unwrap_or(0)).unwrap_or(u16::MAX)
        };
        let names = longest(&mut nodes.iter().map(|node| node.name.chars().count()));
        let judged = nodes.iter().filter_map(|node| node.judged.as_ref());
        let said = longest(&mut judged.map(|judged| judged.text.chars().count()));
        // Names are cut before the verdicts are.
        let room = area.width.saturating_sub(MODE + 4);
        let room = room.saturating_sub(said).max(area.width / 4);
        let widths = [
            Constraint::Length(names.min(room).min(area.width / 2)),
            Constraint::Length(MODE),
            Constraint::Min(1),
        ];
        let columns = Layout::horizontal(widths).spacing(2).split(area);
        let rows = nodes.iter().map(|node| {
            let (mode, tone, text) = match (&node.unread, &node.judged) {
                (Some(why), _) => ("", None, format!("not read: {why}")),
                (None, Some(judged)) => (judged.mode, Some(judged.tone), judged.text.clone()),
                (None, None) => ("", None, String::new()),
            };
            let text = Cell::from(self.clipped(&text, columns[2].width));
            Row::new([
                Cell::from(self.cut(&node.name, columns[0].width)),
                Cell::from(mode),
                match tone {
                    Some(tone) => text.style(self.style(tone)),
                    None => text,
                },
            ])
        });
        let reversed = Style::new().add_modifier(Modifier::REVERSED);
        let table = Table::new(rows, widths)
            .column_spacing(2)
            .row_highlight_style(reversed);
        let mut state = TableState::default().with_selected(at);
        frame.render_stateful_widget(table, area, &mut state);
    }

    fn page(self, shown: &Shown, frame: &mut Frame<'_>, area: Rect) {
        let lines = shown.text.lines().skip(shown.top);
        let lines = lines.take(area.height.into()).map(|line| {
            let spans = runs(line).into_iter().map(|(tone, text)| {
                let text = self.plain(&text);
                match tone {
                    Some(tone) => Span::styled(text, self.style(tone)),
                    None => Span::raw(text),
                }
            });
            Line::from(spans.collect::<Vec<_>>())
        });
        frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), area);
    }
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    let lines = KEYS.map(|(key, text)| Line::from(format!("{key:<20}{text}")));
    frame.render_widget(Paragraph::new(lines.to_vec()), area);
}

/// Returns the line that explains the keys.
fn help_line(state: &State) -> String {
    if state.is_help {
        return "any key: back".to_owned();
    }
    match (&state.nodes, &state.shown) {
        (Some(_), _) => {
            let filter = state.node_filter.key();
            let back = if state.table.lines.is_empty() {
                ""
            } else {
                "  Esc back"
            };
            format!("Enter open  {filter}{back}  ? keys  q end")
        }
        (None, Some(shown)) => {
            let count = shown.text.lines().count();
            let last = (shown.top + state.room).min(count);
            format!(
                "Esc back  e explain  p plan  ? keys  q end  lines {} to {last} of {count}",
                shown.top + 1
            )
        }
        (None, None) => {
            // The filter is the last to go.
            let node = if state.filter.text.is_empty() {
                "  n node"
            } else {
                ""
            };
            let filter = state.filter.key();
            format!("Enter draw  e explain  p plan  t top  {filter}{node}  ? keys  q end")
        }
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};

    use super::super::state::{Ask, Table, Topic};
    use super::*;
    use crate::view;
    use crate::view::head::tally;
    use kpx_judge::check::Facts;
    use kpx_node::evidence::{self, ITEMS};
    use kpx_node::node::NodeSnapshot;

    const LOOK: render::Style = render::Style {
        width: 80,
        color: true,
        ascii: false,
        wide: false,
        verbose: 0,
        program: "kpx",
    };

    /// The Services of a recording.
    fn state(recording: &str) -> State {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = path.join("testdata/nodes").join(recording);
        let evidence = evidence::load(&path, ITEMS).unwrap();
        let node = NodeSnapshot::new(&evidence);
        let query = view::Query {
            view: view::View::Services,
            name: None,
            namespace: None,
            family: None,
            across: None,
        };
        let shown = view::show(&node, query);
        let view::Rows::Services(rows) = &shown.rows else {
            panic!("{recording}");
        };
        let mut state = State::default();
        let facts = Facts::new(&node, None);
        let count = tally(&facts).map(|tally| tally.to_string());
        let head = "node1, recording".to_owned();
        state.show_table(Table::new(head, rows, Vec::new(), count));
        state
    }

    fn drawn(state: &mut State, look: render::Style, (width, height): (u16, u16)) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal
            .draw(|frame| Look(look).draw(state, frame))
            .unwrap();
        let buffer = terminal.backend().buffer();
        let lines = buffer.content.chunks(usize::from(width)).map(|line| {
            let cells = line.iter().map(ratatui::buffer::Cell::symbol);
            cells.collect::<String>().trim_end().to_owned()
        });
        lines.collect::<Vec<_>>().join("\n") + "\n"
    }

    fn press(state: &mut State, codes: &[KeyCode]) -> Vec<Ask> {
        let asks = codes
            .iter()
            .filter_map(|code| state.press(KeyEvent::from(*code)));
        asks.collect()
    }

    #[test]
    fn the_list_has_what_fails_first_and_a_reason_where_there_is_room() {
        let mut state = state("ir03-missing-rule");
        insta::assert_snapshot!("list_80", drawn(&mut state, LOOK, (80, 14)));
        insta::assert_snapshot!("list_200", drawn(&mut state, LOOK, (200, 14)));
    }

    #[test]
    fn what_needs_a_look_comes_first_and_the_reason_of_the_selected_row_is_below() {
        use KeyCode::Down;
        let mut state = state("full-iptables");
        let place = |state: &State, name: &str| {
            let listed = state.listed();
            let at = listed.iter().position(|line| line.name().starts_with(name));
            at.unwrap_or_else(|| panic!("no {name}"))
        };
        let balancer = place(&state, "edge/lb-proxy");
        let restricted = place(&state, "edge/web-restricted");
        let works = place(&state, "default/kubernetes");
        assert!(balancer < restricted && restricted < works);
        let count = state.listed().len();
        for at in [balancer, restricted] {
            let mut state = state.clone();
            for _ in 0..at {
                press(&mut state, &[Down]);
            }
            let text = drawn(&mut state, LOOK, (80, 24));
            let reason = format!("{}: ", state.listed()[at].name());
            let place = format!("row {} of {count}", at + 1);
            let mut lines = text.lines();
            let is_shown = lines.any(|line| line.starts_with(&reason) && line.ends_with(&place));
            assert!(is_shown, "{text}");
        }
        let typed: Vec<KeyCode> = "/By design".chars().map(KeyCode::Char).collect();
        press(&mut state, &typed);
        assert!(!state.listed().is_empty());
        let is_restricted = |line: &&view::matrix::Line| {
            let mut ends = line.clients.iter().chain([&line.end]);
            ends.any(|end| *end == Some(End::ByDesign))
        };
        assert!(state.listed().iter().all(is_restricted));
    }

    #[test]
    fn a_narrow_screen_has_one_column_for_the_fate() {
        let mut state = state("ir03-missing-rule");
        let text = drawn(&mut state, LOOK, (40, 14));
        let line = |name: &str| {
            let mut lines = text.lines();
            let found = lines.find(|line| line.starts_with(name));
            found.unwrap_or_else(|| panic!("{text}")).to_owned()
        };
        assert!(line("SERVICE").contains("FATE"), "{text}");
        assert!(line("default/redis").contains("lost"), "{text}");
        assert!(line("default/nginx-svc").contains("works"), "{text}");
    }

    #[test]
    fn services_that_were_not_read_are_unknown_and_not_none() {
        let mut state = State::default();
        let why = "note: no cluster is configured".to_owned();
        state.show_table(Table::new(
            "this node, now".to_owned(),
            &[],
            vec![why],
            None,
        ));
        let text = drawn(&mut state, LOOK, (60, 10));
        assert!(text.contains("the Services are unknown"), "{text}");
        assert_eq!(
            text.matches("no cluster is configured").count(),
            1,
            "{text}"
        );
        assert!(!text.contains("no Services"), "{text}");
        state.show_table(Table::new(
            "this node, now".to_owned(),
            &[],
            Vec::new(),
            None,
        ));
        let text = drawn(&mut state, LOOK, (60, 10));
        assert!(text.contains("no Services"), "{text}");
    }

    #[test]
    fn ascii_means_ascii() {
        let mut state = state("ir03-missing-rule");
        let look = render::Style {
            ascii: true,
            ..LOOK
        };
        let text = drawn(&mut state, look, (60, 14));
        assert!(text.is_ascii(), "{text}");
    }

    #[test]
    fn keys_ask_for_pages_of_the_selected_service() {
        use KeyCode::{Char, Down, End, Enter, Esc, Home};
        let mut state = state("ir03-missing-rule");
        let broken = "default/redis-master".to_owned();
        assert_eq!(
            press(&mut state, &[Enter, Char('e'), Char('p')]),
            [
                Ask::Show(Topic::Picture(broken.clone())),
                Ask::Show(Topic::Explain(broken.clone())),
                Ask::Show(Topic::Plan),
            ]
        );
        assert_eq!(
            press(&mut state, &[Char('r'), Char('n'), Char('q')]),
            [Ask::Read, Ask::Nodes, Ask::End]
        );
        let [Ask::Show(Topic::Picture(next))] = &press(&mut state, &[Down, Enter])[..] else {
            panic!("no picture");
        };
        assert_ne!(*next, broken);
        press(&mut state, &[End]);
        assert_eq!(state.at(), state.listed().len() - 1);
        press(&mut state, &[Home, Char('/'), Char('q'), Char('q')]);
        assert!(state.listed().is_empty());
        assert_eq!(press(&mut state, &[Enter, Enter]), []);
        let text = drawn(&mut state, LOOK, (80, 10));
        assert!(text.contains("Esc clears the filter"), "{text}");
        press(&mut state, &[Esc]);
        assert_eq!(state.listed().len(), state.table.lines.len());
    }

    #[test]
    fn a_page_scrolls_to_its_end_and_no_further() {
        use KeyCode::{Char, Down, End, Esc, PageDown};
        let mut state = state("ir03-missing-rule");
        let text: Vec<String> = (1..=50).map(|line| format!("line {line}")).collect();
        state.show_page(Topic::Plan, &text.join("\n"), 80);
        drawn(&mut state, LOOK, (80, 14));
        press(&mut state, &[Down, PageDown]);
        let text = drawn(&mut state, LOOK, (80, 14));
        assert!(
            text.contains("\nline 11\n") && !text.contains("line 10\n"),
            "{text}"
        );
        press(&mut state, &[End, Down]);
        let text = drawn(&mut state, LOOK, (80, 14));
        assert!(text.contains("\nline 50\n"), "{text}");
        assert!(text.contains("lines 41 to 50 of 50"), "{text}");
        press(&mut state, &[Char('?')]);
        assert!(drawn(&mut state, LOOK, (80, 16)).contains("choose another node"));
        press(&mut state, &[Esc, Esc]);
        assert!(state.shown.is_none());
    }

    #[test]
    fn colours_follow_the_fate_and_the_style() {
        let colours = |color| {
            let mut terminal = Terminal::new(TestBackend::new(80, 14)).unwrap();
            let look = render::Style { color, ..LOOK };
            let mut state = state("ir03-missing-rule");
            terminal
                .draw(|frame| Look(look).draw(&mut state, frame))
                .unwrap();
            let cells = terminal.backend().buffer().content.clone();
            [Color::Red, Color::Green].map(|colour| cells.iter().any(|cell| cell.fg == colour))
        };
        assert_eq!(colours(true), [true, true]);
        assert_eq!(colours(false), [false, false]);
    }
}
