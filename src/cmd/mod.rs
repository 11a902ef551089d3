//! One file per subcommand: gather, think, report.

mod bridge;
mod change;
mod cleanup;
mod diff;
mod doctor;
mod examine;
mod explain;
mod failure;
mod identity;
mod journals;
mod local_bridge;
mod man;
mod migrate;
mod output;
mod preflight;
mod probe;
mod prove;
mod reconcile;
mod render;
mod resolve;
mod show;
mod snapshot;
mod terminal;
mod trace;

use std::ffi::OsString;
use std::io::{self, BufRead, Write};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use color_eyre::config::{HookBuilder, Theme};
use futures_util::FutureExt as _;

use crate::backend::Mode;
use crate::cli::{BridgeAct, BridgeArgs, Cli, Command, FamilyArg, Global, ModeArg};
use crate::evidence::{self, Evidence, Item};
use crate::host;
use crate::net::Family;
use crate::render::Progress;
use crate::report::{CLEAN, FAILED, USAGE};
use failure::{Failure, Hint as _, Verbosity};
use output::{finish, finish_as};
use terminal::Terminal;

/// The streams and terminal facts a command may use.
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that have nothing to do with each other"
)]
pub struct Io<'a> {
    /// Results go here, and nothing else.
    pub out: &'a mut dyn Write,
    /// Errors, hints and progress go here.
    pub err: &'a mut dyn Write,
    /// Answers come from here.
    pub input: &'a mut dyn BufRead,
    /// Whether somebody sits at `input`.
    pub interactive: bool,
    /// Columns available for tables.
    pub width: u16,
    /// Whether `out` is a terminal.
    pub terminal: bool,
    /// Whether colour may be used where the command line leaves it open.
    pub color: bool,
    /// Whether the locale has ASCII alone.
    pub ascii: bool,
    /// Whether a sign of life may be drawn on the process's standard error.
    pub progress: bool,
}

/// Runs kpx on the process's own arguments and streams.
pub async fn main() -> ExitCode {
    let terminal = Terminal::detect();
    let (mut out, mut err) = (io::stdout(), io::stderr());
    let mut input = io::stdin().lock();
    let mut io = Io {
        out: &mut out,
        err: &mut err,
        input: &mut input,
        interactive: terminal.input && terminal.err,
        width: terminal.width,
        terminal: terminal.out,
        color: terminal.color,
        ascii: terminal.ascii,
        progress: terminal.drawn,
    };
    let theme = if terminal.err && terminal.color {
        Theme::dark()
    } else {
        Theme::new()
    };
    let hooks = HookBuilder::default()
        .theme(theme)
        .display_env_section(false)
        .panic_section(
            "This is a bug in kpx, and no fault of the node's.\n\
             Please report it with the command line, the text above, and what\n\
             `kpx snapshot --redact` wrote on this node: it makes the bug repeatable.",
        );
    if let Err(error) = hooks.install() {
        return ExitCode::from(Failure::from(error).tell(io.err, Verbosity::Normal));
    }
    // The panic hook has told what happened; what remains is a status out of the table.
    let code = AssertUnwindSafe(run(std::env::args_os(), &mut io)).catch_unwind();
    ExitCode::from(code.await.unwrap_or(FAILED))
}

/// Runs kpx on `args`, writing to `io`; returns the exit status.
pub async fn run(args: impl IntoIterator<Item = OsString>, io: &mut Io<'_>) -> u8 {
    let mut verbosity = Verbosity::Normal;
    let words: Vec<OsString> = args.into_iter().collect();
    let ran = match Cli::try_parse_from(&words) {
        Ok(mut cli) => {
            verbosity = Verbosity::of(&cli.global);
            match cli.gather(&words) {
                Ok(()) => dispatch(&cli, io).await,
                Err(why) => Err(Failure::usage(why)),
            }
        }
        Err(answer) => usage(&answer, io),
    };
    // What is still in a buffer can fail as well as what was written.
    let flushed = ran.and_then(|code| {
        io.out.flush()?;
        Ok(code)
    });
    flushed.unwrap_or_else(|failure| failure.tell(io.err, verbosity))
}

/// Prints what clap has to say: a complaint, or the help or version that was asked for.
fn usage(answer: &clap::Error, io: &mut Io<'_>) -> Result<u8, Failure> {
    let text = answer.render();
    if answer.use_stderr() {
        write!(io.err, "{text}")?;
        Ok(USAGE)
    } else {
        write!(io.out, "{text}")?;
        Ok(CLEAN)
    }
}

async fn dispatch(cli: &Cli, io: &mut Io<'_>) -> Result<u8, Failure> {
    let global = &cli.global;
    output::check(cli)?;
    if identity::claims(global, &cli.command) {
        identity::refuse_other(global, io).await?;
    }
    match &cli.command {
        Command::Doctor(args) => doctor::run(global, io, args).await,
        Command::Explain { check: None } => finish(global, io, &explain::list()),
        Command::Explain { check: Some(id) } => finish(global, io, &explain::one(id)?),
        Command::Render(args) => {
            let report = render::run(global, io, args).await?;
            finish(global, io, &report)
        }
        Command::Diff(args) => finish(global, io, &diff::run(global, io, args).await?),
        Command::Cleanup(args) => {
            let report = cleanup::run(global, io, args).await?;
            finish(global, io, &report)
        }
        Command::Bridge(args) => bridge_command(global, io, args).await,
        Command::Migrate(args) => migrate::run(global, io, args).await,
        Command::Preflight(args) => {
            let report = preflight::run(global, io, args).await?;
            finish(global, io, &report)
        }
        Command::Reconcile(args) => {
            let report = reconcile::run(global, io, args).await?;
            finish(global, io, &report)
        }
        Command::Resolve(args) => {
            let report = resolve::run(global, io, args).await?;
            finish(global, io, &report)
        }
        Command::Snapshot(args) if args.script => snapshot::script(global, io),
        Command::Snapshot(args) => {
            let report = snapshot::run(global, io, args).await?;
            finish(&snapshot::printing(global), io, &report)
        }
        Command::Show(args) => finish(global, io, &show::run(global, io, args).await?),
        Command::Trace(args) => {
            let report = trace::run(global, io, args).await?;
            finish_as(global, io, &report, trace::FORMATS)
        }
        Command::Completions { shell } => {
            // clap_complete panics when a write fails.
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "kpx", &mut script);
            io.out.write_all(&script)?;
            Ok(CLEAN)
        }
        Command::Man { page } => {
            io.out.write_all(man::page(page.as_deref())?.as_bytes())?;
            Ok(CLEAN)
        }
    }
}

async fn bridge_command(
    global: &Global,
    io: &mut Io<'_>,
    args: &BridgeArgs,
) -> Result<u8, Failure> {
    match args.act {
        BridgeAct::Show => finish(global, io, &bridge::show(global, io, args).await?),
        BridgeAct::Up => {
            let report = bridge::up(global, io, args).await?;
            finish(global, io, &report)
        }
        BridgeAct::Down => {
            let report = bridge::down(global, io, args).await?;
            finish(global, io, &report)
        }
        BridgeAct::Follow => bridge::follow::run(global, io, args).await,
        BridgeAct::Guard if args.detach => {
            let mode = diff::mode_of(global, io, args.mode).await?;
            local_bridge::start_guard(global, mode, args.lease).await?;
            Ok(CLEAN)
        }
        BridgeAct::Guard => bridge::guard::run(global, io, args).await,
    }
}

/// Reads `items`: from the bundle of `--from`, or from this node, with the cluster's from that of `--cluster-from`.
async fn gather(global: &Global, io: &Io<'_>, items: &[Item]) -> Result<Evidence, Failure> {
    read(global, items, &progress(global, io, items)).await
}

/// Reads `items` like [`gather`], and says to `progress` what is read.
async fn read(global: &Global, items: &[Item], progress: &Progress) -> Result<Evidence, Failure> {
    let load = |path, items: &[Item]| {
        evidence::load(path, items).hint("`kpx snapshot -o PATH` writes a bundle")
    };
    if let Some(path) = &global.from {
        return load(path, items);
    }
    let Some(path) = &global.cluster_from else {
        return collect(global, items, progress).await;
    };
    let (cluster, node): (Vec<Item>, Vec<Item>) =
        items.iter().partition(|item| item.is_of_cluster());
    let cluster = load(path, &cluster)?;
    let mut evidence = collect(global, &node, progress).await?;
    evidence.extend(cluster);
    Ok(evidence)
}

/// Reads `items` from this node.
async fn collect(
    global: &Global,
    items: &[Item],
    progress: &Progress,
) -> Result<Evidence, Failure> {
    let options = machine(global)?;
    Ok(host::collect_watched(items, &options, |item| progress.done(item.file())).await)
}

/// Returns where and how to read, once it is known that the network namespace is there.
fn machine(global: &Global) -> Result<host::Options, Failure> {
    let options = options(global);
    // Otherwise every item would say the same.
    host::check(&options).map_err(|none| {
        let hint = match none.names.as_slice() {
            [] => "`ip netns` lists none; a path such as /proc/PID/ns/net works, too".to_owned(),
            names => format!("there are: {}", names.join(", ")),
        };
        Failure::from(none).with_hint(hint)
    })?;
    Ok(options)
}

/// Shows what is being read, once that takes a while.
fn progress(global: &Global, io: &Io<'_>, items: &[Item]) -> Progress {
    if global.quiet || !io.progress {
        return Progress::silent();
    }
    let pending = match &global.from {
        Some(path) => vec![path.display().to_string()],
        None => items.iter().map(|item| item.file().to_owned()).collect(),
    };
    Progress::start(pending, output::style(global, io).ascii)
}

/// Returns the mode that `arg` names.
fn mode(arg: ModeArg) -> Mode {
    match arg {
        ModeArg::Iptables => Mode::Iptables,
        ModeArg::Ipvs => Mode::Ipvs,
        ModeArg::Nftables => Mode::Nftables,
    }
}

/// Returns the families that the command line asks for.
fn families(global: &Global) -> Vec<Family> {
    match global.family {
        None => Family::BOTH.to_vec(),
        Some(FamilyArg::V4) => vec![Family::V4],
        Some(FamilyArg::V6) => vec![Family::V6],
    }
}

/// Returns where and how to read, as the command line says.
fn options(global: &Global) -> host::Options {
    let text = |value: OsString| value.into_string().ok();
    host::Options {
        netns: global.netns.clone(),
        root: global.root.clone().unwrap_or_else(|| PathBuf::from("/")),
        node: global.node.clone(),
        families: families(global),
        timeout: global.timeout,
        kubeconfig: global.kubeconfig.clone(),
        context: global.context.clone(),
        no_api: global.no_api,
        environment: host::Environment {
            kubeconfig: std::env::var_os("KUBECONFIG"),
            home: std::env::var_os("HOME").map(PathBuf::from),
            service_host: std::env::var_os("KUBERNETES_SERVICE_HOST").and_then(text),
            service_port: std::env::var_os("KUBERNETES_SERVICE_PORT").and_then(text),
        },
    }
}
