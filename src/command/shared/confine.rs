//! Gives up rights (Landlock) before a bundle is read: bundles are untrusted input.

use std::path::{Path, PathBuf};

use color_eyre::eyre::WrapErr as _;

use super::failure::Failure;
use super::session::Session;
use crate::cli::parser::Command;
use crate::command::shared::io::Io;
use kpx_host as host;
use kpx_node::evidence::files;

/// Gives up these rights if `command` reads bundles and neither this machine nor the API server.
pub(in crate::command) fn to_bundles(
    session: &Session,
    io: &mut Io<'_>,
    command: &Command,
) -> Result<(), Failure> {
    let compares = matches!(command, Command::Diff(args) if args.bundles.len() == 2);
    let reads_bundles = session.source.is_bundle() && !session.source.is_completed() || compares;
    if !io.confine || !reads_bundles {
        return Ok(());
    }
    let confined = host::confine(written(command).as_slice())
        .wrap_err("cannot give up the right to start programs, which a bundle does not need")?;
    if !confined && session.style.verbose > 0 {
        writeln!(
            io.err,
            "kpx: this kernel has no Landlock: the bundle is read without a sandbox"
        )?;
    }
    Ok(())
}

/// Returns the folder in which `command` writes a file, if it does.
fn written<'c>(command: &'c Command) -> Option<PathBuf> {
    // Without a path, under a name of its own in the current folder.
    let named = |file: &'c Option<PathBuf>| file.as_deref().unwrap_or(Path::new(""));
    let file = match command {
        Command::Doctor(args) => args.textfile.as_deref()?,
        Command::Report(args) => named(&args.file),
        Command::Snapshot(args) => named(&args.file),
        _ => return None,
    };
    Some(files::folder_of(file).to_owned())
}
