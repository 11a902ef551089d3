//! The page that `kpx report` writes: one file of HTML that needs no other file and no network.

mod checks;
mod drift;
mod findings;
mod nodes;
mod plan;
mod services;
mod summary;
mod timeline;
mod traces;

pub(crate) use nodes::{NodeRow, NodesPage};

use std::sync::LazyLock;

use sha2::{Digest as _, Sha256};

use crate::command::diff::report::DiffReport;
use crate::command::doctor::report::DoctorReport;
use crate::command::show::report::ShowReport;
use crate::command::trace::report::TraceReport;
use crate::render::markup::{Attribute, Markup};
use crate::render::scene::DRAWING;
use crate::render::{Style, Tone, palette, threads};
use crate::report::history::ChangeEvent;
use crate::report::plan::PlanReport;

/// The style sheet: the colours, the page, and the pictures of traces.
static STYLE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{}{}{DRAWING}",
        palette::variables(),
        include_str!("html/page.css")
    )
});

/// The script: the filter of the Services, sorting, buttons that copy, and details that open on paper. The page is complete
/// without it.
const SCRIPT: &str = include_str!("html/page.js");

/// The policy for browsers: this style sheet and this script, and nothing from elsewhere.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
        digest(&STYLE),
        digest(SCRIPT)
    )
});

/// The style of the pictures and of texts in the page.
const TEXT: Style = Style {
    width: 100,
    color: false,
    ascii: false,
    wide: false,
    verbose: 1,
    program: "kpx",
};

/// Everything about one node, for a ticket.
#[derive(Debug)]
pub(crate) struct NodePage {
    /// The node, the time and the mode, as the first line of other pages.
    pub origin: String,
    /// The source of the state: `bundle node1.tar.gz`, `node node1`.
    pub source: String,
    /// Whether names and addresses were replaced in the bundle.
    pub redacted: bool,
    /// The findings.
    pub doctor: DoctorReport,
    /// The differences from the desired state.
    pub drift: DiffReport,
    /// The Services.
    pub services: ShowReport,
    /// The traces by target, or why there is none.
    pub traces: Vec<(String, Result<TraceReport, String>)>,
    /// The plan of a repair, or why there is none.
    pub plan: Result<PlanReport, String>,
    /// The changes that `kpx watch` printed, and the file that has them.
    pub timeline: Option<(String, Vec<ChangeEvent<'static>>)>,
}

impl NodePage {
    /// Returns the page.
    pub(crate) fn html(&self) -> String {
        let (tone, answer) = self.doctor.answer();
        let top = Top {
            name: self.name(),
            tone,
            answer: &answer,
            redacted: self.redacted,
        };
        document(
            &top,
            |markup| summary::lead(markup, self),
            [
                services::section(&self.services),
                findings::section(&self.doctor),
                summary::section(self),
                drift::section(&self.drift),
                traces::section(&self.traces),
                plan::section(&self.plan),
                timeline::section(self.timeline.as_ref()),
                checks::section(self.doctor.findings.iter().map(|finding| finding.id)),
            ],
        )
    }

    /// Returns the verdict in a few words.
    pub(crate) fn answer(&self) -> String {
        self.doctor.answer().1
    }

    /// Returns the name of the node.
    fn name(&self) -> &str {
        let name = self.doctor.head.node.name.as_deref();
        name.unwrap_or("a node without a known name")
    }
}

/// The part of a page above its sections.
struct Top<'t> {
    /// The name of the node, or what the page is about.
    name: &'t str,
    /// The verdict in a few words.
    tone: Tone,
    answer: &'t str,
    /// Whether names and addresses were replaced.
    redacted: bool,
}

/// Returns a page: `lead` adds the part below its title.
fn document<const COUNT: usize>(
    top: &Top<'_>,
    lead: impl FnOnce(&mut Markup),
    sections: [Section<'_>; COUNT],
) -> String {
    let mut markup = Markup::default();
    markup.fixed("<!DOCTYPE html>\n");
    markup.element("html", &[("lang", "en")], |markup| {
        markup.element("head", &[], |markup| head(markup, top.name));
        markup.fixed("\n");
        markup.element("body", &[], |markup| body(markup, top, lead, sections));
    });
    markup.fixed("\n");
    markup.into_text()
}

fn head(markup: &mut Markup, name: &str) {
    markup.empty("meta", &[("charset", "utf-8")]);
    let policy = [
        ("http-equiv", "Content-Security-Policy"),
        ("content", POLICY.as_str()),
    ];
    markup.empty("meta", &policy);
    for (name, content) in [
        ("viewport", "width=device-width, initial-scale=1"),
        ("color-scheme", "light dark"),
        ("referrer", "no-referrer"),
    ] {
        markup.empty("meta", &[("name", name), ("content", content)]);
    }
    markup.leaf("title", &[], &format!("kpx report of {name}"));
    markup.element("style", &[], |markup| markup.fixed(&STYLE));
}

fn body<const COUNT: usize>(
    markup: &mut Markup,
    top: &Top<'_>,
    lead: impl FnOnce(&mut Markup),
    sections: [Section<'_>; COUNT],
) {
    let skip = [("class", "skip"), ("href", "#main")];
    markup.leaf("a", &skip, "Skip to the content");
    markup.element("header", &[], |markup| {
        markup.element("h1", &[], |markup| {
            markup.text(&format!("{}: ", top.name));
            word(markup, top.tone, top.answer);
        });
        lead(markup);
    });
    markup.element("nav", &[("aria-label", "Sections")], |markup| {
        markup.element("ul", &[], |markup| {
            for section in &sections {
                markup.element("li", &[], |markup| {
                    let to = format!("#{}", section.id);
                    let text = format!("{}{}", section.title, section.count());
                    markup.leaf("a", &[("href", &to)], &text);
                });
            }
        });
    });
    markup.element("main", &[("id", "main"), ("tabindex", "-1")], |markup| {
        for section in sections {
            section.add(markup);
        }
    });
    markup.element("footer", &[], |markup| {
        let version = env!("CARGO_PKG_VERSION");
        let names = if top.redacted {
            "Names and addresses in it are replaced."
        } else {
            "It contains names and addresses of the cluster."
        };
        let text = format!("Written by kpx {version}. {names}");
        markup.leaf("p", &[], &text);
    });
    markup.element("script", &[], |markup| markup.fixed(SCRIPT));
}

/// Adds the content of a section.
type Fill<'s> = Box<dyn FnOnce(&mut Markup) + 's>;

/// A section of the page.
struct Section<'s> {
    id: &'static str,
    title: &'static str,
    /// The number of its rows, if they are counted.
    rows: Option<usize>,
    fill: Fill<'s>,
}

impl<'s> Section<'s> {
    fn new(
        id: &'static str,
        title: &'static str,
        rows: Option<usize>,
        fill: impl FnOnce(&mut Markup) + 's,
    ) -> Self {
        Self {
            id,
            title,
            rows,
            fill: Box::new(fill),
        }
    }

    fn count(&self) -> String {
        self.rows
            .map_or_else(String::new, |rows| format!(" ({rows})"))
    }

    fn add(self, markup: &mut Markup) {
        let title = format!("{}-title", self.id);
        let attributes = [("id", self.id), ("aria-labelledby", title.as_str())];
        markup.fixed("\n");
        markup.element("section", &attributes, |markup| {
            markup.leaf("h2", &[("id", &title)], self.title);
            (self.fill)(markup);
        });
    }
}

/// Returns the SHA-256 digest of `text` in base64, as a content security policy has it.
fn digest(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = String::new();
    for part in Sha256::digest(text.as_bytes()).chunks(3) {
        let byte = |at: usize| u32::from(part.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) & 63;
            encoded.push(if digit > part.len() {
                '='
            } else {
                char::from(DIGITS[value as usize])
            });
        }
    }
    encoded
}

/// Adds `text` in the colour of `tone`.
fn word(markup: &mut Markup, tone: Tone, text: &str) {
    markup.leaf("strong", &[("class", tone.class())], text);
}

/// Adds a paragraph that begins with a word in the colour of `tone`.
fn said(markup: &mut Markup, tone: Tone, lead: &str, text: &str) {
    markup.element("p", &[], |markup| {
        word(markup, tone, lead);
        prose(markup, &format!(" {text}"));
    });
}

/// Adds `text`, in which parts between backticks are code.
fn prose(markup: &mut Markup, text: &str) {
    let parts: Vec<&str> = text.split('`').collect();
    // A backtick without another one is a character like others.
    if parts.len().is_multiple_of(2) {
        return linked(markup, text);
    }
    for (at, part) in parts.into_iter().enumerate() {
        if at % 2 == 1 {
            markup.leaf("code", &[], part);
        } else {
            linked(markup, part);
        }
    }
}

/// Adds `text`, in which names of threads are links.
fn linked(markup: &mut Markup, text: &str) {
    for (part, address) in threads(text) {
        match address {
            Some(address) => markup.leaf("a", &[("href", &address)], part),
            None => markup.text(part),
        }
    }
}

/// Adds a paragraph of [`prose`].
fn para(markup: &mut Markup, text: &str) {
    markup.element("p", &[], |markup| prose(markup, text));
}

/// Adds content that is wider than the page in an area that scrolls, also by keyboard.
fn scrolls(markup: &mut Markup, label: &str, fill: impl FnOnce(&mut Markup)) {
    let attributes: [Attribute<'_>; 4] = [
        ("class", "scroll"),
        ("role", "region"),
        ("aria-label", label),
        ("tabindex", "0"),
    ];
    markup.element("div", &attributes, fill);
}

/// Lines of a command that are shown at once.
const LINES: usize = 14;

/// Adds a command or a text as it is typed.
fn typed(markup: &mut Markup, label: &str, text: &str) {
    let long = [
        ("class", "copy long"),
        ("role", "region"),
        ("aria-label", label),
        ("tabindex", "0"),
    ];
    let is_long = text.lines().count() > LINES;
    let short = [("class", "copy")];
    markup.leaf("pre", if is_long { &long } else { &short }, text);
}

/// Adds the notes of a section.
fn notes(markup: &mut Markup, notes: &[String]) {
    for note in notes {
        markup.element("p", &[("class", "note")], |markup| {
            prose(markup, &format!("Note: {note}"));
        });
    }
}

/// The mark of a table whose columns the script sorts.
const SORTS: Attribute<'static> = ("class", "sorts");

/// Adds a table with a caption: the titles of its columns, and rows whose first cell names them.
fn table(markup: &mut Markup, caption: &str, columns: &[&str], rows: &[Vec<String>]) {
    scrolls(markup, caption, |markup| {
        markup.element("table", &[SORTS], |markup| {
            markup.leaf("caption", &[], caption);
            markup.element("thead", &[], |markup| titles(markup, columns));
            markup.element("tbody", &[], |markup| {
                for row in rows {
                    markup.element("tr", &[], |markup| {
                        for (at, cell) in row.iter().enumerate() {
                            if at == 0 {
                                markup.leaf("th", &[("scope", "row")], cell);
                            } else {
                                markup.leaf("td", &[], cell);
                            }
                        }
                    });
                    markup.fixed("\n");
                }
            });
        });
    });
}

/// Adds the row with the titles of a table's columns.
fn titles(markup: &mut Markup, columns: &[&str]) {
    markup.element("tr", &[], |markup| {
        for column in columns {
            markup.leaf("th", &[("scope", "col")], column);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::digest;

    #[test]
    fn a_digest_is_that_of_sha256_in_base64() {
        // printf '%s' TEXT | openssl dgst -sha256 -binary | base64
        assert_eq!(digest(""), "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
        assert_eq!(
            digest("abc"),
            "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0="
        );
    }
}
