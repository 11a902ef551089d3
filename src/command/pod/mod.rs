//! `kpx pod`

pub(crate) mod args;
pub(super) mod run;
