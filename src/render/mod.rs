//! Reports as text: pages for people, JSON and YAML for programs.

mod ascii;
mod json;
pub(crate) mod markup;
mod origin;
mod page;
pub(crate) mod palette;
mod progress;
mod progress_rows;
pub(crate) mod prometheus;
pub(crate) mod scene;
mod stream;
mod text;
mod threads;

use std::borrow::Cow;
use std::io::{self, BufWriter, Write};

use serde::{Serialize, Serializer};

pub(crate) use ascii::plain;
use json::Layout;
pub(crate) use origin::{Origin, OriginSource, line_of_several};
pub(crate) use page::{Page, Style, Tone, dots, shorten, terminal_width, wrap};
pub(crate) use progress::Progress;
pub(crate) use progress_rows::Board;
#[cfg(test)]
pub(crate) use progress_rows::glass;
pub(crate) use stream::{Stream, entry, entry_of_error};
pub(crate) use text::{TextWriter, Wrapper, as_typed, runs};
pub(crate) use threads::threads;

/// The result of a command: a page for people, or a serialised value for programs.
///
/// `page` has only `self`, so a page cannot show data that JSON lacks.
pub(crate) trait Report: Serialize {
    /// The `kind` in the JSON envelope.
    const KIND: &'static str;

    /// Whether the page is for people; otherwise it is the input of a program.
    const IS_FOR_PEOPLE: bool = true;

    /// Writes the report to `page`.
    fn page(&self, page: &mut Page);

    /// Returns the exit status of the report.
    fn exit(&self) -> u8;
}

/// A format that every report has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Format {
    /// A page, as wide as the terminal.
    Human,
    /// A page with every column, as wide as needed.
    Wide,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

impl Format {
    /// The names, in the order of the help.
    pub(crate) const NAMES: [&'static str; 4] = ["human", "wide", "json", "yaml"];

    /// Returns the format `name`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "human" => Self::Human,
            "wide" => Self::Wide,
            "json" => Self::Json,
            "yaml" => Self::Yaml,
            _ => return None,
        })
    }
}

/// The version of the JSON of reports.
const API: &str = "kpx/v1";

/// The version of kpx.
const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a, R> {
    api_version: &'static str,
    kind: &'a str,
    /// The version of kpx that wrote the document.
    kpx: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<&'a Origin>,
    #[serde(flatten)]
    report: &'a R,
}

/// Writes `value` to `out` as one line of JSON; `kind` is the `kind` of the envelope.
pub(crate) fn write_line<T: Serialize>(
    kind: &str,
    value: &T,
    out: &mut dyn Write,
) -> io::Result<()> {
    let envelope = Envelope {
        api_version: API,
        kind,
        kpx: VERSION,
        origin: None,
        report: value,
    };
    let mut out = BufWriter::with_capacity(1 << 16, out);
    json::write(&envelope, Layout::LINE, &mut out)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Serializes reports inside another one, each as the document that it would be alone.
pub(crate) fn documents<R: Report, S: Serializer>(
    reports: &[R],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(reports.iter().map(|report| Envelope {
        api_version: API,
        kind: R::KIND,
        kpx: VERSION,
        origin: None,
        report,
    }))
}

/// Writes `report` to `out` in `format`; `origin` says whose state it is about.
pub(crate) fn write<R: Report>(
    report: &R,
    origin: Option<&Origin>,
    format: Format,
    style: Style,
    out: &mut dyn Write,
) -> io::Result<()> {
    let envelope = Envelope {
        api_version: API,
        kind: R::KIND,
        kpx: VERSION,
        origin,
        report,
    };
    match format {
        Format::Human | Format::Wide => {
            let mut page = Page::new(style);
            if let Some(origin) = origin.filter(|_| R::IS_FOR_PEOPLE) {
                if let Some(why) = &origin.incomplete {
                    let text = format!("incomplete bundle: {why}; copy it again");
                    page.hang("", "  ", &page.paint(Tone::Bad, &text));
                }
                page.hang("", "  ", &origin.line());
            }
            report.page(&mut page);
            let text = page.into_text();
            let text = if R::IS_FOR_PEOPLE {
                as_typed(&text, style.program)
            } else {
                Cow::Borrowed(text.as_str())
            };
            if style.ascii {
                out.write_all(plain(&text).as_bytes())
            } else {
                out.write_all(text.as_bytes())
            }
        }
        Format::Json => {
            // In one piece: stdout flushes at each line end.
            let mut text = json::text(&envelope, Layout::indented())?;
            text.push(b'\n');
            out.write_all(&text)
        }
        Format::Yaml => out.write_all(json::yaml(&envelope)?.as_bytes()),
    }
}
