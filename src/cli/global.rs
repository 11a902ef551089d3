//! Options that every command takes.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};

use super::value::{self, Offered};
use kpx_judge::check::ignore::Entry;
use kpx_node::net::Family;

/// Options that every command takes.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Global options")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "options that are independent of each other"
)]
pub struct GlobalArgs {
    /// Read a bundle, a support bundle or a pasted text
    ///
    /// A bundle of kpx, a support bundle of another tool, or a text with outputs of commands: a folder, .tar, .tar.gz, .zip or
    /// file, or `-` for standard input. Repeat it to join several. `kpx explain pastes` lists what is read.
    #[arg(long, global = true, value_name = "BUNDLE", action = ArgAction::Append, env = "KPX_FROM")]
    pub from: Vec<PathBuf>,

    /// Read the cluster from a bundle, and the node live
    ///
    /// Read the API objects and kube-proxy's configuration from a bundle, and everything else from this node.
    #[arg(
        long,
        global = true,
        value_name = "BUNDLE",
        env = "KPX_CLUSTER_FROM",
        conflicts_with = "from"
    )]
    pub cluster_from: Option<PathBuf>,

    /// Use this kubeconfig file
    #[arg(long, global = true, value_name = "FILE", env = "KPX_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,

    /// Use this context of the kubeconfig file
    #[arg(long, global = true, value_name = "NAME", env = "KPX_CONTEXT")]
    pub context: Option<String>,

    /// Use this cluster of the kubeconfig file
    #[arg(long, global = true, value_name = "NAME", env = "KPX_CLUSTER")]
    pub cluster: Option<String>,

    /// Use this user of the kubeconfig file
    #[arg(long, global = true, value_name = "NAME", env = "KPX_USER")]
    pub user: Option<String>,

    /// Impersonate this user for API requests
    ///
    /// A user or a service account (system:serviceaccount:NAMESPACE:NAME). It replaces the impersonation of the kubeconfig.
    #[arg(long = "as", global = true, value_name = "USER", env = "KPX_AS")]
    pub impersonate: Option<String>,

    /// Impersonate this group; repeat for several
    #[arg(long = "as-group", global = true, value_name = "GROUP", action = ArgAction::Append, requires = "impersonate", env = "KPX_AS_GROUP")]
    pub groups: Vec<String>,

    /// Use kube-proxy's credentials as well, on a node
    ///
    /// kpx then uses the kubeconfigs of this node (not KUBECONFIG or ~/.kube/config): first the kubelet's or
    /// administrator's, and where these are denied, the one of the running kube-proxy.
    #[arg(
        long,
        global = true,
        conflicts_with = "kubeconfig",
        env = "KPX_PROXY_CREDENTIALS"
    )]
    pub proxy_credentials: bool,

    /// Do not contact the Kubernetes API
    #[arg(long, global = true, env = "KPX_NO_API")]
    pub no_api: bool,

    /// Work on this node
    ///
    /// On another machine, kpx reaches the node through a pod on it, which ends with kpx. Without this option, kpx works on
    /// this machine, and finds its Node by kube-proxy's configuration, the machine's addresses and its host name. `kpx
    /// migrate` takes several names, separated by commas or with the option repeated: the nodes to switch.
    #[arg(long = "node", global = true, value_name = "NAME", action = ArgAction::Append, env = "KPX_NODE")]
    pub nodes: Vec<String>,

    /// Use this image for pods on nodes
    ///
    /// kpx reaches another node through a pod on it. The image must contain kpx. Without this option, the pod has the image of
    /// kube-proxy, and kpx copies itself into the pod.
    #[arg(long, global = true, value_name = "IMAGE", env = "KPX_IMAGE")]
    pub image: Option<String>,

    /// Copy kpx from this folder to nodes with other processors
    ///
    /// The folder contains kpx for each processor: `kpx-linux-amd64`, `kpx-linux-arm64`.
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "KPX_PROGRAMS",
        hide_short_help = true
    )]
    pub programs: Option<PathBuf>,

    /// Read this network namespace, by name or path
    #[arg(long, global = true, value_name = "NAME|PATH", env = "KPX_NETNS")]
    pub netns: Option<String>,

    /// Use this folder as the host's root file system
    #[arg(long, global = true, value_name = "DIR", env = "KPX_ROOT")]
    pub root: Option<PathBuf>,

    /// Read only this IP family
    #[arg(long, global = true, value_parser = value::family(), env = "KPX_FAMILY")]
    pub family: Option<Family>,

    /// Print in this format
    #[arg(long, short, global = true, value_name = "FORMAT", value_parser = Offered::of(&[]), env = "KPX_OUTPUT")]
    pub output: Option<String>,

    /// Use colours
    #[arg(long, global = true, value_enum, default_value_t, env = "KPX_COLOR")]
    pub color: Color,

    /// Print ASCII characters only
    #[arg(long, global = true, env = "KPX_ASCII")]
    pub ascii: bool,

    /// Show long pages with this program; empty for none
    ///
    /// On a terminal, `kpx explain`, `show`, `why`, `trace` and `diff`, `doctor -v` and the plans of `reconcile` and `migrate
    /// --dry-run` go through a pager. Without this option it is the program of the variable PAGER, or less, which quits
    /// automatically if one screen has the whole page.
    #[arg(long, global = true, value_name = "PROGRAM", env = "KPX_PAGER")]
    pub pager: Option<String>,

    /// Do not use a pager
    #[arg(long, global = true, env = "KPX_NO_PAGER")]
    pub no_pager: bool,

    /// Limit the time of each read
    ///
    /// Reading the rules of iptables and nftables, and each check of the doctor, may take six times as long.
    #[arg(long, global = true, value_name = "TIME", default_value = "10s", value_parser = value::duration, env = "KPX_TIMEOUT")]
    pub timeout: Duration,

    /// Ignore the findings of this check
    ///
    /// The configuration file sets it: its list `ignore`.
    #[arg(long, global = true, value_name = "ENTRY", action = ArgAction::Append, value_parser = Entry::of_settings, hide = true)]
    pub ignore: Vec<Entry>,

    /// Print results and errors only
    #[arg(long, short, global = true, env = "KPX_QUIET")]
    pub quiet: bool,

    /// Print more details; twice for full error reports
    #[arg(long, short, global = true, action = ArgAction::Count, env = "KPX_VERBOSE")]
    pub verbose: u8,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum Color {
    /// When stdout is a terminal
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl Color {
    /// Returns whether there are colours; for `auto`, the terminal decides.
    pub(crate) const fn is_on(self, auto: bool) -> bool {
        match self {
            Self::Auto => auto,
            Self::Always => true,
            Self::Never => false,
        }
    }
}
