//! From a report to bytes on a stream.

mod page;

use std::io::{self, Write};

use serde::Serialize;

pub use page::{Page, Style};

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
    kind: &'static str,
    #[serde(flatten)]
    report: &'a R,
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
            out.write_all(page.into_text().as_bytes())
        }
        Format::Json => {
            serde_json::to_writer_pretty(&mut *out, &envelope)?;
            writeln!(out)
        }
        Format::Yaml => {
            let text = serde_yaml::to_string(&envelope).map_err(io::Error::other)?;
            out.write_all(text.as_bytes())
        }
    }
}
