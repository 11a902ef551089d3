//! `kpx show`

use color_eyre::eyre::eyre;

use super::failure::{Failure, Hint as _};
use super::{Io, gather, options};
use crate::cli::{Global, ShowArgs, ViewArg};
use crate::node::NodeSnapshot;
use crate::report::show::ShowReport;
use crate::view::{self, Query, View};

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
    let query = Query {
        view,
        name: args.name.as_deref(),
        family: match families.as_slice() {
            [only] => Some(*only),
            _ => None,
        },
    };
    let report = ShowReport::new(view::show(&node, query));
    let (Some(name), Some(near)) = (&args.name, report.not_found()) else {
        return Ok(report);
    };
    let meant = match near {
        [] => String::new(),
        near => format!(": did you mean {}?", near.join(" or ")),
    };
    let what = format!("{name} not found{meant}");
    // A part that was not read may have it.
    let gap = report.gaps().first();
    let error = gap.map_or_else(
        || eyre!(what.clone()),
        |gap| eyre!("unknown: {gap}").wrap_err(what.clone()),
    );
    Err(error)
        .hint("name a Service as NAMESPACE/NAME[:PORT]; without a name the view lists all rows")
}
