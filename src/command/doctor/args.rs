//! `kpx doctor`

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::cli::checks::ChecksArgs;
use crate::cli::nodes::NodesArgs;
use crate::cli::value;
use kpx_judge::check;
use kpx_node::backend::Mode;
use kpx_node::cluster::release::Goal;

pub(crate) const SHORT_EXAMPLES: &str = "\
Examples:
  kpx doctor                             all checks on this node
  kpx --from node1.tar.gz doctor         all checks on a bundle
  kpx doctor IR01 KP04                   all about two checks
  kpx doctor --to nftables               before a switch to mode nftables";

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx doctor                             all checks on this node
  kpx doctor node1                       all checks on another node
  kpx doctor IR01 KP04                   all about two checks
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
    /// Check this node, or show all about these checks
    ///
    /// The name of a node is the same as --node NODE. Ids such as IR01 are the same as --only IR01: each of their findings is
    /// shown with its evidence, as with -v. A node with the name of a check is --node NODE.
    #[arg(value_name = "NODE|ID", value_parser = value::check(), hide_possible_values = true)]
    pub words: Vec<String>,

    /// The checks to run.
    #[command(flatten)]
    pub checks: ChecksArgs,

    /// Write Prometheus metrics to this file as well
    ///
    /// The file is replaced atomically: format prom, for node-exporter's textfile collector.
    #[arg(long, value_name = "FILE", env = "KPX_TEXTFILE", hide_short_help = true, conflicts_with_all = ["all_nodes", "selector"])]
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
        conflicts_with_all = ["to", "textfile"])]
    pub release: Option<Goal>,

    /// Set the lowest severity with exit status 1
    #[arg(
        long,
        value_enum,
        value_name = "SEVERITY",
        default_value_t,
        env = "KPX_FAIL_ON",
        hide_short_help = true
    )]
    pub fail_on: FailOn,

    /// Re-check until healthy, at most this long
    #[arg(long, value_name = "TIME", value_parser = value::duration, env = "KPX_WAIT",
        conflicts_with_all = ["all_nodes", "selector"])]
    pub wait: Option<Duration>,

    /// The nodes to read.
    #[command(flatten)]
    pub nodes: NodesArgs,
}

impl DoctorArgs {
    /// Returns the words that name nodes.
    pub(crate) fn named_nodes(&self) -> impl Iterator<Item = &String> {
        self.words.iter().filter(|word| !is_id(word))
    }

    /// Returns the ids, names and groups of the checks that are asked for; none for all checks.
    pub(crate) fn chosen(&self) -> Vec<String> {
        let ids = self.words.iter().filter(|word| is_id(word));
        ids.chain(&self.checks.only).cloned().collect()
    }
}

/// Returns whether `word` is the id of a check, or meant as one: names of nodes are in lower case.
fn is_id(word: &str) -> bool {
    let is_meant = word
        .chars()
        .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
        && word.starts_with(|c: char| c.is_ascii_uppercase());
    is_meant || check::all().any(|check| check.id.eq_ignore_ascii_case(word))
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
