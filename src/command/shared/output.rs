//! The selection of `--output`.

use super::failure::Failure;
use crate::cli::parser::{Command, formats, prints_reports};
use crate::render::{Format, Style};

/// A format that one command adds: its name, and how its text is made.
pub(in crate::command) type Extra<R> = (&'static str, fn(&R, Style) -> String);

/// The selection of `--output`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::command) enum Output {
    /// A format of every command.
    Format(Format),
    /// A format of this command, by its name.
    Extra(&'static str),
}

impl Output {
    /// The format with all columns.
    pub(super) const WIDE: Self = Self::Format(Format::Wide);
}

/// Returns the output that `word` selects for `command`; `None` if it is the default of a variable, and the command prints no
/// report.
pub(super) fn resolve(
    command: &Command,
    word: &str,
    is_typed: bool,
) -> Result<Option<Output>, Failure> {
    let name = command.name();
    let formats = formats(name);
    if !is_typed && !prints_reports(name) {
        return Ok(None);
    }
    let of_all = Format::named(word).filter(|_| formats.contains(&word));
    if let Some(format) = of_all {
        return Ok(Some(Output::Format(format)));
    }
    let extra = formats.iter().find(|format| **format == word);
    if let Some(extra) = extra {
        return Ok(Some(Output::Extra(extra)));
    }
    let failure = Failure::usage(match formats.as_slice() {
        [] => format!("`kpx {name}` has no output formats: omit -o"),
        [only] => format!("`kpx {name}` has no format {word:?}, only {only}"),
        formats => {
            let formats = formats.join(", ");
            format!("`kpx {name}` has no format {word:?}: use one of {formats}")
        }
    });
    Err(match command {
        Command::Report(_) if Format::named(word).is_some() => {
            failure.with_hint(format!("`kpx doctor -o {word}` has the findings"))
        }
        Command::Report(_) | Command::Snapshot(_) => {
            failure.with_hint(format!("--file names the file: --file {word}"))
        }
        _ => failure,
    })
}
