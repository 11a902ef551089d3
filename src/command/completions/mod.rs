//! `kpx completions`

pub(crate) mod args;
mod names;
pub(super) mod run;
mod words;
