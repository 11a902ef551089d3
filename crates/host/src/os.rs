//! Signals, terminals and permissions of each system.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::{Interrupts, host_name, outlive_terminal, typed};
#[cfg(windows)]
pub use windows::{Interrupts, host_name, outlive_terminal, typed};

#[cfg(unix)]
pub(super) use unix::{is_executable, let_all_read};
#[cfg(windows)]
pub(super) use windows::{is_executable, let_all_read};
