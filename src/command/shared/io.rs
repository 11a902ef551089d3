//! The streams and terminal facts of a command.

use std::io::{BufRead, Write};

/// The streams and terminal facts a command may use.
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that are independent of each other"
)]
pub struct Io<'a> {
    /// Standard output: results only.
    pub out: &'a mut dyn Write,
    /// Standard error: errors, hints and progress.
    pub err: &'a mut dyn Write,
    /// Standard input: answers to questions.
    pub input: &'a mut dyn BufRead,
    /// Whether a person can answer questions on `input`.
    pub interactive: bool,
    /// The width of pages, in columns.
    pub width: u16,
    /// The width of `err`, in columns, where it is a terminal.
    pub err_width: Option<u16>,
    /// Whether `out` is a terminal.
    pub terminal: bool,
    /// Whether `--color auto` means colour.
    pub color: bool,
    /// Whether the locale is limited to ASCII.
    pub ascii: bool,
    /// Whether progress may be drawn on the process's standard error.
    pub progress: bool,
    /// Whether the calling thread may lose rights for good: the process ends with the command.
    pub confine: bool,
}
