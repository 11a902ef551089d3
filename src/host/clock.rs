//! The clock.

use std::os::fd::AsFd as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::evidence::Time;

/// Returns the present time.
pub fn now() -> Time {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is where time becomes a value"
    )]
    let now = SystemTime::now();
    let seconds = match now.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
        // A clock before 1970 is wrong, but it is what the node has.
        Err(before) => -i64::try_from(before.duration().as_secs()).unwrap_or(i64::MAX),
    };
    Time { seconds }
}

/// Waits for `duration`.
pub async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Lets this process go on when its terminal is closed, from now on.
pub fn outlive_terminal() {
    // Once there is a handler, the signal no longer ends the process; without one it does, and the change is cut short.
    signal(SignalKind::hangup()).ok();
}

/// Waits until somebody asks this process to end: by Ctrl-C, or by SIGTERM.
pub async fn interrupted() {
    Interrupts::listen().next().await;
}

/// How often it is looked whether somebody has typed something.
const LOOK: Duration = Duration::from_millis(100);

/// Waits until somebody has typed a line, or closed standard input.
pub async fn typed() {
    let input = io::stdin();
    // What cannot be waited for can be read at once.
    while let Ok(0) = poll(
        &mut [PollFd::new(input.as_fd(), PollFlags::POLLIN)],
        PollTimeout::ZERO,
    ) {
        pause(LOOK).await;
    }
}

/// What asks this process to end, from when this is made on: Ctrl-C, and SIGTERM. They no longer end it by themselves.
#[derive(Debug)]
pub struct Interrupts {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    hangup: Option<Signal>,
}

impl Interrupts {
    /// Listens.
    pub fn listen() -> Self {
        Self {
            interrupt: signal(SignalKind::interrupt()).ok(),
            terminate: signal(SignalKind::terminate()).ok(),
            hangup: None,
        }
    }

    /// Listens, and takes the end of its terminal for such a signal, too, unless it was started to outlive it (`nohup`).
    pub fn listen_to_hangup() -> Self {
        let hangup = (!outlives_terminal()).then(|| signal(SignalKind::hangup()));
        Self {
            hangup: hangup.and_then(Result::ok),
            ..Self::listen()
        }
    }

    /// Waits until it is asked for, once more.
    pub async fn next(&mut self) {
        tokio::select! {
            () = heard(&mut self.interrupt) => {}
            () = heard(&mut self.terminate) => {}
            () = heard(&mut self.hangup) => {}
        }
    }
}

/// Waits for the next signal. Without a handler, it ends the process by itself, or is ignored.
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
