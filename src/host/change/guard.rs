//! The guard of the bridge: a process that outlives the kpx that relies on the bridge.
//!
//! By systemd it is a transient unit, in a control group of its own; without, a process in a process group of its own,
//! which the end of the terminal does not end.

use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::fcntl::Flock;
use tokio::time::{Instant, sleep};

use super::{Locked, lock};
use crate::apply::StepError;
use crate::host::context::Context;
use crate::host::{Options, exec};

/// What systemd calls the guard, and its timer.
const UNIT: &str = "kpx-bridge-guard";

/// What one guard holds as long as it lives.
const LOCK: &str = "run/kpx-bridge-guard.lock";

/// What a guard that systemd does not run writes to.
const LOG: &str = "var/log/kpx-bridge-guard.log";

/// What of the environment says where the cluster is.
const ENVIRONMENT: &[&str] = &[
    "HOME",
    "KUBECONFIG",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "PATH",
];

/// How long a guard may take to begin.
const LIMIT: Duration = Duration::from_secs(10);

/// The one guard of a node.
#[derive(Debug)]
pub struct Guard {
    _lock: Flock<File>,
}

impl Guard {
    /// Returns the guard of the node that `options` describe, if there is none yet.
    pub fn new(options: &Options) -> Result<Self, Locked> {
        let lock = lock(options.root.join(LOCK))?;
        Ok(Self { _lock: lock })
    }
}

/// Starts `command`, which is to become the guard of the node that `options` describe, and returns once there is one.
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
        "the guard of the bridge did not begin within {LIMIT:?}; `journalctl -u {UNIT}` or {} says why",
        options.root.join(LOG).display()
    )))
}

/// Returns whether the node that `options` describe has a guard.
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
        |e: std::io::Error| StepError::Refused(format!("start a guard of the bridge: {e}"));
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(refused)?;
    }
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(refused)?;
    let [program, args @ ..] = command else {
        return Err(StepError::Refused("there is no guard to start".to_owned()));
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "a process that lives on, which nobody waits for"
    )]
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
