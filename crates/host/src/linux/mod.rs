//! The machine that kpx runs on, which may be a node: a node runs Linux.

mod bpf;
mod chain;
mod change;
mod confine;
mod conntrack;
mod context;
mod dns;
mod exec;
mod files;
mod ipset;
mod iptables;
mod ipvs;
mod journal;
mod links;
mod listen;
mod modules;
mod names;
mod neighbours;
mod netlink;
mod nf_tables;
mod nft;
mod own;
mod pod_networks;
mod probe;
mod processes;
mod proxy;
mod routes;
mod sockets;
mod sysctl;
mod systemd;
mod tc;
mod tracing;
mod usage;
mod xfrm;
mod xtables;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

use super::outcome::{Listing, Locked, NoNamespace, Probe, ProbeOutcome, ProbeResult};
use super::{Options, cluster, os, root_path};
pub use chain::ChainReader;
pub use change::{Guard, Live, Trial, is_guarded, renew, start_guard};
pub use confine::confine;
pub use conntrack::connections;
pub(super) use context::Context;
pub use dns::ask;
pub use iptables::has_legacy_tables;
use kpx_node::evidence::ipvs::Dump;
use kpx_node::evidence::{Gap, Item};
pub use listen::listen;
pub(super) use names::{Names, Unresolved};
pub use own::own_pods;
pub use probe::probe;
pub(super) use proxy::kubeconfig as proxy_kubeconfig;
pub use tracing::{nft_generation, trace_packets};
pub use usage::{conntrack_fill, free_space, peak_of_children, resident_memory};

/// Decoders of the kernel's answers and of kube-proxy's, for the fuzzer.
#[cfg(fuzzing)]
pub mod decoders {
    pub use super::bpf::fuzz as bpf;
    pub use super::conntrack::fuzz as conntrack;
    pub use super::ipset::fuzz as ipset;
    pub use super::ipvs::{fuzz as ipvs, fuzz_proc as proc_ip_vs};
    pub use super::links::fuzz as routing;
    pub use super::nft::fuzz as nft;
    pub use super::proxy::fuzz as http;
    pub use super::sockets::fuzz as sockets;
    pub use super::tc::fuzz as tc;
    pub use super::tracing::fuzz as traced;
    pub use super::xfrm::fuzz as xfrm;
    pub use super::xtables::{fuzz as xtables, legacy::fuzz as legacy};
}

/// Returns an error if the network namespace of `options` cannot be entered.
pub fn check(options: &Options) -> Result<(), NoNamespace> {
    context::check_netns(options)
}

/// Returns the family and name of every nftables table.
pub async fn nft_tables(options: &Options) -> Result<Vec<(&'static str, String)>, Gap> {
    nft::names(&Context::new(options)).await
}

/// Returns the set `name` of an nftables table: as JSON, or as the text that `nft` prints if kpx does not decode it.
pub async fn nft_set(
    options: &Options,
    family: &str,
    table: &str,
    name: &str,
) -> Result<String, Gap> {
    nft::set(&Context::new(options), family, table, name).await
}

/// Returns the IPVS table with its counters.
pub async fn ipvs_table(options: &Options) -> Result<Dump, Gap> {
    let read = async |context: Arc<Context>| ipvs::table(&context.options.root);
    Context::new(options).inside(Item::Ipvs, read).await
}

/// Returns whether this process has the rights of root; if that is unknown, the change itself will tell.
pub fn is_root() -> bool {
    fs::metadata("/proc/self").map_or(true, |metadata| metadata.uid() == 0)
}

/// Returns the processor time that this process and its ended children have used.
pub fn processor_time() -> Duration {
    let used = |who| {
        let usage = getrusage(who).ok();
        let times = usage.map(|usage| [usage.user_time(), usage.system_time()]);
        let times = times.into_iter().flatten();
        times
            .map(|time| u64::try_from(time.num_microseconds()).unwrap_or(0))
            .sum()
    };
    let all: u64 = [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN]
        .map(used)
        .iter()
        .sum();
    Duration::from_micros(all)
}

/// Returns the name of this node's Node object, as far as known without the API server.
pub async fn node_name(options: &Options) -> Option<String> {
    let name = proxy::node_name(&Context::new(options)).await;
    Some(name).filter(|name| !name.is_empty())
}

/// Reads one item.
pub(super) async fn read(item: Item, context: &Arc<Context>) -> Result<String, Gap> {
    match item {
        Item::Host => context.look_apart(item, files::host).await,
        Item::KernelRelease => context.look_apart(item, files::kernel_release).await,
        Item::Modules => context.look_apart(item, modules::loaded).await,
        Item::ModulesBuiltin => context.look_apart(item, modules::builtin).await,
        Item::ModulesDep => context.look_apart(item, modules::dependencies).await,
        Item::ModulesLoad => context.look_apart(item, modules::at_boot).await,
        Item::Modprobe => context.look_apart(item, modules::modprobe).await,
        Item::Sysctl => context.look(item, sysctl::read).await,
        Item::Iptables4
        | Item::Iptables6
        | Item::IptablesLegacy4
        | Item::IptablesLegacy6
        | Item::IptablesNft4
        | Item::IptablesNft6 => context.iptables().await.text(item),
        Item::Arptables => iptables::arptables(item, context).await,
        Item::IptablesVersion => exec::run(context, item, "iptables", &["--version"]).await,
        Item::ConntrackVersion => conntrack_version(item, context).await,
        Item::Nft => context.nft().await.clone(),
        Item::NftText => nft::text(item, context).await,
        Item::Ipset => ip_sets(item, context).await,
        Item::Ipvs => {
            context
                .look(item, |_, context| ipvs::read(&context.options.root))
                .await
        }
        // All their data is in [`Item::Ipvs`].
        Item::IpvsSave | Item::IpvsStats | Item::IpvsTimeout => Err(Gap::NotCollected(item)),
        Item::IpvsConnections => context.look(item, ipvs_connections).await,
        Item::Recent => context.look(item, recent).await,
        Item::Addresses => context.look(item, links::addresses).await,
        Item::Links => context.look(item, links::links).await,
        Item::Routes => context.look(item, routes::routes).await,
        Item::Rules => context.look(item, routes::rules).await,
        Item::NeighbourTable => context.look(item, neighbours::neighbours).await,
        Item::XfrmPolicies => context.look(item, xfrm::policies).await,
        Item::XfrmStates => context.look(item, xfrm::states).await,
        Item::Tc => context.look(item, tc::read).await,
        Item::Bpf => context.look(item, bpf::read).await,
        Item::Sockets => context.look(item, sockets::read).await,
        Item::HeldSockets => context.look(item, sockets::held).await,
        Item::PodNetworks => pod_networks::read(item, context).await,
        Item::Tcp4 | Item::Tcp6 | Item::Udp4 | Item::Udp6 => {
            context.look(item, sockets::table).await
        }
        Item::Firewalls => context.look_apart(item, systemd::firewalls).await,
        Item::LinkManagers => context.look_apart(item, systemd::link_managers).await,
        Item::KernelLog => exec::run(context, item, "dmesg", &[]).await,
        Item::IpsetVersion => ipset_version(item, context).await,
        Item::NftVersion => nft::version(item, context).await,
        Item::ConntrackStat => counters(item, context, "nf_conntrack").await,
        Item::Neighbours4 => counters(item, context, "arp_cache").await,
        Item::Neighbours6 => counters(item, context, "ndisc_cache").await,
        Item::Conntrack => conntrack::read(item, context).await,
        Item::Processes => context.look(item, processes::read).await,
        Item::Migration => context.look_apart(item, journal::newest).await,
        Item::ProxyConfig
        | Item::ProxyMode
        | Item::Healthz
        | Item::Metrics
        | Item::Configz
        | Item::ProxyTools
        | Item::ProxyFiles
        | Item::ProxyLog => proxy::read(item, context).await,
        Item::Services
        | Item::EndpointSlices
        | Item::Nodes
        | Item::ConfigMaps
        | Item::DaemonSets
        | Item::Pods
        | Item::ServiceCidrs
        | Item::Access => {
            let node = match item {
                Item::Pods => proxy::own_node(context).await,
                _ => proxy::node_name(context).await,
            };
            let options = &context.options;
            context
                .cluster
                .read(item, &node, options, cluster::Urgency::Look)
                .await
        }
    }
}

/// Reads the file `name` of `/proc/net/stat`.
async fn counters(item: Item, context: &Arc<Context>, name: &'static str) -> Result<String, Gap> {
    let read = async move |context: Arc<Context>| {
        let path = format!("proc/thread-self/net/stat/{name}");
        files::text(item, &context.path(&path))
    };
    context.inside(item, read).await
}

/// Reads the IPVS connection table, which exists only if `ip_vs` is loaded.
fn ipvs_connections(item: Item, context: &Context) -> Result<String, Gap> {
    let net = context.path("proc/thread-self/net");
    if !net.join("ip_vs").exists() {
        let why = "ip_vs is not loaded, so IPVS has no connections";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    files::text(item, &net.join("ip_vs_conn"))
}

/// Reads the lists of `xt_recent`, which exist as long as a rule uses them, and the kernel's clock.
fn recent(item: Item, context: &Context) -> Result<String, Gap> {
    let folder = Path::new("proc/thread-self/net/xt_recent");
    let Ok(lists) = fs::read_dir(context.path(folder)) else {
        let why = "xt_recent is not loaded, so no list remembers clients";
        return Err(Gap::NotApplicable(why.to_owned()));
    };
    let names = lists.filter_map(|entry| Some(folder.join(entry.ok()?.file_name())));
    let mut files: Vec<_> = names.collect();
    files.sort();
    files.push("proc/uptime".into());
    let mut text = modules::lines(item, context, &files)?;
    // Container runtimes hide this file, and nothing else shows the clock.
    let timers = files::text(item, &context.path("proc/timer_list")).unwrap_or_default();
    if let Some(clock) = timers.lines().find(|line| line.starts_with("jiffies: ")) {
        text.push_str("/proc/timer_list: ");
        text.push_str(clock);
        text.push('\n');
    }
    Ok(text)
}

/// Reads the version of conntrack, which opens netlink even for that.
async fn conntrack_version(item: Item, context: &Arc<Context>) -> Result<String, Gap> {
    if modules::would_load(context, "nfnetlink") {
        let why = "nfnetlink is not loaded, and `conntrack --version` would load it";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    exec::run(context, item, "conntrack", &["--version"]).await
}

/// Reads the IP sets from the kernel, or with `ipset` if kpx cannot decode one of them.
async fn ip_sets(item: Item, context: &Arc<Context>) -> Result<String, Gap> {
    if modules::would_load(context, "ip_set") {
        return Err(no_ip_sets());
    }
    let read = async move |_: Arc<Context>| ipset::save(item);
    let why = match context.inside(item, read).await {
        Err(Gap::Failed(_, why)) => why,
        done => return done,
    };
    let saved = exec::run(context, item, "ipset", &["save"]).await;
    saved.map_err(|gap| match gap {
        Gap::Absent(item, what) => Gap::Absent(item, format!("{what}; without it: {why}")),
        Gap::Failed(item, what) => Gap::Failed(item, format!("{what}; without it: {why}")),
        other => other,
    })
}

async fn ipset_version(item: Item, context: &Arc<Context>) -> Result<String, Gap> {
    if modules::would_load(context, "ip_set") {
        return Err(no_ip_sets());
    }
    exec::run(context, item, "ipset", &["--version"]).await
}

fn no_ip_sets() -> Gap {
    Gap::NotApplicable("ip_set is not loaded, so there are no IP sets".to_owned())
}
