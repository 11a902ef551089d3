//! `kpx version`

use color_eyre::eyre::WrapErr as _;

use super::args::VersionArgs;
use crate::command::shared::failure::Failure;
use crate::command::shared::io::Io;
use crate::report::CLEAN;
use kpx_host as host;
use kpx_node::cluster::release::{NEWEST, OLDEST, RECORDED};

/// The commit that was built, if the build names it: `make static` and `make dist` do.
const COMMIT: Option<&str> = option_env!("KPX_COMMIT");

pub(in crate::command) fn run(io: &mut Io<'_>, args: &VersionArgs) -> Result<u8, Failure> {
    if args.digest {
        let program = std::fs::read("/proc/self/exe")
            .wrap_err("cannot read this program from /proc/self/exe")?;
        writeln!(io.out, "{}", host::sha256(&program))?;
    } else {
        writeln!(io.out, "kpx {}", env!("CARGO_PKG_VERSION"))?;
        writeln!(io.out, "commit {}", COMMIT.unwrap_or("unknown"))?;
        writeln!(
            io.out,
            "kube-proxy {OLDEST} to {NEWEST}, with recordings up to {RECORDED}"
        )?;
    }
    Ok(CLEAN)
}
