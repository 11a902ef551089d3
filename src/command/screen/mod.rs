//! The screen that `kpx` without a command opens.

mod draw;
pub(crate) mod run;
mod state;
