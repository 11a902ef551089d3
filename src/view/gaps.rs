//! Why parts of a view are unknown or empty.

use kpx_node::evidence::Gap;

/// Gaps and notes, without duplicates.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    unknown: Vec<Gap>,
    notes: Vec<String>,
}

impl Gaps {
    /// Returns what was read, or adds why it was not.
    pub(super) fn take<T>(&mut self, read: Result<T, Gap>) -> Option<T> {
        read.map_err(|gap| self.add(gap)).ok()
    }

    /// Adds a gap; one that does not apply to the node becomes a note.
    pub(super) fn add(&mut self, gap: Gap) {
        match gap {
            Gap::NotApplicable(why) => self.note(why),
            gap if !self.unknown.contains(&gap) => self.unknown.push(gap),
            _ => {}
        }
    }

    /// Adds a note.
    pub(super) fn note(&mut self, why: String) {
        if !self.notes.contains(&why) {
            self.notes.push(why);
        }
    }

    /// Returns how many gaps there are.
    pub(super) fn count(&self) -> usize {
        self.unknown.len()
    }

    /// Returns the gaps, sorted by their text, and the notes in their order.
    pub(super) fn sorted(mut self) -> (Vec<Gap>, Vec<String>) {
        self.unknown.sort_by_key(ToString::to_string);
        (self.unknown, self.notes)
    }
}
