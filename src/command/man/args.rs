//! `kpx man`

use clap::Args;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kpx man | man -l -                     the page of kpx
  kpx man doctor > /usr/local/share/man/man1/kpx-doctor.1
  kpx man checks | man -l -              all checks";

/// Options of `kpx man`.
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Print the page of this command, or of checks
    #[arg(value_name = "NAME")]
    pub page: Option<String>,
}
