//! The clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

/// What asks this process to end, from when this is made on: Ctrl-C, and SIGTERM. They no longer end it by themselves.
#[derive(Debug)]
pub struct Interrupts(Option<[Signal; 2]>);

impl Interrupts {
    /// Listens.
    pub fn listen() -> Self {
        let of = |kind| signal(kind).ok();
        let both = of(SignalKind::interrupt()).zip(of(SignalKind::terminate()));
        Self(both.map(|(interrupt, terminate)| [interrupt, terminate]))
    }

    /// Waits until it is asked for, once more.
    pub async fn next(&mut self) {
        match &mut self.0 {
            Some([interrupt, terminate]) => {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
            }
            // Without a handler, the signal ends the process by itself.
            None => std::future::pending().await,
        }
    }
}
