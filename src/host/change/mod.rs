//! The only code that changes a node.

mod files;
mod tools;

use std::fs::{File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use thiserror::Error;

use super::Options;
use super::context::Context;
use crate::action::Action;
use crate::apply::{Apply, StepError};

/// What keeps a second kpx away: held while there is a [`Live`], and given back by the kernel however kpx ends.
const LOCK: &str = "run/kpx.lock";

/// The node that kpx runs on, to be changed.
#[derive(Debug)]
pub struct Live {
    context: Arc<Context>,
    _lock: Flock<File>,
}

/// Another kpx is changing the node, or it cannot be told.
#[derive(Debug, Error)]
pub enum Locked {
    /// Another kpx has the lock.
    #[error("another kpx is changing this node: it holds {0}")]
    Held(PathBuf),
    /// The lock cannot be had.
    #[error("cannot lock {0}")]
    Failed(PathBuf, #[source] io::Error),
}

impl Live {
    /// Returns the node that `options` describe, for this process alone.
    pub fn new(options: &Options) -> Result<Self, Locked> {
        let path = options.root.join(LOCK);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|e| Locked::Failed(path.clone(), e))?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock);
        let lock = lock.map_err(|(_, errno)| match errno {
            Errno::EWOULDBLOCK => Locked::Held(path.clone()),
            errno => Locked::Failed(path.clone(), errno.into()),
        })?;
        Ok(Self {
            context: Context::new(options),
            _lock: lock,
        })
    }
}

impl Apply for Live {
    async fn apply(&mut self, action: &Action) -> Result<(), StepError> {
        let context = &self.context;
        match action {
            Action::Iptables {
                backend,
                family,
                input,
            } => tools::iptables(context, *backend, *family, input).await,
            Action::Nft { input } => tools::run(context, "nft", &["-f", "-"], input).await,
            Action::Ipset { input } => tools::run(context, "ipset", &["restore"], input).await,
            Action::Sysctl { key, value } => files::sysctl(context, key, value).await,
            Action::WriteFile { path, text } => files::write(context, path, text),
            Action::RemoveFile { path } => files::remove(context, path),
            Action::Ipvs { .. }
            | Action::Link { .. }
            | Action::Conntrack { .. }
            | Action::LoadModule { .. }
            | Action::UnloadModule { .. } => {
                Err(StepError::Absent("kpx cannot do this yet".to_owned()))
            }
        }
    }
}
