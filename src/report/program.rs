//! Prints the program of a mode.

use serde::Serialize;

use super::CLEAN;
use crate::render::{Page, Report};
use kpx_node::backend::Mode;
use kpx_node::backend::program::Part;
use kpx_node::net::Family;

/// The outcome of `kpx render`: the text that kube-proxy would load.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProgramReport {
    /// The mode.
    pub mode: Mode,
    /// Its parts, in the order to load them.
    pub parts: Vec<PartText>,
    /// Limits of the text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Whether to print only the text of a part.
    #[serde(skip)]
    pub bare: bool,
}

/// The text of one part.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct PartText {
    /// The part.
    pub part: &'static str,
    /// The family; absent for a part that serves both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<Family>,
    /// The command that loads it from standard input.
    pub tool: &'static str,
    /// The text.
    pub text: String,
}

impl PartText {
    /// Returns `text` as `part`.
    pub(crate) fn new(part: Part, text: String) -> Self {
        Self {
            part: part.name(),
            family: match part {
                Part::Iptables(family) => Some(family),
                _ => None,
            },
            tool: part.tool(),
            text,
        }
    }
}

impl Report for ProgramReport {
    const KIND: &'static str = "ProgramReport";
    const IS_FOR_PEOPLE: bool = false;

    fn page(&self, page: &mut Page) {
        for (number, part) in self.parts.iter().enumerate() {
            if !self.bare {
                if number > 0 {
                    page.line("");
                }
                page.line(&format!("# {}", part.tool));
            }
            for line in part.text.lines() {
                page.line(line);
            }
        }
        if !self.bare {
            for note in &self.notes {
                page.line(&format!("# note: {note}"));
            }
        }
    }

    fn exit(&self) -> u8 {
        CLEAN
    }
}
