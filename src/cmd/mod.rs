//! One file per subcommand: gather, think, report.

mod doctor;
mod failure;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use color_eyre::config::HookBuilder;

use crate::cli::{Cli, Command, FamilyArg, Global};
use crate::evidence::{self, Evidence, Item};
use crate::host;
use crate::net::Family;
use crate::render::{self, Format, Report, Style};
use crate::report::USAGE;
use failure::{Failure, Hint as _};

/// The streams and terminal facts a command may use.
pub struct Io<'a> {
    /// Results go here, and nothing else.
    pub out: &'a mut dyn Write,
    /// Errors, hints and progress go here.
    pub err: &'a mut dyn Write,
    /// Columns available for tables.
    pub width: u16,
    /// Whether `out` is a terminal.
    pub terminal: bool,
}

/// Runs kpx on the process's own arguments and streams.
pub async fn main() -> ExitCode {
    let hooks = HookBuilder::default()
        .display_env_section(false)
        .panic_section("This is a bug in kpx. `kpx snapshot` helps to reproduce it.");
    let (mut out, mut err) = (io::stdout(), io::stderr());
    let terminal = out.is_terminal();
    let mut io = Io {
        out: &mut out,
        err: &mut err,
        width: 100,
        terminal,
    };
    let code = match hooks.install() {
        Ok(()) => run(std::env::args_os(), &mut io).await,
        Err(error) => Failure::from(error).tell(io.err),
    };
    ExitCode::from(code)
}

/// Runs kpx on `args`, writing to `io`; returns the exit status.
pub async fn run(args: impl IntoIterator<Item = OsString>, io: &mut Io<'_>) -> u8 {
    match try_run(args, io).await {
        Ok(code) => code,
        Err(failure) => failure.tell(io.err),
    }
}

async fn try_run(args: impl IntoIterator<Item = OsString>, io: &mut Io<'_>) -> Result<u8, Failure> {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        // `--help` and `--version` arrive as errors that belong on standard output.
        Err(usage) if usage.use_stderr() => {
            write!(io.err, "{}", usage.render())?;
            return Ok(USAGE);
        }
        Err(help) => {
            write!(io.out, "{}", help.render())?;
            return Ok(0);
        }
    };
    let global = &cli.global;
    match &cli.command {
        Command::Doctor(args) => finish(global, io, &doctor::run(global, args).await?),
        Command::Completions { shell } => {
            clap_complete::generate(*shell, &mut Cli::command(), "kpx", &mut io.out);
            Ok(0)
        }
    }
}

/// Reads `items`: from the bundle of `--from`, or from this node, with the cluster's from that of `--cluster-from`.
async fn gather(global: &Global, items: &[Item]) -> Result<Evidence, Failure> {
    let load = |path, items: &[Item]| {
        evidence::load(path, items).hint("`kpx snapshot -o PATH` writes a bundle")
    };
    if let Some(path) = &global.from {
        return load(path, items);
    }
    let Some(path) = &global.cluster_from else {
        return Ok(host::collect(items, &options(global)).await);
    };
    let (cluster, node): (Vec<Item>, Vec<Item>) =
        items.iter().partition(|item| item.is_of_cluster());
    let cluster = load(path, &cluster)?;
    let mut evidence = host::collect(&node, &options(global)).await;
    evidence.extend(cluster);
    Ok(evidence)
}

/// Returns where and how to read, as the command line says.
fn options(global: &Global) -> host::Options {
    host::Options {
        netns: global.netns.clone(),
        root: global.root.clone().unwrap_or_else(|| PathBuf::from("/")),
        node: global.node.clone(),
        families: match global.family {
            None => Family::BOTH.to_vec(),
            Some(FamilyArg::V4) => vec![Family::V4],
            Some(FamilyArg::V6) => vec![Family::V6],
        },
        timeout: global.timeout,
        kubeconfig: global.kubeconfig.clone(),
        context: global.context.clone(),
        no_api: global.no_api,
    }
}

/// Prints `report` in the format asked for: the only place that does.
fn finish(global: &Global, io: &mut Io<'_>, report: &impl Report) -> Result<u8, Failure> {
    let format = match global.output.as_deref() {
        None => Format::Human,
        Some(name) => Format::named(name).ok_or_else(|| {
            Failure::usage(format!(
                "{name:?} is not a format of this command: human, wide, json, yaml"
            ))
        })?,
    };
    let style = Style {
        width: io.width,
        color: false,
        ascii: global.ascii,
        wide: format == Format::Wide,
        verbose: global.verbose,
    };
    render::write(report, format, style, io.out)?;
    Ok(report.exit())
}
