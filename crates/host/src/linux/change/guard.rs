//! The bridge guard: a process that removes the bridge after the kpx that needs it is gone.
//!
//! With systemd, it is a transient unit with its own control group; without systemd, a process in its own process
//! group, which closing the terminal does not end.

use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::fcntl::Flock;
use tokio::time::{Instant, sleep};

use super::lock;
use crate::linux::context::Context;
use crate::linux::exec;
use crate::{Locked, Options};
use kpx_node::apply::StepError;

/// Name of the guard's systemd unit and timer.
const UNIT: &str = "kpx-bridge-guard";

/// Lock file that the guard holds while it runs.
const LOCK: &str = "run/kpx-bridge-guard.lock";

/// Log file of a guard without systemd.
const LOG: &str = "var/log/kpx-bridge-guard.log";

/// Environment variables that select the cluster.
const ENVIRONMENT: &[&str] = &[
    "HOME",
    "KUBECONFIG",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "PATH",
];

/// Time limit for the start of a guard.
const LIMIT: Duration = Duration::from_secs(10);

/// The guard of a node.
#[derive(Debug)]
pub struct Guard {
    _lock: Flock<File>,
}

impl Guard {
    /// Returns the guard of the node that `options` select, unless one is running.
    pub fn new(options: &Options) -> Result<Self, Locked> {
        let lock = lock(options.root.join(LOCK))?;
        Ok(Self { _lock: lock })
    }
}

/// Starts `command` as the guard of the node that `options` select, and waits until it runs.
pub async fn start(options: &Options, command: &[String]) -> Result<(), StepError> {
    if is_guarded(options)? {
        return Ok(());
    }
    if options.root == Path::new("/") && Path::new("/run/systemd/system").is_dir() {
        by_systemd(options, command).await?;
    } else {
        detached(options, command)?;
    }
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        if is_guarded(options)? {
            return Ok(());
        }
        sleep(Duration::from_millis(50)).await;
    }
    Err(StepError::Refused(format!(
        "the bridge guard did not start within {LIMIT:?}; see `journalctl -u {UNIT}` or {}",
        options.root.join(LOG).display()
    )))
}

/// Returns whether the node that `options` select has a guard.
pub fn is_guarded(options: &Options) -> Result<bool, StepError> {
    match Guard::new(options) {
        Ok(_) => Ok(false),
        Err(Locked::Held(_)) => Ok(true),
        Err(failed) => Err(StepError::Refused(failed.to_string())),
    }
}

async fn by_systemd(options: &Options, command: &[String]) -> Result<(), StepError> {
    let mut args: Vec<String> = [
        "--collect",
        "--on-active=100ms",
        "--timer-property=AccuracySec=100ms",
        "--property=Restart=on-failure",
        "--property=RestartSec=5s",
    ]
    .map(str::to_owned)
    .into();
    args.push(format!("--unit={UNIT}"));
    for name in ENVIRONMENT {
        if let Some(value) = std::env::var_os(name).and_then(|value| value.into_string().ok()) {
            args.push(format!("--setenv={name}={value}"));
        }
    }
    args.push("--".to_owned());
    args.extend_from_slice(command);
    exec::feed(&Context::new(options), "systemd-run", args, String::new()).await
}

fn detached(options: &Options, command: &[String]) -> Result<(), StepError> {
    let path = options.root.join(LOG);
    let refused =
        |e: std::io::Error| StepError::Refused(format!("cannot start the bridge guard: {e}"));
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(refused)?;
    }
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(refused)?;
    let [program, args @ ..] = command else {
        return Err(StepError::Refused(
            "cannot start the bridge guard: its command is empty".to_owned(),
        ));
    };
    #[expect(clippy::disallowed_methods, reason = "the guard outlives this process")]
    Command::new(program)
        .args(args)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(refused)?)
        .stderr(log)
        .spawn()
        .map_err(refused)?;
    Ok(())
}
