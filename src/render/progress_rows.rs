//! Progress of several nodes on a terminal: one line each, below the messages.

use std::io::Write;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::page::{dots, shorten};

/// The interval at which elapsed times are redrawn.
const TICK: Duration = Duration::from_secs(1);

/// The number of lines drawn at once: with more rows, those around the active one.
const DRAWN: usize = 10;

/// The number of lines drawn above the active one.
const ABOVE: usize = 2;

/// The longest name, in characters: the middle of a longer one is cut out.
const NAME: usize = 28;

/// The smallest width with a bar, in columns.
const ROOM: u16 = 64;

/// Rows of progress at the bottom of stderr, each with a name. Without a terminal no rows are drawn, and messages are
/// written as plain lines.
#[derive(Debug, Default)]
pub(crate) struct Board {
    drawn: Option<Drawn>,
}

#[derive(Debug)]
struct Drawn {
    all: MultiProgress,
    rows: Vec<Row>,
    /// The row below them, for all of them together.
    total: Option<Row>,
    width: u16,
    ascii: bool,
}

#[derive(Debug)]
struct Row {
    name: String,
    bar: ProgressBar,
    /// The number of steps; `None` before the first one.
    begun: Option<usize>,
    shown: bool,
}

impl Board {
    /// Returns a board on stderr, `width` columns wide.
    pub(crate) fn on_terminal(width: u16, ascii: bool) -> Self {
        Self::on(ProgressDrawTarget::stderr(), width, ascii)
    }

    /// Returns a board on `target`, `width` columns wide.
    pub(crate) fn on(target: ProgressDrawTarget, width: u16, ascii: bool) -> Self {
        Self {
            drawn: Some(Drawn {
                all: MultiProgress::with_draw_target(target),
                rows: Vec::new(),
                total: None,
                width,
                ascii,
            }),
        }
    }

    /// Returns whether rows are drawn, so that messages about progress are not needed.
    pub(crate) fn is_drawn(&self) -> bool {
        self.drawn.is_some()
    }

    /// Adds waiting rows, each with its number of steps, and below them the row `total`, which counts the finished ones.
    pub(crate) fn add(&mut self, rows: &[(&str, usize)], total: &str) {
        let Some(drawn) = &mut self.drawn else {
            return;
        };
        for (name, steps) in rows {
            let row = drawn.waiting(name, *steps);
            drawn.rows.push(row);
        }
        drawn.total = Some(drawn.waiting(total, rows.len()));
        drawn.look_at(0);
    }

    /// Shows in the row below all others that `finished` rows are finished, and the message `what`.
    pub(crate) fn total(&mut self, finished: usize, what: &str) {
        if let Some(drawn) = &mut self.drawn
            && let Some(row) = &mut drawn.total
        {
            if row.begun.is_none() {
                row.begin(
                    finished,
                    drawn.rows.len(),
                    &Took::Total,
                    drawn.width,
                    drawn.ascii,
                );
            }
            row.bar.set_position(count(finished));
            row.bar.set_message(plain(what));
            row.bar.force_draw();
        }
    }

    /// Starts step `step` of `of` in the row `name`, with the message `what`.
    pub(crate) fn begin(&mut self, name: &str, step: usize, of: usize, what: &str) {
        let Some(drawn) = &mut self.drawn else {
            return;
        };
        let at = drawn.find(name, of);
        drawn.look_at(at);
        drawn.begin(at, step, of, what);
    }

    /// Shows the message `what` in the row `name`.
    pub(crate) fn show(&mut self, name: &str, what: &str) {
        if let Some(drawn) = &mut self.drawn
            && let Some(row) = drawn.rows.iter().find(|row| row.name == name)
        {
            row.bar.set_message(plain(what));
            row.bar.force_draw();
        }
    }

    /// Finishes the row `name` with the message `what`.
    pub(crate) fn end(&mut self, name: &str, what: &str) {
        if let Some(drawn) = &mut self.drawn
            && let Some(at) = drawn.rows.iter().position(|row| row.name == name)
        {
            drawn.end(at, what);
        }
    }

    /// Prints `line`, which stays: above the rows, or on `err`.
    pub(crate) fn say(&self, line: &str, err: &mut dyn Write) {
        // The work continues even if stderr is closed.
        self.aside(|| writeln!(err, "{line}").ok());
    }

    /// Hides the rows until [`Board::reveal`], while something else uses the terminal.
    pub(crate) fn hide(&self) {
        if let Some(drawn) = &self.drawn {
            drawn.all.clear().ok();
            drawn.all.set_draw_target(ProgressDrawTarget::hidden());
        }
    }

    /// Draws the rows again.
    pub(crate) fn reveal(&self) {
        if let Some(drawn) = &self.drawn {
            drawn.all.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Runs `work`, which uses the terminal, with the rows hidden.
    pub(crate) fn aside<T>(&self, work: impl FnOnce() -> T) -> T {
        match &self.drawn {
            Some(drawn) => drawn.all.suspend(work),
            None => work(),
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // Messages stay; the report that follows replaces the rows.
        if let Some(drawn) = &self.drawn {
            for row in drawn.rows.iter().chain(&drawn.total) {
                row.bar.disable_steady_tick();
                row.bar.finish_and_clear();
            }
            drawn.all.clear().ok();
        }
    }
}

impl Row {
    fn begin(&mut self, done: usize, of: usize, took: &Took, width: u16, ascii: bool) {
        if self.begun != Some(of) {
            self.begun = Some(of);
            self.bar.reset();
            self.bar.set_length(count(of));
            self.bar.set_style(style(width, ascii, took));
        }
        self.bar.set_position(count(done));
        self.bar.enable_steady_tick(TICK);
    }
}

impl Drawn {
    fn waiting(&self, name: &str, steps: usize) -> Row {
        let bar = ProgressBar::with_draw_target(Some(count(steps)), ProgressDrawTarget::hidden());
        bar.set_prefix(shorten(name, NAME, dots(self.ascii)));
        bar.set_message("waiting");
        bar.set_style(style(self.width, self.ascii, &Took::Nothing));
        Row {
            name: name.to_owned(),
            bar,
            begun: None,
            shown: false,
        }
    }

    /// Returns the index of the row `name`, after adding it if needed.
    fn find(&mut self, name: &str, steps: usize) -> usize {
        let known = self.rows.iter().position(|row| row.name == name);
        known.unwrap_or_else(|| {
            let row = self.waiting(name, steps);
            self.rows.push(row);
            self.rows.len() - 1
        })
    }

    /// Draws the rows around `at`.
    fn look_at(&mut self, at: usize) {
        let last = self.rows.len().saturating_sub(DRAWN);
        let from = at.saturating_sub(ABOVE).min(last);
        let window = from..from + DRAWN;
        let mut rows = self.rows.iter().enumerate();
        if rows.all(|(at, row)| row.shown == window.contains(&at)) {
            return;
        }
        let all = || self.rows.iter().chain(&self.total);
        let name = all().map(|row| row.bar.prefix().chars().count()).max();
        for row in all().filter(|row| row.shown) {
            self.all.remove(&row.bar);
        }
        self.all.clear().ok();
        let rows = self.rows.iter_mut().enumerate();
        let rows = rows.map(|(at, row)| (window.contains(&at), row));
        for (shown, row) in rows.chain(self.total.iter_mut().map(|row| (true, row))) {
            row.shown = shown;
            if shown {
                let prefix = row.bar.prefix();
                let width = name.unwrap_or(0);
                row.bar.set_prefix(format!("{prefix:width$}"));
                self.all.add(row.bar.clone());
                row.bar.force_draw();
            }
        }
    }

    fn begin(&mut self, at: usize, step: usize, of: usize, what: &str) {
        // Each ticking row has a thread: one is enough.
        for row in &self.rows {
            row.bar.disable_steady_tick();
        }
        let row = &mut self.rows[at];
        // The bar is filled up to the last finished step; the number is that of the active one.
        let done = step.saturating_sub(1);
        row.begin(done, of, &Took::SoFar, self.width, self.ascii);
        row.bar.set_message(plain(what));
    }

    fn end(&mut self, at: usize, what: &str) {
        let bar = &self.rows[at].bar;
        bar.disable_steady_tick();
        let took = Took::InAll(bar.elapsed());
        bar.set_style(style(self.width, self.ascii, &took));
        bar.set_position(bar.length().unwrap_or_default());
        bar.abandon_with_message(plain(what));
    }
}

fn count(steps: usize) -> u64 {
    u64::try_from(steps).unwrap_or(u64::MAX)
}

/// The state of a row, which decides whether its steps and time are drawn.
enum Took {
    /// Waiting.
    Nothing,
    /// Active: the step, and the elapsed time.
    SoFar,
    /// The row below: the finished rows, and the elapsed time.
    Total,
    /// Finished: all steps, and the total time.
    InAll(Duration),
}

fn style(width: u16, ascii: bool, took: &Took) -> ProgressStyle {
    let template = if width < ROOM {
        "{prefix} {step} {wide_msg}"
    } else {
        "{prefix}  {bar:10}  {step}  {wide_msg}"
    };
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let (goes_on, timed, in_all) = match took {
        Took::Nothing => (0, false, None),
        Took::SoFar => (1, true, None),
        Took::Total => (0, true, None),
        Took::InAll(took) => (0, true, Some(*took)),
    };
    let step = move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        let of = state.len().unwrap_or_default();
        let at = (state.pos() + goes_on).min(of);
        let took = timed.then(|| clock(in_all.unwrap_or_else(|| state.elapsed())));
        let took = took.unwrap_or_default();
        // Writing to this buffer does not fail.
        write!(out, "{at:>2}/{of:<2}  {took:>5}").ok();
    };
    style
        .with_key("step", step)
        .progress_chars(if ascii { "=>-" } else { "━╸─" })
}

/// Returns `took` as `m:ss`, or `h:mm:ss`.
fn clock(took: Duration) -> String {
    let seconds = took.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours == 0 {
        format!("{minutes}:{seconds:02}")
    } else {
        format!("{hours}:{minutes:02}:{seconds:02}")
    }
}

/// Returns `text` as one line without control characters: some of it comes from the cluster.
fn plain(text: &str) -> String {
    let words = text.split(|c: char| c.is_control() || c == ' ');
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

/// A virtual terminal, for tests.
#[cfg(test)]
pub(crate) mod glass {
    use std::fmt;
    use std::io::{self, Write};
    use std::num::NonZeroU16;
    use std::sync::{Arc, Mutex};

    use indicatif::{ProgressDrawTarget, TermLike};

    use super::Board;

    /// A virtual terminal. All drawn text appears at once with the next flush: rows are drawn by another thread, too.
    #[derive(Clone)]
    pub(crate) struct Glass(Arc<Mutex<Screen>>);

    struct Screen {
        parser: vt100::Parser,
        pending: String,
    }

    impl Screen {
        fn flush(&mut self) {
            let pending = std::mem::take(&mut self.pending);
            self.parser.process(pending.as_bytes());
        }
    }

    impl Glass {
        pub(crate) fn new(rows: u16, columns: u16) -> Self {
            let size = |size| NonZeroU16::new(size).unwrap();
            let parser = vt100::Parser::new(size(rows), size(columns), 1000);
            Self(Arc::new(Mutex::new(Screen {
                parser,
                pending: String::new(),
            })))
        }

        /// Returns a board on this terminal.
        pub(crate) fn board(&self, ascii: bool) -> Board {
            let target = ProgressDrawTarget::term_like_with_hz(Box::new(self.clone()), 255);
            let width = self.width();
            Board::on(target, width, ascii)
        }

        /// Returns the visible lines.
        pub(crate) fn seen(&self) -> Vec<String> {
            let glass = self.0.lock().unwrap();
            let screen = glass.parser.screen();
            let columns = screen.size().1.get();
            let rows = screen.rows(0, columns);
            let mut rows: Vec<_> = rows.map(|row| row.trim_end().to_owned()).collect();
            let used = rows.iter().rposition(|row| !row.is_empty());
            rows.truncate(used.map_or(0, |last| last + 1));
            rows
        }

        fn send(&self, text: &str) {
            self.0.lock().unwrap().pending.push_str(text);
        }
    }

    impl fmt::Debug for Glass {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(&self.seen().join("\n"))
        }
    }

    /// Translates line ends like a terminal.
    impl Write for Glass {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let text = String::from_utf8_lossy(bytes).replace('\n', "\r\n");
            self.send(&text);
            self.0.lock().unwrap().flush();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl TermLike for Glass {
        fn width(&self) -> u16 {
            self.0.lock().unwrap().parser.screen().size().1.get()
        }

        fn height(&self) -> u16 {
            self.0.lock().unwrap().parser.screen().size().0.get()
        }

        fn move_cursor_up(&self, n: usize) -> io::Result<()> {
            if n > 0 {
                self.send(&format!("\x1b[{n}A"));
            }
            Ok(())
        }

        fn move_cursor_down(&self, n: usize) -> io::Result<()> {
            if n > 0 {
                self.send(&format!("\x1b[{n}B"));
            }
            Ok(())
        }

        fn move_cursor_right(&self, n: usize) -> io::Result<()> {
            if n > 0 {
                self.send(&format!("\x1b[{n}C"));
            }
            Ok(())
        }

        fn move_cursor_left(&self, n: usize) -> io::Result<()> {
            if n > 0 {
                self.send(&format!("\x1b[{n}D"));
            }
            Ok(())
        }

        fn write_line(&self, s: &str) -> io::Result<()> {
            self.send(&format!("{s}\r\n"));
            Ok(())
        }

        fn write_str(&self, s: &str) -> io::Result<()> {
            self.send(s);
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            self.send("\r\x1b[2K");
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            self.0.lock().unwrap().flush();
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::glass::Glass;
    use super::*;

    #[test]
    fn without_a_terminal_messages_are_plain_lines() {
        let mut plain = Vec::new();
        let mut board = Board::default();
        board.add(&[("a", 2)], "all");
        board.begin("a", 1, 2, "begins");
        board.say("kpx: a: begins", &mut plain);
        board.say("kpx: b: ends", &mut plain);
        assert_eq!(plain, b"kpx: a: begins\nkpx: b: ends\n");
    }

    #[test]
    fn messages_are_above_the_rows() {
        let mut glass = Glass::new(12, 80);
        let mut board = glass.board(true);
        board.add(&[("worker1", 4), ("control-plane1", 4)], "cluster");
        board.total(0, "");
        board.begin("worker1", 2, 4, "restart kube-proxy");
        board.say("kpx: worker1: restart kube-proxy", &mut glass);
        board.show("worker1", "waiting:\x1b[2J\nfirst sync");
        assert_eq!(
            glass.seen(),
            [
                "kpx: worker1: restart kube-proxy",
                "worker1         ==>-------   2/4    0:00  waiting: [2J first sync",
                "control-plane1  ----------   0/4          waiting",
                "cluster         ----------   0/2    0:00",
            ]
        );
        board.end("worker1", "done");
        board.total(1, "");
        board.begin("control-plane1", 1, 4, "build");
        board.say("kpx: control-plane1: build", &mut glass);
        assert_eq!(
            glass.seen(),
            [
                "kpx: worker1: restart kube-proxy",
                "kpx: control-plane1: build",
                "worker1         ==========   4/4    0:00  done",
                "control-plane1  ----------   1/4    0:00  build",
                "cluster         =====>----   1/2    0:00",
            ]
        );
        drop(board);
        let said = [
            "kpx: worker1: restart kube-proxy",
            "kpx: control-plane1: build",
        ];
        assert_eq!(glass.seen(), said, "messages stay, rows do not");
    }

    #[test]
    fn of_many_rows_those_around_the_active_one_are_drawn() {
        let mut glass = Glass::new(24, 80);
        let mut board = glass.board(false);
        let names: Vec<String> = (1..=40).map(|at| format!("worker{at}")).collect();
        let rows: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
        board.add(&rows, "cluster");
        for (at, name) in names.iter().enumerate() {
            board.total(at, "");
            board.begin(name, 1, 1, "goes on");
            board.say(&format!("kpx: {name}"), &mut glass);
            let seen = glass.seen();
            let drawn = seen.iter().filter(|line| line.starts_with("worker"));
            assert_eq!(drawn.count(), DRAWN, "{seen:#?}");
            let goes_on = seen.iter().find(|line| line.ends_with("goes on")).unwrap();
            assert!(goes_on.starts_with(&format!("{name} ")), "{goes_on}");
            assert!(
                seen.last().unwrap().contains(&format!(" {at}/40")),
                "{seen:#?}"
            );
            board.end(name, "done");
        }
        board.total(40, "");
        let seen = glass.seen();
        assert!(
            seen.last()
                .unwrap()
                .starts_with("cluster   ━━━━━━━━━━  40/40"),
            "{seen:#?}"
        );
        assert!(seen.iter().any(|line| line == "kpx: worker40"), "{seen:#?}");
    }

    #[test]
    fn on_a_narrow_terminal_each_row_has_one_line() {
        let mut glass = Glass::new(10, 60);
        let mut board = glass.board(false);
        let long = "gke-production-pool-1-0a1b2c3d-x7f9";
        board.add(&[(long, 12), ("b", 3)], "cluster");
        board.begin(
            long,
            11,
            12,
            "a long description of what it waits for and why",
        );
        board.say("kpx: x", &mut glass);
        board.show(long, &"many words ".repeat(20));
        let seen = glass.seen();
        assert_eq!(seen.len(), 4, "{seen:#?}");
        let name = "gke-production…0a1b2c3d-x7f9";
        assert!(seen[1].starts_with(&format!("{name} 11/12")), "{seen:#?}");
    }

    #[test]
    fn an_elapsed_time_has_hours_only_if_needed() {
        assert_eq!(clock(Duration::from_secs(59)), "0:59");
        assert_eq!(clock(Duration::from_secs(3_725)), "1:02:05");
    }
}
