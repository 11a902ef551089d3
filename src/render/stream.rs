//! The reports of several nodes as one JSON or YAML document, written node by node.

use std::io::{self, Write};

use serde::Serialize;

use super::json::{self, Layout};
use super::{API, Envelope, Format, Origin, Report, VERSION};

/// The `kind` of the document.
const KIND: &str = "NodeReports";

#[derive(Serialize)]
struct Entry<'a, R> {
    node: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<Envelope<'a, R>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

/// Returns the entry of `node` with its whole report; empty for a format without entries.
pub(crate) fn entry<R: Report>(
    node: &str,
    report: &R,
    origin: Option<&Origin>,
    format: Format,
) -> io::Result<Vec<u8>> {
    let envelope = Envelope {
        api_version: API,
        kind: R::KIND,
        kpx: VERSION,
        origin,
        report,
    };
    text(
        &Entry {
            node,
            report: Some(envelope),
            error: None,
        },
        format,
    )
}

/// Returns the entry of a `node` that was not read, with the reason.
pub(crate) fn entry_of_error(node: &str, error: &str, format: Format) -> io::Result<Vec<u8>> {
    let entry: Entry<'_, ()> = Entry {
        node,
        report: None,
        error: Some(error),
    };
    text(&entry, format)
}

fn text<R: Serialize>(entry: &Entry<'_, R>, format: Format) -> io::Result<Vec<u8>> {
    match format {
        Format::Human | Format::Wide => Ok(Vec::new()),
        Format::Json => json::text(entry, Layout::LINE),
        Format::Yaml => Ok(json::yaml(&[entry])?.into_bytes()),
    }
}

/// A document under construction: `{"apiVersion", "kind", "nodes": […], "summary": {…}}`.
#[derive(Debug)]
pub(crate) struct Stream {
    format: Format,
    entries: usize,
}

impl Stream {
    /// Writes the head of a document; nothing for a format without entries.
    pub(crate) fn begin(format: Format, out: &mut dyn Write) -> io::Result<Self> {
        match format {
            Format::Human | Format::Wide => {}
            Format::Json => write!(
                out,
                "{{\"apiVersion\":\"{API}\",\"kind\":\"{KIND}\",\"kpx\":\"{VERSION}\",\"nodes\":["
            )?,
            Format::Yaml => write!(
                out,
                "apiVersion: {API}\nkind: {KIND}\nkpx: {VERSION}\nnodes:"
            )?,
        }
        Ok(Self { format, entries: 0 })
    }

    /// Writes an entry that [`entry`] or [`entry_of_error`] returned.
    pub(crate) fn add(&mut self, entry: &[u8], out: &mut dyn Write) -> io::Result<()> {
        let before: &[u8] = match (self.format, self.entries) {
            (Format::Human | Format::Wide, _) => return Ok(()),
            (Format::Json | Format::Yaml, 0) => b"\n",
            (Format::Json, _) => b",\n",
            (Format::Yaml, _) => b"",
        };
        self.entries += 1;
        out.write_all(&[before, entry].concat())?;
        out.flush()
    }

    /// Writes the rest of the document, with `summary`.
    pub(crate) fn end<S: Serialize>(self, summary: &S, out: &mut dyn Write) -> io::Result<()> {
        #[derive(Serialize)]
        struct Tail<'a, S> {
            summary: &'a S,
        }
        match self.format {
            Format::Human | Format::Wide => Ok(()),
            Format::Json => {
                let summary = json::text(summary, Layout::LINE)?;
                out.write_all(&[b"\n],\"summary\":", &*summary, b"}\n"].concat())
            }
            Format::Yaml => {
                if self.entries == 0 {
                    writeln!(out, " []")?;
                }
                out.write_all(json::yaml(&Tail { summary })?.as_bytes())
            }
        }
    }
}
