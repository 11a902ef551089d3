//! `kpx top`

pub(crate) mod args;
pub(crate) mod report;
pub(super) mod run;
mod screen;
pub(crate) mod view;
