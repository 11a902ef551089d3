//! Replaces a file atomically.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use super::os;
use kpx_node::evidence::files;

/// Writes `text` to `path`; a reader sees either the old content or all of the new one.
///
/// The text is written to a temporary file beside `path`. Its name is ignored by the collector of `node_exporter`,
/// which reads `*.prom`. The result is readable by all users.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let name = name.to_string_lossy();
    let temp = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = write(&temp, text).and_then(|()| fs::rename(&temp, path));
    if written.is_err() {
        fs::remove_file(&temp).ok();
        return written;
    }
    // The new directory entry must survive a crash as well.
    files::sync_folder(files::folder_of(path))
}

fn write(temp: &Path, text: &str) -> io::Result<()> {
    // A file left by an earlier run, or a link, is removed, not written to.
    fs::remove_file(temp).ok();
    let mut file = File::create_new(temp)?;
    // The collector runs as another user, whatever the umask is.
    os::let_all_read(&file)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
