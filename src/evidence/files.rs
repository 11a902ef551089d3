//! Opens and creates files with the flags and permissions that each system has.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(crate) use unix::{links, open, open_unlinked, private_file, private_folder, sync_folder};
#[cfg(windows)]
pub(crate) use windows::{links, open, open_unlinked, private_file, private_folder, sync_folder};
