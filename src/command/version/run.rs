//! `kpx version`

use color_eyre::eyre::WrapErr as _;

use super::args::VersionArgs;
use crate::command::shared::failure::Failure;
use crate::command::shared::io::Io;
use crate::report::CLEAN;
use kpx_host as host;

pub(in crate::command) fn run(io: &mut Io<'_>, args: &VersionArgs) -> Result<u8, Failure> {
    if args.digest {
        let program = std::fs::read("/proc/self/exe")
            .wrap_err("cannot read this program from /proc/self/exe")?;
        writeln!(io.out, "{}", host::sha256(&program))?;
    } else {
        writeln!(io.out, "kpx {}", env!("CARGO_PKG_VERSION"))?;
    }
    Ok(CLEAN)
}
