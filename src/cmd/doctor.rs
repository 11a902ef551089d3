//! `kpx doctor`

use color_eyre::eyre::eyre;

use super::failure::{Failure, Hint as _};
use super::{Io, gather};
use crate::check::{self, Check, Facts};
use crate::cli::{DoctorArgs, Global};
use crate::node::NodeSnapshot;
use crate::report::doctor::DoctorReport;

pub(super) async fn run(
    global: &Global,
    io: &Io<'_>,
    args: &DoctorArgs,
) -> Result<DoctorReport, Failure> {
    let checks = select(&args.only).hint("`kpx doctor --list` names them")?;
    let items: Vec<_> = check::needs(&checks).into_iter().collect();
    let evidence = gather(global, io, &items).await?;
    let node = NodeSnapshot::new(&evidence);
    Ok(DoctorReport::new(checks, &Facts { node: &node }))
}

fn select(only: &[String]) -> Result<Vec<&'static Check>, Failure> {
    if let Some(id) = only.iter().find(|id| check::all().all(|c| c.id != **id)) {
        return Err(eyre!("there is no check named {id}").into());
    }
    let wanted = |check: &&Check| only.is_empty() || only.iter().any(|id| id == check.id);
    Ok(check::all().filter(wanted).collect())
}
