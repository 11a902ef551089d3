//! `kpx diff`

use std::mem::ManuallyDrop;

use super::failure::{Failure, Hint as _};
use super::{Io, families, gather, mode};
use crate::backend::Mode;
use crate::cli::{DiffArgs, Global, ModeArg};
use crate::diff;
use crate::evidence::{Gap, Item};
use crate::node::NodeSnapshot;
use crate::report::diff::DiffReport;

const MEANT: &str = "pass `--mode MODE`";

pub(super) async fn run(
    global: &Global,
    io: &Io<'_>,
    args: &DiffArgs,
) -> Result<DiffReport, Failure> {
    let mode = match look_up_mode(global, io, args.mode).await? {
        Ok(mode) => mode,
        Err(gap) => return Ok(DiffReport::nothing(None, gap, MEANT)),
    };
    let evidence = gather(global, io, &diff::needs(mode)).await?;
    // Freeing a large cluster's evidence takes a tenth of the time, and the process ends here.
    let evidence = ManuallyDrop::new(evidence);
    let node = NodeSnapshot::new(&evidence).called(global.node.as_deref());
    let node = ManuallyDrop::new(node);
    Ok(match diff::compare(&node, mode, &families(global)) {
        Ok(found) => DiffReport::new(mode, found),
        Err(gap) => DiffReport::nothing(
            Some(mode),
            gap,
            "`kpx snapshot -v` lists what can be read from the node and its cluster",
        ),
    })
}

/// Returns the given mode, or else the mode kube-proxy is configured for.
pub(super) async fn mode_of(
    global: &Global,
    io: &Io<'_>,
    asked: Option<ModeArg>,
) -> Result<Mode, Failure> {
    look_up_mode(global, io, asked).await?.hint(MEANT)
}

/// The same; an unknown mode is not a failure.
async fn look_up_mode(
    global: &Global,
    io: &Io<'_>,
    asked: Option<ModeArg>,
) -> Result<Result<Mode, Gap>, Failure> {
    if let Some(arg) = asked {
        return Ok(Ok(mode(arg)));
    }
    let evidence = gather(global, io, &[Item::ProxyConfig]).await?;
    Ok(NodeSnapshot::new(&evidence).configured_mode())
}
