//! ASCII-only output.

use std::borrow::Cow;

/// Returns `text` with each other character replaced by one similar ASCII character, so that columns stay aligned.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(nearest).collect())
}

fn nearest(c: char) -> char {
    match c {
        // The marks of colours.
        c if c.is_ascii() || ('\u{fdd0}'..='\u{fdef}').contains(&c) => c,
        '\u{2010}'..='\u{2015}' | '─' | '━' | '═' | '╌' => '-',
        '│' | '┃' | '║' => '|',
        '╎' | '┊' => ':',
        '├' | '└' | '┌' | '┐' | '┘' | '┤' | '┬' | '┴' | '┼' | '╰' | '╭' | '╮' | '╯' | '✓' | '✔' => {
            '+'
        }
        '→' | '⇒' | '▶' | '›' | '»' => '>',
        '←' | '⇐' | '◀' | '‹' | '«' => '<',
        '‘' | '’' => '\'',
        '“' | '”' => '"',
        '•' | '·' | '●' | '○' | '×' | '✗' | '✘' => '*',
        '…' | '┈' => '.',
        '\u{a0}' => ' ',
        _ => '?',
    }
}
