//! `kpx help`

use crate::cli;
use crate::cli::plugin;
use crate::command::shared::failure::Failure;

/// Returns the long help of the command that `words` name; of kpx itself without words.
pub(in crate::command) fn text(program: &str, words: &[String]) -> Result<String, Failure> {
    let mut root = plugin::as_program(cli::command(), program);
    root.build();
    let mut command = &mut root;
    for word in words {
        command = command.find_subcommand_mut(word).ok_or_else(|| {
            Failure::usage(format!("kpx has no command {:?}", words.join(" ")))
                .with_hint("`kpx help` lists the commands")
        })?;
    }
    Ok(command.render_long_help().to_string())
}
