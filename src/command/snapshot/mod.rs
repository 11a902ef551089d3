//! `kpx snapshot`

pub(crate) mod args;
pub(crate) mod report;
pub(super) mod run;
pub(crate) mod view;
