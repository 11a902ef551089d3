//! The machine that kpx runs on, which is no node: a node runs Linux.
//!
//! Commands are refused before they read it; a reader that is asked nevertheless returns the same reason.
#![expect(
    clippy::unused_async,
    clippy::unnecessary_wraps,
    reason = "the same functions on Linux wait and fail"
)]

use std::convert::Infallible;
use std::io::{Error, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::cluster::{Api, Urgency};
use super::outcome::{Listing, Locked, NoNamespace, Probe, ProbeResult};
use super::{Connection, ONLY_LINUX, Options};
use kpx_node::action::Action;
use kpx_node::apply::{Apply, StepError};
use kpx_node::cluster::Pod;
use kpx_node::evidence::ipvs::Dump;
use kpx_node::evidence::traced::{Traced, Wanted};
use kpx_node::evidence::{Gap, Item, Tracked};
use kpx_node::net::{Family, Proto};

/// The readers of this machine: only the cluster's API.
pub(super) type Context = Api;

impl Context {
    /// Returns the API server of `options`, with a connection that may be open.
    pub(super) fn over(api: &Connection, _: &[Item], options: &Options) -> Arc<Self> {
        Arc::new(Self {
            cluster: Arc::clone(&api.0),
            options: options.clone(),
        })
    }
}

/// Reads one item.
pub(super) async fn read(item: Item, context: &Arc<Context>) -> Result<String, Gap> {
    if !item.is_object() {
        return no_node(item);
    }
    let options = &context.options;
    let node = options.node.as_deref().unwrap_or_default();
    let read = context.cluster.read(item, node, options, Urgency::Look);
    read.await
}

/// Returns that `item` cannot be read here.
fn no_node<T>(item: Item) -> Result<T, Gap> {
    Err(Gap::Unsupported(item, ONLY_LINUX.to_owned()))
}

fn no_change<T>() -> Result<T, StepError> {
    Err(StepError::Refused(ONLY_LINUX.to_owned()))
}

fn unsupported() -> Error {
    Error::new(ErrorKind::Unsupported, ONLY_LINUX)
}

/// A name that cannot be resolved.
#[derive(Debug, Error)]
#[error("cannot resolve {name}: {why}")]
pub(super) struct Unresolved {
    name: String,
    why: String,
}

/// Resolves names as the system does.
#[derive(Clone, Debug)]
pub(super) struct Names(Duration);

impl Names {
    /// Returns the resolver with the time limit of a name.
    pub(super) fn below(_: &Path, limit: Duration) -> Self {
        Self(limit)
    }

    /// Returns the addresses of `name`, IPv4 first; at least one.
    pub(super) async fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, Unresolved> {
        let found = timeout(self.0, lookup_host((name, 0))).await;
        let found = found.unwrap_or_else(|late| Err(late.into()));
        let found = found.map_err(|e| Unresolved {
            name: name.to_owned(),
            why: e.to_string(),
        })?;
        let mut found: Vec<IpAddr> = found.map(|at| at.ip()).collect();
        found.sort_by_key(IpAddr::is_ipv6);
        Ok(found)
    }
}

/// A node to change; it does not exist here.
#[derive(Debug)]
pub struct Live(Infallible);

/// A network namespace for trials; it does not exist here.
#[derive(Debug)]
pub struct Trial {
    /// The node.
    pub node: Live,
    /// Options for reading it.
    pub options: Options,
}

/// A guard of the bridge; it does not exist here.
#[derive(Debug)]
pub struct Guard(());

/// A reader of single chains; it does not exist here.
#[derive(Debug)]
pub struct ChainReader(Infallible);

impl Live {
    /// Fails.
    pub fn new(options: &Options) -> Result<Self, Locked> {
        Err(Locked::Failed(options.root.clone(), unsupported()))
    }

    /// Never called.
    #[must_use]
    pub fn beside(&self) -> Self {
        match self.0 {}
    }

    /// Never called.
    pub async fn proxy_pods(&self, _: &str) -> Result<Vec<Pod>, StepError> {
        match self.0 {}
    }

    /// Never called.
    pub async fn last_line(&self, _: &str, _: &str) -> Option<String> {
        match self.0 {}
    }

    /// Never called.
    pub fn trial(&self, _: &Options) -> Result<Trial, Error> {
        match self.0 {}
    }

    /// Never called.
    pub fn loaded(&self) -> Vec<&str> {
        match self.0 {}
    }
}

impl Apply for Live {
    async fn apply(&mut self, _: &Action) -> Result<(), StepError> {
        match self.0 {}
    }
}

impl Guard {
    /// Fails.
    pub fn new(options: &Options) -> Result<Self, Locked> {
        Err(Locked::Failed(options.root.clone(), unsupported()))
    }
}

impl ChainReader {
    /// Returns `None`.
    pub async fn new(_: &Options, _: Family) -> Option<Self> {
        None
    }

    /// Never called.
    pub const fn family(&self) -> Family {
        match self.0 {}
    }

    /// Never called.
    pub async fn read(&self, _: Vec<(String, String)>) -> Vec<Result<Listing, Gap>> {
        match self.0 {}
    }
}

/// Returns no error: the options are valid.
pub const fn check(_: &Options) -> Result<(), NoNamespace> {
    Ok(())
}

/// There is no Landlock.
pub const fn confine(_: &[PathBuf]) -> Result<bool, Infallible> {
    Ok(false)
}

/// Returns true: a missing right is not what prevents a change.
pub const fn is_root() -> bool {
    true
}

/// Returns that kpx runs in no pod.
pub const fn own_pods() -> Result<Vec<String>, String> {
    Ok(Vec::new())
}

/// Returns the name of the Node that is given.
pub async fn node_name(options: &Options) -> Option<String> {
    options.node.clone()
}

/// Fails.
pub async fn nft_tables(_: &Options) -> Result<Vec<(&'static str, String)>, Gap> {
    no_node(Item::Nft)
}

/// Fails.
pub async fn nft_set(_: &Options, _: &str, _: &str, _: &str) -> Result<String, Gap> {
    no_node(Item::Nft)
}

/// Fails.
pub async fn nft_generation(_: &Options) -> Result<u32, Gap> {
    no_node(Item::Nft)
}

/// Fails.
pub async fn ipvs_table(_: &Options) -> Result<Dump, Gap> {
    no_node(Item::Ipvs)
}

/// Fails.
pub async fn has_legacy_tables(_: &Options) -> Result<bool, Gap> {
    no_node(Item::Iptables4)
}

/// Fails.
pub async fn connections<T>(_: &Options, _: fn(&mut T, &Tracked)) -> Result<Vec<T>, Gap> {
    no_node(Item::Conntrack)
}

/// Fails.
pub async fn conntrack_fill(_: &Options) -> Result<(u64, u64), Gap> {
    no_node(Item::Sysctl)
}

/// Fails.
pub async fn trace_packets<T>(
    _: &Options,
    _: Wanted,
    _: Duration,
    _: impl Fn(&Traced, Duration) -> bool + Send + 'static,
    _: impl Future<Output = T>,
) -> Result<(Traced, Option<T>), Gap> {
    no_node(Item::Nft)
}

/// Fails.
pub async fn probe(_: &Options, _: Probe) -> Result<ProbeResult, Gap> {
    no_node(Item::Conntrack)
}

/// Fails.
pub async fn ask(
    _: &Options,
    _: SocketAddr,
    _: Vec<u8>,
    _: fn(&[u8]) -> bool,
) -> Result<Vec<u8>, Gap> {
    no_node(Item::Services)
}

/// Fails.
pub async fn listen(_: &Options, _: SocketAddr, _: bool) -> Result<TcpListener, Gap> {
    no_node(Item::Sockets)
}

/// Fails.
pub async fn start_guard(_: &Options, _: &[String]) -> Result<(), StepError> {
    no_change()
}

/// Fails.
pub fn is_guarded(_: &Options) -> Result<bool, StepError> {
    no_change()
}

/// Fails.
pub async fn renew(_: &Options, _: &str) -> Result<(), StepError> {
    no_change()
}

/// Fails.
pub fn free_space(_: &Path) -> Result<(u64, u64), Error> {
    Err(unsupported())
}

/// Returns none: only commands that read a node ask for it.
pub const fn processor_time() -> Duration {
    Duration::ZERO
}

/// Returns that it is unknown.
pub const fn resident_memory() -> Option<u64> {
    None
}

/// Returns that it is unknown.
pub const fn peak_of_children() -> Option<u64> {
    None
}

/// Returns the kubeconfig of the kube-proxy that runs here: none.
pub(super) const fn proxy_kubeconfig(_: &Path) -> Option<(PathBuf, PathBuf)> {
    None
}
