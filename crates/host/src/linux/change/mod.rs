//! The only code that changes a node.

mod conntrack;
mod files;
mod guard;
mod lease;
mod link;
mod modules;
pub(super) mod outside;
mod route;
mod tools;

use std::fs::{File, OpenOptions};
use std::io;
use std::mem;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sched::{CloneFlags, unshare};

use super::context::Context;
use super::ipvs;
use super::{Locked, Options};
pub use guard::{Guard, is_guarded, start as start_guard};
use kpx_node::action::Action;
use kpx_node::apply::{Apply, StepError};
use kpx_node::cluster::Pod;
pub use lease::renew;

/// Lock file against a second kpx: held while a [`Live`] exists, and released by the kernel however kpx ends.
const LOCK: &str = "run/kpx.lock";

/// The node that kpx runs on, with permission to change it.
#[derive(Debug)]
pub struct Live {
    context: Arc<Context>,
    /// Requested modules, each with the modules loaded for it, in order.
    loaded: Vec<(String, Vec<String>)>,
    lock: Arc<Flock<File>>,
}

/// A temporary network namespace for trials. Dropping it deletes it with all its contents.
#[derive(Debug)]
pub struct Trial {
    /// The node, with this namespace as its network namespace.
    pub node: Live,
    /// Options for reading it.
    pub options: Options,
    _namespace: File,
}

/// Locks `path`, unless another process holds the lock.
fn lock(path: PathBuf) -> Result<Flock<File>, Locked> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|e| Locked::Failed(path.clone(), e))?;
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock);
    lock.map_err(|(_, errno)| match errno {
        Errno::EWOULDBLOCK => Locked::Held(path),
        errno => Locked::Failed(path, errno.into()),
    })
}

impl Live {
    /// Returns the node that `options` select, locked for this process.
    pub fn new(options: &Options) -> Result<Self, Locked> {
        Ok(Self {
            context: Context::new(options),
            loaded: Vec::new(),
            lock: Arc::new(lock(options.root.join(LOCK))?),
        })
    }

    /// Returns a second handle of the same node; the lock is released with the last handle.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self {
            context: Arc::clone(&self.context),
            loaded: Vec::new(),
            lock: Arc::clone(&self.lock),
        }
    }

    /// Returns kube-proxy's pods on Node `node` from the API server.
    pub async fn proxy_pods(&self, node: &str) -> Result<Vec<Pod>, StepError> {
        let context = &self.context;
        context.cluster.proxy_pods(node, &context.options).await
    }

    /// Returns the last log line of `container` in kube-proxy's pod `pod` before it ended, if readable.
    pub async fn last_line(&self, pod: &str, container: &str) -> Option<String> {
        let context = &self.context;
        let line = context.cluster.last_line(pod, container, &context.options);
        line.await.ok().flatten()
    }

    /// Returns a new network namespace on the node that `options` select.
    pub fn trial(&self, options: &Options) -> io::Result<Trial> {
        // The namespace of an ended thread exists as long as its open file.
        let unshared = || -> io::Result<File> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        };
        let made = thread::Builder::new()
            .name("trial".to_owned())
            .spawn(unshared)?;
        let namespace = made
            .join()
            .map_err(|_| io::Error::other("the thread that makes it stopped early"))??;
        let options = Options {
            netns: Some(format!("/proc/self/fd/{}", namespace.as_raw_fd())),
            ..options.clone()
        };
        Ok(Trial {
            node: Self {
                context: Context::new(&options),
                loaded: Vec::new(),
                lock: Arc::clone(&self.lock),
            },
            options,
            _namespace: namespace,
        })
    }

    /// Returns the loaded modules, in order, including soft dependencies.
    pub fn loaded(&self) -> Vec<&str> {
        let loaded = self.loaded.iter().flat_map(|(_, names)| names);
        loaded.map(String::as_str).collect()
    }

    async fn load(&mut self, names: &[String]) -> Result<(), StepError> {
        for name in names {
            let mut loaded = Vec::new();
            let ended = modules::load(&self.context, name, &mut loaded).await;
            self.loaded.push((name.clone(), loaded));
            ended?;
        }
        Ok(())
    }

    /// Unloads the modules loaded for `names`; if this process did not load them, `names` themselves.
    async fn unload(&mut self, names: &[String]) -> Result<(), StepError> {
        let all = mem::take(&mut self.loaded);
        let (ours, others): (Vec<_>, _) = all.into_iter().partition(|(of, _)| names.contains(of));
        self.loaded = others;
        let gone: Vec<String> = if ours.is_empty() {
            names.to_vec()
        } else {
            let loaded = ours.into_iter().flat_map(|(_, loaded)| loaded);
            let mut loaded: Vec<_> = loaded.collect();
            loaded.reverse();
            loaded
        };
        // A module in use does not prevent unloading the others.
        let mut stays = Vec::new();
        for name in gone {
            stays.extend(modules::unload(&self.context, &name).await.err());
        }
        stays.into_iter().next().map_or(Ok(()), Err)
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
            Action::Ipset { input } => tools::ipset(context, input).await,
            Action::Sysctl { key, value } => files::sysctl(context, key, value).await,
            Action::WriteFile { path, text } => files::write(context, path, text),
            Action::RemoveFile { path } => files::remove(context, path),
            Action::RestartUnit { unit } => tools::restart(context, unit).await,
            Action::Kube { command } => context.cluster.change(command, &context.options).await,
            Action::Conntrack { flows } => conntrack::delete(context, flows).await,
            Action::LoadModules { names } => self.load(names).await,
            Action::UnloadModules { names } => self.unload(names).await,
            Action::Ipvs { commands } => {
                let commands = commands.clone();
                let write = async move |_| ipvs::write(&commands);
                context.change(write).await
            }
            Action::Link { commands } => {
                let commands = commands.clone();
                let change = async move |_| link::change(&commands).await;
                context.change(change).await
            }
            Action::Routes { commands } => {
                let commands = commands.clone();
                let change = async move |_| route::change(&commands).await;
                context.change(change).await
            }
        }
    }
}
