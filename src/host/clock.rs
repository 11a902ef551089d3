//! Clock and signals.

use std::os::fd::AsFd as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::evidence::Time;

/// Returns the current time.
pub fn now() -> Time {
    #[expect(
        clippy::disallowed_methods,
        reason = "the only place that reads the clock"
    )]
    let now = SystemTime::now();
    let seconds = match now.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
        // A clock before 1970 is wrong, but it is the node's clock.
        Err(before) => -i64::try_from(before.duration().as_secs()).unwrap_or(i64::MAX),
    };
    Time { seconds }
}

/// Waits for `duration`.
pub async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Makes this process survive the end of its terminal.
pub fn outlive_terminal() {
    // With a handler, the signal does not end the process; without one it would interrupt a change.
    signal(SignalKind::hangup()).ok();
}

/// Waits for Ctrl-C or SIGTERM.
pub async fn interrupted() {
    Interrupts::listen().next().await;
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
