//! `kpx completions`, and the hidden `kpx complete`, which the scripts ask for names.

use std::ffi::OsString;
use std::pin::pin;
use std::time::Duration;

use clap_complete::Shell;
use futures_util::future::{Either, select};

use super::args::CompleteArgs;
use super::names::names;
use super::words::{Typed, Wanted};
use crate::cli::{self, Cli};
use crate::command::shared::failure::Failure;
use crate::command::shared::io::Io;
use crate::command::shared::session::Session;
use crate::report::CLEAN;
use kpx_host::clock;

/// The longest time to wait for the API server: a person waits for the shell.
const SOON: Duration = Duration::from_secs(1);

/// Directives of cobra: files complete the word as well, or not.
const FILES: u8 = 0;
const NO_FILES: u8 = 4;

/// Additions to clap's scripts, by shell.
const BASH: &str = include_str!("names.bash");
const ZSH: &str = include_str!("names.zsh");
const FISH: &str = include_str!("names.fish");

/// Returns the script for `shell`.
pub(in crate::command) fn script(shell: Shell) -> Vec<u8> {
    // clap_complete panics when a write fails.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut visible(&cli::command()), "kpx", &mut script);
    match shell {
        Shell::Bash => script.extend(BASH.as_bytes()),
        Shell::Fish => script.extend(FISH.as_bytes()),
        Shell::Zsh => return zsh(&String::from_utf8_lossy(&script)).into_bytes(),
        _ => {}
    }
    script
}

/// Returns `root` without the commands that are not for users.
fn visible(root: &clap::Command) -> clap::Command {
    let commands = root.get_subcommands().filter(|sub| !sub.is_hide_set());
    clap::Command::new("kpx")
        .disable_help_subcommand(true)
        .version(env!("CARGO_PKG_VERSION"))
        .disable_version_flag(true)
        .args(root.get_arguments().cloned())
        .subcommands(commands.cloned())
}

/// Returns the script of zsh, in which arguments without a completion of their own ask for names.
fn zsh(script: &str) -> String {
    /// The last lines, which call the function.
    const CALL: &str = "\nif [ \"$funcstack[1]\" = \"_kpx\" ]";
    let text = script.replace(":_default'", ":_kpx_names'");
    match text.rfind(CALL) {
        Some(at) => format!("{}\n{ZSH}{}", &text[..at], &text[at..]),
        None => text,
    }
}

/// Prints what completes the last of the words of `args`, one a line: names that are read, and with `--all` words of the command
/// line as well, with their descriptions and the directive of cobra for kubectl. Names that cannot be read in time are not
/// printed.
pub(in crate::command) async fn complete(
    session: &Session,
    io: &mut Io<'_>,
    args: &CompleteArgs,
) -> Result<u8, Failure> {
    let mut root = cli::command();
    root.build();
    let typed = Typed::of(&root, &args.words);
    let mut line = vec![OsString::from("kpx")];
    line.extend(typed.options.iter().map(OsString::from));
    line.push("complete".into());
    // Incomplete options do not select a source.
    let parsed = Cli::parse_from_words(&line).ok();
    let chosen = parsed.and_then(|cli| Session::new(&cli, &line, io).ok());
    let mut quick = chosen.unwrap_or_else(|| session.clone());
    quick.progress = false;
    quick.host.timeout = quick.host.timeout.min(SOON);
    let names = pin!(names(&quick, &typed));
    let names = match select(names, pin!(clock::pause(SOON))).await {
        Either::Left((names, _)) => names,
        Either::Right(_) => Vec::new(),
    };
    for name in &names {
        writeln!(io.out, "{name}")?;
    }
    if !args.all {
        return Ok(CLEAN);
    }
    if let Wanted::Words(words) = &typed.wanted {
        for (word, about) in words
            .iter()
            .filter(|(word, _)| word.starts_with(&typed.begun))
        {
            writeln!(io.out, "{word}\t{about}")?;
        }
    }
    let directive = match typed.wanted {
        Wanted::Other => FILES,
        _ => NO_FILES,
    };
    writeln!(io.out, ":{directive}")?;
    Ok(CLEAN)
}
