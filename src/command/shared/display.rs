//! The terminal as a screen, until it is dropped: raw input, and a page of its own.

use std::io;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal;
use ratatui::{DefaultTerminal, Frame};

/// The terminal, which is restored when this is dropped and before a panic is reported.
pub(in crate::command) struct Display {
    terminal: DefaultTerminal,
}

/// The keys that were typed since the last call.
#[derive(Default)]
pub(in crate::command) struct Typed {
    pub(in crate::command) keys: Vec<KeyEvent>,
    /// Whether there is something to draw: a key, or another size of the terminal.
    pub(in crate::command) is_changed: bool,
}

impl Display {
    /// Takes the terminal.
    pub(in crate::command) fn open() -> io::Result<Self> {
        let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
        Ok(Self { terminal })
    }

    /// Draws the screen.
    pub(in crate::command) fn draw(&mut self, fill: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        // A check that panicked on a thread of its own, which is reported as unknown, has restored the terminal.
        if !terminal::is_raw_mode_enabled()? {
            self.terminal = ratatui::try_init()?;
        }
        self.terminal.draw(fill)?;
        Ok(())
    }

    /// Returns the width, in columns.
    pub(in crate::command) fn width(&self) -> io::Result<u16> {
        Ok(self.terminal.size()?.width)
    }

    /// Returns what was typed since the last call, without waiting.
    #[expect(
        clippy::unused_self,
        reason = "only a terminal that was taken has keys to read"
    )]
    pub(in crate::command) fn typed(&mut self) -> io::Result<Typed> {
        let mut typed = Typed::default();
        while event::poll(Duration::ZERO)? {
            typed.is_changed = true;
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
            {
                typed.keys.push(key);
            }
        }
        Ok(typed)
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        // A panic has restored it: doing so again would put the cursor on the report.
        if terminal::is_raw_mode_enabled().unwrap_or(true) {
            ratatui::restore();
        }
    }
}

/// Returns whether `key` is Ctrl-C, which ends every screen.
pub(in crate::command) fn interrupts(key: KeyEvent) -> bool {
    key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c')
}

/// A filter that is typed behind `/`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(in crate::command) struct Filter {
    pub(in crate::command) text: String,
    /// Whether keys are letters of it.
    pub(in crate::command) is_typing: bool,
}

impl Filter {
    /// Takes a key; returns whether it was one of the filter.
    pub(in crate::command) fn press(&mut self, code: KeyCode) -> bool {
        match code {
            KeyCode::Char('/') if !self.is_typing => self.is_typing = true,
            _ if !self.is_typing => return false,
            KeyCode::Char(letter) => self.text.push(letter),
            KeyCode::Backspace => drop(self.text.pop()),
            KeyCode::Esc => {
                self.text.clear();
                self.is_typing = false;
            }
            KeyCode::Enter => self.is_typing = false,
            _ => {}
        }
        true
    }

    /// Returns the filter as the line of keys shows it.
    pub(in crate::command) fn key(&self) -> String {
        match self.text.as_str() {
            "" => "/ filter".to_owned(),
            text => format!("/ filter: {text}"),
        }
    }

    /// Returns the line in place of the line of keys while the filter is typed.
    pub(in crate::command) fn prompt(&self) -> Option<String> {
        self.is_typing
            .then(|| format!("filter: {}_   Enter keeps it, Esc clears it", self.text))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Set in the process that draws on a terminal of its own, and panics.
    const DRAWS: &str = "KPX_TEST_DRAWS";

    #[test]
    fn a_panic_restores_the_terminal_before_it_is_reported() {
        if std::env::var_os(DRAWS).is_some() {
            let mut display = Display::open().unwrap();
            display
                .draw(|frame| frame.render_widget("drawn", frame.area()))
                .unwrap();
            panic!("made up");
        }
        let this = std::env::current_exe().unwrap();
        let name =
            "command::shared::display::tests::a_panic_restores_the_terminal_before_it_is_reported";
        let draws = format!(
            "stty rows 24 cols 80; stty -g; {DRAWS}=1 '{}' --exact {name} --nocapture; stty -g",
            this.display()
        );
        #[expect(
            clippy::disallowed_methods,
            reason = "the terminal is that of the whole process"
        )]
        let mut script = Command::new("script");
        let ran = script
            .args(["-q", "-c", &draws, "/dev/null"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let shown = String::from_utf8_lossy(&ran.stdout).into_owned();
        // The settings of the line, before and after.
        let mut lines = shown.lines().map(str::trim);
        let (before, after) = (lines.next(), lines.next_back());
        assert!(before.is_some_and(|line| line.contains(':')), "{shown}");
        assert_eq!(before, after, "{shown}");
        assert_eq!(shown.matches("\u{1b}[?1049l").count(), 1, "{shown}");
        let at = |what: &str| {
            let at = shown.rfind(what);
            at.unwrap_or_else(|| panic!("{what}: {shown}"))
        };
        assert!(at("\u{1b}[?1049h") < at("drawn"), "{shown}");
        assert!(at("drawn") < at("\u{1b}[?1049l"), "{shown}");
        assert!(at("\u{1b}[?1049l") < at("made up"), "{shown}");
    }
}
