//! The kernel that a mode requires.

use super::{Area, Need, Status};
use crate::check::Facts;
use kpx_node::backend::Mode;
use kpx_node::backend::requirements::oldest_kernel;

pub(super) fn needs(facts: &Facts<'_>, to: Mode) -> Vec<Need> {
    let row = |status, state: &str, note: String| {
        vec![Need::new(Area::Kernel, "release", status, state, note)]
    };
    let release = match facts.node.kernel_release() {
        Ok(release) => release,
        Err(gap) => return row(Status::Unknown, "unknown", gap.to_string()),
    };
    let Some(oldest) = oldest_kernel(to) else {
        return row(Status::Ready, release, "any version".to_owned());
    };
    let note = format!("{oldest} or newer");
    match facts.node.kernel() {
        Ok(kernel) if kernel >= oldest => row(Status::Ready, release, note),
        Ok(_) => row(Status::Fails, release, note),
        Err(gap) => row(Status::Unknown, release, format!("{note}; {gap}")),
    }
}
