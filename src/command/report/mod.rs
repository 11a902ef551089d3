//! `kpx report`

pub(crate) mod args;
pub(crate) mod html;
pub(super) mod run;
