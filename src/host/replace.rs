//! Writing a file that others read.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Writes `text` to `path`, so that a reader finds what was there before or all of it.
///
/// What is written lies beside `path` until it is whole, under a name that the collector of `node_exporter`, which
/// reads `*.prom`, passes over. Everybody may read it.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let name = name.to_string_lossy();
    let temp = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = write(&temp, text).and_then(|()| fs::rename(&temp, path));
    if written.is_err() {
        fs::remove_file(&temp).ok();
        return written;
    }
    // The new name, too, is to outlive a crash.
    let folder = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

fn write(temp: &Path, text: &str) -> io::Result<()> {
    // Whatever a run before left under the name, a link included, is not written through.
    fs::remove_file(temp).ok();
    let mut file = File::create_new(temp)?;
    // The collector is another user, whatever the umask here.
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
