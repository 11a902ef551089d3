//! A spinner on stderr during long reads.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The delay before the spinner appears.
const PATIENCE: Duration = Duration::from_millis(500);

/// The interval between two frames.
const TICK: Duration = Duration::from_millis(120);

/// The number of pending items that are named.
const NAMED: usize = 3;

/// Shows a spinner from half a second after its start until it is dropped.
#[derive(Debug)]
pub struct Progress {
    shown: Option<(Sender<()>, JoinHandle<()>)>,
    pending: Arc<Mutex<Vec<String>>>,
}

impl Progress {
    /// Returns a spinner for `pending`, the names of the items being read.
    pub fn start(pending: Vec<String>, ascii: bool) -> Self {
        let (done, ended) = mpsc::channel();
        let pending = Arc::new(Mutex::new(pending));
        let waited_for = Arc::clone(&pending);
        // A thread, because parsing can keep the main one busy.
        let spinner = thread::Builder::new().name("progress".to_owned());
        let spinner = spinner.spawn(move || {
            if ended.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let style = ProgressStyle::default_spinner();
            bar.set_style(if ascii {
                style.tick_chars("|/-\\ ")
            } else {
                style
            });
            // The sender is dropped at the end.
            while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                if let Ok(pending) = waited_for.lock() {
                    bar.set_message(message(&pending));
                }
                bar.tick();
            }
            bar.finish_and_clear();
        });
        Self {
            // Without a thread there is only no spinner.
            shown: spinner.ok().map(|spinner| (done, spinner)),
            pending,
        }
    }

    /// Removes `what` from the pending items.
    pub fn done(&self, what: &str) {
        if let Ok(mut pending) = self.pending.lock() {
            pending.retain(|one| one != what);
        }
    }

    /// Returns a spinner that is never shown.
    pub fn silent() -> Self {
        Self {
            shown: None,
            pending: Arc::default(),
        }
    }
}

/// Returns `reading a, b, c and 4 more`.
fn message(pending: &[String]) -> String {
    let named = pending.len().min(NAMED);
    let rest = match pending.len() - named {
        0 => String::new(),
        rest => format!(" and {rest} more"),
    };
    format!("reading {}{rest}", pending[..named].join(", "))
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((done, spinner)) = self.shown.take() {
            drop(done);
            // Joined, so that the spinner is erased before the report is printed.
            spinner.join().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_items_are_named() {
        let all = ["a", "b", "c", "d", "e"].map(str::to_owned);
        assert_eq!(message(&all[..1]), "reading a");
        assert_eq!(message(&all), "reading a, b, c and 2 more");
    }
}
