//! The terminal, detected once from the environment and the streams.

use std::io::{IsTerminal as _, stderr, stdin, stdout};

use ratatui::crossterm::terminal::size;

use crate::render;

/// The width of a terminal of unknown width, in columns.
const WIDTH: u16 = 80;

/// The smallest width, in columns: narrower tables are unreadable, and some serial consoles report 0.
const NARROWEST: u16 = 40;

/// The terminal, before options of the command line.
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that are independent of each other"
)]
#[derive(Clone, Copy, Debug)]
pub(in crate::command) struct Terminal {
    pub(in crate::command) width: u16,
    /// The width of stderr, if that is a terminal.
    pub(in crate::command) err_width: Option<u16>,
    pub(in crate::command) color: bool,
    pub(in crate::command) ascii: bool,
    pub(in crate::command) input: bool,
    pub(in crate::command) out: bool,
    pub(in crate::command) err: bool,
    /// Whether progress can be drawn on stderr.
    pub(in crate::command) drawn: bool,
}

/// Returns the value of an environment variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    variable_if_set(name).filter(|value| !value.is_empty())
}

#[expect(
    clippy::disallowed_methods,
    reason = "conventions of other programs, such as NO_COLOR, are not options of kpx"
)]
fn variable_if_set(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Returns the pager of kpx alone, for a command line without options; `None` if none is named.
pub(in crate::command) fn own_pager() -> Option<String> {
    variable_if_set("KPX_PAGER")
}

/// Returns the pager that other programs use, too; `None` if none is named.
pub(in crate::command) fn pager() -> Option<String> {
    variable_if_set("PAGER")
}

/// Returns whether the user has chosen how less behaves.
pub(in crate::command) fn has_less_options() -> bool {
    variable("LESS").is_some()
}

/// Returns whether the terminal shows links (OSC 8) or ignores them: not the console of Linux, and not a dumb one.
pub(in crate::command) fn has_links() -> bool {
    is_linked(variable)
}

fn is_linked(variable: impl Fn(&str) -> Option<String>) -> bool {
    variable("TERM").is_some_and(|term| term != "dumb" && term != "linux")
}

impl Terminal {
    /// Detects the terminal of this process.
    pub(in crate::command) fn detect() -> Self {
        let (out, err) = (stdout().is_terminal(), stderr().is_terminal());
        let columns = variable("COLUMNS");
        let of_err = || size().ok().map(|(columns, _)| columns);
        Self {
            width: width(columns.as_deref(), render::terminal_width().filter(|_| out)),
            err_width: err.then(|| width(columns.as_deref(), of_err())),
            color: color(out, variable),
            ascii: ascii(variable),
            input: stdin().is_terminal(),
            out,
            err,
            drawn: err && !is_dumb(variable),
        }
    }
}

/// Returns whether the terminal has no control sequences.
fn is_dumb(variable: impl Fn(&str) -> Option<String>) -> bool {
    variable("TERM").is_some_and(|term| term == "dumb")
}

fn width(columns: Option<&str>, terminal: Option<u16>) -> u16 {
    let columns = columns.and_then(|text| text.parse().ok());
    match columns.or(terminal) {
        None | Some(0) => WIDTH,
        Some(width) => width.max(NARROWEST),
    }
}

/// Returns whether `--color auto` means colour.
fn color(terminal: bool, variable: impl Fn(&str) -> Option<String>) -> bool {
    if variable("NO_COLOR").is_some() {
        return false;
    }
    if variable("CLICOLOR_FORCE").is_some_and(|value| value != "0") {
        return true;
    }
    terminal && !is_dumb(variable)
}

/// Returns whether the locale's encoding is not UTF-8; the first variable that is set decides, as in setlocale(3).
fn ascii(variable: impl Fn(&str) -> Option<String>) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|&name| variable(name));
    !locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> {
        let value = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
        move |name| value(name).map(str::to_owned)
    }

    #[test]
    fn a_terminal_without_size_has_eighty_columns() {
        assert_eq!(width(None, None), 80);
        assert_eq!(width(None, Some(0)), 80);
        assert_eq!(width(None, Some(3)), 40);
        assert_eq!(width(None, Some(120)), 120);
        assert_eq!(width(Some("100"), Some(120)), 100);
        assert_eq!(width(Some("wide"), Some(120)), 120);
    }

    #[test]
    fn colour_follows_the_usual_variables() {
        assert!(color(true, set(&[])));
        assert!(!color(false, set(&[])));
        assert!(!color(true, set(&[("TERM", "dumb")])));
        assert!(color(false, set(&[("CLICOLOR_FORCE", "1")])));
        assert!(!color(false, set(&[("CLICOLOR_FORCE", "0")])));
        assert!(!color(
            true,
            set(&[("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")])
        ));
    }

    #[test]
    fn links_are_for_terminals_that_ignore_them_at_least() {
        assert!(is_linked(set(&[("TERM", "xterm-256color")])));
        for term in ["dumb", "linux"] {
            assert!(!is_linked(set(&[("TERM", term)])), "{term}");
        }
        assert!(!is_linked(set(&[])));
    }

    #[test]
    fn the_first_locale_variable_decides() {
        assert!(ascii(set(&[])));
        assert!(!ascii(set(&[("LANG", "C.UTF-8")])));
        assert!(ascii(set(&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")])));
        assert!(!ascii(set(&[("LC_CTYPE", "de_DE.utf8"), ("LANG", "C")])));
    }
}
