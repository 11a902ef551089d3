//! From a report to bytes on a stream.

mod ascii;
mod board;
mod page;
mod progress;

use std::io::{self, Write};

use serde::Serialize;

pub use board::Board;
#[cfg(test)]
pub(crate) use board::glass;
pub use page::{Page, Style, Tone, terminal_width};
pub use progress::Progress;

/// A result that can be printed for people or serialised for programs.
///
/// `page` sees only `self`, so a table can never show what JSON lacks.
pub trait Report: Serialize {
    /// The `kind` in the JSON envelope.
    const KIND: &'static str;

    /// Lays the report out for people.
    fn page(&self, page: &mut Page);

    /// Returns the exit status the report stands for.
    fn exit(&self) -> u8;
}

/// The formats every command has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Format {
    /// For people.
    Human,
    /// For people with room.
    Wide,
    /// One JSON document.
    Json,
    /// The same as YAML.
    Yaml,
}

impl Format {
    /// The formats' names, in the order help lists them.
    pub const NAMES: [&'static str; 4] = ["human", "wide", "json", "yaml"];

    /// Returns the format called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "human" => Self::Human,
            "wide" => Self::Wide,
            "json" => Self::Json,
            "yaml" => Self::Yaml,
            _ => return None,
        })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a, R> {
    api_version: &'static str,
    kind: &'a str,
    #[serde(flatten)]
    report: &'a R,
}

/// Writes `value`, which is a `kind` of thing, to `out` as one line of JSON.
pub fn write_line<T: Serialize>(kind: &str, value: &T, out: &mut dyn Write) -> io::Result<()> {
    let envelope = Envelope {
        api_version: "kpx/v1",
        kind,
        report: value,
    };
    let mut line = serde_json::to_vec(&envelope)?;
    line.push(b'\n');
    out.write_all(&line)?;
    out.flush()
}

/// Writes `report` to `out`.
pub fn write<R: Report>(
    report: &R,
    format: Format,
    style: Style,
    out: &mut dyn Write,
) -> io::Result<()> {
    let envelope = Envelope {
        api_version: "kpx/v1",
        kind: R::KIND,
        report,
    };
    match format {
        Format::Human | Format::Wide => {
            let mut page = Page::new(style);
            report.page(&mut page);
            let text = page.into_text();
            if style.ascii {
                out.write_all(ascii::plain(&text).as_bytes())
            } else {
                out.write_all(text.as_bytes())
            }
        }
        Format::Json => {
            // In one piece: standard output writes out every line by itself.
            let mut text = serde_json::to_vec_pretty(&envelope)?;
            text.push(b'\n');
            out.write_all(&text)
        }
        Format::Yaml => {
            let text = serde_yaml::to_string(&envelope).map_err(io::Error::other)?;
            out.write_all(text.as_bytes())
        }
    }
}
