//! The command line: the one definition behind parsing, man pages and completions.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::net::Proto;

/// Inspect, explain, repair and migrate the service proxy of a Kubernetes node
///
/// kpx reads what kube-proxy programmed (iptables, ipvs or nftables), compares it with what the cluster's Services ask
/// for, and says what is wrong and how to mend it.
#[derive(Debug, Parser)]
#[command(name = "kpx", version, disable_help_subcommand = true, after_help = EXAMPLES, after_long_help = LONG_AFTER)]
pub struct Cli {
    /// Options that every command takes.
    #[command(flatten)]
    pub global: Global,

    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Gathers what was given more than once among `words`, the command line. Fails with why that is too much.
    pub fn gather(&mut self, words: &[OsString]) -> Result<(), &'static str> {
        let nodes = &self.global.nodes;
        let is_node = |word: &&OsString| {
            let word = word.to_string_lossy();
            word == "--node" || word.starts_with("--node=")
        };
        // What stands in front of the command is replaced by what stands behind it.
        if words.iter().filter(is_node).count() > nodes.len() {
            return Err(
                "--node stands in front of the command and behind it: give all on one side",
            );
        }
        let all = nodes.join(",");
        let fleet = matches!(&self.command, Command::Migrate(args) if args.part.is_none());
        if all.contains(',') && !fleet {
            return Err("this is about one node: only `kpx migrate` takes more than one --node");
        }
        self.global.node = (!nodes.is_empty()).then_some(all);
        Ok(())
    }
}

const EXAMPLES: &str = "\
Examples:
  kpx doctor                          what is wrong with this node
  kpx show services                   what this node does with each Service
  kpx snapshot -o node1.tar.gz        take the node's state home
  kpx --from node1.tar.gz doctor      look at it there";

const LONG_AFTER: &str = "\
Examples:
  kpx doctor                          what is wrong with this node
  kpx show services                   what this node does with each Service
  kpx snapshot -o node1.tar.gz        take the node's state home
  kpx --from node1.tar.gz doctor      look at it there

Exit status:
  0  clean, or done
  1  findings at or above --fail-on, or differences
  2  the command line is wrong
  3  could not tell: nothing known to be wrong, something not known that was asked for
  4  failed, refused, or stopped part-way";

/// Options that every command takes.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Read a bundle (folder, .tar or .tar.gz) instead of this node
    #[arg(long, global = true, value_name = "BUNDLE", env = "KPX_FROM")]
    pub from: Option<PathBuf>,

    /// Read this node live, but the cluster's objects and kube-proxy's configuration from a bundle
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

    /// Use this context of the kubeconfig
    #[arg(long, global = true, value_name = "NAME", env = "KPX_CONTEXT")]
    pub context: Option<String>,

    /// Do not ask the Kubernetes API
    #[arg(long, global = true, env = "KPX_NO_API")]
    pub no_api: bool,

    /// Which Node object this is, where the host name does not tell; for `kpx migrate` more than one may be given
    #[arg(long = "node", global = true, value_name = "NAME", action = ArgAction::Append, env = "KPX_NODE")]
    pub nodes: Vec<String>,

    /// All of them, with commas between, once they are [gathered](Cli::gather).
    #[arg(skip)]
    pub node: Option<String>,

    /// Look at this network namespace, by name or path
    #[arg(long, global = true, value_name = "NAME|PATH", env = "KPX_NETNS")]
    pub netns: Option<String>,

    /// Where the host's root file system is mounted
    #[arg(long, global = true, value_name = "DIR", env = "KPX_ROOT")]
    pub root: Option<PathBuf>,

    /// Look at one IP family
    #[arg(long, global = true, value_enum, env = "KPX_FAMILY")]
    pub family: Option<FamilyArg>,

    /// How to print: human, wide, json or yaml, and what the command adds
    #[arg(long, short, global = true, value_name = "FORMAT", value_parser = OutputParser, env = "KPX_OUTPUT")]
    pub output: Option<String>,

    /// When to use colour
    #[arg(long, global = true, value_enum, default_value_t, env = "KPX_COLOR")]
    pub color: Color,

    /// Print ASCII alone
    #[arg(long, global = true, env = "KPX_ASCII")]
    pub ascii: bool,

    /// How long one external read may take; the rules of iptables and nftables, and a check of the doctor, six times as long
    #[arg(long, global = true, value_name = "DURATION", default_value = "10s", value_parser = duration, env = "KPX_TIMEOUT")]
    pub timeout: Duration,

    /// Say less
    #[arg(long, short, global = true, env = "KPX_QUIET")]
    pub quiet: bool,

    /// Say more; twice for error reports in full
    #[arg(long, short, global = true, action = clap::ArgAction::Count, env = "KPX_VERBOSE")]
    pub verbose: u8,
}

/// Names the formats every command has, and takes any: the command knows what else it has.
#[derive(Clone)]
struct OutputParser;

impl TypedValueParser for OutputParser {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let names = ["human", "wide", "json", "yaml"];
        Some(Box::new(names.into_iter().map(PossibleValue::new)))
    }
}

/// When to use colour.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum Color {
    /// On a terminal that wants it
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// One IP family.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum FamilyArg {
    /// IPv4
    #[value(name = "4")]
    V4,
    /// IPv6
    #[value(name = "6")]
    V6,
}

/// The subcommands of `kpx`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say what is wrong with this node and how to mend it
    ///
    /// Reads the node, the cluster's objects and kube-proxy itself, runs every check over them, and prints the
    /// problems, worst first, each with what was seen, how to mend it, and where to read more. Changes nothing.
    ///
    /// Further formats: short (a line per problem), junit, prom (for Prometheus, by node-exporter's textfile collector).
    #[command(after_help = DOCTOR_EXAMPLES, after_long_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),

    /// Explain a check: symptom, mechanism, how to verify by hand, fix, incidents
    #[command(after_help = EXPLAIN_EXAMPLES, after_long_help = EXPLAIN_EXAMPLES)]
    Explain {
        /// The check, by id or name; all are listed without it
        #[arg(value_name = "ID")]
        check: Option<String>,
    },

    /// Say what cluster DNS should answer for a name, and what it does
    ///
    /// Tries the names that a resolver in a pod would try, in their order, and says of each what the cluster's Services
    /// and endpoints ask for and what cluster DNS answers when this node asks it. With --env also which environment
    /// variables a container finds of the Service. Changes nothing.
    #[command(after_help = RESOLVE_EXAMPLES, after_long_help = RESOLVE_EXAMPLES)]
    Resolve(ResolveArgs),

    /// Say where this node differs from what its Services ask for
    ///
    /// Compares what is there (rules, sets, virtual servers, addresses, kernel settings) with what kube-proxy would
    /// program for the cluster's Services, and names every object that is missing, extra or different, with the Service
    /// it belongs to. What kube-proxy does not own is never part of it. Changes nothing.
    #[command(after_help = DIFF_EXAMPLES, after_long_help = DIFF_EXAMPLES)]
    Diff(DiffArgs),

    /// Write everything kpx can read into a bundle, to look at elsewhere or to report a bug
    ///
    /// -o names the bundle: a path that ends in .tar.gz, .tgz or .tar is an archive, any other a folder. Without it,
    /// kpx-snapshot-NODE-TIME.tar.gz is written here. What exists is never overwritten, and only the owner may read
    /// the result: it holds the addresses and names of the cluster, unless --redact replaces them.
    #[command(after_help = SNAPSHOT_EXAMPLES, after_long_help = SNAPSHOT_EXAMPLES)]
    Snapshot(SnapshotArgs),

    /// Show one view of the live state, joined to the Services it serves
    ///
    /// A name narrows the view to one Service, chain, set, address, port, module or setting. Names of Services come from
    /// the cluster, or, without it, from what kube-proxy wrote beside its rules.
    #[command(after_help = SHOW_EXAMPLES, after_long_help = SHOW_EXAMPLES)]
    Show(ShowArgs),

    /// Show the way a packet takes through the rules, and where it ends
    ///
    /// Follows the first packet of a new connection through every hook, as the kernel does: iptables of both back ends,
    /// nftables, IPVS and routing, other software's rules too. Without --source it is traced from a pod, from the host
    /// and from outside. Changes nothing, and sends nothing unless --probe asks for it.
    ///
    /// Further formats: mermaid, dot.
    #[command(after_help = TRACE_EXAMPLES, after_long_help = TRACE_EXAMPLES)]
    Trace(TraceArgs),

    /// Print what kube-proxy would program, as text that the standard tools load
    ///
    /// Without --part it prints every part of the mode under a heading that names the command that loads it. With
    /// --part it prints that part alone, ready for the command: iptables-restore --noflush, ipset restore,
    /// ipvsadm --restore, ip -batch, nft -f or sysctl -p.
    #[command(after_help = RENDER_EXAMPLES, after_long_help = RENDER_EXAMPLES)]
    Render(RenderArgs),

    /// Say whether this node can run a mode, and load the kernel modules that it needs
    ///
    /// Prints everything the mode needs of the node (kernel, modules, tools, settings, what kube-proxy's pod sees of the
    /// host, rights at the API server), each with its state, and what stands in the way of a move, as `kpx doctor --for`
    /// does. Changes nothing unless --load or --persist asks for it: then it shows its plan, asks (or is told --yes),
    /// carries it out, and prints the commands that take it back.
    #[command(after_help = PREFLIGHT_EXAMPLES, after_long_help = PREFLIGHT_EXAMPLES)]
    Preflight(PreflightArgs),

    /// Plan what removes the differences that `kpx diff` shows, and with --apply do it
    ///
    /// Prints the steps as the commands one would type, each with its undo. With --apply it shows them, asks (or is told
    /// --yes), looks at the node once more, and carries them out; when a step fails, those before it are taken back. On
    /// a node that has nothing of the mode yet, it programs all of it. What kube-proxy does not own stays as it is.
    #[command(after_help = RECONCILE_EXAMPLES, after_long_help = RECONCILE_EXAMPLES)]
    Reconcile(ReconcileArgs),

    /// Plan what removes the things that a mode left behind, and with --apply do it
    ///
    /// Rules go first, then chains, sets, virtual servers, addresses and the link. What the mode that serves the node
    /// writes as well stays, as does what others wrote or refer to. Refuses to remove the mode that serves the node.
    #[command(after_help = CLEANUP_EXAMPLES, after_long_help = CLEANUP_EXAMPLES)]
    Cleanup(CleanupArgs),

    /// Serve Services by a table of kpx's own while kube-proxy changes its mode
    ///
    /// kube-proxy removes the rules of the mode it leaves before it writes those of the mode it enters. The bridge is an
    /// nftables table, kpx-bridge, that stands in between: connections that begin take it, before any rule of
    /// kube-proxy's; those that have begun are not touched. It may go once kube-proxy has written its own rules:
    /// connections that began by the bridge live on by these.
    ///
    /// Where kube-ipvs0 holds addresses of Services, what the node's own processes send to one of them they send from
    /// that same address, and nobody can any more when kube-proxy deletes that link. So the bridge adds a route to each
    /// of them to the table local, of protocol 107, by which the node's own address is the source: of IPv4 before the
    /// kernel's route, of IPv6 in its place, which the kernel makes again on the way down. By these routes what was open
    /// before from such an address lives on, too, as long as the bridge stands. The follower keeps them in step with
    /// kube-ipvs0, within a second or two; so does the guard, where it watches the cluster.
    ///
    /// The bridge serves as long as its lease lasts: the set alive of its table, whose elements the kernel lets expire.
    /// `kpx bridge follow`, `kpx bridge guard` and `kpx migrate` renew it. When all of them are gone, new connections
    /// take kube-proxy's own rules once it is over (--lease), and those that have begun go on. The kernel has no timeout
    /// for routes: the guard removes them, and check MX09 tells of those that nobody keeps.
    ///
    /// To remove the bridge by hand: nft delete table ip kpx-bridge; nft delete table ip6 kpx-bridge; ip route flush
    /// table local proto 107; ip -6 route flush table local proto 107. Addresses of IPv6 that kube-ipvs0 has yet must be
    /// removed from it and added again then.
    #[command(after_help = BRIDGE_EXAMPLES, after_long_help = BRIDGE_EXAMPLES)]
    Bridge(BridgeArgs),

    /// Move this node to another mode without losing a connection, and take it back
    ///
    /// Without --all-nodes and --node, it is the node that kpx runs on; with one of them, those nodes through the API, one
    /// after the other.
    ///
    /// Looks for what stands in the way, writes a backup, loads modules, builds the new mode's rules beside those that
    /// serve, changes kube-proxy's configuration, restarts it, waits until it serves in the new mode and Services answer,
    /// and removes what the old mode left. Every step is in a journal before it is done: after a crash, resume or
    /// rollback go on from there. What is not well in time is taken back by itself.
    ///
    /// Ctrl-C, or SIGTERM, lets the step end that is under way, and stops before the next, or at once where something is
    /// waited for; the exit status is 4, and the last line says how to go on. A second one leaves the step as it is.
    ///
    /// With -o json every event is a line of JSON, and the report is the last one.
    #[command(after_help = MIGRATE_EXAMPLES, after_long_help = MIGRATE_EXAMPLES)]
    Migrate(Box<MigrateArgs>),

    /// Print a completion script
    #[command(after_help = COMPLETIONS_EXAMPLES, after_long_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell to write for
        shell: Shell,
    },

    /// Print a manual page
    #[command(after_help = MAN_EXAMPLES, after_long_help = MAN_EXAMPLES)]
    Man {
        /// The page: a subcommand, or `checks` for the catalogue of checks
        #[arg(value_name = "NAME")]
        page: Option<String>,
    },
}

const DOCTOR_EXAMPLES: &str = "\
Examples:
  kpx doctor                             all checks on this node
  kpx --from node1.tar.gz doctor         the same, on a bundle from elsewhere
  kpx doctor --only MX01,sysctl          some checks: by id, name or group
  kpx doctor --skip DP01 --fail-on warning
  kpx doctor --wait 2m                   until nothing is wrong, or two minutes
  kpx doctor --textfile /var/lib/node_exporter/kpx.prom
  kpx doctor --list                      what is checked";

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  kpx explain MX01                       one check
  kpx explain                            all of them, a line each";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  kpx completions bash > /etc/bash_completion.d/kpx
  kpx completions zsh > /usr/local/share/zsh/site-functions/_kpx
  kpx completions fish > ~/.config/fish/completions/kpx.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  kpx man | man -l -                     this command's page
  kpx man doctor > /usr/local/share/man/man1/kpx-doctor.1
  kpx man checks | man -l -              every check";

const TRACE_EXAMPLES: &str = "\
Examples:
  kpx trace 10.97.54.248:80                    from a pod, the host and outside
  kpx trace default/nginx-svc --source host    a Service by name, from this node
  kpx trace nodeport:31082 --source external   a NodePort, from outside
  kpx trace [fd00:10:96::12]:80 -o wide        with every rule in full
  kpx trace default/nginx-svc --as nftables    in another mode
  kpx trace default/nginx-svc --probe          with one real connection";

const DIFF_EXAMPLES: &str = "\
Examples:
  kpx diff                               this node, in its configured mode
  kpx --from node1.tar.gz diff -o json   a bundle from elsewhere, for programs
  kpx diff --mode nftables               what another mode would need";

/// Arguments of `kpx trace`.
#[derive(Args, Debug)]
pub struct TraceArgs {
    /// Where to: IP:PORT, [IP6]:PORT, NAMESPACE/SERVICE[:PORT], a cluster DNS name with :PORT, or nodeport:N
    #[arg(value_name = "TARGET")]
    pub target: String,

    /// Where from: an address, a pod of this node, host, or external
    #[arg(long, value_name = "IP|POD|host|external", env = "KPX_SOURCE")]
    pub source: Option<String>,

    /// The protocol, where the target leaves it open
    #[arg(long, value_name = "P", value_parser = protocol, env = "KPX_PROTOCOL")]
    pub protocol: Option<Proto>,

    /// Trace a later packet of a connection: filters see it as established, nat is what its first packet met
    #[arg(long, env = "KPX_ESTABLISHED")]
    pub established: bool,

    /// Trace over what kube-proxy would program in this mode, instead of what is there
    #[arg(long = "as", value_enum, value_name = "MODE", env = "KPX_AS")]
    pub assumed: Option<ModeArg>,

    /// Open one real connection from this host, and say which backend took it
    #[arg(long, conflicts_with_all = ["assumed", "established"], env = "KPX_PROBE")]
    pub probe: bool,
}

/// Reads a protocol that has ports.
fn protocol(text: &str) -> Result<Proto, String> {
    match text.parse() {
        Ok(proto @ (Proto::Tcp | Proto::Udp | Proto::Sctp)) => Ok(proto),
        _ => Err(format!("{text:?} is not tcp, udp or sctp")),
    }
}

/// Arguments of `kpx diff`.
#[derive(Args, Debug)]
pub struct DiffArgs {
    /// Compare with this mode (default: the one kube-proxy is configured for)
    #[arg(long, value_enum, env = "KPX_MODE")]
    pub mode: Option<ModeArg>,
}

const PREFLIGHT_EXAMPLES: &str = "\
Examples:
  kpx preflight --to ipvs                    what is there, and what is missing
  kpx preflight --to ipvs --load             load the modules, and see them work
  kpx preflight --to ipvs --load --persist   the same, and at every boot
  kpx --from node1.tar.gz preflight --to nftables";

/// Arguments of `kpx preflight`.
#[derive(Args, Debug)]
pub struct PreflightArgs {
    /// The mode
    #[arg(long, value_enum, value_name = "MODE", env = "KPX_TO")]
    pub to: ModeArg,

    /// Load the modules that the mode needs, and see the kernel do what it needs them for, in a network namespace made
    /// for that
    #[arg(long, env = "KPX_LOAD")]
    pub load: bool,

    /// Have the modules loaded at every boot, by the file /etc/modules-load.d/kpx.conf
    #[arg(long, env = "KPX_PERSIST")]
    pub persist: bool,

    /// Agree to the plan beforehand
    #[arg(long, short, env = "KPX_YES")]
    pub yes: bool,
}

const RECONCILE_EXAMPLES: &str = "\
Examples:
  kpx reconcile                          what would be changed
  kpx reconcile --apply                  change it, after a look at the plan
  kpx reconcile --only iptables --apply --yes
  kpx reconcile --mode ipvs              what another mode would need";

/// Arguments of `kpx reconcile`.
#[derive(Args, Debug)]
pub struct ReconcileArgs {
    /// Bring the node to this mode (default: the one kube-proxy is configured for)
    #[arg(long, value_enum, env = "KPX_MODE")]
    pub mode: Option<ModeArg>,

    /// Change only these layers, separated by commas (default: all)
    #[arg(long, value_enum, value_name = "LAYERS", value_delimiter = ',', env = "KPX_LAYERS",
        default_values_t = LayerArg::ALL)]
    pub only: Vec<LayerArg>,

    /// Go on although another service proxy owns the node
    #[arg(long, env = "KPX_FORCE")]
    pub force: bool,

    /// Delete real servers at once, with their connections, instead of closing them first
    #[arg(long, env = "KPX_NO_DRAIN")]
    pub no_drain: bool,

    /// Whether to change anything.
    #[command(flatten)]
    pub change: ApplyArgs,
}

const CLEANUP_EXAMPLES: &str = "\
Examples:
  kpx cleanup --mode iptables            what a move to ipvs left behind
  kpx cleanup --mode iptables --apply    remove it, after a look at the plan";

/// Arguments of `kpx cleanup`.
#[derive(Args, Debug)]
pub struct CleanupArgs {
    /// Remove what this mode left behind
    #[arg(long, value_enum, env = "KPX_MODE")]
    pub mode: ModeArg,

    /// Go on although it is the mode that serves the node
    #[arg(long, env = "KPX_FORCE")]
    pub force: bool,

    /// Whether to change anything.
    #[command(flatten)]
    pub change: ApplyArgs,
}

const BRIDGE_EXAMPLES: &str = "\
Examples:
  kpx bridge show                        what would be loaded
  kpx bridge up --apply                  load it, after a look at the plan
  kpx bridge follow                      keep it up to date, and serving
  kpx bridge down --apply                remove it";

/// Arguments of `kpx bridge`.
#[derive(Args, Debug)]
pub struct BridgeArgs {
    /// What to do
    #[arg(value_enum)]
    pub act: BridgeAct,

    /// Serve NodePorts, and masquerade, as this mode does (default: the one kube-proxy is configured for)
    #[arg(long, value_enum, env = "KPX_MODE")]
    pub mode: Option<ModeArg>,

    /// How long the bridge serves new connections after follow or guard renewed it last: 10s to 1h
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = lease, env = "KPX_LEASE")]
    pub lease: Duration,

    /// guard: in the background, as a transient unit of systemd where that runs
    #[arg(long, env = "KPX_DETACH")]
    pub detach: bool,

    /// guard: wait this long for a bridge, and longer while another kpx changes the node or another guard runs
    #[arg(long = "await", value_name = "DURATION", default_value = "0s", value_parser = duration, env = "KPX_AWAIT")]
    pub awaits: Duration,

    /// Whether to change anything.
    #[command(flatten)]
    pub change: ApplyArgs,
}

/// What is done about the bridge.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum BridgeAct {
    /// Print it, for nft -f
    Show,
    /// Plan what loads it, in the place of one that stands, and with --apply do it
    Up,
    /// Plan what removes it, and with --apply do it
    Down,
    /// Keep one that stands up to date with Services and their endpoints, and renew its lease, until Ctrl-C
    Follow,
    /// Remove one that stands as soon as kube-proxy has written all of its own rules, and no other kpx needs it; follow
    /// the cluster, and renew the lease, until then
    Guard,
}

/// Arguments of every command that can change a node.
#[derive(Args, Clone, Copy, Debug)]
pub struct ApplyArgs {
    /// Carry the plan out, instead of printing it alone
    #[arg(long, env = "KPX_APPLY")]
    pub apply: bool,

    /// Agree to the plan beforehand
    #[arg(long, short, env = "KPX_YES")]
    pub yes: bool,
}

/// A part of the kernel's state.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum LayerArg {
    /// Chains and rules
    Iptables,
    /// IP sets
    Ipset,
    /// Virtual and real servers
    Ipvs,
    /// kube-ipvs0 and its addresses
    Link,
    /// The nftables table
    Nftables,
    /// Kernel settings
    Sysctl,
}

impl LayerArg {
    const ALL: [Self; 6] = [
        Self::Iptables,
        Self::Ipset,
        Self::Ipvs,
        Self::Link,
        Self::Nftables,
        Self::Sysctl,
    ];
}

impl std::fmt::Display for LayerArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", PossibleValue::get_name))
    }
}

const MIGRATE_EXAMPLES: &str = "\
Examples:
  kpx migrate --to nftables --dry-run    what would be done, and what it costs
  kpx migrate --to nftables              do it, after a look at the plan
  kpx migrate --to ipvs --scheduler lc --strict-arp --yes
  kpx migrate --to nftables --node worker1 --this-node
                                         where the host has another name
  kpx migrate --to nftables --all-nodes --image registry.example/kpx:1 --staged
  kpx migrate status                     where a migration stands
  kpx migrate resume                     on from there
  kpx migrate rollback                   back to the mode it came from";

const PREPARE_EXAMPLES: &str = "\
Examples:
  kpx migrate prepare --to nftables      before others change the mode
  kpx migrate finish                     and after that";

const FINISH_EXAMPLES: &str = "\
Examples:
  kpx migrate finish                     once kube-proxy runs in the new mode
  kpx migrate finish --confirm-timeout 20m";

const STATUS_EXAMPLES: &str = "\
Examples:
  kpx migrate status                     where a migration stands
  kpx migrate status -o json             the same for programs
  kpx migrate status --all-nodes         where the cluster's migration stands";

const RESUME_EXAMPLES: &str = "\
Examples:
  kpx migrate resume                     go on where it was left
  kpx migrate resume --accept-loss       and break what does not end in time
  kpx migrate resume --all-nodes         the cluster's, from any machine";

const ROLLBACK_EXAMPLES: &str = "\
Examples:
  kpx migrate rollback                   back to the mode it came from
  kpx migrate rollback --until-restart   ready for others to do the rest
  kpx migrate rollback --all-nodes       all nodes, the last one first";

/// Arguments of `kpx migrate`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct MigrateArgs {
    /// A part of it.
    #[command(subcommand)]
    pub part: Option<MigratePart>,

    /// All of it.
    #[command(flatten)]
    pub journey: JourneyArgs,

    /// More nodes than this one.
    #[command(flatten)]
    pub fleet: FleetArgs,
}

/// Arguments for the move of many nodes.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Nodes of a cluster")]
pub struct FleetArgs {
    /// Move all nodes, one after the other; --node NAME,NAME moves these
    #[arg(long, conflicts_with = "this_node", env = "KPX_ALL_NODES")]
    pub all_nodes: bool,

    /// Move nodes to a second DaemonSet by a label, so that no restart moves another one
    #[arg(long, env = "KPX_STAGED")]
    pub staged: bool,

    /// Do what is to be done on a node in a privileged pod of this image, which has kpx; without it, the commands are told
    #[arg(long, value_name = "IMAGE", env = "KPX_IMAGE")]
    pub image: Option<String>,

    /// The service account of these pods, in kube-system; deploy/rbac.yaml makes this one
    #[arg(
        long,
        value_name = "NAME",
        default_value = "kpx",
        env = "KPX_SERVICE_ACCOUNT"
    )]
    pub service_account: String,

    /// Watch each node this long before the next one
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration, env = "KPX_SOAK")]
    pub soak: Duration,

    /// How long a new pod may take to be ready
    #[arg(long, value_name = "DURATION", default_value = "3m", value_parser = duration, env = "KPX_READY_TIMEOUT")]
    pub ready_timeout: Duration,
}

/// A part of `kpx migrate`.
#[derive(Debug, Subcommand)]
pub enum MigratePart {
    /// Do all that comes before the change of kube-proxy's configuration, and leave that to others
    ///
    /// Whoever does it changes the configuration and restarts kube-proxy; `kpx migrate finish` goes on then.
    #[command(after_help = PREPARE_EXAMPLES, after_long_help = PREPARE_EXAMPLES)]
    Prepare(JourneyArgs),

    /// Wait until kube-proxy serves in the new mode, and remove what the old one left: what comes after prepare
    #[command(after_help = FINISH_EXAMPLES, after_long_help = FINISH_EXAMPLES)]
    Finish(GoOnArgs),

    /// Say where the newest migration of this node stands
    #[command(after_help = STATUS_EXAMPLES, after_long_help = STATUS_EXAMPLES)]
    Status(StatusArgs),

    /// Go on with a migration that stopped on the way
    #[command(after_help = RESUME_EXAMPLES, after_long_help = RESUME_EXAMPLES)]
    Resume(TurnArgs),

    /// Take a migration back: one that stopped on the way, or the newest that was done
    #[command(after_help = ROLLBACK_EXAMPLES, after_long_help = ROLLBACK_EXAMPLES)]
    Rollback(RollbackArgs),
}

/// Arguments of `kpx migrate status`.
#[derive(Args, Clone, Copy, Debug)]
pub struct StatusArgs {
    /// The migration of the cluster's nodes, whoever began it and wherever
    #[arg(long, conflicts_with = "this_node", env = "KPX_ALL_NODES")]
    pub all_nodes: bool,

    /// The node that kpx runs on
    #[arg(long, env = "KPX_THIS_NODE")]
    pub this_node: bool,
}

/// Arguments of what goes on with a migration, or takes it back.
#[derive(Args, Clone, Copy, Debug)]
pub struct TurnArgs {
    /// The migration of the cluster's nodes, whoever began it and wherever
    #[arg(long, conflicts_with = "this_node", env = "KPX_ALL_NODES")]
    pub all_nodes: bool,

    /// How long to wait, and for what.
    #[command(flatten)]
    pub go_on: GoOnArgs,
}

/// Arguments of what takes a migration back.
#[derive(Args, Clone, Copy, Debug)]
pub struct RollbackArgs {
    /// The migration of the cluster's nodes, whoever began it and wherever
    #[arg(long, conflicts_with = "this_node", env = "KPX_ALL_NODES")]
    pub all_nodes: bool,

    /// Do all that comes before the change of kube-proxy's configuration, and leave that and the restart to others
    ///
    /// Whoever does it puts the configuration back and restarts kube-proxy; `kpx migrate finish` goes on then.
    #[arg(long, conflicts_with = "all_nodes", env = "KPX_UNTIL_RESTART")]
    pub until_restart: bool,

    /// How long to wait, and for what.
    #[command(flatten)]
    pub go_on: GoOnArgs,
}

/// Arguments that begin a migration.
#[derive(Args, Debug)]
pub struct JourneyArgs {
    /// The mode
    #[arg(long, value_enum, value_name = "MODE", required = true, env = "KPX_TO")]
    pub to: Option<ModeArg>,

    /// Say what would be done, and what it costs, and do nothing
    #[arg(long, env = "KPX_DRY_RUN")]
    pub dry_run: bool,

    /// With --dry-run, say only what stands in the way and what it costs
    #[arg(long, requires = "dry_run", env = "KPX_BRIEF")]
    pub brief: bool,

    /// Set the scheduler of virtual servers, too
    #[arg(long, value_name = "NAME", env = "KPX_SCHEDULER")]
    pub scheduler: Option<String>,

    /// Set strictARP, too
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        env = "KPX_STRICT_ARP")]
    pub strict_arp: Option<bool>,

    /// What becomes of connections meanwhile [default: bridge where nftables is entered or ipvs is left, else in-place]
    #[arg(long, value_enum, env = "KPX_STRATEGY")]
    pub strategy: Option<StrategyArg>,

    /// What may be lost where pods are evicted.
    #[command(flatten)]
    pub evict: EvictArgs,

    /// Where kube-proxy has gone to the new mode by itself, this is the mode it left: what that left behind is removed
    #[arg(long, value_enum, value_name = "MODE", env = "KPX_LEFT")]
    pub left: Option<ModeArg>,

    /// Go on although these checks find something in the way: ids, names or groups, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', env = "KPX_SKIP")]
    pub skip: Vec<String>,

    /// How long to wait, and for what.
    #[command(flatten)]
    pub go_on: GoOnArgs,
}

/// Arguments for the eviction of pods.
#[derive(Args, Clone, Copy, Debug)]
pub struct EvictArgs {
    /// With --strategy drain-node, evict pods without a controller, too: nobody makes them again
    #[arg(long, env = "KPX_DELETE_BARE_PODS")]
    pub delete_bare_pods: bool,

    /// With --strategy drain-node, evict pods with an emptyDir, too: what is in it is lost
    #[arg(long, env = "KPX_DELETE_EMPTYDIR_DATA")]
    pub delete_emptydir_data: bool,
}

/// What becomes of connections while kube-proxy changes its mode.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum StrategyArg {
    /// A table of kpx's own takes new connections; those that ipvs forwards are waited for before the change
    Bridge,
    /// The modes' own rules take over from each other
    InPlace,
    /// The node is cordoned and its pods are evicted first; then as in-place, and it is uncordoned at the end
    DrainNode,
}

/// Arguments of everything that goes on with a migration.
#[derive(Args, Clone, Copy, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "flags that have nothing to do with each other"
)]
pub struct GoOnArgs {
    /// The node that kpx runs on, with --node NAME where its Node has another name
    #[arg(long, env = "KPX_THIS_NODE")]
    pub this_node: bool,

    /// Turn back where kube-proxy does not serve in the new mode, or Services do not answer, after this long
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration, env = "KPX_CONFIRM_TIMEOUT")]
    pub confirm_timeout: Duration,

    /// Wait this long for connections to end that go with the virtual servers, and for evicted pods to leave
    #[arg(long, value_name = "DURATION", default_value = "20m", value_parser = duration, env = "KPX_DRAIN_TIMEOUT")]
    pub drain_timeout: Duration,

    /// Go on with connections that have not ended by then: they break
    #[arg(long, env = "KPX_ACCEPT_LOSS")]
    pub accept_loss: bool,

    /// How long the bridge serves new connections after kpx or its guard renewed it last: 10s to 1h
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = lease, env = "KPX_LEASE")]
    pub lease: Duration,

    /// Agree to the plan beforehand
    #[arg(long, short, env = "KPX_YES")]
    pub yes: bool,

    /// Take what is done already for done, and go on with what was begun: for whoever repeats a command
    #[arg(long, env = "KPX_AGAIN")]
    pub again: bool,
}

const RENDER_EXAMPLES: &str = "\
Examples:
  kpx render                             all of the configured mode
  kpx render --part iptables | iptables-restore --noflush --test
  kpx --family 6 render --part iptables  the rules for IPv6
  kpx --from node1.tar.gz render --mode nftables --part nftables";

/// Arguments of `kpx render`.
#[derive(Args, Debug)]
pub struct RenderArgs {
    /// Render this mode (default: the one kube-proxy is configured for)
    #[arg(long, value_enum, env = "KPX_MODE")]
    pub mode: Option<ModeArg>,

    /// Print this part alone
    #[arg(long, value_enum, env = "KPX_PART")]
    pub part: Option<PartArg>,
}

/// A part of what a mode programs.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum PartArg {
    /// Rules, for iptables-restore --noflush; IPv4's, unless --family 6 is given
    Iptables,
    /// Sets, for ipset restore
    Ipset,
    /// Virtual and real servers, for ipvsadm --restore
    Ipvs,
    /// kube-ipvs0 and its addresses, for ip -batch
    Addresses,
    /// Tables, for nft -f
    Nftables,
    /// Kernel settings, for sysctl -p
    Sysctl,
}

/// A mode of kube-proxy.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum ModeArg {
    /// Chains of KUBE-* rules
    Iptables,
    /// Virtual servers, sets and a few rules
    Ipvs,
    /// The nftables table kube-proxy
    Nftables,
}

/// Arguments of `kpx doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Run only these checks: ids, names or groups, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', env = "KPX_ONLY")]
    pub only: Vec<String>,

    /// Leave these checks out: ids, names or groups, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', env = "KPX_SKIP")]
    pub skip: Vec<String>,

    /// Do not tell what this file names, each entry with a reason and a last day [default: /etc/kpx/ignore.yaml on a live
    /// node, if it is there]
    ///
    /// A YAML list of entries such as {check: DP01, subject: "mode *", reason: we move in spring, expires: 2027-03-31}.
    /// check is an id or a name; * in subject stands for any text, and without subject every finding of the check is
    /// meant; the entry counts to the end of its last day, in UTC. What is hidden is counted, shown with -v and in
    /// JSON, and does not count for the exit status.
    #[arg(long, value_name = "FILE", env = "KPX_IGNORE_FILE")]
    pub ignore_file: Option<PathBuf>,

    /// Also write the prom format to this file, whole or not at all, for node-exporter's textfile collector
    #[arg(long, value_name = "PATH", env = "KPX_TEXTFILE")]
    pub textfile: Option<PathBuf>,

    /// Ask what stands in the way of a move to this mode, and what to heed before it: an error stops it
    #[arg(long = "for", value_enum, value_name = "MODE", env = "KPX_FOR")]
    pub target: Option<ModeArg>,

    /// Exit with 1 from which severity on
    #[arg(
        long,
        value_enum,
        value_name = "SEVERITY",
        default_value_t,
        env = "KPX_FAIL_ON"
    )]
    pub fail_on: FailOn,

    /// Print the checks instead of running them
    #[arg(long, conflicts_with = "textfile")]
    pub list: bool,

    /// Look again until nothing is wrong, at most this long
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "from", env = "KPX_WAIT")]
    pub wait: Option<Duration>,
}

/// From which severity on `kpx doctor` exits with 1.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum FailOn {
    /// Traffic is, or will be, lost
    #[default]
    Error,
    /// The same, or a risk
    Warning,
    /// Whatever is found
    Never,
}

const SNAPSHOT_EXAMPLES: &str = "\
Examples:
  kpx snapshot                                    kpx-snapshot-NODE-TIME.tar.gz
  kpx snapshot --redact -o bug.tar.gz             fit to be shown to others
  kpx --from node1 snapshot --redact -o bug.tgz   the same from an older bundle
  kpx snapshot --script > snapshot.sh             for a node that has no kpx";

/// Arguments of `kpx snapshot`.
#[derive(Args, Debug)]
pub struct SnapshotArgs {
    /// Replace addresses and names, each by the same one everywhere, and leave logs and secrets out
    #[arg(long, env = "KPX_REDACT")]
    pub redact: bool,

    /// Print a POSIX shell script that makes a bundle with standard tools alone
    #[arg(long, conflicts_with = "redact")]
    pub script: bool,
}

const RESOLVE_EXAMPLES: &str = "\
Examples:
  kpx resolve web --namespace demo --env   as a pod in namespace demo does
  kpx resolve _http._tcp.web.demo.svc.cluster.local.
                                           the port of a Service, by SRV
  kpx resolve www.example.com              how many names are tried before it

Exit status: 0 as it should be, 1 not so, or no such name, 3 could not tell";

/// Arguments of `kpx resolve`.
#[derive(Args, Debug)]
pub struct ResolveArgs {
    /// The name, as a program in a pod uses it; a dot at its end says that it is whole
    pub name: String,

    /// The namespace of the pod that asks
    #[arg(long, value_name = "NAMESPACE", default_value = "default")]
    pub namespace: String,

    /// Also list what a container finds of the Service in its environment
    #[arg(long)]
    pub env: bool,

    /// The cluster's domain
    #[arg(
        long,
        value_name = "DOMAIN",
        default_value = "cluster.local",
        env = "KPX_CLUSTER_DOMAIN"
    )]
    pub cluster_domain: String,

    /// Ask this server, not that of Service kube-system/kube-dns
    #[arg(long, value_name = "IP:PORT")]
    pub server: Option<SocketAddr>,
}

const SHOW_EXAMPLES: &str = "\
Examples:
  kpx show services                   what this node does with each Service
  kpx show chains default/nginx-svc   the rules of one Service, as a tree
  kpx show ipvs -o wide               virtual servers, every column
  kpx show config                     mode and settings, and who says so";

/// Arguments of `kpx show`.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// What to show
    #[arg(value_enum)]
    pub view: ViewArg,

    /// Only this: a Service (NAMESPACE/NAME[:PORT]), chain, set, address, port, module or setting
    pub name: Option<String>,
}

/// What `kpx show` shows.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum ViewArg {
    /// What the node does with each Service
    Services,
    /// Chains, with whose they are
    Chains,
    /// Virtual servers and their real servers
    Ipvs,
    /// IP sets, and what they are for
    Sets,
    /// Addresses of kube-ipvs0, and why they are there
    Addresses,
    /// NodePorts, and who listens there
    Nodeports,
    /// Tracked connections of Services
    Conntrack,
    /// Kernel modules, and what needs them
    Modules,
    /// Kernel settings, and what they should be
    Sysctls,
    /// kube-proxy's configuration and mode
    Config,
}

/// Reads a duration: a number with `ms`, `s`, `m` or `h`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: f64 = digits
        .parse()
        .map_err(|_| format!("{text:?} is not a duration, such as 10s or 500ms"))?;
    let seconds = match &text[digits.len()..] {
        "ms" => number / 1000.0,
        "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(format!("{text:?} needs a unit: ms, s, m or h")),
    };
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| format!("{text:?} is not a duration kpx can wait for"))
}

/// Parses the lease of the bridge: long enough for a keeper that is restarted, and short enough to matter.
fn lease(text: &str) -> Result<Duration, String> {
    let allowed = Duration::from_secs(10)..=Duration::from_secs(3600);
    let time = duration(text)?;
    if allowed.contains(&time) {
        Ok(time)
    } else {
        Err(format!("{text:?} is not between 10s and 1h"))
    }
}
