//! Printing a report: the only place that does.

use crate::cli::{Cli, Color, Command, Global};
use crate::render::{self, Format, Report, Style};

use super::Io;
use super::failure::Failure;

/// A format that one command adds: its name, and how its text is made.
pub(super) type Extra<R> = (&'static str, fn(&R, Style) -> String);

/// Complains about an `--output` that the command does not have, before anything is read.
pub(super) fn check(cli: &Cli) -> Result<(), Failure> {
    let extra: &[&str] = match &cli.command {
        Command::Doctor(args) if !args.list => &["short", "junit", "prom"],
        Command::Trace(_) => &["mermaid", "dot"],
        // Anything is a path.
        Command::Snapshot(_) => return Ok(()),
        _ => &[],
    };
    match cli.global.output.as_deref() {
        Some(name) if Format::named(name).is_none() && !extra.contains(&name) => {
            Err(wrong_format(name, extra))
        }
        _ => Ok(()),
    }
}

fn wrong_format(name: &str, extra: &[&str]) -> Failure {
    let all: Vec<&str> = Format::NAMES.iter().chain(extra).copied().collect();
    Failure::usage(format!(
        "{name:?} is not a format of this command; it has {}",
        all.join(", ")
    ))
}

/// Returns how to print, as the command line and the terminal say.
pub(super) fn style(global: &Global, io: &Io<'_>) -> Style {
    Style {
        width: io.width,
        color: match global.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => io.color,
        },
        ascii: global.ascii || io.ascii,
        wide: global.output.as_deref() == Some("wide"),
        verbose: global.verbose,
    }
}

/// Prints `report` in the format asked for, and returns the exit status.
pub(super) fn finish<R: Report>(
    global: &Global,
    io: &mut Io<'_>,
    report: &R,
) -> Result<u8, Failure> {
    finish_as(global, io, report, &[])
}

/// Prints `report` in the format asked for, which may be one of `extra`, and returns the exit status.
pub(super) fn finish_as<R: Report>(
    global: &Global,
    io: &mut Io<'_>,
    report: &R,
    extra: &[Extra<R>],
) -> Result<u8, Failure> {
    let style = style(global, io);
    let name = global.output.as_deref().unwrap_or("human");
    if let Some((_, text)) = extra.iter().find(|(extra, _)| *extra == name) {
        io.out.write_all(text(report, style).as_bytes())?;
        return Ok(report.exit());
    }
    let format = Format::named(name).ok_or_else(|| {
        let names: Vec<&str> = extra.iter().map(|(name, _)| *name).collect();
        wrong_format(name, &names)
    })?;
    render::write(report, format, style, io.out)?;
    Ok(report.exit())
}
