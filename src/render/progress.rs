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
pub(crate) struct Progress {
    shown: Option<(Sender<()>, JoinHandle<()>)>,
    state: Arc<Mutex<State>>,
}

/// The lines on the screen.
#[derive(Debug, Default)]
struct State {
    pending: Vec<String>,
    /// The number of finished nodes, if nodes are counted.
    finished: Option<usize>,
    /// The number of nodes, if known.
    total: Option<usize>,
}

impl Progress {
    /// Returns a spinner for `pending`, the names of the items being read.
    pub(crate) fn start(pending: Vec<String>, ascii: bool) -> Self {
        let state = State {
            pending,
            ..State::default()
        };
        Self::shown(state, ascii)
    }

    /// Returns a spinner that counts nodes; a bar if their number is known.
    pub(crate) fn of_nodes(total: Option<usize>, ascii: bool) -> Self {
        let state = State {
            pending: Vec::new(),
            finished: Some(0),
            total,
        };
        Self::shown(state, ascii)
    }

    fn shown(state: State, ascii: bool) -> Self {
        let (done, ended) = mpsc::channel();
        let style = style(state.total, ascii);
        let total = state.total;
        let state = Arc::new(Mutex::new(state));
        let watched = Arc::clone(&state);
        // A thread, because parsing can keep the main one busy.
        let spinner = thread::Builder::new().name("progress".to_owned());
        let spinner = spinner.spawn(move || {
            if ended.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(style);
            if let Some(total) = total {
                bar.set_length(total as u64);
            }
            // The sender is dropped at the end.
            while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                if let Ok(state) = watched.lock() {
                    bar.set_position(state.finished.unwrap_or_default() as u64);
                    bar.set_message(message(&state));
                }
                bar.tick();
            }
            bar.finish_and_clear();
        });
        Self {
            // Without a thread there is only no spinner.
            shown: spinner.ok().map(|spinner| (done, spinner)),
            state,
        }
    }

    /// Adds `what` to the pending items.
    pub(crate) fn begin(&self, what: &str) {
        if let Ok(mut state) = self.state.lock() {
            state.pending.push(what.to_owned());
        }
    }

    /// Removes `what` from the pending items, and counts it if nodes are counted.
    pub(crate) fn done(&self, what: &str) {
        if let Ok(mut state) = self.state.lock() {
            state.pending.retain(|one| one != what);
            state.finished = state.finished.map(|count| count + 1);
        }
    }

    /// Returns a spinner that is never shown.
    pub(crate) fn silent() -> Self {
        Self {
            shown: None,
            state: Arc::default(),
        }
    }
}

/// Returns the look of a spinner, or of a bar of `total` nodes.
fn style(total: Option<usize>, ascii: bool) -> ProgressStyle {
    let spinner = ProgressStyle::default_spinner();
    let style = match total {
        None => spinner,
        Some(_) => ProgressStyle::with_template("{bar:24} {wide_msg}").unwrap_or(spinner),
    };
    if ascii {
        style.tick_chars("|/-\\ ").progress_chars("=> ")
    } else {
        style
    }
}

/// Returns `3 of 8 nodes, reading a, b, c and 4 more`, or only the second half.
fn message(state: &State) -> String {
    let pending = &state.pending;
    let named = pending.len().min(NAMED);
    let rest = match pending.len() - named {
        0 => String::new(),
        rest => format!(" and {rest} more"),
    };
    let nodes = match (state.finished, state.total) {
        (None, _) => String::new(),
        (Some(finished), None) => format!("{finished} nodes, "),
        (Some(finished), Some(total)) => format!("{finished} of {total} nodes, "),
    };
    format!("{nodes}reading {}{rest}", pending[..named].join(", "))
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
        let mut state = State {
            pending: all[..1].to_vec(),
            ..State::default()
        };
        assert_eq!(message(&state), "reading a");
        state.pending = all.to_vec();
        assert_eq!(message(&state), "reading a, b, c and 2 more");
        state.finished = Some(7);
        assert_eq!(message(&state), "7 nodes, reading a, b, c and 2 more");
        state.total = Some(12);
        assert_eq!(message(&state), "7 of 12 nodes, reading a, b, c and 2 more");
    }
}
