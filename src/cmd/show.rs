//! `kpx show`

use color_eyre::eyre::eyre;

use super::shared::failure::{Failure, Hint as _};
use super::shared::session::Session;
use crate::cli::ShowArgs;
use crate::report::show::ShowReport;
use crate::view::{self, Query};

pub(super) async fn run(session: &Session, args: &ShowArgs) -> Result<ShowReport, Failure> {
    let evidence = session.gather(&args.view.needs()).await?;
    let node = session.node(&evidence);
    let query = Query {
        view: args.view,
        name: args.name.as_deref(),
        family: session.family(),
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
