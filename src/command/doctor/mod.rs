//! `kpx doctor`

pub(crate) mod args;
pub(super) mod examine;
pub(crate) mod report;
pub(super) mod run;
