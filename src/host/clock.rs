//! Clock and signals.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use super::os::{Interrupts, outlive_terminal, typed};
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

/// Waits for Ctrl-C or SIGTERM.
pub async fn interrupted() {
    Interrupts::listen().next().await;
}
