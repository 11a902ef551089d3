//! Runs a program of the user.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

/// Time limit of a user's program.
const HOOK: Duration = Duration::from_secs(60);

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
