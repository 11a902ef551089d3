//! `kpx show`

use color_eyre::eyre::eyre;

use super::failure::{Failure, Hint as _};
use super::{Io, gather, options};
use crate::cli::{Global, ShowArgs, ViewArg};
use crate::node::NodeSnapshot;
use crate::report::show::{Asked, ShowReport, View};

pub(super) async fn run(
    global: &Global,
    io: &Io<'_>,
    args: &ShowArgs,
) -> Result<ShowReport, Failure> {
    let view = match args.view {
        ViewArg::Services => View::Services,
        ViewArg::Chains => View::Chains,
        ViewArg::Ipvs => View::Ipvs,
        ViewArg::Sets => View::Sets,
        ViewArg::Addresses => View::Addresses,
        ViewArg::Nodeports => View::Nodeports,
        ViewArg::Conntrack => View::Conntrack,
        ViewArg::Modules => View::Modules,
        ViewArg::Sysctls => View::Sysctls,
        ViewArg::Config => View::Config,
    };
    let evidence = gather(global, io, &view.needs()).await?;
    let node = NodeSnapshot::new(&evidence).called(global.node.as_deref());
    let families = options(global).families;
    let asked = Asked {
        view,
        name: args.name.as_deref(),
        family: match families.as_slice() {
            [only] => Some(*only),
            _ => None,
        },
    };
    let report = ShowReport::new(&node, asked);
    match &args.name {
        // What was not read may hold it.
        Some(name) if report.is_empty() && report.gaps.is_empty() => Err(eyre!(
            "nothing here is called {name}"
        ))
        .hint("a Service is NAMESPACE/NAME[:PORT]; the view without a name lists what there is"),
        _ => Ok(report),
    }
}
