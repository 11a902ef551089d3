//! A page for people.

use std::fmt::Write as _;

use comfy_table::{ContentArrangement, Table, presets};

/// How a page may look.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Columns.
    pub width: u16,
    /// Whether colour may be used.
    pub color: bool,
    /// Whether only ASCII may be used.
    pub ascii: bool,
    /// Whether to show more columns than fit.
    pub wide: bool,
    /// How much more to say.
    pub verbose: u8,
}

/// Returns how many columns the terminal says it has, if standard output is one.
pub fn terminal_width() -> Option<u16> {
    Table::new().width()
}

/// A page under construction.
#[derive(Debug)]
pub struct Page {
    text: String,
    style: Style,
}

impl Page {
    /// Starts an empty page.
    pub fn new(style: Style) -> Self {
        Self {
            text: String::new(),
            style,
        }
    }

    /// Returns how the page may look.
    pub fn style(&self) -> Style {
        self.style
    }

    /// Adds a table with `header`; `fill` calls its argument once per row.
    pub fn table<const N: usize>(
        &mut self,
        header: [&str; N],
        fill: impl FnOnce(&mut dyn FnMut([&str; N])),
    ) {
        let mut table = Table::new();
        let arrangement = if self.style.wide {
            ContentArrangement::Disabled
        } else {
            ContentArrangement::Dynamic
        };
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(arrangement)
            .set_width(self.style.width)
            .set_header(header);
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        fill(&mut |cells| {
            table.add_row(cells);
        });
        for line in table.lines() {
            self.line(line.trim_end());
        }
    }

    /// Adds one line.
    pub fn line(&mut self, line: &str) {
        writeln!(self.text, "{line}").expect("writing to a String does not fail");
    }

    /// Returns the finished text.
    pub fn into_text(self) -> String {
        self.text
    }
}
