//! What `--output` asks for.

use std::path::PathBuf;

use super::failure::Failure;
use crate::cli::parser::{Command, formats};
use crate::render::{Format, Style};

/// A format that one command adds: its name, and how its text is made.
pub(in crate::command) type Extra<R> = (&'static str, fn(&R, Style) -> String);

/// What `--output` asks for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::command) enum Output {
    /// A format of every command.
    Format(Format),
    /// A format of this command, by its name.
    Extra(&'static str),
    /// The path of a bundle or of a report.
    Path(PathBuf),
}

impl Output {
    /// The format with all columns.
    pub(super) const WIDE: Self = Self::Format(Format::Wide);
}

/// Returns what `word` asks of `command`.
pub(super) fn resolve(command: &Command, word: &str) -> Result<Output, Failure> {
    if let Some(format) = Format::named(word) {
        return Ok(Output::Format(format));
    }
    if matches!(command, Command::Snapshot(_) | Command::Report(_)) {
        return Ok(Output::Path(PathBuf::from(word)));
    }
    let formats = match command {
        // The list of checks has no findings.
        Command::Doctor(args) if args.list => formats("explain"),
        _ => formats(command.name()),
    };
    let extra = formats.iter().find(|format| **format == word);
    extra.map(|format| Output::Extra(format)).ok_or_else(|| {
        let name = command.name();
        Failure::usage(match formats.as_slice() {
            [] => format!("`kpx {name}` has no output formats: omit -o"),
            formats => {
                let formats = formats.join(", ");
                format!("`kpx {name}` has no format {word:?}: use one of {formats}")
            }
        })
    })
}
