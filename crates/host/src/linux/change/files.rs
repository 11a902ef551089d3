//! Writes files: kernel settings and configuration for the next boot.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::context::Context;
use super::super::root_path;
use kpx_node::apply::StepError;

/// Writes `value` to the kernel setting `key` of the network namespace.
pub(super) async fn sysctl(
    context: &Arc<Context>,
    key: &str,
    value: &str,
) -> Result<(), StepError> {
    let path = PathBuf::from("proc/sys").join(key.replace('.', "/"));
    let value = format!("{value}\n");
    context
        .change(async move |context| {
            let path = context.path(&path);
            fs::write(&path, value).map_err(|e| failed("write", &path, &e))
        })
        .await
}

/// Replaces `path`, relative to the host's root, with `text` atomically: readers see the old or the new file. An
/// existing file keeps its owner and permissions, and symbolic links to it remain valid.
pub(super) fn write(context: &Context, path: &Path, text: &str) -> Result<(), StepError> {
    let written = || -> io::Result<()> {
        let path = root_path::resolve(&context.options.root, path)?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(text.as_bytes())?;
        if let Ok(before) = fs::metadata(&path) {
            fchown(file.as_file(), Some(before.uid()), Some(before.gid()))?;
            file.as_file().set_permissions(before.permissions())?;
        }
        file.as_file().sync_all()?;
        file.persist(&path)?;
        fs::File::open(folder)?.sync_all()
    };
    written().map_err(|e| failed("write", &context.path(below(path)), &e))
}

/// Returns the absolute `path` relative to the host's root.
fn below(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// Removes `path`, relative to the host's root.
pub(super) fn remove(context: &Context, path: &Path) -> Result<(), StepError> {
    let path = context.path(below(path));
    match fs::remove_file(&path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(failed("remove", &path, &e)),
        _ => Ok(()),
    }
}

fn failed(what: &str, path: &Path, e: &io::Error) -> StepError {
    let text = format!("cannot {what} {}: {e}", path.display());
    match e.kind() {
        ErrorKind::PermissionDenied => StepError::Denied(text),
        ErrorKind::NotFound => StepError::Absent(text),
        _ => StepError::Refused(text),
    }
}
