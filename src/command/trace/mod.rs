//! `kpx trace`

pub(crate) mod args;
mod live;
mod observe;
pub(crate) mod report;
pub(super) mod run;
