//! The clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
    use tokio::signal::unix::{SignalKind, signal};
    // Once there is a handler, the signal no longer ends the process; without one it does, and the change is cut short.
    signal(SignalKind::hangup()).ok();
}

/// Waits until somebody asks this process to end: by Ctrl-C, or by SIGTERM.
pub async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        }
        // Without a handler, the signal ends the process by itself.
        Err(_) => std::future::pending().await,
    }
}
