//! The screen of `kpx top`.

use std::io;

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row as Cells, Table, TableState};

use super::report::{BACKEND_COLUMNS, SERVICE_COLUMNS, TopReport, backend_cells, service_cells};
use super::view::{Left, Row, SortKey};
use crate::command::shared::display::{Display, Filter, interrupts};
use crate::render::{shorten, wrap};
use kpx_node::net::Proto;
use kpx_node::owner::PortName;

/// The order in which `s` goes through the columns.
const KEYS: [(SortKey, &str); 6] = [
    (SortKey::New, "NEW/S"),
    (SortKey::Open, "OPEN"),
    (SortKey::Packets, "PKTS/S"),
    (SortKey::Bytes, "BYTES/S"),
    (SortKey::Refused, "REFUSED/S"),
    (SortKey::Name, "SERVICE"),
];

/// The widths of the tables' columns; the first column takes what the others leave.
const SERVICES: [u16; 7] = [0, 7, 7, 7, 9, 8, 9];
const BACKENDS: [u16; 9] = [0, 7, 7, 9, 8, 6, 8, 11, 36];

/// The screen on a terminal.
pub(super) struct Screen<'d> {
    display: &'d mut Display,
    report: Option<TopReport>,
    state: State,
}

/// The choices made by keys.
struct State {
    sort: SortKey,
    selected: Option<(PortName, Proto)>,
    /// Whether the backends of the selected Service are shown.
    is_open: bool,
    filter: Filter,
    paused: bool,
    /// Whether it is a page of another screen.
    is_page: bool,
    /// The mark for the omitted middle of a long name.
    dots: &'static str,
}

impl<'d> Screen<'d> {
    /// Returns an empty screen; `is_page` is whether there is another one to go back to.
    pub(super) fn new(
        display: &'d mut Display,
        sort: SortKey,
        dots: &'static str,
        is_page: bool,
    ) -> Self {
        Self {
            display,
            report: None,
            state: State {
                is_page,
                ..State::new(sort, dots)
            },
        }
    }

    /// Shows a reading, unless the screen is paused.
    pub(super) fn show(&mut self, report: TopReport) -> io::Result<()> {
        if !self.state.paused || self.report.is_none() {
            self.report = Some(report);
        }
        self.draw()
    }

    /// Takes the keys typed since the last call; returns the way in which one of them leaves it.
    pub(super) fn look(&mut self) -> io::Result<Option<Left>> {
        let typed = self.display.typed()?;
        let rows = self.report.as_ref();
        let rows = rows.map_or(&[][..], |report| &report.services);
        let mut keys = typed.keys.into_iter();
        if let Some(left) = keys.find_map(|key| self.state.press(key, rows)) {
            return Ok(Some(left));
        }
        if typed.is_changed {
            self.draw()?;
        }
        Ok(None)
    }

    fn draw(&mut self) -> io::Result<()> {
        let (report, state) = (&self.report, &self.state);
        if let Some(report) = report {
            self.display.draw(|frame| state.draw(report, frame))?;
        }
        Ok(())
    }
}

impl State {
    fn new(sort: SortKey, dots: &'static str) -> Self {
        Self {
            sort,
            selected: None,
            is_open: false,
            filter: Filter::default(),
            paused: false,
            is_page: false,
            dots,
        }
    }

    /// Takes a key; returns how it leaves the screen.
    fn press(&mut self, key: KeyEvent, rows: &[Row]) -> Option<Left> {
        if interrupts(key) {
            return Some(Left::End);
        }
        if self.filter.press(key.code) {
            return None;
        }
        match key.code {
            KeyCode::Char('q') => return Some(Left::End),
            KeyCode::Char('t') if self.is_page => return Some(Left::Back),
            KeyCode::Esc if self.is_open => self.is_open = false,
            KeyCode::Esc if self.is_page && self.filter.text.is_empty() => {
                return Some(Left::Back);
            }
            KeyCode::Esc => self.filter.text.clear(),
            KeyCode::Enter => self.is_open = !self.is_open && !self.listed(rows).is_empty(),
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('s') => {
                let at = KEYS.iter().position(|(key, _)| *key == self.sort);
                self.sort = KEYS[at.map_or(0, |at| (at + 1) % KEYS.len())].0;
            }
            KeyCode::Up | KeyCode::Char('k') => self.go(rows, -1),
            KeyCode::Down | KeyCode::Char('j') => self.go(rows, 1),
            KeyCode::PageUp => self.go(rows, -10),
            KeyCode::PageDown => self.go(rows, 10),
            KeyCode::Home => self.go(rows, isize::MIN),
            KeyCode::End => self.go(rows, isize::MAX),
            _ => {}
        }
        None
    }

    /// Returns the rows that the filter leaves, in order.
    fn listed(&self, rows: &[Row]) -> Vec<Row> {
        let left = rows.iter();
        let left = left.filter(|row| row.service.to_string().contains(&self.filter.text));
        let mut left: Vec<_> = left.cloned().collect();
        self.sort.sort(&mut left);
        left
    }

    /// Returns the position of the selected row, or of the first one if that has no traffic any more.
    fn at(&self, rows: &[Row]) -> usize {
        let selected = self.selected.as_ref();
        let at = selected.and_then(|(name, proto)| {
            let mut all = rows.iter();
            all.position(|row| row.service == *name && row.protocol == *proto)
        });
        at.unwrap_or(0)
    }

    /// Selects the row `by` rows below.
    fn go(&mut self, rows: &[Row], by: isize) {
        let rows = self.listed(rows);
        let last = rows.len().saturating_sub(1);
        let to = self.at(&rows).saturating_add_signed(by).min(last);
        self.selected = rows.get(to).map(|row| (row.service.clone(), row.protocol));
    }

    fn draw(&self, report: &TopReport, frame: &mut Frame<'_>) {
        let room = usize::from(frame.area().width).saturating_sub("note: ".len());
        let notes = report.notes.iter().flat_map(|note| {
            let lead = std::iter::once("note: ").chain(std::iter::repeat("      "));
            let lines = lead.zip(wrap(note, room));
            lines.map(|(lead, line)| Line::from(format!("{lead}{line}")))
        });
        let notes: Vec<_> = notes.collect();
        let [head, note, body, foot, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(u16::try_from(notes.len()).unwrap_or(0)),
            Constraint::Min(1),
            Constraint::Length(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let paused = if self.paused { "  PAUSED" } else { "" };
        frame.render_widget(Line::from(format!("{}{paused}", report.head())), head);
        frame.render_widget(Paragraph::new(notes), note);
        let rows = self.listed(&report.services);
        let at = self.at(&rows);
        match rows.get(at).filter(|_| self.is_open) {
            Some(row) => self.page(row, frame, body),
            None => self.list(&rows, at, frame, body),
        }
        frame.render_widget(Line::from(report.foot()), foot);
        let dim = Style::new().add_modifier(Modifier::DIM);
        frame.render_widget(Line::from(self.keys()).style(dim), keys);
    }

    /// Returns the line that explains the keys.
    fn keys(&self) -> String {
        if let Some(prompt) = self.filter.prompt() {
            return prompt;
        }
        let sorted = KEYS.iter().find(|(key, _)| *key == self.sort);
        let filter = self.filter.key();
        let enter = if self.is_open {
            "Enter list"
        } else {
            "Enter backends"
        };
        let sorted = sorted.map_or("", |(_, title)| title);
        let back = if self.is_page { "t Services  " } else { "" };
        format!("{back}q end  up/down select  {enter}  s sort: {sorted}  {filter}  space pause")
    }

    fn list(&self, rows: &[Row], at: usize, frame: &mut Frame<'_>, area: Rect) {
        let sorted = KEYS.iter().find(|(key, _)| *key == self.sort);
        let sorted = sorted.map_or("", |(_, title)| title);
        let cells = rows.iter().map(service_cells);
        let mut state = TableState::default().with_selected(at);
        let table = self.table(area, &SERVICE_COLUMNS, cells, &SERVICES, sorted);
        let reversed = Style::new().add_modifier(Modifier::REVERSED);
        let table = table.row_highlight_style(reversed);
        frame.render_stateful_widget(table, area, &mut state);
    }

    fn page(&self, row: &Row, frame: &mut Frame<'_>, area: Rect) {
        let [service, space, backends] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(1),
            Constraint::Min(1),
        ])
        .areas(area);
        let cells = std::iter::once(service_cells(row));
        let table = self.table(area, &SERVICE_COLUMNS, cells, &SERVICES, "");
        frame.render_widget(table, service);
        frame.render_widget(Line::default(), space);
        // At 80 columns there is no room for the pods' names.
        let kept = if area.width < 120 { 8 } else { 9 };
        let cells = row.backends.iter().map(backend_cells);
        let cells = cells.map(|all| all[..kept].to_vec());
        let table = self.table(area, &BACKEND_COLUMNS[..kept], cells, &BACKENDS[..kept], "");
        frame.render_widget(table, backends);
    }

    /// Returns a table for `area` whose first column takes the width that the `widths` of the others leave; `sorted` is marked.
    fn table<'t, C: IntoIterator<Item = String>>(
        &self,
        area: Rect,
        titles: &[&'t str],
        rows: impl Iterator<Item = C>,
        widths: &[u16],
        sorted: &str,
    ) -> Table<'t> {
        let bold = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
        let title = |&title: &&'t str| {
            let style = if title == sorted { bold } else { Style::new() };
            Cell::from(title).style(style)
        };
        let widths = widths.iter().map(|&width| match width {
            0 => Constraint::Min(16),
            width => Constraint::Length(width),
        });
        let columns = Layout::horizontal(widths.clone()).spacing(1).split(area);
        let rows = rows.map(|cells| {
            let cells = cells.into_iter().zip(columns.iter());
            let cells = cells.map(|(cell, at)| shorten(&cell, at.width.into(), self.dots));
            Cells::new(cells.map(Cell::from))
        });
        Table::new(rows, widths).header(Cells::new(titles.iter().map(title)))
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::command::top::view::{BackendRow, Rates};
    use crate::report::traffic_source::Source;
    use crate::view::conntrack::BackendStatus;
    use kpx_node::backend::Mode;
    use kpx_node::evidence::Time;

    fn row(name: &str, new: f64, refused: f64) -> Row {
        let rates = Rates {
            new_per_second: new,
            open: 12,
            waiting: Some(1),
            packets_per_second: Some(new * 10.0),
            bytes_per_second: None,
        };
        let backend = |at: &str, share| BackendRow {
            backend: at.parse().unwrap(),
            pod: Some(format!("default/{name}-1")),
            backend_status: Some(BackendStatus::Terminating),
            rates,
            new_connections: 3,
            share,
            promised: Some(0.5),
        };
        Row {
            service: PortName::parse(name).unwrap(),
            protocol: Proto::Udp,
            rates,
            refused_per_second: Some(refused),
            backends: vec![
                backend("10.244.1.14:80", Some(0.375)),
                backend("10.244.1.16:80", None),
            ],
        }
    }

    fn report() -> TopReport {
        TopReport {
            at: Time {
                seconds: 1_795_000_000,
            },
            mode: Some(Mode::Iptables),
            source: Source::Conntrack,
            seconds: 2.0,
            processor: 0.004,
            service_ports: 9,
            elsewhere: 1,
            services: vec![
                row("default/web", 5.0, 0.0),
                row("kube-system/kube-dns:dns", 20.0, 7.0),
            ],
            named: false,
            notes: vec![
                "packets and bytes are unknown; `sysctl -w net.netfilter.nf_conntrack_acct=1` makes the kernel count them"
                    .to_owned(),
            ],
        }
    }

    fn screen(state: &State, width: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, 10)).unwrap();
        let report = report();
        terminal.draw(|frame| state.draw(&report, frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let cells = buffer.content.chunks(usize::from(width));
        let lines = cells.map(|line| {
            line.iter()
                .map(ratatui::buffer::Cell::symbol)
                .collect::<String>()
        });
        let lines: Vec<_> = lines.map(|line| line.trim_end().to_owned()).collect();
        lines.join("\n") + "\n"
    }

    fn typed(state: &mut State, codes: &[KeyCode]) -> bool {
        let rows = report().services;
        codes
            .iter()
            .any(|&code| state.press(KeyEvent::from(code), &rows).is_some())
    }

    const LIST: &str = "\
2026-11-18T11:06:40Z  mode iptables  2.0 s  kpx: 0.4% of a processor
note: packets and bytes are unknown; `sysctl -w
      net.netfilter.nf_conntrack_acct=1` makes the kernel count them
SERVICE                     NEW/S   OPEN    WAITING PKTS/S    BYTES/S  REFUSED/S
kube-system/k…e-dns:dns/udp 20.0    12      1       200       -        7.0
default/web/udp             5.0     12      1       50.0      -        0


7 service ports without traffic; 1 translated connection to no Service
q end  up/down select  Enter backends  s sort: NEW/S  / filter  space pause
";

    #[test]
    fn a_list_has_the_busiest_services_first() {
        assert_eq!(screen(&State::new(SortKey::New, "…"), 80), LIST);
    }

    #[test]
    fn keys_choose_what_is_shown() {
        use KeyCode::{Char, Down, Enter, Esc};
        let mut state = State::new(SortKey::New, "…");
        assert!(!typed(&mut state, &[Down, Enter]));
        let page = screen(&state, 80);
        assert!(page.contains("\ndefault/web/udp "), "{page}");
        assert!(page.contains("10.244.1.14:80    5.0"), "{page}");
        assert!(page.contains("37.5%"), "{page}");
        let wide = screen(&state, 200);
        assert!(wide.contains("terminating default/default/web-1"), "{wide}");
        assert!(!typed(
            &mut state,
            &[Esc, Char('/'), Char('d'), Char('n'), Char('s'), Char('q')]
        ));
        assert!(screen(&state, 80).contains("filter: dnsq_"));
        assert!(!typed(&mut state, &[KeyCode::Backspace, Enter]));
        let filtered = screen(&state, 80);
        assert!(
            filtered.contains("e-dns:dns") && !filtered.contains("default/web"),
            "{filtered}"
        );
        assert!(!typed(&mut state, &[Esc, Char(' '), Char('s')]));
        assert!(screen(&state, 80).contains("PAUSED"));
        assert!(screen(&state, 80).contains("sort: OPEN"));
        assert!(typed(&mut state, &[Char('q')]));
    }
}
