//! Who is there while the nodes of a cluster are moved: to answer a question, or to stop it.

use std::cell::RefCell;
use std::pin::pin;

use color_eyre::eyre::eyre;
use futures_util::future::{Either, select};

use crate::cmd::Io;
use crate::cmd::change::{answer, ask};
use crate::cmd::failure::Failure;
use crate::host::clock::{self, Interrupts};

/// Refuses a migration that would restart kube-proxy on nodes that are not prepared, for want of an image and a terminal.
pub(super) fn refuse_unattended(io: &Io<'_>, image: Option<&str>) -> Result<(), Failure> {
    if image.is_some() || io.interactive {
        return Ok(());
    }
    let what = eyre!(
        "without --image an operator prepares each node by hand, and standard input is not a terminal; nothing was \
         changed"
    );
    Err(Failure::from(what).with_hint(
        "`--image IMAGE` runs kpx in a pod on each node; in a terminal kpx shows the command for each node and waits; by \
         hand, on one node after the other: `kpx migrate prepare --to MODE`, change the configuration, delete kube-proxy's \
         pod, `kpx migrate finish`",
    ))
}

/// Does `work`, which changes nothing, unless somebody asks to stop.
pub(super) async fn unless_asked<T>(
    interrupts: &mut Interrupts,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match select(pin!(interrupts.next()), pin!(work)).await {
        Either::Left(_) => Err(eyre!("stopped on request; nothing was changed").into()),
        Either::Right((done, _)) => done,
    }
}

/// Asks on the terminal whether `what` is to be carried out.
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
