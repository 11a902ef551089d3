//! Runs a program of the user.

use std::env;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use crate::os;

/// Time limit of a user's program.
const HOOK: Duration = Duration::from_secs(60);

/// Fails if the user's program `path`, a path or a name in `PATH`, cannot be run.
pub fn check_hook(path: &Path) -> io::Result<()> {
    let is_name = path.components().count() == 1;
    let folders = env::var_os("PATH").filter(|_| is_name).unwrap_or_default();
    let mut found: Vec<PathBuf> = env::split_paths(&folders)
        .map(|folder| folder.join(path))
        .collect();
    if !is_name {
        found.push(path.to_owned());
    }
    let is_program = |path: &PathBuf| {
        let file = fs::metadata(path).ok().filter(Metadata::is_file)?;
        Some(os::is_executable(&file))
    };
    let found: Vec<bool> = found.iter().filter_map(is_program).collect();
    if found.contains(&true) {
        return Ok(());
    }
    Err(if found.is_empty() {
        io::Error::new(ErrorKind::NotFound, "no such program")
    } else {
        io::Error::new(ErrorKind::PermissionDenied, "it is not executable")
    })
}

/// Runs the user's program `path` with `input`, for at most a minute.
pub async fn run_hook(path: &Path, input: Vec<u8>) -> io::Result<()> {
    let mut child = Command::new(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program may not read it.
        stdin.write_all(&input).await.ok();
    }
    let status = timeout(HOOK, child.wait()).await;
    let status = status.map_err(|_| io::Error::other("it did not end within a minute"))??;
    if status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("it failed ({status})")))
}
