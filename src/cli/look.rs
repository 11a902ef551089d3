//! Commands that only read: diff, render, resolve, show, snapshot, top.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::NodesArgs;
use super::value;
use crate::backend::Mode;
use crate::diff::Layer;
use crate::evidence::Item;
use crate::view::View;
use crate::view::top::SortKey;

pub(super) const DIFF_EXAMPLES: &str = "\
Examples:
  kpx diff                               this node, in its configured mode
  kpx diff --packets                     every packet that is treated wrongly
  kpx diff old.tar.gz new.tar.gz         what changed between two bundles";

/// Options of `kpx diff`.
#[derive(Args, Clone, Debug)]
pub struct DiffArgs {
    /// Compare these bundles, or this one with now, instead
    ///
    /// List what changed from the first bundle to the second one or, without a second one, to the node: findings, mode,
    /// Services, endpoints, rules, sets, virtual servers, addresses, settings.
    #[arg(value_name = "BUNDLE", num_args = 0..=2, conflicts_with_all = ["mode", "packets", "all_nodes", "selector"])]
    pub bundles: Vec<PathBuf>,

    /// Compare with this mode [default: the configured mode]
    #[arg(long, value_parser = value::any_mode(), value_name = "MODE", env = "KPX_MODE")]
    pub mode: Option<Mode>,

    /// Compare the fate of every packet instead of rules
    ///
    /// Divide all first packets of connections into classes with the same fate, and list those that the live rules treat
    /// differently from the expected ones, the largest harm first, each with a packet that shows it. Rules of other software
    /// that stop or redirect packets to Services are listed, too.
    #[arg(long, env = "KPX_PACKETS", conflicts_with_all = ["all_nodes", "selector"])]
    pub packets: bool,

    /// The nodes to read.
    #[command(flatten)]
    pub nodes: NodesArgs,
}

pub(super) const RENDER_EXAMPLES: &str = "\
Examples:
  kpx render                             every part of the configured mode
  kpx render --part iptables | iptables-restore --noflush --test
  kpx --family 6 render --part iptables  the IPv6 rules
  kpx --from node1.tar.gz render --mode nftables --part nftables";

/// Options of `kpx render`.
#[derive(Args, Debug)]
pub struct RenderArgs {
    /// Use this mode [default: the configured mode]
    #[arg(long, value_parser = value::mode(), value_name = "MODE", env = "KPX_MODE")]
    pub mode: Option<Mode>,

    /// Print this part only
    ///
    /// Print this part only, without a heading: the input of iptables-restore --noflush (IPv4, or IPv6 with --family 6),
    /// ipset restore, ipvsadm --restore, ip -batch (link), nft -f or sysctl -p.
    #[arg(long, value_parser = value::part(), value_name = "PART", env = "KPX_PART")]
    pub part: Option<Layer>,
}

pub(super) const SHOW_EXAMPLES: &str = "\
Examples:
  kpx show services                    how this node handles each Service
  kpx show services default/nginx-svc  objects, drift, traces of one
  kpx show chains default/nginx-svc    its rules, as a tree
  kpx show config                      mode and settings, with their sources";

/// Options of `kpx show`.
#[derive(Args, Clone, Debug)]
pub struct ShowArgs {
    /// Show this view
    #[arg(value_parser = value::view(), value_name = "VIEW")]
    pub view: View,

    /// Show this object only
    ///
    /// Show this object only: a Service (NAMESPACE/NAME[:PORT]), chain, set, address, port, module or setting.
    pub name: Option<String>,

    /// The nodes to read.
    #[command(flatten)]
    pub nodes: NodesArgs,
}

pub(super) const SNAPSHOT_EXAMPLES: &str = "\
Examples:
  kpx snapshot                                    kpx-snapshot-NODE-TIME.tar.gz
  kpx snapshot --redact -o bug.tar.gz             safe to share
  kpx --from node1 snapshot --redact -o bug.tgz   redact an existing bundle
  kpx snapshot --script > snapshot.sh             for a node without kpx";

/// Options of `kpx snapshot`.
#[derive(Args, Clone, Debug)]
pub struct SnapshotArgs {
    /// Replace names and addresses; omit secrets
    ///
    /// Each name and address has the same replacement everywhere in the bundle, under a random key that is not kept. Addresses
    /// keep their common prefixes, and the names of chains are those of the new names, so kpx reports the same findings,
    /// differences and traces. Of logs, only the lines that kpx looks for are kept.
    #[arg(long, env = "KPX_REDACT")]
    pub redact: bool,

    /// Print a shell script that records a bundle
    ///
    /// The script is POSIX shell and uses standard tools only.
    #[arg(long, conflicts_with_all = ["redact", "all_nodes", "selector"])]
    pub script: bool,

    /// Record only these items, by their files in a bundle
    #[arg(long, value_name = "FILE", value_delimiter = ',', value_parser = value::item, hide = true)]
    pub items: Vec<Item>,

    /// The nodes to read.
    #[command(flatten)]
    pub nodes: NodesArgs,
}

pub(super) const RESOLVE_EXAMPLES: &str = "\
Examples:
  kpx resolve web --namespace demo --env   as a pod in namespace demo
  kpx resolve www.example.com              the search path of an external name

Exit status: 0 as expected, 1 wrong answer or no such name, 3 unknown";

/// Options of `kpx resolve`.
#[derive(Args, Clone, Debug)]
pub struct ResolveArgs {
    /// Resolve this name, as a program in a pod would
    ///
    /// A dot at its end makes the name absolute: the search path is not used.
    pub name: String,

    /// Resolve as a pod in this namespace
    #[arg(long, value_name = "NS", default_value = "default")]
    pub namespace: String,

    /// List the Service's variables in a container
    #[arg(long)]
    pub env: bool,

    /// Use this cluster domain
    #[arg(
        long,
        value_name = "DOMAIN",
        default_value = "cluster.local",
        env = "KPX_CLUSTER_DOMAIN",
        hide_short_help = true
    )]
    pub cluster_domain: String,

    /// Query this server, not Service kube-system/kube-dns
    ///
    /// For example one pod of cluster DNS, to find one that answers wrongly.
    #[arg(long, value_name = "IP:PORT", hide_short_help = true)]
    pub server: Option<SocketAddr>,

    /// The nodes to read.
    #[command(flatten)]
    pub nodes: NodesArgs,
}

pub(super) const WATCH_EXAMPLES: &str = "\
Examples:
  kpx watch                                what changes on this node
  kpx watch --interval 1m -o json          a line of JSON per change
  kpx watch --exec /usr/local/bin/page     run a program for each change";

/// Options of `kpx watch`.
#[derive(Args, Clone, Debug)]
pub struct WatchArgs {
    /// Check for changes this often
    ///
    /// This costs little: kpx finds out whether rules, virtual servers, addresses, settings or kube-proxy changed. The API server
    /// reports changes of Services. Only then is the node read. If changes cannot be noticed in this way, the node is read
    /// every 10 seconds, or at each longer interval.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = value::duration, env = "KPX_INTERVAL")]
    pub interval: Duration,

    /// Read the node at least this often
    ///
    /// This finds other changes, such as those of IP sets and files.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = value::duration, env = "KPX_CHECK_INTERVAL")]
    pub check_interval: Duration,

    /// Read the node this many times, then end
    #[arg(long, value_name = "N", env = "KPX_COUNT")]
    pub count: Option<u32>,

    /// Run this program for each change
    ///
    /// The program gets the change as a line of JSON on its standard input. No shell is started.
    #[arg(long, value_name = "PROGRAM", env = "KPX_EXEC")]
    pub exec: Option<PathBuf>,
}

pub(super) const TOP_EXAMPLES: &str = "\
Examples:
  kpx top                                  on the terminal, until q
  kpx top default/nginx-svc                one Service, by backend
  kpx top -o json | jq .services           a line of JSON per interval";

/// Options of `kpx top`.
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// Show this Service only, by backend
    #[arg(value_name = "NS/NAME[:PORT]")]
    pub service: Option<String>,

    /// Read the counters this often
    ///
    /// Longer where kpx would use more than 3% of a processor.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = value::duration, env = "KPX_INTERVAL")]
    pub interval: Duration,

    /// Print this many intervals, then end
    #[arg(long, value_name = "N", env = "KPX_COUNT")]
    pub count: Option<u32>,

    /// Sort by this column
    #[arg(long, value_parser = value::sort(), value_name = "COLUMN", default_value = "new", env = "KPX_SORT")]
    pub sort: SortKey,
}
