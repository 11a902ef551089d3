//! A sign of life on standard error, for reads that take a while.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Nothing is shown for what takes no longer than this.
const PATIENCE: Duration = Duration::from_millis(500);

/// Shows a spinner from half a second after its start until it is dropped.
#[derive(Debug)]
pub struct Progress {
    shown: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Starts waiting for `what`.
    pub fn start(what: String, ascii: bool) -> Self {
        let (done, ended) = mpsc::channel();
        // A thread, because whoever is waited for may keep the main one busy.
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
            bar.set_message(what);
            bar.enable_steady_tick(Duration::from_millis(120));
            // The sender goes when the wait is over.
            ended.recv().ok();
            bar.finish_and_clear();
        });
        Self {
            // Without a thread there is no spinner, and nothing else is lost.
            shown: spinner.ok().map(|spinner| (done, spinner)),
        }
    }

    /// Shows nothing.
    pub fn silent() -> Self {
        Self { shown: None }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((done, spinner)) = self.shown.take() {
            drop(done);
            // Joined, so that its last line is gone before the report is printed.
            spinner.join().ok();
        }
    }
}
