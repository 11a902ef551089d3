//! `kpx bridge follow`

use std::cell::Cell;
use std::pin::pin;

use color_eyre::eyre::eyre;
use futures_util::future::{Either, select};

use super::args::BridgeArgs;
use super::run::hinted;
use crate::command::shared::change::open_after_guard;
use crate::command::shared::failure::Failure;
use crate::command::shared::io::Io;
use crate::command::shared::local_bridge::{LocalBridge, LocalKeeper};
use crate::command::shared::session::Session;
use crate::report::{CLEAN, FAILED};
use kpx_host::clock;
use kpx_migrate::controller::follow::Follower;
use kpx_migrate::controller::has_bridge;
use kpx_migrate::controller::keep::Order;

/// Follows the cluster until a signal arrives or the bridge is removed.
pub(in crate::command) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &BridgeArgs,
) -> Result<u8, Failure> {
    if session.source.is_bundle() || session.source.cluster_bundle().is_some() {
        return Err(Failure::usage(
            "`bridge follow` watches a live cluster: it takes neither --from nor --cluster-from",
        ));
    }
    let mode = session.mode(args.mode).await?;
    let live = open_after_guard(session).await?;
    let keeper = LocalKeeper::start(session, args.lease, "kpx bridge follow", Order::Keep)?;
    let mut node = LocalBridge::new(session, Some(live), keeper);
    if !has_bridge(&mut node).await? {
        let failure = Failure::from(eyre!("no bridge is loaded on this node"));
        return Err(failure.with_hint("`kpx bridge up --apply` loads one"));
    }
    let mut follower = Follower::start(node, mode).await.map_err(hinted)?;
    let quiet = session.quiet;
    let mut notify = |text: String| {
        if !quiet {
            // The follower continues even if stderr is closed.
            writeln!(io.err, "kpx: {text}").ok();
        }
    };
    let lease = args.lease.as_secs();
    notify(format!(
        "following the cluster; Ctrl-C stops, and the bridge stops serving new connections {lease} s later"
    ));
    let never = Cell::new(false);
    let until_removed = pin!(follower.follow(&never, &mut notify));
    match select(until_removed, pin!(clock::interrupted())).await {
        Either::Left(((), _)) => Ok(FAILED),
        Either::Right(((), _)) => Ok(CLEAN),
    }
}
