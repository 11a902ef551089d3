//! `kpx completions`

pub(crate) mod args;
pub(super) mod run;
