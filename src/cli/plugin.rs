//! kpx as a plugin of kubectl: the same program by another name.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::builder::StyledStr;

/// The name of the program as a plugin of kubectl, which users run as `kubectl kpx`.
const PLUGIN: &str = "kubectl-kpx";

/// The words that users type to run it.
const AS_PLUGIN: &str = "kubectl kpx";

/// Returns whether the command line `words` runs kpx as a plugin of kubectl.
pub(super) fn is_meant(words: &[OsString]) -> bool {
    let program = words.first().map(Path::new);
    program.and_then(Path::file_stem) == Some(OsStr::new(PLUGIN))
}

/// Returns the words that run kpx again as the command line `words` runs it: `kpx` or `kubectl kpx`.
pub(crate) fn program(words: &[OsString]) -> &'static str {
    if is_meant(words) { AS_PLUGIN } else { "kpx" }
}

/// Returns `command`, the definition of the command line, under the name `program`: kpx or the plugin.
pub(crate) fn as_program(root: clap::Command, program: &str) -> clap::Command {
    if program == AS_PLUGIN {
        command(root)
    } else {
        root
    }
}

/// Returns `command`, the definition of the command line, as a plugin of kubectl: usage and examples begin with `kubectl kpx`.
pub(super) fn command(command: clap::Command) -> clap::Command {
    fn renamed(command: clap::Command) -> clap::Command {
        let text = |text: Option<&StyledStr>| {
            text.map(|text| text.to_string().replace("\n  kpx ", "\n  kubectl kpx "))
        };
        let (short, long) = (
            text(command.get_after_help()),
            text(command.get_after_long_help()),
        );
        let command = command.mut_subcommands(renamed);
        let command = short.into_iter().fold(command, clap::Command::after_help);
        long.into_iter()
            .fold(command, clap::Command::after_long_help)
    }
    renamed(command).bin_name(AS_PLUGIN)
}
