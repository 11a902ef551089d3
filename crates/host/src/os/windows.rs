//! Windows.

use std::env;
use std::fs::{File, Metadata};
use std::future::pending;
use std::io;

use tokio::signal::windows::{CtrlBreak, CtrlC, ctrl_break, ctrl_c};

/// Returns the host name of this machine.
pub fn host_name() -> Option<String> {
    env::var_os("COMPUTERNAME")?.into_string().ok()
}

/// Does nothing: a file has the permissions of its folder.
#[expect(clippy::unnecessary_wraps, reason = "it can fail on other systems")]
pub(crate) const fn let_all_read(_: &File) -> io::Result<()> {
    Ok(())
}

/// Returns whether a user may execute a file: its name decides.
pub(crate) const fn is_executable(_: &Metadata) -> bool {
    true
}

/// Does nothing: closing the terminal ends the process.
pub const fn outlive_terminal() {}

/// Returns at once: input cannot be polled, and reading it blocks.
#[expect(clippy::unused_async, reason = "it waits on other systems")]
pub async fn typed() {}

/// Receives Ctrl-C and Ctrl-Break; while it exists, they do not end the process.
#[derive(Debug)]
pub struct Interrupts {
    interrupt: Option<CtrlC>,
    terminate: Option<CtrlBreak>,
}

impl Interrupts {
    /// Starts to receive signals.
    pub fn listen() -> Self {
        Self {
            interrupt: ctrl_c().ok(),
            terminate: ctrl_break().ok(),
        }
    }

    /// The same: there is no SIGHUP.
    pub fn listen_to_hangup() -> Self {
        Self::listen()
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        let interrupt = async {
            match &mut self.interrupt {
                Some(signal) => drop(signal.recv().await),
                None => pending().await,
            }
        };
        let terminate = async {
            match &mut self.terminate {
                Some(signal) => drop(signal.recv().await),
                None => pending().await,
            }
        };
        tokio::select! {
            () = interrupt => {}
            () = terminate => {}
        }
    }
}
