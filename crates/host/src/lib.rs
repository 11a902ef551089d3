//! The only code that accesses the machine or the cluster.
//!
//! [`collect`] is the entry point. It starts one reader per item; `linux::read` is the table of readers. A reader accesses
//! the machine through a `Context` and returns text in the format of the standard tool, or a `Gap`.
//!
//! A node runs Linux: on other systems, `elsewhere` replaces `linux`, and kpx works on bundles and over the API.

mod atomic_write;
mod background;
pub mod clock;
mod cluster;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
mod http;
mod journals;
#[cfg(target_os = "linux")]
mod linux;
mod live_cluster;
mod node_pool;
mod os;
mod outcome;
mod own;
mod remote;
mod root_path;
mod user_program;

#[cfg(not(target_os = "linux"))]
use elsewhere as machine;
#[cfg(target_os = "linux")]
use linux as machine;

use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;

pub use atomic_write::replace;
pub use background::Aside;
#[cfg(fuzzing)]
pub use cluster::fuzz as credential;
pub use cluster::{Connection, Environment, Reviewed, Reviews, Selection, Watch, review};
pub use http::{HttpAnswer, HttpServer};
pub use journals::{Journal, Journals};
use kpx_node::evidence::{Evidence, Item};
use kpx_node::net::Family;
pub use live_cluster::LiveCluster;
#[cfg(fuzzing)]
pub use machine::decoders;
pub use machine::{
    ChainReader, Guard, Live, Trial, ask, check, confine, connections, conntrack_fill, free_space,
    has_legacy_tables, ipvs_table, is_guarded, is_root, listen, nft_generation, nft_set,
    nft_tables, node_name, own_pods, peak_of_children, probe, processor_time, renew,
    resident_memory, start_guard, trace_packets,
};
pub use node_pool::{Crew, Event, Push};
pub use os::host_name;
pub use outcome::{Listing, Locked, NoNamespace, Probe, ProbeOutcome, ProbeResult};
pub use own::{OwnRun, run_self};
pub use remote::{NodeChange, PodOptions, Query, Remote, RemoteNode, Unreached, sha256};
pub use user_program::{check_hook, run_hook};

/// The reason for which a machine with another system is neither read nor changed.
pub const ONLY_LINUX: &str = "kpx reads and changes a live node on Linux only";

/// Whether this machine may be a node.
pub const MAY_BE_NODE: bool = cfg!(target_os = "linux");

/// Options of a collection.
#[derive(Clone, Debug)]
pub struct Options {
    /// Network namespace, by name or path; `None` means that of this process.
    pub netns: Option<String>,
    /// Mount point of the host's root file system.
    pub root: PathBuf,
    /// Name of the Node object, if given.
    pub node: Option<String>,
    /// Families to read.
    pub families: Vec<Family>,
    /// Time limit of one read.
    pub timeout: Duration,
    /// Kubeconfig file, if given.
    pub kubeconfig: Option<PathBuf>,
    /// Kubeconfig context, if given.
    pub context: Option<String>,
    /// Cluster and user that replace those of the context.
    pub selection: Selection,
    /// Whether not to access the API server.
    pub no_api: bool,
    /// Environment variables that select the cluster.
    pub environment: Environment,
}

/// Reads `items` from this node in parallel.
pub async fn collect(items: &[Item], options: &Options) -> Evidence {
    collect_watched(items, options, |_| {}).await
}

/// Like [`collect`]; calls `done` with each item as soon as it is read.
pub async fn collect_watched(items: &[Item], options: &Options, done: impl Fn(Item)) -> Evidence {
    collect_over(&Connection::default(), items, options, done).await
}

/// Like [`collect_watched`], with a connection to the API server that may be open.
pub async fn collect_over(
    api: &Connection,
    items: &[Item],
    options: &Options,
    done: impl Fn(Item),
) -> Evidence {
    let context = machine::Context::over(api, items, options);
    let reads = items.iter().map(async |&item| {
        let read = machine::read(item, &context).await;
        done(item);
        (item, read)
    });
    let mut evidence = Evidence::default();
    for (item, read) in join_all(reads).await {
        evidence.insert(item, read);
    }
    evidence
}

/// Reads `items`, which describe the cluster, from the API server alone, for the Node `node`.
pub async fn collect_cluster(
    api: &Connection,
    items: &[Item],
    node: &str,
    options: &Options,
    done: impl Fn(Item),
) -> Evidence {
    let reads = items.iter().map(async |&item| {
        let read = match item {
            Item::ProxyConfig => api.0.proxy_config(node, options).await,
            item => {
                api.0
                    .read(item, node, options, cluster::Urgency::Look)
                    .await
            }
        };
        done(item);
        (item, read)
    });
    let mut evidence = Evidence::default();
    for (item, read) in join_all(reads).await {
        evidence.insert(item, read);
    }
    evidence
}

/// Returns the namespace of the kubeconfig's context, as kubectl uses it; `None` without access to a cluster.
pub async fn context_namespace(options: &Options) -> Option<String> {
    cluster::context_namespace(options).await
}

/// Returns the names of the contexts in the kubeconfig of `options`; none if it cannot be read.
pub fn contexts(options: &Options) -> Vec<String> {
    cluster::contexts(options)
}

/// Returns why the kubeconfig of `options` cannot be used; `None` if it can, or there is none.
pub async fn unusable_kubeconfig(options: &Options) -> Option<String> {
    cluster::unusable_kubeconfig(options).await
}

/// Runs credential plugins of the kubeconfig that may ask for input. The first read reports their errors.
pub async fn log_in(options: &Options) {
    cluster::log_in(options).await;
}
