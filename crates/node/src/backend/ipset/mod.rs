//! IP sets. Shared by the ipvs mode and by rules of other software.

pub mod change;
mod model;
mod parse;

pub use model::{ElementKey, Member, Set, Sets};
pub use parse::parse;
