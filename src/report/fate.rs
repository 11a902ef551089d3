//! The fate of connections, as several commands print it.

use super::{CLEAN, FOUND, UNKNOWN};
use crate::render::{Page, Tone};
use crate::view::matrix::End;
use kpx_judge::verdict::Fate;

/// Returns the exit status of a command that asks about connections.
pub(crate) const fn exit(fate: Fate) -> u8 {
    match fate {
        Fate::Works => CLEAN,
        Fate::Unknown => UNKNOWN,
        Fate::Partly | Fate::Misled | Fate::Refused | Fate::Lost => FOUND,
    }
}

/// Returns `end` as the first word of a page.
pub(crate) fn headline(page: &Page, end: End) -> String {
    page.paint(tone_of(end), &end.name().to_ascii_uppercase())
}

/// Returns the colour of `end`.
pub(crate) const fn tone_of(end: End) -> Tone {
    match end {
        End::Fate(fate) => tone(fate),
        End::ByDesign => Tone::Strong,
    }
}

/// Returns the colour of `fate`.
pub(crate) const fn tone(fate: Fate) -> Tone {
    match fate {
        Fate::Works => Tone::Good,
        Fate::Unknown => Tone::Unclear,
        Fate::Partly => Tone::Doubtful,
        Fate::Misled | Fate::Refused | Fate::Lost => Tone::Bad,
    }
}
