//! Files with the permissions of their folder: a user's own folders are private.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::windows::fs::OpenOptionsExt as _;
use std::path::Path;

/// `FILE_FLAG_BACKUP_SEMANTICS`, without which folders cannot be opened.
const FOLDERS: u32 = 0x0200_0000;

/// `FILE_FLAG_OPEN_REPARSE_POINT`: a link is opened, not followed.
const NO_LINKS: u32 = 0x0020_0000;

/// Opens a file or folder.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, FOLDERS)
}

/// Opens a file without following links.
pub fn open_unlinked(path: &Path) -> io::Result<File> {
    open_with(path, NO_LINKS)
}

fn open_with(path: &Path, flags: u32) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Returns the number of names that a file has: the standard library does not return others.
pub const fn links(_: &Metadata) -> u64 {
    1
}

/// Returns a builder of folders.
pub fn private_folder() -> DirBuilder {
    DirBuilder::new()
}

/// Returns options that create a file.
pub fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create_new(true);
    options
}

/// Does nothing: folders cannot be written to disk on their own.
#[expect(clippy::unnecessary_wraps, reason = "it can fail on other systems")]
pub const fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}
