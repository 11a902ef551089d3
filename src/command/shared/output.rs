//! The selection of `--output`.

use std::path::PathBuf;

use super::failure::Failure;
use crate::cli::parser::{Command, formats};
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
    /// The path of a bundle or of a report.
    Path(PathBuf),
}

impl Output {
    /// The format with all columns.
    pub(super) const WIDE: Self = Self::Format(Format::Wide);
}

/// Returns the output that `word` selects for `command`; `None` if it is the default of a variable, and the command has
/// no such format.
pub(super) fn resolve(
    command: &Command,
    word: &str,
    is_typed: bool,
) -> Result<Option<Output>, Failure> {
    match of_command(command, word) {
        Err(_) if !is_typed && formats(command.name()).is_empty() => Ok(None),
        output => output.map(Some),
    }
}

fn of_command(command: &Command, word: &str) -> Result<Output, Failure> {
    let format = Format::named(word);
    match (command, format) {
        (Command::Report(_), Some(_)) => {
            return Err(Failure::usage("`kpx report` writes one page of HTML, and has no formats")
                .with_hint("-o takes the name of the file, as report.html; `kpx doctor -o json` has the findings as JSON"));
        }
        (Command::Report(_), None) => return page_file(word),
        (Command::Snapshot(_), None) => return bundle_path(word),
        _ => {}
    }
    let formats = formats(command.name());
    if let Some(format) = format.filter(|_| !formats.is_empty() || is_free(command)) {
        return Ok(Output::Format(format));
    }
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

/// Returns whether `command` prints its report in any format, although its help lists none.
const fn is_free(command: &Command) -> bool {
    matches!(command, Command::Snapshot(_))
}

/// Returns the file of a page.
fn page_file(word: &str) -> Result<Output, Failure> {
    let path = PathBuf::from(word);
    let end = path
        .extension()
        .map(|end| end.to_string_lossy().to_lowercase());
    match end.as_deref() {
        None | Some("html" | "htm") => Ok(Output::Path(path)),
        Some(end) => Err(Failure::usage(format!(
            "`kpx report` writes HTML, and no file that ends in .{end}"
        ))
        .with_hint(format!("pass -o {}", path.with_extension("html").display()))),
    }
}

/// Returns the path of a bundle: an archive of tar, or else a folder, which does not have the name of a file of another kind.
fn bundle_path(word: &str) -> Result<Output, Failure> {
    const OTHERS: [&str; 14] = [
        ".zip", ".7z", ".rar", ".gz", ".bz2", ".xz", ".zst", ".tbz", ".txz", ".json", ".yaml",
        ".yml", ".html", ".txt",
    ];
    let low = word.to_lowercase();
    let other = OTHERS.into_iter().find(|end| low.ends_with(end));
    match other.filter(|_| !low.ends_with(".tar.gz")) {
        None => Ok(Output::Path(PathBuf::from(word))),
        Some(end) => {
            let stem = &word[..word.len() - end.len()];
            let stem = stem.strip_suffix(".tar").unwrap_or(stem);
            Err(
                Failure::usage(format!("`kpx snapshot` writes no {end}")).with_hint(format!(
                    "pass -o {stem}.tar.gz for an archive, or -o {stem} for a folder"
                )),
            )
        }
    }
}
