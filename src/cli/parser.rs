//! The command line: the one definition behind parsing, help, man pages and completions.

use std::ffi::OsString;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use super::global::GlobalArgs;
use super::{complaint, plugin, value};
use crate::command::access::args::{self as access, AccessArgs};
use crate::command::bridge::args::{self as bridge, BridgeArgs};
use crate::command::completions::args::{self as completions, CompleteArgs, CompletionsArgs};
use crate::command::diff::args::{self as diff, DiffArgs};
use crate::command::doctor::args::{self as doctor, DoctorArgs};
use crate::command::explain::args::{self as explain, ExplainArgs};
use crate::command::help::args::{self as help, HelpArgs};
use crate::command::man::args::{self as man, ManArgs};
use crate::command::mcp::args::{self as mcp, McpArgs};
use crate::command::migrate::args::{self as migrate, MigrateArgs};
use crate::command::pod::args::PodArgs;
use crate::command::preflight::args::{self as preflight, PreflightArgs};
use crate::command::reconcile::args::{self as reconcile, ReconcileArgs};
use crate::command::render::args::{self as render, RenderArgs};
use crate::command::report::args::{self as report, ReportArgs};
use crate::command::resolve::args::{self as resolve, ResolveArgs};
use crate::command::serve::args::{self as serve, ServeArgs};
use crate::command::show::args::{self as show, ShowArgs};
use crate::command::snapshot::args::{self as snapshot, SnapshotArgs};
use crate::command::top::args::{self as top, TopArgs};
use crate::command::trace::args::{self as trace, TraceArgs};
use crate::command::version::args::{self as version, VersionArgs};
use crate::command::watch::args::{self as watch, WatchArgs};
use crate::command::why::args::{self as why, WhyArgs};
use crate::render::{Format, wrap};

/// Inspect, repair and migrate a node's kube-proxy rules
///
/// kpx reads what kube-proxy programmed on a node (iptables, ipvs or nftables), compares it with the cluster's Services, and
/// reports what is wrong and how to fix it. It is read-only unless you pass `--apply`, or confirm a migration.
#[derive(Debug, Parser)]
#[command(name = "kpx", version, disable_help_subcommand = true, after_long_help = LONG_AFTER)]
pub struct Cli {
    /// Options that every command takes.
    #[command(flatten)]
    pub global: GlobalArgs,

    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses `words`, a command line with the program's name in front. Fails with clap's complaint, or with the help or
    /// version that was asked for.
    pub fn parse_from_words(words: &[OsString]) -> Result<Self, clap::Error> {
        let command = || {
            if plugin::is_meant(words) {
                plugin::command(command())
            } else {
                command()
            }
        };
        let parsed = command()
            .try_get_matches_from(words)
            .and_then(|mut matches| {
                Self::from_arg_matches_mut(&mut matches)
                    .map_err(|error| error.format(&mut command()))
            });
        parsed.map_err(|error| complaint::clear(error, words, command()))
    }
}

/// Returns the definition of the command line, with each command's formats and short help.
pub fn command() -> clap::Command {
    let root = Cli::command();
    let globals: Vec<_> = root
        .get_arguments()
        .filter(|arg| arg.is_global_set())
        .cloned()
        .collect();
    let output = globals.iter().find(|arg| arg.get_id() == "output");
    let output = output.cloned().unwrap_or_else(|| clap::Arg::new("output"));
    let main = globals
        .iter()
        .filter(|arg| MAIN.contains(&arg.get_id().as_str()));
    let main: Vec<_> = main.map(|arg| arg.clone().hide_short_help(true)).collect();
    let root = root.mut_subcommands(|sub| {
        let formats = formats(sub.get_name());
        let output = output
            .clone()
            .value_parser(value::Offered::of(&formats))
            .hide(formats.is_empty());
        with_short_help(sub.arg(output).args(&main), &formats)
    });
    let root = root.mut_args(finished).mut_args(|arg| {
        let is_main = MAIN.contains(&arg.get_id().as_str());
        arg.hide_short_help(!is_main)
    });
    let version = clap::Arg::new("version")
        .short('V')
        .long("version")
        .help("Print version")
        .action(ArgAction::Version)
        .hide_short_help(true);
    let root = root.disable_version_flag(true).arg(version);
    let page = page(&root);
    root.help_template(page)
}

/// The global options in the short help of kpx itself.
const MAIN: [&str; 2] = ["from", "nodes"];

/// The commands in the usual order of use; those of [`MORE`] are only named.
const GROUPS: &[(&str, &[&str])] = &[
    ("Diagnose", &["doctor", "why", "trace", "show", "diff"]),
    ("Change", &["reconcile", "preflight", "migrate"]),
    ("Record", &["snapshot", "report"]),
];
const MORE: &[&str] = &[
    "access",
    "bridge",
    "completions",
    "explain",
    "help",
    "man",
    "mcp",
    "render",
    "resolve",
    "serve",
    "top",
    "version",
    "watch",
];

/// Returns the template of the help of `root`, with its commands by group.
fn page(root: &clap::Command) -> String {
    let (header, literal) = (
        root.get_styles().get_header(),
        root.get_styles().get_literal(),
    );
    let about = |name: &str| {
        let about = root
            .find_subcommand(name)
            .and_then(clap::Command::get_about);
        let about = about.map(ToString::to_string).unwrap_or_default();
        format!("  {literal}{name:10}{literal:#} {about}\n")
    };
    let groups = GROUPS.iter().map(|(group, names)| {
        let names: String = names.iter().copied().map(about).collect();
        format!("{header}{group}:{header:#}\n{names}")
    });
    let groups: String = groups.collect();
    let more = wrap(&MORE.join(", "), 80 - "More: ".len()).join("\n      ");
    format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{header}More:{header:#} {more}\n\n\
         {header}Options:{header:#}\n{{options}}{{after-help}}"
    )
}

/// Returns whether `command` prints a report, in the formats that all reports have.
pub(crate) fn prints_reports(command: &str) -> bool {
    formats(command).starts_with(&Format::NAMES)
}

/// Returns the formats that `--output` takes for `command`; none for one that prints no report.
pub(crate) fn formats(command: &str) -> Vec<&'static str> {
    let extra: &[&str] = match command {
        "complete" | "completions" | "help" | "man" | "mcp" | "screen" | "serve" => {
            return Vec::new();
        }
        "report" => return vec!["html"],
        "doctor" => &["short", "junit", "prom", "npd"],
        "trace" => &["picture", "svg", "mermaid", "dot"],
        "why" => &["picture", "svg"],
        _ => &[],
    };
    [&Format::NAMES[..], extra].concat()
}

/// Adds the formats to the help of `-h`, and where all options are described, for `command` and those below it.
fn with_short_help(command: clap::Command, formats: &[&str]) -> clap::Command {
    let mut text = command
        .get_after_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    text.push_str("\n\n");
    if !formats.is_empty() {
        text.extend(["Formats (-o): ", &formats.join(", "), "\n"]);
    }
    text.push_str(ALL_OPTIONS);
    // Who types it knows it.
    let help = clap::Arg::new("help")
        .short('h')
        .long("help")
        .help("Print help")
        .action(ArgAction::Help)
        .hide_short_help(true);
    command
        .mut_args(finished)
        .disable_help_flag(true)
        .arg(help)
        .mut_subcommands(|sub| with_short_help(sub, formats))
        .after_help(text)
}

/// The last line of a short help.
const ALL_OPTIONS: &str = "All options, such as --from and --node: --help";

/// Returns `arg` as it is shown and parsed: its variable is named in the long help alone, and a switch's variable takes 1, true
/// and yes, or 0, false and no.
fn finished(mut arg: clap::Arg) -> clap::Arg {
    if arg.is_global_set() {
        arg = arg.hide_short_help(true);
    }
    let Some(variable) = arg
        .get_env()
        .map(|name| name.to_string_lossy().into_owned())
    else {
        return arg;
    };
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        arg = arg.value_parser(BoolishValueParser::new());
    }
    let help = arg.get_long_help().or_else(|| arg.get_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    arg.hide_env(true)
        .long_help(format!("{help}\n\n[env: {variable}]"))
}

const LONG_AFTER: &str = "\
Examples:
  kpx doctor                          find problems on this node
  kpx show services                   how this node handles each Service
  kpx snapshot --file node1.tar.gz    record the node
  kpx --from node1.tar.gz doctor      analyse the recording elsewhere

Exit status:
  0  healthy, or done
  1  findings at or above --fail-on, or differences
  2  wrong command line
  3  inconclusive: data is missing
  4  failed, refused, or stopped before the end

Environment:
  Most options have a variable, named in their help. A switch takes 1, true or
  yes, and 0, false or no. Options that consent to a change have none.

Defaults:
  ~/.config/kpx/config.yaml has defaults of options: `kpx explain config`.";

/// The commands of `kpx`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Find problems of this node and how to fix them
    ///
    /// Reads the node, the API objects and kube-proxy, runs every check, and prints the problems, worst first: what is wrong,
    /// the evidence, the fix, and where to read more. Read-only.
    ///
    /// A live node whose rules differ from the desired ones is read again after the next sync of kube-proxy: only differences
    /// that persist are problems.
    ///
    /// Formats of its own: short (one line per problem), junit, prom (for Prometheus, through node-exporter's textfile
    /// collector), npd (one line of at most 80 characters, for a custom plugin of node-problem-detector).
    #[command(after_help = doctor::SHORT_EXAMPLES, after_long_help = doctor::EXAMPLES)]
    Doctor(DoctorArgs),

    /// Explain a check, or how a provider's mode is changed
    ///
    /// For a check: symptom, cause, verification, fix. For a provider of clusters, such as EKS or k3s: the recipe for a
    /// change of kube-proxy's mode.
    #[command(after_help = explain::EXAMPLES, after_long_help = explain::EXAMPLES)]
    Explain(ExplainArgs),

    /// Compare cluster DNS with the cluster's Services
    ///
    /// Tries the names that a resolver in a pod would try, in the same order, and compares the answer that the Services and
    /// endpoints call for with the answer of cluster DNS to this node. With --env it also lists the environment variables
    /// that a container has for the Service. Read-only.
    #[command(after_help = resolve::EXAMPLES, after_long_help = resolve::EXAMPLES)]
    Resolve(ResolveArgs),

    /// Compare the live rules with the cluster's Services
    ///
    /// Compares the live state (rules, IP sets, virtual servers, addresses, kernel settings) with what kube-proxy would
    /// program for the cluster's Services, and lists every object that is missing, extra or different, with its Service.
    /// Objects that kube-proxy does not own are ignored. Read-only.
    #[command(after_help = diff::EXAMPLES, after_long_help = diff::EXAMPLES)]
    Diff(DiffArgs),

    /// Record the node in a bundle for offline analysis
    ///
    /// --file names the bundle: a path that ends in .tar.gz, .tgz or .tar is an archive, any other path a folder. The default is
    /// kpx-snapshot-NODE-TIME.tar.gz in the current folder. An existing file is never overwritten. Only its owner can read
    /// the bundle: it contains the cluster's addresses and names, unless --redact replaces them.
    #[command(after_help = snapshot::EXAMPLES, after_long_help = snapshot::EXAMPLES)]
    Snapshot(SnapshotArgs),

    /// Write a page for a ticket: findings, drift, traces, plan
    ///
    /// One file of HTML for a browser, which needs no other file and no network: the findings with fix and evidence, the
    /// differences from the desired state, the Services, traces as pictures, the plan of a repair, and the changes that `kpx
    /// watch` printed. kpx reads the node once, and every part describes that state. Read-only.
    ///
    /// --file names the file; - is standard output. The default is kpx-report-NODE-TIME.html in the current folder. An existing
    /// file is never overwritten. Only its owner can read the file: it contains the cluster's addresses and names. For a page
    /// without them, write it from a bundle of `kpx snapshot --redact`, with --from.
    ///
    /// The exit status is 0 if the page was written, whatever it reports.
    #[command(after_help = report::EXAMPLES, after_long_help = report::EXAMPLES)]
    Report(ReportArgs),

    /// Show one view of the live state
    ///
    /// Every view names the Services and pods behind the objects. The names come from the API or, without it, from
    /// kube-proxy's comments in its rules.
    #[command(after_help = show::EXAMPLES, after_long_help = show::EXAMPLES)]
    Show(ShowArgs),

    /// Watch the traffic of Services, by backend
    ///
    /// Shows for each Service and backend the new and open connections, packets and bytes, and a backend's share of the new
    /// connections beside the share that the mode promises. The numbers are those of the connection table or, in ipvs mode, of
    /// the virtual servers; packets and bytes are known only where the kernel accounts for connections. Rejected packets
    /// come from the counters of kube-proxy's rules in iptables mode. Read-only; no rule is added and no lock is taken.
    ///
    /// On a terminal: q ends, the arrow keys select a Service, Enter shows its backends, s sorts, / filters, space pauses.
    /// Otherwise a table for each interval, or a line of JSON with -o json.
    #[command(after_help = top::EXAMPLES, after_long_help = top::EXAMPLES)]
    Top(TopArgs),

    /// Print what changes on this node, as it happens
    ///
    /// Prints a line with the time for each change of a finding, the mode, a Service, an endpoint, a chain, a set, a virtual
    /// server, an address or a kernel setting: + appeared, - is gone, ~ changed. The current findings come first. Read-only.
    #[command(after_help = watch::EXAMPLES, after_long_help = watch::EXAMPLES)]
    Watch(WatchArgs),

    /// Serve metrics and the health of this node
    ///
    /// An exporter for a DaemonSet. It answers at /metrics (for Prometheus; kpx-metrics(7) lists the metrics), /healthz (200 if
    /// no check finds an error, kube-proxy's rules are up to date and the readings are fresh; else 503 with the reasons) and
    /// /livez (200 as long as kpx runs). A liveness probe belongs to /livez: a restart of kpx repairs no node.
    ///
    /// kpx reads counters often, and runs all checks only when rules, virtual servers or Services changed, or after
    /// --check-interval. The checks run in a process of their own, which frees its memory when it ends. An unknown part has no
    /// metric, and `kpx_unknown` names it. Rules of iptables-legacy have no number that shows whether they changed: they are
    /// read after --check-interval.
    ///
    /// Read-only, but for the bundles of --record.
    #[command(after_help = serve::EXAMPLES, after_long_help = serve::EXAMPLES)]
    Serve(ServeArgs),

    /// Serve questions of an MCP client, such as an editor
    ///
    /// A server of the Model Context Protocol on standard input and output, which the client starts. Its tools are doctor, why,
    /// trace, diff, explain, services, and open, which reads a bundle, a support bundle or pasted text. They answer with the JSON
    /// of the commands. `kpx explain mcp` has the configuration of clients.
    ///
    /// Read-only: no tool changes anything. Answers are about a recording whose names and addresses are replaced, as by `kpx
    /// snapshot --redact`, unless you pass --no-redact.
    #[command(after_help = mcp::EXAMPLES, after_long_help = mcp::EXAMPLES)]
    Mcp(McpArgs),

    /// Trace a packet through the rules to its destination
    ///
    /// Follows the first packet of a new connection through every hook, as the kernel does: both iptables backends,
    /// nftables, IPVS and routing, including the rules of other software. The first word is the verdict on the connection, its
    /// reply included, as of `kpx why`: works, refused, lost, misled, partly or unknown. If it fails, the notes have the cause and
    /// the fix. Of a Service with several ports, each port is traced. Read-only, and sends no packet unless you pass --probe.
    ///
    /// Formats of its own: picture, which draws the connections; svg, the same for a browser; mermaid and dot, for these programs.
    #[command(after_help = trace::SHORT_EXAMPLES, after_long_help = trace::EXAMPLES)]
    Trace(TraceArgs),

    /// Explain why a Service does not work
    ///
    /// Resolves the target to a Service, and follows connections to every address of it (cluster IPs, NodePort, external and
    /// load-balancer IPs) from each client that has a way there (a pod, a pod of the Service itself, the host and outside) to an
    /// endpoint, and the replies back. The first word says what happens to them: works, refused (the client gets an error), lost
    /// (the client times out), misled (another program, Service or pod answers), partly, or unknown. The cause is the object
    /// whose repair, in a simulation, makes them work; it is printed with its owner, with its time if that is known, and with
    /// the fix. If everything that kpx sees works, it lists what it cannot see. Read-only, and sends no packet unless you pass
    /// --probe.
    ///
    /// Formats of its own: picture, which draws the connections, and svg, the same for a browser.
    #[command(after_help = why::SHORT_EXAMPLES, after_long_help = why::EXAMPLES)]
    Why(WhyArgs),

    /// Print the rules that kube-proxy would program
    ///
    /// Prints every part of the mode, each under the command that loads it: iptables-restore, ipset, ipvsadm, ip, nft or
    /// sysctl. Read-only.
    #[command(after_help = render::EXAMPLES, after_long_help = render::EXAMPLES)]
    Render(RenderArgs),

    /// Check that a node can run a mode; load its modules
    ///
    /// Lists everything that the mode needs of the node, with its state: kernel, modules, tools, settings, kube-proxy's view
    /// of the host, rights at the API server. Then it lists what blocks the switch, like `kpx doctor --to MODE`. Read-only
    /// unless you pass --load or --persist: kpx then prints its plan, asks for confirmation, applies the plan, and prints
    /// the commands that undo it.
    #[command(after_help = preflight::EXAMPLES, after_long_help = preflight::EXAMPLES)]
    Preflight(PreflightArgs),

    /// Repair the node's rules, or remove another mode's
    ///
    /// Prints the plan that removes the differences that `kpx diff` reports: each step as a command, with its undo. With --apply,
    /// kpx asks for confirmation, reads the node again, and applies the plan; if a step fails, the steps before it are rolled
    /// back. On a node without any rules of the mode, the plan programs all of them. With --cleanup, the plan removes the
    /// leftovers of another mode instead. Objects that kube-proxy does not own are never changed.
    ///
    /// With --watch, kpx then follows Services and endpoints, and programs each change, on a node without kube-proxy or with
    /// one that hangs. It refuses to start beside a kube-proxy that works. Ctrl-C or SIGTERM stops it with exit status 0; when
    /// a kube-proxy starts, it stops with exit status 4. The rules stay in both cases. /healthz, /livez and health check node
    /// ports are served as kube-proxy's configuration says, unless another process has the port. kpx needs a kubeconfig of
    /// its own if kube-proxy's is gone with its pod; a change of the mode in the configuration needs a restart of kpx. It
    /// holds kpx's lock on the node as long as it runs.
    #[command(after_help = reconcile::EXAMPLES, after_long_help = reconcile::EXAMPLES)]
    Reconcile(ReconcileArgs),

    /// Serve Services while kube-proxy changes its mode
    ///
    /// kube-proxy removes the old mode's rules before it writes the new mode's. The bridge fills the gap: the nftables table
    /// kpx-bridge serves new connections before any of kube-proxy's rules. Established connections are not touched. When
    /// kube-proxy has written its rules, the bridge can be removed; connections that started through it continue.
    ///
    /// In mode ipvs, kube-ipvs0 holds the Services' addresses, and the node's own processes use such an address as source
    /// when they connect to it. These connections would break when kube-proxy deletes kube-ipvs0. So the bridge adds a route
    /// for each address to table local (protocol 107) that selects the node's own address as source: for IPv4 in front of
    /// the kernel's route, for IPv6 in its place. Connections that already use such an address keep working as long as the
    /// bridge is loaded. The routes follow kube-ipvs0 within two seconds.
    ///
    /// The bridge has a lease: its set `alive`, whose elements expire in the kernel. `kpx bridge follow`, `kpx bridge guard`
    /// and `kpx migrate` renew it. If all of them are killed, the lease expires (--lease), new connections use kube-proxy's
    /// rules, and established connections continue. Routes do not expire: the guard removes them, and check MX09 reports
    /// routes without a keeper.
    ///
    /// To remove the bridge by hand: nft delete table ip kpx-bridge; nft delete table ip6 kpx-bridge; ip route flush table
    /// local proto 107; ip -6 route flush table local proto 107. Then remove the IPv6 addresses that are still on kube-ipvs0
    /// and add them again.
    #[command(after_help = bridge::EXAMPLES, after_long_help = bridge::EXAMPLES)]
    Bridge(BridgeArgs),

    /// Switch nodes to another mode, or roll back
    ///
    /// Switches the node that kpx runs on. With --all-nodes, or --node NAME,NAME, it switches these nodes one after the other
    /// through the API.
    ///
    /// kpx checks what blocks the switch, saves a backup, loads modules, builds the new mode's rules beside the old ones,
    /// changes kube-proxy's configuration, restarts kube-proxy, waits until it serves in the new mode and the Services
    /// answer, and removes the old mode's rules. Each step is written to a journal first: after a crash, `resume` or
    /// `rollback` continues from there. Steps that fail or time out are rolled back.
    ///
    /// Ctrl-C or SIGTERM stops the migration after the step in progress, or at once during a wait. The exit status is then 4,
    /// and the last line names the next command. A second signal stops at once.
    ///
    /// With -o json, each event is one line of JSON, and the last line is the report.
    #[command(after_help = migrate::EXAMPLES, after_long_help = migrate::LONG_EXAMPLES)]
    Migrate(Box<MigrateArgs>),

    /// Show the permissions that kpx needs, and which are missing
    ///
    /// Lists what kpx requests from the API server, by level: reading the cluster's objects, reading nodes through a pod on
    /// each, migrating nodes. Each permission has its purpose and its state: allowed, missing, or unknown if the API server
    /// does not answer. With COMMAND, only those of one command. --manifest prints the roles and bindings that grant them.
    /// Read-only: the API server stores nothing.
    #[command(after_help = access::SHORT_EXAMPLES, after_long_help = access::EXAMPLES)]
    Access(AccessArgs),

    /// Print a shell completion script
    #[command(after_help = completions::EXAMPLES, after_long_help = completions::EXAMPLES)]
    Completions(CompletionsArgs),

    /// Print a man page
    #[command(after_help = man::EXAMPLES, after_long_help = man::EXAMPLES)]
    Man(ManArgs),

    /// Print the help of a command
    #[command(after_help = help::EXAMPLES, after_long_help = help::EXAMPLES)]
    Help(HelpArgs),

    /// Print the version
    #[command(after_help = version::EXAMPLES, after_long_help = version::EXAMPLES)]
    Version(VersionArgs),

    /// Print what completes a command line
    #[command(hide = true)]
    Complete(CompleteArgs),

    /// Show Services on a screen: what kpx does without a command, where it has a terminal
    #[command(hide = true)]
    Screen,

    /// Keep a pod running while its standard input is open
    #[command(hide = true)]
    Pod(PodArgs),
}

impl Command {
    /// Returns the command's name, as it is typed.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Doctor(_) => "doctor",
            Self::Explain(_) => "explain",
            Self::Resolve(_) => "resolve",
            Self::Diff(_) => "diff",
            Self::Snapshot(_) => "snapshot",
            Self::Report(_) => "report",
            Self::Show(_) => "show",
            Self::Serve(_) => "serve",
            Self::Mcp(_) => "mcp",
            Self::Top(_) => "top",
            Self::Watch(_) => "watch",
            Self::Trace(_) => "trace",
            Self::Why(_) => "why",
            Self::Render(_) => "render",
            Self::Preflight(_) => "preflight",
            Self::Reconcile(_) => "reconcile",
            Self::Bridge(_) => "bridge",
            Self::Migrate(_) => "migrate",
            Self::Access(_) => "access",
            Self::Complete(_) => "complete",
            Self::Screen => "screen",
            Self::Completions(_) => "completions",
            Self::Man(_) => "man",
            Self::Help(_) => "help",
            Self::Version(_) => "version",
            Self::Pod(_) => "pod",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group_of_the_help() {
        let grouped = GROUPS.iter().flat_map(|(_, names)| *names).chain(MORE);
        let mut grouped: Vec<&str> = grouped.copied().collect();
        grouped.sort_unstable();
        let root = Cli::command();
        let all = root.get_subcommands().filter(|sub| !sub.is_hide_set());
        let mut all: Vec<&str> = all.map(clap::Command::get_name).collect();
        all.sort_unstable();
        assert_eq!(grouped, all);
    }
}
