//! `kpx doctor`, `kpx explain` and `kpx preflight`

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::NodesArgs;
use super::value;
use crate::backend::Mode;
use crate::cluster::release::Goal;

pub(super) const EXAMPLES: &str = "\
Examples:
  kpx doctor                             all checks on this node
  kpx doctor node1                       all checks on another node
  kpx --from node1.tar.gz doctor         all checks on a bundle
  kpx --from cluster.tar.gz doctor --all-nodes
  kpx doctor --only MX01,sysctl          some checks: by id, name or group
  kpx doctor --skip DP01 --fail-on warning
  kpx doctor --to nftables               before a switch to mode nftables
  kpx doctor --release 1.40              before an upgrade of kube-proxy
  kpx doctor --wait 2m                   re-check until healthy";

/// Options of `kpx doctor`.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Check this node: the same as --node NODE
    #[arg(value_name = "NODE", conflicts_with_all = ["all_nodes", "selector"])]
    pub node: Option<String>,

    /// Run these checks only: ids, names or groups
    ///
    /// Ids, names or groups, separated by commas.
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = value::check(), hide_possible_values = true,
        env = "KPX_ONLY")]
    pub only: Vec<String>,

    /// Skip these checks: ids, names or groups
    ///
    /// Ids, names or groups, separated by commas.
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = value::check(), hide_possible_values = true,
        env = "KPX_SKIP")]
    pub skip: Vec<String>,

    /// Suppress the findings listed in this file
    ///
    /// On a live node /etc/kpx/ignore.yaml is the default.
    ///
    /// The file is a YAML list of entries such as {check: DP01, subject: "mode *", reason: we switch in spring, expires:
    /// 2027-03-31}. `check` is an id or a name. `subject` limits the entry to matching findings; * matches any text. The
    /// entry expires at the end of its last day, in UTC. Suppressed findings are counted, listed with -v and in JSON, and do
    /// not change the exit status.
    #[arg(long, value_name = "FILE", env = "KPX_IGNORE_FILE")]
    pub ignore_file: Option<PathBuf>,

    /// Write Prometheus metrics to this file as well
    ///
    /// The file is replaced atomically: format prom, for node-exporter's textfile collector.
    #[arg(long, value_name = "FILE", env = "KPX_TEXTFILE", conflicts_with_all = ["all_nodes", "selector"])]
    pub textfile: Option<PathBuf>,

    /// Add the checks before a switch to this mode
    ///
    /// Report what blocks a switch to this mode: errors block it, warnings do not.
    #[arg(long, value_parser = value::mode(), value_name = "MODE", env = "KPX_TO")]
    pub to: Option<Mode>,

    /// Check what an upgrade to this release changes
    ///
    /// Report what an upgrade of kube-proxy to this release, or to this version of it, changes on the node: 1.40 or 1.37.2. What
    /// releases change that are not published yet is known from announcements only.
    #[arg(long, value_parser = value::goal, value_name = "RELEASE", env = "KPX_RELEASE",
        conflicts_with_all = ["to", "textfile", "watch"])]
    pub release: Option<Goal>,

    /// Set the lowest severity with exit status 1
    #[arg(
        long,
        value_enum,
        value_name = "SEVERITY",
        default_value_t,
        env = "KPX_FAIL_ON"
    )]
    pub fail_on: FailOn,

    /// List the checks; do not run them
    #[arg(long, conflicts_with = "textfile")]
    pub list: bool,

    /// Re-check until healthy, at most this long
    #[arg(long, value_name = "TIME", value_parser = value::duration, env = "KPX_WAIT",
        conflicts_with_all = ["from", "all_nodes", "selector"])]
    pub wait: Option<Duration>,

    /// Print a line per change, checking this often
    ///
    /// Print a line when a finding appears, changes or goes, until Ctrl-C; with -o json a line of JSON. The checks run when
    /// rules, virtual servers, addresses, settings, kube-proxy or Services changed, and every 5 minutes.
    #[arg(long, value_name = "TIME", value_parser = value::duration, env = "KPX_WATCH",
        num_args = 0..=1, default_missing_value = "2s", require_equals = true,
        conflicts_with_all = ["from", "all_nodes", "selector", "wait", "textfile", "list"])]
    pub watch: Option<Duration>,

    /// Run this program for each change
    ///
    /// With --watch: the program gets the change as a line of JSON on its standard input. No shell is started.
    #[arg(long, value_name = "PROGRAM", env = "KPX_EXEC", requires = "watch")]
    pub exec: Option<PathBuf>,

    /// The nodes to read.
    #[command(flatten)]
    pub nodes: NodesArgs,
}

/// The lowest severity with which `kpx doctor` exits with 1.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum FailOn {
    /// Lost traffic, now or later
    #[default]
    Error,
    /// Errors and risks
    Warning,
    /// No finding
    Never,
}

pub(super) const EXPLAIN_EXAMPLES: &str = "\
Examples:
  kpx explain MX01                       one check
  kpx explain                            all checks, one line each
  kpx explain modes                      how each mode of kube-proxy works
  kpx explain providers                  recipes for a change of the mode
  kpx explain eks                        the recipe of a provider";

/// Options of `kpx explain`.
#[derive(Args, Debug)]
pub struct ExplainArgs {
    /// Explain this check or page; without it, list checks
    ///
    /// An id or name of a check; modes, schedulers, affinity or chains: how kube-proxy works; `providers`, or the short name
    /// of a provider, such as eks or k3s: where it keeps kube-proxy's mode, and the commands that change it.
    #[arg(value_name = "ID", value_parser = value::explained(), hide_possible_values = true)]
    pub check: Option<String>,
}

pub(super) const PREFLIGHT_EXAMPLES: &str = "\
Examples:
  kpx preflight --to ipvs                    what the mode needs
  kpx preflight --to ipvs --load             load its modules and test them
  kpx preflight --to ipvs --load --persist   and load them at every boot
  kpx --from node1.tar.gz preflight --to nftables";

/// Options of `kpx preflight`.
#[derive(Args, Clone, Debug)]
pub struct PreflightArgs {
    /// Check the requirements of this mode
    #[arg(long, value_parser = value::mode(), value_name = "MODE", env = "KPX_TO")]
    pub to: Mode,

    /// Load the modules that the mode needs, and test them
    ///
    /// The test runs in a temporary network namespace. If it fails, the modules are unloaded.
    #[arg(long, conflicts_with_all = ["all_nodes", "selector"])]
    pub load: bool,

    /// Load the modules at every boot
    ///
    /// Writes /etc/modules-load.d/kpx.conf.
    #[arg(long, conflicts_with_all = ["all_nodes", "selector"])]
    pub persist: bool,

    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,

    /// The nodes to read.
    #[command(flatten)]
    pub nodes: NodesArgs,
}
