//! Nouns with numbers.

use std::fmt::Display;

/// Returns `count` with `noun`, in the plural unless `count` is 1: `1 node`, `3 nodes`, `2 addresses`.
pub(crate) fn number_of<N: Copy + Display + From<u8> + PartialEq>(count: N, noun: &str) -> String {
    let ending = if count == N::from(1) {
        ""
    } else if noun.ends_with('s') {
        "es"
    } else {
        "s"
    };
    format!("{count} {noun}{ending}")
}
