//! The only code that touches the machine or the cluster.
//!
//! [`collect`] is the way in. It starts one reader per item; [`read`] is the table that says which. Readers see the
//! machine through a [`Context`], print what they find as the standard tool would, and say with a
//! [`Gap`] what they could not find.

mod cluster;
mod context;
mod exec;
mod files;
mod ipvs;
mod proxy;
mod rooted;

pub mod clock;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::evidence::{Evidence, Gap, Item};
use crate::net::Family;
pub use cluster::Environment;
use context::Context;

/// Where and how to read.
#[derive(Clone, Debug)]
pub struct Options {
    /// The network namespace, by name or path; this process's own if unset.
    pub netns: Option<String>,
    /// Where the host's root file system is mounted.
    pub root: PathBuf,
    /// The Node object's name, where it was given.
    pub node: Option<String>,
    /// The families to read.
    pub families: Vec<Family>,
    /// How long one read may take.
    pub timeout: Duration,
    /// The kubeconfig file, where it was given.
    pub kubeconfig: Option<PathBuf>,
    /// The context, where it was given.
    pub context: Option<String>,
    /// Whether to leave the API server alone.
    pub no_api: bool,
    /// What the environment says about the cluster.
    pub environment: Environment,
}

/// Reads `items` from this node, all at once.
pub async fn collect(items: &[Item], options: &Options) -> Evidence {
    let context = Context::new(options);
    let reads = items
        .iter()
        .map(async |&item| (item, read(item, &context).await));
    let mut evidence = Evidence::default();
    for (item, read) in join_all(reads).await {
        evidence.insert(item, read);
    }
    evidence
}

/// Reads one item.
async fn read(item: Item, context: &Arc<Context>) -> Result<String, Gap> {
    match item {
        Item::KernelRelease => {
            let path = context.path("proc/sys/kernel/osrelease");
            context
                .inside(item, async move |_| files::text(item, &path))
                .await
        }
        Item::Modules
        | Item::ModulesBuiltin
        | Item::ModulesDep
        | Item::ModulesLoad
        | Item::Modprobe => unread(item, "modules"),
        Item::Sysctl => unread(item, "kernel settings"),
        Item::Iptables4
        | Item::Iptables6
        | Item::IptablesLegacy4
        | Item::IptablesLegacy6
        | Item::IptablesNft4
        | Item::IptablesNft6 => unread(item, "iptables"),
        Item::IptablesVersion => exec::run(context, item, "iptables", &["--version"]).await,
        Item::Nft | Item::NftText => unread(item, "nft"),
        Item::Ipset => exec::run(context, item, "ipset", &["save"]).await,
        Item::Ipvs => {
            context
                .inside(item, async |context| ipvs::read(&context.options.root))
                .await
        }
        // What ipvsadm says is all in ours.
        Item::IpvsSave | Item::IpvsStats | Item::IpvsTimeout => Err(Gap::NotCollected(item)),
        Item::IpvsConnections => unread(item, "the IPVS connection table"),
        Item::Addresses => unread(item, "addresses"),
        Item::Links => unread(item, "links"),
        Item::Routes => unread(item, "routes"),
        Item::Rules => unread(item, "rules"),
        Item::Sockets | Item::Tcp4 | Item::Tcp6 | Item::Udp4 | Item::Udp6 => {
            unread(item, "sockets")
        }
        Item::Conntrack => unread(item, "conntrack"),
        Item::Processes => unread(item, "processes"),
        Item::ProxyConfig
        | Item::ProxyMode
        | Item::Healthz
        | Item::Metrics
        | Item::Configz
        | Item::ProxyLog => proxy::read(item, context).await,
        Item::Services
        | Item::EndpointSlices
        | Item::Nodes
        | Item::ConfigMaps
        | Item::DaemonSets
        | Item::Pods => {
            let node = proxy::node_name(context).await;
            context.cluster.read(item, &node, &context.options).await
        }
    }
}

fn unread(item: Item, what: &str) -> Result<String, Gap> {
    Err(Gap::Failed(
        item,
        format!("there is no live reader for {what} yet"),
    ))
}
