//! Clock and signals.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use super::os::{Interrupts, outlive_terminal, typed};
use kpx_node::evidence::Time;

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

/// Returns the current time of a clock that is never set: a jump of the system's clock must neither end nor prolong a
/// wait.
pub fn steady() -> Time {
    static BEGAN: OnceLock<(Time, Instant)> = OnceLock::new();
    after(*BEGAN.get_or_init(|| (now(), Instant::now())))
}

fn after((time, at): (Time, Instant)) -> Time {
    let passed = i64::try_from(at.elapsed().as_secs()).unwrap_or(i64::MAX);
    Time {
        seconds: time.seconds.saturating_add(passed),
    }
}

/// Waits for `duration`.
pub async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Waits for Ctrl-C or SIGTERM.
pub async fn interrupted() {
    Interrupts::listen().next().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_do_not_follow_a_clock_that_jumps() {
        // The clock of the system has jumped to another time.
        let began = (Time { seconds: 100 }, Instant::now());
        assert!((100..110).contains(&after(began).seconds));
        let earlier = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        assert!((101..111).contains(&after((began.0, earlier)).seconds));
    }
}
