//! `kpx diff`

use super::failure::{Failure, Hint as _};
use super::{Io, families, gather, mode};
use crate::backend::Mode;
use crate::cli::{DiffArgs, Global, ModeArg};
use crate::diff;
use crate::evidence::Item;
use crate::node::NodeSnapshot;
use crate::report::diff::DiffReport;

pub(super) async fn run(
    global: &Global,
    io: &Io<'_>,
    args: &DiffArgs,
) -> Result<DiffReport, Failure> {
    let mode = mode_of(global, io, args.mode).await?;
    let evidence = gather(global, io, &diff::needs(mode)).await?;
    let node = NodeSnapshot::new(&evidence).called(global.node.as_deref());
    let found = diff::compare(&node, mode, &families(global))
        .hint("`kpx snapshot -v` says what of the node and its cluster can be read")?;
    Ok(DiffReport::new(mode, found))
}

/// Returns the mode asked for, or else the one kube-proxy is configured for.
pub(super) async fn mode_of(
    global: &Global,
    io: &Io<'_>,
    asked: Option<ModeArg>,
) -> Result<Mode, Failure> {
    if let Some(arg) = asked {
        return Ok(mode(arg));
    }
    let evidence = gather(global, io, &[Item::ProxyConfig]).await?;
    NodeSnapshot::new(&evidence)
        .configured_mode()
        .hint("`--mode MODE` says which one is meant")
}
