//! `kpx migrate`

use std::time::Duration;

use clap::{Args, Subcommand};

use crate::cli::value;
use kpx_judge::check::quoted;
use kpx_migrate::accept::{AcceptedLoss, CONNECTIONS};
use kpx_migrate::migration::Strategy;
use kpx_node::backend::Mode;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx migrate --to nftables --dry-run    print the plan and its cost
  kpx migrate --to nftables              switch, after confirmation";

pub(crate) const LONG_EXAMPLES: &str = "\
Examples:
  kpx migrate --to nftables --dry-run    print the plan and its cost
  kpx migrate --to nftables              switch, after confirmation
  kpx migrate --to ipvs --scheduler lc --strict-arp --yes
  kpx migrate --to nftables --node worker1 --this-node
                                         name this machine's Node object
  kpx migrate --to nftables --all-nodes --staged
  kpx migrate status                     show progress
  kpx migrate resume                     continue after a stop
  kpx migrate rollback                   switch back";

const PREPARE_EXAMPLES: &str = "\
Examples:
  kpx migrate prepare --to nftables      before the configuration changes
  kpx migrate finish                     after kube-proxy's restart";

const FINISH_EXAMPLES: &str = "\
Examples:
  kpx migrate finish                     after kube-proxy's restart
  kpx migrate finish --confirm-timeout 20m";

const STATUS_EXAMPLES: &str = "\
Examples:
  kpx migrate status                     this node's migration
  kpx migrate status -o json             as JSON
  kpx migrate status --all-nodes         the cluster's migration";

const RESUME_EXAMPLES: &str = "\
Examples:
  kpx migrate resume                     continue this node's migration
  kpx migrate resume --accept-loss       and drop undrained connections
  kpx migrate resume --all-nodes         the cluster's, from any machine";

const ROLLBACK_EXAMPLES: &str = "\
Examples:
  kpx migrate rollback                   switch back to the old mode
  kpx migrate rollback --until-restart   stop before the configuration changes
  kpx migrate rollback --all-nodes       all nodes, the last one first";

/// Options of `kpx migrate`.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub struct MigrateArgs {
    /// A part of a migration.
    #[command(subcommand)]
    pub part: Option<MigratePart>,

    /// The start of a migration.
    #[command(flatten)]
    pub journey: JourneyArgs,

    /// Other nodes than this one.
    #[command(flatten)]
    pub fleet: FleetArgs,
}

/// Options of a migration of several nodes.
#[derive(Args, Clone, Debug)]
pub struct FleetArgs {
    /// Switch all nodes, one after the other
    ///
    /// `--node NAME,NAME` switches these nodes only.
    #[arg(long, conflicts_with = "this_node")]
    pub all_nodes: bool,

    /// Switch node by node to a second DaemonSet
    ///
    /// Nodes get the new DaemonSet by a label, so a restart of kube-proxy never switches another node.
    #[arg(long, hide_short_help = true)]
    pub staged: bool,

    /// Print the commands for each node; start no pods
    ///
    /// Otherwise, kpx runs in a pod on each node: it copies itself into a container of kube-proxy's image. `--image IMAGE`
    /// selects an image that contains kpx.
    #[arg(long, conflicts_with = "image", hide_short_help = true)]
    pub by_hand: bool,

    /// Use this service account of kube-system for the pods
    ///
    /// deploy/rbac.yaml creates the default one.
    #[arg(
        long,
        value_name = "NAME",
        default_value = SERVICE_ACCOUNT,
        env = "KPX_SERVICE_ACCOUNT",
        hide_short_help = true
    )]
    pub service_account: String,

    /// Watch each node this long
    ///
    /// The next node is switched after this time.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = value::duration, env = "KPX_SOAK", hide_short_help = true)]
    pub soak: Duration,

    /// Wait this long for a new pod to be ready
    #[arg(long, value_name = "TIME", default_value = "3m", value_parser = value::duration, env = "KPX_READY_TIMEOUT",
        hide_short_help = true)]
    pub ready_timeout: Duration,
}

/// A part of a migration.
#[derive(Debug, Subcommand)]
pub enum MigratePart {
    /// Do the steps before the configuration changes
    ///
    /// For a configuration managed by GitOps or a provider: someone else then changes the mode and restarts kube-proxy, and
    /// `kpx migrate finish` does the remaining steps.
    #[command(after_help = PREPARE_EXAMPLES, after_long_help = PREPARE_EXAMPLES)]
    Prepare(JourneyArgs),

    /// Do the steps after kube-proxy's restart
    ///
    /// Waits until kube-proxy serves in the new mode, and removes the old mode's rules.
    #[command(after_help = FINISH_EXAMPLES, after_long_help = FINISH_EXAMPLES)]
    Finish(ContinueArgs),

    /// Show the newest migration
    #[command(after_help = STATUS_EXAMPLES, after_long_help = STATUS_EXAMPLES)]
    Status(StatusArgs),

    /// Continue a migration that stopped
    #[command(after_help = RESUME_EXAMPLES, after_long_help = RESUME_EXAMPLES)]
    Resume(ResumeArgs),

    /// Roll back a migration, stopped or finished
    #[command(after_help = ROLLBACK_EXAMPLES, after_long_help = ROLLBACK_EXAMPLES)]
    Rollback(RollbackArgs),
}

/// Options of `kpx migrate status`.
#[derive(Args, Clone, Copy, Debug)]
pub struct StatusArgs {
    /// Show the cluster's migration
    #[arg(long, conflicts_with = "this_node")]
    pub all_nodes: bool,

    /// Show the migration of this machine
    #[arg(long)]
    pub this_node: bool,
}

/// Options of `kpx migrate resume`.
#[derive(Args, Clone, Debug)]
pub struct ResumeArgs {
    /// Continue the cluster's migration
    #[arg(long, conflicts_with = "this_node")]
    pub all_nodes: bool,

    /// Limits and consent.
    #[command(flatten)]
    pub go_on: ContinueArgs,
}

/// Options of `kpx migrate rollback`.
#[derive(Args, Clone, Debug)]
pub struct RollbackArgs {
    /// Roll back the cluster's migration
    #[arg(long, conflicts_with = "this_node")]
    pub all_nodes: bool,

    /// Stop before the configuration changes
    ///
    /// Someone else then restores the configuration and restarts kube-proxy, and `kpx migrate finish` does the remaining
    /// steps.
    #[arg(long, conflicts_with = "all_nodes")]
    pub until_restart: bool,

    /// Limits and consent.
    #[command(flatten)]
    pub go_on: ContinueArgs,
}

/// Options that start a migration.
#[derive(Args, Debug)]
pub struct JourneyArgs {
    /// Set the new mode
    #[arg(long, value_parser = value::mode(), value_name = "MODE", required = true)]
    pub to: Option<Mode>,

    /// Print the plan and its cost; change nothing
    #[arg(long, env = "KPX_DRY_RUN")]
    pub dry_run: bool,

    /// Print only blockers and cost, with --dry-run
    #[arg(long, requires = "dry_run", hide_short_help = true)]
    pub brief: bool,

    /// Set the scheduler of virtual servers as well
    #[arg(
        long,
        value_name = "NAME",
        env = "KPX_SCHEDULER",
        hide_short_help = true
    )]
    pub scheduler: Option<String>,

    /// Set strictARP as well
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        env = "KPX_STRICT_ARP", hide_short_help = true)]
    pub strict_arp: Option<bool>,

    /// Handle connections by this strategy
    ///
    /// The default is bridge when switching to nftables or away from ipvs or userspace, else in-place.
    #[arg(long, value_parser = value::strategy(), value_name = "NAME", env = "KPX_STRATEGY",
        hide_short_help = true)]
    pub strategy: Option<Strategy>,

    /// Consent to losses when pods are evicted.
    #[command(flatten)]
    pub evict: EvictArgs,

    /// Remove the leftovers of this mode as well
    ///
    /// For a kube-proxy that already runs in the new mode: the mode that it ran in before.
    #[arg(long, value_parser = value::any_mode(), value_name = "MODE", hide_short_help = true)]
    pub old_mode: Option<Mode>,

    /// Ignore these checks: ids, names or groups
    ///
    /// Switch although these checks block it. Ids, names or groups, separated by commas.
    #[arg(
        long,
        value_name = "IDS",
        value_delimiter = ',',
        hide_short_help = true
    )]
    pub skip: Vec<String>,

    /// Limits and consent.
    #[command(flatten)]
    pub go_on: ContinueArgs,
}

impl JourneyArgs {
    /// Returns the options that were given, as words of a command line that begins the migration.
    pub(super) fn words(&self) -> String {
        let text = |value: &Option<String>| value.as_deref().map(quoted);
        let time = |time: Option<Duration>| time.map(|time| format!("{}s", time.as_secs()));
        let go_on = &self.go_on;
        let losses = go_on.accept_loss.iter().map(ToString::to_string);
        let losses: Vec<String> = losses.collect();
        let listed = |list: &[String]| (!list.is_empty()).then(|| quoted(&list.join(",")));
        let valued = [
            ("--to ", self.to.map(|to| to.to_string())),
            ("--scheduler ", text(&self.scheduler)),
            ("--strict-arp=", self.strict_arp.map(|on| on.to_string())),
            ("--strategy ", self.strategy.map(|name| name.to_string())),
            ("--old-mode ", self.old_mode.map(|mode| mode.to_string())),
            ("--skip ", listed(&self.skip)),
            ("--accept-loss ", listed(&losses)),
            ("--confirm-timeout ", time(go_on.confirm_timeout)),
            ("--drain-timeout ", time(go_on.drain_timeout)),
            ("--lease ", time(go_on.lease)),
        ];
        let switches = [
            ("--delete-bare-pods", self.evict.delete_bare_pods),
            ("--delete-emptydir-data", self.evict.delete_emptydir_data),
        ];
        let valued = valued.into_iter();
        let valued = valued.filter_map(|(option, value)| Some(format!("{option}{}", value?)));
        let switches = switches.into_iter().filter(|(_, is_set)| *is_set);
        let switches = switches.map(|(option, _)| option.to_owned());
        valued.chain(switches).collect::<Vec<_>>().join(" ")
    }
}

impl FleetArgs {
    /// Returns the options that differ from their defaults, as words of a command line, each after a space.
    pub(super) fn words(&self) -> String {
        let mut words = String::new();
        let switches = [
            ("--all-nodes", self.all_nodes),
            ("--staged", self.staged),
            ("--by-hand", self.by_hand),
        ];
        for (option, _) in switches.into_iter().filter(|(_, is_set)| *is_set) {
            words.extend([" ", option]);
        }
        if self.service_account != SERVICE_ACCOUNT {
            words.extend([" --service-account ", &quoted(&self.service_account)]);
        }
        for (option, time, usual) in [
            ("--soak", self.soak, SOAK),
            ("--ready-timeout", self.ready_timeout, READY),
        ] {
            if time != usual {
                words.extend([" ", option, " ", &time.as_secs().to_string(), "s"]);
            }
        }
        words
    }
}

/// Options for the eviction of pods.
#[derive(Args, Clone, Copy, Debug)]
pub struct EvictArgs {
    /// Evict pods without a controller
    ///
    /// With --strategy drain-node. Nothing recreates these pods.
    #[arg(long, hide_short_help = true)]
    pub delete_bare_pods: bool,

    /// Evict pods with an emptyDir
    ///
    /// With --strategy drain-node. The data in the emptyDir is lost.
    #[arg(long, hide_short_help = true)]
    pub delete_emptydir_data: bool,
}

/// Limits and consent of every command that continues a migration.
#[derive(Args, Clone, Debug)]
pub struct ContinueArgs {
    /// Switch this machine, with --node NAME
    ///
    /// `--node NAME --this-node` sets the name of this machine's Node object. Without --this-node, --node NAME switches
    /// that node through the API.
    #[arg(long, hide_short_help = true)]
    pub this_node: bool,

    /// Roll back unless healthy after this long [default: 5m]
    ///
    /// Healthy: kube-proxy serves in the new mode and the Services answer.
    #[arg(long, value_name = "TIME", value_parser = value::duration, env = "KPX_CONFIRM_TIMEOUT", hide_short_help = true)]
    pub confirm_timeout: Option<Duration>,

    /// Drain connections and pods this long [default: 20m]
    ///
    /// Wait this long for connections through virtual servers to end, and for evicted pods to terminate.
    #[arg(long, value_name = "TIME", value_parser = value::duration, env = "KPX_DRAIN_TIMEOUT", hide_short_help = true)]
    pub drain_timeout: Option<Duration>,

    /// Accept a loss: connections, or a class of packets
    ///
    /// Without a value: connections that do not drain in time are dropped. With a class such as pod-to-cluster-ip: the switch
    /// goes on although the new mode loses such packets. Repeatable, or separated by commas; check MX12 names the classes.
    #[arg(long, value_name = "CLASS", num_args = 0..=1, default_missing_value = CONNECTIONS, value_delimiter = ',',
        value_parser = value::accepted_loss, hide_short_help = true)]
    pub accept_loss: Vec<AcceptedLoss>,

    /// Set the lease of the bridge: 10s to 1h [default: 60s]
    ///
    /// The bridge serves new connections this long after the last renewal by kpx or its guard.
    #[arg(long, value_name = "TIME", value_parser = value::lease, env = "KPX_LEASE", hide_short_help = true)]
    pub lease: Option<Duration>,

    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,

    /// Skip steps that are already done
    ///
    /// For scripts that repeat a command: a migration that is already in progress is continued, and a finished one is
    /// reported.
    #[arg(long, hide_short_help = true)]
    pub again: bool,
}

/// The default of `--service-account`.
const SERVICE_ACCOUNT: &str = "kpx";

/// The default of `--soak`.
const SOAK: Duration = Duration::from_secs(5 * 60);

/// The default of `--ready-timeout`.
const READY: Duration = Duration::from_secs(3 * 60);

/// The default of `--confirm-timeout`.
const CONFIRM: Duration = Duration::from_secs(5 * 60);

/// The default of `--drain-timeout`.
const DRAIN: Duration = Duration::from_secs(20 * 60);

/// The default of `--lease`.
pub(super) const LEASE: Duration = Duration::from_secs(60);

impl ContinueArgs {
    /// Returns how long to wait until kube-proxy serves in the new mode.
    pub(super) fn confirm(&self) -> Duration {
        self.confirm_timeout.unwrap_or(CONFIRM)
    }

    /// Returns how long to wait for connections to end, and for pods to leave.
    pub(super) fn drain(&self) -> Duration {
        self.drain_timeout.unwrap_or(DRAIN)
    }

    /// Returns the lease of the bridge.
    pub(super) fn lease(&self) -> Duration {
        self.lease.unwrap_or(LEASE)
    }

    /// Returns whether connections that do not drain in time are dropped.
    pub(super) fn drops_connections(&self) -> bool {
        self.accept_loss.contains(&AcceptedLoss::Connections)
    }
}
