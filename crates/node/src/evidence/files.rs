//! Opens and creates files with the flags and permissions that each system has.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::path::Path;

#[cfg(unix)]
pub use unix::{links, open, open_unlinked, private_file, private_folder, sync_folder};
#[cfg(windows)]
pub use windows::{links, open, open_unlinked, private_file, private_folder, sync_folder};

/// Returns the folder of the file `path`: the current one if it names none.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}
