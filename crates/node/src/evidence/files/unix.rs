//! Files with modes and links.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::fcntl::OFlag;

/// Opens a file or folder. Without `O_NONBLOCK`, opening a FIFO blocks until it has a writer.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, OFlag::O_NONBLOCK)
}

/// Opens a file without following links or waiting for a writer.
pub fn open_unlinked(path: &Path) -> io::Result<File> {
    open_with(
        path,
        OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY,
    )
}

fn open_with(path: &Path, flags: OFlag) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)
}

/// Returns the number of names that a file has.
pub fn links(metadata: &Metadata) -> u64 {
    metadata.nlink()
}

/// Returns a builder of folders that only the owner may enter.
pub fn private_folder() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    builder
}

/// Returns options that create a file that only the owner may read.
pub fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create_new(true).mode(0o600);
    options
}

/// Makes new entries of a folder survive a crash.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
