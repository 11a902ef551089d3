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
        let of = command.get_bin_name().unwrap_or("kpx").to_owned();
        command = command.find_subcommand_mut(word).ok_or_else(|| {
            Failure::usage(format!("{of} has no command {word:?}")).with_hint(match of.as_str() {
                "kpx" => "`kpx help` lists the commands".to_owned(),
                of => format!(
                    "`kpx help {}` describes {of}, and `kpx help` lists the commands",
                    of.trim_start_matches("kpx ")
                ),
            })
        })?;
    }
    Ok(command.render_long_help().to_string())
}
