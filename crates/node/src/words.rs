//! Nouns with numbers, and lists of names.

use std::fmt::Display;

/// Returns `count` with `noun`, in the plural unless `count` is 1: `1 node`, `3 nodes`, `2 addresses`.
pub fn number_of<N: Copy + Display + From<u8> + PartialEq>(count: N, noun: &str) -> String {
    let ending = if count == N::from(1) {
        ""
    } else if noun.ends_with('s') {
        "es"
    } else {
        "s"
    };
    format!("{count} {noun}{ending}")
}

/// Lists the first ten of `names`.
pub fn listed(names: &[impl AsRef<str>]) -> String {
    const FIRST: usize = 10;
    let first: Vec<_> = names.iter().take(FIRST).map(AsRef::as_ref).collect();
    let first = first.join(", ");
    match names.len().checked_sub(FIRST) {
        None | Some(0) => first,
        Some(more) => format!("{first} and {more} more"),
    }
}
/// Returns a duration in seconds, in words: `40 s`, `3 min`, `2 min 5 s`.
pub fn span(seconds: u64) -> String {
    match (seconds / 60, seconds % 60) {
        (0 | 1, _) => format!("{seconds} s"),
        (minutes, 0) => format!("{minutes} min"),
        (minutes, rest) => format!("{minutes} min {rest} s"),
    }
}
