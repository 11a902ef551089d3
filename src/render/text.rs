//! Escapes output: control sequences are shown, and never reach the terminal.
//!
//! Names, comments and messages come from the cluster, from other programs, and from bundles of strangers. No part of them
//! reaches a terminal as a control sequence: every stream of a command is a [`TextWriter`].

use std::borrow::Cow;
use std::io::{self, Write};
use std::{mem, str};

use super::markup::{is_obeyed, visible};
use super::page::{Tone, UNTONED, wrap};
use super::threads::threads;

/// A writer of UTF-8 that shows control characters, those that change the direction of text, and invalid bytes as `\u001b`
/// or `\xff`. Line ends and tabs pass.
pub(crate) struct TextWriter<'a> {
    to: &'a mut dyn Write,
    color: bool,
    /// Whether names of threads are links (OSC 8).
    links: bool,
    /// The first bytes of a character whose rest has not arrived.
    begun: Vec<u8>,
}

impl<'a> TextWriter<'a> {
    /// Returns a writer that passes its text to `to`, with the colours of pages if `color` is set.
    pub(crate) const fn new(to: &'a mut dyn Write, color: bool) -> Self {
        Self {
            to,
            color,
            links: false,
            begun: Vec::new(),
        }
    }

    /// Returns the writer for which names of threads are links, if `links` is set.
    pub(crate) const fn with_links(mut self, links: bool) -> Self {
        self.links = links;
        self
    }

    /// Writes text that a terminal does not obey.
    fn pass(&mut self, text: &str) -> io::Result<()> {
        if !self.links {
            return self.to.write_all(text.as_bytes());
        }
        for (part, address) in threads(text) {
            match address {
                Some(address) => write!(self.to, "\x1b]8;;{address}\x1b\\{part}\x1b]8;;\x1b\\")?,
                None => self.to.write_all(part.as_bytes())?,
            }
        }
        Ok(())
    }

    /// Writes the bytes of a character that was never completed.
    fn end_character(&mut self) -> io::Result<()> {
        let begun = mem::take(&mut self.begun);
        self.show_bytes(&begun)
    }

    fn show(&mut self, text: &str) -> io::Result<()> {
        let mut rest = text;
        while let Some((at, c)) = rest
            .char_indices()
            .find(|(_, c)| is_obeyed(*c) || is_internal(*c))
        {
            let (before, after) = rest.split_at(at);
            self.pass(before)?;
            match sequence(c).filter(|_| self.color) {
                Some(sequence) => write!(self.to, "\x1b[{sequence}m")?,
                None => write!(self.to, "\\u{:04x}", u32::from(c))?,
            }
            rest = after.get(c.len_utf8()..).unwrap_or_default();
        }
        self.pass(rest)
    }

    fn show_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        bytes
            .iter()
            .try_for_each(|byte| write!(self.to, "\\x{byte:02x}"))
    }
}

impl Write for TextWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.links && self.begun.is_empty() && bytes.chunks(64).all(are_plain) {
            self.to.write_all(bytes)?;
            return Ok(bytes.len());
        }
        self.begun.extend(bytes);
        let all = mem::take(&mut self.begun);
        let mut rest = all.as_slice();
        while !rest.is_empty() {
            match str::from_utf8(rest) {
                Ok(text) => {
                    self.show(text)?;
                    break;
                }
                Err(why) => {
                    let (valid, after) = rest.split_at(why.valid_up_to());
                    self.show(str::from_utf8(valid).unwrap_or_default())?;
                    let Some(length) = why.error_len() else {
                        self.begun.extend(after);
                        break;
                    };
                    let (invalid, after) = after.split_at(length);
                    self.show_bytes(invalid)?;
                    rest = after;
                }
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.end_character()?;
        self.to.flush()
    }
}

/// Returns `text` with its commands in backticks as `program` is typed: `kpx` or `kubectl kpx`.
pub(crate) fn as_typed<'t>(text: &'t str, program: &str) -> Cow<'t, str> {
    if program == "kpx" {
        return Cow::Borrowed(text);
    }
    let begins = |lead: &str, program: &str| format!("`{lead}{program} ");
    let leads = ["", "sudo "].into_iter();
    Cow::Owned(leads.fold(text.to_owned(), |text, lead| {
        text.replace(&begins(lead, "kpx"), &begins(lead, program))
    }))
}

/// A writer that wraps lines at spaces, for standard error on a terminal. A line that begins with `$` is a command, and stays one.
pub(crate) struct Wrapper<'a> {
    to: &'a mut dyn Write,
    width: Option<usize>,
    program: &'static str,
    line: Vec<u8>,
}

impl<'a> Wrapper<'a> {
    /// Returns a writer that passes lines of at most `width` columns to `to`, of any width if there is none; commands begin with
    /// `program`.
    pub(crate) const fn new(
        to: &'a mut dyn Write,
        width: Option<usize>,
        program: &'static str,
    ) -> Self {
        Self {
            to,
            width,
            program,
            line: Vec::new(),
        }
    }

    /// Writes the begun line, with its end if it has one.
    fn pass(&mut self) -> io::Result<()> {
        let line = mem::take(&mut self.line);
        let Ok(text) = str::from_utf8(&line) else {
            return self.to.write_all(&line);
        };
        let text = &*as_typed(text, self.program);
        let is_long = |width: &usize| text.trim_end().chars().count() > *width;
        let is_command = text.trim_start().starts_with('$');
        let Some(width) = self.width.filter(is_long).filter(|_| !is_command) else {
            return self.to.write_all(text.as_bytes());
        };
        let body = text.trim_start_matches(' ');
        let lead = text.len() - body.len();
        let first = " ".repeat(lead);
        // Continued lines are indented by two columns.
        let lines = wrap(body.trim_end_matches('\n'), width.saturating_sub(lead + 2));
        for (at, part) in lines.iter().enumerate() {
            let (end, indent) = match at {
                0 => ("", ""),
                _ => ("\n", "  "),
            };
            write!(self.to, "{end}{first}{indent}{part}")?;
        }
        self.to
            .write_all(if text.ends_with('\n') { b"\n" } else { b"" })
    }
}

impl Write for Wrapper<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.width.is_none() && self.program == "kpx" {
            return self.to.write(bytes);
        }
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend(piece);
            if piece.ends_with(b"\n") {
                self.pass()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.line.is_empty() {
            self.pass()?;
        }
        self.to.flush()
    }
}

/// Returns whether all bytes are ASCII characters that are written as they are. It looks at each, which a processor does for many
/// at a time.
fn are_plain(bytes: &[u8]) -> bool {
    let is_plain = |byte| matches!(byte, b' '..=b'~' | b'\n' | b'\t');
    bytes.iter().fold(true, |all, &byte| all & is_plain(byte))
}

/// Returns the parts of a line of a page, each with its colour; control characters are shown.
pub(crate) fn runs(line: &str) -> Vec<(Option<Tone>, String)> {
    let mut runs: Vec<(Option<Tone>, String)> = Vec::new();
    let mut tone = None;
    let mut text = String::new();
    for c in visible(line).chars() {
        if !is_internal(c) {
            text.push(c);
            continue;
        }
        if !text.is_empty() {
            runs.push((tone, mem::take(&mut text)));
        }
        tone = Tone::marked(c);
    }
    if !text.is_empty() {
        runs.push((tone, text));
    }
    runs
}

/// Returns whether Unicode keeps `c` for use inside one program: those of [`Page::paint`](super::Page::paint) are among them.
const fn is_internal(c: char) -> bool {
    matches!(c, '\u{fdd0}'..='\u{fdef}')
}

/// Returns the parameters of the escape sequence (SGR) that a mark of a page stands for.
fn sequence(c: char) -> Option<&'static str> {
    if c == UNTONED {
        return Some("0");
    }
    Tone::marked(c).map(Tone::code)
}

#[cfg(test)]
mod tests {
    use super::super::{Page, Style};
    use super::*;

    fn written(pieces: &[&[u8]]) -> String {
        let mut out = Vec::new();
        let mut writer = TextWriter::new(&mut out, false);
        for piece in pieces {
            writer.write_all(piece).unwrap();
        }
        writer.flush().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        let hostile = "a\x1b[2Jb\u{9b}1mc\rd\u{202e}e\x07\u{7f}\n\tß…";
        assert_eq!(
            written(&[hostile.as_bytes()]),
            "a\\u001b[2Jb\\u009b1mc\\u000dd\\u202ee\\u0007\\u007f\n\tß…"
        );
    }

    #[test]
    fn only_a_page_has_colours() {
        let style = |color| Style {
            width: 80,
            color,
            ascii: false,
            wide: false,
            verbose: 0,
            program: "kpx",
        };
        let painted = Page::new(style(true)).paint(Tone::Bad, "a\x1b[1mb");
        let mut out = Vec::new();
        TextWriter::new(&mut out, true)
            .write_all(painted.as_bytes())
            .unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "\x1b[1;31ma\\u001b[1mb\x1b[0m"
        );
        assert_eq!(written(&[painted.as_bytes()]), "\\ufdd1a\\u001b[1mb\\ufdd0");
        assert_eq!(Page::new(style(false)).paint(Tone::Bad, "a"), "a");
    }

    #[test]
    fn a_thread_is_a_link_and_nothing_else_is() {
        let mut out = Vec::new();
        let mut writer = TextWriter::new(&mut out, false).with_links(true);
        writer
            .write_all(b"seen in a/b#7: \x1b]8;;http://c\x1b\\")
            .unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "seen in \x1b]8;;https://github.com/a/b/issues/7\x1b\\a/b#7\x1b]8;;\x1b\\: \\u001b]8;;http://c\\u001b\\"
        );
    }

    #[test]
    fn a_character_may_come_in_pieces() {
        let text = "ß\u{9b}…".as_bytes();
        for at in 0..text.len() {
            let (first, second) = text.split_at(at);
            assert_eq!(written(&[first, second]), "ß\\u009b…");
        }
    }

    #[test]
    fn long_lines_are_wrapped_at_spaces_and_commands_are_not() {
        let mut out = Vec::new();
        let mut writer = Wrapper::new(&mut out, Some(20), "kpx");
        writer
            .write_all(b"kpx: a cause of more than a line\n  hint: one of two lines\n$ a command that is not cut\n")
            .unwrap();
        writer.write_all(b"Go on? ").unwrap();
        writer.flush().unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "kpx: a cause of\n  more than a line\n  hint: one of two\n    lines\n$ a command that is not cut\nGo on? "
        );
    }

    #[test]
    fn invalid_bytes_are_shown() {
        assert_eq!(
            written(&[b"a\xff\xc3b", b"\xe2\x80"]),
            "a\\xff\\xc3b\\xe2\\x80"
        );
    }

    #[test]
    fn json_with_such_characters_means_the_same() {
        let value = serde_json::json!({"name": "a\u{9b}\u{202e}\x1b"});
        let text = serde_json::to_string(&value).unwrap();
        let shown = written(&[text.as_bytes()]);
        assert!(
            !shown.contains('\u{9b}') && !shown.contains('\u{202e}'),
            "{shown}"
        );
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&shown).unwrap(),
            value
        );
    }
}
