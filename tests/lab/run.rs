//! Other programs.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

#[expect(clippy::disallowed_methods, reason = "a cluster is made of programs")]
pub(crate) fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

/// The standard output of a program; else its errors, and its exit status.
pub(crate) fn output(words: &[&str]) -> Result<String, String> {
    text_of(words, command(words).output())
}

/// The same of a program that reads `input`.
pub(crate) fn output_with(words: &[&str], input: &str) -> Result<String, String> {
    let mut child = command(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{words:?}: {error}"))?;
    let written = child.stdin.take().unwrap().write_all(input.as_bytes());
    let result = text_of(words, child.wait_with_output());
    match written {
        Ok(()) => result,
        Err(error) => Err(format!("{words:?}: {error}: {result:?}")),
    }
}

fn text_of(words: &[&str], output: std::io::Result<Output>) -> Result<String, String> {
    let output = output.map_err(|error| format!("{words:?}: {error}"))?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    if !output.status.success() {
        return Err(format!("{words:?}: {}\n{out}{err}", output.status));
    }
    Ok(out)
}

/// Runs a program that must succeed.
pub(crate) fn must(words: &[&str]) -> String {
    output(words).unwrap_or_else(|error| panic!("{error}"))
}

/// Starts a program in a process group of its own, so that the end of the harness does not end it; its output is
/// appended to the file `log`.
pub(crate) fn start(words: &[&str], log: &Path) -> Child {
    let log = File::options().create(true).append(true).open(log).unwrap();
    command(words)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .process_group(0)
        .spawn()
        .unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

/// Waits until `ready` answers, at most `limit`.
pub(crate) fn wait_for<T>(what: &str, limit: Duration, mut ready: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(begun.elapsed() < limit, "{what}: not within {limit:?}");
        thread::sleep(Duration::from_millis(250));
    }
}

/// The lines of rules without comments and the counters of chains, sorted: kube-proxy writes Services in any order.
pub(crate) fn uncounted(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let mut lines: Vec<_> = lines
        .map(|line| match line.starts_with(':') {
            true => line.split(" [").next().unwrap().to_owned(),
            false => line.to_owned(),
        })
        .collect();
    lines.sort_unstable();
    lines
}
