//! POSIX systems.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::gethostname;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::clock::pause;

/// Returns the host name of this machine.
pub fn host_name() -> Option<String> {
    gethostname().ok()?.into_string().ok()
}

/// Makes `file` readable by all users, whatever the umask is.
pub(crate) fn let_all_read(file: &File) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(0o644))
}

/// Returns whether a user may execute a file.
pub(crate) fn is_executable(file: &Metadata) -> bool {
    file.permissions().mode() & 0o111 != 0
}

/// Makes this process survive the end of its terminal.
pub fn outlive_terminal() {
    // With a handler, the signal does not end the process; without one it would interrupt a change.
    signal(SignalKind::hangup()).ok();
}

/// Interval between two checks for typed input.
const LOOK: Duration = Duration::from_millis(100);

/// Waits for a typed line, or the end of standard input.
pub async fn typed() {
    let input = io::stdin();
    // Input that cannot be polled, such as a file, can be read at once.
    while let Ok(0) = poll(
        &mut [PollFd::new(input.as_fd(), PollFlags::POLLIN)],
        PollTimeout::ZERO,
    ) {
        pause(LOOK).await;
    }
}

/// Receives Ctrl-C and SIGTERM; while it exists, they do not end the process.
#[derive(Debug)]
pub struct Interrupts {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    hangup: Option<Signal>,
}

impl Interrupts {
    /// Starts to receive signals.
    pub fn listen() -> Self {
        Self {
            interrupt: signal(SignalKind::interrupt()).ok(),
            terminate: signal(SignalKind::terminate()).ok(),
            hangup: None,
        }
    }

    /// Also receives SIGHUP, unless the process was started to ignore it (`nohup`).
    pub fn listen_to_hangup() -> Self {
        let hangup = (!outlives_terminal()).then(|| signal(SignalKind::hangup()));
        Self {
            hangup: hangup.and_then(Result::ok),
            ..Self::listen()
        }
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        tokio::select! {
            () = heard(&mut self.interrupt) => {}
            () = heard(&mut self.terminate) => {}
            () = heard(&mut self.hangup) => {}
        }
    }
}

/// Waits for the next signal. Without a handler, the signal keeps its default effect.
async fn heard(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Returns whether this process ignores SIGHUP.
fn outlives_terminal() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 == 1)
}
