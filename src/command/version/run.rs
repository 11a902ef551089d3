//! `kpx version`

use color_eyre::eyre::WrapErr as _;

use super::args::VersionArgs;
use super::report::{Releases, VersionReport};
use crate::command::shared::failure::Failure;
use kpx_host as host;
use kpx_node::cluster::release::{NEWEST, OLDEST, RECORDED};

/// The commit that was built, as `build.rs` finds it; none in sources without history.
const COMMIT: Option<&str> = option_env!("KPX_COMMIT");

pub(in crate::command) fn run(args: &VersionArgs) -> Result<VersionReport, Failure> {
    let digest = if args.digest {
        let program = std::fs::read("/proc/self/exe")
            .wrap_err("cannot read this program from /proc/self/exe")?;
        Some(host::sha256(&program))
    } else {
        None
    };
    Ok(VersionReport {
        version: env!("CARGO_PKG_VERSION"),
        commit: COMMIT.filter(|commit| !commit.is_empty()),
        kube_proxy: Releases {
            oldest: OLDEST.to_string(),
            newest: NEWEST.to_string(),
            recorded: RECORDED.to_string(),
        },
        digest,
    })
}
