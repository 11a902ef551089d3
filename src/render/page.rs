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

    /// Adds a table of `columns`, each with its rank: where the width does not hold all, those of the highest rank go first.
    ///
    /// Columns of rank 0 stay, and cells are never broken: what was dropped, `-o wide` shows.
    pub fn grid(&mut self, columns: &[(&str, u8)], rows: &[Vec<String>]) {
        let length = |text: &str| text.chars().count();
        let widths: Vec<usize> = (0..columns.len())
            .map(|at| {
                let cells = rows.iter().filter_map(|row| row.get(at));
                let widest = cells.map(|cell| length(cell)).max();
                widest.unwrap_or(0).max(length(columns[at].0))
            })
            .collect();
        let mut kept: Vec<usize> = (0..columns.len()).collect();
        let room = usize::from(self.style.width);
        loop {
            let total: usize = kept.iter().map(|&at| widths[at] + 2).sum();
            let last = kept.iter().copied().max_by_key(|&at| columns[at].1);
            match last {
                Some(last) if !self.style.wide && total > room + 2 && columns[last].1 > 0 => {
                    kept.retain(|&at| at != last);
                }
                _ => break,
            }
        }
        let mut line = |cells: &dyn Fn(usize) -> String| {
            let mut text = String::new();
            for &at in &kept {
                let cell = cells(at);
                let pad = (widths[at] + 2).saturating_sub(length(&cell));
                text.push_str(&cell);
                text.extend(std::iter::repeat_n(' ', pad));
            }
            self.line(text.trim_end());
        };
        line(&|at| columns[at].0.to_owned());
        for row in rows {
            line(&|at| row.get(at).cloned().unwrap_or_default());
        }
    }

    /// Adds one line.
    pub fn line(&mut self, line: &str) {
        writeln!(self.text, "{line}").expect("writing to a String does not fail");
    }

    /// Adds `text`, wrapped to the width: the first line behind `lead`, the others indented as far.
    ///
    /// Words are never broken; one that does not fit gets a line of its own.
    pub fn para(&mut self, lead: &str, text: &str) {
        let indent = " ".repeat(lead.chars().count());
        let width = usize::from(self.style.width).max(indent.len() + 20);
        let mut line = lead.to_owned();
        let mut empty = true;
        for word in text.split_ascii_whitespace() {
            let length = line.chars().count() + usize::from(!empty) + word.chars().count();
            if !empty && length > width {
                self.line(line.trim_end());
                line.clone_from(&indent);
                empty = true;
            }
            if !empty {
                line.push(' ');
            }
            line.push_str(word);
            empty = false;
        }
        self.line(line.trim_end());
    }

    /// Adds a line, cut to the width.
    pub fn cut(&mut self, line: &str) {
        let width = usize::from(self.style.width);
        if line.chars().count() <= width || self.style.wide {
            return self.line(line);
        }
        let dots = if self.style.ascii { "..." } else { "…" };
        let keep = width.saturating_sub(dots.chars().count());
        let kept: String = line.chars().take(keep).collect();
        self.line(&format!("{}{dots}", kept.trim_end()));
    }

    /// Returns `text` in the colour of `tone`, where colour may be used.
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        if self.style.color {
            format!("\x1b[{}m{text}\x1b[0m", tone.code())
        } else {
            text.to_owned()
        }
    }

    /// Returns the finished text.
    pub fn into_text(self) -> String {
        self.text
    }
}

/// What a colour stands for; the words say the same.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Tone {
    /// Wrong.
    Bad,
    /// A risk.
    Doubtful,
    /// In order.
    Good,
    /// Not known.
    Unclear,
    /// A title.
    Strong,
}

impl Tone {
    /// Returns the parameters of the escape sequence (SGR).
    const fn code(self) -> &'static str {
        match self {
            Self::Bad => "1;31",
            Self::Doubtful => "1;33",
            Self::Good => "1;32",
            Self::Unclear => "1;35",
            Self::Strong => "1",
        }
    }
}
