//! Runs the command that a command line names.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

use clap::error::ErrorKind;
use color_eyre::config::{HookBuilder, Theme};
use color_eyre::eyre::Report;
use futures_util::FutureExt as _;

use super::shared::confine;
use super::shared::defaults;
use super::shared::failure::{Failure, Verbosity};
use super::shared::identity;
use super::shared::io::Io;
use super::shared::local_bridge;
use super::shared::pager::{Pager, is_for_people};
use super::shared::root;
use super::shared::session::Session;
use super::shared::terminal::{Terminal, has_links};
use super::shared::unfit;
use super::{
    access, bridge, completions, diff, doctor, explain, help, man, mcp, migrate, pod, preflight,
    reconcile, render, report, resolve, screen, serve, show, snapshot, top, trace, version, watch,
    why,
};
use crate::cli;
use crate::cli::complaint::variables_in;
use crate::cli::parser::{Cli, Command};
use crate::cli::plugin::program;
use crate::command::bridge::args::{BridgeAction, BridgeArgs};
use crate::render::{TextWriter, Wrapper};
use crate::report::{CLEAN, FAILED, USAGE};

/// Runs kpx on the process's own arguments and streams.
pub async fn main() -> ExitCode {
    let terminal = Terminal::detect();
    let (mut out, mut err) = (io::stdout(), io::stderr());
    // Without a permanent lock: `kpx mcp` reads standard input itself.
    let mut input = io::BufReader::new(io::stdin());
    let mut io = Io {
        out: &mut out,
        err: &mut err,
        input: &mut input,
        interactive: terminal.input && terminal.err,
        width: terminal.width,
        err_width: terminal.err_width,
        terminal: terminal.out,
        color: terminal.color,
        ascii: terminal.ascii,
        progress: terminal.drawn,
        confine: true,
    };
    if let Err(error) = install_hooks() {
        return ExitCode::from(Failure::from(error).tell(io.err, Verbosity::Normal));
    }
    // The panic hook has printed the error; the exit status is still missing.
    let words = match defaults::completed(std::env::args_os().collect()) {
        Ok(words) => words,
        Err(failure) => return ExitCode::from(failure.tell(io.err, Verbosity::Normal)),
    };
    let code = AssertUnwindSafe(run(words, &mut io)).catch_unwind();
    ExitCode::from(code.await.unwrap_or(FAILED))
}

/// Installs the hooks that report errors and panics.
fn install_hooks() -> Result<(), Report> {
    let (panics, errors) = hooks().try_into_hooks()?;
    errors.install()?;
    panic::set_hook(Box::new(move |panic| {
        tell_panic(&panics.panic_report(panic), &mut io::stderr());
    }));
    Ok(())
}

fn hooks() -> HookBuilder {
    HookBuilder::default()
        .theme(Theme::new())
        .display_env_section(false)
        .panic_section(
            "This is a bug in kpx, not a problem of the node.\n\
             Please report it with the command line, the text above, and the bundle\n\
             that `kpx snapshot --redact` writes on this node.",
        )
}

/// Writes the report of a panic. Its message may quote a bundle: a terminal must not obey it.
fn tell_panic(report: &impl Display, err: &mut dyn Write) {
    let mut err = TextWriter::new(err, false);
    // There is no other place for an error.
    writeln!(err, "{report}").and_then(|()| err.flush()).ok();
}

/// Runs kpx on `args`, writing to `io`; returns the exit status.
pub async fn run(args: impl IntoIterator<Item = OsString>, io: &mut Io<'_>) -> u8 {
    let words: Vec<OsString> = args.into_iter().collect();
    let parsed = Cli::parse_from_words(&words);
    let cli = parsed.as_ref().ok();
    let verbosity = cli.map_or(Verbosity::Normal, |cli| Verbosity::of(&cli.global));
    let color = cli.is_some_and(|cli| cli.global.color.is_on(io.color));
    let mut pager = match &parsed {
        _ if !io.terminal => None,
        Ok(cli) => Pager::start(cli),
        Err(answer) => Pager::of_help(answer),
    };
    let is_page = cli.is_some_and(|cli| io.terminal && is_for_people(cli));
    let has_links = is_page && has_links() && pager.as_ref().is_none_or(|pager| pager.has_links);
    let to: &mut dyn Write = match &mut pager {
        Some(pager) => pager,
        None => &mut *io.out,
    };
    let mut text;
    let out: &mut dyn Write = if cli.is_some_and(snapshot::run::prints_bundle) {
        to
    } else {
        text = TextWriter::new(to, color).with_links(has_links);
        &mut text
    };
    let width = io.err_width.map(usize::from);
    let mut text_err = TextWriter::new(&mut *io.err, color);
    let mut err = Wrapper::new(&mut text_err, width, program(&words));
    let mut shown = Io {
        out,
        err: &mut err,
        input: &mut *io.input,
        ..*io
    };
    let ran = run_parsed(parsed, &words, &mut shown).await;
    let code = ran.unwrap_or_else(|failure| {
        let set = variables_in(&failure.to_string(), &words, &cli::command());
        let failure = match set.as_slice() {
            [] => failure,
            names => failure.and_hint(&format!("set by {}", names.join(" and "))),
        };
        failure.tell(&mut err, verbosity)
    });
    // There is no other place for an error.
    err.flush().ok();
    if let Some(pager) = pager {
        pager.end();
    }
    code
}

async fn run_parsed(
    parsed: Result<Cli, clap::Error>,
    words: &[OsString],
    io: &mut Io<'_>,
) -> Result<u8, Failure> {
    let parsed = match parsed {
        Err(answer) => screen_of(words, io).ok_or(answer),
        parsed => parsed,
    };
    let code = match parsed {
        Ok(cli) => {
            let session = Session::new(&cli, words, io)?;
            Box::pin(dispatch(&session, io, &cli.command)).await?
        }
        Err(answer) => usage(&answer, words, io)?,
    };
    // Writing the buffered rest can fail as well.
    io.out.flush()?;
    Ok(code)
}

/// Returns the command line `words`, which name no command, as one that opens the screen; `None` without a terminal.
fn screen_of(words: &[OsString], io: &Io<'_>) -> Option<Cli> {
    if !(io.terminal && io.interactive) {
        return None;
    }
    let whole: Vec<OsString> = words.iter().cloned().chain(["screen".into()]).collect();
    let cli = Cli::parse_from_words(&whole).ok()?;
    matches!(cli.command, Command::Screen).then_some(cli)
}

/// Prints clap's answer: an error, or the help or version that was asked for.
fn usage(answer: &clap::Error, words: &[OsString], io: &mut Io<'_>) -> Result<u8, Failure> {
    // A variable counts as an option for the parser, which then only misses the command.
    let help = match answer.kind() {
        ErrorKind::MissingSubcommand => {
            let program = words.first().cloned().unwrap_or_default();
            Cli::parse_from_words(&[program, "-h".into()]).err()
        }
        _ => None,
    };
    let is_missing =
        help.is_some() || answer.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    let text = help.as_ref().unwrap_or(answer).render().to_string();
    if is_missing {
        // The list of all commands fits on a screen.
        let commands = text.split_once("\n\nOptions:");
        let commands = commands.filter(|(commands, _)| commands.contains("\nDiagnose:"));
        let text = commands.map_or(text.as_str(), |(commands, _)| commands);
        writeln!(io.err, "{}", text.trim_end())?;
        return Ok(USAGE);
    }
    if answer.use_stderr() {
        write!(io.err, "{text}")?;
        Ok(USAGE)
    } else {
        write!(io.out, "{text}")?;
        Ok(CLEAN)
    }
}

/// Runs `command` on the selected machine, which may be another one.
async fn dispatch(session: &Session, io: &mut Io<'_>, command: &Command) -> Result<u8, Failure> {
    if let Command::Mcp(args) = command {
        // Each of its questions is a command of its own.
        return Box::pin(mcp::run::run(session, io, args)).await;
    }
    confine::to_bundles(session, io, command)?;
    let opened = session.opened(io, command)?;
    let session = opened.as_ref().unwrap_or(session);
    unfit::refuse_unusable(session, command).await?;
    identity::refuse_other_systems(session, command)?;
    root::refuse_others(session, command, false)?;
    identity::refuse_other_bundle(session, command).await?;
    if identity::claims(session, command)
        && let Some(remote) = identity::locate(session, command).await?
    {
        let done = Box::pin(run_command(&remote, io, command)).await;
        // The first error matters.
        let closed = remote.close().await;
        return done.and_then(|code| closed.map(|()| code));
    }
    if identity::reads_here(session, command) && !identity::reads_several(command) {
        identity::refuse_stranger(session).await?;
    }
    root::refuse_others(session, command, identity::claims(session, command))?;
    Box::pin(run_command(session, io, command)).await
}

async fn run_command(session: &Session, io: &mut Io<'_>, command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Doctor(args) => doctor::run::run(session, io, args).await,
        Command::Explain(args) => explain::run::run(session, io, args),
        Command::Render(args) => {
            let report = render::run::run(session, io, args).await?;
            session.finish(io, &report)
        }
        Command::Diff(args) => diff::run::run(session, io, args).await,
        Command::Bridge(args) => Box::pin(bridge_command(session, io, args)).await,
        Command::Migrate(args) => migrate::run::run(session, io, args).await,
        Command::Preflight(args) => preflight::run::run(session, io, args).await,
        Command::Reconcile(args) => reconcile::run::run(session, io, args).await,
        Command::Report(args) => Box::pin(report::run::run(session, io, args)).await,
        Command::Resolve(args) => resolve::run::run(session, io, args).await,
        Command::Snapshot(args) if args.script => snapshot::run::script(io),
        Command::Snapshot(args) if args.prints() => snapshot::run::print(session, io, args).await,
        Command::Snapshot(args) => snapshot::run::run(session, io, args).await,
        Command::Show(args) => show::run::run(session, io, args).await,
        Command::Serve(args) => Box::pin(serve::run::run(session, io, args)).await,
        Command::Mcp(args) => Box::pin(mcp::run::run(session, io, args)).await,
        Command::Top(args) => Box::pin(top::run::run(session, io, args)).await,
        Command::Watch(args) => Box::pin(watch::run::run(session, io, args)).await,
        Command::Trace(args) => Box::pin(trace::run::run(session, io, args)).await,
        Command::Why(args) => Box::pin(why::run::run(session, io, args)).await,
        Command::Access(args) => access::run::run(session, io, args).await,
        Command::Completions(args) => {
            io.out.write_all(&completions::run::script(args.shell))?;
            Ok(CLEAN)
        }
        Command::Man(args) => {
            io.out
                .write_all(man::run::page(args.page.as_deref())?.as_bytes())?;
            Ok(CLEAN)
        }
        Command::Help(args) => {
            io.out
                .write_all(help::run::text(session.style.program, &args.command)?.as_bytes())?;
            Ok(CLEAN)
        }
        Command::Complete(args) => Box::pin(completions::run::complete(session, io, args)).await,
        Command::Screen => Box::pin(screen::run::run(session, io)).await,
        Command::Pod(args) => pod::run::run(session, io, args).await,
        Command::Version(args) => session.finish(io, &version::run::run(args)?),
    }
}

async fn bridge_command(
    session: &Session,
    io: &mut Io<'_>,
    args: &BridgeArgs,
) -> Result<u8, Failure> {
    match args.action {
        BridgeAction::Show => session.finish(io, &bridge::run::show(session, args).await?),
        BridgeAction::Up => {
            let report = bridge::run::up(session, io, args).await?;
            session.finish(io, &report)
        }
        BridgeAction::Down => {
            let report = bridge::run::down(session, io, args).await?;
            session.finish(io, &report)
        }
        BridgeAction::Follow => Box::pin(bridge::follow::run(session, io, args)).await,
        BridgeAction::Guard if args.detach => {
            bridge::guard::refuse_bundle(session)?;
            let mode = session.mode(args.mode).await?;
            local_bridge::start_guard(session, mode, args.lease).await?;
            Ok(CLEAN)
        }
        BridgeAction::Guard => bridge::guard::run(session, io, args).await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn the_message_of_a_panic_is_shown_and_not_obeyed() {
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (panics, _) = hooks().into_hooks();
        let to = Arc::clone(&shown);
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            tell_panic(&panics.panic_report(panic), &mut *to.lock().unwrap());
        }));
        let ended = panic::catch_unwind(|| panic!("no Service {}", "a\u{1b}[2J\u{202e}b\r"));
        panic::set_hook(before);
        ended.unwrap_err();
        let shown = String::from_utf8(shown.lock().unwrap().clone()).unwrap();
        assert!(
            shown.contains("no Service a\\u001b[2J\\u202eb\\u000d"),
            "{shown}"
        );
        assert!(shown.contains("This is a bug in kpx"), "{shown}");
        assert!(!shown.contains(['\u{1b}', '\u{202e}', '\r']), "{shown}");
    }
}
