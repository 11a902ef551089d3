//! `kpx serve`

pub(crate) mod args;
mod reading;
mod record;
pub(super) mod run;
mod state;
