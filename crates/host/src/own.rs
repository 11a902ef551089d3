//! Runs this program again.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

/// Another run of this program, which depends only on its command line.
#[derive(Clone, Debug, Default)]
pub struct OwnRun {
    /// Arguments, without the program's name.
    pub arguments: Vec<String>,
    /// The folder that it runs in; `None` for the current one.
    pub folder: Option<PathBuf>,
    /// The bundle that it reads, as the environment names it: commands that it advises do not repeat it.
    pub from: Option<PathBuf>,
}

impl OwnRun {
    /// Runs the program for at most `limit`, without standard input and without variables of kpx in the environment; returns its
    /// status and output. Dropping the future ends the program.
    pub async fn output(&self, limit: Duration) -> io::Result<Output> {
        let mut command = own(&self.arguments)?;
        let of_kpx = |name: &OsString| name.to_string_lossy().starts_with("KPX_");
        for (name, _) in env::vars_os().filter(|(name, _)| of_kpx(name)) {
            command.env_remove(name);
        }
        if let Some(from) = &self.from {
            command.env("KPX_FROM", from);
        }
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        within(limit, &mut command).await
    }
}

/// Runs this program with `arguments` for at most `limit`; returns its output.
///
/// # Errors
///
/// It failed, with a status above `most`; the error has the first line of its output.
pub async fn run_self(arguments: &[String], most: i32, limit: Duration) -> io::Result<Vec<u8>> {
    let output = within(limit, &mut own(arguments)?).await?;
    if output.status.code().is_some_and(|code| code <= most) {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().find(|line| !line.trim().is_empty());
    let said = said.unwrap_or("it said nothing").trim().to_owned();
    Err(io::Error::other(format!("{said} ({})", output.status)))
}

fn own(arguments: &[String]) -> io::Result<Command> {
    // On Linux also if the file was replaced.
    let running = Path::new("/proc/self/exe");
    let program = if running.exists() {
        running.to_owned()
    } else {
        env::current_exe()?
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    Ok(command)
}

async fn within(limit: Duration, command: &mut Command) -> io::Result<Output> {
    let output = timeout(limit, command.output()).await;
    output.map_err(|_| io::Error::other(format!("it took longer than {limit:?}")))?
}
