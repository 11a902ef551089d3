//! JSON as `nft -j` spells it.

use crate::linux::nf_tables::wire::{Odd, put};

/// Appends text in quotes.
pub(super) fn quoted(to: &mut String, text: &str) {
    to.push('"');
    for c in text.chars() {
        match c {
            '"' => to.push_str("\\\""),
            '\\' => to.push_str("\\\\"),
            '\n' => to.push_str("\\n"),
            '\r' => to.push_str("\\r"),
            '\t' => to.push_str("\\t"),
            c if c < ' ' => put!(to, "\\u{:04x}", u32::from(c)),
            c => to.push(c),
        }
    }
    to.push('"');
}

/// Appends bytes in quotes, which must be text.
pub(super) fn string(to: &mut String, bytes: &[u8]) -> Result<(), Odd> {
    let text = std::str::from_utf8(bytes).map_err(|_| "a name is no text")?;
    quoted(to, text);
    Ok(())
}

/// Appends words as `nft` prints them under `key`: a list, or one word; nothing if there are none.
pub(super) fn words(to: &mut String, key: &str, words: &[&str]) {
    match words {
        [] => {}
        [word] => put!(to, ", \"{key}\": \"{word}\""),
        words => put!(to, ", \"{key}\": [\"{}\"]", words.join("\", \"")),
    }
}
