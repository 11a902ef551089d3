//! A page of text: tables, paragraphs, colours.

use std::fmt::Write as _;

use comfy_table::{ContentArrangement, Table, presets};

/// The style of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    /// The width, in columns.
    pub width: u16,
    /// Whether colours are used.
    pub color: bool,
    /// Whether the page is ASCII only.
    pub ascii: bool,
    /// Whether tables have every column, even if they exceed the width.
    pub wide: bool,
    /// The number of `-v` options.
    pub verbose: u8,
    /// The words that users type to run kpx.
    pub program: &'static str,
}

/// Returns the width of the terminal on stdout, in columns; `None` without a terminal.
pub(crate) fn terminal_width() -> Option<u16> {
    Table::new().width()
}

/// A page under construction.
#[derive(Debug)]
pub(crate) struct Page {
    text: String,
    style: Style,
}

impl Page {
    /// Starts an empty page.
    pub(crate) fn new(style: Style) -> Self {
        Self {
            text: String::new(),
            style,
        }
    }

    /// Returns the style of the page.
    pub(crate) fn style(&self) -> Style {
        self.style
    }

    /// Adds a table with `header`; `fill` calls its argument for each row.
    pub(crate) fn table<const N: usize>(
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

    /// Adds a table of `columns`, each a title and a rank: columns of the highest rank are dropped first if the table is too
    /// wide.
    ///
    /// Columns of rank 0 are never dropped; if they do not fit, their cells wrap, starting from the right. Empty columns are
    /// dropped. With `-o wide`, every column stays and no cell wraps.
    pub(crate) fn grid(&mut self, columns: &[(&str, u8)], rows: &[Vec<String>]) {
        self.grid_with(columns, rows, &[]);
    }

    /// Returns whether the columns that a grid always has fit into the width without wrapped cells.
    pub(crate) fn fits(&self, columns: &[(&str, u8)], rows: &[Vec<String>]) -> bool {
        let widths = columns
            .iter()
            .enumerate()
            .filter(|(_, (_, rank))| *rank == 0);
        let widths = widths.map(|(at, (title, _))| {
            let cells = rows.iter().filter_map(|row| row.get(at));
            let widest = cells.map(|cell| length(cell)).max().unwrap_or(0);
            // Empty columns are omitted.
            if widest == 0 {
                0
            } else {
                widest.max(length(title)) + GUTTER
            }
        });
        self.style.wide || widths.sum::<usize>() <= usize::from(self.style.width) + GUTTER
    }

    /// Adds a grid with a line below each row of which `below` has a text that is not empty.
    pub(crate) fn grid_with(
        &mut self,
        columns: &[(&str, u8)],
        rows: &[Vec<String>],
        below: &[String],
    ) {
        let cells = |at: usize| rows.iter().filter_map(move |row| row.get(at));
        let mut widths: Vec<usize> = (0..columns.len())
            .map(|at| {
                let widest = cells(at).map(|cell| length(cell)).max();
                widest.unwrap_or(0).max(length(columns[at].0))
            })
            .collect();
        let mut kept: Vec<usize> = (0..columns.len())
            .filter(|&at| rows.is_empty() || cells(at).any(|cell| !cell.is_empty()))
            .collect();
        let room = usize::from(self.style.width) + GUTTER;
        let total = |kept: &[usize], widths: &[usize]| -> usize {
            kept.iter().map(|&at| widths[at] + GUTTER).sum()
        };
        while !self.style.wide && total(&kept, &widths) > room {
            match kept.iter().copied().max_by_key(|&at| columns[at].1) {
                Some(last) if columns[last].1 > 0 => kept.retain(|&at| at != last),
                _ => break,
            }
        }
        for &at in kept.iter().rev() {
            let over = total(&kept, &widths).saturating_sub(room);
            if self.style.wide || over == 0 {
                break;
            }
            let indent = indent(at);
            let words = cells(at).flat_map(|cell| {
                let words = pieces(cell).enumerate();
                words
                    .map(move |(nth, word)| length(word.trim_end()) + indent * usize::from(nth > 0))
            });
            let least = words.max().unwrap_or(0);
            let least = least.max(length(columns[at].0));
            widths[at] = least.max(widths[at].saturating_sub(over)).min(widths[at]);
        }
        let titles: Vec<String> = columns
            .iter()
            .map(|(title, _)| (*title).to_owned())
            .collect();
        self.row(&kept, &widths, &titles);
        for (at, row) in rows.iter().enumerate() {
            self.row(&kept, &widths, row);
            if let Some(text) = below.get(at).filter(|text| !text.is_empty()) {
                self.para("    ", text);
            }
        }
    }

    fn row(&mut self, kept: &[usize], widths: &[usize], row: &[String]) {
        let wrapped: Vec<Vec<String>> = kept
            .iter()
            .map(|&at| {
                let cell = row.get(at).map_or("", String::as_str);
                wrap_cell(cell, widths[at], indent(at))
            })
            .collect();
        let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
        for line in 0..height {
            let mut text = String::new();
            for (&at, cell) in kept.iter().zip(&wrapped) {
                let part = cell.get(line).map_or("", String::as_str);
                let pad = (widths[at] + GUTTER).saturating_sub(length(part));
                text.push_str(part);
                text.extend(std::iter::repeat_n(' ', pad));
            }
            self.line(text.trim_end());
        }
    }

    /// Adds one line.
    pub(crate) fn line(&mut self, line: &str) {
        writeln!(self.text, "{line}").expect("writing to a String does not fail");
    }

    /// Adds the command to run next: never wrapped, so that it can be copied.
    pub(crate) fn next(&mut self, command: &str) {
        self.line(&format!("next: {command}"));
    }

    /// Adds `text`, wrapped to the width: the first line after `lead`, the others with the same indent.
    ///
    /// Words and commands in backticks are never broken: a long one has a line of its own, so that it can be copied.
    pub(crate) fn para(&mut self, lead: &str, text: &str) {
        let indent = " ".repeat(length(lead));
        self.hang(lead, &indent, text);
    }

    /// Adds `text`, wrapped to the width: the first line after `lead`, the others after `indent`.
    pub(crate) fn hang(&mut self, lead: &str, indent: &str, text: &str) {
        let width = usize::from(self.style.width).max(length(indent) + 20);
        let mut line = lead.to_owned();
        let mut empty = true;
        for word in words(text) {
            let end = length(&line) + usize::from(!empty) + length(&word);
            if !empty && end > width {
                self.line(line.trim_end());
                indent.clone_into(&mut line);
                empty = true;
            }
            if !empty {
                line.push(' ');
            }
            line.push_str(&word);
            empty = false;
        }
        self.line(line.trim_end());
    }

    /// Adds `items` on as many lines as they need: the first line after `lead`, the others with the same indent. No item is broken.
    pub(crate) fn items(&mut self, lead: &str, items: &[String]) {
        let width = usize::from(self.style.width);
        let indent = " ".repeat(length(lead));
        let mut line = lead.to_owned();
        let mut is_empty = true;
        for item in items {
            if !is_empty && length(&line) + GUTTER + length(item) > width {
                self.line(&line);
                line.clone_from(&indent);
                is_empty = true;
            }
            if !is_empty {
                line.push_str(&" ".repeat(GUTTER));
            }
            line.push_str(item);
            is_empty = false;
        }
        self.line(&line);
    }

    /// Adds `text` like [`Page::hang`], on at most `most` lines if possible: it ends with its last clause that fits. A first clause
    /// of more lines is whole. The first `least` bytes are no clause. A text of sentences stays one.
    pub(crate) fn brief(
        &mut self,
        (lead, indent): (&str, &str),
        text: &str,
        least: usize,
        most: usize,
    ) {
        let written = |text: &str| {
            let mut page = Self::new(self.style);
            page.hang(lead, indent, text);
            page
        };
        let mut page = written(text);
        let ends = clause_ends(text);
        for end in ends.into_iter().filter(|end| *end > least).rev() {
            if page.text.lines().count() <= most {
                break;
            }
            let is_sentence = text.ends_with('.') && !text[..end].ends_with('.');
            let stop = if is_sentence { "." } else { "" };
            page = written(&format!("{}{stop}", &text[..end]));
        }
        self.append(&page);
    }

    /// Adds a line, truncated to the width.
    pub(crate) fn cut(&mut self, line: &str) {
        let width = usize::from(self.style.width);
        if length(line) <= width || self.style.wide {
            return self.line(line);
        }
        let dots = dots(self.style.ascii);
        // Marks take no columns.
        let marks = line.chars().count() - length(line);
        let keep = width.saturating_sub(dots.chars().count()) + marks;
        let mut kept: String = line.chars().take(keep).collect();
        // A part of a command cannot be copied, so it is omitted, unless the rest of the line would be too short.
        if kept.matches('`').count() % 2 == 1
            && let Some(at) = kept.rfind('`').filter(|at| *at > width / 2)
        {
            kept.truncate(at);
        }
        self.line(&format!("{}{dots}", kept.trim_end()));
    }

    /// Returns the number of rows of a terminal that the page takes so far: a line that is longer than the width takes several.
    pub(crate) fn rows(&self) -> usize {
        let width = usize::from(self.style.width).max(1);
        let rows = |line: &str| length(line).div_ceil(width).max(1);
        self.text.lines().map(rows).sum()
    }

    /// Adds the lines of another page.
    pub(crate) fn append(&mut self, other: &Self) {
        self.text.push_str(&other.text);
    }

    /// Returns `text` in the colour of `tone`, if the page has colours: between marks, of which a
    /// [`TextWriter`](super::TextWriter) makes escape sequences.
    pub(crate) fn paint(&self, tone: Tone, text: &str) -> String {
        if self.style.color {
            format!("{}{text}{UNTONED}", tone.mark())
        } else {
            text.to_owned()
        }
    }

    /// Returns the finished text.
    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

/// Words that begin a clause behind a comma.
const CLAUSES: [&str; 4] = ["and nothing", "off", "or", "so"];

/// The same, of a clause that may stand in the middle of another one: behind one more comma, that goes on.
const ASIDES: [&str; 9] = [
    "although", "as", "because", "if", "since", "such as", "unless", "until", "which",
];

/// Words that begin a sentence of which the part before a colon says nothing alone.
const INTRODUCTIONS: [&str; 6] = ["For ", "If ", "On ", "To ", "When ", "With "];

/// Returns where clauses of `text` end that say something without the rest: not inside a command or brackets, and not before
/// brackets within a clause.
fn clause_ends(text: &str) -> Vec<usize> {
    let mut ends = Vec::new();
    let (mut depth, mut is_command) = (0_usize, false);
    // Where the sentence begins, and where its clause before a bracket ends.
    let (mut begin, mut before) = (0, None);
    for (at, c) in text.char_indices() {
        let rest = &text[at + c.len_utf8()..];
        let is_open = depth == 0 && !is_command;
        match c {
            '`' => is_command = !is_command,
            '(' => {
                if is_open {
                    before = text[..at].ends_with(' ').then(|| at - 1);
                }
                depth += 1;
            }
            ')' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && (rest.is_empty() || rest.starts_with(['.', ',', ';', ':'])) {
                    ends.extend(before.take());
                }
            }
            '.' if is_open && rest.starts_with(' ') => {
                ends.push(at + 1);
                begin = at + 2;
            }
            ';' if is_open && rest.starts_with(' ') => ends.push(at),
            ':' if is_open && rest.starts_with(' ') => {
                let said = &text[begin..];
                if !INTRODUCTIONS.iter().any(|word| said.starts_with(word)) {
                    ends.push(at);
                }
            }
            ',' if is_open => {
                let begins = |word: &str| {
                    let rest = rest
                        .strip_prefix(' ')
                        .and_then(|rest| rest.strip_prefix(word));
                    rest.is_some_and(|rest| rest.starts_with(' '))
                };
                let mut sentence = rest.split(". ").next().unwrap_or_default().chars();
                let mut is_last = || sentence.all(|other| other != ',');
                if CLAUSES.into_iter().any(begins) || ASIDES.into_iter().any(begins) && is_last() {
                    ends.push(at);
                }
            }
            _ => {}
        }
    }
    ends
}

/// The space between two cells, in columns.
const GUTTER: usize = 2;

/// The mark at which a tone ends.
pub(super) const UNTONED: char = '\u{fdd0}';

/// Returns the columns that `text` takes.
fn length(text: &str) -> usize {
    let is_mark = |c: char| c == UNTONED || Tone::marked(c).is_some();
    text.chars().filter(|&c| !is_mark(c)).count()
}

/// Returns the parts of `text` between which a line may break: words, and commands in backticks with the punctuation
/// beside them. A backtick without another one is a character like others.
fn words(text: &str) -> Vec<String> {
    let is_odd = |word: &str| word.matches('`').count() % 2 == 1;
    let mut rest = text.split_ascii_whitespace();
    let mut words = Vec::new();
    while let Some(word) = rest.next() {
        let end = rest.clone().position(is_odd).filter(|_| is_odd(word));
        let mut whole = word.to_owned();
        for part in rest.by_ref().take(end.map_or(0, |at| at + 1)) {
            whole.push(' ');
            whole.push_str(part);
        }
        words.push(whole);
    }
    words
}

/// Iterates over the parts of a cell between which a line may break: after a space, and after the slash in a name.
fn pieces(cell: &str) -> impl Iterator<Item = &str> {
    let mut rest = cell;
    std::iter::from_fn(move || {
        let name = |at: usize| rest[..at].ends_with(|c: char| c.is_ascii_alphabetic());
        let end = rest.char_indices().find_map(|(at, c)| match c {
            ' ' => Some(at + 1),
            '/' if name(at) => Some(at + 1),
            _ => None,
        });
        let (first, more) = rest.split_at(end.unwrap_or(rest.len()));
        rest = more;
        (!first.is_empty()).then_some(first)
    })
}

/// Returns the indent of the second and later lines of a cell: in the first column, they must not look like a new row.
fn indent(column: usize) -> usize {
    if column == 0 { GUTTER } else { 0 }
}

fn wrap_cell(cell: &str, width: usize, indent: usize) -> Vec<String> {
    if length(cell) <= width {
        return vec![cell.to_owned()];
    }
    let mut lines = Vec::new();
    let mut line = String::new();
    for piece in pieces(cell) {
        if !line.trim().is_empty() && length(&line) + length(piece.trim_end()) > width {
            lines.push(line.trim_end().to_owned());
            line = " ".repeat(indent);
        }
        line.push_str(piece);
    }
    lines.push(line.trim_end().to_owned());
    lines
}

/// Breaks `text` into lines of at most `width` columns: at spaces; a longer word after a punctuation mark, or anywhere.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(8);
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    // Two spaces between words are columns of their own.
    for word in text.split(' ') {
        let mut word = word.to_owned();
        let length = |text: &str| text.chars().count();
        if !line.is_empty() && length(&line) + 1 + length(&word) > width {
            lines.push(std::mem::take(&mut line).trim_end().to_owned());
        }
        while length(&word) > width {
            let most: String = word.chars().take(width).collect();
            let marks = ['/', '-', '.', ':', '_', '@'];
            let cut = most
                .rfind(marks)
                .filter(|at| *at > width / 3)
                .map_or(most.len(), |at| at + 1);
            let rest = word.split_off(cut);
            lines.push(word);
            word = rest;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&word);
    }
    lines.push(line.trim_end().to_owned());
    lines
}

/// Returns the mark for omitted text.
pub(crate) const fn dots(ascii: bool) -> &'static str {
    if ascii { "..." } else { "…" }
}

/// Returns `name` in at most `most` characters, cut in the middle: similar names differ at either end.
pub(crate) fn shorten(name: &str, most: usize, dots: &str) -> String {
    if name.chars().count() <= most {
        return name.to_owned();
    }
    let all: Vec<char> = name.chars().collect();
    let kept = most.saturating_sub(dots.chars().count());
    let (head, tail) = (kept.div_ceil(2), kept / 2);
    let head: String = all[..head].iter().collect();
    let tail: String = all[all.len() - tail..].iter().collect();
    format!("{head}{dots}{tail}")
}

/// The meaning of a colour; the words next to it always have the same meaning.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Tone {
    /// An error.
    Bad,
    /// A warning.
    Doubtful,
    /// Healthy.
    Good,
    /// Unknown.
    Unclear,
    /// A title.
    Strong,
}

impl Tone {
    /// Returns the mark at which it begins.
    const fn mark(self) -> char {
        match self {
            Self::Bad => '\u{fdd1}',
            Self::Doubtful => '\u{fdd2}',
            Self::Good => '\u{fdd3}',
            Self::Unclear => '\u{fdd4}',
            Self::Strong => '\u{fdd5}',
        }
    }

    /// Returns the tone that begins at the mark `c`.
    pub(super) fn marked(c: char) -> Option<Self> {
        Some(match c {
            '\u{fdd1}' => Self::Bad,
            '\u{fdd2}' => Self::Doubtful,
            '\u{fdd3}' => Self::Good,
            '\u{fdd4}' => Self::Unclear,
            '\u{fdd5}' => Self::Strong,
            _ => return None,
        })
    }

    /// Returns the parameters of the escape sequence (SGR).
    pub(super) const fn code(self) -> &'static str {
        match self {
            Self::Bad => "1;31",
            Self::Doubtful => "1;33",
            Self::Good => "1;32",
            Self::Unclear => "1;35",
            Self::Strong => "1",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(width: u16, columns: &[(&str, u8)], rows: &[&[&str]]) -> String {
        let mut page = Page::new(Style {
            width,
            color: false,
            ascii: false,
            wide: false,
            verbose: 0,
            program: "kpx",
        });
        let rows: Vec<Vec<String>> = rows
            .iter()
            .map(|row| row.iter().map(|cell| (*cell).to_owned()).collect())
            .collect();
        page.grid(columns, &rows);
        page.into_text()
    }

    #[test]
    fn a_wide_table_drops_columns_by_rank_and_then_wraps_cells() {
        let columns = [("NAME", 0), ("PORT", 0), ("NOTE", 1), ("DOES", 0)];
        let rows: &[&[&str]] = &[&[
            "kube-system/long-name:http",
            "31000",
            "x",
            "forwards; 2 drop",
        ]];
        let text = page(80, &columns, rows);
        assert!(text.contains("NOTE"), "{text}");
        let text = page(46, &columns, rows);
        assert_eq!(
            text,
            "NAME                        PORT   DOES\n\
             kube-system/long-name:http  31000  forwards; 2\n                                   drop\n"
        );
        let text = page(36, &columns, rows);
        assert!(text.lines().all(|line| line.len() <= 36), "{text}");
        assert!(text.contains("\n  long-name:http"), "{text}");
    }

    #[test]
    fn a_command_in_backticks_stays_on_one_line() {
        let para = |text: &str| {
            let mut page = Page::new(Style {
                width: 40,
                color: false,
                ascii: false,
                wide: false,
                verbose: 0,
                program: "kpx",
            });
            page.para("fix   ", text);
            page.into_text()
        };
        assert_eq!(
            para("Then run `kpx reconcile --cleanup iptables` (or `kpx diff`), then drain."),
            "fix   Then run\n      `kpx reconcile --cleanup iptables`\n      (or `kpx diff`), then drain.\n"
        );
        // A cell that is too long overflows; the cells after it do not.
        assert_eq!(
            para("Set it with `sysctl -w net.netfilter.nf_conntrack_acct=1` on each node."),
            "fix   Set it with\n      `sysctl -w net.netfilter.nf_conntrack_acct=1`\n      on each node.\n"
        );
        assert_eq!(
            para("One ` alone is a character, and the line breaks."),
            "fix   One ` alone is a character, and\n      the line breaks.\n"
        );
    }

    #[test]
    fn a_shortened_text_ends_with_a_whole_clause() {
        let brief = |text: &str| {
            let mut page = Page::new(Style {
                width: 40,
                color: false,
                ascii: false,
                wide: false,
                verbose: 0,
                program: "kpx",
            });
            page.brief(("", ""), text, 0, 1);
            page.into_text().replace('\n', " ")
        };
        for (text, shortened) in [
            (
                "Drain the node, which removes them: a reboot clears the kernel.",
                "Drain the node, which removes them. ",
            ),
            (
                "Choose one. To keep the plugin's: delete the DaemonSet kube-proxy.",
                "Choose one. ",
            ),
            (
                "Its rules stay. A reload, which restores them, flushes others.",
                "Its rules stay. ",
            ),
            (
                "Its rules stay, and a reload (`x --reload`) writes them again.",
                "Its rules stay, and a reload (`x --reload`) writes them again. ",
            ),
            (
                "Install the extra modules (linux-modules-extra on Ubuntu), or choose another mode.",
                "Install the extra modules. ",
            ),
            (
                "the table is full; packets of new connections are dropped",
                "the table is full ",
            ),
        ] {
            assert_eq!(brief(text), shortened);
        }
    }

    #[test]
    fn an_empty_column_is_dropped() {
        let text = page(80, &[("A", 0), ("B", 0), ("C", 0)], &[&["1", "", "3"]]);
        assert_eq!(text, "A  C\n1  3\n");
    }

    #[test]
    fn no_line_is_longer_than_asked() {
        let name = "external-PWHLL22A-default/nginx-svc-nodeport/tcp/a-very-long-port-name";
        for width in 10..60 {
            let text = format!("ip kube-proxy {name}:12 goes on");
            let lines = wrap(&text, width);
            assert!(lines.iter().all(|line| line.len() <= width), "{lines:?}");
            assert_eq!(lines.concat().replace(' ', ""), text.replace(' ', ""));
        }
    }

    #[test]
    fn a_long_name_is_cut_in_the_middle() {
        assert_eq!(shorten("abcdefghij", 10, "…"), "abcdefghij");
        assert_eq!(shorten("abcdefghijk", 8, "…"), "abcd…ijk");
        assert_eq!(shorten("abcdefghijk", 8, "..."), "abc...jk");
    }
}
