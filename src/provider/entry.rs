//! A provider in the catalogue.

use super::clue::Clue;

/// A provider.
#[derive(Debug)]
pub struct Provider {
    /// Short name: of its page, and for `kpx explain`.
    pub id: &'static str,
    /// Full name.
    pub name: &'static str,
    /// Text of its page, `docs/migrate/ID.md`.
    pub text: &'static str,
    /// Evidence that no other provider has, except providers that build on this one.
    pub(super) clues: &'static [Clue],
    /// The provider whose evidence its nodes have as well.
    pub(super) builds_on: Option<&'static str>,
    /// The only schemes that a provider ID of its nodes has.
    pub(super) clouds: &'static [&'static str],
}
