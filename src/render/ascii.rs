//! Text for terminals that show ASCII alone.

use std::borrow::Cow;

/// Returns `text` with every other character replaced by its nearest in ASCII, one for one, so that columns stay.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(nearest).collect())
}

fn nearest(c: char) -> char {
    match c {
        c if c.is_ascii() => c,
        '\u{2010}'..='\u{2015}' | '─' | '━' | '═' => '-',
        '│' | '┃' | '║' => '|',
        '├' | '└' | '┌' | '┐' | '┘' | '┤' | '┬' | '┴' | '┼' | '╰' | '╭' | '✓' | '✔' => {
            '+'
        }
        '→' | '⇒' | '▶' | '›' | '»' => '>',
        '←' | '⇐' | '◀' | '‹' | '«' => '<',
        '‘' | '’' => '\'',
        '“' | '”' => '"',
        '•' | '·' | '●' | '○' | '×' | '✗' | '✘' => '*',
        '…' => '.',
        '\u{a0}' => ' ',
        _ => '?',
    }
}
