//! The operator during a fleet's migration: questions and signals.

use std::cell::RefCell;
use std::pin::pin;

use color_eyre::eyre::eyre;
use futures_util::future::{Either, select};

use crate::command::shared::change::{answer, ask};
use crate::command::shared::failure::Failure;
use crate::command::shared::io::Io;
use kpx_host::clock::{self, Interrupts};

/// Refuses a migration with neither an image nor a terminal: without either, the nodes would not be prepared before kube-proxy restarts.
pub(super) fn refuse_unattended(io: &Io<'_>, by_hand: bool) -> Result<(), Failure> {
    if !by_hand || io.interactive {
        return Ok(());
    }
    let what = eyre!(
        "with --by-hand, an operator must prepare each node, and standard input is not a terminal; nothing was changed"
    );
    Err(Failure::from(what).with_hint(
        "without --by-hand, kpx runs in a pod on each node; in a terminal, kpx prints the command for each node and waits; or \
         migrate each node by hand: run `kpx migrate prepare --to MODE`, change the configuration, delete kube-proxy's pod, \
         and run `kpx migrate finish`",
    ))
}

/// Runs `work`, which changes nothing, until a signal arrives.
pub(super) async fn unless_asked<T>(
    interrupts: &mut Interrupts,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match select(pin!(interrupts.next()), pin!(work)).await {
        Either::Left(_) => Err(eyre!("stopped on request; nothing was changed").into()),
        Either::Right((done, _)) => done,
    }
}

/// Asks for confirmation of `what` on the terminal.
pub(super) async fn agree(
    io: &RefCell<&mut Io<'_>>,
    interrupts: &mut Interrupts,
    what: &str,
) -> Result<(), Failure> {
    ask(&mut io.borrow_mut(), what)?;
    unless_asked(interrupts, async {
        clock::typed().await;
        Ok(())
    })
    .await?;
    answer(&mut io.borrow_mut())
}
