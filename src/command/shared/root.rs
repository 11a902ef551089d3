//! Changes of this machine need root: refused at once, before anything is read.

use color_eyre::eyre::eyre;

use super::failure::Failure;
use super::session::Session;
use crate::cli::parser::Command;
use crate::command::bridge::args::BridgeAction;
use crate::command::migrate::args::MigratePart;
use kpx_host as host;

/// Refuses `command` if it changes this machine and kpx does not run as root.
///
/// `located` is whether `--node` is known to be this machine.
pub(in crate::command) fn refuse_others(
    session: &Session,
    command: &Command,
    located: bool,
) -> Result<(), Failure> {
    let here = session.source.is_this_machine() && (located || session.nodes.is_empty());
    // Another root may belong to its user.
    if !here || session.other_root().is_some() || host::is_root() {
        return Ok(());
    }
    let Some(what) = changes(command) else {
        return Ok(());
    };
    Err(
        Failure::from(eyre!("run as root: {what} changes this machine"))
            .with_hint("put `sudo` in front of the command; without the change, kpx reads what this user may read"),
    )
}

/// Returns the option of `command` that changes the machine that it runs on, if any.
fn changes(command: &Command) -> Option<&'static str> {
    let apply = |apply: bool| apply.then_some("--apply");
    match command {
        Command::Reconcile(args) => apply(args.change.apply && !args.nodes.are_several()),
        Command::Bridge(args) => match args.action {
            BridgeAction::Up | BridgeAction::Down => apply(args.change.apply),
            BridgeAction::Show | BridgeAction::Follow | BridgeAction::Guard => None,
        },
        Command::Preflight(args) if args.load => Some("--load"),
        Command::Preflight(args) if args.persist => Some("--persist"),
        Command::Migrate(args) => {
            let changes = match &args.part {
                None => !args.journey.dry_run && !args.fleet.all_nodes,
                Some(MigratePart::Prepare(args)) => !args.dry_run,
                Some(MigratePart::Finish(_)) => true,
                Some(MigratePart::Resume(args)) => !args.all_nodes,
                Some(MigratePart::Rollback(args)) => !args.all_nodes,
                Some(MigratePart::Status(_)) => false,
            };
            changes.then_some("a migration")
        }
        _ => None,
    }
}
